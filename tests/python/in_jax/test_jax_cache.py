# tests/python/in_jax/test_jax_cache.py — packed sequences, and caches with lengths, offsets, pages and append
"""Traced arrays that say where an attention's keys and queries are."""

import attune
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attune.jax import _call, append, attention
from conftest import refused
from dense import close, dense, qkv, random

PAGE = 4


def packed(rng, starts, heads=4, kv_heads=2, width=8):
    return tuple(random(rng, int(starts[-1]), h, width) for h in (heads, kv_heads, kv_heads))


def alone(attend, starts, q, k, v, kv_starts=None):
    """attend(q, k, v) of each sequence, one after the other."""
    kv_starts = starts if kv_starts is None else kv_starts
    out = []
    for i in range(len(starts) - 1):
        ours, theirs = slice(starts[i], starts[i + 1]), slice(kv_starts[i], kv_starts[i + 1])
        one = [x.swapaxes(0, 1)[None] for x in (q[ours], k[theirs], v[theirs])]
        out.append(attend(*one)[0].swapaxes(0, 1))
    return jnp.concatenate(out)


@pytest.mark.parametrize("starts", [[0, 5, 12, 19], [0, 19], [0, 1, 1, 19], [0, 0, 3]])
def test_packed_sequences(starts, rng):
    arrays = packed(rng, starts)

    def loss(attend, *x):
        out = attend(*x)
        return (out ** 2).sum(), out

    causal = lambda f, at: at.kv <= at.q
    ours = jax.jit(jax.grad(lambda starts, *x: loss(lambda *x: attention(*x, mask="kv <= q", cu_seqlens=starts), *x),
                            (1, 2, 3), has_aux=True))(jnp.asarray(starts, jnp.int32), *arrays)
    wanted = jax.grad(lambda *x: loss(lambda *x: alone(
        lambda *one: dense(*one, mask=causal)[0], starts, *x), *x), (0, 1, 2), has_aux=True)(*arrays)
    close(ours[1], wanted[1])
    for mine, true in zip(ours[0], wanted[0]):
        close(mine, true, 1e-4)


def test_packed_sequences_of_other_keys_and_their_sums(rng):
    starts, kv_starts = [0, 5, 12], [0, 9, 11]
    q = packed(rng, starts)[0]
    k, v = packed(rng, kv_starts)[1:]
    out, lse = jax.jit(lambda a, b, *x: attention(*x, cu_seqlens_q=a, cu_seqlens_kv=b, max_q_len=7, max_kv_len=9,
                                                  lse=True))(*[jnp.asarray(s, jnp.int32) for s in (starts, kv_starts)],
                                                             q, k, v)
    close(out, alone(lambda *x: dense(*x)[0], starts, q, k, v, kv_starts))
    assert lse.shape == (4, 12) and lse.dtype == jnp.float32
    close(lse[:, :5], dense(*[x.swapaxes(0, 1)[None] for x in (q[:5], k[:9], v[:9])])[1][0])
    many = jax.vmap(lambda q, k, v: attention(q, k, v, cu_seqlens_q=jnp.asarray(starts), cu_seqlens_kv=jnp.asarray(
        kv_starts)))(*[jnp.stack([x, -x]) for x in (q, k, v)])
    close(many[0], out)


@pytest.mark.parametrize("shape", [{}, {"kv_heads": 1, "q_len": 1}, {"kv_len": 70, "q_len": 3}])
def test_lengths_and_offsets(shape, rng):
    q, k, v = qkv(rng, **shape)
    lengths, first = jnp.asarray([3, k.shape[2]], jnp.int32), jnp.asarray([2, k.shape[2] - 1], jnp.int32)
    out, lse = jax.jit(lambda n, first: attention(q, k, v, mask="kv <= q", kv_len=n, q_offsets=first, lse=True))(
        lengths, first)
    wanted = dense(q, k, v, mask=lambda f, at: (at.kv < np.asarray(lengths)[at.batch]) &
                   (at.kv <= at.q + np.asarray(first)[at.batch]))
    close(out, wanted[0])
    close(lse, wanted[1])


def test_a_traced_offset_is_that_of_every_entry(rng):
    q, k, v = qkv(rng, q_len=2)
    moved = jax.jit(lambda n: attention(q, k, v, mask="kv <= q", q_offset=n))(jnp.int32(3))
    close(moved, attention(q, k, v, mask="kv <= q", q_offset=3))
    assert refused(attention, q, k, v, q_offset=jnp.ones(2, int)).code == "bad-argument"
    assert refused(jax.jit(lambda n: attention(q, k, v, q_offset=n)), 1.5).code == "bad-argument"


def pages(rng, k, dtype=jnp.float32):
    """The same keys in pages, and the table of them."""
    entries, heads, rows, width = k.shape
    count = -(-rows // PAGE)
    table = rng.permutation(entries * count).reshape(entries, count).astype(np.int32)
    pool = np.zeros((entries * count, heads, PAGE, width), np.float32)
    for b in range(entries):
        for i in range(rows):
            pool[table[b, i // PAGE], :, i % PAGE] = k[b, :, i]
    return jnp.asarray(pool, dtype), jnp.asarray(table)


def test_pages(rng):
    q, k, v = qkv(rng, q_len=1, kv_heads=2)
    lengths = jnp.asarray([5, 19], jnp.int32)
    rng_of_pages = np.random.default_rng(5)
    pool_k, table = pages(rng_of_pages, np.asarray(k))
    pool_v, _ = pages(np.random.default_rng(5), np.asarray(v))
    attend = lambda table, n: attention(q, pool_k, pool_v, mask="kv <= q", page_table=table, kv_len=n, q_offsets=n - 1)
    wanted = dense(q, k, v, mask=lambda f, at: at.kv < np.asarray(lengths)[at.batch])[0]
    close(jax.jit(attend)(table, lengths), wanted)
    # Entries of vmap share the pool.
    facts = []
    with attune.watch(facts.append):
        each = jax.block_until_ready(jax.vmap(lambda q, t, n: attention(
            q[None], pool_k, pool_v, page_table=t[None], kv_len=n[None]))(q, table, lengths))
    assert sum(f["fact"] == "called" for f in facts) == 1
    close(each[:, 0], wanted)


def test_results_over_other_keys_are_merged(rng):
    q, k, v = qkv(rng)
    before = attention(q, k[:, :, :7], v[:, :, :7], mask="kv <= q", lse=True)
    out = jax.jit(lambda o, lse: attention(q, k[:, :, 7:], v[:, :, 7:], mask="kv <= q", kv_offset=7, o_before=o,
                                           lse_before=lse))(*before)
    close(out, dense(q, k, v, mask=lambda f, at: at.kv <= at.q)[0])


def test_generation_in_a_scan(rng):
    """A cache of a fixed size that each step appends to."""
    q, k, v = qkv(rng, kv_heads=2)

    def step(cache, at):
        i, q, k, v = at
        n = jnp.full(2, i + 1, jnp.int32)
        cache = append(k[:, :, None], v[:, :, None], *cache, kv_len=n)
        return cache, attention(q[:, :, None], *cache, mask="kv <= q", kv_len=n, q_offset=i)[:, :, 0]

    empty = (jnp.zeros((2, 2, 32, 8)),) * 2
    rows = [jnp.moveaxis(x, 2, 0) for x in (q, k, v)]
    (kept, _), out = jax.jit(lambda *x: jax.lax.scan(step, empty, (jnp.arange(19, dtype=jnp.int32), *x)))(*rows)
    close(jnp.moveaxis(out, 0, 2), dense(q, k, v, mask=lambda f, at: at.kv <= at.q)[0])
    close(kept[:, :, :19], k)


def test_append_leaves_what_is_read_later(rng):
    k, v = random(rng, 2, 1, 4, 8), random(rng, 2, 1, 4, 8)
    new = random(rng, 2, 1, 1, 8)
    n = jnp.asarray([1, 4])
    before = np.array(k)
    made, _ = append(new, new, k, v, kv_len=n, k_scale=2.0)
    assert np.array_equal(k, before)
    wanted = k.at[0, :, 0].set(new[0, :, 0] / 2).at[1, :, 3].set(new[1, :, 0] / 2)
    close(made, wanted)
    both = jax.jit(lambda k, v: (append(new, new, k, v, kv_len=n, k_scale=2.0)[0], k))(k, v)
    close(both[0], wanted)
    close(both[1], before)
    mapped = jax.vmap(lambda new, k: append(new, new, k, v, kv_len=n, k_scale=2.0)[0])(
        jnp.stack([new, new]), jnp.stack([k, k]))
    close(mapped[1], wanted)


def test_append_to_results_that_are_elsewhere(rng, monkeypatch):
    k, v, new = random(rng, 2, 1, 4, 8), random(rng, 2, 1, 4, 8), random(rng, 2, 1, 1, 8)
    n = jnp.asarray([1, 4])
    wanted = append(new, new, k, v, kv_len=n)
    # As in a loop over slices of a cache on a GPU, where XLA ignores that results lie in the arguments' memory.
    call = jax.ffi.ffi_call
    monkeypatch.setattr(jax.ffi, "ffi_call", lambda *args, input_output_aliases, **more: call(*args, **more))
    made = _call._appended.__wrapped__("1.0 1.0 k_new v_new k v kv_len", new, new, k, v, n)
    for mine, true, before in zip(made, wanted, (k, v)):
        assert np.array_equal(mine, true) and not np.array_equal(mine, before)


def test_a_donated_cache_is_written_where_it_lies(rng):
    k, v, new = jnp.zeros((2, 1, 64, 8)), jnp.ones((2, 1, 64, 8)), random(rng, 2, 1, 1, 8)
    step = jax.jit(append, donate_argnums=(2, 3))
    compiled = step.lower(new, new, k, v, kv_len=jnp.asarray([1, 4])).compile().as_text()
    assert "input_output_alias" in compiled and " copy(" not in compiled
    place = k.unsafe_buffer_pointer()
    made, _ = step(new, new, k, v, kv_len=jnp.asarray([1, 4]))
    assert made.unsafe_buffer_pointer() == place


def test_append_to_pages_and_slots(rng):
    pool = jnp.zeros((5, 3, PAGE, 8))
    rows = random(rng, 4, 3, 8)
    made, _ = append(rows, rows, pool, pool, slots=jnp.asarray([7, -1, 0, 11], jnp.int32))
    close(made[1, :, 3], rows[0])
    assert int((np.asarray(made) != 0).sum()) == 3 * rows[0].size
    made, _ = append(rows, rows, pool, pool, kv_len=jnp.asarray([6, 3]), page_table=jnp.asarray([[3, 0], [2, -1]]),
                     cu_seqlens=jnp.asarray([0, 3, 4]))
    close(made[0, :, 1], rows[2])
    close(made[2, :, 2], rows[3])


# ---- mistakes


@pytest.mark.parametrize("given", [{"kv_len": jnp.ones(2, jnp.int32)}, {"q_offset": jnp.int32(1)}, {"kv_offset": 2},
                                   {"fixed_split_size": 128}])
def test_a_cache_has_no_gradients(given, rng):
    q, k, v = qkv(rng)
    traced = {n: x for n, x in given.items() if not isinstance(x, int)}
    numbers = {n: x for n, x in given.items() if isinstance(x, int)}
    error = refused(jax.jit(jax.grad(lambda q, n: attention(q, k, v, **numbers, **n).sum())), q, traced)
    assert error.code == "forward-only" and error.file == __file__


@pytest.mark.parametrize("given, code", [
    ({"kv_len": jnp.ones(3, jnp.int32)}, "tensor-shape"), ({"kv_len": 3}, "tensor-array"),
    ({"q_offsets": jnp.ones(2)}, "q-offsets"), ({"page_table": jnp.ones((3, 3), jnp.int32)}, "page-table"),
    ({"max_q_len": -1}, "bad-argument"), ({"o_before": jnp.ones(2)}, "before-half")])
def test_mistakes(given, code, rng):
    q, k, v = qkv(rng)
    error = refused(jax.jit(lambda q: attention(q, k, v, **given)), q)
    assert error.code == code, error


def test_mistakes_of_append(rng):
    k, new = random(rng, 2, 1, 4, 8), random(rng, 2, 1, 1, 8)
    assert refused(append, new, new, k, k, kv_len=[1, 2]).code == "bad-argument"
    assert refused(append, new, new, k, k, k_scale=0).code == "bad-argument"
    with pytest.raises(jax.errors.JaxRuntimeError, match="attune: "):
        jax.block_until_ready(append(new, new, k, k, kv_len=jnp.asarray([1, 2, 3])))
