"""`tcpvit predict`: what a trained model sees in picture files, as a table for programs and as pictures for people."""

from __future__ import annotations

import csv
import io
import json as json_module
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from tcpvit.data import PictureFiles
from tcpvit.data.augment import normalise
from tcpvit.data.pictures import EXTENSIONS, Fit, OnBad, list_bad, read_picture
from tcpvit.data.walk import walk_pictures
from tcpvit.models import EncoderDecoder, list_pretrained
from tcpvit.training.build import find_device
from tcpvit.training.checkpoint import write_atomically
from tcpvit.training.evaluation import unwrapped
from tcpvit.training.links import write_inside
from tcpvit.training.recipe import Recipe
from tcpvit.training.segment import KINDS, Segmented, segment_files
from tcpvit.training.trained import Trained, Weights, load_trained

SHOWN = 80  # pictures on a sheet
SIDE = 512  # pixels: larger pictures are reduced before they are drawn


@dataclass(frozen=True)
class Prediction:
    """The likeliest labels of a file, the first the likeliest, with their probabilities."""

    file: str
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]

    def columns(self) -> dict[str, str]:
        """A line of the CSV."""
        line = {"file": self.file}
        for rank, (label, chance) in enumerate(zip(self.labels, self.probabilities, strict=True), start=1):
            line |= {f"label_{rank}": label, f"probability_{rank}": f"{chance:.6f}"}
        return line

    @property
    def caption(self) -> str:
        """What a sheet says of it."""
        return f"{self.labels[0]}  {100 * self.probabilities[0]:.0f} %"

    @property
    def shown(self) -> str:
        """The picture that a sheet shows."""
        return self.file


@dataclass(frozen=True)
class Predictions:
    """What was predicted, and a sentence for each file that could not be read."""

    found: Sequence[Prediction | Segmented]
    bad: list[str]


def predict(
    target: str,
    paths: list[Path],
    *,
    top: int = 3,
    out: Path | None = None,
    sheet: Path | None = None,
    pictures: Path | None = None,
    weights: Weights = "best",
    fit: Fit | None = None,
    on_bad: OnBad = "skip",
    batch_size: int = 250,
    device: str = "auto",
    json: bool = False,
) -> Predictions:
    """Label pictures with a trained model.

    Writes the likeliest labels of each file and their probabilities as CSV. Pictures are prepared as the model's own
    were: its size, its normalisation, its names of the classes. Grey and transparent ones are taken as colour. A
    segmenter writes a mask and an overlay of each picture, at its own size, and the share of each class as CSV.

    Args:
        target: a run folder, a folder written by save_pretrained, or a preset whose weights come with the package.
        paths: picture files, and folders that are searched for pictures with everything below them.
        top: how many labels to give for each picture (a segmenter gives all).
        out: write the CSV (or JSON) into this file instead of stdout.
        sheet: draw the pictures with their labels on one sheet, as sheet.png or sheet.svg.
        pictures: draw each picture beside its labels, into this folder; a segmenter writes masks/ and overlays/ into
            it (by default the folder segmented).
        weights: of a run, those of its best or its last epoch.
        fit: make pictures square by keeping the middle (crop) or everything (squash); by default as in training. A
            segmenter keeps everything: crop leaves the picture its shape.
        on_bad: what a file that is no picture does, skip (it is counted and named on stderr) or stop.
        batch_size: pictures at a time.
        device: auto, cpu, cuda, cuda:1, mps.
        json: write JSON instead of CSV.

    Examples:
        tcpvit predict runs/demo/tcp-0 runs/demo/pictures
        tcpvit predict runs/demo/tcp-0 holiday.jpg scans/ --top 5 --out labels.csv
        tcpvit predict runs/demo/tcp-0 runs/demo/pictures --sheet sheet.png --pictures labelled
        tcpvit predict runs/demo/tcp-0/best scans/ --on-bad stop --json
        tcpvit predict tcp_vit_pet holiday/ --pictures pets
    """
    if sheet is not None and sheet.suffix.lower() not in (".png", ".svg", ".pdf", ".jpg"):
        raise ValueError(f"a sheet is a picture, as sheet.png or sheet.svg, got {str(sheet)!r}")
    _check_counts(top, batch_size)
    trained = load_trained(target, weights)
    if trained.preprocessing is None and not Path(target).is_dir():
        raise ValueError(
            f"{target} is a preset with random weights; train it, then predict with the folder of its run, or take one "
            f"that comes with weights: {', '.join(list_pretrained())}"
        )
    if trained.preprocessing is None and trained.config is None:
        raise ValueError(
            f"{target} does not say how its pictures are prepared; convert the model again from where that is known "
            f"(a run, timm, torchvision, transformers with a preprocessor_config.json), or distil it"
        )
    if trained.preprocessing is None:
        print(f"tcpvit: {target} does not say how its pictures were prepared; ImageNet's way is taken", file=sys.stderr)
    segments = isinstance(trained.model, EncoderDecoder)
    pictures = Path("segmented") if segments and pictures is None else pictures
    files = find_pictures(paths, leave_out=_written_into(pictures, segments))
    if segments and pictures is not None:
        done = Predictions(*segment_files(trained, files, pictures, fit=fit, on_bad=on_bad, device=device))
    else:
        done = predict_files(trained, files, top=top, fit=fit, on_bad=on_bad, batch_size=batch_size, device=device)
    if done.bad:
        print(f"tcpvit: {list_bad(done.bad, len(files))}; skipped", file=sys.stderr)
    text = _as_json(done) if json else _as_csv(done.found)
    if out is None:
        sys.stdout.write(text)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text.encode())
        print(f"{len(done.found):,} predictions in {out}", file=sys.stderr)
    if sheet is not None:
        _draw_sheet(done.found, sheet)
    if pictures is not None:
        if labelled := [item for item in done.found if isinstance(item, Prediction)]:
            _draw_labelled(labelled, pictures)
            print(f"{len(done.found):,} labelled pictures in {pictures}", file=sys.stderr)
        else:
            print(f"{len(done.found):,} masks and overlays in {pictures}", file=sys.stderr)
    return done


def _written_into(pictures: Path | None, segments: bool) -> list[Path]:
    """The folders that hold our own pictures, which the next call does not take for the user's."""
    if pictures is None:
        return []
    return [pictures / kind for kind in KINDS] if segments else [pictures]


def find_pictures(paths: Sequence[Path], leave_out: Sequence[Path] = ()) -> list[Path]:
    """Files as they are named, folders searched for pictures in alphabetical order, without those to leave out.

    In a folder each real file is taken once; its pipes, sockets and devices are given too, to be named as unreadable.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            walk = walk_pictures(path)
            inside = sorted(map(Path, [*walk.once(), *walk.special]))
            ours = [folder.resolve() for folder in leave_out if path.resolve() in folder.resolve().parents]
            files += [file for file in inside if not _is_below(file, ours)]
        elif path.is_file():
            files.append(path)
        else:
            raise ValueError(f"{path} is neither a file nor a folder")
    if not files:
        searched = ", ".join(str(path) for path in paths)
        raise ValueError(f"there are no pictures in {searched}; looked for {', '.join(sorted(EXTENSIONS))}")
    return files


def _is_below(file: Path, folders: Sequence[Path]) -> bool:
    return any(folder in file.resolve().parents for folder in folders)


@torch.inference_mode()
def predict_files(
    trained: Trained,
    files: Sequence[str | Path],
    *,
    top: int = 3,
    fit: Fit | None = None,
    on_bad: OnBad = "skip",
    batch_size: int = 250,
    device: str = "auto",
) -> Predictions:
    """The `top` likeliest labels of each file; one that cannot be read is named in `bad`, or stops everything."""
    _check_counts(top, batch_size)
    at = find_device(Recipe(device=device))
    data = _as_data(trained, files, fit)
    model = trained.model.to(at).eval()
    top = min(top, len(data.classes))
    found: list[Prediction] = []
    bad: list[str] = []
    console = Console(stderr=True)
    chunks = torch.arange(len(files)).split(batch_size)
    for rows in track(chunks, "predicting", console=console, transient=True, disable=not console.is_terminal):
        batch = data.fetch(rows)
        bad += batch.bad
        if bad and on_bad == "stop":
            raise ValueError(f"{list_bad(bad, len(files))}; mend or remove them, or go on with --on-bad skip")
        if not len(batch.images):
            continue
        logits = unwrapped(model(normalise(batch.images.to(at).float(), data.mean, data.std)))
        likeliest = logits.float().softmax(1).topk(top)
        names = rows if batch.kept is None else rows[batch.kept]
        for row, chances, labels in zip(names, likeliest.values.tolist(), likeliest.indices.tolist(), strict=True):
            found.append(Prediction(str(files[row]), tuple(data.classes[k] for k in labels), tuple(chances)))
    if not found:
        raise ValueError(f"{list_bad(bad, len(files))}; no picture is left")
    return Predictions(found, bad)


def _check_counts(top: int, batch_size: int) -> None:
    if top < 1 or batch_size < 1:
        raise ValueError(f"top and batch_size are at least 1, got {top} and {batch_size}")


def _as_data(trained: Trained, files: Sequence[str | Path], fit: Fit | None) -> PictureFiles:
    """The files as a set of the kind that the model was trained on; without a record of that, by ImageNet's habits."""
    about = trained.preparation()
    if about["task"] != "classification":
        raise ValueError(f"{trained.name} labels every pixel; `tcpvit predict` labels whole pictures")
    channels, height, width = about["image_shape"]
    if channels != 3 or height != width:
        raise ValueError(
            f"{trained.name} takes pictures of {height}×{width}×{channels}; `tcpvit predict` reads square colour ones"
        )
    return PictureFiles(
        files=tuple(map(str, files)),
        targets=torch.zeros(len(files), dtype=torch.int64),  # not known
        classes=tuple(about["classes"]),
        source="the pictures",
        image_size=height,
        fit=fit or trained.fit,
        mean=tuple(about["mean"]),
        std=tuple(about["std"]),
    )


def _as_csv(found: Sequence[Prediction | Segmented]) -> str:
    text = io.StringIO()
    lines = [item.columns() for item in found]
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _as_json(done: Predictions) -> str:
    return json_module.dumps(asdict(done), indent=2, ensure_ascii=False) + "\n"


def _draw_sheet(found: Sequence[Prediction | Segmented], sheet: Path) -> None:
    """The first pictures on one sheet, with what was found in them."""
    from tcpvit.figures.labelled import draw_sheet
    from tcpvit.figures.style import house_style

    shown = found[:SHOWN]
    figure = draw_sheet([_pixels(p.shown) for p in shown], [(p.caption, Path(p.file).name) for p in shown])
    sheet.parent.mkdir(parents=True, exist_ok=True)
    with house_style():
        figure.savefig(sheet)
    left_out = f" (the first {SHOWN} of {len(found):,})" if len(found) > SHOWN else ""
    print(f"{sheet}{left_out}", file=sys.stderr)


def _draw_labelled(found: Sequence[Prediction], folder: Path) -> None:
    """Each picture beside its labels."""
    from tcpvit.figures.labelled import draw_labelled
    from tcpvit.figures.style import house_style

    places = [Path(os.path.abspath(p.file)) for p in found]  # as they are named, also where they are links
    common = os.path.commonpath([place.parent for place in places])
    for p, place in zip(found, (place.relative_to(common) for place in places), strict=True):
        figure = draw_labelled(_pixels(p.file), p.labels, p.probabilities, Path(p.file).name)
        content = io.BytesIO()
        with house_style():
            figure.savefig(content, format="png")
        write_inside(
            folder, place.with_name(f"{place.name}.png"), content.getvalue()
        )  # beside photo.jpg, never over it


def _pixels(file: str) -> np.ndarray:
    """(H, W, 3) uint8, reduced to what a figure can show."""
    picture = read_picture(file)
    picture.thumbnail((SIDE, SIDE))
    return np.asarray(picture)
