"""The algebra of the tensor cosine product on torch tensors: autograd, batches, any device, any tube transform.

Tensors are `(..., m, n, C)`, the tube last. It knows nothing of networks.
"""

from tcpvit.algebra.estimators import TLDA, TPCA
from tcpvit.algebra.factorizations import cholesky, eig, eigh, lu, polar, qr, schur, svd
from tcpvit.algebra.function_transform import FunctionTransform
from tcpvit.algebra.functions import (
    cond,
    det,
    expm,
    inverse,
    multi_rank,
    norm,
    pinv,
    power,
    trace,
    tubal_rank,
)
from tcpvit.algebra.krylov import cg, gmres, golub_kahan
from tcpvit.algebra.learned import LearnedTransform
from tcpvit.algebra.matrix_functions import apply, logm, sqrtm
from tcpvit.algebra.predicates import (
    is_diagonal,
    is_orthogonal,
    is_positive_definite,
    is_symmetric,
)
from tcpvit.algebra.products import (
    block_matrix,
    cprod,
    facewise,
    from_hat,
    identity,
    inner,
    to_hat,
    transpose,
)
from tcpvit.algebra.recovery import Decomposition, complete, robust_pca, svt
from tcpvit.algebra.report import Solution
from tcpvit.algebra.solvers import lstsq, solve, tikhonov
from tcpvit.algebra.transforms import (
    MatrixTransform,
    Transform,
    data_driven,
    get_transform,
    kronecker,
    list_transforms,
    random_orthogonal,
)
from tcpvit.algebra.truncations import low_rank, null, orth, rsvd, skinny_svd, truncated_svd
from tcpvit.algebra.unfolding import bcirc, bdiag, fold, mode_product, unfold

__all__ = [
    "TLDA",
    "TPCA",
    "Decomposition",
    "FunctionTransform",
    "LearnedTransform",
    "MatrixTransform",
    "Solution",
    "Transform",
    "apply",
    "bcirc",
    "bdiag",
    "block_matrix",
    "cg",
    "cholesky",
    "complete",
    "cond",
    "cprod",
    "data_driven",
    "det",
    "eig",
    "eigh",
    "expm",
    "facewise",
    "fold",
    "from_hat",
    "get_transform",
    "gmres",
    "golub_kahan",
    "identity",
    "inner",
    "inverse",
    "is_diagonal",
    "is_orthogonal",
    "is_positive_definite",
    "is_symmetric",
    "kronecker",
    "list_transforms",
    "logm",
    "low_rank",
    "lstsq",
    "lu",
    "mode_product",
    "multi_rank",
    "norm",
    "null",
    "orth",
    "pinv",
    "polar",
    "power",
    "qr",
    "random_orthogonal",
    "robust_pca",
    "rsvd",
    "schur",
    "skinny_svd",
    "solve",
    "sqrtm",
    "svd",
    "svt",
    "tikhonov",
    "to_hat",
    "trace",
    "transpose",
    "truncated_svd",
    "tubal_rank",
    "unfold",
]
