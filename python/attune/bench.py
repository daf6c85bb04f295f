# python/attune/bench.py — python -m attune.bench: what a call costs in Python; your mod next to torch's FlexAttention
"""What Python adds to a call, in microseconds: the numbers of docs/benchmarks.md. With --flex FILE, the time of the mod
in this file, next to torch's own FlexAttention. Nothing here passes or fails."""

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


def flex_rows(chosen: argparse.Namespace) -> dict[str, Any]:
    """The mod of a file in torch's FlexAttention and in attune: the first call in seconds, later ones in ms."""
    import importlib.util

    import torch
    from torch.nn.attention import flex_attention as flex

    import attune.torch

    device = torch.device(chosen.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = getattr(torch, chosen.dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    batch, heads, length, width = map(int, chosen.shape.split(","))
    torch.manual_seed(0)
    spec = importlib.util.spec_from_file_location("flex_file", chosen.flex)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    vars(module).update(torch=torch, device=device)
    sys.modules[spec.name] = module  # where torch 2.11 looks for what a mod refers to
    spec.loader.exec_module(module)
    score, mask = getattr(module, "score_mod", None), getattr(module, "mask_mod", None)
    if score is None and mask is None:
        raise SystemExit(f"{chosen.flex} defines neither score_mod nor mask_mod")
    if chosen.backward and device.type == "cpu":
        raise SystemExit("torch's FlexAttention has no backward on the CPU: leave --backward out")
    q = torch.randn(batch, heads, length, width, device=device, dtype=dtype, requires_grad=chosen.backward)
    k, v = (torch.randn(batch, chosen.kv_heads or heads, length, width, device=device, dtype=dtype,
                        requires_grad=chosen.backward) for _ in "kv")
    grad = torch.randn_like(q)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def took(call: Callable[[], Any]) -> float:
        wait()
        begin = time.perf_counter()
        call()
        wait()
        return time.perf_counter() - begin

    def times(attend: Callable[..., Any], blocks: Callable[..., Any]) -> tuple[dict[str, float], Any]:
        block_mask = None if mask is None else blocks(mask, None, None, length, length, device=device)

        def call() -> Any:
            out = attend(q, k, v, score, block_mask, enable_gqa=q.shape[1] != k.shape[1])
            return torch.autograd.grad(out, (q, k, v), grad) if chosen.backward else out

        first = took(call)
        for _ in range(2):
            call()
        count = max(1, int(0.02 / took(call)))  # a sample is of 20 ms or more, so that its launches overlap
        until, all_of = time.perf_counter() + chosen.seconds, []
        while len(all_of) < 5 or time.perf_counter() < until:
            all_of.append(took(lambda: [call() for _ in range(count)]) / count * 1e3)
        all_of.sort()
        return {"first_s": first, "ms": all_of[len(all_of) // 2], "p10": all_of[len(all_of) // 10],
                "p90": all_of[len(all_of) * 9 // 10]}, call()

    theirs, wanted = times(flex.flex_attention if chosen.eager else torch.compile(flex.flex_attention),
                           flex.create_block_mask)
    ours, got = times(attune.torch.flex_attention, attune.torch.create_block_mask)
    pairs = zip(got, wanted, strict=True) if chosen.backward else [(got, wanted)]
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    return {"call": f"{'forward and backward' if chosen.backward else 'forward'}, B={batch} H={heads}/{k.shape[1]} "
                    f"S={length} D={width}, {dtype}, {name}",
            "FlexAttention": theirs, "attune": ours, "times_as_fast": theirs["ms"] / ours["ms"],
            "largest_difference": max((a.double() - b.double()).abs().max().item() for a, b in pairs)}


def main() -> None:
    """Prints the rows, or JSON."""
    options = argparse.ArgumentParser(prog="python -m attune.bench", description=__doc__)
    options.add_argument("--json", action="store_true", help="one line of JSON")
    options.add_argument("--torch", action="store_true", help="calls of attune.torch alone")
    options.add_argument("--flex", metavar="FILE.py", help="your mod: the file defines score_mod, mask_mod or both, as "
                         "FlexAttention takes them; it may use torch, and device for the tensors that they read")
    options.add_argument("--shape", default="1,16,4096,64", metavar="B,H,S,D",
                         help="of the queries; 1,16,4096,64 if left out")
    options.add_argument("--kv-heads", type=int, metavar="N", help="as many as H if left out")
    options.add_argument("--dtype", metavar="NAME", help="bfloat16 on a GPU, float32 on the CPU, if left out")
    options.add_argument("--device", help="cuda if there is a GPU, else cpu")
    options.add_argument("--backward", action="store_true", help="the gradients of q, k and v too")
    options.add_argument("--eager", action="store_true", help="torch's FlexAttention without torch.compile")
    options.add_argument("--seconds", type=float, default=1, help="to measure each; 1 if left out")
    chosen = options.parse_args()
    if chosen.flex:
        found = flex_rows(chosen)
        if chosen.json:
            print(json.dumps(found))
            return
        print(f"{found['call']}\n{'':<16}{'first call':>12}{'median':>12}   p10 to p90")
        for name in ("FlexAttention", "attune"):
            one = found[name]
            print(f"  {name:<14}{one['first_s']:>10.2f} s{one['ms']:>9.3f} ms   {one['p10']:.3f} to {one['p90']:.3f}")
        print(f"attune is {found['times_as_fast']:.2f} times as fast; results differ by at most "
              f"{found['largest_difference']:.1e}")
        return
    imports, calls = ({}, torch_rows()) if chosen.torch else (import_ms(), rows())
    if chosen.json:
        print(json.dumps({"import_ms": imports, "call_us": calls}))
        return
    if imports:
        print("import, ms, least of 5")
        for name, took in imports.items():
            print(f"  {name:<32}{took:8.1f}")
    print("a call, tensors of 1x1x1x16, µs, least of 1000 rounds"
          + ("" if chosen.torch else "; Python adds what is beyond `in C`"))
    for name, took in calls.items():
        print(f"  {name:<{48 if chosen.torch else 32}}{took:8.2f}")


if __name__ == "__main__":
    main()
