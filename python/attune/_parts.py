# python/attune/_parts.py — Score, Mask, Prob and Sink: callables over values of the kernel, and how they join
from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from attune._scan import Component
from attune._trace import text
from attune.expr import At, Bool, Float, FloatLike, as_value

ScoreFunction = Callable[[Float, At], FloatLike]
P = TypeVar("P", bound="_Piped")
MaskFunction = Callable[[At], Bool | bool]


class _Shown(Component):
    """A part that shows its text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"attune.{type(self).__name__}({text(self)})"


class _Piped(_Shown):
    """Of a number: `a | b` applies a, then b."""

    __slots__ = ()

    def __or__(self: P, then: ScoreFunction) -> P:
        first = self.function
        return type(self)(lambda x, at: then(first(x, at), at))

    def __ror__(self: P, first: ScoreFunction) -> P:
        return type(self)(first) | self


class Score(_Piped):
    """Changes the score s = scale * (q . k): a callable (s, at) -> Float. `a | b` applies a, then b.

    >>> import attune
    >>> attune.mods.relative_position() | attune.mods.softcap(30)
    attune.Score(30.0f * tanh((s + f32(q - kv)) / 30.0f))
    """

    __slots__ = ()


class Prob(_Piped):
    """Changes a probability after the softmax: a callable (p, at) -> Float. `a | b` applies a, then b."""

    __slots__ = ()


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
