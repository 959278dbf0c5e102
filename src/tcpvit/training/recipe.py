"""Recipes: everything that determines a training run, as typed dataclasses behind YAML files.

A recipe is found by name (those in `recipes/`) or by path, changed by `KEY=VALUE` words such as `optimizer.lr=0.003`,
and written in full to the run's `config.yaml`, which is a recipe again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml

from tcpvit.data import Augment
from tcpvit.data.registry import option_names
from tcpvit.errors import did_you_mean
from tcpvit.models.registry import list_models, model_config
from tcpvit.overrides import find_key, parse, put, unknown_key
from tcpvit.typed import typed

SHIPPED = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class ModelRecipe:
    """Which preset, and what to change in it."""

    name: str = "tcp_vit_cifar"
    options: dict[str, Any] = field(default_factory=dict)  # of its config, as {depth: 6}; classes come from the data


@dataclass(frozen=True)
class DataRecipe:
    """Which images, and how many at a time."""

    name: str = "digits-on-photos"  # or cifar10, svhn, stl10, oxford-pet, folder:PATH
    root: str | None = None  # where sets lie; None: $TCPVIT_DATA, else the user's cache
    options: dict[str, Any] = field(default_factory=dict)  # of the set, as {split: paper, seed: 1}
    image_size: int | None = None  # resize to this; None: as the set comes
    batch_size: int = 256  # of one optimiser step, over all processes and accumulation
    eval_batch_size: int = 500  # of each process
    workers: int | None = None  # processes that decode image files; None: by the machine


@dataclass(frozen=True)
class OptimizerRecipe:
    """AdamW, and what is done to the gradients before it."""

    lr: float = 1e-3
    weight_decay: float = 0.05  # not on biases, norms, tokens and positions
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    slice_lr_scale: float | Literal["none", "sqrt", "full"] = "none"  # of slice-wise weights: a factor, √C or C
    clip_norm: float = 1.0  # 0: off
    accumulate: int = 1  # a batch is computed in this many pieces, to save memory
    label_smoothing: float = 0.0
    ema: float = 0.0  # decay of the averaged weights that are evaluated and kept; 0: off
    on_nonfinite: Literal["stop", "skip"] = "stop"  # what a NaN or infinite loss does to the run or to the step


@dataclass(frozen=True)
class ScheduleRecipe:
    """Linear warm-up, then a cosine down to `final_lr` times the peak."""

    epochs: int = 100
    warmup_epochs: float = 0.0
    final_lr: float = 0.0


@dataclass(frozen=True)
class EvaluationRecipe:
    """When the validation part and the gradients are looked at, and when to give up."""

    every: int = 1  # epochs
    patience: int = 0  # stop after this many evaluations without a new best; 0: never
    gradients: int = 0  # steps between two looks at the gradient's norm by slice; 0: off


@dataclass(frozen=True)
class CheckpointRecipe:
    """How often the whole state is saved, besides at the end."""

    every_epochs: int = 1
    every_steps: int = 0  # within an epoch; 0: off
    keep: int = 2  # at least 2, so that a damaged one has a predecessor


@dataclass(frozen=True)
class DistributedRecipe:
    """How the processes that torchrun started share the work; one process alone has no use for it."""

    strategy: Literal["ddp", "fsdp"] = "ddp"  # the model whole on each process, or fsdp: in shards


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
    seed: int = 0
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    precision: Literal["float32", "bfloat16", "float16"] = "float32"  # of matrix products; weights stay float32
    compile: bool = False

    def __post_init__(self) -> None:
        for key, low, value in (
            ("seed", 0, self.seed),
            ("data.batch_size", 1, self.data.batch_size),
            ("data.image_size", 1, 1 if self.data.image_size is None else self.data.image_size),
            ("data.eval_batch_size", 1, self.data.eval_batch_size),
            ("optimizer.lr", 0, self.optimizer.lr),
            ("optimizer.weight_decay", 0, self.optimizer.weight_decay),
            ("optimizer.clip_norm", 0, self.optimizer.clip_norm),
            ("optimizer.accumulate", 1, self.optimizer.accumulate),
            ("schedule.epochs", 1, self.schedule.epochs),
            ("schedule.warmup_epochs", 0, self.schedule.warmup_epochs),
            ("evaluation.every", 1, self.evaluation.every),
            ("evaluation.patience", 0, self.evaluation.patience),
            ("evaluation.gradients", 0, self.evaluation.gradients),
            ("checkpoints.every_epochs", 1, self.checkpoints.every_epochs),
            ("checkpoints.every_steps", 0, self.checkpoints.every_steps),
            ("checkpoints.keep", 2, self.checkpoints.keep),
        ):
            if not value >= low:
                raise ValueError(f"{key} is at least {low}, got {value}")
        for key, value in (("label_smoothing", self.optimizer.label_smoothing), ("ema", self.optimizer.ema)):
            if not 0 <= value < 1:
                raise ValueError(f"optimizer.{key} lies in [0, 1), got {value}")
        if not 0 <= self.schedule.final_lr <= 1:
            raise ValueError(f"schedule.final_lr is a fraction of the peak in [0, 1], got {self.schedule.final_lr}")

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
        return [(find_key(key, known, "a recipe"), value) for key, value in pairs]

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
                raise unknown_key(key, known, "a recipe")
        return typed(content, cls, "")


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
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is no valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{name} should hold keys such as `model:` and `data:`, got {type(content).__name__}")
    return Recipe.from_dict(content).override(overrides)


def _read(name: str | Path) -> str:
    if str(name) in list_recipes():
        return (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8")
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return path.read_text(encoding="utf-8")
    raise ValueError(
        f"no recipe is called {str(name)!r}, nor is it a YAML file{did_you_mean(str(name), list_recipes())}"
    )


def known_keys(config: type = Recipe, prefix: str = "") -> list[str]:
    """Every dotted key of a recipe.

    >>> "optimizer.lr" in known_keys()
    True
    """
    keys, hints = [], get_type_hints(config)
    for item in fields(config):
        key = prefix + item.name
        keys += known_keys(hints[item.name], f"{key}.") if is_dataclass(hints[item.name]) else [key]
    return keys


def _options(model: str, data: str) -> list[str]:
    """The full keys of the options of a model and a set that are known; keys of the recipe itself come first."""
    own = {name.rpartition(".")[2] for name in known_keys()}
    of_model = [item.name for item in fields(model_config(model))] if model in list_models() else []
    of_data = [name for name in option_names(data) if name not in own]
    return [f"model.options.{name}" for name in of_model] + [f"data.options.{name}" for name in of_data]


def _leaves(content: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    sections = {item.name for item in fields(Recipe) if is_dataclass(get_type_hints(Recipe)[item.name])}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if not prefix and name in sections and isinstance(value, Mapping):
            yield from _leaves(value, f"{key}.")
        elif key not in sections:  # a section that is no mapping is refused with its type
            yield key
