"""ENVI files: a text header beside raw values in any interleave, type and byte order, mapped into memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.scenes.no_data import Mask, find_missing, parse_no_data
from tcpvit.data.scenes.raster import MAP, Raster
from tcpvit.data.scenes.scene import Colour, Georeference, check_numbers

TYPES = {1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 6: "c8", 9: "c16", 12: "u2", 13: "u4", 14: "i8", 15: "u8"}
SUFFIXES = ("", ".img", ".dat", ".raw", ".bin", ".bsq", ".bil", ".bip", ".cube")
LARGEST_HEADER = 16 << 20
GEOREFERENCE = ("map info", "coordinate system string", "projection info", "geo points", "x start", "y start")
NANOMETRES = {"nanometers": 1.0, "nm": 1.0, "nanometer": 1.0, "micrometers": 1e3, "um": 1e3, "µm": 1e3, "microns": 1e3}
NO_DATA = "data ignore value"
MICROMETRES_BELOW = 100  # wavelengths without a unit: no sensor of ours sees 100 nm, none sees 100 µm

Header = dict[str, str]


def header_of(path: Path) -> Path | None:
    """The header that belongs to `path`, which may be the header itself."""
    if path.suffix.lower() == ".hdr":
        return path
    beside = (path.with_name(path.name + end) for end in (".hdr", ".HDR"))
    return next((p for p in (*beside, path.with_suffix(".hdr"), path.with_suffix(".HDR")) if p.is_file()), None)


def read_envi(path: Path, *, dims: int) -> Raster:
    """The image (H, W, B), or the label map (H, W) of a file with one band, memory-mapped."""
    header_path = header_of(path)
    if header_path is None:
        raise ValueError(f"{path} has no ENVI header beside it: {path.name}.hdr is missing")
    header = parse_header(header_path)
    data_path = _data_file(path, header_path)
    values = _map_values(header, header_path, data_path)
    if dims == MAP:
        if values.shape[2] != 1:
            raise ValueError(f"{path} has {values.shape[2]} bands, a label map has one")
        values = values[:, :, 0]
    names, colours = _classes(header, header_path)
    places = {name: header[name] for name in GEOREFERENCE if name in header}
    bad_bands = None if dims == MAP or "bbl" not in header else _numbers(header, "bbl", header_path) == 0
    return Raster(
        values,
        wavelengths=None if dims == MAP else _wavelengths(header, header_path),
        class_names=names,
        colours=colours,
        bad_bands=bad_bands,
        georeference=Georeference("envi", places) if places else None,
        missing=_missing(values, header, header_path, bad_bands),
        files=(header_path, data_path),
    )


def _missing(values: NDArray[Any], header: Header, path: Path, bad_bands: Mask | None) -> Mask | None:
    if not header.get(NO_DATA):
        return None
    if bad_bands is not None and (len(bad_bands) != values.shape[-1] or bad_bands.all()):
        return None  # the scene refuses these bands
    return find_missing(values, parse_no_data(header[NO_DATA], path, NO_DATA), bad_bands)


def parse_header(path: Path) -> Header:
    """The fields of a header in lower case, with their text; braces are taken off.

    Values in braces may run over several lines; lines that begin with a semicolon are comments.
    """
    if path.stat().st_size > LARGEST_HEADER:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, too many for an ENVI header")
    text = path.read_text(encoding="utf-8", errors="replace").lstrip("\ufeff")
    first, _, rest = text.partition("\n")
    if first.strip() != "ENVI":
        raise ValueError(f"{path} is not an ENVI header: its first line should be ENVI")
    lines = [line for line in rest.splitlines() if not line.lstrip().startswith(";")]
    fields: Header = {}
    name, value, inside = "", "", False
    for line in lines:
        if inside:
            value += "\n" + line
        elif "=" in line:
            name, _, value = line.partition("=")
        else:
            continue
        value = value.strip()
        inside = value.startswith("{") and not value.endswith("}")
        if not inside:
            fields[" ".join(name.lower().split())] = value.removeprefix("{").removesuffix("}").strip()
    if inside:
        raise ValueError(f"{path}: the braces of {name.strip()!r} are never closed")
    return fields


def _map_values(header: Header, header_path: Path, path: Path) -> NDArray[Any]:
    samples, lines, bands = (_integer(header, name, header_path, least=1) for name in ("samples", "lines", "bands"))
    offset = _integer(header, "header offset", header_path, default=0)
    dtype = _dtype(header, header_path)
    if _integer(header, "file compression", header_path, default=0):
        raise ValueError(f"{header_path} says that its data are compressed; save them without compression")
    if any(int(part) for part in re.findall(r"\d+", header.get("major frame offsets", ""))):
        raise ValueError(f"{header_path} has major frame offsets, which are not supported; save it without them")
    have, claimed = path.stat().st_size, offset + samples * lines * bands * dtype.itemsize
    if have != claimed:
        problem = "is cut short or its header is wrong" if have < claimed else "is longer than its header says"
        raise ValueError(
            f"{path} {problem}: in {header_path} {lines} lines × {samples} samples × {bands} bands of {dtype.itemsize} "
            f"bytes after {offset} make {claimed:,} bytes, but there are {have:,}"
        )
    interleave = header.get("interleave", "bsq").lower()
    if interleave == "bsq":
        return np.memmap(path, dtype, "r", offset, (bands, lines, samples)).transpose(1, 2, 0)
    if interleave == "bil":
        return np.memmap(path, dtype, "r", offset, (lines, bands, samples)).transpose(0, 2, 1)
    if interleave == "bip":
        return np.memmap(path, dtype, "r", offset, (lines, samples, bands))
    raise ValueError(f"{header_path}: interleave should be bsq, bil or bip, got {interleave!r}")


def _dtype(header: Header, path: Path) -> np.dtype[Any]:
    number = _integer(header, "data type", path)
    if number not in TYPES:
        raise ValueError(f"{path}: data type {number} is none of ENVI's ({', '.join(map(str, TYPES))})")
    order = _integer(header, "byte order", path, default=0)
    if order not in (0, 1):
        raise ValueError(f"{path}: byte order should be 0 (little-endian) or 1 (big-endian), got {order}")
    dtype = np.dtype("<>"[order] + TYPES[number])
    check_numbers(dtype, str(path))
    return dtype


def _data_file(path: Path, header_path: Path) -> Path:
    if path != header_path:
        return path
    stem = header_path.with_suffix("")
    found = [p for end in SUFFIXES for p in (Path(f"{stem}{end}"), Path(f"{stem}{end.upper()}")) if p.is_file()]
    if not found:
        raise ValueError(f"{header_path} has no data beside it: {stem.name} or {stem.name}.img is missing")
    return found[0]


def _wavelengths(header: Header, path: Path) -> NDArray[np.float64] | None:
    """In nanometres; a unit that is no length (an index, a frequency) counts as unknown wavelengths."""
    if not header.get("wavelength"):
        return None
    values = _numbers(header, "wavelength", path)
    unit = header.get("wavelength units", "unknown").lower()
    if unit in ("unknown", ""):
        return values * (1e3 if values.max() < MICROMETRES_BELOW else 1.0)
    return values * NANOMETRES[unit] if unit in NANOMETRES else None


def _classes(header: Header, path: Path) -> tuple[tuple[str, ...], tuple[Colour, ...]]:
    """Names and colours of the classes 1, 2, ...; class 0 of an ENVI Classification is what was not classified."""
    names = tuple(part.strip() for part in header["class names"].split(",")) if "class names" in header else ()
    if "classes" in header and names and len(names) != _integer(header, "classes", path):
        raise ValueError(f"{path} has {len(names)} class names for {header['classes']} classes")
    if "class lookup" not in header:
        return names[1:], ()
    levels = _numbers(header, "class lookup", path)
    if levels.size != 3 * len(names) or levels.min(initial=0) < 0 or levels.max(initial=0) > 255:
        raise ValueError(f"{path}: class lookup should have 3 numbers from 0 to 255 for each of {len(names)} classes")
    colours = tuple((int(red), int(green), int(blue)) for red, green, blue in levels.reshape(-1, 3))
    return names[1:], colours[1:]


def _integer(header: Header, name: str, path: Path, *, default: int | None = None, least: int = 0) -> int:
    text = header.get(name, "" if default is None else str(default))
    if not text:
        raise ValueError(f"{path} does not say {name!r}")
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{path}: {name!r} should be a whole number, got {text[:40]!r}") from None
    if not least <= value < 1 << 40:
        raise ValueError(f"{path}: {name!r} should be at least {least} and below 2^40, got {text[:40]}")
    return value


def _numbers(header: Header, name: str, path: Path) -> NDArray[np.float64]:
    try:
        return np.array([float(part) for part in header[name].split(",") if part.strip()])
    except ValueError:
        raise ValueError(f"{path}: {name!r} should be a list of numbers, got {header[name][:40]!r}") from None
