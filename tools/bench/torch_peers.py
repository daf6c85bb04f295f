# tools/bench/torch_peers.py — the known rows of attune bench in torch, and calls that may fail
import contextlib
import time

import torch
import torch._dynamo
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# How far two results may differ, by the largest number of one if that is above 1; bf16 also rounds the ALiBi of a dense
# mask.
APART = {"f32": 1e-3, "bf16": 5e-2}


def versions():
    cudnn = torch.backends.cudnn.version() or 0
    return {"torch": torch.__version__, "cuda": torch.version.cuda,
            "cudnn": f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}"}


def slopes(heads, device):
    return torch.exp2(-8.0 * torch.arange(1, heads + 1, device=device) / heads)


def documents(seq, device):
    return (torch.arange(seq, device=device) * 12 // seq).int()


def table_of(case, device):
    """Row `relative`: a bias for each distance of a query and a key; the same for all peers."""
    return torch.randn(2 * case.seq, generator=torch.Generator(device).manual_seed(9), device=device)


def mods(case, device):
    """score_mod and mask_mod of a row; None where the row has none."""
    slope, doc = slopes(case.heads, device), documents(case.seq, device)
    table = table_of(case, device).requires_grad_(getattr(case, "grads", False))
    scores = {"alibi": lambda s, b, h, q, kv: s + slope[h] * (kv - q),
              "softcap": lambda s, b, h, q, kv: 30.0 * torch.tanh(s / 30.0),
              "relative": lambda s, b, h, q, kv: s + table[q - kv + case.seq]}
    masks = {"full": None, "document": lambda b, h, q, kv: (kv <= q) & (doc[q] == doc[kv]),
             "window": lambda b, h, q, kv: (kv <= q) & (q - kv < 1024),
             "prefix": lambda b, h, q, kv: (kv <= q) | (kv < 1024)}
    captured = [table] if table.requires_grad and case.row == "relative" else []
    return scores.get(case.row), masks.get(case.row, lambda b, h, q, kv: kv <= q), captured


class Prepared:
    """One case, ready to call: `calls` by peer, errors in `failed`, and facts about each peer in `notes`."""

    def __init__(self, case, batch, device):
        self.case, self.device, self.calls, self.failed, self.notes = case, device, {}, {}, {}
        torch._dynamo.reset()
        torch.manual_seed(7)
        kv_heads, kv_seq = getattr(case, "kv_heads", 0) or case.heads, getattr(case, "kv_seq", 0) or case.seq
        of_q, of_kv = (batch, case.heads, case.seq, case.d), (batch, kv_heads, kv_seq, case.d)
        self.qkv = [torch.randn(shape, dtype=DTYPES[case.dtype], device=device) for shape in (of_q, of_kv, of_kv)]
        self.grouped = {"enable_gqa": True} if kv_heads != case.heads else {}
        self.captured = []  # tensors that mods read, and whose gradients are asked for

    def by(self, peer):
        """The context that a peer's calls run in."""
        return contextlib.nullcontext()

    def add(self, peer, prepare, grad=False):
        """The first call compiles, and shows whether the peer can do this at all."""
        try:
            call = prepare()
            begun = time.perf_counter()
            with torch.set_grad_enabled(grad), self.by(peer):
                call()
            self.notes.setdefault(peer, {})["first_call_seconds"] = time.perf_counter() - begun
            self.calls[peer] = call
        except Exception as error:  # any compiler error: the row reports it, and the others are measured
            self.failed[peer] = f"{type(error).__name__}: {error}"[:400]

    def flex(self, kernel_options=None):
        score, mask, self.captured = mods(self.case, self.device)
        seq = self.case.seq
        begun = time.perf_counter()
        blocks = mask and create_block_mask(mask, None, None, seq, seq, device=self.device)
        self.notes.setdefault("flex", {})["block_mask_seconds"] = time.perf_counter() - begun
        # fullgraph: an error is better than measuring uncompiled attention unnoticed.
        compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        return lambda: compiled(*self.qkv, score_mod=score, block_mask=blocks, kernel_options=kernel_options,
                                **self.grouped)

    has_grad = False

    def result(self, peer, call):
        return call().float()

    def compare(self):
        """All peers must compute the same; otherwise one of them computes another attention than the row's."""
        if len(self.calls) < 2:
            return
        found = {}
        for name, call in self.calls.items():
            with torch.set_grad_enabled(self.has_grad), self.by(name):
                found[name] = self.result(name, call)
        first, *others = found
        for name in others:
            apart = ((found[first] - found[name]).abs().max() / found[first].abs().max().clamp(min=1)).item()
            self.notes[name][f"apart_from_{first}"] = apart
            if not apart <= APART[self.case.dtype]:
                self.failed[name] = f"differs from {first} by {apart:.3g}"
                del self.calls[name]
