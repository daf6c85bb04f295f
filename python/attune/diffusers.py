# python/attune/diffusers.py — attune inside diffusers: a backend of its attention, in the place of one that it has
"""`attune.diffusers.enable("native")`, and pipelines of diffusers run attune where they ran torch's attention.

Mods go through the models' `attention_kwargs`: `score_mod`, `mask_mod` and `block_mask`, as for FlexAttention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from diffusers.models import attention_dispatch as dispatch
from torch import Tensor

from attune.torch._attend import attend, gradients
from attune.torch._flex import create_block_mask, flex_attention
from attune.torch._sdpa import scaled_dot_product_attention, spelled_sdpa
from attune.torch._value import refuse

_registry = dispatch._AttentionBackendRegistry


class _Before(NamedTuple):
    """What a name of diffusers stood for."""
    function: Callable[..., Any] | None
    constraints: list[Any]
    arguments: set[str]
    is_parallel: bool


_taken: dict[Any, _Before] = {}


def enable(over: str | None = None) -> str:
    """Makes attune a backend, and returns its name, for `set_attention_backend` and `DIFFUSERS_ATTN_BACKEND`.

    `over`: the name that attune takes over, until `disable()`: "native" is what models use that choose nothing, and
    "flex" needs no other package either. diffusers up to now has a closed list of names; where it takes new ones,
    "attune" is one.
    """
    try:
        name = dispatch.AttentionBackendName("attune" if over is None else over)
    except ValueError:
        names = ", ".join(sorted(one.value for one in dispatch.AttentionBackendName))
        if over is None:
            refuse("backend-name", "this diffusers takes no new names of attention backends", f"it knows {names}",
                   'name one for attune to take over: attune.diffusers.enable("native")')
        refuse("backend-name", f"diffusers has no attention backend {over!r}", f"it knows {names}", "name one of them")
    if name not in _taken:
        _taken[name] = _Before(_registry._backends.get(name), _registry._constraints.get(name, []),
                               _registry._supported_arg_names.get(name, set()),
                               name.value in _registry._supports_context_parallel)
    _registry.register(name, constraints=[], supports_context_parallel=True)(attention)
    return str(name.value)


def disable() -> None:
    """Gives all names back."""
    for name, before in _taken.items():
        if before.function is None:
            for table in (_registry._backends, _registry._constraints, _registry._supported_arg_names):
                table.pop(name)
        else:
            _registry._backends[name] = before.function
            _registry._constraints[name], _registry._supported_arg_names[name] = before.constraints, before.arguments
        if not before.is_parallel:
            _registry._supports_context_parallel.discard(name.value)
    _taken.clear()


def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None,
              dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
              return_lse: bool = False, score_mod: Callable[..., Any] | None = None,
              mask_mod: Callable[..., Any] | None = None, block_mask: Any = None,
              _parallel_config: Any = None) -> Any:
    """The backend: q, k and v are [batch, positions, heads, width], the lse [batch, positions, heads]."""
    if attn_mask is not None and not isinstance(attn_mask, Tensor):
        if block_mask is not None:
            refuse("mask-twice", "`attn_mask` and `block_mask` are both BlockMasks", "a call has one", "leave one out")
        attn_mask, block_mask = None, attn_mask
    elif attn_mask is not None and attn_mask.ndim == 2 and attn_mask.shape == (query.shape[0], key.shape[1]):
        attn_mask = attn_mask[:, None, None, :]  # of keys
    mods = score_mod is not None or mask_mod is not None or block_mask is not None
    if mods and (attn_mask is not None or dropout_p != 0.0 or is_causal):
        refuse("mask-twice", "mods stand beside `attn_mask`, `dropout_p` or `is_causal`",
               "a call has a score_mod and a mask_mod, or what SDPA takes",
               "write the mask as a mask_mod, which may read a tensor")
    if mask_mod is not None and block_mask is not None:
        refuse("mask-twice", "there are a mask_mod and a BlockMask", "a call has one mask", "leave one of them out")
    if _parallel_config is not None:
        if mods:
            refuse("parallel-parts", "mods stand beside diffusers' context parallelism",
                   "its ranks hand over parts without their positions, which mods see",
                   "use attune.torch.context_parallel, or a tensor as `attn_mask`")
        return dispatch._templated_context_parallel_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, return_lse, forward_op=_forward,
            backward_op=_backward, _parallel_config=_parallel_config)
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if mods:
        if mask_mod is not None:
            block_mask = create_block_mask(mask_mod, q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        made = flex_attention(q, k, v, score_mod, block_mask, scale, enable_gqa, return_lse)
    elif return_lse:
        made = attend(spelled_sdpa(q, attn_mask, dropout_p, is_causal), q, k, v, scale, with_lse=True)[:2]
    else:
        made = scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if not return_lse:
        return made.transpose(1, 2)
    return made[0].transpose(1, 2), made[1].transpose(1, 2)


def _forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
             is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False,
             _save_ctx: bool = True, _parallel_config: Any = None) -> Any:
    """A part of a call over ranks, in diffusers' layout."""
    if dropout_p != 0.0:
        refuse("parallel-parts", "dropout stands beside diffusers' context parallelism",
               "each part would drop other pairs again in its gradients", "leave it out, or use attune.torch.context_parallel")
    spelled = spelled_sdpa(query, attn_mask, 0.0, is_causal)
    out, lse, _ = attend(spelled, *(t.transpose(1, 2) for t in (query, key, value)), scale, with_lse=True)
    assert lse is not None
    out, lse = out.transpose(1, 2).contiguous(), lse.transpose(1, 2).contiguous()
    if _save_ctx:
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.attune = spelled, scale
    return (out, lse) if return_lse else out


def _backward(ctx: Any, grad_out: Tensor, *_: Any, query: Tensor | None = None, key: Tensor | None = None,
              value: Tensor | None = None, out: Tensor | None = None, lse: Tensor | None = None, **__: Any) -> Any:
    """Of the part whose tensors are given; o and lse are then those of all parts."""
    given = (query, key, value, out, lse)
    q, k, v, o, rows = (t.transpose(1, 2) for t in (kept if one is None else one
                                                    for one, kept in zip(given, ctx.saved_tensors)))
    spelled, scale = ctx.attune
    grads = gradients(spelled, spelled.call(scale, False), grad_out.transpose(1, 2), None,
                      (q, k, v, o, rows.contiguous(), *spelled.captures), (True,) * 3 + (False,) * len(spelled.captures), 0, None)
    return tuple([g.transpose(1, 2).contiguous() for g in grads[:3] if g is not None])
