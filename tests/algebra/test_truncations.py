"""Null spaces, skinny and randomised SVDs, condition numbers: against SciPy and the SVD in full."""

import numpy as np
import pytest
import scipy.fft
import scipy.linalg
import torch
from slice_cases import close

from tcpvit.algebra import (
    block_matrix,
    cond,
    cprod,
    from_hat,
    identity,
    null,
    rsvd,
    skinny_svd,
    svd,
    transpose,
    truncated_svd,
)

TRANSFORMS = ["dct", "dft", "cosine_kka"]


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def of_rank(m, n, rank, C=4, transform="dct"):
    return cprod(randn(m, rank, C), randn(rank, n, C, seed=1), transform)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(("m", "n"), [(3, 5), (5, 3), (4, 4)])
def test_null_space(m, n, transform):
    A = of_rank(m, n, 2, transform=transform)
    N = null(A, transform)
    assert N.shape == (n, n - 2, 4)
    close(cprod(A, N, transform), torch.zeros(m, n - 2, 4, dtype=A.dtype))
    eye = identity(n - 2, 4, transform, dtype=A.dtype)
    close(cprod(transpose(N, transform), N, transform), eye)


def test_null_space_against_scipy():
    A = of_rank(4, 6, 3)
    slices = scipy.fft.dct(A.numpy(), norm="ortho", axis=-1)
    hats = scipy.fft.dct(null(A).numpy(), norm="ortho", axis=-1)
    for k in range(4):
        theirs = scipy.linalg.null_space(slices[..., k])
        np.testing.assert_allclose(hats[..., k] @ hats[..., k].T, theirs @ theirs.T, atol=1e-10)


def test_null_space_of_slices_of_different_rank():
    hats = torch.stack([torch.diag(torch.tensor(d)) for d in ([1.0, 1.0, 0.0], [1.0, 0.0, 0.0])], -1).double()
    N = null(from_hat(hats))
    assert N.shape == (3, 2, 2)
    close(cprod(from_hat(hats), N), torch.zeros(3, 2, 2, dtype=torch.float64))
    assert null(identity(3, 4)).shape == (3, 0, 4)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_skinny_svd(transform):
    A = of_rank(6, 5, 2, transform=transform)
    U, S, V = skinny_svd(A, transform)
    assert (U.shape, S.shape, V.shape) == ((6, 2, 4), (2, 2, 4), (5, 2, 4))
    close(cprod(cprod(U, S, transform), transpose(V, transform), transform), A)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_rsvd_finds_what_is_of_low_rank_exactly(transform):
    A = of_rank(30, 40, 3, transform=transform).expand(2, -1, -1, -1)
    U, S, V = rsvd(A, 3, transform)
    assert (U.shape, S.shape, V.shape) == ((2, 30, 3, 4), (2, 3, 3, 4), (2, 40, 3, 4))
    close(cprod(cprod(U, S, transform), transpose(V, transform), transform), A.contiguous(), atol=1e-9)
    close(S, truncated_svd(A, transform, rank=3).S, atol=1e-9)


def test_rsvd_of_two_tube_modes_is_real():
    A = randn(8, 9, 3, 4)
    U, S, V = rsvd(A, 8, "dft", tube_ndim=2)
    product = cprod(cprod(U, S, "dft", tube_ndim=2), transpose(V, "dft", tube_ndim=2), "dft", tube_ndim=2)
    close(product, A)


def test_rsvd_is_nearly_optimal_and_repeats_with_a_generator():
    U, _, V = svd(randn(60, 50, 3))
    decay = from_hat(torch.diag(0.7 ** torch.arange(50.0, dtype=torch.float64))[..., None].repeat(1, 1, 3))
    A = cprod(cprod(U, decay), transpose(V))
    found = [rsvd(A, 5, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(found[0].U, found[1].U)
    Q = found[0].U
    error = (A - cprod(Q, cprod(transpose(Q), A))).norm()
    best = decay[5:].norm()
    assert (1 - 1e-9) * best <= error <= 1.01 * best


@pytest.mark.parametrize("transform", ["dct", "dft", "haar"])
def test_cond_is_that_of_the_block_matrix(transform):
    A = randn(2, 4, 3, 5)
    close(cond(A, transform), torch.linalg.cond(block_matrix(A, transform)))
    assert cond(1e-30 * torch.zeros(2, 2, 3) + 1e-30 * identity(2, 3)) < 1.001


def test_refusals_name_the_fault():
    with pytest.raises(ValueError, match=r"rank is between 1 and min\(m, n\) = 3, got 4"):
        rsvd(randn(3, 5, 2), 4)
    with pytest.raises(ValueError, match="without rows or columns has no condition number"):
        cond(randn(0, 5, 2))


def test_energies_are_summed_where_there_is_float64(monkeypatch):
    A, moved, to_cpu = randn(4, 3, 5).float(), [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: moved.append(tensor.dtype) or to_cpu(tensor))
    truncated_svd(A, energy=0.9)
    assert moved == [torch.float32]  # Apple's GPUs have no float64
