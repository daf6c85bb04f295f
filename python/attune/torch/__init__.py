# python/attune/torch/__init__.py — attune inside PyTorch: flex_attention, and torch's other attentions
"""Attention of torch, compiled by attune: torch's own signatures, mods and masks, with gradients, also on the CPU.

>>> import torch
>>> from attune.torch import create_block_mask, explain, flex_attention
>>> q, k, v = torch.randn(3, 1, 2, 64, 16).unbind()
>>> causal = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 64, 64)
>>> flex_attention(q, k, v, block_mask=causal).shape
torch.Size([1, 2, 64, 16])
"""

from typing import TYPE_CHECKING, Any

from attune.torch import _op as _op
from attune.torch._activate import activate, deactivate
from attune.torch._engine import engine
from attune.torch._flex import AuxOutput, AuxRequest, BlockMask, create_block_mask, explain, flex_attention
from attune.torch._functions import register
from attune.torch._paged import append, paged_attention
from attune.torch._parallel import ContextParallel, context_parallel
from attune.torch._sdpa import CausalSelfAttention, scaled_dot_product_attention
from attune.torch._transformer_engine import DotProductAttention
from attune.torch._varlen import varlen_attention

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import FlexKernelOptions, and_masks, create_mask, noop_mask, or_masks

__all__ = ["AuxOutput", "AuxRequest", "BlockMask", "CausalSelfAttention", "ContextParallel", "DotProductAttention",
           "FlexKernelOptions", "activate", "and_masks", "append", "context_parallel", "create_block_mask",
           "create_mask", "deactivate", "engine", "explain", "flex_attention", "noop_mask", "or_masks",
           "paged_attention", "register", "scaled_dot_product_attention", "varlen_attention"]
_TORCHS = ("FlexKernelOptions", "and_masks", "create_mask", "noop_mask", "or_masks")


def __getattr__(name: str) -> Any:
    """What is torch's own, from a module that takes a while to import."""
    if name not in _TORCHS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch.nn.attention import flex_attention as torchs
    globals()[name] = getattr(torchs, name)
    return globals()[name]
