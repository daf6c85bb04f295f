# tests/python/in_torch/test_small_calls.py — eager calls: the core's fast path gives what the general path gives
"""core/torch/call.cpp gives the results of calls by name, and refuses tensors that are more than their memory."""

import gc
import signal
import subprocess
import sys

import attune
import pytest
import torch
from attune import _core
from attune.torch import (
    AuxRequest,
    _attend,
    _mod,
    create_block_mask,
    engine,
    flex_attention,
    scaled_dot_product_attention,
)
from conftest import on_threads, python_run
from eager import close, eager, qkv, recorder  # noqa: F401 (a fixture)

bias = torch.randn(4, 19)


def causal(b, h, i, j):
    return i >= j


def biased(s, b, h, i, j):
    return s + bias[h, j] * (i - j)


class ByName:
    """A TorchCall whose results torch makes, as operators of graphs promise them, and which are computed by name."""

    def __init__(self, core, ints):
        self.core, self.ints = core, ints

    def attend(self, q, k, v, captures, with_lse, with_max, recorded, more):
        q, k, v, *captures = [t.detach() for t in (q, k, v, *captures)]
        out = _attend.output(q, v)
        lse, most = (_attend.row_numbers(q, False) if wanted else None for wanted in (with_lse or recorded, with_max))
        self.core.run(0, {"q": q, "k": k, "v": v, "out": out, "lse": lse, "max": most}, tuple(captures), None, self.ints)
        return out, lse, most

    def gradients(self, grad_o, grad_lse, saved, wanted, first, more):
        saved, names = [t.detach() for t in saved], ("q", "k", "v", "out", "lse")
        grads = [torch.empty_like(t) if w else None for t, w in zip((*saved[:3], *saved[5:]), wanted[first:])]
        call = {"grad_o": grad_o, "grad_lse": grad_lse, "dq": grads[0], "dk": grads[1], "dv": grads[2]}
        self.core.run(1, {**dict(zip(names, saved)), **call}, tuple(saved[5:]), tuple(grads[3:]), self.ints)
        return (*(None,) * first, *grads)


@pytest.fixture
def slowly(monkeypatch):
    """Runs something by name."""
    def run(call):
        with monkeypatch.context() as patch:
            patch.setattr(_mod.Spelled, "calls", property(lambda self: {}, lambda self, calls: None), raising=False)
            patch.setattr(_mod.Spelled, "call", lambda self, *how: ByName(self.handle(*how), self.ints))
            return call()
    return run


def everything(tensors, mod=biased, grad=True, aux=True):
    """Output, lse, largest score and all gradients of a call on leaves of its own."""
    q, k, v = (t.detach().requires_grad_(grad) for t in tensors)
    mask = create_block_mask(causal, None, None, q.shape[-2], k.shape[-2])
    out, more = flex_attention(q, k, v, mod, mask, enable_gqa=True, return_aux=AuxRequest(lse=aux, max_scores=aux))
    if grad:
        loss = (out * torch.arange(out.shape[-1])).sum()
        (loss + more.lse[..., :2].sum() if aux else loss).backward()
    return out, more.lse, more.max_scores, q.grad, k.grad, v.grad


def like(*tensors):
    return tuple(None if t is None else (t.dtype, t.shape, t.stride(), t.requires_grad) for t in tensors)


CALLS = {"usual": {}, "one query": {"q_len": 1}, "wider values": {"v_width": 24}, "shared heads": {"kv_heads": 2},
         "nothing": {"batch": 0}, "no keys": {"kv_len": 0}, "bf16": {"dtype": torch.bfloat16},
         "f16": {"dtype": torch.float16}, "f64": {"dtype": torch.float64}}


@pytest.mark.parametrize("strides", ["contiguous", "transposed", "expanded"])
@pytest.mark.parametrize("name", CALLS)
def test_the_same_bits_and_tensors(name, strides, slowly):
    tensors = qkv(**{"heads": 4, "grad": False} | CALLS[name])
    if strides == "transposed":
        tensors = tuple(t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors)
    if strides == "expanded":
        tensors = (tensors[0], *(t[:1].expand_as(t) for t in tensors[1:]))
    for grad in (False, True):
        for aux in (False, True):
            mine = everything(tensors, grad=grad, aux=aux)
            want = slowly(lambda grad=grad, aux=aux: everything(tensors, grad=grad, aux=aux))
            assert like(*mine) == like(*want)
            assert all(torch.equal(a, b) for a, b in zip(mine, want) if a is not None)


def test_small_calls_run_little_python():
    q, k, v = qkv(grad=False)
    leaves = qkv()
    mask = create_block_mask(causal, None, None, 19, 19)

    def call(*tensors):
        return flex_attention(*tensors, biased, mask)

    def with_lse(*tensors):
        return flex_attention(*tensors, biased, mask, return_lse=True)

    transposed = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in qkv()]
    for tensors, also in (((q, k, v), []), (leaves, ["forward"]), ((torch.nn.Parameter(q), k, v), ["forward"]),
                          (transposed, ["forward"])):
        for one in (call, with_lse):
            one(*tensors)
            ran = python_run(lambda tensors=tensors, one=one: one(*tensors))
            assert "attend" in ran and all(name in ran for name in also)
            assert not {"_operator", "output", "row_numbers", "spell"} & set(ran), ran
    out = call(*leaves)
    ran = python_run(lambda: torch.autograd.grad(out, leaves, torch.ones_like(out)))
    assert "backward" in ran and "zeros_like" not in ran


def test_calls_without_captured_tensors_are_recorded_without_python(recorder):
    leaves = qkv()
    mask = create_block_mask(causal, None, None, 19, 19)
    far = 3
    for call in (lambda: scaled_dot_product_attention(*leaves, is_causal=True), lambda: flex_attention(*leaves),
                 lambda: flex_attention(*leaves, lambda s, b, h, i, j: s * 2, mask),
                 lambda: flex_attention(*leaves, lambda s, b, h, i, j: torch.where(i - j < far, s, 0.0))):
        call()
        ran = python_run(call)
        assert "forward" not in ran, ran
        out = call()
        assert recorder in type(out.grad_fn).__name__
        ran = python_run(lambda out=out: torch.autograd.grad(out, leaves, torch.ones_like(out)))
        assert "backward" not in ran, ran


@pytest.mark.parametrize("name", CALLS)
def test_what_torch_records_has_the_same_bits(name, slowly, recorder):
    tensors = qkv(**{"heads": 4, "grad": False} | CALLS[name])
    for laid in (tensors, [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors],
                 [torch.cat([t, t], -1)[..., :t.shape[-1]] for t in tensors]):
        for wanted in ((True, True, True), (False, True, False), (True, False, True)):
            def call(laid=laid, wanted=wanted):
                leaves = [t.detach().requires_grad_(w) for t, w in zip(laid, wanted)]
                out = flex_attention(*leaves, lambda s, b, h, i, j: s * 0.5 - (i - j), enable_gqa=True)
                out.square().sum().backward()
                return out, *[t.grad for t in leaves]
            mine, want = call(), slowly(call)
            assert like(*mine) == like(*want)
            assert all(torch.equal(a, b) for a, b in zip(mine, want) if a is not None)


def test_a_recorded_graph_outlives_what_made_it(recorder):
    import gc

    def made(n):
        leaves = qkv()
        mod = eval(f"lambda s, b, h, i, j: s * {n / 7:.3f}")
        return leaves, flex_attention(*leaves, mod), mod

    graphs = [made(n) for n in range(1, 6)]
    want = [torch.autograd.grad(flex_attention(*leaves, mod).sum(), leaves) for leaves, _, mod in graphs]
    kept = [(leaves, out) for leaves, out, _ in graphs]
    graphs.clear()
    _mod._handles.clear()
    gc.collect()
    for (leaves, out), wanted in zip(kept, want):
        for a, b in zip(torch.autograd.grad(out.sum(), leaves), wanted):
            assert torch.equal(a, b)


def test_recorded_calls_in_other_threads_and_checkpoints(recorder):
    from torch.utils.checkpoint import checkpoint

    leaves = qkv()
    want = torch.autograd.grad(flex_attention(*leaves).sum(), leaves)
    out = checkpoint(flex_attention, *leaves, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(out.sum(), leaves), want):
        assert torch.equal(a, b)
    with torch.autograd.graph.save_on_cpu():
        out = flex_attention(*leaves)
    for a, b in zip(torch.autograd.grad(out.sum(), leaves), want):
        assert torch.equal(a, b)
    outs = [flex_attention(*leaves) for _ in range(4)]
    found = on_threads(4, lambda i: torch.autograd.grad(outs[i].sum(), leaves))
    assert all(torch.equal(a, b) for grads in found for a, b in zip(grads, want))


def test_torchs_operator_is_refused_to_others(recorder):
    q, k, v = qkv(grad=False)
    op = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    of_gpus = torch.ops.aten._scaled_dot_product_efficient_attention
    for bias in (None, torch.zeros(2), torch.zeros(2, dtype=torch.int64), torch.zeros(19, 19)):
        for call in (lambda bias=bias: op(q, k, v, bias), lambda bias=bias: of_gpus(q, k, v, bias, True)):
            with pytest.raises(RuntimeError, match="attune"):
                call()


def test_gradients_of_captured_tensors_alone(slowly):
    q, k, v = qkv(grad=False)
    slope, table = torch.randn(4, requires_grad=True), torch.randn(19, 19, requires_grad=True)

    def grads(*wanted):
        out = flex_attention(q, k, v, lambda s, b, h, i, j: s * slope[h] + table[i, j] + bias[h, j])
        return torch.autograd.grad(out.square().sum(), wanted)

    for wanted in ((slope,), (table,), (slope, table)):
        for a, b in zip(grads(*wanted), slowly(lambda wanted=wanted: grads(*wanted))):
            assert torch.equal(a, b)
    table.requires_grad_(False)
    assert grads(slope)[0].any()


def test_many_captured_tensors(slowly):
    q, k, v = qkv(grad=False)
    rows = [torch.randn(19, requires_grad=i % 2 == 0) for i in range(40)]

    def grads():
        out = flex_attention(q, k, v, lambda s, b, h, i, j: sum([row[j] for row in rows], s * len(rows)))
        return out, *torch.autograd.grad(out.square().sum(), rows[::2])

    for a, b in zip(grads(), slowly(grads), strict=True):
        assert torch.equal(a, b)


def test_torch_itself_says_that_it_has_no_memory():
    q = torch.ones(1).expand(1, 1 << 20, 1 << 20, 64)
    with pytest.raises(RuntimeError, match="memory|allocate"):
        flex_attention(q, q, q)


def test_a_long_call_listens_to_signals():
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    q = torch.randn(1, 8, 2048, 16)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with engine("oracle"), pytest.raises(Alarm):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            flex_attention(q, q, q)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


OLDER = """
import ctypes
import torch
real = ctypes.CDLL

class Older:
    "A torch without what came with 2.10."
    def __init__(self, path):
        self.library = real(path)
    def __getattr__(self, name):
        if name.startswith("torch_") or "library" in name:
            raise AttributeError(name)
        return getattr(self.library, name)

ctypes.CDLL = Older
del torch.Tensor.__dlpack_c_exchange_api__
import attune
from attune.torch import _op, activate, append, flex_attention, paged_attention
assert not _op.records
q, k, v = (torch.randn(2, 4, 19, 16, requires_grad=True) for _ in range(3))
row = torch.randn(19, requires_grad=True)
call = lambda: flex_attention(q, k, v, lambda s, b, h, i, j: s + row[j])
want = torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(q, k, v, row).square().sum(), (q, k, v, row))
for made in (call, torch.compile(call, backend="aot_eager")):
    for a, b in zip(torch.autograd.grad(made().square().sum(), (q, k, v, row)), want):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
counts = torch.tensor([19, 7], dtype=torch.int32)
with torch.no_grad():
    out = paged_attention(q[:, :, :1], k, v, counts)
torch.testing.assert_close(out[0], torch.nn.functional.scaled_dot_product_attention(q[:1, :, :1], k[:1], v[:1])[0])
try:
    activate()
except attune.Error as error:
    assert error.code == "torch-version"
else:
    raise AssertionError
"""


def test_a_torch_without_the_c_abi_of_operators():
    subprocess.run([sys.executable, "-c", OLDER], check=True)


def test_signs_beside_the_memory_count_everywhere():
    def negated(*shape):
        tensor = torch.randn(*shape, dtype=torch.complex64).conj().imag
        assert tensor.is_neg()
        return tensor

    q, k, v = (negated(2, 4, 19, 16) for _ in range(3))
    row, grad_o, grad_lse = negated(19), negated(2, 4, 19, 16), negated(2, 4, 19)
    plain = row.resolve_neg()
    for which in ((q, None, None), (None, k, None), (None, None, v), (None, None, None)):
        mine = [torch.randn(2, 4, 19, 16) if t is None else t for t in which]
        want = eager(*(t.resolve_neg() for t in mine), lambda s, b, h, i, j: s + plain[j])[0]
        close(flex_attention(*mine, lambda s, b, h, i, j: s + row[j]), want)
        leaves = [t.detach().requires_grad_() for t in mine]
        close(flex_attention(*leaves, lambda s, b, h, i, j: s + row[j]), want)
    leaves = qkv()
    out, lse = flex_attention(*leaves, return_lse=True)
    wanted = torch.autograd.grad(eager(*leaves), leaves, (grad_o.resolve_neg(), grad_lse.resolve_neg()))
    for a, b in zip(torch.autograd.grad((out, lse), leaves, (grad_o, grad_lse)), wanted):
        close(a, b)
    with pytest.raises(attune.Error, match=r"resolve_neg"):
        attune.attention(q, q.resolve_neg(), v)
    with pytest.raises(attune.Error, match=r"resolve_neg"):
        attune.attention(v.resolve_neg(), v.resolve_neg(), v.resolve_neg(), score="s + row[kv]", row=row)


def test_the_same_call_with_other_tensors():
    """What a call was before says nothing about the next."""
    mask = {n: create_block_mask(causal, None, None, n, n) for n in (19, 7)}
    for _ in range(2):
        for dtype, n, kv_heads, grad in ((torch.float32, 19, 4, False), (torch.bfloat16, 19, 4, True),
                                         (torch.float32, 7, 2, True), (torch.float64, 19, 1, False)):
            q, k, v = qkv(q_len=n, kv_len=n, kv_heads=kv_heads, dtype=dtype, grad=grad)
            out = flex_attention(q, k, v, biased, mask[n], enable_gqa=True)
            assert out.dtype == dtype and out.requires_grad == grad
            wide = (t.detach().double() for t in (q, k, v))
            close(out, eager(*wide, biased, causal)[0], 1e-2 if dtype == torch.bfloat16 else 2e-5)
    q, k, v = qkv()
    with torch.no_grad():
        assert not flex_attention(q, k, v).requires_grad
    with torch.inference_mode():
        assert flex_attention(q, k, v).is_inference()
    assert flex_attention(q, k, v).requires_grad
    with pytest.raises(attune.Error, match="k"):
        flex_attention(q, k[..., :8], v)
    with pytest.raises(attune.Error, match="v"):
        flex_attention(q, k, v.half())


class Tagged(torch.Tensor):
    """A subclass around a tensor, which notes the operators that it meets."""

    seen: list = []

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, strides=inner.stride())
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(str(func))
        args, kwargs = torch.utils._pytree.tree_map_only(Tagged, lambda t: t.inner, (args, kwargs or {}))
        return func(*args, **kwargs)


def test_subclasses_modes_and_fakes_see_the_operator():
    q, k, v = qkv(grad=False)
    table = torch.randn(2, 4, 19, 19)
    for tensors in ((Tagged(q), k, v), (q, k, Tagged(v))):
        Tagged.seen.clear()
        close(flex_attention(*tensors), flex_attention(q, k, v))
        assert "attune.forward.default" in Tagged.seen
    Tagged.seen.clear()
    close(scaled_dot_product_attention(q, k, v, Tagged(table)), scaled_dot_product_attention(q, k, v, table))
    assert "attune.forward.default" in Tagged.seen

    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in (q, k, v)]
        assert flex_attention(*fakes).shape == q.shape
    with torch.device("meta"):  # where torch.empty makes tensors meanwhile
        out, lse = flex_attention(q, k, v, return_lse=True)
    close(out, flex_attention(q, k, v))
    assert lse.device == q.device and lse.isfinite().all()
    made = torch.func.grad(lambda q: flex_attention(q, k, v).sum())(q)
    leaf = q.clone().requires_grad_()
    assert torch.equal(made, torch.autograd.grad(flex_attention(leaf, k, v).sum(), leaf)[0])


def test_tensors_that_a_transform_has_left_behind():
    kept = []
    q, k, v = qkv(grad=False)
    torch.func.grad(lambda t: (kept.append(t * 1), flex_attention(t, k, v).sum())[1])(q)
    close(flex_attention(kept[0], k, v), flex_attention(q, k, v))
    leaf = k.clone().requires_grad_()
    flex_attention(kept[0], leaf, v).sum().backward()
    assert leaf.grad.any()


def test_backward_twice_and_hooks(recorder):
    leaves = qkv()
    out = flex_attention(*leaves, biased)
    first = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(out.sum(), leaves)):
        assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(out.sum(), leaves)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        out = flex_attention(*leaves, biased)
    for a, b in zip(first, torch.autograd.grad(out.sum(), leaves)):
        close(a, b)
    leaves[0].data.mul_(2)
    out = flex_attention(*leaves)
    with torch.no_grad():
        leaves[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_references_are_even():
    leaves, (q, k, v) = qkv(), qkv(grad=False)
    mask = create_block_mask(causal, None, None, 19, 19)
    things = [*leaves, q, k, v, bias, biased, causal, mask, torch.float32, torch.Tensor]

    def calls(n):
        for _ in range(n):
            flex_attention(q, k, v, biased, mask)
            flex_attention(*leaves, biased, mask, return_lse=True)[0].sum().backward()
            for leaf in leaves:
                leaf.grad = None

    calls(100)
    gc.collect()
    before = [sys.getrefcount(x) for x in things]
    calls(300)
    gc.collect()
    assert all(abs(sys.getrefcount(x) - b) < 50 for x, b in zip(things, before))


def test_threads_call_small_calls_at_once():
    inputs = [qkv() for _ in range(8)]
    want = [torch.autograd.grad(flex_attention(*t, biased).sum(), t) for t in inputs]

    def work(i):
        for _ in range(50):
            mine = torch.autograd.grad(flex_attention(*inputs[i], biased).sum(), inputs[i])
            assert all(torch.equal(a, b) for a, b in zip(mine, want[i]))

    assert on_threads(8, work) == [None] * 8
