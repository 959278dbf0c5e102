"""The service: answers as `predict` does, a status that fits everything else, and limits that hold."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from queue import Full

import numpy as np
import pytest
from PIL import Image

from tcpvit.cli.app import main
from tcpvit.inference import load_model, predict_files
from tcpvit.inference.page import FILES
from tcpvit.inference.serve.batches import Batcher

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from fastapi import FastAPI

from benchmarks.serve import BOUNDARY, form, request, storm
from tcpvit.inference.serve import Limits, create_app
from tcpvit.inference.serve.requests import Refused, Room

IMAGES = sorted((FILES / "images").glob("*.png"))


class Client:
    """Asks an application without a network: what a server would hand it."""

    def __init__(self, app):
        self.app, self.loop = app, asyncio.new_event_loop()
        self.running = app.router.lifespan_context(app)
        self.loop.run_until_complete(self.running.__aenter__())

    def close(self):
        self.loop.run_until_complete(self.running.__aexit__(None, None, None))
        self.loop.close()

    def __call__(self, *requests):
        """(status, body) of each, all asked at once."""
        return self.loop.run_until_complete(self._ask_all(requests))

    async def _ask_all(self, requests):
        return await asyncio.gather(*(self._ask(each) for each in requests))

    async def _ask(self, content):
        head, _, body = content.partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = line.split()
        headers = [(k.lower().encode(), v.strip().encode()) for k, _, v in (each.partition(":") for each in lines)]
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
        sent, events = [], [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            return events.pop(0) if events else {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        await self.app({**scope, "headers": headers, "http_version": "1.1", "scheme": "http"}, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


@pytest.fixture
def client():
    opened = Client(
        create_app(load_model("tcp_vit_cifar_plus"), Limits(max_megabytes=1, max_megapixels=1, max_images=8))
    )
    yield opened
    opened.close()


def test_it_answers_as_predict_does(client):
    expected = predict_files(load_model("tcp_vit_cifar_plus"), IMAGES).found
    contents = [file.read_bytes() for file in IMAGES]
    ((status, body),) = client(request(form(*contents)))
    assert status == 200
    for found, wanted in zip(json.loads(body)["predictions"], expected, strict=True):
        assert found["labels"] == list(wanted.labels)
        assert found["probabilities"] == pytest.approx(wanted.probabilities, abs=1e-4)
    answers = client(*(request(content, "image/png") for content in contents))  # at once: they share batches
    for (status, body), wanted in zip(answers, expected, strict=True):
        assert status == 200
        assert json.loads(body)["predictions"][0]["labels"] == list(wanted.labels)
    ((_, counts),) = client(request(b"", line="GET /metrics"))
    counts = counts.decode()
    assert f"tcpvit_images_total {2 * len(IMAGES)}" in counts
    assert f'tcpvit_requests_total{{status="200"}} {1 + len(IMAGES)}' in counts
    batches = int(re.search(r"tcpvit_batches_total (\d+)", counts)[1])
    assert batches < 1 + len(IMAGES)


def test_large_images_are_fitted_as_files_are(client, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.png")
    wanted = predict_files(load_model("tcp_vit_cifar_plus"), [tmp_path / "large.png"]).found[0]
    ((status, body),) = client(request((tmp_path / "large.png").read_bytes(), "image/png"))
    assert status == 200
    assert json.loads(body)["predictions"][0]["probabilities"] == pytest.approx(wanted.probabilities, abs=1e-4)


def test_every_bad_request_has_a_status_and_a_sentence(client):
    png = IMAGES[0].read_bytes()
    for content, status, why in (
        (request(form(png, b"hello")), 422, "'1.png' cannot be read as an image"),
        (request(form(png[:100])), 422, "cannot be read"),
        (request(b"", "image/png"), 422, "cannot be read"),
        (request(form(wide_png(1001, 1000))), 413, "1001 × 1000 pixels"),
        (request(form(b"0" * 1_000_001)), 413, "bytes"),
        (request(form(*[png] * 9)), 413, "more than 8 images"),
        (request(many_parts(109)), 413, "more than 108 parts"),
        (request(many_parts(108)), 400, "no files"),
        (request(form(png), "multipart/form-data"), 400, "no boundary"),
        (request(form(png)[:-100]), 400, "damaged"),
        (request(form()), 400, "form"),
        (request(b"{}", "application/json"), 415, "multipart"),
    ):
        ((found, body),) = client(content)
        assert (found, why in json.loads(body)["error"]) == (status, True), body
    for line, status in (("GET /predict", 405), ("GET /no", 404)):
        ((found, body),) = client(request(b"", line=line))
        assert (found, f"no {line} here" in json.loads(body)["error"]) == (status, True)
    assert client(request(form(png)))[0][0] == 200  # none of them did harm


def test_a_full_queue_answers_503_and_recovers():
    app = create_app(load_model("tcp_vit_cifar_plus"), Limits(queue=2, batch_size=2))
    service = app.state.service
    forward, free = service.batcher.run, threading.Event()
    service.batcher.run = lambda images: free.wait(30) and forward(images)
    client = Client(app)
    png = IMAGES[0].read_bytes()
    try:
        assert client(request(form(png, png, png)))[0][0] == 503  # more than there are places
        threading.Timer(0.5, free.set).start()
        statuses = [status for status, _ in client(*[request(form(png))] * 12)]
        assert set(statuses) == {200, 503}
        assert client(request(form(png)))[0][0] == 200
    finally:
        free.set()
        client.close()


def test_bodies_have_room_together_whatever_the_number_of_connections():
    room = Room(10)
    with room.place() as first:
        first(6)
        with room.place() as second:
            second(4)
            with pytest.raises(Refused, match="too many images are being sent") as refused:
                second(1)
        assert refused.value.status == 503
        with room.place() as third:
            third(4)  # what was refused is free again
    assert room.taken == 0


def test_the_service_counts_the_bodies_it_holds(client):
    service = client.app.state.service
    service.room.taken = service.room.most - 10
    assert client(request(IMAGES[0].read_bytes(), "image/png"))[0][0] == 503
    service.room.taken = 0
    assert client(request(IMAGES[0].read_bytes(), "image/png"))[0][0] == 200
    assert service.room.taken == 0


def test_a_token_is_asked_for_but_for_health():
    client = Client(create_app(load_model("tcp_vit_cifar_plus"), token="secret"))
    try:
        body = form(IMAGES[0].read_bytes())
        asked = (request(body), request(body, Authorization="Bearer wrong"), request(b"", line="GET /"))
        assert [status for status, _ in client(*asked)] == [401, 401, 401]
        assert client(request(b"", line="GET /health"))[0] == (200, b"ok\n")
        assert client(request(body, Authorization="Bearer secret"))[0][0] == 200
    finally:
        client.close()


def test_a_service_that_is_mounted_in_another_answers_as_by_itself():
    outer = FastAPI()  # which runs its own start and end, not those of what it mounts
    inner = create_app(load_model("tcp_vit_cifar_plus"), token="secret")
    outer.mount("/model", inner)
    client = Client(outer)
    try:
        assert client(request(b"", line="GET /model/health"))[0] == (200, b"ok\n")
        assert client(request(b"", line="GET /model/metrics"))[0][0] == 401
        body = request(form(IMAGES[0].read_bytes()), line="POST /model/predict", Authorization="Bearer secret")
        ((status, _),) = client.loop.run_until_complete(asyncio.wait_for(client._ask_all([body]), 60))
        assert status == 200
        ((_, counts),) = client(request(b"", line="GET /model/metrics", Authorization="Bearer secret"))
        assert b'status="200"} 1\n' in counts  # the image alone: whoever watches is not counted
    finally:
        client.close()


def test_a_service_that_ended_starts_again():
    app = create_app(load_model("tcp_vit_cifar_plus"))
    for _ in range(2):
        client = Client(app)
        assert client(request(IMAGES[0].read_bytes(), "image/png"))[0][0] == 200
        client.close()
        assert app.state.service.batcher.thread is None


def test_what_is_submitted_while_the_batches_end_gets_its_result():
    begun, free = threading.Event(), threading.Event()

    def run(items):
        begun.set()
        free.wait(30)
        return items

    batcher = Batcher(run, size=1, wait=0, places=9)
    first = batcher.submit_all([1])[0]
    begun.wait(30)
    thread = batcher.thread
    ending = threading.Thread(target=batcher.__exit__)
    ending.start()
    while batcher.thread is thread:
        time.sleep(0.01)
    second = batcher.submit_all([2])[0]
    free.set()
    assert (first.result(30), second.result(30)) == (1, 2)
    ending.join(30)
    assert not ending.is_alive()
    assert not thread.is_alive()
    batcher.__exit__()


def test_a_batch_that_fails_fails_its_callers_only():
    def run(items):
        if "bad" in items:
            raise ValueError("bad")
        return items

    with Batcher(run, size=1, wait=0, places=3) as batcher:
        good, bad = batcher.submit_all(["good", "bad"])
        assert good.result(10) == "good"
        with pytest.raises(ValueError, match="bad"):
            bad.result(10)
        assert batcher.submit_all(["again"])[0].result(10) == "again"
        with pytest.raises(Full):
            batcher.submit_all(["x"] * 4)


def test_a_batch_waits_for_others_and_no_longer_than_it_may():
    sizes = []
    with Batcher(lambda items: items, size=4, wait=60, places=99, seen=sizes.append) as batcher:
        futures = [future for _ in range(8) for future in batcher.submit_all([0])]
        assert [future.result(30) for future in futures] == [0] * 8
    assert sizes == [4, 4]
    with Batcher(lambda items: items, size=4, wait=0.01, places=99) as batcher:
        assert batcher.submit_all([1])[0].result(30) == 1


def test_the_verb_serves_over_the_network_and_survives_a_storm(tmp_path):
    log = (tmp_path / "log").open("w+")
    command = [sys.executable, "-m", "tcpvit", "serve", "tcp_vit_cifar_plus", "--port", "0"]
    process = subprocess.Popen(command, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1", "TCPVIT_TOKEN": ""})
    try:
        address = wait_for_address(tmp_path / "log", process)
        with urllib.request.urlopen(f"{address}/", timeout=60) as answer:
            assert b"A Vision Transformer in" in answer.read()
        host, _, port = address.removeprefix("http://").rpartition(":")
        statuses, wrong = asyncio.run(storm(host, int(port), 150, 8))
        assert not wrong
        assert statuses["200"] > 40
        with urllib.request.urlopen(f"{address}/health", timeout=60) as answer:
            assert answer.read() == b"ok\n"
        assert main(["serve", "tcp_vit_cifar_plus", "--port", port]) == 1  # the port is taken
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_bad_options_are_one_sentence(capsys):
    for words, why in (
        (["tcp_vit_cifar_plus", "--port", "99999"], "port"),
        (["tcp_vit_cifar_plus", "--host", "no.such.host.invalid"], "cannot listen"),
        (["tcp_vit_cifar_plus", "--batch-size", "0"], "batch_size"),
        (["tcp_vit_cifar_plus", "--max-wait", "nan"], "max_wait"),
        (["tcp_vit_cifar"], "random weights"),
        (["tcp_vit_pet"], "labels colour images"),
    ):
        assert main(["serve", *words]) == 1
        assert why in capsys.readouterr().err


def wait_for_address(log: Path, process) -> str:
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(r"^http://\S+$", log.read_text(), flags=re.MULTILINE):
            return found[0]
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def many_parts(number):
    return f"--{BOUNDARY}\r\nA: b\r\n\r\n\r\n".encode() * number + f"--{BOUNDARY}--\r\n".encode()


def wide_png(width, height):
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, format="png")
    return file.getvalue()
