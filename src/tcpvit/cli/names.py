"""Names of runs that were given none."""

from __future__ import annotations

from pathlib import Path

from tcpvit.data.registry import FOLDERS, SCENE


def default_name(recipe: str, model: str, data: str, *more: object) -> str:
    """The folder of a run, made of what determines it.

    >>> default_name("demo", "tcp_vit_cifar", "digits-on-photos", 0)
    'demo-tcp_vit_cifar-digits-on-photos-0'
    >>> default_name("recipes/mine.yaml", "vit_cifar", "folder:scans/day1")
    'mine-vit_cifar-day1'
    """
    for prefix in (*FOLDERS, SCENE):
        if data.startswith(prefix):
            data = Path(data.removeprefix(prefix)).resolve().name
    return "-".join(map(str, (Path(recipe).stem, model, data, *more)))
