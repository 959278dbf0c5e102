"""Layers on the grid of tokens, beside their slow twins and torch's own convolutions."""

import pytest
import torch
from torch.nn import functional as F

from tcpvit.layers import Block, TBlock, reference_local
from tcpvit.layers.local import (
    ConvEmbed,
    TokenConv,
    conv_widths,
    maps_to_tokens,
    pool_tokens,
    spread_tokens,
    tokens_to_maps,
)

F64 = torch.float64


def randomised(layer):
    for parameter in layer.double().parameters():
        torch.nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize(("patch", "tube"), [(2, 4), (4, 4), (8, 2), (4, None)])
def test_overlapping_patches(patch, tube):
    embed = randomised(ConvEmbed(3, patch, between=8, d=5, tube=tube))
    images = torch.randn(2, 3, 16, 24, dtype=F64)
    slow = torch.stack(reference_local.overlapping_patches(embed, images))  # (C, B, N, d)
    torch.testing.assert_close(embed(images), slow if tube else slow[0])


def test_the_slices_of_overlapping_patches_stay_apart_behind_the_first_convolution():
    embed = randomised(ConvEmbed(3, 4, between=8, d=5, tube=4))
    images = torch.randn(1, 3, 8, 8, dtype=F64)
    before = embed(images)
    with torch.no_grad():
        embed.first.weight[2:4].normal_()  # of the second slice
    changed = (embed(images) - before).abs().amax((1, 2, 3)) > 0
    assert changed.tolist() == [False, True, False, False]


def test_patches_are_a_power_of_two():
    assert conv_widths(8, 6, 24) == [6, 6, 24]
    with pytest.raises(ValueError, match=r"2, 4, 8, \.\.\., got 6"):
        conv_widths(6, 6, 24)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("tube", [1, 3])
def test_filters(tube, kernel, shared):
    layer = randomised(TokenConv(4, kernel, tube, shared=shared))
    x_hat = torch.randn(tube, 2, 15, 4, dtype=F64)
    slow = torch.stack(reference_local.filtered(layer, list(x_hat), (3, 5)))
    torch.testing.assert_close(layer(x_hat, (3, 5)), slow)


def test_filters_are_torchs_own():
    layer = randomised(TokenConv(4, 3, tube=3))
    maps = torch.randn(2, 12, 5, 7, dtype=F64)
    expected = F.conv2d(maps, layer.weight_hat, layer.bias_hat, padding=1, groups=12)
    torch.testing.assert_close(tokens_to_maps(layer(maps_to_tokens(maps, 3), (5, 7)), (5, 7)), expected)


@pytest.mark.parametrize("pool", [1, 2, 3])
def test_pooling_and_spreading(pool):
    grid = (6, 12)
    X = torch.randn(2, 72, 4, 3, dtype=F64)
    x_hat = X.movedim(-1, 0)  # (C, B, N, d): tubes are not touched
    few = pool_tokens(x_hat, grid, pool)
    torch.testing.assert_close(few.movedim(0, -1), reference_local.pooled(X, grid, pool))
    again = spread_tokens(few, grid, pool).movedim(0, -1)
    torch.testing.assert_close(again, reference_local.spread(few.movedim(0, -1), grid, pool))


def test_pooling_that_does_not_fit():
    with pytest.raises(ValueError, match="attention_pool=2 does not divide the grid of 3×4 tokens"):
        pool_tokens(torch.zeros(1, 12, 4), (3, 4), 2)


@pytest.mark.parametrize("options", [{"local": 3}, {"attention_pool": 2}])
@pytest.mark.parametrize("kind", ["std", "tcp"])
def test_blocks_ask_for_the_grid(kind, options):
    block, x = (Block(8, 2, **options), torch.zeros(1, 16, 8))
    if kind == "tcp":
        block, x = TBlock(4, 2, tube=2, **options), torch.zeros(2, 1, 16, 4)
    assert block(x, (4, 4)).shape == x.shape
    with pytest.raises(ValueError, match=r"call block\(x, grid\)"):
        block(x)
