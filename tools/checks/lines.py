# tools/checks/lines.py — reports the ten longest files and refuses none: the ceiling is a hint
import sys

from tree import files, is_code, read
from verdict import ROOT

CEILING = 400


def longest(root):
    counts = sorted(((len(read(root, p).splitlines()), p.as_posix()) for p in files(root) if is_code(p)), reverse=True)
    return sum(n for n, _ in counts), len(counts), counts[:10]


if "--self-test" in sys.argv:
    total, count, top = longest(ROOT)
    if not (count >= len(top) > 0 and total >= sum(n for n, _ in top) and top == sorted(top, reverse=True)):
        sys.exit(f"wrong sums: {total} lines in {count} files, {top}")
else:
    total, count, top = longest(ROOT)
    print(f"{total} lines in {count} files")
    for n, path in top:
        print(f"{n:6}  {path}{'  (over ' + str(CEILING) + ')' if n > CEILING else ''}")
