# tests/docs/commands.py — the commands that pages show are run, and print what the pages say; --write copies it there
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# A block of ```console: lines that begin with `$ ` are run by bash, one page in one folder, where `examples` and
# `build/release` are those of this build; what follows is what they print, errors too. A line `…` stands for any lines,
# within a line for any text.
BLOCK = re.compile(r"(^```console\n)(.*?)(^```$)", re.S | re.M)


def commands(block):
    """[(command, what it prints)]"""
    parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", block, flags=re.M)
    return list(zip(parts[1::2], parts[2::2]))


def run(command, folder, attune):
    # With a cache, which the presets leave out: of their own, not of whoever runs the tests.
    env = {**os.environ, "LC_ALL": "C.UTF-8", "PATH": f"{Path(attune).resolve().parent}:{os.environ['PATH']}",
           "ATTUNE_CACHE_SIZE": "", "XDG_CACHE_HOME": f"{folder}/caches"}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300)
    return done.stdout


def fits(shown, said):
    parts = re.split(r"^…\n", shown, flags=re.M)
    pattern = r"(?:.*\n)*?".join(".*?".join(map(re.escape, part.split("…"))) for part in parts)
    return re.fullmatch(pattern, said) is not None


def page(path, root, attune, write):
    text = path.read_text(encoding="utf-8")
    out = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(root / "examples")
        (Path(folder) / "build").mkdir()
        (Path(folder) / "build/release").symlink_to(Path(attune).resolve().parents[1])

        def block(match):
            lines = ""
            for command, shown in commands(match[2]):
                said = run(command, folder, attune)
                keep = fits(shown, said)
                if not keep:
                    out.append(f"{path.name}: `{command}` prints\n{said}and the page says\n{shown}")
                lines += f"$ {command}\n{shown if keep else said}"
            return match[1] + lines + match[3]

        new, blocks = BLOCK.subn(block, text)
    if write:
        path.write_text(new, encoding="utf-8")
        return []
    return out if blocks else [f"{path.name}: shows no commands"]


def self_test():
    trials = [("$ echo a\na\n", True), ("$ echo a\nb\n", False), ("$ echo a\n", False), ("$ seq 3\n1\n…\n3\n", True),
              ("$ seq 3\n1\n…\n", True), ("$ echo took 3 s\ntook … s\n", True), ("$ echo a \\\n  b\na b\n", True)]
    with tempfile.TemporaryDirectory() as folder:
        for body, right in trials:
            file = Path(folder) / "page.md"
            file.write_text(f"```console\n{body}```\n", encoding="utf-8")
            if (page(file, Path(folder), "attune", False) == []) != right:
                sys.exit(f"{body}is {'refused' if right else 'accepted'}")


if sys.argv[1] == "--self-test":
    self_test()
else:
    attune, *pages = [a for a in sys.argv[1:] if a != "--write"]
    top = Path(__file__).resolve().parents[2]
    wrong = [c for p in pages for c in page(top / p, top, attune, "--write" in sys.argv)]
    sys.exit("\n".join(wrong) or 0)
