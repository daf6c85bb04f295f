# python/attune/jax/_append.py — append() in a program of JAX: the cache with new keys and values
"""Writes a step's keys and values into a KV cache, which the program gives on."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from attune import _arguments, _arrays
from attune._append import divisors
from attune.jax._call import Array, alike, like


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
