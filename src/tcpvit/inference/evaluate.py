"""How good a trained model is on a set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tcpvit.data import Images, Splits
from tcpvit.data.image_set import same_images
from tcpvit.data.images import list_bad
from tcpvit.data.workers import lost_workers_explained
from tcpvit.inference.loading import LoadedModel, Weights, load_model
from tcpvit.tables import Table, percent, render
from tcpvit.training.build import build_batches, check_fit, find_device, load_splits
from tcpvit.training.distributed import process_group
from tcpvit.training.evaluation import evaluate
from tcpvit.training.folder import RunFolder
from tcpvit.training.metrics import LABELS, AnyMetrics, SceneMetrics, to_json, wilson
from tcpvit.training.recipe import Recipe
from tcpvit.training.tasks import task_for

Part = Literal["test", "val", "train"]
DECIMALS = {"loss": "{:.4f}".format, "kappa": "{:.3f}".format}  # what is no share
MANY = 20  # classes beyond which the numbers of each are not shown


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a model on one part of a set; notes say what may make them mean something else."""

    model: str
    data: str
    images: int
    seconds: float
    classes: tuple[str, ...]
    metrics: AnyMetrics
    notes: tuple[str, ...] = ()
    unit: str = "images"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with the numbers of each class and the confusion matrix."""
        about = {"model": self.model, "data": self.data, "images": self.images, "seconds": round(self.seconds, 3)}
        return {**about, "notes": list(self.notes), **to_json(self.metrics)}

    def tables(self) -> list[Table]:
        """The metrics, and those of each class if there are few enough to read."""
        ends = self.metrics.intervals() if isinstance(self.metrics, SceneMetrics) else {}
        table = Table("metrics", self.model, ["metric", "value", *(["95 % interval over pixels"] if ends else [])])
        table.notes += [f"{self.images:,} {self.unit} of {self.data} in {self.seconds:.1f} s", *self.notes]
        for name, value in self.metrics.summary().items():
            write = DECIMALS.get(name, percent)
            interval = [" – ".join(map(write, ends[name])) if name in ends else ""] if ends else []
            table.add(LABELS[name], write(value), *interval)
        if len(self.classes) > MANY:
            return [table]
        return [table, self._scene_classes() if isinstance(self.metrics, SceneMetrics) else self._by_class()]

    def _by_class(self) -> Table:
        by_class = self.metrics.by_class()
        detail = Table("by_class", "by class", ["class", *(LABELS[name] for name in by_class)])
        for row in zip(self.classes, *by_class.values(), strict=True):
            detail.add(row[0], *map(percent, row[1:]))
        return detail

    def _scene_classes(self) -> Table:
        """The accuracy of each class, with its number of pixels: few pixels make it uncertain."""
        detail = Table("by_class", "by class", ["class", "pixels", "accuracy", "95 % interval over pixels"])
        sizes = self.metrics.confusion.sum(1).tolist()
        for name, size, share in zip(self.classes, sizes, self.metrics.by_class()["accuracy"], strict=True):
            detail.add(name, size, percent(share), " – ".join(map(percent, wilson(share, size))) if size else None)
        return detail

    def _repr_html_(self) -> str:
        return render(self.tables(), "html")


def measure(
    target: str | Path,
    data: str | None = None,
    *,
    part: Part = "test",
    weights: Weights = "best",
    overrides: Sequence[str] = (),
) -> Evaluation:
    """Measure what `load_model` finds for `target` on a set, by default that of its own training.

    `overrides` are `KEY=VALUE` changes to the data keys, the device and the precision of its recipe.
    """
    trained = load_model(target, weights)
    recipe = recipe_for(trained, data)
    for word, (key, _) in zip(overrides, recipe.resolve(overrides), strict=True):
        if not key.startswith("data.") and key not in ("device", "precision"):
            raise ValueError(
                f"a trained model can be measured with other data.* keys, device or precision, got {word!r}"
            )
    recipe = recipe.override(overrides)
    with process_group() as world:
        device = world.assign(find_device(recipe))
        with world.local_main_first():
            splits = load_splits(recipe.data)
        images = trained.prepare({"train": splits.train, "val": splits.val, "test": splits.test}[part])
        if trained.config is not None:
            check_fit(trained.name, trained.config, images)
        else:
            trained.try_on(images)
        _check_classes(trained, images)
        task = task_for(images)
        batches = build_batches(recipe, images, device, training=False, rank=world.rank, world_size=world.size)
        begin = time.monotonic()
        with lost_workers_explained("and start again"):
            metrics = evaluate(trained.model.to(device), batches, task, device, recipe.precision, world)
        seconds = time.monotonic() - begin
    notes = [*_notes(trained, images.classes), *_other_images(target, recipe, splits), *splits.notes]
    if skipped := list(batches.skipped):
        notes.append(f"{list_bad(skipped, len(images))}; skipped")
    count = len(images) - len(skipped)
    return Evaluation(
        trained.name, images.source, count, seconds, images.classes, metrics, tuple(notes), unit=images.unit
    )


def _check_classes(trained: LoadedModel, images: Images) -> None:
    """Raise if the set has more or fewer classes than the model; other names are allowed, and noted."""
    known = (trained.preprocessing or {}).get("classes", images.classes)
    if len(known) != len(images.classes):
        raise ValueError(
            f"{trained.name} was trained on {len(known)} classes ({', '.join(map(str, known[:5]))}"
            f"{', …' if len(known) > 5 else ''}), but {images.source} has {len(images.classes)}; train one for "
            "these with `tcpvit train --data`"
        )


def recipe_for(trained: LoadedModel, dataset: str | None) -> Recipe:
    """The recipe of the run, or a plain one; another set comes with its own options."""
    recipe = trained.recipe or Recipe()
    if dataset is None:
        if trained.recipe is None:
            raise ValueError(f"{trained.name} does not say what to measure it on; add --data NAME")
        return recipe
    if dataset == recipe.data.name:
        return recipe
    size = recipe.data.image_size or trained.side
    options: dict[str, Any] = {}
    known = "fit" in (trained.preprocessing or {}) or (trained.recipe is not None and trained.config is not None)
    if known and dataset.startswith(("folder:", "volumes:")):
        options = {"fit": trained.fit}
    shape = list((trained.preprocessing or {}).get("image_shape", []))
    if len(shape) == 4 and dataset.startswith("volumes:"):
        size = tuple(shape[1:])
    elif len(shape) == 4 and dataset.startswith("clips:"):
        size, options = shape[2], {"frames": shape[1], "colour": shape[0] == 3}
        options |= {"stride": trained.stride} if trained.stride else {}
    return replace(recipe, data=replace(recipe.data, name=dataset, options=options, image_size=size))


def _other_images(target: str | Path, recipe: Recipe, splits: Splits) -> list[str]:
    """A note if the set of the run is not what it was: what is held out now may have been trained on."""
    run = RunFolder(target)
    if not run.exists or run.recipe().data.name != recipe.data.name or not (run.path / "data.json").is_file():
        return []
    if same_images(run.read_json("data.json"), splits.indices()):
        return []
    return [f"these are not the images of {run}/data.json: some may have been trained on"]


def _notes(trained: LoadedModel, classes: tuple[str, ...]) -> list[str]:
    """What may make the numbers mean something else than they seem to."""
    if trained.preprocessing is None:
        return ["how this model's images were normalised is not known; the set's own statistics were used"]
    known = trained.preprocessing["classes"]
    if known != list(classes) and known != list(map(str, range(len(known)))):  # numbers are no names
        return [f"the model was trained on the classes {', '.join(known)}, this set has {', '.join(classes)}"]
    return []
