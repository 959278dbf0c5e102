"""What a ViT is made of: one frozen dataclass for Std and TCP, whose unknown keys and unfit sizes are errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Le

from tcpvit.errors import divisors
from tcpvit.layers.attention import AttentionKind, check_heads
from tcpvit.layers.bands import check_bands
from tcpvit.layers.block import ActivationDomain
from tcpvit.layers.coupling import Coupling
from tcpvit.layers.embed import PatchEmbedding, TubeAxes, by, patch_grid, patch_shape
from tcpvit.layers.local import conv_widths
from tcpvit.validation import (
    Count,
    Extent,
    Flag,
    Maybe,
    Natural,
    Number,
    Positive,
    Rate,
    Text,
    Words,
    checked,
    dataclass,
    unknown_option,
    within,
)

if TYPE_CHECKING:
    from typing_extensions import Self

Kind = Literal["std", "tcp"]
Pool = Literal["token", "avg"]
Transforms = Text | tuple[Text, Text]
Ratio = Annotated[Positive, Le(1024)]  # of the hidden width of an MLP to that of its tokens
TCP_OPTIONS = ("tube", "transform", "attention", "activation_domain", "coupling")  # a standard model has none of them


class SavedConfig:
    """What all configs have in common, each a frozen dataclass: JSON and back, and the coupling of their slices."""

    coupling: tuple[str, ...]

    @cached_property
    def slice_coupling(self) -> Coupling:
        """`coupling`, the words that are saved, as the layers take it."""
        return Coupling.parse(self.coupling)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        values = asdict(self)  # type: ignore[call-overload]
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Self:
        """From JSON; an unknown key is an error that names the nearest one."""
        return checked(dict(options), cls, "")


class EncoderConfig(SavedConfig):
    """What the configs of ViT and Swin have in common; each is a frozen dataclass with these fields and more."""

    kind: str
    img_size: int | tuple[int, ...]
    patch_size: int | tuple[int, ...]
    in_chans: int
    embed_dim: int | None
    mlp_ratio: float
    qkv_bias: bool
    drop_rate: float
    attn_drop_rate: float
    drop_path_rate: float
    tube: int | str | None
    attention: str
    activation_domain: str
    depth: int  # blocks in all

    @property
    def ndim(self) -> int:
        """2 for images, 3 for volumes and clips: as many as the image size or the patch size names."""
        return max(2 if isinstance(size, int) else len(size) for size in (self.img_size, self.patch_size))

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(height, width) of the images it is built for, (depth, height, width) of volumes."""
        return (self.img_size,) * self.ndim if isinstance(self.img_size, int) else self.img_size

    @property
    def patch_shape(self) -> tuple[int, ...]:
        """The sides of a patch."""
        return patch_shape(self.patch_size, self.ndim)

    @property
    def pixels(self) -> int:
        """Numbers of one channel in a patch, as it is cut."""
        return prod(self.patch_shape)

    def grid_of(self, *size: int) -> tuple[int, ...]:
        """How many patches an image of that size has along each axis."""
        return patch_grid(size, self.patch_shape)

    @property
    def channels(self) -> int:
        """Channels of what is cut into patches, which may be others than those of the images."""
        return self.in_chans

    @property
    def coefficients(self) -> int:
        """How many channels there are before any convolution: the tube, unless another is given."""
        return self.in_chans

    @property
    def width(self) -> int:
        """The full width D = d·C of a token, in a Swin that of the first stage."""
        return self.embed_dim or self.pixels * self.channels

    @property
    def tube_length(self) -> int:
        """C: the tube of a TCP model, 1 for a standard one."""
        if self.kind == "std":
            return 1
        return self.tube if isinstance(self.tube, int) else prod(self.tube_shape)

    @property
    def tube_shape(self) -> tuple[int, ...]:
        """The lengths of a tube: one, or two for tensors of order 4."""
        return (self.tube if isinstance(self.tube, int) else self.coefficients,)

    @property
    def d(self) -> int:
        """The width of a slice."""
        return self.width // self.tube_length

    def block_options(self, i: int) -> dict[str, Any]:
        """What block i is told beside its sizes; stochastic depth rises linearly with the depth."""
        options = {
            "mlp_ratio": self.mlp_ratio,
            "qkv_bias": self.qkv_bias,
            "drop": self.drop_rate,
            "attn_drop": self.attn_drop_rate,
            "drop_path": self.drop_path_rate * i / max(self.depth - 1, 1),
        }
        if self.kind == "std":
            return options
        words = {"attention": self.attention, "activation_domain": self.activation_domain}
        return {**options, **words, "coupling": self.slice_coupling}


@dataclass(frozen=True)
class ViTConfig(EncoderConfig):
    """A standard ViT (`kind="std"`) or a TCP-ViT (`kind="tcp"`); `embed_dim` is the full width d·C of both.

    For scenes of many bands, `kept` coefficients of each spectrum take the place of its `in_chans` bands. Volumes and
    clips have sizes of three axes, (T, H, W), and a tube along the channels, the depth of a patch, or two axes.

    >>> ViTConfig(kind="tcp", img_size=32, patch_size=4).d
    16
    >>> ViTConfig("tcp", img_size=(8, 32, 32), patch_size=(4, 8, 8), tube="depth+channels").tube_shape
    (4, 3)
    """

    kind: Kind
    img_size: Extent
    patch_size: Extent
    in_chans: Count = 3
    num_classes: Natural = 10
    global_pool: Pool = "token"  # the class token, or "avg": the mean of the patch tokens
    embed_dim: Maybe[Count] = None  # full width; None: P²·in_chans, the paper's (of volumes P_t·P_h·P_w·in_chans)
    depth: Count = 4
    num_heads: Count = 4  # TCP: heads in each slice
    mlp_ratio: Ratio = 4.0
    qkv_bias: Flag = True
    factorised: Flag = False  # of volumes: blocks attend in turn within a frame and along the depth, not to all patches
    distilled: Flag = False  # DeiT: a second token and a second head, for distillation
    drop_rate: Rate = 0.0
    attn_drop_rate: Rate = 0.0
    drop_path_rate: Rate = 0.0  # of the last block, rising linearly from 0
    patch_embed: PatchEmbedding | None = None  # None: what fits best, see `embedding`
    kept: Maybe[Count] = None  # first coefficients of the spectrum of in_chans bands; None: the channels as they are
    band_basis: Text = "dct"  # of the spectrum
    stem_width: Maybe[Count] = None  # patch_embed="conv": features between its convolutions; None: half the width
    class_token: Flag = True  # False: patch tokens only, global_pool="avg"
    positions: Flag = True  # learned ones; local filters know where the border is, and need none
    local: Natural = 0  # side of a depthwise filter in each FFN, on the grid of the tokens; 0: none
    gated: Flag = False  # the FFN multiplies GELU of half of fc1 by the other half
    attention_pool: Count = 1  # attention between means of so many × so many tokens
    zero_residual: Flag = False  # proj and fc2 start at zero, so that every block starts as the identity
    stem: Natural = 0  # features that a separable c-product convolution makes of each slice before the patches; 0: none
    wavelengths: Maybe[tuple[Number, ...]] = None  # of the bands it is trained on, in nanometres
    # From here on TCP only.
    tube: Maybe[Count | TubeAxes] = None  # C, or what it runs along; None: the kept coefficients, or the channels
    transform: Transforms = "dct"  # with tube="depth+channels" or "depth+height" along both, or one for each
    attention: AttentionKind = "slice"
    activation_domain: ActivationDomain = "transform"
    coupling: Words = ()

    def __post_init__(self) -> None:
        if self.distilled and self.global_pool != "token":
            raise ValueError(f"a distilled ViT reads its two tokens, global_pool='token', got {self.global_pool!r}")
        if not self.class_token and (self.distilled or self.global_pool != "avg"):
            raise ValueError("without a class token the head reads the mean of the patches: global_pool='avg'")
        self._check_spectrum()
        self._check_volume()
        check_common(self)
        self._check_neighbours()
        if self.kind == "std" and self.embedding not in ("linear", "conv"):
            raise ValueError(f"a standard ViT has patch_embed='linear' or 'conv', got {self.patch_embed!r}")
        check_heads(self.d, self.num_heads, "width" if self.kind == "std" else "slice width")

    def _check_neighbours(self) -> None:
        """What lies on the grid of tokens fits to it."""
        grid, spatial = self.grid_of(*self.image_shape), self.local or self.attention_pool > 1
        if self.ndim == 3 and (spatial or self.embedding == "conv"):
            raise ValueError(
                "local, attention_pool and patch_embed='conv' are for images, but this model takes volumes"
            )
        if self.class_token and spatial:
            raise ValueError("local and attention_pool act on the grid of patch tokens; set class_token=False")
        if self.local and not self.local % 2:
            raise ValueError(f"local={self.local}: filters have a token in their middle; take 0 or an odd side")
        if any(side % self.attention_pool for side in grid):
            raise ValueError(f"attention_pool={self.attention_pool} does not divide the grid of {by(grid)} tokens")
        if self.embedding == "conv":
            self._check_convolutions()
        elif self.stem_width is not None:
            raise ValueError(f"stem_width is an option of patch_embed='conv', got patch_embed={self.embedding!r}")

    def _check_convolutions(self) -> None:
        """Square patches, and widths of whole slices."""
        if len(set(self.patch_shape)) > 1:
            raise ValueError(f"patch_embed='conv' takes square patches, got {by(self.patch_shape)}")
        for width in conv_widths(self.patch_shape[0], self.between, self.width):
            if width % self.tube_length:
                raise ValueError(
                    f"stem_width={width} is no multiple of the tube {self.tube_length}; the slices stay apart in it"
                )

    def _check_spectrum(self) -> None:
        if self.kept is not None:
            check_bands(self.in_chans, self.kept, self.band_basis)
        elif self.band_basis != "dct":
            raise ValueError(f"band_basis={self.band_basis!r} needs kept, the number of its coefficients to keep")
        if self.wavelengths is not None and len(self.wavelengths) != self.in_chans:
            raise ValueError(f"{len(self.wavelengths)} wavelengths were given for {self.in_chans} bands")
        if self.wavelengths is not None and min(self.wavelengths) <= 0:
            raise ValueError(f"wavelengths are positive numbers of nanometres, got {min(self.wavelengths):g}")

    def _check_volume(self) -> None:
        if len(self.image_shape) != self.ndim:
            raise ValueError(
                f"an image of {self.ndim - 1} sides has no patches of {self.ndim}, got img_size={self.img_size} and "
                f"patch_size={self.patch_size}; give both three, as img_size=[16, 32, 32] patch_size=[4, 8, 8]"
            )
        if self.ndim == 2 and (self.factorised or self.tube_axes != "channels"):
            what = "factorised" if self.factorised else f"tube={self.tube}"
            raise ValueError(f"{what} is for volumes and clips; give img_size three sides, as [16, 32, 32]")
        if self.ndim == 3 and (self.kept is not None or self.stem or self.patch_embed == "sub_patch"):
            raise ValueError("kept, stem and patch_embed=sub_patch are for images, and this model takes volumes")
        if not isinstance(self.transform, str) and len(self.tube_shape) != 2 and self.kind == "tcp":
            raise ValueError(f"a transform for each of two axes, {self.transform}, needs a tube as tube=depth+channels")

    @property
    def tube_axes(self) -> TubeAxes:
        """What the tube runs along."""
        return self.tube if isinstance(self.tube, str) else "channels"

    @property
    def is_deep(self) -> bool:
        """True if the depth of a patch is (a part of) the tube."""
        return self.tube_axes != "channels" and self.patch_embed != "linear"

    @property
    def tube_shape(self) -> tuple[int, ...]:
        """The lengths of a tube: one, or (C_t, C) for tensors of order 4."""
        if self.tube_axes == "channels":
            return super().tube_shape
        depth, height, _ = self.patch_shape
        return {"depth": (depth,), "depth+height": (depth, height)}.get(self.tube_axes, (depth, self.coefficients))

    @property
    def coefficients(self) -> int:
        """What is kept of a spectrum, or all channels."""
        return self.in_chans if self.kept is None else self.kept

    @property
    def channels(self) -> int:
        """Channels of what is cut into patches; slices of a patch's depth are channels if the tube runs along it."""
        return self.coefficients * max(self.stem, 1) * prod(self.patch_shape) // self.pixels

    @property
    def pixels(self) -> int:
        """Numbers of one channel in a patch, as it is cut."""
        if not self.is_deep:
            return prod(self.patch_shape)
        return prod(self.patch_shape[2:] if self.tube == "depth+height" else self.patch_shape[1:])

    @property
    def embedded_channels(self) -> int:
        """Channels of what the patch embedding is given, which of a volume makes channels of its depth itself."""
        return self.in_chans if self.ndim == 3 else self.channels

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches: the class token, and the distillation token of a DeiT."""
        return self.class_token + self.distilled

    @property
    def between(self) -> int:
        """Features between the convolutions of patch_embed="conv"."""
        return self.stem_width or self.width // (2 * self.tube_length) * self.tube_length

    def block_options(self, i: int) -> dict[str, Any]:
        """The options of every encoder, and what the tokens do on their grid."""
        neighbours = {"local": self.local, "gated": self.gated, "attention_pool": self.attention_pool}
        return {**super().block_options(i), **neighbours}

    @property
    def embedding(self) -> str:
        """`patch_embed`, or where it is None: linear if the tube is not the channels, none if d = P², else t_linear."""
        if self.patch_embed is not None:
            return self.patch_embed
        if self.kind == "std" or (self.tube_length != self.channels and not self.is_deep):
            return "linear"
        return "none" if self.tube_length == self.channels and self.d == self.pixels else "t_linear"


def check_common(config: Any) -> None:
    """What holds for every model that is Std or TCP: known couplings, no TCP option for Std, a tube that fits."""
    _ = config.slice_coupling  # its words are known
    defaults = {f.name: f.default for f in fields(config)}
    for name in TCP_OPTIONS:
        if config.kind == "std" and getattr(config, name) != defaults[name]:
            raise ValueError(f"{name} is an option of TCP models, but this is a standard ViT; leave it out")
    if config.width % config.tube_length:
        raise ValueError(
            f"the tube {config.tube_length} does not divide the width {config.width}; take one of "
            f"{divisors(config.width)}"
        )
    if int(config.mlp_ratio * config.d) < 1:
        raise ValueError(f"mlp_ratio={config.mlp_ratio} leaves no hidden feature of d={config.d}; take a larger one")


def override(config: Any, options: Mapping[str, Any]) -> Any:
    """A config with fields changed; a mapping changes fields of the config that stands in that field.

    >>> override(ViTConfig(kind="tcp", img_size=32, patch_size=4), {"depth": 2}).depth
    2
    """
    known = {item.name for item in fields(config)}
    changes = {}
    for key, value in options.items():
        if key not in known:
            raise unknown_option(key, type(config))
        inside = getattr(config, key)
        nested = isinstance(value, Mapping) and is_dataclass(inside)
        if is_dataclass(inside) and not nested and type(value) is not type(inside):
            raise ValueError(f"{key} is a group of options, as {key}.{fields(inside)[0].name}, got {key}={value!r}")
        with within(key):
            changes[key] = override(inside, value) if nested else value
    return replace(config, **changes)


def without_tcp_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those that a standard model has no choice of, in the parts of a model too.

    >>> without_tcp_options({"num_classes": 3, "backbone": {"depth": 8, "attention": "joint"}})
    {'num_classes': 3, 'backbone': {'depth': 8}}
    """
    return {
        key: without_tcp_options(value) if isinstance(value, Mapping) else value
        for key, value in options.items()
        if key not in (*TCP_OPTIONS, "patch_embed")
    }
