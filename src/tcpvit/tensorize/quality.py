"""Is a converted model still the original? Agreement, accuracy, size and time of both, on data that fitted nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import save as save_bytes
from torch import Tensor, nn

from tcpvit.analysis.parameters import count_parameters
from tcpvit.tables import Ratio, Table, Written, percent
from tcpvit.tensorize.flops import in_eval_mode
from tcpvit.tensorize.streams import Batch, caller_of, main_output, real_tokens
from tcpvit.timing import interleaved

SECONDS = 3.0  # of timing


@dataclass(frozen=True)
class Comparison:
    """The original and the converted model; pairs are (before, after)."""

    parameters: tuple[int, int]
    bytes: tuple[int, int]
    milliseconds: tuple[float, float]  # for a batch
    samples: int  # that agreement is measured on
    agreement: float  # share of equal labels, or mean cosine similarity
    agrees_in: str  # "labels" or "cosine similarity"
    top1: tuple[float, float] | None = None

    def table(self) -> Table:
        """Before and after."""
        table = Table("comparison", "Before and after", ["", "before", "after", "ratio"])
        for name, (old, new) in (("parameters", self.parameters), ("bytes on disk", self.bytes)):
            table.add(name, old, new, Ratio.of(new, old))
        before, after = self.milliseconds
        table.add("ms for a batch", Written(f"{before:.1f}"), Written(f"{after:.1f}"), Ratio.of(after, before))
        if self.top1 is not None:
            table.add("top-1", Written(percent(self.top1[0])), Written(percent(self.top1[1])), None)
        agreement = percent(self.agreement) if self.agrees_in == "labels" else f"{self.agreement:.4f}"
        table.add(f"agreement ({self.agrees_in})", None, Written(agreement), None)
        table.notes.append(f"Agreement is measured on {self.samples} samples that were held out from calibration.")
        return table


@torch.no_grad()
def compare(
    original: nn.Module, converted: nn.Module, batches: Sequence[Batch], labels: Sequence[Tensor] | None = None
) -> Comparison:
    """Measure both models, as they predict, on batches that the conversion has not seen; with labels, top-1 too."""
    with in_eval_mode(original), in_eval_mode(converted):
        return _compare(original, converted, batches, labels)


def _compare(
    original: nn.Module, converted: nn.Module, batches: Sequence[Batch], labels: Sequence[Tensor] | None
) -> Comparison:
    calls = [caller_of(model, batches[0]) for model in (original, converted)]
    agreed = rows = samples = 0.0
    hits, kind = [0, 0], "cosine similarity"
    for index, batch in enumerate(batches):
        (name, before), (_, after) = (main_output(call(batch)) for call in calls)
        samples += len(before)
        before_rows, after_rows = real_tokens(before, batch), real_tokens(after, batch)
        if name == "logits":
            kind = "labels"
            agreed += (before_rows.argmax(-1) == after_rows.argmax(-1)).sum().item()
        else:
            agreed += torch.cosine_similarity(before_rows, after_rows, dim=-1).sum().item()
        rows += len(before_rows)
        if labels is not None:
            for i, found in enumerate((before, after)):
                hits[i] += int((found.argmax(-1).cpu() == labels[index].cpu()).sum())
    best = interleaved({i: lambda call=call: call(batches[0]) for i, call in enumerate(calls)}, SECONDS)  # type: ignore[misc]
    return Comparison(
        parameters=(count_parameters(original), count_parameters(converted)),
        bytes=(size_on_disk(original), size_on_disk(converted)),
        milliseconds=(1e3 * best[0], 1e3 * best[1]),
        samples=int(samples),
        agreement=agreed / max(rows, 1),
        agrees_in=kind,
        top1=None if labels is None else (hits[0] / samples, hits[1] / samples),
    )


def size_on_disk(model: nn.Module) -> int:
    """Bytes of its weights as safetensors, shared ones once."""
    once = {id(tensor): (name, tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    return len(save_bytes({name: tensor.detach().contiguous() for name, tensor in once.values()}))
