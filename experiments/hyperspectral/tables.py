"""Tables of the hyperspectral study, from its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from tcpvit.compare.intervals import between, interval, leads, percent, signed
from tcpvit.compare.study import Record
from tcpvit.tables import Bytes, Cell, Table, Written

Runs = Mapping[str, list[Record]]  # by name, in the order of their seeds

LABELS = {
    "tcp_scene": "`tcp_scene` (W)",
    "tcp_scene_stem": "`tcp_scene_stem`",
    "tcp_scene_shuffle": "`tcp_scene_shuffle`",
    "std_scene": "`std_scene`, dense",
    "std_scene_small": "`std_scene_small`, dense, of W's size",
    "tcp_scene-plain": "`tcp_scene` (W), windows not flattened",
    "std_scene-plain": "`std_scene`, dense, windows not flattened",
    "tcp_scene-dropout": "`tcp_scene` (W), dropout 0.2",
    "std_scene-dropout": "`std_scene`, dense, dropout 0.2",
    "tcp_scene-3": "`tcp_scene` (W), windows of 3×3, 80 epochs",
    "std_scene-3": "`std_scene`, dense, windows of 3×3, 80 epochs",
    "tcp_scene-3-members": "five `tcp_scene` (W), windows of 3×3, 80 epochs, averaged",
    "std_scene-3-members": "five `std_scene`, dense, windows of 3×3, 80 epochs, averaged",
    "tcp_scene-windows": "two `tcp_scene` (W), windows of 9×9 and 3×3, 80 epochs, averaged",
    "std_scene-windows": "two `std_scene`, dense, windows of 9×9 and 3×3, 80 epochs, averaged",
    "svm-bands": "SVM, bands",
    "svm-dct": "SVM, DCT coefficients",
    "svm-mean": "SVM, DCT coefficients of pixel and window mean",
    "svm-mean-3": "SVM, DCT coefficients of pixel and 3×3 mean",
    "forest": "random forest, bands",
    "ssftt": "SSFTT-like",
    "hybridsn": "HybridSN-like",
    "spectralformer": "SpectralFormer-like",
}
IN_SHORT = ("tcp_scene", "std_scene_small", "std_scene", "ssftt", "hybridsn", "svm-mean-3")  # for the README
SPLITS = {"random": "random 10 %", "disjoint": "disjoint fields"}
PAIRS = (  # which model, against which, on which split
    ("tcp_scene", "std_scene_small", "random"),
    ("tcp_scene", "std_scene", "random"),
    ("tcp_scene_stem", "tcp_scene", "random"),
    ("tcp_scene", "ssftt", "random"),
    ("tcp_scene_stem", "ssftt", "random"),
    ("tcp_scene", "spectralformer", "random"),
    ("tcp_scene", "std_scene_small", "disjoint"),
    ("tcp_scene", "std_scene", "disjoint"),
    ("tcp_scene-plain", "std_scene-plain", "disjoint"),
    ("tcp_scene", "tcp_scene-plain", "disjoint"),
    ("std_scene", "std_scene-plain", "disjoint"),
    ("tcp_scene_stem", "tcp_scene", "disjoint"),
    ("tcp_scene", "ssftt", "disjoint"),
    ("tcp_scene", "hybridsn", "disjoint"),
    ("tcp_scene", "spectralformer", "disjoint"),
    ("tcp_scene", "svm-bands", "disjoint"),
    ("tcp_scene", "svm-dct", "disjoint"),
    ("tcp_scene", "svm-mean", "disjoint"),
    ("tcp_scene", "svm-mean-3", "disjoint"),
    ("std_scene", "svm-dct", "disjoint"),
    ("tcp_scene-dropout", "tcp_scene", "disjoint"),
    ("tcp_scene-dropout", "std_scene-dropout", "disjoint"),
    ("tcp_scene-3", "tcp_scene", "disjoint"),
    ("tcp_scene-3", "std_scene-3", "disjoint"),
    ("tcp_scene-3", "svm-mean-3", "disjoint"),
    ("tcp_scene-windows", "tcp_scene", "disjoint"),
    ("tcp_scene-windows", "std_scene-windows", "disjoint"),
    ("tcp_scene-windows", "ssftt", "disjoint"),
    ("tcp_scene-windows", "hybridsn", "disjoint"),
    ("tcp_scene-windows", "spectralformer", "disjoint"),
    ("tcp_scene-windows", "svm-bands", "disjoint"),
    ("tcp_scene-windows", "svm-dct", "disjoint"),
    ("tcp_scene-windows", "svm-mean-3", "disjoint"),
    ("tcp_scene-3-members", "tcp_scene", "disjoint"),
    ("tcp_scene-3-members", "std_scene-3-members", "disjoint"),
    ("tcp_scene-3-members", "svm-mean-3", "disjoint"),
)
LEVER_LABELS = {
    "base": "as on the random split",
    "power-0": "coefficients not standardised",
    "light": "random brightness and smooth offsets",
    "flatten": "windows flattened towards their centre pixel, at random",
    "flatten-light": "both of these",
    "chosen": "flattened, with the settings that W chose",
    "chosen-start": "the same, self-supervised start",
    "chosen-average": "the same, predictions averaged over the eight symmetries",
    "chosen-noise": "the same, three times the noise",
    "chosen-dropout": "the same, dropout 0.2",
    "chosen-blend": "the same, windows of one class blended",
    "chosen-power-half": "the same, coefficients divided by the root of their deviation",
    "chosen-long": "the same, 80 epochs",
    "chosen-window-3": "the same, windows of 3×3 pixels",
    "chosen-window-1": "the same, one pixel without a window",
    "chosen-centre": "the same, predictions of the window and of its centre pixel averaged",
    "chosen-members": "the same, predictions of five networks averaged",
    "chosen-3-long": "the same, windows of 3×3 pixels, 80 epochs",
    "chosen-3-members": "the same, windows of 3×3 pixels, five networks",
    "chosen-3-long-members": "the same, windows of 3×3 pixels, 80 epochs, five networks",
    "chosen-windows": "the same, 80 epochs, a network for windows of 9×9 and one for 3×3, averaged",
}
ABLATION_LABELS = {
    "w": "W as chosen",
    "kept-8": "K = 8",
    "kept-16": "K = 16",
    "kept-32": "K = 32",
    "kept-64": "K = 64",
    "pca": "principal axes instead of the DCT",
    "random-axes": "random orthogonal axes",
    "learned": "learned axes, from the DCT",
    "not-shared": "own weights for each slice",
    "not-mixed": "slices not mixed",
    "own-norms": "a norm for each slice",
    "power-0": "coefficients not standardised",
    "power-1": "coefficients standardised",
    "start": "self-supervised start",
}


def of_group(records: Iterable[Record], group: str) -> Runs:
    """The runs of a part of the study by name."""
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record["seed"]):
        if record["group"] == group:
            found.setdefault(record["name"], []).append(record)
    return found


def model_table(records: list[Record], names: Iterable[str] = LABELS) -> Table:
    """Models on both splits, test pixels."""
    groups = {kind: of_group(records, kind) for kind in SPLITS}
    columns = ["model", "parameters"]
    for kind, said in SPLITS.items():
        columns += [f"OA, {said}{_leakage(groups[kind])}", "AA", "splits"]
    table = Table("models", "Test pixels, mean ± deviation over splits", columns)
    for name in names:
        runs = [groups[kind].get(name, []) for kind in SPLITS]
        if any(runs):
            sizes = dict.fromkeys(_size(each[0]["parameters"]) for each in runs if each)  # K was chosen by split
            table.add(LABELS[name], Written(" / ".join(sizes)), *(cell for each in runs for cell in _scores(each)))
    return table


def _scores(runs: list[Record]) -> tuple[Cell, ...]:
    if not runs:
        return None, None, None
    return percent([run["oa"] for run in runs]), Written(f"{100 * fmean(run['aa'] for run in runs):.1f} %"), len(runs)


def _leakage(runs: Runs) -> str:
    shares = [run["leakage"] for each in runs.values() for run in each]
    return f" (leakage {100 * fmean(shares):.1f} %)" if shares else ""


def pair_table(records: list[Record]) -> Table:
    """Leads with paired intervals over common splits."""
    columns = ["model", "against", "split", "splits", "parameters", "lead in OA, points", "95 % interval"]
    table = Table("pairs", "Differences on the same splits", columns)
    for model, to, kind in PAIRS:
        runs = of_group(records, kind)
        mine, theirs = runs.get(model, []), runs.get(to, [])
        if found := leads(mine, theirs, "oa"):
            sizes = [_size(each[0]["parameters"]) for each in (mine, theirs)]
            table.add(
                LABELS[model], LABELS[to], SPLITS[kind], len(found), " / ".join(sizes),
                Written(signed(fmean(found))), Written(between(interval(found))),
            )  # fmt: skip
    return table


def _size(parameters: int | None) -> str:
    return "–" if parameters is None else f"{parameters:,}"


def lever_table(records: list[Record]) -> Table:
    """What each lever does to both models on validation fields."""
    runs = of_group(records, "levers")
    columns = ["changed", "splits", *(LABELS[name] for name in ("tcp_scene", "std_scene"))]
    title = "OA on validation fields, and the lead over the row that is changed, on the same splits"
    table = Table("levers", title, columns)
    for lever, label in LEVER_LABELS.items():
        base = "chosen" if lever.startswith("chosen-") else "base"
        cells = [_against(runs, f"{name}.{lever}", f"{name}.{base}") for name in ("tcp_scene", "std_scene")]
        splits = {run["seed"] for name in ("tcp_scene", "std_scene") for run in runs.get(f"{name}.{lever}", [])}
        if any(cells):
            table.add(label, len(splits), *cells)
    return table


def ablations(records: list[Record], kind: str) -> Runs:
    """W as chosen, and with one thing changed, on the splits that were tried."""
    runs = of_group(records, f"ablate-{kind}")
    seeds = {run["seed"] for each in runs.values() for run in each}
    return {"w": [run for run in of_group(records, kind).get("tcp_scene", []) if run["seed"] in seeds], **runs}


def ablation_table(records: list[Record]) -> Table:
    """W with one thing changed, test pixels of the splits that were tried."""
    groups = {said: ablations(records, kind) for kind, said in SPLITS.items()}
    groups = {said: runs for said, runs in groups.items() if runs["w"]}
    columns = ["changed", "parameters", *(f"{said}, splits: {len(runs['w'])}" for said, runs in groups.items())]
    table = Table("ablations", "OA on test pixels, and the lead over the first row on the same splits", columns)
    for name, label in ABLATION_LABELS.items():
        cells = [_against(runs, name, "w") for runs in groups.values()]
        if any(cells):
            counts = [run["parameters"] for runs in groups.values() for run in runs.get(name, [])]
            table.add(label, counts[0], *cells)
    return table


def _against(runs: Runs, name: str, base: str) -> Written | None:
    """Mean OA of a run, and its lead over another one with an interval."""
    mine = runs.get(name, [])
    if not mine:
        return None
    found = leads(mine, runs.get(base, []), "oa")
    ends = f" {between(interval(found))}" if len(found) > 1 else ""
    beside = f", {signed(fmean(found))}{ends}" if found and name != base else ""
    return Written(f"{100 * fmean(run['oa'] for run in mine):.1f} %{beside}")


def choice_table(records: list[Record]) -> Table:
    """The settings that each model has on each split, chosen on validation pixels."""
    table = Table("chosen", "Settings chosen on validation pixels", ["model", *SPLITS.values()])
    for name in LABELS:
        runs = [of_group(records, kind).get(name, []) for kind in SPLITS]
        if any(runs):
            table.add(LABELS[name], *(_words(each[0]) if each else None for each in runs))
    return table


def _words(run: Record) -> str:
    """The last word for each setting, without the model's name."""
    words = dict(word.split("=", 1) for word in run["changes"])
    return ", ".join(f"{key.removeprefix('options.')} {value}" for key, value in words.items() if key != "model")


def scene_table(rows: Iterable[Record]) -> Table:
    """The whole scene, predicted by each model on one core."""
    columns = [
        "model",
        "parameters",
        "time, s",
        "memory beside the scene",
        "the same, two scenes side by side",
        "a step of training, 64 windows, ms",
    ]
    table = Table("scene", "All 21,025 windows of Indian Pines, and training, on one core", columns)
    for row in rows:
        memory = (Bytes(row[key]) for key in ("peak_bytes", "peak_bytes_of_two"))
        seconds, step = Written(f"{row['cpu_seconds']:.1f}"), Written(f"{row['training_ms']:.1f}")
        table.add(LABELS[row["name"]], row["parameters"], seconds, *memory, step)
    return table
