"""`tcpvit bench`: time and memory of models on this machine."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict

from tcpvit.analysis.bench import (
    PEERS,
    PRECISIONS,
    SHAPES,
    STD,
    Timed,
    build,
    builders,
    count_costs,
    missing_peers,
    time_models,
)
from tcpvit.cli.show import show
from tcpvit.errors import did_you_mean
from tcpvit.tables import Bytes, Ratio, Table

MOST_THREADS = 1024  # torch's pool ends the process if it cannot start all of them
MOST_SECONDS = 86_400


def bench(
    shapes: list[str] | None = None,
    *,
    threads: list[int] | None = None,
    precision: list[str] | None = None,
    peers: bool = True,
    seconds: float = 2.0,
    json: bool = False,
) -> list[Timed]:
    """Time of models, forward and forward+backward, beside what their FLOPs promise.

    Std-ViT, TCP-ViT and the same ViT from timm, vit-pytorch and Hugging Face run in turns in one process; the best of
    many times counts. Speed-ups are against Std-ViT of the same shape and setting. Memory is counted: weights,
    gradients, AdamW's moments and the tensors saved for backward.

    Args:
        shapes: which shapes to run, all if none is named: cifar, pet, base224, multispectral, hyperspectral.
        threads: threads of torch, may be repeated; 1 and 2 if not given.
        precision: float32 (if not given) or bfloat16 (autocast), may be repeated.
        peers: with the models of timm, vit-pytorch and Hugging Face, as far as they are installed.
        seconds: how long each comparison runs; slow models run three times at least.
        json: print JSON.

    Examples:
        tcpvit bench cifar
        tcpvit bench cifar pet --threads 1 --no-peers
        tcpvit bench hyperspectral --precision float32 --precision bfloat16 --seconds 5
    """
    shapes, threads, precision = shapes or list(SHAPES), threads or [1, 2], precision or ["float32"]
    for kind, asked, known in (("shape", shapes, SHAPES), ("precision", precision, PRECISIONS)):
        for name in asked:
            if name not in known:
                raise ValueError(f"no {kind} is called {name!r}{did_you_mean(name, known)}")
    if min(threads) < 1 or max(threads) > MOST_THREADS:
        raise ValueError(f"threads are between 1 and {MOST_THREADS}, got {threads}")
    if not 0 < seconds <= MOST_SECONDS:
        raise ValueError(f"seconds are positive, and a day ({MOST_SECONDS:,}) at most, got {seconds}")
    if peers and (missing := missing_peers()):
        packages = " ".join(PEERS[name][0] for name in missing)
        print(f"not installed, so left out: {', '.join(missing)} (pip install {packages})", file=sys.stderr)
    measured: list[Timed] = []
    for shape in shapes:
        models = {name: build(builder, SHAPES[shape]) for name, builder in builders(peers).items()}
        costs = count_costs(shape, models)
        for count in threads:
            for kind in precision:
                found = time_models(shape, models, costs, count, kind, seconds)
                measured += found
                if not json:
                    show([_table(found)])
    if json:
        print(json_module.dumps([asdict(row) for row in measured], indent=1))
    return measured


def _table(found: list[Timed]) -> Table:
    first = found[0]
    plural = "s" * (first.threads > 1)
    title = f"{first.shape}: {SHAPES[first.shape]}, {first.threads} thread{plural}, {first.precision}"
    columns = ["model", "parameters", "forward ms", "fwd+bwd ms", "forward speed-up", "fwd+bwd speed-up"]
    table = Table(first.shape, title, [*columns, "FLOPs promise", "memory of training"])
    for row in found:
        ratios = Ratio(row.forward_speedup), Ratio(row.training_speedup), Ratio(row.flops_ratio)
        times = row.forward_ms, row.training_ms
        table.add(row.model, row.parameters, *times, *ratios, Bytes(row.training_bytes), strong=row.model == STD)
    return table
