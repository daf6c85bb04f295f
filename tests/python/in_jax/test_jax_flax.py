# tests/python/in_jax/test_jax_flax.py — modules of flax.linen and flax.nnx with attune as their attention_fn
"""The same parameters, with flax's attention and attune's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attune.jax import flax_attention
from conftest import refused
from dense import close, random

pytest.importorskip("flax", reason="flax is not installed")
from flax import linen, nnx


def masks(rng):
    lengths = jnp.asarray([11, 7])
    real = jnp.arange(11) < lengths[:, None]
    return linen.combine_masks(linen.make_causal_mask(jnp.ones((2, 11))), linen.make_attention_mask(real, real) > 0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_linen(dtype, rng):
    x, mask = random(rng, 2, 11, 24), masks(rng)
    rows = jnp.arange(11) < jnp.asarray([11, 7])[:, None]  # a query without keys is 0 here, and a mean in flax
    runs = []
    for given in ({}, {"attention_fn": flax_attention}):
        layer = linen.MultiHeadDotProductAttention(num_heads=4, dropout_rate=0.3, dtype=dtype, **given)
        held = layer.init(jax.random.key(0), x, deterministic=True)
        loss = lambda held, layer=layer: jnp.where(rows[..., None], layer.apply(
            held, x, mask=mask, deterministic=True).astype(jnp.float32), 0)
        out = loss(held)
        runs.append((out, jax.jit(jax.grad(lambda held, loss=loss: (loss(held) ** 2).sum()))(held)))
    tolerance = 2e-5 if dtype == jnp.float32 else 2e-2
    close(runs[1][0], runs[0][0], tolerance)
    # As one vector: the gradient of the keys' bias is 0 but for rounding.
    mine, true = [jnp.concatenate([x.ravel() for x in jax.tree.leaves(one)]) for _, one in reversed(runs)]
    close(mine, true, 5 * tolerance)


def test_linen_drops_by_its_key(rng):
    x = random(rng, 2, 11, 24)
    layer = linen.MultiHeadDotProductAttention(num_heads=4, dropout_rate=0.5, attention_fn=flax_attention)
    held = layer.init(jax.random.key(0), x, deterministic=True)
    drop = lambda key: layer.apply(held, x, deterministic=False, rngs={"dropout": jax.random.key(key)})
    assert np.array_equal(drop(1), drop(1)) and not np.array_equal(drop(1), drop(2))


def test_nnx(rng):
    x = random(rng, 2, 11, 24)
    runs = []
    for given in ({}, {"attention_fn": flax_attention}):
        layer = nnx.MultiHeadAttention(num_heads=4, in_features=24, decode=False, rngs=nnx.Rngs(0), **given)
        runs.append((layer(x, mask=linen.make_causal_mask(jnp.ones((2, 11)))),
                     nnx.grad(lambda layer: (layer(x, is_causal=True) ** 2).sum())(layer)))
    close(runs[1][0], runs[0][0])
    for mine, true in zip(*[jax.tree.leaves(one) for _, one in runs]):
        close(mine, true, 1e-4)


def test_more_batch_dimensions(rng):
    q, k, v = (random(rng, 2, 3, 7, 4, 8) for _ in range(3))
    mask = jnp.asarray(rng.random((3, 1, 7, 7)) < 0.8).at[..., 0].set(True)
    bias = random(rng, 4, 7, 7)
    close(flax_attention(q, k, v, bias, mask), linen.dot_product_attention(q, k, v, bias, mask))


def test_weights_are_not_kept(rng):
    q = random(rng, 2, 7, 4, 8)
    assert refused(flax_attention, q, q, q, module=object()).code == "bad-argument"
    assert refused(flax_attention, q, q, q, dropout_rate=0.5).code == "bad-argument"
