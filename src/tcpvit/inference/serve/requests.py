"""What clients send: a body of bounded size, and the images in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

SECONDS_TO_SEND = 30.0
OTHER_PARTS = 100  # of a form that are no images: the parser takes its time for each, and answers nobody meanwhile


class Refused(Exception):
    """A request that is answered with an HTTP status and a sentence."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status, self.why = status, why


@dataclass(frozen=True)
class Sent:
    """An image as it was sent: its name, and the encoded bytes."""

    name: str
    content: bytes


class Room:
    """How many bytes the bodies of all requests may take together; for one thread.

    >>> room = Room(10)
    >>> with room.place() as take:
    ...     take(8)
    ...     room.taken
    8
    >>> room.taken
    0
    """

    def __init__(self, most: int):
        self.most, self.taken = most, 0

    @contextmanager
    def place(self) -> Iterator[Callable[[int], None]]:
        """Inside, a function that takes bytes, or refuses them; at the end they are free again."""
        own = 0

        def take(number: int) -> None:
            nonlocal own
            if self.taken + number > self.most:
                raise Refused(503, "too many images are being sent; try again in a second")
            self.taken += number
            own += number

        try:
            yield take
        finally:
            self.taken -= own


async def read_images(request: Any, max_bytes: int, max_images: int, take: Callable[[int], None]) -> list[Sent]:
    """The images of a multipart form, or the one image that is the body; `take` is asked for each part of it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    multipart = kind == "multipart/form-data"
    if not multipart and not kind.startswith("image/") and kind != "application/octet-stream":
        raise Refused(415, "send images as multipart/form-data, or one as image/png, image/jpeg, …")
    body = await _read_body(request, max_bytes, take)
    images = _split(request.headers["content-type"], body, max_images) if multipart else [Sent("", body)]
    if not images:
        raise Refused(400, "the form has no files; send each image as a part with a file name")
    return images


async def _read_body(request: Any, max_bytes: int, take: Callable[[int], None]) -> bytes:
    """The body, refused as soon as it is too long or takes too long."""
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > max_bytes:
        raise Refused(413, f"the body has {int(length):,} bytes; at most {max_bytes:,} are read")
    try:
        return await asyncio.wait_for(_collect(request, max_bytes, take), SECONDS_TO_SEND)
    except asyncio.TimeoutError:
        raise Refused(408, f"the body did not come within {SECONDS_TO_SEND:.0f} seconds") from None


async def _collect(request: Any, max_bytes: int, take: Callable[[int], None]) -> bytes:
    from starlette.requests import ClientDisconnect

    body = bytearray()
    try:
        async for part in request.stream():
            take(len(part))
            body += part
            if len(body) > max_bytes:
                raise Refused(413, f"the body has more than {max_bytes:,} bytes")
    except ClientDisconnect:
        raise Refused(400, "the client went away before the body had come") from None
    return bytes(body)


def _split(content_type: str, body: bytes, max_images: int) -> list[Sent]:
    """The parts of a form that are files."""
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise Refused(400, "the form has no boundary")
    found: list[Sent] = []
    state, most, parts = _Part(), max_images + OTHER_PARTS, 0

    def begin() -> None:
        nonlocal parts
        parts += 1
        if parts > most:
            raise Refused(413, f"the form has more than {most} parts, and {max_images} images are read; send fewer")
        state.__init__()  # type: ignore[misc]

    def end() -> None:
        if state.name is not None:
            if len(found) == max_images:
                raise Refused(413, f"the form has more than {max_images} images")
            found.append(Sent(state.name, b"".join(state.pieces)))

    def header_end() -> None:
        if state.field.lower() == b"content-disposition":
            _, about = parse_options_header(state.value)
            file_name = about.get(b"filename")
            state.name = None if file_name is None else file_name.decode("utf-8", "replace")
        state.field = state.value = b""

    callbacks: Any = {
        "on_part_begin": begin,
        "on_header_field": lambda data, a, b: setattr(state, "field", state.field + data[a:b]),
        "on_header_value": lambda data, a, b: setattr(state, "value", state.value + data[a:b]),
        "on_header_end": header_end,
        "on_part_data": lambda data, a, b: state.pieces.append(data[a:b]),
        "on_part_end": end,
        "on_end": lambda: setattr(state, "is_last", True),
    }
    try:
        parser = MultipartParser(boundary, callbacks)
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError) as error:
        raise Refused(400, f"the form is damaged: {error}") from None
    if not state.is_last:
        raise Refused(400, "the form is damaged: it ends too early")
    return found


class _Part:
    """The part of a form that is being read."""

    is_last = False

    def __init__(self) -> None:
        self.name: str | None = None
        self.field = self.value = b""
        self.pieces: list[bytes] = []
