"""TPCA against mprod's TCAM and scikit-learn's PCA, TLDA against scikit-learn's LinearDiscriminantAnalysis."""

import numpy as np
import pytest
import torch
from mprod.dimensionality_reduction import TCAM
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted

from tcpvit.algebra import TLDA, TPCA


def data(samples=30, p=6, C=4, seed=0):
    return np.random.default_rng(seed).standard_normal((samples, p, C)) * np.arange(1, p + 1)[:, None]


def labelled(C, samples=60, p=4, classes=3):
    y = np.arange(samples) % classes
    centres = 2 * np.random.default_rng(7).standard_normal((classes, p, C))
    return data(samples, p, C) / 2 + centres[y], np.array(["ant", "bee", "cat"])[y]


def same_up_to_signs(ours, theirs, atol=1e-9):
    signs = np.sign((ours * theirs).sum(0))
    np.testing.assert_allclose(ours * signs, theirs, atol=atol)


@pytest.mark.parametrize("shape", [(30, 6, 4), (5, 8, 3), (12, 3, 1)])
@pytest.mark.parametrize("n_components", [2, 0.8])
def test_tpca_is_tcam(shape, n_components):
    X, unseen = data(*shape), data(7, *shape[1:], seed=1)
    theirs = TCAM(n_components=n_components).fit(X)
    ours = TPCA(n_components=n_components).fit(X)
    assert ours.n_components_ == theirs.n_components_
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_)
    same_up_to_signs(ours.transform(unseen), theirs.transform(unseen))
    scores = theirs.transform(unseen)
    signs = np.sign((ours.transform(unseen) * scores).sum(0))
    np.testing.assert_allclose(ours.inverse_transform(scores * signs), theirs.inverse_transform(scores), atol=1e-9)


def test_tpca_of_one_slice_is_pca():
    X = data(C=1)
    theirs, ours = PCA(3).fit(X[..., 0]), TPCA(3).fit(X)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_)
    np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_)
    same_up_to_signs(ours.components_[..., 0].numpy().T, theirs.components_.T)


@pytest.mark.parametrize("transform", ["dct", "haar", torch.eye(4) * 3])
def test_all_components_give_the_data_back(transform):
    X = data()
    pca = TPCA(tube_transform=transform)
    scores = pca.fit_transform(X)
    np.testing.assert_allclose(pca.inverse_transform(scores), X, atol=1e-9)
    np.testing.assert_allclose(scores.var(0, ddof=1), pca.explained_variance_, atol=1e-9)
    np.testing.assert_allclose(pca.explained_variance_.sum(), X.var(0, ddof=1).sum())
    gram = pca.components_.flatten(1) @ pca.components_.flatten(1).mT
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-9)


def test_tensors_stay_tensors_and_tubes_may_have_two_modes():
    X = torch.from_numpy(data(20, 5, 6)).view(20, 5, 2, 3).float()
    pca = TPCA(4, tube_ndim=2).fit(X)
    scores = pca.transform(X)
    assert isinstance(scores, torch.Tensor)
    assert scores.dtype == torch.float32
    assert pca.inverse_transform(scores).shape == X.shape


@pytest.mark.parametrize("C", [1, 3])
def test_tlda_against_scikit_learn(C):
    X, y = labelled(C)
    unseen, _ = labelled(C, samples=21)
    ours = TLDA(tube_transform="identity").fit(X, y)
    # slice by slice it is theirs; scores of different slices are independent
    theirs = [LinearDiscriminantAnalysis(solver="svd").fit(X[..., k], y) for k in range(C)]
    scores = np.concatenate([lda.transform(unseen[..., k]) for k, lda in enumerate(theirs)], 1)
    mine = ours.transform(unseen)
    order = [np.abs((mine * scores[:, [j]]).sum(0) / np.linalg.norm(mine, axis=0)).argmax() for j in range(2 * C)]
    assert sorted(order) == list(range(2 * C))
    same_up_to_signs(mine[:, order], scores)
    if C == 1:
        np.testing.assert_allclose(ours.explained_variance_ratio_, theirs[0].explained_variance_ratio_)
        assert (ours.predict(unseen) == theirs[0].predict(unseen[..., 0])).all()


def test_tlda_takes_fewer_samples_than_features():
    X, y = labelled(3, samples=9, p=20)
    lda = TLDA().fit(X, y)
    scores, (classes, index) = lda.transform(X), np.unique(y, return_inverse=True)
    means = np.stack([scores[y == name].mean(0) for name in classes])
    np.testing.assert_allclose(means, lda.means_, atol=1e-9)
    np.testing.assert_allclose(np.square(scores - means[index]).mean(0), 1, atol=1e-9)  # whitened


def test_scikit_learn_takes_them():
    X, y = labelled(4)
    for estimator in (TPCA(3, tube_transform="haar"), TLDA(2)):
        copy = clone(estimator)
        assert copy.get_params() == estimator.get_params()
        with pytest.raises(Exception, match="not fitted"):
            check_is_fitted(copy)
        pipeline = make_pipeline(copy, LogisticRegression()).fit(X, y)
        assert pipeline.score(X, y) > 0.8
    search = GridSearchCV(make_pipeline(TPCA(), LogisticRegression()), {"tpca__n_components": [1, 5]}, cv=3).fit(X, y)
    assert search.best_params_ == {"tpca__n_components": 5}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TPCA().transform(data()), "this TPCA has not been fitted; call fit first"),
        (lambda: TPCA(99).fit(data()), "n_components is a number from 1 to 24, or a part of the variance"),
        (lambda: TPCA(tube_transform="dft").fit(data()), "components need a real orthogonal transform"),
        (lambda: TPCA().fit(data()[:1]), r"at least two samples of real numbers, \(samples, p, C\), got torch.float64"),
        (lambda: TPCA(2).fit(data()).transform(data(p=5)), r"fitted to samples of shape \(6, 4\), got \(5, 4\)"),
        (lambda: TPCA(2).fit(data()).inverse_transform(np.ones((3, 5))), r"scores have shape \(samples, 2\)"),
        (lambda: TLDA().fit(data()), "TLDA needs one label for each of 30 samples"),
        (lambda: TLDA().fit(data(), np.zeros(30)), "needs two classes or more, and more samples than classes, got 1"),
        (lambda: TPCA().set_params(rank=2), "TPCA has no parameter 'rank'; it has n_components, tube_transform"),
    ],
)
def test_refusals_name_the_fault(make, message):
    with pytest.raises(ValueError, match=message):
        make()
