"""Unfoldings against NumPy, block matrices against the t-product, and transforms made of two functions."""

import numpy as np
import pytest
import scipy.fft
import scipy.linalg
import torch
from slice_cases import close

from tcpvit import algebra
from tcpvit.algebra import FunctionTransform, bcirc, bdiag, cprod, fold, mode_product, to_hat, unfold


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mode", [0, 1, 2, 3, -1])
def test_unfold_fold_and_mode_product(mode):
    A = randn(2, 3, 4, 5)
    expected = np.reshape(np.moveaxis(A.numpy(), mode, 0), (A.shape[mode], -1))
    close(unfold(A, mode), torch.from_numpy(expected))
    close(fold(unfold(A, mode), mode, A.shape), A)
    M = randn(6, A.shape[mode])
    shape = list(A.shape)
    shape[mode] = 6
    close(mode_product(A, M, mode), fold(M @ unfold(A, mode), mode, shape))


def test_mode_product_along_the_tube_is_the_transform():
    A, dct = randn(3, 4, 5), algebra.get_transform("dct", 5)
    close(mode_product(A, dct.matrix, 2), to_hat(A))


def test_bcirc_is_the_t_product():
    A, B = randn(2, 3, 4, 5), randn(2, 4, 2, 5, seed=1)
    stacked = B.movedim(-1, 1).flatten(1, 2)  # (2, C·4, 2), slices one below the other
    found = (bcirc(A) @ stacked).unflatten(1, (5, 3)).movedim(1, -1)
    close(found, cprod(A, B, "dft"))
    close(bcirc(randn(1, 1, 5)), torch.from_numpy(scipy.linalg.circulant(randn(1, 1, 5)[0, 0])))


def test_bdiag_against_scipy():
    A = randn(2, 3, 4, 5)
    close(bdiag(A)[1], torch.from_numpy(scipy.linalg.block_diag(*A[1].movedim(-1, 0).numpy())))
    DFT, eye = algebra.get_transform("dft", 5), torch.eye(3, dtype=torch.complex128)
    left, right = torch.kron(DFT.matrix, eye), torch.kron(DFT.inverse_matrix, torch.eye(4, dtype=eye.dtype))
    close(bdiag(to_hat(A[0], "dft")), left @ bcirc(A[0]).to(eye.dtype) @ right)  # the DFT makes it block diagonal


def test_transform_of_two_functions():
    def forward(x):
        return torch.from_numpy(scipy.fft.dct(x.numpy(), norm="ortho"))

    def backward(x):
        return torch.from_numpy(scipy.fft.idct(x.numpy(), norm="ortho"))

    ours = FunctionTransform(forward, backward, tube=6, name="scipy's dct")
    A, B = randn(3, 4, 6), randn(4, 2, 6)
    close(cprod(A, B, ours), cprod(A, B))
    close(ours.matrix, algebra.get_transform("dct", 6).matrix)
    assert ours.scale == 1.0
    close(algebra.svd(A, ours).S, algebra.svd(A).S)
    fourier = FunctionTransform(torch.fft.fft, torch.fft.ifft, 6)
    assert fourier.is_complex
    close(cprod(A, B, fourier).real, cprod(A, B, "dft"))


def test_apply_and_logm_against_scipy():
    A = randn(3, 3, 4) / 4
    hats = scipy.fft.dct(A.numpy(), norm="ortho", axis=-1)
    sines = np.stack([scipy.linalg.sinm(hats[..., k]) for k in range(4)], -1)

    def sinm(slices):
        return torch.linalg.matrix_exp(1j * slices).imag

    close(algebra.apply(A, sinm), torch.from_numpy(scipy.fft.idct(sines, norm="ortho", axis=-1)))
    B = algebra.expm(A)
    hats = scipy.fft.dct(B.numpy(), norm="ortho", axis=-1)
    logs = np.stack([scipy.linalg.logm(hats[..., k]) for k in range(4)], -1)
    close(algebra.logm(B), torch.from_numpy(scipy.fft.idct(logs, norm="ortho", axis=-1)))
    close(algebra.apply(randn(2, 3, 4), lambda slices: slices.mH, "dft"), algebra.transpose(randn(2, 3, 4), "dft"))


@pytest.mark.parametrize("transform", ["dct", "dft", "cosine_kka"])
def test_logm_undoes_expm_and_has_a_gradient(transform):
    A = (randn(2, 3, 3, 4) / 5).requires_grad_()
    close(algebra.logm(algebra.expm(A, transform), transform), A)
    B = algebra.expm(A, transform).detach()
    eye = algebra.identity(3, 4, transform, dtype=B.dtype)
    for s in (2.0**-80, 2.0**80):
        close(algebra.logm(s * B, transform), A + np.log(s) * eye, atol=1e-11)
    small = algebra.expm(A[0, :2, :2], transform).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda X: algebra.logm(X, transform), small)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: unfold(randn(2, 3), 2), ValueError, "a tensor with 2 modes has the modes 0 to 1, got 2"),
        (lambda: fold(randn(2, 3), 0, (2, 4)), ValueError, r"along mode 0 has shape \(2, 4\), got \(2, 3\)"),
        (lambda: mode_product(randn(2, 3), randn(2, 4), 1), ValueError, "takes a matrix with 3 columns"),
        (lambda: bcirc(randn(2, 3)), ValueError, r"A should have shape \(..., m, n, C\)"),
        (lambda: FunctionTransform(torch.abs, torch.abs, 3), ValueError, "is linear and acts along the last"),
        (lambda: FunctionTransform(torch.fft.rfft, torch.fft.irfft, 4), ValueError, r"became \(4, 3\)"),
        (lambda: FunctionTransform(lambda x: 2 * x, lambda x: x, 3), ValueError, "is the inverse of the first"),
        (lambda: algebra.logm(-algebra.identity(2, 3)), torch.linalg.LinAlgError, "no principal logarithm: slices 0"),
        (lambda: algebra.logm(torch.ones(2, 2, 3)), torch.linalg.LinAlgError, "an eigenvalue at zero"),
    ],
)
def test_refusals_name_the_fault(make, error, message):
    with pytest.raises(error, match=message):
        make()
