# python/attune/_call.py — a call's arguments for the core, by name: new results, and options that are set
"""Calls by name, as core/call.cpp takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attune import _arguments, _arrays
from attune._errors import Error
from attune._picture import Cover
from attune._place import here
from attune._ranks import Sharding

Array = Any
FORWARD, BACKWARD = 0, 1


def result(q: Array, v: Array) -> Array:
    """A new output. If q or v is no array: q itself, and the core then refuses it by name."""
    try:
        return _arrays.result(q, (*q.shape[:-1], v.shape[-1]))
    except (AttributeError, IndexError):
        if isinstance(q, memoryview):
            raise Error.at(here(), "no-output", "attune cannot make memoryviews", "q is memory of no library of arrays",
                           "pass out=, an array to write into, or numpy.asarray(q)") from None
        return q


def sums(q: Array, packed: bool) -> Array:
    """A new array with one number a row; None under the same conditions as in `result`."""
    try:
        return _arrays.empty(q, (q.shape[1], q.shape[0]) if packed else tuple(q.shape[:-1]), f32=True)
    except (AttributeError, IndexError):
        return None


def written(array: Any) -> Any:
    """The array that the core writes; None if it was not asked for."""
    return None if array is False else array


def options(**given: Any) -> dict[str, Any]:
    """The options of a call that are set, checked."""
    return {name: _CHECKS[name](name, x) for name, x in given.items()
            if (x is not None or name in _NUMBERS) and (type(x) is not int or x != 0)}


def _stream(name: str, given: Any) -> int:
    return _arguments.whole(name, given, 0, 2**64 - 1)


def _as_it_is(_: str, given: Any) -> Any:
    return given


def _cover(name: str, given: Any) -> Any:
    if not isinstance(given, Cover):
        raise _arguments.bad(name, given, "what attention.cover(...) gave", "pass that, or leave it out")
    return given.lists


def _sharding(name: str, given: Any) -> Any:
    if not isinstance(given, Sharding):
        raise _arguments.bad(name, given, "an attune.Sharding", "make it from the attentions and the whole call")
    return given._core


_NUMBERS = frozenset(["q_offset", "kv_offset", "max_q_len", "max_kv_len", "fixed_split_size", "workers", "stream"])
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(_NUMBERS, _arguments.whole),
    "stream": _stream, "workspace": _as_it_is, "cover": _cover, "sharding": _sharding,
    "sum_captured": lambda _, given: bool(given),
    "progress": lambda name, given: _arguments.function(name, given, "the share done"),
    "parallel_for": lambda name, given: _arguments.function(name, given, "a number of tasks and a function that runs one"),
}
