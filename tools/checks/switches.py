# tools/checks/switches.py — refuses `default:` where a switch must list every Op: a new op then shows as errors
import re

from tree import files, read
from verdict import verdict

EXHAUSTIVE = {"ir/eval.cpp", "ir/interval.cpp", "codegen/choose/card.cpp", "compiler/derive.cpp"}


def complaints(root):
    return [f"{path}:{number}: no default: here, so that the compiler names every switch a new op must enter"
            for path in files(root) if path.as_posix() in EXHAUSTIVE
            for number, line in enumerate(read(root, path).splitlines(), 1) if re.search(r"\bdefault\s*:", line)]


verdict(complaints,
        wrong={"ir/eval.cpp:2: no default: here": {"ir/eval.cpp": "switch (op) {\n  default: return 0;\n}\n"}},
        right={"ir/eval.cpp": "Node() = default;\n", "tools/options/text.cpp": "default: break;\n"})
