# tests/python/in_torch/test_paged.py — attention over KV caches and their append, as operators: values, graphs, refusals
"""Against attention over dense keys, entry by entry; eager, compiled, under torch's checks of operators."""

import attune
import pytest
import torch
from attune.torch import append, flex_attention, paged_attention, varlen_attention
from conftest import python_run
from eager import close, kernels_of_gpus, takes_pages
from goldens import golden

PAGE, ROOM = 4, 5  # keys of a page, pages of an entry


class Server:
    """Entries with keys on pages of a pool, and dense copies of them."""

    def __init__(self, *lengths, heads=2, d=16):
        self.lengths = lengths
        self.kv_len = torch.tensor(lengths, dtype=torch.int32)
        self.table = torch.randperm(len(lengths) * ROOM).reshape(len(lengths), ROOM).to(torch.int32)
        self.pools = torch.randn(2, len(lengths) * ROOM, heads, PAGE, d)
        self.dense = [pool[self.table.long()].transpose(1, 2).flatten(2, 3) for pool in self.pools]

    def keys(self, entry):
        return [x[entry : entry + 1, :, : self.lengths[entry]] for x in self.dense]

    def wanted(self, q, score=None, masks=(), first=None):
        """q is [B, H, S, D]; each entry by itself over dense keys."""
        rows = []
        for b, length in enumerate(self.lengths):
            at = length - q.shape[2] if first is None else first[b]
            k, v = self.keys(b)

            def moved(s, _, h, i, j, b=b, at=at):
                made = s if score is None else score(s, b, h, i + at, j)
                for one in masks:
                    made = torch.where(one(b, h, i + at, j), made, float("-inf"))
                return made

            rows.append(flex_attention(q[b : b + 1], k, v, moved, enable_gqa=True))
        return torch.cat(rows)


def causal(b, h, i, j):
    return i >= j


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("compiled", [False, True])
def test_paged_attention(queries, compiled):
    s = Server(7, 20, 3)
    q, bias = torch.randn(3, 4, queries, 16), torch.randn(3)
    near = lambda b, h, i, j: i - j < 3
    ways = [{"is_causal": True}, {"mask_mod": near}, {}, {"mask_mod": near, "is_causal": True},
            {"score_mod": lambda s, b, h, i, j: s + (j - i) * 0.1 + bias[b], "is_causal": True}]
    call = torch.compile(paged_attention, fullgraph=True, backend="aot_eager") if compiled else paged_attention
    for how in ways:
        torch.compiler.reset()
        masks = [m for m in (how.get("mask_mod"), causal if how.get("is_causal") else None) if m is not None]
        want = s.wanted(q, how.get("score_mod"), masks)
        close(call(q, *s.pools, s.kv_len, s.table, enable_gqa=True, **how), want)
        close(call(q, *s.dense, s.kv_len, enable_gqa=True, **how), want)  # without pages


def test_an_empty_slot_of_a_batch():
    s = Server(7, 0, 20)
    q, bias = torch.randn(3, 2, 1, 16), torch.randn(3)
    score = lambda s, b, h, i, j: s + (j - i) * 0.1 + bias[b]
    want = s.wanted(q, score, [causal])
    close(paged_attention(q, *s.pools, s.kv_len, s.table, score_mod=score, is_causal=True), want)
    cu = torch.arange(4, dtype=torch.int32)
    packed = paged_attention(q[:, :, 0], *s.pools, s.kv_len, s.table, score_mod=score, mask_mod=causal, cu_seq_q=cu)
    close(packed, want[:, :, 0])
    assert not want[1].any()


def test_positions_the_lse_and_a_prefix():
    s = Server(9, 12)
    q, first = torch.randn(2, 2, 2, 16), torch.tensor([5, 10], dtype=torch.int32)
    out, lse = paged_attention(q, *s.pools, s.kv_len, s.table, mask_mod=causal, q_offsets=first, return_lse=True)
    close(out, s.wanted(q, masks=[causal], first=first.tolist()))
    k, v = torch.randn(2, 1, 2, 6, 16)  # a prefix of both
    before = flex_attention(q, k.expand(2, -1, -1, -1), v.expand(2, -1, -1, -1), return_lse=True)
    whole = [torch.cat([p.expand(2, -1, -1, -1), x], 2) for p, x in zip((k, v), s.dense)]
    keep = torch.arange(whole[0].shape[2]) < s.kv_len[:, None] + 6
    want = torch.nn.functional.scaled_dot_product_attention(q, *whole, attn_mask=keep[:, None, None])
    close(paged_attention(q, *s.pools, s.kv_len, s.table, before=before), want)
    assert lse.shape == (2, 2, 2)


def test_packed_queries_and_varlens_block_table():
    s = Server(9, 12, 4)
    counts, cu = (1, 5, 2), torch.tensor([0, 1, 6, 8], dtype=torch.int32)
    q = torch.randn(8, 4, 16)
    rows = q.split(counts)
    for window in ((-1, 0), (3, 0), (-1, -1)):
        left, right = window

        def kept(b, h, i, j, left=left, right=right):
            return ((i >= j) | (right < 0)) & ((i - j <= left) | (left < 0))

        want = torch.cat([flex_attention(
            r.transpose(0, 1)[None], *s.keys(b), lambda s_, _b, h, i, j, at=s.lengths[b] - len(r): torch.where(
                kept(_b, h, i + at, j), s_, float("-inf")), enable_gqa=True)[0].transpose(0, 1)
            for b, r in enumerate(rows)])
        if left < 0:
            close(paged_attention(q, *s.pools, s.kv_len, s.table, cu_seq_q=cu, is_causal=right == 0, enable_gqa=True), want)
        pools = s.pools.transpose(2, 3).contiguous()  # as torch has them
        how = {"window_size": window, "enable_gqa": True, "seqused_k": s.kv_len, "block_table": s.table}
        close(varlen_attention(q, *pools, cu, None, 5, 12, **how), want)
        close(varlen_attention(q, *pools, cu, None, 5, 12, num_splits=1, **how), want)
        if not takes_pages():
            continue
        with kernels_of_gpus() as (ops, _):
            out, lse, *_ = ops._flash_attention_forward(q, *pools, cu, None, 5, 12, 0.0, right == 0, False,
                                                        window_size_left=left, seqused_k=s.kv_len, block_table=s.table)
        close(out, want)
        assert lse.shape == (4, 8)


def step(q, new, pools, kv_len, table):
    append(new, new * 2, *pools, kv_len=kv_len, page_table=table)
    return paged_attention(q, *pools, kv_len, table, is_causal=True, enable_gqa=True)


def test_a_compiled_step_appends_and_attends():
    s = Server(0, 5)
    compiled = torch.compile(step, fullgraph=True)
    pools, steps = s.pools.clone(), []
    for _ in range(4):
        s.kv_len += 1
        q, new = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 1, 16)
        assert torch.equal(compiled(q, new, pools, s.kv_len, s.table), step(q, new, s.pools, s.kv_len, s.table))
        assert torch.equal(pools, s.pools)
        steps.append(new)
    first = s.pools[0][s.table[0].long()].transpose(0, 1).flatten(1, 2)[:, :4]
    assert torch.equal(first, torch.cat(steps, 2)[0])


def at_slots(new, pools, slots):
    append(new, new * 2, *pools, slots=slots)
    return pools[0].sum()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_compiled_append_by_slot(dtype):
    torch.compiler.reset()
    compiled = torch.compile(at_slots, fullgraph=True, dynamic=True, backend="aot_eager")
    for slots in ([7, -1, 0], [19, 4, 3, 2, 11], [-1] * 4):
        slots, new = torch.tensor(slots, dtype=dtype), torch.randn(len(slots), 2, 16)
        pools = torch.zeros(2, 5, 4, 2, 16).transpose(2, 3)  # pages as vLLM has them
        others, wanted = pools.clone(), torch.zeros(2, 20, 2, 16)
        assert torch.equal(compiled(new, pools, slots), at_slots(new, others, slots))
        for i, slot in enumerate(slots.tolist()):
            if slot >= 0:
                wanted[:, slot] = torch.stack([new[i], new[i] * 2])
        for made in (pools, others):
            assert torch.equal(made.transpose(2, 3).reshape(2, 20, 2, 16), wanted)


def test_slots_that_are_none():
    s, new = Server(7), torch.randn(3, 2, 16)
    for slots, code in (([0, 1, 2], "tensor-array"), (torch.tensor([0, 1, 99]), "slots"),
                        (torch.tensor([0, 1]), "tensor-shape"), (torch.tensor([0.0, 1, 2]), "slots")):
        with pytest.raises(attune.Error) as caught:
            append(new, new, *s.pools, slots=slots)
        assert caught.value.code == code
    with pytest.raises(attune.Error) as caught:
        append(new, new, *s.pools)
    assert caught.value.code == "tensor-array"


def test_a_compiled_step_takes_any_number_of_entries():
    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for entries in (3, 6, 7):  # no other extent is 3 there, which torch would take for the same
        s = Server(*range(3, 3 + entries))
        q, new = torch.randn(entries, 4, 1, 16), torch.randn(entries, 2, 1, 16)
        pools = s.pools.clone()
        with torch._dynamo.config.patch(error_on_recompile=True):
            made = compiled(q, new, pools, s.kv_len, s.table)
        assert torch.equal(made, step(q, new, s.pools, s.kv_len, s.table))
        assert torch.equal(pools, s.pools)


def test_the_operators_are_as_torch_wants_them():
    s = Server(7, 20)
    q, bias = torch.randn(2, 4, 1, 16), torch.randn(2)
    texts = ("s + bias[b]", "kv <= q + (kv_len - q_len)", "", "", "bias")
    for table, kv in ((s.table, s.pools), (None, s.dense)):
        torch.library.opcheck(torch.ops.attune.paged.default, (
            q, *kv, s.kv_len, table, None, None, None, None, [bias], [], *texts, None, 0, 0))
    new = torch.randn(2, 2, 1, 16)
    torch.library.opcheck(torch.ops.attune.append.default, (new, new, *s.pools, s.kv_len, s.table, None, 1.0, 1.0))
    slots = torch.tensor([3, -1])
    torch.library.opcheck(torch.ops.attune.append.default, (
        new[:, :, 0], new[:, :, 0], *s.pools, None, None, None, 1.0, 1.0, slots))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("split", [0, 128])
def test_a_step_is_made_without_python(packed, split):
    s = Server(7, 20)
    q = torch.randn(2, 4, 1, 16)
    given, how = (q, {}) if not packed else (q[:, :, 0], {"cu_seq_q": torch.arange(3, dtype=torch.int32)})

    def step(**more):
        return paged_attention(given, *s.pools, s.kv_len, s.table, is_causal=True, enable_gqa=True,
                               fixed_split_size=split, **how, **more)

    step()
    ran = python_run(step)
    assert not {"output", "row_numbers", "run", "asdict", "spell"} & set(ran), ran
    out, lse = step(return_lse=True)
    want = paged_attention(q, *s.pools, s.kv_len, s.table, is_causal=True, enable_gqa=True, return_lse=True)
    close(out.reshape(q.shape), want[0])
    close(lse.mT.reshape(2, 4, 1) if packed else lse, want[1])


@pytest.mark.parametrize("packed", [False, True])
def test_the_operator_in_cpp_gives_what_python_gives(packed):
    s = Server(7, 20)
    q, bias = torch.randn(2, 4, 1, 16), torch.randn(2)
    texts = ("s + bias[b] + n0 * 0.125f", "kv <= q + (kv_len - q_len)", "", "", "bias")
    before = torch.randn(2, 4, 1, 16), torch.randn(2, 4, 1)
    cu, *before = (torch.arange(3, dtype=torch.int32), None, None) if packed else (None, *before)
    given = (q[:, :, 0] if packed else q, *s.pools, s.kv_len, s.table, None, *before, cu, [bias], [3], *texts, 0.3, 1, 128)
    want = torch.ops.attune.paged_slowly(*given)
    calls = []
    for _ in range(2):
        with attune.watch(lambda fact: calls.append(fact["call"]), "called"):
            ran = python_run(lambda: calls.append(torch.ops.attune.paged(*given)))
        forward, made = calls[-2:][::-1] if type(calls[-1]) is str else calls[-2:]
        assert forward == "forward"
        for a, b in zip(made, want, strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()
    assert "_paged" not in ran, ran


def test_a_missing_page():
    s = Server(7, 20)
    q = torch.randn(2, 4, 1, 16)
    near = {"mask_mod": lambda b, h, i, j: i - j < 2, "enable_gqa": True}
    want = paged_attention(q, *s.pools, s.kv_len, s.table, **near)
    s.table[1, :4] = -1
    assert torch.equal(paged_attention(q, *s.pools, s.kv_len, s.table, **near), want)
    with pytest.raises(attune.Error) as caught:
        paged_attention(q, *s.pools, s.kv_len, s.table, enable_gqa=True)
    assert caught.value.code == "page-table"


def test_an_append_changes_the_version_that_autograd_checks():
    s = Server(1, 1)
    leaf = torch.ones(2, requires_grad=True)
    kept = (s.pools[0].sum() * leaf).exp() * s.pools[0].flatten()[0]
    loss = (s.pools[0].flatten()[:2] * leaf).sum() + kept.sum()
    new = torch.randn(2, 2, 1, 16)
    append(new, new, *s.pools, kv_len=s.kv_len, page_table=s.table)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_no_gradients_and_no_table_without_counts():
    s = Server(7, 20)
    q = torch.randn(2, 2, 1, 16, requires_grad=True)
    with pytest.raises(attune.Error) as caught:
        paged_attention(q, *s.pools, s.kv_len, s.table).sum().backward()
    golden("torch-paged-gradients", str(caught.value))
    with pytest.raises(attune.Error) as caught:
        paged_attention(q, *s.pools, [7, 20], s.table, is_causal=True, mask_mod=causal)
    assert caught.value.code == "tensor-array"
    with pytest.raises(attune.Error) as caught:
        paged_attention(q, *(p[:, :1] for p in s.pools), s.kv_len, s.table)
    assert caught.value.code == "gqa-not-enabled"
