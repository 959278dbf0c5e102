"""Indian Pines, which the paper only names: our presets beside dense ViTs, on random pixels and on disjoint fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tcpvit.compare.intervals import between, interval, leads, percent, seeds_of, signed
from tcpvit.compare.study import Finished, Places, Planned, Record, Study
from tcpvit.tables import Cell, Table, Written
from tcpvit.training import Recipe

RECIPE = "scene"
DENSE = "std_scene"
MODELS = ("tcp_scene", "tcp_scene_stem", DENSE, "std_scene_small")
# Chosen on validation pixels: between fields, what is around a pixel misleads.
SPLITS = {
    "random": ("data.options.fraction=0.1", "schedule.epochs=80"),  # with 20 the dense ones lag behind
    "disjoint": ("augment.flatten=1", "model.options.kept=16", "optimizer.lr=0.004", "schedule.epochs=20"),
}
SEEDS = {"random": range(5), "disjoint": range(10)}
WHOLE = ("data.name=indian-pines", "data.options.val_fraction=0")  # all training pixels train, the last epoch counts


@dataclass(frozen=True)
class OnSplit(Planned):
    """A run whose seed also draws the split: models of one seed have the same pixels."""

    def resolved(self, epochs: int | None = None, root: Path | None = None) -> Recipe:
        """The whole recipe."""
        return super().resolved(epochs, root).override([f"data.options.seed={self.seed}"])


def planned() -> list[Planned]:
    """All models on all splits, split by split."""
    return [
        OnSplit(kind, model, RECIPE, (f"model.name={model}", *WHOLE, f"data.options.split={kind}", *words), seed)
        for kind, words in SPLITS.items()
        for seed in SEEDS[kind]
        for model in MODELS
    ]


def measured(finished: Finished) -> Record:
    """Overall and average accuracy and kappa on the test pixels after the last epoch, as fractions."""
    last = finished.result["last"]
    return {name: last[f"val_{name}"] for name in ("oa", "aa", "kappa")}


def accuracy_table(records: list[Record]) -> Table:
    """Every model on both splits, with its lead over the dense ViT on the same splits."""
    columns = ["split", "model", "parameters", "seeds", "OA", "AA", "κ", f"against {DENSE}", "95 % interval"]
    table = Table("hyperspectral", "Indian Pines, test pixels after the last epoch", columns)
    for kind in SPLITS:
        runs = {name: [run for run in records if (run["group"], run["name"]) == (kind, name)] for name in MODELS}
        for name, found in runs.items():
            if found:
                scores = (percent([run[key] for run in found]) for key in ("oa", "aa", "kappa"))
                ahead = _lead(leads(found, runs[DENSE], "oa")) if name != DENSE else (None, None)
                table.add(kind, name, found[0]["parameters"], seeds_of(found), *scores, *ahead)
    return table


def _lead(found: list[float]) -> tuple[Cell, Cell]:
    if not found:
        return None, None
    return Written(signed(sum(found) / len(found))), Written(between(interval(found)))


def write(places: Places) -> list[Path]:
    """Write `hyperspectral.md` with the table."""
    return places.write("hyperspectral", accuracy_table(places.records()), {})


STUDY = Study("hyperspectral", planned, measured, write)
