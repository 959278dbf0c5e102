"""Fits in closed form, beside least squares and SVD done directly on the data."""

from __future__ import annotations

import math

import pytest
import torch

from tcpvit.layers import TubalLinear
from tcpvit.layers.transform import HatTransform
from tcpvit.tensorize import fit as fit_module
from tcpvit.tensorize.budget import Form, deal, forms_of
from tcpvit.tensorize.drop_ins import set_fit_
from tcpvit.tensorize.fit import Moments, Problem, choose_ridge, dense_of, hat_blocks, nearest, orthonormal

TINY = 1e-12  # a ridge that changes nothing


def data(rows=300, d_in=12, d_out=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(d_in, d_in, generator=generator)
    x = torch.randn(rows, d_in, generator=generator) @ mixing + 3
    weight = torch.randn(d_in, d_out, generator=generator)
    return x, x @ weight + 1 + 0.1 * torch.randn(rows, d_out, generator=generator), weight


def problem_of(x, y, weight, ridge=TINY):
    moments = Moments(x.shape[1], y.shape[1])
    for part_x, part_y in zip(x.split(70), y.split(70), strict=True):
        moments.add(part_x, part_y)
    return Problem(moments, weight, ridge)


def layer_of(fit, d_in, d_out):
    layer = TubalLinear(d_in, d_out, fit.tube, "dct" if fit.tube > 1 else "identity", rank=fit.rank)
    set_fit_(layer, fit)
    with torch.no_grad():
        layer.bias.copy_(fit.bias)
    return layer


@pytest.mark.parametrize("tube", [2, 3, 4])
def test_slices_are_least_squares_in_the_hat_domain(tube):
    x, y, weight = data()
    phi = orthonormal(HatTransform("dct", tube))
    found = problem_of(x, y, weight).fit(tube, 0, phi)
    for k in range(tube):
        x_hat = (x - x.mean(0)).double().unflatten(1, (-1, tube)) @ phi[k]
        y_hat = (y - y.mean(0)).double().unflatten(1, (-1, tube)) @ phi[k]
        assert torch.allclose(found.slices[k], torch.linalg.lstsq(x_hat, y_hat).solution, atol=1e-3)


def test_low_rank_is_the_best_for_the_outputs():
    x, y, weight = data()
    centred_x, centred_y = (x - x.mean(0)).double(), (y - y.mean(0)).double()
    fitted = centred_x @ torch.linalg.lstsq(centred_x, centred_y).solution
    values = torch.linalg.svdvals(fitted)
    for rank in (1, 5, 9):
        found = problem_of(x, y, weight).fit(1, rank)
        least = (centred_y - fitted).square().sum() + values[rank:].square().sum()
        assert found.error == pytest.approx((least / centred_y.square().sum()).item(), rel=1e-3)
        assert (found.v.shape, found.u.shape) == ((12, rank), (rank, 24))


@pytest.mark.parametrize(("d_in", "d_out"), [(12, 24), (24, 12)])
def test_both_in_turn_never_lose(monkeypatch, d_in, d_out):
    x, y, weight = data(d_in=d_in, d_out=d_out)
    problem, phi = problem_of(x, y, weight), orthonormal(HatTransform("dct", 3))
    monkeypatch.setattr(fit_module, "ENOUGH", 0.0)
    errors = [problem.fit(3, 0, phi).error]
    for rounds in (1, 2, 4, 8):
        monkeypatch.setattr(fit_module, "ROUNDS", rounds)
        errors.append(problem.fit(3, 2, phi).error)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[1] < errors[0]


@pytest.mark.parametrize(("d_in", "d_out"), [(12, 24), (24, 12)])
def test_errors_count_by_a_metric(d_in, d_out):
    """Beside an optimiser that knows nothing of closed forms."""
    x, y, weight = data(d_in=d_in, d_out=d_out)
    factor = torch.randn(d_out, d_out, generator=torch.Generator().manual_seed(1)).double()
    metric, phi = factor @ factor.T + 0.1 * torch.eye(d_out), orthonormal(HatTransform("dct", 3))
    moments = problem_of(x, y, weight).moments
    problem = Problem(moments, weight, TINY, metric)

    def cost(fit):
        whole = dense_of(fit.slices, phi) if fit.slices is not None else fit.v @ fit.u
        return problem.cost(whole - problem.best)

    values = torch.linalg.svdvals(problem.whitened(problem.best))
    assert cost(problem.fit(1, 4)) == pytest.approx(values[4:].square().sum().item(), rel=1e-6)
    assert cost(problem.fit(1, 4)) < cost(problem_of(x, y, weight).fit(1, 4))
    slices = torch.zeros(3, d_in // 3, d_out // 3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([slices], max_iter=500, line_search_fn="strong_wolfe", tolerance_change=1e-14)

    def closure():
        optimizer.zero_grad()
        loss = problem.whitened(dense_of(slices, phi) - problem.best).square().sum()
        loss.backward()
        return loss

    least = optimizer.step(closure) and closure().item()
    assert cost(problem.fit(3, 0, phi)) < 1.05 * least
    assert cost(problem.fit(3, 0, phi)) < cost(problem_of(x, y, weight).fit(3, 0, phi))


def test_tokens_count_by_their_weights():
    x, y, _ = data(rows=50)
    weighted, repeated = Moments(12, 24), Moments(12, 24)
    counts = torch.arange(50) % 3
    weighted.add(x, y, counts.float())
    repeated.add(x.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0))
    for one, other in zip(weighted.centred, repeated.centred, strict=True):
        assert torch.allclose(torch.as_tensor(one), torch.as_tensor(other), rtol=1e-3)


@pytest.mark.parametrize(("tube", "rank"), [(3, 0), (1, 4), (3, 2)])
def test_the_error_is_that_of_the_layer_and_the_bias_is_corrected(tube, rank):
    x, y, weight = data()
    found = problem_of(x, y, weight).fit(tube, rank, orthonormal(HatTransform("dct", 3)))
    given = layer_of(found, 12, 24)(x).detach()
    assert torch.allclose(given.mean(0), y.mean(0), atol=1e-3)
    measured = (y - given).square().sum() / (y - y.mean(0)).square().sum()
    assert found.error == pytest.approx(measured.item(), rel=1e-3)


def test_a_ridge_is_chosen_on_other_tokens():
    x, y, weight = data(rows=2000)
    noisy = weight + 0.02 * torch.randn_like(weight)
    fitting, held_out = Moments(12, 24), Moments(12, 24)
    fitting.add(x[:14], y[:14])  # hardly more tokens than features
    held_out.add(x[14:], y[14:])
    few = choose_ridge(fitting, held_out, noisy)
    fitting.add(x[14:1000], y[14:1000])
    fitting.__dict__.pop("centred", None)
    assert few > choose_ridge(fitting, held_out, noisy)


def test_hat_blocks_and_back():
    phi, slices = orthonormal(HatTransform("haar", 4)), torch.randn(4, 3, 5).double()
    dense = dense_of(slices, phi)
    assert torch.allclose(hat_blocks(dense, phi, phi), slices)
    layer = TubalLinear(12, 20, 4, "haar", bias=False).double()
    with torch.no_grad():
        layer.weight_hat.copy_(slices)
    assert torch.allclose(layer.weight.T, dense)


def test_nearest_without_data():
    weight = torch.randn(12, 24)
    transform = HatTransform("dct", 3)
    slices = nearest(weight, 3, 0, transform)
    layer = TubalLinear(12, 24, 3, bias=False)
    assert math.sqrt(slices.error) == pytest.approx(layer.project_(weight.T), rel=1e-4)
    values = torch.linalg.svdvals(weight)
    low_rank = nearest(weight, 1, 5, transform)
    assert low_rank.error == pytest.approx((values[5:].square().sum() / values.square().sum()).item(), rel=1e-3)


# ------------------------------------------------------------------------------------------------ the budget


def test_prices_and_errors_of_forms_are_those_of_the_fits():
    x, y, weight = data(d_in=24, d_out=24)
    problem = problem_of(x, y, weight)
    transforms = {tube: orthonormal(HatTransform("dct", tube)) for tube in (2, 3)}
    for form in forms_of(problem, transforms):
        found = problem.fit(form.tube, form.rank, transforms.get(form.tube)) if not form.is_dense else None
        if found is not None:
            layer = layer_of(found, 24, 24)
            assert sum(p.numel() for p in layer.parameters()) - 24 == form.price < 24 * 24
            assert found.error * problem.energy <= form.error * 1.001  # more rounds may win
            if form.tube == 1 or form.rank == 0:
                assert found.error * problem.energy == pytest.approx(form.error, rel=1e-3)
    kinds = {structure: forms_of(problem, transforms, structure) for structure in ("slices", "low_rank", "both")}
    assert {form.tube for form in kinds["low_rank"]} == {1}
    assert {form.rank for form in kinds["slices"]} == {0}
    assert all(form.tube > 1 for form in kinds["both"] if not form.is_dense)


def test_the_budget_is_dealt_as_well_as_by_trying_everything():
    generator = torch.Generator().manual_seed(0)
    layers = []
    for _ in range(3):
        left = torch.rand(5, generator=generator).sort(descending=True).values.cumsum(0).flip(0).tolist()  # convex
        layers.append([Form(1, rank, 10 * rank, error) for rank, error in enumerate(left, 1)])
    budget = 90
    dealt = deal(layers, budget)
    assert sum(form.price for form in dealt) <= budget

    def cost(forms):
        return sum(form.error for form in forms)

    best = min(cost(t) for t in torch_product(layers) if sum(form.price for form in t) <= budget)
    assert cost(dealt) == pytest.approx(best)


def torch_product(layers):
    return [(a, b, c) for a in layers[0] for b in layers[1] for c in layers[2]]


def test_a_budget_below_the_smallest_forms_is_refused():
    with pytest.raises(ValueError, match="the smallest forms of the layers take 10 of a budget of 5; raise keep="):
        deal([[Form(1, 1, 10, 1.0), Form(1, 0, 100, 0.0)]], budget=5)
