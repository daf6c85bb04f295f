# python/attune/jax/__init__.py — attune inside JAX: attention under jit, grad and vmap
"""Attention in programs of JAX, compiled by attune, with gradients of q, k, v and the captured arrays.

>>> import jax, jax.numpy as jnp
>>> from attune.jax import attention
>>> q = jnp.ones((1, 2, 8, 4))
>>> slope = jnp.array([0.5, 0.25])
>>> alibi = lambda s, at: s + slope[at.head] * (at.kv - at.q)
>>> jax.jit(lambda q: attention(q, q, q, score=alibi, mask="kv <= q"))(q).shape
(1, 2, 8, 4)
"""

from attune.jax._attention import attention
from attune.jax._call import append
from attune.jax._dot import dot_product_attention, flax_attention

__all__ = ["append", "attention", "dot_product_attention", "flax_attention"]
