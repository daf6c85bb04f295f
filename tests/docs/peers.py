# tests/docs/peers.py — tables and pictures of peers hold what the result files say, whatever the labels; --write makes
# those of docs
import sys
import tempfile
import xml.etree.ElementTree
from collections import Counter
from itertools import permutations
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/bench"))
import gpu_peers  # noqa: E402
import peers  # noqa: E402
import peers_picture as drawing  # noqa: E402
import results  # noqa: E402
from peers_page import page, result  # noqa: E402

# The widths of letters in DejaVu Sans, in thousandths of its size: no text may be taken for narrower than that.
WIDTHS = {" ": 318, ",": 318, "-": 361, "/": 338, "0": 636, "=": 838, "D": 770, "G": 775, "M": 863, "O": 787, "S": 635,
          "W": 989, "a": 613, "d": 635, "f": 352, "i": 278, "m": 974, "n": 634, "r": 411, "t": 392, "w": 818, "—": 1000}


def parts(svg):
    """(width, height, texts, bars): texts as (left, right, y, text), bars as (left, right, top); the legend's and the
    background's are no bars."""
    top = xml.etree.ElementTree.fromstring(svg)
    tag = "{http://www.w3.org/2000/svg}"
    texts, bars = [], []
    for one in top.iter(f"{tag}text"):
        size = float(one.get("font-size", drawing.FONT))
        wide = drawing.width(one.text, size) * (1.15 if one.get("font-weight") else 1)
        x = float(one.get("x")) - (wide if one.get("text-anchor") == "end" else 0)
        texts.append((x, x + wide, float(one.get("y")), one.text))
    for one in top.iter(f"{tag}rect"):
        if one.get("height") == str(drawing.BAR):
            x = float(one.get("x"))
            bars.append((x, x + float(one.get("width")), float(one.get("y"))))
    return float(top.get("width")), float(top.get("height")), texts, bars


def misplaced(svg):
    """Texts that leave the picture, or lie upon a bar or another text."""
    width, height, texts, bars = parts(svg)
    out = [t[3] for t in texts if t[0] < 0 or t[1] > width + 1 or t[2] > height]
    out += [t[3] for t in texts for left, right, top in bars
            if t[0] < right - 0.1 and left + 0.1 < t[1] and t[2] - 8 < top + drawing.BAR and top < t[2] - 2]
    return out + [a[3] for i, a in enumerate(texts) for b in texts[i + 1:]
                  if abs(a[2] - b[2]) < 8 and a[0] < b[1] and b[0] < a[1]]


def rows(labels, peers):
    return [results.Row(f"group {number // 3}", label, {name: str(100 * (i + 1)) for i, name in enumerate(peers)}, {})
            for number, label in enumerate(labels)]


def drawn(labels, peers):
    found = rows(labels, peers)
    return drawing.picture("peers", "TFLOP/s", "a GPU, today", found, drawing.colours_of(found))


def of_data(cases):
    measured = lambda case: {name: {"rate": {"median": 1e5 * (i + 1), "best": 2e5}}
                             for i, name in enumerate(["attune", *gpu_peers.PEERS[case.kind]])}
    data = {"runs": [{"machine": "a GPU", "date": "2026-01-01", "attune": "attune", "command": "gpu_peers.py"}],
            "cases": [{**vars(case), "run": 0, "failed": {}, "measured": measured(case)} for case in cases],
            "left_out": []}
    kept = {"gpu_peers.jsonl": result(gpu_peers.LOOK, data)}
    return drawing.pictures(page(gpu_peers.LOOK, data, []), kept.get)["gpu_peers.svg"]


def complaints():
    out = [f"a `{c}` is wider than it is taken for" for c, wide in WIDTHS.items() if drawing.width(c, 1000) < wide]
    all_peers = [f"a peer, number {i}" for i in range(len(drawing.COLOURS))]
    long = ["S=512", "a label of very many words, all of which should be read " * 3, "m" * 300, "— " * 40, "W=8" * 50]
    for what, svg, bars in [
            ("long labels, all peers", drawn(long, all_peers), len(long) * len(all_peers)),
            ("long labels, one peer", drawn(long, ["attune"]), len(long)),
            ("long names of peers", drawn(["S=512"], ["attune", "w" * 90, "m n " * 60]), 3),
            ("one row", drawn(["S=512"], ["attune"]), 1),
            ("rows without a figure", drawn(long, []), 0),
            ("no row", drawn([], []), 0),
            ("every case and every peer of the tool's page", of_data(gpu_peers.all_cases()),
             sum(1 + len(gpu_peers.PEERS[case.kind]) for case in gpu_peers.all_cases())),
            ("a page of nothing", of_data([]), 0)]:
        out += [f"{what}: {text[:40]} is misplaced" for text in misplaced(svg)]
        found = len(parts(svg)[3])
        out += [f"{what}: {found} bars, and there are {bars} figures"] if found != bars else []
    for svg in (drawn([], []), of_data([])):
        out += [] if "nothing was measured" in svg else ["a picture of nothing does not say so"]
    try:
        drawn(["S=512"], [*all_peers, "one more"])
        out.append("more peers than colours are drawn")
    except ValueError:
        pass
    # What the check would say of a label that is cut off, and of one upon a bar.
    cut = drawn(long[:1], ["attune"]).replace(">S=512<", f">{'S=512 ' * 20}<")
    out += [] if misplaced(cut) else ["a label that is cut off is not seen"]
    return out


def about_results():
    """What the check of result files would say of files that are wrong."""
    run = {"peers": ["a", "b"], "peak": True}
    row = lambda rates, ratios: results.Row("group", "label", rates, ratios)  # noqa: E731
    rate = lambda median, best: {"median": median, "best": best}  # noqa: E731
    right = [row({"attune": rate(100, 200), "a": rate(50.0, 50.0), "b": "failed"}, {"a": 2.004, "peak": 0.5})]
    out = results.wrong(run, right)
    for what, rows in [("an unknown peer", [row({"attune": rate(1, 2), "c": rate(1, 2)}, {"c": 1})]),
                       ("a ratio to nothing", [row({"attune": rate(1, 2)}, {"c": 1})]),
                       ("a median above the best", [row({"attune": rate(3, 2)}, {})]),
                       ("a ratio of other rates", [row({"attune": rate(100, 200), "a": rate(50, 50)}, {"a": 2.1})]),
                       ("a rate without its ratio", [row({"attune": rate(100, 200), "a": rate(50, 50)}, {})]),
                       ("a row that stands twice", right * 2)]:
        out += [] if results.wrong(run, rows) else [f"{what} in a result file is not seen"]
    wanted = "| group: label | 100 (200) | 50 % | 50.0 (50.0) | failed | 2.00 | — |"
    out += [] if wanted in results.table(run, right) else [f"not {wanted}, but {results.table(run, right)}"]
    with tempfile.TemporaryDirectory() as folder:
        results.write(f"{folder}/r.jsonl", run, right)
        out += [] if results.read(f"{folder}/r.jsonl") == (run, right) else ["what is written is not what is read"]
    return out


def about_turns():
    """Over whole designs each side follows each other one equally often, and each has its place in every turn."""
    out = []
    for sides in range(1, 8):
        names, turns = "abcdefg"[:sides], sides * (1 + sides % 2)
        orders = [peers.order_of(names, turn) for turn in range(turns)]
        out += [f"{order} leaves out some of {names}" for order in orders if sorted(order) != list(names)]
        follows = Counter(pair for order in orders for pair in zip(order, order[1:]))
        even = {pair: turns // sides for pair in permutations(names, 2)}
        out += [f"of {sides} sides some follow others more often: {follows}"] if follows != even else []
    return out


page_of = ROOT / "docs/benchmarks.md"
if "--write" in sys.argv:
    page_of.write_text(results.with_tables(page_of), encoding="utf-8")
    drawing.draw(page_of)
wrong = complaints() + about_results() + about_turns()
text = page_of.read_text(encoding="utf-8")
if results.with_tables(page_of) != text:
    wrong.append(f"{page_of.name} has not the tables of docs/results; run tests/docs/peers.py --write")
used = {page_of.parent / mark[2] for mark in results.MARK.finditer(text)}
wrong += [f"{file.name} is not shown in {page_of.name}" for file in {*(ROOT / "docs/results").glob("*.jsonl")} - used]
for file in used:
    wrong += [f"{file.name}: {one}" for one in results.wrong(*results.read(file))]
for file, svg in drawing.of_page(page_of).items():
    there = page_of.parent / file
    if not there.exists() or there.read_text(encoding="utf-8") != svg:
        wrong.append(f"{file} is not what the results say; run tests/docs/peers.py --write")
    wrong += [f"{file}: {text} is misplaced" for text in misplaced(svg)]
sys.exit("\n".join(wrong) or 0)
