# tests/python/corpus.py — every mod and mask of tests/numerics as Python functions, next to its text from the C++ tests
#
# ruff: noqa: F821 - captures and parameters are keywords of the call, by the names that the functions use
"""The corpus of C++'s tests, written as Python functions. The texts are read from C++'s own files."""

import re
from pathlib import Path
from typing import NamedTuple

import attune
import numpy as np
from attune import where

NUMERICS = Path(__file__).resolve().parents[1] / "numerics"
inf = float("inf")


class Mod(NamedTuple):
    """Functions for the expressions that C++ has as text, and the keywords that both read."""

    functions: dict
    keywords: dict


class Texts(NamedTuple):
    """The expressions of one mod as C++ has them."""

    parts: dict


def mod(*, score=None, mask=None, prob=None, sink=None, **keywords):
    functions = {"score": score, "mask": mask, "prob": prob, "sink": sink}
    return Mod({k: f for k, f in functions.items() if f is not None}, keywords)


def f4(*shape):
    return np.ones(shape, np.float32)


def i4(*shape):
    return np.ones(shape, np.int32)


def b1(*shape):
    return np.ones(shape, np.bool_)


def P(value):
    return attune.Param(value)


def near(w, hh, r):
    def inside(at):
        return ((abs(attune.clamp(at.q % w, r, w - 1 - r) - at.kv % w) <= r)
                & (abs(attune.clamp(at.q // w, r, hh - 1 - r) - at.kv // w) <= r))

    return inside


slope, doc = f4(4), i4(28)
f, rem, quot = attune.f32, attune.truncmod, attune.truncdiv


def causal(at):
    return at.kv <= at.q


MODS = {
    # ---- scores by position
    "plain": mod(),
    "relative": mod(score=lambda s, at: s + f(at.q - at.kv)),
    "near_boost": mod(score=lambda s, at: where(abs(at.q - at.kv) <= 8, 2.0 * s, s)),
    "checkerboard": mod(score=lambda s, at: where(rem(at.q - at.kv, 2) == 0, 0.5 * s, s)),
    "distance_decay": mod(score=lambda s, at: s / (1.0 + 1e-4 * f((at.q - at.kv) * (at.q - at.kv)))),
    "log_distance": mod(score=lambda s, at: s - attune.log(1.0 + f(abs(at.q - at.kv)))),
    "rotary_like": mod(score=lambda s, at: s * attune.cos(0.1 * f(at.q - at.kv)) + attune.sin(0.2 * f(at.q + at.kv))),
    "from_the_end": mod(score=lambda s, at: s + 0.1 * f(at.kv_len - 1 - at.kv) - 0.05 * f(at.q_len - at.q)),
    "odd_keys_off": mod(score=lambda s, at: where(at.kv % 2 == 0, s, -inf)),
    "halves": mod(score=lambda s, at: where(at.kv < at.kv_len // 2, s, 0.5 * s)),
    # ---- scores by head and batch
    "alibi": mod(score=lambda s, at: s + slope[at.head] * (at.kv - at.q), mask=causal),
    "alibi_closed": mod(score=lambda s, at: s + attune.exp2(-8.0 * f(at.head + 1) / 4) * f(at.kv - at.q), mask=causal),
    "head_bias": mod(score=lambda s, at: s + hb[at.head], hb=f4(4)),
    "token_batch_head_bias": mod(score=lambda s, at: s + tb[at.q] + bb[at.batch] + hb[at.head], tb=f4(24), bb=f4(2),
                                 hb=f4(4)),
    "head_temperature": mod(score=lambda s, at: s * attune.exp(ht[at.head]), ht=f4(4)),
    "batch_temperature": mod(score=lambda s, at: s / bt[at.batch], bt=f4(2)),
    # ---- softcaps and other bounded or curved scores
    "softcap": mod(score=lambda s, at: 30 * attune.tanh(s / 30)),
    "softcap_param": mod(score=lambda s, at: c * attune.tanh(s / c), c=P(2.5)),
    "softcap_after_alibi": mod(score=lambda s, at: c * attune.tanh((s + slope[at.head] * f(at.kv - at.q)) / c),
                               mask=causal, c=P(5.0)),
    "sigmoid_score": mod(score=lambda s, at: attune.log(attune.sigmoid(s) + 1)),
    "silu": mod(score=lambda s, at: s * attune.sigmoid(s)),
    "gelu": mod(score=lambda s, at: 0.5 * s * (1.0 + attune.erf(s * 0.70710678))),
    "square": mod(score=lambda s, at: np.square(s)),
    "twice": mod(score=lambda s, at: 2 * s),
    "relu_power": mod(score=lambda s, at: (attune.max(s, 0) + 0.1) ** 1.5),
    "clamped": mod(score=lambda s, at: attune.clamp(s, -0.4, 0.6)),
    "root": mod(score=lambda s, at: where(s > 0, attune.sqrt(s + 0.01), -attune.rsqrt(1 - s))),
    "guarded_log": mod(score=lambda s, at: where(s > 0, np.log(s), s)),
    "trigonometry": mod(score=lambda s, at: attune.tan(0.3 * s) + attune.sin(s) * attune.cos(s)),
    "powers_of_two": mod(score=lambda s, at: attune.exp2(0.3 * s) - attune.log2(1.5 + s * s)),
    "rounded": mod(score=lambda s, at: s + 0.25 * (attune.round(s) - attune.floor(s) + attune.ceil(s)
                                                   - attune.trunc(s))),
    "learned_power": mod(score=lambda s, at: (abs(s) + 0.1) ** hp[at.head], hp=f4(4)),
    "straight_through": mod(score=lambda s, at: attune.custom(attune.round(4 * s) / 4, 1)),
    # ---- tables
    "bias_2d": mod(score=lambda s, at: s + bias[at.q, at.kv], bias=f4(24, 28)),
    "bias_3d": mod(score=lambda s, at: s + bias[at.head, at.q, at.kv], bias=f4(4, 24, 28)),
    "bias_4d": mod(score=lambda s, at: s + bias[at.batch, at.head, at.q, at.kv], bias=f4(2, 4, 24, 28)),
    "bias_transposed": mod(score=lambda s, at: s + bias[at.kv, at.q], bias=f4(28, 24)),
    "bias_broadcast": mod(score=lambda s, at: s + bias[0, at.kv], bias=f4(1, 28)),
    "relative_table": mod(score=lambda s, at: s + t[at.head, at.q - at.kv + 28], t=f4(4, 52)),
    "relative_table_short": mod(score=lambda s, at: s + t[at.head, at.q - at.kv + 8], t=f4(4, 16)),
    "t5": mod(score=lambda s, at: s + t[at.head, bucket[attune.clamp(at.q - at.kv + 16, 0, 32)]], t=f4(4, 8),
              bucket=i4(33)),
    "absolute_distance": mod(score=lambda s, at: s + t[abs(at.q - at.kv)], t=f4(28)),
    "window_table": mod(score=lambda s, at: s + t[attune.clamp(at.q - at.kv + 4, 0, 8)], t=f4(9)),
    "sum_table": mod(score=lambda s, at: s + t[at.q + at.kv], t=f4(52)),
    "key_bias": mod(score=lambda s, at: s + kb[at.kv], kb=f4(28)),
    "query_gain": mod(score=lambda s, at: s * qg[at.q], qg=f4(24)),
    "sandwich": mod(score=lambda s, at: s + t[at.q - at.kv + 28] * hs[at.head], t=f4(52), hs=f4(4)),
    "table_twice": mod(score=lambda s, at: s + t[at.q] * t[at.kv], t=f4(28)),
    "quantised_cache": mod(score=lambda s, at: s * qs[at.batch, at.head, at.q] * ks[at.batch, at.kv], qs=f4(2, 4, 24),
                           ks=f4(2, 28)),
    "scalar_capture": mod(score=lambda s, at: s * gain[()] + shift[()], gain=f4(), shift=f4()),
    "half_tables": mod(score=lambda s, at: s + a[at.kv] + c[at.head, at.q], a="bf16 [28]",
                       c=np.ones((4, 24), np.float16)),
    # ---- reductions
    "dot_product": mod(score=lambda s, at: s + attune.sum(6, lambda i: qf[at.q, i] * kf[at.kv, i]), qf=f4(24, 6),
                       kf=f4(28, 6)),
    "distance_in_space": mod(
        score=lambda s, at: s - attune.sqrt(0.1 + attune.sum(3, lambda i: (x[at.q, i] - y[at.kv, i])
                                                             * (x[at.q, i] - y[at.kv, i]))), x=f4(24, 3), y=f4(28, 3)),
    "small_network": mod(
        score=lambda s, at: s + attune.sum(4, lambda i: w2[i] * attune.tanh(
            attune.sum(3, lambda j: w1[i, j] * x[at.kv, j]) + 0.1 * s)), w2=f4(4), w1=f4(4, 3), x=f4(28, 3)),
    "fourier": mod(score=lambda s, at: s + attune.sum(5, lambda i: a[at.head, i] * attune.cos(
        f(i + 1) * 0.3 * f(at.q - at.kv))), a=f4(4, 5)),
    "polynomial_in_s": mod(score=lambda s, at: attune.sum(4, lambda i: a[i] * s ** i), a=f4(4)),
    # ---- masks
    "causal": mod(mask=causal),
    "inverse_causal": mod(mask=lambda at: at.q <= at.kv),
    "causal_offset": mod(mask=lambda at: at.kv <= at.q + off, off=P(4)),
    "window": mod(mask=lambda at: (at.kv <= at.q) & (at.q - at.kv < 7)),
    "two_sided_window": mod(mask=lambda at: abs(at.q - at.kv) <= 5),
    "dilated_window": mod(mask=lambda at: (abs(at.q - at.kv) <= 9) & (rem(at.q - at.kv, 3) == 0)),
    "sink_window": mod(mask=lambda at: (at.kv <= at.q) & ((at.q - at.kv < 6) | (at.kv < 4))),
    "prefix": mod(mask=lambda at: (at.kv < P[at.batch]) | (at.kv <= at.q), P=i4(2)),
    "padding": mod(mask=lambda at: (at.kv < len[at.batch]) & (at.q < len[at.batch]), len=i4(2)),
    "documents": mod(mask=lambda at: doc[at.q] == doc[at.kv]),
    "documents_causal": mod(mask=lambda at: (doc[at.q] == doc[at.kv]) & (at.kv <= at.q)),
    "documents_i64": mod(mask=lambda at: doc[at.batch, at.q] == doc[at.batch, at.kv], doc=np.ones((2, 28), np.int64)),
    "chunked": mod(mask=lambda at: (at.q // 6 == at.kv // 6) & (at.kv <= at.q)),
    "block_causal": mod(mask=lambda at: at.kv // 5 <= at.q // 5),
    "longformer": mod(mask=lambda at: (abs(at.q - at.kv) <= 2) | g[at.q] | g[at.kv], g=b1(28)),
    "strided": mod(mask=lambda at: (at.kv <= at.q) & ((at.q - at.kv < 5) | (at.kv % 5 >= 3))),
    "big_bird": mod(mask=lambda at: (abs(at.q - at.kv) <= 3) | (at.kv < 2) | r[at.q // 8, at.kv // 8], r=b1(3, 4)),
    "neighbourhood": mod(mask=near(6, 5, 1)),
    "vision_cross": mod(mask=lambda at: (at.q >= i0[img[at.kv]]) & (at.q < i0[img[at.kv] + 1]), i0=i4(5), img=i4(28)),
    "local_and_global_heads": mod(mask=lambda at: where(loc[at.head], at.q - at.kv < 6, True) & (at.kv <= at.q),
                                  loc=b1(4)),
    "dense_boolean": mod(mask=lambda at: m[at.batch, at.head, at.q, at.kv], m=b1(2, 4, 24, 28)),
    "byte_mask": mod(mask=lambda at: m[at.q, at.kv] != 0, m=np.ones((24, 28), np.uint8)),
    "band_complement": mod(mask=lambda at: (at.kv <= at.q) & ~(at.q - at.kv < 5)),
    "window_by_head": mod(mask=lambda at: (at.kv <= at.q) & (at.q - at.kv < w[at.head]), w=np.ones(4, np.int16)),
    "bit_trick": mod(mask=lambda at: (((at.q ^ at.kv) & 3) != 0) | (at.q == at.kv)),
    "powers_of_two_back": mod(mask=lambda at: (at.kv <= at.q) & (((at.q - at.kv) & (at.q - at.kv - 1)) == 0)),
    "bitmap": mod(mask=lambda at: rows[at.q] >> (at.kv & 31) & 1 == 1, rows=i4(24)),
    "tree_ancestors": mod(mask=lambda at: (enter[at.kv] <= enter[at.q]) & (leave[at.q] <= leave[at.kv]), enter=i4(28),
                          leave=i4(28)),
    "run_time_stride": mod(mask=lambda at: (rem(at.q - at.kv, W) == 0) | (quot(at.q, W) == quot(at.kv, W)), W=P(5)),
    "block_diffusion": mod(mask=lambda at: (at.kv // 4 < at.q // 4) | ((at.q // 4 == at.kv // 4)
                                                                       & ((at.q ^ at.kv) >= 0))),
    "nothing": mod(mask=lambda at: at.kv < 0),
    "first_rows_empty": mod(mask=lambda at: at.kv <= at.q - 5),
    # ---- after the softmax, and sinks
    "dropout": mod(prob=attune.mods.dropout(0.8, 7)),
    "head_gate": mod(mask=causal, prob=lambda p, at: p * g[at.head], g=f4(4)),
    "threshold": mod(prob=lambda p, at: where(p > 1e-3, p, 0.0)),
    "sharpened": mod(prob=lambda p, at: p * p + gate[at.q] * p, gate=f4(24)),
    "sink": mod(mask=causal, sink=lambda at: sl[at.head], sl=f4(4)),
    "sink_by_batch": mod(score=lambda s, at: s + hb[at.head], mask=lambda at: at.kv <= at.q - 2,
                         sink=lambda at: 0.5 * sl[at.batch, at.head] + hb[at.head], sl=f4(2, 4), hb=f4(4)),
    "everything": mod(
        score=lambda s, at: c * attune.tanh((s + slope[at.head] * f(at.kv - at.q) + kb[at.kv]) / c),
        mask=lambda at: ((at.kv <= at.q) | (at.kv < P[at.batch])) & (doc[at.q] == doc[at.kv]),
        prob=lambda p, at: where(attune.random(3) < 0.9, p * g[at.head] / 0.9, 0.0), sink=lambda at: sl[at.head],
        kb=f4(28), P=i4(2), g=f4(4), sl=f4(4), c=P(3.0)),
    "noisy": mod(score=lambda s, at: s + 0.1 * (attune.random(1) - 0.5) + 0.1 * attune.random(at.q % 3)),
}

long_doc, ids, lengths, widths = i4(120), i4(120), i4(2), np.ones(4, np.int16)


def window(width):
    return lambda at: (at.kv <= at.q) & (at.q - at.kv < width)


MASKS = {
    "all": mod(mask=lambda at: True),
    "empty": mod(mask=lambda at: False),
    "empty by contradiction": mod(mask=lambda at: (at.kv < at.q) & (at.q < at.kv)),
    "causal": mod(mask=causal),
    "strictly causal": mod(mask=lambda at: at.kv < at.q),
    "inverse causal": mod(mask=lambda at: at.q <= at.kv),
    "causal, offset": mod(mask=lambda at: at.kv <= at.q + 17),
    "causal, offset by a parameter": mod(mask=lambda at: at.kv <= at.q + off, off=9),
    "causal, negative offset": mod(mask=lambda at: at.kv <= at.q + off, off=-31),
    "aligned to the end": mod(mask=lambda at: at.kv - at.kv_len <= at.q - at.q_len),
    "window": mod(mask=window(24)),
    "window of one": mod(mask=window(1)),
    "window, the other way round": mod(mask=lambda at: (at.q - at.kv >= 0) & (at.kv > at.q - 13)),
    "two-sided window": mod(mask=lambda at: abs(at.q - at.kv) <= 11),
    "outside of a window": mod(mask=lambda at: abs(at.q - at.kv) > 11),
    "band complement": mod(mask=lambda at: (at.kv <= at.q) & ~(at.q - at.kv < 20)),
    "sinks": mod(mask=lambda at: at.kv < 4),
    "sinks and window": mod(mask=lambda at: (at.kv <= at.q) & ((at.q - at.kv < 16) | (at.kv < 5))),
    "prefix": mod(mask=lambda at: (at.kv < 37) | (at.kv <= at.q)),
    "prefix by batch": mod(mask=lambda at: (at.kv < lengths[at.batch]) | (at.kv <= at.q)),
    "padding": mod(mask=lambda at: at.kv < lengths[at.batch]),
    "padding on both sides": mod(mask=lambda at: (at.kv < lengths[at.batch]) & (at.q < lengths[at.batch])),
    "padded causal": mod(mask=lambda at: (at.kv < lengths[at.batch]) & (at.q < lengths[at.batch]) & (at.kv <= at.q)),
    "window by head": mod(mask=lambda at: (at.kv <= at.q) & (at.q - at.kv < widths[at.head])),
    "window by a parameter": mod(mask=window(P(30))),
    "infinite window": mod(mask=window(P(2147483647))),
    "local and global heads": mod(mask=lambda at: where(loc[at.head], at.q - at.kv < 20, True) & (at.kv <= at.q),
                                  loc=b1(4)),
    "chunked": mod(mask=lambda at: at.q // 16 == at.kv // 16),
    "chunked, odd": mod(mask=lambda at: at.q // 7 == at.kv // 7),
    "chunked causal": mod(mask=lambda at: (at.q // 24 == at.kv // 24) & (at.kv <= at.q)),
    "chunked by floordiv": mod(mask=lambda at: attune.floordiv(at.q, 10) == attune.floordiv(at.kv, 10)),
    "chunked by shift": mod(mask=lambda at: at.q >> 4 == at.kv >> 4),
    "block causal": mod(mask=lambda at: at.kv // 16 <= at.q // 16),
    "block causal, strictly": mod(mask=lambda at: at.kv // 10 < at.q // 10),
    "chunk and the one before": mod(mask=lambda at: (at.kv // 8 == at.q // 8) | (at.kv // 8 == at.q // 8 - 1)),
    "scaled": mod(mask=lambda at: 2 * at.kv <= at.q),
    "scaled the other way": mod(mask=lambda at: at.kv <= 3 * at.q - 10),
    "anti-diagonal": mod(mask=lambda at: at.q + at.kv < 90),
    "shifted both": mod(mask=lambda at: at.kv + 5 <= at.q - 3),
    "one pair": mod(mask=lambda at: (at.q == 33) & (at.kv == 70)),
    "one column": mod(mask=lambda at: at.kv == 41),
    "one row": mod(mask=lambda at: at.q == 41),
    "diagonal": mod(mask=lambda at: at.q == at.kv),
    "not the diagonal": mod(mask=lambda at: at.q != at.kv),
    "rectangle": mod(mask=lambda at: (at.q >= 20) & (at.q < 50) & (at.kv >= 30) & (at.kv < 100)),
    "outside of a rectangle": mod(mask=lambda at: (at.q < 20) | (at.q >= 50) | (at.kv < 30) | (at.kv >= 100)),
    "clamped": mod(mask=lambda at: at.kv <= attune.clamp(at.q, 20, 60)),
    "least of two": mod(mask=lambda at: at.kv <= attune.min(at.q, 50)),
    "greatest of two": mod(mask=lambda at: at.kv <= attune.max(at.q, 30)),
    "chosen by head": mod(mask=lambda at: where(at.head % 2 == 0, at.kv <= at.q, at.q <= at.kv)),
    "documents": mod(mask=lambda at: long_doc[at.q] == long_doc[at.kv]),
    "documents, causal": mod(mask=lambda at: (long_doc[at.q] == long_doc[at.kv]) & (at.kv <= at.q)),
    "documents and window": mod(mask=lambda at: (long_doc[at.q] == long_doc[at.kv]) & (at.kv <= at.q)
                                & (at.q - at.kv < 9)),
    "documents by batch": mod(mask=lambda at: doc[at.batch, at.q] == doc[at.batch, at.kv], doc=i4(2, 120)),
    "other documents": mod(mask=lambda at: long_doc[at.q] != long_doc[at.kv]),
    "dilated window": mod(mask=lambda at: (abs(at.q - at.kv) <= 30) & (rem(at.q - at.kv, 3) == 0)),
    "dilated by one window": mod(mask=lambda at: (abs(at.q - at.kv) <= 30) & (rem(at.q - at.kv, 40) == 0)),
    "checkerboard": mod(mask=lambda at: (at.q + at.kv) % 2 == 0),
    "strided": mod(mask=lambda at: (at.kv <= at.q) & ((at.q - at.kv < 10) | (at.kv % 10 >= 7))),
    "unsorted ids": mod(mask=lambda at: ids[at.q] == ids[at.kv]),
    "unsorted ids, causal": mod(mask=lambda at: (ids[at.q] == ids[at.kv]) & (at.kv <= at.q)),
    "documents in order": mod(mask=lambda at: long_doc[at.kv] <= long_doc[at.q]),
    "documents two by two": mod(mask=lambda at: quot(long_doc[at.q], 2) == quot(long_doc[at.kv], 2)),
    "longformer": mod(mask=lambda at: (abs(at.q - at.kv) <= 4) | g[at.q] | g[at.kv], g=b1(120)),
    "block map": mod(mask=lambda at: r[at.q // 16, at.kv // 16], r=b1(8, 8)),
    "block map by head, causal": mod(mask=lambda at: r[at.head, at.q // 16, at.kv // 16] & (at.kv <= at.q),
                                     r=b1(4, 8, 8)),
    "dense boolean": mod(mask=lambda at: m[at.q, at.kv], m=b1(100, 120)),
    "dense boolean by batch and head": mod(mask=attune.mods.dense(b1(2, 4, 100, 120))),
    "byte mask": mod(mask=lambda at: m[at.q, at.kv] != 0, m=np.ones((100, 120), np.uint8)),
    "segments by offset": mod(mask=lambda at: (at.kv >= start[long_doc[at.q]]) & (at.kv < start[long_doc[at.q] + 1]),
                              start=i4(8)),
    "vision cross-attention": mod(mask=lambda at: (at.q >= i0[img[at.kv]]) & (at.q < i0[img[at.kv] + 1]), i0=i4(9),
                                  img=i4(120)),
    "neighbourhood, 2-D": mod(mask=near(10, 10, 2)),
    "neighbourhood, 3-D": mod(mask=lambda at: (abs(at.q % 4 - at.kv % 4) <= 1)
                              & (abs(at.q // 4 % 5 - at.kv // 4 % 5) <= 1) & (abs(at.q // 20 - at.kv // 20) <= 1)),
    "rows and columns of an image": mod(mask=lambda at: (at.q // 10 == at.kv // 10) | (at.q % 10 == at.kv % 10)),
    "tree ancestors": mod(mask=lambda at: (enter[at.kv] <= enter[at.q]) & (leave[at.q] <= leave[at.kv]),
                          enter=i4(120), leave=i4(120)),
    "block diffusion": mod(mask=lambda at: ((at.kv < 60) & (at.kv // 8 < quot(at.q - 50, 8)))
                           | ((at.kv >= 60) & (at.q >= 50) & (quot(at.kv - 60, 8) == quot(at.q - 50, 8)))),
    "shared prefix": mod(mask=lambda at: (at.kv < 30) | ((long_doc[at.q] == long_doc[at.kv]) & (at.kv <= at.q))),
    "bit trick": mod(mask=lambda at: (((at.q ^ at.kv) & 3) != 0) | (at.q == at.kv)),
    "same low bits": mod(mask=lambda at: (at.q & 7) == (at.kv & 7)),
    "bitmap": mod(mask=lambda at: (rows[at.q] >> (at.kv & 31) & 1) == 1, rows=i4(100)),
    "parabola": mod(mask=lambda at: (at.q - 50) * (at.q - 50) <= 30 * at.kv),
    "random": mod(mask=lambda at: attune.random(5) < 0.01),
    "random blocks": mod(mask=lambda at: (attune.random(5) < 0.5) & (at.kv <= at.q)),
    "by Floats": mod(mask=lambda at: f(at.kv) * 1.5 <= f(at.q)),
    "square roots": mod(mask=lambda at: attune.sqrt(at.kv) <= 0.8 * attune.sqrt(at.q)),
    "sum of bits": mod(mask=lambda at: attune.sum(5, lambda i: (at.q >> i & 1) * (at.kv >> i & 1)) > 1),
    "overflow wraps": mod(mask=lambda at: at.kv + 2147483600 <= at.q),
    "overflow wraps in a product": mod(mask=lambda at: at.q * 100000000 <= at.kv * 3),
    "overflow by a parameter": mod(mask=lambda at: at.kv <= at.q + off, off=2147483600),
    "window by a wild parameter": mod(mask=lambda at: (at.q - at.kv < W) & (at.kv - at.q < W + 5), W=-2147483645),
    "run-time divisor": mod(mask=lambda at: quot(at.q, W) == quot(at.kv, W), W=9),
    "division by nothing": mod(mask=lambda at: quot(at.q, W) == quot(at.kv, W), W=0),
    "negative divisor": mod(mask=lambda at: quot(at.q - 40, -7) == quot(at.kv - 50, -7)),
    "negated everything": mod(mask=lambda at: ~((at.kv <= at.q) & ((at.q - at.kv < 16) | (at.kv < 5)))
                              ^ (long_doc[at.q] == long_doc[at.kv])),
    "many pieces": mod(mask=lambda at: any_of([at.kv == at.q, *(at.kv == at.q - 10 * n for n in range(1, 10))])),
    "clamped both": mod(mask=lambda at: attune.clamp(at.kv, 20, 90) <= attune.clamp(at.q, 30, 60)),
    "either side of a choice": mod(mask=lambda at: where(at.kv < 50, at.q, at.kv) <= 60),
    "all the bits but the sign": mod(mask=lambda at: ((at.kv & 2147483647) == 3) | ((at.q & 2147483647) < at.kv)),
    "a bound that is the greatest Int": mod(mask=lambda at: off >= attune.clamp(at.kv, at.q, off), off=2147483647),
    "an index that wraps": mod(mask=lambda at: r[0, off + at.kv], r=b1(8, 8), off=2147483647),
    "ends further apart than values": mod(mask=lambda at: (at.kv + quot(at.q, 1073741823) != at.kv) | (at.q == 3)),
    "a shift by less than nothing": mod(mask=lambda at: (at.kv >> -1 == at.q >> 30) & (at.kv <= at.q)),
    "wrapping below a clamp": mod(mask=lambda at: attune.clamp(at.kv * 100000000, 0, 10) <= at.q),
    "no room in a window": mod(mask=window(P(0))),
    "every other key": mod(mask=lambda at: at.kv == 2 * at.q),
    "bounds that cross": mod(mask=lambda at: (at.kv >= at.q) & (at.kv <= at.q // 2)),
    "other documents, causal": mod(mask=lambda at: (long_doc[at.q] != long_doc[at.kv]) & (at.kv <= at.q)),
}


def any_of(conditions):
    first, *rest = conditions
    for condition in rest:
        first = first | condition
    return first


def strings(code):
    """C++ code with adjacent string literals joined and comment lines left out."""
    code = re.sub(r"^\s*//.*$", "", code, flags=re.M)
    return re.sub(r'"\s*\n\s*"', "", code)


def texts_of_mods():
    """{name: {part: text}} as tests/numerics/corpus.cpp has them."""
    code = strings((NUMERICS / "corpus.cpp").read_text(encoding="utf-8"))
    out = {}
    for entry in re.findall(r"m\.push_back\(\s*\{(.*?)\}\);\n", code, re.S):
        fields = dict(re.findall(r'\.(name|score|mask|prob|sink) = ("[^"]*"|causal)', entry))
        fields = {k: v.strip('"') if v != "causal" else "kv <= q" for k, v in fields.items()}
        out[fields.pop("name")] = fields
    return out


def texts_of_masks():
    """{name: {"mask": text}} as tests/numerics/masks.cpp has them."""
    code = strings((NUMERICS / "masks.cpp").read_text(encoding="utf-8"))
    return {name: {"mask": mask} for name, mask in re.findall(r'(?:closed|open)\(\s*"([^"]*)",\s*"([^"]*)"', code)}
