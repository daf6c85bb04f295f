# tools/checks/verdict.py — ends a check: it prints each complaint and fails, or shows on wrong trees that it would
import sys
import tempfile
from pathlib import Path

from tree import plant

ROOT = Path(__file__).resolve().parents[2]


def verdict(complaints, wrong, right):
    """complaints(root) returns a list of sentences. `wrong` maps the start of the one expected complaint to the tree
    ({path: text}) that must cause it; the tree `right` must cause none."""
    if "--self-test" not in sys.argv:
        found = complaints(ROOT)
        print("\n".join(found) or "nothing to complain about")
        sys.exit(1 if found else 0)
    for expected, texts in [*wrong.items(), (None, right)]:
        with tempfile.TemporaryDirectory() as root:
            plant(root, texts)
            found = complaints(Path(root))
        said = found == [] if expected is None else len(found) == 1 and found[0].startswith(expected)
        if not said:
            sys.exit(f"expected {expected or 'no complaint'}\ngot      {found}")
    print(f"refuses {len(wrong)} wrong trees and accepts a right one")
