# tools/checks/operation.py — the last operation of ir/ops.def is in each file that docs/adding-an-op.md names
import re

from tree import read
from verdict import verdict

PAGE, TABLE = "docs/adding-an-op.md", "ir/ops.def"
ROW = re.compile(r'^ATTUNE_OP\((\w+),\s*"(.*?)"', re.M)
MARKED = re.compile(r"<!-- places -->\n(.*?)<!-- /places -->", re.S)


def complaints(root):
    page = read(root, PAGE) if (root / PAGE).exists() else ""
    found = MARKED.search(page)
    if not found:
        return [f"{PAGE}: has no lines <!-- places --> and <!-- /places -->"]
    places = [path for line in found[1].splitlines() for path in re.findall(r"`([\w/]+\.\w+)`", line.split("|")[1])]
    name, spelling = ROW.findall(read(root, TABLE))[-1]
    # CUDA's function of f32 ends in f.
    word = re.compile(rf"\b({name}|{spelling}f?)\b" if spelling.isalnum() else rf"\b{name}\b|{re.escape(spelling)}")
    out = [f"{PAGE}: names {path}, which does not exist" for path in places if not (root / path).exists()]
    out += [f"{path}: lacks {name}, the last operation of {TABLE}; see {PAGE}" for path in places
            if (root / path).exists() and not word.search(read(root, path))]
    return out if places else [f"{PAGE}: names no file between its marks"]


row = 'ATTUNE_OP(Erf,      "erf",      0,   1,   Float, F32)  // within [-1, 1]\n'
page = ("<!-- places -->\n| file | what |\n|---|---|\n| `ir/ops.def`, `ir/eval.cpp` | its meaning, as `a.cpp` |\n"
        "<!-- /places -->\n")
verdict(complaints, wrong={
    "docs/adding-an-op.md: has no lines": {TABLE: row, PAGE: "`ir/eval.cpp`\n", "ir/eval.cpp": "Op::Erf"},
    "docs/adding-an-op.md: names no file": {TABLE: row, PAGE: "<!-- places -->\n<!-- /places -->\n"},
    "docs/adding-an-op.md: names ir/eval.cpp, which": {TABLE: row, PAGE: page},
    "ir/eval.cpp: lacks Erf": {TABLE: row, PAGE: page, "ir/eval.cpp": "Op::Tanh, perfect\n"},
}, right={TABLE: row, PAGE: page, "ir/eval.cpp": "return erff(x);\n"})
