"""Runs a case in a fork of this process, with limits and an audit hook, and says how it ended.

tcpvit is imported once, before the first fork. Each case has a folder of its own: `work` is where it runs, `home` and
`tmp` may be written too, and `outside` holds files that nothing may change.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MEMORY = 4 << 30  # bytes of address space
CPU_SECONDS = 10
WALL_SECONDS = 30  # without using IDLE_SECONDS of the processor: a case that waits, and not a busy machine
IDLE_SECONDS = 0.1
PRECIOUS = "nothing may change this\n"
EXPECTED = (ValueError, OSError, ImportError)  # as the command line takes them; others are shown with a traceback

# Audit events that change files, with the positions of their (path, folder descriptor).
CHANGES = {
    "os.chmod": [(0, 2)],
    "os.link": [(1, 3)],
    "os.mkdir": [(0, 2)],
    "os.remove": [(0, 1)],
    "os.rename": [(0, 2), (1, 3)],
    "os.rmdir": [(0, 1)],
    "os.symlink": [(1, 2)],
    "os.truncate": [(0, None)],
}
PROGRAMS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DEVICES = ("/dev/", "/proc/")


@dataclass(frozen=True)
class Case:
    """One thing to try: a command line, or a function of the library."""

    name: str  # such as line-17, which `--only` takes
    about: str
    words: tuple[str, ...] = ()  # of the command line
    call: Callable[[], Any] | None = None  # instead of a command line
    prepare: Callable[[Path], None] = lambda work: None  # is given the working folder
    must_refuse: bool = False
    network: bool = False  # a command that is there to fetch something


@dataclass
class Outcome:
    """How a case ended; `faults` are what makes the fuzzer fail."""

    case: Case
    code: int | None = None
    said: str = ""
    change: str = ""  # what was done to a file
    seconds: float = 0.0
    faults: list[tuple[str, str]] = field(default_factory=list)  # (kind, detail)


def run_case(case: Case, world: Path, folder: Path) -> Outcome:
    """Run one case in a copy of `world`; `folder` must not exist, and is removed afterwards."""
    work = _make_folder(folder, world)
    case.prepare(work)
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _run_child(case, folder)
    status, hung = _wait(child)
    outcome = Outcome(case, seconds=time.monotonic() - started)
    _judge(outcome, folder, status, hung)
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _make_folder(folder: Path, world: Path) -> Path:
    for name in ("home", "tmp", "outside"):
        (folder / name).mkdir(parents=True)
    (folder / "outside" / "precious.txt").write_text(PRECIOUS)
    work = folder / "work"
    shutil.copytree(world, work, symlinks=True)
    return work


def _run_child(case: Case, folder: Path) -> None:
    """Never returns. The report is a file, because the case may end in any way."""
    report: dict[str, Any] = {}
    try:
        _enter(folder)
        watch = os.open(folder / "violations", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        report_file = os.open(folder / "report", os.O_WRONLY | os.O_CREAT)
        _limit()
        sys.addaudithook(_auditor(folder, watch, case.network))
        report = _call(case)
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(report_file, json.dumps(report).encode())
    finally:
        os._exit(0 if report else 70)


def _enter(folder: Path) -> None:
    os.setsid()  # with the data workers, so that all can be ended together
    os.chdir(folder / "work")
    os.environ.update(HOME=str(folder / "home"), TMPDIR=str(folder / "tmp"))
    tempfile.tempdir = None
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 2))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an OSError instead


def _call(case: Case) -> dict[str, Any]:
    from tcpvit.cli import main

    try:
        if case.call is None:
            sys.argv = ["tcpvit", *case.words]
            return {"code": main(case.words), "said": ""}
        case.call()
        return {"code": 0, "said": ""}
    except SystemExit as error:
        return {"code": error.code if isinstance(error.code, int) else 1, "said": ""}
    except BaseException as error:
        if case.call is not None and isinstance(error, EXPECTED):
            return {"code": 1, "said": str(error)}
        # The traceback of a RecursionError is long, and its end is what tells.
        return {"code": None, "said": "".join(traceback.format_exception(error))[-2500:]}


def _auditor(folder: Path, watch: int, network: bool) -> Callable[[str, tuple[Any, ...]], None]:
    allowed = tuple(f"{(folder / name).resolve()}/" for name in ("work", "home", "tmp"))
    asleep = False

    def is_inside(path: Any, descriptor: Any, follow: bool = False) -> bool:
        base = os.readlink(f"/proc/self/fd/{descriptor}") if isinstance(descriptor, int) and descriptor >= 0 else "."
        full = os.path.join(base, os.fsdecode(path))
        parent, name = os.path.split(full.rstrip("/"))
        place = os.path.realpath(full) if follow else os.path.join(os.path.realpath(parent or "."), name)
        return f"{place}/".startswith((*allowed, *DEVICES))

    def find_violation(event: str, args: tuple[Any, ...]) -> str | None:
        if event in PROGRAMS:
            return f"program started: {args[:2]}"
        if event == "socket.connect" and isinstance(args[1], tuple):
            return None if network else f"connection to {args[1]}"
        if event == "open" and not isinstance(args[0], int) and os.path.isdir(args[0]):
            return None  # what opens a folder tries whether it can be written, by a file without a name
        if event == "open" and not isinstance(args[0], int) and args[2] & WRITING:
            exclusive = args[2] & os.O_NOFOLLOW or args[2] & os.O_EXCL
            return None if is_inside(args[0], None, follow=not exclusive) else f"written outside: {args[0]!r}"
        for path, descriptor in CHANGES.get(event, []):
            given = args[descriptor] if descriptor is not None and descriptor < len(args) else None
            if not isinstance(args[path], int) and not is_inside(args[path], given):
                return f"changed outside: {event} {args[path]!r}"
        return None

    def audit(event: str, args: tuple[Any, ...]) -> None:
        nonlocal asleep
        if asleep:
            return
        asleep = True
        try:
            found = find_violation(event, args)
        finally:
            asleep = False
        if found:
            os.write(watch, f"{found}\n".encode(errors="backslashreplace"))
        if found or (event == "socket.connect" and isinstance(args[1], tuple)):
            raise PermissionError(f"the fuzzer does not allow {event}")

    return audit


def _wait(child: int) -> tuple[int, bool]:
    """The status of the child, and whether it had to be ended."""
    deadline, used = time.monotonic() + WALL_SECONDS, 0.0
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            _end_group(child)
            return status, os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        if time.monotonic() > deadline:
            before, used = used, _processor_seconds(child)
            if used - before < IDLE_SECONDS:
                _end_group(child)
                return os.waitpid(child, 0)[1], True
            deadline = time.monotonic() + WALL_SECONDS
        time.sleep(0.005)


def _processor_seconds(process: int) -> float:
    """What a process has used so far, its data workers left out."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _end_group(child: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def _trains(folder: Path, status: int) -> bool:
    """Whether it used up its processor time on epochs of a long run, which is no hang."""
    began = (folder / "outside" / "precious.txt").stat().st_mtime
    at_work = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
    return at_work and any(file.stat().st_mtime > began for file in (folder / "work").rglob("metrics.csv"))


def _judge(outcome: Outcome, folder: Path, status: int, hung: bool) -> None:
    output = "".join(_read(folder / name) for name in ("stdout", "stderr"))
    outcome.said = output.strip()[-800:]
    outcome.change = _read(folder / "change")
    add = outcome.faults.append
    if hung and _trains(folder, status):
        outcome.code = 0
    elif hung:
        add(("hang", f"no end after {CPU_SECONDS} s of processor time, or idle for {WALL_SECONDS} s"))
    elif os.WIFSIGNALED(status):
        add(("crash", signal.Signals(os.WTERMSIG(status)).name))
    elif report := _read(folder / "report"):
        found = json.loads(report)
        outcome.code = found["code"]
        if found["code"] is None:
            add(("traceback", _last_lines(found["said"])))
        outcome.said = found["said"] or outcome.said
    else:
        add(("crash", f"exit code {os.waitstatus_to_exitcode(status)} without a report"))
    if "Traceback (most recent call last)" in output and outcome.code is not None:
        add(("traceback", "printed: " + _last_lines(output)))
    if outcome.code == 0 and outcome.case.must_refuse:
        add(("accepted nonsense", ""))
    if outcome.code not in (0, None) and not outcome.said.strip():
        add(("silent", f"exit code {outcome.code} without a word"))
    if bad := re.search(r"[^\x20-\x7e\n\t\r\xa0-\U0010ffff]", output):
        add(
            ("terminal", f"control character {bad[0]!r} printed: {output[max(0, bad.start() - 40) : bad.end() + 20]!r}")
        )
    for line in dict.fromkeys(_read(folder / "violations").splitlines()):
        add((line.partition(":")[0].partition(" to ")[0], line))
    outside = folder / "outside"
    if os.listdir(outside) != ["precious.txt"] or _read(outside / "precious.txt") != PRECIOUS:
        add(("written outside", "by native code, through a link"))


def _read(path: Path) -> str:
    with suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8", errors="backslashreplace")
    return ""


def _last_lines(text: str) -> str:
    """The exception, and the last place in our own code."""
    lines = [line.strip() for line in text.strip().splitlines()]
    ours = [line for line in lines if "tcpvit/" in line and line.startswith("File")]
    place = re.sub(r'File ".*?(tcpvit/[^"]*)", line (\d+), in', r"\1:\2", ours[-1]) if ours else ""
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Warning|Exit)\b", line)]
    return f"{(errors or lines)[-1][:300]}  [{place}]"
