"""Files of every kind with bytes changed at random: read, or refused in one sentence, and never anything else."""

from __future__ import annotations

import logging
import random
import warnings

import h5py
import numpy as np
import pytest
import tifffile
from scipy.io import savemat

from tcpvit.data.scenes import read_scene

CUBE = np.random.RandomState(0).randint(0, 999, (6, 5, 4)).astype(np.uint16)
TIMES = 150


def write_hdf5(path, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("cube", data=CUBE, **options)


WRITERS = {
    "plain.mat": lambda path: savemat(path, {"cube": CUBE}),
    "compressed.mat": lambda path: savemat(path, {"cube": CUBE}, do_compression=True),
    "hdf5.mat": write_hdf5,
    "chunks.h5": lambda path: write_hdf5(path, compression="gzip", chunks=(3, 5, 4)),
    "plain.npy": lambda path: np.save(path, CUBE),
    "compressed.npz": lambda path: np.savez_compressed(path, cube=CUBE),
    "plain.tif": lambda path: tifffile.imwrite(path, CUBE, photometric="minisblack", planarconfig="contig"),
    "compressed.tif": lambda path: tifffile.imwrite(
        path, CUBE.transpose(2, 0, 1), photometric="minisblack", compression="zlib"
    ),
}


def damaged(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice([1, 2, 4, 8])):
        place = chance.randrange(len(changed))
        changed[place] = chance.choice([0, 255, chance.randrange(256), changed[place] ^ 1 << chance.randrange(8)])
    return bytes(changed if chance.random() < 0.8 else changed[: chance.randrange(len(changed))])


@pytest.mark.parametrize("name", WRITERS)
def test_damage_is_one_sentence(name, tmp_path, caplog):
    caplog.set_level(logging.CRITICAL)  # tifffile reports what it meets
    path = tmp_path / name
    WRITERS[name](path)
    content, chance, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(TIMES):
        path.write_bytes(damaged(content, chance))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                np.asarray(read_scene(path).data).sum()
            except ValueError as error:
                refused += 1
                message = str(error)
            else:
                continue
        assert str(path) in message or "damaged" in message
        assert "\n" not in message
    assert refused > 0.1 * TIMES
