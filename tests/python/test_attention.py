# tests/python/test_attention.py — calls: values, kinds of arrays, hostile strides, gradients, rebinding, callbacks
"""Calls and what they give."""

import functools
import inspect
import io
import json
import pickle
import shutil
import subprocess
import sys

import attune
import numpy as np
import pytest
from conftest import dense, refused


def near(a, b, most=2e-6):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.linalg.norm(a - b) <= most * max(1e-30, np.linalg.norm(b))


def test_a_score_and_a_mask_are_computed(qkv, rng):
    slope = rng.standard_normal(4, np.float32)
    o, lse = attune.attention(*qkv, score=lambda s, at: s + slope[at.head] * (at.kv - at.q),
                              mask=lambda at: (at.kv <= at.q + 3) & (at.kv != 2), lse=True)
    want, want_lse = dense(*qkv, lambda s, b, h, i, j: s + slope[h] * (j - i),
                           lambda b, h, i, j: (j <= i + 3) & (j != 2))
    assert near(o, want) and near(lse, want_lse) and lse.dtype == np.float32


@pytest.mark.parametrize("target", ["cpu", "oracle"])
def test_rows_without_keys_are_zero(qkv, target):
    o, lse, top = attune.attention(*qkv, mask=lambda at: at.kv < at.q - 4, lse=True, max=True, target=target)
    assert (o[:, :, :5] == 0).all() and np.isneginf(lse[:, :, :5]).all() and np.isneginf(top[:, :, :5]).all()
    assert np.isfinite(o).all()


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="kernels are emulated by a C++ compiler")
def test_an_emulated_gpu_computes_as_the_oracle_does(qkv):
    want, of_oracle = (attune.attention(*qkv, mask="kv <= q", lse=True, target=target)
                       for target in ("oracle", "emulated:sm_80:seed=3"))
    assert near(want[0], of_oracle[0], 1e-5) and near(want[1], of_oracle[1], 1e-5)
    attention = [attune.Attention(score="s + 0.1 * f32(kv - q)", target=t) for t in ("oracle", "emulated:sm_90a")]
    grad_o = np.ones_like(want[0])
    for exactly, here in zip(*[one.backward(*qkv, grad_o)[:3] for one in attention]):
        assert near(exactly, here, 1e-5)
    assert refused(attune.Attention, target="emulated:sm_100").code == "bad-target"


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)])
def test_empty_tensors(shape):
    q, v = np.ones(shape, np.float32), np.ones((*shape[:3], 5), np.float32)
    if shape[3] == 0:
        assert refused(attune.attention, q, q, v).code == "head-size-zero"
    else:
        assert attune.attention(q, q, v).shape == (*shape[:3], 5)


def test_types_and_kinds(qkv):
    want, _ = dense(*qkv)
    for dtype, most in ((np.float32, 2e-6), (np.float16, 3e-3), (np.float64, 2e-6)):
        target = "oracle" if dtype != np.float32 else "auto"
        o = attune.attention(*(x.astype(dtype) for x in qkv), target=target)
        assert type(o) is np.ndarray and o.dtype == dtype and near(o, want, most)


def test_bf16(qkv):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in qkv)
    o = attune.attention(q, k, v, mask="kv <= q")
    assert o.dtype == ml_dtypes.bfloat16
    want, _ = dense(*(np.asarray(x, np.float64) for x in (q, k, v)), mask=lambda b, h, i, j: j <= i)
    assert near(o, want, 8e-3)
    bias = np.ones(16, ml_dtypes.bfloat16)
    assert near(attune.attention(*qkv, score=lambda s, at: s + bias[at.kv]), dense(*qkv)[0])


def test_keys_and_values_of_e4m3(qkv):
    e4m3 = pytest.importorskip("ml_dtypes").float8_e4m3fn
    q, k, v = qkv
    k, v = k.astype(e4m3), v.astype(e4m3)
    own = attune.Attention(mask="kv <= q")
    for cache in ((k, v), (k[:, :, ::-1], v[:, :, ::-1])):
        o = own(q, *cache)
        assert o.dtype == q.dtype and near(o, own(q, *(x.astype(q.dtype) for x in cache)), 0)
        assert near(own(q, *cache), o, 0)
    scale = np.full(16, 0.5, e4m3)
    assert near(attune.attention(*qkv, score=lambda s, at: s * scale[at.kv] * 2), dense(*qkv)[0])


def test_queries_of_e4m3_too(qkv):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(ml_dtypes.float8_e4m3fn) for x in qkv)
    wide = [x.astype(np.float32) for x in (q, k, v)]
    own = attune.Attention(mask="kv <= q")
    want = own(*wide)
    for _ in range(2):  # the second call takes the short way
        o = own(q, k, v)
        assert o.dtype == ml_dtypes.bfloat16 and near(o, want, 8e-3)
    out = np.zeros(want.shape, np.float32)
    assert own(q, k, v, out=out) is out and near(out, want)
    assert own(q, k[..., :], v[..., :8]).shape == (*q.shape[:-1], 8)
    with pytest.raises(attune.Error, match="q and k hold different types"):
        own(q, wide[1], wide[2])


def test_strides_of_all_kinds(qkv, rng):
    q, k, v = qkv
    want, _ = dense(*qkv)
    swapped = np.ascontiguousarray(q.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    assert not swapped.flags.c_contiguous
    o = attune.attention(swapped, k, v)
    assert near(o, want) and o.strides == swapped.strides  # results lie as q does
    backward = q[:, ::-1, ::-1].copy()[:, ::-1, ::-1]
    assert backward.strides[1] < 0 and near(attune.attention(backward, k, v), want)
    spread = np.zeros((2, 4, 12, 16), np.float32)
    spread[..., ::2] = q
    assert near(attune.attention(spread[..., ::2], k, v), want)
    one_batch = np.broadcast_to(k[:1], k.shape), np.broadcast_to(v[:1], v.shape)
    assert one_batch[0].strides[0] == 0 and near(attune.attention(q, *one_batch), dense(q, *one_batch)[0])
    out = np.zeros((2, 4, 12, 16), np.float32)
    given = out[..., 1::2]
    assert attune.attention(q, k, v, out=given) is given and near(given, want) and (out[..., ::2] == 0).all()


def test_read_only_inputs(qkv):
    for x in qkv:
        x.flags.writeable = False
    assert near(attune.attention(*qkv), dense(*qkv)[0])


class Shown:
    """An array of another library: DLPack alone."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **_):
        return self.array.__dlpack__()


def test_dlpack_in_and_out(qkv):
    o = attune.attention(*(Shown(x) for x in qkv), out=np.empty((2, 4, 12, 8), np.float32))
    assert near(o, dense(*qkv)[0])
    into = np.empty((2, 4, 12, 8), np.float32)
    attune.attention(*(Shown(x) for x in qkv), out=Shown(into))
    assert np.array_equal(into, o)


def test_memory_of_ours_speaks_dlpack(qkv):
    memory = attune._core.empty(qkv[0], [3, 2], True)
    assert memory.__dlpack_device__() == (1, 0)
    array = np.from_dlpack(memory)
    del memory
    assert array.shape == (3, 2) and (array == 0).all()


def test_other_devices_are_refused_by_name(qkv):
    class Elsewhere:
        shape, dtype = (2, 2, 16, 8), np.dtype(np.float32)
        __cuda_array_interface__ = {"shape": (2, 2, 16, 8), "typestr": "<f4", "data": (4096, False), "version": 3}

    error = refused(attune.attention, qkv[0], Elsewhere(), qkv[2])
    assert error.code == "tensor-device" and "k" in error.problem


def test_torch_if_there_is_one(qkv):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in qkv)
    o = attune.attention(q, k, v)
    assert isinstance(o, torch.Tensor) and near(o.numpy(), dense(*qkv)[0])
    assert refused(attune.attention, q.requires_grad_(), k, v).code == "tensor-unreadable"


def test_captures_by_closure_keyword_default_and_global(qkv, rng):
    bias = rng.standard_normal((12, 16), np.float32)
    want = dense(*qkv, lambda s, b, h, i, j: s + bias[i, j])[0]
    ways = [attune.Attention(lambda s, at: s + bias[at.q, at.kv]),
            attune.Attention(lambda s, at: s + other[at.q, at.kv], other=bias),  # noqa: F821
            attune.Attention(lambda s, at, table=bias: s + table[at.q, at.kv]),
            attune.Attention("s + bias[q, kv]", bias=bias),
            attune.Attention(functools.partial(lambda t, s, at: s + t[at.q, at.kv], bias)),
            attune.Attention(attune.mods.dense_bias(bias))]

    def helped(s, at):
        def inner(i, j):
            return bias[i, j]

        return s + inner(at.q, at.kv)

    class Layer:
        table = attune.Capture(bias, "table")

        def score(self, s, at):
            return s + self.table[at.q, at.kv]

    ways += [attune.Attention(helped), attune.Attention(Layer().score)]
    for way in ways:
        assert near(way(*qkv), want), way
        assert way.describe()["digest"] == ways[0].describe()["digest"]


def test_text_and_functions_mix(qkv, rng):
    slope, doc = rng.standard_normal(4, np.float32), np.arange(16, dtype=np.int32) // 5
    mixed = attune.Attention(score="c * tanh((s + slope[h] * distance) / c)", lets={"distance": "f32(kv - q)"},
                             mask=lambda at: doc[at.q] == doc[at.kv], slope=slope, c=20.0)
    want = dense(*qkv, lambda s, b, h, i, j: 20 * np.tanh((s + slope[h] * (j - i)) / 20),
                 lambda b, h, i, j: doc[i] == doc[j])[0]
    assert near(mixed(*qkv), want)


def test_contents_are_never_looked_at(qkv):
    bias = np.zeros(16, np.float32)
    attention = attune.Attention(lambda s, at: s + bias[at.kv])
    first = attention(*qkv)
    bias[3] = 5
    assert near(attention(*qkv), dense(*qkv, lambda s, b, h, i, j: s + bias[j])[0]) and not np.array_equal(
        first, attention(*qkv))


def test_numbers_are_literals_params_change_without_a_kernel(qkv):
    built = []
    width = attune.Param(3)
    attention = attune.Attention(mask=lambda at: abs(at.q - at.kv) < width)
    attention(*qkv)
    with attune.watch(lambda fact: built.append(fact) if fact["fact"] == "built" else None):
        for width.value in (1, 5, 9):
            want = dense(*qkv, mask=lambda b, h, i, j: abs(i - j) < width.value)[0]
            assert near(attention(*qkv), want) and near(attention(*qkv, width=2), dense(
                *qkv, mask=lambda b, h, i, j: abs(i - j) < 2)[0])
    assert built == []

    def window(reach):
        return attune.attention(*qkv, mask=lambda at: abs(at.q - at.kv) < reach)

    for reach in (1, 5, 9):  # the same code with other numbers in its closure
        assert near(window(reach), dense(*qkv, mask=lambda b, h, i, j: abs(i - j) < reach)[0])


def test_rebinding(qkv, rng):
    one, two = (rng.standard_normal(16, np.float32) for _ in range(2))
    attention = attune.Attention("s + t[kv]", t=one)
    assert near(attention(*qkv, t=two), dense(*qkv, lambda s, b, h, i, j: s + two[j])[0])
    assert near(attention(*qkv), dense(*qkv, lambda s, b, h, i, j: s + one[j])[0])


def test_traces_are_kept_for_what_is_the_same_only(qkv, rng):
    def make(table, factor):
        return lambda s, at: s * factor + table[at.kv]

    for dtype in (np.float32, np.float16, np.int32):
        for factor in (1.0, 2.0, -0.0, 0.0, 1, True):
            table = (10 * rng.standard_normal(16)).astype(dtype)
            if factor is True:
                assert refused(attune.attention, *qkv, score=make(table, factor)).code == "wrong-type"
                continue
            want = dense(*qkv, lambda s, b, h, i, j: s * factor + table.astype(np.float64)[j])[0]
            assert near(attune.attention(*qkv, score=make(table, factor)), want, 1e-5)


def test_an_object_is_read_each_time(qkv):
    class Config:
        width = 3

    config = Config()

    def window(at):
        return abs(at.q - at.kv) < config.width

    for config.width in (3, 6):
        assert near(attune.attention(*qkv, mask=window), dense(
            *qkv, mask=lambda b, h, i, j: abs(i - j) < config.width)[0])


def test_what_a_function_reads_of_classes_functions_and_methods_is_read_each_time(qkv):
    class Window:
        width = 3

    widths = {"own": 3}
    get = widths.get

    def by_class(at):
        return abs(at.q - at.kv) < Window.width

    def by_attribute(at):
        return abs(at.q - at.kv) < by_attribute.width

    def by_method(at):
        return abs(at.q - at.kv) < get("own")

    for width in (3, 6):
        Window.width = by_attribute.width = widths["own"] = width
        want = dense(*qkv, mask=lambda b, h, i, j: abs(i - j) < width)[0]
        for window in (by_class, by_attribute, by_method):
            assert near(attune.attention(*qkv, mask=window), want)
            assert near(attune.Attention(mask=window)(*qkv), want)


def test_gradients(rng):
    q, k, v, g = (rng.standard_normal((1, 2, 6, 4)) for _ in range(4))
    table = rng.standard_normal((2, 11))
    attention = attune.Attention(lambda s, at: s + table[at.head, at.q - at.kv + 5], "kv <= q + 1", target="oracle")
    grads = attention.backward(q, k, v, g)
    for wrt in (iter(["q", "table"]), {"q": 1, "table": 2}):
        some = attention.backward(q, k, v, g, wrt=wrt)
        assert np.array_equal(some.q, grads.q) and some.k is None and set(some.captured) == {"table"}
    assert set(grads.captured) == {"table"} and grads.captured["table"].dtype == np.float64

    def loss():
        return float((attention(q, k, v) * g).sum())

    for array, grad in ((q, grads.q), (k, grads.k), (v, grads.v), (table, grads.captured["table"])):
        for at in (0, array.size // 2, array.size - 1):
            old = array.flat[at]
            array.flat[at] = old + 1e-5
            above = loss()
            array.flat[at] = old - 1e-5
            slope = (above - loss()) / 2e-5
            array.flat[at] = old
            assert abs(slope - grad.flat[at]) < 1e-6
    only = attention.backward(q, k, v, g, wrt=("k", "table"))
    assert only.q is None and only.v is None and np.array_equal(only.k, grads.k)
    into = np.full_like(table, 9)
    again = attention.backward(q, k, v, g, wrt=(), into={"table": into})
    assert again.captured["table"] is into and np.array_equal(into, grads.captured["table"])


def test_gradients_with_the_forwards_results(qkv, rng):
    attention = attune.Attention(mask="kv <= q")
    o, lse = attention(*qkv, lse=True)
    g, gl = rng.standard_normal(o.shape, np.float32), rng.standard_normal(lse.shape, np.float32)
    one = attention.backward(*qkv, g, grad_lse=gl)
    two = attention.backward(*qkv, g, grad_lse=gl, o=o, lse=lse)
    assert all(near(a, b, 1e-6) for a, b in zip(one[:3], two[:3]))


def test_a_capture_that_nothing_reads_has_no_gradient(qkv):
    t = np.ones(16, np.float32)
    assert attune.Attention("s", t=t).backward(*qkv, np.ones((2, 4, 12, 8), np.float32)).captured == {}


def test_packed(rng):
    q = rng.standard_normal((10, 2, 4), np.float32)
    starts = np.array([0, 3, 3, 10], np.int32)
    o, lse = attune.attention(q, q, q, mask="kv <= q", cu_seqlens=starts, lse=True)
    assert lse.shape == (2, 10)
    for a, b in ((0, 3), (3, 10)):
        alone = q[a:b].transpose(1, 0, 2)[None]
        assert near(o[a:b].transpose(1, 0, 2)[None], dense(alone, alone, alone, mask=lambda b, h, i, j: j <= i)[0])


def test_a_workspace_and_a_loop_of_your_own(rng):
    q = rng.standard_normal((1, 8, 600, 32), np.float32)
    tasks = []

    def loop(count, run):
        for i in range(count):
            tasks.append(i)
            run(i, i % 3)

    attention = attune.Attention(mask="kv <= q")
    plain = attention(q, q, q, workers=1)
    need = attention.prepare(q, q, q, workers=3, parallel_for=loop)["workspace"]
    assert need > 0
    memory = np.zeros(need + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64:][:need]
    o = attention(q, q, q, workers=3, parallel_for=loop, workspace=memory)
    assert np.array_equal(o, plain) and len(tasks) > 1


def test_progress(rng):
    q, told = rng.standard_normal((1, 8, 4096, 64), np.float32), []
    attune.attention(q, q, q, progress=told.append, workers=1)
    assert told and told == sorted(told) and all(0 <= x <= 1 for x in told)


def test_an_exception_in_a_callback_comes_back(rng):
    q = rng.standard_normal((1, 8, 2048, 64), np.float32)

    def stop(done):
        raise ZeroDivisionError("enough")

    with pytest.raises(ZeroDivisionError, match="enough"):
        attune.attention(q, q, q, progress=stop, workers=1)

    def loop(count, run):
        run(0, 0)
        raise KeyError("half")

    with pytest.raises(KeyError):
        attune.attention(q, q, q, workers=2, parallel_for=loop)


def test_numbers_of_numpy_are_numbers(qkv):
    kept = attune.Attention(score="s * c", mask="kv <= q + w", w=1, c=2.0)
    numbers = {"w": np.int64(3), "c": np.float32(0.5)}
    want = kept(*qkv, w=3, c=0.5)
    assert np.array_equal(kept(*qkv, **numbers), want)
    assert np.array_equal(attune.attention(*qkv, score="s * c", mask="kv <= q + w", **numbers), want)
    assert refused(kept, *qkv, w=np.float32(3)).code == "param-type"


def test_one_line_has_every_option_of_a_kept_attention():
    kept = dict(inspect.signature(attune.Attention.__call__).parameters)
    line = dict(inspect.signature(attune.attention).parameters)
    assert {name: line.get(name) for name in kept if name != "self"} == {n: p for n, p in kept.items() if n != "self"}


def test_tqdm(rng):
    tqdm = pytest.importorskip("tqdm")
    q = rng.standard_normal((1, 8, 2048, 64), np.float32)
    with tqdm.tqdm(total=1.0, file=io.StringIO()) as bar:
        attune.attention(q, q, q, workers=1, progress=lambda done: bar.update(done - bar.n))
    assert bar.n > 0


def test_covers_on_the_host_are_empty(qkv):
    attention = attune.Attention(mask="kv <= q")
    cover = attention.cover(*qkv)
    assert not cover and near(attention(*qkv, cover=cover), dense(*qkv, mask=lambda b, h, i, j: j <= i)[0])


def test_an_attention_says_what_it_is(qkv):
    slope = np.ones(4, np.float32)
    attention = attune.Attention(lambda s, at: s + slope[at.head] * (at.kv - at.q), attune.mods.causal())
    assert repr(attention) == "attune.Attention(score='s + slope[h] * f32(kv - q)', mask='kv <= q', slope)"
    assert "head0 = slope[h]" in attention.explain()
    assert attention.grad() == {"score": "1.0f", "prob": "1.0f", "slope[h]": "f32(kv - q)"}
    page = attention._repr_html_()
    assert "slope[h] * f32(kv - q)" in page and "kv &lt;= q" in page and "head0" in page
    assert json.dumps(attention.describe())


def test_pickles_and_copies(qkv):
    slope = np.arange(4, dtype=np.float32)
    attention = attune.Attention(lambda s, at: s + slope[at.head] * at.kv, "kv <= q")
    again = pickle.loads(pickle.dumps(attention))
    assert np.array_equal(again(*qkv), attention(*qkv))


def test_two_attentions_of_one_text_share_a_handle():
    one, two = attune.Attention(mask="kv <= q - 7"), attune.Attention(mask=lambda at: at.kv <= at.q - 7)
    assert one._core is two._core


def test_the_machine():
    assert attune.version() == attune.__version__
    assert "cpu" in attune.machine()["engines"] and "ATTUNE_LOG" in repr(attune.options)


@pytest.mark.parametrize("how", ["attention", "kept"])
def test_a_cache_in_pages_is_as_the_same_keys_in_a_row(rng, how):
    lengths, page = np.array([13, 2], np.int32), 4
    q = rng.standard_normal((2, 4, 1, 8), np.float32)
    k, v = (rng.standard_normal((2, 2, 16, 8), np.float32) for _ in range(2))
    table = np.array([[5, 0, 7, 2], [6, -1, -1, -1]], np.int32)
    pools = [np.full((8, 2, page, 8), np.nan, np.float32) for _ in range(2)]
    for b, n in enumerate(lengths):
        for i in range(n):
            for pool, rows in zip(pools, (k, v)):
                pool[table[b, i // page], :, i % page] = rows[b, :, i]
    mod = {"score": lambda s, at: s + 0.1 * (at.kv - at.q), "mask": lambda at: at.kv > at.q - 9}
    call = functools.partial(attune.attention, **mod) if how == "attention" else attune.Attention(**mod)
    wanted = np.concatenate([dense(q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n],
                                   lambda s, b, h, i, j, n=n: s + 0.1 * (j - (n - 1)),
                                   lambda b, h, i, j, n=n: j > n - 10)[0] for b, n in enumerate(lengths)])
    assert near(call(q, k, v, kv_len=lengths, q_offsets=lengths - 1), wanted)
    assert near(call(q, *pools, kv_len=lengths, q_offsets=lengths - 1, page_table=table, fixed_split_size=128), wanted)


def test_a_call_over_a_cache_is_prepared(rng):
    q, k = rng.standard_normal((2, 4, 1, 8), np.float32), rng.standard_normal((5, 2, 4, 8), np.float32)
    cache = {"kv_len": np.array([13, 2], np.int32), "page_table": np.array([[3, 0, 1, 4], [2, -1, -1, -1]], np.int32)}
    attention = attune.Attention("s + 0.25f")
    facts = []
    with attune.watch(facts.append):
        need = attention.prepare(q, k, k, **cache, kv_offset=5, fixed_split_size=128, workers=2)
        made = len(facts)
        room = np.empty(need["workspace"] + 64, np.uint8)
        room = room[-room.ctypes.data % 64 :][: need["workspace"]]
        attention(q, k, k, **cache, kv_offset=5, fixed_split_size=128, workers=2, workspace=room)
    assert made and [f["fact"] for f in facts[made:]] == ["called"]
    assert refused(attention.prepare, q, k, k, **cache, fixed_split_size=5).code == "fixed-split-size"
    assert refused(attention.prepare, q, k, k, **cache, fixed_split_size=None).code == "bad-argument"


def test_kernels_compile_on_another_thread_until_wait_returns(rng):
    q = rng.standard_normal((1, 2, 9, 8), np.float32)
    attention = attune.Attention("s * 0.4375f")
    facts = []
    with attune.watch(facts.append):
        attention._core.prepare_async(0, {"q": q, "k": q, "v": q, "out": q.copy()}, (), None, ())
        attune.wait()
        made = len(facts)
        attention(q, q, q)
    assert made and [f["fact"] for f in facts[made:]] == ["called"]


def test_a_process_ends_while_a_kernel_compiles():
    code = """if True:
        import attune, numpy
        q = numpy.ones((1, 2, 9, 8), "f4")
        attention = attune.Attention("s * 0.40625f")
        watch = attune.watch(lambda fact: None)
        watch.__enter__()
        for _ in range(3):
            attention._core.prepare_async(0, {"q": q, "k": q, "v": q, "out": q.copy()}, (), None, ())
        """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_keys_in_two_calls_are_merged(qkv):
    q, k, v = qkv
    call = functools.partial(attune.attention, score=lambda s, at: s + 0.1 * (at.kv - at.q), lse=True)
    o, lse = call(q, k[:, :, :5], v[:, :, :5])
    o, lse = call(q, k[:, :, 5:], v[:, :, 5:], kv_offset=5, o_before=o, lse_before=lse, out=o)
    wanted, wanted_lse = call(q, k, v)
    assert near(o, wanted) and near(lse, wanted_lse)


def test_what_is_told_of_keys_is_checked(qkv):
    call = functools.partial(attune.attention, *qkv)
    assert refused(call, kv_len=np.array([17, 1], np.int32)).code == "kv-len"
    assert refused(call, kv_offset=-1).code == "bad-argument"
    assert refused(call, kv_offset="1").code == "bad-argument"
    assert refused(call, fixed_split_size=5).code == "fixed-split-size"
    assert refused(call, fixed_split_size=None).code == "bad-argument"
    assert refused(call, o_before=qkv[0]).code == "before-half"
    assert refused(call, page_table=np.zeros((2, 4), np.int64)).code == "page-table"
