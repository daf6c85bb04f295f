# python/examples/ranks.py — one long sequence over four processes: each holds some rows, and gets the keys that it needs
"""Run as it is: it starts its processes, which need only a process group. context_parallel.py is for torchrun."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from attune.torch import context_parallel, create_block_mask, flex_attention

RANKS, LENGTH = 4, 1900


def on_rank(rank: int, meet: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    x, slope = torch.randn(1, 4, LENGTH, 32), torch.rand(4, requires_grad=True)
    document = torch.arange(LENGTH) // 700

    # [mods]
    def alibi(score, b, h, q_idx, kv_idx):  # positions of the whole sequence, on every rank
        return score + slope[h] * (kv_idx - q_idx)

    def in_document(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (document[q_idx] == document[kv_idx])

    mask = create_block_mask(in_document, None, None, LENGTH, LENGTH)
    with context_parallel(dist.group.WORLD, mask) as ranks:
        q = ranks.shard(x).requires_grad_()  # or load these rows alone: ranks.positions() says which
        out = flex_attention(q, q, q, alibi, mask)
        out.square().sum().backward()  # of this rank's rows; slope.grad is of all ranks
        whole = ranks.gather(out)
    # [mods]

    shared, slope.grad = slope.grad, None
    one = flex_attention(x, x, x, alibi, mask)
    one.square().sum().backward()
    assert torch.equal(whole, one) and torch.allclose(shared, slope.grad, rtol=1e-4)
    if rank == 0:
        print(f"ok: {RANKS} ranks give the bits of one")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(on_rank, (os.path.join(folder, "meet"),), RANKS)
