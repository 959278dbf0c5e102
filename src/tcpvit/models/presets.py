"""The presets: the paper's two pairs (Section 6), the 224×224 families with their twins, scenes, volumes and clips."""

from __future__ import annotations

from functools import partial
from typing import Any

from tcpvit.models.config import ViTConfig
from tcpvit.models.decoder import DecoderConfig
from tcpvit.models.segmenter import SegmenterConfig
from tcpvit.models.swin import SwinConfig

# Classification, 32×32: 119,194 and 43,114 parameters. What the study found best: slices that attend together, from a
# c-product patch embedding (43,930), and the same as wide as Std-ViT's parameters allow (116,893). Both are
# better with a higher rate for slices: optimizer.slice_lr_scale=sqrt or full.
_cifar = partial(ViTConfig, img_size=32, patch_size=4, depth=4, num_heads=4)
_cifar_plus = partial(_cifar, "tcp", attention="joint", patch_embed="t_linear")

# The best that 44.5K and 120K parameters bought: 16×16 tokens of overlapping patches, which know their neighbours and
# attend to 4×4 means. Four slices mixed by matrices, about twice as wide as the dense twins. 43,530 and 113,210
# parameters; dense 42,578 and 111,974.
_near = partial(_cifar, patch_size=2, patch_embed="conv", global_pool="avg", class_token=False, positions=False)
_near = partial(_near, num_heads=2, mlp_ratio=2.0, local=3, attention_pool=4, zero_residual=True)
_near_tcp = partial(_near, "tcp", attention="joint")

# Segmentation backbones, 128×128: 1,275,072 and 455,680 parameters.
_pet = partial(ViTConfig, img_size=128, patch_size=8, num_classes=0, depth=4, num_heads=4, mlp_ratio=2.0)
_pet_tcp = _pet("tcp", patch_embed="shared")
_pet_plus = _pet("tcp", patch_embed="t_linear", attention="joint")
_tensor_decoder = DecoderConfig("tcp", channels=(96, 66, 66, 66))

# DeiT's sizes. TCP has H/C heads in each of its 3 slices, all of size 64: as many softmax maps as Std.
_deit = partial(ViTConfig, img_size=224, patch_size=16, num_classes=1000, depth=12)

# Scenes of many bands, here the 200 bands and 16 classes of Indian Pines: 9×9 windows, 32 coefficients of a spectrum.
# They are hat slices, so the encoder has no transform. 13,936 parameters, 15,216 with a stem, 44,048 with the shuffle;
# dense ViTs on the same coefficients have 87,312, and 13,216 where they are as small.
_scene = partial(ViTConfig, img_size=9, patch_size=3, in_chans=200, kept=32, num_classes=16, depth=2, mlp_ratio=2.0)
_scene_tcp = partial(_scene, "tcp", transform="identity", patch_embed="t_linear")
_scene_shared = partial(_scene_tcp, embed_dim=256, num_heads=1, attention="joint", coupling="shared+mix+norm")

# Volumes, 32³ as of MedMNIST3D: the tube runs along the depth of a patch, 8 slices. 42,674 parameters, 104,258 dense.
_volume = partial(
    ViTConfig, img_size=(32, 32, 32), patch_size=(8, 8, 8), in_chans=1, num_classes=2, depth=2, mlp_ratio=2.0
)
_volume_tcp = partial(_volume, "tcp", tube="depth", embed_dim=112, num_heads=2, attention="joint")
_volume_decoder = partial(DecoderConfig, "tcp", channels=(48, 32, 24), coupling=("shuffle",))

# Clips of 8 grey frames, which are the tube. Clips in colour have tensors of order 4: tubes of 4 frames × 3 channels.
_video = partial(ViTConfig, img_size=(8, 32, 32), patch_size=(8, 4, 4), in_chans=1, num_classes=4, depth=2)
_colour = partial(ViTConfig, img_size=(8, 64, 64), patch_size=(4, 8, 8), in_chans=3, num_classes=10, depth=4)
_coupled = ("shuffle", "norm")

# Configs of several classes; `pretrained.ARCHITECTURES` has the model that each class describes.
PRESETS: dict[str, Any] = {
    "std_vit_cifar": _cifar("std"),
    "tcp_vit_cifar": _cifar("tcp"),
    "tcp_vit_cifar_plus": _cifar_plus(),
    "tcp_vit_cifar_wide": _cifar_plus(embed_dim=81, num_heads=3),
    "std_vit_cifar_44k": _near("std", embed_dim=34),
    "tcp_vit_cifar_44k": _near_tcp(embed_dim=64, tube=4, coupling="mix:rotation+norm"),
    "std_vit_cifar_120k": _near("std", embed_dim=46, depth=6),
    "tcp_vit_cifar_120k": _near_tcp(embed_dim=88, tube=4, coupling="mix:rotation+norm", depth=6),
    "std_vit_pet_backbone": _pet("std"),
    "tcp_vit_pet_backbone": _pet_tcp,
    # Segmenters: the paper's (1,570,978 and 751,586 parameters), with joint attention, with a decoder of c-products.
    "std_vit_pet": SegmenterConfig(_pet("std")),
    "tcp_vit_pet": SegmenterConfig(_pet_tcp),
    "tcp_vit_pet_plus": SegmenterConfig(_pet_plus),
    "tcp_vit_pet_full": SegmenterConfig(_pet_tcp, _tensor_decoder),
    "std_vit_tiny_patch16_224": _deit("std", embed_dim=192, num_heads=3),
    "tcp_vit_tiny_patch16_224": _deit("tcp", embed_dim=192, num_heads=1),
    "std_vit_small_patch16_224": _deit("std", embed_dim=384, num_heads=6),
    "tcp_vit_small_patch16_224": _deit("tcp", embed_dim=384, num_heads=2),
    "std_vit_base_patch16_224": _deit("std", embed_dim=768, num_heads=12),
    "tcp_vit_base_patch16_224": _deit("tcp", embed_dim=768, num_heads=4),
    "std_swin_tiny": SwinConfig("std"),
    "tcp_swin_tiny": SwinConfig("tcp", num_heads=(1, 2, 4, 8)),
    "std_deit_tiny": _deit("std", embed_dim=192, num_heads=3, distilled=True),
    "tcp_deit_tiny": _deit("tcp", embed_dim=192, num_heads=1, distilled=True),
    "std_deit_small": _deit("std", embed_dim=384, num_heads=6, distilled=True),
    "tcp_deit_small": _deit("tcp", embed_dim=384, num_heads=2, distilled=True),
    "std_deit_base": _deit("std", embed_dim=768, num_heads=12, distilled=True),
    "tcp_deit_base": _deit("tcp", embed_dim=768, num_heads=4, distilled=True),
    "std_scene": _scene("std", embed_dim=64),
    "std_scene_small": _scene("std", embed_dim=20),
    "tcp_scene": _scene_shared(),
    "tcp_scene_stem": _scene_shared(stem=4),
    "tcp_scene_shuffle": _scene_tcp(tube=8, embed_dim=128, coupling="shuffle+norm"),
    "std_vit_volume_small": _volume("std", embed_dim=64),
    "tcp_vit_volume_small": _volume_tcp(coupling=_coupled),
    "std_vit_volume_segmenter": SegmenterConfig(
        _volume("std", embed_dim=64, num_classes=0), DecoderConfig(channels=(48, 32, 24))
    ),
    "tcp_vit_volume_segmenter": SegmenterConfig(_volume_tcp(coupling=_coupled, num_classes=0), _volume_decoder()),
    "std_vit_video_small": _video("std", embed_dim=64),
    "tcp_vit_video_small": _video("tcp", tube="depth", embed_dim=128, attention="joint", coupling=_coupled),
    "std_vit_video_colour": _colour("std", embed_dim=192, num_heads=6, factorised=True),
    "tcp_vit_video_colour": _colour(
        "tcp", tube="depth+channels", embed_dim=192, attention="joint", coupling=_coupled, factorised=True
    ),
}
