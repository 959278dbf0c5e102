"""What people would take instead, written anew from the papers: three networks, support vector machines, a forest.

Windows are 9×9 for all (7×7 for SpectralFormer, as published), because the splits keep windows of that size apart:
HybridSN was published with 25×25, SSFTT with 13×13. "-like": layers and their sizes are those of the papers, the code
is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.hyperspectral.cube import WINDOW, Cube
from tcpvit.layers.bands import basis_rows
from tcpvit.layers.block import Block


class HybridSN(nn.Module):
    """Three 3-D convolutions over principal components, one 2-D convolution, three dense layers (Roy et al., 2019)."""

    def __init__(self, channels: int, window: int, classes: int):
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, depth in ((1, 8, 7), (8, 16, 5), (16, 32, 3)):
            layers += [nn.Conv3d(before, after, (depth, 3, 3)), nn.ReLU()]
        side, depth = window - 8, channels - 12
        self.spectral = nn.Sequential(*layers)
        self.spatial = nn.Sequential(nn.Conv2d(32 * depth, 64, 3), nn.ReLU(), nn.Flatten())
        hidden = [nn.Linear(64 * side**2, 256), nn.ReLU(), nn.Dropout(0.4), nn.Linear(256, 128), nn.ReLU()]
        self.head = nn.Sequential(*hidden, nn.Dropout(0.4), nn.Linear(128, classes))

    def forward(self, x: Tensor) -> Tensor:
        """(B, P, w, w) -> logits."""
        return self.head(self.spatial(self.spectral(x.unsqueeze(1)).flatten(1, 2)))


class SSFTT(nn.Module):
    """A 3-D and a 2-D convolution, tokens pooled by attention, one Transformer layer (Sun et al., 2022)."""

    def __init__(self, channels: int, window: int, classes: int, tokens: int = 4, width: int = 64):
        super().__init__()
        self.spectral = nn.Sequential(nn.Conv3d(1, 8, 3), nn.BatchNorm3d(8), nn.ReLU())
        self.spatial = nn.Sequential(nn.Conv2d(8 * (channels - 2), width, 3), nn.BatchNorm2d(width), nn.ReLU())
        self.where = nn.Parameter(torch.empty(tokens, width))
        self.what = nn.Parameter(torch.empty(width, width))
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, 1 + tokens, width))
        nn.init.xavier_normal_(self.where)
        nn.init.xavier_normal_(self.what)
        self.layer = nn.TransformerEncoderLayer(
            width, 8, dim_feedforward=8, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, P, w, w) -> logits."""
        pixels = self.spatial(self.spectral(x.unsqueeze(1)).flatten(1, 2)).flatten(2).mT  # (B, n, D)
        weights = (pixels @ self.where.mT).softmax(1)  # over pixels: (B, n, tokens)
        tokens = weights.mT @ (pixels @ self.what)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), tokens], 1) + self.position
        return self.head(self.layer(tokens)[:, 0])


class SpectralFormer(nn.Module):
    """A token for each band with its neighbours, five layers, skips fused across layers (Hong et al., 2021).

    Fused as by the authors' program: a matrix over the tokens of both layers, where the paper writes two numbers.
    """

    def __init__(self, channels: int, window: int, classes: int, neighbours: int = 3, width: int = 64, depth: int = 5):
        super().__init__()
        self.neighbours, tokens = neighbours, 1 + channels
        self.embed = nn.Linear(neighbours * window**2, width)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, tokens, width))
        self.drop = nn.Dropout(0.1)
        self.layers = nn.ModuleList(
            Block(width, 4, mlp_ratio=8 / width, qkv_bias=False, drop=0.1) for _ in range(depth)
        )
        self.fuse = nn.ModuleList(nn.Linear(2 * tokens, tokens) for _ in range(depth - 2))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        """(B, bands, w, w) -> logits."""
        reach = self.neighbours // 2
        bands = torch.cat([x[:, x.shape[1] - reach :], x, x[:, :reach]], 1).flatten(2)  # around the ends
        groups = bands.unfold(1, self.neighbours, 1).flatten(2)  # (B, bands, w²·neighbours)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), self.embed(groups)], 1)
        tokens = self.drop(tokens + self.position)
        earlier = [tokens]  # what each layer was given
        for i, layer in enumerate(self.layers):
            if i > 1:  # with what came two layers before
                tokens = self.fuse[i - 2](torch.cat([tokens, earlier[i - 2]], 1).mT).mT
            tokens = layer(tokens)
            earlier.append(tokens)
        return self.head(tokens[:, 0])


class Peer(NamedTuple):
    """A network, its window, and how many principal components it takes instead of the bands."""

    network: Callable[..., nn.Module]
    window: int = WINDOW
    components: int | None = None


NETWORKS = {
    "hybridsn": Peer(HybridSN, components=30),
    "ssftt": Peer(SSFTT, components=30),
    "spectralformer": Peer(SpectralFormer, window=7),
}
CLASSICAL = ("svm-bands", "svm-dct", "svm-mean", "forest")
Floats = NDArray[np.float32]


def classical(name: str, settings: dict[str, Any], seed: int) -> Any:
    """The classifier of scikit-learn. Bands are standardised already, their coefficients if `scaled`."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    if name == "forest":
        return RandomForestClassifier(random_state=seed, n_jobs=1, **settings)
    scaled = settings.pop("scaled", False)
    machine = SVC(kernel="rbf", **settings)
    return make_pipeline(StandardScaler(), machine) if scaled else machine


def features(name: str, cube: Cube, pixels: Tensor, kept: int) -> Floats:
    """What a classifier sees of pixels: bands, `kept` DCT coefficients, or those beside the window's mean ones."""
    windows = cube.windows(pixels)
    centre = windows[:, :, cube.window // 2, cube.window // 2]  # (n, bands)
    if name in ("svm-bands", "forest"):
        return centre.numpy()
    rows = basis_rows(cube.channels, kept).float().mT
    if name == "svm-dct":
        return (centre @ rows).numpy()
    return torch.cat([centre @ rows, windows.mean((2, 3)) @ rows], 1).numpy()
