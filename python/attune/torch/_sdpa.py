# python/attune/torch/_sdpa.py — scaled_dot_product_attention with torch's signature, also nested; its tutorial's layer
from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from attune._errors import said
from attune.torch._attend import Packed, attend, check_tensors, starts
from attune.torch._flex import as_autocast, check_heads, is_any_autocast, refuse_heads
from attune.torch._mod import Spelled, Texts
from attune.torch._value import refuse


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, compiled by attune.

    Any number of leading dimensions, which broadcast as torch's do; `attn_mask` of bools or floats broadcasts, and gets a gradient
    where it requires one. Nested tensors are of the jagged layout, [batch, heads, *, width].

    >>> import torch
    >>> from attune.torch import scaled_dot_product_attention
    >>> q = torch.ones(2, 4, 8, 16)
    >>> scaled_dot_product_attention(q, q, q, is_causal=True).shape
    torch.Size([2, 4, 8, 16])
    """
    if attn_mask is not None and is_causal:
        refuse("mask-twice", "both attn_mask and is_causal are given", "torch takes one of them too",
               "leave out is_causal, and clear the mask's upper triangle")
    if is_any_autocast():
        query, key, value = as_autocast(query, key, value)
    try:
        if query.is_nested:
            if attn_mask is not None:
                _refuse_nested("with attn_mask")
            return _nested(query, key, value, dropout_p, is_causal, scale, enable_gqa)
        shape, k_shape, v_shape = query.shape, key.shape, value.shape
    except AttributeError:
        check_tensors(query, key, value)
        raise
    if not shape == k_shape == v_shape and not shape[:-2] == k_shape[:-2] == v_shape[:-2] and not (
            enable_gqa and len(shape) == len(k_shape) == 4 and shape[0] == k_shape[0] and k_shape[:2] == v_shape[:2]):
        query, key, value = _broadcast(query, key, value, enable_gqa)
    q, k, v = (query, key, value) if query.dim() == 4 else (_four(query), _four(key), _four(value))
    check_heads(q, k, enable_gqa)
    keep = None if attn_mask is None else _fitting(attn_mask, query, key)
    out, _, _ = attend(spelled_sdpa(q, keep, dropout_p, is_causal), q, k, v, scale)
    return out if q is query else out.reshape(*query.shape[:-2], *out.shape[-2:])


def _four(tensor: Tensor) -> Tensor:
    """As [B, H, S, D]: all dimensions before the last three are flattened into B."""
    return tensor.flatten(0, -4) if tensor.dim() > 4 else tensor[(None,) * (4 - tensor.dim())]


def _broadcast(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Broadcasts the leading dimensions, except for heads that are shared on purpose."""
    given = query, key, value
    own = 3 if enable_gqa else 2
    if min(t.dim() for t in given) < own:
        refuse("tensor-rank", f"q, k and v have {query.dim()}, {key.dim()} and {value.dim()} dimensions",
               f"each has at least {own}: {'heads, ' if enable_gqa else ''}positions and width", "add the dimension")
    most = max(t.dim() for t in given)
    whole = []
    for extents in zip(*[(*(1,) * (most - t.dim()), *t.shape[:-own]) for t in given]):
        several = [n for n in extents if n != 1]
        if any(n != several[0] for n in several):
            if own == 2 and len(whole) == most - 3:
                check_heads(_four(query), _four(key), enable_gqa)
            refuse("tensor-shape", f"q, k and v are {list(query.shape)}, {list(key.shape)} and {list(value.shape)}",
                   "their leading dimensions must broadcast, as torch's do", "expand or reshape them")
        whole.append(several[0] if several else 1)
    query = query.expand(*whole, *query.shape[-own:])
    # Tensors of one entry are broadcast to all entries without a copy if possible.
    if most == 4 and key.shape[:2] == value.shape[:2] and key.dim() == value.dim() == 4 and (
            key.shape[1] == query.shape[1] or enable_gqa):
        return query, key, value
    return query, key.expand(*whole, *key.shape[-own:]), value.expand(*whole, *value.shape[-own:])


def _fitting(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask in the dimensions [B, H, S, D], if it broadcasts."""
    if not isinstance(mask, Tensor):
        refuse("tensor-array", f"`attn_mask` is {said(mask)}", "it is a tensor of bools or floats",
               "write torch.tensor(mask), or a mask_mod for flex_attention")
    whole = (*query.shape[:-1], key.shape[-2])
    own = (1,) * (len(whole) - mask.dim()) + tuple(mask.shape)
    if len(own) > len(whole) or any(n != m and n != 1 for n, m in zip(own, whole)):
        refuse("mask-shape", f"attn_mask is {list(mask.shape)}",
               f"it must broadcast to {list(whole)}: q's dimensions, and one for each key", "reshape it")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        refuse("mask-type", f"attn_mask holds {mask.dtype}",
               "bools keep pairs, and floats are added to scores", "convert it with .bool()")
    if query.dim() > 4:
        return mask.reshape(own).expand(*whole[:-3], *own[-3:]).flatten(0, -4)
    return mask


_PLAIN, _CAUSAL = Spelled(Texts()), Spelled(Texts(mask="kv <= q"))


def spelled_sdpa(q: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool) -> Spelled:
    if attn_mask is None and dropout_p == 0.0:
        return _CAUSAL if is_causal else _PLAIN
    score = prob = ""
    kept = ["kv <= q"] if is_causal else []
    captures: dict[str, Tensor] = {}
    if attn_mask is not None:
        captures["attn_mask"] = attn_mask
        at = zip(attn_mask.shape, ("b", "h", "q", "kv")[4 - attn_mask.dim():])
        read = f"attn_mask[{', '.join(['0' if n == 1 else i for n, i in at])}]"
        if attn_mask.dtype == torch.bool:
            kept.append(read)
        else:
            score = f"s + {read}"
    if dropout_p != 0.0:
        prob, captures["seed"] = dropping(dropout_p, q.device)
    return Spelled(Texts(score, " && ".join(kept), prob), tuple(captures), tuple(captures.values()))


def dropping(share: float, device: torch.device) -> tuple[str, Tensor]:
    """Dropout as a prob mod, and the seed that it captures, from torch's generator: torch.manual_seed repeats it."""
    return dropped(share), torch.randint(0, 2**31 - 1, (), dtype=torch.int32, device=device)


def dropped(share: float) -> str:
    """Dropout as a prob mod, which reads `seed`."""
    if not isinstance(share, (int, float)) or not 0.0 <= share <= 1.0:
        refuse("bad-argument", f"`dropout_p` cannot be {said(share)}", "it is the fraction of pairs that dropout removes",
               "pass a number from 0 to 1")
    keep = 1.0 - share
    return f"dropout({keep!r}f, seed[])" if keep else "kept(seed[], 0) ? p : 0.0f"


def _refuse_nested(how: str) -> NoReturn:
    refuse("tensor-layout", f"nested tensors {how}",
           "attune supports jagged ones, [batch, heads, *, width], for q, k and v alike, and no attn_mask",
           "convert them, or write varlen_attention with a mask_mod")


def _nested(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool, scale: float | None,
            enable_gqa: bool) -> Tensor:
    if not all(t.is_nested and t.layout == torch.jagged and t.dim() == 4 for t in (query, key, value)):
        _refuse_nested("that do not fit")
    q, k, v = (_Jagged(t) for t in (query, key, value))
    if not enable_gqa and q.rows.shape[1] != k.rows.shape[1]:
        refuse_heads(q.rows.shape[1], k.rows.shape[1])
    if k.starts is not v.starts and not (k.starts.shape == v.starts.shape and torch.equal(k.starts, v.starts)):
        refuse("tensor-shape", "k and v have sequences of different lengths", "each key has one value",
               "make v with the offsets of k: nested_tensor_from_jagged(v, k.offsets())")
    packed = Packed(starts(q.starts), starts(k.starts), q.longest, k.longest)
    out, _, _ = attend(spelled_sdpa(q.rows, None, dropout_p, is_causal), q.rows, k.rows, v.rows, scale, packed=packed)
    return torch.nested.nested_tensor_from_jagged(out, q.starts).transpose(1, 2)


class _Jagged:
    """A jagged tensor [batch, heads, *, width] as rows without holes, and where its sequences start."""

    def __init__(self, nested: Any) -> None:
        if getattr(nested, "_ragged_idx", 2) != 2:
            refuse("tensor-layout", "the sequences of a nested tensor are not its third dimension",
                   "attune supports jagged ones, [batch, heads, *, width]", "write .transpose(1, 2)")
        self.longest = int(nested._get_max_seqlen()) if nested.is_cuda else 0  # cached by torch
        self.rows: Tensor = nested.transpose(1, 2).values()
        self.starts: Tensor = nested.offsets()
        lengths = nested.lengths()
        if lengths is None:
            return
        # Drops rows between sequences.
        ends = torch.cumsum(lengths, 0)
        begins = torch.repeat_interleave(self.starts[:-1] - (ends - lengths), lengths)
        self.rows = self.rows.index_select(0, begins + torch.arange(begins.numel(), device=begins.device))
        self.starts = torch.cat([ends.new_zeros(1), ends]).to(self.starts.dtype)


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
