# python/attune/jax/_call.py — one attention as XLA custom calls: forward, backward, and their vmap
"""Calls of attune in a JAX program. Everything but the arrays is a text, which is an attribute of the custom call."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from attune import _core
from attune._targets import number_of

Array = Any  # of JAX, traced or not
Arrays = tuple[Array, ...]

_FORWARD, _BACKWARD = 0, 1
_TARGET = "attune"

for _platform, _handler in _core.jax_handlers().items():
    jax.ffi.register_ffi_target(_TARGET, _handler, platform=_platform)


class What(NamedTuple):
    """An attention and the numbers of a call: everything but its arrays."""

    parts: tuple[str | None, ...]  # score, mask, prob, sink
    lets: tuple[tuple[str, str], ...]
    captures: tuple[tuple[str, str, int], ...]
    params: tuple[tuple[str, str], ...]
    scale: float | None
    target: str
    exact: bool | None
    q_offset: int
    numbers: tuple[float, ...]  # of the parameters

    def handle(self) -> _core.Attention:
        """The attention of the core."""
        return _handle(*self[:7])


@functools.lru_cache(512)
def _handle(parts: tuple[str | None, ...], lets: tuple[tuple[str, str], ...],
            captures: tuple[tuple[str, str, int], ...], params: tuple[tuple[str, str], ...], scale: float | None,
            target: str, exact: bool | None) -> _core.Attention:
    return _core.Attention(list(parts), list(lets), list(captures), list(params), scale, number_of(target),
                           0 if exact is None else 1 if exact else -1)


def _text(what: What, direction: int, arguments: tuple[str | int, ...], results: tuple[str | int, ...]) -> str:
    """The attribute of a call. A number means a capture; among results, the capture's gradient."""
    return json.dumps([what, direction, arguments, results])


def site(text: str) -> tuple[Any, ...]:
    """Called by the handler in core/jax.cpp, once for each text."""
    fields, direction, arguments, results = json.loads(text)
    parts, lets, captures, params, scale, target, exact, q_offset, numbers = fields
    pairs = [tuple([tuple(one) for one in listed]) for listed in (lets, captures, params)]
    handle = _handle(tuple(parts), *pairs, scale, target, exact)
    return handle, direction, q_offset, 0, 0, numbers, arguments, results


# ---- the two calls


@functools.lru_cache(512)
def _forward(what: What, with_lse: bool, with_max: bool) -> Callable[..., Arrays]:
    """(q, k, v, *captures) to the output, and the sums and the largest scores where they are asked for."""
    arguments = ("q", "k", "v", *range(len(what.captures)))
    results = ("out", *(["lse"] if with_lse else []), *(["max"] if with_max else []))
    text = _text(what, _FORWARD, arguments, results)

    @custom_vmap
    def forward(*arrays: Array) -> Arrays:
        q, v = arrays[0], arrays[2]
        shapes = [jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype)]
        shapes += [jax.ShapeDtypeStruct(q.shape[:-1], _row_type(q))] * (len(results) - 1)
        return tuple(jax.ffi.ffi_call(_TARGET, shapes, vmap_method="sequential")(*arrays, what=text))

    forward.def_vmap(functools.partial(_mapped, forward, 3, _may_fold(what)))
    return forward


@functools.lru_cache(512)
def _backward(what: What, wanted: tuple[bool, ...], with_grad_lse: bool) -> Callable[..., Arrays]:
    """(q, k, v, out, lse, grad_o, grad_lse if there is one, *captures) to the gradients that are wanted."""
    count = len(what.captures)
    given = ("q", "k", "v", "out", "lse", "grad_o", *(["grad_lse"] if with_grad_lse else []))
    slots = tuple(i for i in range(count) if wanted[3 + i])
    results: tuple[str | int, ...] = (*(n for n, w in zip(("dq", "dk", "dv"), wanted) if w), *slots)
    text = _text(what, _BACKWARD, (*given, *range(count)), results)

    @custom_vmap
    def backward(*arrays: Array) -> Arrays:
        likes = [x for x, w in zip((*arrays[:3], *arrays[len(given):]), wanted) if w]
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in likes]
        return tuple(jax.ffi.ffi_call(_TARGET, shapes, vmap_method="sequential")(*arrays, what=text))

    backward.def_vmap(functools.partial(_mapped, backward, len(given), _may_fold(what) and not slots))
    return backward


def _row_type(q: Array) -> Any:
    return q.dtype if q.dtype == jnp.float64 else jnp.float32


# ---- vmap


def _may_fold(what: What) -> bool:
    """True if no expression reads the batch index."""
    return not any(re.search(r"\bb\b|\brandom\b", text) for text in (*what.parts, *(t for _, t in what.lets)) if text)


def _mapped(call: Callable[..., Arrays], count: int, may_fold: bool, size: int, batched: list[bool],
            *arrays: Array) -> tuple[Arrays, Any]:
    """vmap: if only the first `count` arrays differ, mapped entries become batch entries; otherwise each entry is its
    own call, one after another."""
    if may_fold and not any(batched[count:]):
        whole = [x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in zip(arrays[:count], batched)]
        batch = whole[0].shape[1]
        if all(x.shape[1] == batch for x in whole):  # false if entries share keys
            made = call(*[x.reshape(size * batch, *x.shape[2:]) for x in whole], *arrays[count:])
            out = tuple([x.reshape(size, batch, *x.shape[1:]) for x in made])
            return out, tuple([True] * len(out))
    each = tuple([x for x, b in zip(arrays, batched) if b])

    def one(own: Arrays) -> Arrays:
        mine = iter(own)
        return call(*[next(mine) if b else x for x, b in zip(arrays, batched)])

    out = jax.lax.map(one, each)
    return out, tuple([True] * len(out))


# ---- gradients


@jax.tree_util.register_static
class _Wanted(tuple):  # type: ignore[type-arg]
    """The arrays whose gradients are wanted."""


@functools.lru_cache(512)
def attend(what: What, with_lse: bool, with_max: bool) -> Callable[..., Arrays]:
    """(q, k, v, *captures) to the results that are asked for, with gradients."""

    @jax.custom_vjp
    def run(*arrays: Array) -> Arrays:
        return _forward(what, with_lse, with_max)(*arrays)

    def remember(*given: Any) -> tuple[Arrays, Any]:
        arrays = [x.value for x in given]
        wanted = _Wanted([bool(x.perturbed) and jnp.issubdtype(x.value.dtype, jnp.floating) for x in given])
        out, lse, *most = _forward(what, True, with_max)(*arrays)
        return (out, *([lse] if with_lse else []), *most), (arrays, out, lse, wanted)

    def gradients(kept: Any, given: Any) -> Any:
        arrays, out, lse, wanted = kept
        grad_o = jnp.zeros_like(out) if isinstance(given[0], SymbolicZero) else given[0]
        grad_lse = [given[1]] if with_lse and not isinstance(given[1], SymbolicZero) else []
        call = _backward(what, tuple(wanted), bool(grad_lse))
        made = iter(call(*arrays[:3], out, lse, grad_o, *grad_lse, *arrays[3:]) if any(wanted) else ())
        return tuple([next(made) if w else None for w in wanted])

    run.defvjp(remember, gradients, symbolic_zeros=True)
    return run
