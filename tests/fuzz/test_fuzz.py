"""The quick part of `make fuzz`, and values of every kind against what reads them in this process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_lines import is_number, random_line, recipe_keys
from fuzz_values import NO_NUMBERS, WORDS, YAML
from hypothesis import given, settings
from hypothesis import strategies as st

from tcpvit.errors import printable
from tcpvit.files import read_json
from tcpvit.training import Recipe

PROGRAM = Path(__file__).with_name("fuzz.py")


def test_a_sample_of_bad_lines_and_files_is_refused():
    words = [sys.executable, str(PROGRAM), "--lines", "30", "--files", "20", "--nonsense", "23"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_catalogue_of_nonsense_covers_number_keys():
    numbers = {key for key, hint in recipe_keys().items() if is_number(hint)}
    assert {"optimizer.lr", "data.workers", "model.options.drop_path_rate", "augment.flip", "seed"} <= numbers
    assert not {"device", "compile", "model.options.transform"} & numbers


def test_a_case_is_found_again_by_its_number():
    assert random_line(0, 17) == random_line(0, 17)
    assert random_line(0, 17).words != random_line(1, 17).words


@settings(max_examples=50)
@given(
    key=st.sampled_from(sorted(recipe_keys())),
    value=st.one_of(st.text(), st.sampled_from([*WORDS, *YAML, *NO_NUMBERS])),
)
def test_a_recipe_takes_or_refuses_any_text(key, value):
    with contextlib.suppress(ValueError):
        Recipe().override([f"{key}={value}"])


@given(st.text())
def test_what_is_shown_has_no_control_characters(text):
    shown = printable(text)
    assert all(character.isprintable() or character == " " or character.isspace() for character in shown)
    assert not set(shown) & set(map(chr, [*range(32), 127, *range(128, 160)]))
    shown.encode()  # nothing that cannot be printed


@given(st.binary(max_size=200))
def test_json_of_any_bytes_is_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "some.json"
    path.write_bytes(content)
    with contextlib.suppress(ValueError):
        read_json(path)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 50_000, "9" * 5000])
def test_json_without_end_is_refused(tmp_path, content):
    path = tmp_path / "some.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"some\.json"):
        read_json(path)
