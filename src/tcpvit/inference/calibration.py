"""Real inputs of a model from a folder of images, a set or a text file: some to fit layers to, others to judge by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tcpvit.data import Images
from tcpvit.data.walk import find_images
from tcpvit.inference.inputs import as_image_files
from tcpvit.inference.loading import LoadedModel
from tcpvit.tensorize.texts import evenly, read_texts, text_batches, tokenizer_of
from tcpvit.training.build import build_batches, load_splits
from tcpvit.training.recipe import Recipe

BATCH = 32


@dataclass(frozen=True)
class CalibrationInputs:
    """Batches to fit to, batches that are held out, and the labels of these where there are any."""

    fitting: list[Any]
    held_out: list[Any]
    labels: list[Tensor] | None = None


def calibration_inputs(trained: LoadedModel, source: str, samples: int = 512) -> CalibrationInputs:
    """`samples` inputs to fit to and a quarter as many to judge by: of a text file, a folder of images, or a set.

    Of a set, the training part is fitted to and the test part held out; of files and texts, every fifth is held out.
    """
    path = Path(source)
    if path.is_file():
        texts = read_texts(path, samples + samples // 4)
        tokenize = tokenizer_of(trained.name, trained.model)
        fitted_to = [text for i, text in enumerate(texts) if i % 5]
        return CalibrationInputs(text_batches(tokenize, fitted_to), text_batches(tokenize, texts[::5]))
    recipe = Recipe()
    recipe = replace(recipe, data=replace(recipe.data, name=source, eval_batch_size=BATCH))
    if path.is_dir():
        fitting_part, judged_part = _parts_of_folder(trained, path, samples + samples // 4)
    else:
        splits = load_splits(recipe.data)
        trained.try_on(splits.test)
        fitting_part, judged_part = trained.prepare(splits.train), trained.prepare(splits.test)
    fitting = [images for images, _ in _batches(recipe, fitting_part, samples)]
    judged = list(_batches(recipe, judged_part, samples // 4))
    known = _knows_labels(trained, judged_part)
    return CalibrationInputs(
        fitting, [images for images, _ in judged], [labels for _, labels in judged] if known else None
    )


def _parts_of_folder(trained: LoadedModel, folder: Path, most: int) -> tuple[Images, Images]:
    """Images of any shape anywhere below the folder, evenly from all: to fit to, and every fifth to judge by.

    Where the folders that they are in are called as the model's classes, these are their labels.
    """
    if trained.preprocessing is None and trained.config is None:
        raise ValueError(
            f"{trained.name} does not say how its images are prepared; convert it in Python with "
            "tensorize_(model, keep=..., calibrate=batches)"
        )
    files = find_images([folder])
    if len(files) < 2:
        raise ValueError(f"{folder} has {len(files)} image; give a few hundred")
    files = evenly(files, most)
    data = as_image_files(trained, files)
    parents = [file.parent.name for file in files]
    if set(parents) <= set(data.classes):
        data = replace(data, targets=torch.tensor([data.classes.index(name) for name in parents]))
    else:
        data = replace(data, classes=())
    rows = torch.arange(len(files))
    return data.subset(rows[rows % 5 > 0]), data.subset(rows[::5])


def _knows_labels(trained: LoadedModel, part: Images) -> bool:
    """Whether the labels of a part are what the model predicts."""
    known = None if trained.preprocessing is None else list(trained.preprocessing["classes"])
    return part.task == "classification" and bool(part.classes) and known in (None, list(part.classes))


def _batches(recipe: Recipe, part: Images, samples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """So many images of a part, batches taken evenly from it."""
    found: Iterable[tuple[Tensor, Tensor]] = build_batches(recipe, part, torch.device("cpu"), training=False)
    total = -(-len(part) // BATCH)
    wanted = -(-samples // BATCH)
    return islice(found, 0, None, max(1, total // wanted)) if total > wanted else iter(found)
