"""Recovery of real video along time: completion and robust PCA by several products, and the time of a factorisation.

    python -m experiments.volumes.recovery FOLDER --results results

FOLDER holds lobby.npz and curtain.npz, grey 'frames' (T, H, W). A frame is a frontal slice, and the tube runs along the
time. "frame by frame" is the product of the identity transform: every frame is recovered as a matrix of its own.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tcpvit.algebra import complete, data_driven, robust_pca, svd
from tcpvit.files import write_json

CLIPS = ("lobby", "curtain")
MISSING, CORRUPTED = 0.7, 0.2
LABELS = {"dct": "DCT", "dft": "t-product (DFT)", "data": "data-driven", "identity": "frame by frame"}


def read(path: Path, step: int) -> Tensor:
    """(H, W, T) in 0…1, at half of the size, every `step`-th frame."""
    with np.load(path, allow_pickle=False) as file:
        frames = torch.from_numpy(file["frames"][::step]).float() / 255
    return torch.nn.functional.avg_pool2d(frames[:, None], 2)[:, 0].permute(1, 2, 0).contiguous()


def psnr(found: Tensor, truth: Tensor) -> float:
    """Decibels, where 1 is the largest value."""
    return -10 * math.log10((found - truth).square().mean().item())


def recover(clip: Tensor, seed: int = 0) -> dict[str, Any]:
    """PSNR and seconds of each transform, for both tasks; and the frames of the best and the worst."""
    generator = torch.Generator().manual_seed(seed)
    known = torch.rand(clip.shape, generator=generator) > MISSING
    broken = torch.rand(clip.shape, generator=generator) < CORRUPTED
    noise = (torch.rand(clip.shape, generator=generator) > 0.5).float()
    corrupted = torch.where(broken, noise, clip)
    found: dict[str, Any] = {}
    for name in LABELS:
        # A transform that is computed from data sees what a user would have: the incomplete or corrupted clip.
        filled = torch.where(known, clip, clip[known].mean())
        begin = time.perf_counter()
        completed = complete(clip, known, data_driven(filled) if name == "data" else name, tol=1e-3).x
        middle = time.perf_counter()
        separated = robust_pca(corrupted, transform=data_driven(corrupted) if name == "data" else name, tol=1e-3)
        found[name] = {
            "completion": psnr(completed, clip),
            "completion_seconds": middle - begin,
            "robust_pca": psnr(separated.low_rank, clip),
            "robust_pca_seconds": time.perf_counter() - middle,
            "frames": [completed[..., -1], separated.low_rank[..., -1]],
        }
    found["given"] = {"frames": [torch.where(known, clip, 0.0)[..., -1], corrupted[..., -1]]}
    return found


def time_svd(clip: Tensor, repeats: int = 5) -> dict[str, float]:
    """Milliseconds of one SVD of the clip along its DCT, ours and mprod's in turn, the best of each."""
    from mprod import generate_dct
    from mprod.decompositions import svdm

    array = clip.double().numpy()
    forward, backward = generate_dct(clip.shape[2])
    ways: dict[str, Callable[[], Any]] = {
        "tcpvit": lambda: svd(clip.double()),
        "mprod": lambda: svdm(array, forward, backward),
    }
    best = dict.fromkeys(ways, math.inf)
    for _ in range(repeats):
        for name, run in ways.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], 1000 * (time.perf_counter() - begin))
    return best


def draw(recovered: dict[str, dict[str, Any]], clips: dict[str, Tensor], path: Path) -> None:
    """The last frame of each clip: as it is, as it was given, and as it came back."""
    from tcpvit.figures.style import house_style

    names = ["given", "identity", "dft", "dct", "data"]
    titles = ["truth", "given", *(LABELS[name] for name in names[1:])]
    with house_style() as Figure:
        figure = Figure(figsize=(7.2, 1.05 * 2 * len(clips)))
        axes = figure.subplots(2 * len(clips), len(titles))
        for i, (clip, found) in enumerate(recovered.items()):
            for task, word in enumerate(("completion", "robust PCA")):
                row = axes[2 * i + task]
                images = [clips[clip][..., -1], *(found[name]["frames"][task] for name in names)]
                for panel, image, title in zip(row, images, titles, strict=True):
                    panel.imshow(image, cmap="gray", vmin=0, vmax=1)
                    panel.set_xticks([])
                    panel.set_yticks([])
                    if not i and not task:
                        panel.set_title(title, fontsize=7)
                row[0].set_ylabel(f"{clip}\n{word}", fontsize=6)
        figure.subplots_adjust(0.06, 0.01, 0.995, 0.93, 0.04, 0.06)
        figure.savefig(path, dpi=110)


def main() -> None:
    """Recover both clips and write the record and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--pages", type=Path, default=Path("docs/results"))
    parser.add_argument("--step", type=int, default=3, help="take every so many frames")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clips = {name: read(options.folder / f"{name}.npz", options.step) for name in CLIPS}
    recovered = {name: recover(clip) for name, clip in clips.items()}
    draw(recovered, clips, options.pages / "volumes_recovery.webp")
    numbers = {
        clip: {name: {k: v for k, v in row.items() if k != "frames"} for name, row in found.items() if name in LABELS}
        for clip, found in recovered.items()
    }
    write_json(
        options.results / "bench" / "video.json",
        {
            "command": f"python -m experiments.volumes.recovery FOLDER --step {options.step}",
            "torch": torch.__version__,
            "machine": platform.machine(),
            "shape": list(clips[CLIPS[0]].shape),
            "missing": MISSING,
            "corrupted": CORRUPTED,
            "clips": numbers,
            "svd_milliseconds": time_svd(clips[CLIPS[0]]),
        },
    )


if __name__ == "__main__":
    main()
