"""What `tensorize_` did to each linear layer, and what it saved."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from tcpvit.tables import Ratio, Table, render

DONE = "done"


@dataclass(frozen=True)
class LayerRow:
    """One linear layer: its weights before and after, and whether it was converted, or why not."""

    name: str
    kind: str
    in_features: int
    out_features: int
    before: int  # parameters, biases included
    after: int
    status: str = DONE  # or why it was left
    error: float | None = None  # ‖W − W'‖ / ‖W‖ of the projection; of a calibration, that of the output on its data
    norm: float | None = None  # ‖W‖
    notes: tuple[str, ...] = ()
    tube: int | None = None  # of a converted layer; 1: no slices
    rank: int = 0  # of the map beside the slices
    ridge: float | None = None  # λ of the fit, in parts of the mean square of an input
    seconds: tuple[float, float] | None = None  # of a calibration: what a batch takes in it, before and after

    @property
    def done(self) -> bool:
        """Whether it was converted."""
        return self.status == DONE

    @property
    def form(self) -> str:
        """What it became."""
        slices = f"C = {self.tube}" if self.tube and self.tube > 1 else ""
        return " + ".join(word for word in (slices, f"rank {self.rank}" if self.rank else "") if word)

    @property
    def energy(self) -> float | None:
        """The share of ‖W‖² that the projection kept."""
        return None if self.error is None else max(0.0, 1 - self.error**2)


@dataclass(frozen=True)
class Report:
    """The outcome of a conversion; `print(report)` shows it as a table, `to_json` gives it to programs.

    Parameters are those of the whole model, shared ones counted once. FLOPs are of one forward pass, 2 for each
    multiply-add; None where no example input is known.
    """

    model: str
    config: dict[str, Any]
    rows: list[LayerRow] = field(repr=False)
    parameters_before: int = 0
    parameters_after: int = 0
    flops_before: int | None = None
    flops_after: int | None = None
    arrange_gain: float = 0.0  # what reordering features added to ‖W'‖², summed over the layers
    notes: tuple[str, ...] = ()

    @property
    def converted(self) -> list[str]:
        """The names of the layers that were converted."""
        return [row.name for row in self.rows if row.done]

    @property
    def skipped(self) -> dict[str, str]:
        """The names of the layers that were left, each with the reason."""
        return {row.name: row.status for row in self.rows if not row.done}

    @property
    def ratio(self) -> float:
        """Parameters of the model after, over those before."""
        return self.parameters_after / max(self.parameters_before, 1)

    @property
    def energy(self) -> float | None:
        """The share of ‖W‖² that the projection kept, over all converted layers; None without a projection."""
        squares = self._squares()
        whole = sum(norm for norm, _ in squares)
        return sum(norm * (1 - error) for norm, error in squares) / whole if whole else None

    @property
    def energy_unarranged(self) -> float | None:
        """What `energy` would have been with all features in their places."""
        whole = sum(norm for norm, _ in self._squares())
        return None if self.energy is None else self.energy - self.arrange_gain / whole

    def _squares(self) -> list[tuple[float, float]]:
        """‖W‖² and the squared relative error of every projected layer."""
        return [(row.norm**2, row.error**2) for row in self.rows if row.norm and row.error is not None]

    def table(self) -> Table:
        """Every linear layer, then the totals."""
        keep = self.config.get("keep")
        if keep is None:
            title = f"{self.model}, tube {self.config['tube']}, {self.config['transform']}, {self.config['init']}"
        else:
            title = f"{self.model}, calibrated to keep {keep:.3g} of the {self.config['budget']} of these layers"
        timed = ["time"] if keep is not None else []
        columns = ["layer", "in", "out", "form", "before", "after", "ratio", *timed, "error", "status"]
        table = Table("tensorize", title, columns)
        for row in self.rows:
            status = "; ".join((row.status, *row.notes))
            ratio = Ratio.of(row.after, row.before)
            sizes = (row.in_features, row.out_features, row.form, row.before, row.after)
            time = [row.seconds and Ratio.of(row.seconds[1], row.seconds[0])] if timed else []
            table.add(row.name, *sizes, ratio, *time, row.error, status)
        for name, before, after in (
            ("whole model", self.parameters_before, self.parameters_after),
            ("its FLOPs", self.flops_before, self.flops_after),
        ):
            if before is not None:
                ratio = Ratio.of(after, before)
                table.add(name, None, None, "", before, after, ratio, *[None for _ in timed], None, "", strong=True)
        table.notes += [*self._energy(), *self.notes]
        if timed:
            table.notes.append("Times are those of a batch in one layer, measured here, as parts of the dense layer's.")
        return table

    def _energy(self) -> list[str]:
        if self.energy is None or self.energy_unarranged is None:
            return []
        before = f" ({self.energy_unarranged:.1%} had no feature moved)" if self.arrange_gain else ""
        return [f"The projection keeps {self.energy:.1%} of the energy of the converted weights{before}."]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "rows"}
        rows = [{**asdict(row), "notes": list(row.notes), "energy": row.energy} for row in self.rows]
        return {**content, "notes": list(self.notes), "ratio": self.ratio, "energy": self.energy, "layers": rows}

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        return render([self.table()], "text")

    def _repr_html_(self) -> str:
        return render([self.table()], "html")
