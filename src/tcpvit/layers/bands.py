"""The first layers of a model of many bands: a truncated transform along the spectrum, and a convolution by slices.

Spectra are smooth, so that a few of their lowest frequencies hold nearly all of them. The kept coefficients are hat
slices already: they stand as channels in maps (B, K, H, W), and the model behind has no transform of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.algebra.transforms import get_transform, list_transforms
from tcpvit.errors import did_you_mean
from tcpvit.layers.conv import MapCoupling, init_conv_
from tcpvit.layers.coupling import Coupling
from tcpvit.layers.transform import cast_like

GIVEN = "pca"  # the name of a basis that no name determines: its matrix is saved with the weights
BAND_BASES = (*(name for name in list_transforms() if name != "dft"), GIVEN)


class BandDCT(nn.Module):
    """The first K coefficients of every spectrum: (B, bands, H, W) -> (B, K, H, W).

    The basis is the orthonormal DCT or another by its name, of which the first K rows are taken: "identity" keeps the
    first K bands, "learned" starts at the DCT and is trained, row by row free; a matrix (K, bands), such as principal
    axes, is the basis "pca". Coefficients are scaled by √(K / bands): those of a smooth spectrum are then the
    coefficients of the same spectrum resampled to K bands, and as large. High frequencies are small and carry as much:
    `standardise_` measures the deviation of each coefficient on training spectra, and divides by it from then on.

    >>> BandDCT(200, 32)(torch.randn(2, 200, 9, 9)).shape
    torch.Size([2, 32, 9, 9])
    >>> BandDCT(200, 32)(torch.ones(1, 200, 1, 1)).flatten()[:2].round(decimals=3)   # √32 and 0
    tensor([5.6570, 0.0000])
    """

    matrix: Tensor
    gain: Tensor

    def __init__(self, bands: int, kept: int, basis: str | Tensor = "dct"):
        super().__init__()
        check_bands(bands, kept, basis if isinstance(basis, str) else GIVEN)
        self.bands, self.kept, self.basis = bands, kept, basis if isinstance(basis, str) else GIVEN
        with torch.device("cpu"):  # matrices are computed, also where the model is made on "meta"
            rows = basis_rows(bands, kept, basis) * math.sqrt(kept / bands)
        self._exact = None if self.basis in ("learned", GIVEN) else rows
        rows = rows.to(torch.get_default_device(), torch.get_default_dtype())
        if self.basis == "learned":
            self.matrix = nn.Parameter(rows)
        else:
            self.register_buffer("matrix", rows, persistent=self.basis == GIVEN)
        self.register_buffer("gain", torch.ones(kept, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, bands, H, W) -> (B, K, H, W)."""
        return F.conv2d(x, cast_like(self.gain * self.matrix, x)[:, :, None, None])

    @torch.no_grad()
    def standardise_(self, spectra: Tensor, power: float = 1.0) -> BandDCT:
        """Give every coefficient unit deviation over spectra (n, bands), which should be those of the training pixels.

        Coefficients are divided by their deviation to the `power`, and by what makes their mean variance 1: 0 leaves
        high frequencies as small as they are, and the noise in them.

        >>> bands = BandDCT(200, 32).standardise_(spectra := torch.randn(500, 200))
        >>> bands(spectra[:, :, None, None]).std(0, correction=0).mean().round(decimals=4)
        tensor(1.)
        """
        if spectra.ndim != 2 or spectra.shape[1] != self.bands or len(spectra) < 2 or not spectra.isfinite().all():
            raise ValueError(f"give two or more finite spectra, (n, {self.bands}), got shape {tuple(spectra.shape)}")
        deviation = (spectra.double() @ self.matrix.mT.to(spectra.device, torch.float64)).std(0, correction=0)
        varies = deviation > 1e-6 * deviation.max()  # what does not vary says nothing, at any scale
        gain = torch.where(varies, deviation, 1) ** -power
        self.gain.copy_((gain / (gain * deviation)[varies].square().mean().sqrt())[:, None])
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> BandDCT:
        """After a change of dtype or device take the matrix anew from float64, so that nothing is rounded twice."""
        super()._apply(fn, recurse)
        if self._exact is not None:
            self.matrix = self._exact.to(self.matrix.device, self.matrix.dtype, copy=True)
        return self

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"bands={self.bands}, kept={self.kept}, basis={self.basis}"


def check_bands(bands: int, kept: int, basis: str) -> None:
    """A known basis, and no more coefficients than bands.

    >>> check_bands(200, 300, "dct")
    Traceback (most recent call last):
    ValueError: kept=300 coefficients are more than the 200 bands have; take between 1 and 200
    """
    if basis not in BAND_BASES and not basis.startswith("wavelet:"):
        raise ValueError(f"band_basis={basis!r} is unknown{did_you_mean(basis, BAND_BASES)}")
    if not 1 <= kept <= bands:
        raise ValueError(f"kept={kept} coefficients are more than the {bands} bands have; take between 1 and {bands}")


def basis_rows(bands: int, kept: int, basis: str | Tensor = "dct") -> Tensor:
    """The first rows (K, bands) of a basis, float64; NaN for a matrix that is still to be loaded.

    >>> basis_rows(3, 1).round(decimals=4)
    tensor([[0.5774, 0.5774, 0.5774]], dtype=torch.float64)
    """
    if isinstance(basis, Tensor):
        if basis.ndim != 2 or basis.shape[0] < kept or basis.shape[1] != bands or not basis.isfinite().all():
            raise ValueError(
                f"a basis of {bands} bands is a finite matrix of at least {kept}×{bands}, got {tuple(basis.shape)}"
            )
        return basis[:kept].detach().to("cpu", torch.float64)
    if basis == GIVEN:
        return torch.full((kept, bands), torch.nan, dtype=torch.float64)
    return get_transform("dct" if basis == "learned" else basis, bands).matrix[:kept]


class BandStem(nn.Module):
    """A separable c-product convolution: a C×C mixing of the slices, then m filters of 3×3 that all slices share.

    (B, C, H, W) -> (B, m·C, H, W), channel j·C + k is feature j of slice k; C² + 10·m parameters. The Kronecker
    product of a mixing and a shared weight is what the encoder's maps are too (the coupling `shared+mix`).

    >>> stem = BandStem(32, 8)
    >>> stem(torch.randn(2, 32, 9, 9)).shape, sum(p.numel() for p in stem.parameters())
    (torch.Size([2, 256, 9, 9]), 1104)
    """

    def __init__(self, tube: int, features: int):
        super().__init__()
        self.couple = MapCoupling(tube, Coupling(mix="identity"))
        self.conv = nn.Conv3d(1, features, (1, 3, 3), padding=(0, 1, 1))  # slice by slice
        init_conv_(self.conv.weight, self.conv.bias)

    def forward(self, x_hat: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, m·C, H, W)."""
        C, m = x_hat.shape[1], self.conv.out_channels
        each = self.couple(x_hat).repeat(1, m, 1, 1)  # (B, m·C, H, W), all slices again for each feature
        # Depthwise filters of the repeated slices: several times as fast as a convolution with a single input channel.
        filters, bias = (parameter.repeat_interleave(C, 0) for parameter in self.conv.parameters())
        return F.gelu(F.conv2d(each, filters.squeeze(2), bias, padding=1, groups=m * C))
