"""What a worker of a loader says: the rest of it is tested with whole runs, in tests/training/test_faults.py."""

import pytest

from tcpvit.data.workers import _say_unless_alone


@pytest.mark.parametrize(("error", "said"), [(ConnectionResetError("peer"), ""), (KeyError("key"), "KeyError: 'key'")])
def test_a_worker_whose_main_process_left_says_nothing(error, said, capsys):
    _say_unless_alone(type(error), error, None)
    assert capsys.readouterr().err.strip() == said
