"""`tcpvit eval`: a trained model measured on a set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tcpvit.cli.shortcuts import named_set, short_words
from tcpvit.cli.show import show
from tcpvit.inference.evaluate import Evaluation
from tcpvit.inference.evaluate import measure as library
from tcpvit.inference.loading import Weights
from tcpvit.models.zoo import pretrained_folder
from tcpvit.training.distributed import is_main


def measure(
    target: str,
    *,
    data: Annotated[str | None, typer.Option("--data", "--dataset")] = None,
    scene: str | None = None,
    labels: Path | None = None,
    split: str | None = None,
    part: Literal["test", "val", "train"] = "test",
    weights: Weights = "best",
    pretrained: bool = False,
    set: list[str] = [],  # noqa: B006 (typer copies it)
    data_root: Path | None = None,
    json: bool = False,
) -> Evaluation:
    """Measure a trained model on a set.

    A run is measured on its own test part unless --data names another set. Images are normalised as in training.

    Args:
        target: a run folder, a folder written by save_pretrained, a file written by `tcpvit export`, or a preset
            (untrained unless its weights come with the package).
        data: a set, as for training; needed unless TARGET is a run.
        scene: a scene of many bands, a file or a name as indian-pines, short for --data scene:FILE.
        labels: the label map of the scene, a file; short for --set data.options.labels=FILE.
        split: split of the scene: disjoint, random, masks, or a saved one, short for --set data.options.split=SPLIT.
        part: which part of the set; for folder:PATH without test/ and val/ both are the held-out fifth.
        weights: which weights of a run, those of the best or of the last epoch.
        pretrained: insist on trained weights: an error if those of the preset TARGET do not come with the package.
        set: KEY=VALUE, a change to the data or device keys of the recipe; may be repeated.
        data_root: the folder that holds the sets, short for --set data.root=FOLDER.
        json: print everything as JSON, per-class numbers and the confusion matrix included.

    Examples:
        tcpvit eval runs/short
        tcpvit eval runs/short --data digits-on-photos --set level=hard
        tcpvit eval runs/short/best --data digits-on-photos --json
        tcpvit eval runs/field --scene cube.npy --labels labels.npy --split random
        tcpvit eval tcp_vit_cifar_plus --pretrained --data cifar10
        tcpvit eval plus.onnx --data cifar10
    """
    if pretrained:
        pretrained_folder(target)
    of_scene: dict[str, Any] = {"labels": labels, "split": split}
    data = named_set(data, scene, of_scene)
    overrides = [*short_words({"data_root": data_root, **of_scene}), *set]
    found = library(target, data, part=part, weights=weights, overrides=overrides)
    if is_main():
        show(found.tables(), json=json, content=found.to_dict())
    return found
