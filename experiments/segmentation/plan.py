"""The segmentation study (paper, Section 5.2, and our own): Oxford-IIIT Pet, pet against background.

Parts, the most important first: `whole` (the paper's split and recipe, fewer epochs), `subset` (2,000 fixed training
images, the same validation images, three seeds), `augmented` (the subset, with flips, crops and colours for all)
and `faster` (the subset, with the paper's two models at three times its rate: ours have that rate in their slices).
`tcpvit reproduce segmentation` is the paper's own schedule of 150 epochs, for whoever has a GPU.
"""

from __future__ import annotations

from experiments.segmentation.pages import write
from experiments.segmentation.tables import OWN, PRESETS
from tcpvit.compare.segmentation import MIXED, PAIR, RECIPE, measured
from tcpvit.compare.study import Planned, Study

WHOLE = ("schedule.epochs=10", MIXED)
# Drawn by the seed of the data, which is 0 in every run; looking at the validation part is a fifth of the time.
SUBSET = ("schedule.epochs=15", MIXED, "data.options.train_size=2000", "evaluation.every=3")
AUGMENTED = (*SUBSET, "augment.flip=0.5", "augment.zoom=0.5", "augment.colour=0.3")
FASTER = (*SUBSET, "optimizer.lr=0.0015")  # C times the recipe's
SEEDS = range(3)


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


STUDY = Study("segmentation", planned, measured, write)
