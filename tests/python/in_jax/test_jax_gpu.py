# tests/python/in_jax/test_jax_gpu.py — what XLA's calls do on a GPU: its stream and its memory, on an emulated GPU
"""XLA's CPU calls the handler of GPUs through a table in which this file plays XLA's stream, device and allocator. A
process of its own, since all GPUs of a process are emulated."""

import ctypes
import os
import shutil
import subprocess
import sys

import pytest

Word = ctypes.c_size_t
# Where the functions stand in XLA_FFI_Api, behind its size, extensions, version and internals; each takes a struct of
# its size, extensions, the context, and then these words.
FIRST, STREAM, ALLOCATE, FREE, DEVICE = 6, 4, 9, 10, 17
_kept = []

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler emulates")


def play():
    """attune's calls on the CPU go to the handler of GPUs from here on. Returns the list that tells of memory."""
    import jax
    from attune import _core
    from attune.jax import _call

    held, log = {}, []
    Function = ctypes.CFUNCTYPE(Word, ctypes.POINTER(Word))

    def stream(words):
        words[3] = 0

    def device(words):
        ctypes.c_int32.from_address(ctypes.addressof(words.contents) + 3 * ctypes.sizeof(Word)).value = 0

    def allocate(words):
        assert words[4] <= 16  # XLA refuses more, and promises no more
        memory = ctypes.create_string_buffer(b"\xff" * (words[3] + 80))
        words[5] = (ctypes.addressof(memory) + 63) // 64 * 64 + 16
        held[words[5]] = words[3], memory
        log.append("allocated")

    def free(words):
        size, _ = held.pop(words[4])
        assert size == words[3]
        log.append("freed")

    played = {place: Function(lambda words, function=function: function(words) or 0)
              for place, function in ((STREAM, stream), (ALLOCATE, allocate), (FREE, free), (DEVICE, device))}
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    handler = Function(address(_core.jax_handlers()["attune"]["CUDA"], None))
    tables = {}

    @Function
    def on_gpu(frame):
        if frame[1]:  # extensions: XLA asks for the version
            return handler(frame)
        theirs = frame[2]
        if theirs not in tables:
            size = Word.from_address(theirs).value // ctypes.sizeof(Word)
            tables[theirs] = (Word * size).from_buffer_copy((Word * size).from_address(theirs))
            for place, function in played.items():
                tables[theirs][FIRST + place] = ctypes.cast(function, ctypes.c_void_p).value
        frame[2] = ctypes.addressof(tables[theirs])
        try:
            return handler(frame)
        finally:
            frame[2] = theirs

    jax.ffi.register_ffi_target("attune_on_gpu", jax.ffi.pycapsule(on_gpu), platform="cpu")
    _call._TARGET = "attune_on_gpu"
    _kept.extend([on_gpu, played])
    return log


def main():
    import jax
    import jax.numpy as jnp
    import numpy as np
    from attune.jax import attention
    from dense import close, dense, qkv

    log = play()
    rng = np.random.default_rng(7)
    arrays = (*qkv(rng, kv_heads=2), jnp.asarray(rng.standard_normal(4), jnp.float32))
    doc = jnp.asarray(rng.integers(0, 2, (2, 19)), jnp.int32)

    def mask(at):
        return (doc[at.batch, at.q] == doc[at.batch, at.kv]) & (at.kv <= at.q)

    def ours(*x):
        return (attention(*x[:3], score=lambda s, at: s + x[3][at.head] * (at.kv - at.q), mask=mask) ** 2).sum()

    def theirs(*x):
        return (dense(*x[:3], lambda f, s, at: s + x[3][at.head] * (at.kv - at.q), lambda f, at: mask(at))[0] ** 2).sum()

    step = jax.jit(jax.value_and_grad(ours, (0, 1, 2, 3)))
    wanted, gradients = jax.value_and_grad(theirs, (0, 1, 2, 3))(*arrays)
    for _ in range(2):  # the second step finds what the first has looked up
        log.clear()
        got, made = jax.block_until_ready(step(*arrays))
        close(got, wanted)
        for mine, true in zip(made, gradients):
            close(mine, true, 4e-5)
        assert log == ["allocated", "freed"] * 2, log  # a forward, whose mask needs lists, and a backward


def test_working_memory_is_xlas():
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False,
                          env={**os.environ, "ATTUNE_EMULATED": "sm_90a", "JAX_PLATFORMS": "cpu"})
    if "[no-compiler]" in done.stderr:
        pytest.skip("no NVRTC")
    assert done.returncode == 0, done.stderr[-3000:]


if __name__ == "__main__":
    main()
