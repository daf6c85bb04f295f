# tests/package/symbols.py — LLVM is linked into what we build, and no symbol of it leaves
import re
import subprocess
import sys

# symbols.py NM FILE...: programs and shared libraries.
LLVM = re.compile(r"llvm|LLVM")


def symbols(nm, *options):
    done = subprocess.run([nm, *options], check=True, capture_output=True, text=True)
    return [line.split()[-1] for line in done.stdout.splitlines() if line]


nm, *built = sys.argv[1:]
wrong = []
for file in built:
    if not any(map(LLVM.search, symbols(nm, "--defined-only", file))):
        wrong.append(f"{file} holds no LLVM: this test would see nothing")
    leaves = [s for s in symbols(nm, "-D", "--defined-only", file) if LLVM.search(s)]
    if leaves:
        wrong.append(f"{file} exports {len(leaves)} symbols of LLVM: {' '.join(leaves[:5])}")
sys.exit("\n".join(wrong) or 0)
