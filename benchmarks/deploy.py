"""Models in other runtimes: Std-ViT, TCP-ViT and timm's ViT of the same shape, as `tcpvit export` writes them.

    python -m benchmarks.deploy                        writes results/bench/deploy.json and the tables of docs/deploy.md
    python -m benchmarks.deploy --keep --shapes pet    the same for one shape; others stay as the record has them
    python -m benchmarks.deploy --shapes cifar --batches 1 --threads 1 --runtimes onnxruntime --seconds 5
    python -m benchmarks.deploy --tables               the tables alone, from the record

All models of a setting run in turns, in one process, and the best time of each counts. Times of one thread are those
of the processor, which a busy machine spoils little; times of several threads are those of the clock. In eager PyTorch
models run as they are, with norms folded in (`fuse_`). What torch.compile makes holds its number of threads, so that it
runs with the first that is asked for. Everything is float32, in OpenVINO too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.speed.record import facts
from tcpvit.analysis.bench import JOINT, SHAPES, SLICE, STD, build, builders, for_inference
from tcpvit.files import write_json
from tcpvit.inference.export import write_graph, write_openvino
from tcpvit.inference.exported import About, Format, load_exported, quiet
from tcpvit.models.deploy import deployed
from tcpvit.timing import interleaved, using_threads

ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "results" / "bench" / "deploy.json", ROOT / "docs" / "deploy.md"
MODELS = (STD, SLICE, JOINT, "timm")
RUNTIMES: dict[str, Format | None] = {
    "eager": None,
    "compile": None,
    "onnxruntime": "onnx",
    "openvino": "openvino",
}
Runs = dict[str, Callable[[], object]]

MEMORY = """
import re, sys, numpy as np

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

file, batch, runtime, *shape = sys.argv[1:]
images = np.zeros((int(batch), *map(int, shape)), np.float32)
if runtime == "onnxruntime":
    import onnxruntime
    before = peak()
    options = onnxruntime.SessionOptions(); options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    session.run(None, {"images": images})
else:
    import openvino
    core = openvino.Core()
    before = peak()
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    core.compile_model(core.read_model(file), "CPU", options)([images])
print(peak() - before)
"""


def about_images(name: str, images: Tensor) -> About:
    """What a file says about itself."""
    return {
        "version": "benchmark",
        "name": name,
        "input": "normalised",
        "output": "logits",
        "task": "classification",
        "metric": "top1",
        "image_shape": list(images.shape[1:]),
        "classes": [str(k) for k in range(10)],
        "preprocessing": None,
    }


def write_file(model: nn.Module, name: str, folder: Path, kind: Format, images: Tensor) -> Path:
    """The model as `tcpvit export` writes it."""
    path = folder / f"{MODELS.index(name)}.onnx"
    about = about_images(name, images)
    if not path.exists():
        write_graph(deployed(model).eval(), path, "onnx", about, torch.zeros(2, *images.shape[1:]))
    if kind == "onnx":
        return path
    made = path.with_suffix(".xml")  # of the same graph, as `tcpvit export` does it
    if not made.exists():
        write_openvino(path.read_bytes(), made, about)
    return made


def torch_call(model: nn.Module, images: Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return model(images)

    return run


def contenders(
    runtime: str, models: dict[str, nn.Module], images: Tensor, threads: int, folder: Path
) -> tuple[Runs, dict[str, int]]:
    """What runs in turns, by model, and the bytes of the files."""
    torch._dynamo.reset()  # what other settings compiled counts against the limit of recompilations
    runs: Runs = {}
    sizes: dict[str, int] = {}
    for name, model in models.items():
        kind = RUNTIMES[runtime]
        if kind is not None:
            path = write_file(model, name, folder, kind, images)
            sizes[name] = sum(part.stat().st_size for part in folder.glob(f"{path.stem}.*") if _belongs(part, path))
            call, inputs = load_exported(path, threads).model.run, images.numpy()  # type: ignore[union-attr]
            runs[name] = lambda call=call, inputs=inputs: call(inputs)  # type: ignore[misc]
        elif runtime == "compile":
            compiled = torch.compile(for_inference(model), fullgraph=True, dynamic=False)
            runs[name] = torch_call(compiled, images)  # type: ignore[arg-type]
        else:
            runs[name] = torch_call(for_inference(model), images)
    return runs, sizes


def _belongs(part: Path, path: Path) -> bool:
    return part == path or (path.suffix == ".xml" and part.suffix == ".bin")


def measure_memory(path: Path, runtime: str, images: Tensor) -> int:
    """Bytes by which loading a file and running a batch raises the peak of a fresh process."""
    words = [str(path), str(len(images)), runtime, *map(str, images.shape[1:])]
    done = subprocess.run([sys.executable, "-c", MEMORY, *words], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def measure(
    shape: str, batch: int, threads: int, runtime: str, seconds: float, folder: Path, memory: bool = False
) -> list[dict[str, Any]]:
    """All models of one setting; with `memory` also what a file takes there."""
    known = builders(True)
    models = {name: build(known[name], SHAPES[shape]).eval() for name in MODELS if name in known}
    images = SHAPES[shape].images(batch)
    with using_threads(threads), quiet():
        runs, sizes = contenders(runtime, models, images, threads, folder)
        best = interleaved(runs, seconds, time.process_time if threads == 1 else time.perf_counter, least=2)
    rows = []
    for name in models:
        row = {"shape": shape, "batch": batch, "threads": threads, "runtime": runtime, "model": name}
        row |= {"ms": round(1e3 * best[name], 4), "speedup": round(best[STD] / best[name], 4)}
        if name in sizes:
            row["file_bytes"] = sizes[name]
            if memory:
                path = write_file(models[name], name, folder, RUNTIMES[runtime], images)  # type: ignore[arg-type]
                row["memory"] = measure_memory(path, runtime, images)
        rows.append(row)
    return rows


def tables(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The marked blocks of the page, by name."""
    rows = [row for row in rows if row["runtime"] in RUNTIMES]
    settings = list(dict.fromkeys((r["shape"], r["batch"], r["threads"], r["runtime"]) for r in rows))
    found = {(r["shape"], r["batch"], r["threads"], r["runtime"], r["model"]): r for r in rows}
    speed = ["| shape | batch | threads | runtime | Std-ViT ms | timm | TCP, slice | TCP, joint |"]
    speed += ["| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |"]
    size = [
        "| shape | runtime | Std-ViT | timm | TCP, slice | TCP, joint |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for setting in settings:
        std, timm, by_slice, joint = (found[(*setting, name)] for name in (STD, "timm", SLICE, JOINT))
        ratios = " | ".join(f"{row['speedup']:.2f}×" for row in (timm, by_slice, joint))
        shape, batch, threads, runtime = setting
        speed.append(f"| {shape} | {batch} | {threads} | {runtime} | {std['ms']:.3g} | {ratios} |")
        if "memory" in std and batch > 1:
            cells = (f"{r['file_bytes'] / 1e6:.2f} / {r['memory'] / 1e6:.0f}" for r in (std, timm, by_slice, joint))
            size.append(f"| {shape} | {runtime} | {' | '.join(cells)} |")
    return {"deploy speed": "\n".join(speed), "deploy size": "\n".join(size)}


def fill(page: Path, blocks: dict[str, str]) -> None:
    """Put each table between its marks."""
    text = page.read_text()
    for name, block in blocks.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{block}\n{end}{rest.split(end)[1]}"
    page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--runtimes", nargs="+", default=list(RUNTIMES), choices=list(RUNTIMES))
    parser.add_argument("--seconds", type=float, default=1.5, help="for all models of a setting, each twice at least")
    parser.add_argument("--keep", action="store_true", help="keep other settings that the record has")
    parser.add_argument("--tables", action="store_true", help="fill the page from the record and do nothing else")
    asked = parser.parse_args()
    rows = json.loads(RECORD.read_text())["rows"] if (asked.keep or asked.tables) and RECORD.exists() else []
    if not asked.tables:
        record = facts(f"python -m benchmarks.deploy {' '.join(sys.argv[1:])}")
        for shape in asked.shapes:
            with tempfile.TemporaryDirectory() as folder:
                for batch, threads, runtime in product(asked.batches, asked.threads, asked.runtimes):
                    first = threads == asked.threads[0]
                    if runtime == "compile" and not first:
                        continue
                    memory = first and batch == max(asked.batches)
                    new = measure(shape, batch, threads, runtime, asked.seconds, Path(folder), memory)
                    where = {"shape": shape, "batch": batch, "threads": threads, "runtime": runtime}
                    rows = [row for row in rows if not where.items() <= row.items()] + new
                    print(where, [(row["model"], row["ms"], row["speedup"]) for row in new], flush=True)
                    write_json(RECORD, {"facts": record, "rows": rows})
    fill(PAGE, tables(rows))


if __name__ == "__main__":
    main()
