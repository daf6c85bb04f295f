# tools/bench/results.py — result files: a run and its rows as lines of JSON, the source of tables in pages
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

# A table in a page, between two such lines. The file lies where the page would link to it.
MARK = re.compile(r"(<!-- results: ([\w./-]+\.jsonl) -->\n)(.*?)(<!-- /results -->)", re.S)


@dataclass(frozen=True)
class Row:
    group: str
    label: str
    rates: dict  # {"median": …, "best": …} of attune and its peers, rounded; or "failed"
    ratios: dict  # attune's median by each peer's and by the `peak`, of what was measured before it was rounded

    @property
    def title(self):
        return f"{self.group}: {self.label}"


def text_of(rate):
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}"


def read(path):
    """(run, rows): what was measured where, with `heading`, `unit`, names of `peers`, whether there is a `peak`, and each
    of `runs` with its date, facts and command; and the rows."""
    first, *rest = Path(path).read_text(encoding="utf-8").splitlines()
    return json.loads(first), [Row(**json.loads(line)) for line in rest]


def write(path, run, rows):
    lines = [run, *map(asdict, rows)]
    Path(path).write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def table(run, rows, floors=()):
    """`floors`: what to say of each row's, if there are any."""
    def cell(row, name):
        rate = row.rates.get(name, "—")
        return rate if isinstance(rate, str) else f"{text_of(rate['median'])} ({text_of(rate['best'])})"

    def ratio(row, name):
        return f"{row.ratios[name]:.2f}" if name in row.ratios else "—"

    peers = run["peers"]
    head = ["", "attune", *(["of peak"] if run["peak"] else []), *peers, *(f"by {name}" for name in peers)]
    head += ["floors"] if floors else []
    out = []
    for number, row in enumerate(rows):
        line = [row.title, cell(row, "attune")]
        if run["peak"]:
            line.append(f"{100 * row.ratios['peak']:.0f} %" if "peak" in row.ratios else "—")
        line += [*(cell(row, name) for name in peers), *(ratio(row, name) for name in peers)]
        out.append(line + ([floors[number]] if floors else []))
    lines = [f"| {' | '.join(line)} |\n" for line in [head, *out]]
    return "".join([lines[0], f"|{'---|' * len(head)}\n", *lines[1:]])


def with_tables(page):
    """The text of a page with its tables as the files have them."""
    page = Path(page)
    return MARK.sub(lambda mark: mark[1] + table(*read(page.parent / mark[2])) + mark[4],
                    page.read_text(encoding="utf-8"))


def wrong(run, rows):
    """Complaints: unknown names, medians above the best, ratios that do not match the rates."""
    out = []
    for row in rows:
        names = {"attune", *run["peers"]}
        out += [f"{row.title}: there is no {name}" for name in {*row.rates} - names]
        out += [f"{row.title}: there is no ratio to {name}" for name in {*row.ratios} - names - {"peak"}]
        measured = {name: rate for name, rate in row.rates.items() if rate != "failed"}
        out += [f"{row.title}: {name} has a median above its best" for name, rate in measured.items()
                if not 0 < rate["median"] <= rate["best"]]
        for name in measured.keys() - {"attune"}:
            # Tolerance: half of the last digit of each.
            (mine, own), (other, its) = ((measured[n]["median"], 0.5 if measured[n]["median"] >= 100 else 0.05)
                                         for n in ("attune", name))
            if not (mine - own) / (other + its) - 0.005 <= row.ratios.get(name, 0) <= (mine + own) / (other - its) + 0.005:
                out.append(f"{row.title}: {row.ratios.get(name)} is not attune's rate by that of {name}")
    titles = [row.title for row in rows]
    return out + [f"{title} stands twice" for title in {*titles} if titles.count(title) > 1]
