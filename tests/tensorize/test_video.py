"""Video Transformers of transformers, and MONAI's of volumes: converted, run forward and backward, saved and loaded."""

from __future__ import annotations

import pytest
import torch

import tcpvit
from tcpvit.compat import repair_torchvision
from tcpvit.layers import TubalLinear
from tcpvit.tensorize import tensorize_

repair_torchvision()
SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "num_labels": 5}
VIDEO = {
    "VideoMAEForVideoClassification": {"image_size": 16, "patch_size": 8, "num_frames": 4, "tubelet_size": 2},
    "VivitForVideoClassification": {"image_size": 16, "num_frames": 4, "tubelet_size": [2, 8, 8]},
    "TimesformerForVideoClassification": {"image_size": 16, "patch_size": 8, "num_frames": 4},
}


def converted_layers(model):
    return [module for module in model.modules() if isinstance(module, TubalLinear)]


@pytest.mark.parametrize("name", VIDEO)
def test_video_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**SMALL | VIDEO[name])).eval()
    clips = torch.randn(2, 4, 3, 16, 16)
    before = sum(p.numel() for p in model.parameters())
    report = tensorize_(model, tube=3, init="project")
    assert len(report.converted) >= 8
    assert sum(p.numel() for p in model.parameters()) < 0.7 * before
    model(pixel_values=clips, labels=torch.zeros(2, dtype=torch.long)).loss.backward()
    assert all(layer.weight_hat.grad.abs().sum() > 0 for layer in converted_layers(model))
    tcpvit.save_pretrained(model, tmp_path)
    again = tcpvit.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(pixel_values=clips).logits, model(pixel_values=clips).logits)


def test_monai(tmp_path):
    pytest.importorskip("einops")
    nets = pytest.importorskip("monai.networks.nets", exc_type=ImportError)
    sizes = {"hidden_size": 24, "mlp_dim": 48, "num_heads": 2}

    def vit():
        return nets.ViT(1, (16, 16, 16), (8, 8, 8), num_layers=2, classification=True, num_classes=3, **sizes).eval()

    def unetr():
        return nets.UNETR(1, 2, (32, 32, 32), feature_size=4, **sizes).eval()

    def logits(model, volumes):
        output = model(volumes)
        return output[0] if isinstance(output, tuple) else output

    for build, side in ((vit, 16), (unetr, 32)):
        model, volumes = build(), torch.randn(1, 1, side, side, side)
        report = tensorize_(model, tube=3, init="project")
        assert len(report.converted) >= 4
        expected = logits(model, volumes)
        expected.square().mean().backward()
        assert all(layer.weight_hat.grad.abs().sum() > 0 for layer in converted_layers(model))
        tcpvit.save_pretrained(model, tmp_path / build.__name__)
        again = tcpvit.from_pretrained(tmp_path / build.__name__, model=build())
        torch.testing.assert_close(logits(again.eval(), volumes), expected)
