# tests/python/in_torch/test_parallel.py — flex_attention over two and four processes against one: results, gradients,
# failures
"""context_parallel by gloo, and by NCCL where there are as many GPUs. Functions called on_… run on every rank."""

import os
import subprocess
import sys
import time

import attune
import pytest
import torch
import torch.distributed as dist
from attune.torch import context_parallel, create_block_mask, flex_attention, scaled_dot_product_attention
from fleet import Fleet

RANKS = 4


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    made = Fleet(RANKS, tmp_path_factory.mktemp("fleet"))
    yield made
    made.end()


@pytest.fixture(scope="module", params=["4 on the host", "2 GPUs", "4 GPUs"])
def ranks(request, tmp_path_factory):
    """A fleet on the host, and on the GPUs of this machine."""
    count, device = int(request.param[0]), "cpu" if "host" in request.param else "cuda"
    if device == "cpu":
        yield request.getfixturevalue("fleet")
        return
    if torch.cuda.device_count() < count:
        pytest.skip(f"{count} ranks need as many GPUs, and there are {torch.cuda.device_count()}")
    made = Fleet(count, tmp_path_factory.mktemp("gpus"), device)
    yield made
    made.end()


def _causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def _case(name):
    """Mods in coordinates of the whole sequence, lengths, and what they capture that has a gradient."""
    torch.manual_seed(7)
    slope, bias = torch.randn(4, requires_grad=True), torch.randn(4, 2000, requires_grad=True)
    document = torch.arange(2000) // 270
    masks = {"causal": _causal, "window": lambda b, h, q, kv: (q >= kv) & (q - kv < 100),
             "documents": lambda b, h, q, kv: (document[q] == document[kv]) & (q >= kv),
             "by head": lambda b, h, q, kv: (q >= kv) & (q - kv < 60 * (h + 1))}
    scores = {"alibi": lambda s, b, h, q, kv: s + slope[h] * (kv - q),
              "bias": lambda s, b, h, q, kv: s + bias[h, q] - torch.tanh(bias[h, kv])}
    mask, _, score = name.partition("+")
    return masks.get(mask), scores.get(score), {"alibi": [slope], "bias": [bias]}.get(score, [])


def _backward(out, lse, w, u):
    ((out * w).sum() + (lse * u).sum()).backward()


def on_ranks(rank, name, lengths, how):
    mask_mod, score, captured = _case(name)
    q_len, kv_len = lengths
    shapes = ((2, 4, q_len, 16), (2, 2, kv_len, 16), (2, 2, kv_len, 24))
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    w, u = torch.randn(2, 4, q_len, 24), torch.randn(2, 4, q_len)
    mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, q_len, kv_len)
    out, lse = flex_attention(q, k, v, score, mask, enable_gqa=True, return_lse=True)
    _backward(out, lse, w, u)
    one = [out.detach(), lse.detach(), *[t.grad for t in (q, k, v, *captured)]]
    for t in captured:
        t.grad = None
    with context_parallel(dist.group.WORLD, mask, lengths=lengths, **how) as ranks:
        mine = [ranks.shard(t.detach(), keys=n > 0).requires_grad_() for n, t in enumerate((q, k, v))]
        assert mine[0].shape[2] == len(ranks.positions())
        out, lse = flex_attention(*mine, score, mask, enable_gqa=True, return_lse=True)
        _backward(out, lse, ranks.shard(w), ranks.shard(u, dim=-1))
        made = [ranks.gather(out), ranks.gather(lse, dim=-1)]
        made += [ranks.gather(t.grad, keys=n > 0) for n, t in enumerate(mine)]
        made += [t.grad for t in captured]
    same = [torch.equal(a, b) for a, b in zip(made, one)]
    far = max((a - b).abs().max().item() / (1 + b.abs().max().item()) for a, b in zip(made, one))
    return same[:3], far, len(made), mine[0].shape[2]


GATHER = {"travel": "gather"}


@pytest.mark.parametrize("name, lengths, how", [
    ("none", (1000, 1000), GATHER),
    ("causal", (1537, 1537), GATHER),
    ("causal+alibi", (900, 900), GATHER),  # three blocks for four ranks: one has nothing
    ("window+bias", (1999, 1999), GATHER),
    ("documents+bias", (1537, 1537), GATHER),
    ("by head+alibi", (1600, 1600), {"assignment": "contiguous"}),
    ("causal+bias", (1600, 1600), {"assignment": "greedy"}),
    ("none+alibi", (700, 1300), GATHER),
    ("causal", (1537, 1537), {"travel": "ring"}),
    ("none", (5, 1300), {"travel": "decode"}),
])
def test_results_are_those_of_one_rank(fleet, name, lengths, how):
    """Sharded, computed and gathered back: the output, lse and dq to the bit where nothing is merged."""
    made = fleet.run(on_ranks, name, lengths, how)
    assert sum(rows for *_, rows in made) == lengths[0]
    for same, far, count, _ in made:
        assert count == 5 + ("+" in name)
        assert far < 2e-6
        if how.get("travel") not in ("ring", "decode"):
            assert same == [True, True, True]


# ---- as torch tests its own context parallelism: sharded, computed and gathered back, beside one rank and plain torch


def _dense(q, k, v, score, mask):
    """Attention by plain torch, with all scores at once."""
    share = q.shape[1] // k.shape[1]
    s = q @ k.repeat_interleave(share, 1).mT / q.shape[-1] ** 0.5
    at = [torch.arange(n, device=q.device).view([-1 if d == i else 1 for d in range(4)]) for i, n in enumerate(s.shape)]
    s = score(s, *at) if score else s
    s = s.masked_fill(~mask(*at), -torch.inf) if mask else s
    return s.softmax(-1) @ v.repeat_interleave(share, 1), s.logsumexp(-1)


def on_rows(rank, device, name, heads, length, width):
    """How far results over ranks are from those of one, and those of one from plain torch in f32, by norm; and which of
    output, lse and dq have the same bits."""
    torch.manual_seed(9)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    slope = torch.exp2(-8 * torch.arange(1, heads[0] + 1, device=device) / heads[0]).requires_grad_()
    document = torch.searchsorted(torch.tensor([100, 470, 471, 1300], device=device),
                                  torch.arange(length, device=device), right=True)
    before, _, after = name.partition("+")
    mask_mod = {"causal": _causal, "window": lambda b, h, q, kv: (q >= kv) & (q - kv < 200),
                "documents": lambda b, h, q, kv: (q >= kv) & (document[q] == document[kv])}.get(before)
    score = {"alibi": lambda s, b, h, q, kv: s + slope[h] * (kv - q),
             "softcap": lambda s, b, h, q, kv: 5 * torch.tanh(s / 5)}.get(after)
    q, w, k, v = (torch.randn(1, n, length, width, device=device).to(dtype) for n in (*heads[:1] * 2, *heads[1:] * 2))
    u = torch.randn(1, heads[0], length, device=device)
    mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, length, length)

    def results(function, tensors, w, u):
        leaves = [t.detach().requires_grad_() for t in tensors]
        out, lse = function(*leaves)
        slope.grad = None
        _backward(out, lse, w, u)
        return [out.detach(), lse.detach(), *[t.grad for t in leaves]], [slope.grad] if after == "alibi" else []

    def call(q, k, v):
        return flex_attention(q, k, v, score, mask, enable_gqa=True, return_lse=True)

    def dense(*qkv):
        return _dense(*qkv, score, mask_mod)

    def all_of(made, captured):
        return made + captured

    plain = all_of(*results(dense, [t.float() for t in (q, k, v)], w.float(), u))
    one = all_of(*results(call, (q, k, v), w, u))
    with context_parallel(dist.group.WORLD, mask, lengths=(length, length)) as ranks:
        made, captured = results(call, ranks.shard(q, k, v), ranks.shard(w), ranks.shard(u, dim=-1))
        assert all(t.device.type == device for t in made)
        made = [ranks.gather(t, dim=-1 if n == 1 else -2) for n, t in enumerate(made)] + captured

    def far(some, others):
        return max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in zip(some, others))

    assert len(made) == len(one) == len(plain) == 5 + (after == "alibi")
    return far(made, one), far(one, plain), [torch.equal(a, b) for a, b in zip(made[:3], one)]


HEADS = [(4, 4), (16, 2)]


@pytest.mark.parametrize("name, heads, length, width", [
    *[(name, heads, 1001, 64) for name in ("none", "causal", "documents", "window", "causal+alibi", "causal+softcap")
      for heads in HEADS],
    ("documents+alibi", (4, 4), 1537, 128),
    ("causal", (4, 4), 1919, 128),
    ("causal", (16, 2), 385, 128),  # two blocks, the second of one row; some ranks have nothing
    ("causal+softcap", (4, 4), 100, 64),
])
def test_rows_as_torch_tests_them(ranks, name, heads, length, width):
    if ranks.device == "cpu":
        width //= 4
    for far, from_plain, same in ranks.run(on_rows, ranks.device, name, heads, length, width):
        assert same[:2] == [True, True]  # by kernels with the same tiles
        assert far < (1e-6 if ranks.device == "cpu" else 1e-2)
        assert from_plain < (1e-5 if ranks.device == "cpu" else 3e-2)


def on_layers(rank, device):
    """Two masks that share an assignment, one of them unknown before; other heads; what a mask reads changes."""
    torch.manual_seed(3)
    document = torch.arange(1100, device=device) // 300
    q, k = (torch.randn(1, heads, 1100, 16, device=device) for heads in (4, 2))
    masks = [create_block_mask(mod, None, None, 1100, 1100) for mod in (
        _causal, lambda b, h, q, kv: document[q] == document[kv])]
    with context_parallel(dist.group.WORLD, masks[0]) as ranks:
        mine, keys = ranks.shard(q, k)
        assert "chosen" in ranks.explain()
        for _ in range(2):
            for mask in (*masks, None):
                made = ranks.gather(flex_attention(mine, keys, keys, block_mask=mask, enable_gqa=True))
                ranks_are_left = flex_alone(q, k, mask)
                assert torch.equal(made, ranks_are_left)
            document += torch.arange(1100, device=device) // 500
        made = ranks.gather(flex_attention(mine[:, :1].bfloat16(), keys[:, :1].bfloat16(), keys[:, :1].bfloat16()))
        assert made.dtype == torch.bfloat16 and made.shape == (1, 1, 1100, 16)
        made = ranks.gather(scaled_dot_product_attention(mine, keys, keys, is_causal=True, enable_gqa=True))
        assert torch.equal(made, flex_alone(q, k, masks[0]))
    return True


def flex_alone(q, k, mask):
    """On this rank alone, within a context_parallel."""
    from attune.torch import _attend

    held, _attend.sharing = _attend.sharing, None
    try:
        return flex_attention(q, k, k, block_mask=mask, enable_gqa=True)
    finally:
        _attend.sharing = held


def test_layers_share_a_sharding(ranks):
    assert ranks.run(on_layers, ranks.device) == [True] * ranks.count


def on_own_sums(rank):
    """sum_captured=False: each rank's share of a captured gradient; together they are the whole."""
    torch.manual_seed(5)
    slope, x = torch.randn(2, requires_grad=True), torch.randn(1, 2, 1000, 16)

    def alibi(s, b, h, q_idx, kv_idx):
        return s + slope[h] * (kv_idx - q_idx) / 100

    grads = []
    for own in (True, False):
        slope.grad = None
        with context_parallel(dist.group.WORLD, lengths=(1000, 1000), sum_captured=not own) as ranks:
            q = ranks.shard(x)
            flex_attention(q, q, q, alibi).square().sum().backward()
        grads.append(slope.grad)
    share = grads[0].clone()
    dist.all_reduce(grads[0])
    return torch.allclose(*grads, rtol=1e-4) and not torch.allclose(share, grads[1], rtol=1e-2)


def test_captured_gradients_of_one_rank(fleet):
    assert fleet.run(on_own_sums) == [True] * RANKS


# ---- ranks that fail


def on_failure(rank, kind, seconds, device="cpu"):
    """(code, problem, seconds it took) of the Error on this rank, or the name of another exception."""
    torch.manual_seed(2)
    x, began = torch.randn(1, 2, 1600, 16).to(device), time.monotonic()
    mask = create_block_mask(_causal, None, None, 1600, 1600)
    last = dist.get_world_size() - 1
    try:
        with context_parallel(dist.group.WORLD, mask, seconds=seconds) as ranks:
            q = ranks.shard(x).requires_grad_()
            if kind == "last raises" and rank == last:
                raise ValueError("this rank's own")
            if kind == "last is late" and rank == last:
                time.sleep(2.5 * seconds)
            if kind == "last has other rows" and rank == last:
                q = q[:, :, 1:]
            if kind == "raises" and rank == 2:
                raise ValueError("this rank's own")
            if kind == "exits" and rank == 2:
                os._exit(1)
            if kind == "is late" and rank == 2:
                time.sleep(2.5 * seconds)
            if kind == "other rows" and rank == 1:
                q = q[:, :, 1:]
            if kind == "another call" and rank == 3:
                mask = None
            out = flex_attention(q, q, q, block_mask=mask)
            if kind == "in the backward" and rank == 0:
                raise ValueError("before the backward")
            if kind == "last, in the backward" and rank == last:
                raise ValueError("before the backward")
            out.sum().backward()
            out.sum().item()
        return None
    except attune.Error as error:
        return error.code, error.problem, time.monotonic() - began
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - began


@pytest.mark.parametrize("kind, who, own", [("raises", 2, "ValueError"), ("other rows", 1, "sharding-shape"),
                                            ("in the backward", 0, "ValueError")])
def test_a_rank_that_fails_ends_the_others(fleet, kind, who, own):
    """At once, not after the time limit; then all may begin again."""
    made = fleet.run(on_failure, kind, 60)
    for rank, (code, problem, took) in enumerate(made):
        assert took < 30
        assert code == (own if rank == who else "ranks-timeout")
        if rank != who:
            assert problem == f"rank {who} has failed"
    assert fleet.run(on_failure, "none", 60) == [None] * RANKS


def test_ranks_that_differ(fleet):
    made = fleet.run(on_failure, "another call", 60)
    assert [code for code, *_ in made] == ["ranks-differ"] * RANKS


def test_a_rank_that_comes_too_late(fleet):
    made = fleet.run(on_failure, "is late", 3)
    assert [code for code, *_ in made] == ["ranks-timeout"] * RANKS
    assert all(took < 30 for rank, (*_, took) in enumerate(made) if rank != 2)
    assert fleet.run(on_failure, "none", 60) == [None] * RANKS


def test_a_rank_that_dies(tmp_path):
    fleet = Fleet(3, tmp_path)
    try:
        made = fleet.run(on_failure, "exits", 5, ranks=(0, 1))
        assert [code for code, *_ in made] == ["ranks-timeout"] * 2
        assert all(took < 30 for *_, took in made)
    finally:
        fleet.end()


@pytest.mark.parametrize("kind, own", [("last raises", "ValueError"), ("last, in the backward", "ValueError"),
                                       ("last has other rows", "sharding-shape"), ("last is late", "ranks-timeout")])
def test_the_last_rank_fails(ranks, kind, own):
    """On devices too: a call that has begun there ends by the time limit. Then all may begin again."""
    made = ranks.run(on_failure, kind, 5, ranks.device)
    for rank, (code, _, took) in enumerate(made):
        assert took < 30
        assert code == (own if rank == ranks.count - 1 else "ranks-timeout")
    assert ranks.run(on_failure, "none", 60, ranks.device) == [None] * ranks.count


# ---- without GPUs: how ranks come to a communicator


def on_communicator(rank, fails):
    """What each rank hands to NCCL, whether its assignment is that of the host, and how a first rank without NCCL ends it."""
    given = []

    def made_id():
        if fails:
            raise attune.Error("nccl", "NCCL cannot be loaded", "none can be opened", "install it")
        return bytes(range(128))

    def nccl(id, rank, count, *, device, seconds):
        given.append((id == bytes(range(128)), rank, count, device, seconds))
        return attune.Transport(rank, count, ranks._group._exchange)

    kept = {name: getattr(attune, name, None) for name in ("nccl", "nccl_id")}
    device, torch.cuda.current_device = torch.cuda.current_device, lambda: 5
    attune.nccl, attune.nccl_id = nccl, made_id
    mask = create_block_mask(_causal, None, None, 1600, 1600)
    try:
        with context_parallel(dist.group.WORLD, mask, seconds=20 + fails) as ranks:
            made = [ranks._sharding(kind) for kind in ("cpu", "cuda")]
            for _ in range(2):
                ranks._group.transport("cuda")
            ranks._group.begin("cuda")
        return given, all(made[0].of(r, False) == made[1].of(r, False) for r in range(ranks.count))
    except attune.Error as error:
        return error.code
    finally:
        torch.cuda.current_device = device
        vars(attune).update(kept)


def test_a_communicator_is_made_once(fleet):
    assert fleet.run(on_communicator, False) == [([(True, rank, RANKS, 5, 20)], True) for rank in range(RANKS)]


def test_the_first_rank_finds_no_nccl(fleet):
    assert fleet.run(on_communicator, True) == ["nccl", *["ranks-timeout"] * (RANKS - 1)]


def test_the_example():
    file = os.path.join(os.path.dirname(__file__), "../../../python/examples/ranks.py")
    made = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=200)
    assert made.returncode == 0 and made.stdout == "ok: 4 ranks give the bits of one\n", made.stderr


# ---- mistakes, on one rank


@pytest.fixture(scope="module")
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def refused(code, function):
    with pytest.raises(attune.Error) as caught:
        function()
    assert caught.value.code == code
    return caught.value


def test_a_device_mesh(alone):
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    x = torch.randn(1, 2, 50, 16)
    with context_parallel(mesh) as ranks:
        assert (ranks.rank, ranks.count) == (0, 1)
        q = ranks.shard(x)
        assert torch.equal(ranks.gather(q), x)
        made = flex_attention(q, q, q)
    assert torch.equal(made, flex_attention(x, x, x))


def test_shards_take_gradients_and_any_dimension(alone):
    x = torch.randn(40, 3, requires_grad=True)
    with context_parallel(alone) as ranks:
        ranks.shard(x, dim=0).sum().backward()
        assert torch.equal(ranks.gather(x, dim=0), x)
    assert torch.equal(x.grad, torch.ones(40, 3))


def test_the_docstring(alone):
    import doctest

    import attune.torch._parallel

    dist_is_up, up = dist.init_process_group, dist.destroy_process_group
    dist.init_process_group = dist.destroy_process_group = lambda *_, **__: None  # one is up
    try:
        found = doctest.testmod(attune.torch._parallel)
    finally:
        dist.init_process_group, dist.destroy_process_group = dist_is_up, up
    assert found.attempted and not found.failed


def test_mistakes(alone):
    x = torch.randn(1, 2, 50, 16)
    mask = create_block_mask(_causal, None, None, 50, 50)
    other = create_block_mask(_causal, None, None, 60, 60)

    def within(body, *args, **how):
        with context_parallel(alone, *args, **how) as ranks:
            body(ranks)

    refused("bad-argument", lambda: context_parallel("world"))
    refused("bad-argument", lambda: context_parallel(alone, assignment="fair"))
    refused("bad-argument", lambda: context_parallel(alone, seconds=0))
    refused("bad-argument", lambda: context_parallel(alone, lengths=(0, 5)))
    refused("block-mask", lambda: context_parallel(alone, [mask, other]))
    refused("sharding-shape", lambda: within(lambda ranks: flex_attention(x, x, x)))
    refused("sharding-shape", lambda: within(lambda ranks: ranks.shard(x[:, :, 1:]), mask))
    refused("sharding-shape", lambda: within(lambda ranks: ranks.gather(x[:, :, 1:]), mask))
    refused("block-mask", lambda: within(lambda ranks: flex_attention(x, x, x, block_mask=other), mask))
    refused("sharding-call", lambda: within(lambda ranks: flex_attention(x.double(), x.double(), x.double()), mask))
    refused("sharding-call", lambda: within(lambda ranks: torch.vmap(
        lambda t: flex_attention(t, t, t))(x[None]), mask))
    assert flex_attention(x, x, x).shape == x.shape  # outside, calls are as before
