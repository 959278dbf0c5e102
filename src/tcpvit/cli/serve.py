"""`tcpvit serve`: a trained model as an HTTP service."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys

from tcpvit.cli.predict import load_trained
from tcpvit.cli.show import display_for
from tcpvit.errors import import_extra
from tcpvit.inference.loading import Weights
from tcpvit.inference.serve import Limits, create_app

TOKEN = "TCPVIT_TOKEN"


def serve(
    target: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    top: int = 3,
    batch_size: int = 32,
    max_wait: float = 5.0,
    queue: int = 256,
    max_megabytes: int = 16,
    max_megapixels: int = 16,
    weights: Weights = "best",
) -> None:
    """Serve a trained classifier over HTTP.

    POST /predict takes images as multipart/form-data (or one as the body) and answers with the likeliest labels as
    JSON; /health says ok, /metrics counts for Prometheus, / is the explorer. Concurrent requests share forward passes.
    Only this computer can reach it unless --host says otherwise. With TCPVIT_TOKEN in the environment, requests need
    the header "Authorization: Bearer TOKEN".

    Args:
        target: a run folder, a folder written by save_pretrained, or a preset whose weights come with the package.
        host: the address to listen on; others than 127.0.0.1 let other computers in.
        port: the port to listen on, 0 for any that is free.
        top: how many labels to give for each image.
        batch_size: images in one forward pass at most; 1 computes them one by one.
        max_wait: milliseconds that the first image of a batch waits for others.
        queue: images that may wait; beyond them the answer is 503.
        max_megabytes: largest body of a request; longer ones are answered with 413.
        max_megapixels: largest image; larger ones are answered with 413.
        weights: which weights of a run, those of the best or of the last epoch.

    Examples:
        tcpvit serve tcp_vit_cifar_plus
        tcpvit serve runs/demo/tcp-0 --port 8080 --max-wait 2
    """
    uvicorn = import_extra("uvicorn", "the service needs FastAPI and uvicorn", "serve")
    limits = Limits(batch_size, max_wait, queue, max_megabytes, max_megapixels)
    if not 0 <= port < 65536:
        raise ValueError(f"a port is a number from 0 to 65535, got {port}")
    if top < 1:
        raise ValueError(f"top is at least 1, got {top}")
    token = os.environ.get(TOKEN) or None
    app = create_app(load_trained(target, weights, display_for(json=True)), limits, token=token, top=top)
    listening = _listen(host, port)
    if not _is_loopback(listening):
        guard = "whoever has the token" if token else f"anybody, as {TOKEN} is not set"
        print(f"warning: {host} can be reached from other computers, by {guard}; it is not encrypted", file=sys.stderr)
    print(f"http://{_written(listening)}", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, limit_concurrency=4 * queue, server_header=False
    )
    uvicorn.Server(config).run([listening])


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens; an address in use or unknown is an error of one sentence."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, UnicodeError, OverflowError) as error:
        why = (getattr(error, "strerror", None) or str(error)).partition(" (while")[0]  # the address is said here
        raise ValueError(f"cannot listen on {host} port {port}: {why}; choose others with --host and --port") from None
    return listening


def _is_loopback(listening: socket.socket) -> bool:
    return ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def _written(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
