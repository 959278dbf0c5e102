from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from published import write_classes, write_masks

from tcpvit.data import Augment, Batches, ImageFiles, ImageSet, folder, load_dataset
from tcpvit.data.image_set import same_images


def load(path, **options):
    return load_dataset(f"folder:{path}", image_size=options.pop("image_size", 8), **options)


def test_one_folder_is_split_by_seed_and_class(tmp_path):
    write_classes(tmp_path, {"cat": 10, "dog": 20})
    splits = load(tmp_path)
    assert splits.train.classes == ("cat", "dog")
    assert torch.bincount(splits.train.labels).tolist() == [8, 16]
    assert torch.bincount(splits.val.labels).tolist() == [2, 4]
    assert not set(splits.train.indices.tolist()) & set(splits.val.indices.tolist())
    assert splits.val is splits.test
    assert load(tmp_path, seed=1).indices() != splits.indices()
    for image, label in zip(splits.train.images, splits.train.labels, strict=True):
        assert image.unique().numel() == 1
        assert int(image[0, 0, 0]) // 20 == int(label)  # the grey says which class it was written for


@pytest.mark.parametrize("val", ["val", "valid", "validation", "test"])
def test_train_and_val_folders(tmp_path, val):
    write_classes(tmp_path / "train", {"a": 6, "b": 4})
    write_classes(tmp_path / val, {"a": 2, "b": 3})
    splits = load(tmp_path)
    assert (len(splits.train), len(splits.val)) == (10, 5)
    assert splits.val is splits.test


def test_three_parts_and_a_held_out_fraction(tmp_path):
    write_classes(tmp_path / "train", {"a": 10, "b": 10})
    write_classes(tmp_path / "val", {"a": 3, "b": 3})
    write_classes(tmp_path / "test", {"a": 2, "b": 2})
    splits = load(tmp_path)
    assert [len(part) for part in splits.parts().values()] == [20, 6, 4]
    held_out = load(tmp_path, val_fraction=0.5)
    assert [len(part) for part in held_out.parts().values()] == [10, 10, 4]
    assert held_out.notes == ("val/ is not used: val_fraction holds a part of train/ out",)


def test_parts_in_capitals_are_no_classes(tmp_path):
    write_classes(tmp_path / "Train", {"a": 6, "b": 4})
    write_classes(tmp_path / "TEST", {"a": 2, "b": 3})
    splits = load(tmp_path)
    assert splits.train.classes == ("a", "b")
    assert (len(splits.train), len(splits.test)) == (10, 5)
    write_classes(tmp_path, {"Bus": 3})
    assert load(tmp_path).train.classes == ("Bus", "TEST", "Train")  # Train among other classes is one


def test_parts_without_training_are_refused(tmp_path):
    write_classes(tmp_path / "val", {"a": 6, "b": 4})
    write_classes(tmp_path / "test", {"a": 2, "b": 3})
    with pytest.raises(ValueError, match="has val/ and test/, but no train/"):
        load(tmp_path)


@pytest.mark.parametrize("stream", [False, True])
def test_a_file_that_is_renamed_makes_other_images(tmp_path, stream):
    write_classes(tmp_path / "mine", {"a": 6, "b": 4})
    before = load(tmp_path / "mine", stream=stream).indices()
    assert set(before["train"]) == {"source", "indices", "names"}
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "mine").rename(tmp_path / "elsewhere" / "mine")
    assert load(moved, stream=stream).indices() == before
    (moved / "a" / "0.png").rename(moved / "a" / "zero.png")
    after = load(moved, stream=stream).indices()
    assert not same_images(before, after)
    assert after["train"]["indices"] == before["train"]["indices"]


def test_corrupt_images_stop_or_are_skipped(tmp_path):
    write_classes(tmp_path, {"a": 20, "b": 20})
    whole = (tmp_path / "a" / "3.png").read_bytes()
    (tmp_path / "a" / "3.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b" / "7.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"2 of 40 files cannot be used: .*\.png \(.*; repair or remove them"):
        load(tmp_path)
    splits = load(tmp_path, on_bad="skip")
    assert len(splits.train) + len(splits.val) == 38
    noted = " ".join(splits.notes)
    assert "3.png" in noted
    assert "7.png" in noted


def test_bad_files_of_all_parts_are_named_together(tmp_path):
    for part in ("train", "val", "test"):
        write_masks(tmp_path / part, {f"p{i}": stripes() for i in range(4)})
        (tmp_path / part / "images" / "p1.png").write_bytes(b"no")
    named = r"^3 of 12 files cannot be used: .*train/images/p1\.png .*val/images/p1\.png .*test/images/p1\.png .*; rep"
    with pytest.raises(ValueError, match=named):
        load(tmp_path)
    assert [len(part) for part in load(tmp_path, on_bad="skip").parts().values()] == [3, 3, 3]


@pytest.mark.parametrize("stream", [True, False])
def test_files_without_a_partner_and_bad_files_are_told_in_one_error(tmp_path, stream):
    for part in ("train", "val"):
        write_masks(tmp_path / part, {f"p{i}": stripes() for i in range(4)})
        (tmp_path / part / "masks" / "p1.png").unlink()
        (tmp_path / part / "images" / "p2.png").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"^2 problems with the data:\n  - ") as caught:
        load(tmp_path, stream=stream)
    _, unpaired, bad = str(caught.value).split("\n")
    assert re.search(r"2 of 14 files .*train/images/p1\.png \(no mask\), .*val/images/p1\.png \(no mask\); a", unpaired)
    assert re.search(r"2 of 6 files cannot be used: .*train/images/p2\.png .*val/images/p2\.png", bad)


def test_nothing_but_corrupt_images(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(5):
            (tmp_path / name / f"{i}.jpg").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"no image of .* is left"):
        load(tmp_path, on_bad="skip")


def test_layouts_that_are_no_layout(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"one folder of images for each of two or more classes \(found 0\)"):
        load(tmp_path)
    write_classes(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "c").mkdir()
    with pytest.raises(ValueError, match=r"c holds no images"):
        load(tmp_path)


def test_a_class_that_training_lacks_is_named(tmp_path):
    write_classes(tmp_path / "train", {"a": 3, "b": 3})
    write_classes(tmp_path / "val", {"a": 3, "zebra": 3})
    with pytest.raises(ValueError, match=r"has a class 'zebra' that the training part lacks"):
        load(tmp_path)


def test_images_are_turned_cropped_and_made_rgb(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(3):
            turned = Image.new("L", (20, 10), 0)
            turned.paste(200, (0, 0, 10, 10))  # bright left half ...
            exif = Image.Exif()
            exif[0x0112] = 6  # ... which is the top half, says the camera
            turned.save(tmp_path / name / f"{i}.jpg", exif=exif, quality=100)
    crop = load(tmp_path, fit="crop", image_size=10).train.images[0]
    squash = load(tmp_path, fit="squash", image_size=10).train.images[0]
    for image in (crop, squash):
        assert image.shape == (3, 10, 10)
        assert image[:, :4].float().mean() > 190
        assert image[:, 6:].float().mean() < 10


def stripes(height: int = 12, width: int = 16, values: tuple[int, ...] = (0, 1)) -> np.ndarray:
    return np.repeat(np.asarray(values), -(-width // len(values)))[:width][None].repeat(height, 0)


def test_masks_are_paired_by_name(tmp_path):
    write_masks(tmp_path, {f"p{i}": stripes() for i in range(10)})
    splits = load(tmp_path, fit="squash", image_size=16)
    assert splits.train.task == "segmentation"
    assert (len(splits.train), len(splits.val)) == (8, 2)
    assert splits.train.classes == ("class 0", "class 1")
    assert torch.equal(splits.train.targets[0], torch.from_numpy(stripes(16, 16).astype(np.uint8)))


def test_mask_classes_by_file_and_by_option(tmp_path):
    write_masks(tmp_path, {f"p{i}": stripes() for i in range(5)})
    (tmp_path / "classes.txt").write_text("sky\nsea\nland\n")
    assert load(tmp_path).train.classes == ("sky", "sea", "land")
    assert load(tmp_path, classes=["out", "in"]).train.classes == ("out", "in")
    (tmp_path / "classes.txt").write_text("sky\nsea\n", encoding="utf-8-sig")  # as some editors save it
    assert load(tmp_path).train.classes == ("sky", "sea")
    with pytest.raises(ValueError, match="every class has a name of its own, but sky stands there more than once"):
        load(tmp_path, classes=["sky", "sky"])


def test_hidden_folders_are_left_alone(tmp_path):
    write_masks(tmp_path, {f"p{i}": stripes() for i in range(5)})
    (tmp_path / "images" / ".checkpoints").mkdir()
    Image.new("RGB", (16, 12)).save(tmp_path / "images" / ".checkpoints" / "p1.png")
    assert sum(map(len, load(tmp_path).parts().values())) == 5


def test_binary_masks_of_0_and_255(tmp_path):
    write_masks(tmp_path, {f"p{i}": stripes(values=(0, 255)) for i in range(5)})
    with pytest.raises(
        ValueError, match=r"only the values \[0, 255\], where 255 is ignored: rename the values[^;]*1\}'\)$"
    ):
        load(tmp_path)
    assert load(tmp_path, mask_values={0: 0, 255: 1}).train.targets.unique().tolist() == [0, 1]


def test_a_stray_value_in_a_mask_is_no_class(tmp_path):
    write_masks(tmp_path, {f"p{i}": stripes(values=(0, 7) if i == 3 else (0, 1)) for i in range(6)})
    with pytest.raises(ValueError, match=r"hold 7 \(as .*p3\.png\) and not 2: repair them, or rename the values"):
        load(tmp_path)
    (tmp_path / "classes.txt").write_text("\n".join("abcdefgh"))
    assert len(load(tmp_path).train.classes) == 8


def test_skipping_stray_values_needs_the_classes(tmp_path):
    write_masks(tmp_path, {f"p{i}": stripes(values=(0, 7) if i == 3 else (0, 1)) for i in range(6)})
    with pytest.raises(ValueError, match=r"in classes\.txt or with the option classes; without these on_bad=skip"):
        load(tmp_path, on_bad="skip")
    splits = load(tmp_path, on_bad="skip", classes=["out", "in"])
    assert len(splits.train) + len(splits.val) == 5


@pytest.mark.parametrize("on_bad", ["stop", "skip"])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "I;16"])
def test_masks_of_which_none_can_be_read_are_named(tmp_path, mode, on_bad):
    write_masks(tmp_path, {f"p{i}": stripes() for i in range(4)})
    for path in (tmp_path / "masks").iterdir():
        Image.new(mode, (16, 12)).save(path)
    reason = rf"^4 of 4 files cannot be used: .*p0\.png, .*p3\.png \(a mask has one class number .* mode {mode}\)"
    with pytest.raises(ValueError, match=reason):
        load(tmp_path, on_bad=on_bad)


@pytest.mark.parametrize(("values", "complaint"), [((0,), r"only the values \[0\]"), ((0, 2), "hold 2 .* and not 1")])
def test_an_unreadable_mask_may_hold_the_class_that_lacks(tmp_path, values, complaint):
    write_masks(tmp_path, {f"p{i}": stripes(values=values) for i in range(4)})
    Image.new("RGB", (16, 12)).save(tmp_path / "masks" / "p1.png")
    with pytest.raises(ValueError, match=rf"{complaint}.*; besides, 1 of 4 files cannot be used: .*p1\.png \(a mask"):
        load(tmp_path, on_bad="skip")


def test_folders_without_masks(tmp_path):
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="masks holds no masks"):
        load(tmp_path)


def test_images_need_masks(tmp_path):
    write_classes(tmp_path, {"images": 5, "labels": 5})
    with pytest.raises(ValueError, match=r"segmentation needs images/ and masks/, found images/, labels/ in"):
        load(tmp_path)
    splits = load(tmp_path, classes=["images", "labels"])
    assert (splits.train.task, splits.train.classes) == ("classification", ("images", "labels"))


@pytest.mark.parametrize(
    ("held_out", "found"), [({"images": 3}, "images/"), ({"a": 3, "b": 3}, "a/, b/"), ({}, "none of them")]
)
def test_images_need_masks_in_every_part(tmp_path, held_out, found):
    write_masks(tmp_path / "train", {f"p{i}": stripes() for i in range(4)})
    (tmp_path / "val").mkdir()
    write_classes(tmp_path / "val", held_out)
    with pytest.raises(ValueError, match=rf"segmentation needs images/ and masks/, found {found} in .*val"):
        load(tmp_path)


@pytest.mark.parametrize("on_bad", ["stop", "skip"])
def test_masks_of_other_names_than_their_images(tmp_path, on_bad):
    write_masks(tmp_path, {f"p{i}": stripes() for i in range(4)})
    for path in list((tmp_path / "masks").iterdir()):
        path.rename(path.with_name(f"{path.stem}_mask.png"))
    named = (
        r"^8 of 8 files cannot be used: \S*p0\.png, .* \(no mask\), \S*p0_mask\.png, .* \(no image\).*no such pair is"
    )
    with pytest.raises(ValueError, match=named):
        load(tmp_path, on_bad=on_bad)


@pytest.mark.parametrize(("part", "kind"), [("images", "image"), ("masks", "mask")])
def test_files_of_one_name_are_named(tmp_path, part, kind):
    write_masks(tmp_path, {f"p{i}": stripes() for i in range(10)})
    Image.new("L", (16, 12)).save(tmp_path / part / "p3.bmp")
    reason = rf"\(one of 2 {kind}s of this name\)"
    named = rf"2 of 21 files cannot be used: \S*{part}/p3\.bmp {reason}, \S*{part}/p3\.png {reason}"
    with pytest.raises(ValueError, match=rf"^{named}; .*remove the file"):
        load(tmp_path)
    splits = load(tmp_path, on_bad="skip")
    assert len(splits.train) + len(splits.val) == 9
    (note,) = splits.notes
    assert re.match(rf"{named}; skipped", note)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda path: Image.new("L", (5, 5)).save(path), r"p3\.png \(5×5 pixels, but its image has 16×12\)"),
        (lambda path: Image.fromarray(stripes(values=(0, 9)).astype(np.uint8)).save(path), r"p3\.png \(values 9 out"),
        (lambda path: Image.new("RGB", (16, 12)).save(path), r"p3\.png \(a mask has one class number per pixel"),
        (lambda path: path.write_bytes(b"?"), r"p3\.png \(no image: it is none of BMP"),
        (lambda path: path.unlink(), r"p3\.png \(no mask\)"),
        (lambda path: path.with_name("alone.png").write_bytes(path.read_bytes()), r"alone\.png \(no image\)"),
    ],
    ids=["size", "values", "colour", "corrupt", "missing", "alone"],
)
def test_bad_masks_are_named(tmp_path, spoil, complaint):
    write_masks(tmp_path, {f"p{i}": stripes() for i in range(10)})
    spoil(tmp_path / "masks" / "p3.png")
    with pytest.raises(ValueError, match=complaint):
        load(tmp_path, classes=["out", "in"])
    splits = load(tmp_path, classes=["out", "in"], on_bad="skip")
    assert len(splits.train) + len(splits.val) == (10 if "alone" in complaint else 9)
    assert "skipped" in " ".join(splits.notes)


@pytest.mark.parametrize("extension", ["jpg", "png", "tif"])
def test_a_mask_of_a_image_that_is_turned_when_it_is_read(tmp_path, extension):
    write_masks(tmp_path, {f"p{i}": stripes() for i in range(4)})
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90°
    (tmp_path / "images" / "p1.png").unlink()
    Image.new("RGB", (16, 12)).save(tmp_path / "images" / f"p1.{extension}", exif=exif)
    turned = r"p1\.png \(16×12 pixels, but its image has 12×16 once it is turned by its EXIF orientation"
    with pytest.raises(ValueError, match=turned):
        load(tmp_path)
    mask = tmp_path / "masks" / "p1.png"
    Image.new("L", (12, 12)).save(mask)
    with pytest.raises(ValueError, match=r"p1\.png \(12×12 pixels, but its image has 12×16\)"):
        load(tmp_path)
    Image.fromarray(stripes().astype(np.uint8)).transpose(Image.Transpose.ROTATE_270).save(mask)
    assert len(load(tmp_path).train) == 3


def test_palette_and_one_bit_masks(tmp_path):
    write_masks(tmp_path, {f"p{i}": stripes() for i in range(4)})
    palette = Image.fromarray(stripes().astype(np.uint8)).convert("P")
    palette.putdata(stripes().ravel().tolist())
    palette.putpalette([0, 0, 0, 200, 10, 10])
    palette.save(tmp_path / "masks" / "p0.png")
    Image.fromarray(stripes().astype(bool)).save(tmp_path / "masks" / "p1.png")
    splits = load(tmp_path, fit="squash", image_size=16)
    for mask in [*splits.train.targets, *splits.val.targets]:
        assert torch.equal(mask, torch.from_numpy(stripes(16, 16).astype(np.uint8)))


def test_large_folders_stream(tmp_path, monkeypatch):
    write_classes(tmp_path, {"a": 10, "b": 10})
    assert isinstance(load(tmp_path).train, ImageSet)
    monkeypatch.setattr(folder, "MEMORY_LIMIT", 1000)
    assert isinstance(load(tmp_path).train, ImageFiles)
    assert isinstance(load(tmp_path, stream=False).train, ImageSet)


def test_streamed_is_what_is_in_memory(tmp_path):
    write_classes(tmp_path, {"a": 10, "b": 10})
    streamed, kept = load(tmp_path, stream=True), load(tmp_path, stream=False)
    assert streamed.indices() == kept.indices()
    for (a, la), (b, lb) in zip(Batches(streamed.train, 6, workers=0), Batches(kept.train, 6), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(la, lb)


@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_streamed_crops_lie_where_those_in_memory_do(tmp_path, fit):
    ramp = np.broadcast_to(np.linspace(0, 255, 48, dtype=np.uint8)[None, :, None], (16, 48, 3))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(np.ascontiguousarray(ramp)).save(tmp_path / name / f"{i}.png")
    zoomed = Augment(zoom=0.5)
    sets = (load(tmp_path, stream=stream, fit=fit, image_size=16).train for stream in (True, False))
    streamed, kept = (next(iter(Batches(data, 8, augment=zoomed, workers=0)))[0] for data in sets)
    assert (streamed - kept).abs().max() < 0.1 * (kept.max() - kept.min())


@pytest.mark.parametrize("options", [{"fit": "stretch"}, {"on_bad": "ignore"}])
def test_unknown_ways_are_named(tmp_path, options):
    write_classes(tmp_path, {"a": 5, "b": 5})
    with pytest.raises(ValueError, match=r"^(fit should be one of crop, squash|on_bad should be one of stop, skip)"):
        load(tmp_path, **options)


def test_a_sixteen_bit_image_among_others_is_refused_or_skipped(tmp_path):
    """Pillow would turn it white."""
    write_classes(tmp_path, {"a": 5, "b": 5})
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(tmp_path / "a" / "deep.png")
    with pytest.raises(
        ValueError, match=r"a/0\.png has 3 bands of uint8 .* and \S*deep\.png 1 band of uint16 \(one of 1"
    ):
        load(tmp_path)
    splits = load(tmp_path, on_bad="skip")
    assert parts(splits) == [8, 2]
    assert "deep.png (1 band of uint16, where 3 bands of uint8 are expected)" in " ".join(splits.notes)
    with pytest.raises(ValueError, match=r"deep\.png \(more than 8 bits per channel"):
        load(tmp_path, bands="rgb")


links = pytest.mark.skipif(os.name == "nt", reason="links and pipes of POSIX")


def parts(splits) -> list[int]:
    return [len(splits.train), len(splits.val)]


@links
def test_links_to_where_they_lie_add_nothing(tmp_path):
    write_classes(tmp_path, {"cat": 10, "dog": 10})
    before = load(tmp_path)
    (tmp_path / "cat" / "self").symlink_to(tmp_path / "cat")
    (tmp_path / "cat" / "0-link.png").symlink_to("7.png")
    (tmp_path / "dog" / "loop").symlink_to("loop")  # which leads nowhere
    after = load(tmp_path)
    assert parts(after) == [16, 4]
    assert after.indices() == before.indices()
    assert torch.equal(after.train.images, before.train.images)


@links
def test_a_link_to_the_whole_folder_is_refused(tmp_path):
    write_classes(tmp_path, {"cat": 6, "dog": 6})
    (tmp_path / "all").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"all/\S+ and \S+/cat/\S+ are one file by a link and would count as two cla"):
        load(tmp_path)


@links
def test_links_that_hang_a_walk_by_names(tmp_path):
    """Two links to where they lie have 2^40 paths below them."""
    write_classes(tmp_path, {"cat": 6, "dog": 6})
    number = len(load(tmp_path).train)
    for name in ("a", "b"):
        (tmp_path / "cat" / name).symlink_to(".")
    code = "import sys; from tcpvit.data import load_dataset; print(len(load_dataset(sys.argv[1], image_size=8).train))"
    command = [sys.executable, "-c", code, f"folder:{tmp_path}"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == f"{number}\n"


@links
def test_linked_folders_and_files_from_another_disk_are_taken(tmp_path):
    write_classes(tmp_path / "disk", {"cat": 5, "x": 5})
    (tmp_path / "set" / "dog").mkdir(parents=True)
    (tmp_path / "set" / "cat").symlink_to(tmp_path / "disk" / "cat")
    (tmp_path / "set" / "dog" / "deep").symlink_to(tmp_path / "disk" / "x")
    assert parts(load(tmp_path / "set")) == [8, 2]
    for i in range(5):
        (tmp_path / "set" / "dog" / f"{i}.png").symlink_to(tmp_path / "disk" / "x" / f"{i}.png")
    (tmp_path / "link").symlink_to(tmp_path / "set")
    assert parts(load(tmp_path / "link")) == [8, 2]


@links
@pytest.mark.parametrize("path", ["train/b/x.png", "val/a/x.png", "val/b/x.png"])
def test_one_file_is_of_one_class_and_trained_on_or_held_out(tmp_path, path):
    write_classes(tmp_path / "train", {"a": 3, "b": 3})
    write_classes(tmp_path / "val", {"a": 3, "b": 3})
    (tmp_path / path).symlink_to(tmp_path / "train" / "a" / "1.png")
    how = "as two classes" if path.startswith("train") else "as training and as held-out data"
    named = re.escape(f"{tmp_path}/train/a/1.png and {tmp_path}/{path} are one file by a link and would count {how}")
    with pytest.raises(ValueError, match=f"^{named}; remove one of them$"):
        load(tmp_path)


@links
def test_validation_may_be_the_test_too(tmp_path):
    write_classes(tmp_path / "train", {"a": 3, "b": 3})
    write_classes(tmp_path / "val", {"a": 2, "b": 2})
    (tmp_path / "test").symlink_to("val")
    assert [len(part) for part in load(tmp_path).parts().values()] == [6, 4, 4]


@links
def test_images_of_masks_are_one_file_each_and_masks_may_be_shared(tmp_path):
    write_masks(tmp_path, {f"p{i}": stripes() for i in range(10)})
    (tmp_path / "images" / "loop").symlink_to(tmp_path / "images")
    (tmp_path / "masks" / "loop").symlink_to(tmp_path / "masks")
    (tmp_path / "masks" / "p3.png").unlink()
    (tmp_path / "masks" / "p3.png").symlink_to("p4.png")
    assert parts(load(tmp_path)) == [8, 2]
    (tmp_path / "images" / "p5.png").unlink()
    (tmp_path / "images" / "p5.png").symlink_to("p6.png")
    with pytest.raises(ValueError, match=r"p6\.png and \S+p5\.png are one file by a link and .* as two images"):
        load(tmp_path)


def in_time(path, *options: str) -> subprocess.CompletedProcess[str]:
    """`tcpvit data check` in a process of its own, which a pipe could hold for ever."""
    command = [sys.executable, "-m", "tcpvit", "data", "check", f"folder:{path}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@links
def test_pipes_and_sockets_are_skipped_and_named(tmp_path, monkeypatch):
    write_classes(tmp_path, {"cat": 10, "dog": 10})
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    monkeypatch.chdir(tmp_path / "dog")  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.png")
    (tmp_path / "dog" / "device.png").symlink_to("/dev/zero")
    found = in_time(tmp_path, "--json").stdout
    assert "3 of 23 files cannot be used: " in found
    for name in ("pipe", "socket", "device"):
        assert f"{name}.png (a pipe, socket or device, not a file)" in found
    for stream in (True, False):
        splits = load(tmp_path, stream=stream)
        assert parts(splits) == [16, 4]
        assert len(splits.notes) == 1
        assert "pipe.png" in splits.notes[0]


@links
@pytest.mark.parametrize("kind", ["images", "masks"])
def test_a_pipe_among_images_and_masks(tmp_path, kind):
    write_masks(tmp_path, {f"p{i}": stripes() for i in range(10)})
    os.mkfifo(tmp_path / kind / "pipe.png")
    assert f"{kind}/pipe.png (a pipe" in in_time(tmp_path, "--json").stdout
    assert parts(load(tmp_path)) == [8, 2]
    (tmp_path / kind / "p3.png").unlink()
    os.mkfifo(tmp_path / kind / "p3.png")
    with pytest.raises(ValueError, match=rf"p3\.png \(no .*{kind}/p3\.png \(a pipe, socket or device, not a file\)"):
        load(tmp_path)


@links
def test_a_class_of_pipes_and_a_pipe_of_class_names(tmp_path):
    write_classes(tmp_path / "classes", {"cat": 3, "dog": 3})
    (tmp_path / "classes" / "eel").mkdir()
    os.mkfifo(tmp_path / "classes" / "eel" / "pipe.png")
    with pytest.raises(ValueError, match=r"eel holds no images \(1 of 1 files .*pipe\.png .*\); fill it"):
        load(tmp_path / "classes")
    write_masks(tmp_path / "masks", {f"p{i}": stripes() for i in range(10)})
    os.mkfifo(tmp_path / "masks" / "classes.txt")
    with pytest.raises(ValueError, match=r"classes\.txt is a pipe, socket or device, not a file; put a text file"):
        load(tmp_path / "masks")


@links
@pytest.mark.parametrize("read", ["read_image", "read_mask"])
def test_a_pipe_that_is_named_is_not_read(tmp_path, read):
    os.mkfifo(tmp_path / "pipe.png")
    code = f"import sys; from tcpvit.data.decode import {read}; {read}(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path / "pipe.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr.endswith("ValueError: a pipe, socket or device, not a file\n")


def test_everything_that_is_wrong_is_told_at_once(tmp_path):
    write_classes(tmp_path / "train", {"a": 5, "b": 5})
    write_classes(tmp_path / "val", {"a": 2, "zebra": 2})
    (tmp_path / "train" / "empty").mkdir()
    (tmp_path / "train" / "a" / "1.png").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"^3 problems with the data:\n") as caught:
        load(tmp_path)
    _, *problems = str(caught.value).split("\n")
    assert [re.search("holds no images|'zebra'|1 of 12 files", line)[0] for line in problems] == [
        "holds no images",
        "'zebra'",
        "1 of 12 files",
    ]


def test_names_in_messages_cannot_harm_a_terminal(tmp_path):
    write_classes(tmp_path, {"a": 5, "b\x1b[2J": 5})
    (tmp_path / "b\x1b[2J" / "1\r.png").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"b\\x1b\[2J/1\\r\.png") as caught:
        load(tmp_path)
    assert str(caught.value).isprintable()


def test_the_head_of_a_png_is_looked_at_without_its_pixels(tmp_path, monkeypatch):
    write_classes(tmp_path, {"a": 5, "b": 5})
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
    assert parts(load(tmp_path, stream=True)) == [8, 2]
