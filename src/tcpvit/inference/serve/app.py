"""The service: POST /predict, /health, /metrics, and the explorer at /."""

from __future__ import annotations

import asyncio
import hmac
import queue
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tcpvit.data.decode import read_colour
from tcpvit.data.images import resize_pixels, square_box
from tcpvit.errors import import_extra
from tcpvit.inference.loading import LoadedModel
from tcpvit.inference.page import build_page, find_twin
from tcpvit.inference.serve.batches import Batcher
from tcpvit.inference.serve.metrics import Metrics
from tcpvit.inference.serve.requests import Refused, Room, Sent, read_images
from tcpvit.models.pretrained import Pretrained
from tcpvit.training.evaluation import unwrapped
from tcpvit.validation import Count, Number, dataclass

BODIES = 16  # of the largest size that are held at a time, whatever the number of connections
PATHS = "POST images to /predict, GET /health, /metrics or /"
SMALL = 32_768  # bytes and pixels: smaller images are decoded at once, larger ones in a thread


@dataclass(frozen=True)
class Limits:
    """What the service takes and how it waits."""

    batch_size: Count = 32  # images in a forward pass
    max_wait: Number = 5.0  # milliseconds that the first image of a batch waits for others
    queue: Count = 256  # images that wait; beyond them the answer is 503
    max_megabytes: Count = 16  # of a body
    max_megapixels: Count = 16  # of an image
    max_images: Count = 64  # of a request

    def __post_init__(self) -> None:
        if not 0 <= self.max_wait <= 10_000:
            raise ValueError(f"max_wait is a time from 0 to 10,000 milliseconds, got {self.max_wait:g}")


def create_app(loaded: LoadedModel, limits: Limits | None = None, *, token: str | None = None, top: int = 3) -> Any:
    """A FastAPI application that answers with the `top` likeliest labels of images.

    With a `token`, everything but /health asks for `Authorization: Bearer TOKEN`.
    """
    import_extra("fastapi", "the service needs FastAPI and uvicorn", "serve")
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse, Response

    page = _page(loaded)  # before the service fuses the model
    service = Service(loaded, limits or Limits(), top)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        with service.batcher:
            yield

    app = FastAPI(title=f"tcpvit: {loaded.name}", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    async def guarded(
        request: Any, answer: Callable[[], Awaitable[Any]], *, public: bool = False, counted: bool = True
    ) -> Any:
        """Answer, count and time a request; what is refused has its status."""
        begin = time.perf_counter()
        try:
            if token is not None and not public:
                _check_token(request.headers.get("authorization", ""), token)
            response = await answer()
        except Refused as refused:
            headers = {"Retry-After": "1"} if refused.status == 503 else {}
            headers |= {"WWW-Authenticate": "Bearer"} if refused.status == 401 else {}
            response = JSONResponse({"error": refused.why}, refused.status, headers)
        if counted:
            service.metrics.answered(response.status_code, time.perf_counter() - begin)
        return response

    async def predict(request: Any) -> Any:
        async def answer() -> Any:
            with service.room.place() as place:
                sent = await read_images(request, service.max_bytes, service.limits.max_images, place)
                return JSONResponse({"model": loaded.name, "predictions": await service.predict(sent)})

        return await guarded(request, answer)

    def fixed(content: Callable[[], str], kind: str, **about: bool) -> Callable[[Any], Awaitable[Any]]:
        async def answer() -> Any:
            return Response(content(), media_type=kind)

        async def get(request: Any) -> Any:
            return await guarded(request, answer, **about)

        return get

    async def elsewhere(request: Any, error: Any) -> Any:
        """What no path or method is there for, answered and counted as all else."""

        async def answer() -> Any:
            raise Refused(error.status_code, f"no {request.method} {request.url.path} here: {PATHS}")

        response = await guarded(request, answer)
        response.headers.update(error.headers or {})  # the methods that are allowed
        return response

    app.add_exception_handler(404, elsewhere)
    app.add_exception_handler(405, elsewhere)
    app.add_route("/predict", predict, methods=["POST"])
    health = fixed(lambda: "ok\n", "text/plain", public=True, counted=False)  # whoever watches is not counted
    metrics = fixed(service.metrics.text, "text/plain; version=0.0.4", counted=False)
    app.add_route("/health", health, methods=["GET"])
    app.add_route("/metrics", metrics, methods=["GET"])
    app.add_route("/", fixed(lambda: page, "text/html"), methods=["GET"])
    app.state.service = service
    return app


class Service:
    """A model that is ready to answer: its preprocessing, its batches, its counts."""

    def __init__(self, loaded: LoadedModel, limits: Limits, top: int):
        channels, *size = loaded.image_shape
        if (
            loaded.preparation()["task"] != "classification"
            or channels != 3
            or len(size) != 2
            or loaded.dtype != torch.uint8
        ):
            raise ValueError(f"the service labels colour images of 8 bits, and {loaded.name} is for something else")
        self.loaded, self.limits, self.top = loaded, limits, min(top, len(loaded.classes))
        self.classes, self.size = loaded.classes, (size[1], size[0])
        self.max_bytes = limits.max_megabytes * 1_000_000
        self.room = Room(BODIES * self.max_bytes)
        model: Any = loaded.model.eval()
        self.model = model.fuse_() if isinstance(model, Pretrained) and hasattr(model, "fuse_") else model
        self.batcher = Batcher(
            self._forward,
            size=limits.batch_size,
            wait=limits.max_wait / 1000,
            places=limits.queue,
            seen=lambda images: self.metrics.batch(images),
        )
        self.metrics = Metrics(self.batcher.__len__)
        loaded.check_classes(self._logits([torch.zeros(loaded.image_shape, dtype=loaded.dtype)]).shape[1])

    async def predict(self, sent: list[Sent]) -> list[dict[str, Any]]:
        """The likeliest labels of each image."""
        pixels = [await self._decoded(each) for each in sent]
        try:
            futures = self.batcher.submit_all(pixels)
        except queue.Full:
            raise Refused(503, "too many images are waiting; try again in a second") from None
        rows = await asyncio.gather(*map(asyncio.wrap_future, futures))
        return [self._labelled(each.name, *row) for each, row in zip(sent, rows, strict=True)]

    async def _decoded(self, sent: Sent) -> Tensor:
        if len(sent.content) < SMALL and _pixels_of_png(sent.content) < SMALL:
            return self._decode(sent)
        return await asyncio.get_running_loop().run_in_executor(None, self._decode, sent)

    def _decode(self, sent: Sent) -> Tensor:
        """(3, H, W) uint8."""
        try:
            pixels = read_colour(sent.content, self.limits.max_megapixels * 1_000_000)
            box = square_box((pixels.shape[1], pixels.shape[0]), self.loaded.fit)
            resized = resize_pixels(pixels, self.size, box)
        except OverflowError as error:
            raise Refused(413, f"{_named(sent)}: {error}") from None
        except Exception as error:  # a damaged file can fail anywhere in Pillow
            raise Refused(
                422, f"{_named(sent)} cannot be read as an image: {str(error) or type(error).__name__}"
            ) from None
        return torch.from_numpy(np.ascontiguousarray(resized.transpose(2, 0, 1)))

    @torch.inference_mode()
    def _logits(self, images: Sequence[Tensor]) -> Tensor:
        """(3, H, W) uint8 each -> (B, classes)."""
        return unwrapped(self.model(self.loaded.normalise(torch.stack(list(images)).to(self.loaded.device))))

    def _forward(self, images: Sequence[Tensor]) -> list[tuple[list[int], list[float]]]:
        """(3, H, W) uint8 each -> the likeliest classes of each, and their probabilities."""
        best = self._logits(images).float().softmax(1).topk(self.top)
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def _labelled(self, name: str, best: list[int], chances: list[float]) -> dict[str, Any]:
        labels = [self.classes[k] for k in best]
        return {"file": name, "labels": labels, "probabilities": [round(chance, 6) for chance in chances]}


def _named(sent: Sent) -> str:
    return repr(sent.name) if sent.name else "the image"


def _pixels_of_png(content: bytes) -> int:
    """Width × height of a PNG by its header; others count as large."""
    if content[:8] != b"\x89PNG\r\n\x1a\n" or len(content) < 24:
        return SMALL
    return int.from_bytes(content[16:20], "big") * int.from_bytes(content[20:24], "big")


def _check_token(given: str, token: str) -> None:
    scheme, _, value = given.partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(value.strip().encode(), token.encode()):
        raise Refused(401, "this service asks for a token: Authorization: Bearer TOKEN")


def _page(loaded: LoadedModel) -> str:
    """The explorer of the model, or for one that it does not show, where to send images."""
    try:
        return build_page(loaded, find_twin(loaded))
    except ValueError:
        return "<!DOCTYPE html><title>tcpvit</title><p>Send images to <code>POST /predict</code>.</p>"
