"""The predicates: true where the definition holds, false next to it, one answer for the whole batch."""

import pytest
import torch
from hypothesis import given, settings
from slice_cases import FLOAT, Case, cases, sizes

from tcpvit import algebra
from tcpvit.algebra import is_diagonal, is_orthogonal, is_positive_definite, is_symmetric

PREDICATES = [is_orthogonal, is_symmetric, is_diagonal, is_positive_definite]
few = settings(max_examples=20, deadline=None)


@few
@given(case=cases(), m=sizes)
def test_orthogonal(case: Case, m):
    Q = algebra.qr(case.randn(m, m), **case.options).Q
    assert is_orthogonal(Q, **case.options)
    assert is_orthogonal(case.star(Q, Q), **case.options)
    assert not is_orthogonal(1.001 * Q, **case.options)
    assert not is_orthogonal(case.regular(m) + Q, **case.options)


@few
@given(case=cases(), m=sizes)
def test_symmetric(case: Case, m):
    A = case.randn(m, m)
    assert is_symmetric(A + case.t(A), **case.options)
    assert is_symmetric(case.star(A, case.t(A)), **case.options)
    if m > 1:
        assert not is_symmetric(A, **case.options)


@few
@given(case=cases(), m=sizes, n=sizes)
def test_diagonal(case: Case, m, n):
    A = case.randn(m, n)
    S = algebra.svd(A, full_matrices=True, **case.options).S
    assert S.shape == A.shape
    assert is_diagonal(S, **case.options)
    assert is_diagonal(A, **case.options) == (m == n == 1)


@few
@given(case=cases(), m=sizes)
def test_positive_definite(case: Case, m):
    B = case.regular(m)
    A = case.star(B, case.t(B))
    assert is_positive_definite(A, **case.options)
    assert not is_positive_definite(-A, **case.options)
    if m > 1:
        narrow = case.randn(m, m - 1)
        assert not is_positive_definite(case.star(narrow, case.t(narrow)), **case.options)  # semidefinite


def test_the_paper_identity_is_orthogonal_for_cosine_kka_only():
    paper = torch.zeros(2, 2, 3)
    paper[..., 0] = torch.eye(2)
    assert is_orthogonal(paper, "cosine_kka")
    assert not is_orthogonal(paper, "dct")
    assert is_orthogonal(algebra.identity(2, 3), "dct")


def test_symmetry_depends_on_the_transform():
    # For the t-product the slices k and C−k are transposes of each other.
    A = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    of_t_product = torch.stack([torch.eye(2), A, A.mT], -1)
    assert is_symmetric(of_t_product, "dft")
    assert not is_symmetric(of_t_product, "dct")


@pytest.mark.parametrize("predicate", PREDICATES)
def test_one_bool_for_the_batch(predicate):
    good = algebra.identity(2, 3, dtype=FLOAT)
    bad = good.clone()
    bad[0, 1, 2] += 0.1
    assert predicate(torch.stack([good, good])) is True
    assert predicate(torch.stack([good, bad])) is False
    # a large tensor beside it does not hide what is wrong
    assert predicate(torch.stack([1e9 * good, bad])) is False


@pytest.mark.parametrize("predicate", PREDICATES)
def test_tolerances(predicate):
    A = algebra.identity(2, 3, dtype=FLOAT)
    A[0, 1, 2] += 1e-4
    assert predicate(A) is False
    assert predicate(A, rtol=1e-3) is True
    assert predicate(A, atol=1e-3) is True
    assert predicate(A.float()) is True  # 1e-4 is within half of the digits of float32


@pytest.mark.parametrize("predicate", PREDICATES)
def test_rectangles(predicate):
    A = torch.eye(2, 3)[..., None].expand(2, 3, 4)
    assert predicate(A) is (predicate is is_diagonal)


@pytest.mark.parametrize("predicate", [is_orthogonal, is_symmetric, is_diagonal])
def test_nan_has_no_property(predicate):
    A = algebra.identity(2, 3)
    A[0, 1, 0] = torch.nan
    assert predicate(A) is False


def test_positive_definite_needs_finite_numbers():
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        is_positive_definite(torch.full((2, 2, 3), torch.nan))


@pytest.mark.parametrize("predicate", PREDICATES)
def test_errors(predicate):
    with pytest.raises(ValueError, match=r"floating-point numbers, got torch.int64"):
        predicate(torch.ones(2, 2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"shape \(..., m, n, C\), got \(2, 3\)"):
        predicate(torch.ones(2, 3))
    with pytest.raises(ValueError, match="power of two, got 3"):
        predicate(torch.ones(2, 2, 3), "hadamard")
