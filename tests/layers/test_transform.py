"""The transform of an encoder."""

import copy

import pytest
import torch

from tcpvit.algebra import MatrixTransform, data_driven, get_transform, random_orthogonal
from tcpvit.layers import HatTransform, TLinear, mix_slices
from tcpvit.layers.transform import attach_transform

NAMES = ["dct", "dst", "haar", "identity", "cosine_kka", "learned", "random_orthogonal"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tube", [1, 3, 5])
def test_enter_is_the_algebras_transform_and_leave_its_inverse(name, tube):
    torch.set_default_dtype(torch.float64)
    try:
        phi = HatTransform(name, tube)
    finally:
        torch.set_default_dtype(torch.float32)
    x = torch.randn(2, 5, 4, tube, dtype=torch.float64)
    matrix = get_transform(name, tube).matrix.double()
    torch.testing.assert_close(phi.to_hat_tokens(x), torch.einsum("kc,bndc->kbnd", matrix, x), atol=1e-6, rtol=0)
    torch.testing.assert_close(phi.from_hat_tokens(phi.to_hat_tokens(x)), x)
    torch.testing.assert_close(phi.to_hat(x.movedim(-1, 0)), phi.to_hat_tokens(x))
    torch.testing.assert_close(phi.from_hat(phi.to_hat_tokens(x)), x.movedim(-1, 0))


def test_casting_down_and_up_again_loses_nothing():
    phi = HatTransform("dct", 3).to(torch.bfloat16).double()
    assert torch.equal(phi.matrix, get_transform("dct", 3).matrix)


def test_fixed_transforms_are_not_saved_and_data_driven_ones_are():
    assert not HatTransform("dct", 3).state_dict()
    stored = HatTransform(data_driven(torch.rand(9, 3)), 3)
    assert set(stored.state_dict()) == {"matrix", "inverse_matrix"}
    empty = HatTransform("data_driven", 3)
    empty.load_state_dict(stored.state_dict())
    assert torch.equal(empty.matrix, stored.matrix)


@pytest.mark.parametrize("transform", [MatrixTransform(torch.eye(3) * 2, "mine"), random_orthogonal(3, seed=5)])
def test_transforms_that_no_name_determines_are_saved(transform):
    phi = HatTransform(transform, 3)
    assert phi.name == "matrix"
    assert "matrix" in phi.state_dict()


def test_to_empty_from_meta_gets_the_matrix_back():
    with torch.device("meta"):
        phi = HatTransform("dct", 3)
    phi.to_empty(device="cpu")
    torch.testing.assert_close(phi.matrix, get_transform("dct", 3).matrix.float())


def test_weights_assigned_to_a_model_on_meta_bring_the_matrix_with_them():
    layer = TLinear(4, 6, 3)
    with torch.device("meta"):
        empty = TLinear(4, 6, 3)
    empty.load_state_dict(layer.state_dict(), assign=True)
    assert torch.equal(empty.weight, layer.weight)


@pytest.mark.parametrize(("matrix", "scale"), [(torch.eye(3).flip(0) * 2, 4.0), (torch.ones(3, 3).triu(), None)])
def test_a_stored_matrix_is_as_orthogonal_as_what_is_loaded(matrix, scale):
    stored, empty = HatTransform(matrix, 3), HatTransform("matrix", 3)
    empty.load_state_dict(stored.state_dict())
    assert (empty.scale, empty.is_orthogonal) == (stored.scale, stored.is_orthogonal) == (scale, scale is not None)
    rounded = HatTransform("matrix", 3)
    rounded.load_state_dict(HatTransform(random_orthogonal(3), 3).bfloat16().state_dict())
    assert rounded.is_orthogonal  # as far as half precision can tell


def test_complex_and_unfit_transforms_are_refused():
    with pytest.raises(ValueError, match="complex"):
        HatTransform("dft", 3)
    with pytest.raises(ValueError, match="tube 4"):
        attach_transform(torch.nn.Module(), HatTransform("dct", 4), 3)


def test_a_shared_transform_is_registered_once_and_survives_deepcopy():
    phi = HatTransform("learned", 3)
    holder = torch.nn.ModuleDict({"phi": phi, "a": TLinear(4, 4, 3, phi), "b": TLinear(4, 4, 3, phi)})
    assert sum("basis" in name for name in holder.state_dict()) == 2  # original and base, of one transform
    twin = copy.deepcopy(holder)
    assert twin["a"].transform is twin["phi"]
    assert twin["a"].transform is not phi


def test_mix_slices_mixes_only_slices():
    x = torch.randn(3, 2, 4)
    matrix = torch.randn(2, 3)
    torch.testing.assert_close(mix_slices(matrix, x), torch.einsum("kl,lbd->kbd", matrix, x))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_integers_are_refused_for_they_would_round_the_matrix(dtype):
    phi = HatTransform("dct", 3)
    for method in (phi.to_hat, phi.from_hat, phi.to_hat_tokens, phi.from_hat_tokens):
        with pytest.raises(ValueError, match="floating-point numbers, got torch"):
            method(torch.ones(3, 3, dtype=dtype))


def test_a_stored_transform_without_its_matrix_is_no_silent_identity():
    assert HatTransform("data_driven", 3).to_hat_tokens(torch.randn(4, 3)).isnan().all()


def test_the_matrix_is_the_models_own():
    phi = HatTransform("dct", 3).double()
    phi.matrix.add_(1)
    torch.testing.assert_close(HatTransform("dct", 3).double().matrix, get_transform("dct", 3).matrix)
