"""What the order of the tensors saves: the maps of an encoder of volumes have 1/C_t, 1/C or 1/(C_t·C) of the weights.

Tokens of order 3 have tubes along the depth of a patch (C_t) or along the channels (C), tokens of order 4 along both.
"""

from __future__ import annotations

from dataclasses import replace

from tcpvit.analysis.predict import predict_flops, predict_parameters
from tcpvit.layers.embed import TubeAxes
from tcpvit.models.config import ViTConfig, without_tcp_options
from tcpvit.tables import Ratio, Table

MAPS = ("qkv", "proj", "fc1", "fc2")


def compare_orders(config: ViTConfig) -> Table:
    """The dense model of volumes, and its counterparts of equal width with tubes along one axis and along both.

    >>> colour = ViTConfig("std", img_size=(8, 32, 32), patch_size=(4, 8, 8), embed_dim=192, num_heads=2)
    >>> [row.cells[1] for row in compare_orders(colour).rows]
    ['1', '3', '4', '4×3']
    """
    if config.ndim != 3:
        raise ValueError("orders are compared for volumes; give img_size three sides, as [16, 32, 32]")
    dense = ViTConfig(**without_tcp_options(_fields(config)) | {"kind": "std"})
    columns = ["tokens", "tube", "weights of the maps", "of dense", "parameters", "MFLOPs"]
    table = Table("orders", "The order of the tensors", columns)
    rows: list[tuple[str, TubeAxes | None]] = [("dense", None), ("order 3", "channels"), ("order 3", "depth")]
    for label, axes in [*rows, ("order 4", "depth+channels")]:
        one = dense if axes is None else replace(dense, kind="tcp", tube=axes, patch_embed="t_linear")
        tube = "×".join(map(str, one.tube_shape)) if axes else "1"
        flops = sum(work.matrix for work in predict_flops(one).values()) / 1e6
        ratio = Ratio(map_weights(one) / map_weights(dense))
        table.add(label, tube, map_weights(one), ratio, int(predict_parameters(one)), f"{flops:.1f}")
    return table


def map_weights(config: ViTConfig) -> int:
    """Weights of all linear maps of the encoder, without their biases.

    >>> map_weights(ViTConfig("tcp", img_size=32, patch_size=4))      # four layers of (4 + 2·4)·16²·3
    36864
    """
    biases = config.depth * (2 * config.width + int(config.mlp_ratio * config.d) * config.tube_length)
    biases += config.depth * 3 * config.width * config.qkv_bias
    parameters = predict_parameters(config).components
    return sum(parameters[name] for name in MAPS) - biases


def _fields(config: ViTConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}
