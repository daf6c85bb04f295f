# python/examples/varlen.py — packed sequences: one call for a batch without padding, with windows, scores and gradients
"""Sequences lie one after the other in [tokens, heads, width]; cu_seqlens has where each begins, and the end."""

import torch
import torch.nn.functional as F
from attune.torch import varlen_attention

HEADS, WIDTH, LENGTHS = 4, 16, (5, 64, 1, 30)
torch.manual_seed(0)
starts = F.pad(torch.tensor(LENGTHS).cumsum(0), (1, 0)).int()
q, k, v = (torch.randn(sum(LENGTHS), HEADS, WIDTH, requires_grad=True) for _ in range(3))
slope = torch.exp2(-2.0 * torch.arange(1, HEADS + 1))
temperature = torch.rand(len(LENGTHS)) + 0.5  # of each sequence


def alibi(score, b, h, q_idx, kv_idx):  # b is the sequence; positions are within it
    return score * temperature[b] + slope[h] * (kv_idx - q_idx)


def one_by_one(score, keeps):
    """The same, a sequence at a time."""
    out = []
    for b, (first, last) in enumerate(zip(starts.tolist(), starts.tolist()[1:])):
        own = [t[first:last].transpose(0, 1) for t in (q, k, v)]
        h, i, j = torch.meshgrid(*(torch.arange(n) for n in (HEADS, last - first, last - first)), indexing="ij")
        scores = score(own[0] @ own[1].mT / WIDTH**0.5, b, h, i, j).masked_fill(~keeps(i, j), -torch.inf)
        out.append((torch.softmax(scores, -1) @ own[2]).transpose(0, 1))
    return torch.cat(out)


def plain(score, b, h, q_idx, kv_idx):
    return score


longest = max(LENGTHS)
calls = (({}, plain, lambda i, j: i >= -1),
         ({"window_size": (-1, 0)}, plain, lambda i, j: j <= i),
         ({"window_size": (8, 0), "score_mod": alibi}, alibi, lambda i, j: (j <= i) & (j >= i - 8)))
for options, score, keeps in calls:
    made, want = varlen_attention(q, k, v, starts, starts, longest, longest, **options), one_by_one(score, keeps)
    gradients = zip(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (made, want)))
    assert all(torch.allclose(a, b, atol=1e-4, rtol=1e-4) for a, b in ((made, want), *gradients)), options
print(f"ok: {len(LENGTHS)} sequences of {min(LENGTHS)} to {max(LENGTHS)} tokens in one call")
