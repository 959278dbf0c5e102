"""What to tensorise, and how: one config for each of the two methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from tcpvit.algebra.transforms import Transform
from tcpvit.layers.attention import AttentionKind
from tcpvit.layers.block import ActivationDomain
from tcpvit.layers.transform import HatTransform
from tcpvit.memory import check_memory
from tcpvit.validation import Count, Flag, Natural, Patterns, Share, checked, dataclass, unknown_option

Init = Literal["project", "fresh"]
Convs = Literal["none", "pointwise", "patch", "all"]
Arrange = Literal["none", "inside", "all"]
Norm = Literal["slice", "token"]


@dataclass(frozen=True)
class Conversion:
    """What both methods have in common."""

    mode: ClassVar[str]  # what `tensorize_(model, mode=...)`, the command line and config.json call the method

    tube: Count = 3
    transform: str | Transform | Tensor = "dct"
    init: Init = "project"

    def __post_init__(self) -> None:
        if self.tube < 2 and not getattr(self, "rank", 0):
            raise ValueError(f"tube is at least 2, got {self.tube}; low rank alone is tube=1 with a rank=")
        check_memory(4 * 8 * self.tube**2, f"the transform of a tube of {self.tube}", "choose a shorter tube")
        found = HatTransform(self.transform, self.tube)
        if self.init == "project" and not found.is_orthogonal:
            raise ValueError(
                f"the nearest c-product weight is known for orthogonal transforms only, {found.name} is not one; "
                f'take another, or init="fresh"'
            )

    @classmethod
    def options(cls) -> list[str]:
        """The names of the fields that a file or a command line can give."""
        return [item.name for item in fields(cls) if item.name != "filter_fn"]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; a transform that no name determines is called "matrix", its numbers are in the weights."""
        content = {name: getattr(self, name) for name in self.options()}
        lists = {name: list(value) for name, value in content.items() if isinstance(value, tuple)}
        return {"mode": self.mode, **content, **lists, "transform": HatTransform(self.transform, self.tube).name}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Any:
        """From what `to_dict` gave."""
        return checked({name: value for name, value in content.items() if name != "mode"}, cls, "")


@dataclass(frozen=True)
class TensorizeConfig(Conversion):
    """How `tensorize_` replaces a model's linear layers one by one.

    Args:
        tube: the tube length C; a layer whose widths it does not divide is left as it is.
        transform: the tube transform, a name or one of `tcpvit.algebra`'s transforms or an orthogonal matrix.
        init: "project" takes the c-product weights nearest to the model's, for pretrained models; "fresh" draws them
            anew, as strong as the model's were.
        include: convert only layers whose names match one of these wildcards, as "blocks.*.mlp.*".
        exclude: leave layers whose names match one of these.
        filter_fn: convert only layers for which filter_fn(module, name) is true.
        min_features: leave layers with fewer input or output features than this.
        heads: convert classifier and vocabulary heads too.
        convs: convert convolutions too: "pointwise" those of 1×1, "patch" those whose stride is their kernel, or "all".
        arrange: with init="project", reorder features before projecting so that less is lost: "inside" MLPs and
            attention heads, where nothing else sees it, "all" also along the residual stream of timm's ViTs, whose
            `forward_features` then has its features in another order, or "none".
        strict: a layer that cannot be converted because of its width is an error.
        rank: a map through so many numbers beside the slices; with tube=1, instead of them.
        keep: the share of the converted layers' weights that is kept, as 0.5; which layer gets which tube and rank is
            decided on `calibrate=`, and `tube` and `rank` are not used.
        budget: what `keep` is a share of: "parameters", or the measured "time" of the layers.
        structure: with `keep`, what layers may become: "slices", "low_rank", "both" beside each other, or what is
            "best" for each.
        sequential: with `keep`, fit each layer behind those that are converted already, not each by itself.
        uniform: with `keep`, keep the same share of every layer; what no layer can use up goes where it wins most.
        forms: tube and rank of single layers by name, as a calibration chose them.
    """

    mode = "drop_in"

    include: Patterns = ()
    exclude: Patterns = ()
    filter_fn: Callable[[nn.Module, str], bool] | None = None
    min_features: Natural = 0
    heads: Flag = False
    convs: Convs = "none"
    arrange: Arrange = "inside"
    strict: Flag = False
    rank: Natural = 0
    keep: Share | None = None
    budget: Literal["parameters", "time"] = "parameters"
    structure: Literal["best", "slices", "low_rank", "both"] = "best"
    sequential: Flag = True
    uniform: Flag = False
    forms: dict[str, tuple[Count, Natural]] = field(default_factory=dict)

    def form_of(self, name: str) -> tuple[int, int]:
        """Tube and rank of a layer."""
        return self.forms.get(name, (self.tube, self.rank))


@dataclass(frozen=True)
class EncoderConfig(Conversion):
    """How `tensorize_` takes a whole encoder into the hat domain.

    Args:
        tube: the tube length C, which divides the width of the encoder.
        transform: the tube transform, as in TensorizeConfig.
        init: "project" or "fresh", as in TensorizeConfig.
        attention: "slice" gives every slice H/C heads, "joint" lets the slices share their maps.
        activation_domain: where the MLP's activation acts: on hat slices, or on "spatial" features.
        norm: "slice" norms every slice by itself, "token" all of them together, as the model did.
    """

    mode = "encoder"

    attention: AttentionKind = "slice"
    activation_domain: ActivationDomain = "transform"
    norm: Norm = "slice"


METHODS: dict[str, type[TensorizeConfig] | type[EncoderConfig]] = {
    config.mode: config for config in (TensorizeConfig, EncoderConfig)
}


def make_config(
    config: TensorizeConfig | EncoderConfig | None = None, options: Mapping[str, Any] | None = None
) -> TensorizeConfig | EncoderConfig:
    """`config` with options changed; without one, that of the method that the option `mode` names, or of drop-ins.

    >>> make_config(options={"mode": "encoder", "tube": 4}) == EncoderConfig(tube=4)
    True
    """
    options = dict(options or {})
    mode = options.pop("mode", config.mode if config else TensorizeConfig.mode)
    if mode not in METHODS:
        raise ValueError(f"mode is one of {', '.join(METHODS)}, got {mode!r}")
    method = METHODS[mode]
    if config is not None and not isinstance(config, method):
        raise ValueError(f"mode={mode!r} takes a {method.__name__}, got a {type(config).__name__}")
    _check_options(method, options)
    return replace(config, **options) if config else method(**options)


def _check_options(method: type[Conversion], options: Mapping[str, Any]) -> None:
    known = [item.name for item in fields(method)]
    for name in options:
        of_another = [other for other in METHODS.values() if name in {item.name for item in fields(other)}]
        if name not in known and of_another:
            raise ValueError(
                f"{name} is an option of {of_another[0].__name__} (mode={of_another[0].mode!r}), which "
                f"{method.__name__} (mode={method.mode!r}) does not use"
            )
        if name not in known:
            raise unknown_option(name, method)


def read_config(content: Mapping[str, Any]) -> TensorizeConfig | EncoderConfig:
    """The config that config.json of a saved model holds. Version 0.1.0 wrote the fields of both methods."""
    mode = content.get("mode", TensorizeConfig.mode)
    if not isinstance(mode, str) or mode not in METHODS:
        raise ValueError(f"mode is one of {', '.join(METHODS)}, got {mode!r}")
    method = METHODS[mode]
    of_others = {name for other in METHODS.values() for name in other.options()} - set(method.options())
    return method.from_dict({name: value for name, value in content.items() if name not in of_others})
