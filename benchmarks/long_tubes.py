"""How to multiply many small slices: the products of a hyperspectral encoder (C = 200, d = 25) in several arrangements.

    python -m benchmarks.long_tubes

Writes results/bench/long_tubes.json, which docs/results/speed_tables.md shows. All ways run in turns in one process and
the best of many times counts. `n in one` puts n slices into one product with a block-diagonal weight, which is larger
but multiplies n - 1 blocks of zeros for each that is not; moving the slices into that layout is not counted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tcpvit.files import source_commit
from tcpvit.layers.linear import slice_linear
from tcpvit.timing import interleaved, using_threads

TUBE = 200
LAYERS = {"qkv": (25, 75), "fc1": (25, 100), "fc2": (100, 25)}  # d_in and d_out of a slice
ROWS = (80, 800)  # tokens of 8 and of 80 images
PEAK = "peak"
OUT = Path("results/bench/long_tubes.json")


def ways(rows: int, d_in: int, d_out: int) -> dict[str, Callable[[], Tensor]]:
    """The same product in each arrangement."""
    x_hat, weight = torch.randn(TUBE, rows, d_in), torch.randn(TUBE, d_in, d_out)
    tokens_first = x_hat.transpose(0, 1).contiguous().transpose(0, 1)  # the slices of a token lie together
    wide = -(-d_in // 16) * 16, -(-d_out // 16) * 16
    padded = torch.randn(TUBE, rows, wide[0]), torch.randn(TUBE, *wide)
    square = torch.randn(1024, 1024)
    return {
        "batched": lambda: slice_linear(x_hat, weight),
        "one by one": lambda: torch.stack([x @ w for x, w in zip(x_hat, weight, strict=True)]),
        "tokens first": lambda: tokens_first @ weight,
        "padded to 16": lambda: padded[0] @ padded[1],
        **{f"{n} in one": packed(n, rows, d_in, d_out) for n in (2, 4)},
        PEAK: lambda: square @ square,
    }


def packed(number: int, rows: int, d_in: int, d_out: int) -> Callable[[], Tensor]:
    """`number` slices side by side, with a block-diagonal weight."""
    x_hat = torch.randn(TUBE // number, rows, number * d_in)
    blocks = [torch.block_diag(*torch.randn(number, d_in, d_out)) for _ in range(TUBE // number)]
    weight = torch.stack(blocks)
    return lambda: x_hat @ weight


def measure(threads: int, seconds: float) -> list[dict[str, Any]]:
    """Milliseconds of every way, and the share of the peak that its useful FLOPs reach."""
    found = []
    for layer, (d_in, d_out) in LAYERS.items():
        for rows in ROWS:
            with using_threads(threads), torch.inference_mode():
                times = interleaved(ways(rows, d_in, d_out), seconds)
            peak = 2 * 1024**3 / times.pop(PEAK)
            useful = 2 * TUBE * rows * d_in * d_out
            shares = {way: round(useful / time / peak, 3) for way, time in times.items()}
            where = {"threads": threads, "layer": layer, "d_in": d_in, "d_out": d_out, "rows": rows}
            found.append({**where, "peak_gflops": round(peak / 1e9, 1), "share_of_peak": shares})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each product")
    parser.add_argument("--json", type=Path, default=OUT, help=f"where to write; default {OUT}")
    options = parser.parse_args()
    rows = [row for threads in options.threads for row in measure(threads, options.seconds)]
    content = {
        "command": "python -m benchmarks.long_tubes",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": source_commit(),
        "torch": torch.__version__,
        "tube": TUBE,
        "rows": rows,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(content, indent=1) + "\n")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
