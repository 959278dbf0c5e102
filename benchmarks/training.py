"""Images per second of the whole training loop, beside the ways people train small ViTs today.

For std_vit_cifar and tcp_vit_cifar, in one interleaved run on CIFAR-shaped images, best of many:
- the bare step: forward, backward, clipping and AdamW on one batch that is there already, the ceiling of any loop;
- our loop: the engine of `tcpvit train` with random crop and flip;
- timm's manner: the same model, a DataLoader of PIL images through torchvision's transforms, a plain loop;
- vit-pytorch: its ViT of the same shape, with that DataLoader and a plain loop.
And the input pipelines alone.

`--parts step` measures one step on a batch that is there already, with clipping and averaged weights: that of
`tcpvit train` beside the same in the manner of timm's train.py (its optimiser, clipping and ModelEmaV3), and what is
done to the parameters by itself, with the share of it in the step.

    python -m benchmarks.training [--images 2048] [--threads 1] [--out results/bench/training.json]
    python -m benchmarks.training --parts step --threads 1 --seconds 60
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from importlib.metadata import version
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
from tcpvit.files import source_commit
from tcpvit.layers.groups import parameter_groups
from tcpvit.progress import Progress
from tcpvit.tables import Ratio, Table, Written
from tcpvit.timing import interleaved, using_threads
from tcpvit.training.folder import RunFolder
from tcpvit.training.recipe import load_recipe
from tcpvit.training.tasks import Classification
from tcpvit.training.trainer import Trainer

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
BATCH, LR, WEIGHT_DECAY, CLIP, EMA = 256, 1e-3, 0.05, 1.0, 0.99
WARM = 1000  # a step at which an average has its full decay


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


def engine(name: str, data: ImageSet, folder: Path, *options: str) -> Trainer:
    """The engine of `tcpvit train`."""
    sizes = [f"data.batch_size={BATCH}", f"optimizer.lr={LR}"]
    recipe = load_recipe("paper-classification", [f"model.name={name}", *sizes, *options])  # random crop and flip
    run = RunFolder(folder / name)
    run.begin(recipe, overwrite=True)
    batches = Batches(data, BATCH, augment=recipe.augment, shuffle=True, seed=0)
    return Trainer(
        recipe,
        tcpvit.create_model(name),
        Classification(10),
        batches,
        batches,
        run,
        device=torch.device("cpu"),
        progress=Progress(),
    )


def engine_epoch(name: str, data: ImageSet, folder: Path) -> Callable[[], None]:
    """An epoch of it, without evaluation."""
    trainer = engine(name, data, folder)

    def epoch() -> None:
        trainer.state.batch = 0
        trainer.train_epoch()

    return epoch


def our_step(name: str, data: ImageSet, folder: Path) -> tuple[Callable[[], object], Callable[[], object]]:
    """The step of `tcpvit train` on one batch, and what it does to the parameters alone."""
    trainer = engine(name, data, folder, f"optimizer.ema={EMA}", f"optimizer.clip_norm={CLIP}")
    images, targets = next(iter(trainer.batches))

    def update() -> None:
        nn.utils.clip_grad_norm_(trainer.parameters, CLIP)
        trainer.optimizer.step()
        trainer.ema.update(trainer.model, WARM)

    return lambda: trainer.step(images, targets), update


def timm_step(name: str, data: ImageSet) -> tuple[Callable[[], object], Callable[[], object]]:
    """The same model, batch and numbers as timm's train.py goes through them."""
    repair_torchvision()
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3, dispatch_clip_grad

    model, loss_of = tcpvit.create_model(name), nn.CrossEntropyLoss()
    optimizer = create_optimizer_v2(model, opt="adamw", lr=LR, weight_decay=WEIGHT_DECAY)
    average = ModelEmaV3(model, decay=EMA)
    batches = Batches(data, BATCH, augment=Augment(shift=4, flip=0.5), shuffle=True, seed=0)
    images, targets = next(iter(batches))

    def update() -> None:
        dispatch_clip_grad(model.parameters(), CLIP, mode="norm")
        optimizer.step()
        average.update(model, step=WARM)

    def step() -> float:
        loss = loss_of(model(images), targets)
        loss.backward()
        update()
        optimizer.zero_grad()
        return loss.item()

    step()
    loss_of(model(images), targets).backward()  # gradients for what is measured alone
    return step, update


def measure_steps(data: ImageSet, seconds: float, folder: Path) -> dict[str, dict[str, float]]:
    """Milliseconds of a step, and of what it does to the parameters, in our manner and in timm's."""
    found: dict[str, dict[str, float]] = {}
    for name in ("tcp_vit_cifar", "std_vit_cifar"):
        ours, our_update = our_step(name, data, folder)
        theirs, their_update = timm_step(name, data)
        ours()  # leaves gradients
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        best = interleaved({"tcpvit update": our_update, "timm update": their_update}, seconds / 10, clock)
        best |= interleaved({"tcpvit step": ours, "timm step": theirs}, seconds / 2, clock)
        found[name] = {way: round(1e3 * value, 4) for way, value in best.items()}
    return found


def step_table(found: dict[str, dict[str, float]], title: str) -> Table:
    """The steps as people read them."""
    columns = ["model", "tcpvit ms", "timm ms", "timm / tcpvit", "update ms", "timm's update ms", "update's share"]
    table = Table("steps", f"One training step, {title}", columns)
    for name, ms in found.items():
        ratio = Ratio.of(ms["timm step"], ms["tcpvit step"])
        share = Written(f"{100 * ms['tcpvit update'] / ms['tcpvit step']:.2f} %")
        table.add(name, ms["tcpvit step"], ms["timm step"], ratio, ms["tcpvit update"], ms["timm update"], share)
    return table


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
    parser.add_argument("--parts", nargs="+", choices=["loop", "step"], default=["loop", "step"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=Path("results/bench/training.json"))
    options = parser.parse_args()
    parts = "" if len(options.parts) == 2 else f" --parts {options.parts[0]}"
    parts += f" --threads {' '.join(map(str, options.threads))}"
    record: dict[str, object] = {
        "command": f"python -m benchmarks.training{parts} --images {options.images} --seconds {options.seconds:g}",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": source_commit(),
        "tcpvit": tcpvit.__version__,
        "torch": torch.__version__,
        "timm": version("timm"),
        "processor": platform.processor() or platform.machine(),
        "batch": BATCH,
    }
    for threads in options.threads:
        title, found = f"{threads} thread{'s' if threads > 1 else ''}, batch {BATCH}", {}
        with using_threads(threads), tempfile.TemporaryDirectory() as folder:
            if "loop" in options.parts:
                found = measure(options.images, options.seconds, Path(folder))
                show(tables(found, title))
            if "step" in options.parts:
                found["steps"] = measure_steps(noise_images(BATCH), options.seconds, Path(folder))
                show([step_table(found["steps"], title)])
        record[f"threads_{threads}"] = found
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
