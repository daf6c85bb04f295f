# python/attune/jax/_lax.py — mods in jnp: each primitive that JAX traces becomes operations of the language
from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from attune import expr
from attune._errors import Error
from attune._place import here
from attune._scan import Component
from attune._text import OF_FLOATS

_MOST_UNROLLED = 64  # elements of a row whose largest is wanted
Index = tuple[Any, ...]  # of Ints and integers


class Row(NamedTuple):
    """An array inside the kernel: its shape, and each element as a value, or as a number where that is known."""

    shape: tuple[int, ...]
    at: Callable[[Index], Any]


def refuse(code: str, problem: str, why: str, fix: str) -> NoReturn:
    raise Error.at(here(), code, problem, why, fix)


def captured(array: Any) -> Row:
    """An array of the call, or of a program."""
    if not array.shape and not isinstance(array, jax.core.Tracer):
        return number(np.asarray(array).item())
    capture = expr.Capture(array)
    return Row(tuple(array.shape), lambda index: capture[index])


def number(known: Any) -> Row:
    """A number, or a value of the kernel."""
    return Row((), lambda _: known)


# ---- one operation on each element


def each(build: Callable[..., Any], shape: tuple[int, ...], rows: list[Row] | tuple[Row, ...]) -> Row:
    """build(element, …) for each element; a scalar broadcasts to rows."""
    return Row(shape, lambda index: build(*[r.at(index if r.shape else ()) for r in rows]))


def _is_number(thing: Any) -> bool:
    return isinstance(thing, (bool, int, float))


def _elementwise(build: Callable[..., Any]) -> Callable[..., Row]:
    """If all inputs are known numbers, JAX itself computes the result."""
    def spelling(one: Any, *rows: Row) -> Row:
        def element(*values: Any) -> Any:
            if not all([_is_number(v) for v in values]):
                return build(*values)
            with jax.ensure_compile_time_eval():
                typed = [jnp.asarray(v, atom.aval.dtype) for v, atom in zip(values, one.invars)]
                return np.asarray(one.primitive.bind(*typed, **one.params)).item()

        return each(element, tuple(one.outvars[0].aval.shape), rows)
    return spelling


def _typed(of_bools: Callable[..., Any], of_others: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: (of_bools if any(isinstance(v, (expr.Bool, bool)) for v in values) else of_others)(*values)


def _is_whole(*values: Any) -> bool:
    return all([isinstance(v, (expr.Int, int)) for v in values])


def _divided(a: Any, b: Any) -> Any:
    return expr.truncdiv(a, b) if _is_whole(a, b) else a / b


def _remaining(a: Any, b: Any) -> Any:
    return expr.truncmod(a, b) if _is_whole(a, b) else a - b * expr.trunc(a / b)


def _sign(a: Any) -> Any:
    if _is_whole(a):
        return expr.i32(a > 0) - expr.i32(a < 0)
    return expr.f32(a > 0) - expr.f32(a < 0)


def _select(one: Any, which: Row, *cases: Row) -> Row:
    def element(keep: Any, *of: Any) -> Any:
        if _is_number(keep):
            return of[int(keep)]
        if isinstance(keep, expr.Int):  # the number of a case
            return functools.reduce(lambda rest, n: expr.where(keep == n, of[n], rest), range(len(of) - 1), of[-1])
        no, yes = of
        if isinstance(no, (expr.Bool, bool)) and isinstance(yes, (expr.Bool, bool)):
            return (keep & yes) | (~keep & no)
        return expr.where(keep, yes, no)

    return each(element, tuple(one.outvars[0].aval.shape), (which, *cases))


def _converted(one: Any, row: Row) -> Row:
    kind = np.dtype(one.params["new_dtype"]).kind

    def element(x: Any) -> Any:
        if _is_number(x):
            return bool(x) if kind == "b" else int(x) if kind in "iu" else float(x)
        if kind == "b":
            return x if isinstance(x, expr.Bool) else x != 0
        return expr.i32(x) if kind in "iu" else expr.f32(x)

    return each(element, row.shape, (row,))


def _integer_power(one: Any, row: Row) -> Row:
    def element(x: Any) -> Any:
        power = one.params["y"]
        if not 0 < abs(power) <= 16:
            return expr.pow(x, float(power))
        out = functools.reduce(lambda a, b: a * b, [x] * abs(power))
        return out if power > 0 else 1.0 / out

    return each(element, row.shape, (row,))


def _rounded(x: Any) -> Any:
    """Halves to the even neighbour."""
    below = expr.floor(x)
    rest, odd = x - below, below - 2.0 * expr.floor(below / 2.0)
    return expr.where((rest > 0.5) | ((rest == 0.5) & (odd == 1.0)), below + 1.0, below)


# ---- shapes


def _spread(one: Any, row: Row, *_: Any) -> Row:
    dims = one.params["broadcast_dimensions"]
    kept = [(d, n == 1) for d, n in zip(dims, row.shape)]
    return Row(tuple(one.params["shape"]), lambda index: row.at(tuple([0 if flat else index[d] for d, flat in kept])))


def _squeezed(one: Any, row: Row) -> Row:
    gone = {d % len(row.shape) for d in one.params["dimensions"]}

    def at(index: Index) -> Any:
        rest = iter(index)
        return row.at(tuple([0 if d in gone else next(rest) for d in range(len(row.shape))]))

    return Row(tuple(one.outvars[0].aval.shape), at)


def _reshaped(one: Any, row: Row, *_: Any) -> Row:
    shape = tuple(one.outvars[0].aval.shape)
    before, after = ([d for d, n in enumerate(s) if n != 1] for s in (row.shape, shape))
    if [row.shape[d] for d in before] != [shape[d] for d in after]:
        refuse("wrong-rank", f"an array of shape {list(row.shape)} is reshaped to {list(shape)}",
               "rows keep their shape inside the kernel", "reshape the array before it is read")
    return Row(shape, lambda index: row.at(tuple([index[after[before.index(d)]] if d in before else 0
                                                   for d in range(len(row.shape))])))


def _transposed(one: Any, row: Row) -> Row:
    order = one.params["permutation"]
    return Row(tuple([row.shape[d] for d in order]),
                lambda index: row.at(tuple([index[order.index(d)] for d in range(len(order))])))


def _counted(one: Any, *_: Any) -> Row:
    dim, floats = one.params["dimension"], np.dtype(one.params["dtype"]).kind == "f"
    return Row(tuple(one.params["shape"]), lambda index: expr.f32(index[dim]) if floats else index[dim])


def _sliced(one: Any, row: Row) -> Row:
    starts, steps = one.params["start_indices"], one.params["strides"] or (1,) * len(row.shape)
    return Row(tuple(one.outvars[0].aval.shape),
                lambda index: row.at(tuple([i * step + start for i, start, step in zip(index, starts, steps)])))


def _from(start: Any, extent: int, taken: int) -> Any:
    """The first index of a slice, clamped so that the slice lies within the dimension."""
    if _is_number(start):
        return min(max(int(start), 0), extent - taken)
    return start if taken == 1 else expr.clamp(start, 0, extent - taken)


def _read(one: Any, row: Row, *starts: Row) -> Row:
    taken = one.params["slice_sizes"]
    firsts = [_from(s.at(()), extent, n) for s, extent, n in zip(starts, row.shape, taken)]
    return Row(tuple(taken), lambda index: row.at(tuple([_plus(first, i) for first, i in zip(firsts, index)])))


def _plus(first: Any, i: Any) -> Any:
    return first if _is_number(i) and i == 0 else i if _is_number(first) and first == 0 else first + i


def _gathered(one: Any, row: Row, indices: Row) -> Row:
    numbers, taken = one.params["dimension_numbers"], one.params["slice_sizes"]
    if numbers.operand_batching_dims:
        refuse("unknown-function", "JAX's `gather` over batches is not known inside the kernel",
               "attune reads arrays at positions", "index with positions, e.g. table[h, q]")
    shape = tuple(one.outvars[0].aval.shape)
    kept = [d for d in range(len(row.shape)) if d not in numbers.collapsed_slice_dims]

    def at(index: Index) -> Any:
        batch = tuple([i for d, i in enumerate(index) if d not in numbers.offset_dims])
        whole: list[Any] = [0] * len(row.shape)
        for d, i in zip(kept, [index[d] for d in numbers.offset_dims]):
            whole[d] = i
        for c, d in enumerate(numbers.start_index_map):
            whole[d] = _plus(_from(indices.at((*batch, c)), row.shape[d], taken[d]), whole[d])
        return row.at(tuple(whole))

    return Row(shape, at)


def _piece(pieces: list[tuple[int, Callable[[Any], Any]]], i: Any) -> Any:
    """Element i of a concatenation of pieces, each with its extent."""
    (extent, element), *rest = pieces
    if not rest or (_is_number(i) and i < extent):
        return element(i)
    after = _piece(rest, i - extent)
    return after if _is_number(i) else expr.where(i < extent, element(i), after)


def _concatenated(one: Any, *rows: Row, stacked: bool = False) -> Row:
    dim = one.params["axis" if stacked else "dimension"]

    def at(index: Index) -> Any:
        def part(row: Row) -> Callable[[Any], Any]:
            return lambda i: row.at((*index[:dim], *(() if stacked else (i,)), *index[dim + 1:]))
        return _piece([(1 if stacked else row.shape[dim], part(row)) for row in rows], index[dim])

    return Row(tuple(one.outvars[0].aval.shape), at)


# ---- rows that become numbers


def _over(row: Row, axes: tuple[int, ...], join: Callable[[int, Callable[[Any], Any]], Any]) -> Row:
    """join(extent, element) over each axis."""
    for axis in sorted(axes, reverse=True):
        row = _joined(row, axis, join)
    return row


def _joined(row: Row, axis: int, join: Callable[[int, Callable[[Any], Any]], Any]) -> Row:
    return Row(row.shape[:axis] + row.shape[axis + 1:],
                lambda index: join(row.shape[axis], lambda i: row.at((*index[:axis], i, *index[axis:]))))


def _any(one: Any, row: Row) -> Row:
    return _over(row, one.params["axes"], lambda n, body: expr.sum(n, lambda i: expr.i32(body(i))) != 0)


def _all(one: Any, row: Row) -> Row:
    return _over(row, one.params["axes"], lambda n, body: expr.sum(n, lambda i: expr.i32(~body(i))) == 0)


def _extreme(best: Callable[[Any, Any], Any]) -> Callable[..., Row]:
    def join(extent: int, body: Callable[[Any], Any]) -> Any:
        if not 1 <= extent <= _MOST_UNROLLED:
            refuse("bad-sum", f"the extreme of {extent} elements",
                   f"attune compares 1 to {_MOST_UNROLLED} elements, one by one", "compute it before")
        return functools.reduce(best, [body(i) for i in range(extent)])

    return lambda one, row, *_: _over(row, one.params["axes"], join)


def _first_of_bools(one: Any, row: Row) -> Row:
    """argmax of conditions, as in jnp.select: the first true one, or 0."""
    def join(extent: int, body: Callable[[Any], Any]) -> Any:
        conditions = [body(i) for i in range(extent)]
        if not all([isinstance(c, (expr.Bool, bool)) for c in conditions]):
            refuse("unknown-function", "JAX's `argmax` is not known inside the kernel",
                   "attune does not compute positions of extremes, but of conditions", "compute it before the call")
        return functools.reduce(lambda rest, i: expr.where(conditions[i], i, rest), range(extent - 1, -1, -1), 0)

    return _over(row, one.params["axes"], join)


def _product(one: Any, a: Row, b: Row) -> Row:
    (ours, theirs), (batch, _) = one.params["dimension_numbers"]
    if batch:
        refuse("unknown-function", "JAX's `dot_general` over batches is not known inside the kernel",
               "attune sums products of rows", "write jnp.sum(a * b, -1)")
    free = [d for d in range(len(a.shape)) if d not in ours]
    others = [d for d in range(len(b.shape)) if d not in theirs]

    def whole(row: Row, dims: list[int], index: Index, joined: tuple[int, ...], at: list[Any]) -> Any:
        places = {**dict(zip(dims, index)), **dict(zip(joined, at))}
        return row.at(tuple([places[d] for d in range(len(row.shape))]))

    def element(index: Index, at: list[Any]) -> Any:
        if len(at) < len(ours):
            return expr.sum(a.shape[ours[len(at)]], lambda i: element(index, [*at, i]))
        return (whole(a, free, index[:len(free)], ours, at)
                * whole(b, others, index[len(free):], theirs, at))

    return Row(tuple(one.outvars[0].aval.shape), lambda index: element(index, []))


TABLE: dict[str, Callable[..., Row]] = {
    **{name: _elementwise(getattr(operator, f"__{name}__")) for name in
       ("add", "sub", "neg", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor")},
    "add_any": _elementwise(operator.add), "mul": _elementwise(_typed(operator.and_, operator.mul)),
    "div": _elementwise(_divided), "rem": _elementwise(_remaining), "not": _elementwise(operator.invert),
    "abs": _elementwise(abs), "sign": _elementwise(_sign), "square": _elementwise(lambda a: a * a),
    "integer_pow": _integer_power, "pow": _elementwise(expr.pow), "logistic": _elementwise(expr.sigmoid),
    **{name: _elementwise(getattr(expr, name)) for name in OF_FLOATS},
    "log1p": _elementwise(lambda a: expr.log(1.0 + a)), "expm1": _elementwise(lambda a: expr.exp(a) - 1.0),
    "sinh": _elementwise(lambda a: 0.5 * (expr.exp(a) - expr.exp(-a))),
    "cosh": _elementwise(lambda a: 0.5 * (expr.exp(a) + expr.exp(-a))),
    "erfc": _elementwise(lambda a: 1.0 - expr.erf(a)),
    "round": lambda one, row: _elementwise(
        _rounded if int(one.params["rounding_method"]) == 1 else expr.round)(one, row),
    "max": _elementwise(_typed(operator.or_, expr.max)), "min": _elementwise(_typed(operator.and_, expr.min)),
    "clamp": _elementwise(lambda low, x, high: expr.clamp(x, low, high)),
    "shift_left": _elementwise(operator.lshift), "shift_right_arithmetic": _elementwise(operator.rshift),
    "is_finite": _elementwise(lambda a: expr.abs(a) < math.inf), "select_n": _select,
    "convert_element_type": _converted, "copy": lambda one, row: row,
    "broadcast_in_dim": _spread, "squeeze": _squeezed, "reshape": _reshaped, "transpose": _transposed,
    "iota": _counted, "slice": _sliced, "concatenate": _concatenated, "stack": functools.partial(_concatenated, stacked=True), "dynamic_slice": _read,
    "gather": _gathered, "reduce_or": _any, "reduce_and": _all,
    "reduce_sum": lambda one, row, *_: _over(row, one.params["axes"], expr.sum),
    "reduce_max": _extreme(expr.max), "reduce_min": _extreme(expr.min),
    "argmax": _first_of_bools, "dot_general": _product,
}


_ARGUMENTS = {"score": ("s", "b", "h", "q", "kv"), "prob": ("p", "b", "h", "q", "kv"), "mask": ("b", "h", "q", "kv"),
              "sink": ("b", "h")}


def from_jnp(kind: str, written: Any) -> Any:
    """The mod as written; a function with jnp's arguments becomes a function of the language."""
    if isinstance(written, (str, Component)) or not callable(written):
        return written
    try:
        given = inspect.signature(written).parameters.values()
    except (TypeError, ValueError):
        return written
    needed = [p for p in given if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return _Traced(kind, written) if len(needed) == len(_ARGUMENTS[kind]) else written


class _Traced:
    """Called with values of the kernel, like a function of the language."""

    def __init__(self, kind: str, function: Callable[..., Any]) -> None:
        self.kind, self.function = kind, function

    def __call__(self, *given: Any) -> Any:
        *first, at = given
        places = (at.batch, at.head) if self.kind == "sink" else (at.batch, at.head, at.q, at.kv)
        values = [*first, *places]
        shapes = [jax.ShapeDtypeStruct((), jnp.float32 if isinstance(v, expr.Float) else jnp.int32) for v in values]
        closed = jax.make_jaxpr(self.function)(*shapes)
        if len(closed.out_avals) != 1 or closed.out_avals[0].shape:
            refuse("wrong-result", f"the {self.kind} gives {', '.join(str(a) for a in closed.out_avals) or 'nothing'}",
                   "it must return one value for each pair of positions", "index arrays fully, or sum over the row")
        (out,) = _run(closed.jaxpr, [captured(c) for c in closed.consts], [number(v) for v in values])
        value = out.at(())
        return value if self.kind == "mask" or not isinstance(value, expr.Bool) else expr.f32(value)


def _run(jaxpr: Any, constants: list[Row], given: list[Row]) -> list[Row]:
    """The results of a JAX program, as rows."""
    held: dict[Any, Row] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *given)))

    def read(atom: Any) -> Row:
        if not isinstance(atom, core.Literal):
            return held[atom]
        known = np.asarray(atom.val)
        if known.shape:
            return captured(known)
        return number(known.item())

    for one in jaxpr.eqns:
        made = _apply(one, [read(atom) for atom in one.invars])
        held.update(zip(one.outvars, made))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(one: Any, rows: list[Row]) -> list[Row]:
    name, params = one.primitive.name, one.params
    inner = next((params[p] for p in ("jaxpr", "call_jaxpr", "fun_jaxpr") if p in params), None)
    if inner is not None and name not in ("while", "scan"):
        known = _whole().get(str(inner))
        if known is not None:
            return [each(known, (), rows)]
        constants = [captured(c) for c in getattr(inner, "consts", ())]
        return _run(getattr(inner, "jaxpr", inner), constants, rows)
    spelling = TABLE.get(name)
    if spelling is None:
        refuse("unknown-function", f"JAX's `{name}` is not known inside the kernel",
               "attune compiles what docs/jax.md lists, without Python conditions and lax.cond",
               "write jnp.where to choose, and compute on whole arrays before the call")
    return [spelling(one, *rows)]


@functools.cache
def _whole() -> dict[str, Callable[..., Any]]:
    """jnp's // and % of integers, which round down and which JAX spells out."""
    i32 = jax.ShapeDtypeStruct((), jnp.int32)
    out: dict[str, Callable[..., Any]] = {}
    for function, ours in ((jnp.floor_divide, lambda a, b: a // b), (jnp.remainder, lambda a, b: a % b)):
        for other in (i32, 2):  # next to an array, a Python integer has a weak type
            traced = jax.make_jaxpr(lambda x, f=function, y=other: f(x, y))(i32) if other == 2 else (
                jax.make_jaxpr(function)(i32, i32))
            out[str(traced.jaxpr.eqns[0].params["jaxpr"])] = ours
    return out
