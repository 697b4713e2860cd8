"""Scaled dot-product attention from its parts: the fused kernels have no forward-mode derivative and no second one."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def attention(
    query: Float[Tensor, "*batch heads l e"],
    key: Float[Tensor, "*batch kv_heads s e"],
    value: Float[Tensor, "*batch kv_heads s v"],
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Float[Tensor, "*batch heads l v"], Float[Tensor, "*batch heads l"]]:
    """softmax(Q Kᵀ · scale + mask) V, and the logarithm of the softmax's sum; a row that is masked throughout is zero.

    `mask` is True (or 0) where a key takes part. Groups of query heads may share a key.
    """
    shared = query.shape[-3] // key.shape[-3]
    if shared > 1:
        key, value = key.repeat_interleave(shared, -3), value.repeat_interleave(shared, -3)
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        lower = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = torch.where(lower, scores, -math.inf)
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf) if mask.dtype == torch.bool else scores + mask
    highest = scores.detach().amax(-1, keepdim=True)
    nowhere = highest == -math.inf
    weights = torch.where(nowhere, 0, scores - torch.where(nowhere, 0, highest)).exp()
    weights = torch.where(nowhere, 0, weights)
    total = torch.where(nowhere, 1, weights.sum(-1, keepdim=True))
    logarithm = torch.where(nowhere, -math.inf, total.log() + highest)
    return weights / total @ value, logarithm.squeeze(-1)


def flash_for_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`aten._scaled_dot_product_flash_attention_for_cpu`; it takes no dropout."""
    return attention(query, key, value, attn_mask, is_causal, scale)
