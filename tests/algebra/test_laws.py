"""The laws of the product: what holds for every transform, what for orthogonal ones only, and what fails without."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.fft
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slice_cases import Case, close, sizes, transforms_for
from torch import Tensor

from tcpvit.algebra import MatrixTransform, block_matrix, cprod, from_hat, identity, inner, to_hat, transpose

FLOAT = torch.float64
few = settings(max_examples=40)


def randn(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=FLOAT, requires_grad=grad)


@st.composite
def orders(draw: st.DrawFn, orthogonal: bool | None = None) -> Case:
    """One, two or three tube modes, any transform in each."""
    tube = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    fitting = [[t for t in transforms_for(c) if orthogonal is None or t.is_orthogonal == orthogonal] for c in tube]
    transforms = tuple(draw(st.sampled_from(found)) for found in fitting)
    return Case(transforms, draw(st.sampled_from([(), (2,), (2, 1)])), draw(st.integers(0, 1000)))


# --- identities that hold for every transform -------------------------------------------------------------------------


@few
@given(case=orders(), m=sizes, n=sizes)
def test_hat_domain_and_back(case: Case, m, n):
    A = case.randn(m, n)
    A_hat = to_hat(A, **case.options)
    assert A_hat.shape == A.shape
    close(from_hat(A_hat, **case.options), A)


@few
@given(case=orders(), m=sizes, k=sizes, j=sizes, n=sizes)
def test_product_is_associative(case: Case, m, k, j, n):
    A, B, C = case.randn(m, k), case.randn(k, j), case.randn(j, n)
    close(case.star(A, case.star(B, C)), case.star(case.star(A, B), C))


@few
@given(case=orders(), m=sizes, k=sizes, n=sizes)
def test_product_is_bilinear(case: Case, m, k, n):
    A, B, C = case.randn(m, k), case.randn(k, n), case.randn(k, n).flip(0)
    close(case.star(A, 2 * B - C), 2 * case.star(A, B) - case.star(A, C))


@few
@given(case=orders(), m=sizes, k=sizes, n=sizes)
def test_transpose_turns_products_round(case: Case, m, k, n):
    A, B = case.randn(m, k), case.randn(k, n)
    close(case.t(case.star(A, B)), case.star(case.t(B), case.t(A)))
    close(case.t(case.t(A)), A)


@few
@given(case=orders(), m=sizes, n=sizes)
def test_identity_changes_nothing(case: Case, m, n):
    A = case.randn(m, n)
    close(case.star(case.eye(m), A), A)
    close(case.star(A, case.eye(n)), A)
    close(case.t(case.eye(m)), case.eye(m))


@few
@given(case=orders(), m=sizes, n=sizes, columns=sizes)
def test_block_matrix_acts_on_the_flat_tensor(case: Case, m, n, columns):
    A, X = case.randn(m, n), case.randn(n, columns)
    modes, tubes = len(case.tube), math.prod(case.tube)
    flat = X.movedim(-1 - modes, 0).reshape(columns, *case.batch, n * tubes)  # one flat tensor for each column
    product = case.star(A, X).movedim(-1 - modes, 0).reshape(columns, *case.batch, m * tubes)
    matrix = block_matrix(A, **case.options)
    close((matrix @ flat.unsqueeze(-1)).squeeze(-1), product)


@few
@given(case=orders(), m=sizes, k=sizes, n=sizes)
def test_block_matrices_multiply_as_their_tensors(case: Case, m, k, n):
    A, B = case.randn(m, k), case.randn(k, n)
    close(
        block_matrix(case.star(A, B), **case.options), block_matrix(A, **case.options) @ block_matrix(B, **case.options)
    )


@few
@given(
    case=orders(),
    batches=st.sampled_from(
        [((), ()), ((2,), ()), ((), (3,)), ((3, 1), (2,)), ((2,), (3, 1)), ((1,), (4,)), ((0,), (1,))]
    ),
    m=sizes,
    k=sizes,
    n=sizes,
)
def test_batches_broadcast(case: Case, batches, m, k, n):
    A, B = randn(*batches[0], m, k, *case.tube), randn(*batches[1], k, n, *case.tube)
    batch = torch.broadcast_shapes(*batches)
    product = case.star(A, B)
    assert product.shape == (*batch, m, n, *case.tube)
    A, B = A.expand(*batch, *A.shape[len(batches[0]) :]), B.expand(*batch, *B.shape[len(batches[1]) :])
    for i in np.ndindex(*batch):
        close(product[i], case.star(A[i].contiguous(), B[i].contiguous()))


@few
@given(case=orders(), m=sizes, k=sizes, n=sizes)
def test_complex_tensors_multiply_by_parts(case: Case, m, k, n):
    A, B = (torch.complex(case.randn(*shape), case.randn(*shape).flip(0)) for shape in ((m, k), (k, n)))
    star = case.star
    close(
        star(A, B),
        torch.complex(star(A.real, B.real) - star(A.imag, B.imag), star(A.real, B.imag) + star(A.imag, B.real)),
    )
    close(case.t(star(A, B)), star(case.t(B), case.t(A)))


# --- identities of orthogonal transforms ------------------------------------------------------------------------------


@few
@given(case=orders(orthogonal=True), m=sizes, n=sizes)
def test_parseval(case: Case, m, n):
    A, B = case.randn(m, n), case.randn(n, m).transpose(-1 - len(case.tube), -2 - len(case.tube))
    p = len(case.tube)
    hats = inner(to_hat(A, **case.options), to_hat(B, **case.options), tube_ndim=p)
    close((hats / case.scale).real, inner(A, B, tube_ndim=p))


@few
@given(case=orders(orthogonal=True), m=sizes, k=sizes, n=sizes)
def test_transpose_is_the_adjoint(case: Case, m, k, n):
    A, X, Y = case.randn(m, k), case.randn(k, n), case.randn(m, n)
    p = len(case.tube)
    close(inner(case.star(A, X), Y, tube_ndim=p), inner(X, case.star(case.t(A), Y), tube_ndim=p))


@few
@given(case=orders(orthogonal=True), m=sizes, k=sizes, n=sizes)
def test_gradients_are_products(case: Case, m, k, n):
    """∂L/∂W = Xᵀ ⋆ ∂L/∂Y and ∂L/∂X = ∂L/∂Y ⋆ Wᵀ for Y = X ⋆ W."""
    X, W = case.randn(m, k).requires_grad_(), case.randn(k, n).requires_grad_()
    Y = case.star(X, W)
    G = torch.randn_like(Y)
    dX, dW = torch.autograd.grad(Y, (X, W), G)
    close(dW, case.star(case.t(X), G).detach())
    close(dX, case.star(G, case.t(W)).detach())


@few
@given(case=orders(orthogonal=True), m=sizes, n=sizes)
def test_block_matrix_of_the_transpose_is_the_transpose(case: Case, m, n):
    A = case.randn(m, n)
    close(block_matrix(case.t(A), **case.options), block_matrix(A, **case.options).mT)


@few
@given(case=orders(orthogonal=True), m=sizes, n=sizes)
def test_nearest_product_to_a_dense_map_is_the_diagonal_blocks_of_the_hat_basis(case: Case, m, n):
    p, C = len(case.tube), math.prod(case.tube)
    W = randn(m * C, n * C)
    into, out = (block_basis(case, size) for size in (n, m))
    blocks = (out @ W.to(out.dtype) @ into.mH / case.scale).view(m, C, n, C).diagonal(dim1=1, dim2=3)  # (m, n, C)
    nearest = from_hat(blocks.reshape(m, n, *case.tube), **case.options)
    rest = W - block_matrix(nearest, **case.options)
    other = block_matrix(randn(m, n, *case.tube), **case.options)
    close((rest * other).sum(), torch.zeros((), dtype=FLOAT), 1e-9)  # the rest is orthogonal to every product
    assert nearest.ndim == 2 + p


def block_basis(case: Case, size: int) -> Tensor:
    """I ⊗ M on flat tensors (size, C1, …, Cp), the tube fastest."""
    M = torch.ones(1, 1, dtype=FLOAT)
    for transform in case.transforms:
        dtype = torch.promote_types(M.dtype, transform.matrix.dtype)
        M = torch.kron(M.to(dtype), transform.matrix.to(dtype))
    return torch.kron(torch.eye(size, dtype=M.dtype), M)


def test_joint_scores_are_the_sum_over_slices():
    """Σ_k q̂_k·k̂_k = q·k, which joint attention stands on."""
    q, k = randn(7, 4, 3), randn(7, 4, 3)  # (N, d, C)
    q_hat, k_hat = to_hat(q), to_hat(k)
    close(torch.einsum("ndc,mdc->nm", q_hat, k_hat), q.flatten(1) @ k.flatten(1).mT)


@pytest.mark.parametrize("C", [2, 3, 5])
def test_metric_laws_fail_without_orthogonality(C):
    """cosine_kka keeps the algebra and loses the geometry: the laws above are no accident of our functions."""
    X, W = randn(4, 5, C, grad=True), randn(5, 2, C, grad=True)
    Y = cprod(X, W, "cosine_kka")
    G = torch.randn_like(Y)
    dX, dW = torch.autograd.grad(Y, (X, W), G)
    far = 1e-2
    assert (dW - cprod(transpose(X), G, "cosine_kka")).norm() > far * dW.norm()
    assert (dX - cprod(G, transpose(W), "cosine_kka")).norm() > far * dX.norm()
    hat = to_hat(X, "cosine_kka")
    ratios = to_hat(torch.eye(C, dtype=FLOAT).view(1, C, C), "cosine_kka").square().sum(-1)
    assert ratios.max() > (1 + far) * ratios.min()  # no factor would mend Parseval
    assert (hat.norm() - X.norm()).abs() > far * X.norm()
    assert (block_matrix(transpose(X), "cosine_kka") - block_matrix(X, "cosine_kka").mT).norm() > far


# --- the identity tensor ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("C", [1, 2, 3, 4, 7, 16, 200])
def test_identity_tube_of_the_dct_has_the_closed_form(C):
    k = torch.arange(C, dtype=FLOAT)
    cot = 1 / torch.tan(math.pi * (2 * k + 1) / (4 * C))
    tube = 1 / math.sqrt(C) - 1 / math.sqrt(2 * C) + (-1) ** k * cot / math.sqrt(2 * C)
    close(identity(3, C, dtype=FLOAT), torch.eye(3, dtype=FLOAT)[..., None] * tube)


@pytest.mark.parametrize("C", [2, 3, 6])
def test_papers_identity_is_one_for_cosine_kka_only(C):
    papers = torch.zeros(3, 3, C, dtype=FLOAT)
    papers[..., 0] = torch.eye(3)
    close(identity(3, C, "cosine_kka", dtype=FLOAT), papers)
    A = randn(3, 4, C)
    close(cprod(papers, A, "cosine_kka"), A)
    assert (cprod(papers, A) - A).norm() > 0.1 * A.norm()
    close(to_hat(papers)[0, 0], torch.from_numpy(scipy.fft.dct(np.eye(C)[0], norm="ortho")))


def test_papers_hat_of_its_identity_at_three_channels():
    e1 = torch.tensor([[[1.0, 0.0, 0.0]]])
    close(to_hat(e1), torch.tensor([[[0.577, 0.707, 0.408]]]), 1e-3)


def test_identity_takes_dtype_device_and_order():
    eye = identity(2, (3, 4), ("dct", "dft"), dtype=torch.float32, device="cpu")
    assert (eye.shape, eye.dtype) == ((2, 2, 3, 4), torch.float32)
    hat = to_hat(eye, ("dct", "dft"), tube_ndim=2)
    close(hat, torch.eye(2, dtype=torch.complex64)[..., None, None].expand(2, 2, 3, 4), 1e-5)
    assert identity(2, 3).dtype == torch.get_default_dtype()
    assert identity(2, 3, "dft", dtype=torch.complex64).dtype == torch.complex64
    assert identity(2, 3, dtype=torch.bfloat16).dtype == torch.bfloat16
    M = MatrixTransform(torch.randn(3, 3, dtype=torch.complex128))
    A = randn(2, 2, 3)
    close(cprod(identity(2, 3, M, dtype=FLOAT), A.to(torch.complex128), M), A.to(torch.complex128), 1e-8)
