# tests/python/goldens.py — messages, compared with what was approved
"""Goldens of messages, and how to get one."""

import os
import re
from pathlib import Path

import attune
import pytest

HERE = Path(__file__).resolve().parent


def golden(name, text):
    """Compares with tests/python/errors/NAME.txt; ATTUNE_APPROVE=1 writes it."""
    path = HERE / "errors" / f"{name}.txt"
    text = re.sub(r"\S*/(test_[a-z_]+\.py):\d+", r"\1", text) + "\n"
    if os.environ.get("ATTUNE_APPROVE") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no golden {path}: ./dev approve writes it\n{text}"
    assert text == path.read_text(encoding="utf-8")


def refused(call, *args, **keywords):
    """The attune.Error that a call raises."""
    with pytest.raises(attune.Error) as caught:
        call(*args, **keywords)
    return caught.value
