# tests/python/test_trouble.py — threads, forks, signals, memory over many calls, handles freed in any order, imports
"""What long-lived programs do."""

import gc
import glob
import importlib.util
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import attune
import numpy as np
import pytest
from conftest import on_threads


@pytest.fixture
def q(rng):
    return rng.standard_normal((1, 4, 64, 16), np.float32)


def test_threads_share_an_attention(q, rng):
    tables = [rng.standard_normal(64, np.float32) for _ in range(8)]
    attention = attune.Attention("s + t[kv]", "kv <= q", t=tables[0])
    want = [attention(q, q, q, t=t) for t in tables]

    def work(i):
        for _ in range(50):
            mask = (lambda at: at.kv <= at.q) if i % 2 else "kv <= q"
            mine = attune.attention(q, q, q, score=lambda s, at: s + mine_table[at.kv],
                                    mask=mask, mine_table=tables[i])
            assert np.array_equal(attention(q, q, q, t=tables[i]), want[i]) and np.array_equal(mine, want[i])

    assert on_threads(8, work) == [None] * 8


def test_other_threads_run_during_a_call(rng):
    q = rng.standard_normal((1, 16, 2048, 64), np.float32)
    attention = attune.Attention()
    attention.prepare(q, q, q)
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.001):
            ticks.append(time.monotonic())

    def ticks_within_a_call():
        begin = time.monotonic()
        attention(q, q, q, workers=1)
        end = time.monotonic()
        return sum(begin < t < end for t in list(ticks))

    thread = threading.Thread(target=tick)
    thread.start()
    # A busy machine may have no CPU for both threads during a call.
    most = 0
    for _ in range(20):
        most = max(most, ticks_within_a_call())
        if most >= 3:
            break
    done.set()
    thread.join()
    assert most >= 3


def in_child(q, want, queue):
    queue.put(bool(np.array_equal(attune.attention(q, q, q, mask="kv <= q"), want)))


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_processes(q, way):
    want = attune.attention(q, q, q, mask="kv <= q")  # threads are running when it forks
    context = multiprocessing.get_context(way)
    queue = context.Queue()
    children = [context.Process(target=in_child, args=(q, want, queue)) for _ in range(2)]
    for child in children:
        child.start()
    assert [queue.get(timeout=60) for _ in children] == [True, True]
    for child in children:
        child.join()


KEPT_FORKS = """
import os, signal, sys, threading
from attune._kept import Kept
sys.setswitchinterval(1e-6)
kept = Kept(8)

def work(first):
    for n in range(first, 10**12):
        assert kept.put(n, -n) == -n and kept.get(n) in (None, -n)
        assert all(value == -key for key, value in kept.items())

for i in range(3):
    threading.Thread(target=work, args=(i * 10**9,), daemon=True).start()
for i in range(100):
    if not (child := os.fork()):
        signal.alarm(30)
        kept.put(-1, 1), kept.items(), kept.clear()
        os._exit(kept.get(-1) is not None)
    assert os.waitpid(child, 0)[1] == 0
assert len(kept.items()) <= 8 + 3  # each thread may be about to take one out
"""


def test_forks_while_other_threads_keep_values():
    said = subprocess.run([sys.executable, "-c", KEPT_FORKS], capture_output=True, text=True, timeout=300)
    assert said.returncode == 0 and "Error" not in said.stderr, said.stderr


FORKS = """
import os, random, signal, sys, threading, time
import attune
import numpy as np
target, forks = sys.argv[1], int(sys.argv[2])
q = np.ones((1, 1, 8, 16), np.float32)
numbers = iter(range(10**9))

def compiled(n):
    return attune.attention(q, q, q, score=f"s * {n}.5f", target=target)

def work():
    while True:
        compiled(next(numbers))

def ended(children, least):
    while len(children) > least:
        assert os.waitpid(children.pop(0), 0)[1] == 0

compiled(-1)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
children = []
for i in range(forks):
    time.sleep(random.random() / 500)
    if not (child := os.fork()):
        signal.alarm(60)
        compiled(-1), compiled(-2 - i)
        os._exit(0)
    children.append(child)
    ended(children, 8)
ended(children, 0)
"""


@pytest.mark.skipif("cpu" not in attune.machine()["engines"], reason="there is no compiler for this CPU")
@pytest.mark.parametrize("target, forks", [("cpu", 180), ("emulated:sm_80", 20)])
def test_forks_while_other_threads_compile(target, forks):
    if target != "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("kernels are emulated by a C++ compiler")
    said = subprocess.run([sys.executable, "-c", FORKS, target, str(forks)], capture_output=True, text=True, timeout=300,
                          env=NO_CACHE)
    assert said.returncode == 0, said.stderr


def peak_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="ASan keeps what is freed for a while")
def test_many_calls_take_no_memory():
    q, slope = np.ones((1, 1, 2, 4), np.float32), np.ones(1, np.float32)
    kept = attune.Attention(lambda s, at: s + slope[at.head], "kv <= q")

    def calls(n):
        for _ in range(n):
            kept(q, q, q)
            kept(q, q, q, lse=True)
            attune.attention(q, q, q, mask=lambda at: at.kv <= at.q)
            try:
                kept(q, q[..., :3], q)
            except attune.Error:
                pass

    calls(2000)
    gc.collect()
    before = peak_kib()
    calls(25000)
    gc.collect()
    assert peak_kib() - before < 2048


ENDS = """
import os, sys
import attune
import numpy as np
q = np.ones((1, 1, 4, 8), np.float32)
score = " + ".join(f"sin(s * {i}.5f)" for i in range(100))
attention = attune.Attention(score)
attention._core.prepare_async(0, {"q": q, "k": q, "v": q, "out": q.copy()}, (), None, ())
print("begun", flush=True)
if "wait" in sys.argv:
    attune.wait()
if "killed" in sys.argv:
    import time
    time.sleep(100)
if "raises" in sys.argv:
    raise SystemExit(3)
"""


@pytest.mark.skipif("cpu" not in attune.machine()["engines"], reason="there is no compiler for this CPU")
@pytest.mark.parametrize("how, status", [("wait", 0), ("returns", 0), ("raises", 3), ("killed", -9)])
def test_a_process_that_ends_while_the_background_compiles(how, status, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ENDS, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "ATTUNE_CACHE": str(tmp_path / "cache"), "ATTUNE_CACHE_SIZE": "1G"})
    assert child.stdout.readline() == "begun\n"
    if how == "killed":
        time.sleep(0.3)  # in the compiler
        child.kill()
    _, said = child.communicate(timeout=120)
    assert (child.returncode, said) == (status, "")
    # Entries are whole or not there, and the next process compiles what is missing. What a process had not finished when
    # it was killed is removed after an hour.
    unfinished = tmp_path / "cache" / "unfinished"
    assert how == "killed" or not unfinished.exists() or not list(unfinished.iterdir())
    again = subprocess.run([sys.executable, "-c", ENDS, "wait"], capture_output=True, text=True, timeout=120,
                           env={**os.environ, "ATTUNE_CACHE": str(tmp_path / "cache"), "ATTUNE_CACHE_SIZE": "1G",
                                "ATTUNE_LOG": "cache,build"})
    assert again.returncode == 0 and "key" in again.stderr and "discarded" not in again.stderr


MODS = """
import sys
import attune
import numpy as np

def mappings():
    with open("/proc/self/maps") as f:
        return sum(1 for _ in f)

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096

q = np.ones((1, 2, 5, 8), np.float32)
once, count = int(sys.argv[1]), int(sys.argv[2])
for i in range(count):
    a = attune.Attention(score=lambda s, at, c=float(i): s * c)
    out = a(q, q, q)
    if i % 3 == 0:
        a.backward(q, q, q, out)
    if i == once:
        before = mappings(), resident()
kept = attune.Attention(score=lambda s, at: s * 0.0)(q, q, q)
assert np.array_equal(kept, q)
print(mappings() - before[0], (resident() - before[1]) >> 20, before)
"""


def test_kernels_that_no_call_uses_go(tmp_path):
    """Each new number is a kernel: a process with many of them stays as it is. 10 000 were run once, by hand."""
    env = {**os.environ, "ATTUNE_LOADED": "8", "ATTUNE_CACHE": str(tmp_path)}
    out = subprocess.run([sys.executable, "-c", MODS, "40", "160"], env=env, check=True, capture_output=True, text=True)
    more, mebibytes = map(int, out.stdout.split()[:2])
    assert more < 20 and mebibytes < 8, out.stdout


def test_handles_are_freed_in_any_order(q):
    from attune import _mod as module

    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        things = [attune.Attention(mask=f"kv <= q + {order[0]}"), attune.watch(lambda fact: None), np.empty_like(q)]
        module._handles.clear()
        things[0](q, q, q, out=things[2])
        for i in order:
            things[i] = None
        gc.collect()
    facts = []
    watch = attune.watch(facts.append)
    attune.attention(q, q, q)
    watch.stop()
    watch.stop()
    told = len(facts)
    attune.attention(q, q, q)
    assert told > 0 and len(facts) == told


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_callback_that_fails_fails_alone(q, capsys):
    with attune.watch(lambda fact: 1 / 0):
        attune.attention(q, q, q)


def run(code, **how):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, **how)


def test_ctrl_c_stops_a_long_call():
    code = """
import os, signal, threading, time
import numpy as np
import attune
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with SIGINT ignored
q = np.ones((1, 64, 8192, 64), np.float32)
attune.Attention().prepare(q, q, q)
o = np.full_like(q, 2)
def press():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
try:
    threading.Thread(target=press, daemon=True).start()
    attune.attention(q, q, q, out=o)
except KeyboardInterrupt:
    print("stopped", "early" if (o == 2).any() else "at the end")
small = np.ones((1, 1, 2, 4), np.float32)
print((attune.attention(small, small, small) == 1).all())
"""
    said = run(code)
    assert said.stdout == "stopped early\nTrue\n", said.stdout + said.stderr


def test_nothing_is_imported_that_is_not_needed():
    said = run("import sys, attune; print([m for m in ('numpy', 'torch', 'jax') if m in sys.modules])")
    assert said.stdout == "[]\n", said.stdout + said.stderr


# What a first call does, in a process of its own: a kernel is compiled, and its first query sees itself alone.
CALL = """
import numpy as np, attune
x = np.random.default_rng(0).standard_normal((1, 2, 16, 8), np.float32)
o = attune.attention(x, x, x, score=lambda s, at: 30 * attune.tanh(s / 30) + at.head, mask="kv <= q")
print((o[:, :, 0] == x[:, :, 0]).all())
"""
NO_CACHE = {**os.environ, "ATTUNE_CACHE": "off"}
LLVMS = sorted({Path(p).resolve() for where in ("/usr/lib/llvm-*/lib", "/usr/lib/*-linux-gnu", "/usr/lib64")
                for p in glob.glob(f"{where}/libLLVM*.so*")})


@pytest.mark.parametrize("llvm", LLVMS or [None], ids=str)
def test_another_llvm_is_loaded_first_for_all_to_see(llvm):
    if llvm is None:
        pytest.skip("no shared LLVM here (Debian's libllvm19)")
    said = run(f"import ctypes; ctypes.CDLL({str(llvm)!r}, mode=ctypes.RTLD_GLOBAL)\n{CALL}", env=NO_CACHE)
    assert said.stdout == "True\n", said.stdout + said.stderr


@pytest.mark.parametrize("other", ["torch", "triton", "jax", "llvmlite.binding"])
@pytest.mark.parametrize("first", [True, False])
def test_beside_another_library(other, first):
    if importlib.util.find_spec(other.partition(".")[0]) is None:
        pytest.skip(f"no {other} here")
    bring = f"import sys, os; sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL); import {other}"
    use = "import torch; x = torch.randn(64, 64); assert torch.isfinite(x @ x).all()" if other == "torch" else ""
    code = [bring, use, CALL] if first else [CALL, bring, use, CALL.replace("/ 30", "/ 20")]
    said = run("\n".join(code), env=NO_CACHE)
    assert said.stdout == "True\n" * (1 if first else 2), said.stdout + said.stderr


def test_a_bundle_is_compiled_and_loaded(tmp_path):
    bundle = tmp_path / "kernels.attune"
    slope = np.ones(4, np.float32)
    mod = attune.Attention(lambda s, at: s + slope[at.head] * at.kv, "kv <= q")
    told = []
    report = attune.compile([mod, {"mask": "kv <= q"}], bundle, targets="host", dtype="f32", d=16,
                            progress=lambda done, row: told.append(done))
    assert report["kernels"] >= 2 and bundle.exists() and told[-1] == 1
    code = f"""
import numpy as np, attune
attune.options["ATTUNE_JIT"] = "off"
attune.options["ATTUNE_CACHE"] = "off"
attune.load({str(bundle)!r})
facts = []
q, slope = np.ones((1, 4, 8, 16), np.float32), np.ones(4, np.float32)
with attune.watch(facts.append):
    attune.attention(q, q, q, score="s + slope[h] * kv", mask="kv <= q", slope=slope)
print({{f.get("from") for f in facts if f["fact"] == "built"}})
"""
    said = run(code)
    assert said.stdout == "{'bundle'}\n", said.stdout + said.stderr


def test_the_kernels_of_a_wheel_are_written_to_a_file(tmp_path, monkeypatch, capsys):
    """As ./dev wheel calls it, but with one kernel of the CPU."""
    from attune import usual

    one = {"mods": [attune.Attention(mask=attune.mods.causal()).describe()["mod"]], "shapes": {"dtype": "f32", "d": 64},
           "passes": "forward", "targets": "host"}
    monkeypatch.setattr(usual, "manifests", lambda: [one])
    monkeypatch.setattr(sys, "argv", ["usual", str(tmp_path / "usual.attune")])
    assert usual.main() == 0
    assert (tmp_path / "usual.attune").stat().st_size > 0
    said = capsys.readouterr()
    assert "kernels" in said.out and "100% " in said.err and "\r" not in said.err  # a log, which no terminal shows


def test_the_usual_kernels_of_a_machine_are_those_for_its_gpus(monkeypatch, capsys, tmp_path):
    from attune import usual

    assert usual.for_targets([]) == []
    of_all, hopper, older = usual.manifests(), usual.for_targets(["sm_90a"]), usual.for_targets(["sm_86"])
    assert len(hopper) == len(of_all) and {t for row in hopper for t in row["targets"]} == {"sm_90a"}
    assert 0 < len(older) < len(of_all) and {t for row in older for t in row["targets"]} == {"sm_86"}
    asked = []
    monkeypatch.setattr(usual, "PLACE", str(tmp_path / "usual.attune"))
    monkeypatch.setattr(sys, "argv", ["usual"])
    monkeypatch.setattr(attune, "machine", lambda: {"cuda": {"devices": [], "why": "no driver"}})
    assert usual.main() == usual.NOT_HERE and "no GPU here: no driver" in capsys.readouterr().err
    monkeypatch.setattr(attune, "machine", lambda: {"cuda": {"devices": [{"target": "sm_90a"}] * 2, "why": ""}})
    monkeypatch.setattr(usual._core, "compile", lambda rows, place, *_: asked.append((rows, place)) or
                        '{"kernels": 1, "bundle": {"bytes": 2}, "seconds": 3}')
    assert usual.main() == 0
    assert asked == [(json.dumps(hopper), os.fsencode(tmp_path / "usual.attune"))]
