# python/attune/__init__.py — attune for Python: write the score, the mask or the dropout, and call attention
"""attune compiles attention: write the score, the mask or the dropout, and it compiles a kernel for exactly that.

>>> import attune, numpy
>>> rng = numpy.random.default_rng(0)
>>> q, k, v = (rng.standard_normal((1, 2, 8, 4), "f4") for _ in range(3))
>>> slope = numpy.array([0.5, 0.25], "f4")
>>> o = attune.attention(q, k, v, score=lambda s, at: s + slope[at.head] * (at.kv - at.q), mask="kv <= q")
>>> bool((o[:, :, 0] == v[:, :, 0]).all())  # the first query sees only the first key
True
"""

from attune import _library, mods
from attune._attention import Attention, Gradients, attention
from attune._call import append
from attune._errors import Bug, Error
from attune._library import compile, load, machine, options, version, wait, watch
from attune._parts import Mask, Prob, Score, Sink
from attune._picture import Cover, Picture, show
from attune._ranks import Sharding, Transport, nccl, nccl_id
from attune._trace import text
from attune.expr import (
    At,
    Bool,
    Capture,
    Float,
    Int,
    Param,
    SinkAt,
    abs,
    ceil,
    clamp,
    cos,
    custom,
    erf,
    exp,
    exp2,
    f32,
    floor,
    floordiv,
    floormod,
    i32,
    kept,
    log,
    log2,
    max,
    min,
    pow,
    random,
    round,
    rsqrt,
    sigmoid,
    sin,
    sqrt,
    sum,
    tan,
    tanh,
    trunc,
    truncdiv,
    truncmod,
    where,
)

_library.begin()
__version__ = version()
__all__ = [
    "At", "Attention", "Bool", "Bug", "Capture", "Cover", "Error", "Float", "Gradients", "Int", "Mask", "Param",
    "Picture", "Prob", "Score", "Sharding", "Sink", "SinkAt", "Transport", "abs", "append", "attention", "ceil", "clamp",
    "compile", "cos", "custom", "erf", "exp", "exp2", "f32", "floor", "floordiv", "floormod", "i32", "kept", "load", "log",
    "log2", "machine", "max", "min", "mods", "nccl", "nccl_id", "options", "pow", "random", "round", "rsqrt", "show",
    "sigmoid", "sin", "sqrt", "sum", "tan", "tanh", "text", "trunc", "truncdiv", "truncmod", "version", "wait", "watch",
    "where",
]
