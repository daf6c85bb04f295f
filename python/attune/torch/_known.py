# python/attune/torch/_known.py — what a BlockMask of torch keeps: its mask_mod alone, or that within listed blocks
"""Torch's compiled flex_attention visits the blocks that a BlockMask lists: it keeps every pair of a full block, and of a
partial block the pairs that the mask_mod keeps. If the lists follow from the mask_mod, as those of create_block_mask do,
the mask_mod alone says the same, and attune solves it for its own tiles. If they do not, they are part of the mask.

A BlockMask remembers what attune found out about it, until one of its parts is replaced or written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.attention.flex_attention as flex
from torch import Tensor
from torch.compiler import is_compiling

from attune import _core
from attune._errors import Error
from attune.torch import _blocks, _op
from attune.torch._mod import Spelled, spelled_of

_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
_KNOWN = "_attune_known"  # an attribute of a BlockMask


class _Known(NamedTuple):
    """What a BlockMask was, and what it keeps while it is that."""

    mask_mod: Any
    sizes: tuple[Any, ...]
    tensors: tuple[Tensor | None, ...]  # the lists, then the tensors that the mask_mod reads
    versions: tuple[int, ...] | None  # of the tensors; None: nobody has written them
    keeps: Any  # a mask_mod
    text: str | None = None  # of the mask_mod, once it is known

    def __deepcopy__(self, _: Any) -> None:
        """None: copied tensors count their versions anew."""

    def __reduce__(self) -> Any:
        return type(None), ()


def _sizes(mask: Any) -> tuple[Any, ...]:
    return mask.seq_lengths, mask.BLOCK_SIZE


def _lists(mask: Any) -> tuple[Tensor | None, ...]:
    return tuple([getattr(mask, name) for name in _LISTS])


def _versions(tensors: tuple[Tensor | None, ...]) -> tuple[int, ...] | None:
    """None for tensors of inference mode, which have none."""
    given = [t for t in tensors if t is not None]
    return None if any([t.is_inference() for t in given]) else tuple([t._version for t in given])


def _has_its_parts(known: _Known | None, mask: Any) -> bool:
    if known is None or known.mask_mod is not mask.mask_mod or known.sizes != _sizes(mask):
        return False
    for a, b in zip(known.tensors, _lists(mask)):
        if a is not b:
            return False
    return True


def _is(known: _Known, mask: Any) -> bool:
    if not _has_its_parts(known, mask):
        return False
    now = _versions(known.tensors)
    return now is not None and (now == known.versions if known.versions is not None else not any(now))


def _is_alone(mask: Any) -> bool | None:
    """True if the mask_mod alone is known to say what the lists say; None if nothing is known."""
    known = vars(mask).get(_KNOWN)
    return None if known is None else known.keeps is known.mask_mod and _is(known, mask)


# Dynamo guards on the value of this getter, so a compiled graph learns that a list has been written.
_core.add_getter(flex.BlockMask, "_attune_is_alone", _is_alone)


def follows(mask: Any, spelled: Spelled) -> _Known:
    """Notes that the lists of a BlockMask say what its mask_mod says, which is spelled so."""
    # Captured tensors of inference mode do not tell whether they were written, but lists that no longer follow from them
    # would be a mistake in torch as well.
    tensors = (*_lists(mask), *[t for t in spelled.captures if not t.is_inference()])
    found = _Known(mask.mask_mod, _sizes(mask), tensors, _versions(tensors), mask.mask_mod, spelled.texts.mask)
    return _note(mask, found)


def _note(mask: Any, known: _Known) -> _Known:
    vars(mask)[_KNOWN] = known
    return known


def is_for_all(text: str, lists: Sequence[Any], shape: Sequence[Any]) -> bool:
    """True if lists of [batch, heads] entries hold for each batch entry and head of a call, one for all of them unless
    the mask reads which it is."""
    return not any([n == 1 != m and re.search(rf"\b{name}\b", text) for name, n, m in zip("bh", lists, shape)])


# ---- in a graph of Dynamo's


def follows_in_graph(mask: Any) -> Any:
    """The same while Dynamo traces. The operator tells _joint.py that nobody wrote the lists between here and
    `lists_in_graph`."""
    for name in _LISTS:
        if getattr(mask, name) is not None:
            setattr(mask, name, torch.ops.attune.follows(getattr(mask, name)))
    mask._attune_known = _Known(mask.mask_mod, _sizes(mask), _lists(mask), None, mask.mask_mod)
    return mask


def lists_in_graph(mask: Any, lists: tuple[Any, ...]) -> tuple[Any, ...]:
    """The lists as torch's operator gets them: from the operator twice if they are known to follow from the mask_mod."""
    seen = mask._attune_is_alone
    if seen is None and _is_of_this_graph(mask):
        return tuple([None if one is None else torch.ops.attune.follows(one) for one in lists])
    if seen:
        return tuple([None if one is None else torch.ops.attune.follows(torch.ops.attune.follows(one)) for one in lists])
    return lists


def _is_of_this_graph(mask: Any) -> bool:
    """True for what `follows_in_graph` returned in the same graph, with the same parts."""
    return _has_its_parts(getattr(mask, _KNOWN, None), mask)


# ---- attune.torch.flex_attention


def keeps(mask: Any, shape: Sequence[int]) -> Callable[..., Any]:
    """A mask_mod of the pairs that a BlockMask keeps, its lists included. `shape`: how many batch entries and heads the
    call has."""
    if is_compiling():
        seen = mask._attune_is_alone
        if seen is None:
            seen = _is_of_this_graph(mask)
        return mask.mask_mod if seen else _within(mask)
    known = vars(mask).get(_KNOWN)
    if _is_recorded(mask.kv_indices) and (known is None or not _is(known, mask)):
        return _within(mask)  # its tables are the record's
    if known is None:
        known = _proved(mask)
    elif not _is(known, mask):
        known = None
    elif known.text is None and known.keeps is known.mask_mod:
        known = follows(mask, spelled_of(None, mask.mask_mod, mask.kv_indices.device))
    if known is not None and (known.text is None or is_for_all(known.text, mask.kv_indices.shape, shape)):
        return known.keeps
    lists = _lists(mask)
    return _note(mask, _Known(mask.mask_mod, _sizes(mask), lists, _versions(lists), _within(mask))).keeps


def _within(mask: Any) -> Callable[..., Any]:
    rows, columns = mask.BLOCK_SIZE
    mask_mod, lists, blocks = mask.mask_mod, _lists(mask), -(-mask.seq_lengths[1] // columns)
    if keeps_all(mask_mod):
        listed, full = torch.ops.attune.listed(*lists, blocks), None
    else:
        listed = torch.ops.attune.listed(*lists[:2], None, None, blocks)
        full = None if lists[2] is None else torch.ops.attune.listed(*lists[2:], None, None, blocks)

    def read(table: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return table[b if table.shape[0] > 1 else 0, h if table.shape[1] > 1 else 0, q_idx // rows, kv_idx // columns]

    def within(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        kept = read(listed, b, h, q_idx, kv_idx) & mask_mod(b, h, q_idx, kv_idx)
        return kept if full is None else read(full, b, h, q_idx, kv_idx) | kept

    return within


def _is_recorded(lists: Tensor) -> bool:
    """True if operations do not run now, or only for a transform: in a CUDA graph, a mode or a function of torch.func."""
    return (torch._C._len_torch_dispatch_stack() > 0 or torch._C._are_functorch_transforms_active()
            or (lists.is_cuda and torch.cuda.is_current_stream_capturing()))


def keeps_all(mask_mod: Any) -> bool:
    """True for the mask_mod of a BlockMask made only from lists, whose masking is entirely in the lists."""
    return getattr(mask_mod, "__name__", "") == "noop_mask" and mask_mod.__module__.startswith("torch.")


def _proved(mask: Any) -> _Known | None:
    """Notes that the lists follow from the mask_mod, if attune proves it: blocks that are not listed keep no pair, and
    full blocks all. The lists and what the mask_mod reads are brought to the host for that, once."""
    lists, device = _lists(mask), mask.kv_indices.device
    if len(mask.shape) != 4:
        return None
    ours = _blocks.BlockMask(mask.mask_mod, tuple(mask.shape), mask.BLOCK_SIZE, device)
    try:
        found = ours.kinds()
    except Error:  # the call says it, at the user's own line
        return None
    here: list[Any] = [None if t is None else t.cpu() for t in lists]
    listed = _op.listed(*here, found.shape[-1])
    full = torch.zeros((), dtype=torch.bool) if here[2] is None else _op.listed(*here[2:], None, None, found.shape[-1])
    if listed.shape != found.shape or not bool((listed | (found == 0)).all() and (~full | (found == 2)).all()):
        return None
    return follows(mask, spelled_of(None, mask.mask_mod, device))
