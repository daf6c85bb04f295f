# tests/python/goldens.py — messages, compared with what was approved, and pages, compared with what they say
"""Goldens of messages, and how to get one; pages whose code is run."""

import contextlib
import io
import linecache
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


def run_page(path, names, missing=()):
    """Runs a page's blocks of Python, each of which prints what the block of text after it says; how many blocks. Those
    that name a `missing` library do not run."""
    page = (HERE.parents[1] / path).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", page, re.S | re.M)
    said = ""
    for i, (language, block) in enumerate(blocks):
        if language == "text":
            assert said == block, f"block {i}"
            continue
        if any(library in block for library in missing):
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            name = f"{path}, block {i}"  # known to linecache, as a notebook's cells are
            linecache.cache[name] = (len(block), None, block.splitlines(keepends=True), name)
            exec(compile(block, name, "exec"), names)
        said = out.getvalue()
    return len(blocks)
