# tools/bench/torch_cpu.py — the same attention in torch on the CPU: SDPA, SDPA with a dense mask, FlexAttention
import ctypes
import os
import time
import warnings

# A pool of compiler processes would still be starting while we measure.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import torch
import torch._inductor.config
import torch_peers
from torch.nn.functional import scaled_dot_product_attention

SDPA_KERNELS = {0: "plain loops of matrix products", 1: "flash"}


def keep_memory():
    """torch allocates its output at every call, while attune's bench reuses one. With this, a freed output stays with
    the process, so the next call does not fault its pages in again."""
    m_mmap_max, m_trim_threshold = -4, -1
    try:
        libc = ctypes.CDLL("libc.so.6")
        return bool(libc.mallopt(m_mmap_max, 0) and libc.mallopt(m_trim_threshold, 2**31 - 1))
    except (OSError, AttributeError):
        return False


def facts():
    return {"torch": torch.__version__, "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "parallel": torch.__config__.parallel_info().strip().splitlines(), "keeps_freed_memory": keep_memory()}


class Prepared(torch_peers.Prepared):
    def __init__(self, case, use_flex):
        torch.set_num_threads(case.threads)
        # The thread count is compiled into the kernel, but only this setting puts it into the key of the compiler's
        # cache.
        torch._inductor.config.cpp.threads = case.threads
        super().__init__(case, 1, "cpu")
        if case.direction == "backward":
            self.add("sdpa", self.sdpa_backward, grad=True)
            return
        if case.row in {"full", "causal"}:
            self.add("sdpa", lambda: self.sdpa(is_causal=case.row == "causal"))
        if case.row in {"alibi", "document"}:
            self.add("dense", lambda: self.sdpa(attn_mask=self.dense_mask()))
        if use_flex:
            self.add("flex", self.flex)
        self.compare()

    def sdpa(self, **how):
        choice = torch._fused_sdp_choice(*self.qkv, how.get("attn_mask"), 0.0, how.get("is_causal", False))
        self.notes["dense" if "attn_mask" in how else "sdpa"] = {"kernel": SDPA_KERNELS.get(choice, str(choice))}
        return lambda: scaled_dot_product_attention(*self.qkv, **how)

    def sdpa_backward(self):
        leaves = [t.requires_grad_() for t in self.qkv]
        out = scaled_dot_product_attention(*leaves, is_causal=self.case.row == "causal")
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)

    def dense_mask(self):
        at = torch.arange(self.case.seq)
        q, kv = at[:, None], at[None, :]
        kept = kv <= q
        if self.case.row == "document":
            doc = torch_peers.documents(self.case.seq, "cpu")
            bias = torch.zeros(1)
            kept = kept & (doc[:, None] == doc[None, :])
        else:
            bias = torch_peers.slopes(self.case.heads, "cpu")[:, None, None] * (kv - q)
        mask = torch.where(kept, bias, float("-inf")).to(torch_peers.DTYPES[self.case.dtype])
        return mask if mask.dim() == 2 else mask[None]

    def block(self, peer, seconds):
        """Seconds of each call, after one that is not timed: at least five calls, for at least `seconds`. As in attune
        bench."""
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
