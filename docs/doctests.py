"""A griffe extension: doctests are shown as code, and our checked dataclasses are known as dataclasses."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)
CHECKED = "tcpvit.validation.dataclass"  # that of the standard library, with checked fields


class Doctests(griffe.Extension):
    """Fence the doctests of every docstring; let griffe see the fields of checked dataclasses as parameters."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Runs once for each module, class, function and attribute that griffe has read."""
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = DOCTEST.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Runs once for each module, when griffe has read its members."""
        name = mod.members.get("dataclass")
        if isinstance(name, griffe.Alias) and name.target_path == CHECKED:
            name.target_path = "dataclasses.dataclass"
