# python/attune/_refusals.py — errors for uses that need a number in Python, with what to write instead
"""Refuses what a value of the kernel cannot do in Python. Each function gets the value's word: Float, Int or Bool."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from attune._errors import Error, a_
from attune._place import construct, here
from attune._text import FUNCTIONS

if TYPE_CHECKING:  # errors alone need it, and importing it takes time
    import ast

_EACH = "it is one number for each pair of positions"
_ANOTHER = "it is a different number for each pair of positions"


def no_number(word: str, asked: str, fix: str) -> NoReturn:
    """int(x), float(x) and their like."""
    raise Error.at(here(), "python-number", f"Python asks for the value of {a_(word)} of the kernel: {asked}",
                   f"{_ANOTHER}, known only inside the kernel", fix)


def no_product() -> NoReturn:
    """a @ b."""
    raise Error.at(here(), "python-number", "`@` multiplies a value of the kernel", "the language has no matrices",
                   "write attune.sum(n, lambda i: u[at.q, i] * w[at.kv, i])")


def no_index(word: str) -> NoReturn:
    """range(x), or a list or an array at x."""
    place = here()
    node = construct(place) if place else None
    if getattr(getattr(node, "func", None), "id", "") == "range":
        raise Error.at(place, "python-loop", f"`range` is given {a_(word)} of the kernel", _ANOTHER,
                       "write attune.sum(n, lambda i: ...) to add n terms; n is a number of Python")
    raise Error.at(place, "not-captured", "a list or an array is indexed by a value of the kernel",
                   "attune can read a tensor inside the kernel if the function refers to it by its own name, or "
                   "if it is a keyword of the call",
                   "assign the array to a variable of its own before the lambda, e.g. slope = self.slope; a list "
                   "becomes an array with numpy.array(x)")


def no_iteration(word: str) -> NoReturn:
    """for … in x."""
    place = here()
    spot = place.spot() if place else None
    if spot and spot.text.startswith("for "):  # since Python 3.13 the instruction covers only the iterated expression
        spot = spot._replace(begin=0, end=len(spot.text))
    raise Error.at(spot, "python-loop", f"{a_(word)} of the kernel is iterated over", _EACH,
                   "write attune.sum(n, lambda i: ...) to add n terms")


def no_length(word: str) -> NoReturn:
    """len(x)."""
    raise Error.at(here(), "python-loop", f"{a_(word)} of the kernel has no length", _EACH,
                   "at.q_len and at.kv_len are the lengths of q and kv")


def no_elements(word: str) -> NoReturn:
    """x[i]."""
    raise Error.at(here(), "not-indexable", f"{a_(word)} of the kernel has no elements", _EACH,
                   "index a captured tensor, e.g. slope[at.head]")


def no_call(word: str) -> NoReturn:
    """x(i)."""
    raise Error.at(here(), "not-indexable", f"{a_(word)} of the kernel is called", _EACH,
                   "write an operator; a tensor is read as slope[at.head]")


def no_member(word: str, name: str) -> NoReturn:
    """x.name."""
    if name.startswith("_"):
        raise AttributeError(name)
    raise Error.at(here(), "unknown-member", f"{a_(word)} of the kernel has no member `{name}`", _EACH,
                   f"write attune.{name}(x)" if name in FUNCTIONS else "docs/expressions.md lists the functions")


def no_condition(word: str) -> NoReturn:
    """`if x`, `x and y` and all other uses of a truth value."""
    place = here()
    what, fix = _asked(construct(place) if place else None)
    raise Error.at(place, "python-condition", f"{a_(word)} of the kernel has no truth value in Python",
                   what + "; inside the kernel it differs for each pair of positions" * what.endswith("true"),
                   fix)


def _asked(node: ast.AST | None) -> tuple[str, str]:
    """The construct that asked for a truth value, and what to write instead."""
    import ast

    if isinstance(node, ast.BoolOp):
        word, sign = ("and", "&") if isinstance(node.op, ast.And) else ("or", "|")
        return f"`{word}` asks whether it is true", f"write (a) {sign} (b) for `a {word} b`, with the brackets"
    if isinstance(node, ast.UnaryOp):
        return "`not` asks whether it is true", "write ~a for `not a`"
    if isinstance(node, ast.Compare):
        return _compared(node)
    if isinstance(node, (ast.IfExp, ast.If)):
        return "`if` asks whether it is true", "write attune.where(c, x, y) for `x if c else y`"
    if isinstance(node, (ast.While, ast.For)):
        return "a loop asks whether it is true", "write attune.sum(n, lambda i: ...) to add n terms"
    if isinstance(node, ast.Assert):
        return "`assert` asks whether it is true", "leave it out: the condition is another for each pair"
    choose = "write attune.where(condition, a, b) to choose"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        return f"`{name}` asks whether it is true", {
            "min": "write attune.min(a, b)", "max": "write attune.max(a, b)", "all": "join conditions with &",
            "any": "join conditions with |", "bool": "compare: x != 0"}.get(name, choose)
    return "Python asks whether it is true", choose


def _compared(node: ast.Compare) -> tuple[str, str]:
    import ast

    if isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return "`in` asks whether it is true", "write a comparison for each case: (x == 1) | (x == 2)"
    joins = any(isinstance(part, ast.BinOp) and isinstance(part.op, (ast.BitAnd, ast.BitOr))
                for part in [node.left, *node.comparators])
    if joins:
        return ("`&` and `|` bind tighter than comparisons, so Python reads a chain of comparisons",
                "put brackets around each comparison: (a <= b) & (b < c)")
    return "a chain of comparisons asks whether it is true", "write (a < b) & (b < c) for a < b < c"
