# tests/python/in_torch/test_mods.py — mods as people write them: values and every gradient against eager torch in f64
"""Each mod in f32 through attune against the same mod in f64 through eager torch."""

import mods
import papers
import pytest
import torch
from attune.torch import create_block_mask, flex_attention
from eager import close, doubled, eager, qkv


def both(name, table, dtype):
    torch.manual_seed(sum(map(ord, name)))
    made = mods.Tensors(dtype)
    return table[name](made), made.made


def compare(q, ours, theirs, captures, captures64, tolerance):
    out, lse = ours
    wanted, wanted_lse = theirs
    close(out, wanted, tolerance)
    close(lse, wanted_lse, tolerance)
    grad_o, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    finite = torch.isfinite(wanted_lse)
    grad_lse = torch.where(finite, grad_lse, 0.0)
    mine = torch.autograd.grad((out, lse), (*q[0], *captures), (grad_o, grad_lse), allow_unused=True)
    true = torch.autograd.grad((wanted, torch.where(finite, wanted_lse, 0.0)), (*q[1], *captures64),
                               (grad_o.double(), grad_lse.double()), allow_unused=True)
    for a, b in zip(mine, true):
        close(a if a is not None or b is None else torch.zeros_like(b), b, 2 * tolerance)


@pytest.mark.parametrize("name", papers.SCORES)
def test_a_score_mod_is_as_in_eager_torch(name):
    mod, captures = both(name, papers.SCORES, torch.float32)
    mod64, captures64 = both(name, papers.SCORES, torch.float64)
    torch.manual_seed(3)
    inputs = qkv(mods.B, mods.H, mods.S, mods.S, mods.D)
    doubles = doubled(*inputs)
    ours = flex_attention(*inputs, mod, return_lse=True)
    compare((inputs, doubles), ours, eager(*doubles, mod64), captures, captures64, 2e-5)


@pytest.mark.parametrize("name", papers.MASKS)
def test_a_mask_mod_is_as_in_eager_torch(name):
    mod, _ = both(name, papers.MASKS, torch.float32)
    mod64, _ = both(name, papers.MASKS, torch.float64)
    torch.manual_seed(4)
    inputs = qkv(mods.B, mods.H, mods.S, mods.S, mods.D)
    doubles = doubled(*inputs)
    block_mask = create_block_mask(mod, mods.B, mods.H, mods.S, mods.S)
    ours = flex_attention(*inputs, block_mask=block_mask, return_lse=True)
    as_tensor = lambda b, h, i, j: torch.as_tensor(mod64(b, h, i, j))
    compare((inputs, doubles), ours, eager(*doubles, None, as_tensor), [], [], 2e-5)


def test_a_steep_mod_is_as_near_as_eager_torch_in_f32():
    """1/s magnifies an error of s without bound: no computation in f32 meets the bounds of the others."""
    steep = lambda s, b, h, i, j: 1 / s
    inputs = qkv(mods.B, mods.H, mods.S, mods.S, mods.D)
    doubles = doubled(*inputs)
    true, _ = eager(*doubles, steep)
    true = (true, *torch.autograd.grad(true.sum(), doubles))
    off = []
    for out in (flex_attention(*inputs, steep), eager(*inputs, steep)[0]):
        made = (out, *torch.autograd.grad(out.sum(), inputs))
        off.append(max(((a - b).norm() / b.norm()).item() for a, b in zip(made, true)))
    assert off[0] <= 3 * off[1]
