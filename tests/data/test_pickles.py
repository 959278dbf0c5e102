from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from published import write_cifar

from tcpvit.data import load_dataset
from tcpvit.data.cifar10 import load_arrays


class RunsACommand:
    """Unpickled by pickle.load, it would make a folder."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_a_doctored_pickle_is_refused_and_not_executed(tmp_path):
    write_cifar(tmp_path, binary=False)
    trace = tmp_path / "executed"
    batch = tmp_path / "cifar-10-batches-py" / "data_batch_4"
    batch.write_bytes(pickle.dumps({b"data": RunsACommand(trace), b"labels": []}, protocol=3))
    with pytest.raises(ValueError, match=r"data_batch_4 is not a pickle of arrays .* asks for (posix|nt)\.mkdir"):
        load_dataset("cifar10", tmp_path)
    assert not trace.exists()
    pickle.loads(batch.read_bytes())  # it is a working attack
    assert trace.exists()


@pytest.mark.parametrize("name", ["builtins\neval", "numpy\nload", "numpy.core.multiarray\nfromfile", "os\nsystem"])
def test_other_functions_are_refused(tmp_path, name):
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02c" + name.encode() + b"\n.")
    with pytest.raises(ValueError, match=r"asks for " + name.replace("\n", r"\.")):
        load_arrays(path)


@pytest.mark.parametrize("content", [b"", b"not a pickle", b"\x80\x02}(U\x04da"])
def test_damaged_files_are_named(tmp_path, content):
    path = tmp_path / "batch"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"batch is not a pickle of arrays"):
        load_arrays(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([1, 2], "holds a list"),
        ({b"labels": [0]}, "`data` should be a uint8 array"),
        ({b"data": np.zeros((2, 3072)), b"labels": [0, 0]}, "`data` should be a uint8 array"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, "`labels` should list 2 integers"),
    ],
)
def test_wrong_content_is_named(tmp_path, content, complaint):
    write_cifar(tmp_path, binary=False)
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(content, protocol=3))
    with pytest.raises(ValueError, match=complaint):
        load_dataset("cifar10", tmp_path)
