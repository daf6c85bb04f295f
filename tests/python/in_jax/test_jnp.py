# tests/python/in_jax/test_jnp.py — mods written in jnp: each operation as JAX itself computes it, and what is refused
"""Scores and masks of jnp under attune, beside the same functions under jax.vmap, in f64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attune.jax import attention
from conftest import refused
from dense import B, H, S, close, dense, qkv, random

SCORES, MASKS = {}, {}


def score(mod):
    SCORES[mod.__name__] = mod
    return mod


def mask(mod):
    MASKS[mod.__name__] = mod
    return mod


# Captures by name: one [H], two [S, 5], three [H, S, S], and whole numbers.


@score
def products(c): return lambda s, b, h, q, kv: s + jnp.dot(c["two"][q], c["two"][kv]) * 0.1


@score
def slices(c): return lambda s, b, h, q, kv: s + (c["two"][q, 1:3] * c["two"][kv, ::2][:2]).sum() + c["two"][q][-1]


@score
def norms(c): return lambda s, b, h, q, kv: s - jnp.linalg.norm(c["two"][q] - c["two"][kv] + 0.1)


@score
def reads_in_steps(c): return lambda s, b, h, q, kv: s + c["three"][h][q, kv] + c["three"][h, q - kv, -1]


@score
def extremes(c): return lambda s, b, h, q, kv: s + c["two"][q].max() - jnp.min(c["two"][kv], axis=-1)


@score
def takes(c): return lambda s, b, h, q, kv: s + jnp.take(c["one"], h) + c["one"].at[h].get(mode="clip")


@score
def means(c): return lambda s, b, h, q, kv: s + c["two"][q].mean() + jnp.sum(jnp.tanh(c["two"][kv]) * jnp.arange(5))


@score
def matrices(c): return lambda s, b, h, q, kv: s + (c["two"][q] @ c["square"] @ c["two"][kv]) * 0.1


@score
def activations(c):
    return lambda s, b, h, q, kv: jax.nn.silu(s) + jax.nn.gelu(s) + jax.nn.relu(s) + jax.nn.softplus(s) + jax.nn.elu(s)


@score
def elementary(c):
    def mod(s, b, h, q, kv):
        return (jnp.log1p(s * s) + jnp.expm1(s * 0.1) + jnp.sinh(s * 0.1) + jnp.cosh(s * 0.1) + s**3 * 0.1 + s**-2.0 * 0
                + jnp.power(jnp.abs(s) + 1, 1.5) + jax.lax.rsqrt(s * s + 1) + jnp.square(s) + jnp.exp2(s * 0.1)
                + jnp.log2(s * s + 1) + jnp.reciprocal(s * s + 1) + jnp.hypot(s, 1.0))
    return mod


@score
def bounds(c): return lambda s, b, h, q, kv: jnp.clip(s, -1, 1.5) + jnp.minimum(s, jnp.maximum(s * 0.5, -0.25))


@score
def whole_numbers(c):
    def mod(s, b, h, q, kv):
        d = q - kv
        return s + (q // 4) - d % 5 + d // -3 + jnp.sign(d) + ((q ^ kv) & 3) + (kv << 1)
    return mod


@score
def floats_of_positions(c):
    def mod(s, b, h, q, kv):
        return s + jnp.round(q / 2) - jnp.floor(kv / 3) + jnp.trunc((q - kv) / 4) + jnp.fmod(q * 0.5 - kv, 1.5) * 0.1
    return mod


@score
def conditions(c):
    def mod(s, b, h, q, kv):
        near = jnp.logical_and(q - kv < 4, jnp.logical_not(q < kv))
        return jnp.where(near | (kv == 0), s, -0.5 * s) + (q > kv) - jnp.isfinite(s) * 0.5
    return mod


@score
def constants(c): return lambda s, b, h, q, kv: s * jnp.float32(2) + jnp.sqrt(2.0) + jnp.pi + jnp.zeros(()) + len("abc")


@score
def selected(c): return lambda s, b, h, q, kv: jnp.select([q < 3, q < 9], [s, s * 0.5], s - 1.0)


@score
def by_buckets(c): return lambda s, b, h, q, kv: s + c["one"][c["bucket"][jnp.abs(q - kv)]]


@mask
def causal(c): return lambda b, h, q, kv: kv <= q


@mask
def everything(c): return lambda b, h, q, kv: True


@mask
def documents(c): return lambda b, h, q, kv: (c["doc"][b, q] == c["doc"][b, kv]) | ~(q >= kv)


@mask
def chosen(c): return lambda b, h, q, kv: jnp.any(c["chosen"][q] == kv) | (q == kv)


@mask
def all_of_a_row(c): return lambda b, h, q, kv: jnp.all(c["chosen"][kv] > 2, axis=-1) | (q >= kv)


@mask
def numbers_as_conditions(c): return lambda b, h, q, kv: c["bucket"][kv].astype(bool) | (q == kv)


def captures(rng, dtype):
    floats = {"one": (H,), "two": (S, 5), "three": (H, S, S), "square": (5, 5)}
    whole = {"doc": (B, S), "chosen": (S, 3), "bucket": (S,)}
    return ({name: jnp.asarray(rng.standard_normal(shape), dtype) for name, shape in floats.items()},
            {name: jnp.asarray(rng.integers(0, 3 if name != "chosen" else S, shape), jnp.int32)
             for name, shape in whole.items()})


def everywhere(mod, count):
    """The mod at every position, and of every score."""
    first = (0,) * (count - 4)
    for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        mod = jax.vmap(mod, (*first, *axes))
    return mod


def at_positions():
    return [jnp.arange(n, dtype=jnp.int32) for n in (B, H, S, S)]


@pytest.mark.parametrize("name", SCORES)
def test_a_score_of_jnp(name, rng):
    q, k, v = qkv(rng)
    floats, whole = captures(rng, jnp.float32)
    weights = rng.standard_normal(q.shape)

    def loss(attend):
        def run(q, k, v, floats):
            out = attend(q, k, v, {**floats, **whole})
            return (out * weights.astype(out.dtype)).sum(), out
        return jax.value_and_grad(run, (0, 1, 2, 3), has_aux=True)

    def theirs(q, k, v, c):
        mod = everywhere(SCORES[name](c), 5)
        return dense(q, k, v, lambda f, s, at: mod(s, *at_positions()).astype(s.dtype))[0]

    mine = jax.jit(loss(lambda q, k, v, c: attention(q, k, v, score=SCORES[name](c))))(q, k, v, floats)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: np.asarray(x, np.float64), (q, k, v, floats))
        true = jax.tree.map(np.asarray, loss(theirs)(*wide))
    close(mine[0][1], true[0][1])
    for a, b in zip(jax.tree.leaves(mine[1]), jax.tree.leaves(true[1])):
        close(a, b, 1e-4)


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_of_jnp(name, rng):
    q, k, v = qkv(rng)
    c = {n: x for group in captures(rng, jnp.float32) for n, x in group.items()}
    keep = everywhere(lambda *at: jnp.asarray(MASKS[name](c)(*at)), 4)(*at_positions())
    out = jax.jit(lambda q: attention(q, k, v, mask=MASKS[name](c)))(q)
    close(out, dense(q, k, v, mask=lambda f, at: jnp.broadcast_to(keep, (B, H, S, S)))[0])


def test_sinks_and_dropout_of_jnp(rng):
    q, k, v = qkv(rng)
    logit = random(rng, B, H)
    wanted, lse = dense(q, k, v)
    close(attention(q, k, v, sink=lambda b, h: logit[b, h] * 2),
          wanted / (1 + jnp.exp(2 * logit[:, :, None] - lse))[..., None])
    close(attention(q, k, v, prob=lambda p, b, h, q, kv: jnp.where(kv < 4, p, 0.0)),
          attention(q, k, v, prob="where(kv < 4, p, 0.0f)"))


def test_a_jitted_function_and_default_arguments(rng):
    q, k, v = qkv(rng)

    @jax.jit
    def capped(s, b, h, q, kv, cap=20.0):
        return cap * jnp.tanh(s / cap)

    close(attention(q, k, v, score=capped), attention(q, k, v, score="20.0f * tanh(s / 20.0f)"))


def test_what_is_refused(rng):
    q, k, v = qkv(rng)
    rows = random(rng, S, 5)
    branch = lambda s, b, h, q, kv: jax.lax.cond(q < kv, lambda: s, lambda: 2 * s)
    assert refused(attention, q, k, v, score=branch).code == "unknown-function"
    assert refused(attention, q, k, v, score=lambda s, b, h, q, kv: s + rows[q].argmax()).code == "unknown-function"
    assert refused(attention, q, k, v, score=lambda s, b, h, q, kv: s + rows[q]).code == "wrong-result"
    assert refused(attention, q, k, v, score=lambda s, b, h, q, kv: (s, s)).code == "wrong-result"
    assert refused(attention, q, k, v, mask=lambda b, h, q, kv: q - kv).code == "wrong-result"
    assert refused(attention, q, k, v, score=lambda s, b, h, q, kv: s + random(rng, S, 80)[q].max()).code == "bad-sum"
    assert refused(attention, q, k, v, score=lambda s, b, h: s).code == "wrong-arguments"
    with pytest.raises(jax.errors.TracerBoolConversionError):
        attention(q, k, v, mask=lambda b, h, q, kv: q > kv and kv > 2)
