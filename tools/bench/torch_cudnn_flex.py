# tools/bench/torch_cudnn_flex.py — cudnn.flex_attention on the rows with a mask and no score mod, for torch_gpu.py
import contextlib
import sys
import time

import torch
from cudnn.flex_attention import create_mask_plan, flex_attn_func


def intervals(case):
    """The keys that each query sees, as [0, F0) + [F1, F2) + ..., of one sequence: [F0, F1, ...]."""
    q = torch.arange(case.seq, device="cuda")
    end = q + 1
    if case.row == "full":
        return [torch.full_like(q, case.seq)]
    if case.row == "causal":
        return [end]
    if case.row == "prefix":
        return [end.clamp(min=min(1024, case.seq))]
    begin = (q - 1023).clamp(min=0) if case.row == "window" else -(-(q * 12 // case.seq) * case.seq // 12)
    return [torch.zeros_like(q), begin, end]


def prepare(case, qkv):
    """The call of a case, how its results become torch's layout, and the seconds that its mask plan took."""
    keep = case.direction != "forward"
    # Its own layout: batch, sequence, heads, width.
    q, k, v = (x.detach().transpose(1, 2).contiguous().requires_grad_(keep) for x in qkv)
    seen = torch.stack(intervals(case)).int().repeat(1, case.batch).contiguous()[None]
    begun = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr), torch.set_grad_enabled(keep):  # it prints what it compiles
        plan = create_mask_plan(seen, q, k, v, build_backward=keep)
    torch.cuda.synchronize()
    taken = time.perf_counter() - begun
    usual = lambda x: x.transpose(1, 2)
    forward = lambda: flex_attn_func(q, k, v, mask_plan=plan, return_lse=True)[0]
    if not keep:
        return forward, usual, taken
    with contextlib.redirect_stdout(sys.stderr), torch.enable_grad():
        out = forward()
    grad = torch.randn(usual(out).shape, generator=torch.Generator("cuda").manual_seed(8), device="cuda", dtype=q.dtype)
    grad = usual(grad).contiguous()
    if case.direction == "backward":
        return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), usual, taken
    return lambda: torch.autograd.grad(forward(), (q, k, v), grad), usual, taken
