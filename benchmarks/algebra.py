"""The algebra side by side with mprod-package, a plain loop over slices and the bare torch calls on the same slices.

    python -m benchmarks.algebra             every size, on one thread and on two; writes results/bench/algebra.json
    python -m benchmarks.algebra --quick     some sizes, for a first look; writes nothing unless --json names a file

All contenders of a row run in turns in one process, and the best of many times counts. Single precision throughout.
The limit of a c-product is what its slices cost in `bmm`, and three copies: each of the three tensors has to be read
and written once on its way through the transform, at the bandwidth that a copy of it reaches in the same run. `rfft` is
the bare FFT of one tensor, `calls` the bare torch calls of a product with short tubes, without any check.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mprod
import torch
from mprod.decompositions import svdm
from torch import Tensor

from tcpvit import algebra
from tcpvit.algebra.fast import FAST
from tcpvit.algebra.transforms import FAST_FROM, FastTransform, Transform
from tcpvit.cli.show import show
from tcpvit.tables import Ratio, Table
from tcpvit.timing import interleaved, using_threads

Size = tuple[int, int, int]
Contenders = dict[str, Callable[[], object]]
OURS, MPROD, LOOP, BARE, MATRIX = "tcpvit", "mprod", "loop", "bare", "matrix"
COPY, FFT, CALLS, LIMIT = "copy", "rfft", "calls", "limit"

CPROD_SIZES: list[Size] = [
    *[(m, m, 3) for m in (16, 32, 64, 128, 256, 512)],
    *[(m, m, 8) for m in (128, 256)],
    *[(m, m, 16) for m in (16, 64, 128, 256, 512)],
    *[(m, m, 64) for m in (16, 64, 128, 256, 512)],
    *[(m, m, 256) for m in (16, 64)],
    *[(m, m, 1024) for m in (16, 64)],
]
SVD_SIZES: list[Size] = [(16, 16, 3), (64, 64, 3), (256, 256, 3), (64, 64, 16), (32, 32, 64), (16, 16, 1024)]
TRANSFORM_SIZES: list[Size] = [
    (16, 16, 3),
    (256, 256, 3),
    (256, 256, 16),
    (128, 128, 64),
    (64, 64, 256),
    (64, 64, 1024),
]
QUICK: list[Size] = [(16, 16, 3), (64, 64, 16), (128, 128, 16), (256, 256, 3), (256, 256, 16), (64, 64, 1024)]
CROSSOVER_TUBES = (8, 16, 32, 64, 128, 256, 512)


def random_tensors(size: Size, count: int) -> list[Tensor]:
    return [torch.randn(size) for _ in range(count)]


def cprod_contenders(size: Size) -> Contenders:
    A, B = random_tensors(size, 2)
    slices_a, slices_b = (X.movedim(-1, 0).contiguous() for X in (A, B))
    forward, inverse = mprod.generate_dct(size[-1])
    a, b, M = A.numpy(), B.numpy(), _matrix(size[-1])
    return {
        OURS: lambda: algebra.cprod(A, B),
        MPROD: lambda: mprod.m_prod(a, b, forward, inverse),
        LOOP: lambda: _loop(M, A, B),
        BARE: lambda: torch.bmm(slices_a, slices_b),
        COPY: lambda: A.clone(),
        FFT: lambda: torch.fft.rfft(A),
        CALLS: lambda: _calls(M, A, B),
    }


def svd_contenders(size: Size) -> Contenders:
    (A,) = random_tensors(size, 1)
    slices = A.movedim(-1, 0).contiguous()
    forward, inverse = mprod.generate_dct(size[-1])
    M = _matrix(size[-1])
    return {
        OURS: lambda: algebra.svd(A),
        MPROD: lambda: svdm(A.numpy(), forward, inverse),
        LOOP: lambda: _loop_svd(M, A),
        BARE: lambda: torch.linalg.svd(slices, full_matrices=False),
    }


def transform_contenders(size: Size) -> Contenders:
    (A,) = random_tensors(size, 1)
    forward, _ = mprod.generate_dct(size[-1])
    M = _matrix(size[-1])
    return {
        OURS: lambda: algebra.to_hat(A),
        MPROD: lambda: forward(A.numpy()),
        MATRIX: lambda: A @ M.mT,
        BARE: lambda: A.clone(),
    }


def _matrix(tube: int) -> Tensor:
    return algebra.get_transform("dct", tube).matrix.float()


def _clock() -> Callable[[], float]:
    """A single thread is measured by what it takes itself, whatever else runs."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def _calls(M: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """What torch has to be asked for at least, where the transform is a product with its matrix."""
    A_hat, B_hat = (torch.mm(M, X.view(-1, len(M)).mT).view(len(M), *X.shape[:-1]) for X in (A, B))
    C_hat = torch.bmm(A_hat, B_hat)
    return torch.mm(M.mT, C_hat.view(len(M), -1)).view_as(C_hat).movedim(0, -1)


def _loop(M: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """The c-product as its definition reads."""
    A_hat, B_hat = A @ M.mT, B @ M.mT
    return torch.stack([A_hat[..., k] @ B_hat[..., k] for k in range(len(M))], dim=-1) @ M


def _loop_svd(M: Tensor, A: Tensor) -> list[Tensor]:
    A_hat = A @ M.mT
    factors = zip(*[torch.linalg.svd(A_hat[..., k], full_matrices=False) for k in range(len(M))], strict=True)
    U, S, Vh = (torch.stack(slices, dim=-1) @ M for slices in factors)
    return [U, S, Vh]


@dataclass(frozen=True)
class Comparison:
    """One operation over several sizes; each quotient is a column: the time of the first over that of the second."""

    name: str
    title: str
    contenders: Callable[[Size], Contenders]
    sizes: list[Size]
    quotients: dict[str, tuple[str, str]]

    def measure(self, sizes: list[Size], seconds: float) -> list[dict[str, Any]]:
        """One record for each size: the best microseconds of each contender, and the quotients."""
        records = []
        for size in sizes:
            best = interleaved(self.contenders(size), seconds, _clock())
            if COPY in best:
                best[LIMIT] = best[BARE] + 3 * best[COPY]
            quotients = {name: round(best[over] / best[under], 3) for name, (over, under) in self.quotients.items()}
            times = {name: round(1e6 * time, 1) for name, time in best.items()}
            records.append({"size": list(size), "microseconds": times, **quotients})
        return records

    def as_table(self, records: list[dict[str, Any]], threads: int) -> Table:
        """The records as people read them."""
        title = f"{self.title}, {threads} thread{'s' if threads > 1 else ''}"
        table = Table(f"{self.name}_{threads}", title, ["m × n × C", "tcpvit µs", *self.quotients])
        for record in records:
            ratios = [Ratio(record[name]) for name in self.quotients]
            table.add(" × ".join(map(str, record["size"])), record["microseconds"][OURS], *ratios)
        return table


COMPARISONS = [
    Comparison(
        "cprod",
        "c-product of two m × m × C tensors",
        cprod_contenders,
        CPROD_SIZES,
        {
            "mprod / tcpvit": (MPROD, OURS),
            "loop / tcpvit": (LOOP, OURS),
            "tcpvit / bmm": (OURS, BARE),
            "tcpvit / calls": (OURS, CALLS),
            "tcpvit / limit": (OURS, LIMIT),
        },
    ),
    Comparison(
        "svd",
        "Economy SVD",
        svd_contenders,
        SVD_SIZES,
        {"mprod / tcpvit": (MPROD, OURS), "loop / tcpvit": (LOOP, OURS), "tcpvit / linalg.svd": (OURS, BARE)},
    ),
    Comparison(
        "transform",
        "DCT along the tubes",
        transform_contenders,
        TRANSFORM_SIZES,
        {"mprod / tcpvit": (MPROD, OURS), "matrix / tcpvit": (MATRIX, OURS), "tcpvit / copy": (OURS, BARE)},
    ),
]


def crossovers(seconds: float) -> list[dict[str, Any]]:
    """Matrix time over fast time, forth and back, for 4096 tubes of each length."""
    records = []
    for name in sorted(set(FAST) - {"identity"}):
        quotients = {}
        for tube in CROSSOVER_TUBES:
            best = interleaved(_both_ways(FastTransform(name, tube)), seconds, _clock())
            quotients[str(tube)] = round(best[MATRIX] / best[OURS], 3)
        wins = [tube for tube in CROSSOVER_TUBES if all(quotients[str(t)] > 1 for t in CROSSOVER_TUBES if t >= tube)]
        records.append({"transform": name, "matrix / fast": quotients, "fast from": min(wins, default=None)})
    return records


def _both_ways(transform: FastTransform) -> Contenders:
    tubes = torch.randn(64, 64, transform.tube)
    by_matrix = FastTransform(transform.name, transform.tube)
    transform.fast_from, by_matrix.fast_from = 1, transform.tube + 1

    def there_and_back(transform: Transform) -> Callable[[], object]:
        return lambda: transform.from_hat_slices(transform.to_hat_slices(tubes))

    return {OURS: there_and_back(transform), MATRIX: there_and_back(by_matrix)}


def crossover_table(records: list[dict[str, Any]], threads: int) -> Table:
    columns = ["transform", *[f"C = {tube}" for tube in CROSSOVER_TUBES], "fast from", "as set"]
    title = f"Matrix time / fast time, forth and back, {threads} thread{'s' if threads > 1 else ''}"
    table = Table(f"crossovers_{threads}", title, columns)
    for record in records:
        ratios = [Ratio(q) for q in record["matrix / fast"].values()]
        table.add(record["transform"], *ratios, record["fast from"], FAST_FROM[record["transform"]])
    return table


def run_on(threads: int, quick: bool, seconds: float) -> dict[str, Any]:
    """Everything on so many threads, printed as it comes."""
    run: dict[str, Any] = {"threads": threads}
    with using_threads(threads):
        for comparison in COMPARISONS:
            sizes = [size for size in comparison.sizes if not quick or size in QUICK]
            run[comparison.name] = comparison.measure(sizes, seconds)
            show([comparison.as_table(run[comparison.name], threads)])
        run["crossovers"] = crossovers(seconds / 4)
        show([crossover_table(run["crossovers"], threads)])
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="some sizes and short times")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=None, help="how long each row runs: 3, or 0.3 with --quick")
    parser.add_argument("--json", type=Path, default=None, help="where to write times and ratios")
    options = parser.parse_args()
    seconds = options.seconds or (0.3 if options.quick else 3.0)
    torch.manual_seed(0)
    runs = [run_on(threads, options.quick, seconds) for threads in options.threads]
    path = options.json or (None if options.quick else Path("results/bench/algebra.json"))
    if path is not None:
        packages = ("tcpvit", "torch", "numpy", "scipy", "mprod-package")
        record = {
            "command": f"python -m benchmarks.algebra{' --quick' if options.quick else ''} --seconds {seconds:g}",
            "date": date.today().isoformat(),
            "versions": {package: version(package) for package in packages},
            "processor": torch.backends.cpu.get_cpu_capability(),
            "dtype": "float32",
            "fast_from": FAST_FROM,
            "runs": runs,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
