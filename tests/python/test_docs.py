# tests/python/test_docs.py — the code of docs/python.md, docstrings and python/examples runs and prints what it says
"""Pages and docstrings."""

import doctest
import importlib
import pkgutil
import runpy

import attune
import numpy as np
import pytest
from conftest import ROOT
from goldens import run_page


def test_the_page_of_python(tmp_path, rng):
    names = {"folder": tmp_path, "doc": np.arange(64, dtype=np.int32) // 24, "slope": np.ones(4, np.float32),
             "table": rng.standard_normal((4, 128), np.float32)}
    for name, heads in (("q", 4), ("k", 2), ("v", 2), ("grad_o", 4)):
        names[name] = rng.standard_normal((1, heads, 64, 16), np.float32)
    assert run_page("docs/python.md", names) > 8


@pytest.mark.parametrize("name", ["attune", *(f"attune.{m.name}" for m in pkgutil.iter_modules(attune.__path__)
                                               if m.name not in ("_core", "diffusers", "hf", "jax", "torch"))])
def test_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_first_notebook(capsys):
    runpy.run_path(str(ROOT / "python/examples/first.py"))
    assert capsys.readouterr().out.endswith("ok\n")


def test_the_bench_measures():
    from attune import bench

    told = bench.least({"nothing": bench.timed(lambda: None), "2": lambda: 2.0}, rounds=2)
    assert 0 < told["nothing"] < 100 and told["2"] == 2


def test_everything_public_is_told_of():
    for name in attune.__all__:
        assert (getattr(attune, name).__doc__ or "").strip(), name
