# python/attune/_text.py — the operations of the language, and expressions' nodes as text of it, with their spans
from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from attune import _core
from attune._place import Place


class Op(NamedTuple):
    """A row of the library's table."""

    bind: int  # precedence of the operator; 0: written as name(args)
    takes: str  # Bool, Int, Float, Num (an Int or a Float) or Any
    gives: str  # Bool, I32, F32, or Arg: what its last argument is
    args: int


_ROWS = [(name, Op(bind, takes, gives, args)) for name, bind, args, takes, gives in _core.operations()]
PREFIX = next(op.bind for name, op in _ROWS if name == "-" and op.args == 1)  # how tightly - ! ~ bind
# By spelling. Without unary minus, which is `-` with one argument, and `sum`, which binds a variable.
OPS: dict[str, Op] = {name: op for name, op in _ROWS if name != "sum" and (name, op.args) != ("-", 1)}
COMPARISONS = frozenset([OPS["=="].bind, OPS["<"].bind])  # a < b < c is not allowed
# Functions from Float to Float: sqrt, exp, tanh and so on. Array libraries use the same names.
OF_FLOATS = tuple([name for name, op in OPS.items() if name.isalnum() and op[1:] == ("Float", "F32", 1)])
FUNCTIONS = frozenset([*(name for name in OPS if name.isalnum()), "sum", "truncdiv", "truncmod"])  # of attune.expr
# What a text draws random numbers with, which differ for every batch entry, head, query and key.
DRAWS = r"\b(?:random|kept|dropout)\b"
# Python's spelling of operators, for messages.
PYTHON = {"&&": "&", "||": "|", "!": "~", **{name: f"attune.{name}" for name in OPS if name.isalnum()}}


_MOST_NESTING = 100  # nested brackets; deeper parts get a name. The parser's limit is 1200.
_WORTH_A_NAME = 5  # nodes of a part that is used more than once


class Node(Protocol):
    """The part of a value of attune._values that text needs."""

    _op: str
    _args: Any  # a tuple of nodes
    _name: Any  # the payload of a literal, an input, a read, a parameter or a sum
    _free: frozenset[str]  # the variables of sums that it depends on
    _place: Place | None


class Text(NamedTuple):
    """Text, and which part of it each line of Python wrote: (begin, end, place), inner parts first."""

    text: str
    spans: list[tuple[int, int, Place]]

    def place(self, begin: int, end: int) -> Place | None:
        """Where the smallest part that holds [begin, end) was written."""
        around = [s for s in self.spans if s[0] <= begin and end <= s[1]]
        return min(around, key=lambda s: s[1] - s[0])[2] if around else None


def number(value: float | int | bool) -> str:
    """A literal: `2`, `2.0f`, `-inf`, `true`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.pack("<f", short) == struct.pack("<f", value):
                break
        except OverflowError:  # rounded up beyond the largest Float
            continue
    return repr(short) + "f"


class _Scope:
    """The whole text, or the body of one sum: lets are defined at its start."""

    def __init__(self, root: Node, outer: _Scope | None, variable: str) -> None:
        self.root, self.outer, self.variable = root, outer, variable
        self.lets: list[Node] = []


class _Layout:
    """Which scope each node belongs to, and which nodes get a name there."""

    def __init__(self, root: Node, letters: Iterator[str]) -> None:
        self.whole = _Scope(root, None, "")
        self.scopes: dict[int, _Scope] = {}  # by the sum that opens it
        self.variables: dict[object, str] = {}
        self.named: dict[int, str] = {}
        self._home: dict[int, _Scope] = {}
        self._order: list[Node] = []  # arguments before their users
        self._uses: dict[int, int] = {}
        self._settle(root, letters)
        self._choose_names(root)

    def _settle(self, root: Node, letters: Iterator[str]) -> None:
        """A node belongs to the innermost scope whose variable it mentions."""
        stack: list[tuple[Node, _Scope, bool]] = [(root, self.whole, False)]
        while stack:
            node, scope, done = stack.pop()
            if done:
                self._order.append(node)
                continue
            self._uses[id(node)] = self._uses.get(id(node), 0) + 1
            if id(node) in self._home:
                continue
            while scope.outer is not None and scope.variable not in node._free:
                scope = scope.outer
            self._home[id(node)] = scope
            stack.append((node, scope, True))
            if node._op == "sum":
                variable = node._name[0]
                self.variables[variable._name] = next(letters)
                scope = self.scopes[id(node)] = _Scope(node._args[0], scope, variable._name)
            stack.extend((a, scope, False) for a in reversed(node._args))

    def _choose_names(self, root: Node) -> None:
        sizes: dict[int, int] = {}
        depths: dict[int, int] = {}
        for node in self._order:
            key = id(node)
            sizes[key] = 1 + sum(min(sizes[id(a)], 1 << 20) for a in node._args)
            depths[key] = 1 + max((0 if id(a) in self.named else depths[id(a)] for a in node._args), default=0)
            shared = self._uses[key] > 1 and sizes[key] >= _WORTH_A_NAME
            home = self._home[key]
            if (shared or depths[key] >= _MOST_NESTING) and node is not home.root and node is not root:
                self.named[key] = ""
                home.lets.append(node)


class _End(NamedTuple):
    """The work that remains for a node once its text is written."""

    node: Node
    begin: int


class _Writer:
    """Pieces of text: text itself, or (node, how tightly its surroundings bind, whether a let defines it)."""

    def __init__(self, layout: _Layout, names: Callable[[object], str], fresh: Iterator[str]) -> None:
        self._layout, self._names, self._fresh = layout, names, fresh

    def written(self) -> Text:
        out: list[str] = []
        spans: list[tuple[int, int, Place]] = []
        length, named = 0, self._layout.named
        pieces: list[object] = self._body(self._layout.whole)[::-1]  # a stack of pieces still to write
        while pieces:
            piece = pieces.pop()
            if isinstance(piece, str):
                out.append(piece)
                length += len(piece.encode())
            elif isinstance(piece, _End):
                if piece.node._place is not None:
                    spans.append((piece.begin, length, piece.node._place))
            else:
                assert isinstance(piece, tuple)
                node, around, define = piece
                pieces.append(_End(node, length))
                if id(node) in named and not define:
                    pieces.append(named[id(node)])
                else:
                    pieces += self._parts(node, around)[::-1]
        return Text("".join(out), spans)

    def _body(self, scope: _Scope) -> list[object]:
        listed: list[object] = []
        for let in scope.lets:
            name = self._layout.named[id(let)] = next(self._fresh)
            listed += [f"let {name} = ", (let, 0, True), "; "]
        return [*listed, (scope.root, 0, True)]

    def _parts(self, node: Node, around: int) -> list[object]:
        op, args = node._op, node._args
        if op == "literal":
            text = number(node._name)
            return [f"({text})" if around > PREFIX and not isinstance(node._name, bool) else text]
        if op == "input":
            return [str(node._name)]
        if op == "bound":
            return [self._layout.variables.get(node._name, "i")]
        if op == "param":
            return [self._names(node._name)]
        if op == "sum":
            variable, count = node._name
            name = self._layout.variables[variable._name]
            return [f"sum({name}, {count}, ", *self._body(self._layout.scopes[id(node)]), ")"]
        if op == "read":
            return [f"{self._names(node._name)}[", *_joined(args), "]"]
        if len(args) == 1 and not op.isalnum():
            return _bracketed([op, (args[0], PREFIX + 1, False)], PREFIX < around)
        bind = OPS[op].bind
        if bind == 0:
            return [f"{op}(", *_joined(args), ")"]
        left = bind + 1 if bind in COMPARISONS else bind
        return _bracketed([(args[0], left, False), f" {op} ", (args[1], bind + 1, False)], bind < around)


def write(root: Node, name_of: Callable[[object], str] | None = None, taken: Iterable[str] = ()) -> Text:
    """The expression as text. `name_of` names captures and parameters; names that the text gives avoid `taken`."""
    names = name_of or (lambda leaf: getattr(leaf, "_name", "") or getattr(leaf, "name", "") or "t")
    used = set(taken)
    fresh = (n for n in (f"x{i}" for i in itertools.count(1)) if n not in used)
    letters = (n for n in itertools.chain("ijk", (f"i{i}" for i in itertools.count(4))) if n not in used)
    return _Writer(_Layout(root, letters), names, fresh).written()


def _joined(args: tuple[Node, ...]) -> list[object]:
    listed: list[object] = [piece for a in args for piece in (", ", (a, 0, False))]
    return listed[1:]


def _bracketed(parts: list[object], needed: bool) -> list[object]:
    return ["(", *parts, ")"] if needed else parts
