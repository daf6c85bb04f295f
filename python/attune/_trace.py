# python/attune/_trace.py — runs the user's functions on values of the kernel: gives text and the captured tensors
from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

from attune import _arrays
from attune._errors import Error, a_, said
from attune._kept import Kept
from attune._leaves import At, Capture, Param, SinkAt
from attune._place import Place, here
from attune._scan import Component, Replaced, Scan
from attune._text import OPS, Text, write
from attune._values import Bool, Float, Value, as_value

Written: TypeAlias = "str | Callable[..., Any]"
Capturable = Any  # an array, a Param or a number

KINDS = ("score", "mask", "prob", "sink")
_CALLED = {"score": "(s, at)", "mask": "(at)", "prob": "(p, at)", "sink": "(at)"}
_SAMPLES = {"score": "s + attune.f32(at.kv - at.q)", "mask": "at.q >= at.kv",
            "prob": "attune.where(keep, p / rate, 0.0)", "sink": "logits[at.head]"}
RESERVED = frozenset(["let", "true", "false", "inf", "nan", "sum", "s", "p", "b", "h", "q", "kv", "q_len", "kv_len",
                      "origin", "q_begin", "q_end", "kv_begin", "kv_end", *(o for o in OPS if o.isalnum())])
_MOST_KEPT = 512  # traces; the oldest goes first


class Slot(NamedTuple):
    """A captured tensor or a parameter: its name in the text, how expressions see it, and where it comes from."""

    name: str
    kind: str
    rank: int
    leaf: int  # its place among the leaves of the scan


class Spelled(NamedTuple):
    """What the user wrote, as text."""

    texts: dict[str, Text]
    lets: tuple[tuple[str, str], ...]
    captures: tuple[Slot, ...]
    params: tuple[Slot, ...]
    handles: dict[object, Any]  # handles of the core made from it, by scale, target and exactness

    @property
    def key(self) -> object:
        """Equal for equal attentions."""
        return (tuple((k, t.text) for k, t in self.texts.items()), self.lets,
                tuple(c[:3] for c in self.captures), tuple(p[:3] for p in self.params))


class _Written(Scan):
    """The scan of an attention's functions and texts, with the keywords of its call."""

    def __init__(self, keywords: Mapping[str, object]) -> None:
        super().__init__()
        self.keywords = {name: _keyword(name, thing) for name, thing in keywords.items()}
        self.key += [(n, self.refer(t, n)) for n, t in self.keywords.items()]

    def add(self, kind: str, written: Written) -> None:
        self.key += [kind, ("text", written) if isinstance(written, str) else self.refer(written, "function")]


def _keyword(name: str, thing: object) -> object:
    if isinstance(thing, Param) or _arrays.is_array(thing):
        return thing
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(thing, numpy.generic):
        thing = thing.item()
    if isinstance(thing, (int, float)) and not isinstance(thing, bool):
        return Param(thing, name)
    what = "None" if thing is None else f"a {type(thing).__name__}"
    raise Error.at(here(), "capture-type", f"the keyword `{name}` is {what}",
                   "a keyword that is not an option of the call is a captured tensor or a parameter",
                   instead(name, "pass an array, a number or an attune.Param; numpy.array(x) makes an array of a list"))


# Options of other libraries' attentions, and how a call of attune says the same.
_ELSEWHERE = {
    "attn_mask": "mask=lambda at: attn_mask[at.q, at.kv]", "causal": "mask=attune.mods.causal()",
    "dropout_p": "prob=attune.mods.dropout(keep, seed)", "is_causal": "mask=attune.mods.causal()",
    "logits_soft_cap": "score=attune.mods.softcap(cap)", "mask_mod": "mask=lambda at: at.q >= at.kv",
    "score_mod": "score=lambda s, at: s", "sm_scale": "scale=x", "softcap": "score=attune.mods.softcap(cap)",
    "softmax_scale": "scale=x", "window_size": "mask=attune.mods.sliding_window(width)",
}


def instead(name: str, otherwise: str = "") -> str:
    """How a call of attune says what an option of another library's attention does; for other names `otherwise`."""
    return f"write {_ELSEWHERE[name]}" if name in _ELSEWHERE else otherwise


def _check_arguments(kind: str, function: object) -> None:
    if isinstance(function, Component) and (given := type(function).__name__.lower()) in KINDS and given != kind:
        raise Error.at(here(), "wrong-arguments", f"the {kind} is {a_(given.capitalize())}",
                       f"a {kind} is called with {_CALLED[kind]}, and a {given} with {_CALLED[given]}",
                       f"pass it as {given}=")
    while isinstance(function, Component):
        function = function.function
    if _arrays.is_array(function):
        index = {"sink": "at.head"}.get(kind, "at.q, at.kv")
        raise Error.at(here(), "wrong-arguments", f"the {kind} is an array",
                       "it is text, or a function of values of the kernel, which may read an array",
                       f"write lambda {_CALLED[kind][1:-1]}: {'s + ' if kind == 'score' else ''}array[{index}]")
    if not callable(function):
        raise Error.at(here(), "wrong-arguments", f"the {kind} is {said(function)}",
                       "it is text, or a function of values of the kernel", f"pass lambda {_CALLED[kind][1:-1]}: "
                       f"{_SAMPLES[kind]}")
    if not isinstance(function, FunctionType):
        return
    code = function.__code__
    given = len(_CALLED[kind].split(","))
    needed = code.co_argcount - len(function.__defaults__ or ())
    if needed > given or (code.co_argcount < given and not code.co_flags & 0x04):
        takes = f"{needed} argument{'' if needed == 1 else 's'}"
        raise Error.at(_defined(function), "wrong-arguments", f"the {kind} takes {takes}",
                       f"a {kind} is called with {_CALLED[kind]}", f"write lambda {_CALLED[kind][1:-1]}: "
                       f"{_SAMPLES[kind]}")


def _defined(function: FunctionType) -> Place:
    return Place(function.__code__, 0)


def evaluate(kind: str, function: Callable[..., Any]) -> Value:
    first = {"score": Float("input", name="s"), "prob": Float("input", name="p")}.get(kind)
    at = SinkAt() if kind == "sink" else At()
    made = function(at) if first is None else function(first, at)
    place = _defined(function) if isinstance(function, FunctionType) else here()
    if made is None:
        raise Error.at(place, "wrong-result", f"the {kind} returns None", "it must return a value of the kernel",
                       f"return it, e.g. return {_SAMPLES[kind]}")
    if isinstance(made, SinkAt):
        raise Error.at(place, "wrong-result", f"the {kind} returns its coordinates", f"a {kind} is called with "
                       f"{_CALLED[kind]}, in this order", f"write lambda {_CALLED[kind][1:-1]}: {_SAMPLES[kind]}")
    value = as_value(made, place)
    if value._free:
        raise Error.at(value._place or place, "escaped-variable", "the variable of a sum is used outside of it",
                       "it has a value only inside the sum's body", "return what you need from the body of the sum")
    if kind == "mask" and not isinstance(value, Bool):
        raise Error.at(value._place or place, "wrong-result", f"the mask returns {a_(value.word)}",
                       "a mask decides which pairs to keep: it must return a Bool", "compare something, e.g. at.q >= at.kv")
    if kind != "mask" and isinstance(value, Bool):
        raise Error.at(value._place or place, "wrong-result", f"the {kind} returns a Bool", f"a {kind} must return a Float",
                       "a condition belongs in attune.where(...)")
    return value


def free_name(hint: str, taken: set[str]) -> str:
    """A free name of the language, similar to the user's."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in hint)
    name = plain if plain.strip("_") and not plain[0].isdigit() else "t"
    name += "_" if name in RESERVED else ""
    numbered = (name + ("_" if name[-1].isdigit() else "") + str(n) for n in itertools.count(2))
    return next(n for n in itertools.chain([name], numbered) if n not in taken)


class _Names:
    """Names of tensors and Params in texts: keywords first, then those that functions call them by."""

    def __init__(self, scan: Scan, lets: Mapping[str, str]) -> None:
        self.of: dict[int, str] = {id(thing): name for name, thing in scan.keywords.items()}
        self.taken = {*self.of.values(), *lets}
        for thing, hint in zip(scan.leaves, scan.hints):
            self.give(thing, thing.name or hint if isinstance(thing, Param) else hint)

    def give(self, thing: object, hint: str) -> bool:
        """Names a thing, unless it has a name."""
        if id(thing) in self.of:
            return False
        name = self.of[id(thing)] = free_name(hint, self.taken)
        self.taken.add(name)
        return True


def _spell(parts: dict[str, Written], lets: Mapping[str, str], scan: Scan) -> Spelled:
    names = _Names(scan, lets)
    bound = Replaced(scan.keywords, {id(thing): Capture(thing, names.of[id(thing)]) for thing in scan.leaves
                                     if not isinstance(thing, Param)})
    roots: dict[str, Value] = {}
    texts: dict[str, Text] = {}
    for kind, written in parts.items():
        if isinstance(written, str):
            texts[kind] = Text(written, [])
            continue
        _check_arguments(kind, written)
        roots[kind] = evaluate(kind, bound(written))
    read = _leaves(roots.values())
    # Captures and parameters that appear only during tracing: attributes of objects.
    for leaf in read:
        thing = _behind(leaf)
        if names.give(thing, leaf._name if isinstance(leaf, Capture) else leaf.name or "c"):
            scan.cacheable = False
            scan.leaf(thing, names.of[id(thing)])
    everywhere = names.taken | RESERVED | _words(texts)
    for kind, root in roots.items():
        texts[kind] = write(root, lambda leaf: names.of[id(_behind(leaf))], everywhere)
    _warn_of_unread(scan, _words(texts) | {word for text in lets.values() for word in _split(text)})
    slots = _slots(scan, names, {id(_behind(leaf)) for leaf in read})
    return Spelled(
        {k: texts[k] for k in KINDS if k in texts}, tuple(lets.items()),
        tuple(Slot(n, *_arrays.seen_as(x, n), at) for n, x, at in slots if not isinstance(x, Param)),
        tuple(Slot(n, x.kind, 0, at) for n, x, at in slots if isinstance(x, Param)), {})


def _slots(scan: Scan, names: _Names, read: set[int]) -> list[tuple[str, Any, int]]:
    """(name, thing, its place among the leaves) of what texts read, and of all keywords."""
    read |= {id(thing) for thing in scan.keywords.values()}
    slots = [(names.of[id(thing)], thing, at) for at, thing in enumerate(scan.leaves) if id(thing) in read]
    for name, thing in scan.keywords.items():  # one tensor under two names
        if names.of[id(thing)] != name:
            slots.append((name, thing, scan.leaf(thing, name)))
    return slots


def _behind(leaf: Any) -> object:
    """The array of a Capture; a Param is itself."""
    return leaf._array if isinstance(leaf, Capture) else leaf


def _leaves(roots: Any) -> list[Any]:
    """Captures and Params of expressions, in the order of their first use."""
    out: dict[int, Any] = {}
    met: set[int] = set()
    stack = list(roots)[::-1]
    while stack:
        node = stack.pop()
        if id(node) in met:
            continue
        met.add(id(node))
        if node._op in ("read", "param"):
            out.setdefault(id(node._name), node._name)
        stack.extend(reversed(node._args))
    return list(out.values())


def _warn_of_unread(scan: Scan, words: set[str]) -> None:
    """Warns of a keyword that nothing reads: it may be misspelt, and the thing it should replace is read instead."""
    unread = [name for name in scan.keywords if name not in words and name not in scan.asked]
    place = here()
    if unread and place:
        import warnings

        named = ", ".join([f"`{name}`" for name in unread])
        hints = "".join([f"; {instead(name)}" for name in unread if name in _ELSEWHERE])
        warnings.warn_explicit(f"attune: nothing reads {named}: the call has no such option, and no expression uses "
                               f"such a name{hints}", UserWarning, place.code.co_filename, place.line)


def _split(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()


def _words(texts: Mapping[str, Text]) -> set[str]:
    return {word for text in texts.values() for word in _split(text.text)}


_kept: Kept[object, Spelled] = Kept(_MOST_KEPT)


def spell(given: Mapping[str, Written | None], keywords: Mapping[str, object],
          lets: Mapping[str, str]) -> tuple[Spelled, Scan]:
    """What the user wrote as text, and the scan of it, with the tensors and Params that its slots refer to."""
    parts = {kind: written for kind, written in given.items() if written is not None}
    scan = _Written(keywords)
    for kind, written in parts.items():
        scan.add(kind, written)
    key = (tuple(scan.key), tuple(lets.items())) if scan.cacheable else None
    known = _kept.get(key) if key is not None else None
    if known is not None:
        return known, scan
    made = _spell(parts, lets, scan)
    if key is not None and scan.cacheable:
        _kept.put(key, made)
    return made, scan


def text(function: Written, **captures: Capturable) -> str:
    """The text of the language for a function.

    >>> import attune
    >>> attune.text(lambda at: (at.kv <= at.q) & (at.q - at.kv < 256))
    'kv <= q && q - kv < 256'
    """
    if isinstance(function, str):
        return function
    plain: object = function
    while isinstance(plain, Component):
        plain = plain.function
    kind = type(function).__name__.lower() if isinstance(function, Component) else ""
    if kind not in KINDS:
        two = isinstance(plain, FunctionType) and plain.__code__.co_argcount - len(plain.__defaults__ or ()) >= 2
        kind = "score" if two else "mask"
        if kind == "mask":
            return _either(function, captures)
    return spell({kind: function}, captures, {})[0].texts[kind].text


def _either(function: Callable[..., Any], captures: Mapping[str, Capturable]) -> str:
    """A function of `at` alone is a mask, or a sink."""
    try:
        return spell({"mask": function}, captures, {})[0].texts["mask"].text
    except Error as error:
        if error.code != "wrong-result":
            raise
        try:
            return spell({"sink": function}, captures, {})[0].texts["sink"].text
        except Error:
            raise error from None
