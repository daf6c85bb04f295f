# tests/python/run.py — run.py LIBRARY FILE...: tests inside torch or JAX with pytest, or a skip that says what lacks
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
