"""`make fuzz`: bad command lines, mutated files and hostile folders; fails on anything but a clear refusal or a result.

    python tests/fuzz/fuzz.py --lines 2000 --files 500
    python tests/fuzz/fuzz.py --only line-17 --only file-3

A case is found again by its name and the seed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported: one thread, no network, and no data or settings of the user.
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TCPVIT_DATA="nowhere", MPLBACKEND="agg", NO_COLOR="1")
os.environ.update(TERM="dumb", COLUMNS="200")

from fuzz_files import file_cases
from fuzz_good import make_world
from fuzz_lines import nonsense_lines, random_line
from fuzz_runner import Case, Outcome, run_case


def main() -> int:
    """Run the cases that were asked for, print what went wrong, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=2000, help="random command lines")
    parser.add_argument("--files", type=int, default=500, help="mutated files and hostile folders")
    parser.add_argument("--nonsense", type=int, default=None, help="of the catalogue of nonsense, every n-th; all: 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], help="the name of a case; may be repeated")
    parser.add_argument("--verbose", action="store_true", help="show every case and what it said")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tcpvit-fuzz-") as folder:
        home = Path(folder)
        prepare(home / "world")
        outcomes = []
        started = time.monotonic()
        for case in choose(options):
            outcome = run_case(case, home / "world", home / "case")
            outcomes.append(outcome)
            if outcome.faults or options.verbose:
                print(describe(outcome, options.verbose), flush=True)
        print(summary(outcomes, time.monotonic() - started))
    return int(any(outcome.faults for outcome in outcomes))


def prepare(world: Path) -> None:
    """Import everything, ask once what is remembered afterwards, and make the good files."""
    import platform

    import torch

    from tcpvit.cli.app import VERBS, load
    from tcpvit.files import source_commit
    from tcpvit.layers.kernels.build import SOURCES, load_kernel

    torch.set_num_threads(1)
    for target, _ in VERBS.values():
        load(target)
    for source in SOURCES.glob("*.cpp"):  # so that no case starts a compiler
        load_kernel(source.stem)
    source_commit(), platform.processor(), platform.platform()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            make_world(world)
        except BaseException:
            print(said.getvalue(), file=sys.__stderr__)
            raise


def choose(options: argparse.Namespace) -> Iterator[Case]:
    """The cases, in a fixed order."""
    every = options.nonsense or 1
    nonsense = [case for i, case in enumerate(nonsense_lines()) if i % every == 0]
    files = file_cases(options.seed)
    if options.only:
        found = {case.name: case for case in (*nonsense_lines(), *(files(i) for i in _numbers(options.only, "file")))}
        found |= {f"line-{i}": random_line(options.seed, i) for i in _numbers(options.only, "line")}
        yield from (found[name] for name in options.only)
        return
    yield from nonsense
    yield from (random_line(options.seed, i) for i in range(options.lines))
    yield from (files(i) for i in range(options.files))


def _numbers(names: list[str], kind: str) -> list[int]:
    return [int(name.partition("-")[2]) for name in names if name.startswith(f"{kind}-")]


def describe(outcome: Outcome, verbose: bool = False) -> str:
    """One case, for people."""
    case = outcome.case
    lines = [f"{case.name} ({outcome.seconds:.1f} s, exit code {outcome.code}): {case.about}"]
    lines += [f"    {outcome.change}"] if outcome.change else []
    lines += [f"    {kind}: {detail}" for kind, detail in outcome.faults]
    if verbose:
        lines.append(f"    said: {outcome.said[-600:]!r}")
    return "\n".join(lines).encode("utf-8", "backslashreplace").decode()


def summary(outcomes: list[Outcome], seconds: float) -> str:
    """How many cases, and how they ended."""
    kinds = Counter(outcome.case.name.partition("-")[0] for outcome in outcomes)
    faults = Counter(kind for outcome in outcomes for kind in {kind for kind, _ in outcome.faults})
    codes = Counter("accepted" if outcome.code == 0 else "refused" for outcome in outcomes if not outcome.faults)
    ran = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    bad = ", ".join(f"{number} {kind}" for kind, number in faults.most_common()) or "none"
    good = ", ".join(f"{number} {kind}" for kind, number in codes.items())
    return f"{len(outcomes)} cases ({ran}) in {seconds:.0f} s: {good or 'none good'}; faults: {bad}"


if __name__ == "__main__":
    sys.exit(main())
