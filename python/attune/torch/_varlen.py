# python/attune/torch/_varlen.py — attention over packed sequences, with the signature of torch's varlen_attn
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from attune._errors import said
from attune.torch._attend import Packed, asks_lse, attend, check_tensors, starts
from attune.torch._flex import MaskMod, ScoreMod, as_autocast, is_any_autocast, refuse_heads, written
from attune.torch._paged import over_pages
from attune.torch._value import TIGHT, refuse, scalar


def varlen_attention(query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor | None,
                     max_q: int = 0, max_k: int = 0, *, return_aux: Any = None, scale: float | None = None,
                     window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
                     seqused_k: Tensor | None = None, block_table: Tensor | None = None,
                     num_splits: int | None = None, score_mod: ScoreMod | None = None,
                     mask_mod: MaskMod | None = None, is_causal: bool | None = None) -> Any:
    """torch.nn.attention.varlen.varlen_attn, compiled by attune; q is [tokens, heads, width].

    Beyond torch's: a score_mod and a mask_mod, whose `b` is the sequence and whose positions are within it. The window
    is aligned to the sequences' ends, as torch's is. `max_q` and `max_k` are read on a GPU alone. With a `block_table`
    key and value are pools [pages, page_size, heads, width], `seqused_k` counts the keys, and there are no gradients.

    >>> import torch
    >>> from attune.torch import varlen_attention
    >>> q, starts = torch.ones(10, 2, 16), torch.tensor([0, 3, 10], dtype=torch.int32)
    >>> varlen_attention(q, q, q, starts, starts, 7, 7, window_size=(-1, 0)).shape
    torch.Size([10, 2, 16])
    """
    check_tensors(query, key, value)
    if is_causal is not None:
        refuse("bad-argument", "`is_causal` is not an argument of varlen_attention", "torch's has window_size instead",
               "write window_size=(-1, 0) for causal attention")
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        refuse("bad-argument", f"`window_size` cannot be {said(window_size)}",
               "it is how many keys before and after the diagonal are seen, or -1", "write (3, 0) for 3 before it")
    heads = key.shape[1 if block_table is None else 2]
    if not enable_gqa and query.shape[1] != heads:
        refuse_heads(query.shape[1], heads)
    if is_any_autocast():
        query, key, value = as_autocast(query, key, value)
    with_lse = asks_lse(return_aux)
    if block_table is not None:
        spelled = written(score_mod, _seen(mask_mod, (window_size[0], window_size[1]), None), query)
        made = over_pages(spelled, (query, key, value), (block_table, seqused_k), starts(cu_seq_q), max_q, scale,
                          num_splits)
        return made if with_lse else made[0]
    starts_q, starts_k = (starts(t) for t in (cu_seq_q, cu_seq_q if cu_seq_k is None else cu_seq_k))
    if seqused_k is not None:
        _check_used(seqused_k, starts_k)
    mask = _seen(mask_mod, (window_size[0], window_size[1]), seqused_k)
    longest = (max_q, max_k) if query.is_cuda else (0, 0)
    out, lse, _ = attend(written(score_mod, mask, query), query, key, value, scale, with_lse=with_lse,
                         packed=Packed(starts_q, starts_k, *longest))
    return (out, lse) if with_lse else out


def _check_used(used: Tensor, starts_k: Tensor) -> None:
    """Refuses invalid counts of keys. On a device and in a graph the counts themselves are not read."""
    count = starts_k.shape[0] - 1
    if used.dim() != 1 or used.shape[0] != count:
        refuse("kv-len", f"`seqused_k` is {list(used.shape)}", f"there are {count} sequences of keys",
               "pass one count for each")
    if used.dtype not in (torch.int32, torch.int64):
        refuse("kv-len", f"`seqused_k` holds {used.dtype}", "they are counts of keys", "convert it: .to(torch.int32)")
    if used.is_cuda or is_compiling():
        return
    room = starts_k[1:] - starts_k[:-1]
    for at, (keys, most) in enumerate(zip(used.tolist(), room.tolist())):
        if not 0 <= keys <= most:
            refuse("kv-len", f"`seqused_k` has {keys} for sequence {at}", f"it has {most} keys",
                   "pass how many of them are in use")


def _seen(mask_mod: MaskMod | None, window: tuple[int, int], used: Tensor | None) -> Any:
    """The mask: the mask_mod, a window around the bottom-right aligned diagonal, and the keys in use."""
    left, right = window
    if left < 0 and right < 0 and used is None:
        return mask_mod

    def seen(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        trace = q_idx.trace
        keys: Any = scalar(trace, "i", ("kv_len", TIGHT), natural=True) if used is None else used[b]
        diagonal: Any = q_idx + (keys - scalar(trace, "i", ("q_len", TIGHT), natural=True))
        kept: Any = True
        if right >= 0:
            kept = kv_idx <= diagonal + right
        if left >= 0:
            kept = (diagonal - kv_idx <= left) & kept
        if used is not None:
            kept = (kv_idx < keys) & kept
        return kept if mask_mod is None else mask_mod(b, h, q_idx, kv_idx) & kept

    return seen
