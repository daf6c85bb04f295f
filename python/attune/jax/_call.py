# python/attune/jax/_call.py — one attention as an XLA custom call, forward or backward; and append() as another
"""Calls of attune in a JAX program. Everything but the arrays is a text, which is an attribute of the custom call."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attune import _arguments, _arrays, _core
from attune._call import divisors
from attune._mod import exactness, number_of

Array = Any  # of JAX, traced or not
Arrays = tuple[Array, ...]
Name = str | int  # of an argument or a result of a call: a number is the slot of a capture, or of its gradient

FORWARD, BACKWARD = 0, 1
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
        return _handle(*self[:7])


@functools.lru_cache(512)
def _handle(parts: tuple[str | None, ...], lets: tuple[tuple[str, str], ...],
            captures: tuple[tuple[str, str, int], ...], params: tuple[tuple[str, str], ...], scale: float | None,
            target: str, exact: bool | None) -> _core.Attention:
    return _core.Attention(list(parts), list(lets), list(captures), list(params), scale, number_of(target),
                           exactness(exact))


def site(text: str) -> tuple[Any, ...]:
    """Called by the handler in core/jax/handlers.cpp, once for each text."""
    fields, direction, arguments, results = json.loads(text)
    parts, lets, captures, params, scale, target, exact, numbers, options, _, heads_inside = fields
    pairs = [tuple([tuple(one) for one in listed]) for listed in (lets, captures, params)]
    handle = _handle(tuple(parts), *pairs, scale, target, exact)
    return handle, {"pass": direction, **dict(options)}, heads_inside, numbers, arguments, results


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


# ---- append


def append(k_new: Array, v_new: Array, k: Array, v: Array, *, kv_len: Array = None, page_table: Array = None,
           cu_seqlens: Array = None, slots: Array = None, k_scale: float = 1.0,
           v_scale: float = 1.0) -> tuple[Array, Array]:
    """The cache `k` and `v` with new keys and values at the ends of its entries. The arguments are those of
    `attune.append`. XLA writes into the memory of `k` and `v` if nothing else reads them: donate them to the program.

    >>> import jax, jax.numpy as jnp
    >>> from attune.jax import append
    >>> step = jax.jit(append, donate_argnums=(2, 3))
    >>> k, v, new = jnp.zeros((2, 1, 4, 8)), jnp.zeros((2, 1, 4, 8)), jnp.ones((2, 1, 1, 8))
    >>> k, v = step(new, new, k, v, kv_len=jnp.array([1, 3]))
    >>> k[:, 0, :, 0].tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    """
    given = {"k_new": k_new, "v_new": v_new, "k": k, "v": v, "kv_len": kv_len, "page_table": page_table,
             "cu_seqlens": cu_seqlens, "slots": slots}
    scales = divisors(k_scale, v_scale)
    given = {n: x for n, x in given.items() if x is not None}
    for name, x in given.items():
        if not _arrays.is_array(x):
            raise _arguments.bad(name, x, "an array", "pass an array of JAX or NumPy")
    text = " ".join([*map(repr, scales), *given])
    arrays = alike([jnp.asarray(x) for x in given.values()])
    return _appended(text, *arrays)


@functools.partial(jax.jit, static_argnums=0)
def _appended(text: str, *arrays: Array) -> tuple[Array, Array]:
    """Compiled for itself where it is called outside of a program: XLA then copies the cache, which others may read."""
    shapes = [like(x.shape, x.dtype, arrays) for x in arrays[2:4]]
    k, v = jax.ffi.ffi_call("attune_append", shapes, input_output_aliases={2: 0, 3: 1}, vmap_method="sequential")(
        *arrays, what=text)
    return k, v
