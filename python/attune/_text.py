# python/attune/_text.py — an expression's nodes as text of the language, with the span of every node
"""An expression's nodes as text of the language."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from attune._place import Place
from attune.expr import OPS, Param, Value

_MOST_NESTING = 100  # brackets within each other; deeper parts get a name. The parser takes 1200.
_WORTH_A_NAME = 5  # nodes of a part that is used more than once
_PREFIX = 12  # how tightly - ! ~ bind
_COMPARISONS = (7, 8)


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
    """The whole text, or the body of one sum: where names may be given."""

    def __init__(self, root: Value, outer: _Scope | None, variable: str) -> None:
        self.root, self.outer, self.variable = root, outer, variable
        self.lets: list[Value] = []


def write(root: Value, name_of: Callable[[object], str] | None = None, taken: Iterable[str] = ()) -> Text:
    """The expression as text. `name_of` names captures and parameters; names that the text gives avoid `taken`."""
    names = name_of or (lambda leaf: getattr(leaf, "_name", "") or getattr(leaf, "name", "") or "t")
    used = set(taken)
    fresh = (n for n in (f"x{i}" for i in itertools.count(1)) if n not in used)
    letters = (n for n in itertools.chain("ijk", (f"i{i}" for i in itertools.count(4))) if n not in used)
    variables: dict[object, str] = {}
    scopes: dict[int, _Scope] = {}  # by the sum that opens it
    order: list[Value] = []  # arguments before their users
    uses: dict[int, int] = {}
    whole = _Scope(root, None, "")

    # A node belongs to the innermost scope whose variable it mentions.
    home: dict[int, _Scope] = {}
    stack: list[tuple[Value, _Scope, bool]] = [(root, whole, False)]
    while stack:
        node, scope, done = stack.pop()
        if done:
            order.append(node)
            continue
        uses[id(node)] = uses.get(id(node), 0) + 1
        if id(node) in home:
            continue
        while scope.outer is not None and scope.variable not in node._free:
            scope = scope.outer
        home[id(node)] = scope
        stack.append((node, scope, True))
        if node._op == "sum":
            variable = node._name[0]  # type: ignore[index]
            variables[variable._name] = next(letters)
            scope = scopes[id(node)] = _Scope(node._args[0], scope, variable._name)
        stack.extend((a, scope, False) for a in reversed(node._args))

    sizes: dict[int, int] = {}
    depths: dict[int, int] = {}
    named: dict[int, str] = {}
    for node in order:
        key = id(node)
        sizes[key] = 1 + sum(min(sizes[id(a)], 1 << 20) for a in node._args)
        depths[key] = 1 + max((0 if id(a) in named else depths[id(a)] for a in node._args), default=0)
        shared = uses[key] > 1 and sizes[key] >= _WORTH_A_NAME
        if (shared or depths[key] >= _MOST_NESTING) and node is not home[key].root and node is not root:
            named[key] = ""
            home[key].lets.append(node)

    out: list[str] = []
    spans: list[tuple[int, int, Place]] = []
    length = 0
    # Pieces still to write, last first: text, (node, how tightly its surroundings bind), or the end of a node's span.
    pieces: list[object] = []

    def body(scope: _Scope) -> list[object]:
        """A scope's lets and its value."""
        listed: list[object] = []
        for let in scope.lets:
            named[id(let)] = next(fresh)
            listed += [f"let {named[id(let)]} = ", (let, 0, True), "; "]
        return [*listed, (scope.root, 0, True)]

    pieces = body(whole)[::-1]
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
                pieces += _parts(node, around, names, variables, lambda n: body(scopes[id(n)]))[::-1]
    return Text("".join(out), spans)


class _End(NamedTuple):
    node: Value
    begin: int


def _parts(node: Value, around: int, names: Callable[[object], str], variables: dict[object, str],
           body: Callable[[Value], list[object]]) -> list[object]:
    """The pieces of one node: text, and (argument, how tightly it must bind, False)."""
    op, args = node._op, node._args
    if op == "literal":
        text = number(node._name)  # type: ignore[arg-type]
        return [f"({text})" if around > _PREFIX and not isinstance(node._name, bool) else text]
    if op == "input":
        return [str(node._name)]
    if op == "bound":
        return [variables.get(node._name, "i")]
    if op == "param":
        assert isinstance(node._name, Param)
        return [names(node._name)]
    if op == "sum":
        return [f"sum({variables[node._name[0]._name]}, {node._name[1]}, ", *body(node), ")"]  # type: ignore[index]
    if op == "read":
        return [f"{names(node._name)}[", *_joined(args), "]"]
    bind = OPS[op][0]
    if len(args) == 1 and not op.isalnum():
        return _bracketed([op, (args[0], _PREFIX + 1, False)], _PREFIX < around)
    if bind == 0:
        return [f"{op}(", *_joined(args), ")"]
    left = bind + 1 if bind in _COMPARISONS else bind
    return _bracketed([(args[0], left, False), f" {op} ", (args[1], bind + 1, False)], bind < around)


def _joined(args: tuple[Value, ...]) -> list[object]:
    listed: list[object] = [piece for a in args for piece in (", ", (a, 0, False))]
    return listed[1:]


def _bracketed(parts: list[object], needed: bool) -> list[object]:
    return ["(", *parts, ")"] if needed else parts
