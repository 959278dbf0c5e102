"""The tables of the classification study: what stands beside what, and on which seeds."""

from __future__ import annotations

from matplotlib.collections import PathCollection

from experiments.classification.labels import FINALISTS, LABELS, PLUS, WIDE
from experiments.classification.pages import draw
from experiments.classification.plan import planned
from experiments.classification.tables import (
    at_own_rate,
    by_model,
    chance,
    changes,
    choice_table,
    depths,
    factors,
    final_table,
    gap_table,
    judges,
    paper_table,
    runs_table,
    settled,
    summary_table,
    that_show,
    time_table,
)
from tcpvit.analysis import predict_parameters
from tcpvit.compare.study import choose
from tcpvit.models import model_config
from tcpvit.tables import Table


def made(group: str, name: str, top1: float, *, seed: int = 0, lr: float = 0.006, epochs: int = 12) -> dict:
    """A record with what the tables read of it."""
    alike = {"dataset": "cifar10", "train_images": 50_000, "measured_images": 10_000, "recipe": "cifar-classification"}
    found = {"measured_on": "test images", "top1_last": top1, "top1_best": top1, "train_loss": 1.0, "test_loss": 1.0}
    own = {"group": group, "name": name, "seed": seed, "lr": lr, "epochs": epochs, "changes": [], "parameters": 43_930}
    return {**alike, **found, **own, "cpu_seconds": None}


def cells(table: Table, column: str) -> list[object]:
    return [row.cells[table.columns.index(column)] for row in table.rows]


def test_short_runs_choose_how_a_model_is_shown():
    def run(group: str, name: str, lr: float, top1: float) -> dict:
        return {"group": group, "name": name, "lr": lr, "top1_last": top1}

    low, high = run("gap", "std", 0.003, 0.72), run("own", "std", 0.006, 0.69)
    assert at_own_rate([low, high]) == {"std": [high]}  # nothing to choose by: what was planned as its own
    short = run("screen", "std", 0.003, 0.5)
    assert at_own_rate([low, high, short, run("rate", "std-0.006", 0.006, 0.6)]) == {"std": [high]}
    assert at_own_rate([low, high, short, run("rate", "std-0.006", 0.006, 0.4)]) == {"std": [low]}
    full, root = run("own", "joint-full-lr", 0.006, 0.7), run("own", "joint-sqrt-lr", 0.006, 0.69)
    liked = run("rate", "joint-sqrt-lr-0.006", 0.006, 0.61)
    assert at_own_rate([full, root, liked]) == {"joint-full-lr": [root]}  # worse on test images, which do not count
    assert at_own_rate([full, liked]) == {"joint-full-lr": [full]}  # the best of those that were trained for long
    assert at_own_rate([run("gap", "joint", 0.003, 0.7)]) == {}


def test_runs_as_long_as_the_finals_choose_their_rates_before_short_ones():
    def run(group: str, name: str, lr: float, top1: float) -> dict:
        return {"group": group, "name": name, "lr": lr, "top1_last": top1}

    full, root = run("final", "joint-full-lr", 0.006, 0.75), run("final", "joint-sqrt-lr", 0.006, 0.74)
    short = [run("rate", "joint-full-lr-0.006", 0.006, 0.6), run("rate", "joint-sqrt-lr-0.006", 0.006, 0.5)]
    long = [run("long", "joint-full-lr-0.006", 0.006, 0.7), run("long", "joint-sqrt-lr-0.006", 0.006, 0.72)]
    other = [run("rate", "std-0.006", 0.006, 0.6)]
    assert settled([full, root], judges(short)) == {"joint-full-lr": [full]}
    assert settled([full, root], judges(short + long)) == {"joint-full-lr": [root]}
    assert judges(short + long + other) == long + other


def test_each_row_of_the_gap_is_compared_by_its_own_accuracy():
    runs = [made("gap", name, top1) for name, top1 in (("std", 0.7), ("joint-full-lr", 0.68), ("joint-sqrt-lr", 0.6))]
    table = gap_table(by_model(runs).values(), {"joint-full-lr": 0.25})
    assert cells(table, "against Std-ViT") == [None, "−2.0", "−10.0"]
    assert cells(table, "ms") == [None, "0.250", None]
    both = gap_table(by_model([*runs, made("gap", "std", 0.6, seed=1)]).values(), {})
    assert cells(both, "top-1, last").count("65.0 ± 7.1 %") == 1  # one row of a model, whatever its seeds
    assert "−2.0" in cells(both, "against Std-ViT")  # seed 0 against seed 0


def test_finalists_are_compared_on_common_seeds_with_intervals():
    final = [made("final", "std", top1, seed=seed) for seed, top1 in enumerate((0.785, 0.773))]
    wide = [made("final", "large-81x3", 0.784)]
    rows = {row.cells[0]: row.cells for row in final_table([*final, *wide]).rows}
    assert list(rows) == [LABELS["std"], LABELS["large-81x3"]]  # none that was not run
    assert rows[LABELS["large-81x3"]][3:6] == ("0", "78.4 %", "−0.1")  # behind Std-ViT of that seed, not of its mean
    assert "seed" not in final_table([*final, *wide]).title  # they differ by row
    wide.append(made("final", "large-81x3", 0.776, seed=1))
    rows = {row.cells[0]: row.cells for row in final_table([*final, *wide]).rows}
    assert rows[LABELS["large-81x3"]][5] == "+0.1 [−2.4, +2.6]"  # 12.706 · 0.2828 / √2 around 0.1


def test_the_paper_s_own_models_join_the_tables_when_they_were_run():
    final = [made("final", name, 0.75, epochs=30) for name in ("std", "std-28", PLUS, WIDE)]
    assert len(summary_table(final).rows) == 4
    late = [made("final", "paper", 0.65, epochs=30), made("final", "paper-norm", 0.7, epochs=30)]
    rows = [row.cells for row in summary_table(final + late).rows]
    assert [(row[0], row[-1]) for row in rows[2:4]] == [
        ("`tcp_vit_cifar`, as in the paper", "−10.0"),
        ("the same, one norm over all slices", "−5.0"),
    ]
    assert {"paper", "paper-norm"} <= set(FINALISTS)
    assert {LABELS["paper"], LABELS["paper-norm"]} <= set(cells(final_table(final + late), "model"))


def test_rates_that_were_tried_stand_beside_that_of_the_finals():
    tried = [made("rate", f"std-{lr}", top1, lr=lr, epochs=4) for lr, top1 in ((0.006, 0.6), (0.003, 0.5))]
    table = choice_table([*tried, made("final", "std", 0.7, epochs=30)])
    assert [row.cells[1:] for row in table.rows] == [("0.003: 50.0, **0.006: 60.0**", "0.006, the highest tried")]


def test_longer_training_is_compared_on_the_same_training_and_seeds():
    early = {"joint-full-lr": [made("own", "joint-full-lr", 0.69)], "std-28": [made("own", "std-28", 0.66)]}
    final = [made("final", name, 0.75, epochs=30) for name in ("joint-full-lr", "std-28")]
    final += [made("final", "joint-sqrt-lr", 0.9, epochs=30), made("final", "std-28", 0.1, seed=1, epochs=30)]
    (row,) = time_table(early, by_model(final)).rows
    assert row.cells[2:] == ("+3.0 (12 epochs)", "0.0 (30 epochs)", "0")


def test_the_page_shows_changes_beyond_chance_and_those_of_the_transform():
    short = [made("rate", "joint-full-lr-0.006", 0.58), made("rate", "fast-slice-0.006", 0.52)]
    short += [made("rate", "fast-haar-0.006", 0.585), made("rate", "fast-shuffle-0.006", 0.575)]
    effects = changes(short)
    least = 2 * 100 * (2 * 0.56 * 0.44 / 10_000) ** 0.5  # two standard errors, near the mean of what came out
    assert abs(chance(effects, 10_000) - least) < 1e-9
    shown = [what for what, *_ in that_show(effects, short, 0.0)]
    assert shown == ["attention slice by slice", "Haar instead of the DCT"]


def test_every_record_has_its_row():
    runs = [made("gap", "std", 0.7) | {"key": "gap-std-0", "commit": None, "model": "std_vit_cifar"}]
    (row,) = runs_table(runs).rows
    assert row.cells[0] == "gap-std-0"
    assert row.cells[-4:] == ("test", "70.0 %", "70.0 %", "–")


def test_changes_are_measured_over_the_seeds_that_both_runs_have():
    runs = [made("gap", "paper", 0.5), made("gap", "joint", 0.6), made("gap", "paper", 0.1, seed=1)]
    assert factors(runs) == [("joint attention and a c-product patch embedding", 0.5, 0.6)]


def test_two_factors_are_compared_with_one_that_learns_at_the_same_scale():
    tops = {"joint-full-lr": 0.58, "joint": 0.56, "two-factor": 0.55, "fast-two-factor": 0.53}
    short = [made("rate", f"{name}-0.006", top1, epochs=4) for name, top1 in tops.items()]
    by_change = {what: (before, after) for what, before, after in changes(short) if what.startswith("two factors")}
    assert list(by_change.values()) == [(0.56, 0.55), (0.58, 0.53)]


def test_the_paper_s_row_on_the_full_set_says_what_was_run_instead():
    runs = [made("gap", "std", 0.7), made("gap", "paper", 0.56), made("final", "std", 0.78, epochs=30)]
    rows = [row.cells for row in paper_table(runs).rows if "instead" in str(row.cells[0])]
    assert [(row[1], row[3], row[6]) for row in rows] == [("Std-ViT", 12, "70.0 %"), ("TCP-ViT", 12, "56.0 %")]
    assert not [row for row in paper_table(runs[:1]).rows if "instead" in str(row.cells[0])]


def test_the_frontier_draws_the_means_of_finalists_and_small_models():
    final = [made("final", "std", top1, seed=seed, epochs=30) for seed, top1 in enumerate((0.786, 0.774))]
    small = [made("small", "std-44k", 0.81, epochs=40), made("gap", "std", 0.7)]
    figure = draw([run | {"model": "std_vit"} for run in [*final, *small]], {})
    dots = [each for each in figure.axes[0].collections if isinstance(each, PathCollection)]  # not the bars
    drawn = sorted(height for each in dots for _, height in each.get_offsets())
    assert [round(height, 1) for height in drawn] == [78.0, 81.0]
    assert draw(small[1:], {}) is None


def test_depth_is_compared_with_the_network_of_four_blocks():
    runs = [made("depth", "std", 0.7), made("depth", "std-32x9", 0.72), made("gap", "std", 0.1)]
    ((what, before, after),) = depths(runs)
    assert "9 blocks" in what
    assert (before, after) == (0.7, 0.72)


def test_every_planned_run_is_a_recipe_of_a_model_that_can_be_built():
    keys = [run.key for run in planned()]
    assert len(keys) == len(set(keys))
    for run in choose(planned(), (), seeds=1):
        recipe = run.resolved()
        if run.group == "gap":  # the other parts have the same models
            options = {k: v for k, v in recipe.model.options.items() if v != "data_driven"}
            parameters = int(predict_parameters(model_config(recipe.model.name, **options)))
            assert run.name in LABELS
            assert parameters <= 44_500 or 116_000 <= parameters <= 123_000
