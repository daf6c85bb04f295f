# python/attune/jax/_transforms.py — a call under JAX's transforms: gradients, vmap, and shards on several devices
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from attune._errors import Error
from attune._place import here
from attune.jax._call import BACKWARD, FORWARD, Array, Arrays, Call, Name, What
from attune.jax._fold import follows, may_fold, moved, rewritten

# What a dimension counts: b entries, h heads of queries, k heads of keys, q queries, s keys. None: something else.
Labels = tuple[str | None, ...]
_ROWS = {"q": "queries", "s": "keys"}


# ---- shards: batch entries and heads, each on its own


def split(call: Call) -> Callable[..., Arrays]:
    """The call, which XLA may split by batch entries and heads."""
    run = custom_partitioning(call.run)

    def partition(mesh: Any, given: Any, made: Any) -> Any:
        taken = _Taken(call, mesh, given)
        taken.check()
        return mesh, taken.run, taken.shardings(call.results), taken.shardings(call.arguments)

    def infer(mesh: Any, given: Any, _: Any) -> Any:
        return _Taken(call, mesh, given).shardings(call.results)

    run.def_partition(partition, infer, sharding_rule=lambda mesh, given, made: _rule(call, given))
    return run


def _labels(call: Call, shapes: dict[Name, tuple[int, ...]]) -> dict[Name, Labels]:
    """Of all arguments and results."""
    what, q, k = call.what, shapes["q"], shapes["k"]
    texts = [text for text in (*what.parts, *[t for _, t in what.lets]) if text]
    queries: Labels
    keys: Labels
    sums: Labels
    if len(q) == 3:  # packed
        queries, keys, sums = (None, "h", None), (None, "k", None), ("h", None)
        counts = {"h": q[1]}
    else:
        entries = "b" if k[0] == q[0] and "page_table" not in what.extras else None
        queries = ("b", "q", "h", None) if what.heads_inside else ("b", "h", "q", None)
        keys = (entries, "s", "k", None) if what.heads_inside else (entries, "k", "s", None)
        sums = ("b", "h", "q")
        counts = {"b": q[0], "h": q[queries.index("h")]}
    out: dict[Name, Labels] = dict.fromkeys(("q", "out", "grad_o", "dq", "o_before"), queries)
    out.update(dict.fromkeys(("k", "v", "dk", "dv"), keys))
    out.update(dict.fromkeys(("lse", "max", "grad_lse", "lse_before"), sums))
    out.update({"kv_len": ("b",), "q_offsets": ("b",), "page_table": ("b", None), "cu_seqlens_q": (None,),
                "cu_seqlens_kv": (None,)})
    for slot, (name, *_) in enumerate(what.captures):
        out[slot] = tuple([next((i for i, n in counts.items() if extent == n and follows(texts, name, d, i)), None)
                           for d, extent in enumerate(shapes[slot])])
    return out


def _rule(call: Call, given: Any) -> Any:
    """Shardy's rule: which dimensions go together."""
    shapes = {n: tuple(x.shape) for n, x in zip(call.arguments, given)}
    labels = _labels(call, shapes)
    heads = shapes["q"][labels["q"].index("h")]
    groups = shapes["k"][labels["k"].index("k")]
    spelled = {"b": "b", "q": "q", "s": "s", "k": "k" if groups > 1 or heads == 1 else None,
               "h": "k" if groups == heads else "g" if groups == 1 else "(k g)"}
    alone: list[str] = []

    def word(label: str | None) -> str:
        known = spelled.get(label) if label else None
        if known is None:
            known = f"u{len(alone)}"
            alone.append(known)
        return known

    sides = [", ".join([" ".join([word(label) for label in labels[n]]) for n in names])
             for names in (call.arguments, call.results)]
    sizes = {"g": heads // groups} if spelled["h"] == "(k g)" else {}
    return f"{sides[0]} -> {sides[1]}", {"need_replication_factors": tuple(alone), **sizes}


class _Taken:
    """The axes of the mesh along which entries and heads are split."""

    def __init__(self, call: Call, mesh: Any, given: Any) -> None:
        self.call, self.mesh = call, mesh
        shapes = {n: tuple(x.shape) for n, x in zip(call.arguments, given)}
        self.labels = _labels(call, shapes)
        specs = dict(zip(call.arguments, [_spec(x) for x in given]))
        of_q = dict(zip(self.labels["q"], specs["q"]))
        self.axes: dict[str | None, tuple[str, ...]] = {"b": of_q.get("b", ()), "h": of_q["h"]}
        self.groups = shapes["k"][self.labels["k"].index("k")]
        self.axes["k"] = self.axes["h"] if self.groups % self._size("h") == 0 else ()
        self.specs = specs

    def check(self) -> None:
        """Refuses what devices cannot compute each on its own. XLA takes no exception while it infers shardings."""
        for name in ("q", "k", "v"):
            for label, axes in zip(self.labels[name], self.specs[name]):
                if label in _ROWS and axes:
                    raise _refused(
                        f"the {_ROWS[label]} of an attention are split along {', '.join(axes)} of the mesh",
                        "a program of JAX splits batch entries and heads",
                        "gather them with jax.lax.with_sharding_constraint, or call attune.attention over ranks, with "
                        "sharding=")
        parts = self._size("h")
        if self.groups % parts and self.groups > 1:
            raise _refused(f"{self.groups} heads of keys cannot be split among {parts} devices",
                           "each device has whole groups of heads",
                           "repeat them, or split the heads among fewer devices")
        what = self.call.what
        if self._size("b") * parts > 1 and not may_fold(what.parts, what.lets):
            raise _refused("a call that draws random numbers is split among devices",
                           "they depend on batch entries and heads, which each device counts from 0",
                           "call it in jax.shard_map, with another seed on each device")

    def _size(self, label: str) -> int:
        return math.prod([self.mesh.shape[a] for a in self.axes[label]])

    def shardings(self, names: tuple[Name, ...]) -> tuple[Any, ...]:
        """Of these arguments or results."""
        return tuple([NamedSharding(self.mesh, PartitionSpec(*[self.axes.get(x) or None for x in self.labels[n]]))
                      for n in names])

    def run(self, *arrays: Array) -> Arrays:
        """One device's part."""
        call, what = self.call, self.call.what
        first = {label: f"first_{label}_" for label in ("b", "h") if self.axes[label]}
        own = {name: self.labels[slot] for slot, (name, *_) in enumerate(what.captures)}
        parts, lets = moved(what.parts, what.lets, what.captures, own, first)
        count = len(what.captures)
        read = [label for label, name in first.items() if any(name in text for text in (*parts, *dict(lets).values())
                                                              if text)]
        captures = (*what.captures, *[(first[label], "i", 0) for label in read])
        mine = call._replace(what=what._replace(parts=parts, lets=lets, captures=captures),
                             arguments=(*call.arguments, *range(count, count + len(read))))
        sizes = dict(zip(self.labels["q"], arrays[0].shape))
        starts = [jnp.asarray(jax.lax.axis_index(self.axes[label]) * sizes[label], jnp.int32) for label in read]
        made = mine.run(*arrays, *starts)
        return tuple([self._summed(n, x) for n, x in zip(call.results, made)])

    def _summed(self, name: Name, part: Array) -> Array:
        """What all devices have written a part of."""
        split_along = {a for label in self.labels[name] for a in self.axes.get(label, ())}
        others = tuple([a for label in ("b", "h") for a in self.axes[label] if a not in split_along])
        return jax.lax.psum(part, others) if others else part


def _refused(problem: str, why: str, fix: str) -> Error:
    """XLA shows the text of what a partitioner raises."""
    return Error.at(here(), "bad-argument", problem, why, fix)


def _spec(given: Any) -> list[tuple[str, ...]]:
    """The axes of each dimension."""
    rank, sharding = len(given.shape), given.sharding
    if sharding is None or sharding.is_fully_replicated:
        return [()] * rank
    spec = getattr(sharding, "spec", None)
    if spec is None:
        raise _refused("arrays are split in a program without a mesh",
                       "the axes of a mesh tell which part a device has",
                       "give NamedShardings, or call jax.set_mesh")
    listed = [() if a is None else a if isinstance(a, tuple) else (a,) for a in spec]
    return [*listed, *[()] * (rank - len(listed))]


# ---- vmap


@functools.lru_cache(1024)
def _mappable(call: Call) -> Callable[..., Arrays]:
    run = custom_vmap(split(call))
    run.def_vmap(functools.partial(_mapped, call))
    whole = jax.custom_jvp(run)

    @whole.defjvp
    def refuse(*_: Any) -> Any:  # first derivatives are those of `attend`
        raise ValueError("attune: the gradients of an attention cannot be differentiated in JAX")

    return whole


def _mapped(call: Call, size: int, batched: list[bool], *arrays: Array) -> tuple[Arrays, Any]:
    """vmap: mapped entries become batch entries of one call. Where they cannot, each entry is its own call, one after
    another."""
    out = _in_one(call, size, batched, arrays)
    if out is None:
        each = tuple([x for x, b in zip(arrays, batched) if b])

        def one(own: Arrays) -> Arrays:
            mine = iter(own)
            return _mappable(call)(*[next(mine) if b else x for x, b in zip(arrays, batched)])

        out = jax.lax.map(one, each)
    return out, tuple([True] * len(out))


def _in_one(call: Call, size: int, batched: list[bool], arrays: Arrays) -> Arrays | None:
    """The results for all mapped entries from one call; None where they cannot be batch entries of one call."""
    what = call.what
    mapped = dict(zip(call.arguments, batched))
    shape = {n: x.shape[1:] if b else x.shape for n, x, b in zip(call.arguments, arrays, batched)}
    batch, keys = shape["q"][0], shape["k"][0]
    if "cu_seqlens_q" in what.extras or not may_fold(what.parts, what.lets):
        return None
    paged = "page_table" in what.extras
    shared = not mapped["k"] and not mapped["v"] and (paged or keys == 1) and not {"dk", "dv"} & {*call.results}
    if not shared and (paged or keys != batch):
        return None
    # A capture whose gradient is wanted has one for each mapped entry.
    slots = tuple([mapped[i] or i in call.results for i in range(len(what.captures))])
    texts = rewritten(what.parts, what.lets, what.captures, what.params, slots,
                      tuple([shape[i] for i in range(len(what.captures))]), batch)
    if texts is None:
        return None

    def whole(name: Name, x: Array) -> Array:
        x = x if mapped[name] else jnp.broadcast_to(x, (size, *x.shape))
        return texts.capture(name, x) if isinstance(name, int) else x.reshape(size * x.shape[1], *x.shape[2:])

    def kept(name: Name) -> bool:
        return not slots[name] if isinstance(name, int) else shared and name in ("k", "v")

    numbers = (*what.numbers, *([float(batch)] if texts.params != what.params else []))
    one = call._replace(what=what._replace(parts=texts.parts, lets=texts.lets, captures=texts.captures,
                                           params=texts.params, numbers=numbers))
    made = _mappable(one)(*[x if kept(n) else whole(n, x) for n, x in zip(call.arguments, arrays)])
    return tuple([x.reshape(size, *shape[n]) if isinstance(n, int) else x.reshape(size, batch, *x.shape[1:])
                  for n, x in zip(call.results, made)])


# ---- gradients


def _forward(what: What, with_lse: bool, with_max: bool) -> Callable[..., Arrays]:
    """(q, k, v, *extras, *captures) to the output, and the sums and the largest scores where they are asked for."""
    arguments = ("q", "k", "v", *what.extras, *range(len(what.captures)))
    results = ("out", *(["lse"] if with_lse else []), *(["max"] if with_max else []))
    return _mappable(Call(what, FORWARD, arguments, results))


def _backward(what: What, wanted: tuple[bool, ...], with_grad_lse: bool) -> Callable[..., Arrays]:
    """(q, k, v, out, lse, grad_o, grad_lse if there is one, *extras, *captures) to the gradients that are wanted."""
    count = len(what.captures)
    given = ("q", "k", "v", "out", "lse", "grad_o", *(["grad_lse"] if with_grad_lse else []), *what.extras)
    slots = [i for i, w in enumerate(wanted[len(wanted) - count:]) if w]
    results: tuple[Name, ...] = (*[n for n, w in zip(("dq", "dk", "dv"), wanted) if w], *slots)
    return _mappable(Call(what, BACKWARD, (*given, *range(count)), results))


@jax.tree_util.register_static
class _Wanted(tuple):  # type: ignore[type-arg]
    """The arrays whose gradients are wanted."""


@functools.lru_cache(512)
def attend(what: What, with_lse: bool, with_max: bool) -> Callable[..., Arrays]:
    """(q, k, v, *extras, *captures) to the results that are asked for, with gradients."""

    @jax.custom_vjp
    def run(*arrays: Array) -> Arrays:
        return _forward(what, with_lse, with_max)(*arrays)

    def remember(*given: Any) -> tuple[Arrays, Any]:
        arrays = [x.value for x in given]
        wanted = _Wanted([bool(x.perturbed) and jnp.issubdtype(x.value.dtype, jnp.floating) for x in given])
        if any(wanted):
            _refuse_forward_only(what)
        out, lse, *most = _forward(what, True, with_max)(*arrays)
        return (out, *([lse] if with_lse else []), *most), (arrays, out, lse, wanted)

    def gradients(kept: Any, given: Any) -> Any:
        arrays, out, lse, wanted = kept
        grad_o = jnp.zeros_like(out) if isinstance(given[0], SymbolicZero) else given[0]
        grad_lse = [given[1]] if with_lse and not isinstance(given[1], SymbolicZero) else []
        call = _backward(what, tuple(wanted), bool(grad_lse))
        made = iter(call(*arrays[:3], out, lse, grad_o, *grad_lse, *arrays[3:]) if any(wanted) else ())
        return tuple([next(made) if w else None for w in wanted])

    run.defvjp(remember, gradients, symbolic_zeros=True)
    return run


def _refuse_forward_only(what: What) -> None:
    for name in (*what.extras, *[n for n, _ in what.options]):
        if name not in ("q_offset", "max_q_len", "max_kv_len", "cu_seqlens_q", "cu_seqlens_kv"):
            raise Error.at(here(), "forward-only", f"a gradient is asked of a call with `{name}`",
                           "caches are for the forward alone",
                           "write lengths as a mask, kv < lengths[b], and add an array to positions, q + first[b]")
