# tests/python/test_ends.py — processes end, whatever objects of attune they hold and whoever calls at the end
"""A process that has done its work ends by itself, with status 0."""

from ends import held, statuses

SETUP = """
import os
import attune
import numpy as np
q = np.ones((1, 2, 64, 16), np.float32)
slope = np.ones(2, np.float32)
"""
RANKS = """
import queue, threading
def on_ranks(body, count=2):
    ways = {(a, b): queue.Queue() for a in range(count) for b in range(count)}
    def rank(own):
        def exchange(send, receive, stream):
            for peer, part in send:
                ways[own, peer].put(bytes(part))
            for peer, part in receive:
                part[:] = ways[peer, own].get()
        made[own] = body(attune.Transport(own, count, exchange))
    made = [None] * count
    threads = [threading.Thread(target=rank, args=(own,), daemon=True) for own in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return made
"""
KINDS = {
    "an attention": """
def made(): return attune.Attention("s + slope[h]", "kv <= q", slope=slope)
def use(x): x(q, q, q, lse=True)
""",
    "an attention of functions": """
def made(): return lambda: attune.attention(q, q, q, score=lambda s, at: s + slope[at.head])
def use(x): x()
""",
    "gradients": """
def made(): return attune.Attention("s + slope[h]", slope=slope)
def use(x): x.kept = x.backward(q, q, q, q)
""",
    "new kernels": """
import itertools
def made(): return itertools.count()
def use(x): attune.Attention(score=f"s * {next(x)}.{os.getpid()}f")(q, q, q)
""",
    "kernels made early": """
import itertools
def made(): return itertools.count()
def use(x):
    made = attune.Attention(score=f"s * {next(x)}.{os.getpid()}f")
    made._core.prepare_async(0, {"q": q, "k": q, "v": q, "out": q.copy()}, (), None, ())
""",
    "a cover": """
def made(): return attune.Attention(mask="kv <= q")
def use(x): x(q, q, q, cover=x.cover(q, q, q))
""",
    "a watch": """
facts, numbers = [], iter(range(10**6))
def made(): return attune.watch(facts.append)
def use(x): attune.attention(q, q, q, score=f"s * {next(numbers)}.{os.getpid()}f")
""",
    "an array": """
class Shown:
    def __dlpack__(self, **how): return q.copy().__dlpack__()
    def __dlpack_device__(self): return 1, 0
def made(): return [attune.attention(Shown(), Shown(), Shown())]
def use(x): x.append(np.from_dlpack(attune.attention(Shown(), Shown(), Shown())))
""",
    "a transport": """
def made(): return attune.Transport(0, 2, lambda send, receive, stream: None)
def use(x): attune.Sharding(attune.Attention(), q, q, q, attune.Transport(0, 1))
""",
    "ranks": RANKS + """
attention, x = attune.Attention("s + slope[h]", slope=slope), np.ones((1, 2, 300, 16), np.float32)
def plan(transport):
    sharding = attune.Sharding(attention, x, x, x, transport, assignment="contiguous", block=96)
    mine = np.concatenate([x[:, :, a:b] for a, b in sharding.of()], 2)
    attention.backward(mine, mine, mine, mine, sharding=sharding)
    return sharding, attention(mine, mine, mine, sharding=sharding)
def made(): return on_ranks(plan)
def use(x): x[:] = on_ranks(plan)
""",
    "an executor": """
import threading
kept = []
def loop(count, run):
    threads = [threading.Thread(target=run, args=(i, i), daemon=True) for i in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    kept.append(run)
def made(): return attune.Attention()
def use(x): x(q, q, q, parallel_for=loop, workers=2)
""",
    "progress": """
told = []
def made(): return attune.Attention()
def use(x): x(q, q, q, progress=told.append)
""",
    "a picture": """
def made(): return attune.show(mask="kv <= q")
def use(x): x._repr_svg_()
""",
    "a cache": """
cache = np.zeros((1, 2, 128, 16), np.float32), np.zeros((1, 2, 128, 16), np.float32), np.zeros(1, np.int32)
def made(): return cache
def use(x): attune.append(q[:, :, :1], q[:, :, :1], *x[:2], kv_len=np.ones(1, np.int32))
""",
}

# Functions that attune calls on a daemon thread. They return when the process has waited for them, for 5 s, and Python is
# ending; that takes as long as Last.__del__.
CALLED_BACK = {
    "an exchange": """
def call(): attune.Sharding(attune.Attention(), q, q, q, attune.Transport(0, 2, sleep))
""",
    "an executor": """
def call(): attune.attention(q, q, q, parallel_for=sleep, workers=2)
""",
    "progress": """
def call(): attune.attention(q, q, q, progress=sleep)
""",
    "a watch": """
watch = attune.watch(sleep)
def call(): attune.attention(q, q, q)
""",
}
SLEEP = """
import sys, threading, time
slept = threading.Event()
def sleep(*given):
    slept.set()
    time.sleep(6)
class Last:
    def __del__(self, sleep=time.sleep):
        sleep(3)
sys.last = Last()
"""
BEGIN = """
threading.Thread(target=call, daemon=True).start()
slept.wait()
"""


def test_a_process_ends_with_whatever_it_holds(tmp_path):
    cases = held(KINDS)
    del cases["ranks, a function of atexit"]  # it would wait for threads that begin calls, and Python is ending
    found, said = statuses(SETUP, cases, tmp_path)
    assert found == dict.fromkeys(cases, 0), said


def test_a_process_ends_while_a_daemon_thread_is_called_back(tmp_path):
    cases = {name: f"{SLEEP}{call}{BEGIN}" for name, call in CALLED_BACK.items()}
    found, said = statuses(SETUP, cases, tmp_path)
    assert found == dict.fromkeys(cases, 0), said
