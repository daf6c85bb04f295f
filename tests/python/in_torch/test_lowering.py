# tests/python/in_torch/test_lowering.py — torch.compile(flex_attention) after activate(compile=True): attune's kernels
"""torch's own flex_attention, compiled, unedited. On the CPU torch refuses gradients; here it is made not to ask."""

import functools
import inspect
import os
import warnings

import attune
import pytest
import torch
import torch.nn.attention.flex_attention as torchs
from attune.torch import _activate, _joint, _lowering, activate, deactivate, flex_attention
from attune.torch._mod import texts_of
from eager import close
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_inductor_cache, run_and_get_code
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

B, H, S, D = 2, 4, 96, 16


@pytest.fixture(autouse=True)
def active(monkeypatch):
    """What attune was called for, as a list that grows."""
    monkeypatch.setattr(torchs, "_validate_device", lambda *_, **__: None)
    torch.compiler.reset()
    calls = []
    activate(compile=True)
    with attune.watch(lambda fact: calls.append(fact) if fact["fact"] == "called" else None):
        yield calls
    deactivate()


def leaves(*shapes):
    return [torch.randn(*shape, requires_grad=True) for shape in shapes]


def both(call, over):
    out = call()
    return out, *torch.autograd.grad(out.square().sum(), over)


def blocks(mask, length=S):
    return torchs.create_block_mask(mask, None, None, length, length, device="cpu")


DOC = torch.arange(S) // 40


def documents(b, h, m, n):
    return (DOC[m] == DOC[n]) & (m >= n)


def window(b, h, m, n):
    return (m >= n) & (m - n < 17)


@pytest.mark.parametrize("name", ["plain", "soft cap", "bias", "table", "window"])
def test_mods_and_gradients(name, active):
    q, k, v = leaves((B, H, S, D), (B, H, S, D), (B, H, S, D))
    bias, table = leaves((H, S), (2 * S,))
    score, mask, captured = {
        "plain": (None, None, []),
        "soft cap": (lambda s, b, h, m, n: 20 * torch.tanh((s + (n - m) * 0.1 * (h + 1)) / 20), None, []),
        "bias": (lambda s, b, h, m, n: s + bias[h, n], documents, [bias]),
        "table": (lambda s, b, h, m, n: torch.where(m > n, s * table[m - n + S], s), None, [table]),
        "window": (None, window, [])}[name]
    over = [q, k, v, *captured]
    mine = both(lambda: torch.compile(torchs.flex_attention)(q, k, v, score, None if mask is None else blocks(mask)), over)
    assert [fact["call"] for fact in active] == ["forward", "backward"]
    assert len({fact["mod"] for fact in active}) == 1  # both directions are the same attention
    for a, b in zip(mine, both(lambda: flex_attention(q, k, v, score, None if mask is None else blocks(mask)), over)):
        close(a, b)


def test_shared_heads_the_lse_and_what_is_around_it(active):
    q, k, v = leaves((B, H, S, D), (B, 2, S, D), (B, 2, S, D))

    def model(attention):
        out, lse = attention(q * 2, k, v, block_mask=blocks(window), enable_gqa=True, return_lse=True)
        return (out.relu().transpose(1, 2) + 1) * lse.transpose(1, 2)[..., None]

    mine = both(torch.compile(lambda: model(torchs.flex_attention), fullgraph=True), [q, k, v])
    assert len(active) == 2
    for a, b in zip(mine, both(lambda: model(flex_attention), [q, k, v])):
        close(a, b)


def test_the_largest_scores(active, monkeypatch):
    own = torchs._apply_kernel_options  # torch asks for them on GPUs alone
    monkeypatch.setattr(torchs, "_apply_kernel_options", lambda *given: {**own(*given[:5]), "OUTPUT_MAX": True})
    q, k, v = torch.randn(3, B, H, S, D)
    how = {"block_mask": blocks(window), "return_aux": torchs.AuxRequest(lse=True, max_scores=True)}
    out, made = torch.compile(torchs.flex_attention)(q, k, v, **how)
    assert len(active) == 1
    want, others = flex_attention(q, k, v, **how)
    for a, b in ((out, want), (made.lse, others.lse), (made.max_scores, others.max_scores)):
        close(a, b)


def test_other_lengths_need_no_other_graph(active):
    counter = CompileCounterWithBackend("inductor")
    weigh = lambda s, length: s / length  # noqa: E731

    @torch.compile(dynamic=True, fullgraph=True, backend=counter)
    def model(q, k, v, bias, reach):
        scored = lambda s, b, h, m, n: torch.where(m - n < reach, weigh(s + bias[h, n], q.shape[2]), -1.0)  # noqa: E731
        return torchs.flex_attention(q, k, v, score_mod=scored)

    for length, reach in ((64, 9), (50, 11), (77, 20)):
        q, k, v, bias = leaves((B, H, length, D), (B, H, length, D), (B, H, length, D), (H, length))
        mine = both(lambda: model(q, k, v, bias, reach), [q, k, v, bias])
        theirs = both(lambda: flex_attention(q, k, v, lambda s, b, h, m, n: torch.where(
            m - n < reach, (s + bias[h, n]) / length, -1.0)), [q, k, v, bias])
        for a, b in zip(mine, theirs):
            close(a, b)
    assert counter.frame_count == 1 and active


def test_divisors_and_factors_of_other_sizes(active):
    """Masks of images divide positions by a width, which is a constant of a kernel."""
    def attention(q, k, v, width):
        near = lambda b, h, m, n: ((m // width - n // width).abs() <= 1) & ((m % width - n % width).abs() <= 2)
        scored = lambda s, b, h, m, n: s + (m % width) * width
        return torchs.flex_attention(q, k, v, score_mod=scored, block_mask=torchs.create_block_mask(
            near, None, None, q.shape[2], q.shape[2], "cpu"))

    compiled = torch.compile(attention, dynamic=True, fullgraph=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for width in (8, 12, 8, 16):
            q, k, v = torch.randn(3, B, H, 8 * width, D)
            m, n = torch.arange(8 * width)[:, None], torch.arange(8 * width)
            near = ((m // width - n // width).abs() <= 1) & ((m % width - n % width).abs() <= 2)
            bias = torch.where(near, (m % width) * width, -torch.inf)
            close(compiled(q, k, v, width), (q @ k.mT / D**0.5 + bias).softmax(-1) @ v)
    assert len(active) == 4 and not [w for w in told if "attune" in str(w.message)]


@pytest.mark.parametrize("score, mask", [
    (lambda s, b, h, m, n: torch.where(m >= n, s, -torch.inf), lambda b, h, m, n: m >= n),
    (lambda s, b, h, m, n: torch.where(m <= n, s, -torch.inf), lambda b, h, m, n: m <= n),
    (lambda s, b, h, m, n: s + (m - n), None),
    (lambda s, b, h, m, n: torch.where(m >= n, s + (m - n), -torch.inf), lambda b, h, m, n: m >= n)],
    ids=["causal", "inverse", "distance", "both"])
def test_masks_of_other_lengths(score, mask, active):
    """builtin_score_mods_dynamic of torch's own tests, in small."""
    for batch, length in ((B, S), (2 * B, S // 2), (2 * B, S // 4)):
        q, k, v = leaves(*[(batch, H, length, D)] * 3)
        attention = functools.partial(torchs.flex_attention, score_mod=score,
                                      block_mask=None if mask is None else blocks(mask, length))
        mine = both(lambda: torch.compile(attention, dynamic=True)(q, k, v), [q, k, v])
        exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
        for a, b in zip(mine, both(lambda: attention(*exact), exact)):
            close(a, b.float())
    assert len(active) == 6


def refused(calls, call):
    """The one warning about a call that torch's own kernels take, although it is compiled twice."""
    with warnings.catch_warnings(record=True) as told, fresh_inductor_cache():
        warnings.simplefilter("always")
        for _ in range(2):
            torch.compiler.reset()
            torch._inductor.codecache.FxGraphCache.clear()
            made = call()
    told = [str(w.message) for w in told if "attune" in str(w.message)]
    assert len(told) == 1 and not calls
    return told[0], made


def test_what_attune_cannot_express_is_torchs_and_told_once(active):
    q, k, v = torch.randn(3, B, H, S, D)
    compiled = lambda *a, **how: torch.compile(torchs.flex_attention)(q, k, v, *a, **how)  # noqa: E731
    told, made = refused(active, lambda: compiled(lambda s, b, h, m, n: s + torch.special.bessel_j0(s)))
    assert "bessel_j0" in told
    want = torchs.flex_attention(q, k, v, lambda s, b, h, m, n: s + torch.special.bessel_j0(s))
    close(made, want)
    assert "BACKEND" in refused(active, lambda: compiled(kernel_options={"BACKEND": "TRITON"}))[0]


@fresh_inductor_cache()
def test_a_graph_from_inductors_cache_tells_why_it_is_torchs(active):
    q, k, v = torch.randn(3, B, H, S, D)
    for fresh in (True, False):
        torch.compiler.reset()
        torch._inductor.codecache.PyCodeCache.cache_clear()
        counters.clear()
        _activate._warned.clear()
        with pytest.warns(UserWarning, match="torch's own attention runs: a mod calls aten.special_bessel_j0") as told:
            torch.compile(torchs.flex_attention)(q, k, v, lambda s, b, h, m, n: s + torch.special.bessel_j0(s))
        assert len([w for w in told if "attune" in str(w.message)]) == 1
        assert bool(counters["inductor"]["fxgraph_cache_miss"]) == fresh


BY_NUMBER = {
    "last": lambda u, b, n: u[b, n, 0], "negative": lambda u, b, n: u[b, n, -1], "first": lambda u, b, n: u[1, n, 2],
    "row": lambda u, b, n: u[b, 3].sum(), "after": lambda u, b, n: u[b, n][1],
    "before": lambda u, b, n: u[..., 0][b, n],
    "constants": lambda u, b, n: u[b, n, 0] * torch.tensor(0.5) + torch.tensor([2.0])[0],
    "two": lambda u, b, n: torch.where(n > 3, u[b, n, 1], u[0, 0, 0])}


@fresh_inductor_cache()
@pytest.mark.parametrize("name", BY_NUMBER)
def test_a_tensor_is_indexed_by_numbers(name, active):
    q, k, v = leaves((B, H, S, D), (B, H, S, D), (B, H, S, D))
    u = torch.randn(B, S, 3)
    score = lambda s, b, h, m, n: s + BY_NUMBER[name](u, b, n)
    mask = blocks(lambda b, h, m, n: (m >= n) | (BY_NUMBER[name](u, b * 0, n) > 0))
    mine = both(lambda: torch.compile(torchs.flex_attention, dynamic=False)(q, k, v, score, mask), [q, k, v])
    assert [fact["call"] for fact in active] == ["forward", "backward"]
    for a, b in zip(mine, both(lambda: torchs.flex_attention(q, k, v, score, mask), [q, k, v])):
        close(a, b)


@pytest.mark.parametrize("name", ["reading a mod", "the operator"])
def test_after_a_bug_of_attune_torchs_way_follows(name, active, monkeypatch):
    def breaks(*_, **__):
        raise KeyError("a defect")

    monkeypatch.setattr(*{"reading a mod": (_lowering._Mods, "_run"), "the operator": (_lowering, "_operator")}[name],
                        breaks)
    q, k, v = torch.randn(3, B, H, S, D)
    how = {"score_mod": lambda s, b, h, m, n: s + DOC[n], "block_mask": blocks(documents)}
    told, made = refused(active, lambda: torch.compile(torchs.flex_attention)(q, k, v, **how))
    assert told == "attune: torch's own attention runs: a bug in attune, KeyError: 'a defect'"
    close(made, torchs.flex_attention(q, k, v, **how))


def test_a_fold_that_fails_is_told(active, monkeypatch):
    def breaks(*_):
        raise KeyError("a defect")

    monkeypatch.setattr(_joint, "_affine_of", breaks)
    q, k, v = torch.randn(3, B, H, S, D)
    with pytest.warns(UserWarning, match="constants: a bug in attune, KeyError"), fresh_inductor_cache():
        made = torch.compile(torchs.flex_attention)(q, k, v, block_mask=blocks(documents))
    close(made, torchs.flex_attention(q, k, v, block_mask=blocks(documents)))
    assert len(active) == 1


def listed(heads, blocks):
    """Lists of random blocks, some full and some partial."""
    kept = torch.rand(1, heads, blocks, blocks) < 0.5
    kept[..., 0] = True
    full = (torch.rand_like(kept, dtype=torch.float32) < 0.5) & kept
    full[..., 0] = False
    return (kept & ~full), full


def of_lists(parts, size, mask_mod=None):
    lists = [one for kept in parts for one in torchs._dense_to_ordered(kept.int())]
    return torchs.BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=size, mask_mod=mask_mod, seq_lengths=(S, S))


def causal(b, h, m, n):
    return m >= n


def check_blocks(attention, mask, partial, full, size, mask_mod=lambda b, h, m, n: True):
    """Against the pairs of full blocks, and those that the mask_mod keeps of partial ones."""
    over = leaves((B, H, S, D), (B, H, S, D), (B, H, S, D))
    mine = both(lambda: attention(*over, block_mask=mask), over)
    part, all_of = [one.repeat_interleave(size, -1).repeat_interleave(size, -2) for one in (partial, full)]
    keeps = all_of | part & torch.as_tensor(mask_mod(0, 0, torch.arange(S)[:, None], torch.arange(S)))
    for a, b in zip(mine, both(lambda: plain(*over, keeps), over)):
        close(a, b)


def plain(q, k, v, keeps):
    """An attention that activate() does not replace."""
    return (q @ k.mT / D**0.5).masked_fill(~keeps, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("heads, mask_mod, with_full", [
    (1, None, True), (H, None, True), (1, causal, True), (H, causal, True), (1, causal, False)])
def test_the_lists_of_a_block_mask_keep_its_blocks(active, heads, mask_mod, with_full):
    size = 32
    partial, full = listed(heads, S // size)
    mask = of_lists((partial, full)[:1 + with_full], size, mask_mod)
    check_blocks(torch.compile(torchs.flex_attention), mask, partial, full & with_full, size,
                 *[mod for mod in (mask_mod,) if mod])
    assert [fact["call"] for fact in active] == ["forward", "backward"]


def masks_read(calls):
    """The masks that ran, as text."""
    return [texts_of(fact["mod"]).mask for fact in calls]


SIZE = 32
LOWER = torch.ones(S // SIZE, S // SIZE).tril(-1).bool()[None, None]
DIAGONAL = torch.eye(S // SIZE).bool()[None, None]


def made_before():
    return torchs.create_block_mask(causal, None, None, S, S, "cpu", SIZE)


def test_a_block_mask_whose_lists_change_is_no_longer_its_mask_mod(active):
    """One compiled function, which sees each change."""
    compiled, nothing = torch.compile(torchs.flex_attention), torch.zeros_like(LOWER)
    known, replaced, other = made_before(), made_before(), made_before()
    replaced.kv_num_blocks = replaced.kv_num_blocks.clone()
    other.mask_mod = window
    with torch.inference_mode():
        inferred = made_before()
    for mask, full, is_known in ((known, LOWER, True), (made_before(), LOWER, True), (known, nothing, False),
                                 (replaced, LOWER, False), (other, LOWER, False), (inferred, LOWER, True)):
        active.clear()
        if full is nothing:
            mask.full_kv_num_blocks.zero_()
        check_blocks(compiled, mask, DIAGONAL, full, SIZE, mask.mask_mod)
        assert len(active) == 2
        assert all((text == "kv <= q") == is_known and ("t0[" not in text) == is_known for text in masks_read(active))


def test_a_block_mask_of_inference_mode_is_its_mask_mod(active):
    with torch.inference_mode():
        doc = (torch.arange(S) // 40).int()
        mask = torchs.create_block_mask(lambda b, h, m, n: doc[m] == doc[n], None, None, S, S, "cpu", SIZE)
        q, k, v = torch.randn(3, B, H, S, D)
        close(torch.compile(torchs.flex_attention)(q, k, v, block_mask=mask), plain(q, k, v, doc[:, None] == doc))
    assert masks_read(active) == ["t0[q] == t0[kv]"]


@pytest.mark.parametrize("how", ["known", "written", "other mod", "other mask"])
def test_a_block_mask_that_is_made_and_changed_in_a_graph(active, how):
    def attention(q, k, v, block_mask):
        mask = made_before()
        if how == "written":
            mask.full_kv_num_blocks.zero_()
        elif how == "other mod":
            mask.mask_mod = window
        elif how == "other mask":
            mask = torchs.BlockMask.from_kv_blocks(mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks,
                                                   mask.full_kv_indices, SIZE, window, (S, S))
        return torchs.flex_attention(q, k, v, block_mask=mask)

    check_blocks(torch.compile(attention, fullgraph=True), None, DIAGONAL, LOWER & (how != "written"), SIZE,
                 window if how.startswith("other") else causal)
    assert len(active) == 2 and all(("t0[" in text) == (how != "known") for text in masks_read(active))
    assert how != "known" or masks_read(active) == ["kv <= q"] * 2


def test_a_block_mask_that_a_compiled_function_made(active):
    mask = torch.compile(made_before)()
    check_blocks(torch.compile(torchs.flex_attention), mask, DIAGONAL, LOWER, SIZE, causal)
    check_blocks(flex_attention, mask, DIAGONAL, LOWER, SIZE, causal)
    assert masks_read(active) == ["kv <= q"] * 4


def test_lists_of_one_head_for_a_mask_that_reads_it(active):
    """They are those of head 0: torch does not visit what only other heads keep."""
    by_head = lambda b, h, m, n: m + 40 * h >= n
    compiled = torch.compile(torchs.flex_attention)
    for heads in (None, H):
        mask = torchs.create_block_mask(by_head, None, heads, S, S, "cpu", SIZE)
        check_blocks(compiled, mask, *[t.bool() for t in tables(mask)], SIZE,
                     lambda b, h, m, n: by_head(b, torch.arange(H)[:, None, None], m, n))
    assert ["t0[" in text for text in masks_read(active)] == [True, True, False, False]


def tables(mask):
    """Of the partial blocks and the full ones."""
    for num, indices in ((mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)):
        ahead = torch.arange(indices.shape[-1]) < num[..., None]
        yield torch.zeros_like(indices).scatter_(-1, indices.long(), ahead.int())


@fresh_inductor_cache()
def test_inductors_cache_knows_attune(active):
    q, k, v = torch.randn(3, B, H, S, D)
    for on in (False, True, False, True):
        deactivate()
        torch.compiler.reset()
        active.clear()
        if on:
            activate(compile=True)
        torch.compile(torchs.flex_attention)(q, k, v)
        assert bool(active) == on


def code_of(call):
    """What Inductor writes for the forward, and for its backward."""
    with fresh_inductor_cache():
        torch.compiler.reset()
        return run_and_get_code(call)[1]


def test_lists_that_nobody_reads_are_not_made(active):
    """attune reads the mask_mod, and both directions have its lse: no kernel but those around the attention is left."""
    q, k, v = leaves((B, H, S, D), (B, 2, S, D), (B, 2, S, D))

    def model(attention, mask=window, use_lse=False):
        out, lse = attention(q * 2, k, v, block_mask=blocks(mask), enable_gqa=True, return_lse=True)
        return out * lse[..., None] if use_lse else out

    made = []
    codes = code_of(lambda: made.append(both(torch.compile(lambda: model(torchs.flex_attention)), [q, k, v])))
    assert len(codes) == 2
    for code, count in zip(codes, (1, 1)):  # q * 2, and the gradient of it
        assert "sort" not in code and code.count("async_compile.cpp_pybinding") == count, code
    assert "attune.forward_below" in codes[0]
    for a, b in zip(made[0], both(lambda: model(flex_attention), [q, k, v])):
        close(a, b)
    codes = code_of(lambda: made.append(both(torch.compile(lambda: model(torchs.flex_attention, use_lse=True)), [q, k, v])))
    assert not any("sort" in code for code in codes)
    for a, b in zip(made[1], both(lambda: model(flex_attention, use_lse=True), [q, k, v])):
        close(a, b)


def test_lists_are_made_where_torch_computes_a_direction(active):
    """A mod that attune cannot express: the BlockMask stays as it was."""
    q, k, v = torch.randn(3, B, H, S, D)
    score = lambda s, b, h, m, n: s + torch.special.bessel_j0(s)  # noqa: E731

    def model(q, k, v):
        return torchs.flex_attention(q, k, v, score, blocks(window))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        close(torch.compile(model)(q, k, v), model(q, k, v))
    assert not active


def lists_of(mask):
    return [t for t in vars(mask).values() if isinstance(t, torch.Tensor)]


@pytest.fixture
def made(monkeypatch):
    """The mask_mods whose lists torch made, as a list that grows."""
    mods, own = [], torchs.create_mask
    monkeypatch.setattr(torchs, "create_mask", lambda mod, *how: mods.append(mod) or own(mod, *how))
    return mods


def truth(make):
    """What torch makes of it."""
    deactivate()
    mask = make()
    activate(compile=True)
    return mask


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(lists_of(one), lists_of(other), strict=True))


def test_lists_of_equal_masks_are_made_once(active, made):
    def within(reach):
        return lambda b, h, m, n: (m >= n) & (m - n < reach)

    make = functools.partial(torchs.create_block_mask, B=2, H=None, Q_LEN=300, KV_LEN=300, device="cpu", BLOCK_SIZE=64)
    first, mod = make(within(70)), within(70)
    again = make(mod)
    assert len(made) == 1 and equal(first, again) and again.mask_mod is mod is not first.mask_mod
    for count, other in enumerate((lambda: make(within(71)), lambda: make(mod, B=1), lambda: make(mod, KV_LEN=301),
                                   lambda: make(mod, BLOCK_SIZE=32)), 2):
        other()
        assert len(made) == count
    with torch.inference_mode():
        assert equal(make(mod), first) and len(made) == 5
    for part in lists_of(again):  # it has them for itself
        part.zero_()
    assert equal(first, truth(lambda: torchs.create_block_mask(mod, 2, None, 300, 300, "cpu", 64)))
    assert equal(make(mod), first)


@pytest.mark.parametrize("one, other", [
    (lambda b, h, m, n: m >= n, lambda b, h, m, n: m.to(torch.int8) >= n.to(torch.int8)),
    (lambda b, h, m, n: m >= n, lambda b, h, m, n: m.to(torch.uint8) >= n),
    (lambda b, h, m, n: m * 64 >= n * 64, lambda b, h, m, n: m.short() * 64 >= n.short() * 64),
    (lambda b, h, m, n: m * 65536 * 65536 >= n, lambda b, h, m, n: m.int() * 65536 * 65536 >= n),
    (lambda b, h, m, n: m.float() * 100 == torch.inf, lambda b, h, m, n: m.half() * 100 == torch.inf),
    (lambda b, h, m, n: m.float() * 16777217 > m.float() * 16777216,
     lambda b, h, m, n: m.double() * 16777217 > m.double() * 16777216)],
    ids=["int8", "uint8", "int16", "int32", "float16", "float64"])
def test_masks_that_differ_by_types_have_lists_of_their_own(active, one, other):
    make = functools.partial(torchs.create_block_mask, B=1, H=1, Q_LEN=1024, KV_LEN=1024, device="cpu", BLOCK_SIZE=64)
    for mods in ((one, other), (other, one)):
        deactivate()
        activate(compile=True)
        masks = [make(mod) for mod in mods]
        for mask, mod in zip(masks, mods):
            assert equal(mask, truth(lambda mod=mod: make(mod)))


def test_masks_that_read_tensors_are_made_each_time(active):
    keep = torch.ones(S, dtype=torch.bool)
    keeps = lambda b, h, m, n: keep[n]  # noqa: E731
    assert blocks(keeps).to_dense().sum() == 1
    keep[:] = False
    assert blocks(keeps).to_dense().sum() == 0


def test_create_block_mask_is_torchs_again_afterwards(active):
    ours = torchs.create_block_mask
    deactivate()
    torchs_own = torchs.create_block_mask
    assert ours is not torchs_own and inspect.signature(ours) == inspect.signature(torchs_own)
    assert torch.equal(ours(window, 1, 1, S, S, "cpu").kv_indices, torchs_own(window, 1, 1, S, S, "cpu").kv_indices)
    activate(compile=True)
    assert torchs.create_block_mask is ours  # what Dynamo compiled before holds


def test_a_model_that_compiles_its_masks_has_no_graph_break(active):
    q, k, v = leaves((B, H, S, D), (B, H, S, D), (B, H, S, D))

    def model(q, k, v):
        mask = torchs.create_block_mask(window, None, None, S, S, "cpu", _compile=True)
        return torchs.flex_attention(q, k, v, block_mask=mask)

    made = []
    codes = code_of(lambda: made.append(both(lambda: torch.compile(model, fullgraph=True)(q, k, v), [q, k, v])))
    assert len(codes) == 2 and not any("sort" in code for code in codes)
    for a, b in zip(made[0], both(lambda: flex_attention(q, k, v, block_mask=blocks(window)), [q, k, v])):
        close(a, b)


def numbered(positions):
    """As models of transformers number sequences that may lie in one row."""
    ahead = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
    return (ahead != 1).cumsum(-1)


def attended(q, k, v, positions, index=lambda i: i + 0):
    row = numbered(positions)

    def mask(b, h, m, n):
        return (positions[b, index(n)] <= positions[b, m + 0]) & (row[b, m] == row[b, n])

    return torchs.flex_attention(q, k, v, block_mask=torchs.create_block_mask(mask, B, None, S, S, "cpu"))


@pytest.mark.parametrize("positions", ["usual", "further", "twice", "cut", "half", "passed"])
def test_positions_that_are_known_are_no_tensors(positions, active):
    """An arange is the position itself, and one sequence a row has one number."""
    q, k, v = leaves((B, H, S, D), (B, H, S, D), (B, H, S, D))
    make, index = {
        "usual": (lambda: torch.arange(S)[None].expand(B, S), lambda n: n),
        "further": (lambda: torch.arange(5, S + 5, dtype=torch.int32).expand(B, S), lambda n: n),
        "twice": (lambda: 2 * torch.arange(S).expand(B, S), lambda n: n),  # each one a sequence of its own
        "cut": (lambda: (torch.arange(S) % 40).expand(B, S), lambda n: n),
        "half": (lambda: torch.arange(S).expand(B, S), lambda n: n // 2),  # perhaps outside, for all that is proved
        "passed": (lambda: torch.arange(S).expand(B, S).clone(), lambda n: n)}[positions]
    given = make() if positions == "passed" else None

    def run(given):
        return attended(q, k, v, make() if given is None else given, index)

    made = []
    codes = code_of(lambda: made.append(both(lambda: torch.compile(run, fullgraph=True)(given), [q, k, v])))
    assert [fact["call"] for fact in active] == ["forward", "backward"]
    for code in codes:
        assert ("t0[" in code) == (positions in ("cut", "half", "passed")), code
        assert positions != "usual" or "cumsum" not in code and "arange" not in code and "iota" not in code
    m, n = torch.arange(S)[:, None], torch.arange(S)[None]
    at = make()[0]
    keeps = (at[index(n)] <= at[m]) & (numbered(at[None])[0][m] == numbered(at[None])[0][n])
    for a, b in zip(made[0], both(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, keeps), [q, k, v])):
        close(a, b)


def test_one_sequence_a_row_masks_nothing(active):
    q, k, v = leaves((B, H, S, D), (B, H, S, D), (B, H, S, D))

    def run(q, k, v):
        row = numbered(torch.arange(S)[None].expand(B, S))
        mask = torchs.create_block_mask(lambda b, h, m, n: row[b, m] == row[b, n], B, None, S, S, "cpu")
        return torchs.flex_attention(q, k, v, block_mask=mask)

    made = []
    code_of(lambda: made.append(both(lambda: torch.compile(run, fullgraph=True)(q, k, v), [q, k, v])))
    assert [fact["call"] for fact in active] == ["forward", "backward"]
    for a, b in zip(made[0], both(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v), [q, k, v])):
        close(a, b)


def test_positions_of_other_lengths(active):
    def run(q, k, v):
        length = q.shape[2]
        positions = torch.arange(length)[None].expand(B, length)
        ahead = lambda b, h, m, n: positions[b, n] <= positions[b, m]  # noqa: E731
        mask = torchs.create_block_mask(ahead, B, None, length, length, "cpu")
        return torchs.flex_attention(q, k, v, block_mask=mask)

    compiled = torch.compile(run, dynamic=True)
    for length in (96, 130):
        q, k, v = torch.randn(3, B, H, length, D)
        close(compiled(q, k, v), torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert active


def test_a_pass_of_the_users_own_stays(active):
    deactivate()
    config, ran = torch._inductor.config, []
    for before, others in ((None, 0), (lambda graph: ran.append(graph), 1)):
        with config.patch(joint_custom_pre_pass=before), fresh_inductor_cache():
            activate(compile=True)
            torch.compiler.reset()
            torch.compile(torchs.flex_attention)(*torch.randn(3, B, H, S, D), block_mask=blocks(window))
            assert len(ran) >= others and active
            deactivate()
            assert config.joint_custom_pre_pass is before


def test_activate_alone_leaves_flex_attention_as_it_is(active):
    deactivate()
    activate()
    torch.compile(torchs.flex_attention)(*torch.randn(3, B, H, S, D))
    assert not active
    activate(compile=True)
    torch.compiler.reset()
    torch.compile(torchs.flex_attention)(*torch.randn(3, B, H, S, D))
    assert active


def test_a_torch_with_another_operator_is_refused(monkeypatch):
    deactivate()
    monkeypatch.setattr(_activate, "_own", {})
    lowering = attune.torch._lowering
    monkeypatch.setattr(lowering, "_OURS", ((lowering._OURS[0][0], lambda query: None, 4),))
    with pytest.raises(attune.Error) as caught:
        activate(compile=True)
    assert caught.value.code == "torch-version"


@pytest.mark.parametrize("how", ["layers", "compiled layers", "checkpoints"])
def test_a_model_as_torchtitan_writes_it(active, how):
    """flex_attention and create_block_mask are compiled once; layers are compiled one by one or checkpointed."""
    options = {"max_autotune": False, "triton.cudagraphs": False}
    if hasattr(torch._inductor.config, "wrap_inductor_compiled_regions"):
        options["wrap_inductor_compiled_regions"] = True
    flex, make = torch.compile(torchs.flex_attention, options=options), torch.compile(torchs.create_block_mask)
    saved = {torch.ops.aten.mm.default, torch.ops.higher_order.flex_attention,
             getattr(torch._higher_order_ops, "inductor_compiled_code", None)}

    def policy(ctx, function, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if function in saved else CheckpointPolicy.PREFER_RECOMPUTE

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(H * D, (H + 4) * D), torch.nn.Linear(H * D, H * D)

        def forward(self, x, mask):
            q, k, v = self.qkv(x).view(*x.shape[:2], H + 4, D).transpose(1, 2).split((H, 2, 2), 1)
            return x + self.out(self.attention(q, k, v, mask).transpose(1, 2).reshape(x.shape))

        def attention(self, q, k, v, mask):
            if isinstance(mask, torch.Tensor):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
            return flex(q, k, v, block_mask=mask, enable_gqa=True)

    layers = torch.nn.ModuleList([Layer() for _ in range(2)])
    x, over = torch.randn(B, S, H * D), list(layers.parameters())
    document = (torch.rand(B, S) < 0.05).cumsum(1)
    keeps = (document[:, None, :, None] == document[:, None, None, :]) & torch.ones(S, S).tril().bool()
    mask = make(torchs.and_masks(lambda b, h, m, n: m >= n, lambda b, h, m, n: document[b, m] == document[b, n]),
                B, None, S, S, device="cpu")
    want = both(lambda: layers[1](layers[0](x, keeps), keeps), over)
    active.clear()
    if how == "compiled layers":
        for layer in layers:
            layer.compile(fullgraph=True)
    context = functools.partial(create_selective_checkpoint_contexts, policy)

    def run(made):
        for layer in layers:
            made = layer(made, mask) if how != "checkpoints" else checkpoint(
                layer, made, mask, use_reentrant=False, context_fn=context)
        return made

    mine = both(lambda: run(x), over)
    assert [fact["call"] for fact in active] == ["forward"] * 2 + ["backward"] * 2
    for a, b in zip(mine, want):
        close(a, b)


def test_transformers_flex_models(active):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "llama", vocab_size=99, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    tokens, keep = torch.randint(3, 99, (2, 19)), torch.ones(2, 19, dtype=torch.long)
    keep[0, :4] = 0
    with torch.no_grad():
        want = model(tokens, attention_mask=keep).logits
        model.set_attn_implementation("flex_attention")
        made = model(tokens, attention_mask=keep).logits
    assert len(active) == 2
    close(made[keep.bool()], want[keep.bool()])
