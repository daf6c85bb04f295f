# python/attune/torch/_mod.py — turns a score_mod and a mask_mod into text, and decides when an earlier text still holds
from __future__ import annotations

import json
import random
import sys
import weakref
from collections.abc import Callable
from inspect import CO_VARARGS
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attune import _core
from attune._errors import Error, said
from attune._kept import Kept
from attune._place import Place, line
from attune._scan import Scan, is_known, referred
from attune.torch import _engine
from attune.torch._functions import Listening
from attune.torch._value import TIGHT, Trace, Value, as_kind, refuse, refuse_random, scalar

Mod = Callable[..., Any]


class Texts(NamedTuple):
    """The four expressions; "" is none."""

    score: str = ""
    mask: str = ""
    prob: str = ""
    sink: str = ""


class Spelled:
    """Mods as text, with the tensors and integers that the text reads.

    Its handles of the core are shared by all that spell alike: tensors and integers are arguments of a call.
    """

    def __init__(self, texts: Texts, names: tuple[str, ...] = (), captures: tuple[Tensor, ...] = (),
                 ints: tuple[int, ...] = (), written: list[tuple[str, Place | None]] | None = None,
                 typed: bool = False) -> None:
        self.texts, self.names, self.captures, self.ints = texts, names, captures, ints
        self.written = written or []
        self.typed = typed
        self.handles: dict[object, _core.Attention] = {}
        self.calls: dict[object, _core.TorchCall] = {}  # by scale, oracle and engine

    def call(self, scale: float | None, oracle: bool) -> _core.TorchCall:
        """Its calls with torch's tensors."""
        key = (scale, oracle, _engine.way)
        return self.calls.get(key) or self.calls.setdefault(key, _core.TorchCall(self.handle(scale, oracle), self.ints))

    def handle(self, scale: float | None, oracle: bool) -> _core.Attention:
        """The attention of the core for a scale, computed by the oracle or by the engine that was chosen."""
        way = (scale, oracle, _engine.way)
        made = self.handles.get(way)
        if made is None:
            made = self.handles[way] = self._made(*way)
        return made

    def _made(self, scale: float | None, oracle: bool, way: tuple[int, int]) -> _core.Attention:
        captures = [(n, seen_as(t), t.dim()) for n, t in zip(self.names, self.captures)]
        key = (self.texts, tuple(captures), len(self.ints), scale, oracle, way)
        known = _handles.get(key)
        if known is not None:
            return known
        params = [(f"n{i}", "i") for i in range(len(self.ints))]
        try:
            made = _core.Attention([t or None for t in self.texts], [], captures, params, scale,
                                   2 if oracle else way[0], way[1])
        except Error as error:
            raise self.placed(error) from None
        return _handles.put(key, made)

    def joined(self, prob: str, sink: str, captures: dict[str, Tensor]) -> Spelled:
        """With a prob mod and a sink, and what those capture."""
        if not prob and not sink:
            return self
        return Spelled(self.texts._replace(prob=prob, sink=sink), (*self.names, *captures),
                       (*self.captures, *captures.values()), self.ints, self.written)

    def placed(self, error: Error) -> Error:
        """The Error at the user's line: the shortest piece that was written and holds the wrong text."""
        if error.text and error.text in self.texts:
            wrong = error.text[error.begin:error.end]
            around = [(len(text), where) for text, where in self.written if wrong and wrong in text and where]
            if around:
                return error.moved(min(around, key=lambda one: one[0])[1])
        return error if error.file else error.moved(line())


_handles: Kept[object, _core.Attention] = Kept(512)
_PLAIN = {"score": "s", "mask": "true", "prob": "p", "sink": ""}  # what is not written


def texts_of(digest: str) -> Texts:
    """The simplified attention with this digest: differently written attentions may be equal. No texts if it has been
    forgotten."""
    for _, handle in _handles.items():
        of = json.loads(handle.describe())
        if of["digest"] == digest:
            return Texts(*["" if of.get(kind, plain) == plain else of[kind] for kind, plain in _PLAIN.items()])
    return Texts()


def seen_as(tensor: Tensor) -> str:
    """How expressions see its elements: 'f', 'i' or 'b'."""
    return "f" if tensor.is_floating_point() else "b" if tensor.dtype == torch.bool else "i"


# ---- running the mods


def spell(score: Mod | None, mask: Mod | None, device: torch.device, names: dict[int, str]) -> tuple[Spelled, bool]:
    """Both as text, and whether the text holds while what they refer to stays the same."""
    if not torch.compiler.is_compiling():
        _check_arguments("mask_mod", mask, "b, h, q_idx, kv_idx", "q_idx >= kv_idx")
        _check_arguments("score_mod", score, "score, b, h, q_idx, kv_idx", "score + bias[h]")
    trace = Trace(device, names)
    score_text = mask_text = ""
    with Listening(trace):
        at = [scalar(trace, "i", (n, TIGHT), natural=True) for n in ("b", "h", "q", "kv")]
        if mask is not None:
            mask_text = trace.whole(_result(trace, mask(*at), "mask_mod", "b", "q_idx >= kv_idx"))
        if score is not None:
            made = score(scalar(trace, "f", ("s", TIGHT)), *at)
            score_text = trace.whole(_result(trace, made, "score_mod", "f", "score + bias[h]"))
    texts = Texts(score_text, "" if mask_text == "true" else mask_text)
    read = [n for n, name in enumerate(trace.called) if f"{name}[" in score_text or f"{name}[" in mask_text]
    return Spelled(texts, tuple([trace.called[n] for n in read]), tuple([trace.captures[n] for n in read]),
                   tuple(trace.ints), trace.written, trace.typed), trace.lasting


def _check_arguments(mod: str, function: Any, called: str, sample: str) -> None:
    fix = f"write lambda {called}: {sample}"
    if function is not None and not callable(function):
        refuse("wrong-arguments", f"the {mod} is {said(function)}", "it is a function of values of the kernel", fix)
    own = isinstance(function, MethodType)
    plain = function.__func__ if own else function
    if not isinstance(plain, FunctionType):
        return
    code, given = plain.__code__, len(called.split(",")) + own
    needed = code.co_argcount - len(plain.__defaults__ or ())
    if needed > given or (code.co_argcount < given and not code.co_flags & CO_VARARGS):
        takes = needed - own
        raise Error.at(Place(code, 0), "wrong-arguments", f"the {mod} takes {takes} argument{'' if takes == 1 else 's'}",
                       f"a {mod} is called with ({called})", fix)


def _result(trace: Trace, made: Any, mod: str, kind: str, sample: str) -> Value:
    """A mod's result, as a value of its kind."""
    if made is None:
        refuse("wrong-result", f"the {mod} returns None", "it must return one value", f"return it, e.g. return {sample}")
    value = trace.value(made)
    if value.numel() != 1:
        refuse("wrong-result", f"the {mod} returns a row of shape {list(value.shape)}",
               "it must return one value for each pair of positions", "index the tensor fully, or sum over the row")
    if kind == "b" and value.kind != "b":
        word = "a Float" if value.kind == "f" else "an Int"
        refuse("wrong-result", f"the {mod} returns {word}", "a mask_mod decides which pairs to keep: it must return bools",
               "compare something: x != 0")
    return as_kind(value.reshape(()) if value.shape else value, kind)


# ---- while what they refer to stays the same


class _Scan(Scan):
    """The scan of a score_mod and a mask_mod, for the very tensors that they refer to: tracing reads shapes."""

    constants = (*Scan.constants, torch.dtype, torch.device, torch.Size)

    def is_array(self, thing: object) -> bool:
        return isinstance(thing, Tensor)

    def array(self, thing: Any, name: str) -> object:
        return ("array", "f", 0, self.leaf(thing, name))  # the same tensor is of the same kind

    def attribute(self, thing: object, name: str) -> object:
        return self.refer(thing, name)

    def function(self, function: FunctionType) -> object:
        if not is_known(function):
            for name, thing, _ in referred(function, self.keywords):
                if _draws(thing):
                    refuse_random(f"`{name}`", Place(function.__code__, 0))
                if "random" in function.__code__.co_names and thing is sys.modules.get("numpy"):
                    refuse_random(f"`{name}.random`", Place(function.__code__, 0))
        return super().function(function)

    def other(self, thing: object, name: str) -> object:
        if isinstance(thing, (list, dict)):  # to name the tensors in it
            for one in thing.values() if isinstance(thing, dict) else thing:
                if isinstance(one, Tensor):
                    self.leaf(one, "t")
        return super().other(thing, name)


def _draws(thing: object) -> bool:
    """True for random numbers of Python and NumPy, and what draws them."""
    of = thing.__self__ if isinstance(thing, (MethodType, BuiltinFunctionType)) else thing
    if of is random or isinstance(of, random.Random):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and (
        of is numpy.random or isinstance(of, (numpy.random.Generator, numpy.random.RandomState)))


class _Entry(NamedTuple):
    score: Any  # weak references, or None
    mask: Any
    device: torch.device
    meaning: _core.Meaning
    spelled: Spelled


_entries: dict[tuple[int, int], _Entry] = {}
_plain = Spelled(Texts())


def spelled_of(score: Mod | None, mask: Mod | None, device: torch.device) -> Spelled:
    """Both as text; the earlier text if it still holds."""
    if score is None and mask is None:
        return _plain
    key = (id(score), id(mask))
    entry = _entries.get(key)
    if entry is not None and entry.device == device and entry.meaning.stays(score, mask):
        return entry.spelled
    scan = _Scan()
    meaning = tuple([scan.refer(mod, "t") for mod in (score, mask)])
    made, lasting = spell(score, mask, device, {id(t): name for t, name in zip(scan.leaves, scan.hints)})
    if lasting and scan.cacheable:
        def gone(_: object, entries: dict[Any, _Entry] = _entries) -> None:  # globals are None when Python ends
            entries.pop(key, None)

        try:
            first, second = (None if f is None else weakref.ref(f, gone) for f in (score, mask))
            _entries[key] = _Entry(first, second, device, _core.Meaning(meaning, scan.leaves), made)
        except TypeError:  # a callable that has no weak references
            pass
    return made
