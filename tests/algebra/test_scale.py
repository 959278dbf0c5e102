"""f(s·A) relates to f(A) as theory says, for s far from 1: nothing underflows, overflows or counts as zero."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpvit import algebra
from tcpvit.algebra.scaling import power_of_two

# of 2, so 10^±30 and 10^±24, the ends more often than what lies between
EXPONENTS = {
    dtype: st.one_of(st.sampled_from([-end, end]), st.integers(-end, end))
    for dtype, end in ((torch.float64, 100), (torch.float32, 80))
}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3}


@st.composite
def scaled(draw, square=True, complex_too=True):
    """A tensor of ordinary size, and a power of two: (A, s)."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    s = 2.0 ** draw(EXPONENTS[dtype])
    generator = torch.Generator().manual_seed(draw(st.integers(0, 100)))
    m = draw(st.integers(2, 4))
    n = m if square else draw(st.integers(1, 4))
    batch = draw(st.sampled_from([(), (2,)]))
    kind = dtype.to_complex() if complex_too and draw(st.booleans()) else dtype
    A = torch.randn(*batch, m, n, draw(st.integers(1, 4)), dtype=torch.complex128, generator=generator)
    return (A if kind.is_complex else A.real).to(kind).contiguous(), s


def close(found, expected, scale=1.0):
    """Equal relative to the largest entry, once the scale is taken away."""
    dtype = torch.float64 if expected.dtype in (torch.float64, torch.complex128) else torch.float32
    found, expected = found.to(torch.complex128) / scale, expected.to(torch.complex128)
    assert torch.isfinite(found.real).all()
    assert (found - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max().clamp_min(1e-300)


def regular(A, transform):
    """Well-conditioned slices, with eigenvalues in the right half plane."""
    noise = A / (4 * algebra.norm(A, transform, ord="spectral")).view(*A.shape[:-3], 1, 1, 1)
    return noise + algebra.identity(A.shape[-2], A.shape[-1], transform, dtype=A.dtype.to_real()).to(A.dtype)


def positive(A, transform):
    return algebra.cprod(A, algebra.transpose(A, transform), transform) + regular(A * 0 + 1e-3, transform)


transforms = st.sampled_from(["dct", "dft", "haar"])
few = settings(max_examples=25, deadline=None)


@few
@given(scaled(square=False), transforms)
def test_singular_values_ranks_and_norms(case, transform):
    A, s = case
    U, S, V = algebra.svd(s * A, transform)
    close(S, algebra.svd(A, transform).S, s)
    close(algebra.cprod(algebra.cprod(U, S, transform), algebra.transpose(V, transform), transform), A, s)
    close(algebra.truncated_svd(s * A, transform, energy=0.9).S, algebra.truncated_svd(A, transform, energy=0.9).S, s)
    close(algebra.svt(s * A, 0.3 * s, transform), algebra.svt(A, 0.3, transform), s)
    for ord in ("fro", "spectral", "nuclear"):
        close(algebra.norm(s * A, transform, ord=ord), algebra.norm(A, transform, ord=ord), s)
    ours, theirs = algebra.low_rank(s * A, transform, rank=1), algebra.low_rank(A, transform, rank=1)
    close(ours.approximation, theirs.approximation, s)
    assert torch.allclose(ours.relative_error, theirs.relative_error, atol=1e-5)
    assert torch.equal(algebra.multi_rank(s * A, transform), algebra.multi_rank(A, transform))
    close(algebra.orth(s * A, transform), algebra.orth(A, transform))
    close(algebra.pinv(s * A, transform), algebra.pinv(A, transform), 1 / s)


@few
@given(scaled(), transforms)
def test_factors(case, transform):
    A, s = case
    Q, R = algebra.qr(s * A, transform)
    close(Q, algebra.qr(A, transform).Q)
    close(R, algebra.qr(A, transform).R, s)
    P, L, U = algebra.lu(s * A, transform)
    close(algebra.cprod(algebra.cprod(P, L, transform), U, transform), A, s)
    Q, H = algebra.polar(s * A, transform)
    close(algebra.cprod(Q, H, transform), A, s)
    assert algebra.is_orthogonal(Q, transform, rtol=1e-3)
    G = regular(A, transform)
    close(algebra.inverse(s * G, transform), algebra.inverse(G, transform), 1 / s)
    close(algebra.sqrtm(s * G, transform), algebra.sqrtm(G, transform), math.sqrt(s))
    close(algebra.trace(s * A, transform), algebra.trace(A, transform), s)
    P = positive(A, transform)
    close(algebra.cholesky(s * P, transform), algebra.cholesky(P, transform), math.sqrt(s))
    close(algebra.eigh(s * P, transform).D, algebra.eigh(P, transform).D, s)
    assert algebra.is_positive_definite(s * P, transform)
    D, V = algebra.eig(s * G, transform)
    wide = (s * G).to(V.dtype)
    close(algebra.cprod(wide, V, transform), algebra.cprod(V, D / s, transform), s)
    T, Z = algebra.schur(s * A, transform, output="complex")
    close(algebra.cprod(algebra.cprod(Z, T, transform), algebra.transpose(Z, transform), transform), A.to(T.dtype), s)


@few
@given(scaled(), st.integers(-20, 20), transforms)
def test_powers_and_determinants(case, exponent, transform):
    A, s = regular(case[0], transform), 2.0**exponent
    close(algebra.power(s * A, -2, transform), algebra.power(A, -2, transform), s**-2)
    close(algebra.power(s * A, 3, transform), algebra.power(A, 3, transform), s**3)
    close(algebra.det(s * A, transform), algebra.det(A, transform), s ** A.shape[-2])


@few
@given(scaled(complex_too=False), transforms)
def test_exponential_of_what_is_small_is_a_line(case, transform):
    A, _ = case
    s = 2.0**-40
    change = algebra.expm(s * A.double(), transform) - algebra.expm(0 * A.double(), transform)
    assert ((change / s - A).abs().max() <= 1e-3 * A.abs().max()).item()


@few
@given(scaled(), scaled(), transforms)
def test_solvers(case, other, transform):
    (A, s), t = case, 2.0 ** round(math.log2(other[1]) / 2)
    A = regular(A, transform)
    B = A[..., :1, :] + 1
    expected = algebra.solve(A, B, transform)
    if not 1e-30 < t / s < 1e30:
        t = 1.0
    for solve in (algebra.solve, algebra.lstsq):
        close(solve(s * A, t * B, transform), expected, t / s)
    if 1e-16 < s < 1e16:  # else its square does not fit
        ours = algebra.tikhonov(s * A, t * B, 0.1 * s**2, None, transform)
        close(ours, algebra.tikhonov(A, B, 0.1, None, transform), t / s)
    P = positive(A, transform)
    for solver, matrix in ((algebra.cg, P), (algebra.gmres, A), (algebra.golub_kahan, A)):
        found = solver(s * matrix, t * B, transform, tol=1e-5)
        assert found.converged
        residual = algebra.cprod(matrix, found.x * (s / t), transform) - B
        assert (algebra.norm(residual) <= 2e-5 * algebra.norm(B)).all()
        warm = solver(s * matrix, t * B, transform, start=found.x, tol=2e-5)
        assert (warm.converged, warm.iterations) == (True, 0)


@pytest.mark.parametrize(("dtype", "s"), [(torch.float32, 1e-24), (torch.float32, 1e18), (torch.float64, 1e-30)])
def test_recovery(dtype, s):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, dtype=dtype, generator=generator) for shape in [(20, 1, 3), (1, 20, 3)])
    L = algebra.cprod(left, right)
    wrong = torch.rand(L.shape, generator=generator) < 0.05
    found = algebra.robust_pca(s * torch.where(wrong, 10.0, L))
    assert found.converged
    assert found.iterations > 5
    assert (found.low_rank / s - L).norm() < 1e-3 * L.norm()
    known = torch.rand(L.shape, generator=generator) < 0.6
    completed = algebra.complete(s * L, known)
    assert completed.converged
    assert (completed.x / s - L).norm() < 1e-3 * L.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_identity_is_not_singular(dtype):
    eye = 1e-20 * algebra.identity(3, 4, dtype=dtype)
    close(algebra.inverse(eye), algebra.identity(3, 4, dtype=dtype), 1e20)
    close(algebra.solve(eye, eye), algebra.identity(3, 4, dtype=dtype))
    with pytest.raises(torch.linalg.LinAlgError, match="singular to working precision"):
        algebra.inverse(1e-20 * torch.ones(2, 2, 3, dtype=dtype))


@pytest.mark.parametrize("function", [algebra.inverse, algebra.sqrtm, algebra.norm])
def test_the_scale_is_no_part_of_the_gradient(function):
    A = regular(torch.randn(3, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), "dct")
    assert torch.autograd.gradcheck(function, A.requires_grad_())


def test_powers_of_two_are_normal_numbers_at_the_ends_of_the_range():
    for dtype in (torch.float32, torch.float64):
        ends = torch.tensor([torch.finfo(dtype).tiny, torch.finfo(dtype).max, 0.0], dtype=dtype)[:, None]
        scale = power_of_two(ends, (1,))
        assert ((scale >= torch.finfo(dtype).tiny) & (1 / scale >= torch.finfo(dtype).tiny)).all()
        assert torch.equal(scale.log2().frac(), torch.zeros(3, 1, dtype=dtype))
