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
from tcpvit.data.registry import FOLDER
from tcpvit.inference.loading import LoadedModel
from tcpvit.tensorize.texts import read_texts, text_batches, tokenizer_of
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

    Of a set with parts, the training part is fitted to and the test part held out; of other images and of texts, every
    fifth is held out.
    """
    path = Path(source)
    if path.is_file():
        texts = read_texts(path, samples + samples // 4)
        tokenize = tokenizer_of(trained.name, trained.model)
        fitted_to = [text for i, text in enumerate(texts) if i % 5]
        return CalibrationInputs(text_batches(tokenize, fitted_to), text_batches(tokenize, texts[::5]))
    name = f"{FOLDER}{path}" if path.is_dir() else source
    recipe = Recipe()
    recipe = replace(recipe, data=replace(recipe.data, name=name, eval_batch_size=BATCH))
    splits = load_splits(recipe.data)
    trained.try_on(splits.test)
    fitting = [images for images, _ in _batches(recipe, trained.prepare(splits.train), samples)]
    judged = list(_batches(recipe, trained.prepare(splits.test), samples // 4))
    labels = [targets for _, targets in judged] if splits.test.task == "classification" else None
    return CalibrationInputs(fitting, [images for images, _ in judged], labels)


def _batches(recipe: Recipe, part: Images, samples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The first images of a part; sets are not sorted by class, folders are, so those are taken evenly."""
    found: Iterable[tuple[Tensor, Tensor]] = build_batches(recipe, part, torch.device("cpu"), training=False)
    total = -(-len(part) // BATCH)
    wanted = -(-samples // BATCH)
    return islice(found, 0, None, max(1, total // wanted)) if total > wanted else iter(found)
