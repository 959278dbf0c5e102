"""c-product convolutions against the slow reference, against nn.Conv2d, and against what is nearest."""

import pytest
import torch
from torch import nn

from tcpvit.algebra import random_orthogonal
from tcpvit.layers import Coupling, HatTransform, MapCoupling, TConv2d, TubalConv2d, reference, reference_conv
from tcpvit.layers.conv import from_hat_maps, mix_maps, shuffle_maps, t_conv, to_hat_maps
from tcpvit.layers.groups import slice_weight_tubes, undecayed_names


def as_tensor(maps, tube):
    """(B, d·C, H, W) with the tube fastest -> (B, H, W, d, C)."""
    return maps.permute(0, 2, 3, 1).unflatten(-1, (-1, tube))


@pytest.mark.parametrize("transform", ["dct", "haar", "cosine_kka"])
@pytest.mark.parametrize(("kernel_size", "padding", "tube"), [(3, 1, 3), (1, 0, 3), (3, 0, 2), (5, 2, 1)])
def test_convolution_is_the_sum_of_c_products_over_the_taps(transform, kernel_size, padding, tube):
    if transform == "haar" and tube == 1:
        tube = 3
    layer = TubalConv2d(4 * tube, 2 * tube, kernel_size, tube, transform, padding=padding).double()
    nn.init.normal_(layer.bias)
    x = torch.randn(2, 4 * tube, 7, 6, dtype=torch.float64)
    matrix = layer.transform.matrices()[0].double()
    slow = reference_conv.conv(layer.conv, as_tensor(x, tube), matrix) + layer.bias.view(-1, tube)
    torch.testing.assert_close(as_tensor(layer(x), tube), slow)


def test_a_learned_transform_starts_as_the_dct_and_is_trained():
    learned, fixed = (TubalConv2d(12, 6, 3, 3, transform, padding=1) for transform in ("learned", "dct"))
    learned.load_state_dict(fixed.state_dict(), strict=False)
    x = torch.randn(2, 12, 7, 6)
    torch.testing.assert_close(learned(x), fixed(x))
    learned(x).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in learned.parameters())


@pytest.mark.parametrize("stride", [1, 2])
def test_the_dense_convolution_computes_the_same(stride):
    layer = TubalConv2d(12, 6, 3, tube=3, stride=stride, padding=1).double()
    nn.init.normal_(layer.bias)
    x = torch.randn(2, 12, 9, 8, dtype=torch.float64)
    dense = layer.to_dense()
    assert isinstance(dense, nn.Conv2d)
    torch.testing.assert_close(dense(x), layer(x))
    assert sum(p.numel() for p in layer.parameters()) == 12 * 6 * 9 // 3 + 6


def test_from_dense_finds_a_c_product_again_and_the_nearest_one_otherwise():
    layer = TubalConv2d(12, 6, 3, tube=3, padding=1).double()
    again, error = TubalConv2d.from_dense(layer.to_dense(), tube=3)
    assert error < 1e-12
    torch.testing.assert_close(again.conv.weight_hat, layer.conv.weight_hat)
    dense = nn.Conv2d(12, 6, 3, padding=1, dtype=torch.float64)
    nearest, error = TubalConv2d.from_dense(dense, tube=3)
    nearest.conv.weight_hat.grad = None
    distance = (dense.weight.detach() - nearest.weight).square().sum()
    distance.backward()
    assert nearest.conv.weight_hat.grad.abs().max() < 1e-12  # no direction leads nearer
    assert error == pytest.approx((distance.sqrt() / dense.weight.norm()).item())


def test_what_has_no_nearest_is_refused():
    with pytest.raises(ValueError, match="orthogonal"):
        TubalConv2d.from_dense(nn.Conv2d(6, 6, 3), tube=3, transform="cosine_kka")
    for unfit in (nn.Conv2d(6, 6, 3, groups=3), nn.Conv2d(6, 6, (3, 1)), nn.Conv2d(6, 6, 3, dilation=2)):
        with pytest.raises(ValueError, match="square convolutions"):
            TubalConv2d.from_dense(unfit, tube=3)
    with pytest.raises(ValueError, match="no multiple of the tube"):
        TubalConv2d(10, 6, 3, tube=3)
    with pytest.raises(ValueError, match="no multiple of the tube 0"):
        TubalConv2d(6, 6, 3, tube=0)


def test_entering_puts_hat_slices_end_to_end_and_leaving_undoes_it():
    phi = HatTransform("dct", 3).double()
    x = torch.randn(2, 12, 5, 4, dtype=torch.float64)
    slices = reference.to_hat(as_tensor(x, 3), phi.matrix)
    for k, found in enumerate(to_hat_maps(phi, x).chunk(3, dim=1)):
        torch.testing.assert_close(found.permute(0, 2, 3, 1), slices[k])
    torch.testing.assert_close(from_hat_maps(phi, to_hat_maps(phi, x)), x)


@pytest.mark.parametrize("coupling", ["mix", "mix:rotation", "shuffle", "mix:rotation+shuffle"])
def test_couplings_are_those_of_tensor_tokens(coupling):
    couple = MapCoupling(3, Coupling.parse(coupling)).double()
    x_hat = torch.randn(2, 12, 3, 3, dtype=torch.float64)
    X = torch.stack([part.permute(0, 2, 3, 1) for part in x_hat.chunk(3, 1)], -1)  # (B, H, W, d, C)
    identity = torch.eye(3, dtype=torch.float64)  # the slices are given in the hat domain already
    if "mix" in coupling:
        X = reference.from_hat(reference.to_hat(X, couple.mix.detach()), identity)
    if "shuffle" in coupling:
        X = reference.shuffle(X, identity)
    expected = torch.cat(X.permute(0, 3, 1, 2, 4).unbind(-1), 1)
    torch.testing.assert_close(couple(x_hat), expected)


@pytest.mark.parametrize("coupling", ["low_rank:2", "partial:0.4", "partial:1", "low_rank:1+partial:0.3"])
@pytest.mark.parametrize(("kernel_size", "padding"), [(3, 1), (1, 0)])
def test_coupled_convolutions_equal_the_reference(coupling, kernel_size, padding):
    layer = t_conv(4, 5, kernel_size, 3, padding=padding, coupling=Coupling.parse(coupling)).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x_hat = torch.randn(2, 12, 6, 5, dtype=torch.float64)
    X = torch.stack([part.permute(0, 2, 3, 1) for part in x_hat.chunk(3, 1)], -1)  # (B, H, W, d, C)
    slow = reference_conv.conv(
        layer, X, torch.eye(3, dtype=torch.float64)
    )  # the slices are given in the hat domain already
    torch.testing.assert_close(layer(x_hat), torch.cat(slow.permute(0, 3, 1, 2, 4).unbind(-1), 1))


def test_a_coupled_convolution_that_reads_everything_is_dense_and_low_rank_starts_as_none():
    dense = t_conv(4, 6, 3, 3, padding=1, coupling=Coupling(partial=1.0))
    x_hat = torch.randn(2, 12, 6, 5)
    torch.testing.assert_close(dense(x_hat), nn.functional.conv2d(x_hat, dense.dense_hat, dense.bias_hat, padding=1))
    nn.init.ones_(dense.bias_hat)
    dense.reset_parameters()
    assert not dense.bias_hat.any()
    dense(x_hat).sum().backward()  # DDP waits for the gradient of every parameter that asks for one
    assert all(p.grad is not None for p in dense.parameters() if p.requires_grad)
    layer = t_conv(4, 6, 3, 3, padding=1, coupling=Coupling(low_rank=2))
    torch.testing.assert_close(layer(x_hat), TConv2d.forward(layer, x_hat))
    layer(x_hat).square().sum().backward()
    assert layer.u_hat.grad.abs().max() > 0


@pytest.mark.parametrize("coupling", ["two_factor", "norm", "shared"])
def test_couplings_of_linear_maps_are_refused(coupling):
    with pytest.raises(ValueError, match=f"coupled by mix, shuffle, low_rank and partial, not by {coupling}"):
        MapCoupling(3, Coupling.parse(coupling))


def test_maps_that_nothing_couples_are_refused():
    with pytest.raises(ValueError, match="by mix and shuffle, got Coupling"):
        MapCoupling(3, Coupling.parse("low_rank:2"))


def test_the_channels_of_a_pixel_stay_together_in_memory():
    x = torch.randn(2, 12, 5, 4).contiguous(memory_format=torch.channels_last)
    matrix = random_orthogonal(3, seed=0).matrix.float()
    coupled = t_conv(4, 6, 3, 3, padding=1, coupling=Coupling(low_rank=2, partial=0.5))
    for y in (mix_maps(matrix, x), shuffle_maps(x, 3), TConv2d(4, 2, 3, tube=3)(x), coupled(x)):
        assert y.is_contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        assert coupled(x).dtype == torch.bfloat16


def test_mixing_matrices_do_not_decay_and_slices_know_their_tube():
    layers = nn.Sequential(MapCoupling(3, Coupling.parse("mix")), TConv2d(4, 2, 3, tube=3))
    assert undecayed_names(layers) == {"0.mix", "1.bias_hat"}
    assert slice_weight_tubes(layers) == {"1.weight_hat": 3}
