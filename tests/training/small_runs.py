"""A recipe and images for runs that take a fraction of a second."""

from __future__ import annotations

import torch

from tcpvit.data import ImageSet

# Dropout and stochastic depth draw random numbers in the model, shift, flip, erase and mixup in the data.
SMALL = {
    "model": {
        "name": "tcp_vit_cifar",
        "options": {"patch_size": 8, "embed_dim": 24, "num_heads": 2, "depth": 2, "drop_rate": 0.1},
    },
    "data": {"name": "digits-on-photos", "options": {"sizes": [40, 20, 20]}, "batch_size": 16, "eval_batch_size": 20},
    "augment": {"shift": 2, "flip": 0.5, "erase": 0.5, "mixup": 0.4},
    "optimizer": {"lr": 0.01, "ema": 0.9, "accumulate": 2, "label_smoothing": 0.1, "slice_lr_scale": "sqrt"},
    "schedule": {"epochs": 2, "warmup_epochs": 0.5},
}


def make_set(number: int, seed: int, classes: int = 3, size: int = 32, masks: bool = False) -> ImageSet:
    """Images whose brightness tells the class, so that a model can learn them."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (number,), generator=generator)
    noise = torch.randint(0, 60, (number, 3, size, size), generator=generator)
    images = (noise + 60 * labels[:, None, None, None]).to(torch.uint8)
    names = tuple(f"class {k}" for k in range(classes))
    if not masks:
        return ImageSet(images, labels, classes=names, source=f"made/{seed}")
    targets = labels[:, None, None].repeat(1, size, size).to(torch.uint8)
    targets[:, 0] = 255
    return ImageSet(images, targets, classes=names, source=f"made/{seed}")
