# tests/package/symbols.py — LLVM and zstd are linked into our binaries, which export none of their symbols
import re
import subprocess
import sys

# symbols.py NM FILE...: programs and shared libraries.
LLVM, HIDDEN = re.compile(r"llvm|LLVM"), re.compile(r"llvm|LLVM|ZSTD_")


def symbols(nm, *options):
    done = subprocess.run([nm, *options], check=True, capture_output=True, text=True)
    return [line.split()[-1] for line in done.stdout.splitlines() if line]


nm, *built = sys.argv[1:]
wrong = []
for file in built:
    if not any(map(LLVM.search, symbols(nm, "--defined-only", file))):
        wrong.append(f"{file} holds no LLVM: this test would see nothing")
    leaves = [s for s in symbols(nm, "-D", "--defined-only", file) if HIDDEN.search(s)]
    if leaves:
        wrong.append(f"{file} exports {len(leaves)} symbols of LLVM or zstd: {' '.join(leaves[:5])}")
sys.exit("\n".join(wrong) or 0)
