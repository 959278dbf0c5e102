"""Tube transforms (paper, Section 2.2): the invertible linear maps M that define a product, A ⋆ B = M⁻¹(M(A) · M(B)).

A transform belongs to one tube length. It is looked up by name, `get_transform("dct", tube=3)`, made from a matrix
of the user's, `MatrixTransform(M)`, learned (`LearnedTransform`), or taken from data (`data_driven(X)`).

Inside the algebra slices come first, so the two working methods are `slices`, (..., C) -> (C, ...), and `unslices`,
its inverse; `forward` and `inverse` are the same maps with the tube left where it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tcpvit.algebra import bases
from tcpvit.algebra.bases import unitary_scale
from tcpvit.algebra.checks import nearest
from tcpvit.algebra.fast import fast_dct, fast_dst, fast_hadamard, fast_idct, fast_idst


class Transform:
    """An invertible linear map along tubes of length `tube`.

    Attributes:
        name: what `repr` and reports show.
        tube: the tube length C.
        matrix: M, (C, C) in float64 (complex128 for the DFT): `x_hat = M @ x` for a tube x.
        inverse_matrix: M⁻¹.
        scale: s where M Mᴴ = s·I (1 if orthonormal, C for the unnormalised DFT), None where no such s exists.

    >>> dct = get_transform("dct", 3)
    >>> dct.forward(torch.ones(3)).round(decimals=3)
    tensor([1.7320, 0.0000, 0.0000])
    >>> dct.is_orthogonal
    True
    """

    def __init__(self, matrix: Tensor, name: str = "matrix", inverse_matrix: Tensor | None = None):
        self.name = name
        self.tube = matrix.shape[0]
        self.matrix = matrix
        self.inverse_matrix = torch.linalg.inv(matrix) if inverse_matrix is None else inverse_matrix
        self.scale = unitary_scale(matrix)
        self._casts: dict[tuple[torch.dtype, torch.device, bool], Tensor] = {}

    @property
    def is_orthogonal(self) -> bool:
        """True if M is orthogonal up to a factor, so that norms and inner products agree in both domains."""
        return self.scale is not None

    @property
    def is_complex(self) -> bool:
        """True if the hat domain of a real tensor is complex."""
        return self.matrix.is_complex()

    def forward(self, x: Tensor, dim: int = -1) -> Tensor:
        """Hat domain of `x` along `dim`: same shape, slices contiguous in memory."""
        return self.slices(x.movedim(dim, -1), half=False).movedim(0, dim)

    def inverse(self, x_hat: Tensor, dim: int = -1, *, real: bool = True) -> Tensor:
        """Spatial domain of `x_hat` along `dim`; `real` drops the imaginary part that the DFT leaves."""
        x = self.unslices(x_hat.movedim(dim, 0)).movedim(-1, dim)
        return x.real if real and self.is_complex else x

    def slices(self, x: Tensor, *, half: bool = False) -> Tensor:
        """(..., C) -> (C, ...): transform the tubes and put the slices first.

        `half` asks a complex transform of a real tensor for the ⌊C/2⌋+1 slices that determine the others.
        """
        matrix = self._cast(x, inverse=False)
        return (matrix @ x.reshape(-1, self.tube).mT.to(matrix.dtype)).view(self.tube, *x.shape[:-1])

    def unslices(self, x_hat: Tensor, *, half: bool = False) -> Tensor:
        """(C, ...) -> (..., C): the inverse of `slices`."""
        matrix = self._cast(x_hat, inverse=True)
        flat = x_hat.reshape(self.tube, -1)
        return (flat.mT.to(matrix.dtype) @ matrix.mT).view(*x_hat.shape[1:], self.tube)

    def _cast(self, x: Tensor, *, inverse: bool) -> Tensor:
        """M or M⁻¹ in the precision and on the device of `x`; a complex matrix stays complex."""
        matrix = self.inverse_matrix if inverse else self.matrix
        dtype = x.dtype.to_complex() if self.is_complex else x.dtype
        if torch.compiler.is_compiling():
            return matrix.to(x.device, dtype)
        key = (x.dtype, x.device, inverse)
        if key not in self._casts:
            self._casts[key] = matrix.to(x.device, dtype)
        return self._casts[key]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, tube={self.tube})"


class MatrixTransform(Transform):
    """Any invertible matrix of the user's as a transform.

    >>> MatrixTransform(torch.tensor([[2.0, 1.0], [0.0, 1.0]])).is_orthogonal
    False
    """

    def __init__(self, matrix: Tensor, name: str = "matrix"):
        matrix = _invertible(matrix.detach().to("cpu", torch.complex128 if matrix.is_complex() else torch.float64))
        super().__init__(matrix, name)


class FastTransform(Transform):
    """A transform with an O(C log C) algorithm, used from tube length `fast_from` on.

    The crossover was measured by `benchmarks/algebra.py` against the matrix product of the same tubes.
    """

    def __init__(
        self,
        matrix: Tensor,
        name: str,
        fast: Callable[[Tensor], Tensor],
        fast_inverse: Callable[[Tensor], Tensor],
        fast_from: int,
    ):
        super().__init__(matrix, name, inverse_matrix=matrix.mT.contiguous())
        self.fast, self.fast_inverse, self.fast_from = fast, fast_inverse, fast_from

    def slices(self, x: Tensor, *, half: bool = False) -> Tensor:
        """(..., C) -> (C, ...), by the fast algorithm if the tube is long."""
        if self.tube < self.fast_from or not _has_fft(x):
            return super().slices(x)
        return self.fast(x).movedim(-1, 0)

    def unslices(self, x_hat: Tensor, *, half: bool = False) -> Tensor:
        """(C, ...) -> (..., C), by the fast algorithm if the tube is long."""
        if self.tube < self.fast_from or not _has_fft(x_hat):
            return super().unslices(x_hat)
        return self.fast_inverse(x_hat.movedim(0, -1))


class DFT(Transform):
    """The unnormalised DFT: its product is the t-product of Kilmer and Martin.

    >>> get_transform("dft", 4).forward(torch.tensor([1.0, 0.0, 0.0, 0.0])).real
    tensor([1., 1., 1., 1.])
    """

    def __init__(self, tube: int):
        matrix = torch.fft.fft(torch.eye(tube, dtype=torch.complex128))
        super().__init__(matrix, "dft", inverse_matrix=matrix.conj().resolve_conj() / tube)

    def slices(self, x: Tensor, *, half: bool = False) -> Tensor:
        """(..., C) -> (C, ...), or (⌊C/2⌋+1, ...) for real input if `half`."""
        return (torch.fft.rfft(x) if half else torch.fft.fft(x)).movedim(-1, 0)

    def unslices(self, x_hat: Tensor, *, half: bool = False) -> Tensor:
        """The inverse of `slices`; real if the slices were `half`."""
        x_hat = x_hat.movedim(0, -1)
        return torch.fft.irfft(x_hat, n=self.tube) if half else torch.fft.ifft(x_hat)


class LearnedTransform(nn.Module):
    """A learned orthogonal transform, starting at the DCT (or at `start`): torch's orthogonal parametrisation.

    It has the face of `Transform`; as an nn.Module it can be trained, saved and moved with a model.

    >>> learned = LearnedTransform(3)
    >>> torch.allclose(learned.matrix, get_transform("dct", 3).matrix.float(), atol=1e-6)
    True
    """

    is_orthogonal, is_complex, scale, name = True, False, 1.0, "learned"

    def __init__(self, tube: int, start: str | Transform | Tensor = "dct"):
        super().__init__()
        self.tube = tube
        begin = get_transform(start, tube)
        if begin.scale != 1.0 or begin.is_complex:
            raise ValueError(f"a learned transform starts at a real orthogonal one, but {begin!r} is not; try 'dct'")
        self.basis = nn.Linear(tube, tube, bias=False)
        nn.utils.parametrizations.orthogonal(self.basis, orthogonal_map="matrix_exp")
        with torch.no_grad():
            self.basis.weight = begin.matrix.to(self.basis.weight)

    @property
    def matrix(self) -> Tensor:
        """M, differentiable."""
        return self.basis.weight

    @property
    def inverse_matrix(self) -> Tensor:
        """M⁻¹ = Mᵀ, differentiable."""
        return self.basis.weight.mT

    def slices(self, x: Tensor, *, half: bool = False) -> Tensor:
        """(..., C) -> (C, ...)."""
        return (self.matrix.to(x.dtype) @ x.reshape(-1, self.tube).mT).view(self.tube, *x.shape[:-1])

    def unslices(self, x_hat: Tensor, *, half: bool = False) -> Tensor:
        """(C, ...) -> (..., C)."""
        return (x_hat.reshape(self.tube, -1).mT @ self.matrix.to(x_hat.dtype)).view(*x_hat.shape[1:], self.tube)

    def forward(self, x: Tensor, dim: int = -1) -> Tensor:
        """Hat domain of `x` along `dim`."""
        return self.slices(x.movedim(dim, -1)).movedim(0, dim)

    def inverse(self, x_hat: Tensor, dim: int = -1, *, real: bool = True) -> Tensor:
        """Spatial domain of `x_hat` along `dim`."""
        return self.unslices(x_hat.movedim(dim, 0)).movedim(-1, dim)

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"tube={self.tube}"


AnyTransform = Transform | LearnedTransform


# From which tube length on the fast algorithm wins on a CPU, all measured by benchmarks/algebra.py.
FAST_FROM = {"dct": 256, "dst": 256, "hadamard": 128}

_MATRICES: dict[str, Callable[[int], Tensor]] = {
    "dct": bases.dct_matrix,
    "dst": bases.dst_matrix,
    "cosine_kka": bases.cosine_kka_matrix,
    "haar": bases.haar_matrix,
    "hadamard": bases.hadamard_matrix,
    "identity": lambda tube: torch.eye(tube, dtype=torch.float64),
}
_FAST = {
    "dct": (fast_dct, fast_idct),
    "dst": (fast_dst, fast_idst),
    "hadamard": (fast_hadamard, fast_hadamard),
}


def list_transforms() -> list[str]:
    """Names that `get_transform` takes; `wavelet:NAME` stands for every orthonormal wavelet of PyWavelets.

    >>> "dct" in list_transforms()
    True
    """
    return [*_MATRICES, "dft", "learned", "random_orthogonal", "wavelet:NAME"]


def get_transform(transform: str | AnyTransform | Tensor, tube: int) -> AnyTransform:
    """The transform of that name (or made of that matrix) for tubes of length `tube`.

    >>> get_transform("haar", 3)
    Transform(haar, tube=3)
    """
    if isinstance(transform, Transform | LearnedTransform):
        found: AnyTransform = transform
    elif isinstance(transform, Tensor):
        found = MatrixTransform(transform)
    elif isinstance(transform, str):
        found = LearnedTransform(tube) if transform == "learned" else _by_name(transform, tube)
    else:
        raise ValueError(f"a transform is a name, a Transform or a matrix, got {type(transform).__name__}")
    if found.tube != tube:
        raise ValueError(f"{found!r} transforms tubes of length {found.tube}, but the tensor's tube has {tube} entries")
    return found


@functools.lru_cache(maxsize=256)
def _by_name(name: str, tube: int) -> Transform:
    if tube < 1:
        raise ValueError(f"a tube has at least one entry, got length {tube}")
    if name == "dft":
        return DFT(tube)
    if name == "random_orthogonal":
        return random_orthogonal(tube)
    if name.startswith("wavelet:"):
        return Transform(bases.wavelet_matrix(tube, name.removeprefix("wavelet:")), name)
    if name not in _MATRICES:
        raise ValueError(f"no transform is called {name!r}{nearest(name, list_transforms())}")
    matrix = _MATRICES[name](tube)
    if name in _FAST:
        return FastTransform(matrix, name, *_FAST[name], fast_from=FAST_FROM[name])
    return Transform(matrix, name)


def random_orthogonal(tube: int, seed: int = 0) -> Transform:
    """A random orthogonal transform (Haar measure), the same for the same seed.

    >>> random_orthogonal(4, seed=1).is_orthogonal
    True
    """
    generator = torch.Generator().manual_seed(seed)
    q, r = torch.linalg.qr(torch.randn(tube, tube, dtype=torch.float64, generator=generator))
    return Transform(q * r.diagonal().sign(), f"random_orthogonal({seed})")


def data_driven(x: Tensor) -> Transform:
    """The transform of the data `x`, (..., m, n, C): Uᵀ of the left singular vectors of its mode-3 unfolding.

    It compacts the energy of `x` into the first slices better than any other orthogonal transform.

    >>> x = torch.ones(4, 5, 3)
    >>> data_driven(x).forward(x)[0, 0].abs().round(decimals=4)
    tensor([1.7321, 0.0000, 0.0000])
    """
    if not torch.isfinite(x).all():
        raise ValueError("data_driven needs finite data, got NaN or infinity")
    unfolding = x.detach().to("cpu", torch.float64).reshape(-1, x.shape[-1])  # (m·n, C), the transposed unfolding
    # U of the unfolding are the eigenvectors of its C×C Gram matrix.
    _, vectors = torch.linalg.eigh(unfolding.mT @ unfolding)
    basis = vectors.flip(-1).mT.contiguous()  # largest first
    largest = basis.gather(1, basis.abs().argmax(dim=1, keepdim=True))
    return Transform(basis * largest.sign(), "data_driven")


def _has_fft(x: Tensor) -> bool:
    """The fast algorithms are for real floats that the FFT takes everywhere."""
    return x.dtype in (torch.float32, torch.float64)


def _invertible(matrix: Tensor) -> Tensor:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"a transform's matrix is square, (C, C), got shape {tuple(matrix.shape)}")
    if not torch.isfinite(torch.view_as_real(matrix) if matrix.is_complex() else matrix).all():
        raise ValueError("a transform's matrix is finite, got NaN or infinity")
    condition = torch.linalg.cond(matrix).item()
    if condition > 1e12:
        raise ValueError(f"a transform's matrix is invertible, got one with condition number {condition:.1e}")
    return matrix
