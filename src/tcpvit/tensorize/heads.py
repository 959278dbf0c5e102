"""Heads: the layers whose outputs are classes or words, which are left as they are unless asked.

A layer is a head if
1. it is in what the model calls its classifier (timm: `get_classifier()`) or its output embeddings (transformers);
2. or its name says so, outside numbered blocks: head, head_dist, classifier, lm_head, score, fc and the like;
3. or it gives as many numbers as the model has classes, outside numbered blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

WORDS = (
    "head head1 head2 heads head_dist aux_head classifier cls_classifier distillation_classifier fc logits last_linear "
    "lm_head score qa_outputs seq_relationship"
)
NAMED = re.compile(rf"^((?!\d+\.)[^.]+\.)*({WORDS.replace(' ', '|')})(\.|$)")


def heads_of(model: nn.Module) -> dict[int, str]:
    """The modules that are heads, by id, each with the rule that says so."""
    found = {id(part): "head (the model's classifier)" for root in _declared(model) for part in root.modules()}
    classes = _number_of_classes(model)
    for name, module in model.named_modules():
        if NAMED.search(name):
            found.setdefault(id(module), "head (by its name)")
        elif classes and not re.search(r"(^|\.)\d+(\.|$)", name) and getattr(module, "out_features", None) == classes:
            found.setdefault(id(module), f"head (gives {classes} classes)")
    return found


def _declared(model: nn.Module) -> Iterator[nn.Module]:
    for method in ("get_classifier", "get_output_embeddings"):
        ask = getattr(model, method, None)
        if not callable(ask):
            continue
        try:
            answer: Any = ask()
        except (AttributeError, NotImplementedError, TypeError):  # models that inherit the method without having one
            continue
        for part in answer if isinstance(answer, tuple | list | nn.ModuleList) else [answer]:
            if isinstance(part, nn.Module):
                yield part


def _number_of_classes(model: nn.Module) -> int | None:
    config = getattr(model, "config", None)
    for owner, name in ((model, "num_classes"), (config, "num_labels"), (config, "num_classes")):
        classes = getattr(owner, name, None)
        if isinstance(classes, int) and classes > 2:  # transformers says 2 where there is no head
            return classes
    return None
