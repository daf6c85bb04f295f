# python/attune/jax/_split.py — how XLA splits a call among devices: batch entries and heads, each on its own
"""The partitioning of a call under jit with sharded arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from attune._errors import Error
from attune._place import here
from attune.jax._fold import follows, may_fold, moved

if TYPE_CHECKING:
    from attune.jax._call import Array, Arrays, Call, Name

# What a dimension counts: b entries, h heads of queries, k heads of keys, q queries, s keys. None: something else.
Labels = tuple[str | None, ...]
_ROWS = {"q": "queries", "s": "keys"}


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
