"""Commands in hints and errors can be pasted where the program was called."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tcpvit.cli.program import pasteable, program


def script(folder: Path) -> Path:
    """A `tcpvit` as pip installs one."""
    file = folder / "bin" / "tcpvit"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!{sys.executable}\nimport sys\nfrom tcpvit.cli import main\nsys.exit(main())\n")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize(("called", "on_path"), [("bin/tcpvit", False), ("tcpvit", True)])
def test_the_program_is_named_as_it_was_called(tmp_path, called, on_path):
    file = script(tmp_path)
    path = f"{file.parent}{os.pathsep}{os.environ['PATH']}" if on_path else os.environ["PATH"]
    done = subprocess.run(
        [called if not on_path else file, "train", "--resume", "runs/none"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert f"start one with `{called} train`" in done.stderr


def test_as_a_module(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/site-packages/tcpvit/__main__.py"])
    monkeypatch.setattr(sys, "executable", "/opt/own python/bin/python")
    assert program() == "'/opt/own python/bin/python' -m tcpvit"
    monkeypatch.setattr("shutil.which", lambda name: f"/opt/own python/bin/{name}")
    assert program() == "python -m tcpvit"


def test_another_program_of_the_same_name_is_not_meant(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv" / "bin" / "tcpvit")])
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/tcpvit")
    assert program() == ".venv/bin/tcpvit"
    assert pasteable("resume it with `tcpvit train --resume runs/a`") == (
        "resume it with `.venv/bin/tcpvit train --resume runs/a`"
    )


def test_what_calls_main_from_python_gets_the_plain_name(monkeypatch):
    for called in ("/somewhere/pytest", "/somewhere/pytest/__main__.py", "-c"):
        monkeypatch.setattr(sys, "argv", [called])
        assert program() == "tcpvit"


def test_names_that_the_encoding_does_not_have_are_escaped(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [sys.executable, "-m", "tcpvit", "train", "demo", "--keys", "--data", "folder:猫"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "folder:\\u732b" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_the_library_logs_is_said(capsys, monkeypatch):
    from tcpvit.cli import app

    monkeypatch.setattr(app, "_run", lambda args: logging.getLogger("tcpvit").warning("building %s", "a\x1b") or 0)
    assert app.main(["models"]) == 0
    assert capsys.readouterr().err == "tcpvit: building a\\x1b\n"
