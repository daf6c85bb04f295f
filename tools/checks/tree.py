# tools/checks/tree.py — the repository's files by room, without what a build or an editor wrote, and how a check ends
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

ROOMS = ["include", "ir", "compiler", "codegen", "runtime", "playground", "c", "tools", "python", "tests", "examples",
         "docs", "gallery", "cmake", ".ci"]
CODE = {".h", ".cpp", ".c", ".rs", ".def", ".cuh", ".cu", ".py", ".js", ".sh", ".cmake"}


def files(root):
    """Every file of the repository as a path relative to root, sorted."""
    root = Path(root)
    found = [p for p in root.iterdir() if p.is_file()]
    for room in ROOMS:
        found += [p for p in (root / room).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return sorted(p.relative_to(root) for p in found)


def is_code(path):
    return path.suffix in CODE or path.name in {"CMakeLists.txt", ".clang-format", "dev"} or path.parts[0] == ".ci"


def read(root, path):
    return (Path(root) / path).read_text(encoding="utf-8")


def plant(root, texts):
    """Writes {path: text} below root: the small wrong trees that the checks refuse in their self-tests."""
    for path, text in texts.items():
        (Path(root) / path).parent.mkdir(parents=True, exist_ok=True)
        (Path(root) / path).write_text(text, encoding="utf-8")


def verdict(complaints, wrong, right):
    """complaints(root) returns a list of sentences, which are printed; if there are any, the check fails. With --self-test
    it shows on wrong trees that it would: `wrong` maps the start of the one expected complaint to the tree ({path: text})
    that must cause it; the tree `right` must cause none. The command line may name some checks of a file."""
    named = [word for word in sys.argv[1:] if not word.startswith("--")]
    if named and complaints.__name__ not in named:
        return
    if "--self-test" not in sys.argv:
        found = complaints(ROOT)
        print("\n".join(found) or "nothing to complain about")
        return sys.exit(1) if found else None
    for expected, texts in [*wrong.items(), (None, right)]:
        with tempfile.TemporaryDirectory() as root:
            plant(root, texts)
            found = complaints(Path(root))
        said = found == [] if expected is None else len(found) == 1 and found[0].startswith(expected)
        if not said:
            sys.exit(f"expected {expected or 'no complaint'}\ngot      {found}")
    print(f"refuses {len(wrong)} wrong trees and accepts a right one")
