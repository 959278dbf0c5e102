"""Feed-forward network (paper, Eq. std_ffn) and t-FFN (Def. t-FFN)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.errors import did_you_mean
from tcpvit.layers.coupling import Coupling, shuffle_slices, t_linear
from tcpvit.layers.linear import TransformOf
from tcpvit.layers.transform import HatTransform, attach_transform

ACTIVATION_DOMAINS = ("transform", "spatial")


class Mlp(nn.Module):
    """FFN(X) = GELU(X W₁) W₂: (..., D) -> (..., D).

    >>> import torch
    >>> Mlp(48, 192)(torch.randn(2, 65, 48)).shape
    torch.Size([2, 65, 48])
    """

    def __init__(self, dim: int, hidden: int, *, drop: float = 0.0):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))


class TMlp(nn.Module):
    """t-FFN in the hat domain, slices first: (C, ..., d) -> (C, ..., d).

    GELU acts on the hat slices (`activation_domain="transform"`, the paper's experiments) or on the spatial tensor
    (`"spatial"`, the paper's definition, which lets the slices meet at no parameter cost). `activation` may be another
    function of single numbers.

    >>> import torch
    >>> TMlp(16, 64, tube=3, activation_domain="spatial")(torch.randn(3, 2, 65, 16)).shape
    torch.Size([3, 2, 65, 16])
    """

    transform: HatTransform

    def __init__(
        self,
        d: int,
        hidden: int,
        tube: int,
        transform: TransformOf = "dct",
        *,
        activation_domain: str = "transform",
        coupling: Coupling | None = None,
        drop: float = 0.0,
    ):
        super().__init__()
        if activation_domain not in ACTIVATION_DOMAINS:
            raise ValueError(
                f"no activation domain is called {activation_domain!r}"
                f"{did_you_mean(activation_domain, ACTIVATION_DOMAINS)}"
            )
        coupling = coupling or Coupling()
        attach_transform(self, transform, tube)
        self.spatial = activation_domain == "spatial"
        self.shuffle = coupling.shuffle
        self.fc1 = t_linear(d, hidden, tube, self.transform, coupling=coupling)
        self.fc2 = t_linear(hidden, d, tube, self.transform, coupling=coupling)
        self.activation: Callable[[Tensor], Tensor] = F.gelu
        self.drop = nn.Dropout(drop)

    def forward(self, x_hat: Tensor) -> Tensor:
        """(C, ..., d) -> (C, ..., d)."""
        h_hat = self._activate(self.fc1(x_hat))
        if self.shuffle:
            h_hat = shuffle_slices(h_hat)
        return self.drop(self.fc2(self.drop(h_hat)))

    def _activate(self, h_hat: Tensor) -> Tensor:
        if not self.spatial:
            return self.activation(h_hat)
        return self.transform.to_hat(self.activation(self.transform.to_spatial(h_hat)))
