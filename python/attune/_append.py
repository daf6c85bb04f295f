# python/attune/_append.py — append(): new keys and values, put to their places in a cache
"""Writes a step's keys and values into a KV cache, before the call of attention."""

from __future__ import annotations

from typing import Any

from attune import _arguments, _core
from attune._errors import Error
from attune._place import here

Array = Any  # of NumPy, or any library that speaks DLPack


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
        place = here()
        raise error.moved(place.spot()._replace(begin=0, end=0) if place else None) from None


def divisors(k_scale: Any, v_scale: Any) -> tuple[float, float]:
    """Scales, checked: the core takes 0 for one that was left out."""
    for name, given in (("k_scale", k_scale), ("v_scale", v_scale)):
        if not _arguments.real(name, given):
            raise _arguments.bad(name, given, "what new elements are divided by", "pass a number that is not 0")
    return float(k_scale), float(v_scale)
