"""Good files that the cases start from: a run, saved and converted models, images of all formats, scenes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

SMALL = """\
model: {name: tcp_vit_cifar, options: {patch_size: 8, embed_dim: 24, num_heads: 2, depth: 1}}
data: {name: digits-on-photos, options: {sizes: [12, 6, 6]}, batch_size: 6, eval_batch_size: 6}
schedule: {epochs: 1}
device: cpu
"""
TIMM = ("depth=1", "embed_dim=48", "num_heads=1", "img_size=32", "patch_size=8", "num_classes=3")
IMAGES = ("png", "jpg", "bmp", "gif", "tif", "webp")


def make_world(world: Path) -> None:
    """Fill an empty folder; the kernels are built and everything is imported on the way."""
    from tcpvit.cli import main

    world.mkdir(parents=True)
    (world / "small.yaml").write_text(SMALL)
    (world / "more.yaml").write_text(SMALL.replace("epochs: 1", "epochs: 2"))
    _make_images(world)
    _make_scenes(world / "scenes")
    (world / "empty").mkdir()
    (world / "loop").symlink_to("loop")
    (world / "dangling").symlink_to("nothing")
    before = os.getcwd()
    os.chdir(world)
    try:
        for words in _commands():
            if code := main(words):
                raise RuntimeError(f"the good line {words} ended with {code}")
    finally:
        os.chdir(before)
    _save_models(world)


def _commands() -> list[list[str]]:
    options = [word for option in TIMM for word in ("--option", option)]
    return [
        ["train", "small.yaml", "--quiet", "--runs", ".", "--name", "run"],
        ["compare", "small.yaml", "--quiet", "--runs", ".", "--name", "pair"],
        ["tensorize", "timm/vit_tiny_patch16_224", *options, "--out", "converted", "--quiet"],
        ["predict", "run", "images", "--out", "found.csv", "--sheet", "found.png"],
        ["tensorize", "run", "--tube", "2", "--quiet"],
        ["analyze", "--theory", "--figure", "ratios.png"],
        ["data", "check", "folder:images"],
    ]


def _save_models(world: Path) -> None:
    import tcpvit

    model = tcpvit.from_pretrained(world / "run" / "best")
    tcpvit.save_pretrained(model, world / "model")
    for name in ("found.csv", "found.png", "ratios.png"):
        (world / name).unlink()


def _make_images(world: Path) -> None:
    """images/ for classification, with 16-bit, many-band and palette files; scans/ with masks."""
    from PIL import Image

    random = np.random.default_rng(0)
    for label in ("a", "b"):
        folder = world / "images" / label
        folder.mkdir(parents=True)
        for i, kind in enumerate(IMAGES):
            Image.fromarray(random.integers(0, 255, (12, 14, 3), dtype=np.uint8)).save(folder / f"{i}.{kind}")
    for part in ("images", "masks"):
        (world / "scans" / part).mkdir(parents=True)
    for i in range(6):
        pixels = random.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(world / "scans" / "images" / f"{i}.png")
        Image.fromarray((pixels[..., 0] > 127).astype(np.uint8)).save(world / "scans" / "masks" / f"{i}.png")
    _make_bands(world / "bands", random)


def _make_bands(folder: Path, random: np.random.Generator) -> None:
    import tifffile

    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
        for i in range(5):
            pixels = random.integers(0, 60_000, (12, 12, 5), dtype=np.uint16)
            tifffile.imwrite(folder / label / f"{i}.tif", pixels, photometric="minisblack", planarconfig="contig")


def _make_scenes(folder: Path) -> None:
    """The same cube and label map in every format."""
    import h5py
    import tifffile
    from scipy.io import savemat
    from spectral.io import envi

    from tcpvit.data.scenes import random_split

    folder.mkdir()
    random = np.random.default_rng(0)
    cube = random.integers(0, 4000, (9, 8, 7), dtype=np.uint16)
    labels = random.integers(0, 4, (9, 8), dtype=np.uint8)
    savemat(folder / "five.mat", {"cube": cube, "labels": labels})
    savemat(folder / "packed.mat", {"cube": cube, "labels": labels}, do_compression=True)
    with h5py.File(folder / "seven.mat", "w", userblock_size=512) as file:
        file["cube"], file["labels"] = cube.T, labels.T
    np.save(folder / "cube.npy", cube)
    np.save(folder / "labels.npy", labels)
    np.savez(folder / "both.npz", cube=cube, labels=labels)
    np.savez_compressed(folder / "packed.npz", cube=cube, labels=labels)
    envi.save_image(str(folder / "envi.hdr"), cube, interleave="bil", dtype=np.uint16, ext="img")
    random_split(labels, window=1, seed=0, fraction=0.3).save(folder / "split.npz")
    tifffile.imwrite(folder / "cube.tif", cube.transpose(2, 0, 1), photometric="minisblack")
