# python/attune/_words.py — words that messages use for things
"""Words for messages."""

from __future__ import annotations


def a_(word: str) -> str:
    """The word with its article."""
    return f"{'an' if word[:1] in 'AEIOUaeiou' else 'a'} {word}"


def said(thing: object) -> str:
    """A thing's kind, in words."""
    if isinstance(thing, int) and thing.bit_length() > 128:
        return f"an int of {thing.bit_length()} bits"
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return repr(thing)
    return a_(type(thing).__name__)


def dimensions(rank: int) -> str:
    """How many dimensions."""
    return f"{rank} dimension{'' if rank == 1 else 's'}"
