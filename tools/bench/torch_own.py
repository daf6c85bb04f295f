# tools/bench/torch_own.py — own_mods.py's mods in torch: FlexAttention, SDPA and cuEquivariance where they have them
import re

import torch
import torch._functorch.config
import torch_peers
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

torch._functorch.config.donated_buffer = False  # the same backward is called again and again
TYPES = {**torch_peers.DTYPES, "i32": torch.int32}
WORDS = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "clamp": torch.clamp, "f32": lambda x: x.float()}


class Own:
    """A mod with its tensors, and calls of it for q, k and v."""

    def __init__(self, case, device):
        self.case, self.device = case, device
        self.texts, shapes = case.mod.of(case)
        draw = torch.Generator(device).manual_seed(9)
        self.tensors = {name: self.tensor(text, draw) for name, text in shapes.items()}
        self.captured = [self.tensors[name].requires_grad_() for name in case.mod.learned if case.grads]
        self.heads, self.positions = (torch.arange(n, device=device) for n in (case.heads, case.seq))
        self.mask = self.function("mask")
        self.score = self.function("score", "s, ") if self.texts["score"] != "s" else None
        self.factor = self.function("prob", "p, ") if self.texts["prob"].startswith("p * ") else None
        self.sink = self.function("sink") if self.texts["sink"] else None

    def tensor(self, text, draw):
        """As attune bench fills it: random normal, and Ints with sorted ids."""
        dtype, *shape = re.findall(r"\w+", text)
        shape = [int(n) for n in shape]
        if dtype == "i32":
            return (torch.arange(shape[0], device=self.device) * 12 // shape[0]).int()
        return torch.randn(shape, generator=draw, device=self.device, dtype=TYPES[dtype])

    def function(self, name, first=""):
        """A text of attune as a function of torch's; the languages differ in `&&`, and in the division of an Int."""
        text = self.texts[name].replace("&&", "&").replace("b / ", "b // ")
        of_tensors = eval(f"lambda {', '.join(self.tensors)}: lambda {first}b, h, q, kv: {text}", WORDS)
        return of_tensors(*self.tensors.values())

    def values(self, v):
        """A factor of probabilities that a head or a key has is one of its values."""
        return v if not self.factor else (
            v * self.factor(1.0, 0, self.heads[:, None], 0, self.positions)[..., None]).to(v.dtype)

    def flex(self, options=None):
        """FlexAttention, compiled with what stands around it."""
        c = self.case
        blocks = create_block_mask(self.mask, c.batch if "[b" in c.mod.mask else None, None, c.seq, c.seq,
                                   device=self.device)
        more = {"score_mod": self.score, "block_mask": blocks, "kernel_options": options, "enable_gqa": c.kv_heads > 0}

        def whole(q, k, v):
            if not self.sink:
                return flex_attention(q, k, self.values(v), **more)
            out, lse = flex_attention(q, k, v, return_lse=True, **more)
            return (out * torch.sigmoid(lse - self.sink(0, self.heads[:, None], 0, 0))[..., None]).to(out.dtype)

        return torch.compile(whole, dynamic=False, fullgraph=True)

    def sdpa(self):
        """SDPA; a dense bias is its mask, which is made before, with what the mod's mask drops."""
        c, more = self.case, {"is_causal": True, "dropout_p": self.case.mod.dropped}
        if c.mod.bias:
            bias = self.tensors[c.mod.bias]
            kept = self.mask(torch.arange(c.batch, device=self.device)[:, None, None, None], self.heads[:, None, None],
                             self.positions[:, None], self.positions)
            dense = torch.where(kept, bias if bias.dim() == 4 else bias[None], -torch.inf)
            more = {"attn_mask": dense.expand(c.batch, c.heads, c.seq, c.seq)}
        return lambda q, k, v: scaled_dot_product_attention(q, k, self.values(v), **more)

    def cueq(self):
        """cuEquivariance's triangle attention: batch entries are its rows of residues, all with the one bias."""
        from cuequivariance_torch import triangle_attention  # not installed everywhere
        c, rows = self.case, lambda x: x.unflatten(0, (-1, self.case.seq))
        entries = torch.arange(c.batch, device=self.device)[:, None, None, None]
        bias, kept = self.tensors[c.mod.bias][:, None], rows(self.mask(entries, 0, 0, self.positions))
        return lambda q, k, v: triangle_attention(rows(q), rows(k), rows(v), bias, kept).flatten(0, 1)
