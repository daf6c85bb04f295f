# tools/checks/tree.py — the repository's files by room, for the checks; leaves out what a build or an editor wrote
from pathlib import Path

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
