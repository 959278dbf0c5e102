"""Numbers that know their parts: a total by component, and operations by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields


class Count(int):
    """A total, as an int, with its `components`.

    >>> count = Count.of({"encoder": 39456, "head": 490})
    >>> count, count.components["head"], count.sum("encoder", "head")
    (39946, 490, 39946)
    """

    components: dict[str, int]

    @classmethod
    def of(cls, components: Mapping[str, int]) -> Count:
        """The sum of the components."""
        count = cls(sum(components.values()))
        count.components = dict(components)
        return count

    def sum(self, *names: str) -> int:
        """The components of those names together; one that is missing counts 0."""
        return sum(self.components.get(name, 0) for name in names)


@dataclass(frozen=True)
class Work:
    """Operations by kind. The first three are matrix products, which FLOP counters see; the others they leave out."""

    products: int = 0
    coupling: int = 0
    transform: int = 0
    softmax: int = 0
    norm: int = 0
    activation: int = 0

    @property
    def matrix(self) -> int:
        """Matrix products of all sorts: what `count_flops` measures."""
        return self.products + self.coupling + self.transform

    @property
    def total(self) -> int:
        """Everything."""
        return sum(astuple(self))

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: int) -> Work:
        return Work(*(times * a for a in astuple(self)))


KINDS_OF_WORK = tuple(f.name for f in fields(Work))
