"""Configs that between them use every option of `ViTConfig` which costs parameters or work."""

from __future__ import annotations

from functools import partial

from tcpvit.models import ViTConfig

_std = partial(ViTConfig, "std", img_size=16, patch_size=4, depth=2)
_tcp = partial(ViTConfig, "tcp", img_size=16, patch_size=4, depth=2)

_near = {"global_pool": "avg", "class_token": False, "positions": False, "patch_embed": "conv", "local": 3}

CONFIGS = {
    "std near": _std(embed_dim=24, attention_pool=2, zero_residual=True, **_near),
    "std near, gated, patch 2": _std(embed_dim=24, gated=True, **{**_near, "patch_size": 2, "positions": True}),
    "tcp near": _tcp(embed_dim=48, tube=4, num_heads=2, attention_pool=2, attention="joint", **_near),
    "tcp near, learned": _tcp(embed_dim=24, num_heads=2, transform="learned", **_near),
    "tcp near, learned, spatial": _tcp(
        embed_dim=24, num_heads=2, transform="learned", activation_domain="spatial", **_near
    ),
    "tcp near, gated": _tcp(embed_dim=24, tube=4, num_heads=2, stem_width=8, gated=True, **_near),
    "tcp near, shared, patch 8": _tcp(
        **{**_near, "patch_size": 8, "local": 5},
        embed_dim=32,
        tube=4,
        num_heads=2,
        coupling="shared+mix+norm+shuffle",
        activation_domain="spatial",
    ),
    "tcp near, gated, spatial": _tcp(embed_dim=24, gated=True, activation_domain="spatial", num_heads=2, **_near),
    "std": _std(),
    "std wide": _std(embed_dim=96, mlp_ratio=2.5, num_heads=6, qkv_bias=False),
    "std no head": _std(num_classes=0, global_pool="avg"),
    "std gray": _std(in_chans=1, num_heads=2),
    "tcp none": _tcp(),
    "tcp shared": _tcp(patch_embed="shared", embed_dim=72),
    "tcp t_linear": _tcp(patch_embed="t_linear", embed_dim=24),
    "tcp linear": _tcp(patch_embed="linear", embed_dim=60, mlp_ratio=3.0),
    "tcp tube 6": _tcp(tube=6, embed_dim=48),
    "tcp tube 1": _tcp(tube=1),
    "tcp gray": _tcp(in_chans=1),
    "tcp 300 bands": _tcp(in_chans=300, img_size=6, patch_size=2, num_heads=2),
    "tcp joint": _tcp(attention="joint", qkv_bias=False),
    "tcp spatial": _tcp(activation_domain="spatial"),
    "tcp learned": _tcp(transform="learned", activation_domain="spatial", in_chans=5),
    "tcp avg, no head": _tcp(global_pool="avg", num_classes=0),
    "tcp wide image": _tcp(img_size=(8, 24)),
    "tcp mix": _tcp(coupling="mix"),
    "tcp shuffle": _tcp(coupling="shuffle"),
    "tcp low_rank": _tcp(coupling="low_rank:3"),
    "tcp partial": _tcp(coupling="partial:0.3"),
    "tcp partial 1": _tcp(coupling="partial:1"),
    "tcp two_factor": _tcp(coupling="two_factor+norm"),
    "tcp sub_patch": _tcp(patch_embed="sub_patch", tube=4, in_chans=5, embed_dim=32, num_heads=2),
    "tcp shared weights": _tcp(coupling="shared+shuffle", patch_embed="t_linear", qkv_bias=False),
    "tcp shared, distilled": _tcp(coupling="shared+mix", distilled=True),
    "tcp shared sub_patch": _tcp(
        coupling="shared+mix", patch_embed="sub_patch", tube=4, embed_dim=32, num_heads=2, attention="joint"
    ),
    "tcp everything": _tcp(
        coupling="mix:rotation+shuffle+low_rank:2+partial:0.1",
        attention="joint",
        activation_domain="spatial",
        transform="learned",
        tube=4,
        embed_dim=32,
        mlp_ratio=1.5,
        num_heads=2,
        depth=3,
    ),
}
