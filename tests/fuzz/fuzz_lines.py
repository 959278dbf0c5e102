"""Bad command lines: a good line of each verb with one to three changes, and a catalogue of what must be refused."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fuzz_runner import Case
from fuzz_values import HUGE_NUMBERS, NO_NUMBERS, ODD_NUMBERS, PLACES, WORDS, YAML

SIZES = ("--set", "data.options.sizes=[12, 6, 6]")
TRAIN = ("train", "small.yaml", "--name", "new", "--quiet")
# Lines that are good, and end within a second or two; a verb that trains twice is drawn less often.
GOOD: dict[str, tuple[int, list[tuple[str, ...]]]] = {
    "train": (8, [TRAIN, ("train", "--resume", "run"), ("train", "small.yaml", "--keys")]),
    "eval": (4, [("eval", "run"), ("eval", "model", "--data", "digits-on-photos", *SIZES)]),
    "data": (
        4,
        [("data",), ("data", "check", "folder:images"), ("data", "show", "digits-on-photos", *SIZES, "--out", "s.png")],
    ),
    "predict": (4, [("predict", "run", "images"), ("predict", "run", "images", "--out", "found.csv")]),
    "compare": (2, [("compare", "small.yaml", "--name", "new", "--quiet")]),
    "reproduce": (2, [("reproduce", "classification", "--plan"), ("reproduce", "segmentation", "--plan", "--json")]),
    "tensorize": (4, [("tensorize", "model", "--tube", "2"), ("tensorize", "run", "--tube", "3", "--out", "made")]),
    "models": (1, [("models",), ("models", "tcp_vit_c*")]),
    "analyze": (3, [("analyze", "tcp_vit_cifar"), ("analyze", "--theory"), ("analyze", "std_vit_cifar", "--json")]),
    "bench": (1, [("bench", "cifar", "--no-peers", "--threads", "1", "--seconds", "0.001")]),
    "demo": (1, [("demo", "--algebra")]),
}
# What may take long because somebody asked for it.
LONG = ("epochs", "schedule.epochs", "seconds", "seeds", "threads")
PLACE_OPTIONS = ("out", "runs", "sheet", "images", "figure", "data_root", "resume", "data.root")
KEYED = ("set", "set_std", "set_tcp", "option")
DATA_OPTIONS = (
    "seed",
    "sizes",
    "level",
    "task",
    "val_fraction",
    "train_size",
    "val_size",
    "bands",
    "on_bad",
    "split",
    "fit",
)
NUMBERS = (int, float)


def random_line(seed: int, index: int) -> Case:
    """Line `index` of all those that `seed` makes."""
    random = Random(f"line {seed} {index}")
    verb = random.choices(list(GOOD), [weight for weight, _ in GOOD.values()])[0]
    words, nonsense = list(random.choice(GOOD[verb][1])), False
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        change = random.choices((_bad_option, _bad_key, _bad_word, _broken_line), (6, 6, 2, 1))[0]
        nonsense |= change(random, verb, words)
    fetches = verb == "tensorize" or "download" in words
    return Case(f"line-{index}", shown(words), tuple(words), must_refuse=nonsense, network=fetches)


def shown(words: list[str] | tuple[str, ...]) -> str:
    """A line as people can read it, long words cut."""
    return " ".join(w if w and w.isascii() and w.isprintable() and len(w) < 80 else f"{w[:60]!r}" for w in words)


def options_of(verb: str) -> dict[str, Any]:
    """The options of a verb and their types."""
    from tcpvit.cli.app import VERBS, load

    function = load(VERBS[verb][0])
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    return {p.name: hints[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}


def recipe_keys() -> dict[str, Any]:
    """Every key of a recipe, and the options of the model and the set that the small recipe has, with their types."""
    from tcpvit.models import model_config
    from tcpvit.training import Recipe

    keys = {}
    for section, hint in get_type_hints(Recipe).items():
        parts = get_type_hints(hint) if hasattr(hint, "__dataclass_fields__") else None
        keys |= {section: hint} if parts is None else {f"{section}.{name}": each for name, each in parts.items()}
    config = type(model_config("tcp_vit_cifar"))
    hints = get_type_hints(config)
    keys |= {f"model.options.{item.name}": hints[item.name] for item in fields(config)}
    return keys | {f"data.options.{name}": Any for name in DATA_OPTIONS}


def is_number(hint: Any) -> bool:
    """Whether a key or an option of this type is a number, and nothing that may be a word."""
    if get_origin(hint) is Annotated:
        return is_number(get_args(hint)[0])
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    return all(kind in NUMBERS for kind in kinds)


def _bad_option(random: Random, verb: str, words: list[str]) -> bool:
    options = {name: hint for name, hint in options_of(verb).items() if name not in KEYED}
    name = random.choice(list(options))
    option = "--" + name.replace("_", "-")
    if options[name] is bool:
        words.append(option)
        return False
    value, nonsense = _value(random, name, is_number(options[name]))
    words += [option, value] if random.random() < 0.7 else [f"{option}={value}"]
    return nonsense


def _bad_key(random: Random, verb: str, words: list[str]) -> bool:
    keyed = [name for name in KEYED if name in options_of(verb)]
    if not keyed:
        return _bad_option(random, verb, words)
    keys = recipe_keys()
    key = random.choice(list(keys))
    value, nonsense = _value(random, key, is_number(keys[key]), yaml=True)
    if random.random() < 0.1:
        key, nonsense = random.choice((key[:-1], key.upper(), f"{key}.x", "", ".", "model", "a.b.c", "\x1b[2J")), False
    words += [f"--{random.choice(keyed).replace('_', '-')}", f"{key}={value}"]
    return nonsense and verb in ("train", "compare") and "--resume" not in words and "--keys" not in words


def _value(random: Random, name: str, number: bool, yaml: bool = False) -> tuple[str, bool]:
    """A value, and whether it must be refused."""
    if number and random.random() < 0.7:
        pool = (*NO_NUMBERS, *ODD_NUMBERS, *(() if name in LONG else HUGE_NUMBERS))
        value = random.choice(pool)
        return value, value in NO_NUMBERS
    if name in PLACE_OPTIONS:
        return random.choice(PLACES), False
    return random.choice((*WORDS, *YAML) if yaml else WORDS), False


def _bad_word(random: Random, verb: str, words: list[str]) -> bool:
    place = random.randrange(min(1, len(words)), len(words) + 1)  # the verb may be gone already
    word = random.choice((*WORDS, *PLACES))
    if place < len(words) and random.random() < 0.6 and not words[place].startswith("-"):
        words[place] = word
    else:
        words.insert(place, word)
    return False


def _broken_line(random: Random, verb: str, words: list[str]) -> bool:
    option = "--" + random.choice(list(options_of(verb))).replace("_", "-")
    kind = random.randrange(5)
    if kind == 0:
        words.append(option)  # without its value
    elif kind == 1:
        words += [option[:-1], "x"]
    elif kind == 2:
        words.append(f"--{random.choice(WORDS)}")
    elif kind == 3 and words:
        del words[random.randrange(len(words))]
        if words[:1] != [verb] and words[:1] in (["demo"], ["bench"]):
            words.insert(0, verb)
    else:
        words[:1] = [random.choice((verb[:-1], verb.upper(), *WORDS))]
    return False


def nonsense_lines() -> Iterator[Case]:
    """Lines that must be refused, each with one reason."""
    lines = [*_nonsense_keys(), *_nonsense_options()]
    for number, words in enumerate(lines):
        yield Case(f"nonsense-{number}", shown(words), words, must_refuse=True)


def _nonsense_keys() -> Iterator[tuple[str, ...]]:
    """Keys of a recipe with values that no run can have."""
    for key, hint in recipe_keys().items():
        if is_number(hint):
            yield from ((*TRAIN, "--set", f"{key}={value}") for value in ("nan", "inf", "-1"))
    for key, values in NONSENSE.items():
        yield from ((*TRAIN, "--set", f"{key}={value}") for value in values)


def _nonsense_options() -> Iterator[tuple[str, ...]]:
    """Options of verbs with values that they cannot have."""
    for verb, (_, lines) in GOOD.items():
        for name, hint in options_of(verb).items():
            if is_number(hint):
                base = ("analyze", "--theory") if verb == "analyze" and name != "batch" else lines[0]
                yield from ((*base, f"--{name.replace('_', '-')}", value) for value in ("nan", "inf", "-1"))
    yield from (("predict", "run", "images", f"--{name}", "1" + "0" * 30) for name in ("batch-size",))
    yield from (
        (*TRAIN[:2], "--name", name) for name in ("../../../../x", "/tmp/x", "a/b", "", "..", "a\nb", "\x1b[2J")
    )
    yield ("tensorize", "model", "--tube", "1000000000")
    yield ("tensorize", "timm/vit_tiny_patch16_224", "--option", "checkpoint_path=x.pth")
    yield ("analyze", "tcp_vit_cifar", "--set", "depth=1000000000")
    yield ("analyze", "tcp_vit_cifar", "--set", "embed_dim=999999999999")
    yield ("bench", "cifar", "--no-peers", "--threads", "1000000000")


HUGE = "1000000000"
NONSENSE: dict[str, tuple[str, ...]] = {
    "optimizer.lr": ("1e309", "x", "[1]", "null"),
    "optimizer.betas": ("[1, 1]", "[2, 0.5]", "[-0.1, 0.9]", "[.nan, 0.9]", "[0.9]", "0.9"),
    "optimizer.eps": ("0", "1e309"),
    "optimizer.ema": ("1", "2"),
    "optimizer.label_smoothing": ("1", "1.5"),
    "optimizer.slice_lr_scale": ("-2", "nan", "inf", "some"),
    "optimizer.accumulate": ("0", "1.5", HUGE),
    "optimizer.on_nonfinite": ("ignore",),
    "schedule.epochs": ("0", "1.5"),
    "schedule.final_lr": ("2",),
    "evaluation.every": ("0",),
    "checkpoints.keep": ("0", "1"),
    "data.batch_size": ("0", "1.5"),
    "data.image_size": ("0", "1000000", HUGE, "7.5"),
    "data.workers": ("-2", HUGE, "1.5"),
    "data.options.sizes": (f"[{HUGE}, 1, 1]", "[-1, 1, 1]", "[0, 1, 1]", "[1, 1]", "3", "[.inf, 1, 1]"),
    "data.options.val_fraction": ("nan", "-0.5", "2", "inf", "1"),
    "data.options.train_size": ("-1", "0", HUGE),
    "data.options.seed": ("-1", "x", "1.5"),
    "data.options.level": ("medium", "[easy]"),
    "data.options.unknown": ("1",),
    "model.name": ("tcp_vit_cifra", "[a]", "null", "", "../x"),
    "model.options.depth": ("0", HUGE, "1.5"),
    "model.options.embed_dim": ("0", "25", HUGE, "999999999999999999"),
    "model.options.patch_size": ("0", "5", HUGE),
    "model.options.num_heads": ("0", "5", HUGE),
    "model.options.mlp_ratio": ("0", "1e309", HUGE),
    "model.options.drop_rate": ("1.5", "2"),
    "model.options.attn_drop_rate": ("1.5",),
    "model.options.drop_path_rate": ("2", "1.5"),
    "model.options.in_chans": ("0", HUGE),
    "model.options.num_classes": ("0", HUGE, "3"),
    "model.options.tube": ("0", "5", HUGE),
    "model.options.img_size": ("0", HUGE, "[32]", "[32, 32, 32]"),
    "model.options.transform": ("fft", "[dct]", "null"),
    "model.options.coupling": ("x", "[x]", "[[mix]]", "{a: 1}"),
    "model.options.unknown": ("1",),
    "model.pretrained": ("nowhere", "../../../../x", "https://example.invalid", "run/config.yaml"),
    "augment.flip": ("1.5",),
    "augment.zoom": ("0", "2"),
    "augment.magnitude": ("31",),
    "augment.shift": (HUGE, "0.5"),
    "augment.randaugment": (HUGE,),
    "device": ("gpu", "cuda:99", "cpu:x", "", "meta", "\x1b[2J"),
    "precision": ("float8", "float16", ""),
    "compile": ("maybe", "2"),
    "seed": ("1.5", "x", "1" + "0" * 30),
}


def world_is_ready(work: Path) -> bool:
    """Whether the good lines find what they name."""
    return all((work / name).exists() for name in ("small.yaml", "run", "model", "images"))
