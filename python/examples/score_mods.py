# python/examples/score_mods.py — flex_attention with scores that read tensors: distances, edges, learned tables
"""Each score is also computed as a dense matrix by torch, output and gradients."""

import torch
from attune.torch import explain, flex_attention

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 70, 16
torch.manual_seed(0)
q, k, v = (torch.randn(BATCH, HEADS, LENGTH, WIDTH, requires_grad=True) for _ in range(3))
slope = torch.exp2(-2.0 * torch.arange(1, HEADS + 1))
table = torch.randn(HEADS, 2 * LENGTH - 1, requires_grad=True)  # by distance
edge = torch.randint(0, 3, (BATCH, LENGTH, LENGTH))  # the kind of edge between two nodes
weight = torch.randn(3, HEADS, requires_grad=True)
place = torch.randn(BATCH, LENGTH, 2)  # of each token in a plane


def alibi(score, b, h, q_idx, kv_idx):
    return score + slope[h] * (kv_idx - q_idx).abs()


def relative(score, b, h, q_idx, kv_idx):
    return score + table[h, q_idx - kv_idx + LENGTH - 1]


def edges(score, b, h, q_idx, kv_idx):
    return score + weight[edge[b, q_idx, kv_idx], h]


def near(score, b, h, q_idx, kv_idx):
    return score - (place[b, q_idx, 0] - place[b, kv_idx, 0]) ** 2 - (place[b, q_idx, 1] - place[b, kv_idx, 1]) ** 2


def capped(score, b, h, q_idx, kv_idx):
    return 5 * torch.tanh(relative(score, b, h, q_idx, kv_idx) / 5)


def dense(mod):
    """The same by torch: a mod that is given all pairs at once reads the same tensors."""
    at = torch.meshgrid(*(torch.arange(n) for n in (BATCH, HEADS, LENGTH, LENGTH)), indexing="ij")
    return torch.softmax(mod(q @ k.mT / WIDTH**0.5, *at), -1) @ v


for mod, learned in ((alibi, []), (relative, [table]), (edges, [weight]), (near, []), (capped, [table])):
    made, want = flex_attention(q, k, v, mod), dense(mod)
    leaves = [q, k, v, *learned]
    gradients = zip(*(torch.autograd.grad(out.square().sum(), leaves) for out in (made, want)))
    assert all(torch.allclose(a, b, atol=1e-4, rtol=1e-4) for a, b in ((made, want), *gradients)), mod.__name__

print(explain(q, k, v, capped).splitlines()[1].strip())
print("ok: five scores, and their gradients")
