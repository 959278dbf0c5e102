"""A Std model beside its TCP twin: what was measured, as the paper's table and figures (paper, Section 6).

A `Comparison` holds plain numbers only. It is saved as JSON and can be shown and drawn again without the runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tcpvit.analysis import count_parameters
from tcpvit.compare.intervals import percent, signed
from tcpvit.figures.bars import draw_parameter_bars
from tcpvit.figures.confusion import draw_confusions
from tcpvit.figures.curves import Curve, draw_curves
from tcpvit.figures.style import save_figure
from tcpvit.files import write_atomically
from tcpvit.inference import load_model
from tcpvit.tables import Ratio, Table, Written, duration, render
from tcpvit.training.folder import RunFolder
from tcpvit.training.metrics import LABELS
from tcpvit.training.preprocessing import read_preprocessing
from tcpvit.validation import Natural, checked, read_checked

# The bars gather the components of `count_parameters` under these names; others stand for themselves.
GROUPS = dict.fromkeys(("patch_embed", "cls_token", "pos_embed"), "embeddings and tokens")
GROUPS |= {"qkv": "attention", "proj": "attention", "fc1": "MLP", "fc2": "MLP", "final_norm": "norms"}
FEW = 5  # so many classes of a segmentation have rows of their own

History = Sequence[Mapping[str, float]]  # a row for each epoch
Measured = Callable[["Run"], float | None]  # None: there was nothing to measure


@dataclass(frozen=True)
class Run:
    """One training run that is complete."""

    folder: str
    seed: int
    seconds: float
    test: dict[str, Any]  # metrics as fractions, and the confusion matrix
    history: list[dict[str, float]]  # a row for each epoch
    environment: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Run:
        """From what the run left in its folder."""
        run = RunFolder(folder)
        result, (*_, last) = run.read_json("result.json"), run.read_json("environment.json")
        checked(result["test"].get("confusion"), list[list[Natural]], f"test.confusion of {folder / 'result.json'}")
        return cls(str(folder), result["recipe"]["seed"], result["seconds"], result["test"], run.read_metrics(), last)

    def images_per_second(self) -> float:
        """Mean over the epochs, without evaluation."""
        return fmean(row["images_per_second"] for row in self.history)


@dataclass(frozen=True)
class Model:
    """One of the two models, with a run for each seed."""

    recipe: dict[str, Any]  # but for the seed
    parameters: int
    components: dict[str, int]
    runs: list[Run]

    @property
    def name(self) -> str:
        """The preset."""
        return self.recipe["model"]["name"]

    @classmethod
    def read(cls, folders: Sequence[Path]) -> Model:
        """From the folders of its runs."""
        recipe = RunFolder(folders[0]).read_json("result.json")["recipe"]
        count = count_parameters(load_model(folders[0]).model)
        gathered: Counter[str] = Counter()
        for component, number in count.components.items():
            gathered[GROUPS.get(component, component)] += number
        return cls(recipe, int(count), dict(gathered), [Run.read(folder) for folder in folders])

    def values(self, measured: Measured) -> list[float]:
        """The values of the seeds, where there was something to measure."""
        return [value for value in map(measured, self.runs) if value is not None]

    @property
    def fastest(self) -> Run:
        """The run that other programs disturbed least."""
        return min(self.runs, key=lambda run: run.seconds)


@dataclass(frozen=True)
class Comparison:
    """Both models on the same data with the same seeds."""

    std: Model
    tcp: Model
    classes: list[str]
    metric: str  # the one that counts: top1 or miou
    notes: list[str]

    @classmethod
    def of(cls, std: Model, tcp: Model) -> Comparison:
        """From two models that were trained."""
        folder = Path(std.runs[0].folder)
        result, about = RunFolder(folder).read_json("result.json"), read_preprocessing(folder / "best")
        if about is None:
            raise ValueError(f"{folder} does not say what its classes are called; train it again")
        return cls(std, tcp, about["classes"], result["metric"], result["notes"])

    @classmethod
    def load(cls, path: Path) -> Comparison:
        """What `save` wrote."""
        content = read_checked(path, Comparison)
        for side in ("std", "tcp"):
            runs = [Run(**run) for run in content[side]["runs"]]
            content[side] = Model(**{**content[side], "runs": runs})
        return cls(**content)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def save(self, path: Path) -> None:
        """Write everything as JSON."""
        write_atomically(path, (json.dumps(self.to_dict(), indent=1) + "\n").encode())

    # ------------------------------------------------------------------------------------------------ the table

    def table(self) -> Table:
        """Metrics and parameters of both models, TCP minus Std (in points) and TCP over Std."""
        table = Table("comparison", self._title(), ["", self.std.name, self.tcp.name, "Δ", "TCP / Std"])
        for label, measured in self._metrics().items():
            table.add(label, *_beside(self.std.values(measured), self.tcp.values(measured)), strong=not table.rows)
        before, after = self.std.parameters, self.tcp.parameters
        table.add("parameters", before, after, Written(signed(after - before, 0)), Ratio.of(after, before), strong=True)
        fastest = ", fastest run" if len(self.std.runs) > 1 else ""
        std, tcp = self.std.fastest.seconds, self.tcp.fastest.seconds
        table.add(f"training time{fastest}", Written(duration(std)), Written(duration(tcp)), None, Ratio.of(tcp, std))
        std, tcp = self.std.fastest.images_per_second(), self.tcp.fastest.images_per_second()
        table.add(f"images a second{fastest}", round(std), round(tcp), None, Ratio.of(tcp, std))
        table.notes += self.notes
        return table

    def _repr_html_(self) -> str:
        return render([self.table()], "html")

    def _title(self) -> str:
        seeds = [run.seed for run in self.std.runs]
        data = self.std.recipe["data"]
        options = ", ".join(f"{key} {value}" for key, value in data["options"].items())
        on = f"{data['name']} ({options})" if options else data["name"]
        many = f"mean ± deviation of seeds {', '.join(map(str, seeds))}"
        return f"Test part of {on}, {many if len(seeds) > 1 else f'seed {seeds[0]}'}"

    def _metrics(self) -> dict[str, Measured]:
        """What is measured of a run, by its label; what counts comes first."""
        test = self.std.runs[0].test
        names = [self.metric, *(name for name in test if name in LABELS and name not in (self.metric, "loss"))]
        found = {LABELS[name]: _of_test(name) for name in names}
        if self.metric == "miou" and len(self.classes) <= FEW:
            for name in test["by_class"]:
                found |= {f"{LABELS[name]}: {label}": _of_class(name, k) for k, label in enumerate(self.classes)}
        return found

    # ------------------------------------------------------------------------------------------------ the figures

    def draw(self, folder: Path) -> list[Path]:
        """Training curves, parameter bars and confusion matrices, each as SVG and PNG."""
        models = (self.std, self.tcp)
        panels = {"training loss": ("train_loss", 1.0), "validation loss": ("val_loss", 1.0)}
        panels[f"validation {LABELS[self.metric]} (%)"] = (f"val_{self.metric}", 100.0)
        curves = curves_of({model.name: [run.history for run in model.runs] for model in models}, panels)
        confusions = {model.name: sum_matrices([run.test["confusion"] for run in model.runs]) for model in models}
        figures = {
            "curves": draw_curves(curves),
            "parameters": draw_parameter_bars({model.name: model.components for model in models}),
            "confusion": draw_confusions(confusions, self.classes),
        }
        return [path for name, figure in figures.items() for path in save_figure(figure, folder / name)]


def _beside(std: list[float], tcp: list[float]) -> list[Any]:
    """The means in per cent, their difference in points and their ratio; None for what is not known."""
    cells: list[Any] = [percent(values) if values else None for values in (std, tcp)]
    if not std or not tcp:
        return [*cells, None, None]
    difference = fmean(tcp) - fmean(std)
    return [*cells, Written(signed(100 * difference)), Ratio.of(fmean(tcp), fmean(std))]


def _of_test(name: str) -> Measured:
    return lambda run: run.test[name]


def _of_class(name: str, k: int) -> Measured:
    return lambda run: run.test["by_class"][name][k]


def curves_of(
    histories: Mapping[str, Sequence[History]], columns: Mapping[str, tuple[str, float]]
) -> dict[str, dict[str, list[Curve]]]:
    """What `draw_curves` takes, from the histories of each model's runs: `columns` has column and scale of each panel.

    >>> curves_of({"std": [[{"epoch": 1, "val_top1": 0.4}, {"epoch": 2}]]}, {"top-1 (%)": ("val_top1", 100)})
    {'top-1 (%)': {'std': [([1], [40.0])]}}
    """

    def curve(history: History, column: str, scale: float) -> Curve:
        rows = [row for row in history if column in row]
        return [row["epoch"] for row in rows], [scale * row[column] for row in rows]

    return {
        title: {model: [curve(history, *column) for history in runs] for model, runs in histories.items()}
        for title, column in columns.items()
    }


def sum_matrices(matrices: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    """The confusion matrices of several runs as one."""
    return [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]
