"""`make soak`: kill small runs at random moments, resume them, and compare with a run that was never interrupted.

    python tests/soak/soak.py --kills 100 --torchrun 20 --steps 2000

Each trial prints a line; the exit code is 1 if one of them failed. Trials are drawn from --seed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "training")]

import torch  # noqa: E402
from small_runs import SMALL, make_set  # noqa: E402

from tcpvit.data import Splits  # noqa: E402
from tcpvit.progress import Progress, State  # noqa: E402
from tcpvit.training import Recipe, train  # noqa: E402
from tcpvit.training.checkpoint import list_checkpoints, read_checkpoint  # noqa: E402

TCPVIT = [sys.executable, "-m", "tcpvit", "train"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
LIMIT = 600.0  # seconds for a run to end
GROWTH = 20e6  # bytes that the process may gain in the second half of the steps


def recipe() -> Recipe:
    """A run of 40 steps with a checkpoint at every second, which takes seconds."""
    words = ["schedule.epochs=4", "checkpoints.every_steps=2", "data.options.sizes=[160,20,20]"]
    return Recipe.from_dict(SMALL).override(words)


def start(command: list[str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Begin the run in `folder`, or resume it, in a group of its own."""
    if (folder / "config.yaml").is_file():
        words = ["--resume", str(folder)]
    else:
        words = [str(folder.parent / "recipe.yaml"), "--runs", str(folder.parent), "--name", folder.name]
    with log.open("ab") as file:
        return subprocess.Popen(
            [*command, *words, "--quiet"], env=ENVIRONMENT, stdout=file, stderr=file, start_new_session=True
        )


def kill_at_random(process: subprocess.Popen[bytes], seconds: float, number: signal.Signals) -> bool:
    """Send a signal to all processes of the run after so many seconds; False if it ended before."""
    try:
        process.wait(timeout=seconds)
        return False
    except subprocess.TimeoutExpired:
        for member in [process.pid, *descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(member, number)
        process.wait(timeout=LIMIT)
        return True


def exit_code(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a run; one that does not end is ended, and its log says where it was."""
    try:
        return process.wait(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        for member in [*descendants(process.pid), process.pid]:
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGABRT)  # Python's fault handler writes every thread's stack
        return process.wait()


def descendants(parent: int) -> list[int]:
    """The processes that a process has started, and those that these have: torchrun's workers leave its group."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                child = int(status.parent.name)
                found += [child, *descendants(child)]
    return found


def difference(folder: Path, reference: Path) -> str:
    """What differs from the run that was never interrupted; empty if nothing does."""
    for kept in ("best", "last"):
        found, expected = (run / kept / "model.safetensors" for run in (folder, reference))
        if found.read_bytes() != expected.read_bytes():
            return f"{kept}/ differs"
    found, expected = (read_checkpoint(list_checkpoints(run / "checkpoints")[-1])[0] for run in (folder, reference))
    unequal = [name for name in expected if not torch.equal(found[name], expected[name])]
    left = [str(path.relative_to(folder)) for path in folder.rglob("*.tmp")]
    return ", ".join([f"{name} differs" for name in unequal] + [f"{name} is left" for name in left])


def trial(home: Path, name: str, command: list[str], draw: random.Random, whole: float, reference: Path) -> str:
    """Kill a run up to three times, let it end, and compare; the error, or nothing."""
    folder, log, killed = home / name, home / f"{name}.log", []
    for _ in range(draw.randint(1, 3)):
        number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        if kill_at_random(start(command, folder, log), draw.uniform(0.1, 1.1) * whole, number):
            killed.append(number.name)
    code = exit_code(start(command, folder, log))
    error = difference(folder, reference) if code == 0 else f"exit code {code}: {log.read_text()[-2000:]}"
    print(f"{name}: killed by {', '.join(killed) or 'nothing'}: {error or 'identical'}", flush=True)
    return error


def trials(home: Path, kind: str, number: int, command: list[str], draw: random.Random) -> list[str]:
    """So many trials, after a run that is not killed."""
    if not number:
        return []
    begin, reference = time.monotonic(), home / f"{kind}-whole"
    if start(command, reference, home / f"{kind}-whole.log").wait(timeout=LIMIT):
        return [(home / f"{kind}-whole.log").read_text()]
    whole = time.monotonic() - begin
    return [trial(home, f"{kind}-{i + 1}", command, draw, whole, reference) for i in range(number)]


class Memory(Progress):
    """Remembers how much memory the process has after each step."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def step(self, state: State) -> None:
        """Read the size of the process."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.bytes.append(pages * resource.getpagesize())


def growth(home: Path, steps: int) -> str:
    """Train for so many steps; an error if memory grows after the first half."""
    splits = Splits("made", make_set(160, 0), make_set(20, 1), make_set(20, 2))
    memory, batches = Memory(), 10
    words = [f"schedule.epochs={-(-steps // batches)}", "evaluation.every=10", "checkpoints.every_epochs=10"]
    train(Recipe.from_dict(SMALL).override(words), home / "long", splits=splits, progress=memory)
    gained = max(memory.bytes[-batches:]) - max(memory.bytes[: len(memory.bytes) // 2])
    print(f"{len(memory.bytes)} steps: {gained / 1e6:+.1f} MB in the second half", flush=True)
    return f"memory grew by {gained / 1e6:.1f} MB" if gained > GROWTH else ""


def main() -> int:
    """Run all trials and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"kills": 100, "torchrun": 20, "steps": 2000, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        (home / "recipe.yaml").write_text(recipe().to_yaml())
        errors = trials(home, "single", asked.kills, TCPVIT, draw)
        errors += trials(home, "torchrun", asked.torchrun, [*TORCHRUN, *TCPVIT[1:]], draw)
        errors += [growth(home, asked.steps)] if asked.steps else []
    failed = [error for error in errors if error]
    print(json.dumps({"trials": len(errors), "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
