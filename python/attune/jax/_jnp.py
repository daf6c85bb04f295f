# python/attune/jax/_jnp.py — mods written in jnp: JAX traces them, and each operation becomes one of the language
"""A score of five arguments, (s, b, h, q, kv), or a mask of four, (b, h, q, kv), in functions of jnp."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from attune import expr
from attune._component import Component
from attune.jax._lax import TABLE, Row, captured, each, number, refuse

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
