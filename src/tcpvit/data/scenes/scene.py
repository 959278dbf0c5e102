"""A scene: an image of many bands with what is known about its bands, its pixels and its place on earth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

UNLABELLED = 0

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Georeference:
    """Where a scene lies, as its file said it and in the words of that file's format.

    `envi`: header fields such as "map info" with their text. `geotiff`: tag numbers with (TIFF data type, values).
    """

    kind: Literal["envi", "geotiff"]
    entries: Mapping[Any, Any]

    @property
    def format(self) -> str:
        """The format's name as people write it."""
        return {"envi": "ENVI", "geotiff": "GeoTIFF"}[self.kind]


@dataclass(frozen=True, eq=False)
class Scene:
    """An image of B bands: data (H, W, B), real numbers; where it is memory-mapped, only what is used is read.

    Labels are (H, W) with 0 for pixels without a label and 1, 2, ... for the classes of `class_names`. Wavelengths are
    in nanometres. `bad_bands` is True for the bands that should not be used. `missing` is True for the pixels without
    data, as the file says: their labels are taken away, and `unmeasured` counts these.
    """

    data: NDArray[Any]
    labels: NDArray[np.int32] | None = None
    wavelengths: NDArray[np.float64] | None = None
    class_names: tuple[str, ...] = ()
    colours: tuple[Colour, ...] = ()
    bad_bands: NDArray[np.bool_] | None = None
    georeference: Georeference | None = None
    missing: NDArray[np.bool_] | None = None
    unmeasured: int = 0
    source: Path | None = None
    files: tuple[Path, ...] = ()  # all that it was read from: values, headers, bands, labels
    name: str = field(default="scene")

    def __post_init__(self) -> None:
        check_numbers(self.data.dtype, self.name)
        if self.data.ndim != 3 or 0 in self.data.shape:
            raise ValueError(
                f"{self.name}: a scene has rows, columns and bands, got an array of shape {self.data.shape}"
            )
        if self.wavelengths is not None:
            self._set("wavelengths", self._by_band("wavelengths", np.asarray(self.wavelengths, np.float64)))
            if not (np.isfinite(self.wavelengths).all() and (self.wavelengths > 0).all()):
                raise ValueError(f"{self.name}: wavelengths should be positive numbers of nanometres")
        if self.bad_bands is not None:
            self._set("bad_bands", self._by_band("bad_bands", np.asarray(self.bad_bands, np.bool_)))
            if self.bad_bands.all():
                raise ValueError(f"{self.name}: all {self.bands} bands are marked as bad, so none is left to use")
        if self.labels is not None:
            self._set("labels", as_labels(self.labels, self.name))
            if self.labels.shape != self.data.shape[:2]:
                raise ValueError(
                    f"{self.name}: labels of {_size(self.labels.shape)} pixels do not fit an image of "
                    f"{_size(self.data.shape[:2])}"
                )
        self._check_classes()
        if self.missing is not None:
            self._leave_out_missing(self.missing)

    def _check_classes(self) -> None:
        highest = int(self.labels.max()) if self.labels is not None else 0
        if not self.class_names and highest in (255, 65535):  # what others write where nothing is known
            used = np.unique(np.asarray(self.labels))
            if highest - 1 not in used and 1 < len(used) < highest / 2:
                raise ValueError(
                    f"{self.name}: label {highest} stands far from the others, which end at {used[-2]}; write 0 where "
                    "a pixel has no label, or name all classes"
                )
        if not self.class_names:
            self._set("class_names", tuple(f"class {k}" for k in range(1, highest + 1)))
        if highest > len(self.class_names):
            raise ValueError(f"{self.name}: label {highest} has no name among the {len(self.class_names)} class names")
        if not self.colours:
            self._set("colours", class_colours(len(self.class_names)))
        if len(self.colours) != len(self.class_names):
            raise ValueError(
                f"{self.name}: {len(self.colours)} colours were given for {len(self.class_names)} class names"
            )

    def _leave_out_missing(self, missing: NDArray[np.bool_]) -> None:
        if missing.shape != self.data.shape[:2] or missing.dtype != np.bool_:
            raise ValueError(f"{self.name}: `missing` is one truth value for each pixel, got {missing.shape}")
        if missing.all():
            raise ValueError(
                f"{self.name}: no pixel has data in all bands; mark the bands that lack data as bad (bbl of an ENVI "
                "header), or correct the value that stands for no data"
            )
        if self.labels is not None and (lost := int((self.labels[missing] > 0).sum())):
            self._set("labels", np.where(missing, UNLABELLED, self.labels))
            self._set("unmeasured", self.unmeasured + lost)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # a frozen dataclass has no other way to complete itself

    def _by_band(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        if values.shape != (self.bands,):
            raise ValueError(f"{self.name}: {values.size} {name} were given for {self.bands} bands")
        return values

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns, bands."""
        height, width, bands = self.data.shape
        return height, width, bands

    @property
    def bands(self) -> int:
        """How many bands there are, bad ones included."""
        return self.data.shape[2]

    @property
    def num_classes(self) -> int:
        """How many classes have a name."""
        return len(self.class_names)

    @property
    def good_bands(self) -> NDArray[np.intp]:
        """The numbers of the bands that are not bad."""
        return np.arange(self.bands) if self.bad_bands is None else np.flatnonzero(~self.bad_bands)

    def require_labels(self) -> NDArray[np.int32]:
        """The labels, or an error that says how to give them."""
        if self.labels is None:
            raise ValueError(
                f"{self.name} has no labels: give a label map of {_size(self.data.shape[:2])} pixels, --labels FILE"
            )
        return self.labels

    def notes(self) -> tuple[str, ...]:
        """What every result on this scene should say: labels that could not be used."""
        return (f"{self.unmeasured:,} labelled pixels have no data and are left out",) * (self.unmeasured > 0)

    def class_counts(self) -> NDArray[np.int64]:
        """The number of labelled pixels of each class."""
        return np.bincount(self.require_labels().ravel(), minlength=self.num_classes + 1)[1:]


def check_numbers(dtype: np.dtype[Any], name: str) -> None:
    """Refuse anything but real numbers: objects, text, complex values."""
    if np.issubdtype(dtype, np.complexfloating):
        raise ValueError(f"{name} holds complex numbers ({dtype}); take their magnitude or their parts as bands first")
    if dtype.kind not in "buif":
        raise ValueError(f"{name} holds {dtype} values, expected real numbers")


def as_labels(values: NDArray[Any], name: str = "the label map") -> NDArray[np.int32]:
    """A label map (H, W) as int32: whole numbers from 0 on, in whatever type they were stored."""
    check_numbers(values.dtype, name)
    if values.ndim != 2:
        raise ValueError(f"{name}: labels have rows and columns, got an array of shape {values.shape}")
    if not np.isfinite(values).all() or values.min(initial=0) < 0 or values.max(initial=0) > 65_535:
        raise ValueError(f"{name}: labels should lie between 0 (unlabelled) and 65535")
    labels = values.astype(np.int32)
    if (labels != values).any():
        raise ValueError(f"{name}: labels should be whole numbers, this looks like measured data")
    return labels


def class_colours(number: int) -> tuple[Colour, ...]:
    """Colours for classes 1, 2, ..., easy to tell apart: hues a golden angle apart at three levels of lightness."""
    import colorsys

    colours = []
    for k in range(number):
        red, green, blue = colorsys.hls_to_rgb((k * 0.618034) % 1, (0.5, 0.38, 0.66)[k % 3], 0.75)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return tuple(colours)


def _size(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
