# tools/bench/splice_rates.py — on a GPU: are spliced kernels as fast as whole ones? Blocks of both in turn, mod by mod
import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROWS = ["full", "causal", "alibi", "softcap", "relative", "window", "prefix", "document"]
# A bias of each pair, whose reads take most instructions; a tanh that the kernel computes itself.
OWN = {"bias": ["--score", "s + bias[q, kv]", "--capture", "bias=f32[{seq}, {seq}]"],
       "exact_softcap": ["--score", "30.0f * tanh(s / 30.0f)", "--mask", "kv <= q", "--exact", "true"]}


class Contender:
    """attune bench as a process that measures a block for each line that it is sent."""

    def __init__(self, o, attune, way, row, d, cache):
        which = [word.format(seq=o.seq) for word in OWN[row]] if row in OWN else ["--row", row]
        command = [attune, "bench", *which, "--json", "--paced", "--target", "cuda", "--dtype", "bf16", "--d", str(d),
                   "--heads", str(2048 // d), "--batch", str(o.batch), "--seq", str(o.seq), "--seconds", str(o.seconds),
                   *(["--backward"] if o.backward else ["--cover", "once"])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "ATTUNE_SPLICE": way, "ATTUNE_CACHE": cache})
        self.rates, self.shares, self.said = [], [], {}

    def block(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"exit status {self.process.wait()}")
        self.said = json.loads(line)
        self.rates.append(self.said["tflops"]["median"])

    def close(self):
        self.process.communicate(timeout=30)


def take_turns(o, all):
    """A share for each round and contender: there and back again, so that a drift of the clock cancels out, and every
    second round the other way, since a clock that falls and rises again gave the inner blocks 0.87 of the outer ones."""
    for one in all.values():  # not counted: the card's clock is high after compiling
        for _ in range(o.warm):
            one.block()
        one.rates.clear()
    for nth in range(o.rounds):
        order = list(all.values())[::-1 if nth % 2 else 1]
        for one in [*order, *reversed(order)]:
            one.block()
        for one in all.values():
            one.shares.append(sum(one.rates[-2:]) / sum(all["whole"].rates[-2:]))


def ways_of(o):
    ways = {"whole": (o.attune, "off"), "spliced": (o.attune, "on")}
    if o.before:
        ways["before, whole"] = (o.before, "off")
    if o.other:
        ways["other, spliced"] = (o.other, "on")
    return ways


def fill_caches(o, cache):
    """Compiles all kernels at once, so that the measurements find them."""
    def fill(name, way, row, d):
        one = Contender(o, *way, row, d, f"{cache}/{name}")
        try:
            one.block()
        finally:
            one.close()

    with concurrent.futures.ThreadPoolExecutor(max(os.cpu_count() // 2, 1)) as pool:
        jobs = [pool.submit(fill, name, way, row, d) for d in o.d for row in o.rows for name, way in ways_of(o).items()]
        for job in jobs:
            job.result()


def measure(o, row, d, cache):
    ways = ways_of(o)
    rates, shares, said = [], {name: [] for name in ways}, {}
    for nth in range(o.processes):
        # The same kernel in the process that started last of three was 4 to 5 % faster, so each starts first in turn.
        order = list(ways)[nth % len(ways):] + list(ways)[:nth % len(ways)]
        all = {name: Contender(o, *ways[name], row, d, f"{cache}/{name}") for name in order}
        try:
            take_turns(o, all)
        finally:
            for one in all.values():
                one.close()
        rates += all["whole"].rates
        for name, one in all.items():
            shares[name] += one.shares
            said[name] = one.said
            print(f"[{row} {d}] {name}, started {order.index(name) + 1} of {len(order)}: "
                  f"{', '.join(f'{share:.3f}' for share in one.shares)}", file=sys.stderr, flush=True)
    del shares["whole"]
    cells = [f"{statistics.median(rates):.0f}"]
    for one in shares.values():
        low, middle, high = statistics.quantiles(one, n=4)
        cells.append(f"{middle:.3f} ({low:.3f} to {high:.3f})")
    print(f"| {row} | {d} | {' | '.join(cells)} |", flush=True)
    for name, one in said.items():
        print(f"[{row} {d}] {name}: {one.get('kernel')}, {one.get('registers')} registers, "
              f"{one.get('spilled')} bytes spilled; {one.get('notes')}", file=sys.stderr, flush=True)
    return statistics.median(shares["spliced"])


def main():
    p = argparse.ArgumentParser(description="Rates of kernels spliced and compiled as a whole, by attune bench: blocks in "
                                            "turn. A share is the median of the rounds'; in brackets their quartiles.")
    p.add_argument("--attune", required=True, help="the command line, as built")
    p.add_argument("--before", help="another build of it, whose whole kernels are measured too")
    p.add_argument("--other", help="another build of it, whose spliced kernels are measured too")
    p.add_argument("--backward", action="store_true")
    p.add_argument("--rows", nargs="+", choices=[*ROWS, *OWN], default=[*ROWS, *OWN])
    p.add_argument("--d", type=int, nargs="+", default=[128, 64])
    p.add_argument("--seq", type=int, default=8192)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--processes", type=int, default=4, help="how often new processes are started, which then take all rounds")
    p.add_argument("--warm", type=int, default=2, help="blocks of each that are not counted")
    p.add_argument("--seconds", type=float, default=0.1, help="of a block")
    p.add_argument("--floor", type=float, default=0.99, help="the least share that is not counted as slower")
    o = p.parse_args()
    print(f"| mod | D | whole, TFLOP/s | spliced | {'before, whole | ' if o.before else ''}"
          f"{'other, spliced | ' if o.other else ''}\n|---|---|---|---|{'---|' * (bool(o.before) + bool(o.other))}")
    slower = []
    with tempfile.TemporaryDirectory() as cache:
        fill_caches(o, cache)
        for d in o.d:
            for row in o.rows:
                if measure(o, row, d, cache) < o.floor:
                    slower.append(f"{row} {d}")
    print(f"below {o.floor}: {', '.join(slower) or 'none'}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
