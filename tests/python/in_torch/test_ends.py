# tests/python/in_torch/test_ends.py — processes with torch end, whatever objects of attune they hold; ranks too
"""A process that has done its work ends by itself, with status 0. As test_ends.py of NumPy."""

import gc
import os
import subprocess
import sys

import torch
from attune.torch import _mod, flex_attention
from ends import held, statuses

SETUP = """
import os
import torch
import attune.torch as at
torch.set_num_threads(1)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
q = torch.ones(1, 2, 64, 16)
slope = torch.ones(2)
causal = lambda b, h, i, j: i >= j
alibi = lambda s, b, h, i, j: s + slope[h] * (j - i)
"""
KINDS = {
    "a call": """
def made(): return [at.flex_attention(q, q, q, alibi)]
def use(x): x[0] = at.flex_attention(q, q, q, alibi)
""",
    "gradients": """
slope.requires_grad_()
def made(): return at.flex_attention(q.clone().requires_grad_(), q, q, alibi)
def use(x): torch.autograd.grad(at.flex_attention(q, q, q, alibi).sum(), slope)
""",
    "an activated attention": """
at.activate()
def made(): return torch.nn.functional.scaled_dot_product_attention(q.clone().requires_grad_(), q, q)
def use(x): torch.nn.functional.scaled_dot_product_attention(q.clone().requires_grad_(), q, q).sum().backward()
""",
    "a block mask": """
def made(): return at.create_block_mask(causal, 1, 1, 64, 64, device="cpu")
def use(x): at.flex_attention(q, q, q, block_mask=x)
""",
}
RANKS = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{meet}", rank={rank}, world_size=2)
x = torch.ones(1, 2, 600, 16)
mask = at.create_block_mask(causal, 1, 1, 600, 600, device="cpu")
with at.context_parallel(dist.group.WORLD, mask) as ranks:
    own = ranks.shard(x).requires_grad_()
    out = at.flex_attention(own, own, own, block_mask=mask)
    out.sum().backward()
    whole = ranks.gather(out)
{end}
"""


def test_a_process_ends_with_whatever_it_holds(tmp_path):
    # Torch alone aborts where a daemon thread, or an object that is destroyed then, calls it as Python ends.
    cases = held(KINDS, ["a module", "sys", "a function of atexit"])
    cases |= {f"ranks {how} a group, {rank}": RANKS.format(meet=tmp_path / how, rank=rank, end=end)
              for how, end in (("with", ""), ("without", "dist.destroy_process_group()")) for rank in range(2)}
    found, said = statuses(SETUP, cases, tmp_path / "cache")
    assert found == dict.fromkeys(cases, 0), said


def test_a_mod_may_be_gone_after_the_globals(monkeypatch):
    """As Python ends, it sets them to None."""
    said, q = [], torch.ones(1, 1, 4, 4)
    mod = lambda s, b, h, i, j: s * 3
    flex_attention(q, q, q, mod)
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    monkeypatch.setattr(_mod, "_entries", None)
    del mod
    gc.collect()
    assert said == []


AFTER_AN_EXCHANGE = """
import torch
import torch.distributed as dist
import attune.torch as at
dist.init_process_group("gloo")
x = torch.rand(1, 2, 256, 32)
mask = at.create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 256, 256, device="cpu")
with at.context_parallel(dist.group.WORLD, mask) as ranks:
    own = ranks.shard(x)
    whole = ranks.gather(at.flex_attention(own, own, own, block_mask=mask))
dist.destroy_process_group()
"""


def test_ranks_end_right_after_an_exchange(tmp_path):
    # gloo's thread may still hold the exchange's tensors: it aborted the process if Python had ended by then.
    program = tmp_path / "program.py"
    program.write_text(AFTER_AN_EXCHANGE)
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", program],
                          env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
