# tests/python/in_jax/test_jax_mods.py — mods under jit, grad and vmap against attention written out in jnp, in f64
"""Each mod through attune.jax in f32 against the same mod in jnp in f64."""

import attune
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attune.jax import attention
from dense import MODS, close, dense, made, qkv


def ours(kind, mod):
    """A function of (q, k, v, *captures) to the output and lse, for attune and for jnp."""
    def run(q, k, v, *captures):
        def plain(*values):
            return mod(attune, *values, *captures)

        # Their own functions, so that the arrays are captured as a user's are: by the functions that name them.
        two = {"score": lambda s, at: plain(s, at), "mask": lambda at: plain(at)}
        return attention(q, k, v, **{kind: two[kind]}, lse=True)
    return run


def theirs(kind, mod):
    def run(q, k, v, *captures):
        if kind == "score":
            return dense(q, k, v, lambda f, s, at: mod(f, s, at, *captures))
        return dense(q, k, v, mask=lambda f, at: mod(f, at, *captures))
    return run


def loss(attend, weights):
    def run(*arrays):
        out, lse = attend(*arrays)
        return (out * weights[0]).sum() + jnp.where(jnp.isfinite(lse), lse * weights[1], 0.0).sum()
    return run


def in_f64(function, *arrays):
    with jax.enable_x64(True):
        doubled = [np.asarray(x, np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else np.asarray(x)
                   for x in arrays]
        return jax.tree.map(np.asarray, function(*doubled))


@pytest.mark.parametrize("name", MODS)
def test_a_mod_is_as_in_jnp(name, rng):
    kind, mod, captures = made(name, rng)
    arrays = (*qkv(rng), *captures)
    attend, reference = ours(kind, mod), theirs(kind, mod)
    out, lse = jax.jit(attend)(*arrays)
    wanted, wanted_lse = in_f64(reference, *arrays)
    close(out, wanted)
    close(lse, wanted_lse)

    weights = [np.asarray(rng.standard_normal(x.shape), np.float32) for x in (out, lse)]
    floats = tuple(n for n, x in enumerate(arrays) if jnp.issubdtype(x.dtype, jnp.floating))
    gradients = jax.jit(jax.grad(loss(attend, weights), floats))(*arrays)
    for mine, true in zip(gradients, in_f64(jax.grad(loss(reference, weights), floats), *arrays)):
        close(mine, true, 4e-5)


@pytest.mark.parametrize("name", MODS)
def test_a_mod_is_mapped_as_in_jnp(name, rng):
    kind, mod, captures = made(name, rng)
    one = (*qkv(rng), *captures)
    # The keys are shared, everything else differs from entry to entry.
    shared = [n == 1 for n in range(len(one))]
    axes = tuple([None if s else 0 for s in shared])
    arrays = [x if s else jnp.stack([x, x[::-1] if x.dtype == jnp.int32 else x * 0.5, x]) for x, s in zip(one, shared)]
    attend, reference = ours(kind, mod), theirs(kind, mod)
    got = jax.jit(jax.vmap(attend, axes))(*arrays)
    for mine, true in zip(got, in_f64(jax.vmap(reference, axes), *arrays)):
        close(mine, true)
    weights = [np.asarray(rng.standard_normal(x.shape[1:]), np.float32) for x in got]
    floats = tuple(n for n, x in enumerate(one) if jnp.issubdtype(x.dtype, jnp.floating))
    gradients = jax.vmap(jax.grad(loss(attend, weights), floats), axes)(*arrays)
    for mine, true in zip(gradients, in_f64(jax.vmap(jax.grad(loss(reference, weights), floats), axes), *arrays)):
        close(mine, true, 4e-5)
