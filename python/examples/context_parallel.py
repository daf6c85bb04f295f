# python/examples/context_parallel.py — a layer trained on one sequence over several processes, as torchrun starts them
"""torchrun --nproc-per-node 4 python/examples/context_parallel.py

Each process holds some rows of the sequence; the gradients of the weights are summed over all of them, as in training
with data parallelism. The first process compares with the whole sequence on one.
"""

import copy
import os

import torch
import torch.distributed as dist
from attune.torch import context_parallel, create_block_mask, flex_attention
from torch import nn

LENGTH, HEADS, WIDTH, STEPS = 300, 4, 16, 3
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)  # the same weights everywhere
layer = nn.ModuleDict({"qkv": nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH), "out": nn.Linear(HEADS * WIDTH, 1)})
x, target = torch.randn(1, LENGTH, HEADS * WIDTH), torch.randn(1, LENGTH, 1)
document = torch.arange(LENGTH) // 110


def in_document(b, h, q_idx, kv_idx):  # positions of the whole sequence
    return (q_idx >= kv_idx) & (document[q_idx] == document[kv_idx])


mask = create_block_mask(in_document, None, None, LENGTH, LENGTH)


def loss_of(layer, x, target):
    q, k, v = layer["qkv"](x).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
    attended = flex_attention(q, k, v, block_mask=mask).transpose(1, 2).flatten(-2)
    return (layer["out"](attended) - target).square().sum() / LENGTH


def train(layer, rows, targets, reduce):
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(layer, rows, targets).backward()
        for weight in layer.parameters():
            reduce(weight.grad)
        optimizer.step()


alone = copy.deepcopy(layer)
with context_parallel(dist.group.WORLD, mask) as ranks:
    at = ranks.positions()  # of this rank's rows
    train(layer, x[:, at], target[:, at], dist.all_reduce)
if dist.get_rank() == 0:
    train(alone, x, target, lambda _: None)
    pairs = zip(layer.parameters(), alone.parameters())
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)
    print(f"ok: {dist.get_world_size()} ranks learn what one learns")
dist.destroy_process_group()
