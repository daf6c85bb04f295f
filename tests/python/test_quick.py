# tests/python/test_quick.py — common calls on NumPy arrays run none of attune's Python, with the same results
"""The way of core/numpy/quick.cpp beside those of Attention.__call__ and attention(), which handle all calls."""

import builtins
import copy
import gc
import inspect
import pickle
import pydoc
import sys
import threading
import types
import weakref

import attune
import numpy as np
import pytest
from conftest import dense, python_run

slowly = attune.Attention.__call__  # of the class: the function itself
slow_line = attune.attention.__get__(None, object)


def outcome(call, *args, **keywords):
    try:
        return call(*args, **keywords)
    except (attune.Error, TypeError) as error:
        return type(error), str(error).splitlines()[0]


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


# ---- attention(): the same, where the attention is found by what is said


slope, bias, width = np.arange(4, dtype=np.float32), np.ones(16, np.float32), attune.Param(3)
near = 5


def helped(at):
    return abs(at.q - at.kv) <= near


def fell(s, at):
    return s + slope[at.head] * (at.kv - at.q)


def lines():
    """Calls, as functions of q, k, v, how to call, and more keywords; made anew each time, as lines of a program are."""
    cap, mine, other = 30.0, np.ones(16, np.float32), np.arange(16, dtype=np.float32)
    yield lambda qkv, line, how: line(*qkv, **how)
    yield lambda qkv, line, how: line(*qkv, mask="kv <= q", **how)
    yield lambda qkv, line, how: line(*qkv, score="".join(["s ", "* 0.5f"]), scale=0.5, **how)
    yield lambda qkv, line, how: line(*qkv, mask=helped, **how)
    yield lambda qkv, line, how: line(*qkv, score=fell, mask=lambda at: at.kv <= at.q, **how)
    yield lambda qkv, line, how: line(*qkv, score=lambda s, at: cap * attune.tanh(s / cap) + mine[at.kv], **how)
    yield lambda qkv, line, how: line(*qkv, score=lambda s, at: s + mine[at.kv] * other[at.kv] + mine[at.q], **how)
    yield lambda qkv, line, how: line(*qkv, score="s * cap + t[kv]", mask="q - kv < n", cap=0.5, t=other, n=4, **how)
    yield lambda qkv, line, how: line(*qkv, mask=lambda at: at.kv <= at.q + width, **how)
    yield lambda qkv, line, how: line(*qkv, mask=lambda at, n=near, helped=helped: helped(at) & (at.kv < n), **how)
    yield lambda qkv, line, how: line(*qkv, mask=attune.Mask(helped), exact=True, **how)
    yield lambda qkv, line, how: line(*qkv, prob=lambda p, at: 2 * p, sink=lambda at: slope[at.head], **how)


@pytest.mark.parametrize("number", range(12))
def test_a_line_gives_the_same_bits_without_python(qkv, number):
    for how in ({}, {"lse": True}, {"out": np.zeros((2, 4, 12, 8), np.float32)}, {"q_offset": 4, "max": True}):
        def call(line=attune.attention, how=how):
            return list(lines())[number](qkv, line, how)

        call()
        ran = python_run(call)
        assert "attention" not in ran and "spell" not in ran, ran
        mine, want = call(), call(slow_line)
        for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (mine, want))):
            assert a.dtype == b.dtype and a.strides == b.strides and np.array_equal(a, b)


def changes():
    """(before, a call, changes to make before calling again)."""
    cell, number, flag, rows = np.ones(16, np.float32), 3, True, np.ones(16, np.float32)

    def captured(s, at):
        return s + cell[at.kv] * rows[at.kv] + number

    def chosen(s, at):
        return 2 * s if flag else s

    def defaulted(s, at, by=2.0):
        return s * by

    def keyword(s, at, *, by=2.0):
        return s * by

    def cells(**new):
        nonlocal cell, number, flag, rows
        cell, number = new.get("cell", cell), new.get("number", number)
        flag, rows = new.get("flag", flag), new.get("rows", rows)

    def globally(**new):
        return lambda: globals().update(new)

    other = np.arange(16, dtype=np.float32)
    yield "a captured tensor", lambda: {"score": captured}, [
        lambda: cells(cell=other), lambda: cells(cell=other.astype("f2")), lambda: cells(cell=other[::2]),
        lambda: cells(cell=np.arange(16)), lambda: cells(cell=np.ones((16, 1), np.float32)), lambda: cells(cell=2.0),
        lambda: cells(cell=other, rows=other), lambda: cells(rows=np.ones(16, np.float32)), lambda: cells(rows=3)]
    yield "its contents", lambda: {"score": captured}, [lambda: other.__setitem__(3, 7.0)]
    yield "a captured number", lambda: {"score": captured}, [
        lambda: cells(cell=other, rows=other, number=4), lambda: cells(number=4.0), lambda: cells(number=0.0),
        lambda: cells(number=-0.0), lambda: cells(number=float("inf")), lambda: cells(number=10**9 + 1),
        lambda: cells(number=10**9 + 2), lambda: cells(number=np.float32(2)), lambda: cells(number=attune.Param(2)),
        lambda: cells(number=attune.Param(2.5))]
    yield "a flag", lambda: {"score": chosen}, [lambda: cells(flag=False), lambda: cells(flag=1), lambda: cells(flag=0)]
    yield "a global", lambda: {"mask": helped}, [
        globally(near=2), globally(near=attune.Param(4)), globally(near=5),
        lambda: setattr(builtins, "near", 1), lambda: globals().pop("near"), globally(near=5)]
    yield "a name of builtins", lambda: {"mask": helped}, [
        globally(abs=lambda x: x), lambda: globals().pop("abs")]
    yield "a parameter", lambda: {"mask": lambda at: at.kv <= at.q + width}, [
        lambda: setattr(width, "value", 1), lambda: setattr(width, "value", -2**31), globally(width=attune.Param(2.5)),
        globally(width=2), globally(width=attune.Param(3))]
    yield "code", lambda: {"mask": helped}, [
        lambda: setattr(helped, "__code__", (lambda at: at.kv <= at.q).__code__),
        lambda: setattr(helped, "__code__", (lambda at: abs(at.q - at.kv) <= near).__code__)]
    yield "defaults", lambda: {"score": defaulted}, [
        lambda: setattr(defaulted, "__defaults__", (3.0,)), lambda: setattr(defaulted, "__defaults__", (3,)),
        lambda: setattr(defaulted, "__defaults__", None)]
    yield "defaults of keywords", lambda: {"score": keyword}, [
        lambda: keyword.__kwdefaults__.update(by=3.0), lambda: setattr(keyword, "__kwdefaults__", None)]
    def wide(at):
        return at.kv <= at.q + getattr(wide, "width", 0)

    yield "an attribute of a function", lambda: {"mask": wide}, [
        lambda: setattr(wide, "width", 2), lambda: setattr(wide, "width", 5), lambda: setattr(wide, "more", 5),
        lambda: setattr(wide, "width", attune.Param(1)), lambda: wide.width.__setattr__("value", 3),
        lambda: delattr(wide, "width")]

    class Window:
        width = 4

    yield "an attribute of a class", lambda: {"mask": lambda at: at.kv <= at.q + Window.width}, [
        lambda: setattr(Window, "width", 2)]
    widths = {"left": 2}
    get = widths.get
    yield "what a bound method gives", lambda: {"mask": lambda at: at.kv <= at.q + get("left")}, [
        lambda: widths.update(left=5)]
    mask = attune.Mask(helped)
    yield "the function of a Mask", lambda: {"mask": mask}, [
        lambda: setattr(mask, "function", lambda at: at.kv <= at.q), lambda: setattr(mask, "function", helped)]
    given = {"score": "s * cap + t[kv]", "cap": 2.0, "t": other}
    yield "keywords", lambda: given, [
        lambda: given.update(cap=3.0), lambda: given.update(cap=3), lambda: given.update(cap=True),
        lambda: given.update(cap=np.float64(3)), lambda: given.update(cap=attune.Param(4.0), t=cell),
        lambda: given.update(t=np.ones((16, 1), np.float32)), lambda: given.update(t=other, lets={"cap2": "2 * cap"}),
        lambda: given.update(score="s * cap2 + t[kv]"), lambda: given.pop("lets"), lambda: given.pop("cap")]
    named = {"score": captured, "number": 2}
    yield "a keyword in place of a variable", lambda: named, [
        lambda: named.update(number=3.5), lambda: named.update(cell=other), lambda: named.pop("number"),
        lambda: cells(number=7), lambda: named.update(rows=named["cell"])]
    way = {"mask": "kv <= q"}
    yield "how", lambda: way, [
        lambda: way.update(scale=1), lambda: way.update(scale=1.0), lambda: way.update(scale=True),
        lambda: way.update(scale="1"), lambda: way.update(scale=0.25, target="oracle"), lambda: way.update(target="cpu"),
        lambda: way.update(target="nowhere"), lambda: way.update(target="auto", exact=True),
        lambda: way.update(exact=1), lambda: way.update(exact=None, mask="kv < q"), lambda: way.update(mask=3)]


@pytest.mark.parametrize("number", range(len(list(changes()))))
def test_a_line_sees_what_has_changed(qkv, number):
    what, call, steps = list(changes())[number]
    saved = dict(globals())
    try:
        for step in (lambda: None, *steps):
            step()
            want = outcome(slow_line, *qkv, **call())
            for _ in range(3):
                mine = outcome(attune.attention, *qkv, **call())
                assert type(mine) is type(want), (what, mine)
                same = np.array_equal(mine, want, equal_nan=True) if isinstance(mine, np.ndarray) else mine == want
                assert same, what
    finally:
        globals().pop("abs", None)
        globals().update(saved)
        if hasattr(builtins, "near"):
            del builtins.near


def test_a_line_sees_other_tensors(qkv):
    def call(line, *tensors):
        return outcome(line, *tensors, score=fell, mask=lambda at: at.kv <= at.q)

    q, k, v = qkv
    for tensors in (qkv, (q[:, :2], k[:, :1], v[:, :1]), (q.astype("f2"), k.astype("f2"), v.astype("f2")),
                    (q.astype("f8"), k.astype("f8"), v.astype("f8")), (q, k, v.astype("f2")), (q[:, :, :1], k, v),
                    (q, k[:, :, :5], v[:, :, :5]), (q, k, v[..., :4]), (q[0], k[0], v[0]), (q.tolist(), k, v),
                    (q.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3), k, v), (q, k[..., ::-1], v)):
        for _ in range(2):
            mine, want = call(attune.attention, *tensors), call(slow_line, *tensors)
            assert type(mine) is type(want)
            assert np.array_equal(mine, want) if isinstance(mine, np.ndarray) else mine == want


def test_a_line_keeps_no_tensor_and_no_function(qkv):
    class Owner(np.ndarray):  # has weak references
        pass

    memory = np.ones(16, np.float32).view(Owner)
    mine = np.asarray(memory)
    gone = weakref.ref(memory)
    for _ in range(3):
        attune.attention(*qkv, score=lambda s, at: s + mine[at.kv])
        attune.attention(*qkv, score="s + t[kv]", t=mine)
    assert "attention" not in python_run(lambda: attune.attention(*qkv, score="s + t[kv]", t=mine))
    del memory, mine
    gc.collect()
    assert gone() is None
    things = [*qkv, bias, slope, width, fell, helped, None, True, "auto"]

    def calls():
        for _ in range(500):
            for call in lines():
                call(qkv, attune.attention, {})

    calls()
    before = [sys.getrefcount(x) for x in things]
    calls()
    assert all(abs(sys.getrefcount(x) - b) < 100 for x, b in zip(things, before))


@pytest.mark.filterwarnings("ignore:attune. nothing reads")
def test_more_lines_than_are_remembered(qkv):
    def masked(n):
        return lambda at: at.kv <= at.q + n

    want = [attune.attention(*qkv, mask=f"kv <= q + {n}") for n in range(12)]
    for _ in range(2):
        for n in range(12):  # of one code
            assert np.array_equal(attune.attention(*qkv, mask=masked(n)), want[n])
        for n in range(1100):
            attune.attention(*qkv, mask="kv <= q + n", **{"n": n}, **({f"t{n}": slope} if n % 2 else {}))
    attune.attention(*qkv, mask=masked(0))
    assert "attention" not in python_run(lambda: attune.attention(*qkv, mask=masked(0)))


def test_threads_call_lines_while_things_change(qkv):
    n, wrong = 0, []
    want = [attune.attention(*qkv, mask=f"kv <= q + {i}") for i in range(3)]

    def mask(at):
        return at.kv <= at.q + n

    def work():
        for _ in range(300):
            mine = attune.attention(*qkv, mask=mask)
            if not any(np.array_equal(mine, w) for w in want):
                wrong.append([float(abs(mine - w).max()) for w in want])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        n = (n + 1) % 3
    assert wrong == []


def test_attention_looks_like_its_function():
    line = attune.attention
    assert inspect.isfunction(line) and isinstance(line, types.FunctionType) and line.__name__ == "attention"
    assert inspect.signature(line) == inspect.signature(slow_line) and line.__doc__ == slow_line.__doc__
    assert pydoc.render_doc(line) == pydoc.render_doc(slow_line) and repr(line) == repr(slow_line)
    assert inspect.getsource(line) == inspect.getsource(slow_line) and line.__kwdefaults__["target"] == "auto"
    assert pickle.loads(pickle.dumps(line)) is line and copy.deepcopy(line) is line and copy.copy(line) is line
    assert weakref.ref(line)() is line and hash(line) == hash(line) and callable(line)

    class Layer:
        attend = line

    assert Layer.attend is slow_line and Layer().attend.__func__ is slow_line
