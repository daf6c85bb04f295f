# tests/python/ends.py — how processes end that hold objects of attune: forked from one, each runs code of its own
"""What the tests of a process's end share."""

import json
import os
import subprocess
import sys

SECONDS = 20

# Forks a process for each case. Of the names of a case, `made` makes an object and `use` uses it.
FORKS = """
import json, os, signal, sys
SETUP, CASES, SECONDS, AT_ONCE = json.load(sys.stdin)
exec(SETUP)

def fork_all():
    statuses, running, waiting = {}, {}, list(CASES.items())
    while waiting or running:
        if waiting and len(running) < AT_ONCE:
            name, code = waiting.pop(0)
            if not (process := os.fork()):
                signal.alarm(SECONDS)
                return code
            running[process] = name
        else:
            process, status = os.wait()
            statuses[running.pop(process)] = os.waitstatus_to_exitcode(status)
    print(json.dumps(statuses))
    return ""

exec(fork_all())
"""

LATE = """
import atexit
late = []
atexit.register(lambda: [function() for function in late])  # before attune is imported: called after attune's own
"""

HOLDERS = {
    "a module": "held = made()",
    "sys": "import sys; sys.held = made()",
    "a cycle that calls when it is destroyed": """
class Last:
    def __init__(self):
        self.itself, self.made = self, made()
    def __del__(self):
        use(self.made)
last = Last()""",
    "a function of atexit": "held = made()\nlate.append(lambda: use(held))",
    "a daemon thread that calls": """
import threading, time
held, calls = made(), []
def call():
    while True:
        use(held)
        calls.append(None)
threading.Thread(target=call, daemon=True).start()
while len(calls) < 3:
    time.sleep(0.01)""",
}


def held(kinds, holders=tuple(HOLDERS)):
    """Cases: every object of `kinds`, which are code that defines `made` and `use`, held in every way."""
    return {f"{kind}, {holder}": f"{code}\n{HOLDERS[holder]}" for kind, code in kinds.items() for holder in holders}


def statuses(setup, cases, folder, at_once=4):
    """The exit status by the name of a case, -14 after 20 s, and what they wrote to stderr. `setup` runs once, before
    the forks; kernels are cached in `folder`."""
    given = json.dumps([LATE + setup, cases, SECONDS, at_once])
    done = subprocess.run([sys.executable, "-c", FORKS], input=given, capture_output=True, text=True, check=True,
                          env={**os.environ, "ATTUNE_CACHE": str(folder), "ATTUNE_CACHE_SIZE": "1G"})
    return json.loads(done.stdout), done.stderr
