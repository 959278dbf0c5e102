"""Hidden features that may be put into any order, and the order that a projection loses least in.

Between the layers of an MLP the order of the features is nobody's business; nor is it within a head, between queries
and keys, or between values and the output projection. Such spaces are looked for by name, and a reordering is kept only
if the module that holds the space, called as the model calls it, computes the same as before, in float64: what is not
understood is left alone.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from tcpvit.layers.transform import HatTransform
from tcpvit.tensorize.assign import assign, energy, gram
from tcpvit.tensorize.config import TensorizeConfig
from tcpvit.tensorize.find import Site
from tcpvit.tensorize.flops import Example, guess_example

LARGEST = 2**28  # numbers in the Gram matrices of one space, 1 GB

# The layers of a module that enclose a space, by the names that libraries give them.
MLPS = ("fc1 fc2", "linear1 linear2", "c_fc c_proj", "lin1 lin2", "0 3", "intermediate.dense output.dense")
FUSED = ("qkv proj", "c_attn c_proj")
SEPARATE = (
    "q k v proj",
    "q_proj k_proj v_proj out_proj",
    "q_proj k_proj v_proj o_proj",
    "q_lin k_lin v_lin out_lin",
    "attention.query attention.key attention.value output.dense",
    "self.query self.key self.value output.dense",
)
# The residual stream of timm's ViTs: which dimension of which parameter it is.
STREAM = (
    (r"(cls_token|pos_embed|reg_token|dist_token)", -1),
    (r"patch_embed\.proj\.(weight|bias)", 0),
    (r"blocks\.\d+\.(norm[12]|attn\.proj|mlp\.fc2)\.(weight|bias)", 0),
    (r"blocks\.\d+\.(ls[12]\.gamma|gamma_[12])", 0),
    (r"(norm|norm_pre|fc_norm)\.(weight|bias)", 0),
    (r"blocks\.\d+\.(attn\.qkv|mlp\.fc1)\.weight", 1),
    (r"head(_dist)?\.weight", 1),
)
Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments; floating point tensors without their numbers


@dataclass(frozen=True)
class Side:
    """The features of a space as entries `start` to `start + width` of a parameter along one of its dimensions."""

    parameter: nn.Parameter
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


def arrange_(
    model: nn.Module, sites: list[Site], config: TensorizeConfig, example: Example = None
) -> tuple[float, tuple[str, ...]]:
    """Reorder the features of every space that is found: what that adds to the ‖W'‖² of the projection, and notes."""
    if config.init != "project" or config.arrange == "none":
        return 0.0, ()
    if importlib.util.find_spec("scipy") is None:
        return 0.0, ("Features stay in their places; with scipy installed they are reordered to lose less.",)
    phi = HatTransform(config.transform, config.tube).matrices()[0].detach().float().cpu()
    weights = {id(p) for s in sites if s.reason is None for p in s.module.parameters() if p.ndim == 2}
    places = _places(model)
    spaces = [
        space
        for space in _spaces(model, config)
        if space.width % config.tube == 0
        and any(id(side.parameter) in weights for side in space.sides)
        and _is_private(space, model.get_submodule(space.owner), places)
    ]
    small = [space for space in spaces if config.tube * space.width**2 <= LARGEST]
    calls = _calls(model, {space.owner for space in small}, example)
    gains = [_arrange(model, space, phi, weights, calls.get(space.owner, [])) for space in small]
    notes = {
        "{} hidden spaces had their features reordered to lose less.": sum(gain > 0 for gain in gains),
        "{} hidden spaces are too wide to be reordered.": len(spaces) - len(small),
    }
    return sum(gains), tuple(note.format(count) for note, count in notes.items() if count)


@torch.no_grad()
def _arrange(model: nn.Module, space: Space, phi: Tensor, weights: set[int], calls: Sequence[Call]) -> float:
    """Reorder one space, if that wins energy and its owner computes the same."""
    grams = torch.stack([gram(s.rows(), phi) for s in space.sides if id(s.parameter) in weights]).sum(0)
    places = torch.arange(space.width)
    order = assign(grams, phi, places // space.head if space.head else torch.zeros_like(places))
    gain = energy(grams, phi, order) - energy(grams, phi, places)
    owner = model.get_submodule(space.owner)
    calls = calls or _guessed_calls(owner, space)
    before = _outputs(owner, calls)
    if gain <= 0 or not before:
        return 0.0
    first, *others = space.sides
    first.permute_(order)
    is_seen = not _same(before, _outputs(owner, calls))  # else a mistake would not be seen either
    for side in others:
        side.permute_(order)
    if is_seen and _same(before, _outputs(owner, calls)):
        return gain
    for side in space.sides:
        side.permute_(order.argsort())
    return 0.0


# ------------------------------------------------------------------------------------------------ the check


@torch.no_grad()
def _calls(model: nn.Module, owners: set[str], example: Example) -> Mapping[str, list[Call]]:
    """How the model calls the owners on the example, or on one that can be guessed."""
    calls: dict[str, list[Call]] = defaultdict(list)
    inputs = guess_example(model) if example is None or example is False else example
    if inputs is None or not owners:
        return calls
    try:
        twin = _twin(model)
        for name in owners:

            def keep(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                calls[name].append(copy.deepcopy(tree_map_only(Tensor, _without_numbers, (args, kwargs))))

            twin.get_submodule(name).register_forward_pre_hook(keep, with_kwargs=True)
        if isinstance(inputs, dict):
            twin(**inputs)
        else:
            twin(*inputs if isinstance(inputs, tuple) else (inputs,))
    except Exception:  # what was guessed may be wrong, and some modules cannot be copied
        pass
    return calls


def _guessed_calls(owner: Any, space: Space) -> list[Call]:
    """Tokens, windows or maps of the width that the owner takes, where it is known to need no more than them."""
    if _may_take_more(owner):
        return []
    first = space.sides[0]
    width = first.parameter.shape[1 - first.dim]
    window = getattr(owner, "window_size", 2)
    tokens = math.prod(window) if isinstance(window, tuple | list) else window**2
    inputs = 3 if isinstance(owner, nn.MultiheadAttention) else 1
    for shape in ((1, tokens, width), (1, 4, 4, width)):
        call: Call = ((torch.empty(shape, device="meta"),) * inputs, {})
        if _outputs(owner, [call]):
            return [call]
    return []


def _may_take_more(owner: nn.Module) -> bool:
    """Whether a module may be handed more than its input and masks, as rotations are."""
    return any(
        parameter.default is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for name, parameter in inspect.signature(owner.forward).parameters.items()
        if "mask" not in name
    )


def _outputs(owner: nn.Module, calls: Sequence[Call]) -> list[Tensor]:
    """What the owner computes in these calls on random numbers, in float64; nothing where it cannot."""
    generator = torch.Generator().manual_seed(0)
    outputs = []
    try:
        twin = _twin(owner).cpu().double()
        for call in calls:
            args, kwargs = tree_map_only(Tensor, lambda x: _with_random_numbers(x, generator), copy.deepcopy(call))
            outputs.append(twin(*args, **kwargs))
    except Exception:  # it takes something else, or cannot be copied, and the space is left as it is
        return []
    firsts = [y[0] if isinstance(y, tuple | list) else y for y in outputs]
    return firsts if all(isinstance(y, Tensor) and y.is_floating_point() and y.numel() for y in firsts) else []


def _same(before: list[Tensor], after: list[Tensor]) -> bool:
    return [y.shape for y in before] == [z.shape for z in after] and all(
        torch.allclose(y, z, rtol=0, atol=1e-9 * y.abs().max().item()) for y, z in zip(before, after, strict=True)
    )


def _twin(module: nn.Module) -> nn.Module:
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
        for fused, out in _layers(owner, FUSED):
            yield from _of_attention(owner, name, [_outs(fused, part, 3) for part in range(3)], _ins(out))
        for *projections, out in _layers(owner, SEPARATE):
            yield from _of_attention(owner, name, [_outs(layer) for layer in projections], _ins(out))


def _places(model: nn.Module) -> Counter[int]:
    """In how many places each module and each parameter stands, by its id."""
    modules = [module for _, module in model.named_modules(remove_duplicate=False)]
    return Counter([id(m) for m in modules] + [id(p) for m in modules for p in m._parameters.values()])


def _is_private(space: Space, owner: nn.Module, places: Counter[int]) -> bool:
    """Whether nothing but the owner uses the space, and no hook of the user's sees it."""
    hooked = any(m._forward_pre_hooks or (m._forward_hooks and m is not owner) for m in owner.modules())
    return not hooked and all(
        places[id(side.parameter)] == places[id(owner)] and not side.parameter.is_meta for side in space.sides
    )


def _of_attention(owner: nn.Module, name: str, qkv: list[list[Side]], out: list[Side]) -> Iterator[Space]:
    """Queries and keys share an order within each head, and so do values and what the output projection reads."""
    counts = [getattr(m, n, None) for m in owner.modules() for n in ("num_heads", "num_attention_heads", "n_heads")]
    heads = next((n for n in counts if isinstance(n, int)), 0)
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
    for pattern in patterns:
        found = [_get(owner, path) for path in pattern.split()]
        if all(isinstance(m, nn.Linear) or _is_conv1d(m) for m in found):
            yield found


def _get(owner: nn.Module, path: str) -> nn.Module | None:
    try:
        return owner.get_submodule(path)
    except AttributeError:
        return None


def _is_conv1d(layer: object) -> bool:
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")


def _outs(layer: Any, part: int = 0, parts: int = 1) -> list[Side]:
    """What a layer writes, or a part of it: of its weight and of its bias."""
    dim = 1 if _is_conv1d(layer) else 0
    width = layer.weight.shape[dim] // parts
    sides = [Side(layer.weight, dim, part * width, width)]
    return sides if layer.bias is None else [*sides, Side(layer.bias, 0, part * width, width)]


def _ins(layer: Any) -> list[Side]:
    """What a layer reads."""
    dim = 0 if _is_conv1d(layer) else 1
    return [Side(layer.weight, dim, 0, layer.weight.shape[dim])]
