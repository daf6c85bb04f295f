# tests/python/test_corpus.py — functions of Python make the same expressions as C++'s text, bit for bit
"""Every mod that C++ is tested on, as Python: the same digest."""

import re

import attune
import corpus
import numpy as np
import pytest
from attune import expr
from attune._text import OPS
from conftest import ROOT

MODS, MASKS = corpus.texts_of_mods(), corpus.texts_of_masks()


def filled(keywords):
    """Keywords with a bf16 array where one is asked for."""
    if not any(isinstance(x, str) for x in keywords.values()):
        return keywords
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return {n: np.ones(28, ml_dtypes.bfloat16) if isinstance(x, str) else x for n, x in keywords.items()}


def same(mod, texts):
    keywords = filled(mod.keywords)
    traced = attune.Attention(**mod.functions, **keywords)
    # A text knows its captures by name: those that the functions closed over have their variables' names, and in C++
    # other ones.
    renamed = {"long_doc": "doc", "lengths": "len", "widths": "w", "keep": "m"}
    captures = {renamed.get(c.name, c.name): traced._leaves[c.leaf] for c in traced._spelled.captures}
    params = {("W" if p.name == "width" else p.name): traced._leaves[p.leaf] for p in traced._spelled.params}
    written = attune.Attention(**texts, **captures, **params)
    assert traced.describe()["digest"] == written.describe()["digest"], (traced, written)


def test_the_corpus_is_complete():
    assert set(corpus.MODS) == set(MODS) and len(MODS) > 90
    assert set(corpus.MASKS) == set(MASKS) and len(MASKS) > 100


@pytest.mark.parametrize("name", list(corpus.MODS))
def test_a_mod_is_the_same_expression_as_the_text(name):
    texts = {k: t for k, t in MODS[name].items() if k in corpus.MODS[name].functions}
    assert set(texts) == set(corpus.MODS[name].functions)
    same(corpus.MODS[name], texts)


@pytest.mark.parametrize("name", list(corpus.MASKS))
def test_a_mask_is_the_same_expression_as_the_text(name):
    same(corpus.MASKS[name], MASKS[name])


def test_operations_are_those_of_the_language():
    rows = re.findall(r'^ATTUNE_OP\(\w+, +"([^"]*)", +(\d+), +(\d+), +(\w+), +(\w+)\)',
                      (ROOT / "ir/ops.def").read_text(encoding="utf-8"), re.M)
    told = {spelt: (int(bind), takes, gives, int(args)) for spelt, bind, args, takes, gives in rows
            if spelt and not (spelt == "-" and args == "1") and spelt != "sum"}
    assert told == OPS
    assert {name for name in (*OPS, "sum") if name.isalnum()} <= set(expr.__all__)


@pytest.mark.parametrize("name", [n for n in dir(attune.mods) if callable(getattr(attune.mods, n))
                                  and getattr(attune.mods, n).__module__ == "attune.mods"])
def test_named_mods_are_those_of_cpp(name):
    f, i, b = (lambda *s: np.ones(s, np.float32)), (lambda *s: np.ones(s, np.int32)), np.ones(9, np.bool_)
    made, text, captures = {
        "causal": (attune.mods.causal(3), "kv <= q + 3", {}),
        "sliding_window": (attune.mods.sliding_window(5), "kv <= q && q - kv < 5", {}),
        "two_sided_window": (attune.mods.two_sided_window(5), "abs(q - kv) <= 5", {}),
        "dilated_window": (attune.mods.dilated_window(9, 3), "abs(q - kv) <= 9 && (q - kv) % 3 == 0", {}),
        "sink_window": (attune.mods.sink_window(6, 4), "kv <= q && (q - kv < 6 || kv < 4)", {}),
        "prefix": (attune.mods.prefix(i(2)), "kv < n[b] || kv <= q", {"n": i(2)}),
        "padding": (attune.mods.padding(i(2)), "kv < n[b]", {"n": i(2)}),
        "document": (attune.mods.document(i(2, 9)), "d[b, q] == d[b, kv]", {"d": i(2, 9)}),
        "chunked": (attune.mods.chunked(6), "q / 6 == kv / 6", {}),
        "block_causal": (attune.mods.block_causal(6), "kv / 6 <= q / 6", {}),
        "global_tokens": (attune.mods.global_tokens(b), "g[q] || g[kv]", {"g": b}),
        "neighbourhood_2d": (attune.mods.neighbourhood_2d(6, 5, 1), "abs(clamp(q % 6, 1, 4) - kv % 6) <= 1 && "
                             "abs(clamp(q / 6, 1, 3) - kv / 6) <= 1", {}),
        "tree": (attune.mods.tree(np.ones((2, 3, 3), np.bool_)), "kv < kv_len - q_len || "
                 "m[b, max(q - (kv_len - q_len), 0), max(kv - (kv_len - q_len), 0)]",
                 {"m": np.ones((2, 3, 3), np.bool_)}),
        "dense": (attune.mods.dense(np.ones((2, 9, 9), np.bool_)), "m[h, q, kv]", {"m": np.ones((2, 9, 9), np.bool_)}),
        "alibi": (attune.mods.alibi(4), "s + exp2(-8.0f * f32(h + 1) / 4.0f) * f32(kv - q)", {}),
        "softcap": (attune.mods.softcap(30), "30.0f * tanh(s / 30.0f)", {}),
        "relative_position": (attune.mods.relative_position(), "s + f32(q - kv)", {}),
        "relative_bias": (attune.mods.relative_bias(f(4, 8), 4), "s + t[h, q - kv + 4]", {"t": f(4, 8)}),
        "bucketed_bias": (attune.mods.bucketed_bias(f(4, 8), i(9), 4), "s + t[h, n[clamp(q - kv + 4, 0, 8)]]",
                          {"t": f(4, 8), "n": i(9)}),
        "dense_bias": (attune.mods.dense_bias(f(4, 8, 8)), "s + t[h, q, kv]", {"t": f(4, 8, 8)}),
        "head_bias": (attune.mods.head_bias(f(4)), "s + t[h]", {"t": f(4)}),
        "key_bias": (attune.mods.key_bias(f(4)), "s + t[kv]", {"t": f(4)}),
        "dequantise": (attune.mods.dequantise(f(2, 4, 9), f(2, 9)), "s * x[b, h, q] * y[b, kv]",
                       {"x": f(2, 4, 9), "y": f(2, 9)}),
        "dropout": (attune.mods.dropout(0.75, 3), "kept(3, 49152) ? p / 0.75f : 0.0f", {}),
        "head_gate": (attune.mods.head_gate(f(4)), "p * t[h]", {"t": f(4)}),
        "learned_sink": (attune.mods.learned_sink(f(4)), "t[h]", {"t": f(4)}),
    }[name]
    kind = type(made).__name__.lower()
    assert attune.Attention(**{kind: made}).describe()["digest"] == attune.Attention(
        **{kind: text}, **captures).describe()["digest"]
