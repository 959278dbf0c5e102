"""`tcpvit predict` on real files: the model's own numbers, every kind of image, bad ones named."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import tcpvit
from tcpvit import cli
from tcpvit.data.walk import find_images
from tcpvit.inference import load_model
from tcpvit.inference.predict import predict_files
from tcpvit.training import train

NAMES = ["class 0", "class 1", "class 2"]  # of the made images


@pytest.fixture
def place(tmp_path, monkeypatch, recipe, splits):
    """A trained run in `run`, and images of the test part as files in `images`, by number."""
    monkeypatch.chdir(tmp_path)
    train(recipe.override(["schedule.epochs=1", "model.options.depth=1"]), "run", splits=splits)
    (tmp_path / "images" / "more").mkdir(parents=True)
    for i, image in enumerate(splits.test.images[:6]):
        folder = tmp_path / "images" / ("more" if i > 3 else "")
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{i}.png")
    return tmp_path


@pytest.fixture
def run(place, capsys):
    """Run a command line: (exit code, stdout, stderr)."""

    def run(*args: str) -> tuple[int, str, str]:
        code = cli.main(args)
        return code, *capsys.readouterr()

    return run


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_as_a_program_with_a_corrupt_file_among_the_images(place, splits):
    (place / "images" / "broken.png").write_bytes((place / "images" / "0.png").read_bytes()[:100])
    (place / "images" / "notes.txt").write_text("not an image, and not asked for")
    command = [sys.executable, "-m", "tcpvit", "predict", "run", "images", "--top", "2", "--sheet", "out/sheet.png"]
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0
    assert "1 of 7 files cannot be used: images/broken.png (" in done.stderr
    assert "Traceback" not in done.stderr
    assert Image.open(place / "out" / "sheet.png").size[0] > 500

    found = rows(done.stdout)
    assert [row["file"] for row in found] == [f"images/{name}.png" for name in ("0", "1", "2", "3", "more/4", "more/5")]
    preprocessing = json.loads((place / "run" / "best" / "preprocessing.json").read_text())
    mean, std = (torch.tensor(preprocessing[name]).view(3, 1, 1) for name in ("mean", "std"))
    with torch.inference_mode():
        logits = tcpvit.from_pretrained(place / "run" / "best")((splits.test.images[:6] / 255 - mean) / std)
    likeliest = logits.softmax(1).topk(2)
    assert [[row["label_1"], row["label_2"]] for row in found] == [
        [NAMES[k] for k in pair] for pair in likeliest.indices
    ]
    for k in (0, 1):
        chances = torch.tensor([float(row[f"probability_{k + 1}"]) for row in found])
        torch.testing.assert_close(chances, likeliest.values[:, k], atol=2e-6, rtol=0)


def test_a_corrupt_file_stops_the_run_if_asked_to(run, place):
    (place / "images" / "broken.jpg").write_bytes(b"no image")
    code, out, err = run("predict", "run", "images", "--on-bad", "stop", "--out", "labels.csv")
    assert (code, out) == (1, "")
    assert "1 of 7 files cannot be used: images/broken.jpg" in err
    assert "--on-bad skip" in err
    assert not (place / "labels.csv").exists()
    code, _, err = run("predict", "run", "images/broken.jpg")
    assert code == 1
    assert "no image is left" in err


def test_grey_transparent_and_large_images(place, splits):
    pixels = splits.test.images[0].permute(1, 2, 0).numpy()
    colour = Image.fromarray(pixels)
    kinds = {"plain.png": colour, "alpha.png": colour.copy(), "wide.png": Image.new("RGB", (96, 32), (255, 0, 0))}
    kinds["alpha.png"].putalpha(Image.new("L", colour.size, 128))
    kinds["wide.png"].paste(colour, (32, 0))  # the middle, which a crop keeps
    kinds |= {"grey.png": colour.convert("L"), "grey_as_rgb.png": colour.convert("L").convert("RGB")}
    kinds |= {"palette.gif": colour.quantize(4), "palette_as_rgb.png": colour.quantize(4).convert("RGB")}
    kinds |= {"large.jpg": colour.resize((640, 480)), "bits.png": colour.convert("1")}
    for name, image in kinds.items():
        image.save(place / name)
    found = predict_files(load_model("run"), [place / name for name in kinds], top=3, batch_size=2).found
    chances = {name: dict(zip(p.labels, p.probabilities, strict=True)) for name, p in zip(kinds, found, strict=True)}
    for other, same in (
        ("plain", "alpha"),
        ("plain", "wide"),
        ("grey", "grey_as_rgb"),
        ("palette.gif", "palette_as_rgb"),
    ):
        a, b = (next(value for name, value in chances.items() if name.startswith(start)) for start in (other, same))
        assert a == pytest.approx(b, abs=1e-6)
    assert all(sum(each.values()) == pytest.approx(1, abs=1e-5) for each in chances.values())
    squashed = predict_files(load_model("run"), [place / "wide.png"], fit="squash").found[0]
    assert squashed.probabilities != pytest.approx(found[2].probabilities, abs=1e-6)


def test_csv_json_and_images_one_by_one(run, place):
    code, out, err = run("predict", "run", "images", "--out", "new/labels.csv", "--images", "labelled", "--top", "99")
    assert (code, out) == (0, "")
    assert "6 predictions in new/labels.csv" in err
    written = rows((place / "new" / "labels.csv").read_text())
    assert len(written[0]) == 1 + 2 * len(NAMES)  # no more labels than there are classes
    drawn = sorted(path.relative_to(place / "labelled").as_posix() for path in (place / "labelled").rglob("*.png"))
    assert drawn == ["0.png.png", "1.png.png", "2.png.png", "3.png.png", "more/4.png.png", "more/5.png.png"]
    with Image.open(place / "labelled" / drawn[0]) as image:
        assert len(np.unique(np.asarray(image))) > 10

    code, out, err = run("predict", "run/best", "images/more", "--json", "--weights", "last")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["bad"] == []
    assert found["found"][0]["labels"][0] == written[4]["label_1"]
    assert found["found"][0]["probabilities"][0] == pytest.approx(float(written[4]["probability_1"]), abs=1e-6)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["run", "empty"], "there are no images in empty; looked for .bmp, .gif, .jpeg"),
        (["run", "missing.png"], "missing.png is neither a file nor a folder"),
        (["tcp_vit_cifar", "images"], "tcp_vit_cifar is a preset with random weights"),
        (
            ["tcp_vit_cifar", "images"],
            "or take one that comes with weights: std_vit_cifar, std_vit_cifar_120k, std_vit_cifar_44k, ",
        ),
        (["run/missing", "images"], "'run/missing' is no run folder, no saved model and no preset"),
        (["tcp_vit_pt", "images"], "no preset; did you mean 'tcp_vit_pet'?"),
        (["run", "images", "--top", "0"], "top and batch_size are at least 1"),
        (["run", "images", "--sheet", "sheet"], "a sheet is an image, as sheet.png"),
        (["run", "images", "--device", "tpu"], "device='tpu' is not available"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(run, place, args, sentence):
    (place / "empty").mkdir()
    code, out, err = run("predict", *args)
    assert (code, out) == (1, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_files_are_taken_as_named_and_folders_in_order(place):
    (place / "images" / ".hidden.png").write_bytes(b"")
    (place / "image").write_bytes((place / "images" / "0.png").read_bytes())  # no ending, but asked for
    files = find_images([place / "image", place / "images"])
    assert [file.name for file in files] == ["image", "0.png", "1.png", "2.png", "3.png", "4.png", "5.png"]


def test_a_model_that_was_only_saved_is_fed_imagenets_way(run, place):
    tcpvit.save_pretrained(tcpvit.create_model("tcp_vit_cifar", depth=1, num_classes=4), place / "saved")
    code, out, err = run("predict", "saved", "images/0.png")
    assert code == 0
    assert "saved does not say how its images were prepared" in err
    assert rows(out)[0]["label_1"] in ("0", "1", "2", "3")


def test_a_model_of_another_library_needs_no_config_of_ours(run, place):
    from tcpvit.tensorize import build, tensorize_

    model = build("timm/vit_tiny_patch16_224", img_size=32, depth=1, embed_dim=24, num_heads=2, num_classes=3)
    tensorize_(model, tube=3, example=False)
    tcpvit.save_pretrained(model, place / "saved")
    code, out, err = run("predict", "saved", "images/0.png")
    assert (code, out) == (1, "")
    assert "saved does not say how its images are prepared" in err
    assert err.count("\n") == 1
    (place / "saved" / "preprocessing.json").write_bytes((place / "run" / "best" / "preprocessing.json").read_bytes())
    code, out, err = run("predict", "saved", "images/0.png")
    assert (code, err) == (0, "")
    assert rows(out)[0]["label_1"] in NAMES


def test_a_segmenter_is_refused(run, place):
    path = place / "run" / "best" / "preprocessing.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "task": "segmentation"}))
    code, _, err = run("predict", "run", "images")
    assert code == 1
    assert "run labels every pixel" in err


@pytest.mark.skipif(os.name == "nt", reason="links and pipes of POSIX")
def test_links_and_pipes_in_a_folder_of_images(place):
    for name in ("a", "b"):
        (place / "images" / name).symlink_to(".")
    (place / "images" / "link.png").symlink_to("0.png")
    (place / "disk").mkdir()
    (place / "images" / "0.png").rename(place / "disk" / "0.png")
    (place / "images" / "disk").symlink_to(place / "disk")
    os.mkfifo(place / "images" / "pipe.png")
    command = [sys.executable, "-m", "tcpvit", "predict", "run", "images"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=place)
    assert done.returncode == 0, done.stderr
    names = [f"images/{name}.png" for name in ("1", "2", "3", "disk/0", "more/4", "more/5")]
    assert [row["file"] for row in rows(done.stdout)] == names
    assert "images/pipe.png (a pipe, socket or device, not a file)" in done.stderr
    assert "images/link.png (" in done.stderr  # its file has moved


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_labelled_images_stay_in_their_folder(run, place):
    (place / "images" / "deep").mkdir()
    (place / "images" / "0.png").rename(place / "images" / "deep" / "0.png")
    (place / "mine.png").write_text("mine")
    (place / "labelled").mkdir()
    (place / "labelled" / "1.png.png").symlink_to(place / "mine.png")
    assert run("predict", "run", "images", "--images", "labelled")[0] == 0
    assert (place / "mine.png").read_text() == "mine"
    assert Image.open(place / "labelled" / "1.png.png").format == "PNG"
    (place / "labelled" / "deep" / "0.png.png").unlink()
    (place / "labelled" / "deep").rmdir()
    (place / "labelled" / "deep").symlink_to(place)
    code, _, err = run("predict", "run", "images", "--images", "labelled")
    assert code == 1
    assert "labelled/deep leads through a link to " in err
    assert not (place / "0.png.png").exists()


HOSTILE = ["=cmd|calc.png", "a\rb.png", "c\x1b[2Jd.png", os.fsdecode(b"e\xfff.png"), "+1.png", 'comma,quote".png']


@pytest.mark.skipif(os.name == "nt", reason="file names of POSIX")
@pytest.mark.parametrize("json_too", [False, True])
def test_hostile_names_cost_no_predictions_and_harm_no_terminal(run, place, json_too):
    (place / "odd").mkdir()
    content = (place / "images" / "0.png").read_bytes()
    for name in HOSTILE:
        (place / "odd" / name).write_bytes(content)
    (place / "odd" / "bad\x1b[31m.png").write_bytes(b"no")
    os.chdir(place / "odd")
    names = sorted(HOSTILE)
    out = place / "labels.csv"
    extra = ["--json"] if json_too else []
    command = ["predict", "../run", *names, "bad\x1b[31m.png", "--out", str(out), "--sheet", "../sheet.png"]
    code, _, err = run(*command, "--images", "../labelled", *extra)
    assert code == 0
    assert "\x1b" not in err
    assert "bad\\x1b[31m.png" in err
    assert len(list((place / "labelled").iterdir())) == len(HOSTILE)
    text = out.read_bytes().decode("utf-8")
    if json_too:
        assert [each["file"] for each in json.loads(text)["found"]] == names
    else:
        assert "\r" not in text
        assert "\x1b" not in text
        cells = [row["file"] for row in rows(text)]
        assert len(cells) == len(names)
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
        unescaped = [cell.removeprefix("'").encode("ascii").decode("unicode_escape") for cell in cells]
        assert unescaped == names
    assert "\x1b" not in run("predict", "../run", *names)[1]
