# tests/python/conftest.py — random tensors, attention by plain NumPy, work on threads, and which functions a call runs
"""What the tests of the Python package share."""

import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from goldens import golden, refused

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
__all__ = ["HERE", "ROOT", "dense", "golden", "on_threads", "python_run", "refused"]
# Not `torch`: a folder of that name beside the tests is found in place of the library where that is missing.
_missing = [name for name in ("jax", "torch") if not find_spec(name)]
collect_ignore = [f"in_{name}" for name in _missing]


def pytest_report_header():
    return [f"{name} is not installed: tests/python/in_{name} is skipped" for name in _missing]


@pytest.fixture(autouse=True)
def _seeded():
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(11)


def pytest_sessionfinish(session, exitstatus):
    """A file of which every test is skipped is skipped for CTest, which reads this status."""
    told = session.config.pluginmanager.get_plugin("terminalreporter").stats
    if exitstatus == 0 and told.get("skipped") and not told.get("passed"):
        session.exitstatus = 77


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def qkv(rng):
    """q with 4 heads of 12 queries, k and v with 2 heads of 16 keys, f32."""
    return tuple(rng.standard_normal(s, np.float32) for s in ((2, 4, 12, 8), (2, 2, 16, 8), (2, 2, 16, 8)))


def dense(q, k, v, score=None, mask=None, scale=None):
    """Attention by plain NumPy in f64: score(s, b, h, i, j) and mask(b, h, i, j) on arrays of coordinates."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(np.broadcast_to(x, (q.shape[0], *x.shape[1:])), group, axis=1) for x in (k, v))
    b, h, i, j = np.ogrid[: q.shape[0], : q.shape[1], : q.shape[2], : k.shape[2]]
    s = np.einsum("bhid,bhjd->bhij", q, k) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    s = s if score is None else score(s, b, h, i, j)
    s = np.where(True if mask is None else mask(b, h, i, j), s, -np.inf)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.log(total)[..., 0] + np.where(np.isfinite(top), top, -np.inf)[..., 0]
    return np.einsum("bhij,bhjd->bhid", p / np.where(total == 0, 1, total), v), lse


def on_threads(count, body):
    """What body(i) returns or raises, for each i on a thread of its own."""
    made = [None] * count

    def one(i):
        try:
            made[i] = body(i)
        except BaseException as error:
            made[i] = error

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
        assert not t.is_alive()
    return made


def python_run(call):
    """The names of the Python functions that a call runs."""
    called = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return called
