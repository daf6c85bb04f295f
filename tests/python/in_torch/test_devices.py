# tests/python/in_torch/test_devices.py — each kind of torch's call on the host and on a GPU, if there is one: values,
# gradients, streams, captured graphs
"""By torch's own math in f64 on the host. Only a GPU has streams and graphs, and kernels of torch's for GPUs."""

import attune
import pytest
import torch
import torch.nn.functional as F
from attune.torch import activate, create_block_mask, deactivate, flex_attention, paged_attention, varlen_attention
from conftest import on_threads, python_run
from eager import close, eager
from torch.nn.attention import SDPBackend, sdpa_kernel

on_gpus = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=on_gpus)]
pytestmark = pytest.mark.parametrize("device", DEVICES)
TYPE, TOLERANCE = torch.bfloat16, 2e-2  # as close() measures


def tensors(device, *shape, of=3, grad=False):
    return [torch.randn(*shape, dtype=TYPE).to(device).requires_grad_(grad) for _ in range(of)]


def wide(*given):
    """f64 leaves on the host with the same values."""
    return [t.detach().cpu().double().requires_grad_(t.requires_grad) for t in given]


def same(mine, want, tolerance=TOLERANCE):
    for a, b in zip(mine, want, strict=True):
        close(a.detach().cpu(), b, tolerance)


def causal(b, h, i, j):
    return i >= j


MODS = {"nothing": lambda at: None, "a number": lambda at: lambda s, b, h, i, j: s * 0.5 + (j - i) * 0.01,
        "a capture": lambda at: lambda s, b, h, i, j: s + at[h, j]}


@pytest.mark.parametrize("laid", ["contiguous", "by position", "with holes"])
@pytest.mark.parametrize("mod", MODS)
def test_eager_calls(device, mod, laid):
    leaves = tensors(device, 2, 4, 150, 64)
    if laid == "by position":
        leaves = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in leaves]
    if laid == "with holes":
        leaves = [torch.cat([t, t], -1)[..., :64] for t in leaves]
    leaves = [t.requires_grad_() for t in leaves]
    (table,) = tensors(device, 4, 150, of=1, grad=True)
    mask = create_block_mask(causal, None, None, 150, 150, device=device)
    more = [table] if mod == "a capture" else []
    theirs = wide(*leaves, *more)
    out, lse = eager(*theirs[:3], MODS[mod](theirs[-1]), causal)
    want = torch.autograd.grad(out.square().sum(), theirs)
    for with_lse in (False, True):  # the first is recorded by torch's own autograd
        made = flex_attention(*leaves, MODS[mod](table), mask, return_lse=with_lse)
        if with_lse:
            same(made[1:], (lse,))
        mine = made[0] if with_lse else made
        same((mine, *torch.autograd.grad(mine.float().square().sum(), (*leaves, *more))), (out, *want))
    with torch.no_grad():
        same((flex_attention(*leaves, MODS[mod](table), mask),), (out,))


def test_the_same_bits_from_threads_and_from_a_graph_that_is_kept(device):
    leaves = tensors(device, 2, 4, 150, 64, grad=True)
    want = torch.autograd.grad(flex_attention(*leaves).sum(), leaves)
    outs = [flex_attention(*leaves) for _ in range(4)]
    for grads in on_threads(4, lambda i: torch.autograd.grad(outs[i].sum(), leaves, retain_graph=True)):
        assert all(torch.equal(a, b) for a, b in zip(grads, want))
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(outs[0].sum(), leaves), want))
    (first,) = torch.autograd.grad(flex_attention(*leaves).float().square().sum(), leaves[0], create_graph=True)
    with pytest.raises(attune.Error, match="second-derivative"):
        first.sum().backward()


def test_gradients_in_f64(device):
    leaves = [t.double().requires_grad_() for t in (*tensors(device, 1, 2, 9, 8), *tensors(device, 2, 9, of=1))]
    assert torch.autograd.gradcheck(lambda *t: flex_attention(*t, lambda s, b, h, i, j: s * 0.5 + (j - i)), leaves[:3])
    assert torch.autograd.gradcheck(lambda *t: flex_attention(*t[:3], lambda s, b, h, i, j: s + t[3][h, j]), leaves)


def test_packed_sequences(device):
    leaves = tensors(device, 150, 4, 64, grad=True)
    starts, at = torch.tensor([0, 1, 50, 50, 150], dtype=torch.int32), (0, 1, 50, 50, 150)
    theirs = wide(*leaves)
    out = torch.cat([eager(*(t[None, a:b].transpose(1, 2) for t in theirs), None, causal)[0][0].transpose(0, 1)
                     for a, b in zip(at, at[1:]) if a < b])
    want = torch.autograd.grad(out.square().sum(), theirs)
    for type in (torch.int32, torch.int64):
        cu = starts.to(device, type)
        mine = varlen_attention(*leaves, cu, cu, 100, 100, window_size=(-1, 0))
        same((mine, *torch.autograd.grad(mine.float().square().sum(), leaves)), (out, *want))


@pytest.mark.parametrize("split", [0, 128])
@pytest.mark.parametrize("packed", [False, True])
def test_queries_over_pages(device, packed, split):
    lengths, page = (300, 77, 1), 16
    table = torch.randperm(3 * 20).view(3, 20).to(torch.int32)
    pages = tensors("cpu", 60, 2, page, 64, of=2)
    dense = [p[table.long()].transpose(1, 2).flatten(2, 3) for p in pages]
    count = (1, 4, 1) if packed else (1, 1, 1)
    (q,) = tensors("cpu", sum(count), 4, 64, of=1)
    begins = [0, count[0], count[0] + count[1]]
    rows, dense = q.double().transpose(0, 1)[None], [t.double() for t in dense]
    want = torch.cat([eager(rows[:, :, a:a + n], *(t[e:e + 1, :, :length] for t in dense), None,
                            lambda b, h, i, j, last=length - n: j <= i + last)[0][0].transpose(0, 1)
                      for e, (a, n, length) in enumerate(zip(begins, count, lengths))])
    given = q.to(device) if packed else q.view(3, 1, 4, 64).transpose(1, 2).to(device)
    cu = torch.tensor([0, *torch.tensor(count).cumsum(0)], dtype=torch.int32, device=device) if packed else None

    def call(kv_len, table, given=given, cu=cu):
        return paged_attention(given, pages[0].to(device), pages[1].to(device), kv_len.to(device), table.to(device),
                               is_causal=True, enable_gqa=True, cu_seq_q=cu, max_q=4 if packed else 0,
                               fixed_split_size=split)

    counts = torch.tensor(lengths, dtype=torch.int32)
    for kv_len in (counts, counts.long()):
        out = call(kv_len, table)
        same(((out if packed else out.transpose(1, 2).reshape(3, 4, 64)),), (want,))
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(counts, table), out)
    assert not {"output", "row_numbers", "_paged"} & set(python_run(lambda: call(counts, table)))
    if split and not packed:  # other entries never change an entry's bits
        assert torch.equal(call(counts[1:2], table[1:2], given[1:2]), out[1:2])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_calls(device, backend):
    torch.compiler.reset()
    leaves, (table,) = tensors(device, 2, 4, 150, 64, grad=True), tensors(device, 4, 150, of=1, grad=True)
    run = lambda *t: flex_attention(*t[:3], lambda s, b, h, i, j: s + t[3][h, j])
    want = torch.autograd.grad(run(*leaves, table).sum(), (*leaves, table))
    mine = torch.autograd.grad(torch.compile(run, backend=backend)(*leaves, table).sum(), (*leaves, table))
    assert all(torch.equal(a, b) for a, b in zip(mine[:3], want))
    same(mine[3:], [t.cpu() for t in want[3:]])


@pytest.fixture
def active():
    """What attune was called for."""
    calls = []
    activate()
    with attune.watch(lambda fact: calls.append(fact["call"]) if fact["fact"] == "called" else None):
        yield calls
    deactivate()


BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
            "cudnn": SDPBackend.CUDNN_ATTENTION}


CALLS = [(backend, how) for backend in BACKENDS for how in ("plain", "causal", "mask", "empty row")]


@pytest.mark.parametrize("backend, how", CALLS)
def test_torchs_own_attention(device, backend, how, active):
    """Also where only one of its two directions is attune's."""
    masked = how in ("mask", "empty row")
    if (device == "cpu" and backend != "flash") or (device == "cuda" and masked and backend != "efficient"):
        pytest.skip("torch has no such kernel, or cuDNN is faster")
    leaves = tensors(device, 2, 4, 160, 64, grad=True)
    (mask,) = tensors(device, 2, 1, 160, 160, of=1)
    if how == "empty row":
        mask[:, :, 7] = -torch.inf
    more = {"attn_mask": mask} if masked else {"is_causal": how == "causal"}
    theirs, at = wide(*leaves), mask.cpu().double()
    score = (lambda s, b, h, i, j: s + at[b, 0, i, j]) if masked else None
    out, _ = eager(*theirs, score, causal if how == "causal" else None)
    want = torch.autograd.grad(out.square().sum(), theirs)
    ways = [(True, True)] * 2
    if how != "empty row":  # for which torch's kernels are not alike
        ways += [(True, False), (False, True)]
    for forward, backward in ways:
        active.clear()
        (activate if forward else deactivate)()
        with sdpa_kernel(BACKENDS[backend]):
            mine = F.scaled_dot_product_attention(*leaves, **more)
        (activate if backward else deactivate)()
        grads = torch.autograd.grad(mine.float().square().sum(), leaves)
        assert active == ["forward"] * forward + ["backward"] * backward
        same((mine, *grads), (out, *want))


def test_tensors_made_in_inference_mode_do_not_stay(device):
    leaves = tensors(device, 1, 2, 20, 16, grad=True)
    torch.compiler.reset()
    run = torch.compile(lambda *t: flex_attention(*t), backend="aot_eager")
    with torch.inference_mode():
        run(*leaves)
    want = torch.autograd.grad(flex_attention(*leaves).sum(), leaves[0])
    assert torch.equal(torch.autograd.grad(run(*leaves).sum(), leaves[0])[0], want[0])


# ---- what a GPU alone has


def skip_host(device):
    if device == "cpu":
        pytest.skip("only a GPU has it")


@pytest.mark.parametrize("kind", ["varlen", "jagged"])
def test_torchs_own_attention_to_sequences(device, kind, active):
    skip_host(device)
    leaves = tensors(device, 150, 4, 64, grad=True)
    starts = torch.tensor([0, 1, 50, 150], dtype=torch.int32, device=device)

    def run():
        if kind == "varlen":
            varlen = pytest.importorskip("torch.nn.attention.varlen")
            out = varlen.varlen_attn(*leaves, starts, starts, 100, 100, window_size=(-1, 0))
        else:
            nested = [torch.nested.nested_tensor_from_jagged(t, starts).transpose(1, 2) for t in leaves]
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                out = F.scaled_dot_product_attention(*nested, is_causal=True).transpose(1, 2).values()
        return out, *torch.autograd.grad(out.float().square().sum(), leaves)

    for _ in range(2):
        active.clear()
        mine = run()
        assert active == ["forward", "backward"]
    deactivate()
    same(mine, [t.detach().cpu() for t in run()])


def test_calls_go_to_torchs_stream(device):
    skip_host(device)
    leaves, stream = tensors(device, 2, 4, 512, 64, grad=True), torch.cuda.Stream()
    want = torch.autograd.grad(flex_attention(*leaves).sum(), leaves)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1 << 27)
        late = [(t * 1).detach().requires_grad_() for t in leaves]  # ready after the pause
        mine = torch.autograd.grad(flex_attention(*late).sum(), late)
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(mine, want))


@pytest.mark.parametrize("call", ["flex", "paged", "sdpa"])
def test_a_captured_graph_of_a_call(device, call):
    skip_host(device)
    q, k, v = tensors(device, 2, 4, 256, 64)
    lengths = torch.tensor([256, 100], dtype=torch.int32, device=device)
    mask = tensors(device, 1, 1, 256, 256, of=1)[0]
    run = {"flex": lambda: flex_attention(q, k, v, lambda s, b, h, i, j: s + (j - i) * 0.125),
           "paged": lambda: paged_attention(q[:, :, :1], k, v, lengths),
           "sdpa": lambda: F.scaled_dot_product_attention(q, k, v, mask)}[call]
    with torch.no_grad(), sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        if call == "sdpa":
            activate()
        try:
            run()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = run()
            for t in (q, k, v):
                t.copy_(torch.randn_like(t))
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out, run())
        finally:
            deactivate()


def test_torch_says_that_a_gpu_has_no_memory(device):
    skip_host(device)
    q = torch.ones(1, dtype=TYPE, device=device).expand(1, 1 << 15, 1 << 15, 128)
    for leaf in (q, q.detach().requires_grad_()):
        with pytest.raises(torch.cuda.OutOfMemoryError):
            flex_attention(leaf, leaf, leaf)


def test_a_forward_on_another_gpu(device):
    skip_host(device)
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    leaves = tensors("cuda:1", 2, 4, 150, 64, grad=True)
    want = [t.detach().to("cuda:0").requires_grad_() for t in leaves]
    mine, wants = (torch.autograd.grad(flex_attention(*t).sum(), t) for t in (leaves, want))
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(mine, wants))
