# python/attune/_attention.py — Attention, to keep and call; attention(), in one line; their gradients
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from attune import _arguments, _arrays, _core, _trace
from attune._call import BACKWARD, FORWARD, options, result, sums, written
from attune._errors import Error
from attune._kept import Kept
from attune._mod import Array, Mod, placed
from attune._picture import Cover, show
from attune._place import here
from attune._ranks import Sharding
from attune._trace import Capturable, Written

Progress = Callable[[float], object]
ParallelFor = Callable[[int, Callable[[int, int], None]], object]


class Gradients(NamedTuple):
    """The results of a backward: of q, k and v, and of captured tensors by name. What was not asked for is None."""

    q: Array
    k: Array
    v: Array
    captured: dict[str, Array]


class Attention(Mod):
    """An attention to keep: what differs from the plain one, and the arrays that it captures.

    `score`, `mask`, `prob` and `sink` are functions of values of the kernel, texts of the language, or joined mods.
    Arrays that the functions close over are captured by reference; for texts they are keywords. A keyword that is a
    number is a parameter. Any of them can be replaced in a call. One Attention serves all threads.

    >>> import attune, numpy
    >>> capped = attune.Attention(score="cap * tanh(s / cap)", mask=lambda at: at.kv <= at.q, cap=30.0)
    >>> q = numpy.ones((1, 1, 4, 8), "f4")
    >>> capped(q, q, q).shape
    (1, 1, 4, 8)
    >>> capped(q, q, q, cap=20.0).shape  # the same kernel
    (1, 1, 4, 8)
    """

    @_core.quick
    def __call__(self, q: Array, k: Array, v: Array, *, out: Array = None, lse: Array | bool = False,
                 max: Array | bool = False, cu_seqlens: Array = None, cu_seqlens_q: Array = None,
                 cu_seqlens_kv: Array = None, max_q_len: int = 0, max_kv_len: int = 0, q_offset: int = 0,
                 cover: Cover | None = None, workspace: Array = None, stream: int = 0, workers: int = 0,
                 progress: Progress | None = None, parallel_for: ParallelFor | None = None, kv_len: Array = None,
                 q_offsets: Array = None, page_table: Array = None, kv_offset: int = 0, o_before: Array = None,
                 lse_before: Array = None, fixed_split_size: int = 0, sharding: Sharding | None = None,
                 **captures: Capturable) -> Any:
        """The output, of the kind and type of q; with `lse` or `max` a tuple of it and them.

        q is [B, Hq, Sq, D], k [Bk, Hkv, Skv, D], v [Bk, Hkv, Skv, Dv]. Packed: [T, H, D], with the sequences' starts in
        `cu_seqlens`, or `cu_seqlens_q` and `cu_seqlens_kv`. `out`, and `lse` and `max` where they are arrays, are
        written; `lse` is a natural logarithm. `q_offset` is at.q of the first query. `progress` is called with the
        share done.

        A cache: `kv_len` [B] is how many keys each entry has, `q_offsets` [B] where its queries begin. With `page_table`
        [B, n], k and v are [pages, Hkv, page_size, D], and key i of entry b is row i % page_size of page
        page_table[b, i // page_size].
        `kv_offset` is at.kv of the first key; `o_before` and `lse_before` are results over other keys, which are merged
        in. With `fixed_split_size`, a multiple of 128, an entry's bits do not depend on other entries. Integers are i32;
        `kv_len` and `q_offsets` on the host may be i64.

        Over ranks: with `sharding` q, k, v and results are this rank's, and every rank makes the call.
        """
        if cu_seqlens is not None:
            cu_seqlens_q = cu_seqlens_kv = cu_seqlens
        given_lse, given_max = lse, max
        out = result(q, v) if out is None else out
        lse, max = (sums(q, cu_seqlens_q is not None) if x is True else x for x in (lse, max))
        call = {"q": q, "k": k, "v": v, "out": written(out), "lse": written(lse), "max": written(max),
                "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv, "kv_len": kv_len, "q_offsets": q_offsets,
                "page_table": page_table, "o_before": o_before, "lse_before": lse_before}
        call.update(options(q_offset=q_offset, max_q_len=max_q_len, max_kv_len=max_kv_len, workers=workers,
                            stream=stream, workspace=workspace, cover=cover, progress=progress,
                            parallel_for=parallel_for, kv_offset=kv_offset, fixed_split_size=fixed_split_size,
                            sharding=sharding))
        arrays, numbers = self._slots(captures)
        self._do(self._core.run, FORWARD, call, arrays, None, numbers)
        if type(out) is _core.Memory:
            out = _arrays.finished(out, q)
        if given_lse is False and given_max is False:
            return out
        extra = [_arrays.finished(x, q) for x, asked in ((lse, given_lse), (max, given_max)) if asked is not False]
        return (out, *extra)

    def _do(self, function: Callable[..., Any], *given: Any) -> Any:
        """What a function of the core gives; its Error is at the user's line."""
        try:
            return function(*given)
        except Error as error:
            raise placed(error, self._spelled) from None

    def backward(self, q: Array, k: Array, v: Array, grad_o: Array, *, grad_lse: Array = None, o: Array = None,
                 lse: Array = None, wrt: str | Iterable[str] | None = None, into: Mapping[str, Array] | None = None,
                 cu_seqlens: Array = None, cu_seqlens_q: Array = None, cu_seqlens_kv: Array = None,
                 max_q_len: int = 0, max_kv_len: int = 0, q_offset: int = 0, workspace: Array = None, stream: int = 0,
                 workers: int = 0, progress: Progress | None = None, parallel_for: ParallelFor | None = None,
                 sharding: Sharding | None = None, sum_captured: bool = True, **captures: Capturable) -> Gradients:
        """The gradients of q, k, v and the captured tensors, from that of the output.

        `wrt` names what is wanted: "q", "k", "v" and captures; by default all that have a gradient. `into` has arrays
        to write some of them to, by the same names. With the forward's `o` and `lse` it is not computed again.

        Over ranks: with `sharding`, gradients of captured tensors are those of all ranks together, or with
        `sum_captured=False` of this rank's queries.
        """
        if cu_seqlens is not None:
            cu_seqlens_q = cu_seqlens_kv = cu_seqlens
        arrays, numbers = self._slots(captures)
        into = _arguments.mapping("into", into, "a dict of names and arrays")
        names = self._wanted(wrt, into)

        def new(name: str, array: Array) -> Array:
            if name in into:
                return into[name]
            return _arrays.like(array, tuple(array.shape)) if name in names else None

        try:
            dq, dk, dv = (new(n, x) for n, x in (("q", q), ("k", k), ("v", v)))
        except AttributeError:
            dq = dk = dv = None  # no arrays: the core refuses them by name
        grads = tuple([new(c.name, x) for c, x in zip(self._spelled.captures, arrays)])
        call = {"q": q, "k": k, "v": v, "out": o, "lse": lse, "cu_seqlens_q": cu_seqlens_q,
                "cu_seqlens_kv": cu_seqlens_kv, "grad_o": grad_o, "grad_lse": grad_lse, "dq": dq, "dk": dk, "dv": dv}
        call.update(options(q_offset=q_offset, max_q_len=max_q_len, max_kv_len=max_kv_len, workers=workers,
                            stream=stream, workspace=workspace, progress=progress, parallel_for=parallel_for,
                            sharding=sharding, sum_captured=sum_captured))
        self._do(self._core.run, BACKWARD, call, arrays, grads, numbers)
        done = {c.name: _arrays.finished(g, q) for c, g in zip(self._spelled.captures, grads) if g is not None}
        return Gradients(*(_arrays.finished(x, q) for x in (dq, dk, dv)), done)

    def _wanted(self, wrt: str | Iterable[str] | None, into: Mapping[str, Array]) -> tuple[str, ...]:
        """The names of what gradients are wanted of, besides those of `into`."""
        slots = self._spelled.captures
        known = ("q", "k", "v", *(c.name for c in slots))
        if wrt is None:
            read = {c["name"] for c in self.describe()["captures"] if c["used"]} if slots else ()
            names = ("q", "k", "v", *(c.name for c in slots if c.kind == "f" and c.name in read))
        elif isinstance(wrt, str):
            names = (wrt,)
        else:
            names = tuple(wrt) if isinstance(wrt, Iterable) else (wrt,)  # an iterator gives its names once
            if not all([isinstance(name, str) for name in names]):
                raise _arguments.bad("wrt", wrt, "a tuple of names", "pass e.g. (\"q\", \"k\", \"v\")")
        for name in (*names, *into):
            if name not in known:
                raise Error.at(here(), "grad-not-captured", f"there is no gradient of `{name}`",
                               f"gradients exist for {', '.join(known)}", "take one of these")
        return names

    def prepare(self, q: Array, k: Array, v: Array, *, workers: int = 0, q_offset: int = 0, cu_seqlens: Array = None,
                max_q_len: int = 0, max_kv_len: int = 0, stream: int = 0, cover: Cover | None = None,
                lse: bool = False, parallel_for: ParallelFor | None = None, kv_len: Array = None,
                q_offsets: Array = None, page_table: Array = None, kv_offset: int = 0, o_before: Array = None,
                lse_before: Array = None, fixed_split_size: int = 0, **captures: Capturable) -> dict[str, int]:
        """Compiles what a call will need, and returns the sizes of its memory: {"workspace": …, "cover": …}.

        >>> import attune, numpy
        >>> q = numpy.ones((1, 1, 4, 8), "f4")
        >>> sorted(attune.Attention().prepare(q, q, q))
        ['cover', 'workspace']
        """
        call = {"q": q, "k": k, "v": v, "out": result(q, v), "cu_seqlens_q": cu_seqlens, "cu_seqlens_kv": cu_seqlens,
                "lse": None if lse is False else sums(q, cu_seqlens is not None), "kv_len": kv_len,
                "q_offsets": q_offsets, "page_table": page_table, "o_before": o_before, "lse_before": lse_before}
        call.update(options(q_offset=q_offset, max_q_len=max_q_len, max_kv_len=max_kv_len, workers=workers,
                            stream=stream, cover=cover, parallel_for=parallel_for, kv_offset=kv_offset,
                            fixed_split_size=fixed_split_size))
        arrays, numbers = self._slots(captures)
        workspace, lists = self._do(self._core.prepare, FORWARD, call, arrays, None, numbers)
        return {"workspace": workspace, "cover": lists}

    def cover(self, q: Array, k: Array, v: Array, *, q_offset: int = 0, workspace: Array = None, stream: int = 0,
              **captures: Capturable) -> Cover:
        """Lists once the tiles that the mask leaves to visit, for many calls like this one: `cover=` of those calls."""
        call = {"q": q, "k": k, "v": v, "out": result(q, v),
                **options(q_offset=q_offset, stream=stream, workspace=workspace)}
        lists = self._do(self._core.cover, call, *self._slots(captures))
        return Cover(lists, lambda: show(self, q_len=q.shape[-2], kv_len=k.shape[-2], q_offset=q_offset,
                                         panels=("tiles",), **captures))


_by_text: Kept[object, Attention] = Kept(256)  # of texts without captures, for attention()


@_core.quick_line
def attention(q: Array, k: Array, v: Array, *, score: Written | None = None, mask: Written | None = None,
              prob: Written | None = None, sink: Written | None = None, scale: float | None = None,
              target: str = "auto", exact: bool | None = None, lets: Mapping[str, str] | None = None,
              out: Array = None, lse: Array | bool = False, max: Array | bool = False, cu_seqlens: Array = None,
              cu_seqlens_q: Array = None, cu_seqlens_kv: Array = None, max_q_len: int = 0, max_kv_len: int = 0,
              q_offset: int = 0, cover: Cover | None = None, workspace: Array = None, stream: int = 0,
              workers: int = 0, progress: Progress | None = None, parallel_for: ParallelFor | None = None,
              kv_len: Array = None, q_offsets: Array = None, page_table: Array = None, kv_offset: int = 0,
              o_before: Array = None, lse_before: Array = None, fixed_split_size: int = 0,
              sharding: Sharding | None = None, **captures: Capturable) -> Any:
    """softmax(score(scale * q k^T)) v under a mask, in one line. The first call of its kind compiles, later ones run.

    >>> import attune, numpy
    >>> q = numpy.ones((1, 2, 4, 8), "f4")
    >>> o, lse = attune.attention(q, q, q, mask=lambda at: at.q >= at.kv, lse=True)
    >>> o.shape, lse.shape
    ((1, 2, 4, 8), (1, 2, 4))
    """
    plain = not captures and lets is None and type(target) is str and all(
        [x is None or type(x) in (str, float, int, bool) for x in (score, mask, prob, sink, scale, exact)])
    key = (score, mask, prob, sink, scale, target, exact)
    kept = _by_text.get(key) if plain else None
    if kept is None:
        parts = {"score": score, "mask": mask, "prob": prob, "sink": sink}
        spelled, scan = _trace.spell(parts, captures, _arguments.lets(lets))
        kept = Attention._of(spelled, scan.leaves, _arguments.real("scale", scale), target, exact)
        if plain:
            _by_text.put(key, kept)
        if scan.cacheable and lets is None:
            _core.remember(key, tuple(captures), tuple(captures.values()), tuple(scan.key), kept._core,
                           [c.leaf for c in spelled.captures], [p.leaf for p in spelled.params])
    return kept(q, k, v, out=out, lse=lse, max=max, cu_seqlens=cu_seqlens, cu_seqlens_q=cu_seqlens_q,
                cu_seqlens_kv=cu_seqlens_kv, max_q_len=max_q_len, max_kv_len=max_kv_len, q_offset=q_offset,
                cover=cover, workspace=workspace, stream=stream, workers=workers, progress=progress,
                parallel_for=parallel_for, kv_len=kv_len, q_offsets=q_offsets, page_table=page_table,
                kv_offset=kv_offset, o_before=o_before, lse_before=lse_before, fixed_split_size=fixed_split_size,
                sharding=sharding)
