# tests/python/in_torch/run.py — run.py FILE...: these tests of attune.torch with pytest, or a skip that says what lacks
"""For ctest, whose skips are read from what a test prints."""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("torch") is None:
    print(f"[skip] {sys.executable} has no torch")
    sys.exit(0)

import pytest

here = Path(__file__).resolve().parent
sys.exit(pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *(str(here / name) for name in sys.argv[1:])]))
