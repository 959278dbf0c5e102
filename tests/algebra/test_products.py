"""Products and structure: the definitions written out, kinds of tensors, autograd, and what is refused.

The laws they obey are in test_laws.py.
"""

from __future__ import annotations

import mprod
import pytest
import torch
from hypothesis import settings
from slice_cases import close
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from tcpvit.algebra import (
    LearnedTransform,
    MatrixTransform,
    block_matrix,
    cprod,
    facewise,
    from_hat,
    get_transform,
    identity,
    inner,
    random_orthogonal,
    to_hat,
    transpose,
)
from tcpvit.timing import using_threads

FLOAT = torch.float64
few = settings(max_examples=40)
ALL = ["dct", "dst", "cosine_kka", "haar", "hadamard", "identity", "dft", "random_orthogonal", "wavelet:db2"]


def randn(*shape: int, dtype: torch.dtype = FLOAT, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


def by_loop(A: Tensor, B: Tensor, M: Tensor) -> Tensor:
    """The definition for order 3: transform, multiply slice by slice, transform back."""
    A_hat, B_hat = (torch.einsum("kc,ijc->ijk", M, X.to(M.dtype)) for X in (A, B))
    C_hat = torch.stack([A_hat[..., k] @ B_hat[..., k] for k in range(len(M))], dim=-1)
    return torch.einsum("kc,ijc->ijk", torch.linalg.inv(M), C_hat)


# --- definitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("m", "k", "n"), [(4, 5, 2), (1, 1, 1), (3, 1, 4)])
def test_product_is_its_definition(name, m, k, n):
    A, B = randn(m, k, 4), randn(k, n, 4)
    expected = by_loop(A, B, get_transform(name, 4).matrix)
    close(cprod(A, B, name), expected.real if name == "dft" else expected)


@pytest.mark.parametrize("C", [1, 2, 3, 5, 6, 7, 12, 128, 160])
def test_product_of_every_tube_length_is_its_definition(C):
    A, B = randn(3, 4, C), randn(4, 2, C)
    close(cprod(A, B), by_loop(A, B, get_transform("dct", C).matrix))
    close(cprod(A.float(), B.float()).double(), by_loop(A, B, get_transform("dct", C).matrix), 1e-5)


@pytest.mark.parametrize("C", [1, 3, 8, 200])
def test_product_is_that_of_mprod_package(C):
    A, B = randn(6, 5, C), randn(5, 4, C)
    expected = mprod.m_prod(A.numpy(), B.numpy(), *mprod.generate_dct(C))
    close(cprod(A, B), torch.from_numpy(expected))


@pytest.mark.parametrize("C", [1, 2, 5, 8])
def test_t_product_is_the_block_circulant_one(C):
    A, B = randn(3, 4, C), randn(4, 2, C)
    circulant = torch.cat([torch.cat([A[..., (i - j) % C] for j in range(C)], 1) for i in range(C)], 0)
    stacked = torch.cat(B.unbind(-1), 0)
    folded = torch.stack((circulant @ stacked).split(3), dim=-1)
    product = cprod(A, B, "dft")
    assert not product.is_complex()
    close(product, folded)
    transposed = torch.stack([A[..., (-k) % C].mT for k in range(C)], dim=-1)
    close(transpose(A, "dft"), transposed)


def test_t_linear_is_the_kronecker_formula():
    """With the tube slowest it is (Φᵀ⊗I)·blockdiag(Ŵ_kᵀ)·(Φ⊗I); ours is fastest, so both sides are permuted."""
    d_in, d_out, C = 4, 5, 3
    X, W = randn(1, d_in, C), randn(d_in, d_out, C)
    phi = get_transform("dct", C).matrix
    diagonal = torch.block_diag(*to_hat(W).permute(2, 1, 0))
    slow = (
        torch.kron(phi.mT.contiguous(), torch.eye(d_out, dtype=FLOAT))
        @ diagonal
        @ torch.kron(phi, torch.eye(d_in, dtype=FLOAT))
    )
    close((slow @ X[0].mT.flatten()).view(C, d_out).mT, cprod(X, W)[0])
    fast = slow.view(C, d_out, C, d_in).permute(1, 0, 3, 2).reshape(d_out * C, d_in * C)
    close(fast, block_matrix(transpose(W)))


def test_facewise_is_the_plain_slice_product():
    A, B = randn(2, 4, 5, 3), randn(5, 2, 3)
    close(facewise(A, B), torch.einsum("bikc,kjc->bijc", A, B))
    A, B = randn(4, 5, 3, 2), randn(5, 2, 3, 2)
    close(facewise(A, B, tube_ndim=2), torch.einsum("ikcd,kjcd->ijcd", A, B))


def test_higher_order_is_the_transform_of_every_mode():
    A, B = randn(3, 4, 2, 3, 4), randn(4, 2, 2, 3, 4)
    transforms = ("dct", "haar", random_orthogonal(4))
    M = [get_transform(t, c).matrix for t, c in zip(transforms, (2, 3, 4), strict=True)]
    hats = [torch.einsum("ijabc,xa,yb,zc->xyzij", X, *M) for X in (A, B)]
    expected = torch.einsum("xyzij,xa,yb,zc->ijabc", hats[0] @ hats[1], *M)
    close(cprod(A, B, transforms, tube_ndim=3), expected)


def test_two_dfts_are_a_two_dimensional_circular_convolution():
    a, b = randn(1, 1, 4, 5), randn(1, 1, 4, 5)
    i, j = torch.arange(4), torch.arange(5)
    expected = torch.zeros(4, 5, dtype=FLOAT)
    for p in range(4):
        for q in range(5):
            expected += a[0, 0, p, q] * b[0, 0][(i - p) % 4][:, (j - q) % 5]
    product = cprod(a, b, "dft", tube_ndim=2)
    assert not product.is_complex()
    close(product[0, 0], expected)


# --- kinds of tensors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dct", "dft", "identity", "cosine_kka"])
@pytest.mark.parametrize("C", [4, 128])
def test_layout_in_memory_does_not_matter(name, C):
    A, B = randn(2, 3, 4, C), randn(2, 4, 3, C)
    expected = cprod(A, B, name)
    strided = torch.zeros(2, 3, 8, 2 * C, dtype=FLOAT)
    strided[:, :, ::2, ::2] = A
    for variant in (A.movedim(-1, 0).contiguous().movedim(0, -1), A.mT.contiguous().mT, strided[:, :, ::2, ::2]):
        assert not variant.is_contiguous()
        close(cprod(variant, B, name), expected)
    close(cprod(A, B.transpose(-2, -3).contiguous().transpose(-2, -3), name), expected)
    row = A[:, :, :1, :1].expand_as(A)
    close(cprod(row, B, name), cprod(row.contiguous(), B, name))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("C", [4, 128])
def test_empty_tensors_go_through(name, C):
    for m, k, n, batch in ((0, 2, 3, ()), (2, 0, 3, ()), (2, 3, 0, ()), (2, 3, 2, (0,))):
        A, B = randn(*batch, m, k, C, grad=True), randn(*batch, k, n, C)
        product = cprod(A, B, name)
        assert product.shape == (*batch, m, n, C)
        assert not product.is_complex()
        assert (product == 0).all()
        product.sum().backward()
        assert A.grad.shape == A.shape
        assert block_matrix(A, name).shape == (*batch, m * C, k * C)
        assert from_hat(to_hat(A, name), name).shape == A.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["dct", "dft", "haar", "identity"])
def test_half_precision_products(name, dtype):
    A, B = randn(5, 6, 3, dtype=dtype), randn(6, 4, 3, dtype=dtype)
    product = cprod(A, B, name)
    assert product.dtype == dtype
    close(product.double(), cprod(A.double(), B.double(), name), 4 * torch.finfo(dtype).eps)
    assert transpose(A, name).dtype == dtype
    assert from_hat(A, name).dtype == dtype
    close(from_hat(A, name).double(), from_hat(A.double(), name), torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", [*ALL, "learned"])
def test_default_dtype_does_not_matter(name):
    A, B = randn(3, 2, 4, dtype=torch.float32), randn(2, 3, 4, dtype=torch.float32)
    expected = cprod(A, B, name)
    torch.set_default_dtype(FLOAT)
    try:
        product, eye = cprod(A, B, name), identity(3, 4, name)
    finally:
        torch.set_default_dtype(torch.float32)
    close(product, expected, 1e-5)
    assert (product.dtype, eye.dtype) == (torch.float32, FLOAT)
    close(cprod(eye, A.double(), name), A.double(), 1e-6 if name == "learned" else 1e-10)  # it learns in float32


def test_transpose_of_a_real_transform_is_a_view():
    A = randn(2, 4, 5, 3)
    assert transpose(A).data_ptr() == A.data_ptr()
    assert torch.equal(transpose(A), A.transpose(1, 2))
    A = torch.randn(4, 5, 3, dtype=torch.complex64)
    assert torch.equal(transpose(A), A.transpose(0, 1).conj())


def test_complex_matrix_beside_a_dft_keeps_every_slice():
    """Half of the slices would do for DFTs alone; another complex transform breaks their symmetry."""
    M = MatrixTransform(torch.randn(3, 3, dtype=torch.complex128))
    A, B = randn(2, 2, 3, 4), randn(2, 2, 3, 4)
    halves, full = cprod(A, B, (M, "dft"), tube_ndim=2), cprod(A + 0j, B + 0j, (M, "dft"), tube_ndim=2)
    close(halves, full)


def test_two_threads_compute_the_same():
    A, B = randn(64, 64, 3), randn(64, 64, 3)
    expected = cprod(A, B)
    with using_threads(2):
        close(cprod(A, B), expected)


# --- autograd and its companions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", ["dct", "dft", "cosine_kka", "haar", "identity"])
def test_gradients_of_the_product(transform):
    A, B = randn(2, 3, 3, grad=True), randn(3, 2, 3, grad=True)
    assert gradcheck(lambda A, B: cprod(A, B, transform), (A, B))
    assert gradgradcheck(lambda A, B: cprod(A, B, transform), (A, B))


def test_gradients_of_broadcast_products():
    assert gradcheck(cprod, (randn(2, 2, 2, 3, grad=True), randn(2, 1, 3, grad=True)))
    assert gradcheck(cprod, (randn(1, 2, 3, grad=True), randn(2, 2, 1, 3, grad=True)))
    two_modes = (randn(2, 2, 2, 3, grad=True), randn(2, 1, 2, 3, grad=True))
    assert gradcheck(lambda A, B: cprod(A, B, ("dft", "dct"), tube_ndim=2), two_modes)


@pytest.mark.parametrize("transform", ["dct", "dft", "cosine_kka"])
def test_gradients_of_the_other_functions(transform):
    A = randn(2, 3, 3, grad=True)
    for function in (to_hat, transpose, block_matrix):
        assert gradcheck(lambda A, f=function: f(A, transform), A)
        assert gradgradcheck(lambda A, f=function: f(A, transform), A)
    A_hat = to_hat(A, transform).detach().requires_grad_()
    for check in (gradcheck, gradgradcheck):
        assert check(lambda A_hat: from_hat(A_hat, transform), A_hat)
        assert check(inner, (A, randn(2, 3, 3, grad=True)))


@pytest.mark.parametrize(
    ("name", "C"),
    [("dct", 128), ("dct", 131), ("dst", 131), ("haar", 128), ("haar", 131), ("hadamard", 64), ("dft", 131)],
)
def test_gradients_of_long_tubes_are_products(name, C):
    """As in test_laws, but by the fast algorithms."""
    X, W = randn(3, 4, C, grad=True), randn(4, 2, C, grad=True)
    Y = cprod(X, W, name)
    G = torch.randn_like(Y)
    dX, dW = torch.autograd.grad(Y, (X, W), G)
    close(dW, cprod(transpose(X, name), G, name).detach())
    close(dX, cprod(G, transpose(W, name), name).detach())


def test_gradients_reach_a_learned_transform():
    learned = LearnedTransform(3).double()
    weight = next(learned.parameters())
    A, B = randn(2, 2, 3, grad=True), randn(2, 2, 3, grad=True)

    def product(weight: Tensor, A: Tensor, B: Tensor) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(
            learned, {"basis.parametrizations.weight.original": weight}
        ):
            return cprod(A, B, learned)

    assert gradcheck(product, (weight.detach().clone().add_(0.1 * randn(3, 3)).requires_grad_(), A, B))


@pytest.mark.parametrize("C", [3, 6, 128])
@pytest.mark.parametrize("transform", ["dct", "dft", "haar", "cosine_kka", "identity"])
def test_product_compiles_to_one_graph(transform, C):
    torch.compiler.reset()
    compiled = torch.compile(lambda A, B: cprod(A, B, transform), fullgraph=True, backend="aot_eager")
    A, B = randn(2, 4, 5, C + 1, grad=True), randn(5, 3, C + 1)  # a tube length that no test has used before
    for _ in range(2):  # the second time its transform is known
        product = compiled(A, B)
    close(product, cprod(A, B, transform))
    (expected,) = torch.autograd.grad(cprod(A, B, transform).square().sum(), A)
    close(torch.autograd.grad(product.square().sum(), A)[0], expected)


@pytest.mark.parametrize("transform", ["dct", "dft"])
def test_compiled_product_takes_one_tube_length_after_another(transform):
    """The second length makes torch.compile treat lengths as symbols, but a transform has a length of its own."""
    torch.compiler.reset()
    compiled = torch.compile(lambda A, B: cprod(A, B, transform), fullgraph=True, backend="aot_eager")
    for m, C in ((2, 31), (3, 33), (4, 33), (5, 133)):  # lengths that no test has used before
        A, B = randn(m, 4, C), randn(4, 2, C)
        close(compiled(A, B), cprod(A, B, transform))


def test_product_is_exported():
    class Square(torch.nn.Module):
        def forward(self, A: Tensor) -> Tensor:
            return cprod(A, A)

    A = randn(3, 3, 3)
    close(torch.export.export(Square(), (A,)).module()(A), cprod(A, A))


@pytest.mark.parametrize("C", [3, 128])
def test_product_under_torch_func(C):
    A, B = randn(6, 3, 4, C), randn(4, 2, C)
    close(torch.func.vmap(lambda A: cprod(A, B))(A), cprod(A, B))
    expected = torch.func.jacrev(lambda B: cprod(A[0, :1], B).sum(1))(B[:, :1])
    close(torch.func.jacfwd(lambda B: cprod(A[0, :1], B).sum(1))(B[:, :1]), expected)


# --- what is refused --------------------------------------------------------------------------------------------------

OK = torch.ones(4, 5, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: cprod(OK, torch.ones(4, 2, 3)),
            r"as many columns in A as rows in B, got 5 in \(4, 5, 3\) and 4 in \(4, 2, 3\); should one .* transp",
        ),
        (
            lambda: cprod(OK, torch.ones(5, 2, 4)),
            r"the tubes differ: A has shape \(4, 5, 3\), B \(5, 2, 4\); their last 1 dimension",
        ),
        (
            lambda: cprod(torch.ones(2, 4, 5, 3), torch.ones(3, 5, 2, 3)),
            r"the batch dimensions \(2,\) of A and \(3,\) of B do not broadcast: A has shape \(2, 4, 5, 3\), B \(3",
        ),
        (lambda: cprod(OK, torch.ones(5, 2, 3).double()), "the dtypes differ: A is torch.float32, B is torch.float64"),
        (lambda: cprod(OK, torch.ones(5, 2, 3, device="meta")), "the devices differ: A is on cpu, B on meta; move one"),
        (lambda: cprod(OK.long(), OK.long()), r"A should hold floating-point numbers, got torch.int64; .* A.float\(\)"),
        (lambda: cprod(OK, OK.long()), r"B should hold floating-point numbers, got torch.int64; .* B.float\(\)"),
        (lambda: cprod(OK[0], OK), r"A should have shape \(..., m, n, C\), got \(5, 3\)"),
        (lambda: cprod(OK, OK, tube_ndim=2), r"A should have shape \(..., m, n, C1, C2\), got \(4, 5, 3\)"),
        (lambda: cprod(OK, OK, tube_ndim=0), "tube_ndim counts the tube modes and is at least 1, got 0"),
        (lambda: cprod(OK.tolist(), OK), "A should be a torch tensor, got list; use torch.as_tensor"),
        (
            lambda: cprod(OK, torch.ones(5, 2, 3), "hadamard"),
            "hadamard needs a tube whose length is a power of two, got 3",
        ),
        (lambda: to_hat(OK, ("dct", "dct")), "got 2 transforms for 1 tube modes; give one, or one for each"),
        (lambda: to_hat(torch.ones(4, 5, 0)), "a tube has at least one entry, got length 0"),
        (lambda: identity(0, 3), "the identity tensor has at least one row, got m=0"),
        (lambda: identity(2, 0), "a tube has at least one entry, got length 0"),
        (
            lambda: inner(OK, torch.ones(5, 4, 3)),
            r"the inner product needs equal shapes, got \(4, 5, 3\) and \(5, 4, 3\)",
        ),
        (
            lambda: inner(OK.expand(2, -1, -1, -1), OK.expand(3, -1, -1, -1)),
            r"\(2,\) of A and \(3,\) of B do not broadcast",
        ),
        (lambda: inner(OK, OK.double()), "the dtypes differ: A is torch.float32, B is torch.float64"),
        (lambda: transpose(OK[0]), r"A should have shape \(..., m, n, C\), got \(5, 3\)"),
        (lambda: block_matrix(OK.int()), "A should hold floating-point numbers, got torch.int32"),
    ],
)
def test_refusals_name_the_fault(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_inner_product_broadcasts_and_conjugates():
    A, B = torch.randn(3, 2, 2, 2, dtype=torch.complex64), torch.randn(2, 2, 2, dtype=torch.complex64)
    close(inner(A, B), torch.einsum("bijk,ijk->b", A.conj(), B), 1e-5)
