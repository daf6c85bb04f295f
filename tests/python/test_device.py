# tests/python/test_device.py — arrays of a GPU, by DLPack and CUDA's interface, on a driver that launches nothing
"""Calls on a device, as far as the launch. It needs NVRTC, and the driver of tests/driver as libcuda.so.1."""

import os

import attune
import numpy as np
import pytest
from attune import _core
from conftest import on_threads, refused

pytestmark = pytest.mark.skipif("ATTUNE_TEST_FAKE_DRIVER" not in os.environ, reason="no fake driver")
streams = []


class Seed:
    """What memory shall be like: on device 0, without being anywhere."""

    def __init__(self, dtype):
        self.dtype = np.dtype(dtype)
        self.__cuda_array_interface__ = {"shape": (1,), "typestr": self.dtype.str, "data": (4096, False), "version": 3}


class OnDevice:
    """An array of a library of its own, which is this module."""

    def __init__(self, shape, dtype=np.float16, memory=None):
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.memory = memory or _core.empty(Seed(dtype), list(shape), False)

    def __dlpack_device__(self):
        return self.memory.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **_):
        streams.append(stream)
        return self.memory.__dlpack__()


def from_dlpack(memory):
    return OnDevice((2, 4, 300, 64), memory=memory)


def compiled(call, *args, **keywords):
    """The call's result; skipped where there is no compiler for GPUs."""
    try:
        return call(*args, **keywords)
    except attune.Error as error:
        if error.code == "no-compiler":
            pytest.skip("no NVRTC")
        raise


@pytest.fixture
def qkv():
    return OnDevice((2, 4, 300, 64)), OnDevice((2, 2, 300, 64)), OnDevice((2, 2, 300, 64))


def test_a_call_is_launched_and_its_result_is_of_the_kind_of_q(qkv):
    facts = []
    with attune.watch(facts.append):
        o = compiled(attune.attention, *qkv, mask=lambda at: at.kv <= at.q)
    assert isinstance(o, OnDevice) and o.__dlpack_device__() == (2, 0)
    assert facts[-1]["fact"] == "called" and facts[-1]["target"] == "sm_90a"
    assert set(streams) == {1}  # DLPack's number of the default stream


def test_a_stream_is_passed_on(qkv):
    streams.clear()
    compiled(attune.attention, *qkv, mask="kv <= q", out=OnDevice((2, 4, 300, 64)), stream=4096)
    assert set(streams) == {4096}


def test_new_keys_go_to_a_cache_on_a_stream():
    new, k, v, lengths = OnDevice((2, 2, 1, 64)), *(OnDevice((2, 2, 300, 64)) for _ in "kv"), OnDevice((2,), np.int32)
    compiled(attune.append, new, new, k, v, kv_len=lengths)  # loads the kernel; 4096 is no stream of the driver's
    streams.clear()
    attune.append(new, new, k, v, kv_len=lengths, stream=4096)
    assert set(streams) == {4096}
    here = np.ones((2, 2, 1, 64), np.float16)
    assert refused(attune.append, here, here, k, v, kv_len=lengths).code == "tensor-device"


def test_a_cover_has_lists_and_serves_calls(qkv):
    doc = OnDevice((300,), np.int32)
    attention = attune.Attention(mask=lambda at: (at.kv <= at.q) & (doc[at.q] == doc[at.kv]))
    cover = compiled(attention.cover, *qkv)
    assert cover and "lists" in repr(cover)
    out = OnDevice((2, 4, 300, 64))
    attention(*qkv, cover=cover, out=out)
    other = attune.Attention(mask=lambda at: doc[at.q] == doc[at.kv])
    assert refused(other, *qkv, cover=cover, out=out).code == "cover-other"
    need = attention.prepare(*qkv, cover=cover)
    assert need["cover"] > 0
    del cover, attention
    assert refused(attune.show, other, q_len=64).code == "tensor-device"


def test_what_is_elsewhere_is_refused_by_name(qkv):
    here = np.ones((2, 2, 300, 64), np.float16)
    assert "k" in refused(attune.attention, qkv[0], here, qkv[2]).problem
    bias = np.ones(300, np.float32)
    error = refused(attune.attention, *qkv, score=lambda s, at: s + bias[at.kv])
    assert "bias" in error.problem


def test_cuda_array_interface(qkv):
    class Shown(Seed):
        def __init__(self, shape):
            super().__init__(np.float16)
            self.shape = shape
            self.__cuda_array_interface__ = {**self.__cuda_array_interface__, "shape": shape}

    out = compiled(attune.attention, *(Shown(x.shape) for x in qkv))
    assert isinstance(out, OnDevice)


def test_ranks_by_nccl_exchange_what_the_host_holds():
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal((1, heads, 700, 16), "f4") for heads in (4, 2, 2))
    slope = rng.standard_normal(4, "f4")
    attention = attune.Attention(score="s + slope[h] * f32(kv - q)", mask="kv <= q", slope=slope)
    whole, id = attention(q, k, v), attune.nccl_id()
    assert isinstance(id, bytes) and len(id) == 128

    def body(rank):
        transport = attune.nccl(id, rank, 2, seconds=30)
        assert repr(transport) == f"<attune.Transport: rank {rank} of 2>"
        sharding = attune.Sharding(attention, q, k, v, transport, block=96, travel="gather")
        q_rows, k_rows, v_rows = ([np.concatenate([t[:, :, a:b] for a, b in sharding.of()], 2) for t in (q, k, v)])
        out = attention(q_rows, k_rows, v_rows, sharding=sharding, workers=1)
        grads = attention.backward(q_rows, k_rows, v_rows, out, sharding=sharding, workers=1)
        return np.array_equal(out, np.concatenate([whole[:, :, a:b] for a, b in sharding.of()], 2)), grads.captured["slope"]

    (one, sum_one), (other, sum_other) = on_threads(2, body)
    assert one and other and np.array_equal(sum_one, sum_other)


def test_nccl_that_is_called_amiss_or_waits_in_vain():
    id = attune.nccl_id()
    assert refused(lambda: attune.nccl(id, 0, 2, seconds=0.1)).code == "ranks-timeout"
    assert refused(lambda: attune.nccl(id, 2, 2)).code == "ranks-count"
    assert refused(lambda: attune.nccl(id, 0, 2, device=99)).code == "no-device"
    assert refused(lambda: attune.nccl(id[1:], 0, 2)).code == "bad-argument"
    assert refused(lambda: attune.nccl(id)).code == "bad-argument"
    assert refused(lambda: attune.nccl(0)).code == "bad-argument"
    assert refused(lambda: attune.nccl(4096, 0, 2)).code == "bad-argument"
    assert refused(lambda: attune.nccl(None, 0, 2)).code == "bad-argument"
    error = refused(lambda: attune.nccl(id, 0, 2, device=-1))
    assert error.file == __file__
