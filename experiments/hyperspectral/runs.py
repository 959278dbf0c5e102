"""One run of the study: a model, trained or fitted by its settings on one split, and what it scores there."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import tcpvit
from experiments.hyperspectral.cube import (
    WINDOW,
    Cube,
    Kind,
    make_split,
    pixels_of,
    pixels_without_test,
    targets_of,
)
from experiments.hyperspectral.fit import Training, confusion, predict, scores, self_supervised_start, train
from experiments.hyperspectral.peers import CLASSICAL, NETWORKS, classical, features
from tcpvit.data.scenes import Scene, SceneSplit
from tcpvit.layers.bands import BandDCT
from tcpvit.models.registry import model_config

Settings = dict[str, Any]  # model, options of the model, and fields of `Training`
APART = 1000  # between the seeds of networks that are averaged
OF_TRAINING = {field.name for field in fields(Training)}


def run(scene: Scene, kind: Kind, seed: int, settings: Settings, *, validate: bool) -> dict[str, Any]:
    """Fit on the training pixels; scores on the test pixels, or with `validate` on those held out of training."""
    begun = time.process_time()
    split = make_split(scene, kind, seed, validate=validate)
    part = "validation" if validate else "test"
    pixels, measured = pixels_of(split, "train"), pixels_of(split, part)
    fit = _fit_classical if settings["model"] in CLASSICAL else _fit_network
    found, parameters = fit(scene, split, pixels, measured, settings, seed)
    counts = confusion(targets_of(scene, measured), found, scene.num_classes)
    return {
        "split": kind,
        "measured_on": f"{part} pixels",
        "train_pixels": len(pixels),
        "measured_pixels": len(measured),
        "leakage": split.leakage,
        "parameters": parameters,
        **scores(counts),
        "confusion": counts.tolist(),
        "cpu_seconds": round(time.process_time() - begun, 1),
    }


def _fit_network(
    scene: Scene, split: SceneSplit, pixels: Tensor, measured: Tensor, settings: Settings, seed: int
) -> tuple[Tensor, int]:
    """Its classes, and how many parameters it has; those of several networks are the mean of their predictions."""
    how = Training(**{name: value for name, value in settings.items() if name in OF_TRAINING})
    seeds = [seed + APART * member for member in range(how.members)]
    windows = settings.get("windows", [settings.get("window", WINDOW)])
    members = [
        _fit_member(scene, split, pixels, measured, settings | {"window": window}, how, own)
        for own in seeds
        for window in windows
    ]
    found, sizes = zip(*members, strict=True)
    return torch.stack(found).mean(0).argmax(1), sum(sizes)


def _fit_member(
    scene: Scene, split: SceneSplit, pixels: Tensor, measured: Tensor, settings: Settings, how: Training, seed: int
) -> tuple[Tensor, int]:
    peer = NETWORKS.get(settings["model"])
    torch.manual_seed(seed)
    if peer:
        cube = Cube(scene, split, peer.window, peer.components)
        model: nn.Module = peer.network(cube.channels, cube.window, scene.num_classes)
    else:
        bands = Cube(scene, split, settings["window"])
        model, axes = build(settings, bands, pixels, scene.num_classes, seed)
        cube = bands if axes is None else bands.project(axes)
        if how.start:
            assert axes is not None
            self_supervised_start(model, bands, axes, pixels_without_test(split), how, seed)
    train(model, cube, pixels, targets_of(scene, pixels), how, seed)
    return predict(model, cube, measured, how), sum(parameter.numel() for parameter in model.parameters())


def build(settings: Settings, cube: Cube, pixels: Tensor, classes: int, seed: int) -> tuple[nn.Module, Tensor | None]:
    """A preset, and the axes (K, bands) of its first layer, measured on the training pixels.

    A fixed first layer is computed once for the scene: what comes back is the network behind it. A learned one is not,
    and there are no axes.
    """
    middle = cube.window // 2
    spectra = cube.windows(pixels)[:, :, middle, middle]  # (n, bands)
    options = {"img_size": cube.window, **settings.get("options", {})}
    basis = options.pop("band_basis", "dct")
    kept = options.pop("kept", model_config(settings["model"]).kept)
    power = settings.get("power", 1.0)
    if basis == "learned":
        model = tcpvit.create_model(
            settings["model"], in_chans=cube.channels, kept=kept, band_basis=basis, num_classes=classes, **options
        )
        model.bands.standardise_(spectra, power)
        return model, None
    rows = MEASURED[basis](spectra, seed) if basis in MEASURED else basis
    first = BandDCT(cube.channels, kept, rows).standardise_(spectra, power)
    model = tcpvit.create_model(settings["model"], in_chans=kept, kept=None, num_classes=classes, **options)
    return model, first.gain * first.matrix


def _principal_axes(spectra: Tensor, seed: int) -> Tensor:
    """(bands, bands), by falling variance; few pixels leave axes without any."""
    return torch.linalg.svd(spectra.double() - spectra.double().mean(0), full_matrices=True).Vh


def _random_axes(spectra: Tensor, seed: int) -> Tensor:
    normal = torch.randn(spectra.shape[1], spectra.shape[1], generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(normal.double()).Q.mT


MEASURED = {"pca": _principal_axes, "random": _random_axes}  # bases that no name determines


def _fit_classical(
    scene: Scene, split: SceneSplit, pixels: Tensor, measured: Tensor, settings: Settings, seed: int
) -> tuple[Tensor, None]:
    own = {name: value for name, value in settings.items() if name not in ("model", "kept", "window")}
    name, cube = settings["model"], Cube(scene, split, settings.get("window", WINDOW))
    classifier = classical(name, own, seed)
    kept = settings.get("kept", cube.channels)
    classifier.fit(features(name, cube, pixels, kept), targets_of(scene, pixels).numpy())
    blocks = [classifier.predict(features(name, cube, some, kept)) for some in measured.split(2048)]
    return torch.from_numpy(np.concatenate(blocks)), None
