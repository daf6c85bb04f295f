# python/attune/jax/_attention.py — attention() for JAX arrays; arguments are checked while JAX traces
from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attune import _arguments, _arrays, _attention, _mod, _trace
from attune._errors import Error
from attune._place import here, not_the_user
from attune._trace import Capturable, Written
from attune.jax._call import Array, What, alike
from attune.jax._lax import from_jnp
from attune.jax._transforms import attend

not_the_user(jax.__file__)


def attention(q: Array, k: Array, v: Array, *, score: Written | None = None, mask: Written | None = None,
              prob: Written | None = None, sink: Written | None = None, scale: float | None = None,
              target: str = "auto", exact: bool | None = None, lets: Mapping[str, str] | None = None,
              lse: bool = False, max: bool = False, cu_seqlens: Array = None, cu_seqlens_q: Array = None,
              cu_seqlens_kv: Array = None, max_q_len: int = 0, max_kv_len: int = 0, q_offset: int | Array = 0,
              kv_len: Array = None, q_offsets: Array = None, page_table: Array = None, kv_offset: int = 0,
              o_before: Array = None, lse_before: Array = None, fixed_split_size: int = 0,
              **captures: Capturable) -> Any:
    """softmax(score(scale * q k^T)) v under a mask, as an operation of JAX: jit, grad and vmap go through it.

    The arguments are those of `attune.attention`. Arrays that the functions close over, and keywords that are arrays,
    are captured: they may be traced, and those of floats have gradients. A keyword that is a number of Python is a
    parameter of the kernel, and part of a program of JAX.

    Starts of packed sequences, lengths, offsets and pages are arrays of i32, traced or not. What describes a cache
    (`kv_len`, `q_offsets`, `page_table`, `kv_offset`, results `before`) is for the forward alone.

    >>> import jax, jax.numpy as jnp
    >>> from attune.jax import attention
    >>> q, bias = jnp.ones((1, 2, 8, 4)), jnp.zeros((8, 8))
    >>> loss = lambda q, bias: attention(q, q, q, score="s + bias[q, kv]", bias=bias).sum()
    >>> [g.shape for g in jax.grad(loss, (0, 1))(q, bias)]
    [(1, 2, 8, 4), (8, 8)]
    """
    for name, given in (("lse", lse), ("max", max)):
        if type(given) is not bool:
            raise _arguments.bad(name, given, "True or False", "what is returned is a tuple with it")
    for name in captures:
        if name in _NOT_HERE:
            raise Error.at(here(), "bad-argument", f"attention of JAX has no `{name}`",
                           "XLA manages memory, streams and devices",
                           "leave it out, or call attune.attention outside of a program")
    if cu_seqlens is not None:
        cu_seqlens_q = cu_seqlens_kv = cu_seqlens
    first: Any = q_offset
    if _arrays.is_array(first) and q_offsets is None and (isinstance(first, jax.core.Tracer) or first.shape):
        first, q_offsets = 0, _offsets(q, first)
    if cu_seqlens_q is not None and _arrays.is_array(q) and _arrays.is_array(k):  # bounds that hold for any starts
        max_q_len, max_kv_len = max_q_len or q.shape[0], max_kv_len or k.shape[0]
    numbers = {"q_offset": first, "kv_offset": kv_offset, "max_q_len": max_q_len, "max_kv_len": max_kv_len,
               "fixed_split_size": fixed_split_size}
    extras = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv, "kv_len": kv_len, "q_offsets": q_offsets,
              "page_table": page_table, "o_before": o_before, "lse_before": lse_before}
    return call({"score": score, "mask": mask, "prob": prob, "sink": sink}, captures, (q, k, v),
                {n: x for n, x in extras.items() if x is not None},
                {n: _arguments.whole(n, x) for n, x in numbers.items()}, lets=_arguments.lets(lets), scale=scale,
                target=target, exact=exact, lse=lse, most=max)


def _offsets(q: Array, first: Array) -> Array:
    """One position for all entries as q_offsets."""
    if first.shape or not jnp.issubdtype(first.dtype, jnp.integer):
        raise _arguments.bad("q_offset", first, "a whole number, or an array of one without dimensions",
                             "pass positions of each entry as q_offsets")
    return jnp.broadcast_to(jnp.asarray(first, jnp.int32), q.shape[:1])


def call(parts: Mapping[str, Written | None], captures: Mapping[str, Capturable], tensors: tuple[Array, Array, Array],
         extras: Mapping[str, Array], numbers: Mapping[str, int], *, lets: Mapping[str, str],
         scale: float | None = None, target: str = "auto", exact: bool | None = None, lse: bool = False,
         most: bool = False, heads_inside: bool = False) -> Any:
    """A checked call in the program that is traced. With `heads_inside`, q, k and v are [B, S, H, D]."""
    spelled, scan = _trace.spell({n: p if p is None else from_jnp(n, p) for n, p in parts.items()}, captures, lets)
    leaves: list[Any] = scan.leaves
    scale = _arguments.real("scale", scale)
    held: list[Array] = [leaves[c.leaf] for c in spelled.captures]
    # The oracle takes every type and compiles nothing, so it checks the arguments. It also refuses an unknown target.
    _mod.handle(spelled, scale, target, exact)
    _check(spelled, scale, tensors, extras, numbers, held, leaves, heads_inside)
    arrays = [jnp.asarray(x) for x in (*tensors, *extras.values(), *held)]
    if target == "auto" and arrays[0].dtype == jnp.float64:
        target = "oracle"
    what = What(
        tuple([spelled.texts[n].text if n in spelled.texts else None for n in _trace.KINDS]), spelled.lets,
        tuple([c[:3] for c in spelled.captures]), tuple([p[:2] for p in spelled.params]), scale, target, exact,
        tuple([float(leaves[p.leaf].value) for p in spelled.params]), tuple([(n, x) for n, x in numbers.items() if x]),
        tuple(extras), heads_inside)
    out, *more = attend(what, lse, most)(*alike(arrays))
    if most:
        more[-1] = jax.lax.stop_gradient(more[-1])
    return (out, *more) if more else out


# Options of attune.attention that are not arguments here. As keywords they would be captures that nothing reads.
_NOT_HERE = frozenset(inspect.signature(_attention.attention).parameters) - frozenset(
    inspect.signature(attention).parameters)


class _Shape:
    """An array's shape and type with a dummy address: traced arrays have no memory."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, number: int) -> None:
        self.shape, self.dtype = shape, dtype
        self.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": (number << 44, False), "version": 3}


def _check(spelled: _trace.Spelled, scale: float | None, tensors: tuple[Array, ...], extras: Mapping[str, Array],
           numbers: Mapping[str, int], captures: list[Array], leaves: list[Any], heads_inside: bool) -> None:
    """Refuses tensors that do not fit together while JAX traces, by attune's own rules."""
    def shape(number: int, array: Any, turned: bool = False) -> Any:
        if not _arrays.is_array(array):
            return array  # refused later, by name
        of = tuple(array.shape)
        return _Shape((of[0], of[2], of[1], of[3]) if turned and len(of) == 4 else of,
                      jax.dtypes.canonicalize_dtype(array.dtype), number)

    given = [shape(n, x, heads_inside) for n, x in enumerate(tensors, 1)]
    q, k, v = given
    if isinstance(q, _Shape) and isinstance(v, _Shape) and q.shape and v.shape:
        out: Any = _Shape((*q.shape[:-1], v.shape[-1]), q.dtype, 4)
    else:
        out = q
    others = {n: _stand_in(n, x, q, k) if n in _READ else shape(i, x) for i, (n, x) in enumerate(extras.items(), 5)}
    options = {n: x for n, x in numbers.items() if x and not n.startswith("max_")}  # stand-ins are longer sequences
    params = tuple([float(leaves[p.leaf].value) for p in spelled.params])
    held = tuple([shape(n, x) for n, x in enumerate(captures, 16)])
    oracle = _mod.handle(spelled, scale, "oracle", None)
    try:
        oracle.prepare(0, {**dict(zip("qkv", given)), "out": out, **others, **options}, held, None, params)
    except Error as error:
        raise _mod.placed(error, spelled) from None


_READ = frozenset(["cu_seqlens_q", "cu_seqlens_kv", "kv_len", "q_offsets", "page_table"])  # by checks, on the host


def _stand_in(name: str, array: Any, q: Any, k: Any) -> Any:
    """An array of the same shape and type with numbers that any call may have: those of traced arrays are not known."""
    if not _arrays.is_array(array):
        return array  # refused later, by name
    out = np.zeros(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))
    tokens = q if name == "cu_seqlens_q" else k if name == "cu_seqlens_kv" else None
    if out.size and isinstance(tokens, _Shape) and tokens.shape:
        out.flat[-1] = tokens.shape[0]
    return out
