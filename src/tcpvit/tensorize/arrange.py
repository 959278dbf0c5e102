"""Hidden features that may be put into any order, and the order that a projection loses least in.

Between the layers of an MLP the order of the features is nobody's business; nor is it within a head, between queries
and keys, or between values and the output projection. Such spaces are looked for by name, and a reordering is kept only
if the module that holds the space computes the same as before, in float64: what is not understood is left alone.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.layers.transform import HatTransform
from tcpvit.tensorize.assign import assign, energy, gram
from tcpvit.tensorize.config import TensorizeConfig
from tcpvit.tensorize.find import Site
from tcpvit.tensorize.flops import guess_example

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
Shape = tuple[int, ...]


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


def arrange_(model: nn.Module, sites: list[Site], config: TensorizeConfig) -> tuple[float, tuple[str, ...]]:
    """Reorder the features of every space that is found: what that adds to the ‖W'‖² of the projection, and notes."""
    if config.init != "project" or config.arrange == "none":
        return 0.0, ()
    if importlib.util.find_spec("scipy") is None:
        return 0.0, ("Features stay in their places; with scipy installed they are reordered to lose less.",)
    phi = HatTransform(config.transform, config.tube).matrices()[0].detach().float().cpu()
    weights = {id(p) for s in sites if s.reason is None for p in s.module.parameters() if p.ndim == 2}
    uses = Counter(id(p) for m in model.modules() for p in m.parameters(recurse=False))
    spaces = [
        space
        for space in _spaces(model, config)
        if space.width % config.tube == 0
        and any(id(side.parameter) in weights for side in space.sides)
        and all(uses[id(side.parameter)] == 1 and not side.parameter.is_meta for side in space.sides)
    ]
    small = [space for space in spaces if config.tube * space.width**2 <= LARGEST]
    gains = [_arrange(model, space, phi, weights) for space in small]
    notes = {
        "{} hidden spaces had their features reordered to lose less.": sum(gain > 0 for gain in gains),
        "{} hidden spaces are too wide to be reordered.": len(spaces) - len(small),
    }
    return sum(gains), tuple(note.format(count) for note, count in notes.items() if count)


@torch.no_grad()
def _arrange(model: nn.Module, space: Space, phi: Tensor, weights: set[int]) -> float:
    """Reorder one space, if that wins energy and its owner computes the same."""
    grams = torch.stack([gram(s.rows(), phi) for s in space.sides if id(s.parameter) in weights]).sum(0)
    places = torch.arange(space.width)
    order = assign(grams, phi, places // space.head if space.head else torch.zeros_like(places))
    gain = energy(grams, phi, order) - energy(grams, phi, places)
    shape, before = next(_outputs(model, space), ((), None))
    if gain <= 0 or before is None:
        return 0.0
    for side in space.sides:
        side.permute_(order)
    _, after = next(_outputs(model, space, [shape]))
    if torch.allclose(before, after, rtol=0, atol=1e-9 * before.abs().max().item()):
        return gain
    for side in space.sides:
        side.permute_(order.argsort())
    return 0.0


def _outputs(model: nn.Module, space: Space, shapes: Sequence[Shape] = ()) -> Iterator[tuple[Shape, Tensor]]:
    """What the owner computes on random input, in float64, for the shapes of input that it takes."""
    try:
        owner: Any = copy.deepcopy(model.get_submodule(space.owner)).cpu().double()
    except Exception:  # some modules cannot be copied
        return
    owner.eval()
    for module in owner.modules():  # hooks are for the model's own passes
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    for shape in shapes or _input_shapes(owner, space):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        try:
            y = owner(x, x, x) if isinstance(owner, nn.MultiheadAttention) else owner(x)
        except Exception:  # it takes something else, and if nothing fits the space is left as it is
            continue
        y = y[0] if isinstance(y, tuple | list) else y
        if isinstance(y, Tensor):
            yield shape, y


def _input_shapes(owner: Any, space: Space) -> list[Shape]:
    """Tokens, windows and maps of the width that the owner takes; a whole model says what it takes."""
    if not space.owner and isinstance(example := guess_example(owner), Tensor):
        return [tuple(example.shape)]
    first = space.sides[0]
    width = first.parameter.shape[1 - first.dim]
    window = getattr(owner, "window_size", 2)
    tokens = math.prod(window) if isinstance(window, tuple | list) else window**2
    return [(1, tokens, width), (1, 4, 4, width)]


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
