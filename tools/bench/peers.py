# tools/bench/peers.py — measures attune and its peers in turn on any machine: blocks, medians, files, a time limit
import argparse
import datetime
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import MISSING, asdict, fields
from pathlib import Path

import results
from peers_page import floor, missed, page, result
from peers_picture import draw


class Skipped(Exception):
    """A case that cannot be measured here, and why."""


def program(o):
    """The command line's facts about itself."""
    return subprocess.run([o.attune, "--version"], capture_output=True, text=True).stdout.strip()


def run_facts(attune):
    """The facts that every run records. `attune`: the facts that the measured program reports."""
    return {"command": shlex.join([Path(sys.executable).name, *sys.argv]),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "system": platform.platform(), "python": platform.python_version(),
            "attune": attune,
            "load_at_start": os.getloadavg()}


def live_pairs(row, seq, window=1024):
    """Pairs that a known row's mask keeps in one head, counted independently of the programs measured."""
    if row == "full":
        return seq * seq
    if row == "window":
        return sum(min(q + 1, window) for q in range(seq))
    if row == "prefix":
        return sum(min(max(q + 1, 1024), seq) for q in range(seq))
    lengths = [seq]
    if row == "document":
        starts = [-(-i * seq // 12) for i in range(13)]
        lengths = [end - start for start, end in zip(starts, starts[1:])]
    return sum(n * (n + 1) // 2 for n in lengths)


def bench_command(o, case):
    """The attune bench command for a case: the part that is the same on all machines."""
    own = getattr(case, "mod", None)
    command = [o.attune, "bench", "--json", *(own.options(case) if own else ("--row", case.row)), "--dtype", case.dtype,
               "--heads", case.heads, "--seq", case.seq, "--d", case.d, "--seconds", o.seconds]
    direction = getattr(case, "direction", "forward")
    command += [f"--{direction}"] if direction != "forward" else []
    command += ["--grads"] if getattr(case, "grads", False) else []
    return [str(word) for word in command]


def check_flop(line, case, failed):
    """attune's own count of its operations must match ours."""
    own = line.get("flop") or line["gflops"]["best"] * line["seconds"]["best"] * 1e9
    if abs(own / case.work() - 1) > 1e-6:
        failed["attune"] = f"attune bench counts {own:.6g} flop, and there are {case.work():.6g}"


def summary(blocks, work):
    """The median of the blocks' medians, and the best over all blocks; rates are 1e9 of the work, operations or bytes, a
    second."""
    median, best = statistics.median(b["median"] for b in blocks), min(b["best"] for b in blocks)
    return {"seconds": {"median": median, "best": best},
            "rate": {"median": work / median / 1e9, "best": work / best / 1e9}, "blocks": blocks}


def block_of(times):
    return {"best": min(times), "median": statistics.median(times), "runs": len(times)}


def order_of(names, turn):
    """The order of a turn. A card at its power limit lowers its clock under a kernel that draws much power, and the next
    side begins at that clock. So each side follows every other one equally often: within as many turns as there are
    sides, or twice as many if that number is odd (a Williams design)."""
    sides = len(names)
    zigzag = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(sides)]  # 0, 1, -1, 2, -2
    first = turn // 2 if sides % 2 else turn
    order = [names[(at + first) % sides] for at in zigzag]
    return order[::-1] if sides % 2 and turn % 2 else order


def in_turn(case, blocks, failed, rounds, renew=lambda turn: None):
    """Measures blocks in turn, so that the machine's other load and its clock affect all of them alike. `blocks`: the
    function that measures one, by name; `renew`: called before each turn, with its number."""
    done = {name: [] for name in blocks}
    for turn in range(rounds):
        renew(turn)
        for name in order_of(list(blocks), turn):
            if name in failed:
                continue
            try:
                done[name].append(blocks[name]())
            except (RuntimeError, OSError, subprocess.TimeoutExpired, ValueError) as error:
                failed[name] = str(error)[:400]
    return {**asdict(case), "work": case.work(), "failed": failed,
            "measured": {name: summary(found, case.work()) for name, found in done.items() if name not in failed}}


def in_turn_with(prepared, o, case, blocks, **more):
    """In turn with the peers that are prepared, each with its notes; `prepared` may be None."""
    if not prepared:
        return in_turn(case, blocks, {}, o.rounds)

    def of(peer):
        return lambda: block_of(prepared.block(peer, o.seconds))

    result = in_turn(case, blocks | {peer: of(peer) for peer in prepared.calls}, dict(prepared.failed), o.rounds, **more)
    for name, facts in prepared.notes.items():
        if name in result["measured"]:
            result["measured"][name].update(facts)
    return result


def short(count):
    return f"{count // 1024}k" if count % 1024 == 0 else str(count)


def chosen(o, cases, words_of):
    """The cases that have all words of one of --rows."""
    wanted = [set(words.split(":")) for words in o.rows]
    return [case for case in cases if not wanted or any(words <= words_of(case) for words in wanted)]


def with_rows(p, examples):
    """The option --rows of a parser, for `chosen`."""
    p.add_argument("--rows", nargs="+", default=[], metavar="WORD[:WORD...]",
                   help=f"cases that all these words speak of: {examples}; all if left out")


def check_rows(p, o, cases):
    if not cases:
        p.error(f"--rows {' '.join(o.rows)}: no case has these words")
    return o


def write(o, look, data):
    o.out.mkdir(parents=True, exist_ok=True)
    (o.out / f"{look.name}.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    results.write(o.out / f"{look.name}.jsonl", *result(look, data))
    (o.out / f"{look.name}.md").write_text(page(look, data, o.floor), encoding="utf-8")
    draw(o.out / f"{look.name}.md")


def say(start, text):
    print(f"[{time.monotonic() - start:5.0f} s] {text}", file=sys.stderr, flush=True)


def run(o, look, cases, run_of, measure):
    """Measures every case; after each one, writes the results so far and prints a line for it."""
    start, longest = time.monotonic(), 0.0
    data = {"runs": [run_of], "cases": [], "left_out": [], "skipped": []}
    for case in cases:
        begun = time.monotonic()
        # The first case compiles what later ones reuse, so its time does not predict theirs.
        if begun - start + longest > o.limit:
            say(start, f"{case}: left out, for the limit of {o.limit} s")
            data["left_out"].append(str(case))
            continue
        try:
            result = {**measure(case), "run": 0}
        except Skipped as why:
            say(start, f"{case}: skipped: {why}")
            data["skipped"].append(f"{case}: {why}")
            continue
        longest = max(longest, time.monotonic() - begun if data["cases"] else 0.0)
        data["cases"].append(result)
        rates = {name: round(m["rate"]["median"] / look.scale, 1) for name, m in result["measured"].items()}
        print(json.dumps({**asdict(case), "unit": look.unit, **rates, "failed": result["failed"]}), flush=True)
        say(start, f"{case}: {', '.join(f'{name} {value:g}' for name, value in rates.items())} {look.unit}; "
                   f"{time.monotonic() - begun:.1f} s")
        for name, why in result["failed"].items():
            say(start, f"  {name} failed: {why}")
        run_of["load_at_end"], run_of["seconds"] = os.getloadavg(), time.monotonic() - start
        write(o, look, data)
    return data


def joined(kind, paths):
    """Joins earlier results of several commands into one table. For a case measured more than once, the last one
    counts."""
    runs, found, left_out, skipped = [], {}, [], []
    plain = lambda x: tuple(x) if isinstance(x, list) else x
    for path in paths:
        one = json.loads(Path(path).read_text(encoding="utf-8"))
        for case in one["cases"]:
            # These results are older than some fields: those get their defaults.
            case = {**{f.name: f.default for f in fields(kind) if f.default is not MISSING}, **case}
            found[tuple(plain(case[f.name]) for f in fields(kind))] = {**case, "run": case["run"] + len(runs)}
        runs += one["runs"]
        left_out += one["left_out"]
        skipped += one.get("skipped", [])
    measured = {str(kind(*key)) for key in found}
    return {"runs": runs, "cases": list(found.values()), "left_out": [c for c in left_out if c not in measured],
            "skipped": skipped}


def options(look, what):
    """A parser with the options that all share; `parsed` checks them."""
    p = argparse.ArgumentParser(description=what,
                                epilog="exit status 1: something failed, was left out, or is below a floor")
    p.add_argument("--from", dest="earlier", nargs="+", metavar="JSON", help="join earlier results, measure nothing")
    p.add_argument("--out", type=Path, required=True, help=f"where {look.name}.json, .jsonl, .md and .svg go")
    p.add_argument("--rounds", type=int, default=4, help="blocks of each, in turn; 4 if left out")
    p.add_argument("--limit", type=float, default=530, help="seconds after which no case is begun")
    p.add_argument("--no-flex", dest="flex", action="store_false")
    p.add_argument("--floor", type=floor(look), action="append", default=[], metavar="[WORD:...]PEER=RATIO",
                   help=f"the least attune may be of {', '.join(look.against)}, where all words fit: {look.words_help}")
    return p


def parsed(p):
    """Options of a script that measures the command line."""
    p.add_argument("--attune", help="the command line, as built")
    o = p.parse_args()
    if not o.earlier and not o.attune:
        p.error("--attune or --from")
    if not o.earlier and not shutil.which(o.attune):
        p.error(f"{o.attune}: there is no such program")
    return o


def finish(o, look, data):
    write(o, look, data)
    below = missed(look, data, o.floor)
    print("\n".join(below) if below else f"{o.out / look.name}.md: no floor missed", file=sys.stderr)
    sys.exit(1 if below or data["left_out"] or any(case["failed"] for case in data["cases"]) else 0)
