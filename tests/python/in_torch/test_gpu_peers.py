# tests/python/in_torch/test_gpu_peers.py — tools/bench/gpu_peers.py on the host: for mods as text torch computes the same
"""Each row at a small size in f32, by the calls that a GPU gets; FlexAttention's gradients are those of eager torch."""

import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import attune
import pytest
import torch
from conftest import ROOT
from eager import close, eager

sys.path.insert(0, str(ROOT / "tools/bench"))
import gpu_peers  # noqa: E402
import torch_own  # noqa: E402

ALL = SimpleNamespace(flex=True)
CASES = {case.row: case for case in gpu_peers.all_cases() if case.mod and not case.lengths and case.d <= 128}


def triangle(q, k, v, bias, mask):
    """What cuEquivariance says that its triangle_attention computes; the package loads only where there is a GPU."""
    scores = q @ k.mT * q.shape[-1]**-0.5 + bias
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v


def small(case):
    seq = {"triangle": 24, "gpt-oss": 160}.get(case.row, 40)
    return replace(case, dtype="f32", d=16, heads=4, seq=seq, batch=seq if case.row == "triangle" else 2,
                   kv_heads=2 if case.kv_heads else 0, kv_seq=seq if case.kv_seq else 0)


@pytest.mark.parametrize("row", CASES)
def test_torch_computes_what_the_text_says(row, monkeypatch):
    monkeypatch.setitem(torch_own.TYPES, "bf16", torch.float32)
    case = small(CASES[row])
    monkeypatch.setitem(sys.modules, "cuequivariance_torch", SimpleNamespace(triangle_attention=triangle))
    asked = {"flex" if "flex" in peer else peer if peer == "cueq" else "sdpa"
             for peer in gpu_peers.peers_of(case, ALL) if not case.mod.dropped}
    torch._dynamo.reset()
    torch.manual_seed(0)
    q, *kv = (torch.randn(case.batch, heads, case.seq, case.d, requires_grad=True)
              for heads in (case.heads, case.kv_heads or case.heads, case.kv_heads or case.heads))
    own = torch_own.Own(case, "cpu")
    texts = {name: text for name, text in case.mod.of(case)[0].items() if text}
    attention = attune.Attention(**texts, **{name: x.detach() for name, x in own.tensors.items()})
    plain = [x.detach() for x in (q, *kv)]
    out, lse = attention(*plain, lse=True)
    grad = torch.randn_like(out)
    back = attention.backward(*plain, grad, o=out, lse=lse)
    assert not any(x.any() for name, x in back.captured.items() if name not in case.mod.learned)
    wanted = [back.q, back.k, back.v, *(back.captured[name] for name in case.mod.learned)]

    def eagerly(q, k, v, score_mod, block_mask, return_lse=False, **_):
        both = eager(q, k, v, score_mod, block_mask.mask_mod)
        return both if return_lse else both[0]

    for peer in asked:
        if peer == "flex":
            with monkeypatch.context() as traced, torch.no_grad():
                traced.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
                close(own.flex()(*plain), out)
            with monkeypatch.context() as instead:
                instead.setattr(torch_own, "flex_attention", eagerly)
                instead.setattr(torch, "compile", lambda call, **_: call)
                made = own.flex()(q, *kv)
        else:
            made = getattr(own, peer)()(q, *kv)
            close(made, out)
        for mine, want in zip(torch.autograd.grad(made, [q, *kv, *own.captured], grad), wanted, strict=True):
            close(mine, want, 1e-4)  # `s + u[h, q]` changes no probability: the terms of its gradient cancel


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuequivariance_computes_what_it_says():
    """With the gradient of the bias, which gpu_peers.py does not compare."""
    own = pytest.importorskip("cuequivariance_ops_torch", reason="cuEquivariance is not installed").triangle_attention
    draw = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    inputs = [draw(shape, requires_grad=True) for shape in (*[(1, 256, 4, 256, 32)] * 3, (1, 1, 4, 256, 256))]
    kept, grad = draw(1, 256, 1, 1, 256) > 0, draw(inputs[0].shape)
    found = []
    for call, given in ((own, inputs), (triangle, [x.detach().float().requires_grad_() for x in inputs])):
        out = call(*given, kept)
        found.append([out, *torch.autograd.grad(out, given, grad.to(out.dtype))])
    for mine, want in zip(*found, strict=True):
        close(mine, want, 1e-2)


def test_rows_have_their_peers_and_words():
    alone = {"squared", "threshold"}
    for case in gpu_peers.all_cases():
        if case.mod:
            assert bool(gpu_peers.peers_of(case, ALL)) == (not case.lengths and case.d < 256 and case.row not in alone)
    chosen = gpu_peers.cases(SimpleNamespace(rows=["own:bias", "own:triangle:forward"]))
    assert [(case.row, case.direction, case.seq) for case in chosen] == [
        ("bias", "forward", 8192), ("bias", "backward", 8192), ("triangle", "forward", 256),
        ("triangle", "forward", 512), ("bias", "backward", 2048)]
