# tests/python/in_torch/test_sdpa.py — scaled_dot_product_attention and varlen_attention against torch's own
"""Torch's other attentions, with torch's own as the reference."""

import attune
import pytest
import torch
import torch.nn.functional as F
from attune.torch import scaled_dot_product_attention, varlen_attention
from attune.torch._flex import as_autocast
from eager import close, doubled, eager, qkv


def check(inputs, mask=None, **options):
    doubles = doubled(*inputs)
    mask64 = mask if mask is None or mask.dtype == torch.bool else doubled(mask)[0]
    out = scaled_dot_product_attention(*inputs, mask, **options)
    wanted = F.scaled_dot_product_attention(*doubles, mask64, **options)
    close(out, wanted)
    extra = [] if mask is None or not mask.requires_grad else [(mask, mask64)]
    grad = torch.randn_like(out)
    mine = torch.autograd.grad(out, (*inputs, *(a for a, _ in extra)), grad)
    for a, b in zip(mine, torch.autograd.grad(wanted, (*doubles, *(b for _, b in extra)), grad.double())):
        close(a, b, 4e-5)


def test_plain_causal_scaled_and_grouped():
    check(qkv())
    check(qkv(q_len=5), is_causal=True)
    check(qkv(), scale=0.3)
    check(qkv(heads=6, kv_heads=3), enable_gqa=True)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 3, 4), (2, 1, 3, 2)], ids=str)
def test_any_leading_dimensions(lead):
    inputs = [torch.randn(*lead, n, 8, requires_grad=True) for n in (5, 7, 7)]
    check(inputs)
    check(inputs, torch.rand(*lead, 5, 7) > 0.3)


LEADS = [((4, 1), (4,), (4,)), ((4,), (4, 1), (4, 1)), ((2, 3), (1, 3), (1, 3)), ((1, 3), (2, 3), (2, 3)), ((), (2,), (2,)),
         ((2, 3), (3,), ()), ((2, 3), (2, 1), (2, 1)), ((2, 1), (2, 3), (2, 3)), ((1, 2, 3), (2, 1, 3), (2, 1, 3)),
         ((2, 2, 3), (2, 3), (2, 2, 1)), ((1,), (1,), (3,)), ((2, 2, 3), (1, 1, 3), (1, 1, 3))]


@pytest.mark.parametrize("leads", LEADS, ids=str)
def test_leading_dimensions_broadcast(leads):
    inputs = [torch.randn(*lead, n, width, requires_grad=True)
              for lead, n, width in zip(leads, (5, 7, 7), (8, 8, 6))]
    check(inputs)
    check(inputs, is_causal=True)
    check(inputs, torch.randn(5, 7, requires_grad=True))
    lead = torch.broadcast_shapes(*leads[:2])
    check(inputs, torch.randn(*lead, 5, 7, requires_grad=True))


@pytest.mark.parametrize("leads", [((6,), (3,)), ((2, 6), (1, 3)), ((2, 6), (3,)), ((3, 1, 6), (2, 3))], ids=str)
def test_leading_dimensions_broadcast_beside_shared_heads(leads):
    inputs = [torch.randn(*leads[n > 0], 5, 8, requires_grad=True) for n in range(3)]
    check(inputs, enable_gqa=True)
    check(inputs, torch.randn(leads[0][-1], 5, 5), enable_gqa=True)


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (5, 1), (2, 1, 5, 7), (4, 5, 7), (2, 4, 1, 7), (1, 1, 1, 1)],
                         ids=str)
def test_masks_broadcast(shape):
    keep = torch.rand(shape) > 0.3
    keep[..., :1] = True
    check(qkv(q_len=5, kv_len=7), keep)
    check(qkv(q_len=5, kv_len=7), torch.randn(shape, requires_grad=True))


def test_keys_and_values_of_e4m3_are_read_as_they_are():
    q, k, v = qkv(heads=4, q_len=3, kv_len=50, grad=False)
    k, v = (t.to(torch.float8_e4m3fn) for t in (k, v))
    for _ in range(3):  # the later calls take a shorter way
        assert torch.equal(scaled_dot_product_attention(q, k, v), scaled_dot_product_attention(q, k.float(), v.float()))
    run = torch.compile(scaled_dot_product_attention, fullgraph=True)
    close(run(q, k, v), F.scaled_dot_product_attention(*(t.double() for t in (q, k, v))))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = scaled_dot_product_attention(q, k, v)
        assert as_autocast(q, k, v)[1] is k
    assert torch.equal(out, scaled_dot_product_attention(q.bfloat16(), k, v))
    starts = torch.tensor([0, 20, 50], dtype=torch.int32)
    packed = [torch.randn(50, 2, 8), *(torch.randn(50, 2, 8).to(torch.float8_e4m3fn) for _ in range(2))]
    wide = [t.float() for t in packed]
    assert torch.equal(varlen_attention(*packed, starts, starts), varlen_attention(*wide, starts, starts))


def test_queries_of_e4m3_too_give_bf16():
    for width in (8, 16):
        q, k, v = (t.to(torch.float8_e4m3fn) for t in qkv(heads=4, q_len=30, kv_len=50, v_width=width, grad=False))
        wanted = F.scaled_dot_product_attention(*(t.double() for t in (q, k, v)))
        for run in (scaled_dot_product_attention, torch.compile(scaled_dot_product_attention, fullgraph=True)):
            for _ in range(3):  # the later calls take a shorter way
                out = run(q, k, v)
                assert out.dtype == torch.bfloat16 and (out.double() - wanted).abs().max() < 0.02
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(scaled_dot_product_attention(turned, k, v), out)


def test_a_float_mask_of_minus_infinity_hides():
    mask = torch.randn(5, 7).masked_fill(torch.arange(7) > 4, -torch.inf)
    check(qkv(q_len=5, kv_len=7), mask)


def test_dropout_keeps_its_share_and_follows_the_seed():
    q, k, _ = qkv(batch=1, heads=2, q_len=64, kv_len=256, grad=False)
    v = torch.ones(1, 2, 256, 4)
    torch.manual_seed(5)
    first = scaled_dot_product_attention(q, k, v, dropout_p=0.3)
    second = scaled_dot_product_attention(q, k, v, dropout_p=0.3)
    torch.manual_seed(5)
    again = scaled_dot_product_attention(q, k, v, dropout_p=0.3)
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert abs(first.mean().item() - 1) < 0.02 and first.std() > 0.01
    assert not scaled_dot_product_attention(q, k, v, dropout_p=1.0).any()


def test_dropouts_gradient_is_that_of_what_was_kept():
    q, k, v = (t.double().detach().requires_grad_() for t in qkv(1, 1, 3, 4, 2))

    def run(q, k, v):
        torch.manual_seed(1)
        return scaled_dot_product_attention(q, k, v, dropout_p=0.4)
    assert torch.autograd.gradcheck(run, (q, k, v))


def jagged(lengths, width, grad=True):
    parts = [torch.randn(n, width, requires_grad=False) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=grad)


@pytest.mark.parametrize("is_causal", [False, True])
def test_nested_tensors(is_causal):
    flat = [jagged((3, 1, 6), 4 * 8) for _ in range(3)]
    q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in flat)
    out = scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    assert out.shape == q.shape
    for o, a, b, c in zip(*(t.unbind() for t in (out, q, k, v))):
        close(o, F.scaled_dot_product_attention(a.double(), b.double(), c.double(), is_causal=is_causal))
    grads = torch.autograd.grad(out.values().square().sum(), flat)
    assert all(g.values().isfinite().all() and g.values().any() for g in grads)


# ---- packed sequences

LENGTHS = [(3, 5), (0, 4), (6, 6), (1, 9), (4, 0)]


def packed(heads=4, kv_heads=None):
    starts = [torch.tensor([0, *torch.tensor(n).cumsum(0)], dtype=torch.int32) for n in zip(*LENGTHS)]
    q = torch.randn(int(starts[0][-1]), heads, 8, requires_grad=True)
    k, v = (torch.randn(int(starts[1][-1]), kv_heads or heads, 8, requires_grad=True) for _ in range(2))
    return q, k, v, starts


def one_by_one(q, k, v, starts, score=None, mask_of=None):
    """Each sequence by eager torch."""
    outs, sums = [], []
    for n, (q_len, kv_len) in enumerate(LENGTHS):
        parts = [t[s[n]:s[n + 1]].transpose(0, 1)[None] for t, s in zip((q, k, v), (starts[0], starts[1], starts[1]))]
        mask = None if mask_of is None else mask_of(q_len, kv_len)
        nothing = torch.zeros_like(parts[0]), torch.full(parts[0].shape[:-1], -torch.inf)
        out, lse = eager(*parts, score, mask) if q_len and kv_len else nothing
        outs.append(out[0].transpose(0, 1))
        sums.append(lse[0])
    return torch.cat(outs), torch.cat(sums, -1)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 0), (1, 1), (0, -1)], ids=str)
def test_packed_sequences_with_a_window(window):
    q, k, v, starts = packed()
    left, right = window

    def mask_of(q_len, kv_len):
        def seen(b, h, i, j):
            end = i + (kv_len - q_len)
            return ((j <= end + right) | torch.tensor(right < 0)) & ((end - j <= left) | torch.tensor(left < 0))
        return seen
    from torch.nn.attention.varlen import AuxRequest

    out, lse = varlen_attention(q, k, v, *starts, 6, 9, window_size=window, return_aux=AuxRequest(lse=True))
    doubles = doubled(q, k, v)
    wanted, sums = one_by_one(*doubles, starts, None, mask_of)
    close(out, wanted)
    close(lse, sums)
    for a, b in zip(torch.autograd.grad(out.square().sum(), (q, k, v)),
                    torch.autograd.grad(wanted.square().sum(), doubles)):
        close(a, b, 4e-5)


def test_packed_sequences_with_mods_and_shared_heads():
    q, k, v, starts = packed(4, 2)
    slope = torch.randn(4)
    score = lambda s, b, h, i, j: s + slope[h] * (i - j)
    out = varlen_attention(q, k, v, *starts, enable_gqa=True, score_mod=score, mask_mod=lambda b, h, i, j: i >= j)
    wanted, _ = one_by_one(*doubled(q, k, v), starts, score, lambda *_: lambda b, h, i, j: i >= j)
    close(out, wanted)


def test_packed_sequences_whose_keys_are_partly_in_use():
    q, k, v, starts = packed()
    used = torch.tensor([4, 4, 3, 9, 0], dtype=torch.int32)
    out = varlen_attention(q, k, v, *starts, 6, 9, seqused_k=used, window_size=(-1, 0))
    shorter = [(a, min(b, int(u))) for (a, b), u in zip(LENGTHS, used)]
    for n, (q_len, kv_len) in enumerate(shorter):
        if not q_len or not kv_len:
            continue
        begin = starts[1][n]
        parts = [q[starts[0][n]:starts[0][n + 1]], k[begin:begin + kv_len], v[begin:begin + kv_len]]
        wanted, _ = eager(*(p.transpose(0, 1)[None].double() for p in parts), None,
                          lambda b, h, i, j: j <= i + (kv_len - q_len))
        close(out[starts[0][n]:starts[0][n + 1]], wanted[0].transpose(0, 1))


@pytest.mark.parametrize("share", [float("nan"), -0.5, 1.5, float("inf"), "0.1", None], ids=str)
def test_a_share_of_dropout_is_from_0_to_1(share):
    q, k, v = qkv(grad=False)
    nested = torch.nested.nested_tensor([q[0].transpose(0, 1), q[1].transpose(0, 1)], layout=torch.jagged).transpose(1, 2)
    for tensors in ((q, k, v), (nested,) * 3):
        with pytest.raises(attune.Error, match=r"`dropout_p` cannot be .*\[bad-argument\]"):
            scaled_dot_product_attention(*tensors, dropout_p=share)


def test_all_may_be_dropped():
    inputs = qkv()
    out = scaled_dot_product_attention(*inputs, dropout_p=1)
    assert not out.any() and not any(g.any() for g in torch.autograd.grad(out.sum(), inputs))


def test_starts_of_packed_sequences_are_taken_as_they_are():
    q = torch.randn(5, 2, 8)
    wanted = varlen_attention(q, q, q, torch.tensor([0, 3, 5], dtype=torch.int32), None)
    for dtype in (torch.int64, torch.int16, torch.uint8):
        leaf = q.clone().requires_grad_()
        out = varlen_attention(leaf, q, q, torch.tensor([0, 3, 5], dtype=dtype), None)
        assert torch.equal(out, wanted)
        out.sum().backward()
    for given, code in ((torch.tensor([0, 2**32 + 3, 5]), "cu-seqlens"), (torch.tensor([0, 3.7, 5]), "cu-seqlens-type"),
                        (torch.tensor([False, True, True]), "cu-seqlens-type")):
        for cu_q, cu_k in ((given, None), (torch.tensor([0, 3, 5]), given)):
            with pytest.raises(attune.Error) as caught:
                varlen_attention(q, q, q, cu_q, cu_k)
            assert caught.value.code == code
