"""Which layers of a model are converted, and why the others are not. Nothing is changed here."""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from tcpvit.errors import did_you_mean
from tcpvit.layers.linear import TLinear, TubalLinear
from tcpvit.tensorize.config import TensorizeConfig
from tcpvit.tensorize.drop_ins import TubalMultiheadAttention, maps_of, pair
from tcpvit.tensorize.libraries import head_width, heads_of, is_conv1d, part_widths

PLAIN: dict[str, Any] = {
    "attention": nn.MultiheadAttention,
    "linear": nn.Linear,
    "pointwise": nn.Conv2d,
    "patch": nn.Conv2d,
}
WIDTH = "is no multiple of the tube"


@dataclass(frozen=True)
class Site:
    """A module with one or several linear maps; `reason` says why it is left, None that it is converted."""

    name: str
    module: nn.Module
    kind: str
    reason: str | None = None
    notes: tuple[str, ...] = ()

    def full_name(self, label: str) -> str:
        """The name of one of its maps."""
        return ".".join(word for word in (self.name, label) if word)


def shapes_of(site: Site) -> dict[str, tuple[int, int]]:
    """Input and output width of each linear map, of layers that are not plain too."""
    module: Any = site.module
    if site.kind == "lora":
        module = module.base_layer
    if isinstance(module, TubalMultiheadAttention):
        maps = {name: getattr(module, name) for name in ("in_proj", "q_proj", "k_proj", "v_proj", "out_proj")}
        return {name: (m.in_features, m.out_features) for name, m in maps.items() if m is not None}
    if isinstance(module, TLinear):
        return {"": (module.d_in * module.tube, module.d_out * module.tube)}
    if hasattr(module, "in_features"):
        return {"": (module.in_features, module.out_features)}
    return {name: (w.shape[1], w.shape[0]) for name, w in maps_of(module).items()}


def find_sites(model: nn.Module, config: TensorizeConfig) -> list[Site]:
    """Every linear layer of the model in order, each with the verdict on it."""
    sites = list(_linear_layers(model, config))
    _check_patterns([site.name for site in sites], config)
    heads = heads_of(model)
    judged = [replace(site, reason=site.reason or _why_not(model, site, config, heads)) for site in sites]
    judged = [replace(site, notes=_notes(model, site, config)) if site.reason is None else site for site in judged]
    judged = list(_respecting_ties(model, judged))
    unfit = [f"{site.name} ({site.reason})" for site in judged if site.reason and WIDTH in site.reason]
    if config.strict and unfit:
        raise ValueError(
            f"the tube {config.tube} does not fit {'; '.join(unfit[:5])}"
            f"{f' and {len(unfit) - 5} more' if len(unfit) > 5 else ''}; take another tube, exclude=, or strict=False"
        )
    return judged


def _linear_layers(model: nn.Module, config: TensorizeConfig) -> Iterator[Site]:
    seen: set[int] = set()  # a layer inside one that is already listed
    for name, module in model.named_modules():
        if id(module) in seen:
            continue
        kind = _kind(module, config)
        if kind is None:
            continue
        seen |= {id(part) for part in module.modules()}
        yield Site(name, module, kind, _not_plain(module, kind, config))


def _kind(module: nn.Module, config: TensorizeConfig) -> str | None:
    """What the report calls a linear layer; None for anything else."""
    if isinstance(module, TLinear | TubalLinear | TubalMultiheadAttention):
        return "tensorised"
    if hasattr(module, "base_layer") and hasattr(module, "lora_A"):
        return "lora"
    if "quantized" in type(module).__module__ and hasattr(module, "in_features"):
        return "quantised"
    if isinstance(module, nn.MultiheadAttention):
        return "attention"
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Conv2d):
        return _kind_of_conv(module, config)
    return "conv1d" if is_conv1d(module) else None


def _kind_of_conv(conv: nn.Conv2d, config: TensorizeConfig) -> str | None:
    """Pointwise or patch, if the config asks for it."""
    kernel = pair(conv.kernel_size)
    plain = conv.padding in ((0, 0), 0, "valid") and conv.groups == 1 and pair(conv.dilation) == (1, 1)
    kind = "pointwise" if kernel == (1, 1) else "patch" if kernel == pair(conv.stride) else None
    return kind if plain and kind and config.convs in (kind, "all") else None


def _not_plain(module: nn.Module, kind: str, config: TensorizeConfig) -> str | None:
    """Why a layer is none that weights could be taken from."""
    if kind == "tensorised":
        return "is tensorised already"
    if kind == "lora":
        return "is wrapped by LoRA; merge the adapter first (merge_and_unload)"
    if kind == "quantised":
        return "is quantised; tensorise first and quantise then"
    if "forward" in vars(module) or (kind in PLAIN and type(module).forward is not PLAIN[kind].forward):
        return f"is a {type(module).__name__} with a forward of its own"
    parts = [part for part in module.modules() if part is module or isinstance(part, nn.Linear)]
    for part in parts:
        if parametrize.is_parametrized(part) or (kind != "attention" and "weight" not in part._parameters):
            return "has a computed weight (weight_norm, spectral_norm, pruning ...); make it permanent first"
    tensors = list(maps_of(module).values())
    unusual = next((w for w in tensors if not w.is_floating_point() or type(w.data) is not Tensor), None)
    if unusual is not None:
        return f"holds a {type(unusual.data).__name__} of {unusual.dtype}; tensorise before quantising or sharding"
    if config.init == "project" and any(w.is_meta for w in tensors):
        return 'is on the meta device, without weights to project; load them first, or take init="fresh"'
    return None


def _why_not(model: nn.Module, site: Site, config: TensorizeConfig, heads: dict[int, str]) -> str | None:
    """Why a plain layer is left."""
    if config.include and not _matches(site.name, config.include):
        return "not included"
    if _matches(site.name, config.exclude):
        return "excluded"
    if config.filter_fn is not None and not config.filter_fn(site.module, site.name):
        return "refused by filter_fn"
    if not config.heads and id(site.module) in heads:
        return heads[id(site.module)]
    if min(map(min, shapes_of(site).values())) < config.min_features:
        return f"has fewer than {config.min_features} features"
    return None if config.keep is not None else _unfit(model, site, config)  # a calibration takes tubes that fit


def _unfit(model: nn.Module, site: Site, config: TensorizeConfig) -> str | None:
    """Why the widths of a layer do not go with the tube."""
    for label in shapes_of(site):
        tube, _ = config.form_of(site.full_name(label))
        width_in, width_out, *parts = widths_of(model, site, label)
        for side, width in (("input", width_in), ("output", width_out)):
            if width % tube:
                return f"{side} width {width} {WIDTH} {tube}"
        for width in parts:
            if width % tube:
                return f"its fused parts are {width} wide, which {WIDTH} {tube}"
    return None


def widths_of(model: nn.Module, site: Site, label: str) -> list[int]:
    """What a tube has to divide: the input width of a map, its output width, and those of the parts of that."""
    width_in, width_out = shapes_of(site)[label]
    # The tube of a patch runs along its channels.
    inner = site.module.in_channels if isinstance(site.module, nn.Conv2d) else width_in
    parts = [] if site.kind == "attention" else part_widths(model, site.name, width_out)
    return [inner, width_out, *parts]


def _notes(model: nn.Module, site: Site, config: TensorizeConfig) -> tuple[str, ...]:
    """What a reader should know of a layer that is converted."""
    if config.keep is not None:
        return ()
    if isinstance(site.module, nn.MultiheadAttention):
        width: int | None = site.module.head_dim
    else:
        width = head_width(model, site.name, shapes_of(site)[""][1])
    return ("tubes cross heads",) if width and width % config.tube else ()


def _respecting_ties(model: nn.Module, sites: list[Site]) -> Iterator[Site]:
    """A weight that several layers share is converted for all of them or for none."""
    users: dict[int, set[str]] = defaultdict(set)
    for name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            users[id(parameter)].add(f"{name}.{key}")
    converted = {id(s.module) for s in sites if s.reason is None}
    kinds: dict[int, set[str]] = defaultdict(set)
    owned: dict[int, list[str]] = defaultdict(list)
    for site in sites:
        for parameter in _weights(site.module):
            kinds[id(parameter)].add(site.kind)
            owned[id(parameter)] += [site.name] if id(site.module) in converted else []
    for site in sites:
        shared = [p for p in _weights(site.module) if len(users[id(p)]) > 1] if site.reason is None else []
        if not shared:
            yield site
            continue
        together = all(len(owned[id(p)]) == len(users[id(p)]) and len(kinds[id(p)]) == 1 for p in shared)
        others = sorted({u.rpartition(".")[0] for p in shared for u in users[id(p)]} - {site.name})
        if together and site.kind != "attention":
            yield replace(site, notes=(*site.notes, f"stays tied to {', '.join(others)}"))
        else:
            yield replace(site, reason=f"tied to {', '.join(others)}, which is not converted with it", notes=())


def _weights(module: nn.Module) -> list[nn.Parameter]:
    """The parameters behind `maps_of`."""
    parts = [module, module.out_proj] if isinstance(module, nn.MultiheadAttention) else [module]
    return [p for part in parts for name, p in part.named_parameters(recurse=False) if name.endswith("weight")]


def _matches(name: str, patterns: object) -> bool:
    assert isinstance(patterns, tuple)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _check_patterns(names: list[str], config: TensorizeConfig) -> None:
    for option in ("include", "exclude"):
        for pattern in getattr(config, option):
            if not fnmatch.filter(names, pattern):
                raise ValueError(f"{option}={pattern!r} matches no linear layer{did_you_mean(pattern, names)}")
