"""YAML that cannot do harm: of bounded size and depth, without duplicate keys, and without aliases that explode."""

from __future__ import annotations

from typing import Any

import yaml

DEEPEST = 50  # lists and mappings in each other
MOST = 100_000  # values, with those of aliases counted as often as they are used
LONGEST = 10_000_000  # characters


def read_yaml(text: str) -> Any:
    """The content of YAML text; a ValueError says in a few words what is wrong with it.

    >>> read_yaml("a: &size [1, 2]\\nb: *size")
    {'a': [1, 2], 'b': [1, 2]}
    >>> read_yaml("{a: 1, a: 2}")
    Traceback (most recent call last):
    ValueError: the key 'a' stands twice, in line 1
    """
    if len(text) > LONGEST:
        raise ValueError(f"it has {len(text):,} characters, more than {LONGEST:,}")
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except (TypeError, RecursionError) as error:  # a key that is a list, and the like
        raise ValueError(f"it cannot be read ({error})") from error


class _Loader(yaml.SafeLoader):
    depth = 0

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        _count_values(node, {}, set())
        return node

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError(f"lists or keys lie in each other more than {DEEPEST} deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise ValueError(f"the key {key.value!r} stands twice, in line {key.start_mark.line + 1}")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _count_values(node: Any, known: dict[Any, int], open_nodes: set[Any]) -> int:
    """How many values a node holds; each node is looked at once, however many aliases lead to it."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if node in open_nodes:
        raise ValueError("an alias leads to what it is a part of")
    if node not in known:
        open_nodes.add(node)
        inside = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        known[node] = 1 + sum(_count_values(part, known, open_nodes) for part in inside)
        open_nodes.remove(node)
    if known[node] > MOST:
        raise ValueError(f"its aliases stand for more than {MOST:,} values")
    return known[node]
