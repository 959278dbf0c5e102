"""Where the letter of the paper differs from our decisions, and by how much (FACTS.md, section 3)."""

import torch

from tcpvit.algebra import cprod, get_transform, identity
from tcpvit.layers import reference

F64 = torch.float64
DCT, KKA = get_transform("dct", 3).matrix, get_transform("cosine_kka", 3).matrix


def random(*shape):
    return torch.randn(*shape, dtype=F64)


def test_product_equals_the_algebra():
    A, B = random(4, 5, 3), random(5, 2, 3)
    for name in ("dct", "cosine_kka", "haar"):
        torch.testing.assert_close(reference.product(A, B, get_transform(name, 3).matrix), cprod(A, B, name))


def test_literal_identity_is_one_for_kka_and_not_for_the_dct():
    A, literal = random(4, 4, 3), reference.literal_identity(4, 3).double()
    torch.testing.assert_close(cprod(literal, A, "cosine_kka"), A)
    torch.testing.assert_close(identity(4, 3, "cosine_kka", dtype=F64), literal)
    assert (cprod(literal, A, "dct") - A).norm() > 0.1 * A.norm()
    # the paper says all hat slices are I; they are (.577, .707, .408)·I
    diagonal = torch.stack([slice_k[0, 0] for slice_k in reference.to_hat(literal, DCT)])
    torch.testing.assert_close(diagonal, torch.tensor([0.577, 0.707, 0.408], dtype=F64), atol=5e-4, rtol=0)


def test_literal_attention_transforms_twice_and_loses_the_rows_that_sum_to_one():
    Q, K, V = random(5, 4, 3), random(5, 4, 3), random(5, 4, 3)
    ours, literal = reference.t_attention(Q, K, V, DCT), reference.literal_t_attention(Q, K, V, DCT)
    assert (ours - literal).norm() > 0.1 * ours.norm()
    rows = [A_k.sum(-1) for A_k in reference.to_hat(reference.literal_t_softmax(random(5, 5, 3), DCT), DCT)]
    # every slice summed to one before the second transform: now slice 0 sums to √3, the others to 0
    for row, expected in zip(rows, (3**0.5, 0.0, 0.0), strict=True):
        torch.testing.assert_close(row, torch.full((5,), expected, dtype=F64))


def test_literal_layer_norm_differs_by_the_order_of_epsilon():
    gamma, beta, eps = torch.ones(16, 3, dtype=F64), torch.zeros(16, 3, dtype=F64), 1e-6
    X = random(7, 16, 3)
    ours = reference.t_layer_norm(X, gamma, beta, DCT, eps)
    literal = reference.literal_t_layer_norm(X, gamma, beta, DCT, eps)
    difference = ((ours - literal).norm() / ours.norm()).item()
    assert 1e-8 < difference < 1e-5
    # for features that hardly vary the two part: σ = 1e-4 is below √ε = 1e-3 and far above ε
    quiet = 1e-4 * X
    ours, literal = (f(quiet, gamma, beta, DCT, eps) for f in (reference.t_layer_norm, reference.literal_t_layer_norm))
    assert literal.norm() > 5 * ours.norm()


def test_literal_ffn_lets_slices_meet_and_ours_does_not():
    W1, b1, W2, b2 = random(4, 8, 3), random(8, 3), random(8, 4, 3), random(4, 3)
    X = random(5, 4, 3)
    moved = reference.from_hat([X_k + (k == 1) * 0.3 for k, X_k in enumerate(reference.to_hat(X, DCT))], DCT)
    for ffn, meets in ((reference.t_ffn, False), (reference.literal_t_ffn, True)):
        before, after = (reference.to_hat(ffn(x, W1, b1, W2, b2, DCT), DCT)[0] for x in (X, moved))
        assert ((before - after).abs().max() > 1e-3) == meets


def test_unhat_inverts_hat_for_transforms_that_are_not_orthogonal():
    X = random(2, 4, 3)
    torch.testing.assert_close(reference.from_hat(reference.to_hat(X, KKA), KKA), X)
