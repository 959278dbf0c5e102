"""`mode="encoder"`: a whole encoder goes into the hat domain, with one transform at each end (the paper's TCP-DeiT).

Its blocks are built anew from our own layers, slices first, so that nothing but slice products is left between the two
transforms. What goes before and after the blocks, the model's last norm included, and what the model takes and returns
stay as they were.

Exact is what is linear: scale and shift of a norm and a layer scale are folded into the map beside them before that is
projected. With `norm="slice"` every slice is normed by itself, which is another function than the LayerNorm it stands
for; so are attention by slice and an activation in the hat domain. With `norm="token"`, `attention="joint"` and
`activation_domain="spatial"` the encoder computes what the drop-in mode computes if the scale of each norm is constant
and tubes lie within heads; else the map is projected with the scale in it, which is another projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.layers import DropPath, HatTransform, TAttention, TLayerNorm, TLinear, TMlp
from tcpvit.progress import Progress
from tcpvit.tensorize.config import EncoderConfig
from tcpvit.tensorize.drop_ins import make_map
from tcpvit.tensorize.libraries import Family, Map, Parts, Unfit, find_encoders, read_blocks
from tcpvit.tensorize.report import LayerRow


def convert_encoder(model: nn.Module, config: EncoderConfig, progress: Progress) -> list[LayerRow]:
    """Take the encoders of `model` into the hat domain, in place, and say what became of their maps.

    If this raises, the model is as it was.
    """
    found = find_encoders(model)
    if not found:
        raise ValueError(
            f'mode="encoder" knows the ViTs of timm, torchvision and transformers, and BERT, and found none in a '
            f'{type(model).__name__}; take mode="drop_in"'
        )
    made = []
    for name, (holder, family) in found.items():
        try:
            made.append((holder, family, *_build(name, holder, family, config, progress)))
        except Unfit as error:
            raise ValueError(f'mode="encoder" cannot keep this model: {error}; take mode="drop_in"') from error
    for holder, family, encoder, _ in made:
        setattr(holder, family.blocks, nn.ModuleList([encoder]) if family.in_list else encoder)
    return [row for *_, rows in made for row in rows] + _left(model)


def _left(model: nn.Module) -> list[LayerRow]:
    """The linear layers that stay: those outside the encoders, which have none any more."""
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    sizes = {name: sum(p.numel() for p in m.parameters()) for name, m in layers.items()}
    return [
        LayerRow(name, "linear", m.in_features, m.out_features, sizes[name], sizes[name], "outside the encoder")
        for name, m in layers.items()
    ]


def _build(
    name: str, holder: nn.Module, family: Family, config: EncoderConfig, progress: Progress
) -> tuple[HatEncoder, list[LayerRow]]:
    outer: Any = getattr(holder, "config", None)
    if family.in_list and (outer.output_hidden_states or getattr(outer, "output_attentions", False)):
        raise Unfit("its config asks for the hidden states or attentions of single layers")
    blocks = read_blocks(holder, family)
    like = blocks[0].qkv.weight
    phi = HatTransform(config.transform, config.tube).to(like.device, like.dtype)
    if config.norm == "token" and phi.scale != 1.0:
        raise ValueError(
            f'norm="token" needs an orthogonal transform with M Mᵀ = I, {phi.name} is not one; take norm="slice"'
        )
    made, rows = [], []
    for i, parts in enumerate(progress.track(blocks, "taking blocks into the hat domain")):
        build = _Build(config, phi, ".".join(word for word in (name, family.blocks, str(i)) if word))
        made.append(build.block(parts))
        rows += build.rows
    return HatEncoder(made, phi).train(holder.training), rows


class TokenNorm(TLayerNorm):
    """The LayerNorm of a flat token in the spatial domain, computed from its hat slices: (C, ..., d) -> (C, ..., d).

    Φ is orthogonal, so the variance is that of all slices together, and the mean, which is the same for all features,
    lies along Φ·1. Scale and shift are of the hat slices, as in TLayerNorm.

    >>> x, phi = torch.randn(2, 5, 12), HatTransform("dct", 3)
    >>> y_hat = TokenNorm(4, phi)(phi.to_hat_tokens(x.unflatten(-1, (4, 3))))
    >>> torch.allclose(phi.from_hat_tokens(y_hat).flatten(-2), nn.functional.layer_norm(x, (12,), eps=1e-6), atol=1e-5)
    True
    """

    transform: HatTransform

    def __init__(self, d: int, transform: HatTransform, eps: float = 1e-6):
        super().__init__(d, transform.tube, eps)
        object.__setattr__(self, "transform", transform)

    def forward(self, x_hat: Tensor) -> Tensor:
        """(C, ..., d) -> (C, ..., d)."""
        rows = x_hat.flatten(1, -2)  # (C, B·N, d)
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        ones_hat = self.transform.matrices()[0].sum(1).to(rows.dtype).view(-1, 1, 1)  # Φ·1
        mean = (ones_hat * rows.mean(-1, keepdim=True)).mean(0, keepdim=True)  # (1, B·N, 1), of the spatial features
        centred = rows - ones_hat * mean
        variance = centred.square().mean((0, 2), keepdim=True)
        normed = centred * torch.rsqrt(variance + self.eps)
        return torch.addcmul(self.bias_hat, normed, self.weight_hat).to(x_hat.dtype).view(x_hat.shape)


class HatBlock(nn.Module):
    """A Transformer block in the hat domain, slices first, with its norms before (ViT) or after (BERT)."""

    def __init__(self, norm1: TLayerNorm, attn: TAttention, norm2: TLayerNorm, mlp: TMlp, parts: Parts):
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = norm1, attn, norm2, mlp
        self.drop = nn.Dropout(parts.mlp_drop)
        self.drop_path = DropPath(parts.drop_path, batch_dim=1)
        self.post_norm = parts.post_norm

    def forward(self, x_hat: Tensor, mask: Tensor | None = None) -> Tensor:
        """(C, B, N, d) -> (C, B, N, d)."""
        if self.post_norm:
            x_hat = self.norm1(x_hat + self.attn(x_hat, mask))
            return self.norm2(x_hat + self.drop(self.mlp(x_hat)))
        x_hat = x_hat + self.drop_path(self.attn(self.norm1(x_hat), mask))
        return x_hat + self.drop_path(self.drop(self.mlp(self.norm2(x_hat))))


class HatEncoder(nn.Module):
    """Blocks in the hat domain between one transform on the way in and one on the way out: (B, N, D) -> (B, N, D).

    It stands where a Sequential of blocks stood. Who goes through its blocks one by one gets them between transforms of
    their own, and so flat tokens in the spatial domain from each.
    """

    replaces_blocks = True  # for distillation, which compares its output with that of the last block

    def __init__(self, blocks: list[HatBlock], transform: HatTransform):
        super().__init__()
        self.transform, self.depth = transform, len(blocks)
        for i, block in enumerate(blocks):
            self.add_module(str(i), block)

    def blocks(self) -> list[HatBlock]:
        """The blocks, which work on hat slices."""
        return [getattr(self, str(i)) for i in range(self.depth)]

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, *_: Any, **options: Any) -> Tensor:
        """(B, N, D) -> (B, N, D); a mask, (B, 1, N, N), is True where one may look, or numbers to add."""
        for name in ("output_hidden_states", "output_attentions"):
            if options.get(name):
                raise ValueError(f'{name} asks for what lies between layers; take mode="drop_in" for that')
        return self._run(self.blocks(), x, attention_mask)

    def _run(
        self, blocks: list[HatBlock], x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        if is_causal:
            raise ValueError("an encoder in the hat domain has no causal attention; pass a mask")
        mask = _check_mask(attn_mask)
        x_hat = self.transform.to_hat_tokens(x.unflatten(-1, (-1, self.transform.tube)))
        for block in blocks:
            x_hat = block(x_hat, mask)
        return self.transform.from_hat_tokens(x_hat).flatten(-2)

    def __len__(self) -> int:
        return self.depth

    def __iter__(self) -> Iterator[Callable[..., Tensor]]:
        return (partial(self._run, [block]) for block in self.blocks())

    def __getitem__(self, index: int | slice) -> Any:
        chosen = self.blocks()[index]
        return HatEncoder(chosen, self.transform) if isinstance(chosen, list) else partial(self._run, [chosen])


def _check_mask(mask: Tensor | None) -> Tensor | None:
    if mask is None or mask.ndim == 2:
        return None if mask is None else mask[None, None]
    if mask.ndim != 4 or mask.shape[1] != 1:
        raise ValueError(
            f"slices share one mask, (B, 1, N, N) for all heads, but its shape is {tuple(mask.shape)}; "
            'take mode="drop_in" for masks of single heads'
        )
    return mask


@dataclass
class _Build:
    """Builds the block called `name` and notes what became of its maps."""

    config: EncoderConfig
    phi: HatTransform
    name: str
    rows: list[LayerRow] = field(default_factory=list)

    def block(self, parts: Parts) -> HatBlock:
        tube, width = self.config.tube, parts.qkv.weight.shape[1]
        d, hidden = self._slice_width(width), self._slice_width(len(parts.fc1.weight))
        if len(parts.qkv.weight) != 3 * width:
            raise Unfit(f"the heads of {self.name} are together {len(parts.qkv.weight) // 3} wide, its tokens {width}")
        if not parts.post_norm:  # scale and shift of both norms go into the maps that follow them
            parts = replace(parts, qkv=_after_norm(parts.qkv, parts.norm1), fc1=_after_norm(parts.fc1, parts.norm2))
        parts = replace(parts, proj=_scaled(parts.proj, parts.scale1), fc2=_scaled(parts.fc2, parts.scale2))
        heads = self._heads(parts.num_heads, width)
        with torch.device("meta"):  # what follows has no weights of its own
            attn = TAttention(d, heads, tube, self.phi, attention=self.config.attention, attn_drop=parts.attn_drop)
            mlp = TMlp(d, hidden, tube, self.phi, activation_domain=self.config.activation_domain)
        attn.proj_drop, mlp.drop = nn.Dropout(parts.proj_drop), nn.Dropout(parts.hidden_drop)
        attn.qkv, attn.proj = self._map(parts.qkv), self._map(parts.proj)
        mlp.fc1, mlp.fc2, mlp.activation = self._map(parts.fc1), self._map(parts.fc2), parts.activation
        return HatBlock(self._norm(parts.norm1, parts), attn, self._norm(parts.norm2, parts), mlp, parts)

    def _slice_width(self, width: int) -> int:
        if width % self.config.tube:
            raise Unfit(f"the width {width} of {self.name} is no multiple of the tube {self.config.tube}")
        return width // self.config.tube

    def _heads(self, heads: int, width: int) -> int:
        """Heads of each slice. Joint maps are the model's own where a tube lies within a head."""
        tube = self.config.tube
        if self.config.attention == "joint" and (width // heads) % tube == 0:
            return heads
        if heads % tube:
            raise Unfit(f"the {heads} heads of {self.name} cannot be shared out among {tube} slices")
        return heads // tube

    def _map(self, old: Map) -> TLinear:
        """The map in the hat domain, and its row; separate q, k and v share one error."""
        tube, (d_out, d_in) = self.config.tube, old.weight.shape
        made, error = make_map(old.weight, None, tube, self.phi, self.config.init)
        with torch.device("meta"):
            new = TLinear(d_in // tube, d_out // tube, tube, self.phi, bias=old.bias is not None)
        new.weight_hat = made.weight_hat
        if old.bias is not None:
            new.bias_hat = _parameter(self._to_slices(old.bias), old.bias)
        share = len(old.names)
        norm = None if old.weight.is_meta else torch.linalg.norm(old.weight.detach().float()).item() / share**0.5
        before = (old.weight.numel() + (0 if old.bias is None else d_out)) // share
        sizes = (d_in, d_out // share, before, sum(p.numel() for p in new.parameters()) // share)
        self.rows += [LayerRow(f"{self.name}.{n}", "encoder", *sizes, error=error, norm=norm) for n in old.names]
        return new

    def _norm(self, old: nn.LayerNorm, parts: Parts) -> TLayerNorm:
        """A norm of slices; one that stands behind a sum keeps scale and shift, the others have folded them away."""
        tube, d = self.config.tube, self._slice_width(old.normalized_shape[0])
        with torch.device(parts.qkv.weight.device):
            new = TokenNorm(d, self.phi, old.eps) if self.config.norm == "token" else TLayerNorm(d, tube, old.eps)
        new.to(parts.qkv.weight.dtype)
        new.requires_grad_(old.weight is None or old.weight.requires_grad)
        if parts.post_norm and old.weight is not None:
            matrix, inverse = self.phi.matrices()
            # The diagonal of Φ·diag(γ)·Φ⁻¹ is shares·γ, for each feature.
            shares = matrix.detach() * inverse.detach().mT
            gamma = shares @ old.weight.detach().unflatten(0, (d, tube)).mT  # (C, d)
            new.weight_hat = _parameter(gamma.unsqueeze(1), old.weight)
            new.bias_hat = _parameter(self._to_slices(old.bias), old.bias)
        return new

    def _to_slices(self, flat: Tensor) -> Tensor:
        """(d·C) -> (C, 1, d), in the hat domain."""
        return self.phi.to_hat_tokens(flat.detach().unflatten(0, (-1, self.config.tube))).unsqueeze(1)


@torch.no_grad()
def _after_norm(old: Map, norm: nn.LayerNorm) -> Map:
    """Scale and shift of a norm in the map that follows it: W(γ⊙x + β) + b = (Wγ)x + (Wβ + b)."""
    if norm.weight is None:
        return old
    shift = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
    bias = old.weight @ shift + (0 if old.bias is None else old.bias)
    learns = old.weight.requires_grad
    return replace(old, weight=(old.weight * norm.weight).requires_grad_(learns), bias=bias.requires_grad_(learns))


@torch.no_grad()
def _scaled(old: Map, scale: Tensor | None) -> Map:
    """A layer scale in the map before it: γ⊙(Wx + b)."""
    if scale is None:
        return old
    weight = (old.weight * scale.unsqueeze(1)).requires_grad_(old.weight.requires_grad)
    bias = None if old.bias is None else (old.bias * scale).requires_grad_(old.bias.requires_grad)
    return replace(old, weight=weight, bias=bias)


def _parameter(value: Tensor, old: Tensor) -> nn.Parameter:
    return nn.Parameter(value.detach().to(old.dtype).contiguous(), requires_grad=old.requires_grad)
