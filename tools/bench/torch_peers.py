# tools/bench/torch_peers.py — the same attention by torch on the CPU: SDPA, SDPA with a dense mask, FlexAttention
import ctypes
import os
import time
import warnings

# A pool of compiling processes would still be starting while we measure.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import torch
import torch._dynamo
import torch._inductor.config
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# How far two of them may be apart, of outputs around 1; bf16 also rounds a dense mask's ALiBi.
APART = {"f32": 1e-3, "bf16": 5e-2}
SDPA_KERNELS = {0: "plain loops of matrix products", 1: "flash"}


def keep_memory():
    """torch allocates its output at every call; attune's bench writes to one that is there. With this a freed output
    stays with the process, and the next call does not have to fault in its pages anew."""
    m_mmap_max, m_trim_threshold = -4, -1
    try:
        libc = ctypes.CDLL("libc.so.6")
        return bool(libc.mallopt(m_mmap_max, 0) and libc.mallopt(m_trim_threshold, 2**31 - 1))
    except (OSError, AttributeError):
        return False


def facts():
    return {"torch": torch.__version__, "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "parallel": torch.__config__.parallel_info().strip().splitlines(), "keeps_freed_memory": keep_memory()}


class Prepared:
    """One case, ready to be called: `calls` by peer, what failed in `failed`, and facts about each in `notes`."""

    def __init__(self, case, use_flex):
        self.case, self.calls, self.failed, self.notes = case, {}, {}, {}
        torch.set_num_threads(case.threads)
        # The count is compiled into the kernel, and enters the key of the compiler's cache only from here.
        torch._inductor.config.cpp.threads = case.threads
        torch._dynamo.reset()
        torch.manual_seed(7)
        shape = (1, case.heads, case.seq, case.d)
        q, k, v = self.qkv = [torch.randn(shape, dtype=DTYPES[case.dtype]) for _ in range(3)]
        if case.direction == "backward":
            self.add("sdpa", self.sdpa_backward)
            return
        if case.row in {"full", "causal"}:
            self.add("sdpa", lambda: self.sdpa(is_causal=case.row == "causal"))
        if case.row in {"alibi", "document"}:
            self.add("dense", lambda: self.sdpa(attn_mask=self.dense_mask()))
        if use_flex:
            self.add("flex", self.flex)
        self.compare()

    def add(self, peer, prepare):
        """The first call compiles, and shows whether it can be done at all."""
        try:
            call = prepare()
            begun = time.perf_counter()
            with torch.set_grad_enabled(self.case.direction == "backward"):
                call()
            self.notes.setdefault(peer, {})["first_call_seconds"] = time.perf_counter() - begun
            self.calls[peer] = call
        except Exception as error:  # whatever a compiler throws: the row says so, and the others are measured
            self.failed[peer] = f"{type(error).__name__}: {error}"[:400]

    def sdpa(self, **how):
        choice = torch._fused_sdp_choice(*self.qkv, how.get("attn_mask"), 0.0, how.get("is_causal", False))
        self.notes["dense" if "attn_mask" in how else "sdpa"] = {"kernel": SDPA_KERNELS.get(choice, str(choice))}
        return lambda: scaled_dot_product_attention(*self.qkv, **how)

    def sdpa_backward(self):
        leaves = [t.requires_grad_() for t in self.qkv]
        out = scaled_dot_product_attention(*leaves, is_causal=self.case.row == "causal")
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)

    def slopes(self):
        heads = self.case.heads
        return torch.exp2(-8.0 * torch.arange(1, heads + 1) / heads)

    def documents(self):
        return (torch.arange(self.case.seq) * 12 // self.case.seq).int()

    def dense_mask(self):
        at = torch.arange(self.case.seq)
        q, kv = at[:, None], at[None, :]
        kept = kv <= q
        if self.case.row == "document":
            doc = self.documents()
            bias = torch.zeros(1)
            kept = kept & (doc[:, None] == doc[None, :])
        else:
            bias = self.slopes()[:, None, None] * (kv - q)
        mask = torch.where(kept, bias, float("-inf")).to(DTYPES[self.case.dtype])
        return mask if mask.dim() == 2 else mask[None]

    def flex(self):
        row, seq = self.case.row, self.case.seq
        slopes, doc = self.slopes(), self.documents()
        scores = {"alibi": lambda s, b, h, q, kv: s + slopes[h] * (kv - q),
                  "softcap": lambda s, b, h, q, kv: 30.0 * torch.tanh(s / 30.0)}
        masks = {"full": None, "document": lambda b, h, q, kv: (kv <= q) & (doc[q] == doc[kv])}
        mask = masks.get(row, lambda b, h, q, kv: kv <= q)
        begun = time.perf_counter()
        blocks = mask and create_block_mask(mask, None, None, seq, seq, device="cpu")
        self.notes["flex"] = {"block_mask_seconds": time.perf_counter() - begun}
        # fullgraph: better an error than the uncompiled attention, measured unawares.
        compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        return lambda: compiled(*self.qkv, score_mod=scores.get(row), block_mask=blocks)

    def compare(self):
        """Two peers must compute the same, or one of them is another attention than the row says."""
        if len(self.calls) < 2:
            return
        with torch.no_grad():
            first, second = (call().float() for call in self.calls.values())
        apart = (first - second).abs().max().item()
        self.notes["flex"]["apart_from_sdpa"] = apart
        if not apart <= APART[self.case.dtype]:
            self.failed["flex"] = f"differs from SDPA by {apart:.3g}"
            del self.calls["flex"]

    def block(self, peer, seconds):
        """Seconds of each call: at least five of them and that long, after one that nobody times. As attune bench."""
        call, times = self.calls[peer], []
        with torch.set_grad_enabled(self.case.direction == "backward"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
            start = time.perf_counter()
            while len(times) < 5 or time.perf_counter() - start < seconds:
                begun = time.perf_counter()
                call()
                times.append(time.perf_counter() - begun)
        return times
