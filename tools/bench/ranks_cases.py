# tools/bench/ranks_cases.py — the calls that ranks_peers.py measures, and their rows as text and as a table
import random
from dataclasses import dataclass, replace

from peers import chosen, short

K = 1024
PRODUCTS = {"forward": 2, "step": 7}  # matrix products: a backward has five
WINDOW = 1024


@dataclass(frozen=True)
class Case:
    row: str
    seq: int
    heads: int = 64
    kv_heads: int = 8
    direction: str = "forward"
    mean: int = 0  # length of documents and packed sequences
    d: int = 128

    def __str__(self):
        mean = f" of {short(self.mean)}" if self.mean else ""
        return f"{self.row}{mean} {short(self.seq)} {self.heads}/{self.kv_heads}" + (
            ", forward and backward" if self.direction == "step" else "")

    def words(self):
        return {self.row, short(self.seq), f"{self.heads}/{self.kv_heads}", self.direction}

    def lengths(self):
        """Lengths of documents, exponentially distributed; or the one length."""
        if not self.mean:
            return [self.seq]
        draw, out = random.Random(7), []
        while sum(out) < self.seq:
            out.append(max(1, min(round(draw.expovariate(1 / self.mean)), self.seq - sum(out))))
        return out

    def work(self):
        pairs = sum(n * (n + 1) // 2 for n in self.lengths())
        if self.row == "window":
            pairs = sum(min(q + 1, WINDOW) for q in range(self.seq))
        return self.heads * pairs * self.d * 2 * PRODUCTS[self.direction]


def all_cases():
    long = Case("causal", 128 * K)
    yield long
    for seq in (32 * K, 16 * K):
        yield from (replace(long, seq=seq, heads=q, kv_heads=kv) for q, kv in ((64, 8), (16, 16)))
    yield from (replace(long, row=row) for row in ("alibi", "softcap", "window"))
    yield replace(long, row="documents", mean=8 * K)
    yield replace(long, row="packed", mean=2 * K)
    yield replace(long, direction="step")


def cases(o):
    found = chosen(o, all_cases(), Case.words)
    return [small(case) for case in found] if o.small else found


def small(case):
    """The case as a test on a host has it: the same code, other sizes."""
    heads = case.heads // 8
    return replace(case, seq=case.seq // 64, heads=heads, kv_heads=heads * case.kv_heads // case.heads, d=32,
                   mean=case.mean // 64)


def cells(row):
    """For attune and torch: milliseconds over ranks (and the best), TFLOP/s a GPU, one GPU's, percent of R times it."""
    out = []
    for name in ("attune", "torch"):
        one = row.get(name, {})
        if "ranks" in one:
            median, best = (one["ranks"][way] for way in ("median", "best"))
            out.append(f"{median * 1e3:.3g} ({best * 1e3:.3g})")
            out.append(f"{row['work'] / median / row['ranks'] / 1e12:.0f}")
        else:
            out += ["failed" if any(key.startswith(name) for key in row["failed"]) else "—", "—"]
        out.append(f"{one['one']['median'] * 1e3:.3g}" if "one" in one else "—")
        out.append(f"{one['percent']:.1f} %" if "percent" in one else "—")
    both = all("ranks" in row.get(name, {}) for name in ("attune", "torch"))
    out.append(f"{row['torch']['ranks']['median'] / row['attune']['ranks']['median']:.2f}" if both else "—")
    return out


HEAD = [f"{name}, {what}" for name in ("attune", "torch") for what in ("ms", "TFLOP/s a GPU", "one GPU, ms", "of R")]


def line(row):
    return f"{row['title']}: " + ", ".join(f"{name} {cell}" for name, cell in zip([*HEAD, "by torch"], cells(row))
                                         if cell != "—")


def table(rows):
    head = ["", *HEAD, "by torch"]
    return [f"| {' | '.join(one)} |" for one in (head, ["---"] + ["--:"] * (len(head) - 1),
                                                 *([row["title"], *cells(row)] for row in rows))]
