# tests/python/in_torch/test_compile.py — torch.compile, export, opcheck, gradcheck and the transforms of torch.func
"""The operators: what programs that trace, transform and check them see."""

import attune
import pytest
import torch
from attune.torch import AuxRequest, create_block_mask, flex_attention, scaled_dot_product_attention, varlen_attention
from eager import close, qkv
from torch._dynamo.utils import counters
from torch.nn.attention import flex_attention as torchs


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()


def compiled(function, backend="eager"):
    return torch.compile(function, fullgraph=True, backend=backend)




@pytest.mark.parametrize("with_max", [False, True])
def test_the_operators_in_cpp_give_what_python_gives(with_max):
    q, k, v = qkv(heads=4, kv_heads=2, v_width=24, grad=False)
    bias, document = torch.randn(4, 19), torch.arange(19) // 7
    grad, grad_lse = torch.randn(2, 4, 19, 24), torch.randn(2, 4, 19)
    mods = [None, None, [bias, document], [3], "s + t0[h, kv] * f32(n0)", "t1[q] == t1[kv]", "", "", "t0 t1", 0.3, 0, 0]
    ops, wanted = torch.ops.attune, [True, False, True, True, False]
    want = ops.forward_slowly(q, k, v, *mods, with_max)  # from here on the kernels know such calls
    grads = ops.backward_slowly(grad, grad_lse, q, k, v, *want[:2], *mods, wanted)
    read = [q, k, v, bias, document, grad, grad_lse, *want]
    held = [torch._C._storage_Use_Count(t.untyped_storage()._cdata) for t in read]
    calls = []
    with attune.watch(lambda fact: calls.append(fact["call"]) if fact["fact"] == "called" else None):
        made = ops.forward(q, k, v, *mods, with_max)
        back = ops.backward(grad, grad_lse, q, k, v, *want[:2], *mods, wanted)
    assert calls == ["forward", "backward"]
    for a, b in zip((*made, *back), (*want, *grads), strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()
    del made, back
    assert held == [torch._C._storage_Use_Count(t.untyped_storage()._cdata) for t in read]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradients_go_through_a_compiled_graph(backend):
    if backend == "inductor" and not torch._inductor.config.cpp.cxx[1]:
        pytest.skip("no C++ compiler for torch")
    inputs = qkv(heads=4, kv_heads=2)
    bias = torch.randn(4, 19, requires_grad=True)

    def run(q, k, v):
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[-2], k.shape[-2])
        out, aux = flex_attention(q * 2, k, v, lambda s, b, h, i, j: torch.tanh(s) + bias[h, i - j], mask,
                                  enable_gqa=True, return_aux=AuxRequest(lse=True))
        return out.square().sum() + aux.lse.sum()
    ours = torch.autograd.grad(compiled(run, backend)(*inputs), (*inputs, bias))
    for a, b in zip(ours, torch.autograd.grad(run(*inputs), (*inputs, bias))):
        close(a, b, 1e-6)


def test_fifty_lengths_take_two_graphs():
    def run(q, k, v, doc):
        n = q.shape[-2]
        mask = lambda b, h, i, j: (doc[b, i] == doc[b, j]) & (i + n - 4 >= j) & (j < n) & (n != i)
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + (i - j) / n, create_block_mask(mask, None, None, n, n))
    graph = compiled(run)
    for n in range(20, 70):
        q, k, v = qkv(q_len=n, kv_len=n, grad=False)
        doc = torch.randint(0, 3, (2, n))
        close(graph(q, k, v, doc), run(q, k, v, doc), 1e-6)
    assert counters["stats"]["unique_graphs"] == 2


def test_a_float_that_changes_is_another_constant():
    factor = 2.0

    def run(q, k, v):
        mod = lambda s, b, h, i, j: (torch.tanh(s / factor) * factor + i * (factor * 0.5)) * (factor > 2.5)
        return flex_attention(q, k, v, mod, scale=factor)

    graph, inputs = compiled(run), qkv(grad=False)
    for factor in (2.0, 3.0, 0.1, 4.0):
        close(graph(*inputs), run(*inputs), 1e-6)


def test_a_comparison_with_a_length_is_asked_of_the_value():
    def run(q, k, v):
        n = k.shape[-2]
        mask = lambda b, h, i, j: (j == n - 1) | (n - 2 == j) | ((n // 2 > j) & (n - 4 != j))
        return flex_attention(q, k, v, block_mask=create_block_mask(mask, None, None, n, n))
    graph = compiled(run)
    for n in (9, 10, 12):
        q, k, v = qkv(q_len=n, kv_len=n, grad=False)
        close(graph(q, k, v), run(q, k, v), 1e-6)


def test_block_masks_go_into_a_graph_as_arguments():
    q, k, v = qkv()
    doc = torch.randint(0, 3, (19,))
    mod = lambda b, h, i, j: doc[i] == doc[j]
    graph = compiled(lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask))
    for given in (create_block_mask(mod, None, None, 19, 19),
                  torchs.create_block_mask(mod, None, None, 19, 19, device="cpu")):
        close(graph(q, k, v, given), flex_attention(q, k, v, block_mask=given), 1e-6)


def test_the_other_attentions_compile():
    q, k, v = qkv(grad=False)
    mask = torch.rand(19, 19) > 0.3
    run = lambda q, k, v: scaled_dot_product_attention(q, k, v, mask)
    close(compiled(run)(q, k, v), run(q, k, v), 1e-6)
    starts = torch.tensor([0, 4, 19], dtype=torch.int32)
    packed = lambda q: varlen_attention(q, q, q, starts, starts, 15, 15, window_size=(3, 0))
    close(compiled(packed)(q[0].transpose(0, 1)), packed(q[0].transpose(0, 1)), 1e-6)
    torch.manual_seed(1)
    dropped = compiled(lambda q: scaled_dot_product_attention(q, k, v, dropout_p=0.5))
    assert not torch.equal(dropped(q), dropped(q))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.randn(4, 19))

    def forward(self, q, k, v):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + self.bias[h, j] * (i >= j))


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    layer, inputs = Layer(), qkv(grad=False)
    program = torch.export.export(layer, inputs, strict=strict)
    assert any(node.target is torch.ops.attune.forward.default for node in program.graph.nodes)
    close(program.module()(*inputs), layer(*inputs), 1e-6)


def test_export_of_any_length():
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=4096)

    class Plain(torch.nn.Module):
        def forward(self, q, k, v):
            return flex_attention(q, k, v, lambda s, b, h, i, j: s + (i - j))
    program = torch.export.export(Plain(), qkv(grad=False), dynamic_shapes=({0: batch, 2: length},) * 3)
    other = qkv(batch=3, q_len=50, kv_len=50, grad=False)
    close(program.module()(*other), Plain()(*other), 1e-6)


def arguments(q, k, v, bias, with_max=True):
    return q, k, v, None, None, [bias], [3], "s + bias[h, q - kv + n0]", "kv <= q", "", "", "bias", None, 0, 0, with_max


def test_opcheck():
    q, k, v = qkv(v_width=8)
    bias = torch.randn(4, 19, requires_grad=True)
    torch.library.opcheck(torch.ops.attune.forward.default, arguments(q, k, v, bias))
    turned = [t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in (q, k, v)]
    torch.library.opcheck(torch.ops.attune.forward.default, arguments(*turned, bias, False))
    plain = arguments(*(t.detach() for t in (q, k, v, bias)))
    out, lse, _ = torch.ops.attune.forward(*plain)
    torch.library.opcheck(torch.ops.attune.backward.default, (
        torch.randn_like(out), torch.randn_like(lse), *plain[:3], out, lse, *plain[3:-1], [True, False, True, True]))


def test_results_that_nobody_asked_for():
    """They are made once, and later calls may be recorded, or within inference mode."""
    q, k, v = qkv(v_width=8)
    bias, row = torch.randn(4, 19, requires_grad=True), torch.randn(19, requires_grad=True)
    texts = ("s + bias[h, q - kv + n0] + row[kv]", "kv <= q", "", "", "bias row", None, 0, 0)
    given = (q, k, v, None, None, [bias, row], [3], *texts)
    for _ in range(3):  # C++ makes all but the first
        with torch.inference_mode():
            out, lse, most = torch.ops.attune.forward(*given, False)
            assert most.numel() == 0
        out, lse, most = torch.ops.attune.forward(*given, False)
        assert most.numel() == 0 and not most.requires_grad
        grads = torch.autograd.grad(out.square().sum(), [q, k, v, bias, row])
        with torch.no_grad():
            some = torch.ops.attune.backward(2 * out, None, *given[:3], out, lse, *given[3:], [True] + 4 * [False])
        close(some[0], grads[0])
        assert [one.numel() for one in some[1:]] == [0] * 4 and len({id(one) for one in some}) == 5


def test_gradcheck_in_double_precision():
    q, k, v = (t.double().detach().requires_grad_() for t in qkv(2, 2, 3, 4, 3))
    bias = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)

    def run(q, k, v, bias):
        mask = create_block_mask(lambda b, h, i, j: i + 2 >= j, None, None, 3, 4)
        return flex_attention(q, k, v, lambda s, b, h, i, j: torch.tanh(s) + bias[h, i - j], mask, return_lse=True)
    assert torch.autograd.gradcheck(run, (q, k, v, bias))
    op = lambda *tensors: torch.ops.attune.forward(*arguments(*tensors, False))[:2]
    assert torch.autograd.gradcheck(op, (q, k, v, bias))


@pytest.mark.parametrize("run", [
    flex_attention,
    lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: torch.tanh(s) + (i - j)),
    lambda q, k, v: flex_attention(q, k, v, return_aux=AuxRequest(max_scores=True))[0],
    lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True),
    lambda q, k, v: varlen_attention(*(t[0].transpose(0, 1) for t in (q, k, v)), *[torch.tensor([0, 1, 3])] * 2, 2, 2),
], ids=["plain", "mod", "largest", "sdpa", "packed"])
def test_gradcheck_without_captures_and_lse(run):
    q, k, v = (t.double().detach().requires_grad_() for t in qkv(2, 2, 3, 3, 3))
    assert torch.autograd.gradcheck(run, (q, k, v))


def entries(function, *stacks):
    return torch.stack([function(*parts) for parts in zip(*stacks)])


MAPPED = {"folded": lambda s, b, h, i, j: s - (i - j), "one by one": lambda s, b, h, i, j: s - (i - j) * b}


@pytest.mark.parametrize("mod", MAPPED.values(), ids=MAPPED)
def test_vmap(mod):
    q, k = torch.randn(2, 3, 2, 4, 9, 8)
    run = lambda q, k: flex_attention(q, k, k, mod)
    close(torch.func.vmap(run)(q, k), entries(run, q, k), 1e-6)
    close(torch.func.vmap(run, in_dims=(1, None))(q.transpose(0, 1), k[0]), entries(lambda q: run(q, k[0]), q), 1e-6)


def test_vmap_over_a_captured_tensor_and_gradients():
    q, slope = torch.randn(3, 2, 4, 9, 8), torch.randn(3, 4)
    loss = lambda q, slope: flex_attention(q, q, q, lambda s, b, h, i, j: s - (i - j) * slope[h]).sin().sum()
    close(torch.func.vmap(loss)(q, slope), entries(loss, q, slope), 1e-6)
    gradient = torch.func.grad(loss, argnums=(0, 1))
    mapped = torch.func.vmap(gradient)(q, slope)
    for at in range(2):
        close(mapped[at], torch.stack([gradient(a, b)[at] for a, b in zip(q, slope)]), 1e-6)


def test_make_fx_and_fake_tensors_see_the_operator():
    from torch.fx.experimental.proxy_tensor import make_fx

    q, k, v = qkv(grad=False)
    graph = make_fx(lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s * 2))(q, k, v)
    assert any(node.target is torch.ops.attune.forward.default for node in graph.graph.nodes)
    with torch._subclasses.FakeTensorMode() as fake:
        out = flex_attention(*(fake.from_tensor(t) for t in (q, k, v)))
    assert out.shape == q.shape
