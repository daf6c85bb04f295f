# tests/python/in_jax/test_jax_vmap.py — vmap over captured arrays is one call, as are their gradients
"""vmap over captured arrays, their gradients, and mods that read the batch index."""

import attune
import jax
import jax.numpy as jnp
import pytest
from attune.jax import attention
from attune.jax._fold import follows, may_fold, moved, reads, rewritten
from dense import close, qkv, random


def calls(program, *arrays):
    """The results, and how many calls attune had."""
    facts = []
    with attune.watch(facts.append):
        out = jax.block_until_ready(program(*arrays))
    return out, sum(fact["fact"] == "called" for fact in facts)


def both(program, axes, *arrays):
    """One call gives for all mapped entries what calls of each give."""
    mapped, count = calls(jax.jit(jax.vmap(program, axes)), *arrays)
    size = next(x.shape[0] for x, a in zip(arrays, axes) if a == 0)
    each = [jax.jit(program)(*[x[i] if a == 0 else x for x, a in zip(arrays, axes)]) for i in range(size)]
    for mine, true in zip(jax.tree.leaves(mapped), jax.tree.leaves(jax.tree.map(lambda *x: jnp.stack(x), *each))):
        close(mine, true)
    return count


def attend(q, k, v, slope, bias, doc):
    return attention(q, k, v, score=lambda s, at: s + slope[at.head] * (at.kv - at.q) + bias[at.batch, at.kv] +
                     at.batch, mask=lambda at: (doc[at.batch, at.q] >= doc[at.batch, at.kv]) | (at.batch == at.kv))


def arrays(rng, batch, size=3):
    q, k, v = (jnp.stack([x * (i + 1) for i in range(size)]) for x in qkv(rng, batch=batch, kv_heads=2))
    return (q, k, v, random(rng, size, 4), random(rng, size, batch, 19),
            jnp.asarray(rng.integers(0, 3, (size, batch, 19)), jnp.int32))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("mapped", [(0,) * 6, (0, 0, 0, None, None, None), (None, None, None, 0, None, None),
                                    (0, None, None, None, 0, 0)])
def test_one_call(batch, mapped, rng):
    given = [x if a == 0 else x[0] for x, a in zip(arrays(rng, batch), mapped)]
    assert both(attend, mapped, *given) == 1


@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_in_one_call(batch, rng):
    loss = jax.grad(lambda *x: (attend(*x) ** 2).sum(), (0, 1, 2, 3, 4))
    assert both(loss, (0,) * 6, *arrays(rng, batch)) == 2
    # A gradient of what is not mapped is that of each entry.
    given = arrays(rng, batch)
    assert both(loss, (0, None, None, None, None, None), given[0], *[x[0] for x in given[1:]]) == 2


def test_a_dense_bias_of_four_dimensions(rng):
    q, k, v = (jnp.stack([x, -x]) for x in qkv(rng))
    for shape in ((2, 2, 4, 19, 19), (2, 1, 4, 19, 19)):
        bias = random(rng, *shape)
        text = "s + bias[b, h, q, kv]" if shape[1] == 2 else "s + bias[0, h, q, kv]"
        program = lambda q, k, v, bias, text=text: attention(q, k, v, score=text, bias=bias)
        assert both(program, (0,) * 4, q, k, v, bias) == 1
        assert both(jax.grad(lambda *x, program=program: (program(*x) ** 2).sum(), 3), (0,) * 4, q, k, v, bias) == 2


def test_nested_maps_are_one_call(rng):
    q, k, v, slope, _, doc = arrays(rng, 2)
    outer = random(rng, 2, 2, 19)
    program = jax.vmap(jax.vmap(attend, (0, 0, 0, 0, None, 0)), (None, None, None, None, 0, None))
    out, count = calls(jax.jit(program), q, k, v, slope, outer, doc)
    assert count == 1
    for i in range(2):
        for j in range(3):
            close(out[i, j], attend(q[j], k[j], v[j], slope[j], outer[i], doc[j]))


def test_random_numbers_are_those_of_each_entry(rng):
    q, k, v = (jnp.stack([x, x]) for x in qkv(rng))
    assert both(lambda *x: attention(*x, prob="where(random(3) < 0.5, p, 0.0)"), (0, 0, 0), q, k, v) == 2


def test_entries_that_share_keys_of_one_entry(rng):
    q, k, v = qkv(rng, batch=2, kv_heads=2)
    many = jnp.stack([q, 2 * q])
    assert both(lambda q: attention(q, k[:1], v[:1], mask="kv <= q"), (0,), many) == 1
    each = jnp.stack([k[:1], -k[:1]])
    assert both(lambda q, k: attention(q, k, v[:1], mask="kv <= q"), (0, 0), many, each) == 2


# ---- the texts


def test_reads():
    assert reads("s + t[b, u[b, q + (1, 2)], kv]", "t")[0][2] == ["b", "u[b, q + (1, 2)]", "kv"]
    assert reads("at + t [ b ] + tt[q]", "t")[0][2] == ["b"]
    assert follows(["t[b, q] + t[b, kv]"], "t", 0, "b") and not follows(["t[b, q]", "t[q, b]"], "t", 0, "b")
    assert not may_fold((None, "kept(3, 9)"), ()) and not may_fold(("p", "dropout(0.9, 7)"), ())
    assert not may_fold(("s + random(3)", None), ()) and may_fold(("s + random_bias[q]", None), ())


def test_rewritten():
    captures = (("t", "f", 2), ("u", "i", 1))
    one = rewritten(("s + t[h, u[b]] * f32(b)", None, None, None), (), captures, (), (True, True), ((4, 9), (1,)), 1)
    assert one.parts[0] == "s + t[b, h, u[b]] * f32(0)" and one.captures[0][2] == 3 and one.merged == {1}
    many = rewritten(("s + t[h, u[b]] * entries1", "kv <= b", None, None), (("near", "b > 1"),), captures,
                     (("entries1", "f"),), (True, False), ((4, 9), (2,)), 2)
    assert many.parts == ("s + t[b / entries2, h, u[(b % entries2)]] * entries1", "kv <= (b % entries2)", None, None)
    assert many.lets == (("near", "(b % entries2) > 1"),) and many.params == (("entries1", "f"), ("entries2", "i"))
    assert rewritten(("t[h, q, kv, 0]", None), (), (("t", "f", 4),), (), (True,), ((4, 9, 9, 1),), 1) is None


def test_moved():
    parts, _ = moved(("s + t[b, h] + u[h, b] + f32(b)", None), (), (("t", "f", 2), ("u", "f", 2)),
                     {"t": ("b", "h"), "u": (None, "b")}, {"b": "b0", "h": "h0"})
    assert parts[0] == "s + t[b, h] + u[(h + h0[]), b] + f32((b + b0[]))"
