"""`tensorize_(model, config, calibrate=batches)`: a trained model made smaller that still works, without training.

1. How much the model's output depends on each layer, its outputs and tokens, is measured by gradients (sensitivity.py).
2. What each layer would lose in each form (slices, low rank, both) follows from the Gram matrix of its inputs.
3. One budget is dealt to all layers by these two (budget.py).
4. Layer after layer is fitted (fit.py): its inputs come from the model as converted so far, its targets from the
   original; where its output is added to a residual stream, the target makes up for what the stream has lost. Layers
   that stay dense, and the classifier, are fitted too: they make up for what those before them have lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tcpvit.layers.linear import TubalLinear
from tcpvit.layers.transform import HatTransform
from tcpvit.memory import check_memory
from tcpvit.progress import Progress
from tcpvit.tensorize.budget import TUBES, Form, can_be_smaller, deal, forms_of, spend_rest
from tcpvit.tensorize.config import TensorizeConfig
from tcpvit.tensorize.drop_ins import set_fit_, tensorized
from tcpvit.tensorize.fit import Fit, Moments, Problem, choose_ridge, orthonormal
from tcpvit.tensorize.flops import in_eval_mode
from tcpvit.tensorize.resume import Done
from tcpvit.tensorize.sensitivity import Sensitivity, sensitivities
from tcpvit.tensorize.streams import Batch, Place, Seen, Streams
from tcpvit.tensorize.texts import as_batches
from tcpvit.tensorize.timing import Shape, price_in_seconds

HELD_OUT = 5  # one of so many tokens judges the ridge
NO_FORM = 'has no smaller form of this structure; take structure="best"'
NOT_REACHED, LEFT_DENSE = "not reached by the calibration data", "worth its parameters: left dense"
RIDGE_FOR_PRICES = 1e-3


@dataclass
class Calibration:
    """What became of the layers, by name."""

    fits: dict[str, Fit]
    skipped: dict[str, str]  # and why
    seconds: dict[str, tuple[float, float]]  # that a batch takes in the dense layer, and in what it became
    left_dense: list[Place]
    done: Done

    def keep(self) -> None:
        """The last step, which cannot be undone: layers left dense take their new numbers, the folder is forgotten."""
        self.done.forget()
        for place in self.left_dense:
            place.keep_old_()


def calibrate_(
    model: nn.Module,
    layers: Mapping[str, nn.Module],
    widths: Mapping[str, Sequence[int]],
    converted: Collection[str],
    heads: Mapping[str, nn.Module],
    batches: Iterable[Batch],
    config: TensorizeConfig,
    progress: Progress,
    resume: Path | None = None,
) -> Calibration:
    """Replace dense layers by fitted ones, in place; `keep` of what is returned ends it. `widths` are those that a tube
    must divide, for each layer; those in `converted`, the maps of attentions, may not stay dense, `heads` stay so.
    `resume` is a folder for what is done, until all is.

    If this raises, the model is as it was.
    """
    _check_room(layers)
    batches = as_batches(model, batches)
    with in_eval_mode(model):
        streams = Streams(model, [Place(name, layer) for name, layer in {**layers, **heads}.items()], batches)
        skipped = _leave(streams, heads, {name: _has_form(layers[name], widths[name], config) for name in converted})
        done = Done(resume, model, batches, config)
        try:
            known = {} if config.uniform else sensitivities(streams)
            if not done.forms:
                done.deal(_choose_forms(streams, widths, converted, known, config, progress))
            _fit_all(streams, done, known, config, progress)
            left_dense = [place for place in streams.places if done.forms[place.name].is_dense]
            after, before = price_in_seconds(
                {n: [form] for n, form in done.forms.items() if not form.is_dense}, _shapes(streams)
            )
            streams.places = [place for place in streams.places if place not in left_dense]
            streams.put(True)
        except BaseException:
            streams.put(False)
            raise
    skipped |= {place.name: LEFT_DENSE for place in left_dense}
    fits = {name: fit for name, fit in done.fits.items() if not fit.is_dense}
    seconds = {name: (before[name], forms[0].price) for name, forms in after.items()}
    return Calibration(fits, skipped, seconds, left_dense, done)


def _leave(streams: Streams, heads: Collection[str], maps: Mapping[str, bool]) -> dict[str, str]:
    """Layers that no batch reaches, or with too few tokens to fit them, stay as they are: why, by name. Attentions are
    converted with all their `maps` or not at all; these say whether there is a form for each.
    """
    few = {
        place.name: f"reads {width} features, for which at least {width} tokens are needed, and the calibration data "
        f"have {place.rows}; give {-(-width // place.rows)} times as many"
        for place in streams.places
        if 0 < place.rows < (width := len(place.weight))
    }
    with_forms = {_owner(name) for name, has_form in maps.items() if has_form}
    few |= {name: NO_FORM for name, has_form in maps.items() if not has_form and _owner(name) in with_forms}
    left = {place.name: NOT_REACHED for place in streams.places if not place.rows} | few
    first = {_owner(name): name for name in reversed(left) if name in maps}
    left = {name: f"stays with {first[_owner(name)]}" for name in maps if _owner(name) in first} | left
    if all(place.name in left or place.name in heads for place in streams.places):
        name, why = next(iter(few.items()), ("", ""))
        raise ValueError(f"{name} {why}" if few else "the calibration data reach no layer that would be converted")
    streams.places = [place for place in streams.places if place.name not in left]
    streams.order = [unit for unit in streams.order if streams.stages(unit)]
    return left


def _has_form(layer: nn.Module, widths: Sequence[int], config: TensorizeConfig) -> bool:
    d_in, d_out = Place("", layer).weight.shape
    return can_be_smaller(d_in, d_out, _transforms(widths, config), config.structure)


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _shapes(streams: Streams) -> dict[str, Shape]:
    return {p.name: (*p.weight.shape, max(1, p.rows // len(streams.batches))) for p in streams.places}


def _check_room(layers: Mapping[str, Any]) -> None:
    """The old layers, the new ones, and what the fit of the widest takes in double precision."""
    weights = [layer.weight for layer in layers.values()]
    square = max((max(w.shape[0], w[0].numel()) ** 2 for w in weights), default=0)
    needed = 2 * sum(w.numel() * w.element_size() for w in weights) + 6 * 8 * square
    check_memory(
        needed, "calibrating this model", "convert some of its layers at a time (include=), or a smaller model"
    )


# ------------------------------------------------------------------------------------------------ which form


def _choose_forms(
    streams: Streams,
    widths: Mapping[str, Sequence[int]],
    converted: Collection[str],
    known: Mapping[str, Sensitivity],
    config: TensorizeConfig,
    progress: Progress,
) -> dict[str, Form]:
    """Deal the budget."""
    assert config.keep is not None
    options: dict[str, list[Form]] = {}
    for unit in progress.track(streams.order, "measuring layers"):
        inside = [place for stage in streams.stages(unit) for place in stage if place.name in widths]
        for place, (moments, rest) in zip(inside, _moments(streams, inside, known, sequential=False), strict=True):
            moments.merge(rest)
            problem = Problem(moments, place.weight, RIDGE_FOR_PRICES, _metric(known, place))
            forms = forms_of(problem, _transforms(widths[place.name], config), config.structure)
            options[place.name] = [f for f in forms if not (f.is_dense and place.name in converted)] or forms
        streams.finish(unit, both=False)
    streams.restart()
    heads = {p.name: Form(1, 0, 0.0, 0.0) for p in streams.places if p.name not in widths}
    prices = {place.name: float(place.weight.numel()) for place in streams.places if place.name in widths}
    if config.budget == "time":
        options, prices = price_in_seconds(options, _shapes(streams))
    layers, budget = list(options.values()), config.keep * sum(prices.values())
    if config.uniform:
        equal = [_best_within(forms, config.keep * prices[name]) for name, forms in options.items()]
        dealt = spend_rest(equal, layers, budget)
    else:
        dealt = deal(layers, budget)
    return heads | dict(zip(options, dealt, strict=True))


def _metric(known: Mapping[str, Sensitivity], place: Place) -> Tensor | None:
    return known[place.name].metric if place.name in known else None


def _best_within(forms: Sequence[Form], price: float) -> Form:
    affordable = [form for form in forms if form.price <= price] or [min(forms, key=lambda form: form.price)]
    return min(affordable, key=lambda form: (form.error, form.price))


def _transforms(widths: Sequence[int], config: TensorizeConfig) -> dict[int, Tensor]:
    """The matrices of the tubes that divide the widths; of a transform given as a matrix, its own tube alone."""
    tubes: Sequence[int] = TUBES if isinstance(config.transform, str) else (config.tube,)
    return {tube: phi_of(config, tube) for tube in tubes if all(width % tube == 0 for width in widths)}


def phi_of(config: TensorizeConfig, tube: int) -> Tensor:
    """The orthonormal matrix of the transform."""
    return orthonormal(HatTransform(config.transform, tube))


# ------------------------------------------------------------------------------------------------ fitting


def _fit_all(
    streams: Streams, done: Done, known: Mapping[str, Sensitivity], config: TensorizeConfig, progress: Progress
) -> None:
    for unit in progress.track(streams.order, "fitting layers"):
        made: dict[str, Fit] = {}
        for stage in streams.stages(unit):
            places = [p for p in stage if not done.forms[p.name].is_dense or (config.sequential and p.is_plain)]
            if any(place.name not in done.fits for place in places):
                made |= _fit(streams, places, done.forms, known, config)
            for place in places:
                place.new = layer_of(place, (done.fits | made)[place.name], config)
        if made:
            done.add(made)
        streams.finish(unit, both=config.sequential)


def _fit(
    streams: Streams,
    places: Sequence[Place],
    forms: Mapping[str, Form],
    known: Mapping[str, Sensitivity],
    config: TensorizeConfig,
) -> dict[str, Fit]:
    """The fits of layers that read the same input."""
    found = {}
    halves = _moments(streams, places, known, sequential=config.sequential)
    for place, (fitting, held_out) in zip(places, halves, strict=True):
        ridge = choose_ridge(fitting, held_out, place.weight)
        fitting.merge(held_out)
        tube, rank = forms[place.name].tube, forms[place.name].rank
        phi = phi_of(config, tube) if tube > 1 else None
        found[place.name] = Problem(fitting, place.weight, ridge, _metric(known, place)).fit(tube, rank, phi)
    return found


def layer_of(place: Place, fit: Fit, config: TensorizeConfig) -> nn.Module:
    """The drop-in of a layer with fitted weights, or another dense one."""
    if fit.is_dense:
        assert fit.slices is not None
        return place.with_numbers(fit.slices[0], fit.bias)
    new, _ = tensorized(place.old, fit.tube, config.transform, "fresh", fit.rank)
    assert isinstance(new, TubalLinear)
    set_fit_(new, fit)
    if new.bias is not None:
        learns = new.bias.requires_grad
        new.bias = nn.Parameter(fit.bias.to(new.bias), requires_grad=learns)  # the old layer keeps its own
    return new


def _moments(
    streams: Streams, places: Sequence[Place], known: Mapping[str, Sensitivity], *, sequential: bool
) -> list[tuple[Moments, Moments]]:
    """The moments of layers that are called together, each of tokens to fit to, and of those to judge by."""
    made = [_empty_moments(place) for place in places]
    for index in range(len(streams.batches)) if places else ():
        before = streams.see(index, places, converted=False)
        after = streams.see(index, places, converted=True) if sequential else before
        for place, (fitting, held_out) in zip(places, made, strict=True):
            pairs = zip(before.get(place.name, []), after.get(place.name, []), strict=False)
            for call, (then, now) in enumerate(pairs):
                if len(now.x) != len(then.y):  # other tokens, where the model chooses which
                    now = then
                x, y = now.x, _target(then, now)
                if not x.isfinite().all() or not y.isfinite().all():
                    raise ValueError(
                        f"{place.name} sees NaN or infinity on batch {index} of the calibration data; check the inputs"
                    )
                kept = len(x) - len(x) // HELD_OUT
                weights = known[place.name].tokens[index][call].to(x) if place.name in known else x.new_ones(len(x))
                fitting.add(x[:kept], y[:kept], weights[:kept])
                held_out.add(x[kept:], y[kept:], weights[kept:])
    return made


def _empty_moments(place: Place) -> tuple[Moments, Moments]:
    shape, centre = place.weight.shape, place.old.bias is not None
    return Moments(*shape, centre=centre), Moments(*shape, centre=centre)


def _target(then: Seen, now: Seen) -> Tensor:
    """What the original gives, and what its residual stream had more than ours."""
    if then.stream is None or now.stream is None:
        return then.y
    return then.y + (then.stream - now.stream)
