# tests/python/test_append.py — append() writes new keys and values into a cache, and mistakes are refused
"""append()."""

import attune
import numpy as np
import pytest
from conftest import refused

PAGE = 4


def cache(rng, entries=2, room=16, heads=3, d=8, dtype=np.float32):
    return [rng.standard_normal((entries, heads, room, d)).astype(dtype) for _ in range(2)]


def new(rng, n, entries=2, heads=3, d=8):
    return [rng.standard_normal((entries, heads, n, d), np.float32) for _ in range(2)]


def test_new_rows_are_the_last_ones_of_their_entry(rng):
    pair, rows, lengths = cache(rng), new(rng, 2), np.array([5, 16], np.int32)
    wanted = [x.copy() for x in pair]
    for x, fresh in zip(wanted, rows):
        for b, n in enumerate(lengths):
            x[b, :, n - 2 : n] = fresh[b]
    attune.append(*rows, *pair, kv_len=lengths)
    assert all(np.array_equal(a, b) for a, b in zip(pair, wanted))


def test_pages_and_packed_rows(rng):
    table, lengths = np.array([[3, 0], [2, -1]], np.int32), np.array([6, 3], np.int32)
    starts = np.array([0, 3, 4], np.int32)
    pools = [np.full((5, 3, PAGE, 8), np.nan, np.float32) for _ in range(2)]
    rows = [rng.standard_normal((4, 3, 8), np.float32) for _ in range(2)]
    attune.append(*rows, *pools, kv_len=lengths, page_table=table, cu_seqlens=starts)
    for pool, fresh in zip(pools, rows):
        for b, n in enumerate(lengths):
            for i in range(starts[b], starts[b + 1]):
                at = n - starts[b + 1] + i
                assert np.array_equal(pool[table[b, at // PAGE], :, at % PAGE], fresh[i])
        assert np.isfinite(pool).sum() == rows[0].size


@pytest.mark.parametrize("dtype", ["i4", "i8"])
@pytest.mark.parametrize("page", [1, 3, PAGE])
def test_packed_rows_at_slots(rng, dtype, page):
    slots = np.array([7, -1, 0, 11, 3, 3], dtype)
    wanted = [np.zeros((12 // page, page, 3, 8), np.float32) for _ in range(2)]  # as vLLM has them
    pools = [x.copy().transpose(0, 2, 1, 3) for x in wanted]
    rows = [rng.standard_normal((6, 3, 8), np.float32) for _ in range(2)]
    attune.append(*rows, *pools, slots=slots)
    for pool, want, fresh in zip(pools, wanted, rows):
        for slot, row in zip(slots, fresh):  # the last of two rows with the same slot stays
            if slot >= 0:
                want.reshape(12, 3, 8)[slot] = row
        assert np.array_equal(pool.transpose(0, 2, 1, 3), want)


def test_slots_that_are_none_or_have_no_row(rng):
    pools = [np.zeros((4, 3, PAGE, 8), np.float32) for _ in range(2)]
    rows = [np.ones((3, 3, 8), np.float32) for _ in range(2)]
    attune.append(*(x[:0] for x in rows), *pools, slots=np.zeros(0, "i8"))
    attune.append(*rows, *pools, slots=np.full(3, -1, "i4"))
    for slots in ([0, 1, 16], [0, -2, 1], [0, 1, 2**40]):
        error = refused(attune.append, *rows, *pools, slots=np.array(slots))
        assert error.code == "slots" and "slots[" in error.problem
    assert refused(attune.append, *rows, *pools, slots=np.zeros(3, "f4")).code == "slots"
    assert refused(attune.append, *rows, *pools, slots=np.zeros(2, "i4")).code == "tensor-shape"
    assert refused(attune.append, *rows, *pools, slots=np.zeros(3, "i4"), kv_len=np.zeros(3, "i4")).code == "slots"
    assert refused(attune.append, *rows, *pools).code == "tensor-missing"
    assert not any(pool.any() for pool in pools)


def test_elements_are_divided_and_rounded_to_the_type_of_the_cache(rng):
    (k, v), (k_new, v_new) = cache(rng, dtype=np.float16), new(rng, 1)
    attune.append(k_new, v_new, k, v, kv_len=np.full(2, 16, np.int32), k_scale=4.0, v_scale=np.float32(0.5))
    assert np.array_equal(k[:, :, -1:], (k_new / 4).astype(np.float16))
    assert np.array_equal(v[:, :, -1:], (v_new * 2).astype(np.float16))


def test_a_step_of_a_decoder(rng):
    (k, v), (k_new, v_new), q = cache(rng), new(rng, 1), rng.standard_normal((2, 3, 1, 8), np.float32)
    lengths = np.array([7, 16], np.int32)
    attune.append(k_new, v_new, k, v, kv_len=lengths)
    o = attune.attention(q, k, v, kv_len=lengths)
    alone = attune.attention(q[:1], np.concatenate([k[:1, :, :6], k_new[:1]], 2),
                             np.concatenate([v[:1, :, :6], v_new[:1]], 2))
    assert np.allclose(o[:1], alone, atol=1e-6)


def test_a_page_that_a_query_needs_and_that_is_not_there(rng):
    pools = [rng.standard_normal((3, 2, PAGE, 8), np.float32) for _ in range(2)]
    q, last = rng.standard_normal((2, 2, 1, 8), np.float32), np.array([6, 3], np.int32)

    def call(table, **more):
        return attune.attention(q, *pools, kv_len=last + 1, q_offsets=last, page_table=np.array(table, np.int32), **more)

    wanted = call([[0, 1], [2, 2]])
    assert np.array_equal(call([[0, 1, -1], [2, 2**31 - 1, -5]]), wanted)  # behind the end anything may be
    for wrong in (-1, 3):
        error = refused(call, [[0, wrong], [2, 2]])
        assert error.code == "page-table" and "page_table[0, 1]" in error.problem and f"it is {wrong}," in error.why
    for target in ("oracle", "cpu"):
        assert refused(call, [[-1, 1], [2, 2]], target=target).code == "page-table"
    near = lambda at: at.q - at.kv < 3
    assert np.array_equal(call([[-1, 1], [2, 2]], mask=near), call([[0, 1], [2, 2]], mask=near))


def test_tensors_of_torch(rng):
    torch = pytest.importorskip("torch")
    k, v = (torch.zeros(2, 3, 16, 8, dtype=torch.bfloat16) for _ in range(2))
    k_new, v_new = (torch.randn(2, 3, 1, 8) for _ in range(2))
    attune.append(k_new, v_new, k, v, kv_len=torch.tensor([1, 9], dtype=torch.int32))
    assert torch.equal(k[0, :, :1], k_new[0].bfloat16()) and torch.equal(v[1, :, 8:9], v_new[1].bfloat16())
    assert k.count_nonzero() == k_new.numel()


@pytest.mark.parametrize("by", ["kv_len", "slots"])
def test_a_graph_of_torch_appends_on_its_stream(by):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    pair = [torch.zeros(2, 3, 16, 8, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    rows = [torch.randn(2, 3, 1, 8, device="cuda") for _ in range(2)]
    # By slot, the two entries are pages.
    given = rows if by == "kv_len" else [x[:, :, 0] for x in rows]
    first, then = ([1, 1], [3, 16]) if by == "kv_len" else ([0, 16], [2, 31])
    where = torch.tensor(first, dtype=torch.int32 if by == "kv_len" else torch.int64, device="cuda")

    def step():
        attune.append(*given, *pair, **{by: where}, stream=torch.cuda.current_stream().cuda_stream)

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        step()
    where.copy_(torch.tensor(then))
    graph.replay()
    torch.cuda.synchronize()
    for x, fresh in zip(pair, rows):
        for b, at in ((0, 0), (1, 0), (0, 2), (1, 15)):
            assert torch.equal(x[b, :, at], fresh[b, :, 0].bfloat16())


def test_mistakes_are_told_of_at_the_line_of_the_call(rng):
    (k, v), (k_new, v_new) = cache(rng), new(rng, 2)
    full = np.full(2, 16, np.int32)

    def call(kv_len=full, **more):
        return refused(attune.append, k_new, v_new, k, v, kv_len=kv_len, **more)

    assert call(kv_len=np.array([1, 5], np.int32)).code == "kv-len"
    assert call(kv_len=np.array([5, 17], np.int32)).code == "kv-len"
    assert call(k_scale=0).code == "bad-argument" and call(v_scale=None).code == "bad-argument"
    assert call(v_scale=float("inf")).code == "bad-scale"
    assert call(workers=-1).code == "bad-argument"
    assert refused(attune.append, *(np.repeat(x, 2, 1) for x in (k_new, v_new)), k, v, kv_len=full).code == "kv-heads"
    k.flags.writeable = False
    assert call().code == "tensor-read-only"
    with pytest.raises(attune.Error) as told:
        attune.append(k_new, v_new, v, v.copy(), kv_len=np.array([1, 5], np.int32))
    assert told.value.file == __file__ and "attune.append(" in str(told.value)
