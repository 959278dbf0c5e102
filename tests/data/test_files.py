from __future__ import annotations

import hashlib
import http.server
import io
import tarfile
import threading
from contextlib import contextmanager

import pytest

from tcpvit.data import files
from tcpvit.data.files import Resource, data_root, download, extract

CONTENT = bytes(range(256)) * 2000  # half a megabyte


class Server(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT; understands Range; breaks off after `breaks_at` bytes if asked to."""

    protocol_version = "HTTP/1.0"
    ranges = True
    breaks_at: int | None = None
    requests: list[str | None] = []  # noqa: RUF012

    def do_GET(self):
        asked = self.headers.get("Range")
        self.requests.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        body = CONTENT[start:]
        self.send_response(206 if asked and self.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.breaks_at is None else body[: self.breaks_at])

    def log_message(self, *args):
        pass


@contextmanager
def serving(**settings):
    handler = type("Handler", (Server,), {"requests": [], **settings})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/set.tar.gz", handler.requests
    finally:
        server.shutdown()
        server.server_close()


def resource(url: str, md5: str | None = None) -> Resource:
    return Resource(url, md5 or hashlib.md5(CONTENT).hexdigest(), len(CONTENT))


def test_a_download_is_verified_and_not_repeated(tmp_path):
    with serving() as (url, requests):
        path = download(resource(url), tmp_path)
        assert path.read_bytes() == CONTENT
        assert download(resource(url), tmp_path) == path
        assert len(requests) == 1
    assert [item.name for item in tmp_path.iterdir()] == ["set.tar.gz"]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on(tmp_path, ranges):
    with serving(breaks_at=300_000) as (url, _), pytest.raises(OSError, match=r"could not be downloaded .* is kept"):
        download(resource(url), tmp_path)
    arrived = (tmp_path / "set.tar.gz.part").stat().st_size
    assert 0 < arrived <= 300_000
    assert not (tmp_path / "set.tar.gz").exists()
    with serving(ranges=ranges) as (url, requests):
        assert download(resource(url), tmp_path).read_bytes() == CONTENT  # also where the server starts anew
        assert requests == [f"bytes={arrived}-"]


def test_a_whole_part_is_used(tmp_path):
    (tmp_path / "set.tar.gz.part").write_bytes(CONTENT)
    with serving() as (url, requests):
        assert download(resource(url), tmp_path).read_bytes() == CONTENT
        assert requests == [f"bytes={len(CONTENT)}-"]


def test_a_wrong_checksum_leaves_nothing(tmp_path):
    with serving() as (url, _), pytest.raises(ValueError, match="hash"):
        download(resource(url, "0" * 32), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_server(tmp_path):
    with pytest.raises(OSError, match=r"could not be downloaded \(ConnectionError\).* by hand"):
        download(resource("http://127.0.0.1:9/set.tar.gz"), tmp_path)


def archive(path, *members: tuple[str, dict]):
    with tarfile.open(path, "w:gz") as tar:
        for name, how in members:
            info = tarfile.TarInfo(name)
            for key, value in how.items():
                setattr(info, key, value)
            info.size = 4 if info.isfile() else 0
            tar.addfile(info, io.BytesIO(b"data") if info.isfile() else None)
    return path


def test_archives_are_unpacked(tmp_path):
    packed = archive(
        tmp_path / "a.tar.gz", ("./set", {"type": tarfile.DIRTYPE}), ("./set/x/y.bin", {}), ("top.txt", {})
    )
    extract(packed, tmp_path / "out", lambda name: not name.endswith("top.txt"))
    assert (tmp_path / "out" / "set" / "x" / "y.bin").read_bytes() == b"data"
    assert sorted(item.name for item in (tmp_path / "out").iterdir()) == ["set"]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("../escaped.txt", {}),
        ("set/../../escaped.txt", {}),
        ("/tmp/escaped.txt", {}),
        ("..\\escaped.txt", {}),
        ("C:/escaped.txt", {}),
        ("set/link", {"type": tarfile.SYMTYPE, "linkname": "/etc"}),
        ("set/link", {"type": tarfile.LNKTYPE, "linkname": "../escaped.txt"}),
        ("set/pipe", {"type": tarfile.FIFOTYPE}),
        ("set/device", {"type": tarfile.CHRTYPE}),
    ],
)
def test_dangerous_members_are_refused_before_anything_is_written(tmp_path, name, how):
    packed = archive(tmp_path / "a.tar.gz", ("set/good.txt", {}), (name, how))
    with pytest.raises(ValueError, match="was not unpacked"):
        extract(packed, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "escaped.txt").exists()


def test_an_interrupted_unpacking_leaves_nothing(tmp_path, monkeypatch):
    packed = archive(tmp_path / "a.tar.gz", ("set/1", {}), ("set/2", {}))
    write = files._write_member

    def full_disk(tar, member, folder):
        if member.name == "set/2":
            raise OSError(28, "No space left on device")
        write(tar, member, folder)

    monkeypatch.setattr(files, "_write_member", full_disk)
    with pytest.raises(OSError, match="No space left"):
        extract(packed, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_data_root(tmp_path, monkeypatch):
    monkeypatch.setenv("TCPVIT_DATA", str(tmp_path / "set"))
    assert data_root() == tmp_path / "set"
    assert data_root(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv("TCPVIT_DATA")
    assert data_root().name == "tcpvit"
