"""The kernels that take tubes apart and together, against matrix products."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tcpvit.layers import HatTransform
from tcpvit.layers.kernels import ops
from tcpvit.layers.kernels.build import is_built
from tcpvit.layers.kernels.ops import FROM_HAT_LENGTHS, TO_HAT_LENGTHS, can_use_tubes, from_hat_tubes, to_hat_tubes
from tcpvit.timing import using_threads

pytestmark = pytest.mark.skipif(not is_built("tubes"), reason="no compiler here: the kernel is not built")


@given(st.integers(2, 8), st.sampled_from([1, 2, 15, 16, 17, 1023, 1024, 1025, 3000]), st.integers(1, 2))
def test_equal_matrix_products(C, R, threads):
    x, matrix = torch.randn(R, C, dtype=torch.float64), torch.randn(C, C, dtype=torch.float64)
    with using_threads(threads):
        apart, together = to_hat_tubes(x, matrix), from_hat_tubes(x.mT, matrix)  # a transposed input too
    torch.testing.assert_close(apart, matrix @ x.mT)
    torch.testing.assert_close(together, x @ matrix.mT)
    assert apart.is_contiguous()
    assert together.is_contiguous()
    torch.testing.assert_close(to_hat_tubes(x.float(), matrix.float()), (matrix @ x.mT).float(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("operator", [to_hat_tubes, from_hat_tubes])
def test_gradients_and_the_manners_of_an_operator(operator):
    x = torch.randn((4, 3) if operator is to_hat_tubes else (3, 4), dtype=torch.float64, requires_grad=True)
    matrix = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(operator, (x, matrix))
    assert torch.autograd.gradgradcheck(operator, (x, matrix))
    assert torch.autograd.gradcheck(operator, (x, matrix.detach()))
    torch.library.opcheck(operator._opoverload, (x, matrix))
    with pytest.raises(ValueError, match="tubes are of 2 to 8 floats or doubles here, got 9"):
        operator(torch.zeros(9, 9), torch.eye(9))


@pytest.mark.parametrize("tube", [2, 3, 6])
@pytest.mark.parametrize("name", ["dct", "learned", "cosine_kka"])
def test_a_transform_computes_the_same_with_and_without(tube, name, monkeypatch):
    phi, x = HatTransform(name, tube).double(), torch.randn(7, 500, 4, tube, dtype=torch.float64)

    def run():
        start = x.clone().requires_grad_()
        x_hat = phi.to_hat_tokens(start)
        back = phi.from_hat_tokens(x_hat * torch.arange(1.0, tube + 1).view(-1, 1, 1, 1))
        wanted = [start, *phi.parameters()]
        return x_hat, back, *torch.autograd.grad(back.square().sum(), wanted)

    fast = run()
    monkeypatch.setattr(ops, "can_use_tubes", lambda *_: False)
    for ours, torchs in zip(fast, run(), strict=True):
        torch.testing.assert_close(ours, torchs)


def test_which_tubes_are_taken():
    many = torch.zeros(4096, 3)
    assert can_use_tubes(many, 3, TO_HAT_LENGTHS)
    assert not can_use_tubes(many, 6, TO_HAT_LENGTHS)
    assert can_use_tubes(many, 6, FROM_HAT_LENGTHS)
    assert not can_use_tubes(many[:100], 3, TO_HAT_LENGTHS)
    assert not can_use_tubes(many.bfloat16(), 3, TO_HAT_LENGTHS)
    assert not can_use_tubes(many.to("meta"), 3, TO_HAT_LENGTHS)
