# tests/python/in_jax/test_jax_page.py — the code of docs/jax.md and of docstrings runs and prints what it says
"""The page and the docstrings of attune.jax."""

import doctest
import importlib
from importlib.util import find_spec

import attune
import jax
import jax.numpy as jnp
import pytest
from dense import qkv, random
from goldens import run_page


def test_the_page(rng):
    q, k, v = qkv(rng, 2, 4, 64, 64, 16)
    names = {"attune": attune, "jax": jax, "jnp": jnp, "q": q, "k": k, "v": v, "slope": random(rng, 4),
             "bias": random(rng, 64, 64), "place": random(rng, 64, 2),
             "doc": jnp.arange(128).reshape(2, 64) // 24}
    missing = [] if find_spec("maxtext") else ["maxtext"]
    try:
        assert run_page("docs/jax.md", names, missing) == 13
    finally:
        if not missing:
            importlib.import_module("attune.jax.maxtext").disable()


@pytest.mark.parametrize("name", ["attune.jax", "attune.jax._call", "attune.jax._attention", "attune.jax._dot"])
def test_docstrings(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed
