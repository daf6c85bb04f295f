# python/attune/jax/_call.py — one attention as XLA custom calls: forward, backward, and their vmap
"""Calls of attune in a JAX program. Everything but the arrays is a text, which is an attribute of the custom call."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from attune import _core
from attune._errors import Error
from attune._place import here
from attune._targets import number_of
from attune.jax._fold import may_fold, rewritten
from attune.jax._split import split

Array = Any  # of JAX, traced or not
Arrays = tuple[Array, ...]
Name = str | int  # of an argument or a result of a call: a number is the slot of a capture, or of its gradient

_FORWARD, _BACKWARD = 0, 1
_TARGET = "attune"

for _target, _handlers in _core.jax_handlers().items():
    for _platform, _handler in _handlers.items():
        jax.ffi.register_ffi_target(_target, _handler, platform=_platform)


class What(NamedTuple):
    """An attention and the numbers of a call: everything but its arrays."""

    parts: tuple[str | None, ...]  # score, mask, prob, sink
    lets: tuple[tuple[str, str], ...]
    captures: tuple[tuple[str, str, int], ...]
    params: tuple[tuple[str, str], ...]
    scale: float | None
    target: str
    exact: bool | None
    numbers: tuple[float, ...]  # of the parameters
    options: tuple[tuple[str, int], ...]  # whole numbers of the call that are not 0
    extras: tuple[str, ...]  # the arrays between v and the captures
    heads_inside: bool  # q, k, v, the output and their gradients are [B, S, H, D]

    def handle(self) -> _core.Attention:
        """The attention of the core."""
        return _handle(*self[:7])


@functools.lru_cache(512)
def _handle(parts: tuple[str | None, ...], lets: tuple[tuple[str, str], ...],
            captures: tuple[tuple[str, str, int], ...], params: tuple[tuple[str, str], ...], scale: float | None,
            target: str, exact: bool | None) -> _core.Attention:
    return _core.Attention(list(parts), list(lets), list(captures), list(params), scale, number_of(target),
                           0 if exact is None else 1 if exact else -1)


def site(text: str) -> tuple[Any, ...]:
    """Called by the handler in core/jax.cpp, once for each text."""
    fields, direction, arguments, results = json.loads(text)
    parts, lets, captures, params, scale, target, exact, numbers, options, _, heads_inside = fields
    pairs = [tuple([tuple(one) for one in listed]) for listed in (lets, captures, params)]
    handle = _handle(tuple(parts), *pairs, scale, target, exact)
    return handle, {"pass": direction, **dict(options)}, heads_inside, numbers, arguments, results


# ---- the two calls


class Call(NamedTuple):
    """A forward or a backward, and which arrays it takes and gives."""

    what: What
    direction: int
    arguments: tuple[Name, ...]
    results: tuple[Name, ...]

    def run(self, *arrays: Array) -> Arrays:
        """The results, from one call of XLA."""
        given = dict(zip(self.arguments, arrays))
        shapes = [like(*self._result(name, given), arrays) for name in self.results]
        return tuple(jax.ffi.ffi_call(_TARGET, shapes)(*arrays, what=json.dumps(self)))

    def _result(self, name: Name, given: dict[Name, Array]) -> tuple[tuple[int, ...], Any]:
        q, v = given["q"], given["v"]
        if name == "out":
            return (*q.shape[:-1], v.shape[-1]), q.dtype
        if name in ("lse", "max"):
            rows = q.shape[:-1]
            turned = len(rows) == 2 or self.what.heads_inside
            return (*rows[:-2], rows[-1], rows[-2]) if turned else rows, (
                q.dtype if q.dtype == jnp.float64 else jnp.float32)
        of = given[name[1:] if isinstance(name, str) else name]  # a gradient
        return of.shape, of.dtype


def _along(array: Any) -> frozenset[Any]:
    """Under shard_map, the axes of the mesh along which an array differs. JAX renamed the member in 0.10."""
    seen = jax.typeof(array)
    axes: frozenset[Any] = seen.mat.varying if hasattr(seen, "mat") else getattr(seen, "vma", frozenset())
    return axes


def _axes(arrays: Iterable[Array]) -> frozenset[Any]:
    return frozenset[Any]().union(*[_along(x) for x in arrays])


def like(shape: tuple[int, ...], dtype: Any, arrays: Arrays) -> Any:
    """A result of a call on these arrays."""
    axes = _axes(arrays)
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    return jax.typeof(arrays[0]).update(shape=shape, dtype=jnp.dtype(dtype), weak_type=False)  # arrays that are alike


def alike(arrays: list[Array]) -> list[Array]:
    """Under shard_map, arrays that are the same along an axis where others differ, as if they differed too: XLA's calls
    take no others."""
    axes = _axes(arrays)

    def cast(array: Array) -> Array:
        lacks = tuple(axes - _along(array))
        if not lacks:
            return array
        if hasattr(jax.lax, "pcast"):
            return jax.lax.pcast(array, lacks, to="varying")
        return getattr(jax.lax, "pvary")(array, lacks)  # noqa: B009 — JAX before 0.9, which types do not know

    return [cast(x) for x in arrays]


@functools.lru_cache(1024)
def _mappable(call: Call) -> Callable[..., Arrays]:
    run = custom_vmap(split(call))
    run.def_vmap(functools.partial(_mapped, call))
    whole = jax.custom_jvp(run)

    @whole.defjvp
    def refuse(*_: Any) -> Any:  # first derivatives are those of `attend`
        raise ValueError("attune: the gradients of an attention cannot be differentiated in JAX")

    return whole


def _forward(what: What, with_lse: bool, with_max: bool) -> Callable[..., Arrays]:
    """(q, k, v, *extras, *captures) to the output, and the sums and the largest scores where they are asked for."""
    arguments = ("q", "k", "v", *what.extras, *range(len(what.captures)))
    results = ("out", *(["lse"] if with_lse else []), *(["max"] if with_max else []))
    return _mappable(Call(what, _FORWARD, arguments, results))


def _backward(what: What, wanted: tuple[bool, ...], with_grad_lse: bool) -> Callable[..., Arrays]:
    """(q, k, v, out, lse, grad_o, grad_lse if there is one, *extras, *captures) to the gradients that are wanted."""
    count = len(what.captures)
    given = ("q", "k", "v", "out", "lse", "grad_o", *(["grad_lse"] if with_grad_lse else []), *what.extras)
    slots = [i for i, w in enumerate(wanted[len(wanted) - count:]) if w]
    results: tuple[Name, ...] = (*[n for n, w in zip(("dq", "dk", "dv"), wanted) if w], *slots)
    return _mappable(Call(what, _BACKWARD, (*given, *range(count)), results))


# ---- vmap


def _mapped(call: Call, size: int, batched: list[bool], *arrays: Array) -> tuple[Arrays, Any]:
    """vmap: mapped entries become batch entries of one call. Where they cannot, each entry is its own call, one after
    another."""
    out = _in_one(call, size, batched, arrays)
    if out is None:
        each = tuple([x for x, b in zip(arrays, batched) if b])

        def one(own: Arrays) -> Arrays:
            mine = iter(own)
            return _mappable(call)(*[next(mine) if b else x for x, b in zip(arrays, batched)])

        out = jax.lax.map(one, each)
    return out, tuple([True] * len(out))


def _in_one(call: Call, size: int, batched: list[bool], arrays: Arrays) -> Arrays | None:
    """The results for all mapped entries from one call; None where they cannot be batch entries of one call."""
    what = call.what
    mapped = dict(zip(call.arguments, batched))
    shape = {n: x.shape[1:] if b else x.shape for n, x, b in zip(call.arguments, arrays, batched)}
    batch, keys = shape["q"][0], shape["k"][0]
    if "cu_seqlens_q" in what.extras or not may_fold(what.parts, what.lets):
        return None
    paged = "page_table" in what.extras
    shared = not mapped["k"] and not mapped["v"] and (paged or keys == 1) and not {"dk", "dv"} & {*call.results}
    if not shared and (paged or keys != batch):
        return None
    # A capture whose gradient is wanted has one for each mapped entry.
    slots = tuple([mapped[i] or i in call.results for i in range(len(what.captures))])
    texts = rewritten(what.parts, what.lets, what.captures, what.params, slots,
                      tuple([shape[i] for i in range(len(what.captures))]), batch)
    if texts is None:
        return None

    def whole(name: Name, x: Array) -> Array:
        x = x if mapped[name] else jnp.broadcast_to(x, (size, *x.shape))
        return texts.capture(name, x) if isinstance(name, int) else x.reshape(size * x.shape[1], *x.shape[2:])

    def kept(name: Name) -> bool:
        return not slots[name] if isinstance(name, int) else shared and name in ("k", "v")

    numbers = (*what.numbers, *([float(batch)] if texts.params != what.params else []))
    one = call._replace(what=what._replace(parts=texts.parts, lets=texts.lets, captures=texts.captures,
                                           params=texts.params, numbers=numbers))
    made = _mappable(one)(*[x if kept(n) else whole(n, x) for n, x in zip(call.arguments, arrays)])
    return tuple([x.reshape(size, *shape[n]) if isinstance(n, int) else x.reshape(size, batch, *x.shape[1:])
                  for n, x in zip(call.results, made)])


# ---- gradients


@jax.tree_util.register_static
class _Wanted(tuple):  # type: ignore[type-arg]
    """The arrays whose gradients are wanted."""


@functools.lru_cache(512)
def attend(what: What, with_lse: bool, with_max: bool) -> Callable[..., Arrays]:
    """(q, k, v, *extras, *captures) to the results that are asked for, with gradients."""

    @jax.custom_vjp
    def run(*arrays: Array) -> Arrays:
        return _forward(what, with_lse, with_max)(*arrays)

    def remember(*given: Any) -> tuple[Arrays, Any]:
        arrays = [x.value for x in given]
        wanted = _Wanted([bool(x.perturbed) and jnp.issubdtype(x.value.dtype, jnp.floating) for x in given])
        if any(wanted):
            _refuse_forward_only(what)
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


def _refuse_forward_only(what: What) -> None:
    for name in (*what.extras, *[n for n, _ in what.options]):
        if name not in ("q_offset", "max_q_len", "max_kv_len", "cu_seqlens_q", "cu_seqlens_kv"):
            raise Error.at(here(), "forward-only", f"a gradient is asked of a call with `{name}`",
                           "caches are for the forward alone",
                           "write lengths as a mask, kv < lengths[b], and add an array to positions, q + first[b]")
