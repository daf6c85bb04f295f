# tools/checks/map.py — a file begins with `path — purpose`; docs/map.md is those lines, by room
import sys
from pathlib import PurePosixPath

from tree import ROOMS, ROOT, files, is_code, read, verdict

WIDTH = 120
MARKS = ("[", "expect: ")  # of a comment that says something to another check: a region of a page, a compiler's message


def comment(line, mark):
    """What a comment line says; None for other lines, empty comments and marks."""
    text = line[len(mark) + 1:].strip() if line.startswith(f"{mark} ") else ""
    return None if not text or text.startswith(MARKS) else text


def purpose(lines, mark, path):
    """(purpose, or None where the first line is not `// path — purpose`; complaint or None). A purpose may take a second
    line, when the first is full."""
    start = f"{mark} {path} — "
    if not lines[0].startswith(start) or not lines[0][len(start):].strip():
        return None, f"{path}: the first line must be `path — purpose`"
    more = comment(lines[1], mark)
    if more is None:
        return lines[0][len(start):].strip(), None
    if len(lines[0]) + 1 + len(more.split()[0]) <= WIDTH:
        return None, f"{path}: the second line is no part of the purpose: put an empty comment line between them"
    if comment(lines[2], mark) is not None:
        return None, f"{path}: a purpose takes two lines at most"
    return f"{lines[0][len(start):].strip()} {more}", None


def purposes(root):
    """{path: (purpose or None, complaint or None)}"""
    out = {}
    for path in filter(is_code, files(root)):
        lines = (read(root, path) + "\n\n\n").splitlines()
        mark = "//" if path.suffix in {".h", ".cpp", ".c", ".def", ".cuh", ".cu", ".rs", ".js"} else "#"
        out[path.as_posix()] = purpose(lines[1:] if lines[0].startswith("#!") else lines, mark, path.as_posix())
    return out


def entries(found):
    """[(name, purpose)]: a header and its source that are for the same stand in one line."""
    out = []
    for path, why in found.items():
        pure = PurePosixPath(path)
        header, source = pure.with_suffix(".h").as_posix(), pure.with_suffix(".cpp").as_posix()
        pair = path in (header, source) and found.get(header) == found.get(source)
        if not pair:
            out.append((path, why))
        elif path == source:
            out.append((pure.with_suffix(".{h,cpp}").as_posix(), why))
    return out


def page(found):
    text = "# The map\n\nWhat each file is for, by room. `./dev map` writes this page from the files; a test compares it.\n"
    for room in ["", *ROOMS]:
        here = {p: why for p, why in found.items() if (p.split("/")[0] if "/" in p else "") == room}
        if here:
            text += f"\n## {room or 'top'}\n\n" + "".join(f"- `{name}`: {why}\n" for name, why in entries(here))
    return text


def complaints(root):
    found = purposes(root)
    out = [complaint for _, complaint in found.values() if complaint]
    committed = root / "docs/map.md"
    if not out and (not committed.exists() or
                    committed.read_text(encoding="utf-8") != page({p: why for p, (why, _) in found.items()})):
        out.append("docs/map.md: does not say what the files say; run ./dev map")
    return out


if "--write" in sys.argv:
    said = {path: why or "?" for path, (why, _) in purposes(ROOT).items()}
    (ROOT / "docs/map.md").write_text(page(said), encoding="utf-8")
else:
    node = "// ir/node.h — what a node is\n"
    full = "// ir/full.h — " + "all " * 26  # 119 columns
    right = {
        "ir/node.h": node,  # the same purpose as its source: one line
        "ir/node.cpp": "// ir/node.cpp — what a node is\n",
        "ir/print.cpp": "// ir/print.cpp — how it is printed\n",  # another purpose than its header's: two lines
        "ir/print.h": "// ir/print.h — what is printed\n//\n// More of it.\n",
        "ir/full.h": f"{full.rstrip()}\n// of it\n#pragma once\n",  # goes on in a second line
        "tests/a.cpp": "// tests/a.cpp — refused\n// expect: a sentence\n",
        "examples/a.cpp": "// examples/a.cpp — shown\n// [all]\n",
    }
    said = "- `ir/full.h`: " + "all " * 26 + "of it\n- `ir/node.{h,cpp}`: what a node is\n" \
           "- `ir/print.cpp`: how it is printed\n- `ir/print.h`: what is printed\n"
    right["docs/map.md"] = (page({}) + f"\n## ir\n\n{said}\n## tests\n\n- `tests/a.cpp`: refused\n"
                            "\n## examples\n\n- `examples/a.cpp`: shown\n")
    verdict(complaints, wrong={
        "ir/node.h: the first line": {"ir/node.h": "// ir/nod.h — what a node is\n"},
        "ir/print.h: the first line": {"ir/print.h": "#pragma once\n"},
        "ir/empty.h: the first line": {"ir/empty.h": "// ir/empty.h — \n"},
        "dev: the first line": {"dev": "#!/bin/bash\nset -e\n"},
        "ir/node.h: the second line": {"ir/node.h": node + "// A node has arguments.\n"},
        "ir/full.h: a purpose takes two lines": {"ir/full.h": f"{full.rstrip()}\n// of it\n// and more\n"},
        "docs/map.md: does not say": {"ir/node.h": node, "docs/map.md": "# The map\n"},
        "docs/map.md: does not": {**right, "docs/map.md": right["docs/map.md"].replace("{h,cpp}", "h")},
    }, right=right)
