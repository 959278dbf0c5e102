"""`mode="encoder"` over all families: exact where it should be, the same interface, and named refusals."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tcpvit
from tcpvit.algebra import get_transform
from tcpvit.compat import repair_torchvision
from tcpvit.layers import TBlock, TLinear
from tcpvit.tensorize import EncoderConfig, tensorize_, to_dense_
from tcpvit.tensorize.encoder import HatEncoder, TokenNorm

repair_torchvision()
timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")
from torchvision.models import VisionTransformer as TorchvisionViT  # noqa: E402

EXACT = EncoderConfig(attention="joint", activation_domain="spatial", norm="token")
SLICES = EncoderConfig()
IMAGES = torch.randn(2, 3, 32, 32, dtype=torch.float64)
SIZES = {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 72}


def timm_vit(name="vit_tiny_patch16_224", **options):
    return timm.create_model(
        name, **{"img_size": 32, "embed_dim": 36, "depth": 2, "num_heads": 3, "num_classes": 5} | options
    )


def hf_vit(kind="ViT", **options):
    config = getattr(transformers, f"{kind}Config")(image_size=32, patch_size=16, **(SIZES | options))
    return getattr(transformers, f"{kind}ForImageClassification")(config)


def bert(**options):
    return transformers.BertModel(
        transformers.BertConfig(vocab_size=11, max_position_embeddings=8, **(SIZES | options))
    )


MODELS = {
    "timm vit": timm_vit,
    "timm deit": lambda: timm_vit("deit_tiny_distilled_patch16_224"),
    "timm layer scale, relu": lambda: timm_vit(
        init_values=0.1, act_layer=nn.ReLU, class_token=False, global_pool="avg"
    ),
    "timm no qkv bias": lambda: timm_vit(qkv_bias=False, proj_bias=False),
    "torchvision": lambda: TorchvisionViT(32, 16, 2, 3, 36, 72, num_classes=5),
    "hf vit": hf_vit,
    "hf deit": lambda: hf_vit("DeiT", hidden_act="relu"),
    "bert": bert,
}


def outputs(model, inputs=None):
    if isinstance(model, transformers.BertModel):
        ids = torch.arange(12).view(2, 6) % 11
        return model(ids, attention_mask=torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]])).last_hidden_state[:, :4]
    result = model(IMAGES if inputs is None else inputs)
    return result.logits if hasattr(result, "logits") else result


def scramble(model):
    """Random weights; scales are the same along a tube, so that the hat domain can hold them."""
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, std=0.3)
        if parameter.ndim == 1 and name.endswith(("weight", "gamma")):
            parameter.data = (1 + 0.3 * torch.randn(12, 1, dtype=parameter.dtype)).expand(12, 3).flatten().clone()
    return model


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_an_encoder_of_c_products_keeps_its_outputs(make):
    """Joint attention, spatial activation and token norms are the model's own function, seen from the hat domain."""
    model = scramble(make().double().eval())
    tensorize_(model, tube=3, arrange="none", example=False)
    to_dense_(model)
    expected = outputs(model)
    report = tensorize_(model, EXACT, example=False)
    assert sum(isinstance(m, HatEncoder) for m in model.modules()) == 1
    torch.testing.assert_close(outputs(model), expected, atol=1e-9, rtol=1e-9)
    assert report.energy == pytest.approx(1)
    assert len(report.converted) == 2 * (4 if "timm" in str(type(model)) or "torchvision" in str(type(model)) else 6)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_by_slices_every_family_trains_and_loads(make):
    model = make()
    before = sum(p.numel() for p in model.parameters())
    report = tensorize_(model, SLICES, example=False)
    assert report.parameters_after < 0.75 * before
    images = IMAGES.float()
    outputs(model.train(), images).square().mean().backward()
    inner = [p for m in model.modules() if isinstance(m, HatEncoder) for p in m.parameters()]
    assert inner
    assert all(p.grad is not None and p.grad.isfinite().all() for p in inner)
    other = make()
    tensorize_(other, SLICES, init="fresh", example=False)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(outputs(other.eval(), images), outputs(model.eval(), images))


def test_drop_in_and_encoder_mode_agree_on_dense_weights():
    """Both project; with plain norms they project the same matrices."""
    model = timm_vit().double().eval()
    for layer in model.blocks.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.2)
    other = copy.deepcopy(model)
    drop_in = tensorize_(model, tube=3, arrange="none")
    encoder = tensorize_(other, EXACT)
    torch.testing.assert_close(outputs(other), outputs(model), atol=1e-9, rtol=1e-9)
    errors = [{row.name: row.error for row in report.rows if row.done} for report in (drop_in, encoder)]
    assert errors[0] == pytest.approx(errors[1])
    assert encoder.skipped == {"head": "outside the encoder"}
    with pytest.raises(ValueError, match="blocks of VisionTransformer is a HatEncoder"):
        tensorize_(other, EXACT)
    assert encoder.flops_after < 0.75 * encoder.flops_before


def test_its_blocks_are_those_of_a_tcp_vit():
    model = timm_vit().double().eval()
    tensorize_(model, SLICES)
    x_hat = torch.randn(3, 2, 5, 12, dtype=torch.float64)
    for block in model.blocks.blocks():
        ours = TBlock(12, 1, 3, mlp_ratio=4).double().eval()
        ours.load_state_dict(block.state_dict())
        torch.testing.assert_close(block(x_hat), ours(x_hat))


def test_the_norm_of_slices_is_another_function():
    model = scramble(timm_vit().double().eval())
    tensorize_(model, tube=3, arrange="none")
    to_dense_(model)
    expected = outputs(model)
    other = copy.deepcopy(model)
    tensorize_(other, EXACT, norm="slice")
    assert (outputs(other) - expected).abs().max() > 0.01
    norm = TokenNorm(12, other.blocks.transform).double()
    x = torch.randn(2, 5, 36, dtype=torch.float64) + 3
    y_hat = norm(other.blocks.transform.to_hat_tokens(x.unflatten(-1, (12, 3))))
    torch.testing.assert_close(
        other.blocks.transform.from_hat_tokens(y_hat).flatten(-2), nn.functional.layer_norm(x, (36,), eps=1e-6)
    )


def test_a_drop_in_model_goes_over_into_encoder_mode():
    model = scramble(timm_vit().double().eval())
    tensorize_(model, tube=3)
    expected = outputs(model)
    tensorize_(model, EXACT)
    assert any(isinstance(m, TLinear) for m in model.modules())
    torch.testing.assert_close(outputs(model), expected, atol=1e-9, rtol=1e-9)


def test_timms_interface_stays():
    model = timm_vit(drop_path_rate=0.1, proj_drop_rate=0.1).double().eval()
    tensorize_(model, SLICES)
    tokens = model.forward_features(IMAGES)
    assert tokens.shape == (2, 5, 36)
    assert len(model.blocks) == 2
    final, maps = model.forward_intermediates(IMAGES)
    torch.testing.assert_close(final, tokens)
    torch.testing.assert_close(
        model.norm(model.blocks[1](model.blocks[0](model._pos_embed(model.patch_embed(IMAGES))))), tokens
    )
    assert [m.shape for m in maps] == [(2, 36, 2, 2)] * 2
    masked = model.forward_features(IMAGES, attn_mask=torch.ones(5, 5, dtype=torch.bool))
    torch.testing.assert_close(masked, tokens)
    model.set_grad_checkpointing()
    torch.testing.assert_close(model.forward_features(IMAGES), tokens)
    model.reset_classifier(3)
    assert model.double()(IMAGES).shape == (2, 3)
    assert [n for n, _ in model.named_parameters() if n.startswith("blocks.1.attn")] == [
        f"blocks.1.attn.{name}" for name in ("qkv.weight_hat", "qkv.bias_hat", "proj.weight_hat", "proj.bias_hat")
    ]
    assert [b.drop_path.rate for b in model.blocks.blocks()] == pytest.approx([0.0, 0.1])


def test_saved_and_loaded(tmp_path):
    config = transformers.ViTConfig(image_size=32, patch_size=16, **SIZES)
    model = transformers.ViTModel(config).eval()
    tensorize_(model, EXACT, example=False)
    tcpvit.save_pretrained(model, tmp_path)
    loaded = tcpvit.from_pretrained(tmp_path)
    assert any(isinstance(m, TokenNorm) for m in loaded.modules())
    images = IMAGES.float()
    torch.testing.assert_close(loaded(images).last_hidden_state, model(images).last_hidden_state)


@pytest.mark.parametrize("attention", ["slice", "joint"])
def test_berts_mask_hides_what_it_should(attention):
    model = bert().double().eval()
    tensorize_(model, SLICES, attention=attention, example=False)
    ids, mask = torch.arange(12).view(2, 6) % 11, torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]])
    changed = ids.clone()
    changed[1, 4:] = 3
    before, after = (model(x, attention_mask=mask).last_hidden_state for x in (ids, changed))
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[1, :4], model(changed).last_hidden_state[1, :4])
    with pytest.raises(ValueError, match="output_hidden_states asks for what lies between layers"):
        model(ids, output_hidden_states=True)


def test_compiles_as_one_graph_and_exports():
    model = timm_vit(depth=1).eval()
    tensorize_(model, EXACT)
    images = IMAGES.float()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-4)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    more = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(program.module()(more), model(more), atol=1e-5, rtol=1e-4)


def test_other_precisions_and_transforms():
    for config in (SLICES, EXACT):
        model = timm_vit().bfloat16()
        tensorize_(model, config, transform="haar")
        logits = model(IMAGES.bfloat16())
        assert logits.dtype == torch.bfloat16
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (model.float()(IMAGES.float()) - logits).abs().max() < 0.1
    model = timm_vit()
    tensorize_(model, SLICES, transform="learned")
    model(IMAGES.float()).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert any("transform" in name for name in model.state_dict())


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (timm_vit, {"tube": 5}, 'the width 36 of blocks.0 is no multiple of the tube 5; take mode="drop_in"'),
        (timm_vit, {"tube": 2}, "the 3 heads of blocks.0 cannot be shared out among 2 slices"),
        (timm_vit, {"tube": 9, "attention": "joint"}, "the 3 heads of blocks.0 cannot be shared out among 9 slices"),
        (lambda: timm_vit(qk_norm=True), {}, "of blocks.0, it has norms of q"),
        (lambda: timm_vit(block_fn=timm.models.vision_transformer.ParallelScalingBlock), {}, "blocks.0 is a Parallel"),
        (lambda: timm_vit(norm_layer=timm.layers.RmsNorm), {}, "the norm is a RmsNorm"),
        (lambda: bert(is_decoder=True), {}, "it is a decoder"),
        (lambda: bert(output_hidden_states=True), {}, "hidden states or attentions of single layers"),
        (lambda: nn.Sequential(nn.Linear(3, 3)), {}, 'found none in a Sequential; take mode="drop_in"'),
        (lambda: timm_vit(depth=0), {}, "blocks of VisionTransformer is empty"),
        (timm_vit, {"norm": "token", "transform": "cosine_kka", "init": "fresh"}, "needs an orthogonal transform"),
        (timm_vit, {"include": "blocks.0.*"}, "include is an option of TensorizeConfig"),
    ],
)
def test_what_cannot_be_kept_is_named_and_nothing_changes(make, options, message):
    model = make()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        tensorize_(model, SLICES, example=False, **options)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())


def test_what_is_frozen_stays_frozen_and_what_learns_learns():
    frozen = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=4)
    frozen.blocks.requires_grad_(False)
    tensorize_(frozen, tube=3, mode="encoder")
    assert not any(parameter.requires_grad for parameter in frozen.blocks.parameters())
    for mode, context in (("encoder", torch.no_grad), ("drop_in", torch.inference_mode)):
        model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=4)
        with context():
            tensorize_(model, tube=3, mode=mode)
        model(torch.randn(1, 3, 32, 32)).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_there_is_no_way_back_for_an_encoder_inside_a_model():
    model = nn.Sequential(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1))
    tensorize_(model[0], tube=3, mode="encoder")
    with pytest.raises(ValueError, match="no exact way back"):
        to_dense_(model)


def test_token_norms_need_a_transform_that_keeps_lengths():
    twice = 2 * get_transform("hadamard", 4).matrix
    options = {"tube": 4, "transform": twice, "attention": "joint", "activation_domain": "spatial", "example": False}
    with pytest.raises(ValueError, match="M Mᵀ = I"):
        tensorize_(timm_vit(), mode="encoder", norm="token", **options)
