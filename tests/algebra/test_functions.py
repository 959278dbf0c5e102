"""Slice-wise functions: their identities for every transform, values against NumPy and SciPy, gradients, errors."""

import itertools

import numpy as np
import pytest
import scipy.fft
import scipy.linalg
import torch
from hypothesis import given, settings
from slice_cases import FLOAT, Case, cases, close, sizes
from torch.autograd import gradcheck, gradgradcheck

from tcpvit import algebra
from tcpvit.algebra import det, expm, inverse, multi_rank, norm, pinv, power, sqrtm, trace, tubal_rank

LinAlgError = torch.linalg.LinAlgError
few = settings(max_examples=20, deadline=None)


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=FLOAT, generator=torch.Generator().manual_seed(seed))


def by_slices(A, function):
    """The oracle: `function` of every DCT slice, with NumPy and SciPy only."""
    slices = scipy.fft.dct(A.numpy(), norm="ortho", axis=-1)
    results = np.stack([function(slices[..., k]) for k in range(A.shape[-1])], axis=-1)
    return torch.from_numpy(scipy.fft.idct(results, norm="ortho", axis=-1))


# --- inverse and pinv ---


@few
@given(case=cases(), m=sizes)
def test_inverse(case: Case, m):
    A = case.regular(m)
    close(case.star(A, inverse(A, **case.options)), case.eye(m).expand_as(A))
    close(case.star(inverse(A, **case.options), A), case.eye(m).expand_as(A))


@few
@given(case=cases(), m=sizes)
def test_inverse_of_a_product(case: Case, m):
    A, B = case.regular(m), case.t(case.regular(m))
    close(
        inverse(case.star(A, B), **case.options),
        case.star(inverse(B, **case.options), inverse(A, **case.options)),
    )


def test_inverse_against_numpy():
    A = randn(4, 4, 5)
    close(inverse(A), by_slices(A, np.linalg.inv))


def test_inverse_names_the_singular_slices():
    hat = randn(3, 3, 4)
    hat[0, :, 1] = hat[1, :, 1]
    hat[..., 3] = 0
    A = algebra.from_hat(hat)
    with pytest.raises(LinAlgError, match=r"\(3, 3, 4\) has no inverse: slices 1, 3 of its hat domain.*use pinv"):
        inverse(A)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transform", ["dct", "dft", "haar"])
def test_a_slice_of_rounding_errors_is_singular(dtype, transform):
    # Equal channels: all slices but the first vanish, and what rounding leaves of them is perfectly invertible.
    A = randn(3, 3, 1).to(dtype).expand(3, 3, 6).contiguous()
    with pytest.raises(LinAlgError, match="slices 1, 2"):
        inverse(A, transform)


def test_singular_in_one_tensor_of_a_batch():
    A = torch.stack([algebra.identity(2, (3, 2)), torch.zeros(2, 2, 3, 2)])
    with pytest.raises(LinAlgError, match=r"slices \(0, 0\), \(0, 1\), \(1, 0\), \(1, 1\), \(2, 0\) and 1 more"):
        inverse(A, tube_ndim=2)


def test_large_regular_tensors_in_float32_are_not_called_singular():
    A = randn(64, 64, 32).float()
    B = inverse(A)
    assert B.dtype == torch.float32
    assert (algebra.cprod(A, B) - algebra.identity(64, 32)).abs().max() < 1e-2


@few
@given(case=cases(), m=sizes, n=sizes, r=sizes)
def test_pinv_satisfies_the_four_conditions_of_penrose(case: Case, m, n, r):
    A = case.star(case.randn(m, r), case.randn(r, n))
    P = pinv(A, rtol=1e-9, **case.options)
    size = max(1.0, P.abs().max().item() ** 2)
    close(case.star(A, P, A), A, atol=1e-10 * size)
    close(case.star(P, A, P), P, atol=1e-10 * size)
    for projector in (case.star(A, P), case.star(P, A)):
        close(case.t(projector), projector, atol=1e-10 * size)


@few
@given(case=cases(), m=sizes)
def test_pinv_of_an_invertible_tensor_is_its_inverse(case: Case, m):
    A = case.regular(m)
    close(pinv(A, **case.options), inverse(A, **case.options))


@few
@given(case=cases(orthogonal=True), m=sizes, n=sizes)
def test_pinv_is_that_of_the_block_matrix(case: Case, m, n):
    A = case.randn(m, n)
    A[..., 0] = A[..., 0].mean()
    expected = torch.linalg.pinv(algebra.block_matrix(A, **case.options), rtol=1e-11)
    close(algebra.block_matrix(pinv(A, rtol=1e-11, **case.options), **case.options), expected, 1e-8)


@pytest.mark.parametrize("transform", ["dct", "dft"])
def test_pinv_ignores_slices_of_rounding_errors(transform):
    A = randn(4, 2, 1).expand(4, 2, 7).contiguous()
    P = pinv(A, transform)
    assert P.abs().max() < 10
    close(algebra.cprod(algebra.cprod(A, P, transform), A, transform), A)


def test_pinv_tolerances():
    A = algebra.from_hat(torch.diag(torch.tensor([1.0, 1e-3], dtype=FLOAT))[..., None].expand(2, 2, 3))
    assert algebra.to_hat(pinv(A))[1, 1, 0] == pytest.approx(1000)
    for options in ({"rtol": 1e-2}, {"atol": 1e-2}, {"atol": 1e-2, "rtol": 0.0}):
        assert algebra.to_hat(pinv(A, **options))[1, 1].abs().max() < 1e-12
    assert algebra.to_hat(pinv(A, atol=1e-4))[1, 1, 0] == pytest.approx(1000)


# --- norms ---


@few
@given(case=cases(), m=sizes, n=sizes)
def test_frobenius_norm_is_that_of_the_entries(case: Case, m, n):
    A = case.randn(m, n)
    close(norm(A, **case.options), A.flatten(len(case.batch)).square().sum(-1).sqrt())


@few
@given(case=cases(orthogonal=True), m=sizes, n=sizes)
def test_norms_of_orthogonal_transforms_are_those_of_the_block_matrix(case: Case, m, n):
    A = case.randn(m, n)
    block = algebra.block_matrix(A, **case.options)
    close(norm(A, ord="spectral", **case.options), torch.linalg.matrix_norm(block, 2))
    close(norm(A, ord="nuclear", **case.options) * case.scale, torch.linalg.matrix_norm(block, "nuc"))
    close(norm(A, **case.options), (case.to_hat(A).abs().square() / case.scale).sum(_entries(case)).sqrt())


@few
@given(case=cases(orthogonal=True), m=sizes, n=sizes)
def test_spectral_and_nuclear_norms_are_dual(case: Case, m, n):
    A, B = case.randn(m, n), case.randn(m, n).flip(-1).sin()
    bound = norm(A, ord="nuclear", **case.options) * norm(B, ord="spectral", **case.options)
    assert (algebra.inner(A, B, tube_ndim=len(case.tube)) <= bound * (1 + 1e-12)).all()
    Q = algebra.polar(A, **case.options).Q  # spectral norm 1: the bound is attained
    close(algebra.inner(A, Q, tube_ndim=len(case.tube)), norm(A, ord="nuclear", **case.options))


def test_the_nuclear_norm_of_the_dft_is_that_of_lu():
    A = randn(3, 4, 5)
    slices = np.fft.fft(A.numpy(), axis=-1)
    expected = sum(np.linalg.norm(slices[..., k], "nuc") for k in range(5)) / 5
    assert norm(A, "dft", ord="nuclear").item() == pytest.approx(expected, rel=1e-12)


def test_parseval_fails_for_cosine_kka():
    A = randn(3, 4, 5)
    assert abs(norm(algebra.to_hat(A, "cosine_kka")) / norm(A) - 1) > 0.1
    block = algebra.block_matrix(A, "cosine_kka")
    assert abs(norm(A, "cosine_kka", ord="spectral") / torch.linalg.matrix_norm(block, 2) - 1) > 0.05


def test_unknown_norm():
    with pytest.raises(ValueError, match=r"no norm is called 'nuc'.*did you mean 'nuclear'"):
        norm(torch.ones(2, 2, 3), ord="nuc")


# --- ranks ---


@few
@given(case=cases(), m=sizes, n=sizes, r=sizes)
def test_tubal_rank_of_a_product(case: Case, m, n, r):
    A = case.star(case.randn(m, r), case.randn(r, n))
    ranks = multi_rank(A, **case.options)
    assert ranks.shape == (*case.batch, *case.tube)
    assert (ranks == min(m, n, r)).all()
    assert torch.equal(tubal_rank(A, **case.options), torch.full(case.batch, min(m, n, r)))


def test_multi_rank_counts_each_slice():
    hat = torch.zeros(2, 3, 4, 5, dtype=FLOAT)
    for b, k in itertools.product(range(2), range(5)):
        r = (k + b) % 4
        hat[b, ..., k] = randn(3, r, seed=k) @ randn(r, 4, seed=k + 1)
    A = algebra.from_hat(hat)
    assert multi_rank(A).tolist() == [[0, 1, 2, 3, 0], [1, 2, 3, 0, 1]]
    assert tubal_rank(A).tolist() == [3, 3]


def test_rank_tolerances():
    A = algebra.from_hat(torch.diag(torch.tensor([1.0, 1e-3], dtype=FLOAT))[..., None].expand(2, 2, 3))
    assert tubal_rank(A) == 2
    assert tubal_rank(A, rtol=1e-2) == tubal_rank(A, atol=1e-2) == 1
    assert multi_rank(A, atol=1e-4).tolist() == [2, 2, 2]


def test_random_float32_tensors_have_full_rank():
    assert (multi_rank(randn(64, 64, 16).float()) == 64).all()


# --- trace and determinant ---


@few
@given(case=cases(), m=sizes, n=sizes)
def test_trace(case: Case, m, n):
    A, B = case.randn(m, n), case.randn(n, m)
    close(trace(case.star(A, B), **case.options), trace(case.star(B, A), **case.options))
    T = trace(case.star(A, B), **case.options)
    assert T.shape == (*case.batch, *case.tube)
    expected = case.to_hat(case.star(A, B)).diagonal(dim1=-2, dim2=-1).sum(-1)
    close(case.to_hat(T[..., None, None, :] if len(case.tube) == 1 else T[..., None, None, :, :])[..., 0, 0], expected)


@few
@given(case=cases(), m=sizes)
def test_det_of_a_product_is_the_product_of_the_tubes(case: Case, m):
    A, B = case.randn(m, m), case.randn(m, m).flip(-1)
    as_tensor = (*case.batch, 1, 1, *case.tube)
    dets = [det(X, **case.options).view(as_tensor) for X in (A, B, case.star(A, B))]
    close(case.star(dets[0], dets[1]), dets[2])


def test_trace_and_det_against_numpy():
    A = randn(4, 4, 5)
    close(det(A), by_slices(A, np.linalg.det))
    close(trace(A), by_slices(A, np.trace))


# --- powers ---


@few
@given(case=cases(), m=sizes)
def test_power_adds_exponents(case: Case, m):
    A = case.regular(m)
    powers = {p: power(A, p, **case.options) for p in (-2, -1, 0, 1, 3)}
    close(powers[0], case.eye(m).expand_as(A))
    close(powers[1], A)
    close(powers[3], case.star(A, A, A))
    close(powers[-1], inverse(A, **case.options))
    close(case.star(powers[-2], powers[3]), A)


def test_power_of_a_singular_tensor():
    assert torch.equal(power(torch.zeros(2, 2, 3), 2), torch.zeros(2, 2, 3))
    with pytest.raises(LinAlgError, match="slices 0, 1, 2 of its hat domain is singular"):
        power(torch.zeros(2, 2, 3), -1)


@pytest.mark.parametrize("exponent", [0.5, True, "2"])
def test_power_needs_an_integer(exponent):
    with pytest.raises(ValueError, match="power takes an integer exponent, got"):
        power(torch.ones(2, 2, 3), exponent)


@few
@given(case=cases(), m=sizes)
def test_expm(case: Case, m):
    A = case.regular(m)
    E = expm(A, **case.options)
    close(case.star(E, expm(-A, **case.options)), case.eye(m).expand_as(A))
    close(case.star(E, E), expm(2 * A, **case.options))
    close(torch.linalg.det(case.to_hat(E)), case.to_hat(A).diagonal(dim1=-2, dim2=-1).sum(-1).exp())


def test_expm_against_scipy():
    A = randn(4, 4, 5)
    close(expm(A), by_slices(A, scipy.linalg.expm))


# --- square roots ---


@few
@given(case=cases(), m=sizes)
def test_sqrtm_of_a_general_tensor(case: Case, m):
    A = case.regular(m)
    R = sqrtm(A, **case.options)
    close(case.star(R, R), A)
    assert (torch.linalg.eigvals(case.to_hat(R)).real > 0).all()


@few
@given(case=cases(), m=sizes, r=sizes)
def test_sqrtm_of_a_semidefinite_tensor(case: Case, m, r):
    B = case.randn(m, r)
    A = case.star(B, case.t(B))
    R = sqrtm(A, **case.options)
    close(case.star(R, R), A)
    close(case.t(R), R)
    assert (torch.linalg.eigvalsh(case.to_hat(R)) > -1e-7).all()


def test_sqrtm_against_scipy():
    A = randn(4, 4, 5) / 4 + algebra.identity(4, 5, dtype=FLOAT)
    close(sqrtm(A), by_slices(A, scipy.linalg.sqrtm))


def test_sqrtm_of_defective_and_ill_conditioned_slices():
    unit = torch.eye(4, dtype=FLOAT) + torch.diag(torch.ones(3, dtype=FLOAT), 1)  # one Jordan block
    spread = torch.diag(torch.tensor([1e-6, 1e-2, 1.0, 1e4], dtype=FLOAT)) + torch.diag(torch.ones(3, dtype=FLOAT), 1)
    turning = torch.block_diag(*[torch.tensor([[-1, w], [-w, -1]], dtype=FLOAT) for w in (0.01, 3)])
    hat = torch.stack([unit, spread, turning], -1)
    R_hat = algebra.to_hat(sqrtm(hat, "identity"), "identity")
    for k in range(3):
        expected = torch.from_numpy(scipy.linalg.sqrtm(hat[..., k].numpy()))
        assert (R_hat[..., k] - expected).norm() <= 1e-8 * expected.norm()


def test_sqrtm_in_float32():
    A = randn(8, 8, 3).float() / 6 + algebra.identity(8, 3)
    R = sqrtm(A)
    assert R.dtype == torch.float32
    close(algebra.cprod(R, R), A, atol=1e-5)


@pytest.mark.parametrize(
    ("slice_1", "why"),
    [
        ([[1.0, 0.0], [0.0, -1.0]], "symmetric, with a negative eigenvalue"),
        ([[-1.0, 1.0], [0.0, 2.0]], "not symmetric, with a negative eigenvalue"),
        ([[0.0, 1.0], [0.0, 0.0]], "nilpotent"),
    ],
)
def test_sqrtm_names_the_slices_without_a_real_root(slice_1, why):
    hat = torch.eye(2, dtype=FLOAT)[..., None].repeat(1, 1, 3)
    hat[..., 1] = torch.tensor(slice_1, dtype=FLOAT)
    with pytest.raises(LinAlgError, match=r"\(2, 2, 3\) has no real principal square root: slice 1 of its hat domain"):
        sqrtm(algebra.from_hat(hat))


def test_sqrtm_of_a_complex_tensor():
    A = torch.complex(randn(3, 3, 4), randn(3, 3, 4, seed=1)) / 4 + algebra.identity(3, 4, dtype=FLOAT)
    R = sqrtm(A)
    close(algebra.cprod(R, R), A)
    with pytest.raises(LinAlgError, match="has no principal square root"):
        sqrtm(-algebra.identity(3, 4, dtype=torch.complex128))


def test_sqrtm_has_a_gradient_where_eigenvalues_repeat():
    A = (4 * algebra.identity(3, 4, dtype=FLOAT)).requires_grad_()
    weights = randn(3, 3, 4)
    (sqrtm(A) * weights).sum().backward()
    close(A.grad, weights / 4)  # the root of 4·I + E is 2·I + E / 4


def test_sqrtm_has_no_gradient_where_it_is_singular():
    A = torch.ones(2, 2, 3, dtype=FLOAT, requires_grad=True)
    R = sqrtm(A)
    with pytest.raises(LinAlgError, match="square root, or its gradient, was not found"):
        R.sum().backward()


# --- gradients ---

GENERAL = [
    inverse,
    pinv,
    det,
    expm,
    sqrtm,
    trace,
    lambda A, *a, **k: power(A, 3, *a, **k),
    lambda A, *a, **k: power(A, -2, *a, **k),
    norm,
    lambda A, *a, **k: norm(A, *a, ord="spectral", **k),
    lambda A, *a, **k: norm(A, *a, ord="nuclear", **k),
]


@pytest.mark.parametrize("transform", ["dct", "dft", "cosine_kka"])
@pytest.mark.parametrize("function", GENERAL)
def test_gradients(function, transform):
    A = (randn(2, 2, 2, 3) / 16 + algebra.identity(2, 3, transform, dtype=FLOAT)).requires_grad_()
    assert gradcheck(lambda A: function(A, transform), A)


@pytest.mark.parametrize("shape", [(3, 2, 4), (2, 3, 4)])
@pytest.mark.parametrize("transform", ["dct", "dft"])
def test_gradient_of_pinv_of_rectangles(shape, transform):
    assert gradcheck(lambda A: pinv(A, transform), randn(*shape).requires_grad_())


@pytest.mark.parametrize("transform", ["dct", "dft"])
def test_gradient_of_order_four(transform):
    A = (randn(2, 2, 3, 2) / 16 + algebra.identity(2, (3, 2), transform, dtype=FLOAT)).requires_grad_()
    for function in (inverse, det, sqrtm):
        assert gradcheck(lambda A, f=function: f(A, transform, tube_ndim=2), A)


def test_second_derivatives_of_the_root():
    A = (randn(2, 2, 2) / 4 + algebra.identity(2, 2, dtype=FLOAT)).requires_grad_()
    assert gradgradcheck(sqrtm, A)
    B = randn(2, 2, 2).requires_grad_()
    assert gradcheck(lambda B: sqrtm(algebra.cprod(B, algebra.transpose(B))), B)


# --- what does not fit ---

SQUARE = [inverse, trace, det, expm, sqrtm, lambda A, **k: power(A, 2, **k)]
FINITE = [*SQUARE, pinv, multi_rank, tubal_rank, lambda A, **k: norm(A, ord="nuclear", **k)]
FINITE.remove(trace)


@pytest.mark.parametrize("function", SQUARE)
def test_needs_square_slices(function):
    with pytest.raises(ValueError, match=r"A should have square slices, got 2×3 slices in shape \(2, 3, 4\)"):
        function(torch.ones(2, 3, 4))


@pytest.mark.parametrize("function", FINITE)
def test_needs_finite_numbers_in_single_or_double_precision(function):
    for bad in (torch.nan, torch.inf):
        A = torch.ones(2, 2, 3)
        A[0, 1, 2] = bad
        with pytest.raises(ValueError, match=r"A of shape \(2, 2, 3\) holds NaN or infinity"):
            function(A)
    with pytest.raises(ValueError, match=r"A is torch.bfloat16.*convert it with A.float\(\)"):
        function(torch.ones(2, 2, 3, dtype=torch.bfloat16))


@pytest.mark.parametrize("function", [*FINITE, trace, norm])
def test_needs_a_floating_point_tensor_that_fits_the_transform(function):
    with pytest.raises(ValueError, match=r"floating-point numbers, got torch.int64"):
        function(torch.ones(2, 2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"shape \(..., m, n, C\), got \(2, 3\)"):
        function(torch.ones(2, 3))
    with pytest.raises(ValueError, match="power of two, got 3"):
        function(torch.ones(2, 2, 3), transform="hadamard")


def _entries(case: Case) -> tuple[int, ...]:
    return (*range(len(case.tube)), -2, -1)
