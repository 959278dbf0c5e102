"""Images per second of the whole training loop, beside the ways people train small ViTs today.

For std_vit_cifar and tcp_vit_cifar, in one interleaved run on CIFAR-shaped images, best of many:
- the bare step: forward, backward, clipping and AdamW on one batch that is there already, the ceiling of any loop;
- our loop: the engine of `tcpvit train` with random crop and flip;
- timm's manner: the same model, a DataLoader of PIL images through torchvision's transforms, a plain loop;
- vit-pytorch: its ViT of the same shape, with that DataLoader and a plain loop.
And the input pipelines alone.

    python -m benchmarks.training [--images 2048] [--threads 1] [--out results/bench/training.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import tcpvit
from tcpvit.cli.show import show
from tcpvit.compat import repair_torchvision
from tcpvit.data import Augment, Batches, ImageSet
from tcpvit.layers.groups import parameter_groups
from tcpvit.progress import Progress
from tcpvit.tables import Ratio, Table
from tcpvit.timing import interleaved, using_threads
from tcpvit.training.folder import RunFolder
from tcpvit.training.recipe import load_recipe
from tcpvit.training.tasks import Classification
from tcpvit.training.trainer import Trainer

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
BATCH, LR, WEIGHT_DECAY = 256, 1e-3, 0.05


def noise_images(count: int) -> ImageSet:
    """Noise in the shape of CIFAR-10: what is in them changes no time."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    return ImageSet(images, labels, classes=tuple("0123456789"), mean=MEAN, std=STD, source="noise")


class PilImages(Dataset):
    """What timm and torchvision feed a DataLoader with: one PIL image at a time through transforms."""

    def __init__(self, data: ImageSet):
        repair_torchvision()
        from torchvision import transforms as T

        self.images = [Image.fromarray(x.permute(1, 2, 0).numpy()) for x in data.images]
        self.labels = data.targets.tolist()
        self.transform = T.Compose(
            [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.transform(self.images[i]), self.labels[i]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, targets: Tensor) -> float:
    """One plain training step."""
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(images), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def plain_loop(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """An epoch of a loop as in many a train.py."""
    optimizer = torch.optim.AdamW(parameter_groups(model, LR, WEIGHT_DECAY))

    def epoch() -> None:
        for images, targets in batches:
            step(model, optimizer, images, targets)

    return epoch


def bare_steps(model: nn.Module, batches: Batches) -> Callable[[], None]:
    """As many steps on the same batch."""
    images, targets = next(iter(batches))
    return plain_loop(model, [(images, targets)] * len(batches))


def engine_epoch(name: str, data: ImageSet, folder: Path) -> Callable[[], None]:
    """An epoch of the engine of `tcpvit train`, without evaluation."""
    sizes = [f"data.batch_size={BATCH}", f"optimizer.lr={LR}"]
    recipe = load_recipe("paper-classification", [f"model.name={name}", *sizes])  # random crop and flip
    run = RunFolder(folder / name)
    run.begin(recipe, overwrite=True)
    batches = Batches(data, BATCH, augment=recipe.augment, shuffle=True, seed=0)
    trainer = Trainer(
        recipe,
        tcpvit.create_model(name),
        Classification(10),
        batches,
        batches,
        run,
        device=torch.device("cpu"),
        progress=Progress(),
    )

    def epoch() -> None:
        trainer.state.batch = 0
        trainer.train_epoch()

    return epoch


def vit_pytorch_twin() -> nn.Module:
    """vit-pytorch's ViT with the sizes of std_vit_cifar."""
    repair_torchvision()
    from vit_pytorch import ViT

    sizes = {"image_size": 32, "patch_size": 4, "num_classes": 10, "channels": 3}
    return ViT(**sizes, dim=48, depth=4, heads=4, dim_head=12, mlp_dim=192)


def consume(batches: Iterable[object]) -> Callable[[], None]:
    """An epoch of the input pipeline alone."""

    def epoch() -> None:
        for _ in batches:
            pass

    return epoch


def measure(count: int, seconds: float, folder: Path) -> dict[str, dict[str, float]]:
    """Images per second of every contender."""
    data, augment = noise_images(count), Augment(shift=4, flip=0.5)
    ours = Batches(data, BATCH, augment=augment, shuffle=True, seed=0)
    theirs = DataLoader(PilImages(data), BATCH, shuffle=True)
    found: dict[str, dict[str, float]] = {}
    loops = {}
    for name in ("std_vit_cifar", "tcp_vit_cifar"):
        loops[f"{name}: bare step"] = bare_steps(tcpvit.create_model(name), ours)
        loops[f"{name}: our loop"] = engine_epoch(name, data, folder)
        loops[f"{name}: DataLoader and transforms"] = plain_loop(tcpvit.create_model(name), theirs)
    loops["vit-pytorch: DataLoader and transforms"] = plain_loop(vit_pytorch_twin(), theirs)
    found["loops"] = {name: count / best for name, best in interleaved(loops, seconds).items()}
    inputs = {"ours": consume(ours), "DataLoader and transforms": consume(theirs)}
    found["inputs"] = {name: count / best for name, best in interleaved(inputs, seconds / 5).items()}
    return found


def tables(found: dict[str, dict[str, float]], title: str) -> list[Table]:
    loops, inputs = found["loops"], found["inputs"]
    one = Table("loops", f"Whole loop, {title}", ["loop", "images/s", "to the bare step"])
    for name, rate in loops.items():
        ceiling = loops.get(f"{name.partition(':')[0]}: bare step")
        one.add(name, round(rate), Ratio.of(rate, ceiling))
    two = Table("inputs", f"Input pipeline alone, {title}", ["pipeline", "images/s", "ratio"])
    for name, rate in inputs.items():
        two.add(name, round(rate), Ratio.of(rate, inputs["DataLoader and transforms"]))
    share = Table("share", "Share of our input pipeline in a training step", ["model", "share"])
    for name in ("std_vit_cifar", "tcp_vit_cifar"):
        share.add(name, Ratio.of(loops[f"{name}: bare step"], inputs["ours"]))
    return [one, two, share]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=Path("results/bench/training.json"))
    options = parser.parse_args()
    record: dict[str, object] = {
        "command": f"python -m benchmarks.training --images {options.images} --seconds {options.seconds:g}",
        "tcpvit": tcpvit.__version__,
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "batch": BATCH,
    }
    for threads in options.threads:
        with using_threads(threads), tempfile.TemporaryDirectory() as folder:
            found = measure(options.images, options.seconds, Path(folder))
        show(tables(found, f"{threads} thread{'s' if threads > 1 else ''}, batch {BATCH}"))
        record[f"threads_{threads}"] = found
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
