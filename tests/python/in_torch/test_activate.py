# tests/python/in_torch/test_activate.py — torch's own attentions after attune.torch.activate(): values, gradients, what
# goes to torch
"""On the CPU by torch's functions; the kernels for GPUs get tensors of the CPU."""

import math
import random
import warnings

import attune
import pytest
import torch
import torch.nn.functional as F
from attune import _core
from attune.torch import _activate, _attend, activate, deactivate
from attune.torch._mod import Spelled, Texts
from attune.torch._sdpa import spelled_sdpa
from eager import close, kernels_of_gpus, takes_pages
from goldens import golden
from torch.nn.attention import SDPBackend, sdpa_kernel

sdpa = F.scaled_dot_product_attention


@pytest.fixture
def active():
    """What attune was called for, as a list that grows; torch's own kernels are back afterwards."""
    calls = []
    activate()
    with attune.watch(lambda fact: calls.append(fact["call"]) if fact["fact"] == "called" else None):
        yield calls
    deactivate()


def both(call, *tensors):
    """Output and gradients on leaves of their own."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = call(*leaves)
    return out, *torch.autograd.grad(out.square().sum(), leaves)


def qkv(b=2, h=4, q=19, k=19, d=16, kv_heads=None, dtype=torch.float32):
    return (torch.randn(b, h, q, d, dtype=dtype), torch.randn(b, kv_heads or h, k, d, dtype=dtype),
            torch.randn(b, kv_heads or h, k, d, dtype=dtype))


def test_sdpa_runs_attune_and_gives_what_torch_gives(active):
    mask = torch.randn(19, 19)
    keep = torch.rand(2, 1, 19, 19) > 0.3
    keep[..., 0] = True
    for how in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": keep}, {"scale": 0.3}):
        tensors = qkv()
        mine = both(lambda *t, how=how: sdpa(*t, **how), *tensors)
        assert active[-2:] == ["forward", "backward"], how
        deactivate()
        for a, b in zip(mine, both(lambda *t, how=how: sdpa(*t, **how), *tensors)):
            close(a, b)
        activate()


def laid(dice, shape, dtype):
    """A random tensor of [batch, heads, positions, width], in one of the orders that models have."""
    b, h, n, d = shape
    return dice.choice((
        lambda: torch.randn(shape, dtype=dtype), lambda: torch.randn(b, n, h, d, dtype=dtype).transpose(1, 2),
        lambda: torch.randn(b, h, n, d + 8, dtype=dtype)[..., :d],
        lambda: torch.randn(b, h, n + 5, d, dtype=dtype)[:, :, 2:n + 2],
        lambda: torch.randn(b, n, 3 * h * d, dtype=dtype)[..., h * d:2 * h * d].view(b, n, h, d).transpose(1, 2)))()


def random_call(dice):
    """q, k, v, the other arguments, which of the tensors want a gradient, and whether the mask does."""
    dtype = dice.choice((torch.float32, torch.float32, torch.bfloat16, torch.float16))
    kv_heads, q, k = dice.choice((1, 2, 3)), dice.randint(1, 70), dice.randint(1, 70)
    b, h, d = dice.randint(1, 3), kv_heads * dice.choice((1, 1, 2, 4)), dice.choice((8, 16, 40, 64))
    tensors = [laid(dice, (b, heads, n, d), dtype) for heads, n in ((h, q), (kv_heads, k), (kv_heads, k))]
    how = {"scale": dice.choice((None, 0.2)), "enable_gqa": h != kv_heads}
    kind = dice.choice(("none", "causal", "float", "bool", "learned"))
    if kind == "causal":
        how["is_causal"] = True
    elif kind != "none":
        mask = torch.randn([n if dice.random() < 0.7 else 1 for n in (b, h, q)] + [k], dtype=dtype)
        how["attn_mask"] = mask if kind != "bool" else (mask > -1) | (torch.arange(k) == 0)
    wanted = [dice.random() < 0.8 for _ in range(3)] if dice.random() < 0.7 else [False] * 3
    return tensors, how, wanted, kind == "learned" and any(wanted)


def ran_as(tensors, how, wanted, learned, dtype=None):
    """The output, and the gradients that are wanted, in this type."""
    cast = lambda t: t.detach().to(dtype if dtype and t.is_floating_point() else t.dtype)  # noqa: E731
    leaves, how = [cast(t).requires_grad_(w) for t, w in zip(tensors, wanted)], dict(how)
    if "attn_mask" in how:
        how["attn_mask"] = cast(how["attn_mask"]).requires_grad_(learned)
    out = sdpa(*leaves, **how)
    over = [t for t in leaves if t.requires_grad] + ([how["attn_mask"]] if learned else [])
    return out, *(torch.autograd.grad(out.square().sum(), over) if over else ())


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_300_random_calls(active, seed):
    """100 for each seed, against torch's own math in f64; a failure says which call it was."""
    dice, ran = random.Random(seed), 0
    for at in range(100):
        torch.manual_seed(1000 * seed + at)
        tensors, how, wanted, learned = random_call(dice)
        about = (seed, at, [(t.shape, t.stride()) for t in tensors], tensors[0].dtype, how, wanted, learned)
        deactivate()
        with sdpa_kernel(SDPBackend.MATH):
            want = ran_as(tensors, how, wanted, learned, torch.float64)
        activate()
        before = len(active)
        mine = ran_as(tensors, how, wanted, learned)
        ran += len(active) == before + 1 + any(wanted)
        most = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}[tensors[0].dtype]
        assert len(mine) == len(want)
        for a, b in zip(mine, want):
            assert (a.double() - b).abs().max() <= most * b.abs().max().clamp(min=1), about
    assert ran >= 75  # the rest has masks that want a gradient, for which torch asks no operator


def test_layers_of_torch_run_attune(active):
    layer = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    x = torch.randn(2, 10, 64)
    out, _ = layer(x, x, x, need_weights=False)
    out.sum().backward()
    assert active == ["forward", "backward"]
    deactivate()
    close(out, layer(x, x, x, need_weights=False)[0])


def test_transformers_run_attune(active):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    ids = torch.randint(0, 64, (1, 12))
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    assert active == ["forward"] * 2 + ["backward"] * 2
    deactivate()
    close(loss, model(input_ids=ids, labels=ids).loss)


def test_compiled_graphs_run_attune(active):
    q, k, v = qkv()
    compiled = torch.compile(lambda q, k, v: sdpa(q, k, v, is_causal=True) + 1)
    mine = both(compiled, q, k, v)
    assert active == ["forward", "backward"]
    deactivate()
    for a, b in zip(mine, both(lambda *t: sdpa(*t, is_causal=True) + 1, q, k, v)):
        close(a, b)


def test_what_attune_does_not_take_is_torchs_and_told_once(active):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            tensors = qkv(dtype=torch.float64)
            mine = both(sdpa, *tensors)
            close(sdpa(*qkv(q=0)), torch.zeros(2, 4, 0, 16))
        about = [str(w.message) for w in told if "attune" in str(w.message)]
        assert len(about) == len(set(about)) and any("float64" in line for line in about), about
    assert active == []
    deactivate()
    for a, b in zip(mine, both(sdpa, *tensors)):
        assert torch.equal(a, b)


def test_calls_of_torchs_kernels_are_handed_over_without_python(active, monkeypatch):
    """From the second call of a kind on."""
    asked, own = [], _activate._warn
    monkeypatch.setattr(_activate, "_warn", lambda why: asked.append(1) or own(why))
    (q, k, v), mask = qkv(dtype=torch.float64), torch.randn(19, 19, dtype=torch.float64)
    hows = {}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": mask, "scale": 0.3}

    def run():
        return [one for how in hows for one in both(lambda *t, how=how: sdpa(*t, **how), q, k, v)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both(sdpa, q, k, v)
    assert len(asked) == 2
    held = references([q, k, v, mask])
    made = run()
    assert len(asked) == 2 and active == []
    deactivate()
    for a, b in zip(made, run()):
        assert torch.equal(a, b)
    del made, a, b
    assert held == references([q, k, v, mask])
    activate()
    with pytest.warns(UserWarning, match="float64"):
        run()


def test_a_call_that_attune_refuses_goes_to_torch(active, monkeypatch):
    def refuses(*_):
        raise attune.Error("no-such", "it will not do", "", "")

    q, k, v = qkv()
    deactivate()
    want = sdpa(q, k, v, scale=0.37)
    monkeypatch.setattr(_activate, "spelled_sdpa", refuses)
    for _ in range(2):
        activate()
        with pytest.warns(UserWarning, match=r"\[no-such\] it will not do"):
            mine = both(lambda *t: sdpa(*t, scale=0.37), q, k, v)
        assert torch.equal(mine[0], want)
        deactivate()


def test_a_call_that_the_core_refuses_goes_to_torch(active):
    q, k, v = qkv()
    with pytest.warns(UserWarning, match=r"\[bad-scale\]"):
        mine = sdpa(q, k, v, scale=math.inf)
    deactivate()
    assert torch.equal(mine.isnan(), sdpa(q, k, v, scale=math.inf).isnan()) and active == []


def test_on_and_off():
    calls = []
    q, k, v = qkv()
    with attune.watch(lambda fact: calls.append(fact) if fact["fact"] == "called" else None):
        for _ in range(2):
            activate()
            activate()
            sdpa(q, k, v)
            assert calls
            deactivate()
            deactivate()
            calls.clear()
            sdpa(q, k, v)
            assert not calls
    out = sdpa(*[t.requires_grad_() for t in (q, k, v)], is_causal=True)
    want = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
    activate()  # between a forward and its backward
    for a, b in zip(torch.autograd.grad(out.sum(), (q, k, v)), want):
        close(a, b)
    deactivate()


@pytest.mark.parametrize("first, second", [(0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_without_keys_between_torchs_kernels_and_attunes(first, second, dtype):
    tensors = [t.requires_grad_() for t in qkv(dtype=dtype)]
    mask = torch.randn(1, 4, 19, 19, dtype=dtype)
    mask[:, :, 5], mask[0, 2, 18], mask[0, 1, 7, 1:] = -math.inf, -math.inf, -math.inf
    want = torch.autograd.grad(sdpa(*tensors, attn_mask=mask).sum(), tensors)
    for _ in range(2):  # by Python, then in C++
        (activate if first else deactivate)()
        out = sdpa(*tensors, attn_mask=mask)
        assert "FlashAttention" in type(out.grad_fn).__name__
        (activate if second else deactivate)()
        made = torch.autograd.grad(out.sum(), tensors)
        for a, b in zip(made, want):
            close(a, b, 2e-5 if dtype == torch.float32 else 2e-2)
    deactivate()


def test_the_lse_of_rows_without_keys_is_torchs(active):
    (q, k, v), mask = qkv(), torch.zeros(19, 19)
    mask[5] = -math.inf
    call = lambda: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask)
    made = [call(), call()]  # by Python, then in C++
    deactivate()
    for out, lse in made:
        assert torch.equal(lse[:, :, 5], torch.zeros(2, 4))
        close(lse, call()[1])
        close(out, call()[0])
    with kernels_of_gpus() as (ops, why):
        out, lse, seed, offset = ops._scaled_dot_product_efficient_attention(q, k, v, mask, True)
        assert torch.equal(lse[:, :, 5], torch.zeros(2, 4)) and lse[0, 0, 19] == math.inf
        grads = ops._scaled_dot_product_efficient_attention_backward(
            v, q, k, v, mask, out, lse, seed, offset, 0.0, [True] * 3 + [False])[:3]
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    for a, b in zip(grads, torch.autograd.grad(sdpa(*leaves, attn_mask=mask), leaves, v)):
        close(a, b)


# ---- kernels for GPUs, on tensors of the CPU


@pytest.mark.parametrize("causal", [False, True])
def test_the_kernels_for_gpus_give_what_torch_gives(causal):
    q, k, v = qkv(q=19, k=19)
    bias, grad = torch.randn(2, 4, 19, 19), torch.randn(2, 4, 19, 16)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    want = torch.autograd.grad(sdpa(*leaves, is_causal=causal), leaves, grad)
    full = bias.masked_fill(torch.ones(19, 19).triu(1).bool(), float("-inf")) if causal else bias
    full = full.clone().requires_grad_()
    masked = sdpa(*leaves, attn_mask=full)
    biased = torch.autograd.grad(masked, (*leaves, full), grad)
    q, k, v = (t.detach() for t in (q, k, v))
    with kernels_of_gpus() as (ops, why):
        out, lse, _, _, most_q, most_k, seed, offset, _ = ops._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        assert (most_q, most_k, lse.shape, lse.dtype) == (19, 19, (2, 4, 19), torch.float32)
        made = ops._scaled_dot_product_flash_attention_backward(grad, q, k, v, out, lse, None, None, 19, 19, 0.0, causal,
                                                                seed, offset)
        for a, b in zip(made, want):
            close(a, b)
        out, lse, *_, seed, offset, _ = ops._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
        assert lse.shape == (2, 4, 19, 1)
        made = ops._scaled_dot_product_cudnn_attention_backward(grad, q, k, v, out, lse, seed, offset, None, None, None,
                                                                19, 19, 0.0, causal)
        for a, b in zip(made, want):
            close(a, b)
        assert "cuDNN is faster" in why(
            lambda: ops._scaled_dot_product_cudnn_attention(q, k, v, bias, True, 0.0, causal))
        many = q.repeat(1, 1, 4, 1)
        assert "cuDNN is faster" in why(
            lambda: ops._scaled_dot_product_cudnn_attention(many, k, v, bias.repeat(1, 1, 4, 1), False))
        close(ops._scaled_dot_product_cudnn_attention(q, k, v, bias, False, 0.0, causal)[0], masked)
        efficient = ops._scaled_dot_product_efficient_attention
        out, lse, seed, offset = efficient(q, k, v, bias, True, 0.0, causal)
        assert lse.shape == (2, 4, 32) and out.transpose(1, 2).is_contiguous()
        close(out, masked)
        for wanted in ([True] * 4, [True, False, True, False]):
            made = ops._scaled_dot_product_efficient_attention_backward(grad, q, k, v, bias, out, lse, seed, offset, 0.0,
                                                                        wanted, causal)
            for a, b, w in zip(made, biased, wanted, strict=True):
                close(a, b.nan_to_num() if w else None)
        assert efficient(q, k, v, None, False)[1].shape[-1] == 0
        flash = ops._scaled_dot_product_flash_attention
        assert "tensors of {dtype}" in why(lambda: efficient(q.double(), k.double(), v.double(), None, True))
        assert "dropout" in why(lambda: efficient(q, k, v, None, True, 0.5))
        assert "debug mask" in why(lambda: flash(q, k, v, 0.0, causal, True))
        assert "empty" in why(lambda: flash(q[:, :, :0], k, v))


def test_a_written_mask_with_gradients_is_attunes_if_its_backward_copies_the_rows():
    q, k, v = qkv(b=1, h=2, q=2048, k=24, dtype=torch.bfloat16)
    grad = torch.randn(1, 2, 2048, 16, dtype=torch.bfloat16)
    whole = torch.randn(1, 2, 2048, 32)
    copied = (whole[..., :24].bfloat16(), whole[:, :1, ..., :24].bfloat16().expand(1, 2, 2048, 24),
              whole.bfloat16()[0, 0, :, 8:], whole.bfloat16()[:, :, :1, 3:27])
    wants = []
    for bias in copied:
        leaves = [t.float().requires_grad_() for t in (q, k, v)]
        wants.append(torch.autograd.grad(sdpa(*leaves, attn_mask=bias.float()), leaves, grad.float()))
    with kernels_of_gpus() as (ops, why):
        forward = ops._scaled_dot_product_cudnn_attention

        def back(bias, out=q, lse=q):
            return ops._scaled_dot_product_cudnn_attention_backward(
                grad, q, k, v, out, lse, q, q, bias, None, None, 2048, 24, 0.0, False)

        for bias, want in zip(copied, wants):
            out, lse, *_ = forward(q, k, v, bias, True)
            for a, b in zip(back(bias, out, lse), want):
                close(a.float(), b, 2e-2)
        for bias in (whole.bfloat16()[..., 1:25], whole[..., :24].half(), whole[..., :24],
                     torch.randn(1, 2, 24, 2048, dtype=torch.bfloat16).mT):
            for call in (lambda bias=bias: forward(q, k, v, bias, True), lambda bias=bias: back(bias)):
                assert "cuDNN is faster" in why(call)
        few = q[:, :, :2040].contiguous()
        assert "cuDNN is faster" in why(lambda: forward(few, k, v, whole[:, :, :2040, :24].bfloat16(), True))


def references(tensors):
    """How many tensors there are of each one's memory: an operator that keeps its arguments leaks them."""
    return [torch._C._storage_Use_Count(t.untyped_storage()._cdata) for t in tensors]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernels_for_gpus_give_the_bits_of_eager_calls(causal, masked):
    (q, k, v), grad = qkv(q=19, k=23), torch.randn(2, 4, 19, 16)
    mask = torch.randn(2, 1, 19, 23) if masked else None
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    want, lse, _ = _attend.attend(spelled_sdpa(q, mask, 0.0, causal), *leaves, None, with_lse=True)
    grads = torch.autograd.grad(want, leaves, grad)
    read = [q, k, v, grad, want, lse, *([mask] if masked else [])]
    held = references(read)
    with kernels_of_gpus() as (ops, why):
        made, back = ops._scaled_dot_product_cudnn_attention(q, k, v, mask, not masked, 0.0, causal), ()
        seed, offset = made[6:8]
        assert made[1].shape == (2, 4, 19, 1) and made[4:6] == (19, 23) and seed.dtype == torch.int64
        assert made[2] is None and made[8].shape == (0,) and torch.equal(made[0], want)
        if not masked:
            back = ops._scaled_dot_product_cudnn_attention_backward(
                grad, q, k, v, *made[:2], seed, offset, None, None, None, 19, 23, 0.0, causal)
            for a, b in zip((made[1].squeeze(-1), *back), (lse, *grads)):
                assert torch.equal(a, b)
            made = ops._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
            seed, offset, debug = made[6:]
            assert made[1].shape == (2, 4, 19) and seed.shape == (2,) and offset.shape == () and debug.shape == (0,)
            back = ops._scaled_dot_product_flash_attention_backward(
                grad, q, k, v, *made[:2], None, None, 19, 23, 0.0, causal, seed, offset)
            for a, b in zip((*made[:2], *back), (want, lse, *grads)):
                assert torch.equal(a, b)
        del made, back, seed, offset
    assert held == references(read)


def test_what_torchs_kernels_of_gpus_give_comes_through_the_c_abi():
    """The lengths from q and k, which attune's operators do not have."""
    (q, k, v), seed = qkv(q=19, k=23, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    with kernels_of_gpus(lambda q, *_, **__: (q, q[..., 0], None, None, seed, seed[0], q[0, 0, 0, :0])) as (ops, _):
        for made in (ops._scaled_dot_product_flash_attention(q, k, v, scale=0.2),
                     ops._scaled_dot_product_cudnn_attention(q, k, v, None, True, scale=0.2)):
            assert [type(one) for one in made[4:6]] == [int, int] and made[4:6] == (19, 23)
            assert made[2] is None and made[8].shape == (0,) and torch.equal(made[6], seed) and torch.equal(made[0], q)


def test_the_kernel_for_sequences_gives_what_torch_gives():
    x, grad = torch.randn(10, 2, 16), torch.randn(10, 2, 16)
    cu, used = torch.tensor([0, 3, 10], dtype=torch.int32), torch.tensor([2, 6], dtype=torch.int32)
    for causal in (False, True):
        leaf = x.clone().requires_grad_()
        want = torch.cat([sdpa(*(leaf[a:b].transpose(0, 1),) * 3, is_causal=causal).transpose(0, 1)
                          for a, b in ((0, 3), (3, 10))])
        (gradient,) = torch.autograd.grad(want, leaf, grad)
        with kernels_of_gpus() as (ops, why):
            out, lse, seed, offset, _ = ops._flash_attention_forward(x, x, x, cu, cu, 7, 7, 0.0, causal, False)
            assert lse.shape == (2, 10)
            close(out, want)
            made = ops._flash_attention_backward(grad, x, x, x, out, lse, cu, cu, 7, 7, 0.0, causal, seed, offset)
            close(sum(made), gradient)
    wide = torch.randn(2, 7, 4, 16).requires_grad_()  # [batch, positions, heads, width]
    at = torch.arange(7)
    keep = (at[:, None] >= at) & (at[:, None] - at <= 2)
    want = sdpa(*(wide.transpose(1, 2),) * 3, attn_mask=keep).transpose(1, 2)
    (gradient,) = torch.autograd.grad(want.square().sum(), wide)
    given = (wide.detach(),) * 3
    with kernels_of_gpus() as (ops, why):
        out, lse, seed, offset, _ = ops._flash_attention_forward(*given, None, None, 7, 7, 0.0, True, False,
                                                                 window_size_left=2)
        close(out, want)
        assert lse.shape == (2, 4, 7)
        made = ops._flash_attention_backward(2 * out, *given, out, lse, None, None, 7, 7, 0.0, True, seed, offset,
                                             window_size_left=2)
        close(sum(made), gradient)
        out, *_ = ops._flash_attention_forward(x, x, x, cu, cu, 7, 7, 0.0, False, False, seqused_k=used)
        close(out, torch.cat([sdpa(x[a:b].transpose(0, 1), *(x[a:a + n].transpose(0, 1),) * 2).transpose(0, 1)
                              for a, b, n in ((0, 3, 2), (3, 10, 6))]))
        assert "alibi" in why(lambda: ops._flash_attention_forward(x, x, x, cu, cu, 7, 7, 0.0, False, False,
                                                                   alibi_slopes=x[0, :, 0]))
        if takes_pages():
            assert "cum_seq_q" in why(lambda: ops._flash_attention_forward(*given, None, None, 7, 7, 0.0, False, False,
                                                                           block_table=cu[None]))


def test_only_operators_as_expected_are_replaced(monkeypatch):
    own = _core.place_operator

    def changed(name, key, kind, arguments, *more):
        return own(name, key, kind, arguments[:-1] if name.endswith("for_cpu_backward") else arguments, *more)

    monkeypatch.setattr(_core, "place_operator", changed)
    activate()
    with attune.watch(lambda fact: pytest.fail("attune was called") if fact["fact"] == "called" else None):
        sdpa(*qkv())
    deactivate()
    monkeypatch.setattr(_activate, "_OPERATORS", ())
    with pytest.raises(attune.Error) as caught:
        activate()
    golden("torch-activate", str(caught.value))


def seed_of(state):
    """The seed in a forward's state of random numbers."""
    return state.reshape(-1)[:1].view(torch.int64).view(torch.int32)[:1].reshape(())


def dropping(q, k, v, seed, mask):
    """Output and gradients of dropout by half, with an explicit seed."""
    tensors = {"seed": seed} | ({"m": mask} if isinstance(mask, torch.Tensor) else {})
    texts = Texts("s + m[q, kv]" if "m" in tensors else "", "kv <= q" if mask is True else "", "dropout(0.5f, seed[])")
    spelled = Spelled(texts, tuple(tensors), tuple(tensors.values()))
    return both(lambda *qkv: _attend.attend(spelled, *qkv, None)[0], q, k, v)


def test_with_an_option_the_operators_of_gpus_drop_what_a_seed_of_torchs_generator_says():
    q, k, v = qkv()
    bias, cu = torch.randn(19, 19), torch.tensor([0, 19, 38], dtype=torch.int32)
    found = []  # a seed, a mask or True for a causal one, and the output and the gradients of the sum of its squares
    with kernels_of_gpus() as (ops, _):
        activate(dropout=True)
        for causal in (False, True):
            out, lse, *_, seed, offset, _ = ops._scaled_dot_product_flash_attention(q, k, v, 0.5, causal)
            found.append((seed, causal, out, *ops._scaled_dot_product_flash_attention_backward(
                2 * out, q, k, v, out, lse, None, None, 19, 19, 0.5, causal, seed, offset)))
        out, lse, *_, seed, offset, _ = ops._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.5, True)
        found.append((seed, True, out, *ops._scaled_dot_product_cudnn_attention_backward(
            2 * out, q, k, v, out, lse, seed, offset, None, None, None, 19, 19, 0.5, True)))
        out, lse, seed, offset = ops._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.5)
        found.append((seed, bias, out, *ops._scaled_dot_product_efficient_attention_backward(
            2 * out, q, k, v, bias, out, lse, seed, offset, 0.5, [True, True, True, False])[:3]))
        rows = [t.transpose(1, 2).flatten(0, 1) for t in (q, k, v)]
        out, lse, seed, offset, _ = ops._flash_attention_forward(*rows, cu, cu, 19, 19, 0.5, True, False)
        made = ops._flash_attention_backward(2 * out, *rows, out, lse, cu, cu, 19, 19, 0.5, True, seed, offset)
        found.append((seed, True, *[t.unflatten(0, (2, 19)).transpose(1, 2) for t in (out, *made)]))
    for seed, mask, *made in found:
        for a, b in zip(made, dropping(q, k, v, seed_of(seed), mask), strict=True):
            close(a, b)


def test_seeds_of_dropout_follow_torchs_generator():
    q, k, v = qkv()
    with kernels_of_gpus() as (ops, _):
        activate(dropout=True)
        drop = lambda p=0.5: ops._scaled_dot_product_flash_attention(q, k, v, p)
        torch.manual_seed(5)
        first, second = drop(), drop()
        torch.manual_seed(5)
        again = drop()
        assert torch.equal(first[0], again[0]) and torch.equal(first[6], again[6])
        assert not torch.equal(first[0], second[0])
        assert (first[6].dtype, first[6].shape, first[7].dtype) == (torch.uint64, (2,), torch.uint64)
        state = torch.get_rng_state()
        drop(0.0)
        assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn where nothing is dropped
        assert torch.equal(drop(1.0)[0], torch.zeros_like(q))


def test_calls_that_drop_are_not_torchs_by_half():
    """A forward's pairs are known to its backward, so both are torch's, or both are attune's, or there is an exception."""
    q, k, v = qkv()
    with kernels_of_gpus() as (ops, why):
        flash = ops._scaled_dot_product_flash_attention
        assert "activate(dropout=True)" in why(lambda: flash(q, k, v, 0.5))
        activate(dropout=True)
        assert "tensors of {dtype}" in why(lambda: flash(q.double(), k.double(), v.double(), 0.5))
        assert "[bad-argument] `dropout_p` cannot be 1.5" in why(lambda: flash(q, k, v, 1.5))
        assert "cuDNN is faster" in why(
            lambda: ops._scaled_dot_product_cudnn_attention(q, k, v, torch.zeros(19, 19), True, 0.5))
        with pytest.raises(RuntimeError, match="a debug mask is asked for"):
            flash(q, k, v, 0.5, False, True)
    with kernels_of_gpus() as (ops, why):  # an option ends with activate()
        assert "activate(dropout=True)" in why(lambda: ops._scaled_dot_product_flash_attention(q, k, v, 0.5))
