# tools/bench/cpu_peers.py — attune's CPU engine beside torch's on this machine: blocks of both in turn, one comparison
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
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from peers_page import AGAINST, floor, missed, page, picture, rate, title

ROWS = ["full", "causal", "alibi", "softcap", "document"]


@dataclass(frozen=True)
class Case:
    row: str
    direction: str
    dtype: str
    d: int
    heads: int
    seq: int
    threads: int

    def __str__(self):
        return f"{title(asdict(self))}, {self.row} {self.direction}"

    def live_pairs(self):
        """Pairs the mask keeps over all heads, counted here and not by those who are measured."""
        lengths = [self.seq]
        if self.row == "document":
            starts = [-(-i * self.seq // 12) for i in range(13)]
            lengths = [end - start for start, end in zip(starts, starts[1:])]
        return self.heads * sum(n * n if self.row == "full" else n * (n + 1) // 2 for n in lengths)

    def flop(self):
        """Two products forward, five backward, each of 2 D operations a pair."""
        return self.live_pairs() * self.d * (10 if self.direction == "backward" else 4)


def cases(o):
    for threads in o.threads:
        for d in o.d:
            for dtype in o.dtypes:
                shape = {"dtype": dtype, "d": d, "threads": threads, "heads": o.heads or (4 if threads == 1 else 16),
                         "seq": o.seq or (2048 if o.quick and threads == 1 else 4096)}
                for row in o.rows:
                    yield Case(row, "forward", **shape)
                if o.backward and "causal" in o.rows:
                    yield Case("causal", "backward", **shape)


def first_line(path, start):
    try:
        found = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.startswith(start)]
    except OSError:
        found = []
    return found[0].partition(":")[2].strip() if found else ""


def machine(o):
    flags = first_line("/proc/cpuinfo", "flags").split()
    return {"command": shlex.join([Path(sys.executable).name, *sys.argv]),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "cpu": first_line("/proc/cpuinfo", "model name"), "cores": os.cpu_count(),
            "may_run_on": len(os.sched_getaffinity(0)), "amx": "amx_bf16" in flags,
            "avx512_bf16": "avx512_bf16" in flags, "system": platform.platform(), "python": platform.python_version(),
            "attune": subprocess.run([o.attune, "--version"], capture_output=True, text=True).stdout.strip(),
            "environment": {name: value for name, value in os.environ.items()
                            if name.startswith(("OMP_", "GOMP_", "KMP_", "MKL_", "ATTUNE_", "MALLOC_"))},
            "load_at_start": os.getloadavg()}


def attune_block(o, case):
    """One process of attune bench: the line it prints."""
    command = [o.attune, "bench", "--json", "--row", case.row, "--dtype", case.dtype, "--heads", case.heads, "--seq",
               case.seq, "--d", case.d, "--threads", case.threads, "--seconds", o.seconds]
    command += ["--backward"] if case.direction == "backward" else []
    said = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    if said.returncode:
        raise RuntimeError(said.stderr.strip()[:400] or f"exit status {said.returncode}")
    return json.loads(said.stdout)


def summary(blocks, flop):
    """The median of the blocks' medians, and the best of all."""
    median, best = statistics.median(b["median"] for b in blocks), min(b["best"] for b in blocks)
    return {"seconds": {"median": median, "best": best},
            "gflops": {"median": flop / median / 1e9, "best": flop / best / 1e9}, "blocks": blocks}


def measure(o, case, prepared):
    """Blocks in turn, so that what else the machine does meets all of them alike."""
    blocks, failed, lines = {"attune": []}, {}, []
    if prepared:
        blocks.update({peer: [] for peer in prepared.calls})
        failed.update(prepared.failed)
    for _ in range(o.rounds):
        for name, done in blocks.items():
            if name in failed:
                continue
            try:
                if name == "attune":
                    line = attune_block(o, case)
                    lines.append(line)
                    done.append({**line["seconds"], "runs": line["runs"]})
                else:
                    times = prepared.block(name, o.seconds)
                    done.append({"best": min(times), "median": statistics.median(times), "runs": len(times)})
            except (RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
                failed[name] = str(error)[:400]
    result = {**asdict(case), "live_pairs": case.live_pairs(), "flop": case.flop(), "failed": failed,
              "measured": {name: summary(done, case.flop()) for name, done in blocks.items() if name not in failed}}
    for name, notes in (prepared.notes if prepared else {}).items():
        if name in result["measured"]:
            result["measured"][name].update(notes)
    if "attune" in result["measured"]:
        attune = result["measured"]["attune"]
        attune["isa"], attune["first_call_seconds"] = lines[0]["isa"], lines[0]["first_call_seconds"]
        attune["peak_gflops"] = case.threads * max(line["peak_gflops_one_thread"] for line in lines)
        own = lines[0]["gflops"]["best"] * lines[0]["seconds"]["best"] * 1e9
        if abs(own / case.flop() - 1) > 1e-6:
            failed["attune"] = f"attune bench counts {own:.6g} flop, and there are {case.flop():.6g}"
    return result


def write(o, data):
    o.out.mkdir(parents=True, exist_ok=True)
    (o.out / "cpu_peers.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (o.out / "cpu_peers.md").write_text(page(data, o.floor), encoding="utf-8")
    (o.out / "cpu_peers.svg").write_text(picture(data), encoding="utf-8")


def say(start, text):
    print(f"[{time.monotonic() - start:5.0f} s] {text}", file=sys.stderr, flush=True)


def run(o):
    """Every case in turn; what there is so far is written after each."""
    start, longest, run_of = time.monotonic(), 0.0, machine(o)
    data = {"runs": [run_of], "cases": [], "left_out": []}
    if o.torch:
        import torch_peers  # takes seconds, and --from or --no-torch do without
        run_of.update(torch_peers.facts())
    say(start, f"{run_of['cpu']}, {run_of['cores']} cores, load {run_of['load_at_start'][0]:.2f}, {run_of['attune']}, "
               f"torch {run_of.get('torch', 'left out')}")
    for case in cases(o):
        begun = time.monotonic()
        # The first case compiles what later ones find compiled, and so says little of what they take.
        if begun - start + longest > o.limit:
            say(start, f"{case}: left out, for the limit of {o.limit} s")
            data["left_out"].append(str(case))
            continue
        prepared = torch_peers.Prepared(case, o.flex) if o.torch else None
        result = measure(o, case, prepared)
        result["run"] = 0
        del prepared
        longest = max(longest, time.monotonic() - begun if data["cases"] else 0.0)
        data["cases"].append(result)
        rates = ", ".join(f"{name} {rate(m['gflops']['median'])}" for name, m in result["measured"].items())
        say(start, f"{case}: {rates} GFLOP/s; {time.monotonic() - begun:.1f} s")
        for name, why in result["failed"].items():
            say(start, f"  {name} failed: {why}")
        run_of["load_at_end"], run_of["seconds"] = os.getloadavg(), time.monotonic() - start
        write(o, data)
    return data


def joined(paths):
    """Earlier results as one: a table that took several commands. Of a case measured again the last counts."""
    runs, found, left_out = [], {}, []
    for path in paths:
        one = json.loads(Path(path).read_text(encoding="utf-8"))
        for case in one["cases"]:
            found[tuple(case[field.name] for field in fields(Case))] = {**case, "run": case["run"] + len(runs)}
        runs += one["runs"]
        left_out += one["left_out"]
    measured = {str(Case(*key)) for key in found}
    return {"runs": runs, "cases": list(found.values()), "left_out": [c for c in left_out if c not in measured]}


def options():
    p = argparse.ArgumentParser(description="attune's CPU engine beside torch's, in turn on the same machine",
                                epilog="exit status 1: something failed, was left out, or is below a floor")
    p.add_argument("--attune", help="the command line, as built")
    p.add_argument("--from", dest="earlier", nargs="+", metavar="JSON", help="join earlier results, measure nothing")
    p.add_argument("--out", type=Path, required=True, help="where cpu_peers.json, .md and .svg go")
    p.add_argument("--threads", type=int, nargs="+", default=[16, 1])
    p.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, metavar="ROW", help=" ".join(ROWS))
    p.add_argument("--dtypes", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"], metavar="TYPE")
    p.add_argument("--d", type=int, nargs="+", default=[64, 128])
    p.add_argument("--heads", type=int, help="4 for one thread and 16 for more, if left out")
    p.add_argument("--seq", type=int, help="4096 if left out")
    p.add_argument("--seconds", type=float, help="of a block, at least; 0.5 if left out")
    p.add_argument("--rounds", type=int, default=3, help="blocks of each, in turn")
    p.add_argument("--limit", type=float, default=530, help="seconds after which no case is begun")
    p.add_argument("--quick", action="store_true", help="blocks of 0.2 s, and 2048 tokens for one thread")
    p.add_argument("--no-flex", dest="flex", action="store_false")
    p.add_argument("--no-backward", dest="backward", action="store_false")
    p.add_argument("--no-torch", dest="torch", action="store_false", help="attune alone")
    p.add_argument("--floor", type=floor, action="append", default=[], metavar="[WORD:...]PEER=RATIO",
                   help=f"the least attune may be of {', '.join(AGAINST)}, where all words fit: a row, a type, forward "
                        "or backward, d64, t16; as f32:causal:sdpa=1.0")
    o = p.parse_args()
    if not o.earlier and not o.attune:
        p.error("--attune or --from")
    if not o.earlier and not shutil.which(o.attune):
        p.error(f"{o.attune}: there is no such program")
    o.seconds = o.seconds or (0.2 if o.quick else 0.5)
    return o


def main():
    o = options()
    data = joined(o.earlier) if o.earlier else run(o)
    write(o, data)
    below = missed(data, o.floor)
    print("\n".join(below) if below else f"{o.out / 'cpu_peers.md'}: no floor missed", file=sys.stderr)
    sys.exit(1 if below or data["left_out"] or any(case["failed"] for case in data["cases"]) else 0)


if __name__ == "__main__":
    main()
