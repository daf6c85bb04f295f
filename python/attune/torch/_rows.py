# python/attune/torch/_rows.py — reads of tensors at positions of the kernel, and reductions of rows: sums, extremes
from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from attune.torch._value import TIGHT, Index, Piece, Trace, Value, as_kind, each, is_natural, refuse, scalar

_MOST_UNROLLED = 64  # elements of a row whose largest is wanted


def read(trace: Trace, source: Any, index: Any) -> Value:
    """source[index]: integers and values pick, `:` keeps a dimension, None adds one."""
    value = trace.value(source)
    items = _without_ellipsis(index if isinstance(index, tuple) else (index,), value)
    shape: list[Any] = []
    picked: tuple[Any, ...] | None = None  # the broadcast shape of indices that are rows, and its position
    stands = 0
    plan: list[tuple[str, Any]] = []  # for each dimension of the source
    for item in items:
        if item is None:
            shape.append(1)
        elif isinstance(item, slice):
            begin, length = _sliced(item, value.shape[len(plan)])
            plan.append(("kept", (len(shape) if picked is None else len(shape) - stands, picked is not None, begin)))
            shape.append(length)
        else:
            at = _wrapped(trace, trace.value(item), value.shape[len(plan)])
            if at.shape:
                if picked is None:
                    picked, stands = (), len(shape)
                elif stands != len(shape):
                    refuse("wrong-rank", "rows of indices are not next to each other",
                           "attune reads rows whose indices are adjacent", "move the dimensions first")
                picked = each(trace, "i", lambda *_: ("0", TIGHT), at, _hollow(trace, picked)).shape
            plan.append(("picked", at))
    rows = picked or ()
    whole = (*shape[:stands], *rows, *shape[stands:])

    def element(out: Index) -> Piece:
        here, ahead = out[stands:stands + len(rows)], len(rows)
        pieces: list[Piece] = []
        for kind, what in plan:
            if kind == "picked":
                pieces.append(what.at(here[len(rows) - what.ndim:] if what.shape else ()))
            else:
                position, after, begin = what
                piece = out[position + (stands + ahead if after else 0)]
                pieces.append(piece if begin == 0 else trace.make("+", piece, (f"{begin}", TIGHT)))
        return value.at(tuple(pieces))

    if whole == ():
        return scalar(trace, value.kind, element(()))
    return Value(trace, value.kind, whole, element)


def _hollow(trace: Trace, shape: tuple[Any, ...]) -> Value:
    """A value that has only a shape."""
    return Value(trace, "i", shape, lambda _: ("0", TIGHT))


def _without_ellipsis(items: tuple[Any, ...], value: Value) -> list[Any]:
    """The items with a `:` for each dimension that they leave out."""
    given = 0
    for item in items:
        given += item is not None and item is not Ellipsis
    if given > value.ndim:
        refuse("wrong-rank", f"a tensor of {value.ndim} dimensions is read with {given} indices",
               "there is one index for each dimension", "leave out indices")
    missing = [slice(None)] * (value.ndim - given)
    out: list[Any] = []
    met = False
    for item in items:
        if item is Ellipsis:
            met = True
            out.extend(missing)
        else:
            out.append(item)
    return out if met else out + missing


def _sliced(item: slice, extent: Any) -> tuple[Any, Any]:
    if item.start is None and item.stop is None and item.step is None:
        return 0, extent
    if item.step not in (None, 1) or isinstance(item.start, Value) or isinstance(item.stop, Value):
        refuse("wrong-rank", "a read slices with a step, or between values of the kernel",
               "the bounds of a slice must be Python numbers", "sum over a mask, or slice the tensor before")
    # Not slice.indices(), which older versions of Dynamo do not know.
    begin, end = (_bound(at, usual, int(extent)) for at, usual in ((item.start, 0), (item.stop, extent)))
    return begin, max(0, end - begin)


def _bound(at: Any, usual: int, extent: int) -> int:
    at = operator.index(usual if at is None else at)
    return max(at + extent, 0) if at < 0 else min(at, extent)


def _wrapped(trace: Trace, index: Value, extent: Any) -> Value:
    """The index; a negative one counts from the end."""
    if index.kind != "i":
        word = {"f": "a Float", "b": "a Bool"}[index.kind]
        refuse("wrong-type", f"a tensor is indexed by {word}", "an index is an integer",
               "convert it with .to(torch.int); for a mask write torch.where")
    if index.number is not None:
        return index if index.number >= 0 else trace.value(extent + index.number)
    if is_natural(index):
        return index
    count = trace.param(extent)
    return each(trace, "i", lambda i, n: trace.make("where", trace.make("<", i, ("0", TIGHT)), trace.make("+", i, n), i),
                index, count, natural=True)


def select(trace: Trace, source: Any, dim: int, index: Any) -> Value:
    value = trace.value(source)
    before = (slice(None),) * (dim if dim >= 0 else dim + value.ndim)
    return read(trace, value, (*before, index))


def index_select(trace: Trace, source: Any, dim: int, index: Any) -> Value:
    """Entries of a dimension; of one index, one entry that keeps the dimension."""
    at = trace.value(index)
    return select(trace, source, dim, at if at.shape else unsqueeze(trace, at, 0))


def squeeze(trace: Trace, source: Any, dim: Any = None) -> Value:
    value = trace.value(source)
    dims = _dims(value, dim) if dim is not None else [d for d in range(value.ndim) if value.shape[d] == 1]
    for d in sorted(dims, reverse=True):
        if value.shape[d] == 1:
            value = select(trace, value, d, 0)
    return value


def unsqueeze(trace: Trace, source: Any, dim: int) -> Value:
    value = trace.value(source)
    before = (slice(None),) * (dim if dim >= 0 else dim + value.ndim + 1)
    return read(trace, value, (*before, None))


def reshape(trace: Trace, source: Any, *shape: Any) -> Value:
    """A value of one element in any number of dimensions, or none; a row as one row."""
    value = trace.value(source)
    wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list, torch.Size)) else shape
    if value.numel() == 1 and all(n in (1, -1) for n in wanted):
        for _ in range(value.ndim):
            value = select(trace, value, 0, 0)
        for _ in wanted:
            value = unsqueeze(trace, value, 0)
        return value
    if value.ndim == 1 and len(wanted) == 1:
        return value
    refuse("wrong-rank", f"a value of shape {list(value.shape)} is reshaped to {list(wanted)}",
           "rows keep their shape inside the kernel", "reshape the tensor before it is read")


# ---- reductions


def _dims(value: Value, dim: Any) -> list[int]:
    if dim is None:
        return list(range(value.ndim))
    listed = dim if isinstance(dim, (tuple, list)) else (dim,)
    return [d if d >= 0 else d + value.ndim for d in listed]


def _reduced(trace: Trace, value: Value, dim: Any, keepdim: bool, one: Any) -> Value:
    """one(extent, element) for each reduced dimension; element(i) is a piece."""
    for d in sorted(_dims(value, dim), reverse=True):
        value = _without(trace, value, d, one)
        if keepdim:
            value = unsqueeze(trace, value, d)
    return value


def _without(trace: Trace, value: Value, d: int, one: Any) -> Value:
    extent = int(value.shape[d])
    shape = value.shape[:d] + value.shape[d + 1:]

    def at(index: Index) -> Piece:
        return one(extent, lambda i: value.at((*index[:d], i, *index[d:])))

    return scalar(trace, value.kind, at(())) if shape == () else Value(trace, value.kind, shape, at)


def sum_of(trace: Trace, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """The sum; Bools count."""
    value = trace.value(x)
    value = as_kind(value, "i") if value.kind == "b" else value
    return _reduced(trace, value, dim, keepdim, trace.sum)


def mean(trace: Trace, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    value = as_kind(trace.value(x), "f")
    count = math.prod([int(value.shape[d]) for d in _dims(value, dim)])
    total: Any = sum_of(trace, value, dim, keepdim)
    return total / float(count)


def any_of(trace: Trace, x: Any, dim: Any = None, keepdim: bool = False) -> Value:
    """any: true if one of them is true."""
    value = as_kind(trace.value(x), "b")
    count: Any = sum_of(trace, value, dim, keepdim) if value.shape else None
    return value if count is None else count != 0


def all_of(trace: Trace, x: Any, dim: Any = None, keepdim: bool = False) -> Value:
    """all: true if all of them are true."""
    value: Any = as_kind(trace.value(x), "b")
    none: Any = sum_of(trace, torch.logical_not(value), dim, keepdim) if value.shape else None
    return value if none is None else none == 0


def extreme(op: str) -> Callable[..., Value]:
    """The largest or the smallest of a row."""
    def spelling(trace: Trace, x: Any, dim: Any = None, keepdim: bool = False) -> Value:
        def one(extent: int, element: Any) -> Piece:
            if not 1 <= extent <= _MOST_UNROLLED:
                refuse("bad-sum", f"the extreme of {extent} elements",
                       f"attune compares 1 to {_MOST_UNROLLED} elements, one by one", "compute it before")
            best: Piece = element(("0", TIGHT))
            for i in range(1, extent):
                best = trace.make(op, best, element((f"{i}", TIGHT)))
            return best

        value = trace.value(x)
        return _reduced(trace, value, dim, keepdim, one) if value.shape else value

    return spelling


def product(trace: Trace, a: Any, b: Any) -> Value:
    """a @ b of rows and matrices: the sum of products over the last dimension of a and the first of b."""
    left, right = trace.value(a), trace.value(b)
    if not (1 <= left.ndim <= 2 and 1 <= right.ndim <= 2) or left.shape[-1] != right.shape[0]:
        refuse("wrong-rank", f"values of shapes {list(left.shape)} and {list(right.shape)} are multiplied as matrices",
               "attune multiplies rows and matrices whose inner dimensions agree",
               "index them to rows, e.g. u[q_idx] @ w[kv_idx]; for single numbers write a * b")
    inner = left.ndim - 1
    if right.ndim == 2:
        left = unsqueeze(trace, left, -1)
    terms: Any = left
    return sum_of(trace, terms * right, inner)


def norm(trace: Trace, x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, *, ord: Any = None) -> Value:
    if (p if ord is None else ord) not in (2, 2.0, "fro", None):
        refuse("unknown-function", f"a norm of order {p if ord is None else ord}",
               "attune computes only the Euclidean norm", "write it as a sum")
    value: Any = as_kind(trace.value(x), "f")
    total: Any = sum_of(trace, value * value, dim, keepdim)
    return total.sqrt()
