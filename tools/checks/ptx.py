# tools/checks/ptx.py — refuses inline assembly in device files outside codegen/cuda/ptx/
import re

from tree import files, read
from verdict import verdict

ROOM, SEAM = ("codegen", "cuda"), ("codegen", "cuda", "ptx")
COMMENT_OR_STRING = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'


def complaints(root):
    out = []
    for path in files(root):
        if path.parts[:2] != ROOM or path.parts[:3] == SEAM or path.suffix not in {".h", ".cuh", ".cu"}:
            continue
        # Line by line, so that line numbers are right; comments do not count.
        text = re.sub(COMMENT_OR_STRING, lambda m: re.sub(r"[^\n]", " ", m[0]), read(root, path), flags=re.S)
        out += [f"{path}:{number}: asm belongs in codegen/cuda/ptx/, as a function that says what it reads and writes"
                for number, line in enumerate(text.splitlines(), 1) if re.search(r"\b(__)?asm(__)?\b", line)]
    return out


STATEMENT = 'asm volatile("exit;");\n'
verdict(complaints, wrong={
    "codegen/cuda/companions/a.cuh:2: asm belongs": {"codegen/cuda/companions/a.cuh": "// head\n" + STATEMENT},
    "codegen/cuda/parts/a.cuh:1: asm belongs": {"codegen/cuda/parts/a.cuh": "__asm__" + STATEMENT[3:]},
}, right={
    "codegen/cuda/ptx/threads.cuh": STATEMENT,
    "codegen/cuda/companions/a.cuh": "// what asm would do\n" + 'const char* x = "asm";\n',
    "runtime/engines/cpu/pool.cpp": STATEMENT})
