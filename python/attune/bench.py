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


def least(calls: dict[str, Callable[[], float]], rounds: int = 1000) -> dict[str, float]:
    """The least of what each call says that it took, over rounds in which all take their turn: each is as likely as the
    others to have the CPU for itself."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            best[name] = min(best[name], call())
    return best


def timed(call: Callable[[], object], seconds: float = 0.0003) -> Callable[[], float]:
    """A function that measures a call, in microseconds: the mean over less than a slice of time of a CPU."""
    call()
    begin = time.perf_counter()
    for _ in range(10):
        call()
    count = max(1, int(10 * seconds / (time.perf_counter() - begin)))

    def took() -> float:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - begin) / count * 1e6

    return took


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
    lse = np.empty(q.shape[:-1], np.float32)
    plain, causal = attune.Attention(), attune.Attention(mask="kv <= q")
    alibi = attune.Attention(lambda s, at: s + slope[at.head] * (at.kv - at.q), lambda at: at.kv <= at.q)

    def mask(at: Any) -> Any:
        return at.kv <= at.q

    def traced() -> None:
        _trace._kept.clear()
        _trace.spell({"mask": mask}, {}, {})

    def in_c(attention: attune.Attention, lse: Any = None, captures: tuple[Any, ...] = ()) -> Callable[[], float]:
        call = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
        return lambda: 1e6 * attention._core.least(1, 100, call, captures)

    calls = {
        "in C": in_c(plain),
        "Attention(), out given": timed(lambda: plain(q, k, v, out=out)),
        "Attention()": timed(lambda: plain(q, k, v)),
        "attention()": timed(lambda: attune.attention(q, k, v)),
        "in C, with lse": in_c(plain, lse),
        "Attention() with lse": timed(lambda: plain(q, k, v, lse=True)),
        "attention() with lse": timed(lambda: attune.attention(q, k, v, lse=True)),
        "in C, causal": in_c(causal),
        "attention(mask=text)": timed(lambda: attune.attention(q, k, v, mask="kv <= q")),
        "attention(mask=function)": timed(lambda: attune.attention(q, k, v, mask=mask)),
        "attention(mask=lambda at: ...)": timed(lambda: attune.attention(q, k, v, mask=lambda at: at.kv <= at.q)),
        "in C, causal, with a capture": in_c(alibi, captures=(slope,)),
        "Attention() with a capture": timed(lambda: alibi(q, k, v)),
        "Attention(), the capture given": timed(lambda: alibi(q, k, v, slope=slope)),
        "attention(texts, a capture)": timed(lambda: attune.attention(
            q, k, v, score="s + slope[h] * f32(kv - q)", mask="kv <= q", slope=slope)),
        "attention(functions, a capture)": timed(lambda: attune.attention(
            q, k, v, score=lambda s, at: s + slope[at.head] * (at.kv - at.q), mask=lambda at: at.kv <= at.q)),
        "tracing a mask": timed(traced),
    }
    return least(calls)


def torch_rows() -> dict[str, float]:
    """The cost of calls of attune.torch compared with torch's own scaled_dot_product_attention."""
    import torch

    from attune.torch import create_block_mask, flex_attention, scaled_dot_product_attention

    torch.set_num_threads(1)
    given = torch.randn(3, 1, 1, 1, 16).unbind()
    leaves = [t.clone().requires_grad_() for t in given]
    grad, slope = torch.randn(1, 1, 1, 16), torch.ones(1)
    causal = create_block_mask(lambda b, h, i, j: i >= j, None, None, 1, 1)

    def alibi(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + slope[h] * (j - i)

    def backward(call: Callable[..., Any]) -> None:
        call(*leaves).backward(grad)
        for leaf in leaves:
            leaf.grad = None

    ways: dict[str, Callable[..., Any]] = {
        "torch's SDPA, causal": lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True),
        "attune's SDPA, causal": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True),
        "flex_attention, causal": lambda q, k, v: flex_attention(q, k, v, block_mask=causal),
        "flex_attention, alibi and causal": lambda q, k, v: flex_attention(q, k, v, alibi, causal),
    }
    calls = {name: timed(lambda way=way: way(*given)) for name, way in ways.items()}  # type: ignore[misc]
    calls |= {f"{name}, with backward": timed(lambda way=way: backward(way))  # type: ignore[misc]
              for name, way in ways.items()}
    return least(calls)


def main() -> None:
    """Prints the rows, or JSON."""
    options = argparse.ArgumentParser(prog="python -m attune.bench", description=__doc__)
    options.add_argument("--json", action="store_true", help="one line of JSON")
    options.add_argument("--torch", action="store_true", help="calls of attune.torch alone")
    chosen = options.parse_args()
    imports, calls = ({}, torch_rows()) if chosen.torch else (import_ms(), rows())
    if chosen.json:
        print(json.dumps({"import_ms": imports, "call_us": calls}))
        return
    if chosen.torch:
        print("a call, tensors of 1x1x1x16, µs, least of 1000 rounds")
        for name, took in calls.items():
            print(f"  {name:<48}{took:8.2f}")
        return
    print("import, ms, least of 5")
    for name, took in imports.items():
        print(f"  {name:<32}{took:8.1f}")
    print("a call, tensors of 1x1x1x16, µs, least of 1000 rounds; Python adds what is beyond `in C`")
    for name, took in calls.items():
        print(f"  {name:<32}{took:8.2f}")


if __name__ == "__main__":
    main()
