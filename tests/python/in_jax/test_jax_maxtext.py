# tests/python/in_jax/test_jax_maxtext.py — MaxText's AttentionOp with attune in the place of its flash attention
"""Outputs and gradients beside those of MaxText's own dot_product."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import refused
from dense import close, random

pytest.importorskip("maxtext", reason="maxtext is not installed")
import attune.jax.maxtext
from jax.sharding import Mesh
from maxtext.common.common_types import AttentionType
from maxtext.layers.attention_op import AttentionOp

LENGTH, HEADS = 37, 4
SEGMENTS = jnp.asarray(np.repeat([[1, 2, 0], [3, -1, 4]], [20, 10, 7], 1), jnp.int32)  # 0 and less: padding
GLOBAL, LOCAL, CHUNK, FULL, BLOCKS, MLA = (AttentionType[name] for name in (
    "GLOBAL", "LOCAL_SLIDING", "CHUNK", "FULL", "BLOCK_DIFFUSION", "MLA"))


@pytest.fixture(autouse=True)
def enabled():
    attune.jax.maxtext.enable()
    yield
    attune.jax.maxtext.disable()


class Config(SimpleNamespace):
    """What AttentionOp reads of MaxText's configuration."""

    attention_type, causal_block_size, moba, packing, enable_dropout = "global", 8, False, True, False
    context_sharding, ulysses_context_sharding, context_parallel_strategy = "context", "ulysses", "all_gather"
    context_parallel_load_balance, ici_context_autoregressive_parallelism = False, 0
    matmul_precision, shard_mode, debug_sharding = "highest", None, False

    def __getattr__(self, name):
        if "sa_" in name or "splash" in name:  # of kernels for TPUs
            return None
        raise AttributeError(name)


def made(kernel="flash", kv_heads=2, split=1, attention_type=GLOBAL, **given):
    named = {n: given.pop(n) for n in ("moba", "causal_block_size") if n in given}
    mesh = Mesh(np.array(jax.devices("cpu")[:split]), ("context",))
    return AttentionOp(config=Config(**named), mesh=mesh, attention_kernel=kernel, max_target_length=LENGTH,
                       num_query_heads=HEADS, num_kv_heads=kv_heads, attention_type=attention_type,
                       float32_qk_product=True, float32_logits=True, **given)


def tensors(rng, dtype=jnp.float32, kv_heads=2, width=16, v_width=16, queries=LENGTH):
    shapes = (queries, HEADS, width), (LENGTH, kv_heads, width), (LENGTH, kv_heads, v_width)
    q, k, v = (random(rng, 2, *shape, dtype=dtype) for shape in shapes)
    return q / width**0.5, k, v


def applied(op, q, k, v, segments=None, mode="train", **named):
    return op.apply_attention(q, k, v, segments, None, None, mode, qk_product_einsum=jnp.einsum,
                              wv_product_einsum=jnp.einsum, **named)


def dotted(op, q, k, v, segments=None, mode="train", **named):
    out, _, total = op.apply_attention_dot(q, k, v, segments, mode, qk_product_einsum=jnp.einsum,
                                           wv_product_einsum=jnp.einsum, **named)
    return out / total


def compare(op, q, k, v, segments=None, sinks=None, mode="train", **named):
    """Output and gradients, in programs of JAX."""
    seen = 1.0  # queries of padding may have no keys: 0 here, and there a mean
    if segments is not None:
        seen = (segments[:, -q.shape[1]:] >= 0)[..., None, None]

    def both(call):
        def loss(q, k, v, sinks):
            out = call(op, q, k, v, segments, mode, sinks=sinks, **named).astype(jnp.float32) * seen
            return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum(), out
        numbers = (0, 1, 2) if sinks is None else (0, 1, 2, 3)
        return jax.jit(jax.grad(loss, numbers, has_aux=True))(q, k, v, sinks)

    def ours(*arguments, **keywords):
        out, most, total = applied(*arguments, **keywords)
        assert most is None and total is None and out.dtype == q.dtype
        return out

    (mine, out), (theirs, true) = both(ours), both(dotted)
    tolerance = 2e-5 if q.dtype == jnp.float32 else 2e-2
    close(out, true, tolerance)
    for one, two in zip(mine, theirs):
        close(one.astype(jnp.float32), two.astype(jnp.float32), 5 * tolerance)
    return out


KINDS = {"global": {}, "full": {"attention_type": FULL}, "blocks": {"attention_type": BLOCKS},
         "window": {"attention_type": LOCAL, "sliding_window_size": 5},
         "chunk": {"attention_type": CHUNK, "chunk_attn_window_size": 8}}


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["whole", "segments"])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_types(kind, segments, cap, rng):
    compare(made(**KINDS[kind], attn_logits_soft_cap=cap), *tensors(rng), segments)


@pytest.mark.parametrize("kernel, kv_heads", [("flash", 1), ("cudnn_flash_te", 2), ("cudnn_flash_jax", 4)])
def test_all_in_bf16(kernel, kv_heads, rng):
    op = made(kernel, kv_heads, **KINDS["window"], attn_logits_soft_cap=20.0)
    compare(op, *tensors(rng, jnp.bfloat16, kv_heads), SEGMENTS, random(rng, HEADS))


@pytest.mark.parametrize("kind", KINDS)
def test_sinks(kind, rng):
    q, k, v = tensors(rng)
    sinks = random(rng, HEADS)
    out = compare(made(**KINDS[kind]), q, k, v, SEGMENTS, sinks)
    assert not np.allclose(out, applied(made(**KINDS[kind]), q, k, v, SEGMENTS)[0], atol=1e-3)


def test_a_query_without_keys_is_0(rng):
    out = applied(made(attention_type=FULL), *tensors(rng), SEGMENTS)[0]
    assert np.array_equal(np.asarray(out).any((2, 3)), np.asarray(SEGMENTS) >= 0)


def test_the_width_of_mla(rng):
    compare(made(attention_type=MLA, kv_heads=4), *tensors(rng, kv_heads=4, width=24, v_width=16), SEGMENTS)


@pytest.mark.parametrize("kind", ["global", "window"])
def test_images_see_themselves(kind, rng):
    images = jnp.asarray(rng.random((2, LENGTH)) < 0.7)
    q, k, v = tensors(rng)
    out = compare(made(**KINDS[kind]), q, k, v, jnp.abs(SEGMENTS), bidirectional_mask=images)
    assert not np.allclose(out, applied(made(**KINDS[kind]), q, k, v, jnp.abs(SEGMENTS))[0], atol=1e-3)


def test_segments_of_keys(rng):
    theirs = jnp.asarray(np.repeat([[1, 2], [3, 4]], [17, 20], 1), jnp.int32)
    some = jnp.where(SEGMENTS > 0, SEGMENTS, 1 + 2 * jnp.arange(2, dtype=jnp.int32)[:, None])
    compare(made(attention_type=FULL), *tensors(rng), some, decoder_segment_ids_kv=theirs)


@pytest.mark.parametrize("kind", ["global", "window", "chunk"])
def test_prefill_in_chunks(kind, rng):
    q, k, v = tensors(rng, queries=12)
    compare(made(**KINDS[kind]), q, k, v, jnp.abs(SEGMENTS), mode="prefill", previous_chunk=jnp.zeros((2, LENGTH - 12)))


def test_a_layer_as_maxtext_calls_it(rng):
    q, k, v = tensors(rng)
    op = made(**KINDS["window"])
    close(op(q, k, v, jnp.abs(SEGMENTS), None, "train"), dotted(op, q, k, v, jnp.abs(SEGMENTS)))


def test_what_is_maxtexts_own(rng, monkeypatch):
    q, k, v = tensors(rng, queries=1)
    monkeypatch.setattr(AttentionOp, "apply_attention_dot", lambda *_, **__: "theirs")
    active = jnp.ones((2, LENGTH), jnp.int32)
    assert applied(made(), q, k, v, active, "autoregressive") == "theirs"
    assert applied(made("dot_product"), *tensors(rng)) == "theirs"
    assert applied(made("autoselected"), *tensors(rng)) == "theirs"  # on a CPU
    assert isinstance(applied(made(), *tensors(rng))[0], jax.Array)
    attune.jax.maxtext.disable()
    assert AttentionOp.apply_attention is attune.jax.maxtext._theirs


@pytest.mark.parametrize("op, named, says", [
    ({}, {"indexer_mask": jnp.zeros((2, LENGTH, LENGTH))}, "indexer_mask"),
    ({}, {"compressed_mask": jnp.zeros((2, LENGTH, LENGTH))}, "compressed_mask"),
    ({}, {"record_max_logits": True}, "record_max_logits"),
    ({}, {"pad_kv_total": 3}, "pad_kv_total"),
    ({"moba": True}, {}, "moba"),
    ({"split": 2}, {}, "context parallelism"),
    ({"kernel": "cudnn_flash_te", "dropout_rate": 0.1}, {}, "dropout_rate"),
    ({"attention_type": AttentionType.COMPRESSED}, {}, "attention_type"),
    ({"attention_type": LOCAL}, {}, "sliding_window_size"),
    ({"attention_type": CHUNK, "chunk_attn_window_size": 0}, {}, "chunk_attn_window_size"),
    ({}, {"sinks": jnp.zeros(3)}, "sinks"),
    ({}, {"segments": jnp.zeros((2, 5), jnp.int32)}, "decoder_segment_ids"),
    ({}, {"segments": jnp.zeros((2, LENGTH))}, "decoder_segment_ids"),
    ({}, {"segments": SEGMENTS, "decoder_segment_ids_kv": SEGMENTS[:1]}, "decoder_segment_ids_kv"),
    ({}, {"bidirectional_mask": jnp.zeros((2, 5), bool)}, "bidirectional_mask"),
])
def test_is_refused_by_name(op, named, says, rng):
    error = refused(applied, made(**op), *tensors(rng), **named)
    assert error.code == "bad-argument" and f"`{says}`" in error.problem and error.fix
