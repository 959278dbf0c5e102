"""Write the table of architectures into docs/tensorize.md: what `tensorize_` makes of each, at its full size.

    python docs/write_tensorize.py

The models are built on the meta device, without weights or memory, and converted there: counting needs no numbers.
The architectures are those that tests/tensorize converts, runs and brings back at a small size.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from tcpvit.compat import repair_torchvision
from tcpvit.tables import Ratio, Table, render
from tcpvit.tensorize import Report, tensorize_

ROOT = Path(__file__).parent.parent
TUBES = {"ViTMAEForPreTraining": 4, "SegformerForSemanticSegmentation": 4}  # 3 divides none of their widths
PAGE = ROOT / "docs" / "tensorize.md"
sys.path.insert(0, str(ROOT / "tests" / "tensorize"))
repair_torchvision()

from architectures import HUGGING_FACE, TIMM  # noqa: E402


def main() -> None:
    """Write the page's block anew."""
    table = architectures()
    block = f"<!-- architectures -->\n{render([table], 'markdown')}\n<!-- /architectures -->"
    text = PAGE.read_text(encoding="utf-8")
    text = re.sub(r"<!-- architectures -->.*<!-- /architectures -->", lambda _: block, text, flags=re.DOTALL)
    PAGE.write_text(text, encoding="utf-8")


def architectures() -> Table:
    """One row for each model."""
    columns = ["model", "tube", "convs", "parameters", "after", "ratio", "layers converted", "left as they are"]
    table = Table("architectures", "Architectures as their libraries build them", columns)
    for name, tube, convs, build in models():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = convert(build, tube, convs)
        done = sum(row.done for row in report.rows)
        table.add(
            name,
            tube,
            convs,
            report.parameters_before,
            report.parameters_after,
            Ratio(report.ratio),
            f"{done} of {len(report.rows)}",
            left(report),
        )
    table.notes.append("Layers counts the linear layers, and the convolutions where `convs` takes them in.")
    return table


def models() -> Iterator[tuple[str, int, str, Callable[[], nn.Module]]]:
    """Name, tube, convolutions and builder of each."""
    import timm
    import torchvision
    import transformers

    for case in TIMM:
        yield f"timm `{case.name}`", case.tube, case.convs, lambda name=case.name: timm.create_model(name)
    for name in ("vit_b_16", "swin_t"):
        yield f"torchvision `{name}`", 3, "none", lambda name=name: torchvision.models.get_model(name)
    for name in HUGGING_FACE:
        cls = getattr(transformers, name)
        yield f"transformers `{name}`", TUBES.get(name, 3), "none", lambda cls=cls: cls(cls.config_class())


def convert(build: Callable[[], nn.Module], tube: int, convs: str) -> Report:
    """The report of a model that exists only in outline; some compute while they are built and need memory."""
    try:
        with torch.device("meta"):
            model = build()
    except (RuntimeError, NotImplementedError):
        model = build()
    return tensorize_(model, tube=tube, convs=convs, init="fresh", example=False)


def left(report: Report) -> str:
    """How many layers were left for each reason."""
    reasons = Counter(
        "head" if reason.startswith("head") else "tied" if reason.startswith("tied") else reason
        for reason in report.skipped.values()
    )
    widths = Counter({reason: n for reason, n in reasons.items() if "multiple of the tube" in reason})
    found = {reason: n for reason, n in reasons.items() if reason not in widths}
    if widths:
        found["width"] = widths.total()
    return ", ".join(f"{n} {reason}" for reason, n in found.items()) or "none"


if __name__ == "__main__":
    main()
