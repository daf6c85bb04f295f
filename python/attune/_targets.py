# python/attune/_targets.py — the names of engines, and the numbers by which the core knows them
"""Targets of calls."""

from __future__ import annotations

from typing import Any

from attune import _core

TARGETS = {"auto": 0, "cpu": 1, "oracle": 2, "cuda": 3}  # as attune/c.h has them
_EMULATED = "emulated:"
NAMES = ", ".join([*TARGETS, f"{_EMULATED}sm_80", f"{_EMULATED}sm_90a"])


def is_target(target: Any) -> bool:
    """True for the name of an engine, and for "emulated:" with any GPU."""
    return type(target) is str and (target in TARGETS or target.startswith(_EMULATED))


def number_of(target: str) -> int:
    """The core's number of a target. Raises an Error for a GPU that cannot be emulated."""
    return _core.emulated(target.removeprefix(_EMULATED)) if target.startswith(_EMULATED) else TARGETS[target]
