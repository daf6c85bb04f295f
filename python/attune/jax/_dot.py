# python/attune/jax/_dot.py — dot_product_attention() by the arguments of jax.nn; flax_attention() by those of flax
from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from attune import _arguments, _arrays
from attune._errors import Error
from attune._place import here
from attune.jax._attention import call
from attune.jax._call import Array

_PLACES = ("b", "h", "q", "kv")


def dot_product_attention(query: Array, key: Array, value: Array, bias: Array | None = None, mask: Array | None = None,
                          *, scale: float | Array | None = None, is_causal: bool = False,
                          query_seq_lengths: Array | None = None, key_value_seq_lengths: Array | None = None,
                          local_window_size: int | tuple[int, int] | None = None, implementation: None = None,
                          return_residual: bool = False, segment_ids: Array | tuple[Array, Array] | None = None,
                          sinks: Array | None = None, logits_soft_cap: float | Array | None = None,
                          dropout_rate: float = 0.0, dropout_key: Array | None = None) -> Any:
    """`jax.nn.dot_product_attention`, compiled by attune, with its arguments, on [B, T, N, H] or [T, N, H].

    Besides them: `segment_ids` [B, T], or a pair [B, T] and [B, S]: queries see the keys of their segment. `sinks` [N]:
    a logit for each head that takes part in the softmax. `logits_soft_cap` c: scores become c * tanh(score / c), before
    the bias is added. `dropout_rate` with `dropout_key`: drops probabilities, the same ones for the same key, but other
    ones than JAX would.

    A row without keys is 0, and its residual -inf.

    >>> import jax, jax.numpy as jnp
    >>> from attune.jax import dot_product_attention
    >>> q, k = jnp.ones((2, 8, 4, 16)), jnp.ones((2, 8, 2, 16))
    >>> jax.jit(lambda q, k: dot_product_attention(q, k, k, is_causal=True))(q, k).shape
    (2, 8, 4, 16)
    """
    tensors = [_array(n, x) for n, x in (("query", query), ("key", key), ("value", value))]
    flat = tensors[0].ndim == 3
    for name, x in zip(("query", "key", "value"), tensors):
        if x.ndim != (3 if flat else 4):
            raise Error.at(here(), "tensor-rank", f"`{name}` has shape {list(x.shape)}",
                           "query, key and value are all [B, T, N, H], or all [T, N, H]",
                           f"reshape `{name}`")
    q, k, v = [x[None] for x in tensors] if flat else tensors
    entries, rows, heads = q.shape[:3]
    keys = k.shape[1]
    if implementation is not None:
        raise _arguments.bad("implementation", implementation, "None: attune is the implementation",
                             "leave it out, or call jax.nn.dot_product_attention")
    for name, flag in (("is_causal", is_causal), ("return_residual", return_residual)):
        if type(flag) is not bool:
            raise _arguments.bad(name, flag, "True or False", "pass one of these")
    held: dict[str, Any] = {}
    score, scale = _scaled(scale, held)
    if logits_soft_cap is not None:
        cap = _number("logits_soft_cap", logits_soft_cap, held)
        score = f"{cap} * tanh({score} / {cap})"
    pairs = (entries, heads, rows, keys)
    if bias is not None:
        score = f"{score} + {_read('bias', bias, pairs, held)}"
    kept = []
    if mask is not None:
        kept.append(_read("mask", mask, pairs, held))
        if held["mask"].dtype != jnp.bool_:
            raise Error.at(here(), "bad-argument", f"`mask` holds {held['mask'].dtype}",
                           "it is a mask of bools, where True is a pair that takes part",
                           "pass an additive mask as `bias`")
    if is_causal:
        kept.append("kv <= q")
    if local_window_size is not None:
        kept.append(_window(local_window_size))
    for name, given, place in (("query_seq_lengths", query_seq_lengths, "q"),
                               ("key_value_seq_lengths", key_value_seq_lengths, "kv")):
        if given is not None:
            held[name] = whole(name, given, (entries,))
            kept.append(f"{place} < {name}[b]")
    if segment_ids is not None:
        kept.append(_segments(segment_ids, flat, (entries, rows), (entries, keys), held))
    if sinks is not None:
        held["sinks"] = shaped("sinks", _array("sinks", sinks), (heads,), "a logit for each head of the query")
    prob = _dropped(dropout_rate, dropout_key, held)
    parts = {"score": score if score != "s" else None, "mask": " && ".join(kept) or None, "prob": prob,
             "sink": None if sinks is None else "sinks[h]"}
    made = call(parts, held, (q, k, v), {}, {}, lets={}, scale=scale, lse=return_residual, heads_inside=True)
    if not return_residual:
        return made[0] if flat else made
    out, lse = made
    lse = jax.lax.stop_gradient(lse.swapaxes(1, 2).astype(k.dtype))
    return (out[0], lse[0]) if flat else (out, lse)


def _array(name: str, given: Any) -> Any:
    if not _arrays.is_array(given):
        raise _arguments.bad(name, given, "an array", "pass an array of JAX or NumPy")
    return jnp.asarray(given)


def shaped(name: str, array: Any, shape: tuple[int, ...], what: str) -> Any:
    if array.shape != shape:
        raise Error.at(here(), "bad-argument", f"`{name}` has shape {list(array.shape)}",
                       f"it is {what}: of shape {list(shape)}", "reshape it, or take other arrays for the call")
    return array


def whole(name: str, given: Any, shape: tuple[int, ...]) -> Any:
    array = _array(name, given)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise Error.at(here(), "bad-argument", f"`{name}` holds {array.dtype}", "it is whole numbers",
                       "convert it to int32")
    return shaped(name, array, shape, "whole numbers, for this call").astype(jnp.int32)


def _number(name: str, given: Any, held: dict[str, Any]) -> str:
    """How texts read a number, or an array of one, which may be traced."""
    if not _arrays.is_array(given):
        held[name] = _arguments.real(name, given)
        return name
    held[name] = shaped(name, jnp.asarray(given), (), "one number")
    return f"{name}[]"


def _scaled(scale: Any, held: dict[str, Any]) -> tuple[str, float | None]:
    """The score, and the scale before it: a traced scale is a factor of the score."""
    if not isinstance(scale, jax.core.Tracer):
        return "s", _arguments.real("scale", scale)
    held["factor"] = shaped("scale", scale, (), "one number")
    return "factor[] * s", 1.0


def _read(name: str, given: Any, pairs: tuple[int, ...], held: dict[str, Any]) -> str:
    """Reads an array that broadcasts to all pairs [B, N, T, S] where it lies."""
    array = _array(name, given)
    shape = (1,) * (4 - array.ndim) + array.shape
    if len(shape) != 4 or any(n not in (1, most) for n, most in zip(shape, pairs)):
        raise Error.at(here(), "bad-argument", f"`{name}` has shape {list(array.shape)}",
                       f"it broadcasts to [B, N, T, S], which is {list(pairs)}",
                       "give it 1, or the same number, in each dimension")
    held[name] = array.reshape(shape)
    read = f"{name}[{', '.join(['0' if n == 1 else i for n, i in zip(shape, _PLACES)])}]"
    return read if jnp.issubdtype(array.dtype, jnp.floating) or array.dtype == jnp.bool_ else f"f32({read})"


def _window(size: Any) -> str:
    sides = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
    left, right = [_arguments.whole("local_window_size", n) for n in sides]
    return f"q - kv <= {left} && kv - q <= {right}"


def _segments(given: Any, flat: bool, ours: tuple[int, int], theirs: tuple[int, int], held: dict[str, Any]) -> str:
    def one(name: str, array: Any, shape: tuple[int, int]) -> None:
        array = _array("segment_ids", array)
        held[name] = whole("segment_ids", array[None] if flat else array, shape)

    if isinstance(given, (tuple, list)):
        if len(given) != 2:
            raise _arguments.bad("segment_ids", given, "an array, or a pair of the queries' and the keys'",
                                 "pass two arrays")
        one("q_segments", given[0], ours)
        one("kv_segments", given[1], theirs)
        return "q_segments[b, q] == kv_segments[b, kv]"
    if ours != theirs:
        raise Error.at(here(), "bad-argument", "`segment_ids` is one array for queries and keys",
                       f"there are {ours[1]} queries and {theirs[1]} keys", "pass a pair: the queries' and the keys'")
    one("segments", given, ours)
    return "segments[b, q] == segments[b, kv]"


def _dropped(rate: Any, key: Any, held: dict[str, Any]) -> str | None:
    rate = _arguments.real("dropout_rate", rate)
    if rate is None or not 0 <= rate < 1:
        raise _arguments.bad("dropout_rate", rate, "the share that is dropped", "pass a number from 0 to below 1")
    if not rate:
        return None
    if key is None:
        raise _arguments.bad("dropout_key", key, "a key of jax.random where dropout_rate is not 0",
                             "pass jax.random.key(...), another one for each step and layer")
    held["seed"] = jax.lax.bitcast_convert_type(jax.random.bits(key, (), jnp.uint32), jnp.int32)
    held["keep"] = 1.0 - rate
    return "dropout(keep, seed[])"


def flax_attention(query: Array, key: Array, value: Array, bias: Array | None = None, mask: Array | None = None,
                   broadcast_dropout: bool = True, dropout_rng: Array | None = None, dropout_rate: float = 0.0,
                   deterministic: bool = False, dtype: Any = None, precision: Any = None, module: Any = None,
                   is_causal: bool = False, **other: Any) -> Array:
    """The `attention_fn` of `flax.linen.MultiHeadDotProductAttention` and `flax.nnx.MultiHeadAttention`.

    query is [..., T, N, H]; `bias` and `mask` broadcast to [..., N, T, S]. Each probability is dropped by itself, also
    with `broadcast_dropout`. Products are as exact as `precision` may ask for. Weights cannot be kept: they are never
    in memory.

    >>> import jax.numpy as jnp
    >>> from attune.jax import flax_attention
    >>> q = jnp.ones((2, 8, 4, 16))
    >>> flax_attention(q, q, q, mask=jnp.tril(jnp.ones((8, 8)))).shape
    (2, 8, 4, 16)
    """
    given = {"module": module, **{n: x for n, x in other.items() if n != "promote_dtype"}}
    for name, x in given.items():
        if x is not None and x is not False:
            raise _arguments.bad(name, x, "None: attune keeps no weights, and multiplies by itself",
                                 "leave it out, or use flax's own attention there")
    kind = dtype or jnp.result_type(query, key, value)
    tensors = [jnp.asarray(x, kind) for x in (query, key, value)]
    many = tensors[0].shape[:-3]

    def whole(x: Array, rank: int) -> Array:
        """With all batch dimensions as one."""
        if len(many) < 2 or x.ndim <= rank:
            return x
        return jnp.broadcast_to(x, (*many, *x.shape[-rank:])).reshape(-1, *x.shape[-rank:])

    drops = dropout_rate if dropout_rate and not deterministic else 0.0
    q, k, v = [whole(x, 3) for x in tensors]
    out = dot_product_attention(
        q, k, v, None if bias is None else whole(jnp.asarray(bias), 3),
        None if mask is None else whole(jnp.asarray(mask).astype(bool), 3), is_causal=is_causal, dropout_rate=drops,
        dropout_key=dropout_rng)
    return out.reshape(*many, *out.shape[-3:])
