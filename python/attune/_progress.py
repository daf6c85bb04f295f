# python/attune/_progress.py — shows on a terminal or in a notebook that a call waits for compilers, unless told otherwise
"""A call that waits a second or more for its kernels says so where a person sits: see ATTUNE_PROGRESS."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from attune import _core
from attune._errors import Error
from attune._library import options, watch


class Notebook:
    """Text below a cell, which is empty again when the wait is over. Called on a thread of the library."""

    PAUSE = 0.5  # seconds between two texts

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None
        self._next = 0.0

    def __call__(self, fact: Mapping[str, Any]) -> None:
        if options.get("ATTUNE_PROGRESS", "auto") != "auto":
            return
        try:
            self._show("" if fact["over"] else fact["text"])
        except Exception:  # a display that fails is no reason to write about it once a second
            self._handle = None

    def _show(self, text: str) -> None:
        page = {"text/plain": text}
        if text and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self.PAUSE
        if self._handle is None:
            self._handle = self._display(page, raw=True, display_id=True) if text else None
        else:
            self._handle.update(page, raw=True)
        if not text:
            self._handle, self._next = None, 0.0


def display_of_notebook() -> Any:
    """IPython's `display` where a kernel of Jupyter runs this program; None elsewhere, also in IPython on a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if ipython is None or shell is None or getattr(shell, "kernel", None) is None:
        return None
    return ipython.display.display


def begin() -> None:
    """When the package is imported: chooses where waits are shown, unless the environment has chosen."""
    if (os.environ.get("ATTUNE_PROGRESS") or "auto") != "auto":
        return
    display = display_of_notebook()
    # Of the processes that torchrun starts on a machine, one shows waits. The terminal of a notebook's server is
    # nobody's.
    shown = display is None and os.environ.get("LOCAL_RANK", "0") == "0"
    try:
        _core.option("ATTUNE_PROGRESS", "auto" if shown else "off")
    except Error:  # another part of this process has used the library already
        return
    if display is not None:
        atexit.register(watch(Notebook(display), "compiling").stop)
