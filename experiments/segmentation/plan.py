"""The segmentation study (paper, Section 5.2, and our own): Oxford-IIIT Pet, pet against background.

Parts, in the order of worth: `whole` (the paper's split and recipe, fewer epochs), `subset` (2,000 fixed training
images, the same validation images, three seeds), `augmented` (the subset, with flips, crops and colours for all)
and `faster` (the subset, with the paper's two models at three times its rate: ours have that rate in their slices).
`tcpvit reproduce segmentation --only whole --epochs 150` is the paper's own schedule, for whoever has a GPU.
"""

from __future__ import annotations

from experiments.segmentation.page import write
from experiments.segmentation.tables import OWN, PAIR, PRESETS
from tcpvit.compare.study import Finished, Planned, Record, Study
from tcpvit.data.oxford_pet import CLASSES

RECIPE = "paper-segmentation"
MIXED = "precision=bfloat16"  # as in the paper, which trains in mixed precision
WHOLE = ("schedule.epochs=10", MIXED)
# Drawn by the seed of the data, which is 0 in every run; looking at the validation part is a fifth of the time.
SUBSET = ("schedule.epochs=15", MIXED, "data.options.train_size=2000", "evaluation.every=3")
AUGMENTED = (*SUBSET, "augment.flip=0.5", "augment.zoom=0.5", "augment.colour=0.3")
FASTER = (*SUBSET, "optimizer.lr=0.0015")  # C times the recipe's
SEEDS = range(3)

COLUMNS = ("epoch", "lr", "train_loss", "train_accuracy", "val_loss", "val_miou", "val_boundary_iou", "seconds")
MEANS = ("miou", "mdice", "pixel_accuracy", "image_miou", "boundary_iou", "loss")


def planned() -> list[Planned]:
    """Every run of the study."""
    plan = [run("whole", name, WHOLE) for name in ("std", "tcp")]
    for seed in SEEDS:
        plan += [run("subset", name, SUBSET, seed) for name in PRESETS]
        plan += [run("faster", name, FASTER) for name in PAIR if not seed]
        plan += [run("augmented", name, AUGMENTED, seed) for name in PRESETS]
    return plan


def run(group: str, name: str, changes: tuple[str, ...], seed: int = 0) -> Planned:
    """A run of one of the `PRESETS`.

    >>> run("whole", "std", WHOLE).changes
    ('model.name=std_vit_pet', 'schedule.epochs=10', 'precision=bfloat16')
    """
    return Planned(group, name, RECIPE, (f"model.name={PRESETS[name]}", *OWN.get(name, ()), *changes), seed)


def measured(finished: Finished) -> Record:
    """Metrics of the best epoch in fractions, the curves, and the confusion matrix (rows: the truth)."""
    result, test = finished.result, finished.result["test"]
    by_class = {
        f"{metric}_{label}": value
        for metric, values in test["by_class"].items()
        for label, value in zip(CLASSES, values, strict=True)
    }
    return {
        **{name: test[name] for name in MEANS},
        **by_class,
        "best_epoch": int(result["best"]["epoch"]),
        "miou_last": result["last"]["val_miou"],
        "confusion": test["confusion"],
        "classes": list(CLASSES),
        "history": [{name: row[name] for name in COLUMNS if name in row} for row in finished.history],
    }


STUDY = Study("segmentation", planned, measured, write)
