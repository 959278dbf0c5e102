"""Saving, loading and sharing models: safetensors and config.json through huggingface_hub's mixin, never a pickle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from huggingface_hub import ModelHubMixin, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from tcpvit.errors import did_you_mean
from tcpvit.files import read_json, write_atomically, write_json
from tcpvit.layers.groups import undecayed_names
from tcpvit.layers.linear import TubalLinear
from tcpvit.models.size import check_size
from tcpvit.validation import within

CONFIG, WEIGHTS = "config.json", "model.safetensors"
DOWNLOAD = ("revision", "cache_dir", "force_download", "local_files_only", "token")  # what the Hub may be told
ENCODER_NOTE = "tcpvit_encoder"  # the attribute in which a model keeps the config that converted its encoder
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # what a model's weights may be
ARCHITECTURES: dict[str, type[Pretrained]] = {}  # every model class by its name, which config.json holds


class Format(NamedTuple):
    """How models are saved that no config of an architecture describes."""

    can_save: Callable[[nn.Module], bool]
    save: Callable[[nn.Module, Path], None]
    load: Callable[[dict[str, Any], Path, nn.Module | None], nn.Module]  # options, weights file, model of the same make


FORMATS: dict[str, Format] = {}


def register_format(architecture: str, saving: Format) -> None:
    """Save and load models by `saving`; config.json calls them `architecture`. Rooms above this one call it."""
    FORMATS[architecture] = saving


class Pretrained(ModelHubMixin, library_name="tcpvit", license="apache-2.0", tags=["tcp-vit", "c-product"]):
    """A model of this library: `save_pretrained`, `from_pretrained`, `push_to_hub`, a `config` of `config_class`."""

    config_class: ClassVar[Any]
    config: Any

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that weight decay should leave alone."""
        assert isinstance(self, nn.Module)
        return undecayed_names(self)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        ARCHITECTURES[cls.__name__] = cls

    def _save_pretrained(self, save_directory: Path) -> None:
        assert isinstance(self, nn.Module)
        if is_converted(self):
            _format_of(self).save(self, save_directory)
            return
        weights = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        content = {"library": "tcpvit", "architecture": type(self).__name__, "options": self.config.to_dict()}
        write_atomically(save_directory / WEIGHTS, save(weights, {"format": "pt"}))
        write_json(save_directory / CONFIG, content)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **download: Any) -> Any:
        """The model saved in that folder or repository, in eval mode."""
        # The mixin reads config.json too, but its errors are not ours: look first.
        read_config(_fetch(str(pretrained_model_name_or_path), CONFIG, download))
        return super().from_pretrained(pretrained_model_name_or_path, **download)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **download: Any) -> Any:
        download = {key: download[key] for key in DOWNLOAD if key in download}  # the mixin adds what config.json holds
        content = read_config(_fetch(model_id, CONFIG, download))
        architecture: Any = ARCHITECTURES.get(content["architecture"], object)  # object: a registered format
        if not issubclass(architecture, cls):
            raise ValueError(
                f"{model_id} holds a {content['architecture']}, not a {cls.__name__}; use tcpvit.from_pretrained"
            )
        with within("options"):
            config = architecture.config_class.from_dict(content["options"])
        check_size(config)
        model = architecture(config)
        load_weights(model, _fetch(model_id, WEIGHTS, download))
        return model.eval()


def save_pretrained(model: nn.Module, folder: str | Path) -> None:
    """Write `config.json` and `model.safetensors` of a model of this library, or of a converted one, into `folder`."""
    if isinstance(model, Pretrained):
        model.save_pretrained(folder)
    else:
        _format_of(model).save(model, Path(folder))


def from_pretrained(folder: str | Path, *, model: nn.Module | None = None, **download: Any) -> Any:
    """The model saved in `folder`, or in that repository of the Hugging Face Hub, in eval mode.

    `model` is for converted models whose origin is not known: one built as the original was, with any weights.
    """
    content = read_config(_fetch(str(folder), CONFIG, download))
    if saving := FORMATS.get(content["architecture"]):
        return saving.load(content["options"], _fetch(str(folder), WEIGHTS, download), model)
    if model is not None:
        raise ValueError(f"{folder} holds a {content['architecture']}, which is built by itself; leave model= out")
    return Pretrained.from_pretrained(folder, **download)


def is_converted(model: nn.Module) -> bool:
    """Whether `tensorize_` has converted something in the model."""
    return hasattr(model, ENCODER_NOTE) or any(isinstance(module, TubalLinear) for module in model.modules())


def can_save(model: nn.Module) -> bool:
    """Whether `save_pretrained` takes the model."""
    if isinstance(model, Pretrained) and not is_converted(model):
        return True
    return any(saving.can_save(model) for saving in FORMATS.values())


def _format_of(model: nn.Module) -> Format:
    for saving in FORMATS.values():
        if saving.can_save(model):
            return saving
    raise ValueError(
        f"save_pretrained takes a model of this library or one that tensorize_ converted, got a "
        f"{type(model).__name__}; converted ones are saved by tcpvit.save_pretrained"
    )


def architecture_of(config: Any) -> type[Pretrained]:
    """The model class that a config describes."""
    known = {architecture.config_class: architecture for architecture in ARCHITECTURES.values()}
    if type(config) not in known:
        names = ", ".join(config_class.__name__ for config_class in known)
        raise ValueError(f"a preset is a config of one of {names}, got {type(config).__name__}")
    return known[type(config)]


def read_config(path: Path) -> dict[str, Any]:
    """config.json of one of our models."""
    try:
        content = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is no JSON file ({error}); save the model again") from error
    if not isinstance(content, dict) or content.get("library") != "tcpvit":
        raise ValueError(f"{path} does not describe a tcpvit model; was it written by another library?")
    known = sorted([*ARCHITECTURES, *FORMATS])
    if str(content.get("architecture")) not in known or not isinstance(content.get("options"), dict):
        raise ValueError(
            f"{path} names the architecture {content.get('architecture')!r}, and {known} are known here; converted "
            f"models are loaded by tcpvit.from_pretrained"
        )
    return content


def load_weights(model: nn.Module, path: Path) -> None:
    """Load `path` into `model`; weights that are missing, unknown or of another shape are an error that names them."""
    fit_weights(model, read_weights(path), path)


def fit_weights(model: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Load weights that were read from `path`."""
    expected = model.state_dict()
    problems = [f"{name} is missing" for name in expected if name not in weights]
    problems += [f"{name} is unknown" for name in weights if name not in expected]
    problems += [
        f"{name} has shape {tuple(weights[name].shape)}, the model {tuple(expected[name].shape)}"
        for name in expected
        if name in weights and weights[name].shape != expected[name].shape
    ]
    problems += _bad_values(weights, expected)
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ValueError(f"the weights of {path} do not fit the model: {'; '.join(problems[:5])}{more}")
    dtypes = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())
    model.load_state_dict(weights)


def _bad_values(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """Weights of a type that the model cannot have, and those that hold NaN or infinity."""
    problems = []
    for name in [name for name in expected if name in weights]:
        found, wanted = weights[name].dtype, expected[name].dtype
        if found != wanted and not (wanted in FLOATS and found in FLOATS):
            problems.append(f"{name} is of type {found}, the model's of {wanted}")
        elif found in FLOATS and not weights[name].isfinite().all():
            problems.append(f"{name} holds NaN or infinity")
    return problems


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return load_file(path)
    except (SafetensorError, OSError, torch.serialization.pickle.UnpicklingError) as error:
        raise ValueError(f"{path} is no complete safetensors file ({error}); copy or download it again") from error


def _fetch(model_id: str, name: str, download: dict[str, Any]) -> Path:
    """A file of a local folder or of the Hub."""
    for key in download:
        if key not in DOWNLOAD:
            raise ValueError(
                f"a saved model is loaded as it is, and {key!r} is no option of that{did_you_mean(key, DOWNLOAD)}; "
                "change the model afterwards, its head by reset_classifier"
            )
    if Path(model_id).is_dir():
        path = Path(model_id) / name
        if not path.is_file():
            raise ValueError(f"{model_id} has no {name}; a saved model has {CONFIG} and {WEIGHTS}")
        return path
    try:
        return Path(hf_hub_download(model_id, name, **download))
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        raise ValueError(f"{model_id} is no folder, and the Hub gave no {name} for it: {error}") from error
