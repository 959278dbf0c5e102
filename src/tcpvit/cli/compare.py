"""`tcpvit compare`: a Std model and its TCP twin, trained alike."""

from __future__ import annotations

import json as json_module
from pathlib import Path

from tcpvit.cli.program import tell
from tcpvit.cli.shortcuts import default_name, overrides_of
from tcpvit.cli.show import display_for, show
from tcpvit.compare import compare as library
from tcpvit.compare.comparison import Comparison
from tcpvit.files import check_writable
from tcpvit.training import load_recipe
from tcpvit.training.folder import folder_of


def compare(
    recipe: str = "demo",
    *,
    model: str | None = None,
    data: str | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    set: list[str] = [],  # noqa: B006 (typer copies it)
    set_std: list[str] = [],  # noqa: B006
    set_tcp: list[str] = [],  # noqa: B006
    seeds: int = 1,
    name: str | None = None,
    runs: Path = Path("runs"),
    overwrite: bool = False,
    data_root: Path | None = None,
    quiet: bool = False,
    json: bool = False,
) -> Comparison:
    """Train a Std model and its TCP twin on the same data and seed, and compare them.

    Prints the paper's table: the metric on the test part, parameters, their difference and ratio, and the time. Draws
    training curves, parameter bars and confusion matrices into RUNS/NAME/figures. The same command resumes what was
    stopped; runs that are complete are not trained again.

    Args:
        recipe: paper-classification, paper-segmentation, tuned-classification, volumes, clips, demo, or a YAML file.
        model: one of the two models, short for --set model.name=MODEL; the other is its twin.
        data: a set in place of the recipe's, as cifar10 or folder:PATH; it comes with its own options.
        epochs: short for --set schedule.epochs=EPOCHS.
        lr: the peak learning rate, short for --set optimizer.lr=LR.
        batch_size: short for --set data.batch_size=BATCH_SIZE.
        device: auto, cpu, cuda, cuda:1, mps; short for --set device=DEVICE.
        set: KEY=VALUE, a change to the recipe; may be repeated. Options that only a TCP-ViT has reach only that one.
        set_std: KEY=VALUE, a change for the Std model alone, as its learning rate.
        set_tcp: KEY=VALUE, a change for the TCP model alone.
        seeds: how many seeds to train, from that of the recipe on; the table then has means and deviations.
        name: name of the comparison, a folder in RUNS; by default made of recipe, models and data.
        runs: the folder of all runs.
        overwrite: train again what is there.
        data_root: the folder that holds the sets, short for --set data.root=FOLDER.
        quiet: show nothing but the result.
        json: print everything as JSON on stdout, and the progress on stderr.

    Examples:
        tcpvit compare
        tcpvit compare demo --set level=hard --epochs 40 --name hard
        tcpvit compare demo --set attention=joint --name joint
        tcpvit compare paper-classification --data cifar10 --seeds 3
        tcpvit compare tuned-classification --data folder:images
    """
    flags = {"model": model, "data": data, "epochs": epochs, "lr": lr, "batch_size": batch_size, "device": device}
    resolved = load_recipe(recipe, overrides_of(load_recipe(recipe), {**flags, "data_root": data_root}, set))
    pair = resolved.model.name.partition("_")[2]
    home = runs / default_name(recipe, pair, resolved.data.name) if name is None else folder_of(runs, name)
    check_writable(home / "run")
    progress = display_for(quiet=quiet, json=json)
    comparison = library.compare(
        resolved, home, set_std=set_std, set_tcp=set_tcp, seeds=seeds, overwrite=overwrite, progress=progress
    )
    figures = _draw(comparison, home / "figures")
    if json:
        print(json_module.dumps({**comparison.to_dict(), "figures": list(map(str, figures))}, indent=2))
    else:
        show([comparison.table()])
        for file in figures:
            if file.suffix == ".png":
                print(file)
    return comparison


def _draw(comparison: Comparison, folder: Path) -> list[Path]:
    try:
        return comparison.draw(folder)
    except ImportError as error:  # no reason to lose the table
        tell(str(error))
        return []
