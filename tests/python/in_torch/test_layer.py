# tests/python/in_torch/test_layer.py — CausalSelfAttention against its parts by torch; which engine runs, explain
"""The layer, the choice of an engine, and explain."""

import shutil

import attune
import pytest
import torch
import torch.nn.functional as F
from attune.torch import CausalSelfAttention, engine, explain, flex_attention, scaled_dot_product_attention
from eager import close, qkv


def by_torch(layer, x):
    """The layer written out with torch's functions, in f64."""
    weights = {name: p.double() for name, p in layer.named_parameters()}
    projected = F.linear(x.double(), weights["c_attn.weight"], weights.get("c_attn.bias"))
    q, k, v = (t.reshape(*x.shape[:2], layer.num_heads, -1).transpose(1, 2) for t in projected.chunk(3, -1))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=layer.is_causal)
    return F.linear(out.transpose(1, 2).reshape(x.shape), weights["c_proj.weight"], weights.get("c_proj.bias"))


def grads(out, layer, x):
    return torch.autograd.grad(out.double().square().sum(), (x, *layer.parameters()))


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"is_causal": True}, {"is_causal": True, "bias": True}],
                         ids=str)
@pytest.mark.parametrize("shape", [(2, 9, 32), (1, 1, 32), (3, 17, 32)], ids=str)
def test_the_layer_is_its_parts(shape, options):
    layer, x = CausalSelfAttention(4, 32, **options), torch.randn(shape, requires_grad=True)
    for mode in (layer.train(), layer.eval()):
        out, wanted = mode(x), by_torch(layer, x)
        close(out, wanted)
        for mine, true in zip(grads(out, layer, x), grads(wanted, layer, x)):
            close(mine, true, 4e-5)


def test_the_layers_weights_are_those_of_the_tutorial():
    assert list(CausalSelfAttention(2, 8, bias=True).state_dict()) == ["c_attn.weight", "c_attn.bias", "c_proj.weight",
                                                                       "c_proj.bias"]


def test_jagged_sequences_are_each_their_own():
    layer = CausalSelfAttention(4, 32, bias=True, is_causal=True)
    parts = [torch.randn(n, 32) for n in (5, 1, 9)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    out = layer(x)
    for one, part in zip(out.unbind(), parts):
        close(one, by_torch(layer, part[None])[0])
    mine = torch.autograd.grad(out.values().square().sum(), (x, *layer.parameters()))
    leaves = [part.requires_grad_() for part in parts]
    wanted = sum(by_torch(layer, leaf[None]).square().sum() for leaf in leaves)
    true = torch.autograd.grad(wanted, (*leaves, *layer.parameters()))
    for a, b in zip((*mine[0].unbind(), *mine[1:]), true):
        close(a, b, 4e-5)


def test_the_layer_drops_in_training_alone():
    layer, x = CausalSelfAttention(4, 32, dropout=0.5), torch.randn(2, 9, 32)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_the_layer_compiles():
    layer, x = CausalSelfAttention(4, 32, is_causal=True), torch.randn(2, 9, 32)
    close(torch.compile(layer, fullgraph=True, backend="eager")(x), by_torch(layer, x))


@pytest.mark.parametrize("heads", [0, 3, -1])
def test_heads_that_do_not_divide_the_width(heads):
    with pytest.raises(attune.Error) as caught:
        CausalSelfAttention(heads, 32)
    assert caught.value.code == "bad-argument" and caught.value.file == __file__


# ---- which engine


def ran(call):
    facts = []
    with attune.watch(facts.append):
        out = call()
    return out, [fact["kernel"] for fact in facts if fact["fact"] == "called"]


def test_an_engine_is_taken_within_and_not_after():
    q, k, v = qkv()
    plain, before = ran(lambda: flex_attention(q, k, v))
    with engine("oracle"):
        exact, within = ran(lambda: flex_attention(q, k, v))
        with engine():
            assert ran(lambda: scaled_dot_product_attention(q, k, v))[1] == before
    _, gradient = ran(lambda: torch.autograd.grad(exact.sum(), (q, k, v)))
    assert within == gradient == ["oracle"] and before != within
    close(exact, plain)
    with pytest.raises(KeyError), engine("oracle"):
        raise KeyError
    assert ran(lambda: flex_attention(q, k, v))[1] == before


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="kernels are emulated by a C++ compiler")
def test_the_kernels_of_a_gpu_run_emulated_and_so_do_their_gradients():
    q, k, v = qkv()
    with engine("emulated:sm_90a:seed=3"):
        emulated, within = ran(lambda: flex_attention(q, k, v, lambda s, b, h, i, j: s + (i - j)))
    _, gradient = ran(lambda: torch.autograd.grad(emulated.sum(), (q, k, v)))
    assert within[0].startswith("forward_sm") and gradient[0].startswith(("backward_", "queries_"))
    close(emulated, flex_attention(q, k, v, lambda s, b, h, i, j: s + (i - j)))
    with pytest.raises(attune.Error) as caught, engine("emulated:sm_100"):
        pass
    assert caught.value.code == "bad-target"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only calls on a GPU compile ahead")
def test_a_forward_that_is_recorded_starts_its_backward_when_its_own_kernels_are_compiled():
    q, k, v = (t.detach().cuda().requires_grad_() for t in qkv(width=64))
    facts = []
    with attune.watch(facts.append, "built,called"):
        out = flex_attention(q, k, v, lambda s, b, h, i, j: s * 1.0625 + (i - j))
        attune.wait()
        built = [fact["fact"] for fact in facts].count("built")
        out.backward(torch.ones_like(out))  # one of another layout has kernels of its own
    assert built > 1 and [fact["fact"] for fact in facts].count("built") == built


@pytest.mark.parametrize("given, code", [({"name": "flash"}, "unknown-target"), ({"name": None}, "unknown-target"),
                                         ({"exact": 1}, "bad-argument")], ids=str)
def test_an_engine_that_there_is_not(given, code):
    with pytest.raises(attune.Error) as caught, engine(**given):
        pass
    assert caught.value.code == code


def test_an_engine_that_cannot_read_the_memory_says_so():
    with engine("cuda"), pytest.raises(attune.Error) as caught:
        flex_attention(*qkv())
    assert caught.value.code in ("engine-device", "no-device", "no-engine")


def test_explain_tells_of_each_attention_in_a_function():
    layer = CausalSelfAttention(4, 32, is_causal=True)
    x = torch.randn(2, 10, 32)

    def step():
        layer(x).sum().backward()
        layer(x)
        with engine("oracle"):
            flex_attention(*qkv(), lambda s, b, h, i, j: s + (i - j))

    page = explain(step)
    assert page.count("forward of 2 x 4 heads (4 of keys), 10 queries, 10 keys, 8 wide, f32") == 1
    assert page.count("\n  mask     kv <= q\n") == 2 and "2 times" in page  # the forward and its backward
    assert "backward of" in page and "  score    s + f32(q - kv)\nran oracle on oracle" in page
    assert explain(lambda: None) == "attune ran no attention\n"
