# tools/checks/shell.py — refuses shell scripts with shellcheck's complaints, and functions called where bash turns set -e off
import shutil
import subprocess
import sys

from tree import ROOT, files, is_code, read, verdict

# In an `if`, or next to && and ||, a function continues after a failing step: SC2310, SC2311.
OPTIONS = ["--external-sources", "--check-sourced", "--enable=check-set-e-suppressed", "--format=gcc"]


def scripts(root):
    """Those that are run: what they source is read with them."""
    return [p for p in files(root) if is_code(p) and read(root, p).startswith(("#!/bin/sh", "#!/usr/bin/env bash"))]


def complaints(root):
    names = [str(p) for p in scripts(root)]
    said = subprocess.run(["shellcheck", *OPTIONS, *names], cwd=root, capture_output=True, text=True)
    return (said.stdout + said.stderr).splitlines()


if not shutil.which("shellcheck"):
    print("[skip] there is no shellcheck: scripts are not checked")
    sys.exit(0)
bash = "#!/usr/bin/env bash\n"
verdict(complaints, wrong={
    "dev:3:1: note: This function is invoked in an && condition": {
        "dev": f"{bash}set -e; f() {{ false; true; }}\nf && echo well\n"},
    "dev:2:6: note: Double quote": {"dev": f'{bash}echo $1\n'},
    "tools/dev/a.sh:1:6: note: Double quote": {
        "dev": f"{bash}# shellcheck source=tools/dev/a.sh\nsource tools/dev/a.sh\n", "tools/dev/a.sh": "echo $1\n"},
}, right={"dev": f'{bash}echo "$1"\n'})
