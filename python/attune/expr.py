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
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn, TypeAlias, TypeVar

from attune._arrays import is_array, seen_as
from attune._errors import Error
from attune._place import Place, construct, here

__all__ = [
    "At", "Bool", "Capture", "Float", "Int", "Param", "SinkAt", "Value", "abs", "ceil", "clamp", "cos", "custom",
    "erf", "exp", "exp2", "f32", "floor", "floordiv", "floormod", "i32", "log", "log2", "max", "min", "pow", "random",
    "round", "rsqrt", "sigmoid", "sin", "sqrt", "sum", "tan", "tanh", "trunc", "truncdiv", "truncmod", "where",
]

# Every operation: how tightly it binds (0: written name(args)), what it takes, what it gives: ir/ops.def, where the
# corner cases are. A test compares.
OPS: dict[str, tuple[int, str, str]] = {
    "random": (0, "Int", "F32"), "custom": (0, "Float", "F32"), "where": (0, "Any", "Arg"),
    "||": (2, "Bool", "Bool"), "&&": (3, "Bool", "Bool"),
    "|": (4, "Int", "I32"), "^": (5, "Int", "I32"), "&": (6, "Int", "I32"),
    "==": (7, "Any", "Bool"), "!=": (7, "Any", "Bool"),
    "<": (8, "Num", "Bool"), "<=": (8, "Num", "Bool"), ">": (8, "Num", "Bool"), ">=": (8, "Num", "Bool"),
    "<<": (9, "Int", "I32"), ">>": (9, "Int", "I32"),
    "+": (10, "Num", "Arg"), "-": (10, "Num", "Arg"), "*": (11, "Num", "Arg"), "/": (11, "Num", "Arg"),
    "%": (11, "Int", "I32"), "!": (12, "Bool", "Bool"), "~": (12, "Int", "I32"),
    "f32": (0, "Any", "F32"), "i32": (0, "Any", "I32"),
    "floordiv": (0, "Int", "I32"), "floormod": (0, "Int", "I32"),
    "min": (0, "Num", "Arg"), "max": (0, "Num", "Arg"), "clamp": (0, "Num", "Arg"), "abs": (0, "Num", "Arg"),
    "floor": (0, "Float", "F32"), "ceil": (0, "Float", "F32"), "round": (0, "Float", "F32"),
    "trunc": (0, "Float", "F32"), "sqrt": (0, "Float", "F32"), "rsqrt": (0, "Float", "F32"),
    "exp": (0, "Float", "F32"), "exp2": (0, "Float", "F32"), "log": (0, "Float", "F32"), "log2": (0, "Float", "F32"),
    "pow": (0, "Float", "F32"), "sin": (0, "Float", "F32"), "cos": (0, "Float", "F32"), "tan": (0, "Float", "F32"),
    "tanh": (0, "Float", "F32"), "sigmoid": (0, "Float", "F32"), "erf": (0, "Float", "F32"),
}
# How Python spells them, for messages.
PYTHON = {"&&": "&", "||": "|", "!": "~", "where": "attune.where", **{n: f"attune.{n}" for n in OPS if n.isalnum()}}


class Operators:
    """What can be written between values, parameters and literals: each operator makes a node."""

    __slots__ = ()

    @property
    def word(self) -> str:
        """Float, Int or Bool: what it is in the kernel."""
        return "value"

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

    # What Python would have to know a number for.
    def __bool__(self) -> bool: return _no_condition(self)
    def __int__(self) -> int: _no_number(self, "int(x)", "convert it with attune.i32(x), which truncates")
    def __float__(self) -> float: _no_number(self, "float(x)", "use attune's functions, e.g. attune.exp(x) for "
                                             "math.exp(x); attune.f32(i) converts an Int")
    def __complex__(self) -> complex: _no_number(self, "complex(x)", "the language has no complex numbers")
    def __round__(self, digits: int | None = None) -> NoReturn:
        _no_number(self, "round(x)", "write attune.round(x), which rounds halves away from zero; Python's rounds them "
                   "to even")
    def __floor__(self) -> Float: return floor(self)  # type: ignore[arg-type]
    def __ceil__(self) -> Float: return ceil(self)  # type: ignore[arg-type]
    def __trunc__(self) -> Float: return trunc(self)  # type: ignore[arg-type]
    def __index__(self) -> int:
        place = here()
        node = construct(place) if place else None
        if getattr(getattr(node, "func", None), "id", "") == "range":
            raise Error.at(place, "python-loop", f"`range` is given {a_(self.word)} of the kernel",
                           "it is another number for each pair of positions",
                           "write attune.sum(n, lambda i: ...) to add n terms; n is a number of Python")
        raise Error.at(place, "not-captured", "a list or an array is indexed by a value of the kernel",
                       "attune reads a tensor inside the kernel only if it knows it: one that the function closes "
                       "over by its own name, or a keyword of the call",
                       "assign the array to a variable of its own before the lambda, e.g. slope = self.slope; a list "
                       "becomes an array with numpy.array(x)")
    def __iter__(self) -> Iterator[NoReturn]:
        place = here()
        spot = place.spot() if place else None
        if spot and spot.text.startswith("for "):  # since Python 3.13 the instruction is what is iterated over alone
            spot = spot._replace(begin=0, end=len(spot.text))
        raise Error.at(spot, "python-loop", f"{a_(self.word)} of the kernel is iterated over",
                       "it is one number for each pair of positions",
                       "write attune.sum(n, lambda i: ...) to add n terms")
    def __len__(self) -> int:
        raise Error.at(here(), "python-loop", f"{a_(self.word)} of the kernel has no length",
                       "it is one number for each pair of positions",
                       "at.q_len and at.kv_len are the lengths of q and kv")
    def __getitem__(self, index: object) -> NoReturn:
        raise Error.at(here(), "not-indexable", f"{a_(self.word)} of the kernel has no elements",
                       "it is one number for each pair of positions", "index a captured tensor, e.g. slope[at.head]")
    def __call__(self, *args: object) -> NoReturn:
        raise Error.at(here(), "not-indexable", f"{a_(self.word)} of the kernel is called",
                       "it is one number for each pair of positions",
                       "write an operator; a tensor is read as slope[at.head]")
    def __matmul__(self, other: object) -> NoReturn: _no_product()
    def __rmatmul__(self, other: object) -> NoReturn: _no_product()

    # NumPy hands its functions and its scalars' operators over to us.
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        return _numpy(ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}", inputs)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self.__index__()  # NumPy makes an array of an index that it does not know
        raise AssertionError("a value of the kernel is no array")

    def __array_function__(self, function: Any, _types: Any, args: Any, _kwargs: Any) -> Any:
        return _numpy(function.__name__, args)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Error.at(here(), "unknown-member", f"{a_(self.word)} of the kernel has no member `{name}`",
                       "it is one number for each pair of positions",
                       f"write attune.{name}(x)" if name in __all__ else "docs/expressions.md lists what there is")


class Value(Operators):
    """A Float, Int or Bool at one (batch, head, q, kv): a node of an expression. It has no value in Python."""

    __slots__ = ("_args", "_free", "_name", "_op", "_place")

    def __init__(self, op: str, args: tuple[Value, ...] = (), name: object = None, place: Place | None = None) -> None:
        self._op, self._args, self._name, self._place = op, args, name, place
        # The variables of sums that it depends on.
        self._free: frozenset[str] = _no_variables.union(*(a._free for a in args)) if args else _no_variables

    @property
    def word(self) -> str:
        """Float, Int or Bool."""
        return type(self).__name__

    def __repr__(self) -> str:
        from attune._text import write

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


N = TypeVar("N", Float, Int)


class Param(Operators):
    """A number that may change between calls without a new kernel. A float is a Float in the kernel, an int an Int.

    >>> import attune
    >>> width = attune.Param(256)
    >>> attune.text(lambda at: at.q - at.kv < width)
    'q - kv < width'
    >>> width.value = 512
    """

    __slots__ = ("_kind", "_value", "name")

    def __init__(self, value: float, name: str = "") -> None:
        place = here()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Error.at(place, "param-type", f"a parameter cannot be {_said(value)}", "it is an int or a float",
                           "pass 0 or 1 for a condition, and compare: param != 0")
        self._kind, self.name = ("i" if isinstance(value, int) else "f"), name
        self._value: float = 0
        self.value = value

    @property
    def value(self) -> float:
        """The number that the next call passes."""
        return self._value

    @value.setter
    def value(self, value: float) -> None:
        if self._kind == "i" and not (isinstance(value, int) and -2**31 <= value < 2**31):
            raise Error.at(here(), "param-type", f"an Int parameter cannot become {_said(value)}",
                           "an Int holds -2147483648 to 2147483647", "make it a Float from the start: Param(1.0)")
        if self._kind == "f" and not is_float(value):
            raise Error.at(here(), "param-type", f"a Float parameter cannot become {_said(value)}",
                           "the largest Float is 3.4028235e38", "pass math.inf for infinity, or a smaller number")
        self._value = value

    @property
    def kind(self) -> str:
        """'f' for a Float, 'i' for an Int."""
        return self._kind

    @property
    def word(self) -> str:
        """Float or Int."""
        return "Int" if self._kind == "i" else "Float"

    def __repr__(self) -> str:
        return f"attune.Param({self.value!r}{f', {self.name!r}' if self.name else ''})"


class Capture(Operators):
    """A captured tensor inside an expression: one index for each dimension, `()` for none.

    An index outside of the tensor is clamped into it. Functions see every array that they name as one of these; make
    one yourself for an array that is an attribute: `slope = attune.Capture(self.slope, "slope")`.
    """

    __slots__ = ("_array", "_kind", "_name", "_rank")

    def __init__(self, array: object, name: str = "") -> None:
        if not is_array(array):
            raise Error.at(here(), "capture-type", f"a capture cannot be {_said(array)}",
                           "a captured tensor is an array", "pass an array, e.g. numpy.array(x)")
        self._kind, self._rank = seen_as(array, name or "tensor")
        self._array, self._name = array, name

    def __getitem__(self, index: object) -> Any:
        place = here()
        indices = index if isinstance(index, tuple) else (index,)
        called = f"capture `{self._name}`" if self._name else "a captured tensor"
        nodes = []
        for i in indices:
            if isinstance(i, slice) or i is None or i is Ellipsis:
                raise Error.at(place, "wrong-rank", f"{called} is sliced", "a read gives one element",
                               "give one index for each dimension: t[i], t[i, j], …")
            node = as_value(i, place)
            if not isinstance(node, Int):
                raise Error.at(place, "wrong-type", f"{called} is indexed by {a_(node.word)}", "an index is an Int",
                               "convert it with attune.i32(x)")
            nodes.append(node)
        if len(nodes) != self._rank:
            count = f"{len(nodes)} {'index' if len(nodes) == 1 else 'indices'}"
            raise Error.at(place, "wrong-rank", f"{called} is read with {count}",
                           f"it has {_dimensions(self._rank)}",
                           "read a single number as t[()]" if self._rank == 0 else
                           "give one index for each dimension: t[i], t[i, j], …")
        return {"f": Float, "i": Int, "b": Bool}[self._kind]("read", tuple(nodes), self, place)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape, as numbers of Python."""
        return tuple(self._array.shape)  # type: ignore[attr-defined]

    @property
    def ndim(self) -> int:
        """How many dimensions the tensor has."""
        return self._rank

    def __len__(self) -> int:
        return self.shape[0]

    # Without an index it stands for nothing: `as_value` says so.
    def __bool__(self) -> bool: return bool(as_value(self, here()))
    def __int__(self) -> int: return int(as_value(self, here()))
    def __float__(self) -> float: return float(as_value(self, here()))
    def __index__(self) -> int: return as_value(self, here()).__index__()
    def __iter__(self) -> Iterator[NoReturn]: return iter(as_value(self, here()))
    def __call__(self, *args: object) -> NoReturn: as_value(self, here())(*args)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Error.at(here(), "unknown-member", f"`{name}` of a captured tensor is not known inside an expression",
                       "there a tensor has its elements, `shape` and `ndim`",
                       f"compute it before: x = {self._name or 'tensor'}.{name}…")


class SinkAt:
    """Where a sink sits: one per batch entry and head."""

    __slots__ = ("batch", "head")
    _members: ClassVar[dict[str, str]] = {"batch": "b", "head": "h"}

    def __init__(self) -> None:
        for member, name in self._members.items():
            object.__setattr__(self, member, Int("input", name=name))

    batch: Int
    head: Int

    def __setattr__(self, name: str, value: object) -> None:
        raise Error.at(here(), "unknown-member", f"`at.{name}` is assigned to", "coordinates are given",
                       "use a variable of your own")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        other = {"b": "batch", "h": "head", "k": "kv", "q_idx": "q", "kv_idx": "kv", "query": "q", "key": "kv"}.get(
            name)
        why = "a sink knows its batch and head, not q and kv" if type(self) is SinkAt else "there are " + ", ".join(
            f"at.{m}" for m in self._members)
        raise Error.at(here(), "unknown-member", f"there is no `at.{name}`", why,
                       f"write at.{other}" if other in self._members else "take one of these")


class At(SinkAt):
    """Where a score sits. Positions are logical: within the sequence of a packed batch."""

    __slots__ = ("kv", "kv_len", "q", "q_len")
    _members: ClassVar[dict[str, str]] = {"batch": "b", "head": "h", "q": "q", "kv": "kv",
                                          "q_len": "q_len", "kv_len": "kv_len"}

    q: Int
    kv: Int
    q_len: Int
    kv_len: Int


Number: TypeAlias = "Value | Capture | Param | int | float | bool"
FloatLike: TypeAlias = "Float | Int | Param | int | float"
IntLike: TypeAlias = "Int | Param | int"
BoolLike: TypeAlias = "Bool | bool"

# ---- making nodes


def literal(number: float | int | bool, place: Place | None) -> Value:
    """A Python number as a literal of the kernel."""
    if isinstance(number, bool):
        return Bool("literal", name=number, place=place)
    if isinstance(number, int):
        if not -2**31 <= number < 2**31:
            shown = number if number.bit_length() <= 128 else f"of {number.bit_length()} bits"
            raise Error.at(place, "bad-number", f"the literal {shown} is no Int",
                           "an Int holds -2147483648 to 2147483647", "use a Float, or a number in range")
        return Int("literal", name=number, place=place)
    if not is_float(number):
        raise Error.at(place, "bad-number", f"the literal {number} is no Float", "the largest Float is 3.4028235e38",
                       "write math.inf for infinity")
    return Float("literal", name=struct.unpack("<f", struct.pack("<f", number))[0], place=place)


def is_float(number: object) -> bool:
    """Does a Float of the kernel hold it?"""
    try:
        struct.pack("<f", number)
    except (OverflowError, struct.error):
        return False
    return True


def a_(word: str) -> str:
    """The word with its article."""
    return f"{'an' if word[:1] in 'AEIOUaeiou' else 'a'} {word}"


def _said(thing: object) -> str:
    """What a thing is, for messages."""
    if isinstance(thing, int) and thing.bit_length() > 128:
        return f"an int of {thing.bit_length()} bits"
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return repr(thing)
    return a_(type(thing).__name__)


def _dimensions(rank: int) -> str:
    return f"{rank} dimension{'' if rank == 1 else 's'}"


def as_value(thing: object, place: Place | None) -> Value:
    """A value, or a literal or parameter as one."""
    if isinstance(thing, Value):
        return thing
    if isinstance(thing, (bool, int, float)):
        return literal(thing, place)
    if isinstance(thing, Param):
        return (Int if thing.kind == "i" else Float)("param", name=thing, place=place)
    if isinstance(thing, Capture):
        index = ", ".join(("at.q", "at.kv", "at.head", "at.batch")[: thing._rank]) or "()"
        name = thing._name or "tensor"
        raise Error.at(place, "missing-index", f"capture `{name}` stands without an index",
                       f"it has {_dimensions(thing._rank)}", f"read an element, e.g. {name}[{index}]")
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(thing, numpy.generic):
        return as_value(thing.item(), place)
    if callable(thing):
        raise Error.at(place, "wrong-type", f"{_said(thing)} stands where a number is needed",
                       "it is a function that was not called", "call it: f(at)")
    array = hasattr(thing, "shape")
    raise Error.at(place, "wrong-type", f"{_said(thing)} stands where a number is needed",
                   "an expression is made of values of the kernel and of numbers",
                   "read an element of it inside the kernel: t[at.q, at.kv]" if array else "pass a number")


_FITS: dict[str, tuple[type[Value], ...]] = {"Bool": (Bool,), "Int": (Int,), "Float": (Float,), "Num": (Int, Float),
                                             "Any": (Value,)}
_KINDS: dict[str, type[Value]] = {"F32": Float, "I32": Int, "Bool": Bool}


def apply(op: str, *things: object) -> Any:
    """The operation on values, literals and parameters, with the language's types."""
    place = here()
    args = [as_value(t, place) for t in things]
    _, takes, gives = OPS[op]
    alike = args[1:] if op == "where" else args
    wide = takes == "Float" or any(isinstance(a, Float) for a in alike)
    if takes in ("Float", "Num", "Any") and wide and op not in ("f32", "i32"):
        alike = [_widened(a) for a in alike]
    if op == "where":
        if not isinstance(args[0], Bool):
            _refuse(place, op, args[0], "attune.where(...) begins with a condition", "compare something, e.g. i != 0")
        args = [args[0], *alike]
    else:
        args = alike
    fits = _FITS[takes]
    for a in alike:
        if not isinstance(a, fits):
            _refuse_type(place, op, a, takes, alike)
        if type(a) is not type(alike[0]):
            _refuse(place, op, a, f"{_written(op)} has one type on both sides", "convert a Bool with attune.f32(b) or "
                    "attune.i32(b)")
    kind = type(alike[-1]) if gives == "Arg" else _KINDS[gives]
    return kind(op, tuple(args), None, place)


def _widened(a: Value) -> Value:
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


def _refuse_type(place: Place | None, op: str, a: Value, takes: str, args: list[Value]) -> NoReturn:
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
    return floor(apply("/", x, y)) if isinstance(x, Float) or isinstance(y, Float) else apply("floordiv", x, y)


def _modulo(a: object, b: object) -> Any:
    place = here()
    x, y = as_value(a, place), as_value(b, place)
    if isinstance(x, Float) or isinstance(y, Float):
        return apply("-", x, apply("*", y, floor(apply("/", x, y))))
    return apply("floormod", x, y)


def _power(a: object, b: object) -> Any:
    place = here()
    x, y = as_value(a, place), as_value(b, place)
    if isinstance(x, Int) and isinstance(y, Int):
        raise Error.at(place, "wrong-type", "`**` raises an Int to an Int", "powers are of Floats",
                       "write i * i, or attune.f32(i) ** n")
    return apply("pow", x, y)


def _no_number(value: Operators, asked: str, fix: str) -> NoReturn:
    raise Error.at(here(), "python-number", f"Python asks for the number of {a_(value.word)} of the kernel: {asked}",
                   "it is another number for each pair of positions, known only inside the kernel", fix)


def _no_product() -> NoReturn:
    raise Error.at(here(), "python-number", "`@` multiplies a value of the kernel", "the language has no matrices",
                   "write attune.sum(n, lambda i: u[at.q, i] * w[at.kv, i])")


def _no_condition(value: Operators) -> NoReturn:
    import ast

    place = here()
    node = construct(place) if place else None
    what, fix = "Python asks whether it is true", "write attune.where(condition, a, b) to choose"
    if isinstance(node, ast.BoolOp):
        word, sign = ("and", "&") if isinstance(node.op, ast.And) else ("or", "|")
        what, fix = f"`{word}` asks whether it is true", f"write (a) {sign} (b) for `a {word} b`, with the brackets"
    elif isinstance(node, ast.UnaryOp):
        what, fix = "`not` asks whether it is true", "write ~a for `not a`"
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        what, fix = "`in` asks whether it is true", "write a comparison for each case: (x == 1) | (x == 2)"
    elif isinstance(node, ast.Compare):
        joins = any(isinstance(part, ast.BinOp) and isinstance(part.op, (ast.BitAnd, ast.BitOr))
                    for part in [node.left, *node.comparators])
        if joins:
            what = "`&` and `|` bind tighter than comparisons, so Python reads a chain of comparisons"
            fix = "put brackets around each comparison: (a <= b) & (b < c)"
        else:
            what, fix = "a chain of comparisons asks whether it is true", "write (a < b) & (b < c) for a < b < c"
    elif isinstance(node, (ast.IfExp, ast.If)):
        what = "`if` asks whether it is true"
        fix = "write attune.where(c, x, y) for `x if c else y`"
    elif isinstance(node, (ast.While, ast.For)):
        what, fix = "a loop asks whether it is true", "write attune.sum(n, lambda i: ...) to add n terms"
    elif isinstance(node, ast.Assert):
        what, fix = "`assert` asks whether it is true", "leave it out: the condition is another for each pair"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        what = f"`{name}` asks whether it is true"
        fix = {"min": "write attune.min(a, b)", "max": "write attune.max(a, b)", "all": "join conditions with &",
               "any": "join conditions with |", "bool": "compare: x != 0"}.get(name, fix)
    raise Error.at(place, "python-condition", f"{a_(value.word)} of the kernel has no truth value in Python",
                   what + "; inside the kernel there is another one for each pair of positions" * what.endswith("true"),
                   fix)


_NUMPY = {"add": "+", "subtract": "-", "multiply": "*", "less": "<", "less_equal": "<=", "greater": ">",
          "greater_equal": ">=", "equal": "==", "not_equal": "!=", "logical_and": "&&", "logical_or": "||",
          "logical_not": "!", "left_shift": "<<", "right_shift": ">>", "negative": "-", "absolute": "abs", "abs": "abs",
          "fabs": "abs", "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "sin": "sin", "cos": "cos",
          "tan": "tan", "tanh": "tanh", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
          "minimum": "min", "maximum": "max", "fmin": "min", "fmax": "max", "clip": "clamp", "where": "where",
          "power": "pow", "float_power": "pow"}


def _numpy(name: str, inputs: tuple[Any, ...]) -> Any:
    """NumPy's functions where they mean the same; it also passes on its own scalars' operators."""
    special = {"bitwise_and": ("&", "&&"), "bitwise_or": ("|", "||"), "bitwise_xor": ("^", "!=")}
    numpy = sys.modules["numpy"]
    name = name.rstrip("_")
    inputs = tuple(x.item() if isinstance(x, numpy.ndarray) and x.ndim == 0 else x for x in inputs)
    if name in special and len(inputs) == 2:
        plain = [x.item() if isinstance(x, numpy.generic) else x for x in inputs]
        return _logic(*special[name], *plain)
    if name in ("divide", "true_divide"):
        return _divide(*inputs)
    if name == "floor_divide":
        return _floor_divide(*inputs)
    if name in ("remainder", "mod"):
        return _modulo(*inputs)
    if name == "square":
        return apply("*", inputs[0], inputs[0])
    if name in ("invert", "bitwise_not"):
        return ~inputs[0]
    if name in _NUMPY:
        return apply(_NUMPY[name], *inputs)
    raise Error.at(here(), "unknown-function", f"numpy.{name} is not known inside the kernel",
                   "attune compiles the operations that docs/expressions.md lists",
                   {"round": "write attune.round(x), which rounds halves away from zero",
                    "rint": "write attune.round(x), which rounds halves away from zero",
                    "dot": "write attune.sum(n, lambda i: u[at.q, i] * w[at.kv, i])",
                    "log1p": "write attune.log(1.0 + x)", "expm1": "write attune.exp(x) - 1.0"}.get(
                        name, "write it with the functions of attune"))


# ---- functions, as docs/expressions.md tells of them


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
    return _widened(value) if literal else apply("f32", value)  # type: ignore[return-value]


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
    if isinstance(count, (Value, Param, Capture)) or isinstance(count, bool) or not hasattr(count, "__index__"):
        raise Error.at(place, "bad-sum", f"the count of a sum is {_said(count)}",
                       "it is a number of Python, known when the kernel is made",
                       "sum to the largest count and add 0 beyond")
    count = count.__index__()
    if not 0 <= count <= 1024:
        raise Error.at(place, "bad-sum", f"a sum over {count} terms", "a sum has 0 to 1024 terms",
                       "sum fewer terms, or split the sum")
    if not callable(body):
        raise Error.at(place, "bad-sum", f"the body of a sum is {_said(body)}", "it is a function of the Int i",
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


def custom(value: FloatLike, derivative: FloatLike) -> Float:
    """`value`, with `derivative` in place of its derivative by s (in a score) or p (in a prob mod)."""
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
