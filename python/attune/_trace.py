# python/attune/_trace.py — runs the user's functions on values of the kernel: text, and the tensors that they capture
"""From functions and texts to text of the language, with captures and parameters by name."""

from __future__ import annotations

import functools
import itertools
import struct
import sys
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeAlias

from attune import _arrays, expr
from attune._errors import Error
from attune._kept import Kept
from attune._parts import Part
from attune._place import here
from attune._text import Text, write
from attune.expr import At, Bool, Capture, Float, Param, SinkAt, as_value

Written: TypeAlias = "str | Callable[..., Any]"
Capturable = Any  # an array, a Param or a number

KINDS = ("score", "mask", "prob", "sink")
_CALLED = {"score": "(s, at)", "mask": "(at)", "prob": "(p, at)", "sink": "(at)"}
_SAMPLES = {"score": "s + attune.f32(at.kv - at.q)", "mask": "at.q >= at.kv",
            "prob": "attune.where(keep, p / rate, 0.0)", "sink": "logits[at.head]"}
RESERVED = frozenset(["let", "true", "false", "inf", "nan", "sum", "s", "p", "b", "h", "q", "kv", "q_len", "kv_len",
                      "origin", "q_begin", "q_end", "kv_begin", "kv_end", *(o for o in expr.OPS if o.isalnum())])
# Modules whose members stay as they are: a function that reads one is traced once.
_CONSTANT_MODULES = ("attune", "math", "numpy")
_MOST_KEPT = 512  # traces; the oldest goes first
_NOTHING = object()


class Slot(NamedTuple):
    """A captured tensor or a parameter: its name in the text, how expressions see it, and where it comes from."""

    name: str
    kind: str
    rank: int
    leaf: int  # its place among the leaves of the scan


class Spelled(NamedTuple):
    """What the user wrote, as text."""

    texts: dict[str, Text]
    lets: tuple[tuple[str, str], ...]
    captures: tuple[Slot, ...]
    params: tuple[Slot, ...]
    handles: dict[object, Any]  # those of the core that were made of it, by scale, target and exactness

    @property
    def key(self) -> object:
        """Equal for equal attentions."""
        return (tuple((k, t.text) for k, t in self.texts.items()), self.lets,
                tuple(c[:3] for c in self.captures), tuple(p[:3] for p in self.params))


class Scan:
    """What functions refer to: a key, equal for functions that spell alike, and the tensors and Params, in order.

    Contents of tensors are never looked at: they are arguments of the kernel.
    """

    def __init__(self, keywords: Mapping[str, object]) -> None:
        self.leaves: list[object] = []
        self.hints: list[str] = []
        self.cacheable = True
        self._places: dict[int, int] = {}
        self._met: set[int] = set()
        self.keywords = {name: self._keyword(name, thing) for name, thing in keywords.items()}
        self.key: list[object] = [(n, self.refer(t, n)) for n, t in self.keywords.items()]

    @staticmethod
    def _keyword(name: str, thing: object) -> object:
        if isinstance(thing, Param) or _arrays.is_array(thing):
            return thing
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(thing, numpy.generic):
            thing = thing.item()
        if isinstance(thing, (int, float)) and not isinstance(thing, bool):
            return Param(thing, name)
        what = "None" if thing is None else f"a {type(thing).__name__}"
        raise Error.at(here(), "capture-type", f"the keyword `{name}` is {what}",
                       "a keyword that is no option of the call is a captured tensor or a parameter",
                       "pass an array, a number or an attune.Param; numpy.array(x) makes an array of a list")

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
        if isinstance(thing, Part):
            return self.refer(thing.function, name)
        if _arrays.is_array(thing):
            return ("array", *_arrays.seen_as(thing, name), self.leaf(thing, name))
        if isinstance(thing, tuple):
            return (kind, *(self.refer(x, name) for x in thing))
        if isinstance(thing, functools.partial):
            given = (self.refer(thing.func, name), *(self.refer(x, name) for x in thing.args))
            return (kind, given, *((k, self.refer(x, k)) for k, x in thing.keywords.items()))
        if isinstance(thing, ModuleType):
            self.cacheable &= thing.__name__.partition(".")[0] in _CONSTANT_MODULES
            return ("is", thing)
        if isinstance(thing, BuiltinFunctionType):
            self.cacheable &= stays(thing)
            return ("is", thing)
        if isinstance(thing, type):  # one of the user's has attributes that the function may read
            self.cacheable &= thing.__module__.partition(".")[0] in ("builtins", *_CONSTANT_MODULES)
            return ("is", thing)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(thing, (numpy.generic, numpy.ufunc)):
            return (kind, str(thing))
        self.cacheable = False  # an object whose attributes the function may read
        return ("is", id(thing))

    def function(self, function: FunctionType) -> object:
        """The part of the key for a function of Python, and for all that it refers to."""
        module = getattr(function, "__module__", None) or ""
        if _is_ours(function) or module.partition(".")[0] in ("numpy", "torch", "jax", "scipy"):
            return ("is", function)
        if id(function) in self._met:
            return ("met", function.__code__)
        self._met.add(id(function))
        return (function.__code__,
                *((where, n, self.refer(x, n)) for n, x, where in referred(function, self.keywords)),
                *(("attribute", n, self._attribute(x, n)) for n, x in function.__dict__.items()))

    def _attribute(self, thing: object, name: str) -> object:
        """The part of the key for an attribute of a function, which reads it as it is."""
        if isinstance(thing, Param) or _arrays.is_array(thing):
            self.cacheable = False
            return ("is", id(thing))
        return self.refer(thing, name)

    def add(self, written: Written) -> None:
        """One of the four expressions."""
        self.key.append(("text", written) if isinstance(written, str) else self.refer(written, "function"))


def _is_ours(function: FunctionType) -> bool:
    """Is it a function of the language, which captures nothing?"""
    return function.__code__.co_filename == expr.__file__


def stays(function: BuiltinFunctionType) -> bool:
    """Does it always give the same for the same? One that is bound to an object, as a dict's `get` is, reads that."""
    return isinstance(function.__self__, (ModuleType, type, str, bytes, int, float, type(None)))


def globals_read(code: CodeType) -> frozenset[str]:
    """The names that a function, and those within it, read as globals."""
    known = _globals_known.get(code)
    if known is None:
        import dis

        names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                names |= globals_read(constant)
        known = _globals_known.put(code, frozenset(names))
    return known


_globals_known: Kept[CodeType, frozenset[str]] = Kept(4 * _MOST_KEPT)


def referred(function: FunctionType, keywords: Mapping[str, object]) -> list[tuple[str, object, str]]:
    """(name, thing, where) for all that a function refers to by name. A keyword of the call comes first; _NOTHING is for
    names that have no value yet, and for those of builtins."""
    code, out = function.__code__, []
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            out.append((name, keywords[name] if name in keywords else cell.cell_contents, "cell"))
        except ValueError:  # not assigned yet
            out.append((name, _NOTHING, "cell"))
    for name in sorted(globals_read(code)):
        thing = keywords[name] if name in keywords else function.__globals__.get(name, _NOTHING)
        out.append((name, thing, "global"))
    defaults = function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    out += [(n, x, "default") for n, x in zip(arguments[len(arguments) - len(defaults):], defaults)]
    out += [(n, x, "keyword") for n, x in (function.__kwdefaults__ or {}).items()]
    return out


class Bound:
    """Functions with Captures in place of the tensors that they refer to."""

    def __init__(self, scan: Scan, captures: Mapping[int, Capture]) -> None:
        self._scan, self._captures = scan, captures
        self._made: dict[int, object] = {}

    def __call__(self, thing: object) -> Any:
        """`thing`, with every tensor that it refers to replaced; itself where there is none."""
        if id(thing) in self._captures:
            return self._captures[id(thing)]
        if id(thing) in self._made:
            return self._made[id(thing)]
        if isinstance(thing, Part):
            return self(thing.function)
        if isinstance(thing, tuple) and type(thing) is tuple:
            made = tuple(self(x) for x in thing)
            return made if any(a is not b for a, b in zip(made, thing)) else thing
        if isinstance(thing, functools.partial):
            return functools.partial(self(thing.func), *map(self, thing.args),
                                     **{k: self(x) for k, x in thing.keywords.items()})
        if isinstance(thing, FunctionType) and not _is_ours(thing):
            return self._function(thing)
        return thing

    def _function(self, function: FunctionType) -> FunctionType:
        self._made[id(function)] = function  # for functions that refer to themselves
        changed = {(where, name): new for name, thing, where in referred(function, self._scan.keywords)
                   if (new := self(thing)) is not thing or self._scan.keywords.get(name) is thing}
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


def _check_arguments(kind: str, function: object) -> None:
    while isinstance(function, Part):
        function = function.function
    if not callable(function):
        raise Error.at(here(), "wrong-arguments", f"the {kind} is {expr._said(function)}",
                       "it is text, or a function of values of the kernel", f"pass lambda {_CALLED[kind][1:-1]}: "
                       f"{_SAMPLES[kind]}")
    if not isinstance(function, FunctionType):
        return
    code = function.__code__
    given = len(_CALLED[kind].split(","))
    needed = code.co_argcount - len(function.__defaults__ or ())
    if needed > given or (code.co_argcount < given and not code.co_flags & 0x04):
        takes = f"{needed} argument{'' if needed == 1 else 's'}"
        raise Error.at(_defined(function), "wrong-arguments", f"the {kind} takes {takes}",
                       f"a {kind} is called with {_CALLED[kind]}", f"write lambda {_CALLED[kind][1:-1]}: "
                       f"{_SAMPLES[kind]}")


def _defined(function: FunctionType) -> Any:
    from attune._place import Place

    return Place(function.__code__, 0)


def evaluate(kind: str, function: Callable[..., Any]) -> expr.Value:
    """The expression that a function of this kind writes."""
    first = {"score": Float("input", name="s"), "prob": Float("input", name="p")}.get(kind)
    at = SinkAt() if kind == "sink" else At()
    made = function(at) if first is None else function(first, at)
    place = _defined(function) if isinstance(function, FunctionType) else here()
    if made is None:
        raise Error.at(place, "wrong-result", f"the {kind} gives None", "it must give a value of the kernel",
                       f"return it, e.g. return {_SAMPLES[kind]}")
    value = as_value(made, place)
    if value._free:
        raise Error.at(value._place or place, "escaped-variable", "the variable of a sum is used outside of it",
                       "it has a value only inside the sum's body", "return what you need from the body of the sum")
    if kind == "mask" and not isinstance(value, Bool):
        raise Error.at(value._place or place, "wrong-result", f"the mask gives {expr.a_(value.word)}",
                       "a mask tells which pairs to keep: it is a Bool", "compare something, e.g. at.q >= at.kv")
    if kind != "mask" and isinstance(value, Bool):
        raise Error.at(value._place or place, "wrong-result", f"the {kind} gives a Bool", f"a {kind} gives a Float",
                       "a condition belongs into attune.where(...)")
    return value


def free_name(hint: str, taken: set[str]) -> str:
    """A name of the language that is still free, like the user's."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in hint)
    name = plain if plain.strip("_") and not plain[0].isdigit() else "t"
    name += "_" if name in RESERVED else ""
    numbered = (name + ("_" if name[-1].isdigit() else "") + str(n) for n in itertools.count(2))
    return next(n for n in itertools.chain([name], numbered) if n not in taken)


def _spell(parts: dict[str, Written], lets: Mapping[str, str], scan: Scan) -> Spelled:
    names: dict[int, str] = {id(thing): name for name, thing in scan.keywords.items()}
    taken = {*names.values(), *lets}
    captures: dict[int, Capture] = {}
    for thing, hint in zip(scan.leaves, scan.hints):
        if id(thing) not in names:
            hint = thing.name or hint if isinstance(thing, Param) else hint
            names[id(thing)] = free_name(hint, taken)
            taken.add(names[id(thing)])
        if not isinstance(thing, Param):
            captures[id(thing)] = Capture(thing, names[id(thing)])
    bound = Bound(scan, captures)
    roots: dict[str, expr.Value] = {}
    texts: dict[str, Text] = {}
    for kind, written in parts.items():
        if isinstance(written, str):
            texts[kind] = Text(written, [])
            continue
        _check_arguments(kind, written)
        roots[kind] = evaluate(kind, bound(written))
    # Captures and parameters that were met only while tracing: those of objects' attributes.
    for leaf in _leaves(roots.values()):
        thing = _behind(leaf)
        if id(thing) not in names:
            names[id(thing)] = free_name(leaf._name if isinstance(leaf, Capture) else leaf.name or "c", taken)
            taken.add(names[id(thing)])
            scan.cacheable = False
            scan.leaf(thing, names[id(thing)])
    everywhere = taken | RESERVED | _words(texts)
    for kind, root in roots.items():
        texts[kind] = write(root, lambda leaf: names[id(_behind(leaf))], everywhere)
    read = {id(_behind(leaf)) for leaf in _leaves(roots.values())}
    read |= {id(thing) for thing in scan.keywords.values()}
    slots = [(names[id(thing)], thing, at) for at, thing in enumerate(scan.leaves) if id(thing) in read]
    for name, thing in scan.keywords.items():  # one tensor under two names
        if names[id(thing)] != name:
            slots.append((name, thing, scan.leaf(thing, name)))
    return Spelled(
        {k: texts[k] for k in KINDS if k in texts}, tuple(lets.items()),
        tuple(Slot(n, *_arrays.seen_as(x, n), at) for n, x, at in slots if not isinstance(x, Param)),
        tuple(Slot(n, x.kind, 0, at) for n, x, at in slots if isinstance(x, Param)), {})


def _behind(leaf: Any) -> object:
    """The array of a Capture; a Param is itself."""
    return leaf._array if isinstance(leaf, Capture) else leaf


def _leaves(roots: Any) -> list[Any]:
    """Captures and Params of expressions, in the order of their first use."""
    out: dict[int, Any] = {}
    met: set[int] = set()
    stack = list(roots)[::-1]
    while stack:
        node = stack.pop()
        if id(node) in met:
            continue
        met.add(id(node))
        if node._op in ("read", "param"):
            out.setdefault(id(node._name), node._name)
        stack.extend(reversed(node._args))
    return list(out.values())


def _words(texts: Mapping[str, Text]) -> set[str]:
    return {w for t in texts.values() for w in "".join(c if c.isalnum() or c == "_" else " " for c in t.text).split()}


_kept: Kept[object, Spelled] = Kept(_MOST_KEPT)


def spell(parts: dict[str, Written], keywords: Mapping[str, object],
          lets: Mapping[str, str]) -> tuple[Spelled, Scan]:
    """What the user wrote as text, and the scan of it, with the tensors and Params that its slots refer to."""
    scan = Scan(keywords)
    for kind, written in parts.items():
        scan.key.append(kind)
        scan.add(written)
    key = (tuple(scan.key), tuple(lets.items())) if scan.cacheable else None
    known = _kept.get(key) if key is not None else None
    if known is not None:
        return known, scan
    made = _spell(parts, lets, scan)
    if key is not None and scan.cacheable:
        _kept.put(key, made)
    return made, scan


def text(function: Written, **captures: Capturable) -> str:
    """The text of the language for a function.

    >>> import attune
    >>> attune.text(lambda at: (at.kv <= at.q) & (at.q - at.kv < 256))
    'kv <= q && q - kv < 256'
    """
    if isinstance(function, str):
        return function
    plain: object = function
    while isinstance(plain, Part):
        plain = plain.function
    kind = type(function).__name__.lower() if isinstance(function, Part) else ""
    if kind not in KINDS:
        two = isinstance(plain, FunctionType) and plain.__code__.co_argcount - len(plain.__defaults__ or ()) >= 2
        kind = "score" if two else "mask"
        if kind == "mask":
            return _either(function, captures)
    return spell({kind: function}, captures, {})[0].texts[kind].text


def _either(function: Callable[..., Any], captures: Mapping[str, Capturable]) -> str:
    """A function of `at` alone is a mask, or a sink."""
    try:
        return spell({"mask": function}, captures, {})[0].texts["mask"].text
    except Error as error:
        if error.code != "wrong-result":
            raise
        try:
            return spell({"sink": function}, captures, {})[0].texts["sink"].text
        except Error:
            raise error from None

