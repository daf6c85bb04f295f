# tools/bench/torch_gpu.py — the same attention in torch on a GPU: SDPA, FlexAttention, and other packages' kernels
import contextlib
import gc
import importlib.metadata
import importlib.util
import inspect
import sys
from functools import partial

import torch
import torch_own
import torch_peers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}
HAS_FA4 = importlib.util.find_spec("flash_attn") is not None and importlib.util.find_spec("cutlass") is not None
NEED_FA4 = {"flex_flash", "fa4", "fa4_ordered"}
HAS_CUEQ = all(importlib.util.find_spec(name) for name in ("cuequivariance_torch", "cuequivariance_ops_torch"))
CUDNN_FLEX = (1, 26)  # the first nvidia-cudnn-frontend with flex_attention
LEFT_OUT = "not installed: its rows are left out"
ROUND = 20  # calls, as in runtime/platform/memory.cpp
LONGEST = 0.4  # seconds of a round: one of slower calls has fewer of them
FEWER_STAGES = (2, 1)  # where a mod has FlexAttention's backward ask for more shared memory than there is


def version_of(package):
    """The version of a package that is installed, or nothing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def has_cudnn_flex():
    found = version_of("nvidia-cudnn-frontend")
    return bool(found) and tuple(int(n) for n in found.split(".")[:2]) >= CUDNN_FLEX


def facts():
    return {"machine": torch.cuda.get_device_name(), **torch_peers.versions(),
            "fa4": importlib.metadata.version("flash-attn-4") if HAS_FA4 else LEFT_OUT,
            "cudnn_flex": version_of("nvidia-cudnn-frontend") if has_cudnn_flex() else LEFT_OUT,
            "cueq": version_of("cuequivariance-torch") if HAS_CUEQ else LEFT_OUT}


class Prepared(torch_peers.Prepared):
    def __init__(self, case, peers):
        gc.collect()  # the tensors of the case before, which refer to each other
        torch.cuda.empty_cache()
        super().__init__(case, case.batch, "cuda")
        if case.lengths:
            shape = (sum(case.lengths), case.heads, case.d)
            self.qkv = [torch.randn(shape, dtype=torch_peers.DTYPES[case.dtype], device="cuda") for _ in range(3)]
        self.has_grad = case.direction != "forward"
        for one in self.qkv:
            one.requires_grad_(self.has_grad)
        self.own = torch_own.Own(case, "cuda") if case.mod else None
        self.captured = self.own.captured if self.own else []
        self.usual = {}  # by peer: how its results become torch's layout, where they have another
        for peer in peers:
            if peer in NEED_FA4 and not HAS_FA4:
                continue  # facts() says so, once
            if (peer == "cudnn_flex" and not has_cudnn_flex()) or (peer == "cueq" and not HAS_CUEQ):
                continue
            if peer in ("fa4", "fa4_ordered", "cudnn_flex"):  # these call their own gradients
                self.add(peer, lambda: self.cudnn_flex() if peer == "cudnn_flex" else self.fa4(peer), self.has_grad)
                continue
            forward = {"flex": self.flex, "flex_flash": lambda: self.flex({"BACKEND": "FLASH"}),
                       "varlen": self.varlen, "cueq": lambda: partial(self.own.cueq(), *self.qkv)}.get(peer, self.sdpa)
            self.add(peer, (lambda: self.with_gradients(peer, forward())) if self.has_grad else forward, self.has_grad)
            for stages in FEWER_STAGES if self.own and self.has_grad and peer == "flex" else ():
                if "out of resource" in self.failed.get(peer, ""):
                    del self.failed[peer]
                    torch._dynamo.reset()
                    forward = partial(self.flex, {"bwd_num_stages": stages})
                    self.add(peer, lambda: self.with_gradients(peer, forward()), self.has_grad)
                    self.notes.setdefault(peer, {})["bwd_num_stages"] = stages
        if not (self.own and case.mod.dropped):  # each drops others
            self.compare()
        torch.cuda.synchronize()

    def with_gradients(self, peer, forward):
        """A call that gives the gradients of q, k, v and captured tensors, one after the other, as one flat tensor's
        parts: of a forward that ran before, or with the forward."""
        inputs, keeps = [*self.qkv, *self.captured], self.case.direction == "backward"
        with torch.enable_grad(), self.by(peer):
            out = forward()
        grad = torch.randn(out.shape, generator=torch.Generator("cuda").manual_seed(8), device="cuda", dtype=out.dtype)
        if not keeps:
            return lambda: torch.autograd.grad(forward(), inputs, grad)
        return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)

    def result(self, peer, call):
        usual = self.usual.get(peer, lambda x: x)
        if not self.has_grad:
            return usual(call()).float()
        return torch.cat([usual(x).flatten().float() for x in call()[:3]])

    def by(self, peer):
        if peer == "cudnn_flex":
            return contextlib.redirect_stdout(sys.stderr)  # it prints what it compiles, and stdout is for rows
        return sdpa_kernel(BACKENDS[peer]) if peer in BACKENDS else super().by(peer)

    def flex(self, kernel_options=None):
        return partial(self.own.flex(kernel_options), *self.qkv) if self.own else super().flex(kernel_options)

    def sdpa(self):
        if self.own:
            return partial(self.own.sdpa(), *self.qkv)
        return lambda: scaled_dot_product_attention(*self.qkv, is_causal=self.case.row != "full", **self.grouped)

    def fa4(self, peer):
        import torch_fa4  # takes seconds, and is not installed everywhere
        call, self.usual[peer] = torch_fa4.prepare(self.case, self.qkv, ordered=peer == "fa4_ordered")
        return call

    def cudnn_flex(self):
        import torch_cudnn_flex
        call, self.usual["cudnn_flex"], taken = torch_cudnn_flex.prepare(self.case, self.qkv)
        self.notes.setdefault("cudnn_flex", {})["mask_plan_seconds"] = taken
        return call

    def varlen(self):
        from torch.nn.attention.varlen import varlen_attn  # missing in older versions
        starts = torch.tensor([0, *self.case.lengths], device="cuda").cumsum(0).int()
        has_window = "window_size" in inspect.signature(varlen_attn).parameters
        causal = {"window_size": (-1, 0)} if has_window else {"is_causal": True}
        more = causal if self.case.row == "causal" else {}
        return lambda: varlen_attn(*self.qkv, starts, starts, self.case.seq, self.case.seq, **more)

    def block(self, peer, seconds):
        """Seconds of each call by the device's clock, measured as in runtime/platform/memory.cpp: rounds of consecutive
        calls between events, and the first round is not counted."""
        call, times, total = self.calls[peer], [], 0.0
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(ROUND + 1)]
        warm = False
        with torch.set_grad_enabled(self.has_grad), self.by(peer):
            marks[0].record()
            call()
            marks[1].record()
            marks[1].synchronize()
            del marks[max(3, int(LONGEST * 1e3 / marks[0].elapsed_time(marks[1]))) + 1:]
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
