"""The same batches through a model as it was and as it is so far: what its layers see, unit after unit.

A unit is a block of the model, or a layer outside of the blocks. While a unit is looked at, those before it give back
what they gave, so that all layers together cost a few passes and not one each. What is kept is the output of one unit
for each batch. The first batch is run in full too: where the two differ (a connection that skips blocks), every pass
goes through the whole model.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from tcpvit.tensorize.drop_ins import TubalPatchConv2d, maps_of
from tcpvit.tensorize.libraries import REFUSALS

Batch = Any  # a tensor, or a tuple or dict of a model's arguments
OUTPUTS = ("logits", "sentence_embedding", "last_hidden_state")  # of models that give several, by name
LAYERS_OF_A_BLOCK = 4  # a numbered module with as many is one


@dataclass(eq=False)
class Place:
    """A dense layer of the model, and what may stand there instead of it."""

    name: str
    old: Any
    new: nn.Module | None = None
    unit: str = ""
    stage: int = 0  # within the unit: layers that read the same input share one
    calls: int = 0  # in one pass, at most
    rows: int = 0  # tokens of all batches, without padding

    @property
    def weight(self) -> Tensor:
        """The (in, out) matrix."""
        return maps_of(self.old)[""].detach().float().cpu().T

    @property
    def is_plain(self) -> bool:
        """Whether the weight is a parameter of the layer, not computed from others."""
        return "weight" in self.old._parameters

    @torch.no_grad()
    def with_numbers(self, matrix: Tensor, bias: Tensor) -> nn.Module:
        """A copy of the layer with another (in, out) matrix and bias."""
        new = copy.deepcopy(self.old)
        if isinstance(new, nn.Conv2d):
            new.weight.copy_(matrix.T.unflatten(1, (*new.kernel_size, -1)).movedim(-1, 1))
        else:
            new.weight.copy_(matrix.T if isinstance(new, nn.Linear) else matrix)
        if new.bias is not None:
            new.bias.copy_(bias)
        return new

    def keep_old_(self) -> None:
        """Give the layer that was there the numbers of the one that would stand instead of it."""
        if self.new is not None:
            self.old.load_state_dict(self.new.state_dict())
            self.new = None


@dataclass
class Seen:
    """One batch at one layer: rows of its input and output, and of what is added to the output, if anything is."""

    x: Tensor
    y: Tensor
    stream: Tensor | None = None


class _Stop(BaseException):
    """Ends a pass when everything has been seen."""


class Streams:
    """Runs batches through the model; `converted` says which of the two forms."""

    def __init__(self, model: nn.Module, places: Sequence[Place], batches: Iterable[Batch]):
        self.model, self.places = model, list(places)
        self.batches = list(batches)
        if not self.batches:
            raise ValueError("calibrate= holds no batch; give a few hundred real inputs of the model")
        self.call = caller_of(model, self.batches[0])
        self.outputs: dict[tuple[int, bool], Any] = {}  # of the last unit that is done, by batch and form
        self.shapes: dict[tuple[str, int], Any] = {}  # outputs of the units before, without their numbers
        self.done: list[str] = []
        self.can_skip = True
        self.parents = _parents(model, [place.old for place in self.places])
        self.order = self._look()

    # ------------------------------------------------------------------------------------------ structure

    def _look(self) -> list[str]:
        """The units in the order in which they are called; fills in what is known of the places."""
        found = _units_of([place.name for place in self.places])
        for place in self.places:
            place.unit = found[place.name]
        units: list[str] = []
        by_id = {id(place.old): place for place in self.places}
        inputs: dict[str, list[Tensor]] = {}  # of one batch, by unit
        calls: Counter[str] = Counter()

        def note(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            place = by_id[id(module)]
            if place.unit not in units:
                units.append(place.unit)
            seen = inputs.setdefault(place.unit, [])
            if not any(x is args[0] for x in seen):
                seen.append(args[0])
            if not place.calls:
                place.stage = next(i for i, x in enumerate(seen) if x is args[0])
            calls[place.name] += 1
            place.rows += len(rows_of(module, output, batch))

        with hooked(place.old.register_forward_hook(note) for place in self.places), torch.no_grad():
            for batch in self.batches:
                self.call(batch)
                for place in self.places:
                    place.calls = max(place.calls, calls[place.name])
                inputs.clear()
                calls.clear()
        self.can_skip = all(place.calls <= 1 for place in self.places)
        return units

    def stages(self, unit: str) -> list[list[Place]]:
        """The layers of a unit in the order of their calls."""
        inside = [place for place in self.places if place.unit == unit and place.calls]
        return [[p for p in inside if p.stage == stage] for stage in sorted({p.stage for p in inside})]

    def restart(self) -> None:
        """Begin with the first unit again."""
        self.outputs.clear()
        self.shapes.clear()
        self.done.clear()

    # ------------------------------------------------------------------------------------------ passes

    @torch.no_grad()
    def see(self, index: int, places: Sequence[Place], *, converted: bool) -> dict[str, list[Seen]]:
        """What these layers of one unit, dense still, see of a batch, in one form of what is before them."""
        found: dict[str, list[Seen]] = {}
        batch, sums = self.batches[index], _Sums()
        unit = self.model.get_submodule(places[0].unit)

        def note(place: Place) -> Callable[..., None]:
            def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
                x = patches_of(module, args[0]) if isinstance(module, nn.Conv2d) else args[0]
                seen = Seen(real_tokens(x, batch), rows_of(module, output, batch))
                found.setdefault(place.name, []).append(seen)
                sums.watch(output, lambda other: setattr(seen, "stream", _kept(other, output, batch)))

            return hook

        def stop(*_: Any) -> None:
            raise _Stop

        handles = [place.old.register_forward_hook(note(place)) for place in places]
        if self.can_skip:
            handles.append(unit.register_forward_hook(stop))
        with (
            self._form(converted),
            self._skipping(index, converted),
            hooked(handles),
            contextlib.suppress(_Stop),
            sums,
        ):
            self.call(batch)
        return found

    @torch.no_grad()
    def finish(self, unit: str, *, both: bool) -> None:
        """Keep what the unit gives, for the units behind it."""
        if not self.can_skip:
            return
        for index, batch in enumerate(self.batches):
            for converted in (False, True) if both else (False,):
                kept: list[Any] = []

                def keep(_: nn.Module, args: Any, output: Any, kept: list[Any] = kept) -> None:
                    kept.append(tree_map_only(Tensor, torch.clone, output))
                    raise _Stop

                with self._form(converted), self._skipping(index, converted), contextlib.suppress(_Stop):
                    hook = self.model.get_submodule(unit).register_forward_hook(keep)  # of the form that stands there
                    with hooked([hook]):
                        self.call(batch)
                if not kept:  # a batch that goes another way
                    self._never_skip()
                    return
                self.outputs[index, converted] = kept[0]
            self.shapes[unit, index] = tree_map_only(Tensor, lambda x: torch.empty_like(x, device="meta"), kept[0])
        self.done.append(unit)
        if not self._check(unit):
            self._never_skip()

    def _never_skip(self) -> None:
        self.can_skip = False
        self.outputs.clear()

    def _check(self, unit: str) -> bool:
        """Whether the next unit sees of the first batch what it sees in a pass through the whole model."""
        following = self.order[self.order.index(unit) + 1 :]
        if not following:
            return True
        module = self.model.get_submodule(following[0])
        seen: list[list[Tensor]] = []

        def note(_: nn.Module, args: Any, kwargs: Any) -> None:
            seen.append([leaf.clone() for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)])
            raise _Stop

        for context in (contextlib.nullcontext(), self._skipping(0, False)):
            handle = [module.register_forward_pre_hook(note, with_kwargs=True)]
            with self._form(False), context, contextlib.suppress(_Stop), hooked(handle):
                self.call(self.batches[0])
        if len(seen) != 2:
            return False
        whole, skipped = seen
        return len(whole) == len(skipped) and all(
            x.shape == y.shape and torch.allclose(x.cpu().double(), y.cpu().double(), rtol=1e-3, atol=1e-4)
            for x, y in zip(whole, skipped, strict=True)
        )

    @contextlib.contextmanager
    def _skipping(self, index: int, converted: bool) -> Iterator[None]:
        """Units that are done give back what they gave; of all but the last it is not looked at."""
        skipped = [self.model.get_submodule(unit) for unit in self.done] if self.can_skip else []
        before = [vars(module).get("forward") for module in skipped]  # of the user, or of accelerate
        for unit, module in zip(self.done, skipped, strict=False):
            answer = self.outputs.get((index, converted)) if unit == self.done[-1] else self.shapes[unit, index]
            vars(module)["forward"] = lambda *_, answer=answer, **__: tree_map_only(Tensor, self._with_numbers, answer)
        try:
            yield
        finally:
            for module, forward in zip(skipped, before, strict=True):
                vars(module).pop("forward", None)
                if forward is not None:
                    vars(module)["forward"] = forward

    def _with_numbers(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x, device=next(self.model.parameters()).device) if x.is_meta else x

    @contextlib.contextmanager
    def _form(self, converted: bool) -> Iterator[None]:
        """The model with its old layers, or with the new ones that there are."""
        self.put(converted)
        try:
            yield
        finally:
            self.put(False)

    def put(self, converted: bool) -> None:
        """Leave the model with its old or its new layers."""
        for place in self.places:
            module = place.new if converted and place.new is not None else place.old
            for parent, name in self.parents[id(place.old)]:
                parent._modules[name] = module


class _Sums(TorchDispatchMode):
    """Notices what is added to tensors that are watched: to the output of a layer, what the residual stream holds."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: dict[int, tuple[Tensor, Callable[[Tensor], None]]] = {}

    def watch(self, x: Tensor, tell: Callable[[Tensor], None]) -> None:
        """Call `tell` with what is added to `x`, or to a view of it."""
        self.watched[x.untyped_storage()._cdata] = (x, tell)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.watched and func in (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor) and not kwargs:
            first, second = args
            for x, other in ((first, second), (second, first)):
                if isinstance(x, Tensor) and isinstance(other, Tensor) and other.numel() == x.numel():
                    entry = self.watched.get(x.untyped_storage()._cdata)
                    if entry is not None and entry[0].numel() == x.numel():
                        del self.watched[x.untyped_storage()._cdata]
                        entry[1](other)
                        break
        return func(*args, **(kwargs or {}))


# ------------------------------------------------------------------------------------------------ rows


def rows_of(module: nn.Module, y: Tensor, batch: Batch) -> Tensor:
    """The output of a layer as (N, out), without the tokens that are padding."""
    return real_tokens(y.movedim(1, -1) if isinstance(module, nn.Conv2d) else y, batch)


def patches_of(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """What a convolution of pixels or patches reads, (..., h·w·in), channels fastest."""
    return TubalPatchConv2d.patches(x, conv.kernel_size, conv.stride)  # type: ignore[arg-type]


def real_tokens(x: Tensor, batch: Batch) -> Tensor:
    """The tokens of a batch as rows, without those that its attention mask calls padding."""
    mask = batch.get("attention_mask") if isinstance(batch, dict) else None
    if isinstance(mask, Tensor) and mask.ndim == 2 and x.ndim == 3 and x.shape[:2] == mask.shape:
        return x[mask.bool().to(x.device)].float()
    return x.flatten(0, -2).float()


def _kept(other: Tensor, output: Tensor, batch: Batch) -> Tensor | None:
    """What was added, as rows of the output's width."""
    if other.shape[-1] != output.shape[-1]:
        return None
    return real_tokens(other.reshape(output.shape), batch).clone()


# ------------------------------------------------------------------------------------------------ calls and names


def caller_of(model: nn.Module, batch: Batch) -> Callable[[Batch], Any]:
    """How the model takes a batch; labels that stand beside the inputs are left out."""
    ways: list[Callable[[Batch], Any]] = [lambda b: model(b)]
    if isinstance(batch, dict):
        ways = [lambda b: model(**b), lambda b: model(dict(b))]  # sentence-transformers write into it
    elif isinstance(batch, tuple | list):
        ways = [lambda b: model(*b), lambda b: model(b[0])]
    said: Exception | None = None
    for way in ways:
        try:
            with torch.no_grad():
                way(batch)
            return way
        except REFUSALS as error:
            said = said or error
    raise ValueError(f"the model does not take the batches of calibrate= ({str(said).partition(chr(10))[0]})")


def main_output(outputs: Any) -> tuple[str, Tensor]:
    """What a model is judged by: logits, an embedding, hidden states, or the first tensor of numbers; and its name."""
    if hasattr(outputs, "items"):
        named = dict(outputs.items())
        for name in OUTPUTS:
            if isinstance(named.get(name), Tensor):
                return name, named[name]
        outputs = list(named.values())
    for leaf in tree_flatten(outputs)[0]:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return "logits" if leaf.ndim == 2 else "", leaf
    raise ValueError("the model gives no tensor of numbers")


def _ancestors(name: str) -> list[str]:
    """The modules that hold a layer, the innermost first."""
    words = name.split(".")
    return [".".join(words[:n]) for n in range(len(words) - 1, 0, -1)]


def _units_of(names: Sequence[str]) -> dict[str, str]:
    """The block that each layer is in: the innermost numbered module with enough layers, else the outermost numbered.

    >>> _units_of(["blocks.0.qkv", "blocks.0.proj", "blocks.0.fc1", "blocks.0.fc2", "head"])["head"]
    'head'
    """
    inside: Counter[str] = Counter(path for name in names for path in _ancestors(name))
    found = {}
    for name in names:
        numbered = [path for path in _ancestors(name) if path.rpartition(".")[2].isdigit()]
        large = [path for path in numbered if inside[path] >= LAYERS_OF_A_BLOCK]
        found[name] = large[0] if large else numbered[-1] if numbered else name
    units = set(found.values())
    beside = {name for name, unit in found.items() if any(other.startswith(f"{unit}.") for other in units)}
    return {name: name if name in beside else unit for name, unit in found.items()}  # as Swin's between its blocks


def unit_names(names: Sequence[str]) -> list[str]:
    """The units that these layers are in, each once."""
    return list(dict.fromkeys(_units_of(names).values()))


def _parents(model: nn.Module, layers: Sequence[nn.Module]) -> dict[int, list[tuple[nn.Module, str]]]:
    found: dict[int, list[tuple[nn.Module, str]]] = {id(layer): [] for layer in layers}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if id(child) in found:
                found[id(child)].append((parent, name))
    return found


@contextlib.contextmanager
def hooked(handles: Iterable[Any]) -> Iterator[None]:
    """Hooks, as their handles, which are taken away again."""
    handles = list(handles)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
