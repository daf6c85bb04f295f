# tools/checks/format.py — refuses files that clang-format would change; --write changes them
import re
import shutil
import subprocess
import sys

from tree import ROOT, files, plant, verdict

# Versions format differently, so one version is the reference. Both distributions of ./dev have it.
VERSION = "14"


def clang_format():
    for name in [f"clang-format-{VERSION}", "clang-format"]:
        if path := shutil.which(name):
            said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            if re.search(rf"version {VERSION}\.", said):
                return path
    print(f"[skip] no clang-format {VERSION}: the format is not checked")
    sys.exit(0)


def sources(root):
    return [str(p) for p in files(root) if p.suffix in {".h", ".cpp", ".c", ".cuh", ".cu"}]


def complaints(root):
    plant(root, {} if root == ROOT else {".clang-format": (ROOT / ".clang-format").read_text(encoding="utf-8")})
    said = subprocess.run([tool, "--dry-run", "-Werror", *sources(root)], cwd=root, capture_output=True, text=True)
    wrong = sorted({line.split(":")[0] for line in said.stderr.splitlines() if "[-Wclang-format-violations]" in line})
    if said.returncode and not wrong:
        return [f"clang-format failed: {said.stderr}"]
    return [f"{path}: run ./dev format" for path in wrong]


tool = clang_format()
if "--write" in sys.argv:
    subprocess.run([tool, "-i", *sources(ROOT)], cwd=ROOT, check=True)
else:
    verdict(complaints, wrong={"ir/a.cpp: run ./dev format": {"ir/a.cpp": "int  a ;\n"}}, right={"ir/a.cpp": "int a;\n"})
