# python/attune/_call.py — a call's arguments for the core, by name: new results, and options that are set; append()
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attune import _arguments, _arrays, _core
from attune._errors import Error
from attune._picture import Cover
from attune._place import here, line
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


def append(k_new: Array, v_new: Array, k: Array, v: Array, *, kv_len: Array = None, page_table: Array = None,
           cu_seqlens: Array = None, slots: Array = None, k_scale: float = 1.0, v_scale: float = 1.0, stream: int = 0,
           workers: int = 0) -> None:
    """Puts new keys and values to the ends of the entries of a cache.

    `k_new` is [B, Hkv, n, D] and `v_new` [B, Hkv, n, Dv]; packed [T, Hkv, D] and [T, Hkv, Dv], with the starts of each
    entry's rows in `cu_seqlens` [B + 1]. The cache `k` and `v` is [B, Hkv, S, D], or with `page_table` [B, n] pools of
    pages [pages, Hkv, page_size, D], of any float types: an element is divided by `k_scale` or `v_scale` and rounded. Of the
    `kv_len` [B] keys that an entry then has, the last ones are new. These integers are i32.

    Or `slots` [T], of i32 or i64, has the place of each packed row in a pool, instead of the other three: slot s is row
    `s % page_size` of page `s // page_size`, and -1 leaves the row out. Of several rows with one slot the last is stored,
    on a device elements of any.

    On a device it is one kernel on `stream`, which a graph may capture once another call has loaded it. It can refuse
    nothing there: it leaves out rows that have no place.

    >>> import attune, numpy
    >>> k, v = numpy.zeros((2, 1, 4, 8), "f4"), numpy.zeros((2, 1, 4, 8), "f4")
    >>> new = numpy.ones((2, 1, 1, 8), "f4")
    >>> attune.append(new, new, k, v, kv_len=numpy.array([1, 3], "i4"))
    >>> k[:, 0, :, 0].tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    """
    scales = divisors(k_scale, v_scale)
    try:
        _core.append((k_new, v_new, k, v, page_table, kv_len, cu_seqlens, slots), *scales,
                     _arguments.whole("stream", stream, 0, 2**64 - 1), _arguments.whole("workers", workers))
    except Error as error:
        raise error.moved(line()) from None


def divisors(k_scale: Any, v_scale: Any) -> tuple[float, float]:
    """Scales, checked: the core takes 0 for one that was left out."""
    for name, given in (("k_scale", k_scale), ("v_scale", v_scale)):
        if not _arguments.real(name, given):
            raise _arguments.bad(name, given, "what new elements are divided by", "pass a number that is not 0")
    return float(k_scale), float(v_scale)
