# python/attune/_command.py — the command `attune` of an installed wheel: its code is in the wheel's libattune.so
"""A second program would hold LLVM once more, which is most of a wheel's size."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def main() -> int:
    """The whole command line. Signals end it, as they end programs without Python."""
    for number in signal.SIGINT, signal.SIGPIPE:
        signal.signal(number, signal.SIG_DFL)
    words = ["attune", *sys.argv[1:]]
    library = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "libattune.so.0"))
    arguments = (ctypes.c_char_p * (len(words) + 1))(*map(os.fsencode, words), None)
    status: int = library.attune_command(len(words), arguments)
    return status
