"""The study of volumes and clips: what tubes along depth or time can and cannot see.

Parts: `digits` (which way a digit moves, at random polarity: the paper's slices against slices that meet), `rates`
(learning rates for AdrenalMNIST3D, judged on its validation part) and `adrenal` (the same set at 32³, five seeds: tubes
along the depth, along depth and height, and dense models, each at the rate that was chosen for its kind).
"""

from __future__ import annotations

from experiments.volumes.pages import write
from experiments.volumes.tables import opposite_accuracy
from tcpvit.compare.study import Finished, Planned, Record, Study

# The models of each part: their preset, and what is changed in it.
DIGITS = {
    "slice": ("tcp_vit_video_small", ("attention=slice", "coupling=none", "patch_embed=t_linear")),
    "joint": ("tcp_vit_video_small", ("attention=joint", "coupling=none", "patch_embed=t_linear")),
    "coupled": ("tcp_vit_video_small", ()),
    "dense": ("std_vit_video_small", ()),
}
ADRENAL = {
    "dense": ("std_vit_volume_small", ()),
    "depth": ("tcp_vit_volume_small", ()),
    "dense-small": ("std_vit_volume_small", ("embed_dim=36",)),
    "order-4": ("tcp_vit_volume_small", ("tube=depth+height", "embed_dim=256", "num_heads=1")),
    "slice": ("tcp_vit_volume_small", ("attention=slice", "coupling=none")),
}
# Clips of 16×16 pixels and few epochs: a core was all there was.
CLIPS = (
    "data.image_size=16",
    "model.options.img_size=[8,16,16]",
    "data.options.sizes=[4000,500,4000]",
    "data.batch_size=128",
    "evaluation.every=5",
)
VOLUMES = ("schedule.epochs=24",)
RATES = (0.0005, 0.001, 0.002)
CHOSEN = {"dense": 0.0005, "depth": 0.002}  # by the best validation AUC of `rates`
KINDS = {name: "dense" if preset.startswith("std") else "depth" for name, (preset, _) in ADRENAL.items()}
SEEDS = range(5)


def planned() -> list[Planned]:
    """Every run of the study."""
    plan = [run("digits", name, "clips", *DIGITS[name], *CLIPS) for name in DIGITS]
    plan += [glands("rates", f"{kind}-{rate}", kind, rate) for kind in CHOSEN for rate in RATES]
    for names in (("dense", "depth"), ("dense-small", "order-4"), ("slice",)):
        plan += [glands("adrenal", name, name, CHOSEN[KINDS[name]], seed) for seed in SEEDS for name in names]
    plan += [run("digits", name, "clips", *DIGITS[name], *CLIPS, seed=s) for s in (1, 2) for name in DIGITS]
    return plan


def glands(group: str, name: str, model: str, rate: float, seed: int = 0) -> Planned:
    """A run on AdrenalMNIST3D."""
    return run(group, name, "volumes", *ADRENAL[model], *VOLUMES, f"optimizer.lr={rate}", seed=seed)


def run(
    group: str, name: str, recipe: str, preset: str, options: tuple[str, ...], *changes: str, seed: int = 0
) -> Planned:
    """A run of a preset with changed options.

    >>> run("digits", "slice", "clips", "tcp_vit_video_small", ("attention=slice",)).changes
    ('model.name=tcp_vit_video_small', 'model.options.attention=slice')
    """
    own = tuple(f"model.options.{option}" for option in options)
    return Planned(group, name, recipe, (f"model.name={preset}", *own, *changes), seed)


def measured(run: Finished) -> Record:
    """The test metrics of the best epoch."""
    test = run.result["test"]
    found = {name: test[name] for name in ("loss", "top1", "auc", "majority") if name in test}
    best = run.result["best"]
    found |= {"confusion": test["confusion"], "best_epoch": best["epoch"]}
    if "val_auc" in best:
        found["val_auc"] = best["val_auc"]
    if len(test["confusion"]) == 4:
        found["opposite"] = opposite_accuracy(test["confusion"])
    return found


STUDY = Study("volumes", planned, measured, write)
