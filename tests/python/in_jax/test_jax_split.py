# tests/python/in_jax/test_jax_split.py — batch entries and heads on several devices, by jit and by shard_map
"""Each device computes its own batch entries and heads, with the bits of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attune.jax import append, attention, dot_product_attention
from dense import close, qkv, random
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

pytestmark = pytest.mark.skipif(len(jax.devices("cpu")) < 4, reason="needs four devices")
COLLECTIVE = ("all-gather", "all-to-all", "collective-permute", "dynamic-slice")


@pytest.fixture(autouse=True)
def _on_the_cpu():
    """What one device computes has the bits of others of its kind alone."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), ("data", "model"))


def put(mesh, spec, *arrays):
    return [jax.device_put(x, NamedSharding(mesh, spec)) for x in arrays]


def reads_all(q, k, v, slope, bias, doc):
    return attention(q, k, v, score=lambda s, at: s + slope[at.head] * (at.kv - at.q) + bias[at.batch, at.head, at.kv] +
                     0.5 * (at.batch + at.head), mask=lambda at: doc[at.batch, at.q] >= doc[at.batch, at.kv])


def arrays_of_all(rng, **shape):
    q, k, v = qkv(rng, **{"batch": 4, "kv_heads": 2, **shape})
    return (q, k, v, random(rng, q.shape[1]), random(rng, 4, q.shape[1], 19),
            jnp.asarray(rng.integers(0, 3, (4, 19)), jnp.int32))


@pytest.mark.parametrize("spec", [P("data", "model"), P("data"), P(None, "model"), P(("data", "model"))])
def test_batch_and_heads_are_split_without_a_gather(spec, mesh, rng):
    arrays = arrays_of_all(rng)
    shared = [*put(mesh, spec, *arrays[:3]), *put(mesh, P(), arrays[3]), *put(mesh, spec, arrays[4]),
              *put(mesh, P(*spec[:1]), arrays[5])]
    program = jax.jit(reads_all)
    out = program(*shared)
    assert np.array_equal(out, program(*arrays)) and out.sharding.spec == P(*spec)
    loss = jax.jit(jax.grad(lambda *x: (reads_all(*x) ** 2).sum(), (0, 1, 2, 3, 4)))
    for one in (program, loss):
        compiled = one.lower(*shared).compile().as_text()
        assert 'custom_call_target="attune"' in compiled and not any(f" {c}(" in compiled for c in COLLECTIVE[:3])
    for n, (mine, true) in enumerate(zip(loss(*shared), loss(*arrays))):
        if n < 3:
            assert np.array_equal(mine, true)
        else:
            close(mine, true)


def test_one_head_of_keys_serves_all_devices(mesh, rng):
    arrays = arrays_of_all(rng, kv_heads=1)
    shared = [*put(mesh, P("data", "model"), arrays[0]), *put(mesh, P("data"), *arrays[1:3]), *arrays[3:]]
    run = jax.jit(jax.value_and_grad(lambda *x: (reads_all(*x) ** 2).sum(), (0, 1, 2)))
    for mine, true in zip(run(*shared)[1], run(*arrays)[1]):
        close(mine, true)
    assert " all-gather(" not in run.lower(*shared).compile().as_text()


def test_dot_product_attention_is_split(mesh, rng):
    q, k, v = (x.swapaxes(1, 2) for x in qkv(rng, batch=4, kv_heads=2))
    bias, n = random(rng, 1, 4, 19, 19), jnp.asarray([19, 3, 7, 1], jnp.int32)
    sinks = random(rng, 4)

    @jax.jit
    def program(q, k, v, bias, n, sinks):
        return dot_product_attention(q, k, v, bias, is_causal=True, key_value_seq_lengths=n, sinks=sinks,
                                     return_residual=True)

    shared = [*put(mesh, P("data", None, "model"), q, k, v), *put(mesh, P(None, "model"), bias),
              *put(mesh, P("data"), n), *put(mesh, P("model"), sinks)]
    for mine, true in zip(program(*shared), program(q, k, v, bias, n, sinks)):
        assert np.array_equal(mine, true)
    assert not any(f" {c}(" in program.lower(*shared).compile().as_text() for c in COLLECTIVE)


def test_a_cache_is_split(mesh, rng):
    q, k, v = qkv(rng, batch=4, kv_heads=2, q_len=1)
    n = jnp.asarray([19, 3, 7, 1], jnp.int32)
    program = jax.jit(lambda q, k, v, n: attention(q, k, v, mask="kv <= q", kv_len=n, q_offsets=n - 1))
    shared = [*put(mesh, P("data", "model"), q, k, v), *put(mesh, P("data"), n)]
    assert np.array_equal(program(*shared), program(q, k, v, n))
    assert " all-gather(" not in program.lower(*shared).compile().as_text()


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="this JAX has no jax.shard_map")
@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma, mesh, rng):
    arrays = arrays_of_all(rng)
    attend = lambda q, k, v, slope: attention(q, k, v, score=lambda s, at: s + slope[at.head] * (at.kv - at.q))
    mapped = jax.shard_map(attend, mesh=mesh, in_specs=(P("data"), P("data"), P("data"), P()), out_specs=P("data"),
                           check_vma=check_vma)
    runs = [jax.jit(jax.value_and_grad(lambda *x, f=f: (f(*x) ** 2).sum(), (0, 1, 2, 3)))(*arrays[:4])
            for f in (mapped, attend)]
    for mine, true in zip(runs[0][1], runs[1][1]):
        close(mine, true)
    new = random(rng, 4, 2, 1, 8)
    put_in = lambda new, k, n: append(new, new, k, k, kv_len=n)[0]
    n = jnp.asarray([1, 4, 2, 19], jnp.int32)
    assert np.array_equal(jax.jit(jax.shard_map(put_in, mesh=mesh, in_specs=P("data"), out_specs=P("data"),
                                                check_vma=check_vma))(new, arrays[1], n), put_in(new, arrays[1], n))


# ---- what cannot be split


@pytest.mark.parametrize("name, specs", [("queries", (P(None, None, "data"), P(), P())),
                                         ("keys", (P(), P(None, None, "data"), P(None, None, "data")))])
def test_split_rows_are_refused_by_name(name, specs, mesh, rng):
    arrays = qkv(rng, q_len=18, kv_len=18)
    shared = [*[put(mesh, spec, x)[0] for spec, x in zip(specs, arrays)]]
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"the {name} of an attention are split along data"):
        jax.jit(attention)(*shared)


def test_too_few_heads_of_keys_and_dropout_are_refused_by_name(mesh, rng):
    arrays = qkv(rng, batch=4, heads=8, kv_heads=2)
    with pytest.raises(jax.errors.JaxRuntimeError, match="2 heads of keys cannot be split among 4"):
        jax.jit(attention)(*put(mesh, P(None, ("data", "model")), arrays[0]), *arrays[1:])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)random numbers .* jax.shard_map"):
        jax.jit(lambda *x: attention(*x, prob="where(random(3) < 0.5, p, 0.0)"))(*put(mesh, P("data"), *arrays))
