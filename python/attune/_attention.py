# python/attune/_attention.py — Attention, to keep and call; attention(), in one line; their gradients and covers
"""Attention: what differs from the plain one is a function or a text; the rest are arrays."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from attune import _arguments, _arrays, _core, _trace
from attune._errors import Error
from attune._kept import Kept
from attune._place import here
from attune._ranks import Shares
from attune._trace import Capturable, Spelled, Written
from attune.expr import Param, _said

Array = Any  # of NumPy, or any library that speaks DLPack
Progress = Callable[[float], object]
ParallelFor = Callable[[int, Callable[[int, int], None]], object]

_TARGETS = {"auto": 0, "cpu": 1, "oracle": 2, "cuda": 3}
_FORWARD, _BACKWARD = 0, 1
_SLOW = 1 << 22  # scores: a call of fewer is done before a hand reaches Ctrl-C; as in core/quick.cpp

_handles: Kept[object, _core.Attention] = Kept(256)
_by_text: Kept[object, Attention] = Kept(256)  # of texts without captures, for attention()


def _handle(spelled: Spelled, scale: float | None, target: str, exact: bool | None) -> _core.Attention:
    if type(target) is not str or target not in _TARGETS:
        raise Error.at(here(), "unknown-target", f"there is no target {target!r}", f"there are {', '.join(_TARGETS)}",
                       "leave it out: attune takes the engine for the device of q")
    if exact is not None and type(exact) is not bool:
        raise _arguments.bad("exact", exact, "True, False or None", "pass one of these")
    way = (scale, target, exact)
    known: _core.Attention | None = spelled.handles.get(way)
    if known is not None:
        return known
    key = (spelled.key, *way)
    known = spelled.handles[way] = _handles.get(key)
    if known is not None:
        return known
    parts = [spelled.texts[k].text if k in spelled.texts else None for k in _trace.KINDS]
    _load_usual()
    try:
        made = _core.Attention(parts, list(spelled.lets), [(c.name, c.kind, c.rank) for c in spelled.captures],
                               [(p.name, p.kind) for p in spelled.params], scale, _TARGETS[target],
                               0 if exact is None else 1 if exact else -1)
    except Error as error:
        raise _placed(error, spelled) from None
    made = spelled.handles[way] = _handles.put(key, made)
    return made


@functools.cache
def _load_usual() -> None:
    """The kernels that the package came with, so that the usual first call on a GPU compiles nothing."""
    bundle = os.path.join(os.path.dirname(__file__), "usual.attune")
    if os.path.exists(bundle):
        _core.load(os.fsencode(bundle))


def _placed(error: Error, spelled: Spelled) -> Error:
    """The Error at the user's own line: the piece of Python that wrote the text, or else the call."""
    for text in spelled.texts.values():
        if error.text == text.text and text.spans:
            bytes_before = [len(error.text[:at].encode()) for at in (error.begin, error.end)]
            return error.moved(text.place(*bytes_before) or here())
    if error.file or error.text:
        return error
    place = here()
    return error.moved(place.spot()._replace(begin=0, end=0) if place else None)


class Gradients(NamedTuple):
    """The results of a backward: of q, k and v, and of captured tensors by name. What was not asked for is None."""

    q: Array
    k: Array
    v: Array
    captured: dict[str, Array]


class Cover:
    """The tiles that a mask leaves to visit, listed once for many calls: `attention.cover(...)`.

    `lists` is None where a call needs none: on the host, for packed sequences, and where a mask, such as a causal one,
    says it without. A notebook shows the tiles.
    """

    def __init__(self, lists: _core.Cover | None, draw: Callable[[], Any]) -> None:
        self.lists, self._draw = lists, draw

    def __bool__(self) -> bool:
        return self.lists is not None

    def __repr__(self) -> str:
        return "<attune.Cover with lists>" if self else "<attune.Cover: no lists are needed>"

    def _repr_svg_(self) -> str:
        return self._draw()._repr_svg_()

    def _repr_html_(self) -> str:
        return self._repr_svg_()


class Attention:
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

    def __init__(self, score: Written | None = None, mask: Written | None = None, prob: Written | None = None,
                 sink: Written | None = None, *, scale: float | None = None, target: str = "auto",
                 exact: bool | None = None, lets: Mapping[str, str] | None = None, **captures: Capturable) -> None:
        parts = {"score": score, "mask": mask, "prob": prob, "sink": sink}
        self._spelled, scan = _trace.spell({k: p for k, p in parts.items() if p is not None}, captures,
                                           _arguments.lets(lets))
        self._leaves = scan.leaves
        self._scale = _arguments.real("scale", scale)
        self._target, self._exact = target, exact
        self._core = _handle(self._spelled, self._scale, target, exact)
        self._keep()

    @classmethod
    def _of(cls, spelled: Spelled, leaves: list[object], scale: float | None, target: str,
            exact: bool | None) -> Attention:
        made = cls.__new__(cls)
        made._spelled, made._leaves, made._scale, made._target, made._exact = spelled, leaves, scale, target, exact
        made._core = _handle(spelled, scale, target, exact)
        made._keep()
        return made

    def _keep(self) -> None:
        """What calls bind by slot, where core/quick.cpp finds it."""
        leaves = self._leaves
        self._arrays: tuple[Array, ...] = tuple([leaves[c.leaf] for c in self._spelled.captures])
        self._params: tuple[Any, ...] = tuple([leaves[p.leaf] for p in self._spelled.params])

    def __reduce__(self) -> Any:
        texts = {k: t._replace(spans=[]) for k, t in self._spelled.texts.items()}  # no places in another process
        return Attention._of, (self._spelled._replace(texts=texts, handles={}), self._leaves, self._scale, self._target,
                               self._exact)

    # ---- what it is

    def __repr__(self) -> str:
        parts = [f"{k}={t.text!r}" for k, t in self._spelled.texts.items()]
        parts += [s.name for s in (*self._spelled.captures, *self._spelled.params)]
        return f"attune.Attention({', '.join(parts)})"

    def explain(self) -> str:
        """What the compiler made of it: the expressions, what it simplified and why, levels, derivatives."""
        return self._core.explain()

    def describe(self) -> dict[str, Any]:
        """The same facts for programs; `digest` names the expressions everywhere.

        >>> import attune
        >>> attune.Attention(mask=attune.mods.causal()).describe()["mask"]
        'kv <= q'
        """
        return json.loads(self._core.describe())

    def grad(self) -> dict[str, str]:
        """The derivatives as text: of the score by s, of the prob mod by p, and what each captured tensor gets.

        >>> import attune
        >>> attune.Attention(score=lambda s, at: s * s).grad()["score"]
        's + s'
        """
        facts = self.describe()
        out = dict(facts["derivative"])
        for scatter in facts["scatters"]:
            read, _, value = scatter["term"].partition(" += ")
            out[read] = f"{out[read]} + {value}" if read in out else value
        return out

    def _repr_html_(self) -> str:
        import html

        facts = self.describe()

        def rows(title: str, pairs: list[tuple[str, str]]) -> str:
            if not pairs:
                return ""
            lines = "".join(f"<tr><td style='padding:0 1em 0 0;opacity:.7;text-align:left;white-space:nowrap'>"
                            f"{html.escape(a)}</td><td style='text-align:left'><code>{html.escape(b)}</code></td></tr>"
                            for a, b in pairs)
            return f"<tr><th colspan='2' style='text-align:left;padding-top:.6em'>{title}</th></tr>{lines}"

        written = facts.get("written", {})
        page = rows("written", list(written.items()))
        simple = [(k, facts[k]) for k in _trace.KINDS if k in facts and k in written and facts[k] != written[k]]
        page += rows("simplified", simple)
        names = {"head": "once a head", "row": "once a query", "col": "once a key", "left": "once a pair"}
        page += rows("levels", [(names[k], x) for k, xs in facts["levels"].items() if k in names for x in xs])
        page += rows("derivative", list(self.grad().items()))
        return f"<table style='border-collapse:collapse'>{page}</table>"

    # ---- calls

    @_core.quick
    def __call__(self, q: Array, k: Array, v: Array, *, out: Array = None, lse: Array | bool = False,
                 max: Array | bool = False, cu_seqlens: Array = None, cu_seqlens_q: Array = None,
                 cu_seqlens_kv: Array = None, max_q_len: int = 0, max_kv_len: int = 0, q_offset: int = 0,
                 cover: Cover | None = None, workspace: Array = None, stream: int = 0, workers: int = 0,
                 progress: Progress | None = None, parallel_for: ParallelFor | None = None, kv_len: Array = None,
                 q_offsets: Array = None, pages: Array = None, kv_offset: int = 0, o_before: Array = None,
                 lse_before: Array = None, piece: int = 0, shares: Shares | None = None,
                 **captures: Capturable) -> Any:
        """The output, of the kind and type of q; with `lse` or `max` a tuple of it and them.

        q is [B, Hq, Sq, D], k [Bk, Hkv, Skv, D], v [Bk, Hkv, Skv, Dv]. Packed: [T, H, D], with the sequences' starts in
        `cu_seqlens`, or `cu_seqlens_q` and `cu_seqlens_kv`. `out`, and `lse` and `max` where they are arrays, are
        written; `lse` is a natural logarithm. `q_offset` is at.q of the first query. `progress` is called with the
        share done.

        A cache: `kv_len` [B] is how many keys each entry has, `q_offsets` [B] where its queries begin. With `pages`
        [B, n], k and v are [pages, Hkv, page, D], and key i of entry b is row i % page of page pages[b, i // page].
        `kv_offset` is at.kv of the first key; `o_before` and `lse_before` are results over other keys, which are merged
        in. With `piece`, a multiple of 128, an entry's bits do not depend on other entries. All integers are i32.

        Over ranks: with `shares` q, k, v and results are this rank's, and every rank makes the call.
        """
        if cu_seqlens is not None:
            cu_seqlens_q = cu_seqlens_kv = cu_seqlens
        given_lse, given_max = lse, max
        out = _result(q, v) if out is None else out
        lse, max = (_sums(q, cu_seqlens_q is not None) if x is True else x for x in (lse, max))
        tensors = (q, k, v, _written(out), _written(lse), _written(max), cu_seqlens_q, cu_seqlens_kv)
        tensors += _apart(kv_len, q_offsets, pages, o_before, lse_before)
        told = shares is not None or _is_told(kv_offset, piece)
        options = self._options(q, k, q_offset, max_q_len, max_kv_len, workers, stream, workspace, cover, progress,
                                parallel_for, told)
        if told:
            options += (_arguments.whole("kv_offset", kv_offset), _arguments.whole("piece", piece))
        if shares is not None:
            options += (_plan(shares), True)
        try:
            self._core.run(_FORWARD, tensors, *self._bound(captures), options)
        except Error as error:
            raise _placed(error, self._spelled) from None
        if type(out) is _core.Memory:
            out = _arrays.finished(out, q)
        if given_lse is False and given_max is False:
            return out
        extra = [_arrays.finished(x, q) for x, asked in ((lse, given_lse), (max, given_max)) if asked is not False]
        return (out, *extra)

    def backward(self, q: Array, k: Array, v: Array, grad_o: Array, *, grad_lse: Array = None, o: Array = None,
                 lse: Array = None, wrt: str | Iterable[str] | None = None, into: Mapping[str, Array] | None = None,
                 cu_seqlens: Array = None, cu_seqlens_q: Array = None, cu_seqlens_kv: Array = None,
                 max_q_len: int = 0, max_kv_len: int = 0, q_offset: int = 0, workspace: Array = None, stream: int = 0,
                 workers: int = 0, progress: Progress | None = None, parallel_for: ParallelFor | None = None,
                 shares: Shares | None = None, sum_captured: bool = True, **captures: Capturable) -> Gradients:
        """The gradients of q, k, v and the captured tensors, from that of the output.

        `wrt` names what is wanted: "q", "k", "v" and captures; by default all that have a gradient. `into` has arrays
        to write some of them to, by the same names. With the forward's `o` and `lse` it is not computed again.

        Over ranks: with `shares`, gradients of captured tensors are those of all ranks together, or with
        `sum_captured=False` of this rank's queries.
        """
        if cu_seqlens is not None:
            cu_seqlens_q = cu_seqlens_kv = cu_seqlens
        none, params, _ = self._slots(captures)
        names = [c.name for c in self._spelled.captures]
        into = _arguments.mapping("into", into, "a dict of names and arrays")
        if isinstance(wrt, str):
            wrt = (wrt,)
        elif isinstance(wrt, Iterable):
            wrt = tuple(wrt)  # an iterator gives its names once
        if wrt is not None and not (type(wrt) is tuple and all(isinstance(name, str) for name in wrt)):
            raise _arguments.bad("wrt", wrt, "a tuple of names", "pass e.g. (\"q\", \"k\", \"v\")")
        if wrt is None:
            read = {c["name"] for c in self.describe()["captures"] if c["used"]} if names else ()
            wrt = ("q", "k", "v", *(c.name for c in self._spelled.captures if c.kind == "f" and c.name in read))
        for name in (*wrt, *into):
            if name not in ("q", "k", "v", *names):
                raise Error.at(here(), "grad-not-captured", f"there is no gradient of `{name}`",
                               f"there are those of {', '.join(['q', 'k', 'v', *names])}", "take one of these")

        def wanted(name: str, array: Array) -> Array:
            if name in into:
                return into[name]
            return _arrays.like(array, tuple(array.shape)) if name in wrt else None

        try:
            own = [wanted(n, x) for n, x in (("q", q), ("k", k), ("v", v))]
        except AttributeError:
            own = [None, None, None]  # no arrays: the core refuses them by name
        grads = tuple(wanted(c.name, x) for c, x in zip(self._spelled.captures, none))
        tensors = (q, k, v, o, lse, None, cu_seqlens_q, cu_seqlens_kv, grad_o, grad_lse, *own)
        options = self._options(q, k, q_offset, max_q_len, max_kv_len, workers, stream, workspace, None, progress,
                                parallel_for, shares is not None)
        if shares is not None:
            options += (0, 0, _plan(shares), bool(sum_captured))
        try:
            self._core.run(_BACKWARD, tensors, none, grads, params, options)
        except Error as error:
            raise _placed(error, self._spelled) from None
        dq, dk, dv = (_arrays.finished(x, q) for x in own)
        done = {c.name: _arrays.finished(g, q) for c, g in zip(self._spelled.captures, grads) if g is not None}
        return Gradients(dq, dk, dv, done)

    def prepare(self, q: Array, k: Array, v: Array, *, workers: int = 0, q_offset: int = 0, cu_seqlens: Array = None,
                max_q_len: int = 0, max_kv_len: int = 0, stream: int = 0, cover: Cover | None = None,
                lse: bool = False, parallel_for: ParallelFor | None = None, kv_len: Array = None,
                q_offsets: Array = None, pages: Array = None, kv_offset: int = 0, o_before: Array = None,
                lse_before: Array = None, piece: int = 0, **captures: Capturable) -> dict[str, int]:
        """Compiles what a call will need, and tells how many bytes it works in: {"workspace": …, "cover": …}.

        >>> import attune, numpy
        >>> q = numpy.ones((1, 1, 4, 8), "f4")
        >>> sorted(attune.Attention().prepare(q, q, q))
        ['cover', 'workspace']
        """
        out = _result(q, v)
        sums = _sums(q, cu_seqlens is not None) if lse else None
        tensors = (q, k, v, _written(out), sums, None, cu_seqlens, cu_seqlens)
        tensors += _apart(kv_len, q_offsets, pages, o_before, lse_before)
        told = _is_told(kv_offset, piece)
        options = self._options(q, k, q_offset, max_q_len, max_kv_len, workers, stream, None, cover, None, parallel_for,
                                told)
        if told:
            options += (_arguments.whole("kv_offset", kv_offset), _arguments.whole("piece", piece))
        try:
            workspace, lists = self._core.prepare(_FORWARD, tensors, *self._bound(captures), options)
        except Error as error:
            raise _placed(error, self._spelled) from None
        return {"workspace": workspace, "cover": lists}

    def cover(self, q: Array, k: Array, v: Array, *, q_offset: int = 0, workspace: Array = None, stream: int = 0,
              **captures: Capturable) -> Cover:
        """Lists once the tiles that the mask leaves to visit, for many calls like this one: `cover=` of those calls."""
        out = _result(q, v)
        options = self._options(q, k, q_offset, 0, 0, 0, stream, workspace, None, None, None)
        bound = self._bound(captures)
        try:
            lists = self._core.cover((q, k, v, _written(out)), bound[0], bound[2], options)
        except Error as error:
            raise _placed(error, self._spelled) from None
        from attune._picture import show

        return Cover(lists, lambda: show(self, q_len=q.shape[-2], kv_len=k.shape[-2], q_offset=q_offset,
                                         panels=("tiles",), **captures))

    # ---- from the arguments of Python to those of the core

    def _slots(self, given: Mapping[str, Capturable]) -> tuple[tuple[Array, ...], tuple[float, ...], None]:
        """The captures and the parameters of a call, by slot."""
        captures, params = self._spelled.captures, self._spelled.params
        if not given:
            return self._arrays, tuple([p.value for p in self._params]), None
        known = {s.name for s in (*captures, *params)}
        for name in given:
            if name not in known:
                raise Error.at(here(), "unknown-capture", f"this attention has no capture or parameter `{name}`",
                               f"it has {', '.join(sorted(known)) or 'none'}",
                               "captures are declared where the attention is made")
        arrays = []
        for c, own in zip(captures, self._arrays):
            array = given.get(c.name, own)
            if c.name in given and (not _arrays.is_array(array) or _arrays.seen_as(array, c.name) != (c.kind, c.rank)):
                words = {"f": "floats", "i": "integers", "b": "bools"}
                raise Error.at(here(), "capture-type", f"capture `{c.name}` changes its kind",
                               f"this attention was made for {words[c.kind]} of rank {c.rank}",
                               "pass such an array, or make another attention")
            arrays.append(array)
        numbers = []
        for p, param in zip(params, self._params):
            number = given.get(p.name, param)
            number = number.value if isinstance(number, Param) else number
            whole = isinstance(number, int) and not isinstance(number, bool)
            number = float(number) if whole and number.bit_length() < 1024 else number
            if not isinstance(number, float) or (p.kind == "i" and not whole):
                raise Error.at(here(), "param-type", f"parameter `{p.name}` is given {_said(number)}",
                               f"it is {'an Int' if p.kind == 'i' else 'a Float'}", "pass a number of that type")
            numbers.append(number)
        return tuple(arrays), tuple(numbers), None

    def _bound(self, given: Mapping[str, Capturable]) -> tuple[tuple[Array, ...], None, tuple[float, ...]]:
        arrays, numbers, none = self._slots(given)
        return arrays, none, numbers

    @staticmethod
    def _options(q: Array, k: Array, q_offset: int, max_q_len: int, max_kv_len: int, workers: int, stream: int,
                 workspace: Array, cover: Cover | None, progress: Progress | None,
                 parallel_for: ParallelFor | None, all_of_them: bool = False) -> tuple[Any, ...] | None:
        try:
            slow = math.prod(q.shape[:-1]) * k.shape[-2] > _SLOW
        except (AttributeError, IndexError, TypeError):
            slow = False
        usual = all([type(x) is int and x == 0 for x in (q_offset, max_q_len, max_kv_len, workers, stream)])
        simple = workspace is None and cover is None and progress is None and parallel_for is None
        if usual and simple and not slow and not all_of_them:
            return None
        if cover is not None and not isinstance(cover, Cover):
            raise _arguments.bad("cover", cover, "what attention.cover(...) gave", "pass that, or leave it out")
        whole = _arguments.whole
        return (whole("q_offset", q_offset), whole("max_q_len", max_q_len), whole("max_kv_len", max_kv_len),
                whole("workers", workers), whole("stream", stream, 0, 2**64 - 1), workspace,
                cover.lists if cover is not None else None, _arguments.function("progress", progress, "the share done"),
                _arguments.function("parallel_for", parallel_for, "a number of tasks and what runs one"), slow)


def _result(q: Array, v: Array) -> Array:
    """A new output; q itself where these are no arrays, which the core refuses by name."""
    try:
        return _arrays.result(q, (*q.shape[:-1], v.shape[-1]))
    except (AttributeError, IndexError):
        return q


def _sums(q: Array, packed: bool) -> Array:
    """A new array of a number for each row; None as for `_result`."""
    try:
        return _arrays.empty(q, (q.shape[1], q.shape[0]) if packed else tuple(q.shape[:-1]), f32=True)
    except (AttributeError, IndexError):
        return None


def _plan(shares: Any) -> _core.Shares:
    if not isinstance(shares, Shares):
        raise _arguments.bad("shares", shares, "an attune.Shares", "make them of the attentions and the whole call")
    return shares._core


def _apart(*tensors: Array) -> tuple[Array, ...]:
    """What a forward says of its keys apart from its queries, where the core takes it: after those of a backward."""
    return (None,) * 5 + tensors if any([x is not None for x in tensors]) else ()


def _is_told(*numbers: int) -> bool:
    return any([type(x) is not int or x != 0 for x in numbers])


def _written(array: Any) -> Any:
    """What the core writes to: None where nothing was asked for."""
    return None if array is False else array


@_core.quick_line
def attention(q: Array, k: Array, v: Array, *, score: Written | None = None, mask: Written | None = None,
              prob: Written | None = None, sink: Written | None = None, scale: float | None = None,
              target: str = "auto", exact: bool | None = None, lets: Mapping[str, str] | None = None,
              out: Array = None, lse: Array | bool = False, max: Array | bool = False, cu_seqlens: Array = None,
              cu_seqlens_q: Array = None, cu_seqlens_kv: Array = None, max_q_len: int = 0, max_kv_len: int = 0,
              q_offset: int = 0, cover: Cover | None = None, workspace: Array = None, stream: int = 0,
              workers: int = 0, progress: Progress | None = None, kv_len: Array = None, q_offsets: Array = None,
              pages: Array = None, kv_offset: int = 0, o_before: Array = None, lse_before: Array = None,
              piece: int = 0, shares: Shares | None = None, **captures: Capturable) -> Any:
    """softmax(score(scale * q k^T)) v under a mask, in one line. The first call of its kind compiles, later ones run.

    >>> import attune, numpy
    >>> q = numpy.ones((1, 2, 4, 8), "f4")
    >>> o, lse = attune.attention(q, q, q, mask=lambda at: at.q >= at.kv, lse=True)
    >>> o.shape, lse.shape
    ((1, 2, 4, 8), (1, 2, 4))
    """
    plain = not captures and not lets and type(target) is str and all(
        [x is None or type(x) in (str, float, int, bool) for x in (score, mask, prob, sink, scale, exact)])
    key = (score, mask, prob, sink, scale, target, exact)
    kept = _by_text.get(key) if plain else None
    if kept is None:
        parts = {"score": score, "mask": mask, "prob": prob, "sink": sink}
        spelled, scan = _trace.spell({k: p for k, p in parts.items() if p is not None}, captures,
                                     _arguments.lets(lets))
        kept = Attention._of(spelled, scan.leaves, _arguments.real("scale", scale), target, exact)
        if plain:
            _by_text.put(key, kept)
        if scan.cacheable and not lets:
            _core.remember(key[:4], key[4:], tuple(captures), tuple(captures.values()), tuple(scan.key), kept._core,
                           [c.leaf for c in spelled.captures], [p.leaf for p in spelled.params])
    # Only what is given: the usual call then stays the usual call.
    apart = {name: x for name, x in (("kv_len", kv_len), ("q_offsets", q_offsets), ("pages", pages),
                                     ("o_before", o_before), ("lse_before", lse_before),
                                     ("shares", shares)) if x is not None}
    apart.update({name: x for name, x in (("kv_offset", kv_offset), ("piece", piece)) if type(x) is not int or x})
    return kept(q, k, v, out=out, lse=lse, max=max, cu_seqlens=cu_seqlens, cu_seqlens_q=cu_seqlens_q,
                cu_seqlens_kv=cu_seqlens_kv, max_q_len=max_q_len, max_kv_len=max_kv_len, q_offset=q_offset,
                cover=cover, workspace=workspace, stream=stream, workers=workers, progress=progress, **apart)
