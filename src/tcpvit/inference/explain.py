"""What a TCP-ViT does with an image: its slices, where they look, and what each contributes to the answer.

A slice is taken away where the first block begins, as in the study of slices: hat slice k of all tokens is set to zero.
Gradient × input is measured in the same place, so that it says, to first order, what taking away would change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.data.augment import normalise
from tcpvit.data.decode import as_colour
from tcpvit.data.image_set import IGNORE
from tcpvit.data.images import Fit
from tcpvit.inference.exported import ExportedModel
from tcpvit.inference.inputs import as_set
from tcpvit.inference.loading import LoadedModel
from tcpvit.layers.attention import maps_of_all
from tcpvit.models.segmenter import EncoderDecoder
from tcpvit.models.swin import SwinTransformer
from tcpvit.models.vit import VisionTransformer
from tcpvit.tables import Table, percent, render


@dataclass(frozen=True, eq=False)
class Explanation:
    """What was found for one image. L blocks, S maps by slice (1: joint attention), H heads, C slices, a grid h×w."""

    logits: Tensor  # (classes,), or (classes, height, width) of a segmenter
    without: Tensor  # (C, *logits): the same with slice k taken away
    attention: Tensor  # (L, S, H, h, w): where the class token looks; of volumes the grid is t×h×w here and below
    rollout: Tensor  # (S, h, w): attention followed through all blocks, from the class token
    by_slice: Tensor  # (C, h, w): gradient × input of the answer, by slice and patch
    by_channel: Tensor  # (channels,): gradient × input of the answer, by band of the image
    slices: Tensor | None  # (C, height, width): the image in the hat domain, where its channels are the tube

    @property
    def answer(self) -> Tensor:
        """The likeliest class, or the mask of a segmenter."""
        return self.logits.argmax(0)

    @property
    def probabilities(self) -> Tensor:
        """The probabilities of the classes, (classes, ...)."""
        return self.logits.softmax(0)

    @property
    def probabilities_without(self) -> Tensor:
        """The same with slice k taken away, (C, classes, ...)."""
        return self.without.softmax(1)

    @property
    def changed(self) -> Tensor:
        """(C, ...): where the answer is another without slice k; the pixels of a segmenter, or one value."""
        return self.without.argmax(1) != self.answer

    @property
    def by_depth(self) -> Tensor | None:
        """(t,): gradient × input of the answer, by the patches' place along the depth of a volume."""
        return self.by_slice.sum((0, 2, 3)) if self.by_slice.ndim == 4 else None

    def wrong(self, truth: Tensor) -> tuple[Tensor, Tensor]:
        """Where a segmenter errs against a true mask (height, width), and (C, ...) where it does without slice k.

        Pixels of 255 count as right: what they are is not known.
        """
        if self.logits.shape[1:] != truth.shape:
            raise ValueError(f"a mask of {tuple(truth.shape)} does not fit an answer of {tuple(self.logits.shape[1:])}")
        counted = truth != IGNORE
        return (self.answer != truth) & counted, (self.without.argmax(1) != truth) & counted

    def errors(self, truth: Tensor) -> tuple[float, list[float]]:
        """The share of the known pixels of a true mask that is wrong, and that without slice k."""
        known = max(int((truth != IGNORE).sum()), 1)
        wrong, without = self.wrong(truth)
        return int(wrong.sum()) / known, [int(each.sum()) / known for each in without]

    def table(self) -> Table:
        """What each slice contributes, and the answer without it."""
        by_slice = self.by_slice.flatten(1).sum(1).tolist()
        if self.logits.ndim > 1:
            table = Table("explanation", "a mask", ["slice", "gradient × input", "pixels that change without it"])
            for k, (value, share) in enumerate(zip(by_slice, self.changed.float().flatten(1).mean(1), strict=True)):
                table.add(str(k), f"{value:+.3g}", percent(float(share)))
            return table
        best = int(self.answer)
        title = f"class {best}, {percent(float(self.probabilities[best]))}"
        table = Table("explanation", title, ["slice", "gradient × input", "answer without it", "its probability"])
        for k, (value, chances) in enumerate(zip(by_slice, self.probabilities_without, strict=True)):
            table.add(str(k), f"{value:+.3g}", f"class {int(chances.argmax())}", percent(float(chances.max())))
        return table

    def _repr_html_(self) -> str:
        return render([self.table()], "html")

    def to_dict(self, classes: Sequence[str], truth: Tensor | None = None) -> dict[str, Any]:
        """JSON-ready numbers; with a true mask also the errors of a segmenter."""
        found: dict[str, Any] = {"by_slice": _rounded(self.by_slice.flatten(1).sum(1))}
        found |= {"by_channel": _rounded(self.by_channel), "by_slice_and_patch": _rounded(self.by_slice)}
        if self.by_depth is not None:
            found["by_depth"] = _rounded(self.by_depth)
        if self.logits.ndim == 1:
            found["probabilities"] = dict(zip(classes, _rounded(self.probabilities), strict=True))
            found["without"] = [dict(zip(classes, _rounded(row), strict=True)) for row in self.probabilities_without]
        else:
            shares = nn.functional.one_hot(self.answer.flatten(), len(self.logits)).float().mean(0)
            found["shares"] = dict(zip(classes, _rounded(shares), strict=True))
            found["changed_without"] = _rounded(self.changed.float().flatten(1).mean(1))
            if truth is not None:
                found["error"], found["error_without"] = self.errors(truth)
        return {**found, "rollout": _rounded(self.rollout), "attention": _rounded(self.attention)}


@dataclass(frozen=True, eq=False)
class ExplainedFile:
    """An explanation with the file it is about, and its pixels as the model got them, (height, width, 3) uint8."""

    file: str
    pixels: Any
    explanation: Explanation
    truth: Tensor | None = None  # the true mask at the size of the answer, where one was given

    def _repr_html_(self) -> str:
        return self.explanation._repr_html_()


def explain_files(
    loaded: LoadedModel,
    files: Sequence[str | Path],
    *,
    truths: Sequence[str | Path] | None = None,
    fit: Fit | None = None,
) -> Iterator[ExplainedFile | str]:
    """Explain the files one after the other; for one that cannot be read, a sentence that says why.

    `truths` are the true masks of the files, for a segmenter.
    """
    if truths is not None and not loaded.segments:
        raise ValueError(f"{loaded.name} gives one label to an image; true masks are for a segmenter")
    data = as_set(loaded, files, fit)
    if truths is not None:
        data = replace(data, targets=tuple(map(str, truths)))
    for row, file in enumerate(files):
        batch = data.fetch(torch.tensor([row]))
        if batch.bad:
            yield batch.bad[0]
            continue
        images = normalise(batch.images, data.mean, data.std, data.scale)
        first = batch.images[0] if images.ndim == 4 else batch.images[0, :, images.shape[2] // 2]  # a volume's middle
        pixels = as_colour(first.permute(1, 2, 0).numpy())
        truth = None if truths is None else batch.targets[0].long()
        explained = explain(loaded.model, images.to(loaded.device))
        loaded.check_classes(len(explained.logits))
        yield ExplainedFile(str(file), pixels, explained, truth)


def explain(model: nn.Module, images: Tensor) -> Explanation:
    """Explain the answer of a TCP-ViT, or of a segmenter on one, for one normalised image (1, channels, ...).

    The image is where the model is, the explanation on the CPU.

    >>> from tcpvit.models import create_model
    >>> found = explain(create_model("tcp_vit_cifar"), torch.randn(1, 3, 32, 32))
    >>> found.attention.shape, found.by_slice.shape, found.without.shape
    (torch.Size([4, 3, 4, 8, 8]), torch.Size([3, 8, 8]), torch.Size([3, 10]))
    """
    backbone = _backbone(model)
    if len(images) != 1:
        raise ValueError(f"explain takes one image at a time, (1, channels, ...), got shape {tuple(images.shape)}")
    training = model.training
    model.eval()
    try:
        logits, tokens_times, channels = _gradient_times_input(model, backbone, images)
        grid = backbone.config.grid_of(*images.shape[2:])
        attention, rollout = _looks(backbone, images, grid)
        slices = _slices(backbone, images)
        without = [_without(model, backbone, images, k).cpu() for k in range(backbone.config.tube_length)]
        return Explanation(
            logits=logits.cpu(),
            without=torch.stack(without),
            attention=attention.cpu(),
            rollout=rollout.cpu(),
            by_slice=tokens_times[:, backbone.num_prefix_tokens :].unflatten(1, grid).cpu(),
            by_channel=channels.cpu(),
            slices=None if slices is None else slices.cpu(),
        )
    finally:
        model.train(training)


def _backbone(model: nn.Module) -> VisionTransformer:
    backbone = model.backbone if isinstance(model, EncoderDecoder) else model
    if not isinstance(backbone, VisionTransformer) or backbone.transform is None:
        raise ValueError(f"explain shows what the slices of a TCP-ViT do; {_kind(backbone)}")
    return backbone


def _kind(model: nn.Module) -> str:
    """Why a model cannot be explained."""
    if isinstance(model, VisionTransformer):
        return "a standard ViT has none: take its TCP twin"
    if isinstance(model, SwinTransformer):
        return "a Swin Transformer attends in windows that move, which it does not follow: take a ViT"
    if isinstance(model, ExportedModel):
        return "an exported file has no layers to look into: take the run or model that it was made of"
    return f"a {type(model).__name__} is no TCP-ViT of this library"


@contextmanager
def entering(backbone: VisionTransformer, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside, the first block gets what `change` makes of the tokens (C, B, 1+N, d) that enter it."""
    handle = backbone.embed.register_forward_hook(lambda _, __, x_hat: change(x_hat))
    try:
        yield
    finally:
        handle.remove()


def _gradient_times_input(
    model: nn.Module, backbone: VisionTransformer, images: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The logits, and Σ ∂answer/∂x · x: (C, 1+N) of the tokens that enter the first block, (channels,) of the image."""
    held: list[Tensor] = []

    def hold(x_hat: Tensor) -> Tensor:
        held.append(x_hat)
        return x_hat

    pixels = images.detach().clone().requires_grad_()
    with torch.enable_grad(), entering(backbone, hold):
        logits = model(pixels)[0]
        best = logits.argmax(0, keepdim=True)
        answer = logits.gather(0, best).mean()  # of a segmenter the mean of its pixels
        of_tokens, of_pixels = torch.autograd.grad(answer, [held[0], pixels])
    tokens = (of_tokens * held[0]).detach().sum(-1)[:, 0]  # (C, 1+N)
    return logits.detach(), tokens, (of_pixels * pixels).detach()[0].flatten(1).sum(1)


@torch.no_grad()
def _without(model: nn.Module, backbone: VisionTransformer, images: Tensor, k: int) -> Tensor:
    """The logits with slice k of the tokens that enter the first block set to zero."""
    kept = torch.ones(backbone.config.tube_length, 1, 1, 1, device=images.device)
    kept[k] = 0
    with entering(backbone, lambda x_hat: x_hat * kept):
        logits: Tensor = model(images)[0]
    return logits


def _looks(backbone: VisionTransformer, images: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Where the class token looks, (L, S, H, *grid), and the rollout of the slices, (S, *grid).

    Without a class token it is where the patches look on average; a pooled token stands for all that it is the mean of.
    In blocks that attend within frames, or along the depth, a token looks at those alone.
    """
    blocks: Any = backbone.blocks
    found = [
        maps_of_all(maps, grid, block.attn.along)
        for maps, block in zip(backbone.attention_maps(images), blocks, strict=True)
    ]
    maps = torch.stack([maps if maps.ndim == 5 else maps[None] for maps in found])[:, :, 0]  # (L, S, H, T, T)
    prefix, pool = backbone.num_prefix_tokens, backbone.config.attention_pool

    def on_grid(rows: Tensor) -> Tensor:
        looks = rows[..., 0, prefix:] if prefix else rows.mean(-2)
        planes = looks.unflatten(-1, tuple(side // pool for side in grid))
        return planes if pool == 1 else planes.repeat_interleave(pool, -1).repeat_interleave(pool, -2) / pool**2

    return on_grid(maps), on_grid(rollout(maps.mean(2)))


def rollout(maps: Tensor) -> Tensor:
    """Attention followed through all blocks, half of each token staying where it is: (L, ..., T, T) -> (..., T, T).

    >>> rollout(torch.full((2, 2, 2), 1 / 2))
    tensor([[0.6250, 0.3750],
            [0.3750, 0.6250]])
    """
    stay = torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device)
    followed = stay
    for each in maps:
        followed = (each + stay) / 2 @ followed
    return followed


def _slices(backbone: VisionTransformer, images: Tensor) -> Tensor | None:
    """(C, height, width) of an image whose channels are the tube."""
    assert backbone.transform is not None
    if images.ndim != 4 or images.shape[1] != backbone.transform.tube or backbone.config.kept is not None:
        return None
    return backbone.transform.to_hat(images.transpose(0, 1))[:, 0].detach()


def _rounded(values: Tensor) -> Any:
    return (
        [_rounded(row) for row in values] if values.ndim > 1 else [float(f"{value:.5g}") for value in values.tolist()]
    )
