"""Classification of image files: the likeliest labels of each, with their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tcpvit.data.augment import normalise
from tcpvit.data.images import Fit, OnBad, list_bad
from tcpvit.inference.inputs import as_set
from tcpvit.inference.loading import LoadedModel
from tcpvit.inference.masks import Segmented
from tcpvit.progress import Progress
from tcpvit.training.build import find_device
from tcpvit.training.evaluation import unwrapped
from tcpvit.training.recipe import Recipe


@dataclass(frozen=True)
class Prediction:
    """The likeliest labels of a file, the first the likeliest, with their probabilities."""

    file: str
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]

    def columns(self) -> dict[str, str]:
        """A line of the CSV."""
        line = {"file": self.file}
        for rank, (label, chance) in enumerate(zip(self.labels, self.probabilities, strict=True), start=1):
            line |= {f"label_{rank}": label, f"probability_{rank}": f"{chance:.6f}"}
        return line

    @property
    def caption(self) -> str:
        """What a sheet says of it."""
        return f"{self.labels[0]}  {100 * self.probabilities[0]:.0f} %"

    @property
    def shown(self) -> str:
        """The image that a sheet shows."""
        return self.file


@dataclass(frozen=True)
class Predictions:
    """What was predicted, and a sentence for each file that could not be read."""

    found: Sequence[Prediction | Segmented]
    bad: list[str]


@torch.inference_mode()
def predict_files(
    loaded: LoadedModel,
    files: Sequence[str | Path],
    *,
    top: int = 3,
    fit: Fit | None = None,
    on_bad: OnBad = "skip",
    batch_size: int = 250,
    device: str = "auto",
    progress: Progress | None = None,
) -> Predictions:
    """The `top` likeliest labels of each file; one that cannot be read is named in `bad`, or stops everything."""
    check_counts(top, batch_size)
    at = find_device(Recipe(device=device))
    if loaded.preparation()["task"] != "classification":
        raise ValueError(f"{loaded.name} labels every pixel; take tcpvit.inference.segment_files for it")
    data = as_set(loaded, files, fit)
    model = loaded.move_to(at)
    top = min(top, len(data.classes))
    found: list[Prediction] = []
    bad: list[str] = []
    chunks = torch.arange(len(files)).split(batch_size)
    for rows in (progress or Progress()).track(chunks, "predicting", len(chunks)):
        batch = data.fetch(rows)
        bad += batch.bad
        if bad and on_bad == "stop":
            raise ValueError(f"{list_bad(bad, len(files))}; repair or remove them, or skip them with --on-bad skip")
        if not len(batch.images):
            continue
        logits = unwrapped(model(normalise(batch.images.to(at), data.mean, data.std, data.scale)))
        loaded.check_classes(logits.shape[1])
        likeliest = logits.float().softmax(1).topk(top)
        names = rows if batch.kept is None else rows[batch.kept]
        for row, chances, labels in zip(names, likeliest.values.tolist(), likeliest.indices.tolist(), strict=True):
            found.append(Prediction(str(files[row]), tuple(data.classes[k] for k in labels), tuple(chances)))
    if not found:
        raise ValueError(f"{list_bad(bad, len(files))}; no image is left")
    return Predictions(found, bad)


def check_counts(top: int, batch_size: int) -> None:
    """Raise unless both are at least 1."""
    if top < 1 or batch_size < 1:
        raise ValueError(f"top and batch_size are at least 1, got {top} and {batch_size}")
