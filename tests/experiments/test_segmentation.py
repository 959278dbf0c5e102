"""The segmentation study from end to end on a small set in the official format, and its page from made records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from published import write_pets

from experiments import __main__ as main
from experiments.pages import NOTHING
from experiments.segmentation import pages as segmentation_pages
from experiments.segmentation import tables as segmentation_tables
from experiments.segmentation.plan import PRESETS, SEEDS, STUDY, planned
from experiments.segmentation.tables import components, parameter_table
from tcpvit.compare.intervals import leads
from tcpvit.compare.segmentation import performance_table
from tcpvit.compare.study import Places

# 16×16 images, one block, two epochs: a run takes a second.
TINY = ("data.image_size=16", "data.batch_size=8", "schedule.epochs=2")
TINY += ("model.options.backbone={img_size: 16, depth: 1}", "data.options.train_size=8")
NEEDED = {
    "model",
    "parameters",
    "train_images",
    "epochs",
    "seed",
    "recipe",
    "seconds",
    "cpu_seconds",
    "command",
    "commit",
}
NEEDED |= {"miou", "mdice", "pixel_accuracy", "image_miou", "boundary_iou", "history", "confusion"}
NEEDED |= {"iou_pet", "iou_background", "dice_pet", "dice_background"}


@pytest.fixture(scope="module")
def pets(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pets")
    write_pets(root)
    return root


def run_tiny(home: Path, pets: Path, monkeypatch, only: list[str]) -> list[Path]:
    """The study with tiny models and images; its plan, order and seeds are the real ones."""
    plan = [replace(run, changes=(*run.changes, *TINY)) for run in planned()]
    monkeypatch.setattr(main, "find_study", lambda name: replace(STUDY, planned=lambda: plan))
    places = {"runs": home / "runs", "results": home / "results", "pages": home / "pages"}
    return main.experiment("segmentation", only=only, data_root=pets, quiet=True, **places)


def made_record(group: str, name: str, seed: int, miou: float) -> dict:
    """A record as `measured` gives it, with made numbers."""
    planned_run = next(run for run in planned() if (run.group, run.name) == (group, name))
    values = dict.fromkeys(["mdice", "pixel_accuracy", "image_miou", "boundary_iou", "loss"], 0.5)
    for metric in ("iou", "dice", "boundary_iou"):
        values |= {f"{metric}_background": 0.6, f"{metric}_pet": 0.4}
    return {
        "key": replace(planned_run, seed=seed).key,
        "group": group,
        "name": name,
        "model": PRESETS[name],
        "parameters": components(PRESETS[name])["total"],
        "train_images": 5879,
        "test_images": 1470,
        "epochs": 10,
        "seed": seed,
        "seconds": 3600.0,
        "cpu_seconds": 3500.0,
        "threads": 1,
        "torch": "2.13",
        "commit": "0123456789abcdef",
        **values,
        "miou": miou,
        "best_epoch": 9,
        "classes": ["background", "pet"],
        "confusion": [[90, 10], [20, 80]],
        "history": [{"epoch": 1.0, "train_loss": 0.5, "val_loss": 0.4, "val_miou": miou}],
    }


def test_a_study_runs_records_draws_and_goes_on(tmp_path, pets, monkeypatch):
    written = run_tiny(tmp_path, pets, monkeypatch, ["whole"])
    names = {path.name for path in written}
    drawings = {f"seg_{name}.svg" for name in ("params", "curves", "confusion", "efficiency")}
    assert drawings | {"seg_visual.webp", "seg_errors.webp"} < names
    assert all(path.stat().st_size > 1000 for path in written)

    record = json.loads((tmp_path / "results" / "segmentation" / "whole-tcp-0.json").read_text())
    assert set(record) >= NEEDED
    assert (record["model"], record["train_images"], record["epochs"]) == ("tcp_vit_pet", 8, 2)
    assert record["miou"] == pytest.approx((record["iou_pet"] + record["iou_background"]) / 2)
    assert record["miou"] == max(row["val_miou"] for row in record["history"])
    assert sum(map(sum, record["confusion"])) > 0

    page = (tmp_path / "pages" / "segmentation.md").read_text()
    assert f"{100 * record['miou']:.1f}" in page
    assert page.count(NOTHING) == 3  # the subset, without and with augmentation, and its figure
    assert "](seg_curves.svg)" in page
    assert "| whole-tcp-0 | tcp_vit_pet | 8 | 2 | 0 |" in (tmp_path / "pages" / "segmentation_runs.md").read_text()

    # What has its record is not trained again; what lost it is read from its run, and not trained either.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.safetensors")}
    (tmp_path / "results" / "segmentation" / "whole-tcp-0.json").unlink()
    run_tiny(tmp_path, pets, monkeypatch, ["whole"])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.safetensors")} == before
    assert json.loads((tmp_path / "results" / "segmentation" / "whole-tcp-0.json").read_text()) == record


def test_every_other_model_of_the_plan_trains(tmp_path, pets, monkeypatch):
    run_tiny(tmp_path, pets, monkeypatch, ["augmented-plus-0", "augmented-full-0"])
    assert "| Std-ViT | 1.000× | not run here |" in (tmp_path / "pages" / "segmentation.md").read_text()
    assert (tmp_path / "pages" / "segmentation_runs.md").read_text().count("| tcp_vit_pet_") == 2


def test_the_plan_is_that_of_the_issue():
    plan = planned()
    assert [run.key for run in plan[:2]] == ["whole-std-0", "whole-tcp-0"]
    assert len({run.key for run in plan}) == len(plan) == 2 + 2 * len(PRESETS) * len(SEEDS) + 2
    for run in (run for run in plan if run.seed == 0):
        recipe = run.resolved()
        assert recipe.model.name == PRESETS[run.name]
        assert recipe.optimizer.lr == (1.5e-3 if run.group == "faster" else 5e-4)
        assert recipe.data.batch_size == 16
        assert recipe.data.options.get("train_size") == (None if run.group == "whole" else 2000)
        assert recipe.schedule.epochs >= (10 if run.group == "whole" else 15)
        assert bool(recipe.augment.flip) == (run.group == "augmented")
        assert "seed" not in recipe.data.options  # the same images for every seed


def test_tables_hold_the_papers_numbers_with_its_classes_exchanged():
    runs = segmentation_tables.runs_of(
        [made_record("whole", "std", 0, 0.70), made_record("whole", "tcp", 0, 0.69)], "whole"
    )
    rows = {row.cells[0]: row.cells[1:] for row in performance_table(runs).rows}
    assert rows["mIoU"] == ("70.0", "69.0", "−1.0", "87.8", "86.8", "−1.0")
    (pet,) = [cells for label, cells in rows.items() if label.startswith("IoU: pet")]
    assert pet == ("40.0", "40.0", "0.0", "84.0", "82.7", "−1.3")
    (dice,) = [cells for label, cells in rows.items() if label.startswith("Dice: background")]
    assert dice[3:] == ("95.7", "95.2", "−0.4")  # as printed, though the two differ by 0.5
    assert rows["parameters"] == (1_570_978, 751_586, pytest.approx(0.478, abs=5e-4)) * 2
    rows = {row.cells[0]: row.cells[1:] for row in parameter_table({"std": "std_vit_pet", "tcp": "tcp_vit_pet"}).rows}
    assert rows["encoder"][:2] == (1_188_480, 402_048)  # the paper's numbers, to the unit
    assert rows["total"] == (1_570_978, 751_586, pytest.approx(0.478, abs=5e-4))


def test_work_is_that_of_the_convolutions_and_bounds_the_time():
    sides, widths = (16, 32, 64, 128), (192, 96, 64, 64, 64)
    dense = sum(2 * 9 * a * b * side**2 for a, b, side in zip(widths, widths[1:], sides, strict=False))
    dense += 2 * 64 * 2 * 128**2  # the 1×1 convolution to two classes
    assert segmentation_tables.work("std")["decoder"] == segmentation_tables.work("tcp")["decoder"] == dense
    assert 0.34 < segmentation_tables.work("full")["decoder"] / dense < 0.37
    runs = segmentation_tables.runs_of([made_record("whole", "std", 0, 0.7)], "whole")
    *_, row = segmentation_tables.work_table({"all": runs}).rows
    assert row.cells[:4] == ("CPU seconds of training, with validation: all", 3500, None, None)


def test_differences_are_taken_seed_by_seed_with_their_interval():
    numbers = {"std": (0.60, 0.70, 0.80), "plus": (0.61, 0.72, 0.83)}
    records = [made_record("subset", name, seed, m) for name, ms in numbers.items() for seed, m in enumerate(ms)]
    runs = segmentation_tables.runs_of([*records, made_record("subset", "plus", 7, 0.1)], "subset")
    assert leads(runs["plus"], runs["std"], "miou") == pytest.approx([1, 2, 3])
    rows = {row.cells[0]: row.cells[1:] for row in segmentation_tables.seeds_table("s", "S", runs).rows}
    assert rows["Std-ViT"][1:3] == ("70.0 ± 10.0", None)
    assert rows["TCP-ViT+"][2] == "+2.0 [−0.5, +4.5]"
    assert rows["TCP-ViT"][1] == "not run here"


def test_a_faster_rate_is_compared_seed_by_seed():
    records = [made_record("subset", "std", seed, miou) for seed, miou in enumerate((0.60, 0.70))]
    records.append(made_record("faster", "std", 1, 0.72))
    runs = [segmentation_tables.runs_of(records, group) for group in ("subset", "faster")]
    rows = [row.cells for row in segmentation_tables.rate_table(*runs).rows]
    assert rows[0] == ("Std-ViT", "70.0", "72.0", "+2.0", "1")  # that seed alone
    assert rows[1][:3] == ("TCP-ViT", "not run here", "not run here")


def test_pages_without_runs_say_so(tmp_path):
    pages = segmentation_pages.blocks(Places(tmp_path, tmp_path, tmp_path))
    empty = [name for page in pages.values() for name, block in page.items() if block == NOTHING]
    figures = set(segmentation_pages.CAPTIONS)
    assert set(empty) == figures | {"subset", "augmented", "times", "runs"}


def test_figures_show_the_subset_while_there_is_nothing_better():
    subset = [made_record("subset", name, 0, 0.6) for name in ("std", "tcp")]
    whole = [made_record("whole", name, 0, 0.7) for name in ("std", "tcp")]
    assert segmentation_tables.shown_group(subset + whole[:1]) == "subset"
    assert segmentation_tables.shown_group(subset + whole) == "whole"
    assert segmentation_tables.shown_group(subset[:1]) is None
