"""Changes to a good file: bits, lengths, values in JSON and YAML, weights, and things that are no files at all."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import yaml
from fuzz_values import JSON_VALUES, WHOLE_JSON, YAML, deep

Change = Callable[[Path, Random], str]  # changes a file and says how; "!" in front: it must be refused


def flip_bits(path: Path, random: Random) -> str:
    """Damage somewhere, often at the start, where headers are."""
    content = bytearray(path.read_bytes())
    reach = random.choice((16, 64, 512, len(content)))
    places = [random.randrange(min(reach, len(content))) for _ in range(random.choice((1, 1, 3, 20)))]
    for place in places:
        content[place] ^= 1 << random.randrange(8)
    path.write_bytes(content)
    return f"bits flipped in bytes {sorted(set(places))}"


def set_bytes(path: Path, random: Random) -> str:
    """A field with an extreme value."""
    content = bytearray(path.read_bytes())
    place, length = random.randrange(min(600, len(content))), random.choice((1, 2, 4, 8))
    content[place : place + length] = random.choice((b"\xff", b"\x00", b"\x7f", b"\x80"))[:1] * length
    path.write_bytes(content)
    return f"{length} bytes from {place} on are {content[place]:#x}"


def truncate(path: Path, random: Random) -> str:
    """The end is missing."""
    content = path.read_bytes()
    length = random.choice((0, 1, 8, random.randrange(len(content)), len(content) - 1))
    path.write_bytes(content[:length])
    return f"cut to {length} of {len(content)} bytes"


def append(path: Path, random: Random) -> str:
    """Something behind the end."""
    with path.open("ab") as file:
        file.write(random.choice((b"\0" * 1000, os.urandom(0) + b"\xff" * 99, b"{}", b"PK\x05\x06" + b"\0" * 18)))
    return "bytes appended"


def replace_text(path: Path, random: Random) -> str:
    """Another text altogether."""
    text = random.choice(WHOLE_JSON)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return f"content is {text[:40]!r}"


def break_encoding(path: Path, random: Random) -> str:
    """Bytes that are no UTF-8, or another encoding."""
    content = path.read_bytes()
    kind = random.randrange(3)
    if kind == 0:
        place = random.randrange(len(content))
        path.write_bytes(content[:place] + b"\xff\xfe" + content[place:])
    else:
        path.write_bytes(content.decode().encode("utf-16" if kind == 1 else "utf-32"))
    return ("no UTF-8", "UTF-16", "UTF-32")[kind]


def change_json(path: Path, random: Random) -> str:
    """One value of another type or size, a key less or more."""
    content = json.loads(path.read_text())
    about = change_value(content, random)
    path.write_text(json.dumps(content))
    return about


def change_yaml(path: Path, random: Random) -> str:
    """As `change_json`, or a value that only YAML can write."""
    content = yaml.safe_load(path.read_text())
    if random.random() < 0.5:
        about = change_value(content, random)
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return about
    section = random.choice(list(content))
    text = random.choice((*YAML, BOMB))
    path.write_text(path.read_text().replace(f"{section}:", f"{section}: {text}\nx{section}:", 1))
    return f"{section}: {text[:60]}"


BOMB = "[&a [x, x, x, x, x, x, x, x], &b [*a, *a, *a, *a, *a, *a, *a, *a], " + ", ".join(
    f"&{new} [{', '.join([f'*{old}'] * 8)}]" for old, new in zip("bcdefgh", "cdefghi", strict=True)
)  # each line eight times the one before
BOMB += "]"


def change_value(content: Any, random: Random) -> str:
    """Change one value somewhere inside, in place."""
    holders: list[tuple[Any, Any, str]] = []
    _find_places(content, "", holders)
    if not holders:
        return "unchanged"
    holder, key, name = random.choice(holders)
    if isinstance(holder, dict) and random.random() < 0.15:
        del holder[key]
        return f"{name} is missing"
    if isinstance(holder, dict) and random.random() < 0.1:
        holder[random.choice(("x", "", "__class__", "\x1b[2J", "A" * 1000))] = random.choice(JSON_VALUES)
        return f"a key more beside {name}"
    value = random.choice((*JSON_VALUES, deep(300)))
    holder[key] = value
    return f"{name} is {str(value)[:60]!r}"


def _find_places(content: Any, name: str, found: list[tuple[Any, Any, str]]) -> None:
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        found.append((content, key, f"{name}.{key}".lstrip(".")))
        _find_places(value, f"{name}.{key}", found)


def change_weights(path: Path, random: Random) -> str:
    """Tensors that the model cannot have."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(path)
    name = random.choice([name for name, tensor in tensors.items() if tensor.size] or list(tensors))
    kind = random.choice(("nan", "inf", "int64", "bool", "shape", "missing", "unknown", "scalar"))
    if kind in ("nan", "inf"):
        name = next(n for n in tensors if tensors[n].dtype.kind == "f" and tensors[n].size)
        tensors[name].flat[0] = float(kind)
    elif kind in ("int64", "bool"):
        tensors[name] = tensors[name].astype(kind)
    elif kind == "shape":
        tensors[name] = np.repeat(tensors[name], 2, axis=0) if tensors[name].ndim else np.zeros(3, np.float32)
    elif kind == "missing":
        del tensors[name]
    elif kind == "unknown":
        tensors["\x1b[2J"] = np.zeros(3, np.float32)
    else:
        tensors[name] = np.float32(1).reshape(())
    save_file(tensors, path)
    return f"!{name} is {kind}"


def change_header(path: Path, random: Random) -> str:
    """The JSON at the start of a safetensors file."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    about = change_value(header, random)
    text = json.dumps(header).encode()
    size = random.choice((len(text), len(text), 0, 2**63 - 1, 10**8))
    path.write_bytes(size.to_bytes(8, "little") + text + content[8 + length :])
    return f"header: {about}; its length {size} of {len(text)}"


def become_folder(path: Path, random: Random) -> str:
    """A folder in place of a file."""
    path.unlink()
    path.mkdir()
    return "a folder"


def become_pipe(path: Path, random: Random) -> str:
    """A pipe that nobody writes to."""
    path.unlink()
    os.mkfifo(path)
    return "a pipe"


def become_socket(path: Path, random: Random) -> str:
    """A socket."""
    path.unlink()
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.fchdir(here)
    os.close(here)
    return "a socket"


def become_link(path: Path, random: Random) -> str:
    """A link to itself, to nothing, to a device, to a file outside, or to a folder."""
    work = next(parent for parent in path.parents if parent.name == "work")
    outside = work.parent / "outside" / "precious.txt"
    target = random.choice(
        (path, path.parent / "nothing", "/dev/zero", "/dev/full", outside, outside.parent, work, "/")
    )
    path.unlink()
    path.symlink_to(target)
    return f"a link to {Path(target).name or '/'}"


def become_another(path: Path, random: Random) -> str:
    """Another file of the same folder or another format."""
    work = next(parent for parent in path.parents if parent.name == "work")
    others = sorted(p for p in work.rglob("*") if p.is_file() and p != path and "tensorboard" not in p.parts)
    other = random.choice(others)
    shutil.copyfile(other, path)
    return f"the content of {other.relative_to(work)}"


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) (w) file closefile\nshowpage\n%%EOF\n"


def become_postscript(path: Path, random: Random) -> str:
    """A program for Ghostscript with the name of an image."""
    path.write_bytes(EPS)
    return "PostScript"


BYTES: tuple[Change, ...] = (flip_bits, flip_bits, set_bytes, truncate, append, become_another)
THINGS: tuple[Change, ...] = (become_folder, become_pipe, become_socket, become_link, become_link)
JSON: tuple[Change, ...] = (change_json,) * 8 + (replace_text, replace_text, break_encoding, truncate, *THINGS[:4])
YAML_FILE: tuple[Change, ...] = (change_yaml,) * 8 + (replace_text, break_encoding, truncate, *THINGS[:4])
WEIGHTS: tuple[Change, ...] = (change_weights, change_weights, change_header, change_header, *BYTES, *THINGS[:4])
IMAGE: tuple[Change, ...] = (*BYTES, *THINGS, become_postscript)
SCENE: tuple[Change, ...] = (*BYTES, *BYTES, flip_bits, set_bytes, set_bytes, *THINGS)
CSV: tuple[Change, ...] = (replace_text, flip_bits, truncate, break_encoding, *THINGS[:4])
