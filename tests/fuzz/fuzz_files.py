"""Mutated files and hostile folders, each with a command or a function that reads them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from fuzz_lines import SIZES
from fuzz_mutate import CSV, IMAGE, JSON, SCENE, WEIGHTS, YAML_FILE, Change
from fuzz_runner import Case

EVAL, PREDICT = ("eval", "run"), ("predict", "run", "images")
RESUME = ("train", "--resume", "run", "--set", "schedule.epochs=2")
EVAL_MODEL = ("eval", "model", "--data", "digits-on-photos", *SIZES)
START_FROM = ("train", "small.yaml", "--name", "new", "--quiet", "--set", "model.pretrained=model")
COMPARE = ("compare", "small.yaml", "--quiet", "--runs", ".", "--name", "pair")
CHECK = ("data", "check", "folder:images")
TRAIN = ("train", "small.yaml", "--name", "new", "--quiet", "--data", "folder:images", "--set", "data.image_size=32")

# (files, changes, command lines that read them)
READ_BY_COMMANDS: list[tuple[str, tuple[Change, ...], list[tuple[str, ...]]]] = [
    ("run/config.yaml", YAML_FILE, [EVAL, PREDICT, RESUME, ("train", "run/config.yaml", "--name", "new")]),
    ("small.yaml", YAML_FILE, [("train", "small.yaml", "--name", "new"), ("train", "small.yaml", "--keys")]),
    ("run/environment.json", JSON, [RESUME]),
    ("run/data.json", JSON, [RESUME, EVAL]),
    ("run/result.json", JSON, [RESUME, ("train", "--resume", "run"), EVAL]),
    ("run/metrics.csv", CSV, [RESUME]),
    ("run/checkpoints/*.safetensors", WEIGHTS, [RESUME]),
    ("run/best/config.json", JSON, [EVAL, PREDICT]),
    ("run/best/preprocessing.json", JSON, [EVAL, PREDICT, PREDICT]),
    ("run/best/model.safetensors", WEIGHTS, [EVAL, PREDICT]),
    ("model/config.json", JSON, [EVAL_MODEL, ("predict", "model", "images"), START_FROM, ("tensorize", "model")]),
    ("model/model.safetensors", WEIGHTS, [EVAL_MODEL, START_FROM, ("tensorize", "model")]),
    ("converted/config.json", JSON, [("predict", "converted", "images")] * 3),
    ("converted/preprocessing.json", JSON, [("predict", "converted", "images")]),
    ("converted/model.safetensors", WEIGHTS, [("predict", "converted", "images")]),
    ("pair/*/result.json", JSON, [COMPARE]),
    ("pair/*/environment.json", JSON, [COMPARE]),
    ("images/a/*", IMAGE, [CHECK, PREDICT, TRAIN, ("predict", "run", "images", "--sheet", "s.png")]),
    ("bands/a/*", IMAGE, [("data", "check", "folder:bands"), ("data", "show", "folder:bands", "--out", "s.png")]),
    ("scans/masks/*", IMAGE, [("data", "check", "folder:scans")]),
    ("scans/images/*", IMAGE, [("data", "check", "folder:scans"), ("data", "show", "folder:scans", "--out", "s.png")]),
]
# (file, keyword arguments of read_scene)
SCENES: list[tuple[str, dict[str, str]]] = [
    ("five.mat", {"key": "cube", "labels_key": "labels"}),
    ("packed.mat", {"labels_key": "labels"}),
    ("seven.mat", {"labels_key": "labels"}),
    ("cube.npy", {"labels": "scenes/labels.npy"}),
    ("labels.npy", {}),
    ("both.npz", {"key": "cube", "labels_key": "labels"}),
    ("packed.npz", {"labels_key": "labels"}),
    ("envi.hdr", {}),
    ("envi.img", {}),
    ("cube.tif", {"labels": "scenes/labels.npy"}),
]


def file_cases(seed: int) -> Callable[[int], Case]:
    """The function that makes file case `index` of this seed."""
    kinds: list[Callable[[int, Random], Case]] = [
        _command_case,
        _command_case,
        _scene_case,
        _hostile_case,
        _command_case,
    ]

    def make(index: int) -> Case:
        return kinds[index % len(kinds)](index, Random(f"file {seed} {index}"))

    return make


def note(work: Path, text: str) -> None:
    """What was done, for the report."""
    (work.parent / "change").write_text(text, encoding="utf-8", errors="backslashreplace")


def _command_case(index: int, random: Random) -> Case:
    pattern, changes, lines = random.choice(READ_BY_COMMANDS)
    change, words, pick = random.choice(changes), random.choice(lines), random.random()
    # What is a good model's worst: these may never be taken for good.
    fatal = change.__name__ == "change_weights" and "checkpoints" not in pattern

    def prepare(work: Path) -> None:
        files = sorted(work.glob(pattern))
        path = files[int(pick * len(files))]
        note(work, f"{path.relative_to(work)}: {change(path, random)}")

    about = f"{pattern} by {change.__name__}, then {' '.join(words)}"
    return Case(f"file-{index}", about, words, prepare=prepare, must_refuse=fatal)


def _scene_case(index: int, random: Random) -> Case:
    name, options = random.choice((*SCENES, ("split.npz", {})))
    change = random.choice(SCENE)

    def prepare(work: Path) -> None:
        note(work, f"{name}: {change(work / 'scenes' / name, random)}")

    def read() -> Any:
        from tcpvit.data.scenes import SceneSplit, read_scene

        if name == "split.npz":
            return SceneSplit.load("scenes/split.npz")
        scene = read_scene(f"scenes/{name}", **options)
        return scene.data[:1].sum(), scene.class_names

    return Case(f"file-{index}", f"scenes/{name} by {change.__name__}, then read_scene", call=read, prepare=prepare)


def _hostile_case(index: int, random: Random) -> Case:
    make, lines = random.choice(HOSTILE)
    words = random.choice(lines)
    return Case(
        f"file-{index}", f"{make.__name__}, then {' '.join(words)}", words, prepare=lambda work: make(work, random)
    )


def linked_run(work: Path, random: Random) -> None:
    """A part of a run is a link to something outside."""
    outside = work.parent / "outside"
    part = random.choice(
        ("checkpoints", "best", "last", "tensorboard", ".lock", "result.json", "metrics.csv", "data.json")
    )
    path = work / "run" / part
    target = outside if path.is_dir() else outside / "precious.txt"
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(target)


def circular_folder(work: Path, random: Random) -> None:
    """Folders that hold themselves and each other, by links."""
    for name in ("self", "other"):
        (work / "images" / random.choice(("a", ".")) / name).symlink_to(work / "images")
    (work / "images" / "b" / "up").symlink_to("..")


def bad_names(work: Path, random: Random) -> None:
    """Files and classes with control characters, no UTF-8, formulas, long names."""
    names = (
        "\x1b[2J",
        "a\rb",
        "a\nb",
        "\udcff",
        "=1+1",
        "-x",
        "--out",
        "A" * 200,
        "猫",
        " ",
        "\u202ecod",
        "a,b",
        '"',
        "\x9b2J",
    )
    for name in random.sample(names, 3):
        shutil.copytree(work / "images" / "a", work / "images" / name)
        shutil.copyfile(work / "images" / "a" / "0.png", work / "images" / "b" / f"{name}.png")


def no_images(work: Path, random: Random) -> None:
    """Pipes, sockets and devices beside the images, folders with the names of images, hidden files."""
    folder = work / "images" / "a"
    os.mkfifo(folder / "pipe.png")
    (folder / "folder.png").mkdir()
    (folder / "zero.png").symlink_to("/dev/zero")
    (folder / "outside.png").symlink_to(work.parent / "outside" / "precious.txt")
    (folder / ".hidden.png").write_bytes(b"x")
    (folder / "empty.png").write_bytes(b"")


def strange_images(work: Path, random: Random) -> None:
    """Images of every mode and of extreme shapes."""
    from PIL import Image

    folder = work / "images" / "a"
    for mode in ("1", "L", "LA", "P", "RGBA", "CMYK", "I", "I;16", "F"):
        Image.new(mode, (random.choice((1, 3, 900)), random.choice((1, 5, 900)))).save(folder / f"{mode[:2]}.tif")
    Image.new("RGB", (20_000, 1)).save(folder / "wide.png")
    Image.new("1", (9_000, 9_000)).save(folder / "bomb.png")
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "frames.gif", save_all=True, append_images=frames[1:])


def one_class(work: Path, random: Random) -> None:
    """Too little: one class, one image, or none at all."""
    shutil.rmtree(work / "images" / "b")
    for path in sorted((work / "images" / "a").iterdir())[random.randrange(3) :]:
        path.unlink()


def missing_parts(work: Path, random: Random) -> None:
    """Parts of a run or a model are not there."""
    parts = sorted(p for name in ("run", "model", "converted") for p in (work / name).rglob("*") if p.is_file())
    for path in random.sample(parts, 3):
        path.unlink()


def unwritable(work: Path, random: Random) -> None:
    """Files where folders are to be written, and folders where files are."""
    (work / "runs").write_text("x") if random.random() < 0.5 else (work / "runs").symlink_to("runs")
    (work / "found.csv").mkdir()
    (work / "s.png").mkdir()


def bad_masks(work: Path, random: Random) -> None:
    """Masks of another size, mode or number."""
    from PIL import Image

    masks = work / "scans" / "masks"
    Image.new(random.choice(("RGB", "F", "I;16", "1")), (16, 16)).save(masks / "0.tif")
    Image.new("L", (random.choice((1, 16, 4000)), 3), 200).save(masks / "1.png")
    (masks / "2.png").unlink()


SHOW = ("data", "show", "folder:images", "--out", "s.png")
LABELLED = (*PREDICT, "--out", "found.csv", "--sheet", "sheet.png", "--images", "drawn")
IMAGES = [CHECK, SHOW, TRAIN, PREDICT, LABELLED, (*PREDICT, "--json"), (*PREDICT, "--on-bad", "stop")]
STREAMED = (*TRAIN, "--set", "data.options.stream=true", "--set", "data.workers=1")
HOSTILE: list[tuple[Callable[[Path, Random], None], list[tuple[str, ...]]]] = [
    (linked_run, [RESUME, (*TRAIN[:2], "--runs", ".", "--name", "run", "--overwrite"), EVAL]),
    (circular_folder, [*IMAGES, STREAMED]),
    (bad_names, [*IMAGES, LABELLED, STREAMED]),
    (no_images, [*IMAGES, STREAMED]),
    (strange_images, IMAGES),
    (one_class, IMAGES),
    (missing_parts, [EVAL, RESUME, EVAL_MODEL, ("predict", "converted", "images"), ("tensorize", "model"), START_FROM]),
    (unwritable, [TRAIN, (*PREDICT, "--out", "found.csv"), SHOW, (*PREDICT, "--sheet", "s.png"), ("demo",), COMPARE]),
    (bad_masks, [("data", "check", "folder:scans"), ("data", "show", "folder:scans", "--out", "s.png")]),
]
