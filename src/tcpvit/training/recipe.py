"""Recipes: everything that determines a training run, as typed dataclasses behind YAML files.

A recipe is found by name (those in `recipes/`) or by path, changed by `KEY=VALUE` words such as `optimizer.lr=0.003`,
and written in full to the run's `config.yaml`, which is a recipe again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_type_hints

import yaml
from annotated_types import Ge, Le
from typing_extensions import Doc

from tcpvit.data import Augment
from tcpvit.data.registry import option_names
from tcpvit.errors import did_you_mean
from tcpvit.files import read_text
from tcpvit.models.registry import list_models, model_config
from tcpvit.overrides import find_key, parse, put, unknown_key
from tcpvit.validation import (
    Count,
    Extent,
    Flag,
    Fraction,
    Maybe,
    Natural,
    NonNegative,
    Positive,
    Rate,
    Seed,
    Text,
    checked,
    dataclass,
)
from tcpvit.yaml_text import LONGEST, read_yaml

SHIPPED = Path(__file__).parent / "recipes"
Workers = Annotated[Natural, Le(1024)]
LISTING = "`tcpvit train --keys` lists them"


@dataclass(frozen=True)
class ModelRecipe:
    """Which preset, and what to change in it."""

    name: Annotated[Text, Doc("a preset that `tcpvit models` lists")] = "tcp_vit_cifar"
    options: Annotated[dict[Text, Any], Doc("fields of its config, as {depth: 6}; classes come from the data")] = field(
        default_factory=dict
    )
    pretrained: Annotated[
        Flag | Text, Doc("start from the weights that come with the package (true), or from those in this folder")
    ] = False


@dataclass(frozen=True)
class DataRecipe:
    """Which images, and how many at a time."""

    name: Annotated[
        Text, Doc("the set: digits-on-photos, cifar10, svhn, stl10, oxford-pet, folder:PATH, a scene or scene:PATH")
    ] = "digits-on-photos"
    root: Annotated[Text | None, Doc("where sets lie; null: $TCPVIT_DATA, else the user's cache")] = None
    options: Annotated[dict[Text, Any], Doc("options of the set ({split: paper, seed: 1} for example)")] = field(
        default_factory=dict
    )
    image_size: Annotated[
        Maybe[Extent],
        Doc(
            "size that images are resized to (volumes: also [T, H, W]); null: as the set comes, for a folder on the "
            "command line the size of the model; for scenes the width of the windows, 9"
        ),
    ] = None
    batch_size: Annotated[Count, Doc("images of one optimiser step, over all processes and accumulation")] = 256
    eval_batch_size: Annotated[Count, Doc("images that each process evaluates at a time")] = 500
    workers: Annotated[Maybe[Workers], Doc("processes that decode image files; null: by the machine")] = None


@dataclass(frozen=True)
class OptimizerRecipe:
    """AdamW, and what is done to the gradients before it."""

    lr: Annotated[NonNegative, Doc("the peak learning rate; 0 trains nothing, as a baseline or to measure time")] = 1e-3
    weight_decay: Annotated[
        NonNegative, Doc("weight decay of AdamW; biases, norms, tokens and positions do not decay")
    ] = 0.05
    betas: Annotated[tuple[Rate, Rate], Doc("decay of AdamW's two moments")] = (0.9, 0.999)
    eps: Annotated[Positive, Doc("what AdamW adds to the denominator")] = 1e-8
    slice_lr_scale: Annotated[
        Positive | Literal["none", "sqrt", "full"],
        Doc("learning rate of slice-wise weights: a factor, sqrt (√C) or full (C)"),
    ] = "none"
    clip_norm: Annotated[NonNegative, Doc("largest norm of the gradient; 0: off")] = 1.0
    accumulate: Annotated[Count, Doc("micro-batches of a batch, to save memory; BatchNorm sees each alone")] = 1
    label_smoothing: Annotated[Rate, Doc("share of the target that all classes get")] = 0.0
    ema: Annotated[Rate, Doc("decay of the averaged weights that are evaluated and saved; 0: off")] = 0.0
    on_nonfinite: Annotated[
        Literal["stop", "skip"], Doc("what a NaN or infinite loss does: stop the run, or skip the step")
    ] = "stop"


@dataclass(frozen=True)
class ScheduleRecipe:
    """Linear warm-up, then a cosine down to `final_lr` times the peak."""

    epochs: Annotated[Count, Doc("how often the training images are seen")] = 100
    warmup_epochs: Annotated[NonNegative, Doc("epochs in which the learning rate rises linearly")] = 0.0
    final_lr: Annotated[Fraction, Doc("the end of the cosine, as a share of the peak")] = 0.0


@dataclass(frozen=True)
class EvaluationRecipe:
    """When the validation set and the gradients are measured, and when to stop early."""

    every: Annotated[Count, Doc("epochs between two evaluations")] = 1
    patience: Annotated[Natural, Doc("stop after this many evaluations without a new best; 0: never")] = 0
    gradients: Annotated[
        Natural, Doc("steps between two records of the gradient's norm by block and slice, in gradients.csv; 0: off")
    ] = 0


@dataclass(frozen=True)
class CheckpointRecipe:
    """How often the complete state is saved, besides at the end."""

    every_epochs: Annotated[Count, Doc("epochs between two checkpoints")] = 1
    every_steps: Annotated[Natural, Doc("steps between two checkpoints within an epoch; 0: off")] = 0
    keep: Annotated[Count, Ge(2), Doc("how many are kept: at least 2, so that a damaged one has a predecessor")] = 2


@dataclass(frozen=True)
class DistributedRecipe:
    """How the processes that torchrun started share the work; one process alone has no use for it."""

    strategy: Annotated[Literal["ddp", "fsdp"], Doc("the model is copied to each process (ddp) or sharded (fsdp)")] = (
        "ddp"
    )


@dataclass(frozen=True)
class Recipe:
    """A training run from its seed to its schedule.

    >>> Recipe().override(["optimizer.lr=3e-3", "model.options.depth=2"]).optimizer.lr
    0.003
    """

    model: ModelRecipe = ModelRecipe()
    data: DataRecipe = DataRecipe()
    augment: Augment = field(default_factory=Augment)
    optimizer: OptimizerRecipe = OptimizerRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    evaluation: EvaluationRecipe = EvaluationRecipe()
    checkpoints: CheckpointRecipe = CheckpointRecipe()
    distributed: DistributedRecipe = DistributedRecipe()
    seed: Annotated[Seed, Doc("seed of the weights, the order of the images and their augmentation")] = 0
    device: Annotated[Text, Doc("auto, cpu, cuda, cuda:1, mps")] = "auto"
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"],
        Doc("precision of matrix products, weights stay float32; float16 scales the loss and needs CUDA"),
    ] = "float32"
    compile: Annotated[Flag, Doc("run the model through torch.compile")] = False

    def __post_init__(self) -> None:
        if self.optimizer.accumulate > self.data.batch_size:
            raise ValueError(
                f"optimizer.accumulate is at most data.batch_size, {self.data.batch_size}, got "
                f"{self.optimizer.accumulate}; a micro-batch has at least one image"
            )

    def override(self, words: Iterable[str]) -> Recipe:
        """This recipe with `KEY=VALUE` words applied; an unknown key is an error that names the nearest one."""
        content = self.to_dict()
        for key, value in self.resolve(words):
            put(content, key, value)
        return Recipe.from_dict(content)

    def resolve(self, words: Iterable[str]) -> list[tuple[str, Any]]:
        """`KEY=VALUE` words by their full keys: a short one may be an option of the model or of the set.

        >>> Recipe().resolve(["lr=0.1", "attention=joint", "level=hard"])
        [('optimizer.lr', 0.1), ('model.options.attention', 'joint'), ('data.options.level', 'hard')]
        """
        pairs = parse(words)
        names = {"model.name": self.model.name, "data.name": self.data.name, **dict(pairs)}
        known = [*known_keys(), *_options(str(names["model.name"]), str(names["data.name"]))]
        return [(find_key(key, known, "a recipe", LISTING), value) for key, value in pairs]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, nested as in the YAML file."""
        content = asdict(self)
        content["optimizer"]["betas"] = list(self.optimizer.betas)
        return content

    def to_yaml(self) -> str:
        """The whole recipe, ready to be a recipe file."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Recipe:
        """From nested values; what is left out has its default."""
        known = known_keys()
        for key in _leaves(content):
            if key not in known:
                raise unknown_key(key, known, "a recipe", LISTING)
        return checked(content, cls, "")


def list_recipes() -> list[str]:
    """Names of the recipes that come with the package.

    >>> "demo" in list_recipes()
    True
    """
    return sorted(file.stem for file in SHIPPED.glob("*.yaml"))


def load_recipe(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of that name or path, with `KEY=VALUE` overrides.

    >>> load_recipe("paper-classification", ["seed=1"]).optimizer.lr
    0.01
    """
    text = _read(name)
    try:
        content = read_yaml(text)
    except ValueError as error:
        raise ValueError(f"{name} is no valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{name} should hold keys such as `model:` and `data:`, got {type(content).__name__}")
    return Recipe.from_dict(content).override(overrides)


def _read(name: str | Path) -> str:
    if str(name) in list_recipes():
        return (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8")
    path = Path(name)
    if path.is_dir():
        raise ValueError(
            f"{name} is a folder, and a recipe is a YAML file; to train on images write --data folder:{name}"
        )
    if path.exists() and not path.is_file():
        raise ValueError(f"{name} is a pipe or a device; a recipe is read from a YAML file")
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return read_text(path, LONGEST)
    raise ValueError(
        f"no recipe is called {str(name)!r}, nor is it a YAML file{did_you_mean(str(name), list_recipes())}"
    )


def key_docs(config: type = Recipe, prefix: str = "") -> dict[str, str]:
    """Every dotted key of a recipe, with what it means.

    >>> key_docs()["optimizer.clip_norm"]
    'largest norm of the gradient; 0: off'
    """
    found: dict[str, str] = {}
    for name, hint in get_type_hints(config, include_extras=True).items():
        if is_dataclass(hint):
            found |= key_docs(cast(type, hint), f"{prefix}{name}.")
        else:
            found[prefix + name] = next(item.documentation for item in hint.__metadata__ if isinstance(item, Doc))
    return found


def known_keys() -> list[str]:
    """Every dotted key of a recipe.

    >>> "optimizer.lr" in known_keys()
    True
    """
    return list(key_docs())


def _options(model: str, data: str) -> list[str]:
    """The full keys of the options of a model and a set that are known; keys that all sets have come first."""
    own = {name.rpartition(".")[2] for name in known_keys() if name.startswith("data.") or "." not in name}
    of_data = [name for name in option_names(data) if name not in own]
    of_model = _fields_of(model_config(model)) if model in list_models() else []
    return [f"model.options.{name}" for name in of_model] + [f"data.options.{name}" for name in of_data]


def _fields_of(config: Any) -> list[str]:
    """The fields of a config, and those of the configs inside it that are called as none of its own."""
    own = {item.name: getattr(config, item.name) for item in fields(config)}
    inside = {name: [item.name for item in fields(value)] for name, value in own.items() if is_dataclass(value)}
    return [*own, *(f"{name}.{field}" for name, known in inside.items() for field in known if field not in own)]


def _leaves(content: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    sections = {item.name for item in fields(Recipe) if is_dataclass(get_type_hints(Recipe)[item.name])}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if not prefix and name in sections and isinstance(value, Mapping):
            yield from _leaves(value, f"{key}.")
        elif key not in sections:  # a section that is no mapping is refused with its type
            yield key
