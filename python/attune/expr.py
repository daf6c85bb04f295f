# python/attune/expr.py — values known only inside the kernel: Float, Int, Bool, At, their operators and functions
"""The language as Python: operators and functions on values that exist only inside the kernel.

A score, a mask, a prob mod or a sink is a callable over these values. Python's operators mean what Python says:
`//` and `%` round down, `&`, `|`, `~` and `^` join conditions as well as bits, `**` is a power of Floats.

>>> import attune
>>> attune.text(lambda s, at: 30.0 * attune.tanh(s / 30.0) + attune.f32(at.kv - at.q))
'30.0f * tanh(s / 30.0f) + f32(kv - q)'
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from attune._errors import Error, a_, said
from attune._leaves import At, Capture, Param, SinkAt
from attune._place import here
from attune._values import Bool, Float, Int, Number, Operators, Value, apply, as_value, widened

__all__ = [
    "At", "Bool", "Capture", "Float", "Int", "Param", "SinkAt", "Value", "abs", "ceil", "clamp", "cos", "custom",
    "erf", "exp", "exp2", "f32", "floor", "floordiv", "floormod", "i32", "kept", "log", "log2", "max", "min", "pow", "random",
    "round", "rsqrt", "sigmoid", "sin", "sqrt", "sum", "tan", "tanh", "trunc", "truncdiv", "truncmod", "where",
]

N = TypeVar("N", Float, Int)
FloatLike: TypeAlias = "Float | Int | Param | int | float"
IntLike: TypeAlias = "Int | Param | int"
BoolLike: TypeAlias = "Bool | bool"


def where(condition: BoolLike, a: Number, b: Number) -> Any:
    """`a` where the condition holds, else `b`; both are evaluated.

    >>> import attune, math
    >>> attune.text(lambda s, at: attune.where(at.kv % 2 == 0, s, -math.inf))
    'where(floormod(kv, 2) == 0, s, -inf)'
    """
    return apply("where", condition, a, b)


def f32(x: Number) -> Float:
    """An Int or a Bool as a Float; a Bool gives 0 or 1."""
    value = as_value(x, here())
    if isinstance(value, Float):
        return value
    literal = isinstance(value, Int) and value._op == "literal"
    return widened(value) if literal else apply("f32", value)  # type: ignore[return-value]


def i32(x: Number) -> Int:
    """A Float as an Int: truncates and saturates, NaN gives 0. A Bool gives 0 or 1."""
    value = as_value(x, here())
    return value if isinstance(value, Int) else apply("i32", value)


_variables = itertools.count()


def sum(count: int, body: Callable[[Int], N]) -> N:
    """`body(0) + … + body(count - 1)`, added in order. The count is a number of Python, at most 1024.

    >>> import attune, numpy
    >>> u, w = numpy.zeros((8, 4), "f4"), numpy.zeros((8, 4), "f4")
    >>> attune.text(lambda s, at: s + attune.sum(4, lambda i: u[at.q, i] * w[at.kv, i]))
    's + sum(i, 4, u[q, i] * w[kv, i])'
    """
    place = here()
    if isinstance(count, Operators) or isinstance(count, bool) or not hasattr(count, "__index__"):
        raise Error.at(place, "bad-sum", f"the count of a sum is {said(count)}",
                       "it is a number of Python, known when the kernel is made",
                       "sum to the largest count and add 0 past the end")
    count = count.__index__()
    if not 0 <= count <= 1024:
        raise Error.at(place, "bad-sum", f"a sum over {count} terms", "a sum has 0 to 1024 terms",
                       "sum fewer terms, or split the sum")
    if not callable(body):
        raise Error.at(place, "bad-sum", f"the body of a sum is {said(body)}", "it is a function of the Int i",
                       "write attune.sum(n, lambda i: ...)")
    variable = Int("bound", name=f"{next(_variables)}", place=place)
    variable._free = frozenset((variable._name,))  # type: ignore[arg-type]
    term = as_value(body(variable), place)
    if isinstance(term, Bool):
        raise Error.at(place, "bad-sum", "a sum adds Bools", "its terms are numbers", "count with attune.i32(b)")
    out = type(term)("sum", (term,), (variable, count), place)
    out._free = term._free - variable._free
    return out  # type: ignore[return-value]


def clamp(x: FloatLike, low: FloatLike, high: FloatLike) -> Any:
    """`min(max(x, low), high)`."""
    return apply("clamp", x, low, high)


def min(a: FloatLike, b: FloatLike) -> Any:
    """The smaller one; if one operand is NaN, the other."""
    return apply("min", a, b)


def max(a: FloatLike, b: FloatLike) -> Any:
    """The larger one; if one operand is NaN, the other."""
    return apply("max", a, b)


def abs(x: FloatLike) -> Any:
    """`-x` where x is negative."""
    return apply("abs", x)


def floordiv(a: IntLike, b: IntLike) -> Int:
    """Division that rounds down; by 0 it is 0. Also written `a // b`."""
    return apply("floordiv", a, b)


def floormod(a: IntLike, b: IntLike) -> Int:
    """The remainder with the sign of b; by 0 it is 0. Also written `a % b`."""
    return apply("floormod", a, b)


def truncdiv(a: IntLike, b: IntLike) -> Int:
    """Division that rounds toward zero, as `/` of C++ and of the text does; by 0 it is 0."""
    place = here()
    for x in (as_value(a, place), as_value(b, place)):
        if not isinstance(x, Int):
            raise Error.at(place, "wrong-type", f"attune.truncdiv(…) is given {a_(x.word)}",
                           "attune.truncdiv(…) takes Ints", "convert a Float with attune.i32(x), which truncates")
    return apply("/", a, b)


def truncmod(a: IntLike, b: IntLike) -> Int:
    """The remainder with the sign of a, as `%` of C++ and of the text; by 0 it is 0."""
    return apply("%", a, b)


def random(seed: IntLike) -> Float:
    """Uniform in [0, 1): the same for the same (seed, batch, head, q, kv) on every engine and in the backward."""
    return apply("random", seed)


def kept(seed: IntLike, n: IntLike) -> Bool:
    """True for n of 65536 pairs, drawn for the same (seed, batch, head, q, kv) alike on every engine and in the
    backward."""
    return apply("kept", seed, n)


def custom(value: FloatLike, derivative: FloatLike) -> Float:
    """`value`, with `derivative` instead of its own derivative by s (in a score) or p (in a prob mod)."""
    return apply("custom", value, derivative)


def floor(x: FloatLike) -> Float:
    """The largest whole number that is not above x."""
    return apply("floor", x)


def ceil(x: FloatLike) -> Float:
    """The smallest whole number that is not below x."""
    return apply("ceil", x)


def round(x: FloatLike) -> Float:
    """The nearest whole number; halves go away from zero."""
    return apply("round", x)


def trunc(x: FloatLike) -> Float:
    """x without its fraction."""
    return apply("trunc", x)


def sqrt(x: FloatLike) -> Float:
    """The square root; NaN below 0."""
    return apply("sqrt", x)


def rsqrt(x: FloatLike) -> Float:
    """`1 / sqrt(x)`; inf at 0."""
    return apply("rsqrt", x)


def exp(x: FloatLike) -> Float:
    """e to the power of x."""
    return apply("exp", x)


def exp2(x: FloatLike) -> Float:
    """2 to the power of x."""
    return apply("exp2", x)


def log(x: FloatLike) -> Float:
    """The natural logarithm; -inf at 0, NaN below."""
    return apply("log", x)


def log2(x: FloatLike) -> Float:
    """The logarithm to base 2; -inf at 0, NaN below."""
    return apply("log2", x)


def pow(x: FloatLike, y: FloatLike) -> Float:
    """x to the power of y, as in C. Also written `x ** y`."""
    return apply("pow", x, y)


def sin(x: FloatLike) -> Float:
    """The sine of x radians."""
    return apply("sin", x)


def cos(x: FloatLike) -> Float:
    """The cosine of x radians."""
    return apply("cos", x)


def tan(x: FloatLike) -> Float:
    """The tangent of x radians."""
    return apply("tan", x)


def tanh(x: FloatLike) -> Float:
    """The hyperbolic tangent, within [-1, 1]."""
    return apply("tanh", x)


def sigmoid(x: FloatLike) -> Float:
    """`1 / (1 + exp(-x))`, within [0, 1]."""
    return apply("sigmoid", x)


def erf(x: FloatLike) -> Float:
    """The error function, within [-1, 1]."""
    return apply("erf", x)
