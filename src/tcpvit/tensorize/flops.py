"""What a conversion saves in FLOPs, and where the dense form is the faster one all the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import Tensor, nn

from tcpvit.analysis import count_flops
from tcpvit.analysis.dry_run import find_example
from tcpvit.layers.linear import TubalLinear

Example = Tensor | tuple[Tensor, ...] | dict[str, Tensor] | Literal[False] | None

# Taking a feature through the transform moves memory, and takes as long as about this many FLOPs of a matrix product:
# for tubes of 2 to 24, widths of 48 to 384 and 800 tokens it lies between 40 and 190 on one core, and higher on two.
FLOPS_PER_FEATURE = 150


def faster_dense(layer: nn.Module) -> bool:
    """Whether the dense form of a drop-in computes faster: its slices save less than its transforms take.

    >>> faster_dense(TubalLinear(192, 192, tube=3)), faster_dense(TubalLinear(384, 384, tube=3))
    (True, False)
    """
    maps = [part for part in layer.modules() if isinstance(part, TubalLinear)]  # of an attention, several
    if any(m.rank for m in maps):
        return False  # a calibration judges by time itself
    saved = sum(2 * m.in_features * m.out_features * (1 - 1 / m.tube) for m in maps)
    return saved < sum(FLOPS_PER_FEATURE * (m.in_features + m.out_features) for m in maps)


def try_to_count(model: nn.Module, example: Example = None) -> tuple[int | None, str]:
    """FLOPs of a forward pass on the example, or on one that the model names; or None, and why they were not counted.

    A conversion does not depend on them, so nothing that goes wrong here is an error.
    """
    inputs = find_example(model) if example is None else example
    if inputs is False or inputs is None:
        return None, "" if inputs is False else "no example input is known; pass example="
    try:
        with in_eval_mode(model), _without_torch_log():
            return int(count_flops(model, inputs)), ""
    except Exception as error:  # a foreign model on tensors without data may raise anything
        said = str(error).strip().partition("\n")[0]
        return None, f"{type(error).__name__}: {said[:200]}" if said else type(error).__name__


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """The model as it predicts, and afterwards as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _without_torch_log() -> Iterator[None]:
    """torch logs a traceback where a pass without data fails, which is reported anyway."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
