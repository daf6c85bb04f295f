# tests/python/test_foreign.py — arrays, loops and threads of other code that break their contracts
"""What others hand to attune, or keep of it."""

import subprocess
import sys
import threading

import attune
import numpy as np
import pytest
from conftest import refused

Q = np.ones((1, 2, 4, 8), np.float32)


class Shown:
    """An array of no library, by NumPy's interface with some fields changed."""

    def __init__(self, **changed):
        fields = {**Q.__array_interface__, **changed}
        self.__array_interface__ = {name: x for name, x in fields.items() if x is not Ellipsis}


class Capsule:
    """An array by DLPack, which gives what it was told."""

    def __init__(self, given, device=(1, 0)):
        self.given, self.device = given, device

    def __dlpack__(self, **_):
        return self.given

    def __dlpack_device__(self):
        return self.device


class Whole:
    __array_interface__ = 3


MALFORMED = {
    "more-strides": Shown(strides=(4,) * 1000), "fewer-strides": Shown(strides=(4,)), "17-strides": Shown(strides=(4,) * 17),
    "list-of-strides": Shown(strides=[256, 128, 32, 4]), "float-strides": Shown(strides=(1.5,) * 4),
    "list-of-extents": Shown(shape=[1, 2, 4, 8]), "text-extents": Shown(shape=("a",) * 4), "no-shape": Shown(shape=...),
    "huge-extent": Shown(shape=(1, 2, 2**70, 8)), "no-data": Shown(data=...), "data-none": Shown(data=None),
    "address-alone": Shown(data=(1,)), "address-of-text": Shown(data=("a", False)), "typestr-number": Shown(typestr=4),
    "no-typestr": Shown(typestr=...), "no-dict": Whole(), "dlpack-none": Capsule(None), "dlpack-int": Capsule(3),
    "device-none": Capsule(None, None), "device-of-one": Capsule(None, (1,)), "device-of-text": Capsule(None, ("a", 0)),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("place", range(3))
def test_a_malformed_array_is_refused_by_name(name, place):
    given = [Q, Q, Q]
    given[place] = MALFORMED[name]
    error = refused(attune.Attention(), *given, out=np.empty_like(Q))
    assert error.code == "tensor-unreadable" and error.problem.startswith(f"`{'qkv'[place]}`")


@pytest.mark.parametrize("typestr", ["<f36", "<fx", "<f", "<f-4", "<b4", "<V2"])
def test_an_unknown_type_is_refused(typestr):
    assert refused(attune.Attention(), Shown(typestr=typestr), Q, Q, out=np.empty_like(Q)).code == "tensor-type"


def test_a_well_formed_interface_is_read():
    twice = np.ones((1, 2, 4, 16), np.float32)[..., ::2]
    shown = Shown(strides=twice.strides, data=twice.__array_interface__["data"])
    shown.array = twice
    assert np.array_equal(attune.Attention()(shown, Q, Q, out=np.empty_like(Q)), attune.Attention()(Q, Q, Q))


def test_a_masked_array_is_refused():
    assert refused(attune.Attention(), Q, np.ma.masked_array(Q, Q > 0), Q).code == "tensor-unreadable"


def test_a_memoryview_wants_an_output():
    assert refused(attune.Attention(), memoryview(Q), Q, Q).code == "no-output"
    out = np.empty_like(Q)
    assert attune.Attention()(memoryview(Q), Q, Q, out=out) is out


def test_an_array_is_no_option():
    assert refused(attune.attention, Q, Q, Q, lets=Q).code == "bad-argument"
    assert attune.Attention().prepare(Q, Q, Q, lse=np.ones((1, 2, 4), np.float32))["workspace"] > 0
    error = refused(attune.attention, Q, Q, Q, mask=np.ones((4, 4), bool))
    assert error.code == "wrong-arguments" and "array[at.q, at.kv]" in error.fix


def test_a_keyword_that_nothing_reads_is_told_of():
    slope, other = np.ones(2, np.float32), np.ones(2, np.float32)
    with pytest.warns(UserWarning, match=r"nothing reads `softcap`: .*; write score=attune\.mods\.softcap\(cap\)"):
        attune.attention(Q, Q, Q, softcap=30.0)
    with pytest.warns(UserWarning, match="nothing reads `slpe`"):
        attune.attention(Q, Q, Q, score=lambda s, at: s + slope[at.head], slpe=other)


# ---- loops

LONG = np.ones((1, 2, 300, 16), np.float32)


def test_a_task_after_its_call_is_refused():
    kept = []

    def loop(n, run):
        kept.append(run)
        for i in range(n):
            run(i, 0)

    attention = attune.Attention()
    attention(LONG, LONG, LONG, parallel_for=loop, workers=2)
    for rows in range(1, 290):
        attention(LONG[:, :, :rows], LONG, LONG)
    for i in range(-50000, 50000, 777):
        assert refused(kept[0], i, 0).code == "executor-tasks"


def test_a_loop_whose_threads_go_on_is_refused():
    threads = []

    def loop(n, run):
        def some(first):
            for i in range(first, n, 2):
                try:
                    run(i, first)
                except attune.Error as error:
                    codes.append(error.code)

        threads.extend(threading.Thread(target=some, args=(i,)) for i in range(2))
        for one in threads[-2:]:
            one.start()

    attention, codes = attune.Attention(), []
    for _ in range(20):
        try:
            attention(LONG, LONG, LONG, parallel_for=loop, workers=2)
        except attune.Error as error:
            codes.append(error.code)
    for one in threads:
        one.join()
    assert set(codes) <= {"executor-tasks"}
    assert np.array_equal(attention(LONG, LONG, LONG), attention(LONG, LONG, LONG, workers=1))


@pytest.mark.parametrize("tasks", [[], [0], [0, 0], [-1], [1 << 40]])
def test_a_loop_runs_each_task_once(tasks):
    def loop(n, run):
        assert n > 1
        for i in tasks:
            run(i, 0)

    assert refused(attune.Attention(), LONG, LONG, LONG, parallel_for=loop, workers=2).code == "executor-tasks"


# ---- the end of the interpreter

AT_THE_END = """
import sys, threading, time
import numpy as np
import attune
q = np.ones((1, 4, 4096, 64), np.float32)
attune.Attention().prepare(q, q, q)
def work():
    while True:
        attune.Attention()(q, q, q{how})
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
sys.exit(5)
"""


@pytest.mark.parametrize("how", ["", ", workers=1", ", progress=lambda done: None", ", out=np.empty_like(q)"])
def test_a_daemon_thread_does_not_change_how_a_program_ends(how):
    ended = subprocess.run([sys.executable, "-c", AT_THE_END.replace("{how}", how)], capture_output=True, text=True,
                           timeout=120)
    assert ended.returncode == 5, ended.stderr


# ---- functions

def test_functions_of_one_code_are_distinguished():
    def times(factor):
        return lambda s: s * factor

    def of(first, second, third):
        return lambda s, at: first(s) + second(s) - third(s)

    two, three = times(2.0), times(3.0)
    texts = [attune.text(of(two, three, two)), attune.text(of(two, three, three))]
    assert texts == ["s * 2.0f + s * 3.0f - s * 2.0f", "s * 2.0f + s * 3.0f - s * 3.0f"]
    for third, expected in ((two, 3.0), (three, 2.0), (two, 3.0)):
        same = attune.attention(Q, Q, Q, score=of(two, three, third), lse=True)[1]
        assert np.allclose(same, attune.attention(Q, Q, Q, score=f"s * {expected}f", lse=True)[1])
