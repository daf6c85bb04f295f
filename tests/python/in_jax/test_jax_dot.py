# tests/python/in_jax/test_jax_dot.py — attune.jax.dot_product_attention beside that of jax.nn
"""Values and gradients of jax.nn.dot_product_attention, for each of its arguments."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attune.jax import dot_product_attention
from conftest import refused
from dense import close, random

B, T, S, N, K, H = 2, 21, 21, 4, 2, 16
theirs = functools.partial(jax.nn.dot_product_attention, implementation="xla")


def qkv(rng, b=B, t=T, s=S, n=N, k=K, h=H, dtype=jnp.float32):
    return tuple(random(rng, b, *shape, dtype=dtype) for shape in ((t, n, h), (s, k, h), (s, k, h)))


def agree(arrays, tolerance=2e-5, rows=slice(None), also=(), **given):
    """Ours and JAX's outputs and gradients, of `also` too."""
    arrays = (*arrays, *[given.pop(name) for name in also])

    def loss(attend, *x):
        out = attend(*x[:3], **dict(zip(also, x[3:])), **given).astype(jnp.float32)[..., rows, :, :]
        return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum(), out

    numbers = tuple(range(len(arrays)))
    run = [jax.jit(jax.grad(functools.partial(loss, attend), numbers, has_aux=True))(*arrays)
           for attend in (dot_product_attention, theirs)]
    (ours, out), (wanted, wanted_out) = run
    close(out, wanted_out, tolerance)
    for mine, true in zip(ours, wanted):
        assert mine.dtype == true.dtype
        close(mine.astype(jnp.float32), true.astype(jnp.float32), 5 * tolerance)


def test_the_signature_is_that_of_jax_and_more():
    def arguments(function):
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    wanted = arguments(jax.nn.dot_product_attention)
    assert arguments(dot_product_attention)[:len(wanted)] == wanted


@pytest.mark.parametrize("shape", [
    {}, {"b": 1, "t": 1, "s": 1}, {"t": 1}, {"n": 3, "k": 1, "h": 130}, {"n": 6, "k": 3, "h": 1}, {"t": 65, "s": 3},
    {"k": 4, "t": 33, "s": 70}])
@pytest.mark.parametrize("is_causal", [False, True])
def test_shapes(shape, is_causal, rng):
    agree(qkv(rng, **shape), is_causal=is_causal)


@pytest.mark.parametrize("shape", [{"b": 0}, {"t": 0}, {"s": 0}])
def test_no_entries_queries_or_keys(shape, rng):
    arrays = qkv(rng, **shape)
    out, residual = dot_product_attention(*arrays, is_causal=True, return_residual=True)
    assert out.shape == arrays[0].shape and residual.shape == out.shape[:-1] and not np.asarray(out).any()
    for x, grad in zip(arrays, jax.grad(lambda *x: dot_product_attention(*x).sum(), (0, 1, 2))(*arrays)):
        assert grad.shape == x.shape and not np.asarray(grad).any()


@pytest.mark.parametrize("dtype, tolerance", [(jnp.bfloat16, 2e-2), (jnp.float16, 3e-3)])
def test_types(dtype, tolerance, rng):
    arrays = qkv(rng, dtype=dtype)
    wide = [x.astype(jnp.float32) for x in arrays]  # JAX does not multiply f16 on a CPU
    losses = [jax.grad(lambda *x, attend=attend: (attend(*x, is_causal=True).astype(jnp.float32) ** 2).sum(), (0, 1, 2))
              for attend in (dot_product_attention, theirs)]
    for mine, true in zip(losses[0](*arrays), losses[1](*wide)):
        assert mine.dtype == dtype
        close(mine.astype(jnp.float32), true, 5 * tolerance)
    close(dot_product_attention(*arrays, is_causal=True).astype(jnp.float32), theirs(*wide, is_causal=True), tolerance)
    out, residual = dot_product_attention(*arrays, return_residual=True)
    assert out.dtype == residual.dtype == dtype


def test_without_a_batch(rng):
    arrays = [x[0] for x in qkv(rng)]
    kept = jnp.asarray(rng.random((T, S)) < 0.9).at[:, 0].set(True)
    agree(arrays, is_causal=True, bias=random(rng, N, T, S), mask=kept)
    out, residual = dot_product_attention(*arrays, return_residual=True)
    assert out.shape == (T, N, H) and residual.shape == (T, N)


@pytest.mark.parametrize("shape", [(B, N, T, S), (1, N, T, S), (B, 1, 1, S), (1, 1, T, 1), (N, T, S), (T, S), (S,), ()])
def test_biases_and_masks_broadcast(shape, rng):
    agree(qkv(rng), also=("bias",), bias=random(rng, *shape))
    kept = jnp.asarray(rng.random(shape) < 0.8)
    agree(qkv(rng), mask=kept.at[..., 0].set(True) if shape else jnp.asarray(True), is_causal=shape != (1, 1, T, 1))


def test_a_bias_of_whole_numbers_and_of_another_type(rng):
    agree(qkv(rng), bias=jnp.asarray(rng.integers(-2, 3, (T, S)), jnp.int32))
    agree(qkv(rng, dtype=jnp.bfloat16), 2e-2, bias=random(rng, N, 1, S))


@pytest.mark.parametrize("window", [0, 3, (5, 2), (0, 4), (100, 100)])
def test_windows(window, rng):
    agree(qkv(rng), local_window_size=window)
    agree(qkv(rng), local_window_size=window, is_causal=True)


def test_lengths(rng):
    lengths = {"query_seq_lengths": jnp.array([13, 21], jnp.int32),
               "key_value_seq_lengths": jnp.array([7, 21], jnp.int32)}
    agree(qkv(rng), **lengths)
    agree(qkv(rng), is_causal=True, key_value_seq_lengths=lengths["key_value_seq_lengths"])
    assert not np.asarray(dot_product_attention(*qkv(rng), **lengths))[0, 13:].any()


def test_scales(rng):
    agree(qkv(rng), scale=0.3)
    ours = jax.jit(lambda x, *qkv: dot_product_attention(*qkv, scale=x))(0.3, *qkv(rng))
    assert ours.shape == (B, T, N, H)
    arrays = qkv(rng)
    close(*[jax.grad(lambda x, attend=attend: attend(*arrays, scale=x).sum())(0.3)
            for attend in (dot_product_attention, theirs)], 1e-4)


def test_the_residual_and_that_it_has_no_gradient(rng):
    arrays = qkv(rng)
    for given in ({}, {"is_causal": True, "bias": random(rng, N, T, S)}):
        for ours, wanted in zip(*[attend(*arrays, return_residual=True, **given)
                                  for attend in (dot_product_attention, theirs)]):
            close(ours, wanted)
    assert not np.asarray(jax.grad(lambda q: dot_product_attention(q, *arrays[1:], return_residual=True)[1].sum())(
        arrays[0])).any()


def test_a_row_without_keys_is_zero(rng):
    out, residual = dot_product_attention(*qkv(rng), mask=jnp.zeros((1, 1, T, S), bool), return_residual=True)
    assert not np.asarray(out).any() and np.isneginf(residual).all()


def test_segments(rng):
    ids = jnp.asarray(np.sort(rng.integers(0, 4, (B, T)), -1), jnp.int32)
    arrays = qkv(rng)
    same = (ids[:, None, :, None] == ids[:, None, None, :])
    for given in (ids, (ids, ids), [ids, ids]):
        close(dot_product_attention(*arrays, segment_ids=given, is_causal=True),
              theirs(*arrays, mask=same, is_causal=True))
    short = [x[:, :9] for x in arrays[1:]]
    close(dot_product_attention(arrays[0], *short, segment_ids=(ids * 0 + 1, ids[:, :9] * 0 + 1)),
          theirs(arrays[0], *short))
    close(dot_product_attention(*[x[0] for x in arrays], segment_ids=ids[0]),
          theirs(*[x[0] for x in arrays], mask=same[0]))


def test_sinks_and_soft_caps(rng):
    arrays, sinks = qkv(rng), random(rng, N)
    bias = random(rng, N, T, S)

    def dense(q, k, v, sinks, cap):
        k, v = (jnp.repeat(x, N // K, 2) for x in (k, v))
        s = jnp.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(H)
        s = cap * jnp.tanh(s / cap) + bias
        s = jnp.concatenate([s, jnp.broadcast_to(sinks[:, None, None], (B, N, T, 1))], -1)
        return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(s, -1)[..., :-1], v)

    def ours(q, k, v, sinks, cap):
        return dot_product_attention(q, k, v, bias, sinks=sinks, logits_soft_cap=cap)

    close(ours(*arrays, sinks, 1.5), dense(*arrays, sinks, 1.5))
    for mine, true in zip(*[jax.jit(jax.grad(lambda *x, f=f: (f(*x) ** 2).sum(), (0, 1, 2, 3, 4)))(*arrays, sinks, 1.5)
                            for f in (ours, dense)]):
        close(mine, true, 2e-4)


def test_dropout(rng):
    arrays, keys = qkv(rng, t=64, s=64), jax.random.split(jax.random.key(3), 2)
    drop = jax.jit(lambda key, q, k, v: dot_product_attention(q, k, v, dropout_rate=0.25, dropout_key=key))
    out = drop(keys[0], *arrays)
    assert np.array_equal(out, drop(keys[0], *arrays)) and not np.array_equal(out, drop(keys[1], *arrays))
    old = jax.random.PRNGKey(3)
    assert np.isfinite(drop(old, *arrays)).all()
    # The mean over keys is the attention without dropout; ones as values count what is kept.
    ones = jnp.ones_like(arrays[2])
    kept = drop(keys[0], *arrays[:2], ones)
    assert abs(float(kept.mean()) - 1) < 0.02 and float(kept.std()) > 0.01
    # The backward drops the same pairs: the output is linear in v.
    grad = jax.grad(lambda v: drop(keys[0], *arrays[:2], v).sum())(arrays[2])
    close((grad * arrays[2]).sum(), out.sum(), 1e-4)
    assert np.array_equal(dot_product_attention(*arrays, dropout_rate=0.0, dropout_key=keys[0]),
                          dot_product_attention(*arrays))


def test_vmap_remat_and_eager_calls(rng):
    arrays = [jnp.stack([x, -x, 2 * x]) for x in qkv(rng)]
    bias = random(rng, 3, N, T, S)
    runs = [jax.jit(jax.grad(lambda q, k, v, bias, attend=attend: (jax.vmap(jax.checkpoint(
        lambda q, k, v, bias: attend(q, k, v, bias, is_causal=True)))(q, k, v, bias) ** 2).sum(), (0, 1, 2, 3)))(
            *arrays, bias) for attend in (dot_product_attention, theirs)]
    for mine, true in zip(*runs):
        close(mine, true, 1e-4)
    close(dot_product_attention(*[np.asarray(x[0]) for x in arrays]), theirs(*[x[0] for x in arrays]))


def test_no_array_is_transposed_or_broadcast(rng):
    attend = lambda q, k, v, bias: dot_product_attention(q, k, v, bias, is_causal=True)
    arrays = (*qkv(rng), random(rng, 1, 1, T, S))
    for program in (attend, jax.grad(lambda *x: attend(*x).sum(), (0, 1, 2))):
        compiled = jax.jit(program).lower(*arrays).compile().as_text()
        assert " transpose(" not in compiled and f"f32[{B},{N},{T},{S}]" not in compiled


# ---- mistakes


@pytest.mark.parametrize("name, given", [
    ("bias", (N, T, S + 1)), ("bias", (3, N, T, S)), ("bias", (1, 1, N, T, S)), ("mask", (K, T, S)),
    ("query_seq_lengths", (B + 1,)), ("key_value_seq_lengths", (B, 1)), ("segment_ids", (B, T + 1)), ("sinks", (K,))])
def test_shapes_that_do_not_fit(name, given, rng):
    kind = jnp.float32 if name in ("bias", "sinks") else jnp.bool_ if name == "mask" else jnp.int32
    error = refused(jax.jit(lambda x, *a: dot_product_attention(*a, **{name: x})), jnp.ones(given, kind), *qkv(rng))
    assert error.code == "bad-argument" and f"`{name}`" in error.problem and error.file == __file__


@pytest.mark.parametrize("given, name", [
    ({"implementation": "cudnn"}, "implementation"), ({"implementation": "xla"}, "implementation"),
    ({"mask": jnp.ones((T, S))}, "mask"), ({"bias": "none"}, "bias"), ({"local_window_size": -1}, "local_window_size"),
    ({"local_window_size": (1, 2, 3)}, "local_window_size"), ({"local_window_size": 2.5}, "local_window_size"),
    ({"dropout_rate": 1.0, "dropout_key": jax.random.key(0)}, "dropout_rate"), ({"dropout_rate": 0.5}, "dropout_key"),
    ({"is_causal": 1}, "is_causal"), ({"scale": "x"}, "scale"),
    ({"segment_ids": (jnp.ones((B, T), int),)}, "segment_ids"),
    ({"segment_ids": jnp.ones((B, T))}, "segment_ids"), ({"query_seq_lengths": jnp.ones(B)}, "query_seq_lengths")])
def test_mistakes_in_arguments(given, name, rng):
    error = refused(dot_product_attention, *qkv(rng), **given)
    assert error.code == "bad-argument" and f"`{name}`" in error.problem


def test_tensors_that_do_not_fit(rng):
    q, k, v = qkv(rng)
    assert refused(dot_product_attention, q, k[0], v).code == "tensor-rank"
    assert refused(dot_product_attention, q[None], k[None], v[None]).code == "tensor-rank"
    assert refused(dot_product_attention, q[:, :, :3], k, v).code == "head-groups"
    assert refused(dot_product_attention, q, k[..., :8], v).code == "head-size"
    assert refused(dot_product_attention, q, k, v[:, :5]).code == "kv-lengths"
    assert refused(dot_product_attention, q, k.astype(jnp.bfloat16), v).code == "tensor-types"
    ids = jnp.ones((B, T), int)
    assert refused(dot_product_attention, q, k[:, :5], v[:, :5], segment_ids=ids).code == "bad-argument"
