"""Real architectures, each with what makes it small enough to test."""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    """A model of timm's: its tube, and what makes it small enough to test."""

    name: str
    tube: int
    options: dict[str, Any]
    size: int = 32
    convs: str = "none"
    slow: bool = False


VIT = {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 4}
ONE = (1, 1, 1, 1)
SWIN = {"img_size": 64, "depths": ONE, "embed_dim": 24, "window_size": 2, "num_heads": (1, 2, 4, 8)}

TIMM = [
    Case("vit_tiny_patch16_224", 3, VIT),
    Case("vit_small_patch16_18x2_224", 3, VIT),
    Case("vit_base_patch16_clip_224", 4, VIT),
    Case("vit_base_patch16_siglip_224", 3, VIT),
    Case("vit_relpos_small_patch16_224", 3, VIT),
    Case("vit_srelpos_small_patch16_224", 2, VIT),
    Case("vit_wee_patch16_reg1_gap_256", 4, VIT),
    Case("vit_tiny_r_s16_p8_224", 3, {**VIT, "img_size": 64}, 64),
    Case("vit_small_patch14_dinov2", 3, {**VIT, "img_size": 28}, 28),
    Case("naflexvit_base_patch16_gap", 3, {"depth": 2, "embed_dim": 48, "num_heads": 4}, 32),
    Case("flexivit_small", 3, VIT, convs="patch"),
    Case("deit_tiny_patch16_224", 3, VIT, convs="all"),
    Case("deit_tiny_distilled_patch16_224", 3, VIT),
    Case("deit3_small_patch16_224", 3, VIT),
    Case("swin_tiny_patch4_window7_224", 3, SWIN, 64),
    Case("swin_s3_tiny_224", 3, {**SWIN, "window_size": (2, 2, 2, 2)}, 64),
    Case("swinv2_tiny_window8_256", 3, SWIN, 64),
    Case("swinv2_cr_tiny_224", 4, SWIN, 64),
    Case("beit_base_patch16_224", 3, VIT),
    Case("beitv2_base_patch16_224", 4, VIT),
    Case("eva_giant_patch14_224", 4, {**VIT, "img_size": 28}, 28),
    Case("eva02_tiny_patch14_224", 2, {**VIT, "img_size": 28}, 28),
    Case("cait_xxs24_224", 3, {**VIT, "depth": 1}),
    Case("convit_tiny", 3, {**VIT, "local_up_to_layer": 1}),
    Case("xcit_nano_12_p16_224", 4, VIT),
    Case("tnt_s_legacy_patch16_224", 3, {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads_outer": 4}),
    Case("crossvit_tiny_240", 3, {"depth": ((1, 1, 0),)}, 240),
    Case("samvit_base_patch16_224", 3, VIT),
    Case("hiera_tiny_224", 3, {"img_size": (64, 64), "stages": ONE, "embed_dim": 24, "num_heads": 1}, 64),
    Case("pvt_v2_b0", 4, {"depths": ONE}, 64),
    Case(
        "twins_pcpvt_small",
        4,
        {"img_size": 64, "depths": ONE, "embed_dims": (16, 32, 32, 32), "num_heads": (1, 2, 2, 2)},
        64,
    ),
    Case(
        "twins_svt_small",
        4,
        {"img_size": 64, "depths": ONE, "embed_dims": (32, 32, 32, 32), "num_heads": (1, 2, 2, 2)},
        64,
    ),
    Case("coat_lite_tiny", 4, {"img_size": 64, "serial_depths": ONE, "embed_dims": (32, 32, 32, 32)}, 64),
    Case("pit_ti_224", 4, {"img_size": 64, "depth": (1, 1, 1)}, 64),
    Case("pit_ti_distilled_224", 2, {"img_size": 64, "depth": (1, 1, 1)}, 64),
    Case("visformer_tiny", 3, {"img_size": 64, "depth": (1, 1, 1)}, 64, "all"),
    Case("sequencer2d_s", 3, {"layers": ONE, "embed_dims": (48, 48, 48, 48), "hidden_sizes": (12, 12, 12, 12)}, 64),
    Case("davit_tiny", 3, {"depths": ONE, "embed_dims": (24, 48, 48, 96), "window_size": 2}, 64),
    Case("edgenext_xx_small", 3, {}, 64),
    Case("mobilevit_xxs", 2, {}, 64, "pointwise"),
    Case("mobilevitv2_050", 4, {}, 64, "pointwise"),
    Case("levit_128s", 4, {}, 224),
    Case("maxvit_rmlp_pico_rw_256", 4, {"img_size": 64}, 64, slow=True),
    Case("coatnet_nano_rw_224", 4, {"img_size": 64}, 64, "pointwise"),
    Case("efficientformer_l1", 4, {}, 224, slow=True),
    Case("efficientvit_b0", 4, {}, 64, "pointwise"),
    Case("tiny_vit_5m_224", 4, {"depths": ONE}, 224),
    Case("poolformer_s12", 4, {}, 64, "pointwise"),
    Case("mambaout_femto", 4, {"depths": ONE}, 64),
    Case("swiftformer_xs", 4, {}, 64),
    Case("mixer_s32_224", 2, {}, 224, slow=True),
    Case("gmlp_ti16_224", 4, {}, 224, slow=True),
    Case("resmlp_12_224", 3, {}, 224, slow=True),
    Case("nest_tiny", 3, {"drop_path_rate": 0.0}, 224, slow=True),
    Case("volo_d1_224", 3, {}, 224, slow=True),
    Case("focalnet_tiny_srf", 3, {}, 64, "pointwise"),
    Case("caformer_s18", 4, {}, 64, slow=True),
]

HUGGING_FACE = {
    "ViTForImageClassification": {"image_size": 32},
    "DeiTForImageClassificationWithTeacher": {"image_size": 32},
    "SwinForImageClassification": {
        "image_size": 32,
        "embed_dim": 24,
        "depths": [1, 1],
        "num_heads": [2, 2],
        "window_size": 2,
    },
    "ViTMAEForPreTraining": {
        "image_size": 32,
        "decoder_hidden_size": 24,
        "decoder_num_hidden_layers": 1,
        "decoder_num_attention_heads": 2,
        "decoder_intermediate_size": 48,
    },
    "SegformerForSemanticSegmentation": {
        "depths": [1, 1, 1, 1],
        "hidden_sizes": [12, 12, 24, 24],
        "num_attention_heads": [1, 1, 2, 2],
        "decoder_hidden_size": 24,
    },
    "BertForMaskedLM": {"vocab_size": 60},
    "GPT2LMHeadModel": {
        "vocab_size": 60,
        "n_embd": 24,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 16,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
}
SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
