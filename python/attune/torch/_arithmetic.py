# python/attune/torch/_arithmetic.py — what torch's functions mean in operations of the language, by their names
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attune._text import OF_FLOATS
from attune.torch import _rows
from attune.torch._value import TIGHT, Trace, Value, as_kind, each, is_natural, refuse

Spelling = Callable[..., Value]

# ---- arithmetic


def _promoted(trace: Trace, *things: Any, least: str = "b") -> list[Value]:
    """All of one kind: Bool, else Int, else Float; at least `least`."""
    values = [trace.value(t) for t in things]
    kinds = [v.kind for v in values]
    kind = "f" if "f" in kinds or least == "f" else "i" if "i" in kinds or least == "i" else "b"
    return [as_kind(v, kind) for v in values]


def _positions(trace: Trace, *things: Any) -> list[Value]:
    """Operands, one of them an Int of the kernel. A Python integer next to it becomes a parameter, except 0 and ±1,
    which help to prove facts about a mask."""
    values = [trace.value(t) for t in things]
    if any(v.kind == "i" and v.number is None for v in values) and not any(v.kind == "f" for v in values):
        values = [trace.param(v.number) if v.number is not None and v.kind == "i" and v.number not in (0, 1, -1)
                  else v for v in values]
    return values


def _two(trace: Trace, op: str, a: Value, b: Value, natural: bool = False) -> Value:
    return each(trace, a.kind, lambda x, y: trace.make(op, x, y), a, b, natural=natural)


def _natural(*values: Value) -> bool:
    return all(v.kind == "i" and is_natural(v) for v in values)


def _scaled(op: str) -> Spelling:
    """The sum or the difference of a and alpha * b."""
    def spelling(trace: Trace, a: Any, b: Any, *, alpha: Any = 1) -> Value:
        b = b if isinstance(alpha, int) and alpha == 1 else mul(trace, b, alpha)
        x, y = _promoted(trace, *_positions(trace, a, b), least="i")
        return _two(trace, op, x, y, op == "+" and _natural(x, y))
    return spelling


sub = _scaled("-")


def mul(trace: Trace, a: Any, b: Any) -> Value:
    x, y = _promoted(trace, a, b)
    return _two(trace, "&&" if x.kind == "b" else "*", x, y, _natural(x, y))


def div(trace: Trace, a: Any, b: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return floor_divide(trace, a, b)
    x, y = _promoted(trace, a, b, least="f" if rounding_mode is None else "i")
    out = _two(trace, "/", x, y, _natural(x, y))
    return _one("trunc")(trace, out) if rounding_mode == "trunc" and x.kind == "f" else out


def floor_divide(trace: Trace, a: Any, b: Any) -> Value:
    x, y = _promoted(trace, a, b, least="i")
    if x.kind == "f":
        return _one("floor")(trace, _two(trace, "/", x, y))
    return _two(trace, "floordiv", x, y, _natural(x, y))


def remainder(trace: Trace, a: Any, b: Any) -> Value:
    x, y = _promoted(trace, a, b, least="i")
    if x.kind == "f":
        return sub(trace, x, mul(trace, y, floor_divide(trace, x, y)))
    return _two(trace, "floormod", x, y, _natural(y))


def fmod(trace: Trace, a: Any, b: Any) -> Value:
    x, y = _promoted(trace, a, b, least="i")
    if x.kind == "f":
        return sub(trace, x, mul(trace, y, div(trace, x, y, rounding_mode="trunc")))
    return _two(trace, "%", x, y, _natural(x, y))


def power(trace: Trace, a: Any, b: Any) -> Value:
    if type(b) is int or type(b) is float:
        if b == 2:
            return mul(trace, a, a)
        if type(b) is int and 0 <= b <= 8 and trace.value(a).kind != "f":
            out = trace.value(1)
            for _ in range(b):
                out = mul(trace, out, a)
            return out
    x, y = _promoted(trace, a, b, least="f")
    return _two(trace, "pow", x, y)


def _one(op: str, least: str = "f") -> Spelling:
    """An operation of one argument whose result has the argument's type."""
    def spelling(trace: Trace, x: Any) -> Value:
        (value,) = _promoted(trace, x, least=least)
        return each(trace, value.kind, lambda p: trace.make(op, p), value, natural=op == "abs" and value.kind == "i")
    return spelling


def _formula(write: Callable[..., Any]) -> Spelling:
    """A function composed of other operators and functions."""
    def spelling(trace: Trace, x: Any, *more: Any, **named: Any) -> Value:
        (value,) = _promoted(trace, x, least="f")
        return write(value, *more, **named)
    return spelling


def rounded(trace: Trace, x: Any, *, decimals: int = 0) -> Value:
    """Rounds halves to even; the language's `round` rounds halves away from zero."""
    value: Any = trace.value(x)
    if value.kind != "f":
        return value
    scale = 10.0**decimals
    value = value if decimals == 0 else value * scale
    below: Any = torch.floor(value)
    rest = value - below
    odd = below - 2.0 * torch.floor(below / 2.0)
    out: Any = torch.where((rest > 0.5) | ((rest == 0.5) & (odd == 1.0)), below + 1.0, below)
    return out if decimals == 0 else out / scale


def whole(op: str) -> Spelling:
    """floor, ceil, trunc: an Int stays as it is."""
    def spelling(trace: Trace, x: Any) -> Value:
        value = trace.value(x)
        return value if value.kind == "i" else _one(op)(trace, value)
    return spelling


# ---- comparisons, conditions, bits


def _compare(op: str) -> Spelling:
    def spelling(trace: Trace, a: Any, b: Any) -> Value:
        values = _positions(trace, a, b)
        x, y = _promoted(trace, *values, least="b" if op in ("==", "!=") else "i")
        return each(trace, "b", lambda p, r: trace.make(op, p, r), x, y)
    return spelling


def _conditions(op: str) -> Spelling:
    """Converts any value to a Bool: a number is true if it is not 0."""
    def spelling(trace: Trace, a: Any, b: Any) -> Value:
        x, y = (as_kind(trace.value(t), "b") for t in (a, b))
        return _two(trace, op, x, y)
    return spelling


def _bits(op: str, logic: str = "") -> Spelling:
    """Bit operations of Ints. Bools stay Bools where that is `logic`, so that masks can still be solved for tiles."""
    def spelling(trace: Trace, a: Any, b: Any) -> Value:
        x, y = _promoted(trace, a, b, least="b" if logic else "i")
        _refuse_float(op, x)
        return _two(trace, logic if x.kind == "b" else op, x, y, bool(logic) and _natural(x, y))
    return spelling


def _refuse_float(op: str, value: Value) -> None:
    if value.kind == "f":
        refuse("wrong-type", f"`{op}` is given a Float", "it takes bools or integers",
               "convert it with .to(torch.int), or put brackets around comparisons: (a <= b) & (c < d)")


def logical_not(trace: Trace, x: Any) -> Value:
    return each(trace, "b", lambda p: trace.make("!", p), as_kind(trace.value(x), "b"))


def invert(trace: Trace, x: Any) -> Value:
    value = trace.value(x)
    _refuse_float("~", value)
    return each(trace, value.kind, lambda p: trace.make("!" if value.kind == "b" else "~", p), value)


def where(trace: Trace, condition: Any, a: Any = None, b: Any = None, *, input: Any = None, other: Any = None) -> Value:
    a, b = (input if a is None else a), (other if b is None else b)
    x, y = _promoted(trace, a, b)
    keep = as_kind(trace.value(condition), "b")
    return each(trace, x.kind, lambda c, p, r: trace.make("where", c, p, r), keep, x, y, natural=_natural(x, y))


def masked_fill(trace: Trace, x: Any, mask: Any, value: Any) -> Value:
    """The result has the kind of x."""
    own = trace.value(x)
    return where(trace, mask, as_kind(trace.value(value), own.kind), own)


def _least(op: str) -> Spelling:
    def spelling(trace: Trace, a: Any, b: Any) -> Value:
        x, y = _promoted(trace, *_positions(trace, a, b), least="i")
        return _two(trace, op, x, y, _natural(x, y) or (op == "max" and (_natural(x) or _natural(y))))
    return spelling


def _least_of(op: str) -> Spelling:
    """min, max: of two, or of all elements of a row."""
    def spelling(trace: Trace, a: Any, b: Any = None, **named: Any) -> Value:
        other = named.get("other", b)
        if other is None and not named:
            return _rows.extreme(op)(trace, a)
        if not isinstance(other, (Value, Tensor)):
            refuse("unknown-function", f"`{op}` over a dimension gives two tensors",
                   "attune does not compute positions of extremes", f"write torch.a{op}(x, dim)")
        return _least(op)(trace, a, other)
    return spelling


def clamp(trace: Trace, x: Any, min: Any = None, max: Any = None) -> Value:
    out = trace.value(x)
    if min is not None:
        out = _least("max")(trace, out, min)
    return out if max is None else _least("min")(trace, out, max)


# ---- types and constants

_KINDS = {torch.float: "f", torch.double: "f", torch.half: "f", torch.bfloat16: "f", torch.int: "i", torch.long: "i",
          torch.bool: "b"}
_NARROW = (torch.int8, torch.uint8, torch.int16)  # of these only 0 and 1


def convert(trace: Trace, x: Any, *to: Any, dtype: Any = None, **_: Any) -> Value:
    """Floats stay f32, whichever float type is named."""
    value = trace.value(x)
    for thing in (dtype, *to):
        if isinstance(thing, (Value, Tensor)):
            trace.typed = True
            return as_kind(value, trace.value(thing).kind)
        if isinstance(thing, torch.dtype):
            if thing in _NARROW and value.kind == "b":
                thing = torch.int
            if thing not in _KINDS:
                refuse("wrong-type", f"a value of the kernel cannot become {thing}",
                       "it is a Float, an Int of 32 bits or a Bool", "take torch.float, torch.int or torch.bool")
            trace.typed = trace.typed or thing not in (torch.bool, torch.long)
            return as_kind(value, _KINDS[thing])
    return value


def _to(dtype: torch.dtype) -> Spelling:
    return lambda trace, x, *_, **__: convert(trace, x, dtype)


def _filled(number: float | None, at: int) -> Spelling:
    """zeros_like, new_full, …: a constant of the given type, else of x's type; argument `at` is its number."""
    def spelling(trace: Trace, x: Any, *args: Any, dtype: Any = None, **named: Any) -> Value:
        value = trace.value(x)
        what = number if number is not None else args[at] if len(args) > at else named["fill_value"]
        filled = trace.value(what)
        return convert(trace, as_kind(filled, value.kind) if dtype is None else filled, dtype=dtype)
    return spelling


def detach(trace: Trace, x: Any) -> Value:
    value = trace.value(x)
    if value.kind != "f":
        return value
    if any(t.requires_grad for t in trace.captures):
        refuse("unknown-function", "`detach` is applied to a tensor that requires a gradient",
               "attune can stop the gradient of the score only", "detach the tensor before the score_mod")
    return each(trace, "f", lambda p: trace.make("custom", p, ("0.0f", TIGHT)), value)


def same(trace: Trace, x: Any, *_: Any, **__: Any) -> Value:
    return trace.value(x)


def gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5)))


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return torch.where(x * beta > threshold, x, torch.log(1.0 + torch.exp(torch.clamp(x * beta, max=threshold))) / beta)


def leaky_relu(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return torch.where(x > 0.0, x, x * negative_slope)


def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0, inplace: bool = False) -> Any:
    return torch.where(x > 0.0, x, (torch.exp(torch.clamp(x * input_scale, max=0.0)) - 1.0) * alpha) * scale


def nan_to_num(x: Any, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None) -> Any:
    most = torch.finfo(torch.float32).max
    high, low = (most if posinf is None else posinf), (-most if neginf is None else neginf)
    finite = torch.where(x == math.inf, high, torch.where(x == -math.inf, low, x))
    return torch.where(torch.isnan(x), nan or 0.0, finite)


def logaddexp(x: Any, other: Any) -> Any:
    apart = torch.where(x == other, 0.0, x - other)  # two infinities of one sign are no distance apart
    return torch.maximum(x, other) + torch.log(1.0 + torch.exp(-torch.abs(apart)))


def isin(trace: Trace, elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Value:
    x, among = _promoted(trace, elements, test_elements)
    if among.ndim:
        x = _rows.unsqueeze(trace, x, -1)
    found = _compare("==")(trace, x, among)
    if among.ndim:
        found = _rows.any_of(trace, found, -1)
    return logical_not(trace, found) if invert else found


# Names with one meaning in torch, torch.Tensor, torch.nn.functional and torch.special; dunders are operators.
SPELLINGS: dict[str, Spelling] = {
    "add __add__ __radd__": _scaled("+"), "sub subtract __sub__": sub,
    "rsub __rsub__": lambda t, a, b, *, alpha=1: sub(t, b, a, alpha=alpha),
    "mul multiply __mul__ __rmul__": mul,
    "div divide true_divide __truediv__": div, "floor_divide __floordiv__": floor_divide,
    "__rtruediv__ __rdiv__": lambda t, a, b: div(t, b, a), "__rfloordiv__": lambda t, a, b: floor_divide(t, b, a),
    "remainder __mod__": remainder, "__rmod__": lambda t, a, b: remainder(t, b, a), "fmod": fmod,
    "pow __pow__": power, "__rpow__": lambda t, a, b: power(t, b, a),
    "neg negative __neg__": _one("-", "i"), "abs absolute __abs__": _one("abs", "i"), "__pos__ positive": same,
    **{name: _one(name) for name in OF_FLOATS}, "expit": _one("sigmoid"),
    "floor": whole("floor"), "ceil": whole("ceil"), "trunc fix": whole("trunc"), "round": rounded,
    "frac": _formula(lambda x: x - torch.trunc(x)), "square": lambda t, x: mul(t, x, x),
    "reciprocal": _formula(lambda x: 1.0 / x), "log10": _formula(lambda x: torch.log(x) * (1 / math.log(10))),
    "log1p": _formula(lambda x: torch.log(1.0 + x)), "expm1": _formula(lambda x: torch.exp(x) - 1.0),
    "sinh": _formula(lambda x: 0.5 * (torch.exp(x) - torch.exp(-x))),
    "cosh": _formula(lambda x: 0.5 * (torch.exp(x) + torch.exp(-x))),
    "sign sgn": lambda t, x: sub(t, *[as_kind(_compare("<")(t, a, b), t.value(x).kind) for a, b in ((0, x), (x, 0))]),
    "relu": lambda t, x, inplace=False: _least("max")(t, x, 0),
    "relu6": lambda t, x, inplace=False: clamp(t, x, 0, 6),
    "silu": _formula(lambda x, inplace=False: x * torch.sigmoid(x)), "gelu": _formula(gelu),
    "softplus": _formula(softplus), "leaky_relu": _formula(leaky_relu),
    "elu": _formula(elu), "erfc": _formula(lambda x: 1.0 - torch.erf(x)), "nan_to_num": _formula(nan_to_num),
    "lerp": _formula(lambda x, end, weight: x + (end - x) * weight), "logaddexp": _formula(logaddexp), "isin": isin,
    "addcmul": _formula(lambda x, a, b, value=1: x + a * b * value),
    "addcdiv": _formula(lambda x, a, b, value=1: x + a / b * value),
    "logsigmoid": _formula(lambda x: torch.clamp(x, max=0.0) - torch.log(1.0 + torch.exp(-torch.abs(x)))),
    "hardtanh": lambda t, x, min_val=-1.0, max_val=1.0, inplace=False: clamp(t, x, min_val, max_val),
    "isnan": lambda t, x: _compare("!=")(t, x, x),
    "isinf": lambda t, x: _compare("==")(t, _one("abs", "i")(t, x), math.inf),
    "isfinite": lambda t, x: _compare("<")(t, _one("abs", "i")(t, x), math.inf),
    "eq equal __eq__": _compare("=="), "ne not_equal __ne__": _compare("!="), "lt less __lt__": _compare("<"),
    "le less_equal __le__": _compare("<="), "gt greater __gt__": _compare(">"),
    "ge greater_equal __ge__": _compare(">="),
    "logical_and": _conditions("&&"), "logical_or": _conditions("||"), "logical_xor": _conditions("!="),
    "logical_not": logical_not, "bitwise_not __invert__": invert,
    "bitwise_and __and__ __rand__": _bits("&", "&&"), "bitwise_or __or__ __ror__": _bits("|", "||"),
    "bitwise_xor __xor__ __rxor__": _bits("^", "!="),
    "bitwise_left_shift __lshift__": _bits("<<"), "bitwise_right_shift __rshift__": _bits(">>"),
    "__rlshift__": lambda t, a, b: _bits("<<")(t, b, a), "__rrshift__": lambda t, a, b: _bits(">>")(t, b, a),
    "where": where, "masked_fill": masked_fill, "clamp clip": clamp,
    "clamp_min": lambda t, x, min: clamp(t, x, min), "clamp_max": lambda t, x, max: clamp(t, x, None, max),
    "minimum fmin": _least("min"), "maximum fmax": _least("max"), "min": _least_of("min"), "max": _least_of("max"),
    "to type type_as": convert,
    **{name: _to(getattr(torch, name)) for name in "float double half bfloat16 int long short bool".split()},
    "clone contiguous expand_as": same, "detach": detach,
    "zeros_like": _filled(0, 0), "ones_like": _filled(1, 0), "full_like": _filled(None, 0), "new_zeros": _filled(0, 0),
    "new_ones": _filled(1, 0), "new_full": _filled(None, 1), "new_tensor": _filled(None, 0),
    "__getitem__": _rows.read, "select": _rows.select, "index_select": _rows.index_select,
    "squeeze": _rows.squeeze, "unsqueeze": _rows.unsqueeze, "view reshape": _rows.reshape,
    "sum": _rows.sum_of, "mean": _rows.mean, "any": _rows.any_of, "all": _rows.all_of, "amax": _rows.extreme("max"),
    "amin": _rows.extreme("min"), "dot vdot inner": lambda t, a, b: _rows.sum_of(t, mul(t, a, b), -1),
    "matmul mv mm __matmul__": _rows.product, "__rmatmul__": lambda t, a, b: _rows.product(t, b, a),
    "norm vector_norm": _rows.norm,
}
