# python/attune/_place.py — where in the user's own source something was written: file, line and columns
from __future__ import annotations

import os
import sys
from itertools import islice
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # errors alone need it, and importing it takes time
    import ast

# Python functions that need a truth value or a number from their arguments.
ASKING = frozenset(["all", "any", "bool", "max", "min", "range", "sorted"])
# This package, and NumPy's dispatch code before 2.0.
_not_the_user: tuple[str, ...] = (os.path.dirname(os.path.abspath(__file__)) + os.sep, "<__array_function__")


def not_the_user(file: str) -> None:
    """Adds the folder of this file to the libraries that call users' functions; their frames are skipped."""
    global _not_the_user
    _not_the_user += (os.path.dirname(os.path.abspath(file)) + os.sep,)


class Spot(NamedTuple):
    """A piece of one line of source. Columns count characters of `text`, half open; equal ones mark nothing."""

    file: str
    line: int
    text: str = ""
    begin: int = 0
    end: int = 0


class Place(NamedTuple):
    """An instruction of the user's code. Cheap to create; only `spot` reads the source, to show an error."""

    code: CodeType
    instruction: int

    def span(self) -> tuple[int, int, int, int] | None:
        """(line, end line, column, end column), columns in bytes; None where Python keeps no columns (3.10)."""
        if not hasattr(self.code, "co_positions"):
            return None
        found = next(islice(self.code.co_positions(), self.instruction // 2, None), None)
        return None if found is None or None in found else found  # type: ignore[return-value]

    @property
    def line(self) -> int:
        line = self.code.co_firstlineno
        for begin, end, here in self.code.co_lines():
            if begin <= self.instruction < end and here is not None:
                line = here
        return line

    def spot(self) -> Spot:
        """The piece of source, read from the file that Python knows."""
        import linecache

        file, span = self.code.co_filename, self.span()
        line = span[0] if span else self.line
        raw = linecache.getline(file, line).rstrip()
        text = raw.lstrip()
        if span is None or not text:
            return Spot(file, line, text)
        end_byte = span[3] if span[1] == span[0] else len(raw.encode())
        begin, end = (len(raw.encode()[:b].decode(errors="replace")) for b in (span[2], end_byte))
        cut = len(raw) - len(text)
        return Spot(file, line, text, max(0, begin - cut), max(0, end - cut))


def here() -> Place | None:
    """The innermost instruction outside of this package."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_not_the_user):
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else Place(frame.f_code, frame.f_lasti)


def line() -> Spot | None:
    """The user's line, without a mark."""
    place = here()
    return place.spot()._replace(begin=0, end=0) if place else None


def construct(place: Place) -> ast.AST | None:
    """The smallest condition, loop or call around an instruction: for example, what asked for a truth value."""
    import ast
    import linecache

    lines = linecache.getlines(place.code.co_filename)
    span = place.span() or (place.line, place.line, None, None)
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return None
    wanted = (ast.BoolOp, ast.IfExp, ast.If, ast.While, ast.Assert, ast.Compare, ast.UnaryOp, ast.Call, ast.For)
    best: tuple[int, ast.AST] | None = None
    for node in ast.walk(tree):
        if not isinstance(node, wanted):
            continue
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            continue
        if isinstance(node, ast.Compare) and len(node.ops) < 2 and not isinstance(node.ops[0], (ast.In, ast.NotIn)):
            continue
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in ASKING):
            continue
        begin, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
        if span[2] is None:
            inside = begin[0] <= span[0] <= end[0]
        else:
            inside = begin <= (span[0], span[2]) and (span[1], span[3]) <= end
        size = (end[0] - begin[0]) * 1000 + end[1] - begin[1]
        if inside and (best is None or size <= best[0]):
            best = (size, node)
    return best[1] if best else None
