"""Coupling between slices, which the paper leaves as future work: cheap ways to let slices meet.

In the paper's preset the hat slices never meet between the first and the last transform. A set of couplings changes
that; it is written as strings, as in `coupling=("mix:rotation", "shuffle", "low_rank:4", "partial:0.25")`:

- `mix`: one learnable C×C matrix mixes the slices of what enters qkv, proj, fc1 and fc2; it starts at the identity
  (`mix`) or at a random rotation (`mix:rotation`).
- `shuffle`: channel shuffle across slices before proj and between fc1 and fc2; no parameter.
- `low_rank:r`: blockdiag(Ŵ) + V·Uᵀ, a rank-r map across all slices beside the slice-wise one.
- `partial:ρ`: a fraction ρ of the output features of every slice reads all slices densely, the others their own.
- `two_factor`: every linear map is two c-products over 2C slices of half the width, with a channel shuffle between;
  together they have no more weights than the one they stand for.
- `norm`: LayerNorm takes mean and variance over all slices of a token together, as Std-ViT's does; no parameter.
- `shared`: all slices have one weight W, as in the paper's patch embedding of the Pet backbone, and one bias, norm and
  position: 1/C² of the weights of a dense map. With `mix`, M ⊗ W is the Kronecker product of a C×C and a d×d' matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.algebra.transforms import random_orthogonal
from tcpvit.errors import did_you_mean
from tcpvit.layers.linear import TLinear, TransformOf, init_weight_, slice_linear
from tcpvit.layers.transform import mix_slices

KINDS = ("mix", "mix:rotation", "shuffle", "low_rank:RANK", "partial:FRACTION", "two_factor", "norm", "shared")


@dataclass(frozen=True)
class Coupling:
    """A parsed set of couplings; the default couples nothing.

    >>> Coupling.parse(["mix:rotation", "low_rank:4"])
    Coupling(mix='rotation', shuffle=False, low_rank=4, partial=0.0, two_factor=False, norm=False, shared=False)
    """

    mix: str | None = None  # None, "identity" or "rotation": where the C×C matrices start
    shuffle: bool = False
    low_rank: int = 0
    partial: float = 0.0
    two_factor: bool = False
    norm: bool = False
    shared: bool = False

    def __post_init__(self) -> None:
        if self.shared and (self.low_rank or self.partial or self.two_factor):
            raise ValueError("slices that share a weight are coupled by mix, shuffle and norm, and by nothing else")
        if self.two_factor and self.in_linear:
            raise ValueError(
                "the coupling two_factor takes the place of the linear maps that mix, low_rank and partial change"
            )

    @classmethod
    def parse(cls, coupling: str | Iterable[str] | None) -> Coupling:
        """From words such as "mix", "low_rank:4"; several may also be joined by "+"."""
        fields: dict[str, Any] = dict(_parse_word(word) for word in coupling_words(coupling))
        return cls(**fields)

    @property
    def in_linear(self) -> bool:
        """True if something is added to the slice-wise linear maps: mix, low_rank or partial."""
        return self.mix is not None or self.low_rank > 0 or self.partial > 0

    def dense_features(self, d_out: int) -> int:
        """How many of the d_out features of every slice read all slices."""
        return math.ceil(self.partial * d_out)


def coupling_words(coupling: Any) -> tuple[str, ...]:
    """A coupling as words, however it was written.

    >>> coupling_words("mix:rotation+shuffle"), coupling_words(["mix"]), coupling_words("none")
    (('mix:rotation', 'shuffle'), ('mix',), ())
    """
    if coupling is None or coupling in ("", "none"):
        return ()
    if not isinstance(coupling, str | Iterable):
        raise ValueError(f"coupling is a word such as 'mix', or several joined by '+', got {coupling!r}")
    return tuple(coupling.split("+")) if isinstance(coupling, str) else tuple(coupling)


def _parse_word(word: str) -> tuple[str, str | bool | int | float]:
    kind, _, value = word.partition(":")
    if kind == "mix" and value in ("", "identity", "rotation"):
        return "mix", value or "identity"
    if kind in ("shuffle", "two_factor", "norm", "shared") and not value:
        return kind, True
    if kind == "low_rank" and value.isdigit() and int(value) > 0:
        return "low_rank", int(value)
    if kind == "partial" and _is_fraction(value):
        return "partial", float(value)
    raise ValueError(f"no coupling is written {word!r}{did_you_mean(word, KINDS)}; RANK ≥ 1, 0 < FRACTION ≤ 1")


def _is_fraction(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False


def shuffle_slices(x_hat: Tensor) -> Tensor:
    """Channel shuffle: feature j of slice k moves to place j·C + k of the slices laid end to end.

    >>> shuffle_slices(torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]]))
    tensor([[0, 4, 1, 5],
            [2, 6, 3, 7]])
    """
    tube, d = x_hat.shape[0], x_hat.shape[-1]
    if getattr(torch.compiler, "is_exporting", bool)():  # OpenVINO takes the other form for its own shuffle, and fails
        together = torch.stack(x_hat.unbind(0), -1).reshape(*x_hat.shape[1:-1], tube, d)
        return torch.stack(together.unbind(-2))
    together = x_hat.movedim(0, -1).reshape(*x_hat.shape[1:-1], tube, d)  # (..., d, C) read as (..., C, d)
    return together.movedim(-2, 0).contiguous()


@torch.no_grad()
def init_mix_(mix: Tensor, start: str) -> None:
    """A mixing matrix starts at the identity, or at a rotation that torch's seed decides.

    >>> init_mix_(matrix := torch.empty(2, 2), "identity")
    >>> matrix
    tensor([[1., 0.],
            [0., 1.]])
    """
    if start == "rotation":
        seed = int(torch.randint(2**31, (), device="cpu"))  # also where the model is made on "meta"
        mix.copy_(random_orthogonal(len(mix), seed=seed).matrix)
    else:
        nn.init.eye_(mix)


class CoupledTLinear(TLinear):
    """A t-Linear whose slices meet by mix, low_rank or partial.

    >>> layer = CoupledTLinear(16, 32, tube=3, coupling=Coupling(mix="identity", low_rank=2, partial=0.25))
    >>> layer(torch.randn(3, 2, 65, 16)).shape
    torch.Size([3, 2, 65, 32])
    """

    coupling = Coupling()
    d_dense = 0  # output features of every slice that read all slices

    def __init__(
        self, d_in: int, d_out: int, tube: int, transform: TransformOf = "dct", *, coupling: Coupling, bias: bool = True
    ):
        super().__init__(d_in, d_out, tube, transform, bias=bias, shared=coupling.shared)
        self.coupling = coupling
        # M commutes with a weight that all slices share: it acts where there are fewer features.
        self.mixes_last = coupling.shared and coupling.mix is not None and d_out < d_in
        self.d_dense = coupling.dense_features(d_out)
        if coupling.mix:
            self.mix = nn.Parameter(torch.empty(tube, tube))
        if coupling.low_rank:
            self.v_hat = nn.Parameter(torch.empty(tube, d_in, coupling.low_rank))
            self.u_hat = nn.Parameter(torch.empty(tube, coupling.low_rank, d_out))
        if self.d_dense:
            self.weight_hat = nn.Parameter(torch.empty(tube, d_in, d_out - self.d_dense))
            self.dense_hat = nn.Parameter(torch.empty(tube, d_in, tube * self.d_dense))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew; the low-rank part starts at zero, as in LoRA."""
        super().reset_parameters()
        if self.coupling.mix:
            init_mix_(self.mix, self.coupling.mix)
        if self.coupling.low_rank:
            init_weight_(self.v_hat, fan_in=self.d_in * self.tube)
            nn.init.zeros_(self.u_hat)
        if self.d_dense:
            init_weight_(self.dense_hat, fan_in=self.d_in * self.tube)

    def forward(self, x_hat: Tensor) -> Tensor:
        """(C, ..., d_in) -> (C, ..., d_out)."""
        if self.mixes_last:
            y_hat = self._mixed(slice_linear(x_hat, self.weight_hat))
            return y_hat if self.bias_hat is None else y_hat + self._bias(y_hat.ndim).to(y_hat.dtype)
        if self.coupling.mix:
            x_hat = self._mixed(x_hat)
        if self.d_dense:
            y_hat = torch.cat([self._dense(x_hat), slice_linear(x_hat, self.weight_hat)], dim=-1)
            y_hat = y_hat if self.bias_hat is None else y_hat + self._bias(y_hat.ndim).to(y_hat.dtype)
        else:
            y_hat = slice_linear(x_hat, self.weight_hat, self.bias_hat)
        return y_hat + self._low_rank(x_hat) if self.coupling.low_rank else y_hat

    def _mixed(self, x_hat: Tensor) -> Tensor:
        return mix_slices(self.mix.to(x_hat.dtype), x_hat)

    def _dense(self, x_hat: Tensor) -> Tensor:
        """(C, ..., d_in) -> (C, ..., d_dense): every slice reads all slices."""
        rows = slice_linear(x_hat, self.dense_hat).sum(0)  # (..., C·d_dense)
        return rows.unflatten(-1, (self.tube, self.d_dense)).movedim(-2, 0)

    def _low_rank(self, x_hat: Tensor) -> Tensor:
        """(C, ..., d_in) -> (C, ..., d_out) through r numbers that all slices share."""
        shared = slice_linear(x_hat, self.v_hat).sum(0, keepdim=True)  # (1, ..., r)
        return slice_linear(shared.expand(self.tube, *shared.shape[1:]), self.u_hat)

    def _bias(self, ndim: int) -> Tensor:
        assert self.bias_hat is not None
        return self.bias_hat.view(-1, *[1] * (ndim - 2), self.d_out)


class TwoFactorTLinear(TLinear):
    """x̂ -> shuffle(x̂ A) B: two c-products over 2C slices of half the width, (C, ..., d_in) -> (C, ..., d_out).

    >>> layer = TwoFactorTLinear(16, 16, tube=3)
    >>> layer(torch.randn(3, 2, 65, 16)).shape, layer.weight_hat.shape, layer.second_hat.shape
    (torch.Size([3, 2, 65, 16]), torch.Size([6, 8, 8]), torch.Size([6, 8, 8]))
    """

    def __init__(self, d_in: int, d_out: int, tube: int, transform: TransformOf = "dct", *, bias: bool = True):
        if d_in % 2 or d_out % 2:
            raise ValueError(f"two_factor halves the slices, but their widths are {d_in} and {d_out}; take even ones")
        super().__init__(d_in, d_out, tube, transform, bias=bias)
        between = two_factor_width(d_in, d_out)
        self.weight_hat = nn.Parameter(torch.empty(2 * tube, d_in // 2, between))  # A
        self.second_hat = nn.Parameter(torch.empty(2 * tube, between, d_out // 2))  # B
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both factors anew, each for its own fan-in."""
        super().reset_parameters()
        init_weight_(self.weight_hat, fan_in=self.d_in // 2)
        if hasattr(self, "second_hat"):
            init_weight_(self.second_hat, fan_in=self.second_hat.shape[1])

    @property
    def weight(self) -> Tensor:
        """There is no one tensor of slices: the product of the factors is none."""
        raise AttributeError("a two-factor layer has weight_hat and second_hat, and no weight")

    def forward(self, x_hat: Tensor) -> Tensor:
        """(C, ..., d_in) -> (C, ..., d_out)."""
        between = slice_linear(_halved(x_hat), self.weight_hat)  # (2C, ..., m)
        halves = slice_linear(shuffle_slices(between), self.second_hat)  # (2C, ..., d_out / 2)
        y_hat = halves.unflatten(0, (self.tube, 2)).movedim(1, -2).flatten(-2)
        if self.bias_hat is None:
            return y_hat
        return y_hat + self.bias_hat.view(self.tube, *[1] * (y_hat.ndim - 2), self.d_out)


def two_factor_width(d_in: int, d_out: int) -> int:
    """How wide the slices between the two factors are: the most that keeps the weights at d_in·d_out a slice.

    >>> two_factor_width(16, 16), two_factor_width(16, 64)
    (8, 12)
    """
    return d_in * d_out // (d_in + d_out)


def _halved(x_hat: Tensor) -> Tensor:
    """(C, ..., d) -> (2C, ..., d / 2)."""
    return x_hat.unflatten(-1, (2, -1)).movedim(-2, 1).flatten(0, 1)


def t_linear(
    d_in: int, d_out: int, tube: int, transform: TransformOf = "dct", *, bias: bool = True, coupling: Coupling
) -> TLinear:
    """A TLinear, or what the coupling makes of it.

    >>> t_linear(4, 4, 3, coupling=Coupling(shuffle=True))
    TLinear(
      d_in=4, d_out=4, tube=3, bias=True
      (transform): HatTransform(dct, tube=3)
    )
    """
    if coupling.two_factor:
        return TwoFactorTLinear(d_in, d_out, tube, transform, bias=bias)
    if coupling.in_linear:
        return CoupledTLinear(d_in, d_out, tube, transform, bias=bias, coupling=coupling)
    return TLinear(d_in, d_out, tube, transform, bias=bias, shared=coupling.shared)
