"""The house stands as drawn: a light import, a documented surface, and arrows that point one way."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
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
HEAVY += ["onnx", "onnxruntime", "tensorboard", "huggingface_hub", "typer", "rich", "pydantic"]

# What each room may import from the others. A new room gets a row.
TOOLS = {
    "compat",
    "displays",
    "errors",
    "files",
    "fonts",
    "memory",
    "overrides",
    "progress",
    "tables",
    "timing",
    "validation",
    "yaml_text",
}  # which import nothing of ours but each other
NETWORKS = TOOLS | {"algebra", "layers", "models"}
ROOMS: dict[str, set[str]] = {
    "compat": set(),
    "displays": {"errors", "progress", "tables"},
    "errors": set(),
    "files": set(),
    "fonts": {"errors"},
    "memory": set(),
    "overrides": {"errors", "yaml_text"},
    "progress": {"errors"},
    "yaml_text": set(),
    "tables": {"errors"},
    "timing": set(),
    "validation": {"errors", "files"},
    "algebra": {"errors"},
    "data": TOOLS,
    "figures": TOOLS,
    "layers": {"algebra", "errors", "files"},
    "models": NETWORKS,
    "analysis": NETWORKS | {"figures"},
    "training": NETWORKS | {"analysis", "data", "figures"},
    "tensorize": NETWORKS | {"analysis", "data", "training"},
    "inference": NETWORKS | {"analysis", "data", "figures", "training", "tensorize"},  # it loads converted models
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


BY_NAME = {"import_module", "__import__"}
MODULE = re.compile(r"tcpvit(\.\w+)+")


def called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def rooms_imported_by(path: Path) -> set[str]:
    """The rooms of tcpvit that a file imports, at its top, inside a function, or by name (importlib, __import__)."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # Where modules are imported by name, the name may come from a table: every string that names one counts.
    imports_by_name = any(isinstance(node, ast.Call) and called(node) in BY_NAME for node in ast.walk(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; write the whole name"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and imports_by_name:
            names = [node.value] if isinstance(node.value, str) and MODULE.fullmatch(node.value) else []
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


@pytest.mark.parametrize(
    "line",
    [
        "import tcpvit.tensorize.saving",
        "from tcpvit.tensorize import saving",
        "from tcpvit import tensorize",
        'importlib.import_module("tcpvit.tensorize.saving")',
        'import_module("tcpvit.tensorize")',
        '__import__("tcpvit.tensorize")',
        'TABLE = {"saving": "tcpvit.tensorize.saving"}; importlib.import_module(TABLE["saving"])',
    ],
)
def test_an_import_is_seen_however_it_is_written(line, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(f"def inside():\n    {line}\n", encoding="utf-8")
    assert rooms_imported_by(path) == {"tensorize"}


def test_contributing_has_the_same_table():
    text = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = text.split("<!-- rooms -->")[1].split("<!-- /rooms -->")[0].strip().splitlines()[2:]
    written: dict[str, set[str]] = {}
    for row in rows:
        rooms, imports = (cell.strip() for cell in row.strip("|").split("|"))
        allowed = set(re.findall(r"`(\w+)`", imports)) | (TOOLS if "the tools" in imports else set())
        written |= {room: set(ROOMS) if imports == "every room" else allowed for room in re.findall(r"`(\w+)`", rooms)}
    entries = {"__init__", "__main__"}
    assert {room: allowed - {room} - entries for room, allowed in written.items()} == {
        room: ROOMS[room] - {room} - entries for room in ROOMS if room not in entries
    }
