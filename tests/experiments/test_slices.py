"""What the slices see: one that is taken away is gone, what is measured adds up, and the page says what was found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import make_set

import tcpvit
from experiments.slices import plan as slices
from experiments.slices.pages import LABELS, class_changes, gradient_table, write
from tcpvit.compare.study import Places, Planned, record
from tcpvit.data import Batches, Splits
from tcpvit.layers import TLayerNorm
from tcpvit.training import Recipe, train

OPTIONS = {"depth": 2, "num_classes": 3}
MIX = {"attention": "joint", "patch_embed": "t_linear", "coupling": ("mix:rotation",)}


def make_model(**options):
    """Weights as if it were trained: biases and norms are not zeros and ones."""
    model = tcpvit.create_model("tcp_vit_cifar", **OPTIONS, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def changed_in_slice(model, images: torch.Tensor, k: int) -> torch.Tensor:
    """Other images that differ in slice k alone."""
    hat = model.transform.to_hat(images.transpose(0, 1))
    hat[k] += torch.randn_like(hat[k])
    return model.transform.from_hat(hat).transpose(0, 1)


def pooled_of(model, images: torch.Tensor) -> torch.Tensor:
    return slices.features(model, [(images, torch.zeros(len(images), dtype=torch.int64))])[0]


@pytest.fixture(scope="module")
def images():
    return torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Places:
    """Two tiny runs with their records."""
    folder = tmp_path_factory.mktemp("slices")
    splits = Splits("made", make_set(40, 0), make_set(20, 1), make_set(20, 2))
    found = Places(folder / "runs", folder / "results", folder / "pages")
    small = ("model.options.depth=1", "schedule.epochs=1", "evaluation.gradients=1", "data.batch_size=10")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "load_splits", lambda data: splits)
        for name, changes in slices.MODELS.items():
            run = Planned("slices", name, "cifar-classification", (*changes, *small))
            recipe = replace(run.resolved(), precision="float32")
            train(recipe, found.runs / run.key, splits=splits)
            record(slices.STUDY, run, found.runs / run.key, found.results / f"{run.key}.json")
    return found


def records(places: Places) -> dict[str, dict]:
    return {each["name"]: each for each in places.records()}


def test_the_plan_is_two_recipes_that_look_at_gradients():
    paper, plus = (run.resolved() for run in slices.planned())
    assert (paper.model.name, paper.model.options) == ("tcp_vit_cifar", {})
    assert plus.model.options["attention"] == "joint"
    assert (plus.optimizer.lr, plus.optimizer.slice_lr_scale) == (0.006, "sqrt")
    assert all(isinstance(each, Recipe) and each.evaluation.gradients == 2 for each in (paper, plus))


@pytest.mark.parametrize("options", [{}, MIX], ids=["paper", "mix"])
def test_all_slices_are_the_model(options, images):
    model = make_model(**options)
    with torch.no_grad():
        expected, pooled = model(images), pooled_of(model, images)
        torch.testing.assert_close(slices.entry_logits(model, images, torch.ones(3)), expected)
        torch.testing.assert_close(slices.exit_logits(model, pooled, torch.ones(3)), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(images), expected)  # nothing stays behind


@pytest.mark.parametrize("k", range(3))
def test_nothing_depends_on_a_slice_that_is_taken_away_at_the_entry(k, images):
    model = make_model(**MIX)
    others = changed_in_slice(model, images, k)
    kept = slices.subsets(3)[f"without {k}"]
    with torch.no_grad():
        assert not torch.allclose(model(images), model(others), atol=1e-2)
        found = [slices.entry_logits(model, each, kept) for each in (images, others)]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("k", range(3))
def test_at_the_exit_the_head_loses_what_it_read_from_the_slice(k, images):
    model = make_model(**MIX)
    with torch.no_grad():
        pooled = pooled_of(model, images)
        found = slices.exit_logits(model, pooled, slices.subsets(3)[f"without {k}"])
        phi = model.transform.matrix  # (C, C)
        weights, cls = model.head.weight.view(3, 16, 3) @ phi.T, model.unflatten(pooled) @ phi.T
        expected = model(images) - cls[..., k] @ weights[..., k].T
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_slices_of_the_paper_never_meet_and_mixed_ones_do(images):
    kept = slices.subsets(3)["without 1"]
    differ = {}
    for name, model in (("paper", make_model()), ("mix", make_model(**MIX))):
        with torch.no_grad():
            pair = [pooled_of(model, each) for each in (images, changed_in_slice(model, images, 1))]
            first, second = (slices.exit_logits(model, pooled, kept) for pooled in pair)
        differ[name] = float((first - second).abs().max())
    assert differ["paper"] < 1e-4 < 1e-2 < differ["mix"]


def test_a_new_head_reads_the_slices_that_are_left_and_no_others():
    """Labels that slice 1 alone tells, by a linear rule: without it no head knows them."""
    model = make_model()
    x_hat = torch.randn(3, 400, 16)
    pooled, labels = model.transform.from_hat_tokens(x_hat).flatten(-2), (x_hat[1, :, 0] > 0).long()
    right = {
        name: (slices.new_head_logits(model, (pooled, labels), pooled, kept).argmax(1) == labels).float().mean()
        for name, kept in slices.subsets(3).items()
    }
    assert min(right[name] for name in ("all", "only 1", "without 0", "without 2")) > 0.9
    assert max(right[name] for name in ("without 1", "only 0", "only 2")) < 0.7


def test_a_new_head_is_the_least_squares_one():
    model, pooled = make_model(), torch.randn(100, 48)
    labels = torch.randint(0, 3, (100,))
    found = slices.new_head_logits(model, (pooled, labels), pooled, torch.ones(3))
    rows = np.concatenate([np.ones((100, 1)), pooled.double().numpy()], 1)
    solution, *_ = np.linalg.lstsq(rows, np.eye(3)[labels], rcond=None)
    np.testing.assert_allclose(found, rows @ solution, atol=1e-5)


def test_accuracies_are_counted_by_class():
    data = make_set(30, 3)
    model = make_model()
    found = slices.ablation(model, Batches(make_set(40, 5), 40), Batches(data, 7), 3)
    assert list(found) == ["entry", "exit", "new head"]
    ((images, labels),) = Batches(data, 30)
    with torch.no_grad():
        for name, kept in slices.subsets(3).items():
            hits = slices.entry_logits(model, images, kept).argmax(1) == labels
            assert found["entry"][name]["top1"] == pytest.approx(hits.float().mean().item(), abs=1e-4)
            by_class = [hits[labels == k].float().mean().item() for k in range(3)]
            assert found["entry"][name]["by_class"] == pytest.approx(by_class, rel=1e-3)
    assert found["entry"]["all"] == found["exit"]["all"]


def test_energies_of_the_slices_add_up_to_that_of_the_tokens():
    """Parseval: the transform is orthogonal."""
    model, data = make_model(**MIX), make_set(12, 4)
    found = slices.energy(model, Batches(data, 5))
    ((images, _),) = Batches(data, 12)
    with torch.no_grad():
        inside = model.forward_intermediates(
            images, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
        )
    tokens = [torch.cat([prefix, patches], 1) for patches, prefix in inside]
    assert list(found) == ["picture", "entry", "block 1", "block 2"]
    for place, values in (("picture", images), ("block 1", tokens[0]), ("block 2", tokens[1])):
        assert sum(found[place]) == pytest.approx(3 * values.square().mean().item(), rel=1e-3)


def test_the_likeness_of_maps_is_their_correlation():
    maps = torch.rand(3, 5, 16)
    expected = np.mean([np.corrcoef(maps[:, i].numpy()) for i in range(5)], axis=0)
    np.testing.assert_allclose(slices.likeness(maps), expected, atol=1e-5)


def test_joint_attention_has_one_map(images):
    assert slices.class_attention(make_model(), images).shape == (3, 8, 64)
    assert slices.class_attention(make_model(**MIX), images).shape == (1, 8, 64)


def test_gradients_are_gathered_from_the_blocks(tmp_path):
    file = tmp_path / "gradients.csv"
    file.write_text("step,blocks.0:0,blocks.0:1,blocks.1:0,blocks.1:1\n1,3,1,4,0\n3,6,2,8,0\n5,6,3,8,4\n")
    found = slices.gradients(file)
    assert found["steps"] == [1, 3, 5]
    assert found["norms"] == [[5, 10, 10], [1, 2, 5]]
    assert found["late_by_block"] == {"blocks.0": [6, 2], "blocks.1": [8, 0]}


def test_without_norms_a_faint_slice_has_a_faint_gradient():
    """The product rule: ∂L/∂Ŵ_k = X̂_kᵀ ∂L/∂Ŷ_k."""
    data = make_set(20, 6)
    model = make_model()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    found = slices.start_gradients(model, data)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert any(isinstance(module, TLayerNorm) for module in model.modules())  # the model itself keeps them
    brightness, *contrasts = found["without norms"]
    assert max(contrasts) < 0.5 * brightness  # these images are all but grey
    assert min(found["with norms"]) > 0.2 * max(found["with norms"])


def test_a_record_is_small_and_holds_everything(places):
    for name, each in records(places).items():
        assert (places.results / f"slices-{name}-0.json").stat().st_size < 100_000
        assert each["gradients"]["steps"] == [1, 2, 3, 4]
        assert [len(image["pixels"]) for image in each["pictures"]] == [2 * 3 * 32 * 32] * 3  # classes
        assert len(each["pictures"][0]["attention"]) == (3 if name == "paper" else 1)
        assert len(class_changes(each)) == 3
    assert set(records(places)["plus"]["gradients"]["late_by_block"]) == {"patch_embed", "blocks.0"}


def test_the_page_says_what_was_measured(places):
    pytest.importorskip("matplotlib")
    written = write(places)
    page, runs = (places.pages / name for name in ("slices.md", "slices_runs.md"))
    for each in records(places).values():
        for found in each["ablation"].values():
            assert f"{100 * found['without 0']['top1']:.1f} %" in page.read_text()
        assert f"`{each['command']}`" in runs.read_text()
    drawings = {f"slices_{name}.svg" for name in ("ablation", "classes", "energy", "gradients")}
    assert {path.name for path in written} == drawings | {"slices_images.webp", page.name, runs.name}
    assert all(path.is_file() for path in written)


def test_without_records_there_is_no_page(tmp_path):
    assert write(Places(tmp_path, tmp_path, tmp_path / "pages")) == []
    assert not Path(tmp_path / "pages").exists()


def test_gradients_are_shares_of_the_largest_of_their_step():
    gradients = {"norms": [[1.0, 1.0], [0.5, 0.4], [0.8, 0.8]], "late_by_block": {}}
    record = {"energy": {"picture": [1.0, 1.0, 1.0]}, "start": {"with norms": [2.0, 1.0, 4.0]}, "gradients": gradients}
    start, median, lowest = (row.cells[2:] for row in gradient_table({LABELS["paper"]: record}).rows)
    assert start == (1.0, 0.5, 2.0)
    assert median == ("100.0 %", "45.0 %", "80.0 %")
    assert lowest == ("100.0 %", "40.0 %", "80.0 %")
