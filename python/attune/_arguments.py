# python/attune/_arguments.py — checks a call's options for type and range; an Error names the option
from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from attune._errors import Error, said
from attune._place import here

MOST = 2**31 - 1  # what an int of C holds


def bad(name: str, given: object, takes: str, fix: str) -> Error:
    return Error.at(here(), "bad-argument", f"`{name}` cannot be {said(given)}", f"it is {takes}", fix)


def whole(name: str, given: Any, least: int = 0, most: int = MOST) -> int:
    """A whole number, of Python or of NumPy."""
    try:
        number = operator.index(given)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise bad(name, given, f"a whole number from {least} to {most}", "pass one of these")
    return number


def real(name: str, given: Any) -> float | None:
    if given is None:
        return None
    try:
        if not isinstance(given, (str, bytes)):
            return float(given)
    except (OverflowError, TypeError, ValueError):
        pass
    raise bad(name, given, "a number, or None", "pass a number, or leave it out")


def function(name: str, given: Any, called: str) -> Callable[..., Any] | None:
    if given is not None and not callable(given):
        raise bad(name, given, f"called with {called}", "pass a function, or leave it out")
    return given


def mapping(name: str, given: Any, of: str) -> Mapping[str, Any]:
    """Something by name; nothing for None."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise bad(name, given, of, "pass a dict")
    return given


def lets(given: Any) -> Mapping[str, str]:
    found = mapping("lets", given, "a dict of names and texts")
    for name, text in found.items():
        if not isinstance(text, str):
            raise bad(f"lets['{name}']", text, "a text of the language", "write it in quotes")
    return found
