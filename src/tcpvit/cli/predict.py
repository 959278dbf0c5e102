"""`tcpvit predict`: what a trained model sees in image files, as a table for programs and as images for people."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tcpvit.cli.predict_scene import predict_scene
from tcpvit.cli.show import display_for
from tcpvit.data.decode import read_image
from tcpvit.data.images import Fit, OnBad, list_bad
from tcpvit.data.volumes.video import clip_bytes
from tcpvit.errors import printable
from tcpvit.figures.labelled import draw_labelled, draw_sheet
from tcpvit.figures.style import house_style
from tcpvit.files import (
    below_common,
    check_writable,
    keep_apart,
    keep_inputs,
    names_below_common,
    write_atomically,
    write_inside,
)
from tcpvit.inference.inputs import find_inputs
from tcpvit.inference.loading import LoadedModel, Weights, load_model
from tcpvit.inference.masks import KINDS, Segmented, segment_files
from tcpvit.inference.predict import Prediction, Predictions, check_counts, predict_files
from tcpvit.inference.scene_map import SceneMap
from tcpvit.inference.volumes import is_volume_or_clip, labelled_frames, montage_of
from tcpvit.models import list_pretrained
from tcpvit.progress import Progress
from tcpvit.tables import json_text

SHOWN = 80  # images on a sheet
SIDE = 512  # pixels: larger images are reduced before they are drawn


def predict(
    target: str,
    paths: list[Path] = [],  # noqa: B006 (typer copies it)
    *,
    scene: str | None = None,
    labels: Path | None = None,
    key: str | None = None,
    top: int = 3,
    out: Path | None = None,
    sheet: Path | None = None,
    images: Path | None = None,
    weights: Weights = "best",
    fit: Fit | None = None,
    on_bad: OnBad = "skip",
    batch_size: int = 250,
    device: str = "auto",
    json: bool = False,
) -> Predictions | SceneMap:
    """Label images, or the pixels of a scene, with a trained model.

    Writes the likeliest labels of each file and their probabilities as CSV. Images are prepared as the model's own
    were: its size, its normalisation, its names of the classes. Grey and transparent ones are taken as colour. A
    segmenter writes a mask and an overlay of each image, at its own size, and the share of each class as CSV. In the
    CSV control characters of names are escaped (\\r), and names that begin with =, +, - or @ get an apostrophe before
    them.

    A model that was trained on a scene of many bands classifies every pixel of --scene (by default of its own): as PNG
    with colours, as NumPy array, and as ENVI or GeoTIFF if the scene has coordinates, each with the confidences beside.

    Args:
        target: a run folder, a folder written by save_pretrained, a file written by `tcpvit export`, or a preset whose
            weights come with the package.
        paths: image files, and folders that are searched for images with everything below them; for a model of
            volumes or clips NIfTI, NumPy and TIFF files, DICOM folders, or video and folders of frames.
        scene: instead of images, a scene of many bands, a file or a name as indian-pines. Bands of another sensor are
            interpolated at the wavelengths of the model.
        labels: the label map of that scene, to draw beside the prediction with --images.
        key: the array of that scene's file that is meant, where it holds several.
        top: how many labels to give for each image (a segmenter gives all).
        out: write the CSV (or JSON) into this file instead of stdout; the map of a scene as map.png, map.tif, map.hdr
            or map.npy, by default SCENE_classes.png and more.
        sheet: draw the images with their labels on one sheet, as sheet.png or sheet.svg.
        images: draw each image beside its labels, into this folder; a segmenter writes masks/ and overlays/ into
            it (by default the folder segmented); of a scene, draw maps and the importance of its bands.
        weights: which weights of a run, those of the best or of the last epoch.
        fit: make images square by keeping the middle (crop) or everything (squash); by default as in training. A
            segmenter keeps everything: crop leaves the image its shape.
        on_bad: what a file that is no image does, skip (it is counted and named on stderr) or stop.
        batch_size: images at a time.
        device: auto, cpu, cuda, cuda:1, mps.
        json: write JSON instead of CSV.

    Examples:
        tcpvit predict runs/demo/tcp-0 runs/demo/images
        tcpvit predict runs/demo/tcp-0 holiday.jpg scans/ --top 5 --out labels.csv
        tcpvit predict runs/demo/tcp-0 runs/demo/images --sheet sheet.png --images labelled
        tcpvit predict runs/demo/tcp-0/best scans/ --on-bad stop --json
        tcpvit predict tcp_vit_pet holiday/ --images pets
        tcpvit predict plus.onnx holiday.jpg
        tcpvit predict runs/field --images figures
        tcpvit predict runs/field --scene cube.npy --out map.png
    """
    if sheet is not None and sheet.suffix.lower() not in (".png", ".svg", ".pdf", ".jpg"):
        raise ValueError(f"a sheet is an image, as sheet.png or sheet.svg, got {str(sheet)!r}")
    check_counts(top, batch_size)
    progress = display_for(json=True)  # stdout is left to the predictions
    loaded = load_trained(target, weights, progress)
    if "scene" in (loaded.preprocessing or {}) or scene is not None:
        if paths:
            raise ValueError(f"{target} classifies the pixels of a scene; name it with --scene {paths[0]}")
        options: dict[str, Any] = {"out": out, "images": images, "batch_size": batch_size, "device": device}
        return predict_scene(loaded, scene, labels, key=key, json=json, progress=progress, **options)
    if labels is not None or key is not None or not paths:
        given = "--labels is" if labels is not None else "--key is"
        raise ValueError(f"{given} for a --scene" if paths else "name the images, or folders of images, to label")
    segments = loaded.segments
    images = Path("segmented") if segments and images is None else images
    leave_out = _written_into(images, segments)
    if not segments:  # which has its own rule for masks/ and overlays/
        keep_apart(leave_out, paths)
    check_writable(*(place for place in (out, sheet) if place), *(folder / "image" for folder in leave_out))
    files = find_inputs(loaded, paths, leave_out)
    keep_inputs([place for place in (out, sheet) if place is not None], files)
    if images is not None and not segments:
        keep_inputs(_labelled_places(files, images, loaded.takes_clips), files)
    common: dict[str, Any] = {"fit": fit, "on_bad": on_bad, "device": device, "progress": progress}
    if segments and images is not None:
        done = Predictions(*segment_files(loaded, files, images, **common))
    else:
        done = predict_files(loaded, files, top=top, batch_size=batch_size, **common)
    if done.bad:
        progress.message(f"{list_bad(done.bad, len(files))}; skipped")
    _write(done, out, json)
    if sheet is not None:
        _draw_sheet(done.found, sheet)
    if images is not None:
        if labelled := [item for item in done.found if isinstance(item, Prediction)]:
            _draw_labelled(labelled, images)
            if loaded.takes_clips:
                names = dict(zip(map(str, files), names_below_common(files, ".mp4"), strict=True))
                for item in labelled:
                    write_inside(images, names[item.file], clip_bytes(labelled_frames(item.file, item.caption)))
        what = "labelled images" if labelled else "masks and overlays"
        print(f"{len(done.found):,} {what} in {printable(str(images))}", file=sys.stderr)
    return done


def load_trained(target: str, weights: Weights, progress: Progress) -> LoadedModel:
    """A model that has been trained, and whose images can be prepared."""
    loaded = load_model(target, weights)
    if loaded.preprocessing is not None:
        return loaded
    if not Path(target).exists():
        raise ValueError(
            f"{target} is a preset with random weights; train it, then give the folder of its run, or take one "
            f"that comes with weights: {', '.join(list_pretrained())}"
        )
    if loaded.config is None:
        raise ValueError(
            f"{target} does not say how its images are prepared; convert the model again from where that is known "
            f"(a run, timm, torchvision, transformers with a preprocessor_config.json), or distil it"
        )
    progress.message(f"{target} does not say how its images were prepared; they are normalised as ImageNet's are")
    return loaded


def _write(done: Predictions, out: Path | None, json: bool) -> None:
    """The predictions as CSV or JSON, into a file or on stdout."""
    text = json_text(asdict(done)) + "\n" if json else _as_csv(done.found)
    if out is None:
        sys.stdout.write(text)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text.encode())
    print(f"{len(done.found):,} predictions in {printable(str(out))}", file=sys.stderr)


def _written_into(images: Path | None, segments: bool) -> list[Path]:
    """The folders that hold our own images, which the next call does not take for the user's."""
    if images is None:
        return []
    return [images / kind for kind in KINDS] if segments else [images]


def _as_csv(found: Sequence[Prediction | Segmented]) -> str:
    text = io.StringIO()
    lines = [{printable(name): as_cell(value) for name, value in item.columns().items()} for item in found]
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def as_cell(value: str) -> str:
    r"""A cell of a CSV file: on one line, in UTF-8, and no formula to a spreadsheet, which takes ' as a mark of text.

    >>> as_cell("=1+1.png"), as_cell("a\rb\udcff.png"), as_cell("0.25")
    ("'=1+1.png", 'a\\rb\\udcff.png', '0.25')
    """
    shown = printable(value)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


def _draw_sheet(found: Sequence[Prediction | Segmented], sheet: Path) -> None:
    """The first images on one sheet, with what was found in them."""
    shown = found[:SHOWN]
    figure = draw_sheet([_pixels(p.shown) for p in shown], [(p.caption, Path(p.file).name) for p in shown])
    sheet.parent.mkdir(parents=True, exist_ok=True)
    with house_style():
        figure.savefig(sheet)
    left_out = f" (the first {SHOWN} of {len(found):,})" if len(found) > SHOWN else ""
    print(f"{printable(str(sheet))}{left_out}", file=sys.stderr)


def _labelled_names(files: Sequence[str | Path]) -> list[Path]:
    """Where each labelled image stands in the folder of all: as its file below their common folder."""
    return [place.with_name(f"{place.name}.png") for place in below_common(files)]  # beside photo.jpg


def _labelled_places(files: Sequence[str | Path], folder: Path, clips: bool) -> list[Path]:
    """All that may be written for these files."""
    return [folder / name for name in (*_labelled_names(files), *(names_below_common(files, ".mp4") if clips else ()))]


def _draw_labelled(found: Sequence[Prediction], folder: Path) -> None:
    """Each image beside its labels."""
    for p, name in zip(found, _labelled_names([p.file for p in found]), strict=True):
        figure = draw_labelled(_pixels(p.file), p.labels, p.probabilities, Path(p.file).name)
        content = io.BytesIO()
        with house_style():
            figure.savefig(content, format="png")
        write_inside(folder, name, content.getvalue())


def _pixels(file: str) -> np.ndarray:
    """(H, W, 3) uint8, reduced to what a figure can show."""
    if is_volume_or_clip(Path(file)):
        return montage_of(file)
    image = read_image(file)
    image.thumbnail((SIDE, SIDE))
    return np.asarray(image)
