"""Files are written completely or not at all, and never through links."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tcpvit import files
from tcpvit.cli.app import main
from tcpvit.data.files import data_root
from tcpvit.files import (
    check_writable,
    expand_user,
    open_unlinked,
    read_json,
    source_commit,
    temporary_folder,
    write_atomically,
    write_inside,
    write_json,
)

links = pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")


def test_the_new_name_comes_after_the_content_is_on_the_disk(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda fd: (events.append("sync"), fsync(fd)))
    monkeypatch.setattr(files.os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    write_atomically(tmp_path / "x", b"content")
    assert events == ["sync", "rename", "sync"]


def test_an_unwritable_folder_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file/x could not be written") as caught:
        write_atomically(tmp_path / "file" / "x", b"")
    assert caught.value.errno == errno.ENOTDIR


@links
@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_a_link_is_not_opened(tmp_path, make):
    (tmp_path / "mine").write_text("mine")
    make(tmp_path / "mine", tmp_path / ".lock")
    with pytest.raises(ValueError, match=r"\.lock is (a link|not a file of its own).*; remove it"):
        open_unlinked(tmp_path / ".lock")
    assert (tmp_path / "mine").read_text() == "mine"


@links
def test_a_temporary_name_is_not_written_through(tmp_path):
    (tmp_path / "mine").write_text("mine")
    for name in ("result.json", ".result.json.tmp"):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    write_atomically(tmp_path / "result.json", b"ours")
    assert (tmp_path / "result.json").read_bytes() == b"ours"
    assert not (tmp_path / "result.json").is_symlink()
    assert (tmp_path / "mine").read_text() == "mine"


def test_json_is_read_as_written_and_a_damaged_file_is_named(tmp_path):
    write_json(tmp_path / "x.json", {"a": [1, 2.5, None]})
    assert read_json(tmp_path / "x.json") == {"a": [1, 2.5, None]}
    (tmp_path / "x.json").write_text('{"a": ')
    with pytest.raises(ValueError, match=r"x\.json holds no JSON .*; remove it"):
        read_json(tmp_path / "x.json")


@links
def test_a_parent_that_leads_outside_is_refused(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home" / "images").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"images leads through a link to .*elsewhere, outside of"):
        write_inside(tmp_path / "home", "images/a.png", b"")
    assert write_inside(tmp_path / "home", "deep/a.png", b"a").read_bytes() == b"a"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_the_commit_is_that_of_the_source():
    root = Path(files.__file__).parents[2]
    if not (root / ".git").exists():
        assert source_commit() is None
        return
    head = subprocess.check_output(["git", "-C", str(root), "rev-parse", "HEAD"], text=True).strip()
    assert source_commit() in (head, f"{head}-dirty")


def test_a_folder_that_a_killed_process_left_is_removed(tmp_path):
    program = "import os, sys, pathlib; from tcpvit.files import temporary_folder\n"
    program += "with temporary_folder(pathlib.Path(sys.argv[1]), '.work'): os._exit(1)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=120)
    assert len(list(tmp_path.iterdir())) == 1
    with temporary_folder(tmp_path, ".work") as mine:
        assert list(tmp_path.iterdir()) == [mine]
        with temporary_folder(tmp_path, ".work"):  # of a process that lives
            assert mine.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="users of POSIX")
def test_a_user_without_a_home_is_told_what_to_write(monkeypatch):
    def nobody(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "TCPVIT_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(ValueError, match="no home folder; write the whole path"):
        expand_user("~/images")
    with pytest.raises(ValueError, match="no home folder to keep data sets in; name one by TCPVIT_DATA"):
        data_root(None)


def test_places_that_cannot_be_written_are_named_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    check_writable(tmp_path / "new", tmp_path / "a" / "b" / "new", tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(ValueError, match="is a folder; name a file in it"):
        check_writable(tmp_path)
    with pytest.raises(ValueError, match=r"file/new cannot be written: .*/file is no folder; name another place"):
        check_writable(tmp_path / "file" / "new")
    if Path("/proc/self").exists():
        with pytest.raises(OSError, match="/proc/new cannot be written, as nothing can be in /proc"):
            check_writable("/proc/new")


@pytest.mark.parametrize(
    "line",
    [
        "explain tcp_vit_cifar_plus a.png --out PLACE",
        "predict tcp_vit_cifar_plus a.png --out PLACE/a.csv",
        "predict tcp_vit_cifar_plus a.png --sheet PLACE/a.png",
        "predict tcp_vit_cifar_plus a.png --images PLACE",
        "predict tcp_vit_pet a.png --images PLACE",
        "export tcp_vit_cifar_plus --format torch-export --out PLACE/a.pt2",
        "page tcp_vit_cifar_plus --out PLACE/a.html",
        "scene split materials --out PLACE/a.npz",
        "scene info materials --images PLACE",
        "analyze --figure PLACE/a.png",
        "tensorize tcp_vit_cifar_plus --tube 3 --out PLACE",
        "train --set schedule.epochs=1 --data digits-on-photos --runs PLACE --quiet",
        "compare --data digits-on-photos --runs PLACE",
        "reproduce segmentation --out PLACE",
        "demo --runs PLACE",
    ],
)
def test_every_verb_that_writes_says_so_in_one_sentence(line, tmp_path, monkeypatch, capsys):
    """A file stands where a folder should."""
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (32, 32)).save("a.png")
    Path("file").write_text("kept")
    assert main(line.replace("PLACE", "file/inside").split()) == 1
    said = capsys.readouterr()
    (sentence,) = [text for text in said.err.splitlines() if text.startswith("tcpvit: ")]
    assert "file" in sentence
    assert "Errno" not in sentence
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "file"]
    assert Path("file").read_text() == "kept"
