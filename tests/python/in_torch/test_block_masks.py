# tests/python/in_torch/test_block_masks.py — lists of a torch BlockMask: part of the mask, unless the mask_mod says it
"""A BlockMask of torch's in attune.torch.flex_attention, against its lists and its mask_mod written out."""

import copy

import pytest
import torch
import torch.distributed as dist
from attune.torch import context_parallel, explain, flex_attention
from torch.nn.attention import flex_attention as torchs

B, H, S, D, SIZE = 2, 4, 96, 16, 32


def causal(b, h, i, j):
    return i >= j


def chosen(heads, blocks=S // SIZE):
    """Random blocks, of which some are full: lists and what they hold."""
    kept = torch.rand(1, heads, blocks, blocks) < 0.5
    kept[..., 0] = True
    full = (torch.rand(kept.shape) < 0.5) & kept
    full[..., 0] = False
    return kept & ~full, full


def made(parts, mask_mod=causal):
    lists = [one for kept in parts for one in torchs._dense_to_ordered(kept.int())]
    return torchs.BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=SIZE, mask_mod=mask_mod, seq_lengths=(S, S))


def kept(mask):
    """The pairs that torch's compiled flex_attention keeps, written out."""
    at = [torch.arange(n).view([-1 if d == i else 1 for i in range(4)]) for d, n in enumerate((B, H, S, S))]

    def listed(num, indices):
        if num is None:
            return torch.tensor(False)
        table = torch.zeros(*indices.shape[:-1], S // SIZE, dtype=torch.bool)
        for b, h, row in torch.cartesian_prod(*[torch.arange(n) for n in num.shape]).tolist():
            table[b, h, row, indices[b, h, row, :num[b, h, row]].long()] = True
        return table.repeat_interleave(SIZE, -1).repeat_interleave(SIZE, -2)

    keeps = mask.mask_mod(*at)
    partial = listed(mask.kv_num_blocks, mask.kv_indices)
    return (listed(mask.full_kv_num_blocks, mask.full_kv_indices) | partial & keeps).expand(B, H, S, S)


def check(mask, attention=flex_attention):
    over = torch.randn(3, B, H, S, D, requires_grad=True)
    want = torch.nn.functional.scaled_dot_product_attention(*over, attn_mask=kept(mask))
    out = attention(*over, block_mask=mask)
    torch.testing.assert_close(out, want)
    for mine, theirs in zip(*[torch.autograd.grad(one.square().sum(), over) for one in (out, want)]):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def text(mask):
    return explain(*torch.randn(3, B, H, S, D), block_mask=mask).splitlines()[1]


@pytest.mark.parametrize("heads", [1, H])
@pytest.mark.parametrize("mask_mod", [causal, None], ids=["causal", "none"])
@pytest.mark.parametrize("with_full", [False, True], ids=["partial", "full"])
def test_lists_are_part_of_the_mask(heads, mask_mod, with_full):
    mask = made(chosen(heads)[:1 + with_full], mask_mod)
    for _ in range(2):  # the second time it is known
        check(mask)
    torch._dynamo.reset()
    check(made(chosen(heads)[:1 + with_full], mask_mod), torch.compile(flex_attention, backend="eager", fullgraph=True))


def test_lists_as_programs_of_top_k_blocks_write_them():
    """Fewer columns than blocks, and in any order."""
    num = torch.tensor([[[1, 2, 2]]], dtype=torch.int32)
    mask = torchs.BlockMask.from_kv_blocks(num, torch.tensor([[[[0, 0], [1, 0], [2, 0]]]], dtype=torch.int32),
                                           BLOCK_SIZE=SIZE, mask_mod=causal, seq_lengths=(S, S))
    i, j = torch.arange(S)[:, None], torch.arange(S)
    want = ((i // SIZE == j // SIZE) | (j < SIZE)) & (i >= j)
    q, k, v = torch.randn(3, B, H, S, D)
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=mask),
                               torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=want))


DOC = (torch.arange(S) // 40).to(torch.int32)


def documents(b, h, i, j):
    return (DOC[i] == DOC[j]) & (i >= j)


def by_head(b, h, i, j):
    return i + 20 * h >= j


@pytest.mark.parametrize("mask_mod", [causal, documents])
def test_lists_that_follow_from_the_mask_mod_cost_nothing(mask_mod, monkeypatch):
    mask = torchs.create_block_mask(mask_mod, None, None, S, S, device="cpu", BLOCK_SIZE=SIZE)
    check(mask)
    assert "listed" not in text(mask)
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "cpu", None)  # it does not look again
        check(mask)
    assert "listed" in text(made(chosen(1)))


def test_lists_of_one_head_for_a_mask_that_reads_it():
    """They are those of head 0; torch leaves the blocks out that only other heads keep."""
    shared = torchs.create_block_mask(by_head, None, None, S, S, device="cpu", BLOCK_SIZE=SIZE)
    own = torchs.create_block_mask(by_head, None, H, S, S, device="cpu", BLOCK_SIZE=SIZE)
    for mask, is_listed in ((shared, True), (own, False)):
        check(mask)
        assert ("listed" in text(mask)) == is_listed


def write_list(mask):
    mask.full_kv_num_blocks[..., -1] -= 1
    return mask


def replace_list(mask):
    mask.full_kv_num_blocks = mask.full_kv_num_blocks.clone().clamp_(max=1)
    return mask


def replace_mod(mask):
    mask.mask_mod = lambda b, h, i, j: j >= 3
    return mask


def copy_written(mask):
    return copy.deepcopy(write_list(mask))


CHANGES = [write_list, replace_list, replace_mod, copy_written]


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_seen(change):
    mask = torchs.create_block_mask(causal, None, None, S, S, device="cpu", BLOCK_SIZE=SIZE)
    check(mask)
    changed = change(mask)
    check(changed)
    check(change(changed))


def test_a_captured_tensor_that_changes_leaves_the_lists_as_they_were():
    doc = DOC.clone()
    mask = torchs.create_block_mask(lambda b, h, i, j: doc[i] == doc[j], None, None, S, S, device="cpu", BLOCK_SIZE=SIZE)
    check(mask)
    doc.zero_()
    check(mask)


def test_lists_of_inference_mode_are_read_each_time():
    with torch.inference_mode():
        mask = torchs.create_block_mask(causal, None, None, S, S, device="cpu", BLOCK_SIZE=SIZE)
    q, k, v = torch.randn(3, B, H, S, D)
    for _ in range(2):
        torch.testing.assert_close(
            flex_attention(q, k, v, block_mask=mask),
            torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=kept(mask)))
        with torch.inference_mode():
            write_list(mask)


def test_lists_over_ranks():
    mask, q = made(chosen(1)), torch.randn(B, H, S, D)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with context_parallel(dist.group.WORLD, mask) as ranks:
            rows = ranks.shard(q)
            out = ranks.gather(flex_attention(rows, rows, rows, block_mask=mask))
    finally:
        dist.destroy_process_group()
    want = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=kept(mask))
    torch.testing.assert_close(out, want)
