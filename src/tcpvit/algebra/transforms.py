"""Tube transforms (paper, Section 2.2): the invertible linear maps M that define a product, A ⋆ B = M⁻¹(M(A) · M(B)).

A transform belongs to one tube length. It is looked up by name, `get_transform("dct", tube=3)`, made from a matrix
of the user's, `MatrixTransform(M)`, learned (`LearnedTransform`, in `learned.py`) or taken from data (`data_driven`).

`to_hat` and `from_hat` leave the tube where it was. Inside the algebra slices come first, so the two working methods
are `to_hat_slices`, (..., C) -> (C, ...), and `from_hat_slices`, its inverse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tcpvit.algebra import bases
from tcpvit.algebra.cache import cached_tensors, in_fake_mode, outside_torch_modes
from tcpvit.algebra.fast import FAST
from tcpvit.algebra.inputs import as_tensor
from tcpvit.errors import did_you_mean

# Tube lengths from which the fast algorithm beats the product with the matrix, float32 on one and two threads of a
# CPU; benchmarks/algebra.py measures them anew.
FAST_FROM = {"dct": 128, "dst": 128, "haar": 128, "hadamard": 64, "identity": 1}
PADDED = (2, 3, 5, 6, 7)  # rows: BLAS multiplies 3 slower than 4, and 6 or 7 than 8
HALF = (torch.float16, torch.bfloat16)


class Transform(ABC):
    """An invertible linear map along tubes of length `tube`.

    Attributes:
        name: what `repr` and reports show.
        tube: the tube length C.
        is_complex: True if the hat domain of a real tensor is complex.
        scale: s where M Mᴴ = s·I (1 if orthonormal, C for the unnormalised DFT), None where no such s exists.

    >>> dct = get_transform("dct", 3)
    >>> dct.to_hat(torch.ones(3)).round(decimals=3)
    tensor([1.7320, 0.0000, 0.0000])
    >>> dct.is_orthogonal
    True
    """

    is_complex: bool = False
    scale: float | None = 1.0

    def __init__(self, name: str, tube: int):
        self.name, self.tube = name, tube
        self.pads = tube in PADDED
        self._casts: dict[tuple[torch.dtype, torch.device, bool], Tensor] = {}

    @property
    @abstractmethod
    def matrix(self) -> Tensor:
        """M, (C, C) in float64 (complex128 for the DFT): `x_hat = M @ x` for a tube x."""

    @property
    @abstractmethod
    def inverse_matrix(self) -> Tensor:
        """M⁻¹."""

    @property
    def is_orthogonal(self) -> bool:
        """True if M is orthogonal up to a factor, so that norms and inner products agree in both domains."""
        return self.scale is not None

    def to_hat(self, x: Tensor, dim: int = -1) -> Tensor:
        """Hat domain of `x` along `dim`, in the same shape; in memory the slices come first."""
        self._check(x, dim)
        return narrow(self.to_hat_slices(widen(x).movedim(dim, -1)).movedim(0, dim), x.dtype)

    def from_hat(self, x_hat: Tensor, dim: int = -1, *, real: bool = True) -> Tensor:
        """Spatial domain of `x_hat` along `dim`; `real` drops the imaginary part that the DFT leaves."""
        self._check(x_hat, dim)
        x = self.from_hat_slices(widen(x_hat).movedim(dim, 0)).movedim(-1, dim)
        return narrow(x.real if real and self.is_complex else x, x_hat.dtype)

    def to_hat_slices(self, x: Tensor, *, half: bool = False) -> Tensor:
        """(..., C) -> (C, ...): transform the tubes and put the slices first.

        `half` asks the DFT of a real tensor for the ⌊C/2⌋+1 slices that determine the others.
        """
        matrix = self._cast(x, False)
        x_hat = torch.mm(matrix, self._match(x).reshape(-1, self.tube).mT)  # (C, all the rest)
        return (x_hat[: self.tube] if self.pads else x_hat).view(self.tube, *x.shape[:-1])

    def from_hat_slices(self, x_hat: Tensor, *, half: bool = False) -> Tensor:
        """(C, ...) -> (..., C): the inverse of `to_hat_slices`; in memory the slices stay first."""
        matrix = self._cast(x_hat, True)
        slices = self._match(x_hat).reshape(self.tube, -1)
        return torch.mm(matrix, slices).view_as(x_hat).movedim(0, -1)

    def _check(self, x: Tensor, dim: int) -> None:
        """Floating-point tubes of this length."""
        if not (x.is_floating_point() or x.is_complex()):
            raise ValueError(f"{self!r} takes floating-point numbers, got {x.dtype}; convert them with .float()")
        if x.shape[dim] != self.tube:
            raise ValueError(
                f"{self!r} takes tubes of length {self.tube}, got {x.shape[dim]} in dimension {dim} of {tuple(x.shape)}"
            )

    def _match(self, x: Tensor) -> Tensor:
        """Real numbers become complex for a complex matrix."""
        return x.to(_complex(x.dtype)) if self.is_complex else x

    def _cast(self, x: Tensor, inverse: bool) -> Tensor:
        """M (padded) or M⁻¹ on the device of `x` and in its precision, from a cache."""
        key = (x.dtype, x.device, inverse)
        matrix = self._casts.get(key)
        if matrix is None:
            if torch.compiler.is_compiling():
                return self._make_cast(*key)
            matrix = self._casts[key] = outside_torch_modes(self._make_cast, *key)
        return matrix if type(x) is Tensor else in_fake_mode(matrix)

    def _make_cast(self, dtype: torch.dtype, device: torch.device, inverse: bool) -> Tensor:
        matrix = self.inverse_matrix if inverse else padded(self.matrix)
        return matrix.to(_complex(dtype) if self.is_complex else dtype).to(device)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_casts": {}}  # they may live on a device that the reader of a pickle has not

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, tube={self.tube})"


class MatrixTransform(Transform):
    """Any invertible matrix of the user's as a transform; a copy, so no gradient flows to it (see LearnedTransform).

    >>> MatrixTransform(torch.tensor([[2.0, 1.0], [0.0, 1.0]])).is_orthogonal
    False
    """

    def __init__(self, matrix: Tensor, name: str = "matrix"):
        self._matrix, self._inverse, self.scale = outside_torch_modes(_examined, matrix.detach())
        self.is_complex = matrix.is_complex()
        super().__init__(name, len(matrix))

    @property
    def matrix(self) -> Tensor:
        """M, a copy of the user's matrix in double precision."""
        return self._matrix

    @property
    def inverse_matrix(self) -> Tensor:
        """M⁻¹."""
        return self._inverse


class FastTransform(Transform):
    """A real orthonormal transform with a fast algorithm for tubes of length `fast_from` and more.

    Shorter ones are multiplied with its matrix, which is made when it is asked for: at C = 10⁴ it takes a gigabyte.
    """

    def __init__(self, name: str, tube: int):
        super().__init__(name, tube)
        self.fast, self.fast_inverse = FAST[name]
        self.fast_from = FAST_FROM[name]

    @property
    def matrix(self) -> Tensor:
        """M."""
        return bases.named_matrix(self.name, self.tube)

    @property
    def inverse_matrix(self) -> Tensor:
        """M⁻¹ = Mᵀ."""
        return self.matrix.mT.contiguous()

    def to_hat_slices(self, x: Tensor, *, half: bool = False) -> Tensor:
        """(..., C) -> (C, ...), by the fast algorithm if the tube is long."""
        if self.tube < self.fast_from or not x.numel():
            return super().to_hat_slices(x)
        if x.is_complex():
            return torch.complex(self.to_hat_slices(x.real), self.to_hat_slices(x.imag))
        return self.fast(x.reshape(-1, self.tube)).view(self.tube, *x.shape[:-1])

    def from_hat_slices(self, x_hat: Tensor, *, half: bool = False) -> Tensor:
        """(C, ...) -> (..., C), by the fast algorithm if the tube is long."""
        if self.tube < self.fast_from or not x_hat.numel():
            return super().from_hat_slices(x_hat)
        if x_hat.is_complex():
            return torch.complex(self.from_hat_slices(x_hat.real), self.from_hat_slices(x_hat.imag))
        return self.fast_inverse(x_hat.reshape(self.tube, -1)).view(*x_hat.shape[1:], self.tube)


class DFT(Transform):
    """The unnormalised DFT: its product is the t-product of Kilmer and Martin.

    >>> get_transform("dft", 4).to_hat(torch.tensor([1.0, 0.0, 0.0, 0.0])).real
    tensor([1., 1., 1., 1.])
    """

    is_complex = True

    def __init__(self, tube: int):
        super().__init__("dft", tube)
        self.scale = float(tube)

    @property
    def matrix(self) -> Tensor:
        """M, complex."""
        return bases.named_matrix("dft", self.tube)

    @property
    def inverse_matrix(self) -> Tensor:
        """M⁻¹, the conjugate of M divided by C."""
        return self.matrix.conj().resolve_conj() / self.tube

    def to_hat_slices(self, x: Tensor, *, half: bool = False) -> Tensor:
        """(..., C) -> (C, ...), or (⌊C/2⌋+1, ...) for real input if `half`."""
        if not x.numel():  # MKL's FFT refuses an empty batch
            x_hat = x[..., :1].expand(*x.shape[:-1], self.tube // 2 + 1 if half else self.tube)
            return x_hat.to(_complex(x.dtype)).movedim(-1, 0)
        return (torch.fft.rfft(x) if half else torch.fft.fft(x)).movedim(-1, 0)

    def from_hat_slices(self, x_hat: Tensor, *, half: bool = False) -> Tensor:
        """The inverse of `to_hat_slices`; real if the slices were `half`."""
        x_hat = x_hat.movedim(0, -1)
        if not x_hat.numel():
            x = x_hat[..., :1].expand(*x_hat.shape[:-1], self.tube)
            return x.real if half else x
        return torch.fft.irfft(x_hat, n=self.tube) if half else torch.fft.ifft(x_hat)


def list_transforms() -> list[str]:
    """Names that `get_transform` takes; `wavelet:NAME` stands for every orthonormal wavelet of PyWavelets.

    >>> "dct" in list_transforms()
    True
    """
    return [*bases.MATRICES, "learned", "random_orthogonal", "wavelet:NAME"]


def get_transform(transform: str | Transform | Tensor, tube: int) -> Transform:
    """The transform of that name (or made of that matrix) for tubes of length `tube`.

    >>> get_transform("haar", 3)
    MatrixTransform(haar, tube=3)
    """
    if isinstance(transform, str):
        if transform != "learned":
            return _by_name(transform, tube)
        from tcpvit.algebra.learned import LearnedTransform

        return LearnedTransform(tube)
    transform = as_tensor(transform)
    if isinstance(transform, Tensor):
        transform = MatrixTransform(transform)
    if not isinstance(transform, Transform):
        raise ValueError(f"a transform is a name, a Transform or a matrix, got {type(transform).__name__}")
    if transform.tube != tube:
        raise ValueError(
            f"{transform!r} transforms tubes of length {transform.tube}, but the tensor's tube has {tube} entries"
        )
    return transform


@cached_tensors
def _by_name(name: str, tube: int) -> Transform:
    if tube < 1:
        raise ValueError(f"a tube has at least one entry, got length {tube}")
    if name == "random_orthogonal":
        return random_orthogonal(tube)
    if name.startswith("wavelet:"):
        return MatrixTransform(bases.wavelet_matrix(tube, name.removeprefix("wavelet:")), name)
    if name not in bases.MATRICES:
        raise ValueError(f"no transform is called {name!r}{did_you_mean(name, list_transforms())}")
    if name == "dft":
        return DFT(tube)
    if name == "hadamard":
        bases.check_power_of_two(tube)
    if name in FAST and (name != "haar" or bases.is_power_of_two(tube)):
        return FastTransform(name, tube)
    return MatrixTransform(bases.MATRICES[name](tube), name)


def kronecker(*transforms: Transform) -> Transform:
    """The transform of tubes of several lengths laid out as one, the last fastest: M₁ ⊗ M₂ ⊗ …

    >>> pair = kronecker(get_transform("dct", 2), get_transform("haar", 4))
    >>> pair, pair.is_orthogonal
    (MatrixTransform(dct⊗haar, tube=8), True)
    """
    names = [transform.name for transform in transforms]
    name = names[0] if len(set(names)) == 1 and names[0] == "identity" else "⊗".join(names)
    matrix = transforms[0].matrix
    for transform in transforms[1:]:
        matrix = torch.kron(matrix, transform.matrix)
    return MatrixTransform(matrix, name)


def random_orthogonal(tube: int, seed: int = 0) -> Transform:
    """A random orthogonal transform (Haar measure), the same for the same seed.

    >>> random_orthogonal(4, seed=1).is_orthogonal
    True
    """
    generator = torch.Generator().manual_seed(seed)
    q, r = torch.linalg.qr(torch.randn(tube, tube, dtype=torch.float64, device="cpu", generator=generator))
    return MatrixTransform(q * r.diagonal().sign(), f"random_orthogonal({seed})")


def data_driven(x: Tensor) -> Transform:
    """The transform of the data `x`, (..., m, n, C): Uᵀ of the left singular vectors of its mode-3 unfolding.

    It compacts the energy of `x` into the first slices better than any other orthogonal transform.

    >>> x = torch.ones(4, 5, 3)
    >>> data_driven(x).to_hat(x)[0, 0].abs().round(decimals=4)
    tensor([1.7321, 0.0000, 0.0000])
    """
    if x.is_complex() or not x.numel():
        raise ValueError(f"data_driven needs real data, (..., m, n, C), got {x.dtype} of shape {tuple(x.shape)}")
    if not torch.isfinite(x).all():
        raise ValueError("data_driven needs finite data, got NaN or infinity")
    unfolding = x.detach().to("cpu", torch.float64).reshape(-1, x.shape[-1])  # (m·n, C), the transposed unfolding
    # U of the unfolding are the eigenvectors of its C×C Gram matrix.
    _, vectors = torch.linalg.eigh(unfolding.mT @ unfolding)
    basis = vectors.flip(-1).mT  # largest first
    largest = basis.gather(1, basis.abs().argmax(dim=1, keepdim=True))
    return MatrixTransform(basis * largest.sign(), "data_driven")


def widen(x: Tensor) -> Tensor:
    """Half precision is transformed in float32: the transform would not be orthogonal in its 8 or 11 bits."""
    return x.float() if x.dtype in HALF else x


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Back to half precision, unless the DFT has made complex numbers of it."""
    return x.to(dtype) if dtype in HALF and not x.is_complex() else x


def _complex(dtype: torch.dtype) -> torch.dtype:
    """The complex dtype of the same precision."""
    return torch.promote_types(dtype, torch.complex32)


def padded(matrix: Tensor) -> Tensor:
    """Rows of zeros that make four or eight of fewer."""
    rows = len(matrix)
    return F.pad(matrix, (0, 0, 0, -rows % 4)) if rows in PADDED else matrix


def _examined(matrix: Tensor) -> tuple[Tensor, Tensor, float | None]:
    """A copy of the matrix in double precision, its inverse and its scale, if it is square, finite and invertible."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.numel():
        raise ValueError(f"a transform's matrix is square, (C, C), got shape {tuple(matrix.shape)}")
    matrix = matrix.to("cpu", torch.complex128 if matrix.is_complex() else torch.float64, copy=True).contiguous()
    if not torch.isfinite(matrix).all():
        raise ValueError("a transform's matrix is finite, got NaN or infinity")
    condition = torch.linalg.cond(matrix).item()
    if condition > 1e12:
        raise ValueError(f"a transform's matrix is invertible, got one with condition number {condition:.1e}")
    return matrix, torch.linalg.inv(matrix).contiguous(), bases.unitary_scale(matrix)
