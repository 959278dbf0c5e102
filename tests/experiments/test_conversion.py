"""The study of conversion from end to end on a small set in the official format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from published import write_cifar

from experiments import __main__ as main
from experiments.conversion import plan as conversion

TINY = ("data.batch_size=50", "schedule.epochs=1", "schedule.warmup_epochs=0", "precision=float32")


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The study with a tiny model on a hundred made images; its plan and order are the real ones."""
    write_cifar(tmp_path, per_batch=20, binary=True)
    monkeypatch.setitem(conversion.OPTIONS, "embed_dim", 24)
    monkeypatch.setitem(conversion.OPTIONS, "depth", 2)
    plan = [replace(run, changes=(*run.changes, *TINY)) for run in conversion.planned()]
    study = replace(conversion.STUDY, planned=lambda: plan)
    monkeypatch.setattr(main, "find_study", lambda name: study)
    return tmp_path


def run(home: Path, only: list[str]) -> dict[str, dict]:
    places = {"runs": home / "runs", "results": home / "results", "pages": home / "pages"}
    main.experiment("conversion", only=only, data_root=home, quiet=True, **places)
    return {record["name"]: record for record in map(_read, sorted((home / "results/conversion").glob("*.json")))}


def _read(path: Path) -> dict:
    return json.loads(path.read_text())


def test_the_student_is_the_projected_teacher_and_learns_from_it(small):
    records = run(small, ["conversion-teacher-0", "conversion-distilled-0", "conversion-scratch-short-0"])
    assert list(records) == ["distilled", "scratch-short", "teacher"]
    assert (
        records["distilled"]["parameters"] == records["scratch-short"]["parameters"] < records["teacher"]["parameters"]
    )
    assert 1 / 3 < records["distilled"]["energy_kept"] < 1  # arranging keeps more than the third that chance keeps
    page = (small / "pages/conversion.md").read_text()
    assert "projected at C = 3 and distilled" in page
    assert f"{100 * records['distilled']['top1_last']:.1f}" in page
    teacher, student, report = conversion.project(small / "runs/conversion/conversion-distilled-0")
    images = torch.randn(2, 3, 32, 32)
    assert not torch.allclose(teacher(images), student(images))
    assert report.energy == pytest.approx(records["distilled"]["energy_kept"])


def test_a_distillation_without_its_teacher_says_so(small):
    with pytest.raises(ValueError, match=r"conversion-teacher-0 .* --only conversion-teacher-0"):
        run(small, ["conversion-distilled-0"])
