"""Models in other runtimes: Std-ViT, TCP-ViT and timm's ViT of the same shape, as `tcpvit export` writes them.

    python -m benchmarks.deploy                        writes results/bench/deploy.json and the tables of its pages
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
from experiments.pages import DOCS, ROOT, fill, markdown
from tcpvit.analysis.bench import JOINT, SHAPES, SLICE, STD, build, builders, for_inference
from tcpvit.files import write_json
from tcpvit.inference.export import write_graph, write_openvino
from tcpvit.inference.exported import About, Format, load_exported, quiet
from tcpvit.models.deploy import deployed
from tcpvit.tables import Table, Written
from tcpvit.timing import interleaved, using_threads

RECORD = ROOT / "results" / "bench" / "deploy.json"
MODELS = (STD, SLICE, JOINT, "timm")
RUNTIMES: dict[str, Format | None] = {
    "eager": None,
    "compile": None,
    "onnxruntime": "onnx",
    "openvino": "openvino",
}
SHORT = ["images", "batch", "PyTorch", "ONNX Runtime", "OpenVINO", "ONNX file, of Std-ViT's"]
FULL = ["shape", "batch", "runtime", "Std-ViT ms", "TCP, slice", "TCP, joint", "timm"]
SIZE = ["shape", "runtime", "Std-ViT", "TCP, slice", "TCP, joint", "timm"]
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


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """What the pages show: the short answer, then every time for each number of threads, then the files."""
    found = {(r["shape"], r["batch"], r["threads"], r["runtime"], r["model"]): r for r in rows}
    settings = [key[:4] for key in found if key[4] == STD and key[3] in RUNTIMES]
    short = Table("short", "One batch through a TCP-ViT with joint attention, one thread", SHORT)
    for shape, batch in dict.fromkeys((shape, batch) for shape, batch, *_ in settings):
        cells = [found[shape, batch, 1, runtime, JOINT] for runtime in RUNTIMES if runtime != "compile"]
        times = [Written(f"{milliseconds(row['ms'])} ms, {row['speedup']:.2f}×") for row in cells]
        std = found[shape, batch, 1, "onnxruntime", STD]["file_bytes"]
        images = SHAPES[shape]
        name = f"{shape}, {images.img_size}×{images.img_size}×{images.tube}"
        size = Written(f"{cells[1]['file_bytes'] / 1e6:.2f} of {std / 1e6:,.2f} MB")
        short.add(name, batch, *times, size)
    full = {}
    for shape, batch, threads, runtime in settings:
        title = f"{threads} thread{'s' * (threads > 1)}"
        table = full.setdefault(threads, Table(f"threads_{threads}", title, FULL))
        std, *others = (found[shape, batch, threads, runtime, name] for name in MODELS)
        ratios = [Written(f"{row['speedup']:.2f}×") for row in others]
        table.add(shape, batch, runtime, Written(milliseconds(std["ms"])), *ratios)
    size = Table("size", "MB of the file, and by how much a batch of 32 raises the peak memory of a process", SIZE)
    for shape, batch, threads, runtime in settings:
        each = [found[shape, batch, threads, runtime, name] for name in MODELS]
        if "memory" in each[0] and batch > 1:
            cells = [Written(f"{r['file_bytes'] / 1e6:,.2f} / {r['memory'] / 1e6:,.0f}") for r in each]
            size.add(shape, runtime, *cells)
    return [short, *full.values(), size]


def milliseconds(value: float) -> str:
    """Three digits, and none after the point that they do not reach.

    >>> milliseconds(0.8249), milliseconds(48.06), milliseconds(1205.3)
    ('0.825', '48.1', '1,205')
    """
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def fill_pages(record: dict[str, Any]) -> None:
    """Put the tables where the pages mark their places."""
    short, *others = tables(record["rows"])
    facts = record["facts"]
    source = f"`{facts['command']}`, {facts['date']}, commit {facts['commit']}, {facts['machine']['processor']}."
    fill(DOCS / "deploy.md", {"deploy speed": markdown(short)})
    fill(DOCS / "results" / "deploy_tables.md", {"deploy tables": markdown(*others), "deploy record": source})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--runtimes", nargs="+", default=list(RUNTIMES), choices=list(RUNTIMES))
    parser.add_argument("--seconds", type=float, default=1.5, help="for all models of a setting, each twice at least")
    parser.add_argument("--keep", action="store_true", help="keep other settings that the record has")
    parser.add_argument("--tables", action="store_true", help="fill the pages from the record and do nothing else")
    asked = parser.parse_args()
    record = json.loads(RECORD.read_text()) if (asked.keep or asked.tables) and RECORD.exists() else {"rows": []}
    if not asked.tables:
        record["facts"] = facts(f"python -m benchmarks.deploy {' '.join(sys.argv[1:])}")
        for shape in asked.shapes:
            with tempfile.TemporaryDirectory() as folder:
                for batch, threads, runtime in product(asked.batches, asked.threads, asked.runtimes):
                    first = threads == asked.threads[0]
                    if runtime == "compile" and not first:
                        continue
                    memory = first and batch == max(asked.batches)
                    new = measure(shape, batch, threads, runtime, asked.seconds, Path(folder), memory)
                    where = {"shape": shape, "batch": batch, "threads": threads, "runtime": runtime}
                    record["rows"] = [row for row in record["rows"] if not where.items() <= row.items()] + new
                    print(where, [(row["model"], row["ms"], row["speedup"]) for row in new], flush=True)
                    write_json(RECORD, record)
    fill_pages(record)


if __name__ == "__main__":
    main()
