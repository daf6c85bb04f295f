# tests/docs/dev.py — dev.py [DEV]: a program that ./dev calls fails, and ./dev ends with its status; ./dev test says
# which tests failed; one tree serves all commands. Stand-ins for all programs fail in turn
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEV = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dev"
PROGRAMS = ["apt-get", "cmake", "emcmake", "emcc", "cpack", "ctest", "python3", "clang++", "gzip", "xz", "cc", "tar",
            "dpkg-deb", "du", "nm", "stat", "git", "build/venv/bin/python", "build/venv/bin/pip",
            "build/test-venv/bin/python", "build/test-venv/bin/pip", "build/wheel-venv/bin/python",
            "build/wheel-venv/bin/pip", "build/wheel-venv/bin/attune", "build/venv/bin/auditwheel",
            "build/release/examples/demo", "build/release/tools/attune", "build/release/tests/bench_lower",
            "build/release/tests/bench_cover"]
# The call with this number ends with 7, and says so; tests pass, and what is asked of dpkg is installed.
STAND_IN = """#!/usr/bin/bash
exec {lock}>>"$CALLS.lock"
flock "$lock"
echo "$0 $*" >>"$CALLS"
(($(wc -l <"$CALLS") == FAILS)) && exit 7
exec {lock}>&-
made() { mkdir -p "${1%/*}" && cp "$0" "$1"; }
last=${*: -1}
case "${0##*/} $*" in
  *"-m venv"*) made "$last/bin/python" && made "$last/bin/pip" && made "$last/bin/attune" ;;
  cpack*) mkdir -p build/packages && touch build/packages/a.tar.gz build/packages/a.deb ;;
  "xz "* | "gzip "*) cat ;;
  "tar "*) made "$last/attune/bin/attune" ;;
  "dpkg-deb --raw-extract"*) mkdir -p "$last/DEBIAN" && touch "$last/DEBIAN/control" ;;
  "dpkg-deb -x"*) made "$last/usr/bin/attune" ;;
  cc*) printf '#!/bin/sh\necho ok\n' >"$4" && chmod +x "$4" ;;
  "pip wheel"* | "auditwheel "*) mkdir -p build/wheels && touch "build/wheels/${0##*/}.whl" ;;
  du*) echo 1 ;;
esac
case ${0##*/} in
  ctest)
    if [[ $* == *"$FAILING"* ]]; then
      printf '1/3 Test  #%d: %s\n' 7 'good ...   Passed' 8 'bad ...***Failed   0.1 sec'
      printf '%s\n' {1..40} '' '      Start 9: skipped' '3/3 Test #9: skipped ...***Skipped   0.1 sec' 'no device' ''
      echo '50% tests passed, 1 tests failed out of 3'
      exit 8
    fi
    echo '100% tests passed, 0 tests failed out of 1'
    ;;
  clang++) echo 19.1 ;;
  stat) echo 1 ;;
esac
exit 0
"""
# Failures that need not matter, as ./dev says: a package source or PyPI that does not answer; what is asked, to decide;
# the archive of a program that is only there on Debian.
MAY_FAIL = re.compile(r"apt-get .*update|bin/pip install --quiet nanobind|python -c import [a-z, _]+$|-m venv|stat |clang\+\+ -dumpversion")
# What is compiled: the library once, in the release's tree, and the playground for WebAssembly.
OF_ONE_TREE = re.compile(r"cmake --build (--preset release|build/wasm) ")
COMMANDS = ["demo", "build", "python", "torch", "hf", "jax", "wheel", "format", "map", "site", "site --test",
            "playground", "package", "bench", "approve"]


def run(folder, command, fails, failing="nothing"):
    calls = folder / "calls"
    calls.write_text("", encoding="utf-8")
    shutil.rmtree(folder / "build/wheels", ignore_errors=True)
    env = {"PATH": f"{folder}/programs:/usr/bin:/bin", "CALLS": str(calls), "FAILS": str(fails), "HOME": str(folder),
           "FAILING": failing}
    done = subprocess.run(["bash", "dev", *command.split()], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    return done, calls.read_text(encoding="utf-8").splitlines()


def stand_ins(folder):
    shutil.copy(DEV, folder / "dev")
    shutil.copytree(ROOT / "tools/dev", folder / "tools/dev")
    for name in [*PROGRAMS, "dpkg-query"]:
        path = folder / name if "/" in name else folder / "programs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/usr/bin/bash\necho installed\n" if name == "dpkg-query" else STAND_IN, encoding="utf-8")
        path.chmod(0o755)
    for made in ("build/wasm/attune.js", "build/site/playground.html"):
        (folder / made).parent.mkdir(parents=True, exist_ok=True)
        (folder / made).write_text("", encoding="utf-8")


def unheard():
    """Commands that pages tell a reader to type, and that ./dev help does not know; of README, that nothing runs."""
    help_text = subprocess.run(["bash", ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^\./dev (\w+)", help_text, re.M)) | {"help"}
    out = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(p for p in sorted((ROOT / "docs").glob("*.md")) if p.name != "map.md")]:
        for command in re.findall(r"(?<![\w/])\./dev (\w+)", page.read_text(encoding="utf-8")):
            if command not in known:
                out.append(f"{page.name}: ./dev help knows no `./dev {command}`")
    run_by_all = (ROOT / "tools/dev/test.sh").read_text(encoding="utf-8")
    readme = re.findall(r"^\./dev (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    return out + [f"README.md: ./dev test --all does not run `./dev {c}`" for c in readme
                  if c != "test" and f'part "./dev {c}' not in run_by_all]


def wrong_summary(folder):
    """Errors in what the summary of ./dev test says about a failed test and its output."""
    done, _ = run(folder, "test", 0, failing="--preset ci")
    summary = done.stdout.partition("== summary")[2]
    expected = ("ci: 1 passed, 1 failed, 1 skipped;\n  built in 0 s, tested in 0 s\n  #8: bad ...***Failed   0.1 sec\n"
                + "".join(f"    {n}\n" for n in range(16, 41)) + "turn: ATTUNE_TURN=0 repeats it\nall: ")
    told = re.sub(r"TURN=\w+", "TURN=0", re.sub(r"\d+ s\b", "0 s", summary))
    out = [] if expected in told and done.returncode == 1 else [f"./dev test reports a failed test as follows ({done.returncode}):\n{told}{done.stderr}"]
    done, _ = run(folder, "test", 0)
    return out + ([] if done.returncode == 0 else [f"./dev test fails where nothing does:\n{done.stdout}{done.stderr}"])


def main():
    wrong, tried = [], 0
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        stand_ins(folder)
        for command in COMMANDS:
            done, calls = run(folder, command, 0)
            if done.returncode:
                wrong.append(f"./dev {command} fails where nothing does: {done.returncode}\n{done.stdout}{done.stderr}")
            if command != "approve":  # of the tests
                wrong += [f"./dev {command} compiles the library again: {call}" for call in calls
                          if "cmake --build" in call and not OF_ONE_TREE.search(call)]
            for i, call in enumerate(calls, 1):
                if MAY_FAIL.search(call):
                    continue
                tried += 1
                done, after = run(folder, command, i)
                if done.returncode != 7:
                    wrong.append(f"./dev {command} ends with {done.returncode} where `{call}` ends with 7; "
                                 f"afterwards it calls {after[i:i + 2]}")
        wrong += wrong_summary(folder)
    wrong += unheard()
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{tried} failures of {len(COMMANDS)} commands end them")


main()
