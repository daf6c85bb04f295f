# python/attune/_ops.py — the operations of the language, as the library has them
"""Every operation: how tightly it binds, what it takes and what it gives. Its corner cases are in ir/ops.def."""

from __future__ import annotations

from typing import NamedTuple

from attune import _core


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
