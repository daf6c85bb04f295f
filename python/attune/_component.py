# python/attune/_component.py — Component: a function of an expression that joins with others
"""The common base of Score, Mask, Prob and Sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attune._errors import Error
from attune._place import here
from attune._words import a_


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
