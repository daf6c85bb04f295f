# tests/package/licences.py — what our binaries have in them of others is installed with its licence text
import re
import shutil
import subprocess
import sys
from pathlib import Path

# licences.py BUILD PREFIX NAMES: NAMES, with commas between them, are those that the build knows.
build, prefix, names = sys.argv[1:]
texts = {file.stem: file.read_text(encoding="utf-8") for file in Path(prefix).glob("share/doc/*/licences/*.txt")}
wrong = []
for name in names.split(","):
    if not re.search(r"copyright|licen[sc]e", texts.get(name, ""), re.IGNORECASE):
        wrong.append(f"{name} has no licence text")
# Every archive of another package that is linked, so that none is forgotten.
if shutil.which("dpkg-query") and shutil.which("ninja"):
    linked = subprocess.run(["ninja", "-t", "commands", "attune_cli", "attune_c"], cwd=build, check=True,
                            capture_output=True, text=True).stdout
    archives = {Path(one).resolve() for one in re.findall(r"\s(/\S+\.a)(?=\s)", linked)}
    archives = [one for one in archives if not one.is_relative_to(Path(build).resolve())]
    if not archives:
        wrong.append("no archive is linked: this test would see nothing")
    owners = subprocess.run(["dpkg-query", "-S", *archives], check=True, capture_output=True, text=True).stdout
    for package in sorted({line.split(":")[0] for line in owners.splitlines()}):
        if Path("/usr/share/doc", package, "copyright").read_text(encoding="utf-8") not in texts.values():
            wrong.append(f"{package} is linked, and its licence text is not installed")
sys.exit("\n".join(wrong) or 0)
