from __future__ import annotations

import json

import pytest
from PIL import Image
from published import write_cifar, write_classes, write_masks
from test_folder import stripes

from tcpvit.cli import main


def run(capsys, *args: str) -> tuple[int, str, str]:
    code = main(["data", *args])
    return code, *capsys.readouterr()


def test_list_says_what_is_there(tmp_path, capsys):
    write_cifar(tmp_path, binary=True)
    code, out, _ = run(capsys, "--data-root", str(tmp_path), "--json")
    rows = {row["name"]: row for row in json.loads(out)["data"]["rows"]}
    assert code == 0
    assert rows["cifar10"]["on disk"] == 120 * 3073
    assert rows["cifar10"]["folder"].endswith("cifar-10-batches-bin")
    assert rows["svhn"]["on disk"] is None
    assert rows["svhn"]["download"] == 182_040_794 + 64_275_384
    assert "digits-on-photos" in run(capsys)[1]


def test_check_fails_on_files_that_differ(tmp_path, capsys):
    write_cifar(tmp_path, binary=True)
    code, out, err = run(capsys, "check", "cifar10", "--data-root", str(tmp_path))
    assert code == 1
    assert "differs from the published md5" in out
    assert err == "tcpvit: 6 of 6 checks of cifar10 failed\n"


def test_check_of_a_folder_names_bad_files(tmp_path, capsys):
    write_classes(tmp_path / "good", {"a": 5, "b": 5})
    code, out, _ = run(capsys, "check", f"folder:{tmp_path / 'good'}")
    assert code == 0
    assert "8 images, classification in 2 classes" in out
    (tmp_path / "good" / "a" / "1.png").write_bytes(b"")
    code, out, _ = run(capsys, "check", f"folder:{tmp_path / 'good'}", "--json")
    assert code == 1
    assert "1.png" in out


def test_check_of_clips_takes_the_options_of_the_set(tmp_path, capsys):
    for name in ("left", "right"):
        for i in range(5):
            write_classes(tmp_path / name, {f"clip{i}": 5})  # frames
    options = ("--set", "data.options.frames=4", "--set", "data.image_size=8")
    code, out, _ = run(capsys, "check", f"clips:{tmp_path}", *options, "--json")
    assert (code, [row["found"] for row in json.loads(out)["check"]["rows"]]) == (
        0,
        ["8 clips, classification", "2 clips, classification"],
    )
    assert "has 5 frames" in run(capsys, "check", f"clips:{tmp_path}")[2]


def test_check_of_a_folder_names_masks_of_which_none_can_be_read(tmp_path, capsys):
    write_masks(tmp_path, {f"p{i}": stripes() for i in range(4)})
    for path in (tmp_path / "masks").iterdir():
        Image.new("RGBA", (16, 12)).save(path)
    code, _, err = run(capsys, "check", f"folder:{tmp_path}")
    assert code == 1
    assert "p3.png (a mask has one class number per pixel, of 8 bits (grey or palette); this has mode RGBA)" in err


def test_check_of_a_folder_with_images_but_no_masks(tmp_path, capsys):
    write_classes(tmp_path, {"images": 5, "labels": 5})
    code, out, err = run(capsys, "check", f"folder:{tmp_path}")
    assert (code, out) == (1, "")
    assert "segmentation needs images/ and masks/, found images/, labels/" in err


@pytest.mark.parametrize(
    "options", [[], ["--task", "segmentation", "--level", "hard", "--part", "test"], ["--set", "level=hard"]]
)
def test_show_draws_a_sheet(tmp_path, capsys, options):
    path = tmp_path / "sheet.png"
    code, out, _ = run(capsys, "show", "digits-on-photos", "--out", str(path), *options)
    assert code == 0
    assert str(path) in out
    assert Image.open(path).size[0] > 1000


def test_show_of_a_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_masks(tmp_path / "mine", {f"p{i}": stripes() for i in range(10)})
    code, out, _ = run(capsys, "show", "folder:mine", "--json")
    assert code == 0
    assert json.loads(out)["sheet"] == "mine.png"
    assert (tmp_path / "mine.png").is_file()


def test_options_of_the_set_as_in_training(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_masks(tmp_path / "mine", {f"p{i}": 255 * (stripes() > 0) for i in range(10)})
    refused, _, err = run(capsys, "check", "folder:mine")
    words = ["--set", "data.options.mask_values={0: 0, 255: 1}"]
    assert refused == 1
    assert words[1] in err
    assert run(capsys, "check", "folder:mine", *words)[0] == 0
    assert run(capsys, "show", "folder:mine", *words)[0] == 0


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["check"], "which set"),
        (["show", "digits-on-photos", "--set", "lr=1"], "a set can be looked at with other data.* keys, got 'lr=1'"),
        (["show", "digits-on-photos", "--set", "levl=hard"], "did you mean 'data.options.level'?"),
        (["show", "digits-on-photos", "--set", "data.options.level={"], "is no valid YAML value"),
        (["check", "digits-on-photos"], "nothing to check"),
        (["check", "cifar11"], "did you mean 'cifar10'"),
        (["check", "stl10"], "stl10 is not in"),
        (["download", "digits-on-photos"], "needs no download"),
        (["download", "cfar10"], "did you mean 'cifar10'"),
        (["show", "folder:nowhere"], "there is no folder nowhere"),
        (["show", "digits-on-photos", "--level", "odd"], "level should be one of easy, hard"),
        (["show", "folder:mine", "--set", "data.options.mask_values=[0, 1]"], "mask_values should be"),
        (["check", "folder:mine", "--set", "data.options.classes=abc"], "classes should be"),
    ],
)
def test_mistakes_are_one_sentence(capsys, args, complaint):
    code, _, err = run(capsys, *args)
    assert code == 1
    assert complaint in err
    assert err.count("\n") == 1


def test_check_of_a_folder_says_what_its_images_are(tmp_path, capsys):
    write_classes(tmp_path, {"a": 5, "b\x1b[2J": 7})
    Image.new("RGB", (40, 20)).save(tmp_path / "a" / "wide.png")
    code, out, _ = run(capsys, "check", f"folder:{tmp_path}", "--json")
    found = {row["file"]: row["found"] for row in json.loads(out)["check"]["rows"]}
    assert code == 0
    assert found["pixels"] == "3 bands of uint8 in 13 files"
    assert found["sizes"].startswith("width ")
    assert found["sizes"].endswith("40, height " + found["sizes"].split("height ")[1])
    assert found["classes of train"] == "6 images (a) to 7 (b\\x1b[2J)"
    assert "\x1b" not in run(capsys, "check", f"folder:{tmp_path}")[1]
