# python/attune/_scan.py — a key of all that a function refers to, equal for functions with one meaning; their joins
"""What functions refer to, through closures, globals, defaults, attributes and partials.

Scan describes them in a key. core/expected.cpp reads keys, and core/expected.h decides whether another call's functions
refer to the same things. A Scan with a kind of thing that they do not know is not cacheable.
"""

from __future__ import annotations

import functools
import struct
import sys
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, CellType, CodeType, EllipsisType, FunctionType, ModuleType
from typing import Any, ClassVar

from attune import _arrays, _leaves, _values, expr
from attune._errors import Error, a_
from attune._kept import Kept
from attune._leaves import Param
from attune._place import here


class Component:
    """A function of an expression that joins with others. Also a decorator."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __bool__(self) -> bool:
        name = type(self).__name__
        join = "a & b, a | b, ~a" if name == "Mask" else "a | b"
        raise Error.at(here(), "python-condition", f"{a_(name)} has no truth value in Python",
                       "`and`, `or`, `not` and `if` ask for one: `a and b` would be b alone",
                       f"write {join} to join, and `x is not None` to ask for one")


# Modules whose members never change: functions may read them without a check at each call.
_CONSTANT_MODULES = ("attune", "math", "numpy", "torch")
# Libraries whose functions never change their meaning, unless they close over something.
_LIBRARIES = ("numpy", "torch", "jax", "scipy")
_OURS = frozenset([expr.__file__, _leaves.__file__, _values.__file__])  # functions of these capture nothing
_NOTHING = object()


class Scan:
    """A key of what functions refer to, equal for functions that spell alike, and the tensors and Params, in order.

    Contents of tensors are never looked at: they are arguments of the kernel.
    """

    constants: ClassVar[tuple[type, ...]] = (EllipsisType,)  # types whose objects never change

    def __init__(self) -> None:
        self.leaves: list[object] = []
        self.hints: list[str] = []
        self.cacheable = True
        self.keywords: Mapping[str, object] = {}  # values that replace names before lookup
        self.asked: set[str] = set()  # keywords that functions refer to
        self.key: list[object] = []
        self._places: dict[int, int] = {}
        self._met: dict[int, int] = {}

    def leaf(self, thing: object, hint: str) -> int:
        """The place of a tensor or Param among the leaves."""
        at = self._places.get(id(thing))
        if at is None:
            at = self._places[id(thing)] = len(self.leaves)
            self.leaves.append(thing)
            self.hints.append(hint)
        return at

    def refer(self, thing: object, name: str) -> object:
        """The part of the key for something that a function refers to as `name`."""
        kind = type(thing)
        if kind in (int, bool, str, bytes, type(None)):
            return (kind, thing)
        if thing is _NOTHING:
            return None
        if kind is float:
            return (kind, *struct.unpack("q", struct.pack("d", thing)))
        if kind is FunctionType:
            return self.function(thing)  # type: ignore[arg-type]
        if kind is Param:
            return ("param", thing.kind, self.leaf(thing, name))  # type: ignore[attr-defined]
        if isinstance(thing, Component):
            return self.refer(thing.function, name)
        if self.is_array(thing):
            return self.array(thing, name)
        if isinstance(thing, self.constants):
            return ("is", thing)
        if isinstance(thing, tuple):
            return (kind, *(self.refer(x, name) for x in thing))
        if isinstance(thing, functools.partial):
            return (kind, self.refer(thing.func, name), tuple([self.refer(x, name) for x in thing.args]),
                    *((k, self.refer(x, k)) for k, x in thing.keywords.items()))
        if isinstance(thing, ModuleType):
            self.cacheable &= thing.__name__.partition(".")[0] in _CONSTANT_MODULES
            return ("is", thing)
        if isinstance(thing, BuiltinFunctionType):
            self.cacheable &= _stays(thing)
            return ("is", thing)
        if isinstance(thing, type):  # a user's type has attributes that the function may read
            self.cacheable &= thing.__module__.partition(".")[0] in ("builtins", *_CONSTANT_MODULES)
            return ("is", thing)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(thing, (numpy.generic, numpy.ufunc)):
            return (kind, str(thing))
        return self.other(thing, name)

    def is_array(self, thing: object) -> bool:
        """True if a kernel can read the thing's elements."""
        return _arrays.is_array(thing)

    def array(self, thing: object, name: str) -> object:
        return ("array", *_arrays.seen_as(thing, name), self.leaf(thing, name))

    def attribute(self, thing: object, name: str) -> object:
        """The part of the key for an attribute of a function, which reads it as it is."""
        if isinstance(thing, Param) or self.is_array(thing):
            self.cacheable = False
            return ("is", id(thing))
        return self.refer(thing, name)

    def other(self, thing: object, name: str) -> object:
        """The part of the key for an object whose attributes the function may read."""
        self.cacheable = False
        return ("is", id(thing))

    def function(self, function: FunctionType) -> object:
        """The part of the key for a function of Python, and for all that it refers to."""
        if is_known(function):
            return ("is", function)
        if id(function) in self._met:
            return ("met", self._met[id(function)])
        self._met[id(function)] = len(self._met)
        found = referred(function, self.keywords)
        if self.keywords:
            self.asked.update([n for n, _, where in found if where in ("cell", "global") and n in self.keywords])
        return (function.__code__,
                *((where, n, self.refer(x, n)) for n, x, where in found),
                *(("attribute", n, self.attribute(x, n)) for n, x in function.__dict__.items()))


def is_known(function: FunctionType) -> bool:
    """True for functions of the language, and for functions of a library that close over nothing."""
    if function.__code__.co_filename in _OURS:
        return True
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] in _LIBRARIES and not function.__closure__


def _stays(function: BuiltinFunctionType) -> bool:
    """True if equal arguments always give equal results. A method of an object, such as a dict's `get`, reads it."""
    return isinstance(function.__self__, (ModuleType, type, str, bytes, int, float, type(None)))


def _globals_read(code: CodeType) -> frozenset[str]:
    """The names that a function and its nested functions read as globals."""
    known = _globals_known.get(code)
    if known is None:
        import dis

        names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                names |= _globals_read(constant)
        known = _globals_known.put(code, frozenset(names))
    return known


_globals_known: Kept[CodeType, frozenset[str]] = Kept(2048)


def referred(function: FunctionType, keywords: Mapping[str, object]) -> list[tuple[str, object, str]]:
    """(name, thing, where) for everything that a function refers to by name. Keywords of the call take precedence.
    _NOTHING stands for names without a value and for builtins."""
    code, out = function.__code__, []
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            out.append((name, keywords[name] if name in keywords else cell.cell_contents, "cell"))
        except ValueError:  # not assigned yet
            out.append((name, _NOTHING, "cell"))
    for name in sorted(_globals_read(code)):
        thing = keywords[name] if name in keywords else function.__globals__.get(name, _NOTHING)
        out.append((name, thing, "global"))
    defaults = function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    out += [(n, x, "default") for n, x in zip(arguments[len(arguments) - len(defaults):], defaults)]
    out += [(n, x, "keyword") for n, x in (function.__kwdefaults__ or {}).items()]
    return out


class Replaced:
    """Copies functions with some referenced things replaced: tensors by Captures."""

    def __init__(self, keywords: Mapping[str, object], by: Mapping[int, object]) -> None:
        self._keywords, self._by = keywords, by
        self._made: dict[int, object] = {}

    def __call__(self, thing: object) -> Any:
        """`thing` with every tensor that it refers to replaced; `thing` itself if it refers to none."""
        if id(thing) in self._by:
            return self._by[id(thing)]
        if id(thing) in self._made:
            return self._made[id(thing)]
        if isinstance(thing, Component):
            return self(thing.function)
        if isinstance(thing, tuple) and type(thing) is tuple:
            made = tuple(self(x) for x in thing)
            return made if any(a is not b for a, b in zip(made, thing)) else thing
        if isinstance(thing, functools.partial):
            return functools.partial(self(thing.func), *map(self, thing.args),
                                     **{k: self(x) for k, x in thing.keywords.items()})
        if isinstance(thing, FunctionType) and not is_known(thing):
            return self._function(thing)
        return thing

    def _function(self, function: FunctionType) -> FunctionType:
        self._made[id(function)] = function  # for functions that refer to themselves
        changed = {(where, name): new for name, thing, where in referred(function, self._keywords)
                   if (new := self(thing)) is not thing or self._keywords.get(name) is thing}
        if not changed:
            return function
        cells = tuple(CellType(changed["cell", n]) if ("cell", n) in changed else c
                      for n, c in zip(function.__code__.co_freevars, function.__closure__ or ()))
        scope = {**function.__globals__, **{n: x for (w, n), x in changed.items() if w == "global"}}
        made = FunctionType(function.__code__, scope, function.__name__, None, cells)
        arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
        defaults = function.__defaults__ or ()
        made.__defaults__ = tuple(changed.get(("default", n), x) for n, x in
                                  zip(arguments[len(arguments) - len(defaults):], defaults)) or None
        made.__kwdefaults__ = {n: changed.get(("keyword", n), x) for n, x in (function.__kwdefaults__ or {}).items()}
        self._made[id(function)] = made
        return made
