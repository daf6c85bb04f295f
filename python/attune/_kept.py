# python/attune/_kept.py — what is worth keeping: a dict of a limited size for many threads
"""A dict that forgets its oldest entries."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Keeps up to `most` values. Looking one up takes no lock."""

    def __init__(self, most: int) -> None:
        self._most, self._values, self._lock = most, dict[K, V](), threading.Lock()

    def get(self, key: K) -> V | None:
        """The value, if it is still there."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> V:
        """Keeps the value, or gives the one that another thread kept meanwhile."""
        with self._lock:
            if key not in self._values and len(self._values) >= self._most:
                del self._values[next(iter(self._values))]
            return self._values.setdefault(key, value)

    def items(self) -> list[tuple[K, V]]:
        """What is kept now, the newest first."""
        with self._lock:
            return list(self._values.items())[::-1]

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._values.clear()
