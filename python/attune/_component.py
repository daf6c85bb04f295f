# python/attune/_component.py — Component: a function of an expression that joins with others
"""The common base of Score, Mask, Prob and Sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Component:
    """A function of an expression that joins with others. Also a decorator."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)
