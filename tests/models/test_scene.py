"""Models of many bands: counts, the reference, what is saved; and what a norm by slices cannot see."""

import dataclasses

import pytest
import torch

import tcpvit
from tcpvit.analysis import count_flops, count_parameters, predict_flops, predict_parameters
from tcpvit.layers import reference
from tcpvit.layers.kernels import ops
from tcpvit.models import ViTConfig, dense_twin, model_config

PARAMETERS = {
    "tcp_scene": 13_936,
    "tcp_scene_stem": 15_216,
    "tcp_scene_shuffle": 44_048,
    "std_scene": 87_312,
    "std_scene_small": 13_216,
}
SMALL = {"in_chans": 12, "kept": 6, "img_size": 4, "patch_size": 2, "depth": 2}
TCP_SMALL = [
    ("tcp_scene", {"embed_dim": 24}),
    ("tcp_scene", {"embed_dim": 24, "attention": "slice", "num_heads": 2, "img_size": (4, 6)}),
    ("tcp_scene_stem", {"embed_dim": 24, "stem": 3}),
    ("tcp_scene_shuffle", {"tube": 3, "embed_dim": 24}),
    ("tcp_scene", {"embed_dim": 24, "band_basis": torch.randn(6, 12)}),
    ("tcp_scene_stem", {"embed_dim": 24, "kept": None, "in_chans": 6}),
]


@pytest.mark.parametrize(("name", "total"), PARAMETERS.items())
def test_counts_are_predicted_by_component(name, total):
    counted, predicted = count_parameters(tcpvit.create_model(name)), predict_parameters(model_config(name))
    assert counted == predicted == total
    assert counted.components == {component: n for component, n in predicted.components.items() if n}


def test_a_learned_basis_counts():
    options = {"band_basis": "learned"}
    counted = count_parameters(tcpvit.create_model("tcp_scene", **options))
    assert counted == predict_parameters(model_config("tcp_scene", **options)) == 13_936 + 32 * 200


@pytest.mark.parametrize("name", PARAMETERS)
def test_matrix_products_are_predicted_by_component(name, monkeypatch):
    monkeypatch.setattr(ops, "can_use_attention", lambda *_: False)
    predicted = predict_flops(model_config(name))
    found = count_flops(tcpvit.create_model(name)).components
    assert found == {component: work.matrix for component, work in predicted.items() if work.matrix}


@pytest.mark.parametrize(("name", "options"), TCP_SMALL)
def test_features_equal_the_reference_and_the_dense_twin(name, options):
    model = tcpvit.create_model(name, **(SMALL | options)).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    images = torch.randn(2, model.config.in_chans, *model.config.image_shape, dtype=torch.float64)
    if model.config.kept:
        model.bands.standardise_(images.movedim(1, -1).flatten(0, -2))
    features = model.forward_features(images)
    torch.testing.assert_close(features, reference.features(model, images), atol=1e-10, rtol=1e-9)
    torch.testing.assert_close(features, dense_twin(model).forward_features(images), atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize(
    ("bands", "kept", "window", "patch"), [(200, 32, 9, 3), (103, 20, 11, 11), (13, 13, 8, 2), (4, 2, 7, 1)]
)
@pytest.mark.parametrize("name", ["tcp_scene", "tcp_scene_stem", "std_scene"])
def test_any_number_of_bands_window_and_patch(name, bands, kept, window, patch):
    width = 64 if name == "std_scene" else 8 * kept
    sizes = {"in_chans": bands, "kept": kept, "img_size": window, "patch_size": patch, "embed_dim": width}
    model = tcpvit.create_model(name, **sizes, num_classes=5)
    assert model(torch.randn(2, bands, window, window)).shape == (2, 5)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_saved_model_comes_back_with_its_wavelengths(name, tmp_path):
    wavelengths = tuple(400.0 + 9.5 * i for i in range(200))
    model = tcpvit.create_model(name, wavelengths=wavelengths).eval()
    model.bands.standardise_(torch.randn(30, 200).cumsum(1))
    tcpvit.save_pretrained(model, tmp_path)
    again = tcpvit.from_pretrained(tmp_path)
    windows = torch.randn(3, 200, 9, 9)
    assert again.config == model.config
    assert again.config.wavelengths == wavelengths
    assert torch.equal(again(windows), model(windows))
    again.reset_classifier(4)
    assert again(windows).shape == (3, 4)


def test_given_axes_are_saved(tmp_path):
    axes = torch.linalg.qr(torch.randn(200, 32)).Q.mT
    model = tcpvit.create_model("tcp_scene", band_basis=axes).eval()
    tcpvit.save_pretrained(model, tmp_path)
    windows = torch.randn(2, 200, 9, 9)
    assert torch.equal(tcpvit.from_pretrained(tmp_path)(windows), model(windows))
    assert model.config.band_basis == "pca"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kept": 300}, "kept=300 coefficients are more than the 200 bands have"),
        ({"kept": None, "band_basis": "haar"}, "band_basis='haar' needs kept"),
        ({"band_basis": "pca"}, "band_basis='pca' needs its matrix"),
        ({"stem": -1}, "stem should be a whole number of at least 0, got -1"),
        ({"wavelengths": (400.0, 500.0)}, "2 wavelengths were given for 200 bands"),
        ({"wavelengths": (-1.0,) * 200}, "positive numbers of nanometres"),
        ({"tube": 7}, "the tube 7 does not divide the width 256"),
    ],
)
def test_misuse_is_one_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        tcpvit.create_model("tcp_scene", **options)


def test_options_of_scenes_leave_other_models_alone():
    fields = {f.name: f.default for f in dataclasses.fields(ViTConfig)}
    assert (fields["kept"], fields["stem"], fields["wavelengths"]) == (None, 0, None)
    assert not any(name.startswith(("bands", "stem")) for name in tcpvit.create_model("tcp_vit_cifar").state_dict())


def compiled_equals_eager(model, windows):
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(windows).sum().backward()
    torch.testing.assert_close(compiled(windows), model(windows), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["tcp_scene_stem", "tcp_scene_shuffle", "std_scene"])
def test_compiles_as_one_graph_and_exports_with_dynamic_batch(name):
    model, windows = tcpvit.create_model(name, depth=1), torch.randn(2, 200, 9, 9)
    compiled_equals_eager(model, windows)
    program = torch.export.export(model.eval(), (windows,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    more = torch.cat([windows, windows + 1])
    torch.testing.assert_close(program.module()(more), model(more), atol=1e-5, rtol=1e-4)


# ---------------------------------------------------------------------------------------- what a norm cannot see


def change_by_patch_means(name, **options):
    """Relative change of the logits after a random constant is added to each channel of each patch."""
    model = tcpvit.create_model(name, **options).double().eval()
    config = model.config
    images = torch.randn(4, config.in_chans, *config.image_shape, dtype=torch.float64)
    down, across = config.grid_of(*config.image_shape)
    means = torch.randn(4, config.in_chans, down, across, dtype=torch.float64)
    shift = means.repeat_interleave(config.patch_size, 2).repeat_interleave(config.patch_size, 3)
    before, after = model(images), model(images + shift)
    return ((after - before).norm() / before.norm()).item()


@pytest.mark.parametrize(
    "options", [{}, {"attention": "joint"}, {"activation_domain": "spatial"}, {"coupling": "mix:rotation"}]
)
def test_the_papers_classifier_is_blind_to_the_mean_colour_of_a_patch(options):
    """With the patch itself as token, every norm by slices takes away its means, whatever the weights are."""
    assert change_by_patch_means("tcp_vit_cifar", **options) < 1e-5


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tcp_vit_cifar", {"coupling": "norm"}),
        ("tcp_vit_cifar", {"patch_embed": "t_linear"}),
        ("std_vit_cifar", {}),
        ("tcp_scene", {}),
        ("tcp_scene_stem", {}),
        ("tcp_scene_shuffle", {}),
    ],
)
def test_other_classifiers_see_it(name, options):
    assert change_by_patch_means(name, **options) > 0.1
