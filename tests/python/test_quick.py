# tests/python/test_quick.py — usual calls on NumPy's arrays run no Python of attune, and give what its Python gives
"""The way of core/quick.cpp beside the way of Attention.__call__, which handles all calls."""

import gc
import inspect
import sys
import weakref

import attune
import numpy as np
import pytest
from conftest import dense

slowly = attune.Attention.__call__  # of the class: the function itself


def python_run(call):
    """How many functions of Python a call runs."""
    called = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return called


@pytest.fixture
def alibi():
    slope, width = np.ones(4, np.float32), attune.Param(3)
    return attune.Attention(lambda s, at: s + slope[at.head] * (at.kv - at.q), lambda at: at.kv <= at.q + width)


def given(f4=np.float32):
    """Keywords of calls that need no Python."""
    out = np.zeros((2, 4, 12, 8), f4)
    return [{}, {"out": out}, {"out": out.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)}, {"out": out[..., ::-1]},
            {"lse": True}, {"max": True}, {"lse": True, "max": True, "out": out}, {"lse": np.zeros((2, 4, 12), "f4")},
            {"q_offset": 4}, {"out": None, "lse": False, "workers": 0, "stream": 0, "cover": None}]


@pytest.mark.parametrize("dtype", ["f4", "f2", "bf16"])
def test_the_same_bits_without_python(qkv, alibi, dtype):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bf16" else np.dtype(dtype)
    q, k, v = (x.astype(dtype) for x in qkv)
    rebound = [{"slope": np.arange(4, dtype=np.float32)}, {"slope": np.arange(8, dtype=np.float16)[::2], "width": 1}]
    for attention, keywords in ((attune.Attention(), given(dtype)), (alibi, given(dtype) + rebound)):
        for how in keywords:
            attention(q, k, v, **how)  # from now on the types of the elements are known
            assert python_run(lambda: attention(q, k, v, **how)) == ["<lambda>"], how
            mine, want = attention(q, k, v, **how), slowly(attention, q, k, v, **how)
            assert type(mine) is type(want)
            for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (mine, want))):
                assert a.dtype == b.dtype and a.strides == b.strides and np.array_equal(a, b)
            if isinstance(how.get("out"), np.ndarray):
                assert (mine[0] if isinstance(mine, tuple) else mine) is how["out"]


def test_strange_arrays_are_left_to_python(qkv, alibi):
    q, k, v = qkv
    class Named(np.ndarray):
        pass

    swapped = q.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)
    ways = [((swapped, k, v), {}), ((q.view(Named), k, v), {}), ((q[:, ::-1], k[:, :, ::-1], v[..., ::-1]), {}),
            ((q, np.broadcast_to(k[:1], k.shape), v), {}), ((q[:, :, :0], k, v), {}),
            ((q, k[:, :, :0], v[:, :, :0]), {}),
            ((np.ma.masked_array(q), k, v), {}), ((q, k, v), {"slope": [1.0] * 4}),
            ((q, k, v), {"width": True}), ((q, k, v), {"width": 1.5}), ((q, k, v), {"width": 2**40}),
            ((q, k, v), {"slope": np.ones(4, np.int32)}), ((q, k, v), {"slope": np.ones((4, 1), np.float32)}),
            ((q, k, v), {"slope": np.ones(3, np.float32)}), ((q, k, v), {"unknown": 1}), ((q, k, v), {"q_offset": -1}),
            ((q, k, v), {"q_offset": 2**40}), ((q, k, v), {"q_offset": "1"}), ((q, k), {}), ((q, k, v, v), {}),
            ((None, k, v), {}), ((q, [[1.0]], v), {}), ((q.astype(">f4"), k, v), {}), ((q.astype("c8"), k, v), {}),
            ((q, k.astype("f2"), v), {}), ((q[0], k[0], v[0]), {}), ((q, k[..., :3], v), {}),
            ((q, k, v), {"out": q[..., :3]}), ((q, k, v), {"out": np.broadcast_to(q[:1], q.shape)}),
            ((q, k, v), {"out": 3}), ((q, k, v), {"lse": 1}), ((q, k, v), {"lse": np.zeros(3, "f4")}),
            ((q, k, v), {"workers": -1}), ((q, k, v), {"stream": "x"})]

    def outcome(call, *args, **keywords):
        try:
            return call(*args, **keywords)
        except (attune.Error, TypeError) as error:
            return type(error), str(error).splitlines()[0]

    for args, keywords in ways:
        mine, want = outcome(alibi, *args, **keywords), outcome(slowly, alibi, *args, **keywords)
        if isinstance(want, tuple):
            assert mine == want
        else:
            assert type(mine) is type(want) and mine.strides == want.strides and np.array_equal(mine, want)


def test_a_type_of_elements_is_known_by_itself(qkv, alibi):
    """Types of elements that are equal, and other objects, are learnt each; after many of them Python reads arrays."""
    q, k, v = qkv
    want = alibi(q, k, v)
    for i in range(40):
        other = np.dtype("f4", metadata={"number": i})
        assert np.array_equal(alibi(q.view(other), k, v), want)
        assert "__call__" not in python_run(lambda: alibi(q, k, v))


def test_params_are_read_in_each_call(qkv):
    width = attune.Param(3)
    attention = attune.Attention(mask=lambda at: abs(at.q - at.kv) < width)
    for width.value in (1, 5):
        want = dense(*qkv, mask=lambda b, h, i, j: abs(i - j) < width.value)[0]
        assert np.allclose(attention(*qkv), want, atol=1e-5)
        narrow = dense(*qkv, mask=lambda b, h, i, j: abs(i - j) < 2)[0]
        assert np.allclose(attention(*qkv, width=2), narrow, atol=1e-5)


def test_references_are_even(qkv, alibi):
    q, k, v = qkv
    out, slope = np.empty_like(q), np.ones(4, np.float32)
    things = [q, k, v, out, slope, q.dtype, alibi, True, 0]

    def calls():
        for _ in range(1000):
            alibi(q, k, v)
            alibi(q, k, v, out=out, lse=True, max=True, slope=slope, width=1, q_offset=0)
            attune.attention(q, k, v, mask="kv <= q")

    calls()
    before = [sys.getrefcount(x) for x in things]
    calls()
    assert all(abs(sys.getrefcount(x) - b) < 100 for x, b in zip(things, before))
    gone = weakref.ref(alibi(q, k, v))
    gc.collect()
    assert gone() is None


def test_what_one_looks_at_is_python(alibi):
    assert inspect.isfunction(slowly) and "cu_seqlens" in inspect.signature(slowly).parameters
    assert "cu_seqlens" in inspect.signature(alibi.__call__).parameters and alibi.__call__.__self__ is alibi
    assert "natural logarithm" in (inspect.getdoc(attune.Attention.__call__) or "")


def test_a_subclass_calls_what_it_says(qkv):
    class Doubled(attune.Attention):
        def __call__(self, q, k, v, **keywords):
            return 2 * super().__call__(q, k, v, **keywords)

    assert np.array_equal(Doubled()(*qkv), 2 * attune.Attention()(*qkv))
