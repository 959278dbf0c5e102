"""The house stands as drawn: a light import, a documented surface, and arrows that point one way."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import tcpvit

SOURCE = Path(tcpvit.__file__).parent
HEAVY = [
    "torch",
    "torchvision",
    "timm",
    "transformers",
    "torchmetrics",
    "matplotlib",
    "sklearn",
    "scipy",
    "pandas",
    "pywt",
]
HEAVY += ["onnx", "onnxruntime", "tensorboard", "huggingface_hub", "typer", "rich"]

# What each room may import from the others. A new room gets a row.
TOOLS = {
    "compat",
    "errors",
    "files",
    "overrides",
    "progress",
    "tables",
    "timing",
    "typed",
}  # which import nothing of ours but errors
NETWORKS = TOOLS | {"algebra", "layers", "models"}
ROOMS: dict[str, set[str]] = {
    "compat": set(),
    "errors": set(),
    "files": set(),
    "overrides": {"errors"},
    "progress": set(),
    "tables": {"errors"},
    "timing": set(),
    "typed": {"errors"},
    "algebra": {"errors"},
    "data": TOOLS,
    "figures": TOOLS,
    "layers": {"algebra", "errors"},
    "models": NETWORKS,
    "analysis": NETWORKS | {"figures"},
    "training": NETWORKS | {"analysis", "data", "figures"},
    "inference": NETWORKS | {"analysis", "data", "figures", "training"},
    "tensorize": NETWORKS | {"analysis", "data", "training"},
    "compare": NETWORKS | {"analysis", "data", "figures", "training", "inference"},
}
ROOMS["cli"] = set(ROOMS)
ROOMS["__main__"] = {"cli"}
ROOMS["__init__"] = set(ROOMS) - {"cli"}

MODULES = [name for _, name, _ in pkgutil.walk_packages([str(SOURCE)], "tcpvit.") if not name.endswith(".__main__")]


def test_import_is_light():
    code = f"import sys, tcpvit; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


@pytest.mark.parametrize("module", ["tcpvit", *MODULES])
def test_every_public_name_exists_and_is_documented(module):
    module = importlib.import_module(module)
    assert module.__doc__, f"{module.__name__} does not say what it is for"
    for name in getattr(module, "__all__", []):
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            written = thing.__doc__ and not thing.__doc__.startswith(f"{name}(")  # as a dataclass would by itself
            assert written, f"{module.__name__}.{name} has no docstring"


def rooms_imported_by(path: Path) -> set[str]:
    """The rooms of tcpvit that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; write the whole name"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("tcpvit.")}
    return found & {path.stem for path in SOURCE.iterdir()}  # `from tcpvit import __version__` is no room


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_arrows_point_one_way(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert room in ROOMS, f"{room} is new: say in ROOMS what it may import"
    against = rooms_imported_by(path) - ROOMS[room] - {room}
    assert not against, f"{path.relative_to(SOURCE)} imports {', '.join(sorted(against))}"
