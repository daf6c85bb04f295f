# tools/bench/torch_gpu.py — the same attention in torch on a GPU: SDPA by cuDNN, SDPA by its flash kernel, Flex
import inspect

import torch
import torch_peers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
ROUND = 20  # calls, as in runtime/cuda/clock.cpp


def facts():
    version = torch.backends.cudnn.version() or 0
    return {"machine": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
            "cudnn": f"{version // 10000}.{version // 100 % 100}.{version % 100}"}


class Prepared(torch_peers.Prepared):
    def __init__(self, case, peers):
        super().__init__(case, case.batch, "cuda")
        if case.lengths:
            shape = (sum(case.lengths), case.heads, case.d)
            self.qkv = [torch.randn(shape, dtype=torch_peers.DTYPES[case.dtype], device="cuda") for _ in range(3)]
        for peer in peers:
            self.add(peer, {"flex": self.flex, "varlen": self.varlen}.get(peer, lambda: self.sdpa))
        self.compare()
        torch.cuda.synchronize()

    def by(self, peer):
        return sdpa_kernel(BACKENDS[peer]) if peer in BACKENDS else super().by(peer)

    def sdpa(self):
        return scaled_dot_product_attention(*self.qkv, is_causal=self.case.row != "full",
                                            **self.grouped)

    def varlen(self):
        from torch.nn.attention.varlen import varlen_attn  # missing in older versions
        starts = torch.tensor([0, *self.case.lengths], device="cuda").cumsum(0).int()
        has_window = "window_size" in inspect.signature(varlen_attn).parameters
        causal = {"window_size": (-1, 0)} if has_window else {"is_causal": True}
        more = causal if self.case.row == "causal" else {}
        return lambda: varlen_attn(*self.qkv, starts, starts, self.case.seq, self.case.seq, **more)

    def block(self, peer, seconds):
        """Seconds of each call by the device's clock, measured as in runtime/cuda/clock.cpp: rounds of consecutive
        calls between events, and the first round is not counted."""
        call, times, total = self.calls[peer], [], 0.0
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(ROUND + 1)]
        warm = False
        with torch.no_grad(), self.by(peer):
            while total < seconds or not times:
                marks[0].record()
                for mark in marks[1:]:
                    call()
                    mark.record()
                marks[-1].synchronize()
                total += marks[0].elapsed_time(marks[-1]) / 1e3
                if warm:
                    times += [a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:])]
                warm = True
        return times
