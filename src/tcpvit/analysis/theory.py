"""The paper's formulas (Section 5): parameters and FLOPs of an encoder in its own symbols, d, C, H, r, L, N.

They count the weights of the linear maps and the norms, but no biases, and tokens without the class token.
`analysis.predict` has the exact counts of a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from tcpvit.layers.attention import check_heads
from tcpvit.models.config import ViTConfig

Kind = Literal["std", "tcp"]
Convention = Literal["multiply-add", "paper"]
KINDS: tuple[Kind, ...] = ("std", "tcp")

# FLOPs of a multiply-add in the FFN, for its two matrices. Everywhere else both conventions count 2.
_FFN = {"multiply-add": 4, "paper": 2}


@dataclass(frozen=True)
class EncoderShape:
    """L layers on N tokens of size d×C, in the paper's symbols; N is the number of patches.

    >>> shape = EncoderShape(d=16, tube=3, heads=4, mlp_ratio=4, depth=4, tokens=64)
    >>> shape.layer_parameters("tcp"), shape.layer_parameters("std")    # Eqs. tcp_total and std_total
    (9408, 27840)
    >>> round(shape.flops_ratio("paper"), 3)                            # Eq. flops_ratio
    0.5
    """

    d: int
    tube: int
    heads: int = 4
    mlp_ratio: float = 4.0
    depth: int = 4
    tokens: int = 64

    def __post_init__(self) -> None:
        for name in ("d", "tube", "heads", "depth", "tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, got {getattr(self, name)}")
        if not math.isfinite(self.mlp_ratio):
            raise ValueError(f"mlp_ratio is a finite number, got {self.mlp_ratio}")
        if self.d_ff < 1:
            raise ValueError(f"mlp_ratio={self.mlp_ratio} leaves no hidden feature of d={self.d}; take a larger one")
        check_heads(self.d, self.heads, "slice width")

    @classmethod
    def of(cls, config: ViTConfig) -> EncoderShape:
        """The shape of a model: d and C of a TCP-ViT; a Std-ViT is one slice of its full width."""
        tokens = math.prod(config.grid_of(*config.image_shape))
        return cls(config.d, config.tube_length, config.num_heads, config.mlp_ratio, config.depth, tokens)

    @property
    def d_ff(self) -> int:
        """Hidden width of a slice, r·d."""
        return int(self.mlp_ratio * self.d)

    def map_weights(self, kind: Kind) -> dict[str, int]:
        """Weights of each linear map of a layer, all heads together (Tables mhsa_weights and ffn_weights)."""
        square, hidden = self.d * self.d, self.d * self.d_ff
        slices = self.tube if kind == "tcp" else self.tube**2
        return {name: slices * n for name, n in (*((x, square) for x in "QKVO"), ("1", hidden), ("2", hidden))}

    def layer_parameters(self, kind: Kind) -> int:
        """(4+2r)·d²·C + 4·d·C, with C² for Std-ViT (Eqs. tcp_total, std_total)."""
        return sum(self.map_weights(kind).values()) + 4 * self.d * self.tube

    def parameter_ratio(self) -> float:
        """TCP / Std, norms included; 1/C for d ≫ 1 (Eq. param_ratio)."""
        return self.layer_parameters("tcp") / self.layer_parameters("std")

    def layer_flops(self, kind: Kind, convention: Convention = "multiply-add") -> int:
        """C·F(N, d) for TCP-ViT and F(N, d·C) for Std-ViT, without the transforms (Eqs. tcp_flops, std_flops).

        F(N, d) = (8+4r)·d²·N + 4·N²·d counts 2 for every multiply-add; the paper's own has 2r in place of 4r.
        """
        C, N = self.tube, self.tokens
        d, d_ff, times = (self.d, self.d_ff, C) if kind == "tcp" else (self.d * C, self.d_ff * C, 1)
        return times * ((8 * d * d + _FFN[convention] * d * d_ff) * N + 4 * N * N * d)

    def flops_ratio(self, convention: Convention = "multiply-add") -> float:
        """(α+4N) / (α·C+4N) with α = (8+4r)·d, or the paper's (8+2r)·d (Eq. flops_ratio)."""
        return self.layer_flops("tcp", convention) / self.layer_flops("std", convention)


def ratio_curves(shape: EncoderShape) -> dict[str, dict[str, list[float]]]:
    """Ratios TCP / Std against C, d and N, the other two as in `shape`: what `figures.ratios` draws.

    >>> curves = ratio_curves(EncoderShape(d=16, tube=3))
    >>> list(curves), sorted(curves["C"])
    (['C', 'd', 'N'], ['1/C', 'FLOPs', "FLOPs, the paper's formula", 'parameters', 'x'])
    """
    shape = replace(shape, heads=1)  # the ratios do not depend on it, and every d has one head
    grids = {
        "C": [replace(shape, tube=C) for C in _spread(1, max(256, shape.tube))],
        "d": [replace(shape, d=d) for d in _spread(min(4, shape.d), max(1024, shape.d)) if int(shape.mlp_ratio * d)],
        "N": [replace(shape, tokens=N) for N in _spread(min(16, shape.tokens), max(16384, shape.tokens))],
    }
    symbols = {"C": "tube", "d": "d", "N": "tokens"}
    return {
        axis: {
            "x": [float(getattr(s, symbols[axis])) for s in shapes],
            "1/C": [1 / s.tube for s in shapes],
            "parameters": [s.parameter_ratio() for s in shapes],
            "FLOPs": [s.flops_ratio() for s in shapes],
            "FLOPs, the paper's formula": [s.flops_ratio("paper") for s in shapes],
        }
        for axis, shapes in grids.items()
    }


def _spread(first: int, last: int, steps: int = 60) -> list[int]:
    """Whole numbers, about evenly spread on a logarithmic axis."""
    return sorted({round(first * (last / first) ** (i / steps)) for i in range(steps + 1)})
