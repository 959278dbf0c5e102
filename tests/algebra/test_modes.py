"""The algebra in torch's modes: vmap, jvp, meta and fake tensors, compile, autocast; empty tensors, NumPy input."""

import numpy as np
import pytest
import torch
from slice_cases import close
from torch._subclasses import FakeTensorMode

from tcpvit import algebra
from tcpvit.algebra import cprod, transpose

TRANSFORMS = ["dct", "dft", "cosine_kka"]


def randn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def symmetric(A, transform):
    return A + transpose(A, transform)


def definite(A, transform):
    eye = algebra.identity(A.shape[-2], A.shape[-1], transform, dtype=A.real.dtype).to(A)
    return symmetric(A, transform) + 30 * eye


# What each gives that does not depend on signs or phases: as a function of a square tensor and a transform.
FACTORISATIONS = {
    "svd": lambda A, t: algebra.svd(A, t).S,
    "truncated_svd": lambda A, t: algebra.truncated_svd(A, t, rank=2).S,
    "low_rank": lambda A, t: algebra.low_rank(A, t, rank=2).approximation,
    "polar": lambda A, t: algebra.polar(A, t).H,
    "qr": lambda A, t: algebra.qr(A, t).R,
    "lu": lambda A, t: algebra.lu(A, t).U,
    "cholesky": lambda A, t: algebra.cholesky(definite(A, t), t),
    "eigh": lambda A, t: algebra.eigh(symmetric(A, t), t).D,
    "inverse": lambda A, t: algebra.inverse(A, t),
    "pinv": lambda A, t: algebra.pinv(A, t),
    "solve": lambda A, t: algebra.solve(A, A[..., :1, :], t),
    "lstsq": lambda A, t: algebra.lstsq(A, A[..., :1, :], t),
    "tikhonov": lambda A, t: algebra.tikhonov(A, A[..., :1, :], 0.1, None, t),
    "norm": lambda A, t: algebra.norm(A, t, ord="nuclear"),
    "fro": lambda A, t: algebra.norm(A, t),
    "det": lambda A, t: algebra.det(A, t),
    "power": lambda A, t: algebra.power(A, -2, t),
    "expm": lambda A, t: algebra.expm(A, t),
    "svt": lambda A, t: algebra.svt(A, 0.1, t),
    "sqrtm": lambda A, t: algebra.sqrtm(definite(A, t) + A, t),
    "sqrtm of symmetric": lambda A, t: algebra.sqrtm(definite(A, t), t),
    "logm": lambda A, t: algebra.logm(definite(A, t) + A, t),
}
cases = pytest.mark.parametrize(
    ("name", "transform"),
    [(name, t) for name in FACTORISATIONS for t in TRANSFORMS if (name, t) != ("svt", "cosine_kka")],
)


@cases
def test_vmap_is_the_batch(name, transform):
    function, A = FACTORISATIONS[name], randn(4, 3, 3, 4)
    close(torch.vmap(lambda X: function(X, transform))(A), function(A, transform))


@cases
def test_jvp_against_differences(name, transform):
    function, A, dA = FACTORISATIONS[name], randn(3, 3, 4), randn(3, 3, 4, seed=1)
    _, tangent = torch.func.jvp(lambda X: function(X, transform), (A,), (dA,))
    h = 1e-6
    close(tangent, (function(A + h * dA, transform) - function(A - h * dA, transform)) / (2 * h), atol=1e-6)


@cases
def test_meta_and_fake_tensors_have_the_shapes(name, transform):
    function, A = FACTORISATIONS[name], randn(2, 3, 3, 4)
    expected = function(A, transform)
    on_meta = function(A.to("meta"), transform)
    with FakeTensorMode() as mode:
        fake = function(mode.from_tensor(A), transform)
    for found in (on_meta, fake):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize("transform", ["dct", "dft"])
@pytest.mark.parametrize("name", FACTORISATIONS)
def test_compiles_to_one_graph(name, transform):
    torch.compiler.reset()
    function, A = FACTORISATIONS[name], randn(3, 3, 4)
    compiled = torch.compile(lambda X: function(X, transform), fullgraph=True, backend="eager")
    close(compiled(A), function(A, transform))


def system(A, t):
    return definite(A, t), A[..., :2, :]


# Iterations stop when the numbers are good enough: operators that vmap, compile and fake tensors do not look into.
ITERATIONS = {
    "cg": lambda A, t: algebra.cg(*system(A, t), t, tol=1e-12).x,
    "gmres": lambda A, t: algebra.gmres(*system(A, t), t, tol=1e-12).x,
    "golub_kahan": lambda A, t: algebra.golub_kahan(*system(A, t), t, tol=1e-12).x,
    "energy": lambda A, t: algebra.low_rank(A, t, energy=0.9).approximation,
    "robust_pca": lambda A, t: algebra.robust_pca(A, None, t, max_iterations=3, tol=1e-30).low_rank,
}


@pytest.mark.filterwarnings("ignore:robust_pca stopped")
@pytest.mark.parametrize("transform", ["dct", "dft"])
@pytest.mark.parametrize("name", ITERATIONS)
def test_iterations_in_modes(name, transform):
    torch.compiler.reset()
    function, A = ITERATIONS[name], randn(2, 3, 3, 4)
    expected = function(A, transform)
    close(torch.vmap(lambda X: function(X, transform))(A), expected)
    close(torch.compile(lambda X: function(X, transform), fullgraph=True, backend="aot_eager")(A), expected)
    assert function(A.to("meta"), transform).shape == expected.shape


@pytest.mark.parametrize("solver", [algebra.cg, algebra.gmres, algebra.golub_kahan])
def test_vmap_over_one_side_of_a_system(solver):
    A, B = system(randn(3, 3, 4), "dct")
    Bs = torch.stack([B, 2 * B, 0 * B])  # the last is solved from the start
    close(torch.vmap(lambda B: solver(A, B, tol=1e-12).x)(Bs), solver(A, Bs, tol=1e-12).x)
    As = torch.stack([A, 3 * A])
    close(torch.vmap(lambda A: solver(A, B, tol=1e-12).x, in_dims=0)(As), solver(As, B, tol=1e-12).x)
    assert torch.vmap(lambda A: solver(A, B, max_iterations=1, tol=1e-12).converged)(As).tolist() == [False, False]


@pytest.mark.parametrize(
    "function", [algebra.sqrtm, algebra.logm, lambda A: algebra.low_rank(A, energy=0.9).approximation]
)
def test_gradients_in_every_mode(function):
    A = definite(randn(2, 2, 2, 3), "dct")

    def total(X):
        return (function(X) * X).sum()

    expected = torch.autograd.grad(total(A.requires_grad_()), A)[0]
    close(torch.func.grad(total)(A.detach()), expected)
    close(torch.vmap(torch.func.grad(total))(A.detach()), expected)
    torch.compiler.reset()
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    close(torch.autograd.grad(compiled(A), A)[0], expected)


@pytest.mark.parametrize(
    "function", [algebra.orth, algebra.null, algebra.skinny_svd, lambda A: algebra.truncated_svd(A, energy=0.9)]
)
def test_shapes_that_depend_on_numbers_are_refused_where_they_cannot_be_seen(function):
    A = randn(2, 3, 3, 4)
    for call in (lambda: torch.vmap(function)(A), lambda: function(A.to("meta"))):
        with pytest.raises(ValueError, match="the shape of the result depends on the numbers in A"):
            call()
    torch.compiler.reset()
    found, expected = torch.compile(function, backend="eager")(A), function(A)
    assert [X.shape for X in found] == [X.shape for X in expected]


@pytest.mark.parametrize("name", FACTORISATIONS)
def test_autocast_does_not_round(name):
    function, A = FACTORISATIONS[name], randn(8, 8, 3, dtype=torch.float32)
    expected = function(A, "dct")
    with torch.autocast("cpu", torch.bfloat16):
        found = function(A, "dct")
        assert function(A.bfloat16(), "dct").dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.parametrize("solver", [algebra.cg, algebra.gmres, algebra.golub_kahan])
def test_solvers_converge_under_autocast(solver):
    G = randn(8, 8, 3, dtype=torch.float32)
    A, B = cprod(G, transpose(G)) + algebra.identity(8, 3), G[:, :2]
    with torch.autocast("cpu", torch.bfloat16):
        found = solver(A, B)
    assert found.converged
    assert torch.equal(found.x, solver(A, B).x)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("function", [algebra.svd, algebra.eigh, algebra.qr, algebra.lu, algebra.polar, algebra.schur])
def test_factors_of_complex_tensors_multiply(function, transform):
    A = torch.complex(randn(3, 3, 4), randn(3, 3, 4, seed=1))
    if function is algebra.eigh:
        A = symmetric(A, transform)
        D, V = function(A, transform)
        product = cprod(cprod(V, D, transform), transpose(V, transform), transform)
    elif function is algebra.schur:
        T, Z = function(A, transform)
        product = cprod(cprod(Z, T, transform), transpose(Z, transform), transform)
    else:
        *first, last = function(A, transform)
        last = transpose(last, transform) if function is algebra.svd else last
        product = cprod(cprod(*first, transform) if len(first) > 1 else first[0], last, transform)
    close(product, A)
    U, S, V = algebra.truncated_svd(A, transform, rank=2)
    assert U.dtype == S.dtype == V.dtype == A.dtype


def test_low_rank_has_gradients_where_values_repeat():
    A_hat = torch.diag(torch.tensor([5.0, 5.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    A = algebra.from_hat(A_hat[:, :5, None].repeat(1, 1, 3)).requires_grad_()
    assert torch.autograd.gradcheck(lambda X: algebra.low_rank(X, rank=2).approximation, A)
    for transform in ("dft", "cosine_kka"):
        B = randn(2, 5, 3, 4).requires_grad_()
        assert torch.autograd.gradcheck(lambda X, t=transform: algebra.low_rank(X, t, rank=2).approximation, B)
    C = torch.complex(randn(2, 3, 2), randn(2, 3, 2, seed=1)).requires_grad_()
    assert torch.autograd.gradcheck(lambda X: algebra.low_rank(X, rank=1).approximation, C)
    D = randn(3, 2, 2).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda X: algebra.low_rank(X, rank=1).approximation, D)


@pytest.mark.parametrize("start", ["dct", "haar"])
def test_learned_transforms_are_orthogonal_in_the_dtype_asked_for(start):
    learned = algebra.LearnedTransform(7, start)
    torch.nn.init.normal_(learned.basis.parametrizations.weight.original)
    x = randn(7, 7)
    hat = learned.to_hat(x)  # float64 data, float32 parameters
    close(hat @ hat.mT, x @ x.mT, atol=1e-14)
    for module in (learned, learned.double()):
        M = module.matrix.double()
        eps = torch.finfo(module.matrix.dtype).eps
        close(M @ M.mT, torch.eye(7, dtype=torch.float64), atol=20 * eps)


EMPTY = [(0, 3, 3, 4), (0, 3, 4), (3, 0, 4), (0, 0, 4), (2, 0, 3, 4)]


@pytest.mark.parametrize("transform", ["dct", "dft"])
@pytest.mark.parametrize("shape", EMPTY)
def test_empty_batches_and_matrices(shape, transform):
    A = torch.zeros(shape, dtype=torch.float64)
    *batch, m, n, C = shape
    k = min(m, n)
    U, S, V = algebra.svd(A, transform)
    assert (U.shape, S.shape, V.shape) == ((*batch, m, k, C), (*batch, k, k, C), (*batch, n, k, C))
    Q, R = algebra.qr(A, transform)
    assert (Q.shape, R.shape) == ((*batch, m, k, C), (*batch, k, n, C))
    assert algebra.lu(A, transform).U.shape == (*batch, k, n, C)
    assert algebra.polar(A, transform).Q.shape == A.shape
    assert algebra.pinv(A, transform).shape == (*batch, n, m, C)
    assert algebra.multi_rank(A, transform).tolist() == torch.zeros(*batch, C, dtype=torch.int64).tolist()
    for ord in ("fro", "spectral", "nuclear"):
        assert torch.equal(algebra.norm(A, transform, ord=ord), A.new_zeros(batch))
    assert algebra.low_rank(A, transform, energy=0.9).approximation.shape == A.shape
    assert algebra.orth(A, transform).shape[:-2] == (*batch, m)
    assert algebra.svt(A, 0.1, transform).shape == A.shape
    if m == n:
        assert algebra.inverse(A, transform).shape == A.shape
        assert algebra.solve(A, A[..., :1, :], transform).shape == A[..., :1, :].shape
        assert algebra.eigh(A, transform).V.shape == A.shape
        assert algebra.cholesky(A, transform).shape == A.shape
        assert algebra.sqrtm(A, transform).shape == A.shape
        assert algebra.expm(A, transform).shape == A.shape


def test_numpy_arrays_and_integers():
    A = np.random.default_rng(0).standard_normal((4, 3, 5))
    expected = algebra.svd(torch.from_numpy(A))
    close(algebra.svd(A).S, expected.S)
    close(algebra.svd(A[::-1]).S, expected.S)  # torch has no negative strides
    close(cprod(A, A.transpose(1, 0, 2)), cprod(torch.from_numpy(A), torch.from_numpy(A).transpose(0, 1)))
    A.setflags(write=False)
    close(algebra.svd(A, np.eye(5)).S, algebra.svd(torch.from_numpy(A.copy()), "identity").S)
    two = np.int64(2)
    assert algebra.truncated_svd(A, rank=two).U.shape == (4, 2, 5)
    assert algebra.identity(two, np.int64(3)).shape == (2, 2, 3)
    close(algebra.power(A[:3], two), cprod(A[:3], A[:3]))
    with pytest.raises(ValueError, match=r"A should hold floating-point numbers, got torch\.int64"):
        algebra.svd(np.ones((2, 2, 3), dtype=int))
