"""Drop-ins and encoder mode side by side with the dense originals, tensorly-torch and plain structured layers.

    python -m benchmarks.tensorize                                one thread, some minutes
    python -m benchmarks.tensorize --threads 1 2 --seconds 6      the whole of it, about half an hour

Both write results/bench/tensorize.json, or what --json names. All contenders of a row run in turns in one process, and
the best of many times counts. Structured layers have as many weights as the c-product layer beside them. A speed-up is
the time of the dense original over that of the contender; a promise is the quotient of their FLOPs.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tcpvit
from tcpvit.analysis import count_flops
from tcpvit.cli.show import show
from tcpvit.compat import repair_torchvision
from tcpvit.files import source_commit
from tcpvit.layers import TubalLinear
from tcpvit.tables import Ratio, Table
from tcpvit.tensorize import tensorize_
from tcpvit.timing import interleaved, using_threads

repair_torchvision()
import timm  # noqa: E402

TUBES = (2, 3, 4, 6)
WIDTHS = (192, 384, 768, 1152)
ROWS = 4 * 197  # tokens of four images
MODELS = ("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224", "swin_tiny_patch4_window7_224")
DENSE, DROP_IN, ENCODER = "dense", "drop-in", "encoder mode"
EXACT = {"attention": "joint", "activation_domain": "spatial", "norm": "token"}
OUT = Path("results/bench/tensorize.json")


@dataclass(frozen=True)
class Row:
    """One contender: best milliseconds forward, and forward and backward; speed-ups against the dense original."""

    threads: int
    of: str  # the layer or model
    tube: int
    contender: str
    parameters: int
    forward_ms: float
    training_ms: float
    forward_speedup: float
    training_speedup: float
    promise: float | None = None


# ------------------------------------------------------------------------------------------------------- layers


class BlockDiagonal(nn.Module):
    """C blocks on the diagonal of the weight, on neighbouring features."""

    def __init__(self, in_features: int, out_features: int, blocks: int):
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(blocks, in_features // blocks, out_features // blocks) / in_features**0.5
        )
        self.bias = nn.Parameter(torch.zeros(blocks, 1, out_features // blocks))

    def forward(self, x: Tensor) -> Tensor:
        parts = x.unflatten(-1, (len(self.weight), -1)).transpose(0, 1)  # (blocks, rows, d)
        return torch.baddbmm(self.bias, parts, self.weight).transpose(0, 1).flatten(1)


def low_rank(in_features: int, out_features: int, tube: int) -> nn.Module:
    rank = round(in_features * out_features / tube / (in_features + out_features))
    return nn.Sequential(nn.Linear(in_features, rank, bias=False), nn.Linear(rank, out_features))


def tensorly(in_features: int, out_features: int, tube: int) -> dict[str, nn.Module]:
    """FactorizedLinear in its factorisations; forming the dense weight in each pass is a hundred times slower."""
    from tltorch import FactorizedLinear
    from tltorch.utils import get_tensorized_shape

    shapes = get_tensorized_shape(in_features, out_features, order=3, verbose=False)
    made = {}
    small = in_features * out_features / tube < 80_000  # above, the tensors between the factors of CP take gigabytes
    for name, factorization in (
        *([("tensorly-torch CP", "cp")] if small else []),
        ("tensorly-torch Tucker", "tucker"),
        ("tensorly-torch TT", "blocktt"),
    ):
        made[name] = FactorizedLinear(
            *shapes, bias=True, factorization=factorization, rank=1 / tube, implementation="factorized"
        )
        for parameter in made[name].parameters():
            nn.init.normal_(parameter, std=0.02)
    return made


def layers(width: int, out: int, tube: int) -> dict[str, nn.Module]:
    return {
        DENSE: nn.Linear(width, out),
        DROP_IN: TubalLinear(width, out, tube),
        "block-diagonal": BlockDiagonal(width, out, tube),
        "low rank": low_rank(width, out, tube),
        **tensorly(width, out, tube),
    }


def measure_layers(widths: list[int], threads: int, seconds: float) -> list[Row]:
    found = []
    for width in widths:
        for out in (width, 4 * width):
            for tube in TUBES:
                contenders = {name: (tube, layer) for name, layer in layers(width, out, tube).items()}
                found += measure(f"{width} → {out}", contenders, torch.randn(ROWS, width), threads, seconds)
                progress(f"layer {width} → {out}, C = {tube}")
    return found


# ------------------------------------------------------------------------------------------------------- models


def models(name: str) -> dict[str, tuple[int, nn.Module]]:
    """The original, its drop-in and encoder modes for every tube that they take, and our own TCP-Swin."""
    made: dict[str, tuple[int, nn.Module]] = {DENSE: (1, timm.create_model(name))}
    for tube in TUBES:
        for label, options in ((DROP_IN, {}), (ENCODER, {"mode": "encoder"}), (f"{ENCODER}, exact", EXACT)):
            model = timm.create_model(name)
            if label.startswith(ENCODER):
                options = {"mode": "encoder", **options}
            try:
                tensorize_(model, tube=tube, init="fresh", example=False, **options)
            except ValueError:
                continue  # heads that cannot be shared out among the slices
            made[f"{label}, C = {tube}"] = (tube, model)
    if name.startswith("swin_tiny"):
        made["TCP-Swin, C = 3"] = (3, tcpvit.create_model("tcp_swin_tiny"))
        made["Std-Swin of ours"] = (1, tcpvit.create_model("std_swin_tiny"))
    return made


def measure_models(names: list[str], batch: int, threads: int, seconds: float) -> list[Row]:
    found = []
    for name in names:
        torch.manual_seed(0)
        found += measure(name, models(name), torch.randn(batch, 3, 224, 224), threads, seconds)
        progress(f"model {name}")
    return found


# ------------------------------------------------------------------------------------------------------- measuring


def measure(
    of: str, contenders: dict[str, tuple[int, nn.Module]], x: Tensor, threads: int, seconds: float
) -> list[Row]:
    """All contenders in turns, forward and then forward and backward."""
    nets = {name: net for name, (_, net) in contenders.items()}
    counted = {name: None if "tensorly" in name else int(count_flops(net, x)) for name, net in nets.items()}
    with using_threads(threads):
        forward = interleaved({name: _forward(net.eval(), x) for name, net in nets.items()}, seconds)
        training = interleaved({name: _training(net.train(), x) for name, net in nets.items()}, seconds)
    return [
        Row(
            threads=threads,
            of=of,
            tube=tube,
            contender=name,
            parameters=sum(p.numel() for p in net.parameters()),
            forward_ms=round(1e3 * forward[name], 4),
            training_ms=round(1e3 * training[name], 4),
            forward_speedup=round(forward[DENSE] / forward[name], 3),
            training_speedup=round(training[DENSE] / training[name], 3),
            promise=round(counted[DENSE] / counted[name], 3) if counted[name] else None,
        )
        for name, (tube, net) in contenders.items()
    ]


def _forward(net: nn.Module, x: Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return net(x)

    return run


def _training(net: nn.Module, x: Tensor) -> Callable[[], object]:
    """A layer inside a network owes its input a gradient; a model does not."""
    inner = x.ndim == 2

    def run() -> None:
        net.zero_grad(set_to_none=True)
        net(x.detach().requires_grad_(inner)).square().mean().backward()

    return run


# ------------------------------------------------------------------------------------------------------- reporting


def tables(rows: list[Row]) -> list[Table]:
    """One table for each layer or model and number of threads."""
    found: dict[tuple[str, int], Table] = {}
    for row in rows:
        key = (row.of, row.threads)
        if key not in found:
            title = f"{row.of}, {row.threads} thread{'s' if row.threads > 1 else ''}"
            columns = ["contender", "C", "parameters", "forward ms", "fwd+bwd ms", "forward", "fwd+bwd", "promise"]
            found[key] = Table(f"{row.of}_{row.threads}", title, columns)
        ratios = Ratio(row.forward_speedup), Ratio(row.training_speedup), row.promise and Ratio(row.promise)
        found[key].add(row.contender, row.tube, row.parameters, row.forward_ms, row.training_ms, *ratios)
    return list(found.values())


def facts() -> dict[str, Any]:
    packages = ("torch", "timm", "tensorly", "tensorly-torch")
    return {
        "command": " ".join(["python -m benchmarks.tensorize", *sys.argv[1:]]),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": source_commit(),
        "versions": {"Python": platform.python_version(), **{name: version(name) for name in packages}},
        "processor": platform.processor() or platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
    }


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), help="timm's names; none: layers only")
    parser.add_argument("--widths", type=int, nargs="*", default=list(WIDTHS), help="of layers; none: models only")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each comparison, at least three rounds")
    parser.add_argument("--json", type=Path, default=OUT, help=f"where to write; default {OUT}")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="tensorly")
    layer_rows, model_rows = [], []
    settings = {"rows": ROWS, "batch": options.batch, "seconds": options.seconds}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    for threads in options.threads:  # what is done is kept
        layer_rows += measure_layers(options.widths, threads, options.seconds)
        model_rows += measure_models(options.models, options.batch, threads, options.seconds)
        content = {
            **facts(),
            **settings,
            "layers": [asdict(r) for r in layer_rows],
            "models": [asdict(r) for r in model_rows],
        }
        options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    show(tables(layer_rows + model_rows))


if __name__ == "__main__":
    main()
