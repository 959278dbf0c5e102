"""A number that knows its parts."""

from __future__ import annotations

from collections.abc import Mapping


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
