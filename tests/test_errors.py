"""An unknown name is answered with the nearest valid one."""

from __future__ import annotations

from tcpvit.errors import did_you_mean


def test_nearest_names_a_neighbour_or_none():
    assert did_you_mean("hadamart", ["dct", "hadamard"]) == "; did you mean 'hadamard'? Known: dct, hadamard"
    assert did_you_mean("xyz", ["dct", "hadamard"]) == ". Known: dct, hadamard"
