# python/attune/_library.py — the library as a whole: options, machine, bundles of kernels, watching, waits shown
from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from os import PathLike, fsencode
from typing import Any

from attune import _arguments, _core
from attune._attention import Attention
from attune._errors import Error


def version() -> str:
    """The version of the library: '0.1.0'."""
    number = _core.version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def wait() -> None:
    """Returns when all kernels that attune compiles early, on a thread of its own, are compiled.

    A forward of torch that records gradients starts to compile the kernels of its backward. Some kernels take over from
    others that were compiled sooner and are a little slower. Callbacks of `watch` that report them have run by then. A
    process that ends earlier compiles no others.
    """
    _core.wait()


def machine() -> dict[str, Any]:
    """The engines, the CPU, the GPUs, the targets that kernels can be compiled for, and the options.

    >>> import attune
    >>> "oracle" in attune.machine()["engines"]
    True
    """
    return json.loads(_core.machine())


class Options(MutableMapping[str, str]):
    """The process's options, `ATTUNE_LOG` say: set them before the first attention is made.

    Reading gives what was set here; what the environment says counts where nothing was.
    """

    def __init__(self) -> None:
        self._set: dict[str, str] = {}

    def __setitem__(self, name: str, value: object) -> None:
        _core.option(str(name), str(value))
        self._set[name] = str(value)

    def __delitem__(self, name: str) -> None:
        _core.option(str(name), None)
        self._set.pop(name, None)

    def __getitem__(self, name: str) -> str:
        return self._set[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._set)

    def __len__(self) -> int:
        return len(self._set)

    def __repr__(self) -> str:
        known = machine()["options"]
        width = max((len(o["name"]) for o in known), default=0)
        return "\n".join(f"{o['name']:<{width}}  {self._set.get(o['name'], '')}{'  ' if o['name'] in self._set else ''}"
                         f"{o['meaning']}" for o in known)


options = Options()


def load(bundle: str | PathLike[str] | bytes) -> None:
    """Adds a bundle of kernels, a file or its bytes: from now on calls look for kernels in it too."""
    if isinstance(bundle, bytes):
        _core.load_bytes(bundle)
    else:
        _core.load(_path(bundle))


def _path(bundle: object) -> bytes:
    if not isinstance(bundle, (str, PathLike)) or "\0" in str(bundle):
        raise _arguments.bad("bundle", bundle, "the path of a file", "pass a str or a pathlib.Path")
    return fsencode(bundle)


def compile(mods: Attention | Mapping[str, Any] | Iterable[Attention | Mapping[str, Any]], bundle: str | PathLike[str],
            *, targets: str | list[str], passes: str | list[str] = "forward", jobs: int = 0,
            progress: Callable[[float, str], object] | None = None, **shapes: Any) -> dict[str, Any]:
    """Compiles kernels into a bundle, also for machines that are not here, and reports how many.

    `mods` are Attentions, or mods as a manifest writes them; `shapes` are its fields, each one value or a list:
    `dtype=["bf16", "f16"], d=[64, 128]`. docs/offline.md has all of them.
    """
    listed = [mods] if isinstance(mods, (Attention, Mapping)) else mods
    if not isinstance(listed, Iterable) or isinstance(listed, str):
        raise _arguments.bad("mods", mods, "Attentions, or dicts of texts", "pass a list of these")
    written = [m.describe()["mod"] if isinstance(m, Attention) else m for m in listed]
    manifest = {"mods": written, "shapes": shapes, "targets": targets, "passes": passes}
    return json.loads(_core.compile(json.dumps(manifest, default=repr), _path(bundle), _arguments.whole("jobs", jobs),
                                    _arguments.function("progress", progress, "the share done and a row")))


class watch:
    """Calls `callback` with events as dicts: kernels built, calls run, choices made. A context manager.

    `facts` are the names of those it wants, such as "built,called"; the five below if left out. "compiling" is reported
    on another thread while a call waits for its kernels, from a second on, about ten times a second: see docs/python.md.

    >>> import attune, numpy
    >>> q, facts = numpy.ones((1, 1, 4, 8), "f4"), []
    >>> with attune.watch(facts.append):
    ...     o = attune.attention(q, q, q)
    >>> facts[-1]["fact"]
    'called'
    """

    def __init__(self, callback: Callable[[dict[str, Any]], object],
                 facts: str = "lowered,chosen,built,called,notice") -> None:
        if not callable(callback):
            raise _arguments.bad("callback", callback, "called with events", "pass a function")
        if not isinstance(facts, str):
            raise _arguments.bad("facts", facts, "names of facts, separated by commas", "pass a str")
        self._watch = _core.Watch(lambda fact: callback(json.loads(fact)), facts)

    def stop(self) -> None:
        """Stops the events; waits for callbacks that are running."""
        self._watch.stop()

    def __enter__(self) -> watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


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
