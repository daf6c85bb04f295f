# python/attune/_mod.py — a compiled Mod: expressions, their captures and parameters, and queries; names of engines
from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from attune import _arguments, _arrays, _core, _trace
from attune._errors import Error, said
from attune._kept import Kept
from attune._leaves import Param
from attune._place import here, line
from attune._trace import Capturable, Slot, Spelled, Written

TARGETS = {"auto": 0, "cpu": 1, "oracle": 2, "cuda": 3}  # as attune/c.h has them
_EMULATED = "emulated:"
NAMES = ", ".join([*TARGETS, f"{_EMULATED}sm_80", f"{_EMULATED}sm_90a"])


def is_target(target: Any) -> bool:
    """True for the name of an engine, and for "emulated:" with any GPU."""
    return type(target) is str and (target in TARGETS or target.startswith(_EMULATED))


def number_of(target: str) -> int:
    """The core's number of a target. Raises an Error for a GPU that cannot be emulated."""
    return _core.emulated(target.removeprefix(_EMULATED)) if target.startswith(_EMULATED) else TARGETS[target]


def exactness(exact: Any) -> int:
    """The core's number of what `exact` asks for."""
    if exact is not None and type(exact) is not bool:
        raise _arguments.bad("exact", exact, "True, False or None", "pass one of these")
    return 0 if exact is None else 1 if exact else -1


Array = Any  # of NumPy, or any library that speaks DLPack
M = TypeVar("M", bound="Mod")

_handles: Kept[object, _core.Attention] = Kept(256)


def handle(spelled: Spelled, scale: float | None, target: str, exact: bool | None) -> _core.Attention:
    """The core's attention, shared by all Mods with the same text."""
    if not is_target(target):
        raise Error.at(here(), "unknown-target", f"there is no target {target!r}", f"there are {NAMES}",
                       "leave it out: attune takes the engine for the device of q")
    wanted = exactness(exact)
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
                               [(p.name, p.kind) for p in spelled.params], scale, number_of(target), wanted)
    except Error as error:
        raise placed(error, spelled) from None
    made = spelled.handles[way] = _handles.put(key, made)
    return made


@functools.cache
def _load_usual() -> None:
    """Loads the kernels that the package contains, so that common first calls on a GPU compile nothing."""
    bundle = os.path.join(os.path.dirname(__file__), "usual.attune")  # usual.py writes it
    if os.path.exists(bundle):
        _core.load(os.fsencode(bundle))


def placed(error: Error, spelled: Spelled) -> Error:
    """The Error at the user's own line: the piece of Python that wrote the text, or else the call."""
    for text in spelled.texts.values():
        if error.text == text.text and text.spans:
            bytes_before = [len(error.text[:at].encode()) for at in (error.begin, error.end)]
            return error.moved(text.place(*bytes_before) or here())
    if error.file or error.text:
        return error
    return error.moved(line())


class Mod:
    """Score, mask, prob mod and sink, with what they capture. `Attention` adds calls."""

    def __init__(self, score: Written | None = None, mask: Written | None = None, prob: Written | None = None,
                 sink: Written | None = None, *, scale: float | None = None, target: str = "auto",
                 exact: bool | None = None, lets: Mapping[str, str] | None = None, **captures: Capturable) -> None:
        parts = {"score": score, "mask": mask, "prob": prob, "sink": sink}
        spelled, scan = _trace.spell(parts, captures, _arguments.lets(lets))
        self._set(spelled, scan.leaves, _arguments.real("scale", scale), target, exact)

    @classmethod
    def _of(cls: type[M], spelled: Spelled, leaves: list[object], scale: float | None, target: str,
            exact: bool | None) -> M:
        made = cls.__new__(cls)
        made._set(spelled, leaves, scale, target, exact)
        return made

    def _set(self, spelled: Spelled, leaves: list[Any], scale: float | None, target: str, exact: bool | None) -> None:
        self._spelled, self._leaves, self._scale, self._target, self._exact = spelled, leaves, scale, target, exact
        self._core = handle(spelled, scale, target, exact)
        # What calls bind by slot: core/numpy/quick.cpp finds it here.
        self._arrays: tuple[Array, ...] = tuple([leaves[c.leaf] for c in spelled.captures])
        self._params: tuple[Any, ...] = tuple([leaves[p.leaf] for p in spelled.params])

    def __reduce__(self) -> Any:
        texts = {k: t._replace(spans=[]) for k, t in self._spelled.texts.items()}  # no places in another process
        return type(self)._of, (self._spelled._replace(texts=texts, handles={}), self._leaves, self._scale, self._target,
                               self._exact)

    def _slots(self, given: Mapping[str, Capturable]) -> tuple[tuple[Array, ...], tuple[float, ...]]:
        """The captures and the parameters of a call, by slot."""
        captures, params = self._spelled.captures, self._spelled.params
        if not given:
            return self._arrays, tuple([p.value for p in self._params])
        known = {s.name for s in (*captures, *params)}
        for name in given:
            if name not in known:
                raise Error.at(here(), "unknown-capture", f"this attention has no capture or parameter `{name}`",
                               f"it has {', '.join(sorted(known)) or 'none'}",
                               _trace.instead(name, "captures are declared") + " where the attention is made")
        arrays = [_array(c, given[c.name]) if c.name in given else own for c, own in zip(captures, self._arrays)]
        return tuple(arrays), tuple([_number(p, given.get(p.name, own)) for p, own in zip(params, self._params)])

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


def _array(slot: Slot, array: Any) -> Any:
    if not _arrays.is_array(array) or _arrays.seen_as(array, slot.name) != (slot.kind, slot.rank):
        words = {"f": "floats", "i": "integers", "b": "bools"}
        raise Error.at(here(), "capture-type", f"capture `{slot.name}` changes its type",
                       f"this attention was made for {words[slot.kind]} of rank {slot.rank}",
                       "pass such an array, or make another attention")
    return array


def _number(slot: Slot, number: Any) -> float:
    number = number.value if isinstance(number, Param) else number
    numpy = sys.modules.get("numpy")
    number = number.item() if numpy is not None and isinstance(number, numpy.generic) else number
    whole = isinstance(number, int) and not isinstance(number, bool)
    number = float(number) if whole and number.bit_length() < 1024 else number
    if not isinstance(number, float) or (slot.kind == "i" and not whole):
        raise Error.at(here(), "param-type", f"parameter `{slot.name}` is given {said(number)}",
                       f"it is {'an Int' if slot.kind == 'i' else 'a Float'}", "pass a number of that type")
    return number
