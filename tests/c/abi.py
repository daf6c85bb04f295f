# tests/c/abi.py — the ABI of attune/c.h that programs rely on: functions, constants, and structs member by member
import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# abi.py check|write HEADER PAGE CC [NM LIBRARY]: compares with the committed page. `write` adds to it what was appended,
# and refuses every other difference, as `check` does.
parser = argparse.ArgumentParser()
parser.add_argument("way", choices=["check", "write", "self"])
parser.add_argument("header", nargs="?")
parser.add_argument("page", nargs="?")
parser.add_argument("cc", nargs="?")
parser.add_argument("nm", nargs="?")
parser.add_argument("library", nargs="?")
args = parser.parse_args()


def structs(header):
    """{name: [member]} of all structs with members."""
    out = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", header, re.S):
        body = re.sub(r"//.*", "", body)
        members = []
        for statement in filter(None, map(str.strip, body.split(";"))):
            function = re.search(r"\(\*(\w+)\)\(", statement)
            members += [function[1]] if function else re.findall(r"(\w+)(?=\s*(?:,|$))", statement)
        out[name] = members
    return out


def functions(header):
    """{name: its declaration on one line}"""
    text = re.sub(r"//.*", "", header)
    found = re.findall(r"ATTUNE_API ([^;]*?\b(attune_\w+)\([^;]*);", text, re.S)
    return {name: re.sub(r"\s+", " ", whole).replace("( ", "(") for whole, name in found}


def constants(header):
    return [name for body in re.findall(r"enum \{(.*?)\}", header, re.S) for name in re.findall(r"(\w+) =", body)]


def described(header, cc, folder):
    """The page's lines, in the header's order."""
    text = Path(header).read_text(encoding="utf-8")
    lines = [f"function {declaration}" for declaration in functions(text).values()]
    page = ['#include <attune/c.h>', '#include <stddef.h>', '#include <stdio.h>', "int main(void) {"]
    for name in constants(text):
        page.append(f'printf("constant {name} = %d\\n", (int){name});')
    for name, members in structs(text).items():
        for member in members:
            page.append(f'printf("struct {name} {member}: %zu bytes at %zu\\n", sizeof((({name}*)0)->{member}), '
                        f"offsetof({name}, {member}));")
        page.append(f'printf("struct {name}: %zu bytes\\n", sizeof({name}));')
    source, program = Path(folder) / "abi.c", Path(folder) / "abi"
    source.write_text("\n".join([*page, "return 0;", "}"]), encoding="utf-8")
    subprocess.run([cc, "-std=c99", "-I", Path(header).parents[1], source, "-o", program], check=True)
    return lines + subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def grew(line, now):
    """Is this the size of a struct that begins with `size`, and has more bytes now?"""
    match = re.fullmatch(r"struct (\w+): (\d+) bytes", line)
    if not match or f"struct {match[1]} size: 4 bytes at 0" not in now:
        return False
    sizes = [int(m[1]) for m in (re.fullmatch(rf"struct {match[1]}: (\d+) bytes", n) for n in now) if m]
    return bool(sizes) and sizes[0] >= int(match[2])


def broken(before, now):
    """What is not as it was."""
    out = [line for line in before if line not in now and not grew(line, now)]
    ends = {m[1]: int(m[2]) for m in (re.fullmatch(r"struct (\w+): (\d+) bytes", line) for line in before) if m}
    for line in now:
        match = re.fullmatch(r"struct (\w+) \w+: \d+ bytes at (\d+)", line)
        if match and line not in before and int(match[2]) < ends.get(match[1], 0):
            out.append(f"{line}: it lies within the {ends[match[1]]} bytes that there were")
    return out


def self_test():
    before = ["function void f(void)", "struct a size: 4 bytes at 0", "struct a b: 4 bytes at 4", "struct a: 8 bytes",
              "struct c x: 8 bytes at 0", "struct c: 8 bytes"]
    appended = [*before[:3], "struct a d: 8 bytes at 8", "struct a: 16 bytes", *before[4:], "function int g(void)"]
    assert not broken(before, before) and not broken(before, appended)
    assert broken(before, before[1:])  # a function is gone
    assert broken(before, [line.replace("b: 4 bytes at 4", "b: 4 bytes at 8") for line in before])
    assert broken(before, [line.replace("struct a: 8", "struct a: 4") for line in before])
    assert broken(before, [*before[:5], "struct c y: 8 bytes at 8", "struct c: 16 bytes"])  # no size: may not grow
    assert broken(before, [*before, "struct a y: 2 bytes at 6"])  # within
    assert structs("typedef struct {\n  int a;  // x, y;\n  const t *b, *c;\n  void (*d)(int e, int f);\n} s;") == {
        "s": ["a", "b", "c", "d"]}


self_test()
if args.way == "self":
    sys.exit(0)
with tempfile.TemporaryDirectory() as folder:
    now = described(args.header, args.cc, folder)
page = Path(args.page)
before = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
wrong = broken(before, now)
if wrong:
    sys.exit("programs that were built with attune/c.h rely on this, and it is no longer so:\n" + "\n".join(wrong))
if args.way == "write":
    page.write_text("\n".join(now) + "\n", encoding="utf-8")
elif before != now:
    sys.exit(f"{page} lacks what was appended; write it with abi.py write")
if args.library:
    listed = subprocess.run([args.nm, "-D", "--defined-only", args.library], check=True, capture_output=True, text=True)
    exported = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines() if line} - {"ATTUNE_0"}
    declared = set(functions(Path(args.header).read_text(encoding="utf-8")))
    if exported != declared:
        sys.exit(f"exported and not declared: {sorted(exported - declared)}\n"
                 f"declared and not exported: {sorted(declared - exported)}")
