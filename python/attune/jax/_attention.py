# python/attune/jax/_attention.py — attention() for JAX arrays; arguments are checked while JAX traces
"""`attune.jax.attention`, which takes what `attune.attention` takes, on arrays of JAX."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from attune import _arguments, _arrays, _attention, _mod, _trace
from attune._errors import Error
from attune._place import here, not_the_user
from attune._trace import Capturable, Written
from attune.jax._call import Array, What, attend
from attune.jax._jnp import from_jnp

not_the_user(jax.__file__)


def attention(q: Array, k: Array, v: Array, *, score: Written | None = None, mask: Written | None = None,
              prob: Written | None = None, sink: Written | None = None, scale: float | None = None,
              target: str = "auto", exact: bool | None = None, lets: Mapping[str, str] | None = None,
              lse: bool = False, max: bool = False, q_offset: int = 0, **captures: Capturable) -> Any:
    """softmax(score(scale * q k^T)) v under a mask, as an operation of JAX: jit, grad and vmap go through it.

    The arguments are those of `attune.attention`. Arrays that the functions close over, and keywords that are arrays,
    are captured: they may be traced, and those of floats have gradients. A keyword that is a number of Python is a
    parameter of the kernel, and part of a program of JAX.

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
                           "shapes are fixed in a program of JAX, and XLA manages its memory and streams",
                           _INSTEAD.get(name, "leave it out, or call attune.attention outside of a program"))
    if isinstance(q_offset, jax.core.Tracer):
        raise _arguments.bad("q_offset", q_offset, "a constant of the program",
                             "capture an array without dimensions, and add it in the functions: at.q + first[()]")
    parts = {"score": score, "mask": mask, "prob": prob, "sink": sink}
    spelled, scan = _trace.spell({n: from_jnp(n, p) for n, p in parts.items() if p is not None}, captures,
                                 _arguments.lets(lets))
    leaves: list[Any] = scan.leaves
    scale, q_offset = _arguments.real("scale", scale), _arguments.whole("q_offset", q_offset)
    held: list[Array] = [leaves[c.leaf] for c in spelled.captures]
    # The oracle takes every type and compiles nothing, so it checks the arguments. It also refuses an unknown target.
    _mod.handle(spelled, scale, target, exact)
    _check(spelled, scale, (q, k, v), held, leaves)
    q, k, v, *held = [jnp.asarray(x) for x in (q, k, v, *held)]
    if target == "auto" and q.dtype == jnp.float64:
        target = "oracle"
    what = What(
        tuple([spelled.texts[n].text if n in spelled.texts else None for n in _trace.KINDS]), spelled.lets,
        tuple([c[:3] for c in spelled.captures]), tuple([p[:2] for p in spelled.params]), scale, target, exact,
        q_offset, tuple([float(leaves[p.leaf].value) for p in spelled.params]))
    out, *more = attend(what, lse, max)(q, k, v, *held)
    if max:
        more[-1] = jax.lax.stop_gradient(more[-1])
    return (out, *more) if more else out


# Options of attune.attention that are not arguments here. As keywords they would be captures that nothing reads.
_NOT_HERE = frozenset(inspect.signature(_attention.attention).parameters) - frozenset(
    inspect.signature(attention).parameters)
_PACKED = "write a document mask: mask=lambda at: doc[at.batch, at.q] == doc[at.batch, at.kv]"
_INSTEAD = {
    "cu_seqlens": _PACKED, "cu_seqlens_q": _PACKED, "cu_seqlens_kv": _PACKED,
    "kv_len": "write a mask: mask=lambda at: at.kv < lengths[at.batch]",
    "q_offsets": "capture the array, and add it in the functions: at.q + first[at.batch]",
}


class _Shape:
    """An array's shape and type with a dummy address: traced arrays have no memory."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, number: int) -> None:
        self.shape, self.dtype = shape, dtype
        self.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": (number << 44, False), "version": 3}


def _check(spelled: _trace.Spelled, scale: float | None, tensors: tuple[Array, ...], captures: list[Array],
           leaves: list[Any]) -> None:
    """Refuses tensors that do not fit together while JAX traces, by attune's own rules."""
    def shape(number: int, array: Any) -> Any:
        if not _arrays.is_array(array):
            return array  # refused later, by name
        return _Shape(tuple(array.shape), jax.dtypes.canonicalize_dtype(array.dtype), number)

    given = [shape(n, x) for n, x in enumerate(tensors, 1)]
    q, _, v = given
    if isinstance(q, _Shape) and isinstance(v, _Shape) and q.shape and v.shape:
        out: Any = _Shape((*q.shape[:-1], v.shape[-1]), q.dtype, 4)
    else:
        out = q
    params = tuple([float(leaves[p.leaf].value) for p in spelled.params])
    held = tuple([shape(n, x) for n, x in enumerate(captures, 8)])
    oracle = _mod.handle(spelled, scale, "oracle", None)
    try:
        oracle.prepare(0, {**dict(zip("qkv", given)), "out": out}, held, None, params)
    except Error as error:
        raise _mod.placed(error, spelled) from None
