# tests/python/in_jax/test_jax.py — attune.jax.attention: shapes, types, texts, captures, transforms, mistakes
"""attune.jax beside jnp."""

import functools
import json
import shutil
import subprocess
import sys

import attune
import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from attune.jax import attention
from conftest import refused
from dense import close, dense, qkv, random


def causal(f, at):
    return at.kv <= at.q


@pytest.mark.parametrize("shape", [
    {"q_len": 0}, {"kv_len": 0}, {"batch": 0}, {"q_len": 1, "kv_len": 1}, {"width": 1, "v_width": 3}, {"q_len": 3},
    {"kv_heads": 2, "width": 17}, {"kv_heads": 1, "q_len": 33, "kv_len": 65}, {"heads": 3, "width": 130}])
def test_shapes(shape, rng):
    q, k, v = qkv(rng, **shape)
    out, lse = jax.jit(lambda *x: attention(*x, mask="kv <= q", lse=True))(q, k, v)
    if 0 not in (*q.shape, *k.shape):
        wanted, wanted_lse = dense(q, k, v, mask=causal)
        close(out, wanted)
        close(lse, wanted_lse)
        wanted_grads = jax.grad(lambda *x: (dense(*x, mask=causal)[0] ** 2).sum(), (0, 1, 2))(q, k, v)
    else:
        assert out.shape == (*q.shape[:-1], v.shape[-1]) and not np.asarray(out).any()
        wanted_grads = [jnp.zeros_like(x) for x in (q, k, v)]
    grads = jax.grad(lambda *x: (attention(*x, mask="kv <= q") ** 2).sum(), (0, 1, 2))(q, k, v)
    for ours, theirs in zip(grads, wanted_grads):
        close(ours, theirs, 1e-4)


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 2e-5), (jnp.bfloat16, 2e-2), (jnp.float16, 3e-3)])
def test_types(dtype, tolerance, rng):
    arrays = (*qkv(rng, dtype=dtype), random(rng, 4, dtype=dtype))

    def ours(q, k, v, slope):
        return attention(q, k, v, score="s + slope[h] * f32(kv - q)", mask="kv <= q", slope=slope, lse=True)

    def theirs(q, k, v, slope):
        return dense(q, k, v, lambda f, s, at: s + slope[at.head] * (at.kv - at.q), causal)

    wide = [x.astype(jnp.float32) for x in arrays]
    out, lse = ours(*arrays)
    assert out.dtype == dtype and lse.dtype == jnp.float32
    close(out, theirs(*wide)[0], tolerance)
    grads = jax.grad(lambda *x: ours(*x)[0].astype(jnp.float32).sum(), (0, 1, 2, 3))(*arrays)
    wanted = jax.grad(lambda *x: theirs(*x)[0].sum(), (0, 1, 2, 3))(*wide)
    for mine, true in zip(grads, wanted):
        assert mine.dtype == dtype
        close(mine, true, 4 * tolerance)


def test_f64_is_the_oracle_and_gradients_check(rng):
    # The oracle reads the memory of the host.
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        arrays = (*(jnp.asarray(rng.standard_normal((1, 2, 5, 4))) for _ in range(3)),
                  jnp.asarray(rng.standard_normal(2)))
        attend = lambda *x: attention(*x[:3], score="s + tanh(slope[h]) * f32(kv - q)", slope=x[3], lse=True)
        out, lse = attend(*arrays)
        assert out.dtype == lse.dtype == jnp.float64
        jax.test_util.check_grads(attend, arrays, order=1, modes=["rev"], atol=1e-7, rtol=1e-7)


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="kernels are emulated by a C++ compiler")
def test_the_kernels_of_a_gpu_run_emulated_and_so_do_their_gradients(rng):
    with jax.default_device(jax.devices("cpu")[0]):
        arrays = qkv(rng)

        def loss(target, *x):
            return (attention(*x, score="s + 0.1f * f32(kv - q)", target=target) ** 2).sum()

        grads = [jax.jit(jax.grad(functools.partial(loss, target), (0, 1, 2)))(*arrays)
                 for target in ("emulated:sm_80:seed=3", "oracle")]
        for mine, true in zip(*grads):
            close(mine, true)


def test_a_tensor_that_a_function_closes_over_has_a_gradient(rng):
    q, k, v = qkv(rng)
    bias = random(rng, 19, 19)

    def loss(bias):
        return (attention(q, k, v, score=lambda s, at: s + bias[at.q, at.kv]) ** 2).sum()

    wanted = jax.grad(lambda bias: (dense(q, k, v, lambda f, s, at: s + bias[at.q, at.kv])[0] ** 2).sum())(bias)
    close(jax.grad(loss)(bias), wanted, 4e-5)
    close(jax.jit(jax.grad(loss))(bias), wanted, 4e-5)


def test_arrays_of_numpy_and_numbers(rng):
    q, k, v = (np.asarray(x) for x in qkv(rng))
    slope = rng.standard_normal(4)  # f64, which JAX narrows
    ours = attention(q, k, v, score="s + rate * slope[h] * f32(kv - q)", slope=slope, rate=0.5)
    assert isinstance(ours, jax.Array)
    close(ours, dense(q, k, v, lambda f, s, at: s + 0.5 * jnp.asarray(slope)[at.head] * (at.kv - at.q))[0])
    twice = attention(q, k, v, score="s * rate", rate=2.0), attention(q, k, v, score="s * rate", rate=3.0)
    for out, rate in zip(twice, (2.0, 3.0)):
        close(out, dense(q, k, v, lambda f, s, at, rate=rate: s * rate)[0])


def test_sinks_dropout_lets_and_an_offset(rng):
    q, k, v = qkv(rng)
    sink = random(rng, 4)
    ours = attention(q, k, v, sink="logit[h]", logit=sink)
    wanted, lse = dense(q, k, v)
    close(ours, wanted / (1 + jnp.exp(sink[:, None] - lse))[..., None])
    dropped = attention(q, k, v, prob="where(random(seed[]) < 0.5, 2.0f * p, 0.0)", seed=jnp.int32(3))
    same = attention(q, k, v, prob="where(random(seed[]) < 0.5, 2.0f * p, 0.0)", seed=jnp.int32(3))
    assert np.array_equal(dropped, same) and not np.array_equal(dropped, wanted)
    close(attention(q[:, :, 9:], k, v, mask="near", lets={"near": "kv <= q"}, q_offset=9),
          dense(q, k, v, mask=causal)[0][:, :, 9:])


def test_the_largest_scores(rng):
    q, k, v = qkv(rng)
    most = attention(q, k, v, lse=True, max=True)[2]
    close(most, jnp.einsum("bhid,bhjd->bhij", q, k).max(-1) / np.sqrt(8))
    grad = jax.grad(lambda q: sum(x.sum() for x in attention(q, k, v, lse=True, max=True)))(q)
    close(grad, jax.grad(lambda q: sum(x.sum() for x in dense(q, k, v)))(q), 1e-4)


# ---- transforms


def test_only_the_gradients_that_are_wanted_are_computed(rng):
    q, k, v = qkv(rng)
    bias = random(rng, 19, 19)
    loss = lambda q, bias: attention(q, k, v, score="s + bias[q, kv]", bias=bias).sum()
    program = jax.jit(jax.grad(loss)).lower(q, bias).as_text()
    assert '\\22dq\\22' in program and '\\22dk\\22' not in program


def test_vmap_over_q_k_and_v_is_one_call_on_more_batch_entries(rng):
    q, k, v = (jnp.stack([x, 2 * x, 3 * x]) for x in qkv(rng))
    mapped = jax.vmap(lambda *x: attention(*x, mask="kv <= q"))
    facts = []
    with attune.watch(facts.append):
        out = jax.block_until_ready(mapped(q, k, v))
    assert sum(fact["fact"] == "called" for fact in facts) == 1
    for n in range(3):
        close(out[n], dense(q[n], k[n], v[n], mask=causal)[0])


def test_nested_vmap_and_a_mapped_last_dimension(rng):
    q, k, v = qkv(rng)
    slopes = random(rng, 3, 4)
    ours = jax.vmap(jax.vmap(lambda q, slope: attention(q, k, v, score="s + slope[h] * f32(kv - q)", slope=slope),
                             (None, 0)), (-1, None))
    theirs = jax.vmap(jax.vmap(lambda q, slope: dense(q, k, v, lambda f, s, at: s + slope[at.head] *
                                                      (at.kv - at.q))[0], (None, 0)), (-1, None))
    many = jnp.stack([q, -q], -1)
    close(ours(many, slopes), theirs(many, slopes))


def test_scan_remat_and_a_gradient_through_jit(rng):
    q, k, v = qkv(rng)

    def layers(attend):
        def loss(q):
            step = jax.checkpoint(lambda x, _: (jnp.tanh(attend(x, k, v)), None))
            return jax.lax.scan(step, q, None, length=3)[0].sum()
        return loss

    ours = jax.jit(jax.grad(layers(jax.jit(functools.partial(attention, mask="kv <= q")))))(q)
    close(ours, jax.grad(layers(lambda *x: dense(*x, mask=causal)[0]))(q), 1e-4)


def test_second_derivatives_and_tangents_are_refused(rng):
    q, k, v = qkv(rng)
    with pytest.raises(TypeError):
        jax.jvp(lambda q: attention(q, k, v), (q,), (q,))
    with pytest.raises(ValueError, match="differentiated"):
        jax.grad(lambda q: jax.grad(lambda q: attention(q, k, v).sum())(q).sum())(q)


def test_an_exported_program_runs_in_another_process(rng, tmp_path):
    pytest.importorskip("flatbuffers", reason="flatbuffers is not installed")
    q, k, v = qkv(rng)
    exported = jax.export.export(jax.jit(lambda *x: attention(*x, score="s * 2.0f", mask="kv <= q")),
                                 disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("attune")])(q, k, v)
    (tmp_path / "program").write_bytes(exported.serialize())
    np.savez(tmp_path / "arrays.npz", q=q, k=k, v=v)
    script = ("import jax, numpy as np, attune.jax, pathlib, sys\n"
              "folder = pathlib.Path(sys.argv[1]); given = np.load(folder / 'arrays.npz')\n"
              "program = jax.export.deserialize(bytearray((folder / 'program').read_bytes()))\n"
              "np.save(folder / 'out.npy', program.call(*(given[n] for n in 'qkv')))\n")
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    close(np.load(tmp_path / "out.npy"), dense(q, k, v, lambda f, s, at: 2 * s, causal)[0])


# ---- mistakes


@pytest.mark.parametrize("code, change", [
    ("head-groups", {"q": (2, 3, 19, 8)}), ("head-size", {"q": (2, 4, 19, 9)}), ("kv-lengths", {"v": (2, 2, 18, 8)}),
    ("tensor-rank", {"q": (4, 19, 8)}), ("kv-batch", {"k": (3, 2, 19, 8)})])
def test_tensors_that_do_not_fit_are_refused_while_jax_traces(code, change, rng):
    shapes = {"q": (2, 4, 19, 8), "k": (2, 2, 19, 8), "v": (2, 2, 19, 8), **change}
    arrays = [random(rng, *shape) for shape in shapes.values()]
    for call in (attention, jax.jit(attention), jax.grad(lambda *x: attention(*x).sum())):
        assert refused(call, *arrays).code == code


def test_mistakes_in_arguments(rng):
    q, k, v = qkv(rng)
    assert refused(attention, [1.0], k, v).code == "tensor-array"
    assert refused(attention, q, k.astype(jnp.bfloat16), v).code == "tensor-types"
    assert refused(attention, q.astype(jnp.int32), k, v).code in ("tensor-type", "tensor-types")
    assert refused(attention, q, k, v, score="s +").code == "missing-operand"
    assert refused(attention, q, k, v, score="s + bias[q]").code == "unknown-name"
    assert refused(attention, q, k, v, bias=[1.0, 2.0]).code == "capture-type"
    assert refused(attention, q, k, v, target="gpu").code == "unknown-target"
    assert refused(attention, q, k, v, lse=jnp.ones(3)).code == "bad-argument"
    assert refused(attention, q, k, v, scale="x").code == "bad-argument"
    assert refused(attention, q, k, v, q_offset=-1).code == "bad-argument"
    assert refused(attention, q, k, v, score="s + bias[q, kv, 99]", bias=random(rng, 3, 3, 3)).code == "capture-range"


@pytest.mark.parametrize("name", ["out", "workspace", "cover", "sharding", "workers", "parallel_for"])
def test_options_that_a_program_has_not_are_no_captures(name, rng):
    q, k, v = qkv(rng)
    error = refused(jax.jit(lambda x: attention(q, k, v, mask="kv <= q", **{name: x})), jnp.ones(2, jnp.int32))
    assert error.code == "bad-argument" and f"`{name}`" in error.problem


def test_a_mistake_in_a_function_is_shown_under_its_line(rng):
    q, k, v = qkv(rng)
    error = refused(jax.jit(lambda q: attention(q, k, v, mask=lambda at: at.q >= at.kv and at.q < 3)), q)
    assert error.code == "python-condition" and error.file == __file__ and "and at.q < 3" in error.text


def test_what_only_the_call_can_find_is_an_error_of_jax(rng):
    q, k, v = qkv(rng)
    other = "cuda" if jax.default_backend() == "cpu" else "cpu"
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"attune: .*\[engine-device\]"):
        jax.block_until_ready(attention(q, k, v, target=other))


def test_a_text_that_is_not_ours_is_refused(rng):
    q = qkv(rng)[0]
    call = jax.ffi.ffi_call("attune", jax.ShapeDtypeStruct(q.shape, q.dtype))
    for text in ("", json.dumps([[[None] * 4, [], [], [], None, "auto", None, 0, []], 0, ["q"], ["out", "lse"]])):
        with pytest.raises(jax.errors.JaxRuntimeError):
            jax.block_until_ready(call(q, what=text))
    with pytest.raises(jax.errors.JaxRuntimeError, match="without its text"):
        jax.block_until_ready(call(q))
