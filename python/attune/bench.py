# python/attune/bench.py — python -m attune.bench: what a call costs in Python, from a cold import to a warm call
"""What Python adds to a call, in microseconds. Nothing here passes or fails: the numbers are for docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def least(call: Callable[[], object], rounds: int = 1000, seconds: float = 0.0004) -> float:
    """The least time of a call over some rounds, in microseconds. Rounds are shorter than a slice of time of a CPU, so
    that some of them have it for themselves."""
    call()
    count, best = 1, float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        took = time.perf_counter() - begin
        best = min(best, took / count)
        count = max(1, int(seconds / best))
    return best * 1e6


def import_ms() -> dict[str, float]:
    """The least time to import, in a new process, in milliseconds: of attune, and of Python's own start."""
    def once(code: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return (time.perf_counter() - begin) * 1e3

    return {"python": min(once("pass") for _ in range(5)), "with attune": min(once("import attune") for _ in range(5))}


def rows() -> dict[str, float]:
    """What calls cost."""
    import numpy as np

    import attune
    from attune import _trace

    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 1, 16), np.float32) for _ in range(3))
    out = np.empty_like(q)
    slope = np.ones(1, np.float32)
    plain = attune.Attention()
    alibi = attune.Attention(lambda s, at: s + slope[at.head] * (at.kv - at.q), lambda at: at.kv <= at.q)

    def mask(at: Any) -> Any:
        return (at.kv <= at.q) & (at.q - at.kv < 256)

    def traced() -> None:
        _trace._kept.clear()
        _trace.spell({"mask": mask}, {}, {})

    tensors = (q, k, v, out, None, None, None, None)
    in_c = lambda attention, *captures: 1e6 * attention._core.least(1000, 100, tensors, captures)
    return {
        "in C": in_c(plain),
        "in C, with a capture": in_c(alibi, slope),
        "core.run": least(lambda: plain._core.run(0, tensors, (), None, (), None)),
        "Attention(), out given": least(lambda: plain(q, k, v, out=out)),
        "Attention()": least(lambda: plain(q, k, v)),
        "Attention() with a capture": least(lambda: alibi(q, k, v)),
        "attention()": least(lambda: attune.attention(q, k, v)),
        "attention(mask=text)": least(lambda: attune.attention(q, k, v, mask="kv <= q")),
        "attention(mask=function)": least(lambda: attune.attention(q, k, v, mask=mask)),
        "tracing a mask": least(traced),
    }


def main() -> None:
    """Prints the rows, or JSON."""
    options = argparse.ArgumentParser(prog="python -m attune.bench", description=__doc__)
    options.add_argument("--json", action="store_true", help="one line of JSON")
    as_json = options.parse_args().json
    imports, calls = import_ms(), rows()
    if as_json:
        print(json.dumps({"import_ms": imports, "call_us": calls}))
        return
    print("import, ms, least of 5")
    for name, took in imports.items():
        print(f"  {name:<28}{took:8.1f}")
    print("a call, tensors of 1x1x1x16, µs, least of 1000 rounds")
    for name, took in calls.items():
        print(f"  {name:<28}{took:8.2f}")


if __name__ == "__main__":
    main()
