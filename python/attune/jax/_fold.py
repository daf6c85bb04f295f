# python/attune/jax/_fold.py — mods whose batch index counts mapped entries too, for a vmap that is one call
from __future__ import annotations

import itertools
import re
from typing import Any, NamedTuple

from attune._text import DRAWS
from attune._trace import RESERVED

Parts = tuple[str | None, ...]
Pairs = tuple[tuple[str, str], ...]
Captures = tuple[tuple[str, str, int], ...]
_MOST_DIMENSIONS = 4  # of a captured array


class Folded(NamedTuple):
    """The texts, and which captures have their mapped entries and batch entries in one dimension."""

    parts: Parts
    lets: Pairs
    captures: Captures
    params: Pairs
    merged: frozenset[int]

    def capture(self, slot: int, array: Any) -> Any:
        """A captured array with a first dimension of mapped entries, as the texts read it."""
        return array.reshape(-1, *array.shape[2:]) if slot in self.merged else array


def may_fold(parts: Parts, lets: Pairs) -> bool:
    """False if a text draws random numbers, which depend on the batch entry."""
    return not any(re.search(DRAWS, text) for text in _texts(parts, lets))


def _texts(parts: Parts, lets: Pairs) -> list[str]:
    return [text for text in (*parts, *[t for _, t in lets]) if text]


def reads(text: str, name: str) -> list[tuple[int, int, list[str]]]:
    """Where `text` reads a capture: the begin and the end of its index, and the index of each dimension."""
    out = []
    for found in re.finditer(rf"\b{re.escape(name)}\s*\[", text):
        begin = at = found.end()
        depth, pieces = 0, [begin]
        while at < len(text) and (depth or text[at] != "]"):
            depth += (text[at] in "([{") - (text[at] in ")]}")
            if text[at] == "," and not depth:
                pieces.append(at + 1)
            at += 1
        out.append((begin, at, [text[a:b].strip() for a, b in zip(pieces, [*[p - 1 for p in pieces[1:]], at])]))
    return out


def follows(texts: list[str], name: str, dimension: int, index: str) -> bool:
    """True if every read of a capture has this index at this dimension."""
    found = [pieces for text in texts for _, _, pieces in reads(text, name)]
    return all([len(pieces) > dimension and pieces[dimension] == index for pieces in found])


def rewritten(parts: Parts, lets: Pairs, captures: Captures, params: Pairs, mapped: tuple[bool, ...],
              shapes: tuple[tuple[int, ...], ...], batch: int) -> Folded | None:
    """The texts for arrays whose batch entries are those of all mapped entries, `batch` each. `mapped` captures have
    them as a first dimension. None if a capture would have too many dimensions."""
    texts = _texts(parts, lets)
    taken = {*RESERVED, *[word for text in texts for word in re.findall(r"\w+", text)],
             *[name for name, *_ in (*captures, *params, *lets)]}
    count = next(n for n in (f"entries{i}" for i in itertools.count(1)) if n not in taken)
    outer, inner = ("b", "0") if batch == 1 else (f"b / {count}", f"(b % {count})")
    merged, made = set(), list(captures)
    for slot, ((name, kind, rank), is_mapped) in enumerate(zip(captures, mapped)):
        if not is_mapped:
            continue
        if rank and shapes[slot][0] == batch and follows(texts, name, 0, "b"):
            merged.add(slot)
        elif rank < _MOST_DIMENSIONS:
            made[slot] = (name, kind, rank + 1)
        elif rank and shapes[slot][0] == 1 and follows(texts, name, 0, "0"):
            merged.add(slot)
        else:
            return None

    def one(text: str) -> str:
        keep, edits = "\x00", []  # marks an index that is final
        for slot, (name, *_) in enumerate(captures):
            if mapped[slot]:
                edits += [(begin, end, slot, pieces) for begin, end, pieces in reads(text, name)]
        for begin, _, slot, pieces in sorted(edits, reverse=True):  # from the right: places to the left stay
            if slot in merged:
                skipped = text.index(pieces[0], begin) + len(pieces[0])
                index = keep if pieces[0] == "b" else outer.replace("b", keep)
                text = text[:begin] + index + text[skipped:]
            else:
                comma = ", " if pieces != [""] else ""
                text = text[:begin] + outer.replace("b", keep, 1) + comma + text[begin:]
        return re.sub(r"\bb\b", inner, text).replace(keep, "b")

    parts = tuple([text and one(text) for text in parts])
    lets = tuple([(name, one(text)) for name, text in lets])
    if any(re.search(rf"\b{count}\b", text) for text in _texts(parts, lets)):
        params = (*params, (count, "i"))
    return Folded(parts, lets, tuple(made), params, frozenset(merged))


def moved(parts: Parts, lets: Pairs, captures: Captures, own: dict[str, tuple[str | None, ...]],
          first: dict[str, str]) -> tuple[Parts, Pairs]:
    """The texts for a part of the batch entries or heads. `first` has the name of a captured number for `b` or `h`, the
    first one of the part. Where `own` names a dimension of a capture, the array has only the part's."""
    def one(text: str) -> str:
        places = []
        for name, *_ in captures:
            for at, _, pieces in reads(text, name):
                for label, piece in zip(own.get(name, ()), pieces):
                    at = text.index(piece, at)
                    if label in first:
                        places.append(at)
                    at += len(piece)
        kept = set(places)
        return re.sub(r"\b[bh]\b", lambda found: found[0] if found.start() in kept or found[0] not in first else
                      f"({found[0]} + {first[found[0]]}[])", text)

    return tuple([text and one(text) for text in parts]), tuple([(name, one(text)) for name, text in lets])
