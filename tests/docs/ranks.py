# tests/docs/ranks.py — the tables of docs/ranks.md are the output of `attune ranks`; --write copies them there
import json
import random
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/ranks.md"
TABLE = re.compile(r"(<!-- ranks: (\w+) -->\n)(.*?)(<!-- /ranks -->)", re.S)


def write_npy(path, numbers):
    header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({len(numbers)},), }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                     struct.pack(f"<{len(numbers)}i", *numbers))


def lengths(total, mean):
    """Lengths of documents, drawn at random, of `total` tokens together"""
    draw, out = random.Random(mean), []
    while sum(out) < total:
        out.append(max(1, int(draw.expovariate(1 / mean))))
    out[-1] -= sum(out) - total
    return out


class Simulator:
    def __init__(self, attune, folder):
        self.attune, self.folder = attune, folder

    def __call__(self, mask, length, *more):
        """Masks by name, and what they read"""
        kind, _, mean = mask.partition(" of ")
        mean = int(mean.removesuffix("k") or 0) * 1024
        at = self.folder / f"{kind}-{mean}-{length}.npy"
        if mean and not at.exists():
            drawn = lengths(length, mean)
            starts = [sum(drawn[:i]) for i in range(len(drawn) + 1)]
            ids = [i for i, n in enumerate(drawn) for _ in range(n)]
            write_npy(at, starts if kind == "packed" else ids)
        words = {"causal": ["kv <= q"], "window": ["kv <= q && q - kv < 1024"],
                 "documents": ["kv <= q && doc[q] == doc[kv]", "--capture", f"doc={at}"],
                 "packed": ["kv <= q", "--starts", str(at)]}[kind]
        done = subprocess.run([self.attune, "ranks", *words, "--q-len", str(length), "--json", *map(str, more)],
                              check=True, stdout=subprocess.PIPE)
        return json.loads(done.stdout)


def table(heads, rows):
    lines = [heads, ["---"] + ["--:"] * (len(heads) - 1), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def percent(x):
    return f"{100 * x:.1f} %" if x < 0.0995 else f"{100 * x:.0f} %"


def milliseconds(ms):
    return f"{ms:.3g} ms" if ms < 100 else f"{ms:.0f} ms"


def size(n):
    return f"{n >> 20}M" if n >= 1 << 20 else f"{n >> 10}k"


def assignments(simulate):
    rows = []
    for mask in ("causal", "window", "documents of 2k", "documents of 8k", "documents of 32k", "packed of 2k"):
        found = {d["assignment"]: d for d in simulate(mask, 1 << 17)["assignments"]}
        best = min(found, key=lambda d: found[d]["ms"])
        rows.append([mask] + [f"{found[d]['load']:.2f}, {percent(found[d]['of_gather'])}" for d in
                              ("contiguous", "zigzag", "greedy")] + [best])
    return table(["mask", "contiguous", "zigzag", "greedy", "fastest"], rows)


def schedules(simulate):
    rows = []
    for heads in ("64/8", "16/16"):
        for length in (1 << 17, 1 << 15, 1 << 14):
            said = simulate("causal", length, "--heads", heads)
            found = {(s["travel"], s["groups"]): s for s in said["schedules"]}
            sharding = [found[key]["of_ideal"] for key in (("gather", 1), ("gather", 4), ("ring", 1), ("heads", 1))]
            rows.append([f"{size(length)}, {heads}", f"{found['gather', 1]['most_received'] / 1e6:.0f} MB",
                         *map(percent, sharding)])
    return table(["length, heads", "gathered", "gather, 1 group", "gather, 4 groups", "ring", "heads"], rows)


def many(simulate):
    rows = []
    for mask in ("causal", "window", "documents of 32k", "packed of 8k"):
        for ranks in (4, 16, 64, 256, 1024):
            said = simulate(mask, 1 << 20, "--ranks", ranks)
            best, taken = said["assignments"][0], said["schedules"][0]
            groups = f" in {taken['groups']}" if taken["groups"] > 1 else ""
            rows.append([mask, ranks, best["assignment"], taken["travel"] + groups, f"{best['load']:.2f}",
                         f"{taken['most_received'] / 1e6:.0f} MB", milliseconds(taken["ms"]), percent(taken["of_ideal"])])
    return table(["mask", "ranks", "assignment", "schedule", "load", "received", "time", "of ideal"], rows)


with tempfile.TemporaryDirectory() as temporary:
    simulator, wrong = Simulator(str(Path(sys.argv[1]).resolve()), Path(temporary)), []
    made = {"assignments": assignments, "schedules": schedules, "many": many}

    def replaced(match):
        new = made.pop(match[2])(simulator)
        if new != match[3]:
            wrong.append(f"docs/ranks.md: its table `{match[2]}` should be\n{new}")
        return match[1] + new + match[4]

    text = TABLE.sub(replaced, PAGE.read_text(encoding="utf-8"))
    wrong += [f"docs/ranks.md: has no table `{name}`" for name in made]
if "--write" in sys.argv:
    PAGE.write_text(text, encoding="utf-8")
else:
    sys.exit("\n".join(wrong) + "\nif these are right: ranks.py ATTUNE --write" if wrong else 0)
