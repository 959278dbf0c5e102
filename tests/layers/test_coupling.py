"""Couplings: how they are written, what they cost, where they start."""

import pytest
import torch
from torch import nn

from tcpvit.layers import CoupledTLinear, Coupling, TLayerNorm, TLinear, shuffle_slices, t_linear


def parameters(layer: nn.Module) -> int:
    return sum(p.numel() for p in layer.parameters())


def test_parse():
    assert Coupling.parse(None) == Coupling.parse("none") == Coupling.parse(()) == Coupling()
    assert Coupling.parse("mix+shuffle") == Coupling(mix="identity", shuffle=True)
    assert Coupling.parse(["low_rank:8", "partial:0.5"]) == Coupling(low_rank=8, partial=0.5)


@pytest.mark.parametrize("word", ["mx", "mix:up", "shuffle:2", "low_rank", "low_rank:0", "partial:2", "partial:x"])
def test_unknown_words_are_errors_that_name_the_known(word):
    with pytest.raises(ValueError, match=r"no coupling is written .* Known: mix"):
        Coupling.parse(word)


def test_costs():
    plain = parameters(TLinear(16, 32, 3))
    assert parameters(t_linear(16, 32, 3, coupling=Coupling(shuffle=True))) == plain
    assert parameters(CoupledTLinear(16, 32, 3, coupling=Coupling(mix="identity"))) == plain + 9
    assert parameters(CoupledTLinear(16, 32, 3, coupling=Coupling(low_rank=2))) == plain + 2 * 3 * (16 + 32)
    # ρ = 1/4: 8 of 32 features of every slice read 3·16 numbers, the other 24 read 16
    partial = parameters(CoupledTLinear(16, 32, 3, coupling=Coupling(partial=0.25)))
    assert partial == 3 * (8 * 48 + 24 * 16) + 3 * 32


def test_shared_weights_are_those_of_one_slice_and_with_mix_a_kronecker_product():
    shared = t_linear(16, 32, 3, coupling=Coupling(shared=True))
    assert parameters(shared) == 16 * 32 + 32
    own = TLinear(16, 32, 3)
    own.load_state_dict({name: p.expand(3, -1, -1) for name, p in shared.state_dict().items()})
    x_hat = torch.randn(3, 2, 5, 16)
    torch.testing.assert_close(shared(x_hat), own(x_hat))
    torch.testing.assert_close(shared.weight, own.weight)
    for d_in, d_out in ((4, 6), (6, 4)):  # M acts before the weight, and behind it
        layer = t_linear(d_in, d_out, 3, coupling=Coupling(shared=True, mix="rotation"), bias=False).double()
        x_hat = torch.randn(3, 2, 5, d_in, dtype=torch.float64)
        kronecker = torch.kron(layer.mix, layer.weight_hat[0].mT.contiguous())  # (C·d_out, C·d_in)
        tokens = x_hat.movedim(0, -2).flatten(-2) @ kronecker.mT
        torch.testing.assert_close(layer(x_hat), tokens.unflatten(-1, (3, d_out)).movedim(-2, 0))


def test_shared_weights_without_mix_and_on_any_layout():
    layer = CoupledTLinear(8, 4, 3, coupling=Coupling(shared=True))
    x_hat = torch.randn(2, 5, 3, 8).movedim(2, 0)
    torch.testing.assert_close(layer(x_hat), TLinear.forward(layer, x_hat))
    norm = TLayerNorm(8, 3, shared=True)
    torch.testing.assert_close(norm(x_hat), norm(x_hat.contiguous()))


def test_mixing_matrices_are_drawn_for_a_model_on_meta_too():
    with torch.device("meta"):
        assert CoupledTLinear(4, 6, 3, coupling=Coupling(mix="rotation")).mix.is_meta


@pytest.mark.parametrize("other", ["low_rank:2", "partial:0.5", "two_factor"])
def test_shared_weights_take_no_weights_that_differ_between_slices(other):
    with pytest.raises(ValueError, match="coupled by mix, shuffle and norm"):
        Coupling.parse(["shared", other])


def test_mix_at_the_identity_and_low_rank_start_as_the_plain_layer():
    layer = CoupledTLinear(4, 6, 3, coupling=Coupling(mix="identity", low_rank=2))
    x_hat = torch.randn(3, 2, 4)
    torch.testing.assert_close(layer(x_hat), TLinear.forward(layer, x_hat))


def test_mix_rotation_is_a_rotation_that_torchs_seed_decides():
    def mix(seed):
        torch.manual_seed(seed)
        return CoupledTLinear(4, 6, 3, coupling=Coupling(mix="rotation")).mix

    torch.testing.assert_close(mix(0) @ mix(0).T, torch.eye(3))
    assert torch.equal(mix(0), mix(0))
    assert not torch.equal(mix(0), mix(1))


def test_two_factors_have_no_more_weights_than_the_layer_they_stand_for():
    for d_in, d_out in ((16, 16), (16, 48), (16, 64), (64, 16)):
        layer = t_linear(d_in, d_out, 3, coupling=Coupling(two_factor=True))
        assert 0.9 * 3 * d_in * d_out < parameters(layer) - 3 * d_out <= 3 * d_in * d_out


def test_two_factors_let_every_slice_reach_every_other():
    layer = t_linear(8, 8, 3, coupling=Coupling(two_factor=True)).double()
    jacobian = torch.autograd.functional.jacobian(layer, torch.randn(3, 1, 8, dtype=torch.float64))  # y by x
    assert (jacobian.abs().amax(dim=(1, 2, 4, 5)) > 0).all()


def test_two_factors_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="take even ones"):
        t_linear(5, 8, 3, coupling=Coupling(two_factor=True))
    with pytest.raises(ValueError, match="takes the place of the linear maps"):
        Coupling.parse("two_factor+mix")


def test_partial_of_one_is_a_dense_layer():
    layer = CoupledTLinear(4, 6, 3, coupling=Coupling(partial=1.0))
    assert layer.dense_hat.numel() == 12 * 18
    assert layer(torch.randn(3, 2, 4)).shape == (3, 2, 6)


def test_shuffle_is_a_permutation_across_slices():
    x = torch.arange(3 * 4).view(3, 1, 4)
    shuffled = shuffle_slices(x)
    assert sorted(shuffled.flatten().tolist()) == list(range(12))
    # with C ≤ d every new slice holds features of every old one
    assert all({int(v) // 4 for v in shuffled[k].flatten()} == {0, 1, 2} for k in range(3))
