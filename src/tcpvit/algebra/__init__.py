"""The algebra of the tensor cosine product on torch tensors: autograd, batches, any device, any tube transform.

Tensors are `(..., m, n, C)`, the tube last. It knows nothing of networks.
"""

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
from tcpvit.algebra.transforms import (
    LearnedTransform,
    MatrixTransform,
    Transform,
    data_driven,
    get_transform,
    list_transforms,
    random_orthogonal,
)

__all__ = [
    "LearnedTransform",
    "MatrixTransform",
    "Transform",
    "block_matrix",
    "cprod",
    "data_driven",
    "facewise",
    "from_hat",
    "get_transform",
    "identity",
    "inner",
    "list_transforms",
    "random_orthogonal",
    "to_hat",
    "transpose",
]
