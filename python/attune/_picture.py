# python/attune/_picture.py — a mask's tiles, scores and probabilities as a picture; tiles listed for many calls
from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike

from attune import _arguments, _arrays, _core
from attune._errors import Error
from attune._mod import Array, Mod, placed
from attune._place import here
from attune._trace import Capturable, Written

_PANELS = {"tiles": 1, "score": 2, "prob": 4}


class Picture:
    """An SVG. A notebook shows it; `save` writes it."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the SVG."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg)

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<attune.Picture of {len(self.svg)} bytes: .save('picture.svg')>"


def show(attention: Mod | None = None, *, score: Written | None = None, mask: Written | None = None,
         prob: Written | None = None, sink: Written | None = None, q: Array = None, k: Array = None,
         q_len: int | None = None, kv_len: int | None = None, q_offset: int = 0, tile: tuple[int, int] = (16, 16),
         batch: int = 0, head: int = 0, panels: tuple[str, ...] = (), scale: float | None = None,
         lets: Mapping[str, str] | None = None, save: str | PathLike[str] | None = None,
         **captures: Capturable) -> Picture:
    """Draws which tiles a mask leaves, what the score is for each pair, and what becomes of it in the softmax.

    One batch entry and head. With `q` and `k` the scores are theirs; without them q . k is 0, and the picture shows
    what the score adds. `panels` are of "tiles", "score" and "prob"; by default what there is to see.

    >>> import attune
    >>> attune.show(mask="kv <= q", q_len=64).svg[:4]
    '<svg'
    """
    if attention is None:
        attention = Mod(score, mask, prob, sink, scale=scale, lets=lets, **captures)
        captures = {}
    for panel in panels:
        if panel not in _PANELS:
            raise Error.at(here(), "bad-choice", f"there is no panel {panel!r}", f"there are {', '.join(_PANELS)}",
                           "take some of these")
    if q is not None and k is not None and _arrays.is_array(q) and _arrays.is_array(k):
        q_len, kv_len = q.shape[-2], k.shape[-2]
    whole = _arguments.whole
    q_len, q_offset = whole("q_len", 128 if q_len is None else q_len, 1), whole("q_offset", q_offset)
    kv_len = whole("kv_len", q_offset + q_len if kv_len is None else kv_len, 1)
    if not isinstance(tile, tuple) or len(tile) != 2:
        raise _arguments.bad("tile", tile, "the queries and the keys of a tile", "pass two whole numbers: (16, 16)")
    tile = whole("tile", tile[0], 1), whole("tile", tile[1], 1)
    where = {"q_len": q_len, "kv_len": kv_len, "q_offset": q_offset, "tile_q": tile[0], "tile_kv": tile[1],
             "batch": whole("batch", batch), "head": whole("head", head)}
    try:
        svg = attention._core.draw(where, *attention._slots(captures), q, k,
                                   sum(_PANELS[p] for p in dict.fromkeys(panels)))
    except Error as error:
        raise placed(error, attention._spelled) from None
    picture = Picture(svg)
    if save is not None:
        picture.save(save)
    return picture


class Cover:
    """The tiles that a mask leaves to visit, listed once for many calls: `attention.cover(...)`.

    `lists` is None where a call needs none: on the host, for packed sequences, and where a mask, such as a causal one,
    says it without. A notebook shows the tiles.
    """

    def __init__(self, lists: _core.Cover | None, draw: Callable[[], Picture]) -> None:
        self.lists, self._draw = lists, draw

    def __bool__(self) -> bool:
        return self.lists is not None

    def __repr__(self) -> str:
        return "<attune.Cover with lists>" if self else "<attune.Cover: no lists are needed>"

    def _repr_svg_(self) -> str:
        return self._draw()._repr_svg_()

    def _repr_html_(self) -> str:
        return self._repr_svg_()
