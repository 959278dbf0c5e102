"""What to tensorise, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

from torch import Tensor, nn

from tcpvit.algebra.transforms import Transform
from tcpvit.errors import did_you_mean
from tcpvit.layers.transform import HatTransform

Init = Literal["project", "fresh"]
Convs = Literal["none", "pointwise", "patch", "all"]
Arrange = Literal["none", "inside", "all"]
Mode = Literal["drop_in", "encoder"]
Attention = Literal["slice", "joint"]
ActivationDomain = Literal["transform", "spatial"]
Norm = Literal["slice", "token"]


@dataclass(frozen=True)
class TensorizeConfig:
    """How `tensorize_` converts a model.

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
        mode: "drop_in" replaces layer by layer; "encoder" takes the whole encoder into the hat domain.
        attention: in encoder mode, "slice" gives every slice H/C heads, "joint" lets the slices share their maps.
        activation_domain: in encoder mode, where the MLP's activation acts: on hat slices, or on "spatial" features.
        norm: in encoder mode, "slice" norms every slice by itself, "token" all of them together, as the model did.
    """

    tube: int = 3
    transform: str | Transform | Tensor = "dct"
    init: Init = "project"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    filter_fn: Callable[[nn.Module, str], bool] | None = None
    min_features: int = 0
    heads: bool = False
    convs: Convs = "none"
    arrange: Arrange = "inside"
    strict: bool = False
    mode: Mode = "drop_in"
    attention: Attention = "slice"
    activation_domain: ActivationDomain = "transform"
    norm: Norm = "slice"

    def __post_init__(self) -> None:
        if not isinstance(self.tube, int) or self.tube < 2:
            raise ValueError(f"the tube is a whole number of at least 2, got {self.tube!r}")
        hints = get_type_hints(type(self))
        for name in ("init", "convs", "arrange", "mode", "attention", "activation_domain", "norm"):
            known = get_args(hints[name])
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is one of {', '.join(known)}, got {getattr(self, name)!r}")
        for name in ("include", "exclude"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        found = HatTransform(self.transform, self.tube)
        if self.init == "project" and not found.is_orthogonal:
            raise ValueError(
                f"the nearest c-product weight is known for orthogonal transforms only, {found.name} is not one; "
                f'take another, or init="fresh"'
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; a transform that no name determines is called "matrix", its numbers are in the weights."""
        content = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "filter_fn"}
        transform = HatTransform(self.transform, self.tube).name
        return {**content, "include": list(self.include), "exclude": list(self.exclude), "transform": transform}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> TensorizeConfig:
        """From what `to_dict` gave."""
        known = [item.name for item in fields(cls)]
        for name in content:
            if name not in known:
                raise ValueError(f"TensorizeConfig has no field {name!r}{did_you_mean(name, known)}")
        return cls(**content)
