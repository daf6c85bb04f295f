# tests/python/in_torch/test_long_runs.py — memory, open files and what is kept stay the same over thousands of steps
"""Mixed steps: SDPA through activate(), flex_attention, a decode step, paged attention, lengths that change. As a program,
`test_long_runs.py 100000` runs that many steps and prints what it measured on the way."""

import gc
import os
import sys

import attune
import torch
import torch.nn.functional as F
from attune.torch import _activate, append, create_block_mask, flex_attention, paged_attention

_STEPS = 2000


class Steps:
    """Steps of a few kinds in turn."""

    def __init__(self):
        self.masks = {n: create_block_mask(lambda b, h, i, j: (i >= j) & (i - j <= 12), None, None, n, n)
                      for n in (16, 24)}
        self.pools = torch.zeros(2, 8, 2, 4, 16)
        self.table = torch.arange(8, dtype=torch.int32).reshape(2, 4)
        self.slopes = torch.rand(4, requires_grad=True)

    def __call__(self, i):
        n, b = (16, 24)[i % 2], 1 + i // 2 % 3
        leaves = [torch.randn(b, h, n, 16, requires_grad=True) for h in (4, 2, 2)]
        out = F.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
        out = out + flex_attention(*leaves, block_mask=self.masks[n], enable_gqa=True)
        out = out + flex_attention(*leaves, lambda s, b, h, i, j: s + self.slopes[h] * (j - i), enable_gqa=True)
        out.sum().backward()
        self.slopes.grad = None
        q, k, v = (t.detach() for t in leaves)
        with torch.no_grad():
            F.scaled_dot_product_attention(q[:, :, :1], k[:, :, :1 + i % n], v[:, :, :1 + i % n], enable_gqa=True)
            kv_len = torch.tensor([1 + i % 16, 1 + i // 3 % 16], dtype=torch.int32)
            new = torch.randn(2, 2, 1, 16)
            append(new, new, *self.pools, kv_len=kv_len, page_table=self.table)
            paged_attention(q[:1, :, :1].expand(2, -1, -1, -1), *self.pools, kv_len, self.table, enable_gqa=True)


def measured():
    """Kilobytes of the process, its open files, and what attune keeps."""
    gc.collect()
    with open("/proc/self/statm", encoding="utf-8") as file:
        pages = int(file.read().split()[1])
    return {"kilobytes": pages * os.sysconf("SC_PAGE_SIZE") // 1024, "files": len(os.listdir("/proc/self/fd")),
            "objects": len(gc.get_objects()), "warned": len(_activate._warned)}


def run(steps, tell):
    """What was measured after a quarter of the steps, and after all."""
    torch.manual_seed(0)
    attune.torch.activate()
    try:
        step, early = Steps(), None
        for i in range(steps):
            step(i)
            if (i + 1) % max(1, steps // 4) == 0:
                now = measured()
                tell(i + 1, now)
                early = early or now
        return early, now
    finally:
        attune.torch.deactivate()


def test_thousands_of_steps_keep_nothing():
    early, late = run(_STEPS, lambda *_: None)
    assert late["kilobytes"] - early["kilobytes"] < 8192, (early, late)
    assert late["objects"] - early["objects"] < 500, (early, late)
    for what in ("files", "warned"):
        assert late[what] == early[what], what


if __name__ == "__main__":
    run(int(sys.argv[1]), lambda at, now: print(at, now, flush=True))
