# python/examples/sdpa.py — torch's tutorial on scaled_dot_product_attention: unedited code, and packed batches
"""After activate(), torch's function runs attune's kernels. Sequences of different lengths are jagged tensors."""

import attune.torch
import torch
import torch.nn.functional as F
from torch import nn


class CausalSelfAttention(nn.Module):
    """The tutorial's layer."""

    def __init__(self, num_heads: int, embed_dimension: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.c_attn = nn.Linear(embed_dimension, 3 * embed_dimension, bias=False)
        self.c_proj = nn.Linear(embed_dimension, embed_dimension, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(-2))


def step(layer, x):
    """The output, and the gradients of the weights."""
    out = layer(x)
    return out, *torch.autograd.grad(out.square().mean(), list(layer.parameters()))


def same(ours, theirs):
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs))


torch.manual_seed(0)
layer, x = CausalSelfAttention(num_heads=4, embed_dimension=64), torch.randn(3, 50, 64)
want = step(layer, x)
attune.torch.activate()
page = attune.torch.explain(lambda: step(layer, x))
made = step(layer, x)
attune.torch.deactivate()
assert same(made, want)
print("\n".join(line for line in page.splitlines() if line.startswith(("forward", "backward"))))

# Masks of bools or floats that broadcast: here by head.
q, k, v = torch.randn(3, 2, 4, 40, 16).unbind()
bias = torch.randn(4, 1, 40)
attune.torch.activate()
made = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
attune.torch.deactivate()
assert same([made], [F.scaled_dot_product_attention(q, k, v, attn_mask=bias)])

# Sequences of different lengths without padding: attune's function, which takes jagged tensors on the CPU too.
sentences = [torch.randn(n, 4, 16) for n in (7, 31, 12)]
jagged = torch.nested.nested_tensor(sentences, layout=torch.jagged).transpose(1, 2)
out = attune.torch.scaled_dot_product_attention(jagged, jagged, jagged, is_causal=True)
for part, sentence in zip(out.unbind(), sentences):
    alone = sentence.transpose(0, 1)[None]
    assert same([part], F.scaled_dot_product_attention(alone, alone, alone, is_causal=True))
print("ok: the tutorial's layer, a mask, a jagged batch")
