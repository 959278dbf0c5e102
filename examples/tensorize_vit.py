"""Convert a Vision Transformer of timm's to c-products, look at what became of it, and bring it back.

What a projection keeps depends on which features share a tube. Between the layers of an MLP and inside attention heads
their order is free, so they are put into an order that loses less; the network stays the same function.

    python examples/tensorize_vit.py
"""

import copy
from tempfile import TemporaryDirectory

import torch

import tcpvit
from tcpvit.tensorize import build


def main() -> None:
    original = build("timm/vit_tiny_patch16_224", img_size=64, depth=2, num_classes=10).eval()
    images = torch.randn(4, 3, 64, 64)

    plain = tcpvit.tensorize_(copy.deepcopy(original), tube=3, arrange="none")
    model = copy.deepcopy(original)
    report = tcpvit.tensorize_(model, tube=3)
    print(report)
    print(f"Energy kept with features in their places: {plain.energy:.1%}, reordered: {report.energy:.1%}")

    with TemporaryDirectory() as folder:
        tcpvit.save_pretrained(model, folder)
        loaded = tcpvit.from_pretrained(folder)
    with torch.no_grad():
        logits = model(images)
        print(f"Loaded again: outputs differ by {(loaded(images) - logits).abs().max():.1e}")
        print(f"Dense again:  outputs differ by {(tcpvit.to_dense_(model)(images) - logits).abs().max():.1e}")


if __name__ == "__main__":
    main()
