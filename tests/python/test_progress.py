# tests/python/test_progress.py — a call that waits for compilers says so on a terminal and in a notebook, else nowhere
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import attune
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from screen import on_terminal, told
from turn import in_turn

if "cpu" not in attune.machine()["engines"]:
    pytest.skip("there is no compiler for this machine's CPU", allow_module_level=True)

# A mod that takes the compiler seconds, of which one passes before it is told.
SLOW = """
import sys
import numpy as np
import attune
q = np.ones((1, 1, 4, 8), "f4")
def slow(extra=0):
    return attune.attention(q, q, q, score=" + ".join(f"sin(s * {i + extra}.5f)" for i in range(300)))
"""
CALL = SLOW + 'print("begun,", end=" ", flush=True)\nslow()\nprint("done")\n'


def environment(**more):
    return {"ATTUNE_CACHE": "off", "ATTUNE_PROGRESS": "", "LOCAL_RANK": "0", **more}


def piped(program, **more):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200,
                          env={**os.environ, **environment(**more)})


def shown(screen):
    return [page for page in screen.ever if "attune compiles forward-f32" in page]


def of_turn(nth):
    """Half of the tests that wait for slow compilations run in a turn."""
    return pytest.mark.skipif(not in_turn(nth, 2), reason="it is in another turn")


@of_turn(0)
def test_terminal_shows_it_below_the_cursor_and_clears_it():
    screen, status = told(lambda: on_terminal([sys.executable, "-c", CALL], **environment()),
                          lambda made: shown(made[0]))
    assert status == 0
    assert any(page.startswith("begun, \nattune compiles forward-f32") for page in shown(screen))
    assert screen.text() == "begun, done"


UNWANTED = [{"ATTUNE_PROGRESS": "off"}, {"TERM": "dumb"}, {"LOCAL_RANK": "1"}, {"ATTUNE_LOG": "launch"}]


@pytest.mark.parametrize("more", [one for nth, one in enumerate(UNWANTED) if in_turn(nth, 4)])
def test_terminal_where_it_is_not_wanted(more):
    screen, status = on_terminal([sys.executable, "-c", CALL], **environment(**more))
    assert (status, shown(screen)) == (0, [])


@of_turn(1)
def test_options_are_stronger_than_the_environment():
    program = SLOW + 'attune.options["ATTUNE_PROGRESS"] = "off"\nslow()\n'
    screen, status = on_terminal([sys.executable, "-c", program], **environment(ATTUNE_PROGRESS="on"))
    assert (status, screen.text()) == (0, "")


@of_turn(0)
def test_piped_stderr_is_silent_unless_asked():
    said = piped(CALL)
    assert (said.returncode, said.stdout, said.stderr) == (0, "begun, done\n", "")
    said = told(lambda: piped(CALL, ATTUNE_PROGRESS="on"), lambda said: said.stderr)
    first, last = said.stderr.splitlines()
    assert first.startswith("attune compiles forward-f32") and last.startswith("attune compiled ")


SHORT = """
import time
import attune, numpy as np
q = np.ones((1, 1, 4, 8), "f4")
begin = time.monotonic()
attune.attention(q, q, q)
print(time.monotonic() - begin)
"""


def test_short_calls_show_nothing():
    # A busy machine may draw out a call until it is none that is short.
    said = told(lambda: piped(SHORT, ATTUNE_PROGRESS="on"), lambda said: said.returncode or float(said.stdout) < 1)
    assert (said.returncode, said.stderr) == (0, "")


@of_turn(1)
def test_several_threads_share_the_line():
    program = SLOW + """
import threading
threads = [threading.Thread(target=slow, args=(i,)) for i in range(2)]
for t in threads: t.start()
for t in threads: t.join()
print("done")
"""
    several = "attune compiles forward-f32, forward-f32"
    screen, status = told(lambda: on_terminal([sys.executable, "-c", program], **environment()),
                          lambda made: any(several in page for page in shown(made[0])))
    assert status == 0
    assert any(several in page for page in shown(screen))
    assert all(page.count("attune compiles") == 1 for page in shown(screen))
    assert screen.text() == "done"


@of_turn(0)
def test_results_are_the_same():
    program = SLOW + "sys.stdout.buffer.write(slow().tobytes())"
    run = lambda how: subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=200,
                                     env={**os.environ, **environment(ATTUNE_PROGRESS=how)}).stdout
    assert run("on") == run("off") != b""


NOTEBOOK = """
import sys, types
class Handle:
    def update(self, page, raw): told.append((page, raw))
def display(page, raw, display_id):
    told.append((page, raw))
    if broken: raise RuntimeError("no frontend")
    return Handle()
told, broken = [], "broken" in sys.argv
shell = types.SimpleNamespace(kernel=object())
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell, display=types.SimpleNamespace(display=display))
""" + SLOW + """
if "off" in sys.argv: attune.options["ATTUNE_PROGRESS"] = "off"
slow()
texts = [page["text/plain"] for page, raw in told if raw and list(page) == ["text/plain"]]
assert len(texts) == len(told)
print(len(texts), texts[0] if texts else "", repr(texts[-1]) if texts else "", sep="|")
"""


def notebook(*how, **more):
    said = subprocess.run([sys.executable, "-c", NOTEBOOK, *how], capture_output=True, text=True, timeout=200,
                          env={**os.environ, **environment(**more)})
    assert (said.returncode, said.stderr) == (0, "")
    count, first, last = said.stdout.strip().split("|")
    return int(count), first, last


@of_turn(1)
def test_notebook_shows_it_below_the_cell_and_empties_it():
    count, first, last = told(notebook, lambda made: made[0])
    assert count >= 2 and first.startswith("attune compiles forward-f32") and last == "''"


@pytest.mark.parametrize("how, more, least", [one for nth, one in enumerate([
    ("off", {}, 0), ("", {"ATTUNE_PROGRESS": "off"}, 0), ("broken", {}, 1)]) if in_turn(nth, 3)])
def test_notebook_where_it_is_not_wanted_or_fails(how, more, least):
    count = told(lambda: notebook(how, **more), lambda made: made[0] >= least)[0]
    assert count >= least if least else count == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@of_turn(1)
def test_a_hook_of_the_program():
    facts, ident = [], []

    def hook(fact):
        facts.append(fact)
        ident.append(threading.get_ident())
        if len(facts) == 1:
            raise RuntimeError("mine")  # is reported as unraisable, and the call goes on

    q = np.ones((1, 1, 4, 8), np.float32)
    nth = itertools.count()

    def call():
        n = next(nth)  # a kernel that no call before has made
        return attune.attention(q, q, q, score=" + ".join(f"sin(s * {i}.{n}25f)" for i in range(300)))

    with attune.watch(hook, "compiling"):
        o = told(call, lambda _: facts)
    assert o.shape == q.shape
    assert len(facts) >= 2 and {fact["fact"] for fact in facts} == {"compiling"}
    assert facts[0]["seconds"] >= 1 and facts[0]["kernels"][0]["kernel"] == "forward-f32"
    assert facts[-1]["over"] and facts[-1]["kernels"] == [] and "in" in facts[-1]["text"]
    assert threading.get_ident() not in ident


def test_facts_that_are_none():
    with pytest.raises(attune.Error, match="unknown-fact"):
        attune.watch(print, "compilng")
    with pytest.raises(attune.Error, match="bad-argument"):
        attune.watch(print, 5)


def test_a_watch_that_is_held_to_the_end():
    said = piped("import attune\nw = attune.watch(print)\nv = attune.watch(print, 'compiling')")
    assert (said.returncode, said.stderr) == (0, "")
