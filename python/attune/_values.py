# python/attune/_values.py — the nodes of expressions: Float, Int and Bool, their operators, and operations on them
from __future__ import annotations

import operator
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

from attune import _refusals
from attune._errors import Error, a_, said
from attune._place import Place, here
from attune._text import OF_FLOATS, OPS, PYTHON, write

Number: TypeAlias = "Operators | int | float | bool"


class Operators:
    """The operators between values, parameters and literals; each makes a node."""

    __slots__ = ()

    @property
    def word(self) -> str:
        """Float, Int or Bool: what it is in the kernel."""
        return "value"

    def _node(self, place: Place | None) -> Value:
        """The operand as a value."""
        raise NotImplementedError

    # Arithmetic and comparisons: Ints and Floats; an Int widens to a Float.
    def __add__(self, other: Number) -> Any: return apply("+", self, other)
    def __radd__(self, other: Number) -> Any: return apply("+", other, self)
    def __sub__(self, other: Number) -> Any: return apply("-", self, other)
    def __rsub__(self, other: Number) -> Any: return apply("-", other, self)
    def __mul__(self, other: Number) -> Any: return apply("*", self, other)
    def __rmul__(self, other: Number) -> Any: return apply("*", other, self)
    def __truediv__(self, other: Number) -> Any: return _divide(self, other)
    def __rtruediv__(self, other: Number) -> Any: return _divide(other, self)
    def __floordiv__(self, other: Number) -> Any: return _floor_divide(self, other)
    def __rfloordiv__(self, other: Number) -> Any: return _floor_divide(other, self)
    def __mod__(self, other: Number) -> Any: return _modulo(self, other)
    def __rmod__(self, other: Number) -> Any: return _modulo(other, self)
    def __pow__(self, other: Number) -> Any: return _power(self, other)
    def __rpow__(self, other: Number) -> Any: return _power(other, self)
    def __neg__(self) -> Any: return apply("-", self)
    def __pos__(self) -> Any: return apply("+", self, 0) if isinstance(self, Bool) else self
    def __abs__(self) -> Any: return apply("abs", self)
    def __lt__(self, other: Number) -> Bool: return apply("<", self, other)
    def __le__(self, other: Number) -> Bool: return apply("<=", self, other)
    def __gt__(self, other: Number) -> Bool: return apply(">", self, other)
    def __ge__(self, other: Number) -> Bool: return apply(">=", self, other)
    def __eq__(self, other: object) -> Bool: return apply("==", self, other)  # type: ignore[override]
    def __ne__(self, other: object) -> Bool: return apply("!=", self, other)  # type: ignore[override]
    __hash__ = object.__hash__

    # Bits of Ints, and logic of Bools: one spelling, as in NumPy.
    def __and__(self, other: Number) -> Any: return _logic("&", "&&", self, other)
    def __rand__(self, other: Number) -> Any: return _logic("&", "&&", other, self)
    def __or__(self, other: Number) -> Any: return _logic("|", "||", self, other)
    def __ror__(self, other: Number) -> Any: return _logic("|", "||", other, self)
    def __xor__(self, other: Number) -> Any: return _logic("^", "!=", self, other)
    def __rxor__(self, other: Number) -> Any: return _logic("^", "!=", other, self)
    def __invert__(self) -> Any: return apply("!" if isinstance(self, Bool) else "~", self)
    def __lshift__(self, other: Number) -> Any: return apply("<<", self, other)
    def __rlshift__(self, other: Number) -> Any: return apply("<<", other, self)
    def __rshift__(self, other: Number) -> Any: return apply(">>", self, other)
    def __rrshift__(self, other: Number) -> Any: return apply(">>", other, self)

    # Uses that need a number in Python.
    def __bool__(self) -> bool: _refusals.no_condition(self.word)
    def __int__(self) -> int:
        _refusals.no_number(self.word, "int(x)", "convert it with attune.i32(x), which truncates")
    def __float__(self) -> float:
        _refusals.no_number(self.word, "float(x)", "use attune's functions, e.g. attune.exp(x) for math.exp(x); "
                            "attune.f32(i) converts an Int")
    def __complex__(self) -> complex:
        _refusals.no_number(self.word, "complex(x)", "the language has no complex numbers")
    def __round__(self, digits: int | None = None) -> NoReturn:
        _refusals.no_number(self.word, "round(x)", "write attune.round(x), which rounds halves away from zero; "
                            "Python's rounds them to even")
    def __floor__(self) -> Float: return apply("floor", self)
    def __ceil__(self) -> Float: return apply("ceil", self)
    def __trunc__(self) -> Float: return apply("trunc", self)
    def __index__(self) -> int: _refusals.no_index(self.word)
    def __iter__(self) -> Iterator[NoReturn]: _refusals.no_iteration(self.word)
    def __len__(self) -> int: _refusals.no_length(self.word)
    def __getitem__(self, index: object) -> NoReturn: _refusals.no_elements(self.word)
    def __call__(self, *args: object) -> NoReturn: _refusals.no_call(self.word)
    def __matmul__(self, other: object) -> NoReturn: _refusals.no_product()
    def __rmatmul__(self, other: object) -> NoReturn: _refusals.no_product()
    def __getattr__(self, name: str) -> NoReturn: _refusals.no_member(self.word, name)

    # NumPy dispatches its functions and its scalars' operators to these.
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        return _numpy(ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}", inputs)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self.__index__()  # NumPy converts an unknown index to an array
        raise AssertionError("a value of the kernel is no array")

    def __array_function__(self, function: Any, _types: Any, args: Any, _kwargs: Any) -> Any:
        return _numpy(function.__name__, args)


class Value(Operators):
    """A Float, Int or Bool at one (batch, head, q, kv): a node of an expression. It has no value in Python."""

    __slots__ = ("_args", "_free", "_name", "_op", "_place")

    def __init__(self, op: str, args: tuple[Value, ...] = (), name: object = None, place: Place | None = None) -> None:
        self._op, self._args, self._name, self._place = op, args, name, place
        # The sum variables that the value depends on.
        self._free: frozenset[str] = _no_variables.union(*(a._free for a in args)) if args else _no_variables

    @property
    def word(self) -> str:
        """Float, Int or Bool."""
        return type(self).__name__

    def _node(self, place: Place | None) -> Value:
        return self

    def __repr__(self) -> str:
        return f"<{self.word} {write(self).text}>"


_no_variables: frozenset[str] = frozenset()


class Float(Value):
    """An f32 inside the kernel."""

    __slots__ = ()


class Int(Value):
    """An i32 inside the kernel. It wraps; it widens to a Float where one is needed."""

    __slots__ = ()


class Bool(Value):
    """A condition inside the kernel. Join conditions with `&`, `|`, `~`; choose with `attune.where`."""

    __slots__ = ()


# ---- making nodes


def literal(number: float | int | bool, place: Place | None) -> Value:
    if isinstance(number, bool):
        return Bool("literal", name=number, place=place)
    if isinstance(number, int):
        if not -2**31 <= number < 2**31:
            shown = number if number.bit_length() <= 128 else f"of {number.bit_length()} bits"
            raise Error.at(place, "bad-number", f"the literal {shown} does not fit an Int",
                           "an Int holds -2147483648 to 2147483647", "use a Float, or a number in range")
        return Int("literal", name=number, place=place)
    if not is_float(number):
        raise Error.at(place, "bad-number", f"the literal {number} does not fit a Float", "the largest Float is 3.4028235e38",
                       "write math.inf for infinity")
    return Float("literal", name=struct.unpack("<f", struct.pack("<f", number))[0], place=place)


def is_float(number: object) -> bool:
    """True if a Float of the kernel can hold the number."""
    try:
        struct.pack("<f", number)
    except (OverflowError, struct.error):
        return False
    return True


def as_value(thing: object, place: Place | None) -> Value:
    """A value, or a literal or parameter as one."""
    if isinstance(thing, Value):
        return thing
    if isinstance(thing, (bool, int, float)):
        return literal(thing, place)
    if isinstance(thing, Operators):
        return thing._node(place)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(thing, numpy.generic):
        return as_value(thing.item(), place)
    if callable(thing):
        raise Error.at(place, "wrong-type", f"{said(thing)} is used where a number is needed",
                       "it is a function that was not called", "call it: f(at)")
    array = hasattr(thing, "shape")
    raise Error.at(place, "wrong-type", f"{said(thing)} is used where a number is needed",
                   "expressions combine values of the kernel and numbers",
                   "read an element of it inside the kernel: t[at.q, at.kv]" if array else "pass a number")


_FITS: dict[str, tuple[type[Value], ...]] = {"Bool": (Bool,), "Int": (Int,), "Float": (Float,), "Num": (Int, Float),
                                             "Any": (Value,)}
_KINDS: dict[str, type[Value]] = {"F32": Float, "I32": Int, "Bool": Bool}


def apply(op: str, *things: object) -> Any:
    """The operation on values, literals and parameters, with the language's types."""
    place = here()
    args = [as_value(t, place) for t in things]
    _, takes, gives, _ = OPS[op]
    alike = args[1:] if op == "where" else args
    wide = takes == "Float" or any(isinstance(a, Float) for a in alike)
    if takes in ("Float", "Num", "Any") and wide and op not in ("f32", "i32"):
        alike = [widened(a) for a in alike]
    if op == "where":
        if not isinstance(args[0], Bool):
            _refuse(place, op, args[0], "the first argument of attune.where(...) is a condition", "compare something, e.g. i != 0")
        args = [args[0], *alike]
    else:
        args = alike
    fits = _FITS[takes]
    for a in alike:
        if not isinstance(a, fits):
            _refuse_type(place, op, a, takes)
        if type(a) is not type(alike[0]):
            _refuse(place, op, a, f"{_written(op)} needs the same type on both sides", "convert a Bool with attune.f32(b) or "
                    "attune.i32(b)")
    kind = type(alike[-1]) if gives == "Arg" else _KINDS[gives]
    return kind(op, tuple(args), None, place)


def widened(a: Value) -> Value:
    """An Int as a Float; any other value unchanged."""
    if not isinstance(a, Int):
        return a
    if a._op == "literal":
        return Float("literal", name=float(a._name), place=a._place)  # type: ignore[arg-type]
    return Float("f32", (a,), None, a._place)


def _written(op: str) -> str:
    name = PYTHON.get(op, op)
    return f"{name}(…)" if name.startswith("attune.") else f"`{name}`"


def _refuse(place: Place | None, op: str, a: Value, why: str, fix: str) -> NoReturn:
    raise Error.at(place, "wrong-type", f"{_written(op)} is given {a_(a.word)}", why, fix)


def _refuse_type(place: Place | None, op: str, a: Value, takes: str) -> NoReturn:
    needs = {"Bool": "Bools", "Int": "Ints", "Float": "Floats", "Num": "numbers"}[takes]
    if takes == "Bool":
        fix = "compare a number first, e.g. i != 0"
    elif isinstance(a, Bool):
        fix = "convert a Bool with attune.f32(b) or attune.i32(b)"
        if op == "*":
            fix += ", or write attune.where(b, x, 0)"
        if op in ("<", "<=", ">", ">="):
            fix = "join comparisons: (a < b) & (b < c)"
    else:
        fix = {"&": "convert a Float with attune.i32(x)", "^": "for a power write x ** y"}.get(
            op, "convert a Float with attune.i32(x), which truncates")
        if op in ("<<", ">>"):
            fix = "scale a Float by a power of two instead"
    _refuse(place, op, a, f"{_written(op)} takes {needs}", fix)


def _logic(bits: str, logic: str, a: object, b: object) -> Any:
    conditions = [isinstance(x, (Bool, bool)) for x in (a, b)]
    if all(conditions):
        return apply(logic, a, b)
    return _mixed(bits, a, b) if isinstance(a, Bool) or isinstance(b, Bool) else apply(bits, a, b)


def _mixed(op: str, a: object, b: object) -> NoReturn:
    place = here()
    number = as_value(a if isinstance(b, Bool) else b, place)
    name = PYTHON.get(op, op)
    raise Error.at(place, "wrong-type", f"`{name}` joins a Bool and {a_(number.word)}",
                   "it takes two conditions, or two Ints; in Python it binds tighter than a comparison",
                   f"put brackets around comparisons: (at.kv <= at.q) {name} (at.q - at.kv < 8)")


def _divide(a: object, b: object) -> Any:
    if isinstance(a, Bool) or isinstance(b, Bool):
        return apply("/", a, b)
    place = here()
    x, y = as_value(a, place), as_value(b, place)
    if isinstance(x, Int) and isinstance(y, Int):
        raise Error.at(place, "python-division", "`/` divides an Int by an Int",
                       "Python's `/` would be a Float, and C++'s a whole number",
                       "write // for a whole number, or attune.f32(a) / b for a Float")
    return apply("/", x, y)


def _floor_divide(a: object, b: object) -> Any:
    place = here()
    x, y = as_value(a, place), as_value(b, place)
    return apply("floor", apply("/", x, y)) if isinstance(x, Float) or isinstance(y, Float) else apply("floordiv", x, y)


def _modulo(a: object, b: object) -> Any:
    place = here()
    x, y = as_value(a, place), as_value(b, place)
    if isinstance(x, Float) or isinstance(y, Float):
        return apply("-", x, apply("*", y, apply("floor", apply("/", x, y))))
    return apply("floormod", x, y)


def _power(a: object, b: object) -> Any:
    place = here()
    x, y = as_value(a, place), as_value(b, place)
    if isinstance(x, Int) and isinstance(y, Int):
        raise Error.at(place, "wrong-type", "`**` raises an Int to an Int", "powers are of Floats",
                       "write i * i, or attune.f32(i) ** n")
    return apply("pow", x, y)


_NUMPY = {**{name: name for name in (*OF_FLOATS, "abs", "where") if name != "round"},  # NumPy's goes to even
          "add": "+", "subtract": "-", "multiply": "*", "less": "<", "less_equal": "<=", "greater": ">",
          "greater_equal": ">=", "equal": "==", "not_equal": "!=", "logical_and": "&&", "logical_or": "||",
          "logical_not": "!", "left_shift": "<<", "right_shift": ">>", "negative": "-", "absolute": "abs",
          "fabs": "abs", "minimum": "min", "maximum": "max", "fmin": "min", "fmax": "max", "clip": "clamp",
          "power": "pow", "float_power": "pow"}


_OPERATORS: dict[str, Callable[..., Any]] = {
    "divide": _divide, "true_divide": _divide, "floor_divide": _floor_divide, "remainder": _modulo, "mod": _modulo,
    "square": lambda x: apply("*", x, x), "invert": operator.invert, "bitwise_not": operator.invert}


def _numpy(name: str, inputs: tuple[Any, ...]) -> Any:
    """NumPy's functions with the same meaning here; NumPy also dispatches its scalars' operators."""
    special = {"bitwise_and": ("&", "&&"), "bitwise_or": ("|", "||"), "bitwise_xor": ("^", "!=")}
    numpy = sys.modules["numpy"]
    name = name.rstrip("_")
    inputs = tuple(x.item() if isinstance(x, numpy.ndarray) and x.ndim == 0 else x for x in inputs)
    if name in special and len(inputs) == 2:
        plain = [x.item() if isinstance(x, numpy.generic) else x for x in inputs]
        return _logic(*special[name], *plain)
    if name in _OPERATORS:
        return _OPERATORS[name](*inputs)
    if name in _NUMPY:
        return apply(_NUMPY[name], *inputs)
    raise Error.at(here(), "unknown-function", f"numpy.{name} is not known inside the kernel",
                   "attune compiles the operations that docs/expressions.md lists",
                   {"round": "write attune.round(x), which rounds halves away from zero",
                    "rint": "write attune.round(x), which rounds halves away from zero",
                    "dot": "write attune.sum(n, lambda i: u[at.q, i] * w[at.kv, i])",
                    "log1p": "write attune.log(1.0 + x)", "expm1": "write attune.exp(x) - 1.0"}.get(
                        name, "write it with the functions of attune"))
