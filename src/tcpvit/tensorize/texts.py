"""Texts as batches of a model's inputs: what a language model is calibrated on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from tcpvit.tensorize.origin_rules import import_library

LONGEST = 128  # tokens of a text
LARGEST = 2**28  # bytes of a file of texts
Batch = dict[str, Tensor]
T = TypeVar("T")
Tokenize = Callable[[list[str]], Batch]


def read_texts(path: Path, most: int) -> list[str]:
    """The lines of a text file that are not empty, each once: `most` of them, evenly from the whole file."""
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} is larger than {LARGEST // 2**20} MiB; a few hundred lines are enough")
    try:
        lines = list(dict.fromkeys(line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip()))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8; give one text a line") from error
    if len(lines) < 2:
        raise ValueError(f"{path} has {len(lines)} lines with text; give a few hundred, one text a line")
    return evenly(lines, most)


def evenly(items: Sequence[T], most: int) -> list[T]:
    """So many of the items, or all if there are fewer, at equal distances from the first to the last part.

    >>> evenly(range(9), 3), evenly(range(9), 6)
    ([0, 3, 6], [0, 1, 3, 4, 6, 7])
    """
    n = min(len(items), most)
    return [items[i * len(items) // n] for i in range(n)]


def as_batches(model: nn.Module, inputs: Iterable[Any]) -> list[Any]:
    """Batches of a model's inputs; where these are texts, alone or in lists, its own tokenizer makes the batches."""
    batches = list(inputs)
    texts = [text for item in batches for text in (item if isinstance(item, list | tuple) else [item])]
    if not texts or not all(isinstance(text, str) for text in texts):
        return batches
    tokenize = own_tokenizer(model)
    if tokenize is None:
        raise ValueError(
            f"a {type(model).__name__} does not take texts; give calibrate= what its tokenizer makes of them, as "
            "dict(tokenizer(texts, padding=True, return_tensors='pt'))"
        )
    return text_batches(tokenize, texts)


def own_tokenizer(model: Any) -> Tokenize | None:
    """That of a model of sentence-transformers, which calls it `preprocess` since 5.4, before `tokenize`."""
    tokenize = getattr(model, "preprocess", None) or getattr(model, "tokenize", None)
    if not callable(tokenize):
        return None
    return lambda texts: {key: x for key, x in tokenize(texts).items() if isinstance(x, Tensor)}


def tokenizer_of(name: str, model: nn.Module) -> Tokenize:
    """What makes a batch of texts: that of the model itself, or of the repository that it came from."""
    own = own_tokenizer(model)
    if own is not None:
        return own
    library, _, rest = name.partition("/")
    if library != "transformers":
        raise ValueError(f"{name} takes images, not texts; calibrate it on a folder of images or a set, as cifar10")
    tokenizer = import_library("transformers").AutoTokenizer.from_pretrained(rest)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    options = {"padding": True, "truncation": True, "max_length": LONGEST, "return_tensors": "pt"}
    return lambda texts: dict(tokenizer(texts, **options))


def text_batches(tokenize: Tokenize, texts: Sequence[str], size: int = 32) -> list[Batch]:
    """Texts of like length together, so that little is padding."""
    by_length = sorted(texts, key=len)
    return [tokenize(by_length[i : i + size]) for i in range(0, len(by_length), size)]
