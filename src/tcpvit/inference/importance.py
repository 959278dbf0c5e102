"""Which bands and which frequencies a scene model looks at, by the gradient of the class it decides for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tcpvit.data import Batches, Images
from tcpvit.layers.bands import BandDCT


@dataclass(frozen=True, eq=False)
class BandImportance:
    """Shares of the importance that sum to 1: of each band, and of each kept coefficient of the spectrum.

    Importance is the mean over pixels of |gradient · value|, of the logit of the class that wins.
    """

    by_band: NDArray[np.float64]  # (bands,)
    by_frequency: NDArray[np.float64]  # (K,)


def band_importance(model: nn.Module, data: Images, *, batch_size: int = 256) -> BandImportance:
    """The importance over the windows of `data`, which is prepared as the model's own (`LoadedModel.prepare`).

    The gradient of the coefficients is carried back through the transform: with c = G·M·x, that of a band is
    (G·M)ᵀ times that of the coefficients.
    """
    bands = getattr(model, "bands", None)
    if not isinstance(bands, BandDCT):
        raise ValueError("importance by frequency is that of a model with a transform along the spectrum, as tcp_scene")
    coefficients: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        kept = output.detach().requires_grad_()
        coefficients[:] = [kept]
        return kept

    matrix = (bands.gain * bands.matrix).detach()  # (K, bands)
    by_band, by_frequency = torch.zeros(bands.bands), torch.zeros(bands.kept)
    was_training, hook = model.training, bands.register_forward_hook(keep)
    try:
        model.eval()
        for windows, _ in Batches(data, batch_size):
            with torch.enable_grad():
                winners = model(windows.to(matrix.device)).amax(1).sum()
                (gradient,) = torch.autograd.grad(winners, coefficients)  # (B, K, H, W)
            by_frequency += (gradient * coefficients[0].detach()).abs().sum((0, 2, 3)).cpu()
            carried = torch.einsum("kb,nkhw->nbhw", matrix, gradient).cpu()
            by_band += (carried * windows).abs().sum((0, 2, 3))
    finally:
        hook.remove()
        model.train(was_training)
    return BandImportance(
        *((total / total.sum().clamp(min=1e-30)).double().numpy() for total in (by_band, by_frequency))
    )
