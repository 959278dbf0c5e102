"""Tube transforms as objects: inverses, dimensions, dtypes, learning, copies, caches, and what is refused."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slice_cases import close, transforms_for
from torch.autograd import gradcheck, gradgradcheck

from tcpvit.algebra import data_driven, get_transform, list_transforms, random_orthogonal
from tcpvit.algebra.learned import LearnedTransform
from tcpvit.algebra.transforms import MatrixTransform

FLOAT = torch.float64
few = settings(max_examples=30)


# --- inverses, dimensions, dtypes -------------------------------------------------------------------------------------


@few
@given(data=st.data(), C=st.integers(1, 9), ndim=st.integers(1, 4))
def test_round_trip_along_any_dimension(data, C, ndim):
    transform = data.draw(st.sampled_from(transforms_for(C)))
    dim = data.draw(st.integers(-ndim, ndim - 1))
    shape = data.draw(st.lists(st.integers(0, 3), min_size=ndim, max_size=ndim))
    shape[dim] = C
    x = torch.randn(shape, dtype=FLOAT)
    x_hat = transform.to_hat(x, dim=dim)
    assert x_hat.shape == x.shape
    close(transform.from_hat(x_hat, dim=dim), x)
    moved = x.movedim(dim, 0).reshape(C, -1)
    expected = transform.matrix.detach() @ moved.to(transform.matrix.dtype)
    close(x_hat.movedim(dim, 0).reshape(C, -1), expected)


@pytest.mark.parametrize("C", [4, 256])
@pytest.mark.parametrize("name", ["dct", "haar", "hadamard", "identity", "dft", "cosine_kka"])
def test_complex_tensors_are_transformed_by_parts(name, C):
    x = torch.complex(torch.randn(3, C, dtype=FLOAT), torch.randn(3, C, dtype=FLOAT))
    transform = get_transform(name, C)
    close(transform.to_hat(x), x @ transform.matrix.mT.to(x.dtype))
    close(transform.from_hat(transform.to_hat(x), real=False), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["dct", "dft", "haar", "identity"])
def test_half_precision_is_transformed_in_single(name, dtype):
    x = torch.randn(5, 6, dtype=dtype)
    transform = get_transform(name, 6)
    exact = transform.to_hat(x.double())
    x_hat = transform.to_hat(x)
    if name == "dft":
        assert x_hat.dtype == torch.complex64
        close(x_hat.to(torch.complex128), exact, 1e-6)
    else:
        assert torch.equal(x_hat, transform.to_hat(x.float()).to(dtype))
    back = transform.from_hat(x_hat)
    assert back.dtype == (torch.float32 if name == "dft" else dtype)
    close(back.double(), x.double(), 2 * torch.finfo(dtype).eps)


def test_complex_matrix_of_the_users_takes_real_tensors():
    M = torch.randn(3, 3, dtype=torch.complex64)
    transform, x = MatrixTransform(M), torch.randn(4, 5, 3)
    assert transform.is_complex
    close(transform.to_hat(x), x.to(torch.complex64) @ M.mT, 1e-5)
    close(transform.from_hat(transform.to_hat(x)), x, 1e-5)


def test_users_matrix_is_copied():
    M = torch.eye(3, dtype=FLOAT).requires_grad_()
    transform = MatrixTransform(M)
    with torch.no_grad():
        M.mul_(2)
    assert torch.equal(transform.matrix, torch.eye(3, dtype=FLOAT))
    assert not transform.matrix.requires_grad


@pytest.mark.parametrize("C", [1, 2, 3, 5, 6, 7, 8])
def test_slices_come_first_and_contiguous(C):
    transform = get_transform("dct", C)
    x_hat = transform.to_hat_slices(torch.randn(4, 5, C))
    assert x_hat.shape == (C, 4, 5)
    assert x_hat.is_contiguous()
    assert transform.from_hat_slices(x_hat).movedim(-1, 0).is_contiguous()


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dct", "dst", "haar", "hadamard", "identity", "dft", "cosine_kka"])
def test_gradients_of_the_transform(name):
    transform = get_transform(name, 4)
    x = torch.randn(2, 2, 4, dtype=FLOAT, requires_grad=True)
    for function in (transform.to_hat, transform.from_hat):
        assert gradcheck(function, x)
        assert gradgradcheck(function, x)


# --- learned and data-driven ------------------------------------------------------------------------------------------


def test_learned_transform_starts_where_it_is_told():
    for start in ("dct", "haar", random_orthogonal(4, seed=3), random_orthogonal(4, seed=4).matrix):
        close(LearnedTransform(4, start).matrix.detach(), get_transform(start, 4).matrix.float(), 1e-6)


@pytest.mark.parametrize("C", [1, 2, 3, 6])
def test_learned_transform_stays_orthogonal_while_it_learns(C):
    learned, target = LearnedTransform(C), random_orthogonal(C, seed=C)
    x = torch.randn(50, C)
    optimiser = torch.optim.Adam(learned.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        loss = (learned.to_hat(x) - target.to_hat(x)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    close((learned.matrix @ learned.matrix.mT).detach(), torch.eye(C), 1e-5)
    close(learned.from_hat(learned.to_hat(x)).detach(), x, 1e-5)
    if C > 2:  # at C = 2 the target may lie on the other sheet of the orthogonal group, and at 1 nothing moves
        assert losses[-1] < 0.9 * losses[0]


def test_learned_transform_gets_gradients_through_both_ways():
    learned = LearnedTransform(3).double()
    x = torch.randn(4, 3, dtype=FLOAT, requires_grad=True)
    weights = list(learned.parameters())
    assert [w.shape for w in weights] == [(3, 3)]
    assert gradcheck(learned.to_hat, x)
    loss = learned.from_hat(learned.to_hat(x) ** 3).sum()
    grads = torch.autograd.grad(loss, [x, *weights])
    assert all(g.abs().sum() > 0 for g in grads)


def test_learned_transform_is_saved_by_its_state():
    first, second = LearnedTransform(4, random_orthogonal(4)), LearnedTransform(4)
    second.load_state_dict(first.state_dict())
    close(second.matrix, first.matrix, 1e-6)
    copied = copy.deepcopy(first)
    with torch.no_grad():
        next(copied.parameters()).add_(0.1 * torch.randn(4, 4))
    assert not torch.allclose(copied.matrix, first.matrix)


def test_data_driven_transform_is_the_left_singular_basis():
    x = torch.randn(7, 6, 5, dtype=FLOAT) @ torch.diag(torch.tensor([5.0, 3, 2, 1, 0.1], dtype=FLOAT))
    U = torch.linalg.svd(x.reshape(-1, 5).mT, full_matrices=False).U
    close((data_driven(x).matrix @ U).abs(), torch.eye(5, dtype=FLOAT), 1e-8)


@few
@given(C=st.integers(1, 6), seed=st.integers(0, 100))
def test_data_driven_transform_compacts_energy_best(C, seed):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(C, C, dtype=FLOAT, generator=generator)
    x = torch.randn(5, 4, C, dtype=FLOAT, generator=generator) @ mixing
    energy = data_driven(x).to_hat(x).square().sum((0, 1)).cumsum(0)
    for transform in transforms_for(C):
        if transform.scale == 1.0 and not transform.is_complex:
            other = transform.to_hat(x).square().sum((0, 1)).sort(descending=True).values.cumsum(0)
            assert (energy >= other - 1e-9 * energy[-1]).all()


def test_data_driven_transform_of_less_data_than_channels():
    x = torch.randn(1, 2, 5)
    transform = data_driven(x)
    assert transform.scale == 1.0
    close(transform.to_hat(x)[..., 2:].double(), torch.zeros(1, 2, 3, dtype=FLOAT), 1e-5)
    close(transform.matrix, data_driven(x.clone()).matrix)


def test_rows_of_a_data_driven_transform_point_one_way():
    M = data_driven(torch.randn(7, 6, 5)).matrix
    assert (M.gather(1, M.abs().argmax(dim=1, keepdim=True)) > 0).all()


def test_random_orthogonal_reaches_the_whole_group():
    """QR alone would give 1 for every seed."""
    assert {random_orthogonal(1, seed).matrix.item() for seed in range(10)} == {-1.0, 1.0}


def test_random_orthogonal_depends_on_its_seed_alone():
    first = random_orthogonal(6, seed=1).matrix
    torch.rand(3)
    assert torch.equal(first, random_orthogonal(6, seed=1).matrix)
    assert not torch.allclose(first, random_orthogonal(6, seed=2).matrix)
    close(first @ first.mT, torch.eye(6, dtype=FLOAT))


# --- objects ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("C", [4, 256])
@pytest.mark.parametrize("name", ["dct", "dft", "haar", "hadamard", "identity", "cosine_kka"])
def test_transforms_are_copied_and_pickled(name, C):
    transform, x = get_transform(name, C), torch.randn(2, C)
    expected = transform.to_hat(x)
    for twin in (copy.deepcopy(transform), pickle.loads(pickle.dumps(transform))):
        assert repr(twin) == repr(transform)
        assert twin._casts == {}
        assert torch.equal(twin.to_hat(x), expected)


def test_a_name_gives_the_same_object_each_time():
    assert get_transform("dct", 5) is get_transform("dct", 5)
    assert get_transform("learned", 5) is not get_transform("learned", 5)


def test_every_listed_name_is_taken():
    for name in list_transforms():
        transform = get_transform(name.replace("NAME", "db1"), 4)
        assert transform.tube == 4
        assert f"({transform.name}, tube=4)" in repr(transform)


@pytest.mark.parametrize("C", [4, 256])
@pytest.mark.parametrize("name", ["dct", "dft", "haar", "hadamard", "identity", "cosine_kka"])
def test_results_share_no_memory_with_their_input(name, C):
    transform, x = get_transform(name, C), torch.randn(2, C)
    for function in (transform.to_hat, transform.from_hat):
        kept = x.clone()
        function(x).zero_()
        assert torch.equal(x, kept)


def test_learned_transform_is_made_under_autocast_and_on_meta():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        learned = LearnedTransform(3)
    close(learned.matrix.detach(), get_transform("dct", 3).matrix.float(), 1e-6)
    with torch.device("meta"):
        assert LearnedTransform(3).matrix.device.type == "meta"


@pytest.mark.parametrize("C", [11, 139])
def test_first_use_in_a_mode_leaves_no_mark(C):
    """Whatever is kept after a first use under inference, torch.func or a meta device must serve training after it."""
    x = torch.randn(2, C)

    def energy(x):
        return get_transform("dct", C).to_hat(x).pow(3).sum()

    with torch.inference_mode():
        energy(x)
    expected = torch.func.grad(energy)(x)
    with torch.device("meta"):
        get_transform("dct", C + 1)
    for tube in (C, C + 1):
        leaf = torch.randn(2, tube, requires_grad=True)
        get_transform("dct", tube).to_hat(leaf).sum().backward()
        assert leaf.grad.device.type == "cpu"
    leaf = x.clone().requires_grad_()
    energy(leaf).backward()
    close(leaf.grad, expected, 1e-4)


@pytest.mark.parametrize("make", [MatrixTransform, data_driven, lambda M: LearnedTransform(3, M).double()])
def test_transforms_made_in_inference_mode_serve_training(make):
    with torch.inference_mode():
        transform = make(random_orthogonal(3).matrix)
    x = torch.randn(2, 3, dtype=FLOAT, requires_grad=True)
    transform.from_hat(transform.to_hat(x) ** 2).sum().backward()
    assert x.grad is not None


def test_threads_share_the_transforms():
    x = torch.randn(3, 149)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: get_transform("dct", 149).to_hat(x), range(32)))
    assert all(torch.equal(result, results[0]) for result in results)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: get_transform("dctt", 3), "no transform is called 'dctt'; did you mean 'dct'"),
        (lambda: get_transform("nothing", 3), "no transform is called 'nothing'. Known: dct, dst"),
        (
            lambda: get_transform("hadamard", 3),
            "hadamard needs a tube whose length is a power of two, got 3; take 2 or 4",
        ),
        (lambda: get_transform("hadamard", 300), "got 300; take 256 or 512"),
        (lambda: get_transform("dct", 0), "a tube has at least one entry, got length 0"),
        (lambda: get_transform("wavelet:db2", 5), "a periodic wavelet basis needs an even tube, got 5"),
        (lambda: get_transform("wavelet:dbb2", 4), "PyWavelets has no wavelet 'dbb2'; did you mean 'db2'"),
        (lambda: get_transform("wavelet:bior2.2", 4), "the wavelet 'bior2.2' is not orthonormal at tube length 4"),
        (lambda: get_transform(random_orthogonal(4), 3), "transforms tubes of length 4, but the tensor's tube has 3"),
        (lambda: get_transform(torch.eye(4), 3), "transforms tubes of length 4, but the tensor's tube has 3"),
        (lambda: get_transform(7, 3), "a transform is a name, a Transform or a matrix, got int"),
        (lambda: MatrixTransform(torch.ones(2, 3)), r"a transform's matrix is square, \(C, C\), got shape \(2, 3\)"),
        (lambda: MatrixTransform(torch.tensor(1.0)), r"a transform's matrix is square, \(C, C\), got shape \(\)"),
        (lambda: MatrixTransform(torch.ones(0, 0)), r"a transform's matrix is square, \(C, C\), got shape \(0, 0\)"),
        (lambda: MatrixTransform(torch.full((2, 2), torch.nan)), "a transform's matrix is finite, got NaN or infinity"),
        (
            lambda: MatrixTransform(torch.ones(2, 2)),
            "a transform's matrix is invertible, got one with condition number",
        ),
        (
            lambda: MatrixTransform(torch.diag(torch.tensor([1.0, 1e-13]))),
            r"a transform's matrix is invertible, got one with condition number 1\.0e\+13",
        ),
        (
            lambda: get_transform("dct", 3).to_hat(torch.ones(2, 3).long()),
            "takes floating-point numbers, got torch.int64",
        ),
        (
            lambda: get_transform("dft", 3).to_hat(torch.ones(2, 4)),
            r"tubes of length 3, got 4 in dimension -1 of \(2, 4\)",
        ),
        (lambda: get_transform("dct", 3).from_hat(torch.ones(2, 3), dim=0), "tubes of length 3, got 2 in dimension 0"),
        (lambda: LearnedTransform(3, "cosine_kka"), "a learned transform starts at a real orthogonal one, but"),
        (lambda: LearnedTransform(3, "dft"), "a learned transform starts at a real orthogonal one, but"),
        (lambda: data_driven(torch.ones(2, 2, 3, dtype=torch.complex64)), "data_driven needs real data"),
        (lambda: data_driven(torch.ones(0, 2, 3)), r"data_driven needs real data, .* of shape \(0, 2, 3\)"),
        (lambda: data_driven(torch.full((2, 2, 3), torch.inf)), "data_driven needs finite data"),
    ],
)
def test_refusals_name_the_fault(make, message):
    with pytest.raises(ValueError, match=message):
        make()
