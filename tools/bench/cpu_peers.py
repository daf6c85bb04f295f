# tools/bench/cpu_peers.py — compares attune's CPU engine with torch's on this machine: blocks of both in turn
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import peers
from peers_page import Look

ROWS = ["full", "causal", "alibi", "softcap", "document"]


def group(case):
    return f"{case['threads']} thread{'s' if case['threads'] > 1 else ''}, D={case['d']}, {case['dtype']}"


def label(case):
    return f"{case['row']}{' backward' if case['direction'] == 'backward' else ''}"


def of_run(run, cases):
    isa = {case["measured"]["attune"]["isa"] for case in cases if "attune" in case["measured"]}
    out = [f"{run['machine']}, {run['may_run_on']} of {run['cores']} cores",
           f"{run['attune']} with code for {', '.join(sorted(isa)) or 'nothing'}"
           f" (the CPU {'has' if run['amx'] else 'has no'} AMX)"]
    if "torch" in run:
        parallel = [line.strip() for line in run["parallel"] if "threads" in line or "OpenMP" in line]
        out.append(f"torch {run['torch']} ({run['cpu_capability']}; {'; '.join(parallel)})")
    return out + [f"{name}={value}" for name, value in sorted(run["environment"].items())]


def notes(data):
    shapes = sorted({(c["threads"], c["heads"], c["seq"]) for c in data["cases"]})
    return ("B=1; " + "; ".join(f"{t} thread{'s' if t > 1 else ''}: H={h}, S={s}" for t, h, s in shapes) + ".\n"
            "GFLOP/s of the pairs that the mask keeps, 4 D each forward and 10 D backward: the median of the blocks'\n"
            "medians, and the best call in brackets. Blocks of each in turn. A ratio is attune's median rate by the\n"
            "other's. Torch allocates its output at each call, from memory that stays with the process, and its calls\n"
            "follow one another; between attune's the peak of one core is measured.")


LOOK = Look(name="cpu_peers", heading="attune next to torch on the CPU",
            peers={"sdpa": "SDPA", "dense": "SDPA, dense mask", "flex": "FlexAttention"}, peak=True,
            unit="GFLOP/s", scale=1, group=group, label=label, of_run=of_run, notes=notes,
            words=lambda case: {case["row"], case["direction"], case["dtype"], f"d{case['d']}", f"t{case['threads']}"},
            words_help="a row, a type, forward or backward, d64, t16; as f32:causal:sdpa=1.0")


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
        return f"{LOOK.title(vars(self))}{' forward' if self.direction == 'forward' else ''}"

    def work(self):
        """Two products forward and five backward, with 2 D operations per pair each."""
        return self.heads * peers.live_pairs(self.row, self.seq) * self.d * (10 if self.direction == "backward" else 4)


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
    return {**peers.run_facts(peers.program(o)), "machine": first_line("/proc/cpuinfo", "model name"), "cores": os.cpu_count(),
            "may_run_on": len(os.sched_getaffinity(0)), "amx": "amx_bf16" in flags,
            "avx512_bf16": "avx512_bf16" in flags,
            "environment": {name: value for name, value in os.environ.items()
                            if name.startswith(("OMP_", "GOMP_", "KMP_", "MKL_", "ATTUNE_", "MALLOC_"))}}


def measure(o, case, prepared):
    lines = []

    def attune():
        """One process of attune bench."""
        command = [*peers.bench_command(o, case), "--threads", str(case.threads)]
        command += ["--backward"] if case.direction == "backward" else []
        said = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if said.returncode:
            raise RuntimeError(said.stderr.strip()[:400] or f"exit status {said.returncode}")
        lines.append(json.loads(said.stdout))
        return {**lines[-1]["seconds"], "runs": lines[-1]["runs"]}

    result = peers.in_turn_with(prepared, o, case, {"attune": attune})
    if "attune" in result["measured"]:
        ours = result["measured"]["attune"]
        ours["isa"], ours["first_call_seconds"] = lines[0]["isa"], lines[0]["first_call_seconds"]
        ours["peak_gflops"] = case.threads * max(line["peak_gflops_one_thread"] for line in lines)
        peers.check_flop(lines[0], case, result["failed"])
    return result


def options():
    p = peers.options(LOOK, "attune's CPU engine next to torch's, in turn on the same machine")
    p.add_argument("--threads", type=int, nargs="+", default=[16, 1])
    p.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, metavar="ROW", help=" ".join(ROWS))
    p.add_argument("--dtypes", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"], metavar="TYPE")
    p.add_argument("--d", type=int, nargs="+", default=[64, 128])
    p.add_argument("--heads", type=int, help="4 for one thread and 16 for more, if left out")
    p.add_argument("--seq", type=int, help="4096 if left out")
    p.add_argument("--seconds", type=float, help="of a block, at least; 0.5 if left out")
    p.add_argument("--quick", action="store_true", help="blocks of 0.2 s, and 2048 tokens for one thread")
    p.add_argument("--no-backward", dest="backward", action="store_false")
    p.add_argument("--no-torch", dest="torch", action="store_false", help="attune alone")
    o = peers.parsed(p)
    o.seconds = o.seconds or (0.2 if o.quick else 0.5)
    return o


def main():
    o = options()
    if o.earlier:
        return peers.finish(o, LOOK, peers.joined(Case, o.earlier))
    run_of = machine(o)
    if o.torch:
        import torch_cpu  # takes seconds; --from and --no-torch do not need it
        run_of.update(torch_cpu.facts())
    print(f"{run_of['machine']}, {run_of['cores']} cores, load {run_of['load_at_start'][0]:.2f}, {run_of['attune']}, "
          f"torch {run_of.get('torch', 'left out')}", file=sys.stderr)
    data = peers.run(o, LOOK, cases(o), run_of,
                     lambda case: measure(o, case, torch_cpu.Prepared(case, o.flex) if o.torch else None))
    peers.finish(o, LOOK, data)


if __name__ == "__main__":
    main()
