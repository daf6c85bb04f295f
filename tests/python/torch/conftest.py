# tests/python/torch/conftest.py — torch, or a skip that says so; the same random numbers for every test
"""For all tests of attune.torch."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(11)
