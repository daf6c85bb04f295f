# python/attune/_kept.py — a cache: a dict of limited size, shared by threads
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
        """The value, if it is still kept."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> V:
        """Keeps the value and returns it; if another thread kept one first, returns that one."""
        with self._lock:
            if key not in self._values and len(self._values) >= self._most:
                del self._values[next(iter(self._values))]
            return self._values.setdefault(key, value)

    def items(self) -> list[tuple[K, V]]:
        """All kept values, the newest first."""
        with self._lock:
            return list(self._values.items())[::-1]

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._values.clear()
