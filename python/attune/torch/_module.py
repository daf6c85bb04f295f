# python/attune/torch/_module.py — CausalSelfAttention: the layer of torch's tutorial on scaled_dot_product_attention
"""A layer of self-attention with its projections."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attune.torch._sdpa import scaled_dot_product_attention
from attune.torch._value import refuse


class CausalSelfAttention(nn.Module):
    """The layer of torch's tutorial on scaled_dot_product_attention: the same arguments and the same weights.

    It takes [batch, tokens, embed_dimension], or a jagged tensor of it. The tutorial's is causal in training alone;
    this one is when it is evaluated, too.

    >>> import torch
    >>> from attune.torch import CausalSelfAttention
    >>> layer = CausalSelfAttention(num_heads=4, embed_dimension=32, is_causal=True)
    >>> layer(torch.randn(2, 10, 32)).shape
    torch.Size([2, 10, 32])
    """

    def __init__(self, num_heads: int, embed_dimension: int, bias: bool = False, is_causal: bool = False,
                 dropout: float = 0.0) -> None:
        super().__init__()
        if num_heads < 1 or embed_dimension % num_heads:
            refuse("bad-argument", f"{num_heads} heads share {embed_dimension} dimensions",
                   "all heads have the same width", "take a number of heads that divides embed_dimension")
        self.c_attn = nn.Linear(embed_dimension, 3 * embed_dimension, bias=bias)
        self.c_proj = nn.Linear(embed_dimension, embed_dimension, bias=bias)
        self.resid_dropout = nn.Dropout(dropout)
        self.num_heads, self.embed_dimension = num_heads, embed_dimension
        self.is_causal, self.dropout = is_causal, dropout

    def forward(self, x: Tensor) -> Tensor:
        """Attention of each sequence to itself."""
        heads = self.num_heads, self.embed_dimension // self.num_heads
        q, k, v = [torch.unflatten(part, -1, heads).transpose(1, 2) for part in torch.chunk(self.c_attn(x), 3, -1)]
        dropout = self.dropout if self.training else 0.0
        out = scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.is_causal)
        return self.resid_dropout(self.c_proj(out.transpose(1, 2).flatten(-2)))
