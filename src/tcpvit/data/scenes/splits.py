"""Which labelled pixels train, validate and test: saved masks, with the leakage of each stated.

A classifier of pixels sees a window around each. Where test windows contain training pixels, accuracy measures memory:
`random_split` does that almost everywhere, `disjoint_split` nowhere.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from tcpvit.data.scenes.fields import deal_fields, within
from tcpvit.data.scenes.raster import MAP
from tcpvit.data.scenes.read import read_raster
from tcpvit.data.scenes.scene import as_labels
from tcpvit.errors import did_you_mean
from tcpvit.files import write_atomically
from tcpvit.validation import Count, Fraction, Seed, Text, checked

UNUSED, TRAIN, VALIDATION, TEST, GUARD = range(5)
CODES = {"unused": UNUSED, "train": TRAIN, "validation": VALIDATION, "test": TEST, "guard": GUARD}
FEWEST = 3  # training pixels of a class in a random split by fraction, where it has as many

Part = Literal["train", "validation", "test"]
Kind = Literal["random", "disjoint", "masks"]
Labels = NDArray[np.int32]
Mask = NDArray[np.bool_]


class SplitFile(TypedDict):
    """What a saved split says of its codes."""

    kind: Kind
    window: Count
    seed: Seed | None
    labels_md5: Text
    parameters: dict[Text, Any]
    leakage: Fraction


@dataclass(frozen=True, eq=False)
class SceneSplit:
    """What each pixel is for: codes (H, W), 0 unused, 1 train, 2 validation, 3 test, 4 guard (near training pixels).

    `leakage` is the share of test windows that contain a training pixel. `labels_md5` belongs to the label map that
    was split. Every test pixel and every training pixel has a label.
    """

    codes: NDArray[np.uint8]
    kind: Kind
    window: int
    seed: int | None
    labels_md5: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.codes.dtype != np.uint8 or self.codes.max(initial=0) > GUARD:
            raise ValueError(
                f"a split has a uint8 code from 0 to {GUARD} for each pixel, got {self.codes.dtype} values up to "
                f"{self.codes.max(initial=0)} of shape {self.codes.shape}"
            )
        if self.kind not in get_args(Kind):
            raise ValueError(f"unknown kind of split {self.kind!r}{did_you_mean(str(self.kind), get_args(Kind))}")
        check_window(self.window)
        for part in ("train", "test"):
            if not (self.codes == CODES[part]).any():
                advice = {
                    "disjoint": "take a smaller window or share, or a random split",
                    "random": f"label more pixels than train ({FEWEST} of each class at least), or change counts",
                    "masks": f"give a {part} mask that has some",
                }[self.kind]
                raise ValueError(f"the {self.kind} split has no {part} pixels; {advice}")
        if self.kind == "disjoint" and self.shared_windows:
            raise AssertionError(f"{self.shared_windows} test windows share pixels with training windows")

    def mask(self, part: str) -> Mask:
        """(H, W), True for the pixels of "train", "validation", "test", "guard" or "unused"."""
        if part not in CODES:
            raise ValueError(f"a split has no part {part!r}{did_you_mean(part, CODES)}")
        return self.codes == CODES[part]

    def pixels(self, part: str) -> NDArray[np.int64]:
        """Row and column of each pixel of a part, (n, 2), in the order of the image."""
        return np.argwhere(self.mask(part))

    @property
    def leakage(self) -> float:
        """The share of test windows that contain a training pixel."""
        test = self.mask("test")
        return float(within(self.mask("train"), self.window // 2)[test].mean())

    @property
    def shared_windows(self) -> int:
        """How many test windows have a pixel in common with a training window."""
        return int(within(self.mask("train"), 2 * (self.window // 2))[self.mask("test")].sum())

    def counts(self, labels: Labels) -> dict[str, NDArray[np.int64]]:
        """Pixels of each class in each part."""
        self.check_labels(labels)
        most = int(labels.max())
        return {part: np.bincount(labels[self.mask(part)], minlength=most + 1)[1:] for part in CODES}

    def check_labels(self, labels: Labels) -> None:
        """Refuse a label map other than the one that was split."""
        if labels.shape != self.codes.shape or labels_md5(labels) != self.labels_md5:
            raise ValueError("the split was made for another label map; make it again for this one")

    def notes(self, class_names: Sequence[str], labels: Labels) -> tuple[str, ...]:
        """What every result on this split should say: its leakage, and the classes that miss a part."""
        made = f"{self.kind} split" if self.seed is None else f"{self.kind} split of seed {self.seed}"
        tested, flattered = int(self.mask("test").sum()), ", so that accuracies are too high" * (self.leakage > 0)
        notes = [f"{made}: {100 * self.leakage:.1f} % of {tested:,} test windows contain a training pixel{flattered}"]
        counts = self.counts(labels)
        for part, consequence in (("train", "never predicted"), ("test", "left out of the average accuracy")):
            absent = [class_names[k] for k, number in enumerate(counts[part]) if not number]
            if absent:
                notes.append(f"no {part} pixels of {', '.join(absent)}: {consequence}")
        return tuple(notes)

    def save(self, path: str | Path) -> Path:
        """Write the codes and how they were made to an .npz file; only a split is written over."""
        path = Path(path)
        if path.suffix != ".npz":
            raise ValueError(f"{path}: a split is saved as .npz")
        if path.exists():
            try:
                SceneSplit.load(path)
            except ValueError:
                raise ValueError(f"{path} is there already, and is no saved split; name another file") from None
        about = {name: value for name, value in vars(self).items() if name != "codes"} | {"leakage": self.leakage}
        content = io.BytesIO()
        np.savez_compressed(content, codes=self.codes, about=np.frombuffer(json.dumps(about).encode(), np.uint8)[None])
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
        return path

    @classmethod
    def load(cls, path: str | Path) -> SceneSplit:
        """Read a saved split and check that it is what it says."""
        path = Path(path)
        codes = np.ascontiguousarray(read_raster(path, dims=MAP, key="codes").array)
        try:
            about = json.loads(read_raster(path, dims=MAP, key="about").array.tobytes())
            leakage = checked(about, SplitFile, "its record").pop("leakage")
            split = cls(codes, **{name: about[name] for name in SplitFile.__annotations__ if name != "leakage"})
        except (ValueError, RecursionError, AssertionError) as error:
            raise ValueError(f"{path} is not a saved split ({error})") from None
        if abs(split.leakage - leakage) > 1e-9:
            raise ValueError(f"{path} was changed: it states a leakage of {leakage:.1%} and has {split.leakage:.1%}")
        return split


def random_split(
    labels: Labels,
    *,
    window: int,
    seed: int,
    fraction: float | None = None,
    counts: int | Mapping[int, int] | None = None,
    validation: float = 0.0,
) -> SceneSplit:
    """Draw training pixels of each class at random: a fraction of them, or a number for each class; the rest is test.

    With `fraction` every class gets at least 3. `validation` is the share of the training pixels that validate.
    """
    if (fraction is None) == (counts is None):
        raise ValueError("a random split takes either fraction= or counts=")
    if fraction is not None and not 0 < fraction < 1:
        raise ValueError(f"fraction should be above 0 and below 1, got {fraction}")
    random = _generator(labels, seed, validation)
    codes = np.where(labels > 0, TEST, UNUSED).astype(np.uint8)
    for label, pixels in _shuffled(labels, labels > 0, random):
        number = _number(len(pixels), label, fraction, counts)
        codes.flat[pixels[:number]] = TRAIN
        codes.flat[pixels[: _validators(number, validation)]] = VALIDATION
    parameters = {
        "fraction": fraction,
        "counts": {str(k): n for k, n in counts.items()} if isinstance(counts, Mapping) else counts,
        "validation": validation,
    }
    return _split(codes, "random", labels, window, seed, parameters)


def disjoint_split(
    labels: Labels,
    *,
    window: int,
    seed: int,
    share: float = 0.3,
    cap: int | None = 100,
    validation: float = 0.0,
    validation_by: Literal["fields", "pixels"] = "fields",
) -> SceneSplit:
    """Deal whole fields to training until about `share` of each class, and test far from them.

    At most `cap` pixels of a class train. Test pixels within twice the window's radius of any of them are dropped
    (guard), so that no pixel of any test window stands in any training window. The test pixels do not depend on the
    validation. By "fields" whole fields that make about the share `validation` of the training part are held out, at
    most `cap` pixels of a class, and none whose window contains a training pixel; small classes may have none. By
    "pixels" it is a share of the training pixels of each class, next to the others.
    """
    if not 0 < share < 1:
        raise ValueError(f"share should be above 0 and below 1, got {share}")
    if cap is not None and cap < 1:
        raise ValueError(f"cap should be at least 1 pixel a class, got {cap}")
    if validation_by not in ("fields", "pixels"):
        raise ValueError(f"validation_by should be fields or pixels, got {validation_by!r}")
    random = _generator(labels, seed, validation)
    check_window(window)
    reach = 2 * (window // 2)
    part = deal_fields(labels, share, random)
    chosen = np.zeros(labels.shape, np.bool_)
    for _, pixels in _shuffled(labels, part, random):
        chosen.flat[pixels[:cap]] = True
    rest = (labels > 0) & ~part
    codes = np.zeros(labels.shape, np.uint8)
    codes[rest] = TEST
    codes[rest & within(chosen, reach)] = GUARD
    codes[chosen] = TRAIN
    if validation and validation_by == "pixels":
        _hold_out_pixels(codes, labels, validation, random)
    elif validation:
        held_out = _held_out_fields(labels, part, chosen, validation, random)
        near = within(chosen & ~held_out, window // 2)
        codes[held_out] = np.where(near, GUARD, UNUSED)[held_out]
        for _, pixels in _shuffled(labels, held_out & ~near, random):
            codes.flat[pixels[:cap]] = VALIDATION
    parameters = {"share": share, "cap": cap, "validation": validation, "validation_by": validation_by}
    return _split(codes, "disjoint", labels, window, seed, parameters)


def split_from_masks(
    labels: Labels,
    *,
    window: int,
    train: NDArray[Any] | str | Path,
    test: NDArray[Any] | str | Path,
    validation: NDArray[Any] | str | Path | None = None,
) -> SceneSplit:
    """The user's own split: arrays (H, W) or files of any readable kind, non-zero where a pixel belongs to the part."""
    codes = np.zeros(labels.shape, np.uint8)
    for name, mask in (("train", train), ("test", test), ("validation", validation)):
        if mask is None:
            continue
        member = _read_mask(mask, labels, name)
        if (codes[member] != UNUSED).any():
            raise ValueError(
                f"{int((codes[member] != UNUSED).sum())} pixels of the {name} mask are in another mask too"
            )
        codes[member] = CODES[name]
    return _split(codes, "masks", labels, window, None, {})


def hold_out_pixels(split: SceneSplit, labels: Labels, share: float, seed: int) -> SceneSplit:
    """A share of the training pixels of each class, drawn at random, validates."""
    codes, random = split.codes.copy(), _generator(labels, seed, share)
    _hold_out_pixels(codes, labels, share, random)
    return replace(split, codes=codes, seed=seed, parameters={**split.parameters, "validation": share})


def check_window(window: int) -> None:
    """A window has a pixel in its centre: its width is odd."""
    if isinstance(window, bool) or not isinstance(window, int) or window < 1 or window % 2 == 0:
        raise ValueError(f"a window has an odd width such as 9, got {window!r}")


def labels_md5(labels: Labels) -> str:
    """What tells one label map from another."""
    return hashlib.md5(np.ascontiguousarray(labels, "<i4").tobytes(), usedforsecurity=False).hexdigest()


def _split(
    codes: NDArray[np.uint8], kind: Kind, labels: Labels, window: int, seed: int | None, parameters: dict[str, Any]
) -> SceneSplit:
    return SceneSplit(codes, kind, window, seed, labels_md5(labels), parameters)


def _generator(labels: Labels, seed: int, validation: float) -> np.random.RandomState:
    if not (labels > 0).any():
        raise ValueError("no pixel has a label, so there is nothing to split")
    if not 0 <= validation < 1:
        raise ValueError(f"validation is a share of the training pixels from 0 to below 1, got {validation}")
    if not 0 <= seed < 1 << 32:
        raise ValueError(f"a seed lies between 0 and 2^32 − 1, got {seed}")
    return np.random.RandomState(seed)  # its stream is frozen: the same split everywhere


def _shuffled(labels: Labels, among: Mask, random: np.random.RandomState) -> list[tuple[int, NDArray[np.intp]]]:
    """The pixels of each class that lie in `among`, in random order."""
    classes = np.unique(labels[labels > 0])
    return [(int(label), random.permutation(np.flatnonzero((labels == label) & among))) for label in classes]


def _hold_out_pixels(codes: NDArray[np.uint8], labels: Labels, share: float, random: np.random.RandomState) -> None:
    for _, pixels in _shuffled(labels, codes == TRAIN, random):
        codes.flat[pixels[: _validators(len(pixels), share)]] = VALIDATION


def _held_out_fields(labels: Labels, part: Mask, chosen: Mask, share: float, random: np.random.RandomState) -> Mask:
    """Whole fields of the training part, but never those with all chosen pixels of a class."""
    held_out = deal_fields(np.where(part, labels, 0), share, random)
    for label in np.unique(labels[chosen]):
        if held_out[chosen & (labels == label)].all():
            held_out[labels == label] = False
    return held_out


def _number(available: int, label: int, fraction: float | None, counts: int | Mapping[int, int] | None) -> int:
    if fraction is not None:
        return min(available, max(FEWEST, round(fraction * available)))
    if isinstance(counts, Mapping) and label not in counts:
        raise ValueError(f"counts= has no number for class {label}")
    wanted = counts[label] if isinstance(counts, Mapping) else counts
    assert wanted is not None
    if not 0 <= wanted <= available:
        raise ValueError(f"class {label} has {available} labelled pixels, {wanted} were asked for training")
    return wanted


def _validators(number: int, validation: float) -> int:
    """How many of a class's training pixels validate; one at least remains for training."""
    return min(round(validation * number), max(number - 1, 0))


def _read_mask(mask: NDArray[Any] | str | Path, labels: Labels, name: str) -> Mask:
    if isinstance(mask, str | Path):
        mask = read_raster(Path(mask), dims=MAP, size=(labels.shape[0], labels.shape[1])).array
    member = as_labels(np.asarray(mask), f"the {name} mask") > 0
    if member.shape != labels.shape:
        raise ValueError(f"the {name} mask has the shape {member.shape}, the label map {labels.shape}")
    if (member & (labels == 0)).any():
        raise ValueError(f"{int((member & (labels == 0)).sum())} pixels of the {name} mask have no label")
    return member
