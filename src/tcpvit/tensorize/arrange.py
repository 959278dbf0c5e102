"""Reordering of hidden features before a projection, so that it loses less, while the network computes the same.

Between the layers of an MLP the order of the features is nobody's business; nor is it within a head, between queries
and keys, or between values and the output projection. Such spaces are known by name, and names may lie: an order is
taken only if the module that holds the space, called as the model calls it, computes the same with it, in float64. The
check works on a copy; the report says what was reordered and what was left, and why.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from tcpvit.analysis.dry_run import find_example
from tcpvit.layers.transform import HatTransform
from tcpvit.progress import Progress
from tcpvit.tensorize.assign import assign, hat_features
from tcpvit.tensorize.config import TensorizeConfig
from tcpvit.tensorize.find import Site
from tcpvit.tensorize.flops import Example
from tcpvit.tensorize.libraries import ATTENTIONS, MLPS, REFUSALS, STREAM, head_count, is_conv1d

LARGEST = 2**26  # numbers in the table of gains of one space, a quarter of a gigabyte

REORDERED = "{} hidden spaces had their features reordered to lose less."
TOO_WIDE = "{} hidden spaces are too wide to be reordered."
NOT_CALLED = "{} hidden spaces keep their order, because how their modules are called is not known; pass example=."
NOT_FREE = "{} hidden spaces keep their order, because their modules compute something else in another."

Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments; floating point tensors without their numbers


@dataclass(frozen=True)
class Side:
    """The features of a space as entries `start` to `start + width` of a parameter along one of its dimensions."""

    parameter: Tensor
    dim: int
    start: int
    width: int

    def view(self) -> Tensor:
        """These entries."""
        return self.parameter.detach().narrow(self.dim, self.start, self.width)

    def permute_(self, order: Tensor) -> None:
        """Put entry `order[s]` in place s."""
        view = self.view()
        view.copy_(view.index_select(self.dim, order.to(view.device)))

    def rows(self) -> Tensor:
        """The entries as the rows of a matrix, (width, others)."""
        return self.view().float().cpu().movedim(self.dim, 0)


@dataclass(frozen=True)
class Space:
    """Features in free order: where they stand, and the width of the head that they must stay in, if there is one."""

    owner: str
    sides: tuple[Side, ...]
    head: int | None = None

    @property
    def width(self) -> int:
        """How many features."""
        return self.sides[0].width


@torch.no_grad()
def arrange_(
    model: nn.Module,
    sites: list[Site],
    config: TensorizeConfig,
    example: Example = None,
    progress: Progress | None = None,
) -> tuple[float, tuple[str, ...]]:
    """Reorder the features of every space that is found: what that adds to the ‖W'‖² of the projection, and notes.

    An example that the model does not take is an error, before anything is changed.
    """
    if config.init != "project" or config.arrange == "none":
        return 0.0, ()
    phi = HatTransform(config.transform, config.tube).matrices()[0].detach().float().cpu()
    weights = {id(p) for s in sites if s.reason is None for p in s.module.parameters() if p.ndim == 2}
    spaces = _free_spaces(model, config, weights)
    checks = _Checks(model, {space.owner for space in spaces}, example)
    outcomes: Counter[str] = Counter()
    total = 0.0
    for space in (progress or Progress()).track(spaces, "reordering features"):
        gain, outcome = _arrange(space, phi, weights, checks)
        total, outcomes[outcome] = total + gain, outcomes[outcome] + 1
    notes = (REORDERED, TOO_WIDE, NOT_CALLED, NOT_FREE)
    return total, tuple(note.format(outcomes[note]) for note in notes if outcomes[note])


def _arrange(space: Space, phi: Tensor, weights: set[int], checks: _Checks) -> tuple[float, str]:
    """Reorder one space, if that wins energy and its owner computes the same: what it won, and the outcome."""
    if (space.width // len(phi)) ** 2 > LARGEST:
        return 0.0, TOO_WIDE
    check = checks.of(space)
    if check is None:
        return 0.0, NOT_CALLED
    features = torch.cat([hat_features(s.rows(), phi) for s in space.sides if id(s.parameter) in weights], -1)
    places = torch.arange(space.width)
    order, gain = assign(features, phi, places // space.head if space.head else torch.zeros_like(places))
    if gain <= 0:
        return 0.0, ""
    if not check.allows(space, order):
        return 0.0, NOT_FREE
    for side in space.sides:
        side.permute_(order)
    return gain, REORDERED


# ------------------------------------------------------------------------------------------------ the check


class _Check:
    """A copy of an owner in float64, on which reorderings are tried."""

    def __init__(self, owner: nn.Module, calls: Sequence[Call]):
        self.twin, self.calls = _copy(owner).cpu().double(), calls
        self.tensors = {id(p): q for p, q in zip(owner.parameters(), self.twin.parameters(), strict=True)}
        self.outputs = self._run()

    def allows(self, space: Space, order: Tensor) -> bool:
        """Whether the owner computes the same in that order, and something else in half of it."""
        first, *others = (Side(self.tensors[id(s.parameter)], s.dim, s.start, s.width) for s in space.sides)
        first.permute_(order)
        is_seen = not self._same()  # else a mistake would not be seen either
        for side in others:
            side.permute_(order)
        if is_seen and self._same():
            return True
        for side in (first, *others):
            side.permute_(order.argsort())
        return False

    def _run(self) -> list[Tensor]:
        """What the owner computes in these calls on random numbers."""
        generator, outputs = torch.Generator().manual_seed(0), []
        for call in self.calls:
            args, kwargs = tree_map_only(Tensor, lambda x: _with_random_numbers(x, generator), copy.deepcopy(call))
            output = self.twin(*args, **kwargs)
            outputs.append(output[0] if isinstance(output, tuple | list) else output)
        if not all(isinstance(y, Tensor) and y.is_floating_point() and y.numel() for y in outputs):
            raise TypeError("the module gives no tensor of numbers")
        return outputs

    def _same(self) -> bool:
        return all(
            y.shape == z.shape and torch.allclose(y, z, rtol=0, atol=1e-9 * y.abs().max().item())
            for y, z in zip(self.outputs, self._run(), strict=True)
        )


class _Checks:
    """The check of each owner; the last one stays for the owner's other spaces."""

    def __init__(self, model: nn.Module, owners: set[str], example: Example):
        self.model, self.owners = model, owners
        self.owner: str | None = None
        self.check: _Check | None = None
        if owners and example is not None and example is not False:
            try:
                self.recorded = self._record(example)
            except REFUSALS as error:
                raise ValueError(f"the model does not take the example: {error}") from error

    def of(self, space: Space) -> _Check | None:
        """None if it is not known how the owner is called."""
        if space.owner != self.owner:
            self.owner, self.check = space.owner, self._make(space)
        return self.check

    def _make(self, space: Space) -> _Check | None:
        owner = self.model.get_submodule(space.owner)
        for call in _simple_calls(owner, space):
            with contextlib.suppress(*REFUSALS):
                return _Check(owner, [call])
        if calls := self.recorded.get(space.owner):
            with contextlib.suppress(*REFUSALS):
                return _Check(owner, calls)
        return None

    @cached_property
    def recorded(self) -> dict[str, list[Call]]:
        """How the model calls the owners on an input that it says it takes."""
        inputs = find_example(self.model)
        with contextlib.suppress(*REFUSALS):
            return {} if inputs is None else self._record(inputs)
        return {}

    def _record(self, inputs: Any) -> dict[str, list[Call]]:
        calls: dict[str, list[Call]] = {}
        twin = _copy(self.model)
        for name in self.owners:

            def keep(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                call = copy.deepcopy(tree_map_only(Tensor, _without_numbers, (args, kwargs)))
                calls.setdefault(name, []).append(call)

            twin.get_submodule(name).register_forward_pre_hook(keep, with_kwargs=True)
        if isinstance(inputs, dict):
            twin(**inputs)
        else:
            twin(*(inputs if isinstance(inputs, tuple) else (inputs,)))
        return calls


def _simple_calls(owner: Any, space: Space) -> Iterator[Call]:
    """Tokens, windows or maps of the width that the owner takes, where it is known to need no more than them."""
    if _takes_more(owner):
        return
    first = space.sides[0]
    width = first.parameter.shape[1 - first.dim]
    window = getattr(owner, "window_size", 2)
    tokens = math.prod(window) if isinstance(window, tuple | list) else window**2
    inputs = 3 if isinstance(owner, nn.MultiheadAttention) else 1
    for shape in ((1, tokens, width), (1, 4, 4, width)):
        yield (torch.empty(shape, device="meta"),) * inputs, {}


def _takes_more(owner: nn.Module) -> bool:
    """Whether a module may be handed more than its input and masks, as rotations are."""
    return any(
        parameter.default is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for name, parameter in inspect.signature(owner.forward).parameters.items()
        if "mask" not in name
    )


def _copy(module: nn.Module) -> nn.Module:
    """A copy for evaluation, without hooks: they are for the model's own passes."""
    twin = copy.deepcopy(module).eval()
    for part in twin.modules():
        part._forward_hooks.clear()
        part._forward_pre_hooks.clear()
    return twin


def _without_numbers(x: Tensor) -> Tensor:
    return x.to("meta") if x.is_floating_point() else x.cpu()


def _with_random_numbers(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=generator, dtype=torch.float64) if x.is_meta else x


# ------------------------------------------------------------------------------------------------ where they are


def _free_spaces(model: nn.Module, config: TensorizeConfig, weights: set[int]) -> list[Space]:
    """The spaces that fit the tube, touch a weight that is converted, and are used and seen by their owner alone."""
    modules = [module for _, module in model.named_modules(remove_duplicate=False)]
    places = Counter([id(m) for m in modules] + [id(p) for m in modules for p in m._parameters.values()])
    return [
        space
        for space in _spaces(model, config)
        if space.width % config.tube == 0
        and any(id(side.parameter) in weights for side in space.sides)
        and _is_private(space, model.get_submodule(space.owner), places)
    ]


def _is_private(space: Space, owner: nn.Module, places: Counter[int]) -> bool:
    """Whether nothing but the owner uses the space, and no hook of the user's sees it."""
    hooked = any(m._forward_pre_hooks or (m._forward_hooks and m is not owner) for m in owner.modules())
    return not hooked and all(
        places[id(side.parameter)] == places[id(owner)] and not side.parameter.is_meta for side in space.sides
    )


def _spaces(model: nn.Module, config: TensorizeConfig) -> Iterator[Space]:
    """The spaces of a model, the residual stream first."""
    if config.arrange == "all":
        yield from _stream(model)
    for name, owner in model.named_modules():
        if isinstance(owner, nn.MultiheadAttention):
            yield from _of_multihead_attention(name, owner)
            continue
        for first, second in _layers(owner, MLPS):
            yield from _space(name, [*_outs(first), *_ins(second)])
        for *projections, out in _layers(owner, ATTENTIONS):
            fused = len(projections) == 1
            qkv = [_outs(projections[0], part, 3) for part in range(3)] if fused else map(_outs, projections)
            yield from _of_attention(owner, name, list(qkv), _ins(out))


def _of_attention(owner: nn.Module, name: str, qkv: list[list[Side]], out: list[Side]) -> Iterator[Space]:
    """Queries and keys share an order within each head, and so do values and what the output projection reads."""
    heads = head_count(owner)
    query, key, value = qkv
    for sides in ([*query, *key], [*value, *out]):
        if heads and sides[0].width % heads == 0:
            yield from _space(name, sides, sides[0].width // heads)


def _of_multihead_attention(name: str, owner: nn.MultiheadAttention) -> Iterator[Space]:
    if owner.in_proj_weight is None:
        return  # queries, keys and values are wide as they like
    width = owner.embed_dim
    tensors = [p for p in (owner.in_proj_weight, owner.in_proj_bias) if p is not None]
    query, key, value = ([Side(p, 0, part * width, width) for p in tensors] for part in range(3))
    yield from _of_attention(owner, name, [query, key, value], _ins(owner.out_proj))


def _stream(model: nn.Module) -> Iterator[Space]:
    """The residual stream of a ViT of timm's."""
    width = getattr(model, "embed_dim", None)
    if not isinstance(width, int) or not hasattr(model, "blocks") or not hasattr(model, "patch_embed"):
        return
    sides = [
        Side(parameter, dim % parameter.ndim, 0, width)
        for name, parameter in model.named_parameters()
        for pattern, dim in STREAM
        if re.fullmatch(pattern, name) and parameter.shape[dim] == width
    ]
    yield from _space("", sides)


def _space(owner: str, sides: list[Side], head: int | None = None) -> Iterator[Space]:
    if sides and len({side.width for side in sides}) == 1:
        yield Space(owner, tuple(sides), head)


def _layers(owner: nn.Module, patterns: Sequence[str]) -> Iterator[list[Any]]:
    """The linear layers of the owner that have the names of a pattern."""
    named = dict(owner.named_modules())
    for pattern in patterns:
        found = [named.get(path) for path in pattern.split()]
        if all(isinstance(m, nn.Linear) or is_conv1d(m) for m in found):
            yield found


def _outs(layer: Any, part: int = 0, parts: int = 1) -> list[Side]:
    """What a layer writes, or a part of it: of its weight and of its bias."""
    dim = 1 if is_conv1d(layer) else 0
    width = layer.weight.shape[dim] // parts
    sides = [Side(layer.weight, dim, part * width, width)]
    return sides if layer.bias is None else [*sides, Side(layer.bias, 0, part * width, width)]


def _ins(layer: Any) -> list[Side]:
    """What a layer reads."""
    dim = 0 if is_conv1d(layer) else 1
    return [Side(layer.weight, dim, 0, layer.weight.shape[dim])]
