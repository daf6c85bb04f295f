# python/attune/_cover.py — Cover (FlexAttention's BlockMask): a mask's full and partial tiles, listed for many calls
"""Lists of tiles."""

from __future__ import annotations

from collections.abc import Callable

from attune import _core
from attune._picture import Picture


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
