"""What a model costs, predicted from its config alone: parameters and FLOPs by component, exact to the unit.

Std-ViT is the case of one slice (C = 1, d = D) throughout. A multiply-add counts 2. Tokens are 1 + N: a model has a
class token (and a DeiT a distillation token beside it), which the paper's formulas (`analysis.theory`) leave out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from tcpvit.analysis.count import Count, Work
from tcpvit.analysis.decoder import decoder_parameters, decoder_work
from tcpvit.layers.coupling import Coupling, two_factor_width
from tcpvit.layers.local import conv_widths
from tcpvit.models.config import ViTConfig
from tcpvit.models.segmenter import SegmenterConfig

# Elementary operations per entry; exp, erf and a division count as one each.
SOFTMAX = 5  # maximum, subtract, exp, sum, divide
NORM = 7  # mean; subtract, square, sum; scale by 1/σ; γ, β
GELU = 5  # x/√2, erf, +1, ·x, ·½


@dataclass(frozen=True)
class _Map:
    """A linear map of the encoder, d_in -> d_out in each of C slices, with the coupling it carries."""

    tube: int
    d_in: int
    d_out: int
    bias: bool
    coupling: Coupling

    @property
    def d_dense(self) -> int:
        return self.coupling.dense_features(self.d_out)

    @property
    def products(self) -> int:
        """Multiply-adds of a token, one for each weight of each slice."""
        if self.coupling.two_factor:
            return self.tube * two_factor_width(self.d_in, self.d_out) * (self.d_in + self.d_out)
        return self.tube * self.d_in * (self.d_out - self.d_dense)

    @property
    def parameters(self) -> int:
        """Weights and biases of the slices; shared ones count once."""
        all_slices = self.products + (self.tube * self.d_out if self.bias else 0)
        return all_slices // self.tube if self.coupling.shared else all_slices

    @property
    def coupling_weights(self) -> int:
        """U, V of low_rank and the dense part of partial: each takes part in one multiply-add per token."""
        low_rank = self.tube * self.coupling.low_rank * (self.d_in + self.d_out)
        return low_rank + self.tube * self.d_in * self.tube * self.d_dense

    @property
    def mix_weights(self) -> int:
        """The C×C matrix, which is applied to each of the d_in features, or behind a shared weight to fewer."""
        return self.tube**2 if self.coupling.mix else 0

    def work(self, tokens: int) -> Work:
        mixed = min(self.d_in, self.d_out) if self.coupling.shared else self.d_in
        return Work(
            products=2 * tokens * self.products,
            coupling=2 * tokens * (self.coupling_weights + self.mix_weights * mixed),
        )


def _maps(config: ViTConfig) -> dict[str, _Map]:
    """The four linear maps of a block."""
    C, d, hidden = config.tube_length, config.d, _hidden(config)
    coupling = config.slice_coupling
    sizes = {"qkv": (d, 3 * d), "proj": (d, d), "fc1": (d, hidden * (1 + config.gated)), "fc2": (hidden, d)}
    return {
        name: _Map(C, d_in, d_out, config.qkv_bias if name == "qkv" else True, coupling)
        for name, (d_in, d_out) in sizes.items()
    }


def _hidden(config: ViTConfig) -> int:
    """Features of a slice within the FFN."""
    return int(config.mlp_ratio * config.d)


def predict_parameters(config: ViTConfig | SegmenterConfig) -> Count:
    """Parameters by component.

    >>> from tcpvit.models import model_config
    >>> predict_parameters(model_config("tcp_vit_cifar")).components["qkv"]     # four blocks of 3 × 816
    9792
    """
    if isinstance(config, SegmenterConfig):
        return Count.of({**predict_parameters(config.backbone).components, **decoder_parameters(config)})
    width, maps = config.width, _maps(config)
    patches = prod(config.grid_of(*config.image_shape))
    own = config.d if config.slice_coupling.shared else width  # of a norm or a position
    blocks = {name: m.parameters for name, m in maps.items()}
    blocks["norms"] = 4 * own
    blocks["local"] = (config.local**2 + 1) * _hidden(config) * own // config.d if config.local else 0
    blocks["coupling"] = sum(m.coupling_weights + m.mix_weights for m in maps.values())
    return Count.of(
        {
            "bands": config.coefficients * config.in_chans if config.band_basis == "learned" else 0,
            "stem": config.coefficients**2 + 10 * config.stem if config.stem else 0,
            "patch_embed": _embedding_parameters(config),
            "cls_token": width if config.class_token else 0,
            "dist_token": width if config.distilled else 0,
            "pos_embed": (config.num_prefix_tokens + patches) * own if config.positions else 0,
            **{name: config.depth * n for name, n in blocks.items()},
            "final_norm": 2 * own,
            "transform": config.tube_length**2 if config.transform == "learned" else 0,
            "head": (width + 1) * config.num_classes,
            "head_dist": (width + 1) * config.num_classes if config.distilled else 0,
        }
    )


def _embedding_parameters(config: ViTConfig) -> int:
    pixels, width, C = config.pixels, config.width, config.tube_length
    own = 1 if config.slice_coupling.shared else C
    if config.embedding == "conv":
        return sum(9 * read * written + written for read, written in _convolutions(config))
    return {
        "none": 0,
        "shared": pixels * config.d,
        "t_linear": own * (pixels * config.channels // C + 1) * config.d,
        "linear": (pixels * config.channels + 1) * width,
        "sub_patch": own * (pixels * config.channels // C + 1) * config.d,
    }[config.embedding]


def _convolutions(config: ViTConfig) -> list[tuple[int, int]]:
    """What a filter of each convolution of patch_embed="conv" reads, and how many filters there are."""
    widths = conv_widths(config.patch_shape[0], config.between, config.width)
    return [(config.channels, widths[0]), *((a // config.tube_length, b) for a, b in pairwise(widths))]


def predict_flops(
    config: ViTConfig | SegmenterConfig, image_size: int | tuple[int, ...] | None = None
) -> dict[str, Work]:
    """The work of one image by component; `image_size` (height, width), of a volume three, is the config's by default.

    >>> from tcpvit.models import model_config
    >>> work = predict_flops(model_config("tcp_vit_cifar"))
    >>> work["qkv"].products, work["attention"].softmax          # 4·2·65·3·16·48 and 4·5·12·65²
    (1198080, 1014000)
    """
    size = (image_size,) * config.ndim if isinstance(image_size, int) else image_size or config.image_shape
    if isinstance(config, SegmenterConfig):
        backbone = _vit_work(config.backbone, size, every_token=True)
        return {**backbone, **decoder_work(config, size)}
    return _vit_work(config, size)


def _vit_work(config: ViTConfig, image_size: tuple[int, ...], every_token: bool = False) -> dict[str, Work]:
    """`every_token` says that all tokens are read behind the last block; a head reads the first ones, or the mean."""
    grid = config.grid_of(*image_size)
    patches = prod(grid)
    tokens, C, D, L = config.num_prefix_tokens + patches, config.tube_length, config.width, config.depth
    left = tokens if every_token else config.num_prefix_tokens  # these leave the hat domain
    read = tokens if every_token or config.global_pool == "avg" else left
    left = left if every_token or config.global_pool == "token" else 1
    meeting = config.num_prefix_tokens + patches // config.attention_pool**2  # tokens that attend to each other
    maps = config.num_heads * (1 if config.attention == "joint" else C)  # softmax maps of a block
    linear = {name: m.work(meeting if name in ("qkv", "proj") else tokens) * L for name, m in _maps(config).items()}
    hidden = tokens * C * _hidden(config)
    transformed = _transformed(config)
    pixels, pairs = prod(image_size), _pairs(config, grid)
    return {
        "bands": Work(transform=2 * pixels * config.in_chans * config.kept if config.kept else 0),
        "stem": _stem_work(config, pixels),
        "patch_embed": _embedding_work(config, patches),
        "norms": Work(norm=NORM * 2 * tokens * D) * L,
        "qkv": linear["qkv"],
        "attention": Work(products=4 * pairs * D, softmax=SOFTMAX * maps * pairs),
        "proj": linear["proj"],
        "fc1": linear["fc1"],
        "local": Work(products=2 * config.local**2 * hidden) * L,
        "activation": _activation_work(config, hidden) * L + _formed(config, "activation"),
        "fc2": linear["fc2"],
        "final_norm": Work(norm=NORM * read * D),
        "transform": Work(transform=2 * transformed * left * D if config.kind == "tcp" else 0)  # on the way out
        + _formed(config, "transform"),
        "head": Work(products=2 * D * config.num_classes),
        "head_dist": Work(products=2 * D * config.num_classes if config.distilled else 0),
    }


def _activation_work(config: ViTConfig, hidden: int) -> Work:
    """GELU, a product more if the FFN is gated, and if it acts in the spatial domain the way there and back."""
    spatial = config.activation_domain == "spatial"
    transform = 2 * (2 + config.gated) * _transformed(config) * hidden if spatial else 0
    return Work(activation=(GELU + config.gated) * hidden, transform=transform)


def _pairs(config: ViTConfig, grid: tuple[int, ...]) -> int:
    """Pairs of tokens that look at each other, in all blocks: in a factorised model those of a frame, or of a place."""
    first, L = config.num_prefix_tokens, config.depth
    if not config.factorised:
        return L * (first + prod(grid) // config.attention_pool**2) ** 2
    frames, places = grid[0], prod(grid[1:])
    return -(-L // 2) * frames * (first + places) ** 2 + L // 2 * places * (first + frames) ** 2


def _stem_work(config: ViTConfig, pixels: int) -> Work:
    """The mixing of the slices, and 3×3 filters for each feature of each slice."""
    if not config.stem:
        return Work()
    mix, filters = config.coefficients**2, 9 * config.channels
    return Work(products=2 * pixels * (mix + filters), activation=GELU * pixels * config.channels)


def _embedding_work(config: ViTConfig, patches: int) -> Work:
    """Φ acts on the pixels, or with a dense embedding on its result: 2·C for each number."""
    if config.embedding == "conv":
        return _convolution_work(config, patches)
    pixels, C = config.pixels, config.tube_length
    in_patch = pixels * config.channels
    entered = {"linear": config.width, "none": pixels * C, "shared": pixels * C}.get(config.embedding, in_patch)
    entered = 0 if config.kind == "std" else patches * entered
    per_patch = {
        "none": 0,
        "shared": C * pixels * config.d,
        "t_linear": in_patch * config.d,
        "linear": in_patch * config.width,
        "sub_patch": in_patch * config.d,
    }[config.embedding]
    work = Work(products=2 * patches * per_patch, transform=2 * _transformed(config) * entered)
    return work + _formed(config, "patch_embed")


def _formed(config: ViTConfig, component: str) -> Work:
    """A learned Φ is the product of two C×C matrices, formed where it first acts: a convolution gives hat slices."""
    behind = "activation" if config.activation_domain == "spatial" else "transform"
    first = behind if config.embedding == "conv" else "patch_embed"
    return Work(transform=2 * config.tube_length**3 if config.transform == "learned" and component == first else 0)


def _convolution_work(config: ViTConfig, patches: int) -> Work:
    """Each convolution has four times the places of the one behind it, and all but the last are followed by GELU."""
    work, convolutions = Work(), _convolutions(config)
    for i, (read, written) in enumerate(convolutions):
        behind = len(convolutions) - 1 - i
        places = patches * 4**behind
        gelu = GELU * places * written if behind else 0
        work += Work(products=2 * 9 * read * written * places, activation=gelu)
    return work


def _transformed(config: ViTConfig) -> int:
    """Multiply-adds of the transform for each number: the tube, or nothing where the slices are hat slices already."""
    names = {config.transform} if isinstance(config.transform, str) else set(config.transform)
    return 0 if names == {"identity"} else config.tube_length
