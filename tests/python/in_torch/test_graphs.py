# tests/python/in_torch/test_graphs.py — every mod of mods.py in torch.compile, in one graph, gives the eager results
"""Dynamo follows the mods as Python does."""

import mods
import pytest
import torch
from attune.torch import create_block_mask, flex_attention
from eager import close, qkv


@pytest.mark.parametrize("name", [*mods.SCORES, *mods.MASKS])
def test_a_mod_compiles_without_a_break(name):
    torch._dynamo.reset()
    table = mods.SCORES if name in mods.SCORES else mods.MASKS
    made = mods.Tensors(torch.float32)
    mod = table[name](made)
    q, k, v = qkv(mods.B, mods.H, mods.S, mods.S, mods.D, grad=False)

    def run(q, k, v):
        if name in mods.SCORES:
            return flex_attention(q, k, v, mod)
        return flex_attention(q, k, v, block_mask=create_block_mask(mod, None, None, q.shape[-2], k.shape[-2]))
    graph = torch.compile(run, fullgraph=True, backend="eager")
    close(graph(q, k, v), run(q, k, v), 1e-6)
