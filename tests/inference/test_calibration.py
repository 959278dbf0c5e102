"""What a conversion is calibrated on and judged by is taken evenly from all that there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tcpvit.inference import load_model
from tcpvit.inference.calibration import calibration_inputs
from tcpvit.tensorize.texts import evenly, read_texts


@pytest.mark.parametrize("count", range(1, 40))
@pytest.mark.parametrize("most", [1, 3, 8, 20])
def test_evenly(count, most):
    found = evenly(range(count), most)
    assert len(found) == min(count, most)
    distances = {b - a for a, b in zip(found, [*found[1:], count], strict=True)}
    assert found[0] == 0
    assert max(distances) - min(distances) <= 1
    if count % most == 0:
        assert found == list(range(count))[:: count // most]


def test_a_folder_sorted_by_class_gives_images_of_all_classes(tmp_path):
    for folder in range(10):
        (tmp_path / f"class{folder}").mkdir()
        for index in range(10):
            Image.new("RGB", (4, 4), (25 * folder, 0, 0)).save(tmp_path / f"class{folder}" / f"{index}.png")
    found = calibration_inputs(load_model("tcp_vit_cifar_plus"), str(tmp_path), samples=48)
    for batches, expected in ((found.fitting, 48), (found.held_out, 12)):
        images = [image for batch in batches for image in batch]
        assert len(images) == expected
        assert len({round(image[0].mean().item(), 2) for image in images}) == 10


def test_texts_are_taken_from_the_whole_file(tmp_path: Path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(f"line {i}" for i in range(1200)))
    found = read_texts(path, 640)
    assert len(found) == 640
    assert found[-1] == "line 1198"
