# tests/fuzz/soak.py — random mods on emulated GPUs by many processes: resumable, one line per wrong result, a summary
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TEST, TILES = "random mods on emulated GPUs*", "random tiles on an emulated GPU*"
RAN = re.compile(r"^(\d+) of \d+ calls from seed \d+ on, in [\d.]+ s; (\d+) refused, (\d+) hopeless$", re.M)
# A wrong result's text ends where the next line of progress begins.
WRONG = re.compile(r"^WRONG seed (\d+)\n(.*?)(?=^WRONG |^\d+ of \d+ calls|^[~=-]{20}|\Z)", re.M | re.S)


class Soak:
    def __init__(self, o):
        self.o, self.began, self.lock = o, time.monotonic(), threading.Lock()
        self.done = {}  # seed -> its outcome
        self.dead = []  # outcomes of processes that died with several calls
        if o.state.exists():
            for line in o.state.read_text().splitlines():
                try:
                    one = json.loads(line)
                    self.add(one)
                except (ValueError, KeyError):
                    pass  # the last line of a run that was killed
        self.resumed = len(self.done)
        wanted = [seed for seed in range(o.first, o.first + o.count) if seed not in self.done]
        self.left = [wanted[i:i + o.chunk] for i in range(0, len(wanted), o.chunk)]
        self.running = set()

    def add(self, one):
        self.done.update({seed: one for seed in range(one["seed"], one["seed"] + one["calls"])})
        if not one["calls"]:
            self.dead.append(one)

    def seconds_left(self):
        return self.o.seconds - (time.monotonic() - self.began)

    def ran(self, seed, calls, limit):
        """Some calls in a process of their own: their outcome, or None if not all of them came to an end; what the process
        said; what it died by, or None if it was ended because of the time."""
        env = {**os.environ, "ATTUNE_FUZZ": str(calls), "ATTUNE_FUZZ_FROM": str(seed), "ATTUNE_TEST_SAY": "1"}
        env.setdefault("ATTUNE_THREADS", "1")  # processes share the CPUs
        if self.o.cache:
            env["ATTUNE_CACHE"] = str(self.o.cache)
        start = time.monotonic()
        with subprocess.Popen([self.o.test, TILES if self.o.tiles else TEST], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace",
                              start_new_session=True) as process:
            with self.lock:
                self.running.add(process)
            late = False
            try:
                out, _ = process.communicate(timeout=max(limit, 1))
            except subprocess.TimeoutExpired:
                late = True
                os.killpg(process.pid, signal.SIGKILL)
                out, _ = process.communicate()
            with self.lock:
                self.running.discard(process)
        if "[skip]" in out:
            sys.exit(out[out.index("[skip]"):].splitlines()[0])
        counts = RAN.search(out)
        if late:
            return None, out, None
        if process.returncode < 0:
            return None, out, f"signal {-process.returncode}"
        if not counts or int(counts[1]) != calls:
            return None, out, f"exit status {process.returncode}"
        return {"seed": seed, "calls": calls, "refused": int(counts[2]), "hopeless": int(counts[3]),
                "seconds": round(time.monotonic() - start, 1),
                "wrong": [{"seed": int(s), "what": " | ".join(text.split("\n")).strip(" |")}
                          for s, text in WRONG.findall(out)]}, out, None

    def keep(self, one):
        with self.lock, self.o.state.open("a") as file:
            file.write(json.dumps(one) + "\n")
            self.add(one)
            for wrong in one["wrong"]:
                print(f"WRONG seed {wrong['seed']}: {wrong['what'][:600]}", flush=True)

    def single(self, seed):
        """A call that did not come to an end together with others, alone: it crashes, hangs, or was cut off."""
        limit = self.o.patience
        if self.seconds_left() < limit:
            return
        one, out, died = self.ran(seed, 1, limit)
        self.keep(one or {"seed": seed, "calls": 1, "refused": 0, "hopeless": 0, "seconds": limit,
                          "wrong": [{"seed": seed, "what": f"{self.how(died)}: {self.end_of(out)}"}]})

    def how(self, died):
        return f"died by {died}" if died else f"ran for more than {self.o.patience} s"

    @staticmethod
    def end_of(out):
        return " | ".join(out.strip().splitlines()[-40:]) or "no output"

    def work(self):
        while self.seconds_left() > 0:
            with self.lock:
                if not self.left:
                    return
                seeds = self.left.pop(0)
            first, calls = seeds[0], len(seeds)
            if seeds[-1] - first + 1 == calls:
                one, out, died = self.ran(first, calls, min(self.seconds_left(), self.o.patience * calls))
                if one:
                    self.keep(one)
                    continue
                if died:  # each alone may end
                    self.keep({"seed": first, "calls": 0, "wrong": [{"seed": first, "what":
                               f"seeds {first} to {seeds[-1]} together {self.how(died)}: {self.end_of(out)}"}]})
            for seed in seeds:
                if self.seconds_left() > 0:
                    self.single(seed)

    def report(self):
        wanted = range(self.o.first, self.o.first + self.o.count)
        ran = [self.done[seed] for seed in wanted if seed in self.done]
        chunks = list({id(one): one for one in ran}.values())
        seconds, here = time.monotonic() - self.began, len(self.done) - self.resumed
        return {"first": self.o.first, "asked": self.o.count, "ran": len(ran), "ran_now": here,
                "refused": sum(one["refused"] for one in chunks), "hopeless": sum(one["hopeless"] for one in chunks),
                "wrong": [wrong for one in chunks + self.dead for wrong in one["wrong"]], "seconds": round(seconds),
                "processes": self.o.jobs, "calls_per_second": round(here / max(seconds, 1), 2),
                "core_seconds_per_call": round(sum(one["seconds"] for one in chunks) / max(len(ran), 1), 2)}


STAND_IN = """#!/usr/bin/env python3
import os, sys, time
first, calls = int(os.environ["ATTUNE_FUZZ_FROM"]), int(os.environ["ATTUNE_FUZZ"])
for seed in range(first, first + calls):
    if seed == 103: print(f"WRONG seed {seed}\\nscore  s\\n  o: error 1\\n", flush=True)
    if seed == 105 or seed == 113 and calls > 1: os.abort()
    if seed == 114: time.sleep(60)
print(f"{calls} of {calls} calls from seed {first} on, in 0 s; 0 refused, {first % 2} hopeless")
"""


def self_test():
    """A test that is wrong once, crashes once and hangs once; the second run continues the first."""
    with tempfile.TemporaryDirectory() as folder:
        test, state, summary = Path(folder, "test"), Path(folder, "state"), Path(folder, "summary")
        test.write_text(STAND_IN)
        test.chmod(0o755)
        command = [sys.executable, __file__, test, "--first", "100", "--jobs", "3", "--chunk", "4", "--patience", "4",
                   "--state", state, "--summary", summary]
        for count, ran in ((6, 6), (15, 9)):
            done = subprocess.run([*command, "--count", str(count)], capture_output=True, text=True)
            said = json.loads(summary.read_text())
            assert done.returncode == 1 and said["ran"] == count and said["ran_now"] == ran, (done, said)
        wrong = {(one["seed"], re.split(r":| \|", one["what"])[0]) for one in said["wrong"]}
        assert wrong == {(103, "score  s"), (104, "seeds 104 to 105 together died by signal 6"),
                         (105, "died by signal 6"), (110, "seeds 110 to 113 together died by signal 6"),
                         (114, "ran for more than 4.0 s")}, said


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    p = argparse.ArgumentParser(description="Random mods through emulated kernels, forward and backward, against the "
                                            "oracle, on every core. Needs a C++ compiler on the PATH (g++, clang++ or "
                                            "c++). A second run with the same --state continues.")
    p.add_argument("test", help="the program test_emulated")
    p.add_argument("--tiles", action="store_true", help="longer calls, with random tiles by name of Hopper's kernels")
    p.add_argument("--first", type=int, default=0, help="the first seed")
    p.add_argument("--count", type=int, default=3000, help="how many seeds")
    p.add_argument("--seconds", type=float, default=3600, help="the time after which the run ends")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; one per CPU if left out")
    p.add_argument("--chunk", type=int, default=8, help="calls of a process")
    p.add_argument("--patience", type=float, default=120, help="seconds after which a call counts as hung")
    p.add_argument("--state", type=Path, default=Path("soak.jsonl"), help="outcomes, one line per process; appended to")
    p.add_argument("--summary", type=Path, help="a JSON file for the summary")
    p.add_argument("--cache", type=Path, help="a folder for kernels that calls have in common")
    o = p.parse_args()
    soak = Soak(o)
    workers = [threading.Thread(target=soak.work) for _ in range(o.jobs)]
    for worker in workers:
        worker.start()
    said = time.monotonic()
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.2)
        if time.monotonic() - said > 20:
            said = time.monotonic()
            now = soak.report()
            print(f"{now['ran']} of {o.count} calls in {now['seconds']} s, {len(now['wrong'])} wrong", flush=True)
    summary = soak.report()
    if o.summary:
        o.summary.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps({**summary, "wrong": [wrong["seed"] for wrong in summary["wrong"]]}))
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
