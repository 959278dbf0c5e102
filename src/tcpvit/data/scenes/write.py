"""Write class maps with their confidences: ENVI and GeoTIFF with the scene's georeference, PNG with colours, NumPy."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.scenes.envi import TYPES
from tcpvit.data.scenes.scene import Colour, Georeference, Scene, as_labels
from tcpvit.data.scenes.tiff import NO_DATA, tifffile
from tcpvit.errors import did_you_mean
from tcpvit.files import check_writable, keep_inputs, write_atomically

NOT_CLASSIFIED = "Unclassified"
BLACK = (0, 0, 0)
NO_CLASS = "0"  # and no confidence: the value that stands for no data


def write_class_map(
    path: str | Path, classes: NDArray[Any], scene: Scene, *, confidence: NDArray[Any] | None = None
) -> list[Path]:
    """Write classes (H, W), 0 for none, and confidences (H, W) from 0 to 1, in the format of the name's ending.

    .tif and .hdr keep the scene's georeference; .png shows the classes in the scene's colours; .npy holds the numbers.
    Confidences go to a second file, NAME_confidence. Returns the files written.
    """
    path = Path(path)
    check_place(path, scene)
    classes = as_labels(classes, "the class map")
    if classes.shape != scene.shape[:2] or (confidence is not None and confidence.shape != classes.shape):
        shapes = classes.shape if confidence is None else (classes.shape, confidence.shape)
        raise ValueError(f"a class map of {scene.name} has {scene.shape[0]}×{scene.shape[1]} pixels, got {shapes}")
    if classes.max(initial=0) > scene.num_classes:
        raise ValueError(f"the class map has class {classes.max()}, but {scene.name} has {scene.num_classes} classes")
    small = classes.astype(np.uint8 if scene.num_classes < 256 else np.uint16)
    path.parent.mkdir(parents=True, exist_ok=True)
    write = _writers()[path.suffix.lower()]
    written = write(path, small, scene, True)
    if confidence is not None:
        written += write(_beside(path), np.asarray(confidence, np.float32), scene, False)
    return written


def check_place(path: Path, scene: Scene) -> None:
    """Raise unless a map of the scene can be written there: before hours of work, and never over the user's own data.

    Neither what the scene was read from is written over, nor half of an ENVI pair, whose other half is of something
    else.
    """
    if path.suffix.lower() not in _writers():
        raise ValueError(
            f"{path}: a class map cannot be written as {path.suffix!r}{did_you_mean(path.suffix, _writers())}"
        )
    check_writable(path)
    kind = {".tif": "geotiff", ".tiff": "geotiff", ".hdr": "envi"}.get(path.suffix.lower())
    if kind is not None:
        _georeference(scene.georeference, kind, path)
    places = [part for whole in (path, _beside(path)) for part in _files_of(whole)]
    keep_inputs(places, scene.files)
    if scene.source is not None and scene.source.is_dir() and path.resolve().parent == scene.source.resolve():
        raise ValueError(f"{path} would become a band of {scene.name}, which is that folder; name another place")
    for whole in (path, _beside(path)):
        there = [part for part in _files_of(whole) if part.exists()]
        if kind == "envi" and len(there) == 1:
            raise ValueError(f"{there[0]} is there already, and is no part of a map; name another place")


def _beside(path: Path) -> Path:
    """The file of the confidences."""
    return path.with_name(f"{path.stem}_confidence{path.suffix}")


def _files_of(path: Path) -> list[Path]:
    """An ENVI file is a pair."""
    return [path, path.with_suffix(".img")] if path.suffix.lower() == ".hdr" else [path]


def _writers() -> dict[str, Callable[[Path, NDArray[Any], Scene, bool], list[Path]]]:
    return {".tif": _write_tiff, ".tiff": _write_tiff, ".hdr": _write_envi, ".png": _write_png, ".npy": _write_npy}


def _write_npy(path: Path, values: NDArray[Any], scene: Scene, is_classes: bool) -> list[Path]:
    content = io.BytesIO()
    np.save(content, values, allow_pickle=False)
    return _put(path, content)


def _write_png(path: Path, values: NDArray[Any], scene: Scene, is_classes: bool) -> list[Path]:
    """Classes as a palette image; confidences as grey levels from 0 to 255."""
    from PIL import Image

    if is_classes and values.dtype != np.uint8:
        raise ValueError(f"{path}: a PNG palette has 255 classes at most, {scene.name} has {scene.num_classes}")
    pixels = values if is_classes else np.rint(255 * np.clip(values, 0, 1)).astype(np.uint8)
    image = Image.fromarray(pixels)
    if is_classes:
        image.putpalette([level for colour in (BLACK, *scene.colours) for level in colour])
    content = io.BytesIO()
    image.save(content, "PNG")
    return _put(path, content)


def _write_tiff(path: Path, values: NDArray[Any], scene: Scene, is_classes: bool) -> list[Path]:
    tags = _georeference(scene.georeference, "geotiff", path)
    options: dict[str, Any] = {"photometric": "minisblack"}
    if is_classes and values.dtype == np.uint8:
        options = {"photometric": "palette", "colormap": _colour_table(scene.colours)}
    tags = {**tags, NO_DATA: (2, NO_CLASS)}  # as text
    extra = [(code, dtype, _count(value), value, True) for code, (dtype, value) in tags.items()]
    content = io.BytesIO()
    tifffile().imwrite(
        content, values, compression="zlib", extratags=extra, metadata=None, software="tcpvit", **options
    )
    return _put(path, content)


def _count(value: Any) -> int:
    return len(value) + 1 if isinstance(value, str) else len(value) if isinstance(value, Sequence) else 1


def _colour_table(colours: tuple[Colour, ...]) -> NDArray[np.uint16]:
    table = np.zeros((3, 256), np.uint16)  # as TIFF wants it: 16 bits a level
    table[:, 1 : len(colours) + 1] = np.array(colours, np.uint16).reshape(-1, 3).T * 257
    return table


def _write_envi(path: Path, values: NDArray[Any], scene: Scene, is_classes: bool) -> list[Path]:
    places = _georeference(scene.georeference, "envi", path)
    data_path = path.with_suffix(".img")
    number = next(n for n, code in TYPES.items() if np.dtype(code) == values.dtype)
    fields = {
        "samples": values.shape[1],
        "lines": values.shape[0],
        "bands": 1,
        "header offset": 0,
        "file type": "ENVI Classification" if is_classes else "ENVI Standard",
        "data type": number,
        "interleave": "bsq",
        "byte order": 0,
        "data ignore value": NO_CLASS,
    }
    if is_classes:
        names = (NOT_CLASSIFIED, *map(_header_text, scene.class_names))
        levels = ", ".join(str(level) for colour in (BLACK, *scene.colours) for level in colour)
        fields |= {"classes": len(names), "class names": f"{{{', '.join(names)}}}", "class lookup": f"{{{levels}}}"}
    fields |= {name: text if name in ("x start", "y start") else f"{{{text}}}" for name, text in places.items()}
    write_atomically(data_path, values.astype(values.dtype.newbyteorder("<")).tobytes())
    lines = "".join(f"{name} = {value}\n" for name, value in fields.items())
    write_atomically(path, f"ENVI\n{lines}".encode())
    return [data_path, path]


def _header_text(name: str) -> str:
    """A class name without what separates names and fields of a header."""
    return "".join(" " if letter in ",{}" or not letter.isprintable() else letter for letter in name)


def _georeference(georeference: Georeference | None, kind: str, path: Path) -> Any:
    """The entries to write. Formats describe places in different words, so nothing is translated, and nothing lost."""
    if georeference is None:
        return {}
    if georeference.kind != kind:
        ending = ".hdr" if georeference.kind == "envi" else ".tif"
        raise ValueError(
            f"{path} cannot keep the scene's georeference, which came from {georeference.format}: write {ending}"
        )
    return georeference.entries


def _put(path: Path, content: io.BytesIO) -> list[Path]:
    write_atomically(path, content.getvalue())
    return [path]
