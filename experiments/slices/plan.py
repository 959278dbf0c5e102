"""What the slices see: two short runs on CIFAR-10, and what each hat slice does in them.

`paper` is the paper's TCP-ViT, whose slices never meet before the head; `plus` is `tcp_vit_cifar_plus`
as the classification study trains it, where they meet in every attention.
A slice is taken away in the same ways from both. Nothing but the head is ever fitted again:

- at the entry: hat slice k of what enters the first block (patches, class token, positions) is set to zero;
- at the exit: hat slice k of the head's input is set to zero;
- with a new head: the same, and a linear head is fitted to what is left, to tell what the slices know together.
"""

from __future__ import annotations

import copy
import csv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.classification.plan import FULL, OWN_RATE, SMALL
from experiments.slices.pages import write
from tcpvit.compare.study import Finished, Planned, Record, Study
from tcpvit.data import Batches, Images
from tcpvit.inference import load_model
from tcpvit.layers import TLayerNorm
from tcpvit.training.build import build_model, load_splits
from tcpvit.training.gradients import gradient_norms

SHORT = ("schedule.epochs=3", "evaluation.gradients=2")
MODELS = {"paper": (), "plus": (*SMALL["joint-sqrt-lr"], f"optimizer.lr={OWN_RATE['joint-sqrt-lr']}")}
BATCH, SHOWN, COMPARED = 500, 6, 500  # images: at a time, in the figures, for the likeness of attention maps
FITTED = 10_000  # training images that a new head is fitted to

Pair = tuple[Tensor, Tensor]  # images, labels
Features = tuple[Tensor, Tensor]  # the head's input, labels


def planned() -> list[Planned]:
    """Both runs."""
    return [Planned("slices", name, FULL, (*changes, *SHORT)) for name, changes in MODELS.items()]


def measured(finished: Finished) -> Record:
    """Everything the page shows, by the weights of the last epoch: none is picked."""
    trained = load_model(finished.folder, "last")
    assert trained.recipe is not None
    splits = load_splits(trained.recipe.data)
    train, test = (trained.prepare(part) for part in (splits.train, splits.test))
    model: Any = trained.model
    return {
        "top1_last": finished.result["last"]["val_top1"],
        "train_loss": finished.result["last"]["train_loss"],
        "classes": list(test.classes),
        "fitted_images": min(FITTED, len(train)),
        "ablation": ablation(model, Batches(first(train, FITTED), BATCH), Batches(test, BATCH), len(test.classes)),
        "energy": energy(model, Batches(test, BATCH)),
        "likeness": _rounded(likeness(class_attention(model, _images(first(test, COMPARED))))),
        "pictures": shown(model, test),
        "gradients": gradients(finished.folder / "gradients.csv"),
        "start": start_gradients(build_model(trained.recipe, splits.train), first(train, BATCH)),
    }


# ------------------------------------------------------------------------------------------------ taking slices away


def subsets(tube: int) -> dict[str, Tensor]:
    """Which slices stay, as zeros and ones: all, all but one, one alone.

    >>> {name: kept.tolist() for name, kept in subsets(2).items()}
    {'all': [1.0, 1.0], 'without 0': [0.0, 1.0], 'without 1': [1.0, 0.0], 'only 0': [1.0, 0.0], 'only 1': [0.0, 1.0]}
    """
    one = torch.eye(tube)
    without = {f"without {k}": 1 - one[k] for k in range(tube)}
    return {"all": torch.ones(tube), **without, **{f"only {k}": one[k] for k in range(tube)}}


def entry_logits(model: Any, images: Tensor, kept: Tensor) -> Tensor:
    """Logits with only the slices `kept`, zeros and ones (C,), of the tokens that enter the first block."""
    with watched([model.embed], lambda _, x_hat: x_hat * kept.view(-1, 1, 1, 1)):
        logits: Tensor = model(images)
    return logits


def exit_logits(model: Any, pooled: Tensor, kept: Tensor) -> Tensor:
    """Logits with only the slices `kept` of the head's input, (B, d·C)."""
    x_hat = model.transform.to_hat_tokens(model.unflatten(pooled)) * kept.view(-1, 1, 1)  # (C, B, d)
    logits: Tensor = model.head(model.transform.from_hat_tokens(x_hat).flatten(-2))
    return logits


def new_head_logits(model: Any, train: Features, pooled: Tensor, kept: Tensor) -> Tensor:
    """The same by a head fitted to those slices of the training images: least squares to the labels as 0 and 1."""

    def left(features: Tensor) -> Tensor:  # (B, d·C) -> (B, 1 + d·kept)
        x_hat = model.transform.to_hat_tokens(model.unflatten(features))[kept.bool()]
        return torch.cat([torch.ones(len(features), 1), x_hat.transpose(0, 1).flatten(1)], 1).double()

    targets = nn.functional.one_hot(train[1], model.num_classes).double()
    return left(pooled) @ torch.linalg.lstsq(left(train[0]), targets).solution


@torch.no_grad()
def features(model: Any, batches: Iterable[Pair]) -> Features:
    """The head's input for all images, (B, d·C), and their labels."""
    found = [
        (model.forward_head(model.forward_features(images), pre_logits=True), labels) for images, labels in batches
    ]
    return torch.cat([pooled for pooled, _ in found]), torch.cat([labels for _, labels in found])


@torch.no_grad()
def ablation(model: Any, train: Iterable[Pair], test: Iterable[Pair], classes: int) -> Record:
    """Top-1, in all and by class, with the `subsets` of the slices that are left, in each way of taking them away."""
    known, (pooled, labels) = features(model, train), features(model, test)
    found: dict[str, Record] = {"entry": {}, "exit": {}, "new head": {}}
    for name, kept in subsets(model.config.tube_length).items():
        logits = {
            "entry": torch.cat([entry_logits(model, images, kept) for images, _ in test]),
            "exit": exit_logits(model, pooled, kept),
            "new head": new_head_logits(model, known, pooled, kept),
        }
        for way, its_logits in logits.items():
            found[way][name] = accuracy(its_logits, labels, classes)
    return found


def accuracy(logits: Tensor, labels: Tensor, classes: int) -> Record:
    """Top-1, in all and by class.

    >>> accuracy(torch.eye(3), torch.tensor([0, 1, 1]), 3)
    {'top1': 0.6667, 'by_class': [1.0, 0.5, 0.0]}
    """
    right = logits.argmax(-1) == labels
    by_class = labels[right].bincount(minlength=classes) / labels.bincount(minlength=classes).clamp(min=1)
    return {"top1": float(f"{right.float().mean():.4f}"), "by_class": _rounded(by_class)}


# ----------------------------------------------------------------------------------------------------- looking inside


@contextmanager
def watched(modules: Iterable[nn.Module], look: Any) -> Iterator[None]:
    """Inside, `look(number, output)` sees what each module gives, and may give something else in its place."""
    handles = [
        module.register_forward_hook(lambda _, __, output, number=number: look(number, output))
        for number, module in enumerate(modules)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def energy(model: Any, batches: Iterable[Pair]) -> dict[str, list[float]]:
    """Mean square of each hat slice: of the pixels, of the tokens that enter the encoder, and after every block."""
    places = ["picture", "entry", *(f"block {i}" for i in range(1, len(model.blocks) + 1))]  # keys of the records
    sums, number = torch.zeros(len(places), model.config.tube_length), 0
    for images, _ in batches:
        x_hat = model.transform.to_hat(images.transpose(0, 1))  # (C, B, H, W)
        sums[0] += len(images) * _mean_square(x_hat)

        def add(place: int, x_hat: Tensor, weight: int = len(images)) -> None:
            sums[place + 1] += weight * _mean_square(x_hat)

        with watched([model.embed, *model.blocks], add):
            model.forward_features(images)
        number += len(images)
    return {place: _rounded(row) for place, row in zip(places, sums / number, strict=True)}


def _mean_square(x_hat: Tensor) -> Tensor:
    return x_hat.flatten(1).square().mean(1)


@torch.no_grad()
def class_attention(model: Any, images: Tensor) -> Tensor:
    """Where the class token of the last block looks, mean of the heads: (C, B, N); C = 1 for joint attention."""
    maps = model.attention_maps(images)[-1].mean(-3)[..., 0, model.num_prefix_tokens :]
    return maps if maps.ndim == 3 else maps.unsqueeze(0)


def likeness(maps: Tensor) -> Tensor:
    """Correlation of the slices' maps over the patches, mean of the images: (C, B, N) -> (C, C).

    >>> likeness(torch.tensor([[[1.0, 2.0, 3.0]], [[3.0, 2.0, 1.0]]])).round().tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    centred = maps - maps.mean(-1, keepdim=True)
    unit = centred / centred.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return torch.einsum("kbn,lbn->bkl", unit, unit).mean(0)


def shown(model: Any, test: Images) -> list[Record]:
    """The first test image of each of the first classes, with the attention of each slice, in bytes as text."""
    assert test.labels is not None
    rows = first_of_each_class(test.labels.tolist(), SHOWN)
    some = test.subset(torch.tensor(rows))
    pixels = some.fetch(torch.arange(len(rows))).images
    maps = class_attention(model, _images(some))  # (C, B, N)
    levels = (255 * maps / maps.amax(-1, keepdim=True)).round().to(torch.uint8)
    return [
        {
            "test_picture": int(some.indices[i]),
            "label": test.classes[int(test.labels[row])],
            "pixels": _hex(pixels[i].permute(1, 2, 0)),
            "attention": [_hex(level) for level in levels[:, i]],  # 255 is the largest of each map
        }
        for i, row in enumerate(rows)
    ]


def first_of_each_class(labels: list[int], number: int) -> list[int]:
    """Where the first `number` classes that occur have their first image.

    >>> first_of_each_class([3, 8, 8, 0, 3, 1], 3)
    [0, 1, 3]
    """
    return [labels.index(label) for label in list(dict.fromkeys(labels))[:number]]


def gradients(file: Path) -> Record:
    """‖∂L/∂Ŵ_k‖ against the step over all weights of the slice, and by block: the median of the second half."""
    with file.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    names = [name for name in rows[0] if name != "step"]
    places = list(dict.fromkeys(name.rpartition(":")[0] for name in names))
    norms = torch.tensor([[float(row[name]) for name in names] for row in rows])
    norms = norms.unflatten(1, (len(places), -1))  # (steps, places, C)
    late = norms[len(norms) // 2 :].median(0).values
    return {
        "steps": [int(row["step"]) for row in rows],
        "norms": [_rounded(series) for series in norms.norm(dim=1).mT],
        "late_by_block": {place: _rounded(row) for place, row in zip(places, late, strict=True)},
    }


def start_gradients(model: Any, data: Images) -> dict[str, list[float]]:
    """‖∂L/∂Ŵ_k‖ of a model that has learned nothing yet, and of the same without its t-LayerNorms."""
    bare = copy.deepcopy(model)
    for name in [name for name, module in bare.named_modules() if isinstance(module, TLayerNorm)]:
        bare.set_submodule(name, nn.Identity())
    ((images, labels),) = Batches(data, len(data))
    found = {}
    for what, each in (("with norms", model), ("without norms", bare)):
        nn.functional.cross_entropy(each(images), labels).backward()
        norms = torch.tensor(list(gradient_norms(each).values())).unflatten(0, (-1, each.config.tube_length))
        found[what] = _rounded(norms.norm(dim=0))
    return found


def _hex(levels: Tensor) -> str:
    """Bytes as text, for a JSON file; `bytes.fromhex` reads them."""
    return bytes(levels.flatten().tolist()).hex()


def first(data: Images, number: int) -> Images:
    """The first so many, or all."""
    return data.subset(torch.arange(min(number, len(data))))


def _images(data: Images) -> Tensor:
    """All of them, normalised."""
    ((images, _),) = Batches(data, len(data))
    return images


def _rounded(values: Tensor) -> list[Any]:
    """Four significant digits are enough for a figure."""
    return [_rounded(row) if row.ndim else float(f"{row:.4g}") for row in values]


STUDY = Study("slices", planned, measured, write)
