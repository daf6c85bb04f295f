# python/attune/_kept.py — a cache: a dict of limited size, shared by threads
from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Keeps up to `most` values. Takes no lock: each operation on the dict is atomic, and a lock that another thread
    held when the process forked would stay locked in the child."""

    def __init__(self, most: int) -> None:
        self._most, self._values = most, dict[K, V]()

    def get(self, key: K) -> V | None:
        """The value, if it is still kept."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> V:
        """Keeps the value and returns it; if another thread kept one first, returns that one."""
        kept = self._values.setdefault(key, value)
        if len(self._values) > self._most:
            for old in list(self._values)[: -self._most]:
                self._values.pop(old, None)
        return kept

    def items(self) -> list[tuple[K, V]]:
        """All kept values, the newest first."""
        return list(self._values.copy().items())[::-1]

    def clear(self) -> None:
        """Forgets everything."""
        self._values.clear()
