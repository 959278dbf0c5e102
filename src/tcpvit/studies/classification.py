"""The classification study (paper, Section 6.1, and our own): what closes the gap between TCP-ViT and Std-ViT.

Parts, in the order of worth: `gap` (full CIFAR-10, 12 epochs, one factor at a time), `final` (the same for 30 epochs
and three seeds), `paper` (the paper's protocol), `tuned`, `proxy` (does lr 0.01 without warm-up alone make the
difference the paper sees on SVHN?), `svhn`, `stl10`, and `full` for whoever has a GPU.
"""

from __future__ import annotations

from tcpvit.studies.classification_page import write
from tcpvit.studies.study import Finished, Planned, Record, Study

STD = ("model.name=std_vit_cifar",)


def tcp(**options: object) -> tuple[str, ...]:
    """Changes that make a TCP-ViT with these options.

    >>> tcp(tube=6, coupling="mix:rotation")
    ('model.options.tube=6', 'model.options.coupling=[mix:rotation]')
    """
    written = {key: f"[{value}]" if key == "coupling" else value for key, value in options.items()}
    return tuple(f"model.options.{key}={value}" for key, value in written.items())


JOINT = tcp(attention="joint", patch_embed="t_linear")  # what the single factors start from

# At most 44.5K parameters: what the slices of the paper's size can reach.
SMALL: dict[str, tuple[str, ...]] = {
    "std": STD,  # 119,194 parameters, the model to come near
    "joint": JOINT,
    "wide-72x6-mix": tcp(attention="joint", embed_dim=72, tube=6, depth=3, coupling="mix:rotation"),
    "std-28": (*STD, "model.options.embed_dim=28"),
    "joint-full-lr": (*JOINT, "optimizer.slice_lr_scale=full"),
    "joint-mix": (*JOINT, *tcp(coupling="mix:rotation")),
    "paper": (),
    "wide-96x12-mix": tcp(attention="joint", embed_dim=96, tube=12, depth=3, num_heads=4, coupling="mix:rotation"),
    "spatial": tcp(activation_domain="spatial"),
    "joint-none": tcp(attention="joint"),
    "t-linear": tcp(patch_embed="t_linear"),
    "joint-spatial": (*JOINT, *tcp(activation_domain="spatial")),
    "joint-shuffle": (*JOINT, *tcp(coupling="shuffle")),
    "joint-sqrt-lr": (*JOINT, "optimizer.slice_lr_scale=sqrt"),
    "joint-identity": (*JOINT, *tcp(transform="identity")),
    "joint-haar": (*JOINT, *tcp(transform="haar")),
    "joint-learned": (*JOINT, *tcp(transform="learned")),
    "joint-data": (*JOINT, *tcp(transform="data_driven")),
    "joint-heads-2": (*JOINT, *tcp(num_heads=2)),
    "joint-heads-8": (*JOINT, *tcp(num_heads=8)),
}

# Std-ViT's own parameters, 116K to 122K.
LARGE: dict[str, tuple[str, ...]] = {
    "large-144x12-mix": tcp(attention="joint", embed_dim=144, tube=12, depth=4, num_heads=4, coupling="mix:rotation"),
    "large-81x3": tcp(attention="joint", embed_dim=81, num_heads=3),
    "large-deep": (*JOINT, *tcp(depth=12)),
}


def planned() -> list[Planned]:
    """Every run of the study."""
    return [Planned("gap", name, "cifar-classification", changes) for name, changes in (SMALL | LARGE).items()]


def measured(finished: Finished) -> Record:
    """Accuracies and losses, in fractions; `best` is chosen on the test part itself, `last` is not."""
    best, last = finished.result["best"], finished.result["last"]
    columns = ("epoch", "lr", "train_loss", "train_accuracy", "val_loss", "val_top1", "seconds")
    return {
        "top1_best": best["val_top1"],
        "best_epoch": int(best["epoch"]),
        "top1_last": last["val_top1"],
        "train_loss": last["train_loss"],
        "test_loss": last["val_loss"],
        "test_loss_best": best["val_loss"],
        "train_accuracy": last["train_accuracy"],
        "history": [{name: row[name] for name in columns if name in row} for row in finished.history],
    }


STUDY = Study("classification", planned, measured, write)
