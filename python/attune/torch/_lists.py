# python/attune/torch/_lists.py — torch's create_block_mask under activate(compile=True): the same lists are made once
"""attune's kernels read the mask_mod of a BlockMask and not its lists of blocks, but a program may make the lists in each
step, as models of transformers do: with `_compile=True`, for which torch compiles create_block_mask anew. A mask takes
1.4 ms of the host in torch 2.11 and 0.6 in 2.15, and a compiled model has a graph break there.

Here a mask that reads no tensors gets the lists that were made for the same mask before. In a compiled model there is no
graph break, so that _joint.py finds the lists that nobody reads.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.attention.flex_attention as flex
from torch import Tensor

from attune._errors import Error
from attune._kept import Kept
from attune.torch._mod import spelled_of

_NAME = "create_block_mask"


class _Made(NamedTuple):
    """A BlockMask, and the versions of its tensors when it was made: whoever writes into them changes those."""

    mask: Any
    versions: list[int]

    @classmethod
    def of(cls, mask: Any) -> _Made:
        return cls(mask, _versions(mask))

    def is_unchanged(self) -> bool:
        return self.versions == _versions(self.mask)


def _versions(mask: Any) -> list[int]:
    return [t._version for t in vars(mask).values() if isinstance(t, Tensor)]


_torchs: Callable[..., Any] | None = None  # while it is replaced
_made: Kept[object, _Made] = Kept(16)


def add() -> None:
    """Replaces torch's function in every module that has it."""
    global _torchs
    if _torchs is None:
        _torchs = flex.create_block_mask
        _everywhere(_torchs, _ours(_torchs))


def remove() -> None:
    """Gives torch's function back."""
    global _torchs
    if _torchs is not None:
        _everywhere(_ours(_torchs), _torchs)
        _torchs = None
        _made.clear()


def _everywhere(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and names.get(_NAME) is old:
            names[_NAME] = new


@functools.cache
def _ours(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """The same function each time: what Dynamo compiled with it holds after another activate()."""
    @functools.wraps(torchs)
    def create_block_mask(mask_mod: Any, B: Any, H: Any, Q_LEN: Any, KV_LEN: Any, device: Any = None,
                          BLOCK_SIZE: Any = 128, _compile: bool = False, *others: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return torchs(mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE, False, *others, **named)
        key = _key(mask_mod, (B, H, Q_LEN, KV_LEN), (BLOCK_SIZE, others, tuple(named.items())), device)
        found = None if key is None else _made.get(key)
        if found is None or not found.is_unchanged():
            mask = torchs(mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE, _compile, *others, **named)
            if key is not None and found is None:
                _made.put(key, _Made.of(copy.copy(mask)))
            return mask
        mask = copy.copy(found.mask)
        mask.mask_mod = mask_mod
        return mask

    return create_block_mask


def _key(mask_mod: Any, lengths: tuple[Any, ...], others: tuple[Any, ...], device: Any) -> object:
    """Equal for calls with equal lists; None if they may differ in any call."""
    if _torchs is None or device is None or torch.is_inference_mode_enabled() or torch._C._len_torch_dispatch_stack():
        return None
    if not all([n is None or isinstance(n, int) for n in lengths]):
        return None
    on = torch.device(device)
    if on.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return None  # a graph has lists of its own, for as long as it lives
    try:
        spelled = spelled_of(None, mask_mod, on)
        stream = torch.cuda.current_stream(on).cuda_stream if on.type == "cuda" else 0
        key = (spelled.texts, spelled.ints, lengths, others, on, stream)
        hash(key)
    except (Error, TypeError, RuntimeError, AttributeError, ValueError):  # what a mask_mod says to attune's values
        return None
    return None if spelled.captures else key
