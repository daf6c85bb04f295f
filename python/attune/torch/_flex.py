# python/attune/torch/_flex.py — flex_attention and create_block_mask with torch's signatures
from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.compiler import is_compiling

from attune._errors import said
from attune._library import watch
from attune.torch import _attend
from attune.torch._attend import asks_lse, attend, check_tensors
from attune.torch._blocks import BlockMask, MaskMod
from attune.torch._dynamo import ask_values
from attune.torch._mod import Spelled, Texts, spell, spelled_of, texts_of
from attune.torch._value import refuse

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
_LARGE = 1 << 30  # the block size of a torch BlockMask that masks nothing


class AuxRequest(NamedTuple):
    """What flex_attention gives besides the output; torch's own AuxRequest does as well."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What was asked for, else None. lse is a natural logarithm, and differentiable."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def create_block_mask(mask_mod: MaskMod, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None,
                      BLOCK_SIZE: int | tuple[int, int] = 128, _compile: bool = False,
                      separate_full_blocks: bool = True, **_: Any) -> BlockMask:
    """As torch's, and free: the kernel finds the tiles that a mask leaves when it runs."""
    size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
    return BlockMask(mask_mod, (B or 1, H or 1, Q_LEN, KV_LEN), size, device)  # type: ignore[arg-type]


def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: ScoreMod | None = None,
                   block_mask: Any = None, scale: float | None = None, enable_gqa: bool = False,
                   return_lse: bool = False, kernel_options: Any = None, *, return_aux: Any = None) -> Any:
    """torch.nn.attention.flex_attention.flex_attention, compiled by attune.

    >>> import torch
    >>> from attune.torch import flex_attention
    >>> q = torch.ones(1, 2, 8, 4, requires_grad=True)
    >>> flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx)).sum().backward()
    >>> q.grad.shape
    torch.Size([1, 2, 8, 4])
    """
    try:
        q_shape, k_shape = check_heads(query, key, enable_gqa)
    except AttributeError:
        check_tensors(query, key, value)
        raise
    lengths = q_shape[-2], k_shape[-2]
    if _attend.sharing is not None:
        lengths = _attend.sharing.whole(lengths)
    mask_mod: MaskMod | None = None
    if type(block_mask) is BlockMask and block_mask.seq_lengths == lengths:
        mask_mod = block_mask.mask_mod
    elif block_mask is not None:
        mask_mod = mask_of(block_mask, lengths, q_shape[:2])
    if kernel_options is not None:
        _warn_of_options()
    if return_lse and return_aux is not None:
        refuse("aux-twice", "both return_lse and return_aux are given", "they ask for the same",
               "write return_aux=AuxRequest(lse=True) alone")
    if is_any_autocast():
        query, key, value = as_autocast(query, key, value)
    with_lse, with_max = bool(return_lse), False
    if return_aux is not None:
        with_lse, with_max = asks_lse(return_aux) or with_lse, bool(return_aux.max_scores)
    spelled = written(score_mod, mask_mod, query)
    out, lse, most = attend(spelled, query, key, value, scale, with_lse=with_lse, with_max=with_max)
    if return_aux is not None:
        return out, AuxOutput(lse, most)
    return (out, lse) if return_lse else out


def explain(query: Tensor | Callable[[], Any], key: Tensor | None = None, value: Tensor | None = None,
            score_mod: ScoreMod | None = None, block_mask: Any = None, scale: float | None = None,
            enable_gqa: bool = False) -> str:
    """Calls flex_attention, and tells what the mods became, which kernel ran, and why not another.

    Given a function, calls that, and tells of each attention in it: `explain(lambda: model(x).sum().backward())`.
    """
    facts: list[dict[str, Any]] = []
    if not isinstance(query, Tensor):
        if not callable(query):
            refuse("tensor-array", f"`query` is {said(query)}", "explain takes q, k and v, or a function that it calls",
                   "write explain(q, k, v), or explain(lambda: model(x))")
        with watch(facts.append):
            query()
        return "\n".join(_ran(facts, named=True) or ["attune ran no attention"]) + "\n"
    if key is None or value is None:
        refuse("tensor-missing", f"{'k' if key is None else 'v'} is missing",
               "explain calls flex_attention with q, k and v", "write explain(q, k, v), or explain(lambda: model(x))")
    with watch(facts.append), torch.no_grad():
        flex_attention(query, key, value, score_mod, block_mask, scale, enable_gqa)
    mask_mod = None if block_mask is None else mask_of(block_mask, (query.shape[-2], key.shape[-2]), query.shape[:2])
    spelled = written(score_mod, mask_mod, query)
    page = ["what attune read", *_texts(spelled.texts), ""]
    page += [spelled.handle(scale, query.dtype is torch.float64).explain().rstrip(), "", *_ran(facts, named=False)]
    return "\n".join(page) + "\n"


def _texts(texts: Texts) -> list[str]:
    return [f"  {kind:<8} {text}" for kind, text in texts._asdict().items() if text]


def _ran(facts: list[dict[str, Any]], named: bool) -> list[str]:
    """What ran and why, one paragraph for all equal attentions."""
    rejected: dict[tuple[str, str], list[str]] = {}
    calls: dict[tuple[Any, ...], list[float]] = {}
    for fact in facts:
        if fact["fact"] == "chosen":
            whys = [f"not {one['kernel']}: {one['why']}" for one in fact["rejected"]]
            rejected.setdefault((fact["mod"], fact["kernel"].partition("-")[0]), whys)
        elif fact["fact"] == "called":
            shape = tuple([fact[name] for name in ("batch", "q_heads", "kv_heads", "q_len", "kv_len", "d", "dtype")])
            calls.setdefault((fact["mod"], fact["call"], fact["kernel"], fact["target"], shape), []).append(
                fact["seconds"])
    page: list[str] = []
    for (mod, call, kernel, target, shape), seconds in calls.items():
        if named:
            batch, q_heads, kv_heads, q_len, kv_len, width, dtype = shape
            page += ["", f"{call} of {batch} x {q_heads} heads ({kv_heads} of keys), {q_len} queries, {kv_len} keys, "
                         f"{width} wide, {dtype}", *_texts(texts_of(mod))]
        page += rejected.get((mod, call), [])
        times = "" if len(seconds) == 1 else f", {len(seconds)} times"
        page.append(f"ran {kernel} on {target} in {sum(seconds) * 1e3:.3g} ms{times}")
    return page[1:] if named else page


def written(score_mod: ScoreMod | None, mask_mod: MaskMod | None, query: Tensor) -> Spelled:
    if is_compiling():
        ask_values()
        return spell(score_mod, mask_mod, query.device, {})[0]
    return spelled_of(score_mod, mask_mod, query.device)


# A cheap check before the thorough one, whose four calls of torch cost a microsecond.
is_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Converts to autocast's type, as torch's attentions do; a cache's keys and values keep their type."""
    check_tensors(*tensors)
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    to = torch.get_autocast_dtype(device)
    stays = torch.float64, torch.float8_e4m3fn
    return tuple([t.to(to) if t.is_floating_point() and t.dtype not in stays else t for t in tensors])


def check_heads(query: Tensor, key: Tensor, enable_gqa: bool) -> tuple[torch.Size, torch.Size]:
    """The shapes of q and k. Refuses fewer heads of k than of q where that was not said to be meant."""
    if query.is_nested:
        refuse("tensor-layout", "`query` is nested", "flex_attention reads tensors of one length",
               "write scaled_dot_product_attention, or varlen_attention with a mask_mod")
    q_shape, k_shape = query.shape, key.shape
    if not enable_gqa and len(q_shape) == 4 and len(k_shape) == 4 and q_shape[1] != k_shape[1]:
        refuse_heads(q_shape[1], k_shape[1])
    return q_shape, k_shape


def refuse_heads(queries: int, keys: int) -> NoReturn:
    """Refuses different numbers of heads in a call without enable_gqa."""
    if queries % max(keys, 1):
        refuse("head-groups", f"{queries} query heads cannot share {keys} KV heads",
               "each KV head serves the same number of query heads, with enable_gqa=True",
               "make the heads of q a multiple of those of k and v")
    refuse("gqa-not-enabled", f"q has {queries} heads and k has {keys}",
           "query heads share heads of k and v only on request", "write enable_gqa=True")


def mask_of(block_mask: Any, given: tuple[int, int], shape: Sequence[int]) -> MaskMod | None:
    """What a BlockMask keeps, torch's or ours, if it is for these lengths. `shape`: [batch, heads] of the call."""
    mask_mod = getattr(block_mask, "mask_mod", None)
    if mask_mod is None:
        refuse("block-mask", f"`block_mask` is a {type(block_mask).__name__}", "it has no mask_mod",
               "write create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN)")
    if getattr(mask_mod, "__name__", "") == "_sliced_mask_mod_error":
        refuse("block-mask", "`block_mask` is a slice of a BlockMask",
               "a slice keeps the lists of blocks but loses the mask_mod",
               "make one for these lengths, with a mask_mod that adds the offset")
    if block_mask.BLOCK_SIZE[0] == _LARGE:
        return None
    lengths = tuple(block_mask.shape[-2:])
    if lengths != given:
        refuse("block-mask", f"`block_mask` is for {lengths[0]} queries and {lengths[1]} keys",
               f"q has {given[0]} and k has {given[1]}", "make one for these lengths; with attune that is free")
    if getattr(block_mask, "kv_indices", None) is None:
        return mask_mod
    from attune.torch import _known
    return _known.keeps(block_mask, shape)


_warned = False


def _warn_of_options() -> None:
    global _warned
    if not _warned and not is_compiling():
        _warned = True
        warnings.warn("attune: kernel_options are for torch's Triton kernels; attune chooses its tiles", stacklevel=3)
