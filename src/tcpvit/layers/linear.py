"""t-Linear (paper, Def. 3.1): Y = X ⋆ W, one batched product over the slices of the hat domain."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.algebra.transforms import Transform
from tcpvit.layers.kernels.product import can_use_product, slice_product
from tcpvit.layers.transform import HatTransform, attach_transform

TransformOf = str | Transform | HatTransform | Tensor
MIN_WEIGHTS_TO_SPLIT = 1024  # of a slice; below, the copies cost more than the threads gain


def slice_linear(x_hat: Tensor, weight_hat: Tensor, bias_hat: Tensor | None = None) -> Tensor:
    """Slice k of the result is x̂_k Ŵ_k + b̂_k: (C, ..., d_in) and (C, d_in, d_out) -> (C, ..., d_out).

    A weight and a bias of one slice, (1, d_in, d_out), serve all slices.

    >>> slice_linear(torch.ones(3, 2, 5, 4), torch.ones(3, 4, 6)).shape
    torch.Size([3, 2, 5, 6])
    """
    if len(weight_hat) == 1 < len(x_hat):
        rows = x_hat.flatten(0, -2)  # (C·B·N, d_in)
        y_hat = F.linear(rows, weight_hat[0].transpose(-1, -2), None if bias_hat is None else bias_hat[0, 0])
        return y_hat.view(*x_hat.shape[:-1], weight_hat.shape[-1])
    rows = x_hat.flatten(1, -2)  # (C, B·N, d_in)
    if can_use_product(rows, weight_hat):
        return slice_product(rows, weight_hat, bias_hat).view(*x_hat.shape[:-1], weight_hat.shape[-1])
    tracing = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if rows.device.type == "cpu" and not tracing:  # a split is not for other sizes and machines
        rows, weight_hat, bias_hat = _split_for_threads(rows, weight_hat, bias_hat)
    y_hat = rows @ weight_hat if bias_hat is None else torch.baddbmm(bias_hat, rows, weight_hat)
    return y_hat.view(*x_hat.shape[:-1], weight_hat.shape[-1])


def _split_for_threads(
    rows: Tensor, weight_hat: Tensor, bias_hat: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same product in more and shorter slices, if the threads of a CPU, which take whole ones, share them better.

    Three slices keep one of two threads idle for a quarter of the time; six halves do not.
    """
    parts = even_parts(len(rows), torch.get_num_threads())
    if parts == 1 or rows.shape[1] % parts or weight_hat[0].numel() < MIN_WEIGHTS_TO_SPLIT:
        return rows, weight_hat, bias_hat

    def repeated(slices: Tensor) -> Tensor:
        return slices[:, None].expand(-1, parts, -1, -1).flatten(0, 1)

    shorter = rows.unflatten(1, (parts, -1)).flatten(0, 1)  # (C·parts, B·N / parts, d_in), no copy
    return shorter, repeated(weight_hat), None if bias_hat is None else repeated(bias_hat)


def even_parts(slices: int, threads: int) -> int:
    """Into how many parts to cut each slice so that every thread gets as many; 1 if it would gain less than a tenth.

    >>> [even_parts(*pair) for pair in ((3, 1), (3, 2), (3, 4), (16, 2), (200, 3))]
    [1, 2, 4, 1, 1]
    """
    waits = math.ceil(slices / threads) * threads / slices
    return threads // math.gcd(slices, threads) if waits > 1.1 else 1


def tubal_product(x: Tensor, weight_hat: Tensor, transform: HatTransform, bias: Tensor | None = None) -> Tensor:
    """x ⋆ W + b of flat features in the spatial domain, the tube fastest: (..., d_in·C) -> (..., d_out·C).

    >>> tubal_product(torch.ones(2, 12), torch.ones(3, 4, 5), HatTransform("dct", 3)).shape
    torch.Size([2, 15])
    """
    if x.ndim == 1:
        return tubal_product(x[None], weight_hat, transform, bias)[0]
    x_hat = transform.to_hat_tokens(x.unflatten(-1, (-1, transform.tube)))  # (C, ..., d_in)
    # The slice product adds its bias at once; afterwards it would take one more pass over the memory.
    bias_hat = None if bias is None else transform.to_hat_tokens(bias.view(1, -1, transform.tube))  # (C, 1, d_out)
    return transform.from_hat_tokens(slice_linear(x_hat, weight_hat, bias_hat)).flatten(-2)


def init_weight_(weight: Tensor, fan_in: int) -> None:
    """The one scheme of this library: normal, cut at two deviations of 1/√fan_in. A slice's fan-in is d, not d·C."""
    nn.init.trunc_normal_(weight, std=1 / math.sqrt(fan_in), a=-2 / math.sqrt(fan_in), b=2 / math.sqrt(fan_in))


class TLinear(nn.Module):
    """Linear map between tensor tokens; 1/C of the weights of nn.Linear(d_in·C, d_out·C).

    Lives inside an encoder, in the hat domain: takes and returns slices first, (C, ..., d_in) -> (C, ..., d_out).
    If `shared`, one matrix and one bias serve all slices (the coupling `shared`): 1/C² of the weights.

    >>> layer = TLinear(16, 32, tube=3)
    >>> layer(torch.randn(3, 2, 65, 16)).shape, layer.weight.shape
    (torch.Size([3, 2, 65, 32]), torch.Size([16, 32, 3]))
    """

    transform: HatTransform

    def __init__(
        self,
        d_in: int,
        d_out: int,
        tube: int,
        transform: TransformOf = "dct",
        *,
        bias: bool = True,
        shared: bool = False,
    ):
        super().__init__()
        self.d_in, self.d_out, self.tube = d_in, d_out, tube
        attach_transform(self, transform, tube)
        own = 1 if shared else tube
        self.weight_hat = nn.Parameter(torch.empty(own, d_in, d_out))  # Ŵ, one matrix per slice
        self.bias_hat = nn.Parameter(torch.empty(own, 1, d_out)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        init_weight_(self.weight_hat, fan_in=self.d_in)
        if self.bias_hat is not None:
            nn.init.zeros_(self.bias_hat)

    @property
    def weight(self) -> Tensor:
        """W in the spatial domain, (d_in, d_out, C), differentiable."""
        return self.transform.from_hat_tokens(self.weight_hat.expand(self.tube, -1, -1))

    def forward(self, x_hat: Tensor) -> Tensor:
        """(C, ..., d_in) -> (C, ..., d_out)."""
        return slice_linear(x_hat, self.weight_hat, self.bias_hat)

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"d_in={self.d_in}, d_out={self.d_out}, tube={self.tube}, bias={self.bias_hat is not None}"


class TubalLinear(nn.Module):
    """The drop-in for nn.Linear: flat features with the tube fastest, (..., in) -> (..., out), spatial domain.

    `weight` is the differentiable dense (out, in) matrix, because other people's code reads it. With a `rank` r, a map
    through r numbers, U·V, stands beside the slices; with a tube of 1 it stands alone.

    >>> layer = TubalLinear(48, 96, tube=3)
    >>> x = torch.randn(2, 65, 48)
    >>> layer(x).shape, layer.weight.shape, sum(p.numel() for p in layer.parameters())
    (torch.Size([2, 65, 96]), torch.Size([96, 48]), 1632)
    >>> torch.allclose(layer(x), layer.to_dense()(x), atol=1e-5)
    True
    >>> TubalLinear(48, 96, tube=3, rank=4)(x).shape, TubalLinear(48, 96, tube=1, rank=4).weight_hat
    (torch.Size([2, 65, 96]), None)
    """

    transform: HatTransform
    weight_hat: nn.Parameter | None  # Ŵ, one matrix per slice; None where low rank stands alone
    v: nn.Parameter | None  # (r, in)
    u: nn.Parameter | None  # (out, r)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        tube: int,
        transform: TransformOf = "dct",
        *,
        bias: bool = True,
        rank: int = 0,
    ):
        super().__init__()
        attach_transform(self, transform, tube)
        for name, features in (("in_features", in_features), ("out_features", out_features)):
            if features % tube:
                raise ValueError(f"{name}={features} is no multiple of the tube {tube}; choose a divisor of {features}")
        self.in_features, self.out_features, self.tube, self.rank = in_features, out_features, tube, rank
        slices = torch.empty(tube, in_features // tube, out_features // tube) if tube > 1 or not rank else None
        self.weight_hat = None if slices is None else nn.Parameter(slices)
        self.v = nn.Parameter(torch.empty(rank, in_features)) if rank else None
        self.u = nn.Parameter(torch.empty(out_features, rank)) if rank else None
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None  # flat and spatial, as nn.Linear's
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew; low rank starts at zero beside slices, as in LoRA."""
        if self.weight_hat is not None:
            init_weight_(self.weight_hat, fan_in=self.weight_hat.shape[1])
        if self.v is not None and self.u is not None:
            init_weight_(self.v, fan_in=self.in_features)
            nn.init.zeros_(self.u) if self.weight_hat is not None else init_weight_(self.u, fan_in=self.rank)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def main_weight(self) -> nn.Parameter:
        """The slices, or U where low rank stands alone: says device and dtype, and whether the layer learns."""
        found = self.u if self.weight_hat is None else self.weight_hat
        assert found is not None
        return found

    @property
    def weight(self) -> Tensor:
        """The dense weight of the layer this one stands for, differentiable."""
        return self.dense_matrix()

    def dense_matrix(self) -> Tensor:
        """The dense (out, in) matrix of this layer, differentiable."""
        low_rank = None if self.v is None or self.u is None else self.u @ self.v
        if self.weight_hat is None:
            assert low_rank is not None
            return low_rank
        matrix, inverse = self.transform.matrices()
        # dense[(o, p), (i, q)] = Σ_k M⁻¹[p, k] Ŵ[k, i, o] M[k, q]
        dense = torch.einsum(
            "pk,kio,kq->opiq", inverse.to(self.weight_hat), self.weight_hat, matrix.to(self.weight_hat)
        )
        dense = dense.reshape(self.out_features, self.in_features)
        return dense if low_rank is None else dense + low_rank

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        if self.v is None or self.u is None:
            assert self.weight_hat is not None
            return tubal_product(x, self.weight_hat, self.transform, self.bias)
        between = F.linear(x, self.v)  # (..., r)
        if self.weight_hat is None:
            return F.linear(between, self.u, self.bias)
        return tubal_product(x, self.weight_hat, self.transform, self.bias) + F.linear(between, self.u)

    def to_dense(self) -> nn.Linear:
        """The nn.Linear that computes the same."""
        dense = nn.Linear(
            self.in_features,
            self.out_features,
            bias=self.bias is not None,
            device=self.main_weight.device,
            dtype=self.main_weight.dtype,
        )
        with torch.no_grad():
            dense.weight.copy_(self.weight)
            if self.bias is not None:
                dense.bias.copy_(self.bias)
        return dense

    @classmethod
    def from_dense(cls, linear: nn.Linear, tube: int, transform: TransformOf = "dct") -> tuple[TubalLinear, float]:
        """The c-product layer nearest to `linear` in the Frobenius norm, and its relative error ‖W − W'‖ / ‖W‖.

        It keeps the diagonal blocks of the weight in the hat basis; they are nearest if the transform is orthogonal.
        """
        layer = cls(linear.in_features, linear.out_features, tube, transform, bias=linear.bias is not None)
        dense = linear.weight.detach()
        layer.to(dense.device, torch.promote_types(dense.dtype, torch.float32))
        error = layer.project_(dense)
        if layer.bias is not None:
            with torch.no_grad():
                layer.bias.copy_(linear.bias)
        return layer.to(dense.dtype), error

    @torch.no_grad()
    def project_(self, dense: Tensor) -> float:
        """Take the c-product weight nearest to a dense (out, in) matrix, and return the relative error of that."""
        if not self.transform.is_orthogonal:
            raise ValueError(
                f"the nearest layer is known for orthogonal transforms only, {self.transform.name} is not one"
            )
        if self.weight_hat is None or self.rank:
            raise ValueError("slices beside a low rank are fitted together; use tcpvit.tensorize.fit")
        dense = dense.to(self.weight_hat)
        matrix, inverse = (m.to(dense) for m in self.transform.matrices())
        blocks = dense.reshape(self.out_features // self.tube, self.tube, -1, self.tube)  # (o, p, i, q)
        self.weight_hat.copy_(torch.einsum("kp,opiq,qk->kio", matrix, blocks, inverse))
        rest = torch.linalg.norm(dense - self.dense_matrix())
        return (rest / torch.linalg.norm(dense).clamp_min(1e-38)).item()

    def extra_repr(self) -> str:
        """What `repr` shows."""
        rank = f"rank={self.rank}, " if self.rank else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, tube={self.tube}, {rank}"
            f"bias={self.bias is not None}"
        )
