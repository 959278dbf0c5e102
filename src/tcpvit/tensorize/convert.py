"""`tensorize_`: any Transformer becomes its c-product counterpart (paper, Section 3), in place; `to_dense_`: and back.

"The c-product reformulation replaces every linear projection, with no other architectural change."
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tcpvit.analysis.parameters import count_parameters
from tcpvit.layers.linear import TubalLinear
from tcpvit.layers.transform import STORED
from tcpvit.models.pretrained import ENCODER_NOTE
from tcpvit.progress import Progress
from tcpvit.tensorize.arrange import arrange_
from tcpvit.tensorize.calibrate import Calibration, calibrate_
from tcpvit.tensorize.config import EncoderConfig, TensorizeConfig, make_config
from tcpvit.tensorize.drop_ins import Errors, densified, maps_of, opened, tensorized
from tcpvit.tensorize.encoder import HatEncoder, convert_encoder
from tcpvit.tensorize.find import Site, find_sites, shapes_of, widths_of
from tcpvit.tensorize.flops import Example, faster_dense, try_to_count
from tcpvit.tensorize.libraries import heads_of
from tcpvit.tensorize.record import drop_ins_of, note_in_config
from tcpvit.tensorize.report import DONE, LayerRow, Report
from tcpvit.tensorize.streams import Batch

TIED = "shares its weight with another layer"  # a fit of its own would part them
HOOKS = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def tensorize_(
    model: nn.Module,
    config: TensorizeConfig | EncoderConfig | None = None,
    *,
    example: Example = None,
    calibrate: Iterable[Batch] | None = None,
    resume: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Make `model` its c-product counterpart with 1/C of the weights, in place.

    A `TensorizeConfig` replaces linear layers one by one, an `EncoderConfig` takes the whole encoder into the hat
    domain. `options` are fields of the config, for short calls; without a config, `mode="encoder"` chooses the second.
    `example` is an input of the model, a tensor, a tuple or a dict, on which FLOPs are counted and reorderings are
    checked; it may be left out for models that say what they take, and be False to count none. `calibrate` are batches
    of a few hundred real inputs, without labels, to which layers are fitted under the budget `keep` of the config; a
    model of sentence-transformers takes sentences. `resume` is a folder for what is fitted until all is: a calibration
    that was stopped goes on with it. `progress` is told how far the conversion is. If this raises, the model computes
    what it did.

    >>> model = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
    >>> report = tensorize_(model, tube=3)
    >>> report.converted, report.parameters_before, report.parameters_after
    (['0', '2'], 9360, 3216)
    >>> model(torch.zeros(2, 48)).shape
    torch.Size([2, 48])
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"tensorize_ takes an nn.Module that is not scripted, got a {type(model).__name__}")
    config = make_config(config, options)
    if isinstance(config.transform, str) and config.transform in STORED:
        raise ValueError(f"transform={config.transform!r} needs its matrix: pass the transform or the matrix itself")
    _check_calibration(config, calibrate, resume)
    before = count_parameters(model)
    flops, why_not = try_to_count(model, example)
    rows, gain, notes = convert(model, config, example, progress, calibrate, Path(resume) if resume else None)
    note_in_config(model)
    flops_after = None
    if flops is not None:
        flops_after, why_not = try_to_count(model, example)
    if why_not:
        notes = (*notes, f"FLOPs were not counted ({why_not}).")
    after = count_parameters(model)
    return Report(type(model).__name__, config.to_dict(), rows, before, after, flops, flops_after, gain, notes)


def _check_calibration(
    config: TensorizeConfig | EncoderConfig, calibrate: Iterable[Batch] | None, resume: str | Path | None
) -> None:
    keep = getattr(config, "keep", None)
    if keep is not None and calibrate is None:
        raise ValueError(f"keep={keep} is dealt to layers by their errors on data; pass calibrate=, batches of inputs")
    if keep is None and calibrate is not None:
        raise ValueError("calibrate= fits layers under a budget; pass keep=, as 0.5, with a TensorizeConfig")
    if calibrate is None and resume is not None:
        raise ValueError("resume= keeps what a calibration has fitted; pass keep= and calibrate= too")


def convert(
    model: nn.Module,
    config: TensorizeConfig | EncoderConfig,
    example: Example = None,
    progress: Progress | None = None,
    calibrate: Iterable[Batch] | None = None,
    resume: Path | None = None,
) -> tuple[list[LayerRow], float, tuple[str, ...]]:
    """Convert, without counting what was saved: the rows of the report, the energy that reordering won, and notes."""
    progress = progress or Progress()
    with torch.inference_mode(False), torch.enable_grad():  # what is made here is to be trained
        if isinstance(config, TensorizeConfig):
            if calibrate is not None:
                return _convert_calibrated(model, config, calibrate, progress, resume), 0.0, ()
            return _convert_layers(model, config, example, progress)
        rows = convert_encoder(model, config, progress)
        setattr(model, ENCODER_NOTE, config.to_dict())
        return rows, 0.0, ()


def _convert_layers(
    model: nn.Module, config: TensorizeConfig, example: Example, progress: Progress
) -> tuple[list[LayerRow], float, tuple[str, ...]]:
    sites = find_sites(model, config)
    _refuse_itself(model, sites)
    gain, notes = arrange_(model, sites, config, example, progress)
    swap = _Swap(config)
    rows = [row for site in progress.track(sites, "converting layers") for row in swap.rows_of(site)]
    replace_modules(model, swap.made)
    return rows, gain, notes


def _convert_calibrated(
    model: nn.Module, config: TensorizeConfig, batches: Iterable[Batch], progress: Progress, resume: Path | None
) -> list[LayerRow]:
    """Fit the layers to data: an attention with its maps as layers of their own, tied weights left."""
    sites = [replace(s, reason=s.reason or (TIED if s.notes else None)) for s in find_sites(model, config)]
    chosen = [site for site in sites if site.reason is None]
    _refuse_itself(model, chosen)
    attentions = [site for site in chosen if isinstance(site.module, nn.MultiheadAttention)]
    with _put_back_if_it_raises(model):
        inside = {id(site.module): opened(site.module) for site in attentions}  # type: ignore[arg-type]
        for site in attentions:
            adopt(site.module, inside[id(site.module)])
        replace_modules(model, inside)
        names = {site.name: [site.full_name(label) for label in shapes_of(site)] for site in sites}
        layers = {name: model.get_submodule(name) for site in chosen for name in names[site.name]}
        widths = {site.full_name(label): widths_of(model, site, label) for site in chosen for label in shapes_of(site)}
        maps = [name for site in attentions for name in names[site.name]]
        found = calibrate_(model, layers, widths, maps, _heads(model, sites), batches, config, progress, resume)
        left = [site for site in attentions if any(name in found.skipped for name in names[site.name])]
        replace_modules(model, {id(inside[id(site.module)]): site.module for site in left})
        for name in found.fits:
            adopt(layers[name], model.get_submodule(name))
        rows = [_fitted_row(site, label, model, layers, found) for site in sites for label in shapes_of(site)]
        found.keep()
    return rows


@contextlib.contextmanager
def _put_back_if_it_raises(model: nn.Module) -> Iterator[None]:
    """All modules of the model stand where they stood, if what is done with it raises."""
    before = [(module._modules, dict(module._modules)) for module in model.modules()]
    try:
        yield
    except BaseException:
        for now, then in before:
            now.update(then)
        raise


def _heads(model: nn.Module, sites: Iterable[Site]) -> dict[str, nn.Module]:
    """Heads that are not converted but can make up for the layers before them: not tied, no larger than those."""
    rules = heads_of(model)
    users = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    largest = max((math.prod(shape) for s in sites if s.reason is None for shape in shapes_of(s).values()), default=0)
    return {
        site.name: site.module
        for site in sites
        if isinstance(site.module, nn.Linear)
        and site.reason is not None
        and site.reason == rules.get(id(site.module))
        and users[id(site.module.weight)] == 1
        and site.module.weight.numel() <= largest
    }


def _fitted_row(
    site: Site, label: str, model: nn.Module, layers: Mapping[str, nn.Module], found: Calibration
) -> LayerRow:
    name, shape, before = site.full_name(label), shapes_of(site)[label], _parameters(site.module, label)
    fit = found.fits.get(name)
    if fit is None:
        status = site.reason or found.skipped[name]
        return LayerRow(name, site.kind, *shape, before, before, status, notes=site.notes)
    after = before + _size(model.get_submodule(name)) - _size(layers[name])
    return LayerRow(
        name, site.kind, *shape, before, after, error=fit.error**0.5, seconds=found.seconds[name],
        tube=fit.tube, rank=fit.rank, ridge=fit.ridge,
    )  # fmt: skip


def _refuse_itself(model: nn.Module, sites: Iterable[Site]) -> None:
    if any(site.module is model and site.reason is None for site in sites):
        raise ValueError("the model is itself one linear layer, which cannot be replaced in place; wrap it in a module")


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def to_dense_(model: nn.Module) -> nn.Module:
    """Give every c-product drop-in of `model` its dense form, in place: the exact way back. Returns the model.

    >>> model = nn.Sequential(nn.Linear(6, 6))
    >>> _ = tensorize_(model, tube=3)
    >>> to_dense_(model)
    Sequential(
      (0): Linear(in_features=6, out_features=6, bias=True)
    )
    """
    if any(isinstance(module, HatEncoder) for module in model.modules()):
        raise ValueError('mode="encoder" built the blocks anew, and there is no exact way back; keep the original')
    return _densify(model, drop_ins_of(model))


def materialize_(model: nn.Module) -> nn.Module:
    """Give the drop-ins that compute faster as dense layers their dense form, for inference, in place.

    Which these are follows from `faster_dense`; the report of `tensorize_` notes them. Returns the model.
    """
    return _densify(model, {name: module for name, module in drop_ins_of(model).items() if faster_dense(module)})


@dataclass
class _Swap:
    """The drop-ins that take the places of layers, by the id of the layer."""

    config: TensorizeConfig
    made: dict[int, nn.Module] = field(default_factory=dict)
    first: dict[int, TubalLinear] = field(default_factory=dict)  # of tied weights, by the id of the dense one

    def rows_of(self, site: Site) -> list[LayerRow]:
        """Make the drop-in of the site, if it is to have one, and say so."""
        errors: Errors = {}
        norms: Errors = {}
        old, new, notes = site.module, site.module, site.notes
        if site.reason is None:
            norms = {label: _norm(matrix) for label, matrix in maps_of(old).items()}
            new, errors = self._make(site)
            notes += ("faster dense",) if faster_dense(new) else ()
        rows = []
        for label, shape in shapes_of(site).items():
            name, sizes = site.full_name(label), (_parameters(old, label), _parameters(new, label))
            status, error, norm = site.reason or DONE, errors.get(label), norms.get(label)
            form = self.config.form_of(name) if site.reason is None else (None, 0)
            rows.append(LayerRow(name, site.kind, *shape, *sizes, status, error, norm, notes, *form))
        return rows

    def _make(self, site: Site) -> tuple[nn.Module, Errors]:
        old = site.module
        forms = {label: self.config.form_of(site.full_name(label)) for label in shapes_of(site)}
        new, errors = tensorized(old, self.config.tube, self.config.transform, self.config.init, forms=forms)
        if isinstance(new, TubalLinear) and isinstance(old.weight, nn.Parameter):
            first = self.first.setdefault(id(old.weight), new)
            new.weight_hat, new.v, new.u = first.weight_hat, first.v, first.u
        adopt(old, new)
        self.made[id(old)] = new
        return new, errors


def adopt(old: nn.Module, new: nn.Module) -> None:
    """Give `new` the mode and the hooks of `old`; the hooks' own dictionaries, so that their handles go on working."""
    new.train(old.training)
    for name in HOOKS:
        setattr(new, name, getattr(old, name))


def replace_modules(model: nn.Module, made: Mapping[int, nn.Module]) -> None:
    """Put the new modules everywhere the old ones stand, under each of their names."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and id(child) in made:
                parent._modules[name] = made[id(child)]


def _densify(model: nn.Module, drop_ins: Mapping[str, nn.Module]) -> nn.Module:
    if "" in drop_ins:
        raise ValueError("the model is itself one drop-in, which cannot be replaced in place; use its to_dense()")
    made: dict[int, nn.Module] = {}
    dense: dict[int, Any] = {}  # of tied slices
    for old in drop_ins.values():
        new: Any = densified(old)
        if isinstance(old, TubalLinear):
            new.weight = dense.setdefault(id(old.main_weight), new.weight)
        adopt(old, new)
        made[id(old)] = new
    replace_modules(model, made)
    note_in_config(model)
    return model


def _parameters(module: Any, label: str) -> int:
    """Parameters of one linear map, its bias included."""
    if not isinstance(module, nn.MultiheadAttention):
        return sum(p.numel() for p in module.parameters())
    inner = getattr(module, label, None)
    if inner is not None:
        weights = sum(p.numel() for p in inner.parameters())
    else:
        weights = maps_of(module)[label].numel()
    if label == "out_proj" or module.in_proj_bias is None:
        return weights
    return weights + module.in_proj_bias.numel() // (1 if label == "in_proj" else 3)


@torch.no_grad()
def _norm(matrix: torch.Tensor) -> float | None:
    return None if matrix.is_meta else torch.linalg.norm(matrix.float()).item()
