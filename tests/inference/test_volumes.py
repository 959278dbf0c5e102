"""Prediction of volumes and clips: windows over a large volume, masks as NIfTI files, labelled clips."""

import csv
import io
import json

import numpy as np
import pytest
import torch

import tcpvit
from tcpvit.cli.predict import predict
from tcpvit.data import load_dataset
from tcpvit.inference.evaluate import measure
from tcpvit.inference.inputs import as_volume_files
from tcpvit.inference.loading import LoadedModel, load_model
from tcpvit.inference.volumes import segment_volume, slide
from tcpvit.models import SegmenterConfig
from tcpvit.training import load_recipe, train
from tcpvit.training.preprocessing import PREPROCESSING

nib = pytest.importorskip("nibabel")


def threshold(part):
    """Logits of a model that looks at single voxels."""
    voxels = torch.from_numpy(np.ascontiguousarray(part)).float()[0]
    return torch.stack([128 - voxels, voxels - 128])


@pytest.mark.parametrize("shape", [(20, 17, 9), (8, 8, 8), (3, 30, 8)])
def test_windows_give_what_the_whole_volume_would(shape):
    voxels = np.random.default_rng(0).integers(0, 256, (1, *shape)).astype(np.uint8)
    found = slide(threshold, voxels, (8, 8, 8), 2)
    np.testing.assert_array_equal(found, voxels[0] > 128)


def test_windows_are_weighted_and_only_a_slab_is_kept(monkeypatch):
    """The same as the weighted sum over all windows, kept as a whole."""
    from tcpvit.data.volumes.folder import window_corners
    from tcpvit.inference import volumes as module

    torch.manual_seed(0)
    conv = torch.nn.Conv3d(1, 3, 3, padding=1)  # sees the sides of its window
    voxels = np.random.default_rng(0).random((1, 13, 10, 11)).astype(np.float32)
    window = (6, 5, 8)

    @torch.no_grad()
    def logits_of(part):
        return conv(torch.from_numpy(np.ascontiguousarray(part))[None])[0]

    whole = torch.zeros(3, 13, 10, 11)
    for t, y, x in window_corners(voxels.shape[1:], window, module.OVERLAP):
        part = voxels[:, t : t + 6, y : y + 5, x : x + 8]
        whole[:, t : t + 6, y : y + 5, x : x + 8] += module._weights(window) * logits_of(part)
    np.testing.assert_array_equal(slide(logits_of, voxels, window, 3), whole.argmax(0).numpy())


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory):
    """A run of a small segmenter."""
    folder = tmp_path_factory.mktemp("runs") / "solid"
    changes = ["model.name=tcp_vit_volume_segmenter", "data.name=solid-digits", "data.options.task=segmentation"]
    changes += ["data.options.sizes=[16,4,4]", "data.image_size=16", "model.options.backbone.img_size=[16,16,16]"]
    changes += ["schedule.epochs=2", "data.batch_size=8", "schedule.warmup_epochs=0", "augment.shift_depth=1"]
    train(load_recipe("volumes", changes), folder)
    return folder


def test_a_run_is_trained_measured_and_its_masks_written_as_nifti(segmenter, tmp_path, capsys):
    assert json.loads((segmenter / "best" / PREPROCESSING).read_text())["image_shape"] == [1, 16, 16, 16]
    voxels = load_dataset("solid-digits", sizes=(2, 2, 2), image_size=24).test.images[0, 0].numpy()
    affine = np.array([[-1.5, 0, 0, 5], [0, 0, 2.0, 6], [0, 1, 0, 7], [0, 0, 0, 1]])
    (tmp_path / "in").mkdir()
    nib.save(nib.Nifti1Image(voxels, affine), tmp_path / "in" / "肾.nii.gz")
    (tmp_path / "in" / "broken.nii.gz").write_bytes(b"nothing")
    done = predict(str(segmenter), [tmp_path / "in"], images=tmp_path / "out")
    assert "broken.nii.gz is not a NIfTI file" in done.bad[0]
    row = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    mask = nib.load(tmp_path / "out" / "masks" / "肾.nii.gz")
    np.testing.assert_allclose(mask.affine, affine)
    assert mask.shape == voxels.shape
    assert float(row["share_digit"]) == pytest.approx(np.asarray(mask.dataobj).mean(), abs=1e-6)
    assert (tmp_path / "out" / "overlays" / "肾.png").is_file()
    assert 0 <= measure(segmenter).metrics.summary()["miou"] <= 1


def test_masks_of_the_user_are_never_written_over(segmenter, tmp_path):
    own = tmp_path / "set" / "masks" / "kidney.nii.gz"
    own.parent.mkdir(parents=True)
    nib.save(nib.Nifti1Image(np.ones((4, 4, 4), np.uint8), np.eye(4)), own)
    nib.save(nib.Nifti1Image(np.zeros((16, 16, 16), np.uint8), np.eye(4)), tmp_path / "kidney.nii.gz")
    before = own.read_bytes()
    with pytest.raises(ValueError, match="masks is there already and may hold images or masks of your own"):
        predict(str(segmenter), [tmp_path / "kidney.nii.gz"], images=tmp_path / "set")
    assert own.read_bytes() == before


def test_masks_are_not_written_through_a_link(segmenter, tmp_path):
    nib.save(nib.Nifti1Image(np.zeros((16, 16, 16), np.uint8), np.eye(4)), tmp_path / "kidney.nii.gz")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "overlays").mkdir(parents=True)
    (tmp_path / "out" / "masks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="leads through a link"):
        predict(str(segmenter), [tmp_path / "kidney.nii.gz"], images=tmp_path / "out")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_volume_of_other_channels_is_named(segmenter):
    loaded = load_model(segmenter)
    with pytest.raises(ValueError, match="has 2 channels, where 1 are expected"):
        segment_volume(loaded, np.zeros((2, 8, 8, 8), np.uint8), torch.device("cpu"))


def test_volumes_of_another_type_than_the_training_are_named(segmenter, tmp_path):
    nib.save(nib.Nifti1Image(np.zeros((16, 16, 16), np.uint16), np.eye(4)), tmp_path / "deep.nii")
    with pytest.raises(ValueError, match=r"deep.nii holds uint16, where uint8 is expected"):
        predict(str(segmenter), [tmp_path / "deep.nii"], images=tmp_path / "out")


def test_what_was_written_before_is_not_read_again(segmenter, tmp_path, capsys):
    nib.save(nib.Nifti1Image(np.zeros((16, 16, 16), np.uint8), np.eye(4)), tmp_path / "kidney.nii.gz")
    for _ in range(2):
        assert len(predict(str(segmenter), [tmp_path], images=tmp_path / "out").found) == 1


def test_a_volume_is_not_changed_by_its_prediction():
    """A window that is the whole plane is a view of the volume, which overlapping windows share."""
    voxels = np.random.default_rng(0).random((1, 12, 8, 8)).astype(np.float32)
    before = voxels.copy()
    about = {"image_shape": [1, 8, 8, 8], "mean": [0.5], "std": [0.1], "classes": ["a", "b"]}
    loaded = LoadedModel("made", torch.nn.Conv3d(1, 2, 3, padding=1), preprocessing=about)
    with torch.no_grad():
        segment_volume(loaded, voxels, torch.device("cpu"))
    np.testing.assert_array_equal(voxels, before)


def test_volumes_are_fitted_as_in_training(tmp_path):
    for name, level in (("low", 0.0), ("high", 1.0)):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(5):
            np.save(tmp_path / "set" / name / f"{i}.npy", np.random.default_rng(i).random((12, 12, 12)) + level)
    changes = [f"data.name=volumes:{tmp_path / 'set'}", "data.options={}", "data.image_size=8", "schedule.epochs=1"]
    changes += ["model.options.img_size=[8,8,8]", "model.options.depth=1", "schedule.warmup_epochs=0"]
    for fit in ("squash", "crop"):
        change = [] if fit == "squash" else [f"data.options.fit={fit}"]
        train(load_recipe("volumes", [*changes, *change]), tmp_path / fit)
        loaded = load_model(tmp_path / fit)
        assert loaded.fit == fit
        seen = as_volume_files(loaded, [tmp_path / "set" / "low" / "0.npy"]).fetch(torch.tensor([0])).images
        of_training = load_dataset(f"volumes:{tmp_path / 'set'}", image_size=8, fit=fit)
        images = torch.cat([of_training.train.images, of_training.val.images])
        assert (images == seen).flatten(1).all(1).any()


def test_an_evaluation_keeps_the_scale_of_the_training_voxels(tmp_path):
    random = np.random.default_rng(0)
    voxels = [(name, i, random.integers(0, 100, (8, 8, 8)) + 100 * k) for k, name in enumerate("ab") for i in range(5)]
    for dtype in (np.uint8, np.float32):
        for name, i, values in voxels:
            (tmp_path / dtype.__name__ / name).mkdir(parents=True, exist_ok=True)
            np.save(tmp_path / dtype.__name__ / name / f"{i}.npy", values.astype(dtype))
    changes = ["data.options={}", "data.image_size=8", "schedule.epochs=1", "schedule.warmup_epochs=0"]
    changes += ["model.options.img_size=[8,8,8]", "model.options.depth=1"]
    for dtype in ("uint8", "float32"):
        train(load_recipe("volumes", [f"data.name=volumes:{tmp_path / dtype}", *changes]), tmp_path / f"run-{dtype}")
    seen = [measure(tmp_path / "run-float32", f"volumes:{tmp_path / dtype}") for dtype in ("float32", "uint8")]
    assert seen[0].metrics.summary() == seen[1].metrics.summary()
    with pytest.raises(ValueError, match="holds float32, but run-uint8 was trained on uint8; convert the files"):
        measure(tmp_path / "run-uint8", f"volumes:{tmp_path / 'float32'}")


def test_clips_are_labelled_and_written_with_their_label(tmp_path, capsys):
    av = pytest.importorskip("av")
    from tcpvit.data.volumes.video import clip_bytes

    changes = ["data.options.sizes=[16,8,8]", "data.image_size=16", "model.options.img_size=[8,16,16]"]
    changes += ["schedule.epochs=1", "schedule.warmup_epochs=0"]
    train(load_recipe("clips", changes), tmp_path / "run")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "walk.mp4").write_bytes(clip_bytes([np.full((32, 32, 3), 9 * t, np.uint8) for t in range(10)]))
    predict(str(tmp_path / "run"), [tmp_path / "in"], images=tmp_path / "out", sheet=tmp_path / "sheet.png")
    row = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert row["label_1"] in ("left", "right", "up", "down")
    with av.open(str(tmp_path / "out" / "walk.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 10
    assert frames[0].shape[0] > frames[0].shape[1]  # the label stands below
    assert (tmp_path / "sheet.png").is_file()


def test_a_model_of_images_refuses_volumes_and_the_other_way_round():
    volumes = load_dataset("solid-digits", sizes=(4, 2, 2)).train
    from tcpvit.training.build import check_fit

    with pytest.raises(ValueError, match="tcp_vit_cifar takes images, but solid-digits/train has volumes"):
        check_fit("tcp_vit_cifar", tcpvit.models.model_config("tcp_vit_cifar", in_chans=1), volumes)
    config = tcpvit.models.model_config("tcp_vit_volume_small", img_size=(16, 32, 32))
    with pytest.raises(ValueError, match=r"takes images of 16×32×32, .* have 32×32×32; .*image_size=\[16, 32, 32\]"):
        check_fit("tcp_vit_volume_small", config, volumes)
    assert isinstance(tcpvit.models.model_config("tcp_vit_volume_segmenter"), SegmenterConfig)
