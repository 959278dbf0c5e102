"""What a file of torch.export may hold: torch's own loader unpickles and evaluates what it finds, so ours looks first.

Everything that `tcpvit export` writes is listed here; a file with anything else is refused before torch sees it.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LARGEST = 64 << 20  # bytes of a description
EMPTY = "data/sample_inputs/model.pt"  # which torch would unpickle
CONFIGS = {
    "data/weights/model_weights_config.json": r"weight_\d+",
    "data/constants/model_constants_config.json": r"tensor_\d+",
}
PROGRAM = "models/model.json"
TENSOR = re.compile(r"data/(weights/weight|constants/tensor)_\d+")
OTHERS = {
    "extra/tcpvit.json",
    "archive_format",
    "archive_version",
    "byteorder",
    ".data/version",
    ".data/serialization_id",
}
OPERATOR = re.compile(
    r"torch\.ops\.aten\.(?!from_file)\w+\.\w+|_operator\.(add|sub|mul|floordiv|truediv|mod|neg|pow|getitem)"
)
# Sizes as sympy prints them, which torch evaluates as Python: names of symbols, numbers, and arithmetic.
SIZE = re.compile(
    r"(?:'[su]\d+'|\b(?:Symbol|Integer|Add|Mul|Pow|Max|Min|Mod|FloorDiv|positive|integer|True)\b|\d+|[(),=\s-])+"
)
SPECS = (None, "builtins.tuple", "builtins.list", "builtins.dict")  # of what the program takes and gives


def refuse_code(path: Path) -> None:
    """Raise if a .pt2 file holds anything but tensors, a graph of torch's operators and our metadata."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = list(_problems(archive))
    except (zipfile.BadZipFile, KeyError, EOFError, OSError, RuntimeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no whole torch-export file ({error}); export the model again") from error
    if found:
        raise ValueError(f"{path} holds {found[0]}, which may run code and is not loaded; export the model again")


def _problems(archive: zipfile.ZipFile) -> Iterator[str]:
    members: dict[str, zipfile.ZipInfo] = {}
    roots = {info.filename.partition("/")[0] for info in archive.infolist()}
    for info in archive.infolist():
        name = info.filename.partition("/")[2]
        if len(roots) > 1 or name in members:
            yield f"{info.filename!r} twice or beside another archive"
        if not TENSOR.fullmatch(name) and name not in {EMPTY, PROGRAM, *CONFIGS, *OTHERS}:
            yield f"a part {info.filename[:80]!r}"
        members[name] = info
    if EMPTY in members and members[EMPTY].file_size:
        yield "a pickle of inputs"
    for name, payload in CONFIGS.items():
        for about in _read(archive, members[name])["config"].values():
            if about["use_pickle"] is not False or not re.fullmatch(payload, about["path_name"]):
                yield "pickled tensors"
    yield from _in_program(_read(archive, members[PROGRAM]))


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    if info.file_size > LARGEST:
        raise ValueError(f"{info.filename} has {info.file_size:,} bytes")
    return json.loads(archive.read(info))


def _in_program(program: Any) -> Iterator[str]:
    """What torch would evaluate or import while it builds the graph."""
    if program.get("guards_code") or program["graph_module"].get("treespec_namedtuple_fields"):
        yield "Python code"
    for name, value in _entries(program):
        if name == "target" and isinstance(value, str) and not OPERATOR.fullmatch(value):
            yield f"the operator {value[:80]!r}"
        if name == "expr_str" and not SIZE.fullmatch(str(value)):
            yield f"the size {str(value)[:80]!r}"
        if name in ("in_spec", "out_spec") and value:
            for inner, said in _entries(json.loads(value)):
                if (inner == "type" and said not in SPECS) or (inner == "context" and said not in (None, "null", "[]")):
                    yield f"the type {str(said)[:80]!r}"
        if name in ("custom_obj_values", "as_custom_obj") and value:
            yield "objects of other libraries"


def _entries(content: Any) -> Iterator[tuple[str, Any]]:
    """Every key of every mapping, with its value."""
    waiting = [content]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield from each.items()
        waiting += list(each.values()) if isinstance(each, dict) else each if isinstance(each, list) else []
