# python/attune/_parts.py — Score, Mask, Prob and Sink: callables over values of the kernel, and how they join
"""Score, Mask, Prob and Sink: what differs from plain attention."""

from __future__ import annotations

from collections.abc import Callable

from attune._scan import Component
from attune._trace import text
from attune.expr import At, Bool, Float, FloatLike, as_value

ScoreFunction = Callable[[Float, At], FloatLike]
MaskFunction = Callable[[At], Bool | bool]


class _Shown(Component):
    """A part that shows its text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"attune.{type(self).__name__}({text(self)})"


class Score(_Shown):
    """Changes the score s = scale * (q . k): a callable (s, at) -> Float. `a | b` applies a, then b.

    >>> import attune
    >>> attune.mods.relative_position() | attune.mods.softcap(30)
    attune.Score(30.0f * tanh((s + f32(q - kv)) / 30.0f))
    """

    __slots__ = ()

    def __or__(self, then: ScoreFunction) -> Score:
        first = self.function
        return Score(lambda s, at: then(first(s, at), at))

    def __ror__(self, first: ScoreFunction) -> Score:
        return Score(first) | self


class Prob(_Shown):
    """Changes a probability after the softmax: a callable (p, at) -> Float. `a | b` applies a, then b."""

    __slots__ = ()

    def __or__(self, then: ScoreFunction) -> Prob:
        first = self.function
        return Prob(lambda p, at: then(first(p, at), at))

    def __ror__(self, first: ScoreFunction) -> Prob:
        return Prob(first) | self


class Mask(_Shown):
    """Selects the pairs to keep: a callable (at) -> Bool. Masks join with `&`, `|` and `~`.

    >>> import attune
    >>> attune.mods.causal() & ~attune.mods.two_sided_window(4)
    attune.Mask(kv <= q && !(abs(q - kv) <= 4))
    """

    __slots__ = ()

    def __and__(self, other: MaskFunction) -> Mask:
        mine = self.function
        return Mask(lambda at: mine(at) & other(at))

    def __rand__(self, other: MaskFunction) -> Mask:
        return Mask(other) & self

    def __or__(self, other: MaskFunction) -> Mask:
        mine = self.function
        return Mask(lambda at: mine(at) | other(at))

    def __ror__(self, other: MaskFunction) -> Mask:
        return Mask(other) | self

    def __invert__(self) -> Mask:
        mine = self.function
        return Mask(lambda at: Bool.__invert__(as_value(mine(at), None)))


class Sink(_Shown):
    """A logit that joins the softmax's denominator: a callable (at) -> Float; `at` has batch and head."""

    __slots__ = ()
