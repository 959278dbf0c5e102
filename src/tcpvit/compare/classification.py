"""The paper's classification experiments (Section 5.1): its pair on each set, and its tables and curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from tcpvit.analysis import count_parameters
from tcpvit.compare.comparison import curves_of
from tcpvit.compare.intervals import percent, seeds_of
from tcpvit.compare.study import Finished, Places, Planned, Record, Study
from tcpvit.figures.bars import draw_parameter_bars
from tcpvit.figures.curves import draw_curves
from tcpvit.models import create_model
from tcpvit.tables import Cell, Table, Written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECIPE = "paper-classification"
PAIR = {"std": "Std-ViT", "tcp": "TCP-ViT"}
PRESETS = {"std": "std_vit_cifar", "tcp": "tcp_vit_cifar"}
MODELS: dict[str, tuple[str, ...]] = {"std": ("model.name=std_vit_cifar",), "tcp": ()}  # changes of the recipe
SEEDS = range(3)
CURVES = {"train loss": ("train_loss", 1.0), "test loss": ("val_loss", 1.0), "test top-1 (%)": ("val_top1", 100)}
COLUMNS = ["set and recipe", "model", "lr", "epochs", "seeds", "top-1, best", "last", "train loss", "test loss"]
NOT_RUN = Written("not run here")


class Part(NamedTuple):
    """A set of images in the paper: its name, the changes of the recipe, the paper's top-1 of both models, seeds."""

    title: str
    changes: tuple[str, ...] = ()
    quoted: tuple[float, float] | None = None
    seeds: Iterable[int] = SEEDS


PARTS = {
    "paper": Part("CIFAR-10 subset, paper recipe", ("data.name=cifar10", "precision=bfloat16"), (61.8, 63.6)),
    "svhn": Part("SVHN, paper recipe", ("data.name=svhn",), (49.8, 63.8)),
    "stl10": Part("STL-10, paper recipe", ("data.name=stl10", "data.image_size=32"), (52.5, 55.9)),
    "full": Part(
        "full CIFAR-10, paper recipe",
        ("data.name=cifar10", "data.options.split=official", "schedule.epochs=200"),
        (78.7, 73.4),
        range(1),
    ),
}


def planned() -> list[Planned]:
    """Both models on every set, seed by seed."""
    return [run for name, part in PARTS.items() for run in pairs(name, RECIPE, part.changes, seeds=part.seeds)]


def pairs(
    group: str,
    recipe: str,
    changes: tuple[str, ...],
    rates: Mapping[str, float] | None = None,
    seeds: Iterable[int] = SEEDS,
) -> list[Planned]:
    """Std and TCP, seed by seed, at the recipe's learning rate or each at its own."""
    own = {name: (f"optimizer.lr={rate}",) for name, rate in (rates or {}).items()}
    return [
        Planned(group, name, recipe, (*model, *changes, *own.get(name, ())), seed)
        for seed in seeds
        for name, model in MODELS.items()
    ]


def measured(finished: Finished) -> Record:
    """Accuracies and losses, in fractions; `best` is chosen on the images that it is measured on, `last` is not."""
    best, last = finished.result["best"], finished.result["last"]
    held_out = "val_fraction" in finished.result["recipe"]["data"]["options"]
    columns = ("epoch", "lr", "train_loss", "train_accuracy", "val_loss", "val_top1", "seconds")
    return {
        "measured_on": "held-out training images" if held_out else "test images",
        "measured_images": finished.images["val"],
        "top1_best": best["val_top1"],
        "best_epoch": int(best["epoch"]),
        "top1_last": last["val_top1"],
        "train_loss": last["train_loss"],
        "test_loss": last["val_loss"],
        "test_loss_best": best["val_loss"],
        "train_accuracy": last["train_accuracy"],
        "history": [{name: row[name] for name in columns if name in row} for row in finished.history],
    }


def paper_table(records: Iterable[Record], parts: Mapping[str, Part] = PARTS) -> Table:
    """tab:cls_sub and tab:cls_full: ours beside the paper's; what was not run says so."""
    records = list(records)
    title = "Std-ViT (119,194 parameters) and TCP-ViT (43,114) beside the paper's top-1"
    table = Table("paper", title, [*COLUMNS, "the paper's"])
    for name, part in parts.items():
        for i, (model, label) in enumerate(PAIR.items()):
            runs = [record for record in records if (record["group"], record["name"]) == (name, model)]
            quoted = Written(f"{part.quoted[i]} %") if part.quoted else None
            cells = cells_of(runs) if runs else (None, None, NOT_RUN, None, None, None, None)
            table.add(part.title, label, *cells, quoted)
    return table


def cells_of(runs: list[Record]) -> tuple[Cell, ...]:
    """The cells of runs of one model that differ by their seed, as `COLUMNS` names them."""
    best, last = (percent([run[key] for run in runs]) for key in ("top1_best", "top1_last"))
    losses = (Written(f"{fmean(run[key] for run in runs):.3f}") for key in ("train_loss", "test_loss"))
    return Written(f"{runs[0]['lr']:g}"), runs[0]["epochs"], seeds_of(runs), best, last, *losses


def draw_pair(records: Iterable[Record]) -> Figure | None:
    """Losses and accuracy of both models against the epoch, a line for each seed; None without both."""
    by_model = {name: [record for record in records if record["name"] == name] for name in PAIR}
    if not all(by_model.values()):
        return None
    histories = {PAIR[name]: [run["history"] for run in runs] for name, runs in by_model.items()}
    return draw_curves(curves_of(histories, CURVES))


def write(places: Places) -> list[Path]:
    """Write `classification.md` with the table, and the figures that there are records for."""
    records = places.records()
    curves = {name: draw_pair([record for record in records if record["group"] == name]) for name in PARTS}
    figures = {f"curves_{name}": figure for name, figure in curves.items() if figure is not None}
    counts = {PAIR[name]: count_parameters(create_model(preset)).components for name, preset in PRESETS.items()}
    figures["parameters"] = draw_parameter_bars(counts)
    return places.write("classification", paper_table(records), figures)


STUDY = Study("classification", planned, measured, write)
