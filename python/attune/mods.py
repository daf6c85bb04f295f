# python/attune/mods.py — named mods, each a line of the language: use them, or read them to learn it
"""Named mods. Numbers may be `attune.Param`s; tensors are captured by reference.

>>> import attune
>>> attune.mods.sliding_window(256)
attune.Mask(kv <= q && q - kv < 256)
"""

from __future__ import annotations

from numbers import Real
from typing import Any

from attune import _arrays
from attune._errors import Error
from attune._parts import Mask, Prob, Score, Sink
from attune._place import here
from attune.expr import (At, Bool, Float, FloatLike, IntLike, abs, clamp, exp2, f32, i32, kept, max, round, tanh,
                         truncdiv, truncmod, where)

# ---- masks


def causal(offset: IntLike = 0) -> Mask:
    """A query sees the keys up to its own position, `offset` further on."""
    if isinstance(offset, int) and offset == 0:
        return Mask(lambda at: at.kv <= at.q)
    return Mask(lambda at: at.kv <= at.q + offset)


def sliding_window(width: IntLike) -> Mask:
    """The last `width` positions, the query's own included."""
    return Mask(lambda at: (at.kv <= at.q) & (at.q - at.kv < width))


def two_sided_window(reach: IntLike) -> Mask:
    """Positions at most `reach` away."""
    return Mask(lambda at: abs(at.q - at.kv) <= reach)


def dilated_window(reach: IntLike, step: IntLike) -> Mask:
    """Every `step`-th position within reach."""
    return Mask(lambda at: (abs(at.q - at.kv) <= reach) & (truncmod(at.q - at.kv, step) == 0))


def sink_window(width: IntLike, sinks: IntLike) -> Mask:
    """The first `sinks` positions and a sliding window."""
    return Mask(lambda at: (at.kv <= at.q) & ((at.q - at.kv < width) | (at.kv < sinks)))


def prefix(length: Any) -> Mask:
    """Every position sees the prefix; after it, causal. `length` is a number, or an array [batch]."""
    if hasattr(length, "shape"):
        return Mask(lambda at: (at.kv < length[at.batch]) | (at.kv <= at.q))
    return Mask(lambda at: (at.kv < length) | (at.kv <= at.q))


def padding(length: Any) -> Mask:
    """Keys at or beyond a batch entry's length are padding. `length` is [batch]."""
    return Mask(lambda at: at.kv < length[at.batch])


def document(id: Any) -> Mask:
    """A position sees its own document. `id` is [position] or [batch, position]."""
    if _arrays.rank_of("id", id) == 2:
        return Mask(lambda at: id[at.batch, at.q] == id[at.batch, at.kv])
    return Mask(lambda at: id[at.q] == id[at.kv])


def chunked(length: IntLike) -> Mask:
    """A position sees its own chunk."""
    return Mask(lambda at: truncdiv(at.q, length) == truncdiv(at.kv, length))


def block_causal(length: IntLike) -> Mask:
    """Causal between blocks, free within one."""
    return Mask(lambda at: truncdiv(at.kv, length) <= truncdiv(at.q, length))


def global_tokens(is_global: Any) -> Mask:
    """Global tokens see every token, and every token sees them. `is_global` is bool [position]."""
    return Mask(lambda at: is_global[at.q] | is_global[at.kv])


def neighbourhood_2d(width: int, height: int, reach: int) -> Mask:
    """A window of (2 * reach + 1)^2 over an image of width x height, shifted inside at the image's edges."""

    def near(at: Any) -> Any:
        x = clamp(truncmod(at.q, width), reach, width - 1 - reach)
        y = clamp(truncdiv(at.q, width), reach, height - 1 - reach)
        return (abs(x - truncmod(at.kv, width)) <= reach) & (abs(y - truncdiv(at.kv, width)) <= reach)

    return Mask(near)


def tree(sees: Any) -> Mask:
    """A tree of draft tokens, which are the last q_len positions of their entry. Each draft sees every key before the
    drafts, and the drafts for which `sees` [batch, draft, draft] is true: usually its ancestors and itself."""
    def mask(at: At) -> Bool:
        known = at.kv_len - at.q_len
        return (at.kv < known) | sees[at.batch, max(at.q - known, 0), max(at.kv - known, 0)]
    return Mask(mask)


def dense(keep: Any) -> Mask:
    """A precomputed mask: [q, kv], [head, q, kv] or [batch, head, q, kv]."""
    rank = _arrays.rank_of("keep", keep)
    return Mask(lambda at: keep[(at.batch, at.head, at.q, at.kv)[4 - rank:]])


# ---- scores


def alibi(slope: Any) -> Score:
    """A slope per head: an array [heads], or the number of heads for the usual slopes 2^(-8 (h + 1) / heads)."""
    if isinstance(slope, int):
        heads = float(slope)
        return Score(lambda s, at: s + exp2(-8.0 * f32(at.head + 1) / heads) * f32(at.kv - at.q))
    return Score(lambda s, at: s + slope[at.head] * f32(at.kv - at.q))


def softcap(cap: FloatLike) -> Score:
    """A smooth bound: |score| stays below `cap`."""
    if isinstance(cap, int):
        cap = float(cap)
    return Score(lambda s, at: cap * tanh(s / cap))


def relative_position() -> Score:
    """Adds the distance q - kv."""
    return Score(lambda s, at: s + f32(at.q - at.kv))


def relative_bias(table: Any, reach: IntLike) -> Score:
    """`table[head, q - kv + reach]`, [heads, 2 * reach]; positions further apart use the table's end entries."""
    return Score(lambda s, at: s + table[at.head, at.q - at.kv + reach])


def bucketed_bias(table: Any, bucket: Any, reach: IntLike) -> Score:
    """T5: `table` is [heads, buckets]; `bucket` maps each clamped distance to a column, [2 * reach + 1]."""
    return Score(lambda s, at: s + table[at.head, bucket[clamp(at.q - at.kv + reach, 0, 2 * reach)]])


def dense_bias(bias: Any) -> Score:
    """A precomputed bias: [q, kv], [head, q, kv] or [batch, head, q, kv]."""
    rank = _arrays.rank_of("bias", bias)
    return Score(lambda s, at: s + bias[(at.batch, at.head, at.q, at.kv)[4 - rank:]])


def head_bias(bias: Any) -> Score:
    """A number per head."""
    return Score(lambda s, at: s + bias[at.head])


def key_bias(bias: Any) -> Score:
    """A number per key."""
    return Score(lambda s, at: s + bias[at.kv])


def dequantise(q_scale: Any, kv_scale: Any) -> Score:
    """The scales of a quantised cache: q_scale [batch, head, q], kv_scale [batch, kv]."""
    return Score(lambda s, at: s * q_scale[at.batch, at.head, at.q] * kv_scale[at.batch, at.kv])


# ---- after the softmax


def dropout(keep: FloatLike, seed: IntLike) -> Prob:
    """Keeps each probability with probability `keep`, scaled by 1 / keep; drops the others. `keep` is the share that
    is kept: torch's `dropout_p` is 1 - keep. It counts as the nearest multiple of 1/65536, but not as 0."""
    if isinstance(keep, Real) and not 0 < keep <= 1:
        raise Error.at(here(), "bad-argument", f"`keep` cannot be {keep}",
                       "it is the fraction of pairs that dropout keeps, and their probabilities are divided by it",
                       "write a number above 0 and up to 1")

    def drop(p: Float, at: At) -> Float:
        n = max(round(keep * 65536.0), 1.0)
        return where(kept(seed, i32(n)), p / (n / 65536.0), 0.0)

    return Prob(drop)


def head_gate(gate: Any) -> Prob:
    """A factor per head."""
    return Prob(lambda p, at: p * gate[at.head])


# ---- sinks


def learned_sink(logit: Any) -> Sink:
    """One logit per head."""
    return Sink(lambda at: logit[at.head])
