# tests/python/test_errors.py — every mistake of Python has its message, under the user's own line
"""Mistakes, each with a golden message in tests/python/errors."""

import math
import pickle
import sys

import attune
import numpy as np
import pytest
from conftest import golden, refused

q = np.ones((1, 2, 8, 4), np.float32)
slope, table, doc = np.ones(2, np.float32), np.ones((2, 16), np.float32), np.zeros(8, np.int32)
keep = np.ones((8, 8), np.bool_)
one_slope, few, half = slope[:1], keep[:4, :4], doc[:4]
width = attune.Param(4)


class Layer:
    slope = slope


layer = Layer()


def score(function, **keywords):
    return lambda: attune.Attention(score=function, **keywords)


def mask(function, **keywords):
    return lambda: attune.Attention(mask=function, **keywords)


def call(**keywords):
    return lambda: attune.attention(q, q, q, **keywords)


def gives_nothing(s, at):
    s + 1.0


def read_only():
    out = np.empty_like(q)
    out.flags.writeable = False
    return attune.attention(q, q, q, out=out)


def elsewhere():
    class Elsewhere:
        shape, dtype = q.shape, q.dtype
        __cuda_array_interface__ = {"shape": q.shape, "typestr": "<f4", "data": (4096, False), "version": 3}

    return attune.attention(q, q, Elsewhere())


def deleted():
    class Dead:
        shape, dtype = (1, 2, 8, 4), np.dtype(np.float32)

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **_):
            raise RuntimeError("Array has been deleted.")

    return attune.attention(q, Dead(), q)


def loops(s, at):
    for i in at.q:
        s = s + i
    return s


def counts(s, at):
    while at.q > 0:
        s = s + 1.0
    return s


MISTAKES = {
    # ---- Python asks for a truth value
    "and": mask(lambda at: at.kv <= at.q and at.q - at.kv < 4),
    "or": mask(lambda at: at.kv <= at.q or at.kv < 4),
    "not": mask(lambda at: not at.kv <= at.q),
    "chain": mask(lambda at: 0 <= at.q - at.kv < 4),
    "binds-tighter": mask(lambda at: at.kv <= at.q & at.q - at.kv < 4),
    "if-expression": score(lambda s, at: s if at.q > at.kv else 0.0),
    "while": score(counts),
    "min": score(lambda s, at: min(s, 3.0)),
    "any": mask(lambda at: any([at.q == at.kv, at.kv < 4])),
    "bool": mask(lambda at: bool(at.q)),
    "in": mask(lambda at: at.q in (1, 2)),
    # ---- Python asks for a number
    "int": score(lambda s, at: s + int(s)),
    "float": score(lambda s, at: s * float(at.q)),
    "math": score(lambda s, at: math.exp(s)),
    "round": score(lambda s, at: round(s)),
    "range": score(lambda s, at: [s for _ in range(at.q)][0]),
    "iterate": score(loops),
    "length": score(lambda s, at: s + len(at.q)),
    "list-index": score(lambda s, at: s + [1.0, 2.0][at.head]),
    "attribute-index": score(lambda s, at: s + layer.slope[at.head]),
    "numpy-function": score(lambda s, at: np.arctan(s)),
    "numpy-round": score(lambda s, at: np.round(s)),
    "matmul": score(lambda s, at: s @ s),
    # ---- types
    "divide-ints": mask(lambda at: at.q / 4 == at.kv / 4),
    "power-of-ints": mask(lambda at: at.q ** 2 > 4),
    "bits-of-float": score(lambda s, at: s & 1),
    "shift-of-float": score(lambda s, at: s << 1),
    "bool-plus-number": score(lambda s, at: s + (at.q > 2)),
    "bool-times-number": score(lambda s, at: s * (at.q > 2)),
    "bool-and-int": mask(lambda at: at.q & (at.kv < 3)),
    "invert-float": score(lambda s, at: ~s),
    "where-of-int": score(lambda s, at: attune.where(at.q, s, 0.0)),
    "where-of-two-types": score(lambda s, at: attune.where(at.q > 1, s, at.q > 2)),
    "none": score(lambda s, at: s + None),
    "string": score(lambda s, at: s + "1"),
    "array-as-number": score(lambda s, at: s + layer.slope),
    "function-as-number": score(lambda s, at: s + math.sqrt),
    "int-too-large": mask(lambda at: at.q < 2**40),
    "int-of-many-digits": mask(lambda at: at.q < 10**5000),
    "float-too-large": score(lambda s, at: s + 1e300),
    # ---- reads
    "no-index": score(lambda s, at: s + slope),
    "too-few-indices": score(lambda s, at: s + table[at.head]),
    "too-many-indices": score(lambda s, at: s + slope[at.head, at.q]),
    "float-index": score(lambda s, at: s + slope[s]),
    "slice": score(lambda s, at: s + slope[0:2]),
    "tensor-method": score(lambda s, at: s + slope.mean()),
    "value-index": score(lambda s, at: s[0]),
    "value-call": score(lambda s, at: s(at.q)),
    "value-member": score(lambda s, at: s.tanh()),
    "out-of-range": call(score=lambda s, at: s + slope[at.kv + 5]),
    "too-few-heads": call(score=lambda s, at: s + one_slope[at.head]),
    "slope-by-query": call(score=lambda s, at: s + slope[at.q]),
    "mask-too-small": call(mask=lambda at: few[at.q, at.kv]),
    "documents-too-short": call(mask=lambda at: half[at.q] == half[at.kv]),
    # ---- coordinates
    "unknown-coordinate": mask(lambda at: at.query >= at.kv),
    "assigned-coordinate": mask(lambda at: setattr(at, "q", 1)),
    "sink-of-position": lambda: attune.Attention(sink=lambda at: slope[at.q]),
    # ---- functions
    "three-arguments": score(lambda s, at, extra: s),
    "one-argument": score(lambda at: at.q * 1.0),
    "no-function": score(3),
    "gives-none": score(gives_nothing),
    "mask-gives-int": mask(lambda at: at.q - at.kv),
    "score-gives-bool": score(lambda s, at: at.q > at.kv),
    "sum-count": score(lambda s, at: attune.sum(at.q, lambda i: s)),
    "sum-too-long": score(lambda s, at: attune.sum(2000, lambda i: s)),
    "sum-of-bools": score(lambda s, at: s + attune.sum(4, lambda i: i < at.q)),
    # ---- text
    "unknown-name": mask("kv <= window"),
    "text-of-python": mask("kv <= q and q < 4"),
    "text-type": score("s + (q > 2)"),
    "text-with-0": mask("kv <= q\0||true"),
    "let-with-0": score("s + d", lets={"d": "1.0f\0+ h"}),
    "name-with-0": score("s + d", **{"d\0e": slope}),
    "reserved-keyword": score("s + h[h]", h=slope),
    "let": score("s + d", lets={"d": "f32(kv -"}),
    # ---- keywords
    "keyword-list": score("s + t[h]", t=[1.0, 2.0]),
    "keyword-none": score("s + t[h]", t=None),
    "keyword-of-torch": call(is_causal=True),
    "coordinates-first": call(score=lambda at, s: s),
    "masks-and": lambda: call(mask=attune.mods.causal() and attune.mods.sliding_window(2))(),
    "score-as-mask": call(mask=attune.mods.softcap(3)),
    "dropout-keeps-more": lambda: attune.mods.dropout(1.5, 3),
    "dropout-keeps-numpys": lambda: attune.mods.dropout(np.float32(1.5), 3),
    "document-of-list": lambda: attune.mods.document([0, 0, 1]),
    "option-of-kept": lambda: attune.Attention()(q, q, q, is_causal=True),
    "keyword-misspelt": call(score="s", scal=None),
    "capture-of-strings": score("s + t[h]", t=np.array(["a", "b"])),
    "param-of-text": lambda: attune.Param("4"),
    "param-too-large": lambda: attune.Param(1e300),
    "keyword-too-large": call(score="s + d", d=-1e300),
    "keyword-of-many-digits": call(score="s + d", d=10**400),
    "param-changes-type": lambda: setattr(width, "value", 2.5),
    # ---- calls
    "no-array": lambda: attune.attention([1.0], q, q),
    "unlike-shapes": lambda: attune.attention(q, q[..., :3], q),
    "unlike-types": lambda: attune.attention(q, q.astype(np.float16), q),
    "complex": lambda: attune.attention(q.astype(np.complex64), q, q),
    "e5m2": lambda: attune.attention(q, *[q.astype(pytest.importorskip("ml_dtypes").float8_e5m2)] * 2),
    "big-endian": lambda: attune.attention(q.astype(">f4"), q, q),
    "read-only": read_only,
    "deleted": deleted,
    "out-shape": call(out=np.empty((1, 2, 8, 3), np.float32)),
    "unknown-target": call(target="gpu"),
    "emulated-target": call(target="emulated:sm_100"),
    "small-workspace": call(workspace=np.zeros(64, np.uint8)),
    "rebound-unknown": lambda: attune.Attention()(q, q, q, slope=slope),
    "rebound-kind": lambda: attune.Attention(score="s + t[h]", t=slope)(q, q, q, t=doc),
    "rebound-param": lambda: attune.Attention(score="s * c", c=1.0)(q, q, q, c="x"),
    "rebound-too-large": lambda: attune.Attention(score="s * c", c=1.0)(q, q, q, c=1e300),
    "rebound-of-many-digits": lambda: attune.Attention(score="s * c", c=1.0)(q, q, q, c=10**400),
    "gradient-of-nothing": lambda: attune.Attention().backward(q, q, q, q, wrt=("q", "table")),
    "panel": lambda: attune.show(mask="kv <= q", panels=("heat",)),
    "option": lambda: attune.options.__setitem__("ATTUNE_THREADS", "many"),
    "option-with-0": lambda: attune.options.__setitem__("ATTUNE\0LOG", "build"),
    "bundle-with-0": lambda: attune.load("kernels\0.attune"),
    "bundle-missing": lambda: attune.load("/nowhere/kernels.attune"),
    "wrong-device": elsewhere,
    "missing-capture": call(score="s + slope[h]"),
    "capture-of-number": lambda: attune.Capture(3.5),
    # ---- options of another type
    "offset-of-text": call(q_offset="1"),
    "offset-of-float": call(q_offset=1.5),
    "offset-too-large": call(q_offset=2**40),
    "negative-length": call(max_q_len=-4, workers=1),
    "negative-workers": call(workers=-1),
    "stream-of-text": call(stream="default"),
    "cover-of-tiles": call(cover=keep),
    "progress-of-true": call(progress=True),
    "loop-of-number": lambda: attune.Attention()(q, q, q, parallel_for=4),
    "scale-of-text": call(scale="1/8"),
    "scale-of-many-digits": call(scale=10**400),
    "scale-of-array": call(scale=slope),
    "target-of-list": call(target=["cpu"]),
    "exact-of-text": call(exact="yes"),
    "lets-of-pairs": call(score="s", lets=[("d", "1.0")]),
    "let-of-number": call(score="s", lets={"d": 1.0}),
    "lse-of-text": call(lse="yes"),
    "wrt-of-letters": lambda: attune.Attention().backward(q, q, q, q, wrt="qk"),
    "wrt-of-number": lambda: attune.Attention().backward(q, q, q, q, wrt=3),
    "into-of-array": lambda: attune.Attention().backward(q, q, q, q, into=q),
    "prepare-of-shapes": lambda: attune.Attention().prepare(q.shape, q.shape, q.shape),
    "length-of-text": lambda: attune.show(mask="kv <= q", q_len="64"),
    "tile-of-number": lambda: attune.show(mask="kv <= q", tile=16),
    "callback-of-none": lambda: attune.watch(None),
    "bundle-of-number": lambda: attune.load(3),
    "compile-of-number": lambda: attune.compile(3, "x.attune", targets="host"),
    "compile-of-object": lambda: attune.compile([attune.Attention()], "x.attune", targets="host", d=object),
}
kept = []


def escaped(at):
    attune.sum(4, lambda i: kept.append(i) or i)
    return kept.pop()


MISTAKES["escaped-variable"] = score(lambda s, at: s + escaped(at))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before Python 3.11 there are no columns for carets")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_its_message(name):
    golden(name, str(refused(MISTAKES[name])))


def test_half_of_a_surrogate_pair_is_no_character():
    error = refused(attune.attention, q, q, q, mask="kv <= \ud800")
    assert (error.code, error.begin, error.end) == ("bad-character", 6, 7) and "U+D800" in str(error)
    assert refused(attune.Attention, score="s + d", lets={"d": "\udfff"}).code == "bad-character"


def test_a_manifest_with_0_is_refused(tmp_path):
    error = refused(attune.compile, [{"mask": "kv <= q\0||true"}], tmp_path / "x.attune", targets="host", d=8)
    assert error.code == "bad-character"


def test_a_parameter_may_be_infinite():
    width = attune.Param(3.4e38)
    width.value = math.inf
    assert np.isfinite(attune.attention(q, q, q, mask=lambda at: attune.f32(at.kv) < width)).all()


def test_an_error_has_its_parts():
    error = refused(MISTAKES["chain"])
    assert (error.code, error.file) == ("python-condition", __file__)
    if sys.version_info >= (3, 11):
        assert error.text[error.begin : error.end] == "0 <= at.q - at.kv < 4"
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.line == error.line and again.fix == error.fix


def test_a_call_that_is_refused_writes_nothing():
    out = np.full_like(q, 7)
    refused(attune.attention, q, q[..., :3], q, out=out)
    assert (out == 7).all()


def test_numpy_on_values_means_what_it_means():
    import attune as a

    f, i = np.float32(2), np.int32(3)
    for mine, plain in [(lambda s, at: f * s, lambda s, at: 2.0 * s), (lambda s, at: np.exp(s), lambda s, at: a.exp(s)),
                        (lambda s, at: np.where(at.q > i, s, 0), lambda s, at: a.where(at.q > 3, s, 0)),
                        (lambda s, at: np.maximum(s, f), lambda s, at: a.max(s, 2.0)),
                        (lambda s, at: s // 2.0, lambda s, at: a.floor(s / 2.0)),
                        (lambda s, at: np.clip(s, -1, 1), lambda s, at: a.clamp(s, -1, 1))]:
        assert a.text(mine) == a.text(plain)


def test_reads_that_are_meant_are_taken():
    # At pairs that the mask removes, and where an index is bounded in words.
    x = np.array([2.0, 3.0, 4.0, 5.0], np.float32)
    inside = attune.attention(q, q, q, score=lambda s, at: s + x[at.kv], mask=lambda at: at.kv < 4)
    bounded = attune.attention(q, q, q, score=lambda s, at: s + x[attune.clamp(at.kv, 0, 3)])
    assert np.isfinite(inside).all() and np.isfinite(bounded).all()
