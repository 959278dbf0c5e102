"""`tcpvit explain`: what the slices of a model do with an image, as a figure and as numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tcpvit.cli.predict import load_trained
from tcpvit.cli.predict_scene import importance_on_test, open_for
from tcpvit.cli.scene_figures import importance_figure
from tcpvit.cli.show import display_for
from tcpvit.data.decode import EXTENSIONS
from tcpvit.data.images import Fit, OnBad, list_bad
from tcpvit.data.volumes.read import SUFFIXES, stem_of
from tcpvit.errors import printable
from tcpvit.figures.explain import Row, draw_explanation
from tcpvit.figures.masks import overlay
from tcpvit.figures.style import save_figure
from tcpvit.files import check_writable, free_names, keep_apart, keep_inputs
from tcpvit.inference.explain import ExplainedFile, Explanation, explain_files
from tcpvit.inference.importance import BandImportance
from tcpvit.inference.inputs import find_inputs
from tcpvit.inference.loading import LoadedModel, Weights
from tcpvit.tables import json_text

ENDINGS = ("png", "svg")
GAIN = 2.0  # contrasts between channels are shown so much stronger than they are


def explain(
    target: str,
    paths: list[Path] = [],  # noqa: B006 (typer copies it)
    *,
    out: Path = Path("explained"),
    truth: Path | None = None,
    weights: Weights = "best",
    fit: Fit | None = None,
    on_bad: OnBad = "skip",
    json: bool = False,
) -> list[ExplainedFile] | BandImportance:
    """Show what the slices of a model do with images.

    Draws a figure for each image: its slices, what each contributes (gradient × input by patch), the answer without
    each slice, and where the class token looks in each block, slice and head, with the rollout of all blocks. Of a
    segmenter, the pixels that change without a slice, or with --truth those that are wrong; of a model of volumes, also
    what each depth contributes. Of a run on a spectral scene, which needs no paths, the importance of each band and
    frequency over its test pixels.

    Args:
        target: a TCP model: a run folder, a folder written by save_pretrained, or a preset whose weights come with the
            package.
        paths: images or volumes, and folders that are searched for them with everything below.
        out: the folder for the figures, NAME.png and NAME.svg.
        truth: of a segmenter, the true mask of the image, or a folder with a mask of each image's name, in folders as
            the images are where names repeat.
        weights: which weights of a run, those of the best or of the last epoch.
        fit: make images square by keeping the middle (crop) or everything (squash); by default as in training.
        on_bad: what a file that is no image does, skip (it is named on stderr) or stop.
        json: print the numbers as JSON too.

    Examples:
        tcpvit explain tcp_vit_cifar_plus holiday.jpg
        tcpvit explain runs/demo/tcp-0 holiday.jpg holiday/ --out explained --json
        tcpvit explain tcp_vit_pet holiday/cat.jpg
        tcpvit explain runs/field --out explained
    """
    check_writable(out / "figure")
    progress = display_for(json=True)
    loaded = load_trained(target, weights, progress)
    if "scene" in (loaded.preprocessing or {}):
        if paths:
            raise ValueError(f"{target} is explained by the scene of its run; leave {paths[0]} out")
        return _explain_scene(loaded, out, json)
    if not paths:
        raise ValueError("name the images, or folders of images, to explain")
    keep_apart([out], paths)
    files = find_inputs(loaded, paths, [out])
    names = _names(files)
    truths = None if truth is None else _truths(files, truth)
    keep_inputs([out / f"{name}.{ending}" for name in names for ending in ENDINGS], [*files, *(truths or [])])
    done, bad = [], []
    for name, found in zip(names, explain_files(loaded, files, truths=truths, fit=fit), strict=True):
        if isinstance(found, str):
            bad.append(found)
            if on_bad == "stop":
                raise ValueError(f"{list_bad(bad, len(files))}; repair or remove it, or skip it with --on-bad skip")
            continue
        save_figure(figure_of(loaded, found), out / name, ENDINGS)
        done.append(found)
    if not done:
        raise ValueError(f"{list_bad(bad, len(files))}; no image is left")
    if bad:
        progress.message(f"{list_bad(bad, len(files))}; skipped")
    if json:
        print(json_text([{"file": each.file, **each.explanation.to_dict(loaded.classes, each.truth)} for each in done]))
    print(f"{len(done):,} of {len(files):,} explained, in {printable(str(out))}", file=sys.stderr)
    return done


def _explain_scene(loaded: LoadedModel, out: Path, json: bool) -> BandImportance:
    """The importance of bands and frequencies over the test pixels of a run's scene."""
    scene, split = open_for(loaded)
    found = importance_on_test(loaded, scene, split)
    save_figure(importance_figure(scene, found), out / "importance", ENDINGS)
    if json:
        print(json_text({"by_band": found.by_band.tolist(), "by_frequency": found.by_frequency.tolist()}))
    print(f"the importance of bands and frequencies, in {printable(str(out))}", file=sys.stderr)
    return found


def figure_of(loaded: LoadedModel, found: ExplainedFile) -> Any:
    """The figure of one image."""
    explained, model = found.explanation, _backbone(loaded)
    title = f"{Path(found.file).name}: {loaded.name}"
    slices = _slice_images(found.pixels, loaded) if explained.slices is not None else None
    segments = explained.logits.ndim > 1
    other = explained.changed if found.truth is None else explained.wrong(found.truth)[1]
    by_slice, rollout, attention = (
        each.sum(-3).numpy() if explained.by_depth is not None else each.numpy()  # all depths of a volume together
        for each in (explained.by_slice, explained.rollout, explained.attention)
    )
    return draw_explanation(
        title,
        found.pixels,
        slices,
        by_slice,
        rollout,
        attention,
        _mask_rows(explained, found.truth) if segments else _label_rows(explained, loaded.classes),
        overlay(found.pixels, _middle(explained.answer), edges=True) if segments else None,
        _middle(other, first=1).astype(float) if segments else None,
        None if explained.by_depth is None or len(explained.by_depth) < 2 else explained.by_depth.numpy(),
        "changes" if found.truth is None else "wrong",
        "the class token looks" if model.num_prefix_tokens else "the patches look, on average",
    )


def _backbone(loaded: LoadedModel) -> Any:
    return getattr(loaded.model, "backbone", loaded.model)


def _middle(labels: Tensor, first: int = 0) -> np.ndarray:
    """Labels of an image as they are, of a volume those of its middle, as the image of it that is shown."""
    volume = labels.ndim - first == 3
    return (labels.select(first, labels.shape[first] // 2) if volume else labels).numpy()


def _label_rows(explained: Explanation, classes: Sequence[str]) -> list[Row]:
    """The likeliest label with everything and without each slice, with its probability."""
    rows = [("all slices", explained.probabilities)]
    rows += [(f"without {k}", each) for k, each in enumerate(explained.probabilities_without)]
    return [Row(name, classes[int(each.argmax())], float(each.max())) for name, each in rows]


def _mask_rows(explained: Explanation, truth: Tensor | None) -> list[Row]:
    """How much of the mask is right, or stays as it is, without each slice."""
    if truth is not None:
        error, without = explained.errors(truth)
        rows = [Row("all slices", "right", 1 - error)]
        return rows + [Row(f"without {k}", "right", 1 - each) for k, each in enumerate(without)]
    same = 1 - explained.changed.float().flatten(1).mean(1)
    rows = [Row("all slices", "its mask", 1.0)]
    return rows + [Row(f"without {k}", "the same", float(each)) for k, each in enumerate(same)]


def _slice_images(pixels: np.ndarray, loaded: LoadedModel) -> np.ndarray:
    """Each slice alone as an image (C, H, W, 3) around grey, contrasts stronger than they are."""
    matrix, inverse = (each.detach().cpu().numpy() for each in _backbone(loaded).transform.matrices())
    hat = (pixels / 255 - 0.5) @ matrix.T
    alone = [hat[..., k, None] * inverse[:, k] for k in range(len(matrix))]
    gains = [1.0 if k == 0 else GAIN for k in range(len(matrix))]
    images = [np.clip(255 * (0.5 + gain * part), 0, 255) for gain, part in zip(gains, alone, strict=True)]
    return np.stack(images).astype(np.uint8)


def _truths(files: list[Path], truth: Path) -> list[Path]:
    """The mask of each file: the one that is named, or that of its name in a folder."""
    if truth.is_file() and len(files) == 1:
        return [truth]
    if not truth.is_dir():
        problem = "there are several images" if truth.is_file() else "it is no file"
        raise ValueError(f"--truth {truth} is one mask of one image or a folder of masks, but {problem}")
    masks = _masks_below(truth, files)
    found = [_nearest(file, masks.get(_stem(file), []), truth) for file in files]
    if lacking := [str(file) for file, fitting in zip(files, found, strict=True) if not fitting]:
        raise ValueError(f"{truth} has no mask of the name of {lacking[0]}, and {len(lacking)} are lacking in all")
    of_mask: dict[Path, Path] = {}
    for file, fitting in zip(files, found, strict=True):
        if len(fitting) > 1:
            raise ValueError(f"{fitting[0]} and {fitting[1]} may both be the mask of {file}; leave one of them")
        if (other := of_mask.setdefault(fitting[0], file)) != file:
            raise ValueError(
                f"{fitting[0]} would be the mask of {other} and of {file}; keep masks in folders as the images are"
            )
    return [fitting[0] for fitting in found]


def _masks_below(truth: Path, files: list[Path]) -> dict[str, list[Path]]:
    """Images and volumes below a folder by their names without endings, without the files themselves."""
    endings, ours = (*EXTENSIONS, *SUFFIXES), {file.resolve() for file in files}
    found: dict[str, list[Path]] = {}
    for path in sorted(truth.rglob("*")):
        if path.name.lower().endswith(endings) and path.is_file() and path.resolve() not in ours:
            found.setdefault(_stem(path), []).append(path)
    return found


def _nearest(file: Path, masks: list[Path], truth: Path) -> list[Path]:
    """Of masks of a file's name those whose folders below `truth` are the file's own, the most of them; else all."""
    folders = file.resolve().parent.parts

    def shared(mask: Path) -> int:
        inside = mask.relative_to(truth).parent.parts
        return len(inside) if folders[len(folders) - len(inside) :] == inside else -1

    most = max(map(shared, masks), default=0)
    return [mask for mask in masks if shared(mask) == most]


def _stem(file: Path) -> str:
    """The name without its ending, which may be .nii.gz."""
    return min(stem_of(file), file.stem, key=len)


def _names(files: list[Path]) -> list[str]:
    """A name for each figure: that of its file, with a number where two would be the same."""

    def name(file: Path, number: int) -> str:
        whole = file.name or file.resolve().name
        stem = _stem(Path(whole))
        return whole if number == 1 else f"{stem}-{number}{whole[len(stem) :]}"

    return free_names(files, name)
