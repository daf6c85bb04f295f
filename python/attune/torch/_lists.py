# python/attune/torch/_lists.py — torch's create_block_mask under activate(compile=True): the same lists are made once
"""A program may make the lists of a BlockMask in each step, as models of transformers do: with `_compile=True`, for which
torch compiles create_block_mask anew. A mask takes 1.4 ms of the host in torch 2.11 and 0.6 in 2.15, and a compiled model
has a graph break there.

Here a mask that reads no tensors gets copies of the lists that were made for the same mask before. In a compiled model
there is no graph break. attune knows of these lists that they follow from the mask_mod (_known.py), so that _joint.py
finds those that nobody reads.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.attention.flex_attention as flex
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling, is_exporting

from attune._errors import Error
from attune._kept import Kept
from attune.torch._known import follows, follows_in_graph, lists_in_graph
from attune.torch._mod import Spelled, spelled_of

_NAME = "create_block_mask"
_KEYS = slice(2, 6)  # the lists of blocks of keys in as_tuple()

_torchs: tuple[Callable[..., Any], Callable[..., Any]] | None = None  # while they are replaced
_made: Kept[object, Any] = Kept(16)  # nobody else has the tensors of these


def add() -> None:
    """Replaces torch's function in every module that has it, and what hands the lists to the compiled flex_attention."""
    global _torchs
    if _torchs is None:
        _torchs = flex.create_block_mask, flex.BlockMask.as_tuple
        _everywhere(_torchs[0], _ours(_torchs[0]))
        flex.BlockMask.as_tuple = _tuple(_torchs[1])  # type: ignore[method-assign]


def remove() -> None:
    global _torchs
    if _torchs is not None:
        _everywhere(_ours(_torchs[0]), _torchs[0])
        flex.BlockMask.as_tuple = _torchs[1]  # type: ignore[method-assign]
        _torchs = None
        _made.clear()


def _everywhere(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and names.get(_NAME) is old:
            names[_NAME] = new


# The same functions each time: what Dynamo compiled with them holds after another activate().


@functools.cache
def _tuple(torchs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(torchs)
    def as_tuple(self: Any, flatten: bool = True) -> tuple[Any, ...]:
        parts = torchs(self, flatten)
        if not flatten or not is_dynamo_compiling() or is_exporting():
            return parts
        return (*parts[:2], *lists_in_graph(self, parts[_KEYS]), *parts[6:])

    return as_tuple


@functools.cache
def _ours(torchs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(torchs)
    def create_block_mask(mask_mod: Any, B: Any, H: Any, Q_LEN: Any, KV_LEN: Any, device: Any = None,
                          BLOCK_SIZE: Any = 128, _compile: bool = False, *others: Any, **named: Any) -> Any:
        if is_compiling():
            mask = torchs(mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE, False, *others, **named)
            return follows_in_graph(mask) if is_dynamo_compiling() and not is_exporting() else mask
        spelled = None if device is None else _spelled(mask_mod, device)
        key = None if spelled is None else _key(
            spelled, (B, H, Q_LEN, KV_LEN), (BLOCK_SIZE, others, tuple(named.items())), torch.device(device))
        found = None if key is None else _made.get(key)
        with torch.inference_mode(False):  # tensors of inference mode do not tell whether they were written
            if found is None:
                mask = torchs(mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE, _compile, *others, **named)
                if key is not None:
                    _made.put(key, _copied(mask))
            else:
                mask = _copied(found)
                mask.mask_mod = mask_mod
        spelled = spelled or _spelled(mask_mod, mask.kv_indices.device)
        if spelled is not None:
            follows(mask, spelled)
        return mask

    return create_block_mask


def _copied(mask: Any) -> Any:
    made = copy.copy(mask)
    vars(made).update({name: part.clone() for name, part in vars(mask).items() if isinstance(part, Tensor)})
    return made


def _spelled(mask_mod: Any, device: Any) -> Spelled | None:
    """None for what attune leaves to torch."""
    if torch._C._len_torch_dispatch_stack():
        return None
    try:
        return spelled_of(None, mask_mod, torch.device(device))
    except (Error, TypeError, RuntimeError, AttributeError, ValueError):  # what a mask_mod says to attune's values
        return None


def _key(spelled: Spelled, lengths: tuple[Any, ...], others: tuple[Any, ...], on: torch.device) -> object:
    """Equal for calls with equal lists; None if they may differ in any call."""
    if _torchs is None or spelled.captures or spelled.typed:
        return None
    if not all([n is None or isinstance(n, int) for n in lengths]):
        return None
    if on.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return None  # a graph has lists of its own, for as long as it lives
    stream = torch.cuda.current_stream(on).cuda_stream if on.type == "cuda" else 0
    key = (spelled.texts, spelled.ints, lengths, others, on, stream)
    try:
        hash(key)
    except TypeError:
        return None
    return key
