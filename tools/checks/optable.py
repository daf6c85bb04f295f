# tools/checks/optable.py — docs/expressions.md shows the operations as ir/ops.def declares them; --write copies them
import re
import sys

from tree import read
from verdict import ROOT, verdict

PAGE, TABLE = "docs/expressions.md", "ir/ops.def"
ROW = re.compile(r'^ATTUNE_OP\((\w+),\s*"(.*?)",\s*(\d+),\s*(\d+),\s*(\w+),\s*(\w+)\)\s*//(.*)$', re.M)
MARKED = re.compile(r"(<!-- optable -->\n)(.*?)(<!-- /optable -->)", re.S)
TYPES = {"I32": "Int", "F32": "Float", "Num": "Int or Float", "Any": "any type"}


def written(spelling, bind, args):
    if spelling == "sum":
        return "sum(i, n, body)"
    names = ["c", "a", "b"] if spelling == "where" else ["a", "b", "c"]
    if bind == 0:
        return f"{spelling}({', '.join(names[:args])})"
    return f"{spelling}a" if args == 1 else f"a {spelling} b"


def table(text):
    out = "| written | takes | gives | |\n|---|---|---|---|\n"
    for _, spelling, bind, args, takes, gives, note in ROW.findall(text):
        if spelling:
            form = written(spelling, int(bind), int(args)).replace("|", "\\|")
            note = re.sub(r"^bits: [^;]*;", "", note.strip())  # users do not see a node's bits
            gives = "the same" if gives == "Arg" else TYPES.get(gives, gives)
            out += f"| `{form}` | {TYPES.get(takes, takes)} | {gives} | {note.strip()} |\n"
    return out


def complaints(root):
    page = read(root, PAGE) if (root / PAGE).exists() else ""
    found = MARKED.search(page)
    if not found:
        return [f"{PAGE}: has no lines <!-- optable --> and <!-- /optable -->"]
    if "ATTUNE_OP(" in ROW.sub("", read(root, TABLE)):
        return [f"{TABLE}: has a row that tools/checks/optable.py cannot read"]
    return [] if found[2] == table(read(root, TABLE)) else [f"{PAGE}: shows other operations than {TABLE}; run ./dev map"]


if "--write" in sys.argv:
    page = read(ROOT, PAGE)
    text = table(read(ROOT, TABLE))
    (ROOT / PAGE).write_text(MARKED.sub(lambda m: m[1] + text + m[3], page), encoding="utf-8")
else:
    row = 'ATTUNE_OP(Or,       "||",       2,   2,   Bool,  Bool) // both sides evaluate\n'
    right = "| written | takes | gives | |\n|---|---|---|---|\n| `a \\|\\| b` | Bool | Bool | both sides evaluate |\n"
    shown = f"<!-- optable -->\n{right}<!-- /optable -->\n"
    verdict(complaints, wrong={
        "docs/expressions.md: has no lines": {TABLE: row, PAGE: right},
        "docs/expressions.md: shows other": {TABLE: row.replace("Or", "And").replace("||", "&&"), PAGE: shown},
        "ir/ops.def: has a row": {TABLE: row + "ATTUNE_OP(And)\n", PAGE: shown},
    }, right={TABLE: row, PAGE: shown})
