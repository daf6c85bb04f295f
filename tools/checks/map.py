# tools/checks/map.py — the first line of each file is `path — purpose`; docs/map.md is those lines, by room
import sys

from tree import ROOMS, files, is_code, read
from verdict import ROOT, verdict


def purposes(root):
    """{path: purpose, or None where the first line (the second after a #!) is not `// path — purpose`}"""
    out = {}
    for path in filter(is_code, files(root)):
        lines = (read(root, path) + "\n\n").splitlines()
        first = lines[1] if lines[0].startswith("#!") else lines[0]
        mark = "//" if path.suffix in {".h", ".cpp", ".def", ".cuh", ".cu"} else "#"
        start = f"{mark} {path.as_posix()} — "
        out[path.as_posix()] = first[len(start):].strip() if first.startswith(start) else None
    return out


def page(found):
    text = "# The map\n\nThe first line of every file, by room. `./dev map` writes this page; a test compares it.\n"
    for room in ["", *ROOMS]:
        here = {p: purpose for p, purpose in found.items() if (p.split("/")[0] if "/" in p else "") == room}
        if here:
            text += f"\n## {room or 'top'}\n\n" + "".join(f"- `{p}`: {purpose}\n" for p, purpose in here.items())
    return text


def complaints(root):
    found = purposes(root)
    out = [f"{path}: the first line must be `path — purpose in one line`" for path, why in found.items() if not why]
    committed = root / "docs/map.md"
    if not out and (not committed.exists() or committed.read_text(encoding="utf-8") != page(found)):
        out.append("docs/map.md: does not say what the files say; run ./dev map")
    return out


if "--write" in sys.argv:
    (ROOT / "docs/map.md").write_text(page(purposes(ROOT)), encoding="utf-8")
else:
    node = "// ir/node.h — what a node is\n"
    verdict(complaints, wrong={
        "ir/node.h: the first line": {"ir/node.h": "// ir/nod.h — what a node is\n"},
        "ir/print.h: the first line": {"ir/print.h": "#pragma once\n"},
        "dev: the first line": {"dev": "#!/bin/bash\nset -e\n"},
        "docs/map.md: does not say": {"ir/node.h": node, "docs/map.md": "# The map\n"},
    }, right={"ir/node.h": node, "docs/map.md": page({"ir/node.h": "what a node is"})})
