"""MATLAB files of version 5 (to 7.2), read here: SciPy's reader crashes on damaged files, and inflates bombs.

The format is public: elements of a tag (type, number of bytes) and content, padded to 8 bytes; a variable is an element
that holds four or five others (flags, shape, name, values, imaginary values), whole or compressed with zlib.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.scenes.raster import ArrayInfo, Raster, check_growth, choose_key
from tcpvit.data.scenes.scene import check_numbers

HEADER = 128  # bytes before the first variable
COMPRESSED, MATRIX = 15, 14  # types of elements that hold variables
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
OTHER_CLASSES = {1: "cell", 2: "struct", 3: "object", 4: "char", 5: "sparse"}
COMPLEX = 0x800
LONGEST = 4096  # bytes of a shape or a name


def is_matlab5(start: bytes) -> bool:
    """True for the first 128 bytes of a version 5 file."""
    return len(start) >= HEADER and start[126:128] in (b"IM", b"MI") and start[124:126] in (b"\x00\x01", b"\x01\x00")


def read_matlab5(path: Path, *, dims: int, key: str | None = None, size: tuple[int, int] | None = None) -> Raster:
    """An array of a version 5 file, chosen by `key` or by its shape; memory-mapped where it is not compressed."""
    with path.open("rb") as file:
        order = "<" if file.read(HEADER)[126:128] == b"IM" else ">"
        variables = {variable.name: variable for variable in _variables(file, order, path)}
        arrays = {name: ArrayInfo(v.shape, v.kind, v.class_number in CLASSES) for name, v in variables.items()}
        chosen = variables[choose_key(arrays, path, dims=dims, key=key, size=size)]
        return Raster(_values(file, order, chosen, path))


class _Variable(NamedTuple):
    """A variable as its tags announce it."""

    name: str
    shape: tuple[int, ...]
    class_number: int
    is_complex: bool
    start: int  # of its content in the file
    stored: int  # bytes of its content in the file
    compressed: bool

    @property
    def kind(self) -> str:
        """The name of its type."""
        if self.class_number not in CLASSES:
            return OTHER_CLASSES.get(self.class_number, "unknown")
        return "complex" if self.is_complex else str(np.dtype(CLASSES[self.class_number]))


class _Reader(Protocol):
    def read(self, number: int, /) -> bytes: ...


class _Inflater:
    """Reads the decompressed content of an element, no more of it than is asked for."""

    def __init__(self, file: IO[bytes], stored: int):
        self.file, self.left, self.inflate = file, stored, zlib.decompressobj()

    def read(self, number: int, /) -> bytes:
        parts = []
        while number and not self.inflate.eof:
            block = self.inflate.unconsumed_tail or self.file.read(min(1 << 16, self.left))
            self.left -= 0 if self.inflate.unconsumed_tail else len(block)
            if not block:
                break
            parts.append(self.inflate.decompress(block, number))
            number -= len(parts[-1])
        return b"".join(parts)


def _variables(file: IO[bytes], order: str, path: Path) -> Iterator[_Variable]:
    """Every variable of the file; each must lie inside it."""
    total, position = path.stat().st_size, HEADER
    while position < total:
        file.seek(position)
        kind, length = struct.unpack(f"{order}II", _exactly(file, 8, path))
        start = position + 8
        if kind not in (COMPRESSED, MATRIX):
            raise ValueError(f"{path} is damaged: there is no variable at byte {position:,}")
        if start + length > total:
            raise ValueError(
                f"{path} is cut short: a variable of {length:,} bytes begins at byte {position:,} of {total:,}"
            )
        flags, shape, name = _announced(_content(file, start, length, kind == COMPRESSED, path), order, path)
        yield _Variable(name, shape, flags & 0xFF, bool(flags & COMPLEX), start, length, kind == COMPRESSED)
        position = start + length


def _content(file: IO[bytes], start: int, stored: int, compressed: bool, path: Path) -> _Reader:
    """A reader of what a variable holds."""
    file.seek(start)
    if not compressed:
        return file
    reader = _Inflater(file, stored)
    _exactly(reader, 8, path)  # the tag of the variable inside
    return reader


def _announced(reader: _Reader, order: str, path: Path) -> tuple[int, tuple[int, ...], str]:
    """Flags, shape and name of a variable."""
    flags = struct.unpack(f"{order}I", _small_element(reader, order, path)[:4].ljust(4, b"\0"))[0]
    if flags & 0xFF not in CLASSES and flags & 0xFF not in OTHER_CLASSES:  # such as objects: they have no shape
        return flags, (), f"unnamed {flags & 0xFF}"
    sides = _small_element(reader, order, path)
    shape = struct.unpack(f"{order}{len(sides) // 4}i", sides[: len(sides) // 4 * 4])
    if min(shape, default=0) < 0:
        raise ValueError(f"{path} is damaged: a variable has the shape {shape}")
    return flags, shape, _small_element(reader, order, path).decode("ascii", "replace")


def _small_element(reader: _Reader, order: str, path: Path) -> bytes:
    _, length, inside = _tag(reader, order, path)
    if inside is not None:
        return inside
    if length > LONGEST:
        raise ValueError(f"{path} is damaged: a name or a shape of {length:,} bytes")
    return _exactly(reader, length + -length % 8, path)[:length]


def _tag(reader: _Reader, order: str, path: Path) -> tuple[int, int, bytes | None]:
    """Type and length of an element, with its content where that is so short that it stands in the tag."""
    tag = _exactly(reader, 8, path)
    kind, length = struct.unpack(f"{order}II", tag)
    if kind >> 16:
        return kind & 0xFFFF, min(kind >> 16, 4), tag[4 : 4 + min(kind >> 16, 4)]
    return kind, length, None


def _values(file: IO[bytes], order: str, variable: _Variable, path: Path) -> NDArray[Any]:
    """The values, in the type of the variable: MATLAB stores whole numbers in the smallest type that holds them."""
    what = f"{path}: {variable.name!r}"
    if variable.is_complex:
        check_numbers(np.dtype(np.complex128), what)
    reader = _content(file, variable.start, variable.stored, variable.compressed, path)
    _announced(reader, order, path)
    kind, length, inside = _tag(reader, order, path)
    if kind not in STORED:
        raise ValueError(f"{what} is damaged: its values have the unknown type {kind}")
    stored, dtype = np.dtype(order + STORED[kind]), np.dtype(order + CLASSES[variable.class_number])
    if prod(variable.shape) * stored.itemsize != length:
        raise ValueError(f"{what} is damaged: {prod(variable.shape):,} values of {stored.itemsize} bytes in {length:,}")
    check_growth(prod(variable.shape) * dtype.itemsize, variable.stored, what)
    if inside is None and not variable.compressed:
        if file.tell() + length > variable.start + variable.stored:
            raise ValueError(f"{what} is damaged: its values go on after its end")
        array: NDArray[Any] = np.memmap(path, stored, "r", file.tell(), variable.shape, "F")
    else:
        content = _exactly(reader, length, path) if inside is None else inside
        array = np.frombuffer(content, stored).reshape(variable.shape, order="F")
    return array if stored == dtype else array.astype(dtype)


def _exactly(reader: _Reader, number: int, path: Path) -> bytes:
    content = reader.read(number)
    if len(content) < number:
        raise ValueError(
            f"{path} is damaged or cut short: {number:,} bytes were expected where {len(content):,} are left"
        )
    return content
