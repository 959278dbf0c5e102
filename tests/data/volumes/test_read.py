"""Files of volumes and video: orientation, spacing, order of slices; what lies in its header is refused."""

import gzip
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from tcpvit.data import load_dataset
from tcpvit.data.volumes.folder import window_corners
from tcpvit.data.volumes.nifti import nifti_bytes, turned_spacing
from tcpvit.data.volumes.read import find_volumes, read_volume
from tcpvit.data.volumes.video import chosen_frames, clip_bytes, find_clips, read_clip

nib = pytest.importorskip("nibabel")
RAS = np.random.default_rng(0).integers(-1000, 1000, (5, 6, 7)).astype(np.int16)  # x, y, z of the patient
AFFINE = np.array([[2.0, 0, 0, 10], [0, 3, 0, 20], [0, 0, 4, 30], [0, 0, 0, 1]])


def oriented(code):
    turn = nib.orientations.ornt_transform(nib.orientations.axcodes2ornt("RAS"), nib.orientations.axcodes2ornt(code))
    return nib.Nifti1Image(RAS, AFFINE).as_reoriented(turn)


@pytest.mark.parametrize("code", ["RAS", "LPS", "PIR", "SAL"])
@pytest.mark.parametrize("ending", ["nii", "nii.gz"])
def test_nifti_is_turned_to_ras_and_masks_are_turned_back(code, ending, tmp_path):
    image = oriented(code)
    nib.save(image, tmp_path / f"a.{ending}")
    volume = read_volume(tmp_path / f"a.{ending}")
    np.testing.assert_array_equal(volume.voxels[0], RAS.transpose(2, 1, 0))
    assert turned_spacing(volume.affine) == (4.0, 3.0, 2.0)
    (tmp_path / "mask.nii.gz").write_bytes(nifti_bytes((volume.voxels[0] > 0).astype(np.uint8), volume.affine))
    mask = nib.load(tmp_path / "mask.nii.gz")
    np.testing.assert_array_equal(np.asarray(mask.dataobj), np.asarray(image.dataobj) > 0)
    np.testing.assert_allclose(mask.affine, image.affine)


def test_a_fourth_axis_is_channels_and_scaling_is_applied(tmp_path):
    image = nib.Nifti1Image(np.stack([RAS, RAS // 2], -1), AFFINE)
    image.header.set_slope_inter(0.5, 10)
    nib.save(image, tmp_path / "a.nii")
    volume = read_volume(tmp_path / "a.nii")
    assert volume.voxels.shape == (2, 7, 6, 5)
    assert volume.voxels.dtype == np.float32


def test_headers_that_lie_are_refused_before_anything_is_allocated(tmp_path):
    nib.save(nib.Nifti1Image(RAS, AFFINE), tmp_path / "a.nii")
    content = bytearray((tmp_path / "a.nii").read_bytes())
    content[40:56] = struct.pack("<8h", 3, 30000, 30000, 30000, 1, 1, 1, 1)  # dim
    (tmp_path / "large.nii").write_bytes(content)
    with pytest.raises(ValueError, match=r"large.nii is cut short: its header announces 54,000,000,000,000 bytes"):
        read_volume(tmp_path / "large.nii")
    (tmp_path / "bomb.nii.gz").write_bytes(gzip.compress(bytes(content)))
    with pytest.raises(ValueError, match="and was not read"):
        read_volume(tmp_path / "bomb.nii.gz")
    (tmp_path / "short.nii").write_bytes((tmp_path / "a.nii").read_bytes()[:400])
    with pytest.raises(ValueError, match="cut short"):
        read_volume(tmp_path / "short.nii")
    (tmp_path / "text.nii").write_text("no volume")
    with pytest.raises(ValueError, match="is not a NIfTI file"):
        read_volume(tmp_path / "text.nii")
    with pytest.raises(ValueError, match="is no volume that can be read"):
        read_volume(_touched(tmp_path / "a.xyz"))


def _touched(path):
    path.write_bytes(b"x")
    return path


def test_numpy_and_tiff_stacks(tmp_path):
    voxels = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)
    np.save(tmp_path / "a.npy", voxels)
    np.savez(tmp_path / "a.npz", volume=voxels, other=np.zeros(3))
    np.save(tmp_path / "c.npy", np.stack([voxels, voxels]))
    Image.fromarray(voxels[0]).save(
        tmp_path / "a.tif", save_all=True, append_images=[Image.fromarray(plane) for plane in voxels[1:]]
    )
    for name in ("a.npy", "a.npz", "a.tif"):
        np.testing.assert_array_equal(read_volume(tmp_path / name).voxels[0], voxels)
    assert read_volume(tmp_path / "c.npy").voxels.shape == (2, 4, 5, 6)
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="objects"):
        read_volume(tmp_path / "objects.npy")
    np.save(tmp_path / "last.npy", np.zeros((70, 4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match=r"has 70 channels .* move the axis"):
        read_volume(tmp_path / "last.npy")
    np.save(tmp_path / "nan.npy", np.full((2, 2, 2), np.nan))
    with pytest.raises(ValueError, match="holds NaN"):
        read_volume(tmp_path / "nan.npy")
    np.savez(tmp_path / "one.npz", volume=voxels[None])  # one channel
    np.testing.assert_array_equal(read_volume(tmp_path / "one.npz").voxels[0], voxels)
    np.save(tmp_path / "flat.npy", voxels[0])
    with pytest.raises(ValueError, match="is not a volume of T×H×W or C×T×H×W; the file holds flat 5×6 uint8"):
        read_volume(tmp_path / "flat.npy")
    assert len(find_volumes([tmp_path])) == 9


def write_series(folder, *, flip=False, uid="1.2.3", skip=None, **elements):
    """RAS as DICOM slices along z, in a random order of names."""
    pydicom = pytest.importorskip("pydicom")
    from pydicom.dataset import Dataset, FileMetaDataset

    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(1).permutation(RAS.shape[2])
    for name, z in zip(order, range(RAS.shape[2]), strict=True):
        if z == skip:
            continue
        data = Dataset()
        data.file_meta = FileMetaDataset()
        data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        data.file_meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
        data.file_meta.MediaStorageSOPInstanceUID = f"1.2.{z + 1}"
        data.SOPClassUID, data.SOPInstanceUID = pydicom.uid.CTImageStorage, f"1.2.{z + 1}"
        data.SeriesInstanceUID, data.Modality = uid, "CT"
        plane = RAS[::-1, ::-1, z].T + 1024  # columns to the left (L), rows to the back (P)
        data.Rows, data.Columns = plane.shape
        data.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        data.ImagePositionPatient = [-10.0 - 2 * 4, -20.0 - 3 * 5, 30.0 + 4 * z]
        data.PixelSpacing, data.SliceThickness = [3.0, 2.0], 4.0
        data.BitsAllocated = data.BitsStored = 16
        data.HighBit, data.PixelRepresentation, data.SamplesPerPixel = 15, 0, 1
        data.PhotometricInterpretation = "MONOCHROME2"
        data.RescaleSlope, data.RescaleIntercept = 1, -1024
        data.PixelData = plane.astype(np.uint16).tobytes()
        for element, value in elements.items():
            setattr(data, element, value)
        data.save_as(folder / f"slice{name}.dcm", enforce_file_format=True)


def test_a_dicom_series_is_the_volume_that_nifti_has(tmp_path):
    write_series(tmp_path / "scan")
    volume = read_volume(tmp_path / "scan")
    np.testing.assert_array_equal(volume.voxels[0], RAS.transpose(2, 1, 0))
    assert turned_spacing(volume.affine) == (4.0, 3.0, 2.0)
    assert find_volumes([tmp_path]) == [tmp_path / "scan"]


def test_a_series_is_found_whatever_lies_before_its_slices(tmp_path):
    write_series(tmp_path / "scan")
    (tmp_path / "scan" / "ABOUT.txt").write_text("anonymised")
    directory = next((tmp_path / "scan").glob("*.dcm")).read_bytes()[:132] + b"a list of files"
    (tmp_path / "DICOMDIR").write_bytes(directory)
    (tmp_path / "scan" / "DICOMDIR").write_bytes(directory)
    assert find_volumes([tmp_path]) == [tmp_path / "scan"]
    np.testing.assert_array_equal(read_volume(tmp_path / "scan").voxels[0], RAS.transpose(2, 1, 0))


def test_series_that_are_not_whole_are_refused(tmp_path):
    write_series(tmp_path / "gap", skip=3)
    with pytest.raises(ValueError, match="slices are missing or there twice"):
        read_volume(tmp_path / "gap")
    write_series(tmp_path / "two")
    write_series(tmp_path / "other", uid="9.9")
    (tmp_path / "other" / "slice0.dcm").rename(tmp_path / "two" / "stranger.dcm")
    with pytest.raises(ValueError, match="holds 2 series"):
        read_volume(tmp_path / "two")
    with pytest.raises(ValueError, match="one slice of a DICOM series; give the folder"):
        read_volume(tmp_path / "gap" / "slice0.dcm")


@pytest.mark.filterwarnings("ignore:A value of 'None' for:UserWarning")  # by pydicom, of NumberOfFrames
def test_elements_of_dicom_that_are_empty_count_as_absent(tmp_path):
    unscaled = RAS.transpose(2, 1, 0) + 1024
    write_series(tmp_path / "unscaled", RescaleSlope=None, RescaleIntercept=None, NumberOfFrames=None)
    np.testing.assert_array_equal(read_volume(tmp_path / "unscaled").voxels[0], unscaled)
    write_series(tmp_path / "one", SliceThickness=None)
    for path in sorted((tmp_path / "one").iterdir())[1:]:
        path.unlink()
    assert turned_spacing(read_volume(tmp_path / "one").affine) == (1.0, 3.0, 2.0)


@pytest.mark.parametrize(
    ("element", "value"),
    [
        ("ImageOrientationPatient", None),
        ("ImagePositionPatient", ["1", "", "2"]),
        ("PixelSpacing", None),
        ("Rows", None),
        ("SeriesInstanceUID", ""),
    ],
)
def test_a_dicom_slice_whose_place_is_empty_is_refused(element, value, tmp_path):
    write_series(tmp_path / "scan", **{element: value})
    with pytest.raises(ValueError, match=rf"\.dcm does not say {element}, so its place in a volume is not known"):
        read_volume(tmp_path / "scan")


def make_video(path, frames=12):
    pytest.importorskip("av")
    grey = [np.full((48, 64, 3), 20 * t, dtype=np.uint8) for t in range(frames)]
    path.write_bytes(clip_bytes(grey))


def test_clips_of_video_files_and_folders_of_frames(tmp_path):
    make_video(tmp_path / "a.mp4")
    clip = read_clip(tmp_path / "a.mp4", 4, 32)
    assert clip.shape == (3, 4, 32, 32)
    expected = np.array([20 * t for t in chosen_frames(12, 4, None, 0.5, "")])
    assert np.abs(clip.mean((0, 2, 3)) - expected).max() < 4
    (tmp_path / "frames").mkdir()
    for t in range(12):
        Image.fromarray(np.full((20, 30), 20 * t, dtype=np.uint8)).save(tmp_path / "frames" / f"f{t}.png")
    folder = read_clip(tmp_path / "frames", 3, 16, stride=2, place=1.0, colour=False)
    assert folder[0, :, 0, 0].tolist() == [140, 180, 220]
    assert find_clips([tmp_path]) == [tmp_path / "a.mp4", tmp_path / "frames"]
    with pytest.raises(
        ValueError, match=r"a.mp4 has 12 frames along its time, and a clip of 20 needs 20; take frames=12"
    ):
        read_clip(tmp_path / "a.mp4", 20, 16)
    (tmp_path / "b.mp4").write_bytes(b"no video at all")
    with pytest.raises(ValueError, match="is no video that can be read"):
        read_clip(tmp_path / "b.mp4", 4, 16)


def test_images_beside_clips_make_no_clip_of_their_folder(tmp_path):
    frames = [Image.fromarray(np.full((16, 16), 20 * t, dtype=np.uint8)) for t in range(10)]
    for name in ("run", "walk"):
        for i in range(8):  # as many as a clip of the default length has
            path = tmp_path / name / f"{i}.GIF"
            path.parent.mkdir(exist_ok=True)
            frames[0].save(path, save_all=True, append_images=frames[1:])
            frames[0].save(path.with_suffix(".jpg"))
        (tmp_path / name / "frames").mkdir()
        for t, frame in enumerate(frames):
            frame.save(tmp_path / name / "frames" / f"{t}.png")
        (tmp_path / name / "frames" / "._0.mp4").touch()  # hidden
    expected = [
        path for name in ("run", "walk") for path in [*(tmp_path / name).glob("*.GIF"), tmp_path / name / "frames"]
    ]
    assert find_clips([tmp_path]) == sorted(expected)
    pytest.importorskip("av")
    splits = load_dataset(f"clips:{tmp_path}", image_size=16)
    assert len(splits.train) + len(splits.val) == 18
    assert splits.notes == (f"16 other files of {tmp_path} are left out: run/0.jpg, run/1.jpg, run/2.jpg and 13 more",)


def test_folders_of_volumes_by_class_and_with_masks(tmp_path):
    rng = np.random.default_rng(0)
    for name, level in (("empty", 20), ("full", 200)):
        (tmp_path / "classes" / name).mkdir(parents=True)
        for i in range(5):
            voxels = rng.normal(level, 5, (9, 10, 11)).astype(np.float32)
            np.save(tmp_path / "classes" / name / f"{i}.npy", voxels)
    for other in ("notes.txt", "full/a.csv", ".hidden"):
        (tmp_path / "classes" / other).touch()
    splits = load_dataset(f"volumes:{tmp_path / 'classes'}", image_size=(4, 8, 8))
    assert splits.notes == (f"2 other files of {tmp_path / 'classes'} are left out: notes.txt, full/a.csv",)
    assert (len(splits.train), len(splits.val)) == (8, 2)
    assert splits.train.images.shape[1:] == (1, 4, 8, 8)
    assert splits.train.classes == ("empty", "full")
    for kind in ("images", "masks"):
        (tmp_path / "pairs" / kind).mkdir(parents=True)
    for i in range(3):
        mask = (rng.random((9, 8, 8)) > 0.5).astype(np.uint8)
        nib.save(
            nib.Nifti1Image((mask * 100.0).transpose(2, 1, 0), AFFINE), tmp_path / "pairs" / "images" / f"{i}.nii.gz"
        )
        nib.save(nib.Nifti1Image(mask.transpose(2, 1, 0), AFFINE), tmp_path / "pairs" / "masks" / f"{i}.nii.gz")
    pairs = load_dataset(f"volumes:{tmp_path / 'pairs'}", image_size=8)
    assert pairs.train.task == "segmentation"
    assert not pairs.notes
    assert (len(pairs.train), len(pairs.val)) == (4, 2)  # two windows of each volume, which stay together
    torch.testing.assert_close(pairs.train.images[:, 0] / 100, pairs.train.targets.float())
    (tmp_path / "pairs" / "masks" / "1.nii.gz").unlink()
    with pytest.raises(ValueError, match=r"1.nii.gz has no mask of its name"):
        load_dataset(f"volumes:{tmp_path / 'pairs'}", image_size=8)


def write_pair(folder, name, voxels, mask, affine=AFFINE, mask_affine=AFFINE):
    for kind, values, own in (("images", voxels, affine), ("masks", mask, mask_affine)):
        path = folder / kind / f"{name}.nii.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(values, own), path)


def test_masks_of_volumes_of_one_name_are_those_of_their_folder(tmp_path):
    for i in range(3):  # each patient's file has the same name
        mask = np.full((8, 8, 8), i, np.uint8)
        write_pair(tmp_path, f"patient{i}/scan", mask * 10.0, mask)
    found = load_dataset(f"volumes:{tmp_path}", image_size=8)
    for part in (found.train, found.val):
        torch.testing.assert_close(part.images[:, 0] / 10, part.targets.float())
    (tmp_path / "images" / "patient1" / "scan.nii.gz").unlink()
    with pytest.raises(ValueError, match=r"patient1/scan.nii.gz is the mask of no volume"):
        load_dataset(f"volumes:{tmp_path}", image_size=8)


@pytest.mark.parametrize("masks", [True, False])
def test_a_fraction_of_train_is_held_out_and_test_is_left_for_the_end(masks, tmp_path):
    level = 0
    for part, number in (("train", 10), ("val", 2), ("test", 4)):
        for kind in ("images", "masks") if masks else ("a", "b"):
            (tmp_path / part / kind).mkdir(parents=True)
            for i in range(number):  # every volume has a level of its own
                voxels = np.full((8, 8, 8), level := level + 1, np.uint8)
                np.save(tmp_path / part / kind / f"{i}.npy", voxels % 2 if kind == "masks" else voxels)

    def levels(part):
        return set(part.images.unique().tolist())

    plain = load_dataset(f"volumes:{tmp_path}", image_size=8)
    held = load_dataset(f"volumes:{tmp_path}", image_size=8, val_fraction=0.3)
    some = 1 if masks else 2
    assert [len(part) for part in plain.parts().values()] == [10 * some, 2 * some, 4 * some]
    assert [len(part) for part in held.parts().values()] == [7 * some, 3 * some, 4 * some]
    assert levels(held.train) | levels(held.val) == levels(plain.train)
    assert not levels(held.train) & levels(held.val)
    assert levels(held.test) == levels(plain.test)
    assert held.notes == ("val/ is not used: val_fraction holds a part of train/ out",)
    assert not plain.notes


def test_masks_that_lie_elsewhere_are_refused_and_turned_ones_taken(tmp_path):
    voxels = np.arange(512.0).reshape(8, 8, 8)
    mask = (voxels > 99).astype(np.uint8)
    flipped = np.diag([-2.0, 3, 4, 1])
    flipped[:3, 3] = [10 + 2 * 7, 20, 30]
    for i in range(2):
        write_pair(tmp_path / "turned", i, voxels, mask[::-1].copy(), AFFINE, flipped)
        write_pair(tmp_path / "moved", i, voxels, mask, AFFINE, AFFINE + np.eye(4)[:, [1, 2, 3, 0]] * 9)
        write_pair(tmp_path / "unsaid", i, voxels, mask, flipped)
        (tmp_path / "unsaid" / "masks" / f"{i}.nii.gz").unlink()
        np.save(tmp_path / "unsaid" / "masks" / f"{i}.npy", mask.transpose(2, 1, 0))
    found = load_dataset(f"volumes:{tmp_path / 'turned'}", image_size=8).train
    assert ((found.images[:, 0] > 99) == found.targets).all()
    for kind in ("moved", "unsaid"):
        with pytest.raises(ValueError, match=r"masks/[01].\w+.* lies elsewhere in space"):
            load_dataset(f"volumes:{tmp_path / kind}", image_size=8)


def test_what_surrounds_a_small_volume_is_its_least_value_as_in_prediction(tmp_path):
    for i in range(2):
        write_pair(tmp_path, i, np.full((4, 8, 8), -1000.0 + i), np.ones((4, 8, 8), np.uint8))
    assert load_dataset(f"volumes:{tmp_path}", image_size=8).train.images.max() < -900


def test_masks_without_a_class_are_refused(tmp_path):
    for i in range(2):
        write_pair(tmp_path, i, np.zeros((8, 8, 8)), np.full((8, 8, 8), 255, np.uint8))
    with pytest.raises(ValueError, match="255 means that a voxel is left out"):
        load_dataset(f"volumes:{tmp_path}", image_size=8)


def test_held_out_volumes_say_nothing_about_the_normalisation_and_parts_have_one_scale(tmp_path):
    for name in ("a", "b"):
        for part, level in (("train", 100), ("test", 40_000)):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(5):
                np.save(tmp_path / part / name / f"{i}.npy", np.full((4, 4, 4), level + i, np.uint16))
    for path in (tmp_path / "train").rglob("*.npy"):
        np.save(path, np.load(path).astype(np.uint8))
    apart = load_dataset(f"volumes:{tmp_path}", image_size=4)
    assert apart.train.dtype == apart.test.dtype == torch.float32
    assert apart.train.mean[0] == pytest.approx(102)
    alone = load_dataset(f"volumes:{tmp_path / 'train'}", image_size=4)
    assert alone.train.mean[0] * alone.train.scale == pytest.approx(alone.train.images.double().mean().item())
    assert alone.train.mean == alone.val.mean


def test_a_video_that_leads_to_another_file_is_refused(tmp_path):
    make_video(tmp_path / "real.mp4")
    (tmp_path / "list.mp4").write_text("ffconcat version 1.0\nfile real.mp4\n")
    with pytest.raises(ValueError, match=r"list.mp4 is no video that can be read"):
        read_clip(tmp_path / "list.mp4", 4, 16)


def test_frames_of_arrays_keep_their_scale(tmp_path):
    np.save(tmp_path / "deep.npy", np.full((4, 8, 8), 32768, np.uint16))
    np.save(tmp_path / "share.npy", np.full((4, 8, 8), 0.5))
    np.save(tmp_path / "bytes.npy", np.full((4, 8, 8), 128.0))
    for name in ("deep", "share"):
        assert read_clip(tmp_path / f"{name}.npy", 2, 8).mean() == 128
    with pytest.raises(ValueError, match="holds 128 to 128; frames of an array are uint8, uint16, or from 0 to 1"):
        read_clip(tmp_path / "bytes.npy", 2, 8)


def test_folders_of_clips(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(3):
            make_video(tmp_path / name / f"{i}.mp4")
    splits = load_dataset(f"clips:{tmp_path}", frames=4, image_size=16, colour=False, val_fraction=0.33)
    assert splits.train.images.shape == (4, 1, 4, 16, 16)
    assert splits.train.unit == "clips"
    with pytest.raises(ValueError, match=r"6 problems with the data:\n.*has 12 frames along its time"):
        load_dataset(f"clips:{tmp_path}", frames=13)


def test_windows_cover_everything():
    for shape, size, overlap in (
        ((10, 9, 8), (4, 4, 8), 0.5),
        ((3, 5, 7), (3, 2, 4), 0.0),
        ((5, 5, 5), (4, 4, 4), 0.25),
    ):
        seen = np.zeros(shape, bool)
        for t, y, x in window_corners(shape, size, overlap):
            part = seen[t : t + size[0], y : y + size[1], x : x + size[2]]
            assert part.shape == size
            part[:] = True
        assert seen.all()
