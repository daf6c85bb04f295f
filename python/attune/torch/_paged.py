# python/attune/torch/_paged.py — attention over a KV cache, paged or not, and the append of new keys, as torch operators
from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.compiler import is_compiling

from attune import _core
from attune._call import append as append_arrays
from attune._errors import said
from attune.torch._attend import check_tensors, computed, is_eager, is_recorded, output, row_numbers, starts
from attune.torch._flex import MaskMod, ScoreMod, as_autocast, check_heads, is_any_autocast, refuse_heads, written
from attune.torch._mod import Spelled
from attune.torch._op import _library, call_of, implement
from attune.torch._value import TIGHT, refuse, scalar


def paged_attention(query: Tensor, key: Tensor, value: Tensor, kv_len: Tensor, page_table: Tensor | None = None, *,
                    score_mod: ScoreMod | None = None, mask_mod: MaskMod | None = None, is_causal: bool = False,
                    scale: float | None = None, enable_gqa: bool = False, q_offsets: Tensor | None = None,
                    cu_seq_q: Tensor | None = None, max_q: int = 0, return_lse: bool = False,
                    before: tuple[Tensor, Tensor] | None = None, fixed_split_size: int = 0) -> Any:
    """Attention over a KV cache, for inference: the first `kv_len` [B] keys of each entry.

    `query` is [B, Hq, Sq, D]; packed [T, Hq, D], with the sequences' starts in `cu_seq_q` and the longest in `max_q`,
    which is read on a GPU alone. With `page_table` [B, n], `key` and `value` are pools of pages
    [pages, Hkv, page_size, D], of any strides; otherwise [B, Hkv, S, D]. Queries are the last positions of their entry,
    unless `q_offsets` [B] says where they begin; mods see positions. `before` is the output and lse of a call over other
    keys, which are merged in. `fixed_split_size`, a multiple of 128: other entries never change an entry's bits.

    >>> import torch
    >>> from attune.torch import append, paged_attention
    >>> pages, table = torch.zeros(2, 8, 2, 4, 16), torch.tensor([[5, 0], [3, 7]], dtype=torch.int32)
    >>> kv_len, new, q = torch.tensor([1, 1], dtype=torch.int32), torch.randn(2, 2, 1, 16), torch.randn(2, 4, 1, 16)
    >>> append(new, new, *pages, kv_len=kv_len, page_table=table)
    >>> out = paged_attention(q, *pages, kv_len, table, enable_gqa=True)
    >>> print(torch.equal(out, new.repeat_interleave(2, 1)))
    True
    """
    check_tensors(query, key, value)
    kv_len, q_offsets = _counts("kv_len", kv_len), _counts("q_offsets", q_offsets)
    if is_any_autocast():
        query, key, value = as_autocast(query, key, value)
    cu_q = None if cu_seq_q is None else starts(cu_seq_q)
    if cu_q is None:
        check_heads(query, key, enable_gqa)
    elif not enable_gqa and query.dim() == 3 and key.dim() == 4 and query.shape[1] != key.shape[1]:
        refuse_heads(query.shape[1], key.shape[1])
    if is_causal and cu_q is None and query.shape[-2] == 1 and q_offsets is None:
        is_causal = False  # the last position sees all keys
    if q_offsets is None and (score_mod is not None or mask_mod is not None):
        q_offsets = _last_positions(query, kv_len, cu_q)
    if is_causal:
        mask_mod = _causal(mask_mod) if q_offsets is not None else _up_to_the_last
    spelled = written(score_mod, mask_mod, query)
    o_before, lse_before = before if before is not None else (None, None)
    cache = (kv_len, page_table, q_offsets, o_before, lse_before, cu_q)
    out, lse = over_cache(spelled, (query, key, value), cache, max_q, scale, fixed_split_size)
    return (out, lse) if return_lse else out


def append(k_new: Tensor, v_new: Tensor, k: Tensor, v: Tensor, *, kv_len: Tensor | None = None,
           page_table: Tensor | None = None, cu_seqlens: Tensor | None = None, slots: Tensor | None = None,
           k_scale: float = 1.0, v_scale: float = 1.0) -> None:
    """Puts new keys and values to the ends of the entries of a cache: `attune.append` as an operator of torch, on torch's
    stream.

    `k_new` is [B, Hkv, n, D] and `v_new` [B, Hkv, n, Dv], or packed with their starts in `cu_seqlens`; the cache `k` and
    `v` as of paged_attention. Of the `kv_len` [B] keys that an entry then has, the last ones are new. Or `slots`, of i32
    or i64, has the place of each packed row in pools of pages: row `s % page_size` of page `s // page_size`, or none for
    -1.
    """
    if slots is not None:
        _check_tensor("slots", slots, "row")
    if slots is None or kv_len is not None:
        kv_len = _counts("kv_len", kv_len)
    torch.ops.attune.append(k_new, v_new, k, v, kv_len, page_table, cu_seqlens, k_scale, v_scale, slots)


# ---- what the arguments mean


def _check_tensor(name: str, given: Any, each: str) -> None:
    if not isinstance(given, Tensor):
        refuse("tensor-array", f"`{name}` is {said(given)}", f"it is a tensor of one integer for each {each}",
               "write torch.tensor(numbers, dtype=torch.int32)")


def _counts(name: str, given: Tensor | None) -> Any:
    """Integers of entries, as the core reads them."""
    if given is None and name != "kv_len":
        return None
    _check_tensor(name, given, "entry")
    return given.to(torch.int32) if given.dtype == torch.int64 and given.is_cuda else given


def _last_positions(query: Tensor, kv_len: Tensor, cu_q: Tensor | None) -> Tensor:
    """Where queries begin that are the last of their entries. An entry without keys, an empty slot of a server's batch,
    has no last positions: 0 there, since calls on the host refuse negative positions. On a GPU they are not read, and
    such rows have no pair that would see one."""
    count = query.shape[-2] if cu_q is None else cu_q[1:] - cu_q[:-1]
    first = (kv_len - count).to(torch.int32)
    return first if kv_len.is_cuda else first.masked_fill(kv_len == 0, 0)


def _up_to_the_last(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Causal, for queries that are counted from 0 and are the last of their entries."""
    keys, queries = (scalar(q_idx.trace, "i", (name, TIGHT), natural=True) for name in ("kv_len", "q_len"))
    return kv_idx <= q_idx + (keys - queries)


def _at_positions(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return kv_idx <= q_idx


def _causal(mask_mod: MaskMod | None) -> MaskMod:
    if mask_mod is None:
        return _at_positions
    return _both(mask_mod) if is_compiling() else _same_both(mask_mod)


def _both(mask_mod: MaskMod) -> MaskMod:
    return lambda b, h, q_idx, kv_idx: mask_mod(b, h, q_idx, kv_idx) & (kv_idx <= q_idx)


_same_both = functools.lru_cache(64)(_both)  # the same function for the same mask_mod: what was traced before holds


# ---- the operators


def over_cache(spelled: Spelled, qkv: tuple[Tensor, Tensor, Tensor], cache: tuple[Tensor | None, ...], max_q: int,
               scale: float | None, fixed_split_size: int = 0) -> tuple[Tensor, Tensor]:
    """The output and the lse. `cache`: kv_len, page_table, q_offsets, o_before, lse_before, and the starts of packed
    queries, of which `max_q` is the longest."""
    if is_eager() and not is_recorded(*qkv, spelled.captures):
        call = spelled.call(scale, qkv[0].dtype is torch.float64)
        made = _computed(spelled, call, qkv, spelled.captures, cache, max_q, fixed_split_size)
        if type(made) is tuple:
            return made[:2]
    return torch.ops.attune.paged(*qkv, *cache, spelled.captures, spelled.ints, *spelled.texts,
                                  " ".join(spelled.names), scale, max_q if cache[5] is not None else 0,
                                  fixed_split_size)


def _computed(spelled: Spelled, call: _core.TorchCall, qkv: tuple[Tensor, Tensor, Tensor], captures: tuple[Tensor, ...],
              cache: tuple[Tensor | None, ...], max_q: int, fixed_split_size: int) -> Any:
    kv_len, page_table, q_offsets, o_before, lse_before, cu_q = cache
    more = {"kv_len": kv_len, "page_table": page_table, "q_offsets": q_offsets, "o_before": o_before,
            "lse_before": lse_before, "fixed_split_size": fixed_split_size}
    if cu_q is not None:
        more |= {"cu_seqlens_q": cu_q, "max_q_len": max_q if qkv[0].is_cuda else 0}
    return computed(spelled, call.attend, *qkv, captures, True, False, False, more)


def over_pages(spelled: Spelled, qkv: tuple[Tensor, Tensor, Tensor], pages: tuple[Tensor, Tensor | None],
               cu_q: Tensor, max_q: int, scale: float | None, num_splits: int | None) -> tuple[Tensor, Tensor]:
    """The output and the lse, for key and value of [pages, page_size, heads, width]. `pages`: the table, and how many
    keys each sequence has."""
    table, used = pages
    q, k, v = qkv
    if used is None:
        refuse("paged-cache", "block_table is given without seqused_k", "a table does not say how many keys a sequence has",
               "pass seqused_k, one count for each sequence")
    split = _core.split_size(num_splits or 0, max_q * q.shape[1] // max(k.shape[2], 1))
    cache = (_counts("seqused_k", used), table, None, None, None, cu_q)
    return over_cache(spelled, (q, k.transpose(1, 2), v.transpose(1, 2)), cache, max_q, scale, split)


for _kind in ("", "_slowly"):
    _library.define(f"paged{_kind}(Tensor q, Tensor k, Tensor v, Tensor kv_len, Tensor? page_table, Tensor? q_offsets, "
                    "Tensor? o_before, Tensor? lse_before, Tensor? cu_q, Tensor[] captures, SymInt[] ints, str score, "
                    "str mask, str prob, str sink, str names, float? scale, SymInt max_q, int fixed_split_size) "
                    "-> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))
_library.define("append(Tensor k_new, Tensor v_new, Tensor(a!) k, Tensor(b!) v, Tensor? kv_len, Tensor? page_table, "
                "Tensor? cu_seqlens, float k_scale, float v_scale, Tensor? slots=None) -> ()",
                tags=(torch.Tag.pt2_compliant_tag,))


def _paged(q: Tensor, k: Tensor, v: Tensor, kv_len: Tensor, page_table: Tensor | None, q_offsets: Tensor | None,
           o_before: Tensor | None, lse_before: Tensor | None, cu_q: Tensor | None, captures: list[Tensor],
           *more: Any) -> tuple[Tensor, Tensor]:
    *mods, max_q, fixed_split_size = more
    spelled, call = call_of(q, captures, *mods)
    cache = kv_len, page_table, q_offsets, o_before, lse_before, cu_q
    return _computed(spelled, call, (q, k, v), tuple(captures), cache, max_q, fixed_split_size)[:2]


def _append(k_new: Tensor, v_new: Tensor, k: Tensor, v: Tensor, kv_len: Tensor | None, page_table: Tensor | None,
            cu_seqlens: Tensor | None, k_scale: float, v_scale: float, slots: Tensor | None = None) -> None:
    stream = torch.cuda.current_stream(k.device).cuda_stream if k.is_cuda else 0
    append_arrays(k_new.detach(), v_new.detach(), k.detach(), v.detach(), kv_len=kv_len, page_table=page_table,
                  cu_seqlens=cu_seqlens, slots=slots, k_scale=k_scale, v_scale=v_scale, stream=stream,
                  workers=0 if k.is_cuda else torch.get_num_threads())
    if not k.is_inference():
        torch.autograd.graph.increment_version((k, v))


implement(("paged",), "paged_slowly", _paged)
for _key in ("CPU", "CUDA"):
    _library.impl("append", _append, _key)


@torch.library.register_fake("attune::paged", lib=_library)
def _paged_of_nothing(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Any:
    return output(q, v), row_numbers(q, others[5] is not None)


@torch.library.register_fake("attune::append", lib=_library)
def _append_of_nothing(*_: Any) -> None:
    """Nothing is made."""


def _no_gradients(*_: Any) -> NoReturn:
    refuse("paged-cache", "the gradients of an attention over a KV cache are asked for", "such calls are for inference",
           "call it under torch.no_grad(), or use flex_attention or varlen_attention")


torch.library.register_autograd("attune::paged", _no_gradients, lib=_library)
