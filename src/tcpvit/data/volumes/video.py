"""Clips from video files (PyAV) and from folders of frames: so many frames, evenly or from a place drawn by seed."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.decode import EXTENSIONS, read_pixels
from tcpvit.data.images import resize_pixels
from tcpvit.data.walk import examples_below, find_examples, natural_order
from tcpvit.errors import import_extra

SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v", ".mpg", ".mpeg", ".gif", ".npz", ".npy")
READ = f"{', '.join(SUFFIXES)} files and folders of frames"
# Containers that hold their own frames: a playlist would lead FFmpeg to other files, and to addresses in the network.
FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,m4v,gif"
MOST_PIXELS, MOST_FRAMES = 1 << 26, 1_000_000  # of a frame, and of a file


def pyav() -> Any:
    """The package av, or an error that says how to install it."""
    return import_extra("av", "video is read and written with PyAV", "video")


def read_clip(
    path: str | Path, frames: int, size: int, *, stride: int | None = None, place: float = 0.5, colour: bool = True
) -> NDArray[np.uint8]:
    """(C, T, H, W): `frames` frames of `size`×`size` pixels, the middle of each.

    They lie evenly over the whole video, or with `stride` so many frames apart, beginning at `place` in [0, 1] of where
    they can. A video that is too short is refused with the number of its frames.
    """
    path = Path(path)
    total, read = _open(path)
    wanted = chosen_frames(total, frames, stride, place, path)
    found = {i: _small(frame, size, colour) for i, frame in read(set(wanted))}
    if missing := [i for i in wanted if i not in found]:
        raise ValueError(
            f"{path} announces {total} frames, but frame {missing[0]} cannot be decoded; repair or remove it"
        )
    return np.ascontiguousarray(np.stack([found[i] for i in wanted]).transpose(3, 0, 1, 2))


def chosen_frames(total: int, frames: int, stride: int | None, place: float, path: str | Path) -> list[int]:
    """Which frames of `total` a clip has.

    >>> chosen_frames(100, 4, None, 0.5, "a.mp4"), chosen_frames(100, 4, 2, 1.0, "a.mp4")
    ([12, 37, 62, 87], [93, 95, 97, 99])
    """
    needed = frames if stride is None else (frames - 1) * stride + 1
    if total < needed:
        raise ValueError(
            f"{path} has {total} frames along its time, and a clip of {frames}"
            f"{f' with stride {stride}' if stride else ''} needs {needed}; take frames={max(total, 1)} or fewer"
            f"{', or a smaller stride' if stride else ''}"
        )
    if stride is None:
        return [int((i + 0.5) * total / frames) for i in range(frames)]
    start = round(place * (total - needed))
    return [start + i * stride for i in range(frames)]


Frames = Iterator[tuple[int, NDArray[np.uint8]]]


def _open(path: Path) -> tuple[int, Callable[[set[int]], Frames]]:
    """How many frames there are, and how those of some numbers are read."""
    if path.is_dir():
        files = frame_files(path)
        return len(files), lambda wanted: ((i, _as_bytes(read_pixels(str(files[i]), "rgb"))) for i in sorted(wanted))
    if path.suffix.lower() in (".npz", ".npy"):
        return _open_array(path)
    return _count(path), lambda wanted: _decode(path, wanted)


def frame_files(folder: Path) -> list[Path]:
    """The images of a folder in the natural order of their names: frame 2 before frame 10."""
    images = (path for path in folder.iterdir() if path.suffix.lower() in EXTENSIONS and path.is_file())
    return sorted(images, key=natural_order)


def _open_array(path: Path) -> tuple[int, Callable[[set[int]], Frames]]:
    """Grey frames (T, H, W), as uint8, uint16 or in 0…1."""
    from tcpvit.data.volumes.read import read_volume

    values = read_volume(path).voxels
    if len(values) != 1:
        raise ValueError(f"{path} has {len(values)} channels; clips of arrays are grey, (T, H, W)")
    if values.dtype == np.float32 and (values.min() < 0 or values.max() > 1):
        raise ValueError(
            f"{path} holds {values.min():g} to {values.max():g}; frames of an array are uint8, uint16, or from 0 to 1"
        )
    top = {"uint8": 255, "uint16": 65535}.get(str(values.dtype), 1)
    grey = values[0] if top == 255 else np.round(values[0] * np.float32(255 / top)).astype(np.uint8)
    return len(grey), lambda wanted: ((i, np.repeat(grey[i][:, :, None], 3, 2)) for i in sorted(wanted))


def count_frames(path: Path) -> int:
    """How many frames a video, a folder of frames or an array has."""
    return _open(path)[0]


def _count(path: Path) -> int:
    """Frames of a file: as many as it has packets, none of which is decoded."""
    with _container(path) as container, _damage_named(path):
        stream = container.streams.video[0]
        _check(stream.codec_context.width, stream.codec_context.height, path)
        number = 0
        for packet in container.demux(stream):
            number += packet.size > 0
            if number > MOST_FRAMES:
                raise ValueError(f"{path} has more than {MOST_FRAMES:,} frames; cut it into shorter files")
        return number


def _decode(path: Path, wanted: set[int]) -> Frames:
    last = max(wanted)
    with _container(path) as container, _damage_named(path):
        for i, frame in enumerate(container.decode(video=0)):
            if i in wanted:
                _check(frame.width, frame.height, path)
                yield i, frame.to_ndarray(format="rgb24")
            if i >= last:
                return


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except pyav().error.FFmpegError as error:
        raise ValueError(f"{path} is damaged ({error.strerror})") from None


def _container(path: Path) -> Any:
    try:
        container = pyav().open(
            os.path.abspath(path), options={"format_whitelist": FORMATS, "protocol_whitelist": "file"}
        )
    except pyav().error.FFmpegError as error:
        raise ValueError(f"{path} is no video that can be read ({error.strerror})") from None
    if not container.streams.video:
        container.close()
        raise ValueError(f"{path} has no video in it")
    return container


def _check(width: int, height: int, path: Path) -> None:
    if not 0 < width * height <= MOST_PIXELS:
        raise ValueError(f"{path} has frames of {width}×{height} pixels, where {MOST_PIXELS:,} pixels are read")


def _as_bytes(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    return pixels.astype(np.uint8)


def _small(frame: NDArray[np.uint8], size: int, colour: bool) -> NDArray[np.uint8]:
    """The middle square of a frame at `size`, (H, W, 3) or (H, W, 1)."""
    height, width = frame.shape[:2]
    side = min(height, width)
    x, y = (width - side) / 2, (height - side) / 2
    small = resize_pixels(np.ascontiguousarray(frame), (size, size), (x, y, x + side, y + side))
    return small if colour else np.round(small @ [0.299, 0.587, 0.114]).astype(np.uint8)[:, :, None]


def clip_bytes(frames: Sequence[NDArray[np.uint8]], rate: int = 8) -> bytes:
    """Frames (H, W, 3) as an .mp4 file that browsers play."""
    av, content = pyav(), io.BytesIO()
    height, width = (side - side % 2 for side in frames[0].shape[:2])  # the codec wants even sides
    with av.open(content, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[:height, :width]), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return content.getvalue()


def find_clips(paths: Sequence[Path], leave_out: Sequence[Path] = ()) -> list[Path]:
    """The files as they are, and every video and folder of frames below the folders."""
    return find_examples(paths, clips_below, "clips", READ, leave_out)


def clips_below(folder: Path) -> Iterator[Path]:
    """Video files, and folders that hold frames."""
    return examples_below(folder, SUFFIXES, _is_clip)


def _is_clip(folder: Path) -> bool:
    """Whether a folder holds frames: images beside clips are clips themselves, as GIFs are, or their thumbnails."""
    visible = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return not any(path.name.lower().endswith(SUFFIXES) for path in visible) and bool(frame_files(folder))
