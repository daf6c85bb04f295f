# tests/python/test_ranks.py — Sharding and Transport: calls of ranks that are threads against one rank, and mistakes
"""Ranks are threads here, whose exchanges go through queues of Python."""

import queue

import attune
import numpy as np
import pytest
from conftest import on_threads

SECONDS = 60
rng = np.random.default_rng(11)


def normal(*shape):
    return rng.standard_normal(shape, "f4")


class Hub:
    """Queues between all pairs of ranks."""

    def __init__(self, count):
        self.count, self.ways = count, {(a, b): queue.Queue() for a in range(count) for b in range(count)}
        self.summed = 0

    def at(self, rank, **functions):
        def exchange(send, receive, stream):
            assert stream == 0
            for peer, part in send:
                self.ways[rank, peer].put(bytes(part))
            for peer, part in receive:
                part[:] = self.ways[peer, rank].get(timeout=SECONDS)

        return attune.Transport(rank, self.count, exchange, **functions)


def rows(whole, ranges, axis=2):
    return np.concatenate([whole.take(range(a, b), axis) for a, b in ranges], axis)


def put(whole, mine, ranges, axis=2):
    at = 0
    for a, b in ranges:
        index = (slice(None),) * axis
        whole[(*index, slice(a, b))] = mine[(*index, slice(at, at + b - a))]
        at += b - a


def shaped(*shape):
    return np.broadcast_to(np.float32(0), shape)


@pytest.mark.parametrize("assignment", ["contiguous", "zigzag", "greedy"])
def test_three_ranks_are_one(assignment):
    q, k, v, grad = normal(1, 4, 1400, 16), normal(1, 2, 1400, 16), normal(1, 2, 1400, 8), normal(1, 4, 1400, 8)
    slope, bias, doc = normal(4), normal(1400), (np.arange(1400) // 333).astype(np.int32)
    attention = attune.Attention(score="s + slope[h] * f32(kv - q) + bias[kv]", mask="kv <= q && doc[kv] == doc[q]",
                                 slope=slope, bias=bias, doc=doc)
    o, lse = attention(q, k, v, lse=True)
    one = attention.backward(q, k, v, grad)
    hub, got_o, got_lse = Hub(3), np.empty_like(o), np.empty_like(lse)
    got = [np.empty_like(t) for t in (q, k, v)]

    def body(rank):
        sharding = attune.Sharding(attention, shaped(*q.shape), shaped(*k.shape), shaped(*v.shape), hub.at(rank), assignment=assignment,
                               travel="gather", block=96)
        mine = sharding.of()
        assert mine == sharding.keys_of(rank) and list(sharding.positions()) == [i for a, b in mine for i in range(a, b)]
        parts = [rows(t, mine) for t in (q, k, v)]
        out, sums = attention(*parts, lse=True, sharding=sharding, workers=1)
        put(got_o, out, mine), put(got_lse, sums, mine)
        grads = attention.backward(*parts, rows(grad, mine), sharding=sharding, workers=1)
        own = attention.backward(*parts, rows(grad, mine), sharding=sharding, workers=1, sum_captured=False)
        for whole, part in zip(got, grads):
            put(whole, part, mine)
        return sharding.received(), grads.captured, own.captured

    made = on_threads(3, body)
    for part in made:
        assert not isinstance(part, BaseException), part
    assert np.array_equal(got_o, o) and np.array_equal(got_lse, lse) and np.array_equal(got[0], one.q)
    for mine, whole in zip(got[1:], one[1:3]):
        assert np.allclose(mine, whole, rtol=1e-5, atol=1e-5)
    # Terms of slope's gradient are hundreds, and cancel: f32 leaves a thousandth.
    for name, whole in one.captured.items():
        for _, all_of_them, _ in made:
            assert np.allclose(all_of_them[name], whole, rtol=1e-4, atol=3e-3)
        assert np.allclose(sum(own[name] for *_, own in made), whole, rtol=1e-4, atol=3e-3)
    assert sum(received for received, *_ in made) > 0


def test_packed_and_the_same_deal_for_another_mask():
    starts = np.array([0, 500, 501, 1200], np.int32)
    q, k = normal(1200, 4, 16), normal(1200, 2, 16)
    causal, windowed = attune.Attention(mask="kv <= q"), attune.Attention(mask="kv <= q && q - kv < window", window=50)
    hub, both = Hub(2), [np.empty_like(q) for _ in range(2)]

    def body(rank):
        sharding = attune.Sharding([causal], q, k, k, hub.at(rank), cu_seqlens=starts, assignment="zigzag", block=96)
        more = sharding.also(windowed, q, k, k)
        assert more.of() == sharding.of() and more.received() < sharding.received()
        mine = sharding.of()
        assert list(sharding.positions())[:3] == ([0, 1, 2] if mine[0][0] == 0 else list(sharding.positions())[:3])
        for attention, plan, out in ((causal, sharding, both[0]), (windowed, more, both[1])):
            put(out, attention(rows(q, mine, 0), rows(k, mine, 0), rows(k, mine, 0), cu_seqlens=starts, sharding=plan,
                               workers=1), mine, 0)

    assert on_threads(2, body) == [None, None]
    for attention, out in ((causal, both[0]), (windowed, both[1])):
        assert np.array_equal(out, attention(q, k, k, cu_seqlens=starts))


def test_sum_stop_and_exceptions_of_a_transport():
    hub, x, slope = Hub(2), normal(1, 2, 900, 16), normal(2)
    attention = attune.Attention(score="s + slope[h]", slope=slope)
    sums, stops = [], []

    def body(rank):
        def total(values, stream):
            sums.append((rank, len(values), values.itemsize))
            if len(sums) > 2:
                raise ZeroDivisionError

        transport = hub.at(rank, sum=total, stop=lambda: stops.append(rank))
        sharding = attune.Sharding(attention, x, x, x, transport, travel="gather")
        part = rows(x, sharding.of())
        for _ in range(2):
            attention.backward(part, part, part, part, sharding=sharding, wrt=("slope",), workers=1)

    made = on_threads(2, body)
    assert [type(one) for one in made] == [ZeroDivisionError] * 2
    assert sorted(set(sums)) == [(0, 2, 8), (1, 2, 8)] and len(sums) == 4 and sorted(stops) == [0, 1]

    def failing(send, receive, stream):
        raise KeyError("no network")

    with pytest.raises(KeyError, match="no network"):
        attune.Sharding(attention, x, x, x, attune.Transport(0, 2, failing))


def test_views_end_with_the_exchange():
    kept = []
    x = normal(1, 2, 900, 16)

    def exchange(send, receive, stream):
        kept.extend([part for _, part in (*send, *receive)])
        raise InterruptedError

    with pytest.raises(InterruptedError):
        attune.Sharding(attune.Attention(), x, x, x, attune.Transport(1, 2, exchange))
    assert len(kept) == 2
    for view in kept:
        with pytest.raises(ValueError, match="released"):
            len(view), bytes(view)


def refused(code, function):
    with pytest.raises(attune.Error) as caught:
        function()
    assert caught.value.code == code
    return caught.value


def test_mistakes():
    x, attention, alone = normal(1, 2, 900, 16), attune.Attention(), attune.Transport(0, 2)
    sharding = attune.Sharding(attention, x, x, x, alone)
    assert "2 ranks" in sharding.explain() and repr(sharding) == "<attune.Sharding of 2 ranks>"
    refused("sharding-call", lambda: attention(*[rows(x, sharding.of())] * 3, sharding=sharding))  # nothing to exchange with
    refused("sharding-shape", lambda: attention(x, x, x, sharding=sharding))
    refused("ranks-count", lambda: sharding.of(2))
    refused("ranks-count", lambda: sharding.received(0, 1))
    refused("ranks-count", lambda: attune.Sharding(attention, x, x, x, attune.Transport(2, 2)))
    refused("sharding-call", lambda: attune.Sharding([], x, x, x, alone))
    refused("sharding-other", lambda: sharding.also(attention, *[x[:, :, 1:]] * 3))
    refused("bad-argument", lambda: attention(x, x, x, sharding=alone))
    refused("bad-argument", lambda: attune.attention(x, x, x, sharding=alone))
    refused("bad-argument", lambda: attune.Sharding(attention, x, x, x, 2))
    refused("bad-argument", lambda: attune.Sharding("kv <= q", x, x, x, alone))
    refused("bad-argument", lambda: attune.Sharding(attention, x, x, x, alone, assignment="fair"))
    refused("bad-argument", lambda: attune.Sharding(attention, x, x, x, alone, travel=1))
    refused("bad-argument", lambda: attune.Transport(-1, 2))
    refused("bad-argument", lambda: attune.Transport(0, 2, exchange=3))
    error = refused("sharding-how", lambda: attune.Sharding(attention, x, x, x, alone, groups=7))
    assert error.file == __file__
