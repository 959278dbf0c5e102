"""Factorisations: structure for every transform, Eckart–Young, values of NumPy, SciPy and mprod, gradients, errors."""

import itertools
import sys

import numpy as np
import pytest
import scipy.fft
import scipy.linalg
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from slice_cases import FLOAT, Case, cases, close, sizes
from torch.autograd import gradcheck

from tcpvit import algebra
from tcpvit.algebra import (
    cholesky,
    eig,
    eigh,
    is_diagonal,
    is_orthogonal,
    low_rank,
    lu,
    multi_rank,
    norm,
    orth,
    polar,
    qr,
    schur,
    svd,
    truncated_svd,
    tubal_rank,
)

LinAlgError = torch.linalg.LinAlgError
few = settings(max_examples=20, deadline=None)


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=FLOAT, generator=torch.Generator().manual_seed(seed))


def numpy_slices(A):
    """The DCT slices by SciPy, (C, m, n)."""
    return np.moveaxis(scipy.fft.dct(A.numpy(), norm="ortho", axis=-1), -1, 0)


def orthonormal_columns(case: Case, Q):
    gram = case.star(case.t(Q), Q)
    n = Q.shape[len(case.batch) + 1]
    close(gram, case.eye(n).expand_as(gram))


# --- singular values ---


@few
@given(case=cases(), m=sizes, n=sizes, r=sizes, full=st.booleans())
def test_svd(case: Case, m, n, r, full):
    A = case.star(case.randn(m, r), case.randn(r, n))  # of any rank
    U, S, V = svd(A, full_matrices=full, **case.options)
    close(case.star(U, S, case.t(V)), A)
    orthonormal_columns(case, U)
    orthonormal_columns(case, V)
    assert is_diagonal(S, **case.options)
    k = min(m, n)
    tail = case.tube
    expected = [(m, m), (m, n), (n, n)] if full else [(m, k), (k, k), (n, k)]
    assert [X.shape for X in (U, S, V)] == [(*case.batch, *shape, *tail) for shape in expected]
    values = case.to_hat(S).diagonal(dim1=-2, dim2=-1)
    close(values.abs(), torch.linalg.svdvals(case.to_hat(A)))
    close(values.real.sort(-1, descending=True).values, values.abs())


@pytest.mark.parametrize("tube", [(4,), (9, 15), (30, 2), (6, 6)])
@pytest.mark.parametrize("kind", ["random", "equal channels", "low rank"])
def test_real_factors_of_the_dft_are_exact(tube, kind):
    # Rounding breaks the symmetry of slices that mirror each other: each factorised alone, they would not fit.
    case = Case(tuple(algebra.get_transform("dft", c) for c in tube), (), seed=1)
    A = case.randn(8, 6)
    if kind == "equal channels":
        A = A[(..., *[slice(0, 1)] * len(tube))].expand_as(A).contiguous()
    if kind == "low rank":
        A = case.star(A[:, :1], case.randn(1, 6))
    U, S, V = svd(A, full_matrices=True, **case.options)
    close(case.star(U, S, case.t(V)), A)
    orthonormal_columns(case, U)
    orthonormal_columns(case, V)
    Q, R = qr(A, mode="complete", **case.options)
    close(case.star(Q, R), A)
    orthonormal_columns(case, Q)
    gram = case.star(case.t(A), A)
    D, W = eigh(gram, **case.options)
    close(case.star(W, D, case.t(W)), gram)
    orthonormal_columns(case, W)
    close(case.star(*lu(A, **case.options)), A)


def test_svd_against_numpy():
    A = randn(4, 3, 5)
    U, S, V = (algebra.to_hat(X) for X in svd(A))
    for k, slice_k in enumerate(numpy_slices(A)):
        u, s, vt = np.linalg.svd(slice_k, full_matrices=False)
        np.testing.assert_allclose(S[..., k].diagonal(), s, atol=1e-12)
        signs = np.sign((u * U[..., k].numpy()).sum(0))
        np.testing.assert_allclose(U[..., k], u * signs, atol=1e-10)
        np.testing.assert_allclose(V[..., k], vt.T * signs, atol=1e-10)


def test_svd_against_mprod():
    from mprod import generate_dct, m_prod
    from mprod.decompositions import svdm

    A = randn(4, 3, 5)
    fun_m, inv_m = generate_dct(5)
    u, s, v = svdm(A.numpy(), fun_m, inv_m)  # s is (k, C): the diagonal tubes
    U, S, V = svd(A)
    np.testing.assert_allclose(S.diagonal(dim1=0, dim2=1).mT, s, atol=1e-12)
    scaled = np.einsum("mkc,kc->mkc", fun_m(u), fun_m(s))
    product = m_prod(inv_m(scaled), v.transpose(1, 0, 2), fun_m, inv_m)
    np.testing.assert_allclose(algebra.cprod(algebra.cprod(U, S), algebra.transpose(V)), product, atol=1e-12)


# --- truncation ---


@few
@given(case=cases(), m=sizes, n=sizes, data=st.data())
def test_truncation_by_tubal_rank(case: Case, m, n, data):
    r = data.draw(st.integers(1, min(m, n)))
    A = case.randn(m, n)
    U, S, V = truncated_svd(A, rank=r, **case.options)
    assert S.shape == (*case.batch, r, r, *case.tube)
    orthonormal_columns(case, U)
    orthonormal_columns(case, V)
    assert (tubal_rank(S, **case.options) == r).all()
    close(case.star(U, S, case.t(V)), low_rank(A, rank=r, **case.options).approximation)
    leading = torch.linalg.svdvals(case.to_hat(A))[..., :r]
    close(case.to_hat(S).diagonal(dim1=-2, dim2=-1).abs(), leading)


@few
@given(case=cases(), m=sizes, n=sizes)
def test_truncation_by_the_rank_of_each_slice(case: Case, m, n):
    index = torch.cartesian_prod(*[torch.arange(c) for c in case.tube]).view(*case.tube, -1)
    mirrored = (-index) % torch.tensor(case.tube)
    ranks = torch.minimum(index, mirrored).sum(-1) % (min(m, n) + 1)  # the same for slices k and −k
    assume(ranks.max() > 0)
    A = case.randn(m, n)
    U, S, V = truncated_svd(A, rank=ranks.flatten().tolist(), **case.options)
    assert S.shape == (*case.batch, int(ranks.max()), int(ranks.max()), *case.tube)
    orthonormal_columns(case, U)
    product = case.star(U, S, case.t(V))
    assert torch.equal(multi_rank(product, **case.options), ranks.expand(*case.batch, *case.tube))
    close(low_rank(A, rank=ranks, **case.options).approximation, product)


@few
@given(case=cases(), m=sizes, n=sizes, energy=st.floats(0.05, 1.0))
def test_truncation_by_energy_keeps_the_fewest_values(case: Case, m, n, energy):
    A = case.randn(m, n)
    S = truncated_svd(A, energy=energy, **case.options).S
    tubes = len(case.tube)
    kept = case.to_hat(S).diagonal(dim1=-2, dim2=-1).abs().movedim(tuple(range(tubes)), tuple(range(-1 - tubes, -1)))
    everything = torch.linalg.svdvals(case.to_hat(A)).movedim(tuple(range(tubes)), tuple(range(-1 - tubes, -1)))
    for b in itertools.product(*map(range, case.batch)):
        values = kept[b][kept[b] > 1e-12].square().sort(descending=True).values
        energies = everything[b].flatten().square().sort(descending=True).values
        close(values, energies[: len(values)])  # the largest of all slices
        assert values.sum() >= energy * energies.sum() * (1 - 1e-12)
        smallest = values[-1]  # equal values, of slices that mirror each other, go together
        fewer = values[values > smallest * (1 + 1e-9)]
        assert fewer.sum() < energy * energies.sum() or len(fewer) == 0


def test_energy_by_hand():
    hat = torch.zeros(2, 2, 3, dtype=FLOAT)
    hat[..., 0] = torch.diag(torch.tensor([4.0, 1.0]))  # squares 16, 1
    hat[..., 1] = torch.diag(torch.tensor([2.0, 0.5]))  # 4, 0.25; the sum is 21.25
    A = algebra.from_hat(hat)
    for energy, ranks in [(0.75, [1, 0, 0]), (0.76, [1, 1, 0]), (0.95, [2, 1, 0]), (0.99, [2, 2, 0]), (1, [2, 2, 0])]:
        product = low_rank(A, energy=energy).approximation
        assert multi_rank(product).tolist() == ranks, energy
    batch = torch.stack([A, 10 * A, A.flip(0)])
    close(low_rank(batch, energy=0.76).approximation[1], 10 * low_rank(A, energy=0.76).approximation)


def test_low_rank_of_zero():
    result = low_rank(torch.zeros(3, 2, 4), energy=0.9)
    assert torch.equal(result.approximation, torch.zeros(3, 2, 4))
    assert result.error == result.relative_error == 0


@few
@given(case=cases(orthogonal=True), m=sizes, n=sizes, data=st.data())
def test_eckart_young(case: Case, m, n, data):
    r = data.draw(st.integers(1, min(m, n)))
    A = case.randn(m, n)
    result = low_rank(A, rank=r, **case.options)
    close(result.error, norm(A - result.approximation, **case.options))
    close(result.relative_error, result.error / norm(A, **case.options))
    # the exact error
    left_out = torch.linalg.svdvals(case.to_hat(A))[..., r:].square().sum((*range(len(case.tube)), -1))
    close(result.error, (left_out / case.scale).sqrt(), atol=1e-7)
    # no competitor is nearer: random ones with the best coefficients, and neighbours of the optimum
    U, S, V = truncated_svd(A, rank=r, **case.options)
    for seed in range(5):
        basis = qr(case.randn(m, r) + seed * U, **case.options).Q
        projected = case.star(basis, case.t(basis), A)
        nearby = case.star(U + 0.01 * torch.rand_like(U), S, case.t(V + 0.01 * torch.rand_like(V)))
        for competitor in (projected, nearby):
            assert (norm(A - competitor, **case.options) >= result.error - 1e-12).all()


def test_energy_has_the_error_it_promises():
    A = randn(6, 5, 8)
    for transform in ("dct", "dft"):
        assert low_rank(A, transform, energy=0.8).relative_error ** 2 <= 0.2


def test_eckart_young_fails_for_cosine_kka():
    # One gradient step over tensors of the same tubal rank comes nearer to A than the truncated SVD.
    A = randn(4, 4, 3)
    result = low_rank(A, "cosine_kka", rank=1)
    U, S, V = truncated_svd(A, "cosine_kka", rank=1)
    left, right = algebra.cprod(U, S, "cosine_kka").requires_grad_(), algebra.transpose(V, "cosine_kka")
    error = norm(A - algebra.cprod(left, right, "cosine_kka"))
    (gradient,) = torch.autograd.grad(error, left)
    better = algebra.cprod((left - 0.05 * gradient).detach(), right, "cosine_kka")
    assert tubal_rank(better, "cosine_kka", rtol=1e-9) == 1
    assert norm(A - better) < result.error - 1e-3


@few
@given(case=cases(), m=sizes, n=sizes, r=sizes)
def test_orth(case: Case, m, n, r):
    A = case.star(case.randn(m, r), case.randn(r, n))
    Q = orth(A, **case.options)
    assert Q.shape == (*case.batch, m, min(m, n, r), *case.tube)
    orthonormal_columns(case, Q)
    close(case.star(Q, case.t(Q), A), A)


def test_orth_of_slices_of_different_rank():
    hat = randn(3, 3, 4)
    hat[..., 1] = 0
    hat[..., 2] = torch.outer(hat[:, 0, 2], hat[0, :, 2])
    A = algebra.from_hat(hat)
    Q = orth(A)
    projector = algebra.cprod(Q, algebra.transpose(Q))
    close(algebra.cprod(projector, A), A)
    close(algebra.cprod(projector, projector), projector)
    assert multi_rank(projector).tolist() == [3, 0, 1, 3]
    assert orth(A, atol=1e9).shape == (3, 1, 4)


# --- the others ---


@few
@given(case=cases(), m=sizes, n=sizes, r=sizes)
def test_polar(case: Case, m, n, r):
    A = case.star(case.randn(m, r), case.randn(r, n))
    for side in ("right", "left"):
        Q, H = polar(A, side=side, **case.options)
        close(case.star(Q, H) if side == "right" else case.star(H, Q), A)
        close(case.t(H), H)
        assert (torch.linalg.eigvalsh(case.to_hat(H)) > -1e-10).all()
        orthonormal_columns(case, Q if m >= n else case.t(Q))


def test_polar_against_scipy():
    A = randn(4, 3, 5)
    for side in ("right", "left"):
        Q, H = (algebra.to_hat(X) for X in polar(A, side=side))
        for k, slice_k in enumerate(numpy_slices(A)):
            q, h = scipy.linalg.polar(slice_k, side=side)
            np.testing.assert_allclose(Q[..., k], q, atol=1e-10)
            np.testing.assert_allclose(H[..., k], h, atol=1e-10)


@few
@given(case=cases(), m=sizes, n=sizes, mode=st.sampled_from(["reduced", "complete"]))
def test_qr(case: Case, m, n, mode):
    A = case.randn(m, n)
    Q, R = qr(A, mode=mode, **case.options)
    close(case.star(Q, R), A)
    orthonormal_columns(case, Q)
    assert Q.shape == (*case.batch, m, m if mode == "complete" else min(m, n), *case.tube)
    assert case.to_hat(R).tril(-1).abs().sum() < 1e-10


def test_qr_against_numpy():
    A = randn(4, 3, 5)
    Q, R = (algebra.to_hat(X) for X in qr(A))
    for k, slice_k in enumerate(numpy_slices(A)):
        q, r = np.linalg.qr(slice_k)
        signs = np.sign(r.diagonal() * R[..., k].diagonal().numpy())
        np.testing.assert_allclose(Q[..., k], q * signs, atol=1e-10)
        np.testing.assert_allclose(R[..., k], r * signs[:, None], atol=1e-10)


@few
@given(case=cases(), m=sizes, n=sizes)
def test_lu(case: Case, m, n):
    A = case.randn(m, n)
    P, L, U = lu(A, **case.options)
    close(case.star(P, L, U), A)
    assert is_orthogonal(P, **case.options)
    P_hat, L_hat, U_hat = map(case.to_hat, (P, L, U))
    close(P_hat.abs().round(), P_hat.abs())
    close(L_hat.diagonal(dim1=-2, dim2=-1).abs(), torch.ones(*L_hat.shape[:-2], min(m, n), dtype=FLOAT))
    assert L_hat.real.abs().max() <= 1 + 1e-10 or L_hat.is_complex()  # the pivots are the largest
    assert L_hat.abs().max() <= 2**0.5 + 1e-10  # LAPACK's size of a complex number is |re| + |im|
    assert L_hat.triu(1).abs().sum() < 1e-10
    assert U_hat.tril(-1).abs().sum() < 1e-10


def test_lu_against_scipy():
    A = randn(4, 4, 5)
    factors = [algebra.to_hat(X) for X in lu(A)]
    for k, slice_k in enumerate(numpy_slices(A)):
        for ours, theirs in zip(factors, scipy.linalg.lu(slice_k), strict=True):
            np.testing.assert_allclose(ours[..., k], theirs, atol=1e-10)


@few
@given(case=cases(), m=sizes)
def test_cholesky(case: Case, m):
    B = case.regular(m)
    A = case.star(B, case.t(B))
    L = cholesky(A, **case.options)
    close(case.star(L, case.t(L)), A)
    assert case.to_hat(L).triu(1).abs().sum() < 1e-10
    assert (case.to_hat(L).diagonal(dim1=-2, dim2=-1).real > 0).all()


@few
@given(case=cases(), m=sizes)
def test_eigh(case: Case, m):
    B = case.randn(m, m)
    A = B + case.t(B)
    D, V = eigh(A, **case.options)
    close(case.star(V, D, case.t(V)), A)
    assert is_orthogonal(V, **case.options)
    assert is_diagonal(D, **case.options)
    values = case.to_hat(D).diagonal(dim1=-2, dim2=-1)
    close(values.real, torch.linalg.eigvalsh(case.to_hat(A)))


@few
@given(case=cases(), m=sizes)
def test_eig(case: Case, m):
    A = case.randn(m, m)
    D, V = eig(A, **case.options)
    assert D.is_complex()
    assert V.is_complex()
    close(case.star(A.to(V.dtype), V), case.star(V, D))
    assert is_diagonal(D, **case.options)
    assert (torch.linalg.svdvals(case.to_hat(V)) > 0).all()


def test_eigenvalues_against_numpy():
    A = randn(4, 4, 5)
    D = algebra.to_hat(eig(A).D)
    for k, slice_k in enumerate(numpy_slices(A)):
        distances = D[..., k].diagonal().numpy()[:, None] - np.linalg.eigvals(slice_k)
        assert np.abs(distances).min(0).max() < 1e-10
        assert np.abs(distances).min(1).max() < 1e-10


@few
@given(case=cases(), m=sizes, output=st.sampled_from(["real", "complex"]))
def test_schur(case: Case, m, output):
    A = case.randn(m, m)
    T, Z = schur(A, output=output, **case.options)
    assert T.is_complex() == Z.is_complex() == (output == "complex")
    close(case.star(Z, T, case.t(Z)), A.to(Z.dtype))
    assert is_orthogonal(Z, **case.options)
    T_hat = case.to_hat(T)
    assert T_hat.tril(-2 if output == "real" else -1).abs().sum() < 1e-10


def test_real_schur_against_scipy():
    A = randn(4, 4, 5)
    T = algebra.to_hat(schur(A).T)
    for k, slice_k in enumerate(numpy_slices(A)):
        t, _ = scipy.linalg.schur(slice_k)
        np.testing.assert_allclose(T[..., k].abs(), np.abs(t), atol=1e-8)
        np.testing.assert_allclose(np.linalg.eigvals(T[..., k].numpy()), np.linalg.eigvals(t), atol=1e-10)


def test_schur_says_that_it_needs_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.linalg", None)
    with pytest.raises(ImportError, match=r"schur needs SciPy: pip install 'tcpvit\[train\]'"):
        schur(torch.eye(2)[..., None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.complex128])
@pytest.mark.parametrize("transform", ["dct", "dft"])
def test_other_dtypes(dtype, transform):
    A = torch.randn(3, 3, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))
    gram = algebra.cprod(A, algebra.transpose(A, transform), transform) + algebra.identity(3, 4, transform)
    gram = gram.to(dtype)

    def product(*factors):
        result = factors[0]
        for factor in factors[1:]:
            result = algebra.cprod(result, factor, transform)
        return result

    U, S, V = svd(A, transform)
    D, W = eigh(gram, transform)
    L = cholesky(gram, transform)
    T, Z = schur(A, transform)
    assert all(X.dtype == dtype for X in (U, V, W, L, T, Z))
    S, D = S.to(dtype), D.to(dtype)
    star = algebra.transpose
    close(product(U, S, star(V, transform)), A, 1e-5)
    close(product(W, D, star(W, transform)), gram, 1e-5)
    close(product(L, star(L, transform)), gram, 1e-5)
    close(product(Z, T, star(Z, transform)), A, 1e-5)
    close(product(*qr(A, transform)), A, 1e-5)
    close(product(*lu(A, transform)), A, 1e-5)
    close(product(*polar(A, transform)), A, 1e-5)


@pytest.mark.parametrize("others", [(), ("dft",), ("dct",)])
def test_a_complex_matrix_as_transform(others):
    # It has no mirrored slices: the factors of a real tensor are complex, and fit.
    matrix = torch.complex(randn(3, 3), randn(3, 3, seed=1))
    transforms = (matrix, *others)
    p = len(transforms)
    A = randn(2, 4, 2, 3, *[5] * len(others), seed=2)

    def product(X, Y):
        return algebra.cprod(X, Y, transforms, tube_ndim=p)

    U, S, V = svd(A, transforms, tube_ndim=p)
    close(product(product(U, S), algebra.transpose(V, transforms, tube_ndim=p)), A.to(U.dtype))
    close(product(*qr(A, transforms, tube_ndim=p)), A.to(U.dtype))
    eye = product(A[:, :2].to(U.dtype), algebra.inverse(A[:, :2], transforms, tube_ndim=p))
    close(eye, algebra.identity(2, A.shape[-p:], transforms, dtype=U.dtype).expand_as(eye))


# --- gradients, of what does not depend on the choice of the factors ---


def of_svd(A, t, **k):
    U, S, V = svd(A, t, **k)
    back = algebra.cprod(algebra.cprod(U, S, t, **k), algebra.transpose(V, t, **k), t, **k)
    return S, back, algebra.cprod(U, algebra.transpose(V, t, **k), t, **k)


def of_symmetric(factorise):
    def function(A, t, **k):
        B = algebra.cprod(A, algebra.transpose(A, t, **k), t, **k)
        return factorise((B + algebra.transpose(B, t, **k)) / 2, t, **k)

    return function


def of_eigh(A, t, **k):
    D, V = eigh(A, t, **k)
    first = V[:, :1]
    return D, algebra.cprod(first, algebra.transpose(first, t, **k), t, **k)


def of_eig(A, t, **k):
    first = eig(A, t, **k).V[:, :1]
    return torch.view_as_real(algebra.cprod(first, algebra.transpose(first, t, **k), t, **k).contiguous())


def of_orth(A, t, **k):
    Q = orth(A[:, :1], t, **k)
    return algebra.cprod(Q, algebra.transpose(Q, t, **k), t, **k)


GAUGE_FREE = {
    "svd": of_svd,
    "truncated_svd": lambda A, t, **k: truncated_svd(A, t, rank=1, **k).S,
    "low_rank": lambda A, t, **k: tuple(low_rank(A, t, rank=1, **k)),
    "energy": lambda A, t, **k: low_rank(A, t, energy=0.7, **k).approximation,
    "qr": lambda A, t, **k: tuple(qr(A, t, **k)),
    "lu": lambda A, t, **k: tuple(lu(A, t, **k))[1:],
    "polar": lambda A, t, **k: tuple(polar(A, t, **k)),
    "cholesky": of_symmetric(cholesky),
    "eigh": of_symmetric(of_eigh),
    "eig": of_eig,
    "orth": of_orth,
}


@pytest.mark.parametrize("tube", [(3,), (4,), (3, 2)])
@pytest.mark.parametrize("transform", ["dct", "dft", "cosine_kka"])
@pytest.mark.parametrize("name", GAUGE_FREE)
def test_gradients(name, transform, tube):
    A = randn(2, 2, *tube, seed=3).requires_grad_()
    assert gradcheck(lambda A: GAUGE_FREE[name](A, transform, tube_ndim=len(tube)), A)


def test_gradient_of_rectangles():
    assert gradcheck(lambda A: of_svd(A, "dct"), randn(3, 2, 2).requires_grad_())
    assert gradcheck(lambda A: of_svd(A, "dft"), randn(2, 2, 3, 4).requires_grad_())


# --- what does not fit ---

SQUARE = [cholesky, eigh, eig, schur]
ALL = [
    *SQUARE,
    svd,
    qr,
    lu,
    polar,
    orth,
    lambda A, **k: truncated_svd(A, rank=1, **k),
    lambda A, **k: low_rank(A, rank=1, **k),
]


@pytest.mark.parametrize("factorise", SQUARE)
def test_needs_square_slices(factorise):
    with pytest.raises(ValueError, match=r"A should have square slices, got 2×3 slices in shape \(2, 3, 4\)"):
        factorise(torch.ones(2, 3, 4))


@pytest.mark.parametrize("factorise", ALL)
def test_errors_of_all(factorise):
    A = torch.ones(2, 2, 3)
    A[0, 1, 2] = torch.nan
    with pytest.raises(ValueError, match=r"A of shape \(2, 2, 3\) holds NaN or infinity"):
        factorise(A)
    with pytest.raises(ValueError, match=r"A is torch.float16.*convert it with A.float\(\)"):
        factorise(torch.ones(2, 2, 3, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"floating-point numbers, got torch.int64"):
        factorise(torch.ones(2, 2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"shape \(..., m, n, C1, C2\), got \(2, 2, 3\)"):
        factorise(torch.ones(2, 2, 3), tube_ndim=2)
    with pytest.raises(ValueError, match="power of two, got 3"):
        factorise(torch.ones(2, 2, 3), transform="hadamard")


@pytest.mark.parametrize("factorise", [cholesky, eigh])
def test_needs_symmetric_slices(factorise):
    with pytest.raises(ValueError, match=r"\(2, 2, 3\) is not f-symmetric.*\(A \+ transpose\(A\)\) / 2"):
        factorise(randn(2, 2, 3))


def test_cholesky_names_the_slices_that_are_not_positive():
    hat = torch.eye(2)[..., None].repeat(1, 1, 4)
    hat[..., 1] *= -1
    hat[..., 3] = 1 - hat[..., 3]
    with pytest.raises(LinAlgError, match=r"\(2, 2, 4\) is not f-positive-definite: slices 1, 3 of its hat domain"):
        cholesky(algebra.from_hat(hat))


@pytest.mark.parametrize("truncate", [truncated_svd, low_rank])
def test_errors_of_truncation(truncate):
    A = randn(4, 3, 5)
    for options, message in [
        ({}, "either rank or energy, got rank=None and energy=None"),
        ({"rank": 1, "energy": 0.5}, "either rank or energy, got rank=1 and energy=0.5"),
        ({"energy": 0.0}, r"energy is a part of the whole, in \(0, 1\], got 0.0"),
        ({"energy": 1.5}, r"in \(0, 1\], got 1.5"),
        ({"rank": 0}, r"rank is between 1 and min\(m, n\) = 3, got 0"),
        ({"rank": 4}, r"rank is between 1 and min\(m, n\) = 3, got 4"),
        ({"rank": (1, 2, 3, 4, 0)}, r"rank is between 0 and min\(m, n\) = 3, got \(1, 2, 3, 4, 0\)"),
        ({"rank": (1, 2)}, r"rank names 2 slices, but tubes of shape \(5,\) make 5"),
        ({"rank": 1.5}, "rank is an integer, or one for each slice, got 1.5"),
        ({"rank": True}, "rank is an integer, or one for each slice, got True"),
    ]:
        with pytest.raises(ValueError, match=message):
            truncate(A, **options)
    with pytest.raises(ValueError, match=r"slices k and C−k .* need equal ranks, got \[1, 2, 3, 1, 1\]"):
        truncate(A, "dft", rank=(1, 2, 3, 1, 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda A: qr(A, mode="full"), r"qr has no mode 'full'.*Known: reduced, complete"),
        (lambda A: polar(A, side="up"), r"'right' or 'left', got 'up'"),
        (lambda A: schur(A, output="triangular"), r"'real' and 'complex', got 'triangular'"),
    ],
)
def test_unknown_options(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.ones(2, 2, 3))
