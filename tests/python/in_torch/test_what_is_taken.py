# tests/python/in_torch/test_what_is_taken.py — docs/torch.md's table of what a BlockMask and a mod may hold, row by row
"""Each row of the table, asked of attune.torch.flex_attention, and of torch's, compiled after activate(compile=True)."""

import random
import re
import warnings
from pathlib import Path

import attune
import pytest
import torch
import torch.nn.attention.flex_attention as torchs
from attune.torch import activate, deactivate, flex_attention
from eager import close
from torch._inductor.utils import fresh_inductor_cache

B, H, S, D, SIZE = 1, 2, 64, 16, 32
ROOT = Path(__file__).resolve().parents[3]
M, N = torch.arange(S)[:, None], torch.arange(S)
HEADS = torch.arange(H)[:, None, None]


def table():
    """The rows: what a mask or mod holds, what attune.torch does with it, and what a compiled call does."""
    page = (ROOT / "docs/torch.md").read_text(encoding="utf-8")
    rows = page.partition("### What a BlockMask and a mod may hold")[2].partition("\n#")[0]
    return {row[0]: row[1:] for row in re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", rows, re.M)}


def causal(b, h, i, j):
    return i >= j


def lists(kept, mask_mod=None, full=None):
    parts = [torchs._dense_to_ordered(torch.tensor(one).int()[None, None]) for one in (kept, full) if one is not None]
    return torchs.BlockMask.from_kv_blocks(*[one for part in parts for one in part], BLOCK_SIZE=SIZE, mask_mod=mask_mod,
                                           seq_lengths=(S, S))


def made(mask_mod, heads=None, length=S, size=SIZE):
    return torchs.create_block_mask(mask_mod, None, heads, length, length, "cpu", size)


def written():
    mask = made(causal)
    mask.full_kv_num_blocks.zero_()
    return mask


def other_mod():
    mask = made(causal)
    mask.mask_mod = lambda b, h, i, j: i >= j + 3
    return mask


def in_place(s, b, h, i, j):
    return s.mul_(2)


def branching(s, b, h, i, j):
    return s if i > j else 0.5 * s


def drawing(s, b, h, i, j):
    return torch.where(torch.rand(s.shape) < 0.3, -torch.inf, s)


CHOSEN = [[1, 0], [0, 1]]
UPPER = (M < SIZE) & (N >= SIZE)
bias, five = torch.randn(H, S), torch.randn(1, 1, 1, H, S)
u, w = torch.randn(S, 4), torch.randn(S, 4)
array = bias.numpy()

# A BlockMask and the pairs that it keeps, or a score_mod and what it adds to scores.
MASKS = {
    "lists that follow from the `mask_mod`, as those of `create_block_mask` do": (lambda: made(causal), M >= N),
    "lists that leave out blocks which the `mask_mod` keeps": (
        lambda: lists(CHOSEN, causal), (M >= N) & (M // SIZE == N // SIZE)),
    "full blocks, whose pairs are kept whatever the `mask_mod` says": (
        lambda: lists(CHOSEN, causal, [[0, 1], [0, 0]]), (M >= N) & (M // SIZE == N // SIZE) | UPPER),
    "lists alone": (lambda: lists([[1, 0], [1, 1]]), ~UPPER),
    "lists that were written, or a `mask_mod` that was replaced, after `create_block_mask`": (
        lambda: [written(), other_mod()],
        [(M >= N) & (M // SIZE == N // SIZE), (M >= N + 3) & (M // SIZE == N // SIZE) | (M // SIZE > N // SIZE)]),
    "lists of one head for all, with a `mask_mod` that reads the head": (
        lambda: made(lambda b, h, i, j: i + 40 * h >= j),
        (M + 40 * HEADS >= N) & ~UPPER & (M // SIZE == N // SIZE) | (M // SIZE > N // SIZE)),
    "other block sizes": (lambda: made(causal, size=(64, 16)), M >= N),
    "a slice, which has no `mask_mod`": (lambda: made(causal)[:, :, 0], None),
    "other lengths than q and k": (lambda: made(causal, length=2 * S), None),
    "a `mask_mod` that returns integers, true if not 0": (
        lambda: lists([[1, 1], [1, 1]], lambda b, h, i, j: i - j), M != N),
    "casts to i8, u8 or i16": (lambda: made(lambda b, h, i, j: (4 * i).to(torch.uint8) >= j), (4 * M) % 256 >= N),
    "casts to i32 or i64": (lambda: made(lambda b, h, i, j: i.int() >= j.long()), M >= N),
}
SCORES = {
    "captured tensors of up to four dimensions": (lambda s, b, h, i, j: s + bias[h, j], lambda s: s + bias[:, None]),
    "captured tensors of more dimensions": (
        lambda s, b, h, i, j: s + five[b, b, b, h, j], lambda s: s + bias_of_five()),
    "captured arrays of NumPy": (lambda s, b, h, i, j: s + array[h, j], None),
    "rows of captured tensors: sums and products": (
        lambda s, b, h, i, j: s + (u[i] * w[j]).sum(-1), lambda s: s + u @ w.T),
    "casts to f16, bf16 or f64, computed in f32": (
        lambda s, b, h, i, j: s + (i - j).to(torch.float64) * 0.5, lambda s: s + (M - N) * 0.5),
    "functions that are not [listed](#what-a-mod-may-do)": (
        lambda s, b, h, i, j: s + torch.special.bessel_j0(s), lambda s: s + torch.special.bessel_j0(s)),
    "random numbers of torch": (drawing, None),
    "random numbers of Python or NumPy, one for all pairs": (lambda s, b, h, i, j: s * random.random(), ...),
    "`if` and Python's functions of numbers": (branching, None),
    "methods that write in place": (in_place, None),
}


def bias_of_five():
    return five[0, 0, 0][:, None]


def attentions(name):
    """Calls of flex_attention, and what they should give; ... if that is random."""
    q, k, v = torch.randn(3, B, H, S, D)
    scores = q @ k.mT / D**0.5

    def result(scored):
        return scored.softmax(-1).nan_to_num() @ v

    if name in MASKS:
        masks, kept = MASKS[name]
        masks = masks()
        for mask, keeps in zip(*[one if isinstance(one, list) else [one] for one in (masks, kept)]):
            yield (lambda flex, mask=mask: flex(q, k, v, block_mask=mask)), (
                None if keeps is None else result(scores.masked_fill(~keeps, -torch.inf)))
    else:
        mod, scored = SCORES[name]
        yield (lambda flex: flex(q, k, v, mod)), scored if scored in (None, ...) else result(scored(scores))


def outcome(call, flex, want):
    """What a call does, in the words of the table."""
    called = []
    with warnings.catch_warnings(record=True) as told, attune.watch(
            lambda fact: called.append(fact) if fact["fact"] == "called" else None):
        warnings.simplefilter("always")
        try:
            out = call(flex)
        except attune.Error as error:
            return f"refused: `{error.code}`"
        except Exception:
            assert not called
            return "torch refuses"
    warned = [str(one.message) for one in told if "attune: torch's own" in str(one.message)]
    assert bool(called) != bool(warned) and len(warned) < 2
    if want is not ...:
        close(out, want)
    return "computed" if called else "torch's, with a warning"


def test_the_rows_are_those_that_are_asked():
    assert list(table()) == [*MASKS, *SCORES]


@pytest.mark.parametrize("name", [*MASKS, *SCORES])
def test_a_row(name):
    eager, compiled = table()[name]
    for call, want in attentions(name):
        assert outcome(call, flex_attention, want) == eager
    activate(compile=True)
    try:
        for call, want in attentions(name):
            assert outcome_compiled(call, want) == compiled
    finally:
        deactivate()
    if compiled == "torch refuses":
        assert all([outcome_compiled(call, want) == compiled for call, want in attentions(name)])


def outcome_compiled(call, want):
    torch.compiler.reset()
    with fresh_inductor_cache(), torch.no_grad():
        return outcome(call, torch.compile(torchs.flex_attention, fullgraph=True), want)
