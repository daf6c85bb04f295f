# tests/python/in_torch/test_driver.py — what torch's calls do on a GPU, on a driver that launches nothing
"""Tensors of the host, of which the core is told that they are on a GPU, as far as the launch. It needs the driver and
the compiler of tests/driver, in the folder that ATTUNE_TEST_FAKE_DRIVER names, and a process of its own. Nothing is
computed."""

import ctypes
import os
from pathlib import Path

import attune
import pytest
import torch
from attune.torch import (
    _op,
    flex_attention,
    paged_attention,
    scaled_dot_product_attention,
    varlen_attention,
)
from conftest import python_run
from eager import kernels_of_gpus, qkv
from torch import Tensor

folder = Path(os.environ.get("ATTUNE_TEST_FAKE_DRIVER", ""))
pytestmark = pytest.mark.skipif(not (folder / "libnvrtc.so.13").is_file(), reason="no fake driver")

GPU = 2  # DLPack's number of the kind of device
Handle, Out = ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32)
Numbers = ctypes.POINTER(ctypes.c_int64)
_torch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
_faked = {}


def faked(*arguments):
    """Takes the place of the function of torch's C ABI that has its name."""
    def keep(function):
        _faked[function.__name__] = ctypes.CFUNCTYPE(ctypes.c_int32, *arguments)(function)
        return function
    return keep


@faked(Handle, Out)
def aoti_torch_get_device_type(tensor, out):
    rank, type = ctypes.c_int64(), ctypes.c_int32()
    _torch.aoti_torch_get_dim(Handle(tensor), ctypes.byref(rank))
    _torch.aoti_torch_get_dtype(Handle(tensor), ctypes.byref(type))
    is_keeper = rank.value == 1 and type.value == _torch.aoti_torch_dtype_int64()  # see core/torch/call.cpp
    out[0] = _torch.aoti_torch_device_type_cpu() if is_keeper else _torch.aoti_torch_device_type_cuda()
    return 0


@faked(Handle, Out)
def aoti_torch_get_device_index(tensor, out):
    out[0] = 0
    return 0


@faked(ctypes.c_int64, Numbers, Numbers, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(Handle))
def aoti_torch_empty_strided(rank, sizes, strides, dtype, kind, index, out):
    assert (kind, index) == (_torch.aoti_torch_device_type_cuda(), 0)
    return _torch.aoti_torch_empty_strided(ctypes.c_int64(rank), sizes, strides, dtype, 0, 0, out)


@faked(ctypes.c_int32, ctypes.POINTER(Handle))
def aoti_torch_get_current_cuda_stream(index, out):
    out[0] = None
    return 0


class OnGpu:
    """A tensor of the host as one of the GPU, by DLPack."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return GPU, 0

    def __dlpack__(self, **_):
        capsule = self.tensor.__dlpack__()
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = Handle, [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_int32.from_address(address(capsule, b"dltensor") + ctypes.sizeof(Handle)).value = GPU
        return capsule


@pytest.fixture(autouse=True, scope="module")
def on_gpu():
    """From here on the core is told so, until the process ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTUNE_CACHE", "off")
        patch.setenv("ATTUNE_NVRTC", str(folder / "libnvrtc.so.13"))
        ctypes.CDLL(str(folder / "libcuda.so.1"))
        patch.delattr(Tensor, "__dlpack_c_exchange_api__")
        patch.setattr(Tensor, "is_cuda", True, raising=False)
        assert _op.find_torch(
            lambda name: ctypes.cast(_faked[name], Handle).value if name in _faked else _op._address_of(name),
            lambda tensor: OnGpu(_op._shown(tensor)))
        yield
    _op.find_torch()


def facts_of(*calls):
    """What each of them had built and called, after what it has started has ended."""
    facts, out = [], []
    with attune.watch(facts.append, "built,called"):
        for call in calls:
            made = call()
            attune.wait()
            out.append([fact["call"] if fact["fact"] == "called" else "built" for fact in facts])
            assert all(fact["target"] == "sm_90a" for fact in facts if fact["fact"] == "called"), facts
            facts.clear()
    return made, out


def half(*shape, grad=False):
    return torch.randn(shape, dtype=torch.float16, requires_grad=grad)


bias, slope = half(300), half(4, grad=True)
starts = torch.tensor([0, 3, 300], dtype=torch.int32)
RECORDED = {
    "by torch": lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s * 1.0625 + (i - j)),
    "by torch, and causal": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3125),
    "with a capture": lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[j] * 1.125),
    "with a capture's gradient": lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s + slope[h] * 1.1875),
    "with the lse": lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s * 1.25, return_lse=True)[0],
    "packed": lambda *qkv: varlen_attention(*[t[0].transpose(0, 1) for t in qkv], *[starts] * 2, 297, 297, scale=0.375),
}


@pytest.mark.parametrize("how", RECORDED)
def test_a_forward_that_is_recorded_starts_its_backward_when_its_own_kernels_are_compiled(how):
    leaves = qkv(1, 4, 300, 300, 64, dtype=torch.float16)
    out, call = [], lambda: RECORDED[how](*leaves)
    _, (first, second, again) = facts_of(lambda: out.append(call()), lambda: out[0].backward(torch.ones_like(out[0])),
                                         lambda: call().square().sum().backward())
    assert first.count("built") > 1 and first.count("forward") == 1
    assert second == ["backward"] and again == ["forward", "backward"]


def test_packed_queries_over_pages_with_a_split_are_called_without_python():
    q, pages = half(5, 4, 64), half(9, 2, 128, 64)
    table, lengths = torch.arange(8, dtype=torch.int32).view(2, 4), torch.tensor([300, 77], dtype=torch.int32)

    def call():
        return paged_attention(q, pages, pages, lengths, table, cu_seq_q=torch.tensor([0, 1, 5], dtype=torch.int32),
                               max_q=4, enable_gqa=True, fixed_split_size=128)

    out, (_, again) = facts_of(call, call)
    assert out.shape == q.shape and again == ["forward"]
    assert not {"output", "row_numbers", "_paged"} & set(python_run(call))


def test_operators_of_graphs_are_called_without_python():
    q, k, v = qkv(1, 4, 300, 300, 64, dtype=torch.float16, grad=False)
    mods = [bias], [], "s + bias[kv] * 1.3125", "", "", "", "bias", None
    forward = lambda: torch.ops.attune.forward(q, k, v, None, None, *mods, 0, 0, True)
    (out, lse, most), (_, again) = facts_of(forward, forward)
    assert lse.shape == most.shape == (1, 4, 300) and again == ["forward"]
    wanted = [True, False, True, False]
    backward = lambda: torch.ops.attune.backward(out, lse, q, k, v, out, lse, None, None, *mods, 0, 0, wanted)
    grads, (_, again) = facts_of(backward, backward)
    assert [g.shape for g in grads] == [q.shape, (0,), v.shape, (0,)] and again == ["backward"]
    rows, bare = half(300, 4, 64), ([], [], "s * 1.4375", "", "", "", "", None)
    packed = lambda: torch.ops.attune.forward(rows, rows, rows, starts, starts, *bare, 297, 297, False)
    (_, of_rows, _), (_, again) = facts_of(packed, packed)
    assert of_rows.shape == (4, 300) and again == ["forward"]
    ran = python_run(lambda: (forward(), backward(), packed()))
    assert not {"_forward", "_backward"} & set(ran)


def test_activated_operators_of_gpus():
    q, k, v = qkv(1, 4, 300, 300, 64, dtype=torch.float16, grad=False)
    mask, rows = half(1, 4, 300, 304)[..., :300], half(300, 4, 64)
    with kernels_of_gpus() as (ops, _):
        def flash():
            *made, seed, offset, _ = ops._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
            assert made[2:4] == [None, None]
            return ops._scaled_dot_product_flash_attention_backward(q, q, k, v, *made, 0.0, True, seed, offset)

        def cudnn():
            *made, seed, offset, _ = ops._scaled_dot_product_cudnn_attention(q, k, v, None, True)
            return ops._scaled_dot_product_cudnn_attention_backward(q, q, k, v, *made[:2], seed, offset, None, *made[2:],
                                                                    0.0, False)

        def efficient():
            out, lse, seed, offset = ops._scaled_dot_product_efficient_attention(q, k, v, mask, True)
            assert lse.shape == (1, 4, 320) and (lse[..., 300:] == torch.inf).all()
            return ops._scaled_dot_product_efficient_attention_backward(q, q, k, v, mask, out, lse, seed, offset, 0.0,
                                                                        [True] * 4)

        def sequences():
            where = starts, starts, 297, 297, 0.0, True
            *made, seed, offset, _ = ops._flash_attention_forward(rows, rows, rows, *where, False)
            return ops._flash_attention_backward(rows, rows, rows, rows, *made, *where, seed, offset)

        for call in (flash, cudnn, efficient, sequences):
            grads, (_, again) = facts_of(call, call)
            assert again == ["forward", "backward"], call
            assert all(g is not None for g in grads)
