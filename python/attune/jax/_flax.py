# python/attune/jax/_flax.py — flax_attention(), which flax's modules take as attention_fn
"""Attention by flax's arguments, for flax.linen and flax.nnx. Nothing of flax is imported."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from attune import _arguments
from attune.jax._call import Array
from attune.jax._dot import dot_product_attention


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
