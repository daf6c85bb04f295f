# python/attune/hf.py — attune inside transformers: registers an attention and its mask function by name
"""`attune.hf.enable()`, and models of transformers take `attn_implementation="attune"`.

A mask stays the function that transformers makes it of, so that none is ever written out; a soft cap is a score_mod, an
attention sink (gpt_oss) a sink, dropout a prob mod.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    add_offsets_to_mask_function,
    and_masks,
    padding_mask_function,
    prepare_padding_mask,
)

from attune.torch._attend import attend
from attune.torch._flex import as_autocast, is_any_autocast, mask_of, written
from attune.torch._sdpa import dropping


def enable(name: str = "attune") -> None:
    """Makes attune known to transformers, as `attn_implementation=name`."""
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


class Mask(BlockMask):
    """A mask function and its sizes. It is a BlockMask by name alone: that is how transformers knows a mask that is
    done, which for caches of a fixed size it hands back."""

    def __init__(self, mask_mod: Callable[..., Any], shape: tuple[int, int, int, int]) -> None:
        self.mask_mod, self.BLOCK_SIZE = mask_mod, (128, 128)
        self._shape, self.lengths = shape, shape[2:]

    @property
    def shape(self) -> tuple[int, ...]:
        """[batch, heads, queries, keys]."""
        return self._shape

    def contiguous(self) -> Mask:
        """Itself."""
        return self

    def __repr__(self) -> str:
        return f"attune.hf.Mask({list(self._shape)})"


def mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: Any = 0,
         mask_function: Callable[..., Any] | None = None, attention_mask: Tensor | None = None,
         **_: Any) -> Mask:
    """What transformers asks for in place of a tensor: its mask function, with padding and the cache's offsets."""
    assert mask_function is not None
    if attention_mask is not None and not _is_all_true(attention_mask):
        padding: Any = prepare_padding_mask(attention_mask, kv_length, kv_offset)
        mask_function = and_masks(mask_function, padding_mask_function(padding))
    shifted = isinstance(q_offset, Tensor) or q_offset or isinstance(kv_offset, Tensor) or kv_offset
    if shifted:
        mask_function = add_offsets_to_mask_function(mask_function, q_offset, kv_offset)
    return Mask(mask_function, (batch_size, 1, q_length, kv_length))


def _is_all_true(attention_mask: Tensor) -> bool:
    """Looked at where that waits for nothing: on the CPU, and not in a graph."""
    return attention_mask.device.type == "cpu" and not torch.compiler.is_compiling() and bool(attention_mask.all())


def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float | None = None,
              dropout: float = 0.0, softcap: float | None = None, s_aux: Tensor | None = None,
              position_bias: Tensor | None = None, is_causal: bool | None = None, **_: Any) -> tuple[Tensor, None]:
    """The attention of a layer: [batch, queries, heads, width], and no weights."""
    if is_any_autocast():
        query, key, value = as_autocast(query, key, value)
    mask_mod, bias = None, None
    if isinstance(attention_mask, Tensor):  # a user's own mask, of four dimensions
        bias = attention_mask[..., :key.shape[-2]]
    elif type(attention_mask) is Mask and attention_mask.lengths == (query.shape[-2], key.shape[-2]):
        mask_mod = attention_mask.mask_mod
    elif attention_mask is not None:
        mask_mod = mask_of(attention_mask, (query.shape[-2], key.shape[-2]))
    elif query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        mask_mod = _causal
    scored = softcap is not None or bias is not None or position_bias is not None
    spelled = written(_scores(softcap, bias, position_bias) if scored else None, mask_mod, query)
    prob, sink, names, captures = "", "", [], []
    if dropout:
        prob, seed = dropping(dropout, query.device)
        names.append("seed")
        captures.append(seed)
    if s_aux is not None:
        sink = "s_aux[h]"
        names.append("s_aux")
        captures.append(s_aux.to(query.dtype))
    if names:
        spelled = spelled.joined(prob, sink, names, captures)
    out, _lse, _most = attend(spelled, query, key, value, scaling)
    out = out.transpose(1, 2)
    return out if out.is_contiguous() else out.contiguous(), None


def _causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def _scores(softcap: float | None, bias: Tensor | None, position_bias: Tensor | None) -> Callable[..., Any] | None:
    if bias is None and position_bias is None:
        return None if softcap is None else _capped(softcap)

    def score(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        if softcap is not None:
            s = _capped(softcap)(s, b, h, q_idx, kv_idx)
        for tensor in (position_bias, bias):
            if tensor is None:
                continue
            at = [0 if n == 1 else i for n, i in zip(tensor.shape, (b, h, q_idx, kv_idx))]
            if tensor.dtype == torch.bool:
                s = torch.where(tensor[tuple(at)], s, float("-inf"))
            else:
                s = s + tensor[tuple(at)]
        return s

    return score


@functools.cache
def _capped(softcap: float) -> Callable[..., Any]:
    """The same function for the same cap, so that what was traced before holds."""
    return lambda s, b, h, q_idx, kv_idx: softcap * torch.tanh(s / softcap)
