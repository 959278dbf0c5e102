"""`tcpvit serve` on loopback: requests per second in batches and one by one, and a storm of good and bad requests.

Both services run at the same time, each a process of its own, and are asked in turns by the same clients; a ratio is
that of one turn. The storm sends bodies of every kind and checks each status; memory is that of the service's process.

    python -m benchmarks.serve [--model tcp_vit_cifar_plus] [--clients 16] [--out results/bench/serve.json]
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import platform
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image

import tcpvit

WAYS = {"in batches": 32, "one by one": 1}
BOUNDARY = "tcpvitboundary"
PARTS = 5  # of the storm, after each of which memory is measured


@contextmanager
def service(model: str, batch_size: int) -> Iterator[tuple[str, int, int]]:
    """A running service: its host and port, and its process."""
    command = [sys.executable, "-m", "tcpvit", "serve", model, "--port", "0", "--batch-size", str(batch_size)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stderr=said, text=True, env=environment)
        try:
            host, _, port = _address(said).rpartition(":")
            yield host, int(port), process.pid
        finally:
            process.terminate()
            process.wait(30)


def _address(said: IO[str], seconds: float = 300) -> str:
    """The host and port that a service says it listens on."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        said.seek(0)
        if found := re.search(r"^http://(.*)$", said.read(), flags=re.MULTILINE):
            return found[1]
        time.sleep(0.2)
    raise OSError("the service did not start")


# ----------------------------------------------------------------------------------------------------- requests


def encoded(kind: str = "PNG", side: int = 32, seed: int = 0) -> bytes:
    """A small image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format=kind)
    return file.getvalue()


def bomb(side: int = 30_000) -> bytes:
    """A PNG of a few bytes that says it has 900 million pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def form(*images: bytes) -> bytes:
    """Images as a multipart form."""
    head = 'Content-Disposition: form-data; name="images"; filename="{}.png"\r\nContent-Type: image/png\r\n\r\n'
    parts = [f"--{BOUNDARY}\r\n{head.format(i)}".encode() + image + b"\r\n" for i, image in enumerate(images)]
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def request(
    body: bytes, kind: str = f"multipart/form-data; boundary={BOUNDARY}", line: str = "POST /predict", **headers: str
) -> bytes:
    """The bytes of a request."""
    given = {"Host": "localhost", "Content-Type": kind, "Content-Length": str(len(body)), **headers}
    text = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{line} HTTP/1.1\r\n{text}\r\n".encode() + body


def storm_requests() -> dict[str, tuple[bytes, set[int]]]:
    """Requests of every kind, with the statuses that fit."""
    png, jpeg = encoded(), encoded("JPEG", 300)
    return {
        "one image": (request(form(png)), {200}),
        "three images": (request(form(png, jpeg, encoded("WEBP", 64))), {200}),
        "an image as the body": (request(jpeg, "image/jpeg"), {200}),
        "a damaged image": (request(form(png[:200])), {422}),
        "a damaged image among good ones": (request(form(png, jpeg[:500])), {422}),
        "text for an image": (request(form(b"hello")), {422}),
        "an empty image": (request(form(b"")), {422}),
        "random bytes": (request(random.Random(0).randbytes(5000), "image/png"), {422}),
        "a PNG of 900 million pixels": (request(form(bomb())), {413, 422}),
        "a body of 17 MB": (request(b"", "image/png", **{"Content-Length": "17000000"}), {413}),
        "no boundary": (request(form(png), "multipart/form-data"), {400}),
        "another boundary": (request(form(png), "multipart/form-data; boundary=other"), {400}),
        "a form that ends too early": (request(form(png)[:-300]), {400}),
        "a form without files": (request(f"--{BOUNDARY}--\r\n".encode()), {400}),
        "a hundred images": (request(form(*[png] * 100)), {413}),
        "JSON": (request(b'{"image": 1}', "application/json"), {415}),
        "no content type": (request(b"x", ""), {415}),
        "GET /predict": (request(b"", line="GET /predict"), {405}),
        "another path": (request(b"", line="GET /nothing/../here"), {404}),
        "no HTTP": (b"\x00\x01\x02 nonsense\r\n\r\n", {400}),
    }


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, content: bytes) -> tuple[int, bool]:
    """The status of the answer, and whether the connection may be used again."""
    writer.write(content)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    lines = head.decode("latin-1").lower().split("\r\n")
    length = next((int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")), 0)
    await reader.readexactly(length)
    return int(lines[0].split()[1]), not any(line.startswith("connection: close") for line in lines)


# ------------------------------------------------------------------------------------------------ measurements


async def throughput(host: str, port: int, clients: int, seconds: float) -> tuple[int, float]:
    """Requests of so many clients, each asking again when it has its answer, and the seconds they took."""
    content, until, done = request(form(encoded())), time.perf_counter() + seconds, 0

    async def client() -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection(host, port)
        while time.perf_counter() < until:
            status, _ = await ask(reader, writer, content)
            assert status == 200, status
            done += 1
        writer.close()

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return done, time.perf_counter() - begin


async def storm(host: str, port: int, count: int, clients: int, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Ask `count` times in a random order; gives how often each status came, and every answer that does not fit."""
    kinds = storm_requests()
    order = random.Random(seed).choices(
        list(kinds), weights=[5 if 200 in fits else 1 for _, fits in kinds.values()], k=count
    )
    statuses: Counter[str] = Counter()
    wrong: list[str] = []

    async def client() -> None:
        connection = None
        while order:
            name = order.pop()
            content, fitting = kinds[name]
            if connection is None:
                connection = await asyncio.open_connection(host, port)
            if random.random() < 0.02:  # a client that goes away in the middle
                connection[1].write(content[: len(content) // 2])
                connection[1].close()
                connection = None
                statuses["gone"] += 1
                continue
            try:
                status, again = await ask(*connection, content)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                status, again = 0, False
                wrong.append(f"{name}: {type(error).__name__}")
            else:
                statuses[str(status)] += 1
                if status not in fitting:
                    wrong.append(f"{name}: {status}")
            if not again or status in (400, 413):  # what is left of a body would be read as the next request
                connection[1].close()
                connection = None

    await asyncio.gather(*(client() for _ in range(clients)))
    return statuses, wrong


def cpu_seconds(process: int) -> float:
    """What the process has computed so far: less noisy than time where other programs run too."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> float:
    """Megabytes of the process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1000
    raise OSError(f"/proc/{process}/status does not say how much memory it has")


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tcp_vit_cifar_plus")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("results/bench/serve.json"))
    asked = parser.parse_args()
    with service(asked.model, WAYS["in batches"]) as batched, service(asked.model, WAYS["one by one"]) as single:
        services = dict(zip(WAYS, (batched, single), strict=True))
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        costs: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(asked.turns + 1):
            for way, (host, port, process) in services.items():
                before = cpu_seconds(process)
                done, seconds = asyncio.run(throughput(host, port, asked.clients, asked.seconds))
                if turn:  # the first one warms up
                    rates[way].append(round(done / seconds, 1))
                    costs[way].append(round(1000 * (cpu_seconds(process) - before) / done, 3))
        host, port, process = batched
        statuses: Counter[str] = Counter()
        wrong: list[str] = []
        megabytes = [memory(process)]
        for part in range(PARTS):
            answered, unfit = asyncio.run(storm(host, port, asked.requests // PARTS, asked.clients, seed=part))
            statuses += answered
            wrong += unfit
            megabytes.append(memory(process))
    ratios = [a / b for a, b in zip(rates["in batches"], rates["one by one"], strict=True)]
    cpu_ratios = [b / a for a, b in zip(costs["in batches"], costs["one by one"], strict=True)]
    record = {
        "model": asked.model,
        "clients": asked.clients,
        "requests_per_second": rates,
        "best_requests_per_second": {way: max(found) for way, found in rates.items()},
        "median_ratio": round(statistics.median(ratios), 3),
        "cpu_milliseconds_per_request": costs,
        "median_cpu_ratio": round(statistics.median(cpu_ratios), 3),
        "storm": {
            "requests": asked.requests,
            "statuses": dict(sorted(statuses.items())),
            "that_do_not_fit": wrong,
            "megabytes": [round(each, 1) for each in megabytes],  # before, and after each fifth of the requests
        },
        "torch": torch.__version__,
        "tcpvit": tcpvit.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in record.items() if "per_request" not in key}, indent=2))


if __name__ == "__main__":
    main()
