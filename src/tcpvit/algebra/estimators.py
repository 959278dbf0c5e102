"""Tensor PCA and LDA with the interface of scikit-learn, which is not needed to use them.

Samples are tensors (p, C): p features, measured C times or in C channels, along the tube. So data are (samples, p, C).
Both methods work slice by slice in the hat domain and gather the components of all slices, best first. They need a
real orthogonal transform. Arrays give arrays back, tensors tensors.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tcpvit.algebra.checks import check_finite, check_precision, check_tensor
from tcpvit.algebra.domain import Domain, TransformsArg
from tcpvit.algebra.functions import default_rtol, largest
from tcpvit.algebra.inputs import as_tensor, in_full_precision


class _Estimator(ABC):
    """What scikit-learn asks of an estimator that transforms: `clone`, `Pipeline` and `GridSearchCV` take it."""

    mean_: Tensor  # (p, C), of the training samples
    components_: Tensor  # (n_components, p, C)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments that it was made with."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> _Estimator:
        """Set arguments by name."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}")
            setattr(self, name, value)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """`fit`, then `transform` of the same data."""
        return self.fit(X, y).transform(X)

    @abstractmethod
    def fit(self, X: Any, y: Any = None) -> _Estimator:
        """Learn from X, (samples, p, C)."""

    def transform(self, X: Any) -> Any:
        """The scores of samples, (samples, p, C) -> (samples, n_components)."""
        return _like(X, self._scores(X))

    def _scores(self, X: Any) -> Tensor:
        centred = self._tensor(X).to(self.mean_) - self.mean_
        return _inner(centred, self.components_)

    def _tensor(self, X: Any) -> Tensor:
        if not hasattr(self, "components_"):
            raise ValueError(f"this {type(self).__name__} has not been fitted; call fit first")
        samples = _checked_samples(X, self.mean_.ndim - 1)
        if samples.shape[1:] != self.mean_.shape:
            raise ValueError(
                f"it was fitted to samples of shape {tuple(self.mean_.shape)}, got {tuple(samples.shape[1:])}"
            )
        return samples

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "components_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
            input_tags=InputTags(two_d_array=False, three_d_array=True),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.get_params().items())})"


class TPCA(_Estimator):
    """Principal components of tensors, (samples, p, C) -> (samples, n_components): TCAM of Mor et al.

    The SVD of every hat slice of the centred data, its components gathered from all slices by decreasing variance.
    `n_components` is a number of components, or a part of the variance in (0, 1) that the fewest possible explain; all
    of them by default.

    Attributes:
        components_: (n_components, p, C), orthonormal; the scores are inner products with them.
        explained_variance_: the variance of each score over the training samples.
        explained_variance_ratio_: that over the variance of all.
        singular_values_: the root of each component's sum of squares.
        mean_: (p, C), of the training samples.
        n_components_: how many components there are.

    >>> X = np.random.default_rng(0).standard_normal((20, 5, 3))
    >>> pca = TPCA(n_components=4).fit(X)
    >>> pca.transform(X).shape, pca.inverse_transform(pca.transform(X)).shape
    ((20, 4), (20, 5, 3))
    """

    def __init__(
        self, n_components: int | float | None = None, tube_transform: TransformsArg = "dct", tube_ndim: int = 1
    ):
        self.n_components, self.tube_transform, self.tube_ndim = n_components, tube_transform, tube_ndim

    def fit(self, X: Any, y: Any = None) -> TPCA:
        """Find the components of X, (samples, p, C); y is ignored."""
        samples = _checked_samples(X, self.tube_ndim)
        return self._fit(samples)

    def inverse_transform(self, scores: Any) -> Any:
        """The samples that have these scores, as near to the mean as can be: (n, n_components) -> (n, p, C)."""
        if not hasattr(self, "components_"):
            raise ValueError("this TPCA has not been fitted; call fit first")
        given = as_tensor(scores)
        if given.ndim != 2 or given.shape[1] != self.n_components_:
            raise ValueError(f"scores have shape (samples, {self.n_components_}), got {tuple(given.shape)}")
        return _like(scores, self.mean_ + torch.tensordot(given.to(self.mean_), self.components_, dims=1))

    @in_full_precision
    def _fit(self, samples: Tensor) -> TPCA:
        self.mean_ = samples.mean(0)
        domain, root = _real_domain(self.tube_transform, samples, self.tube_ndim)
        _, S, Vh = torch.linalg.svd(domain.to_hat(samples - self.mean_), full_matrices=False)
        rank = min(samples.shape[0] - 1, samples.shape[1])  # of centred data
        values, order = (S[..., :rank] / root).flatten().sort(descending=True)
        ratio = values.square() / values.square().sum().clamp_min(torch.finfo(values.dtype).tiny)
        count = self.n_components_ = _count(self.n_components, ratio)
        self.singular_values_ = values[:count]
        self.explained_variance_ = values[:count].square() / (samples.shape[0] - 1)
        self.explained_variance_ratio_ = ratio[:count]
        vectors = _signed(Vh[..., :rank, :].flatten(0, -2)[order[:count]])  # (n_components, p)
        self.components_ = root * _in_slices(vectors, order[:count] // rank, domain)
        return self


class TLDA(_Estimator):
    """Linear discriminants of tensors of several classes, (samples, p, C) -> (samples, n_components).

    In every hat slice the directions along which the means of the classes differ most, measured by the scatter within
    the classes (Fisher); those of all slices are gathered, best first. For C = 1 it is scikit-learn's
    LinearDiscriminantAnalysis. `predict` names the class whose mean is nearest, with the classes' frequencies as prior.

    Attributes:
        components_: (n_components, p, C); the scores are inner products with them, of unit variance within a class.
        explained_variance_ratio_: of each component, the part of the variance between the classes.
        classes_: the labels, sorted.
        means_: (classes, n_components), the scores of the classes' means.
        priors_: how frequent the classes are.
        mean_: (p, C), of the training samples.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 60)
    >>> X = rng.standard_normal((60, 5, 4)) + 3 * y[:, None, None]
    >>> lda = TLDA(n_components=2).fit(X, y)
    >>> lda.transform(X).shape, lda.score(X, y) > 0.9
    ((60, 2), True)
    """

    def __init__(self, n_components: int | None = None, tube_transform: TransformsArg = "dct", tube_ndim: int = 1):
        self.n_components, self.tube_transform, self.tube_ndim = n_components, tube_transform, tube_ndim

    def fit(self, X: Any, y: Any = None) -> TLDA:
        """Find the discriminants of X, (samples, p, C), whose classes are y, (samples,)."""
        samples = _checked_samples(X, self.tube_ndim)
        labels = np.asarray(y) if y is not None else np.empty(0)
        if labels.shape != samples.shape[:1]:
            raise ValueError(f"TLDA needs one label for each of {len(samples)} samples, got y of shape {labels.shape}")
        self.classes_, index = np.unique(labels, return_inverse=True)
        if not 2 <= len(self.classes_) < len(samples):
            raise ValueError(
                f"TLDA needs two classes or more, and more samples than classes, got {len(self.classes_)} classes "
                f"and {len(samples)} samples"
            )
        return self._fit(samples, torch.as_tensor(index, device=samples.device))

    def predict(self, X: Any) -> Any:
        """The most likely class of each sample, (samples,)."""
        scores = self._scores(X)
        likelihood = self.priors_.log() - 0.5 * torch.cdist(scores, self.means_).square()
        return self.classes_[likelihood.argmax(1).cpu().numpy()]

    def score(self, X: Any, y: Any) -> float:
        """The part of the samples whose class `predict` finds."""
        return float(np.mean(self.predict(X) == np.asarray(y)))

    @in_full_precision
    def _fit(self, samples: Tensor, index: Tensor) -> TLDA:
        members = torch.nn.functional.one_hot(index, len(self.classes_)).to(samples)  # (samples, classes)
        self.priors_ = members.mean(0)
        self.mean_ = samples.mean(0)
        means = torch.tensordot(members / members.sum(0), samples, dims=([0], [0]))  # (classes, p, C)
        domain, root = _real_domain(self.tube_transform, samples, self.tube_ndim)
        spread = self.priors_.sqrt().view(-1, *[1] * self.mean_.ndim) * (means - self.mean_)

        # Whiten what is within the classes; directions without any scatter are left out.
        within = domain.to_hat(samples - means[index]) / root
        _, S, Vh = torch.linalg.svd(within / len(samples) ** 0.5, full_matrices=False)
        floor = default_rtol(domain, samples) * largest(S, tuple(range(S.ndim)))
        whiten = torch.where(floor < S, 1 / S.clamp_min(floor), 0.0)[..., None, :] * Vh.mH  # (C…, p, k)
        between = domain.to_hat(spread) / root @ whiten  # (C…, classes, k)
        _, T, Wh = torch.linalg.svd(between * (len(samples) / (len(self.classes_) - 1)) ** 0.5, full_matrices=False)
        rank = min(len(self.classes_) - 1, T.shape[-1])
        values, order = T[..., :rank].flatten().sort(descending=True)
        ratio = values.square() / values.square().sum().clamp_min(torch.finfo(values.dtype).tiny)
        count = self.n_components_ = _count(self.n_components, ratio)
        self.explained_variance_ratio_ = ratio[:count]
        directions = _signed((whiten @ Wh.mH[..., :rank]).mT.flatten(0, -2)[order[:count]])  # (n_components, p)
        self.components_ = root * _in_slices(directions, order[:count] // rank, domain)
        self.means_ = _inner(means - self.mean_, self.components_)
        return self


def _checked_samples(X: Any, tube_ndim: int) -> Tensor:
    samples = as_tensor(X)
    check_tensor(samples, "X", tube_ndim=tube_ndim)
    check_precision(samples, "X")
    check_finite(samples, "X")
    if samples.ndim != 2 + tube_ndim or samples.shape[0] < 2 or samples.is_complex():
        raise ValueError(
            f"X should hold at least two samples of real numbers, (samples, p, C), got {samples.dtype} of shape "
            f"{tuple(samples.shape)}"
        )
    return samples.detach()


def _real_domain(transform: TransformsArg, samples: Tensor, tube_ndim: int) -> tuple[Domain, float]:
    """The hat domain and √s, M Mᵀ = s·I."""
    domain = Domain(transform, samples, tube_ndim=tube_ndim)
    return domain, domain.orthogonal_scale("components need", real=True) ** 0.5


def _count(n_components: int | float | None, ratio: Tensor) -> int:
    """How many of the components to keep."""
    if n_components is None:
        return len(ratio)
    if isinstance(n_components, float) and 0 < n_components < 1:
        return min(len(ratio), int((ratio.cumsum(0) <= n_components).sum()) + 1)
    if isinstance(n_components, int | np.integer) and 1 <= n_components <= len(ratio):
        return int(n_components)
    raise ValueError(
        f"n_components is a number from 1 to {len(ratio)}, or a part of the variance between 0 and 1, got "
        f"{n_components!r}"
    )


def _signed(vectors: Tensor) -> Tensor:
    """Each vector with the sign that makes its largest entry positive, so that a fit can be repeated."""
    peaks = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    return vectors * torch.where(peaks < 0, -1.0, 1.0)


def _in_slices(vectors: Tensor, slices: Tensor, domain: Domain) -> Tensor:
    """Vectors (n, p) of the hat slices with these flat numbers, in the spatial domain: (n, p, C…)."""
    hat = vectors.new_zeros(domain.tube_shape.numel(), *vectors.shape)
    hat[slices, torch.arange(len(vectors), device=vectors.device)] = vectors
    return domain.from_hat(hat.unflatten(0, domain.tube_shape))


def _inner(samples: Tensor, components: Tensor) -> Tensor:
    """⟨sample, component⟩ of every pair, (samples, n_components)."""
    return samples.flatten(1) @ components.flatten(1).mT


def _like(given: Any, result: Tensor) -> Any:
    return result.cpu().numpy() if isinstance(given, np.ndarray) else result
