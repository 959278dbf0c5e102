"""The paper's formulas (Section 5): parameters and FLOPs of an encoder in its own symbols, d, C, H, r, L, N.

They count the weights of the linear maps and the norms, but no biases, and tokens without the class token.
`analysis.predict` has the exact counts of a model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tcpvit.layers.attention import check_heads
from tcpvit.models.config import ViTConfig
from tcpvit.tables import Math, Ratio, Table

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
        if self.d_ff < 1:
            raise ValueError(f"mlp_ratio={self.mlp_ratio} leaves no hidden feature of d={self.d}; take a larger one")
        check_heads(self.d, self.heads, "slice width")

    @classmethod
    def of(cls, config: ViTConfig) -> EncoderShape:
        """The shape of a model: d and C of a TCP-ViT; a Std-ViT is one slice of its full width."""
        down, across = config.grid_of(*config.image_shape)
        return cls(config.d, config.tube_length, config.num_heads, config.mlp_ratio, config.depth, down * across)

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


def theory_tables(shape: EncoderShape) -> list[Table]:
    """The paper's Tables mhsa_weights, ffn_weights and param_general and its FLOPs, as symbols and as numbers."""
    return [_mhsa_weights(shape), _ffn_weights(shape), _param_general(shape), _flops(shape)]


def _mhsa_weights(shape: EncoderShape) -> Table:
    d, d_h, C = shape.d, shape.d // shape.heads, shape.tube
    table = _weights("mhsa_weights", f"MHSA weights, one of H = {shape.heads} heads ({_values(shape)})")
    for name in ("Q", "K", "V"):
        _add_weight(table, f"W_{name},h", ("d", d), ("d_h", d_h), C)
    _add_weight(table, "W_O", ("d", d), ("d", d), C)
    return table


def _ffn_weights(shape: EncoderShape) -> Table:
    table = _weights("ffn_weights", f"FFN weights ({_values(shape)})")
    _add_weight(table, "W_1", ("d", shape.d), ("d_ff", shape.d_ff), shape.tube)
    _add_weight(table, "W_2", ("d_ff", shape.d_ff), ("d", shape.d), shape.tube)
    return table


def _weights(name: str, title: str) -> Table:
    return Table(name, title, ["projection", "TCP-ViT tensor", "size", "Std-ViT matrix", "its size", "ratio"])


def _add_weight(table: Table, name: str, rows: tuple[str, int], columns: tuple[str, int], C: int) -> None:
    (m, m_value), (n, n_value) = rows, columns
    tensor, matrix = f"{m}×{n}×C", f"{m}·C×{n}·C"
    sizes = f"{m_value}×{n_value}×{C}", f"{m_value * C}×{n_value * C}"
    table.add(Math(name), Math(tensor), Math(sizes[0]), Math(matrix), Math(sizes[1]), Ratio(1 / C))


def _param_general(shape: EncoderShape) -> Table:
    tcp, std, norms = shape.map_weights("tcp"), shape.map_weights("std"), 4 * shape.d * shape.tube
    columns = ["component", "TCP-ViT", "parameters", "Std-ViT", "its parameters", "ratio"]
    table = Table("param_general", f"Parameters of a layer ({_values(shape)})", columns)

    def add(name: str, formula: str, maps: str, *, norm: bool = False, level: int = 0) -> None:
        more = Math(formula + "·C" + "+4·d·C" * norm), Math(formula + "·C²" + "+4·d·C" * norm)
        counts = [sum(weights[m] for m in maps) + norms * norm for weights in (tcp, std)]
        table.add(
            Math(name) if level else name,
            more[0],
            counts[0],
            more[1],
            counts[1],
            Ratio.of(*counts),
            level=level,
            strong=level == 0,
        )

    for name in "QKVO":
        add(f"W_{name}", "d²", name, level=1)
    add("MHSA", "4·d²", "QKVO")
    add("W_1", "r·d²", "1", level=1)
    add("W_2", "r·d²", "2", level=1)
    add("FFN", "2r·d²", "12")
    table.add("two norms", Math("4·d·C"), norms, Math("4·d·C"), norms, Ratio(1))
    add("layer", "(4+2r)·d²", "QKVO12", norm=True)
    totals = [shape.depth * shape.layer_parameters(kind) for kind in reversed(KINDS)]
    table.add(f"L = {shape.depth} layers", None, totals[0], None, totals[1], Ratio.of(*totals), strong=True)
    table.notes.append("Weights and norms as in the paper; biases come on top in the models.")
    return table


def _flops(shape: EncoderShape) -> Table:
    columns = ["convention", "F(N, d)", "TCP-ViT", "Std-ViT", "ratio"]
    table = Table("flops_ratio", f"FLOPs of a layer ({_values(shape)}, N = {shape.tokens})", columns)
    formulas: dict[Convention, str] = {"multiply-add": "(8+4r)·d²·N+4·N²·d", "paper": "(8+2r)·d²·N+4·N²·d"}
    for convention, formula in formulas.items():
        counts = [shape.layer_flops("tcp", convention), shape.layer_flops("std", convention)]
        table.add(convention, Math(formula), *counts, Ratio.of(*counts))
    table.notes += [
        "TCP-ViT: C·F(N, d), Std-ViT: F(N, d·C), without the transforms; N patches, no class token.",
        "The ratio goes to 1/C for wide slices and to 1 for many tokens.",
    ]
    return table


def _values(shape: EncoderShape) -> str:
    return f"d = {shape.d}, C = {shape.tube}, r = {shape.mlp_ratio:g}"


def ratio_curves(shape: EncoderShape) -> dict[str, dict[str, list[float]]]:
    """Ratios TCP / Std against C, d and N, the other two as in `shape`: what `figures.ratios` draws.

    >>> curves = ratio_curves(EncoderShape(d=16, tube=3))
    >>> list(curves), sorted(curves["C"])
    (['C', 'd', 'N'], ['1/C', 'FLOPs', "FLOPs, the paper's formula", 'parameters', 'x'])
    """
    shape = replace(shape, heads=1)  # the ratios do not depend on it, and every d has one head
    grids = {
        "C": [replace(shape, tube=C) for C in _spread(1, max(256, shape.tube))],
        "d": [replace(shape, d=d) for d in _spread(min(4, shape.d), max(1024, shape.d))],
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
