# python/attune/hf.py — attune inside transformers: registers an attention and its mask function by name
"""`attune.hf.enable()`, and models of transformers take `attn_implementation="attune"`.

A mask stays the function from which transformers would make a tensor, so none is materialised. A soft cap is a
score_mod, an attention sink (gpt_oss) a sink, dropout a prob mod.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    add_offsets_to_mask_function,
    and_masks,
    causal_mask_function,
    padding_mask_function,
    prepare_padding_mask,
    sliding_window_causal_mask_function,
)

from attune._kept import Kept
from attune.torch._attend import attend
from attune.torch._flex import as_autocast, is_any_autocast, mask_of, written
from attune.torch._mod import Spelled, spell
from attune.torch._sdpa import dropping


def enable(name: str = "attune") -> None:
    """Makes attune known to transformers, as `attn_implementation=name`."""
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


class Mask(BlockMask):
    """A mask function and its sizes; without a function it keeps every pair. It is a BlockMask by name alone: that is
    how transformers knows a mask that is done, which for caches of a fixed size it hands back."""

    def __init__(self, mask_mod: Callable[..., Any] | None, shape: tuple[int, int, int, int],
                 step: _Step | None = None) -> None:
        self.mask_mod, self.BLOCK_SIZE = mask_mod, (128, 128)  # type: ignore[assignment]
        self._shape, self.lengths, self._step = shape, shape[2:], step
        self._spelled: dict[object, Spelled] = {}  # for the layers of this step

    @property
    def shape(self) -> tuple[int, ...]:
        """[batch, heads, queries, keys]."""
        return self._shape

    def contiguous(self) -> Mask:
        """Itself."""
        return self

    def spelled(self, score: Callable[..., Any] | None, query: Tensor) -> Spelled:
        """As text, together with a score_mod that captures no tensor."""
        if torch.compiler.is_compiling():
            return written(score, self.mask_mod, query)
        key = score, query.device
        made = self._spelled.get(key)
        if made is None:
            made = None if self._step is None else self._step.spelled(score, query.device)
            made = self._spelled[key] = made or written(score, self.mask_mod, query)
        return made

    def __repr__(self) -> str:
        return f"attune.hf.Mask({list(self._shape)})"


def mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: Any = 0,
         mask_function: Callable[..., Any] | None = None, attention_mask: Tensor | None = None,
         local_size: int | None = None, **_: Any) -> Mask:
    """What transformers gets instead of a tensor: its mask function, with padding and the cache's offsets."""
    assert mask_function is not None
    padding, step = None, None
    if attention_mask is not None and not _is_all_true(attention_mask):
        padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    function: Callable[..., Any] | None = _at_step(mask_function, padding, q_offset, kv_offset)
    if function is not mask_function and not (torch.compiler.is_compiling() or isinstance(q_offset, Tensor) or
                                              isinstance(kv_offset, Tensor)):
        form = _form_of(mask_function)
        if padding is None and q_length == 1 and _last_sees(form, q_offset, kv_offset, kv_length, local_size):
            function = None
        elif form is not None and q_offset >= 0 and kv_offset >= 0:
            step = _Step(mask_function, form, padding, (q_offset, kv_offset))
    return Mask(function, (batch_size, 1, q_length, kv_length), step)


def _is_all_true(attention_mask: Tensor) -> bool:
    """True if it is known to be. Reading a GPU's waits for the GPU, which generation does at each token anyway;
    training does not, and graphs cannot."""
    if torch.compiler.is_compiling():
        return False
    if attention_mask.is_cuda and (torch.is_grad_enabled() or torch.cuda.is_current_stream_capturing()):
        return False
    return attention_mask.device.type in ("cpu", "cuda") and bool(attention_mask.all())


def _at_step(function: Callable[..., Any], padding: Tensor | None, q_offset: Any, kv_offset: Any) -> Callable[..., Any]:
    """The mask function at the positions that a cache has reached, without the keys of the padding."""
    if padding is not None:
        function = and_masks(function, padding_mask_function(padding))
    shifted = isinstance(q_offset, Tensor) or q_offset or isinstance(kv_offset, Tensor) or kv_offset
    return add_offsets_to_mask_function(function, q_offset, kv_offset) if shifted else function


def _last_sees(form: object, query: int, first_key: int, keys: int, local_size: int | None) -> bool:
    """True if a query sees all keys, of which none comes after it."""
    if first_key + keys - 1 > query:
        return False
    if form == _CAUSAL_FORM:
        return True
    return bool(local_size) and first_key > query - local_size and (
        form == _form_of(sliding_window_causal_mask_function(local_size)))


# ---- masks of the steps of generation, traced once


def _form_of(thing: object) -> object:
    """Equal for mask functions of transformers with the same code and numbers; None for any other, and for one that
    has a tensor."""
    if isinstance(thing, (int, str, type(None))):
        return type(thing), thing
    if isinstance(thing, tuple):
        parts = tuple([_form_of(one) for one in thing])
    elif isinstance(thing, FunctionType) and thing.__globals__ is _OF_MASKS and not thing.__defaults__:
        parts = (thing.__code__, *[_form_of(cell.cell_contents) for cell in thing.__closure__ or ()])
    else:
        return None
    return None if None in parts else parts


_OF_MASKS = causal_mask_function.__globals__
_CAUSAL_FORM = _form_of(causal_mask_function)


def _ints_in(form: Any) -> set[int]:
    if not isinstance(form, tuple):
        return set()
    return {form[1]} if form[:1] == (int,) else {n for part in form for n in _ints_in(part)}


class _Offset(int):
    """Can be found again among the integers of a text, which keep their identity."""


class _Text(NamedTuple):
    """A mask as text, for all steps whose masks differ in padding and offsets alone."""

    spelled: Spelled
    offsets: tuple[int | None, ...]  # which offset each integer of the text is; None: it is no offset


_texts: Kept[object, _Text] = Kept(256)


class _Step(NamedTuple):
    """What is new in a mask at each token. Tracing it would take as long as several layers' calls."""

    function: Callable[..., Any]
    form: object
    padding: Tensor | None
    offsets: tuple[int, int]  # of the queries and of the keys

    def spelled(self, score: Callable[..., Any] | None, device: torch.device) -> Spelled | None:
        """The text of the mask and a score_mod; None if it holds for this step only."""
        shape = None if self.padding is None else tuple([n == 1 for n in self.padding.shape])
        constants = tuple([n if n < 2 else None for n in self.offsets])  # in a text, 0 and 1 are no arguments
        key = (self.form, constants, shape, score, device)
        text = _texts.get(key) or self._traced(score, device)
        if text is None:
            return None
        _texts.put(key, text)
        made = text.spelled
        ints = tuple([n if at is None else self.offsets[at] for n, at in zip(made.ints, text.offsets)])
        captures = () if self.padding is None or not made.names else (self.padding,)
        return Spelled(made.texts, made.names, captures, ints, made.written)

    def _traced(self, score: Callable[..., Any] | None, device: torch.device) -> _Text | None:
        marked = tuple([_Offset(n) for n in self.offsets])
        names = {} if self.padding is None else {id(self.padding): "padding_mask"}
        made, lasting = spell(score, _at_step(self.function, self.padding, *marked), device, names)
        offsets = tuple([next((at for at, one in enumerate(marked) if one is n), None) for n in made.ints])
        others = {n for n, at in zip(made.ints, offsets) if at is None}
        if not lasting or not others <= _ints_in(self.form) or any([t is not self.padding for t in made.captures]):
            return None
        return _Text(Spelled(made.texts, made.names, (), made.ints, made.written), offsets)


def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float | None = None,
              dropout: float = 0.0, softcap: float | None = None, s_aux: Tensor | None = None,
              position_bias: Tensor | None = None, is_causal: bool | None = None, **_: Any) -> tuple[Tensor, None]:
    """The attention of a layer: [batch, queries, heads, width], and no weights."""
    if is_any_autocast():
        query, key, value = as_autocast(query, key, value)
    mask_mod, bias, own = None, None, None
    if isinstance(attention_mask, Tensor):  # a user's own mask, of four dimensions
        bias = attention_mask[..., :key.shape[-2]]
    elif type(attention_mask) is Mask and attention_mask.lengths == (query.shape[-2], key.shape[-2]):
        own, mask_mod = attention_mask, attention_mask.mask_mod
    elif attention_mask is not None:
        mask_mod = mask_of(attention_mask, (query.shape[-2], key.shape[-2]), query.shape[:2])
    elif query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        mask_mod = _causal
    score = _scores(softcap, bias, position_bias)
    if own is not None and position_bias is None:
        spelled = own.spelled(score, query)
    else:
        spelled = written(score, mask_mod, query)
    prob = sink = ""
    more: dict[str, Tensor] = {}
    if dropout:
        prob, more["seed"] = dropping(dropout, query.device)
    if s_aux is not None:
        sink, more["s_aux"] = "s_aux[h]", s_aux.to(query.dtype)
    out, _lse, _most = attend(spelled.joined(prob, sink, more), query, key, value, scaling)
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
