"""The page of the classification study: tables, a figure and plain words, all from the records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from tcpvit.figures.frontier import Point, draw_frontier
from tcpvit.figures.style import save_figure
from tcpvit.studies.intervals import signed, spread
from tcpvit.studies.study import Places, Record, write_block
from tcpvit.tables import Ratio, Table, Written, render
from tcpvit.training.progress import duration

LABELS = {
    "std": "Std-ViT, width 48",
    "std-28": "Std-ViT, width 28: the dense ViT of TCP-ViT's size",
    "paper": "TCP-ViT as in the paper",
    "spatial": "the paper's, GELU in the spatial domain",
    "joint-none": "the paper's, joint attention",
    "t-linear": "the paper's, t_linear patch embedding",
    "joint": "joint attention and t_linear embedding (J)",
    "joint-spatial": "J, spatial GELU",
    "joint-shuffle": "J + shuffle",
    "joint-mix": "J + mix (rotations)",
    "joint-mix-norm": "J + mix + joint norm",
    "two-factor": "J, two-factor maps",
    "joint-sqrt-lr": "J, slices learn √C as fast",
    "joint-full-lr": "J, slices learn C times as fast",
    "mix-identity": "J + mix, no transform",
    "mix-haar": "J + mix, Haar",
    "mix-learned": "J + mix, learned transform",
    "mix-data": "J + mix, data-driven transform",
    "joint-heads-2": "J, 2 heads a slice",
    "joint-heads-8": "J, 8 heads a slice",
    "paper-full-lr": "the paper's, slices learn C times as fast",
    "fast-identity": "J, no transform, slices learn C times as fast",
    "fast-shallow": "width 54, 3 blocks, J, slices learn C times as fast",
    "fast-deep": "width 42, 5 blocks, J, slices learn C times as fast",
    "fast-heads-2": "J, 2 heads a slice, slices learn C times as fast",
    "fast-two-factor": "J, two-factor maps, slices learn C times as fast",
    "fast-shuffle": "J + shuffle, slices learn C times as fast",
    "fast-norm": "J + joint norm, slices learn C times as fast",
    "fast-norm-shuffle": "J + joint norm + shuffle, slices learn C times as fast",
    "fast-mix-start": "J + mix from the identity, slices learn C times as fast",
    "fast-spatial": "J, spatial GELU, slices learn C times as fast",
    "fast-heads-8": "J, 8 heads a slice, slices learn C times as fast",
    "fast-partial": "width 45, J, 5 % of the features read all slices, slices learn C times as fast",
    "fast-mix": "J + mix, slices learn C times as fast (F)",
    "fast-wide-72x6": "width 72, tube 6, 3 blocks, mix, joint norm, F",
    "fast-deep-64x8": "width 64, tube 8, 5 blocks, mix, joint norm, F",
    "large-81x3": "width 81, tube 3, J, F",
    "large-deep": "J, 12 blocks, F",
    "large-63x3": "width 63, 7 blocks, J, F",
}
SHORT = {"std": "Std-ViT", "std-28": "Std-ViT, width 28", "joint-full-lr": "tcp_vit_cifar_plus"}  # beside points
SHORT |= {"large-81x3": "tcp_vit_cifar_wide"}
PRESETS = {  # in the README, where people look for what to use
    "std": "`std_vit_cifar`, dense",
    "std-28": "the same, 28 wide: the dense ViT of TCP-ViT's size",
    "paper": "`tcp_vit_cifar`, as in the paper",
    "joint-full-lr": "`tcp_vit_cifar_plus`: joint attention, c-product patch embedding, slices learn C times as fast",
    "large-81x3": "`tcp_vit_cifar_wide`: the same, 81 wide instead of 48",
    "large-deep": "`tcp_vit_cifar_plus` with 12 blocks",
}
# One factor at a time: what is changed, from which run to which.
FACTORS = (
    ("slices attend jointly", "paper", "joint-none"),
    ("a c-product patch embedding", "paper", "t-linear"),
    ("joint attention and a c-product patch embedding", "paper", "joint"),
    ("GELU in the spatial domain, alone", "paper", "spatial"),
    ("GELU in the spatial domain, beside joint attention", "joint", "joint-spatial"),
    ("learned mixing of slices", "joint", "joint-mix"),
    ("shuffling of slices", "joint", "joint-shuffle"),
    ("a norm over all slices, beside mixing", "joint-mix", "joint-mix-norm"),
    ("two factors with a shuffle between", "joint", "two-factor"),
    ("slice weights learn √C as fast", "joint", "joint-sqrt-lr"),
    ("slice weights learn C times as fast", "joint", "joint-full-lr"),
    ("no transform instead of the DCT", "joint-mix", "mix-identity"),
    ("Haar instead of the DCT", "joint-mix", "mix-haar"),
    ("a learned transform instead of the DCT", "joint-mix", "mix-learned"),
    ("the data's own transform instead of the DCT", "joint-mix", "mix-data"),
    ("2 heads a slice instead of 4", "joint", "joint-heads-2"),
    ("8 heads a slice instead of 4", "joint", "joint-heads-8"),
    ("slice weights learn C times as fast, in the paper's model", "paper", "paper-full-lr"),
    ("learned mixing, where slices learn C times as fast", "joint-full-lr", "fast-mix"),
    ("no transform instead of the DCT, where slices learn C times as fast", "joint-full-lr", "fast-identity"),
    ("width 54 with 3 blocks instead of 48 with 4", "joint-full-lr", "fast-shallow"),
    ("width 42 with 5 blocks instead of 48 with 4", "joint-full-lr", "fast-deep"),
    ("two-factor maps, where slices learn C times as fast", "joint-full-lr", "fast-two-factor"),
    ("shuffling of slices, where they learn C times as fast", "joint-full-lr", "fast-shuffle"),
    ("a norm over all slices, where they learn C times as fast", "joint-full-lr", "fast-norm"),
    ("a norm over all slices, and shuffling", "joint-full-lr", "fast-norm-shuffle"),
    ("mixing that starts at the identity", "joint-full-lr", "fast-mix-start"),
    ("GELU in the spatial domain, where slices learn C times as fast", "joint-full-lr", "fast-spatial"),
    ("8 heads a slice, where slices learn C times as fast", "joint-full-lr", "fast-heads-8"),
    ("width 72 with tube 6 instead of 48 with 3", "fast-mix", "fast-wide-72x6"),
    ("width 64 with tube 8 and 5 blocks", "fast-mix", "fast-deep-64x8"),
)
SHOWS = 1.0  # points: a smaller difference of two single runs is not told from that of two seeds
QUOTED = {"cifar10": (61.8, 63.6), "svhn": (49.8, 63.8), "stl10": (52.5, 55.9), "full": (78.7, 73.4)}
TIMES = Path("bench/classification.json")  # beside the records: measured in one interleaved run


def write(places: Places) -> list[Path]:
    """Write `classification.md` and its figures."""
    records = places.records()
    times = _times(places.results.parent / TIMES)
    page = places.pages / "classification.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    figures = _draw(records, times, page.parent)
    page.write_text("\n".join(_lines(records, times, bool(figures))) + "\n", encoding="utf-8")
    readme = places.pages.parent.parent / "README.md"
    return [page, *figures, *write_block(readme, "classification", _summary(at_own_rate(records)))]


def _summary(records: list[Record]) -> str:
    """For the README: the dense models, the paper's, and the best of ours at both sizes."""
    by_name = {record["name"]: record for record in records}
    chosen = [by_name[name] for name in ("std", "std-28", "paper") if name in by_name]
    chosen += [max(found, key=lambda r: r["top1_last"]) for found in _sizes(records) if found]
    columns = ["model", "parameters", "of Std-ViT", "top-1"]
    table = Table("summary", _title(records), columns)
    for record in chosen:
        ratio = Ratio.of(record["parameters"], by_name["std"]["parameters"]) if "std" in by_name else None
        label = PRESETS.get(record["name"]) or LABELS[record["name"]]
        table.add(label, record["parameters"], ratio, percent([record["top1_last"]]))
    return render([table], "markdown")


def _sizes(records: list[Record]) -> tuple[list[Record], list[Record]]:
    """The TCP models of at most 44.5K parameters, and those of Std-ViT's."""
    tcp = [record for record in records if record["model"].startswith("tcp")]
    return (
        [record for record in tcp if record["parameters"] <= 44_500],
        [record for record in tcp if 116_000 <= record["parameters"] <= 123_000],
    )


def _lines(records: list[Record], times: dict[str, float], drawn: bool) -> Iterable[str]:
    yield "# Classification: what closes the gap"
    yield ""
    yield (
        "Written by `tcpvit reproduce classification` from the files in `results/classification`; each of them names "
        "its command, seed, epochs and commit. Accuracies are those of the **last** epoch, which nothing was chosen "
        "by; the best epoch, chosen on the test pictures themselves as the paper does, stands beside it."
    )
    yield ""
    gap = group(records, "gap")
    own = at_own_rate(records)
    yield from _section(
        "Each model at its own learning rate",
        [gap_table(own, times)] if own else [],
        "The rate is the best of the short runs below, which never saw a test picture; a TCP-ViT without short runs "
        "at two rates has that of J, slices learn C times as fast. The schedule is one for all.",
    )
    yield from _verdict(own)
    yield from _section(
        "Every model at one learning rate",
        [gap_table(gap, times)] if gap else [],
        "All at lr 0.003. The short runs below say that the dense models learn better at a higher one: compare the TCP "
        "models with one another here.",
    )
    if drawn:
        yield "## The frontier"
        yield ""
        yield "![Accuracy against parameters and time of each model](classification_frontier.png)"
        yield ""
    factors = factor_table(gap)
    yield from _section("One factor at a time", [factors] if factors.rows else [])
    yield from _words(gap)
    short = group(records, "screen") + group(records, "rate")
    yield from _section("Short runs that chose", [screen_table(short)])
    yield from _section("Finalists: 30 epochs, three seeds", [seeds_table(group(records, "final"), "final")])
    yield from _section(
        "The paper's protocol",
        [paper_table(records)],
        "10,000 training and 2,000 test pictures, 150 epochs, AdamW at lr 0.01 without warm-up, in bfloat16. `tuned` "
        "is the recipe tuned-classification on the same pictures.",
    )
    yield from _section(
        "A proxy for SVHN",
        [seeds_table(group(records, "proxy"), "proxy")],
        "SVHN is not at hand. Digits on photographs (hard level) stand in for it, to see whether lr 0.01 without "
        "warm-up alone can make the 14 points that the paper finds between the two models. This is a proxy, not SVHN.",
    )


def _section(title: str, tables: Sequence[Table], words: str = "") -> Iterable[str]:
    """A heading with its tables, or the honest word that nothing was run."""
    yield f"## {title}"
    yield ""
    if words:
        yield words
        yield ""
    full = [table for table in tables if table.rows]
    yield render(full, "markdown") if full else "Not run here yet; the command above runs it."
    yield ""


# ---------------------------------------------------------------------------------------------------- tables


def group(records: Iterable[Record], name: str) -> list[Record]:
    """The records of one part of the study."""
    return [record for record in records if record["group"] == name]


def at_own_rate(records: list[Record]) -> list[Record]:
    """The run of each model at the rate that its short runs chose, and of `own` those that had none to choose from."""
    short: dict[str, list[Record]] = {}
    for record in group(records, "screen") + group(records, "rate"):
        short.setdefault(_model(record), []).append(record)
    chosen = {name: max(runs, key=lambda run: run["top1_last"])["lr"] for name, runs in short.items() if len(runs) > 1}
    own, gap = group(records, "own"), group(records, "gap")
    return [r for r in own if r["lr"] == chosen.get(r["name"], r["lr"])] + [
        r for r in gap if r["lr"] == chosen.get(r["name"])
    ]


def _model(record: Record) -> str:
    """The model of a run that is named after its rate too."""
    name: str = record["name"]
    return name.removesuffix(f"-{record['lr']}")


def gap_table(records: list[Record], times: dict[str, float]) -> Table:
    """Every model of the study, best first, beside the two dense ones."""
    columns = ["model", "parameters", "lr", "top-1, last", "best", "to Std-ViT", "to dense 28", "ms", "CPU time"]
    table = Table("gap", _title(records), columns)
    top = {record["name"]: record["top1_last"] for record in records}
    for record in sorted(records, key=lambda record: -record["top1_last"]):
        name, last = record["name"], record["top1_last"]
        table.add(
            LABELS.get(name, name),
            record["parameters"],
            Written(f"{record['lr']:g}"),
            percent([last]),
            percent([record["top1_best"]]),
            points(last, top.get("std")),
            points(last, top.get("std-28")),
            Written(f"{times[name]:.3f}") if name in times else None,
            Written(duration(record["cpu_seconds"])) if record["cpu_seconds"] else None,
            strong=name in ("std", "std-28"),
        )
    if times:
        table.notes.append("ms: a picture's forward at batch 64, one thread, all models in one interleaved run")
    return table


def factor_table(records: list[Record]) -> Table:
    """What each change makes, where both runs are there."""
    table = Table("factors", "Change of top-1 in points, one seed each", ["change", "from", "to", "points"])
    top = {record["name"]: record["top1_last"] for record in records}
    for what, before, after in FACTORS:
        if before in top and after in top:
            table.add(what, percent([top[before]]), percent([top[after]]), points(top[after], top[before]))
    table.notes.append(f"two seeds of one model differ by several tenths; less than {SHOWS:g} point is not an effect")
    return table


def screen_table(records: list[Record]) -> Table:
    """The short runs on held-out training pictures."""
    columns = ["model", "parameters", "learning rate", "top-1 on held-out pictures"]
    table = Table("screen", "4 epochs of 45,000 training pictures, measured on the other 5,000, seed 0", columns)
    for record in sorted(records, key=lambda record: -record["top1_last"]):
        label = LABELS.get(_model(record), record["name"])
        table.add(label, record["parameters"], Written(f"{record['lr']:g}"), percent([record["top1_last"]]))
    return table


def seeds_table(records: list[Record], name: str) -> Table:
    """Means and deviations over the seeds."""
    columns = ["model", "parameters", "seeds", "top-1, last", "best", "train loss", "test loss"]
    table = Table(name, _title(records), columns)
    for label in dict.fromkeys(record["name"] for record in records):
        runs = [record for record in records if record["name"] == label]
        table.add(
            LABELS.get(label, label),
            runs[0]["parameters"],
            len(runs),
            percent([run["top1_last"] for run in runs]),
            percent([run["top1_best"] for run in runs]),
            round(fmean(run["train_loss"] for run in runs), 3),
            round(fmean(run["test_loss"] for run in runs), 3),
        )
    return table


def paper_table(records: list[Record]) -> Table:
    """tab:cls_sub and tab:cls_full: ours beside the paper's; what was not run says so."""
    columns = ["set and recipe", "model", "seeds", "top-1, best", "last", "train loss", "test loss", "the paper's"]
    table = Table("paper", "Std-ViT (119,194 parameters) and TCP-ViT (43,114)", columns)
    parts = {"paper": "cifar10", "tuned": None, "svhn": "svhn", "stl10": "stl10", "full": "full"}
    titles = {
        "paper": "CIFAR-10, paper recipe",
        "tuned": "CIFAR-10, tuned recipe",
        "svhn": "SVHN, paper recipe",
        "stl10": "STL-10, paper recipe",
        "full": "full CIFAR-10, 200 epochs",
    }
    for part, quoted in parts.items():
        for i, model in enumerate(("std", "tcp")):
            runs = [record for record in group(records, part) if record["name"] == model]
            said = Written(f"{QUOTED[quoted][i]} %") if quoted else None
            if not runs:
                table.add(titles[part], model, "not run here", None, None, None, None, said)
                continue
            table.add(
                titles[part],
                model,
                str(len(runs)),
                percent([run["top1_best"] for run in runs]),
                percent([run["top1_last"] for run in runs]),
                round(fmean(run["train_loss"] for run in runs), 3),
                round(fmean(run["test_loss"] for run in runs), 3),
                said,
            )
    return table


# ---------------------------------------------------------------------------------------------------- words


def _verdict(records: list[Record]) -> Iterable[str]:
    """The targets of the study, with what was reached."""
    by_name = {record["name"]: record for record in records}
    if not {"std", "std-28"} <= set(by_name):
        return
    std, dense = by_name["std"], by_name["std-28"]
    small, large = _sizes(records)
    table = Table("targets", "What was to be reached, and what was", ["target", "best model", "reached", "met"])
    for found, what, to, needed in (
        (small, "at most 44.5K parameters: 3 points ahead of the dense ViT of that size", dense, 3.0),
        (small, "the same within 2 points of Std-ViT", std, -2.0),
        (large, "with Std-ViT's parameters: 2 points ahead of it", std, 2.0),
    ):
        if found:
            best = max(found, key=lambda r: r["top1_last"])
            ahead = 100 * (best["top1_last"] - to["top1_last"])
            label = LABELS.get(best["name"], best["name"])
            table.add(what, label, Written(signed(ahead)), "yes" if ahead >= needed else "no")
    yield render([table], "markdown")
    yield ""


def _words(records: list[Record]) -> Iterable[str]:
    """Which factors matter, said plainly."""
    top = {record["name"]: record["top1_last"] for record in records}
    known = [(what, 100 * (top[b] - top[a])) for what, a, b in FACTORS if a in top and b in top]
    for title, chosen in (
        ("What helps", [f"{what} ({signed(gain)})" for what, gain in known if gain >= SHOWS]),
        ("What hurts", [f"{what} ({signed(gain)})" for what, gain in known if gain <= -SHOWS]),
        ("What makes no difference that one seed can show", [what for what, gain in known if abs(gain) < SHOWS]),
    ):
        if chosen:
            yield f"**{title}:** {'; '.join(chosen)}."
            yield ""


def percent(values: Sequence[float]) -> Written:
    """The mean of fractions in percent, with the deviation if there are several.

    >>> percent([0.5]), percent([0.5, 0.6])
    ('50.0 %', '55.0 ± 7.1 %')
    """
    return Written(f"{spread([100 * value for value in values])} %")


def points(value: float, base: float | None) -> Written | None:
    """The difference in points.

    >>> points(0.64, 0.66)
    '−2.0'
    """
    return None if base is None else Written(signed(100 * (value - base)))


def _title(records: Sequence[Record]) -> str:
    if not records:
        return ""
    one = records[0]
    seeds = sorted({record["seed"] for record in records})
    return (
        f"{one['dataset']}, {one['train_images']:,} training and {one['test_images']:,} test pictures, "
        f"{one['epochs']} epochs, recipe {one['recipe']}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    )


# ---------------------------------------------------------------------------------------------------- figure


def _times(path: Path) -> dict[str, float]:
    """Milliseconds a picture by model, if they were measured."""
    if not path.is_file():
        return {}
    return {row["name"]: row["forward_ms"] for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}


def _draw(records: list[Record], times: dict[str, float], folder: Path) -> list[Path]:
    own = at_own_rate(records)
    names = {record["name"] for record in own}  # at its own rate a model counts as it can be
    gap = own + [record for record in group(records, "gap") if record["name"] not in names]
    if not gap:
        return []
    chosen = []
    for record in gap:
        costs = {"parameters": float(record["parameters"])}
        if record["name"] in times:
            costs["ms a picture, forward"] = times[record["name"]]
        name: str = SHORT.get(record["name"]) or record["name"]
        chosen.append(Point(name, record["model"][:3], costs, 100 * record["top1_last"]))
    panels = ["parameters", "ms a picture, forward"] if times else ["parameters"]
    return save_figure(draw_frontier(chosen, panels), folder / "classification_frontier")
