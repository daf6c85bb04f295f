# tests/python/run.py — run.py LIBRARY FILE...: runs tests in torch or JAX with pytest, or skips with what is missing
"""For ctest, whose skips are read from what a test prints."""

import importlib.util
import sys
from pathlib import Path

library, *names = sys.argv[1:]
if importlib.util.find_spec(library) is None:
    print(f"[skip] {sys.executable} has no {library}")
    sys.exit(0)

import pytest

here = Path(__file__).resolve().parent / f"in_{library}"
sys.exit(pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *(str(here / name) for name in names)]))
