# python/examples/block_masks.py — block-sparse masks: joined masks, documents, and blocks that a router has chosen
"""attune reads the mask_mod and visits only the tiles that it leaves. Each mask is compared with a dense one."""

import torch
import torch.nn.functional as F
from attune.torch import and_masks, create_block_mask, create_mask, flex_attention, or_masks

HEADS, LENGTH, BLOCK = 4, 512, 32
torch.manual_seed(0)
q, k, v = (torch.randn(1, HEADS, LENGTH, 16, requires_grad=True) for _ in range(3))
document = torch.arange(LENGTH) // 150


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window(b, h, q_idx, kv_idx):
    return q_idx - kv_idx < 40


def first_tokens(b, h, q_idx, kv_idx):
    return kv_idx < 4


def in_document(b, h, q_idx, kv_idx):
    return document[q_idx] == document[kv_idx]


# A router gives each block of queries its own block of keys and the two that score best, head by head.
blocks = LENGTH // BLOCK
means = [t.detach().unflatten(2, (blocks, BLOCK)).mean(3)[0] for t in (q, k)]
scores = (means[0] @ means[1].mT).masked_fill(torch.ones(blocks, blocks).triu().bool(), -torch.inf)
chosen = torch.eye(blocks).bool() | torch.zeros(HEADS, blocks, blocks).scatter(-1, scores.topk(2).indices, 1).bool()


def routed(b, h, q_idx, kv_idx):
    return chosen[h, q_idx // BLOCK, kv_idx // BLOCK]


masks = {"a window and the first tokens": and_masks(causal, or_masks(window, first_tokens)),
         "documents": and_masks(causal, in_document), "chosen blocks": and_masks(causal, routed)}
for name, mask in masks.items():
    block_mask = create_block_mask(mask, 1, HEADS, LENGTH, LENGTH, BLOCK_SIZE=BLOCK)
    made = flex_attention(q, k, v, block_mask=block_mask)
    keeps = create_mask(mask, 1, HEADS, LENGTH, LENGTH, device="cpu")
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=keeps)
    gradients = zip(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (made, want)))
    assert all(torch.allclose(a, b, atol=1e-4, rtol=1e-4) for a, b in ((made, want), *gradients)), name
    print(f"{name}: {keeps.float().mean():.0%} of the pairs")
print(create_block_mask(masks["documents"], None, None, LENGTH, LENGTH, BLOCK_SIZE=BLOCK).to_string())
print("ok: three masks")
