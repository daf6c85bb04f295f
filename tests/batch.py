# tests/batch.py — writes files of tests as one to compile: each keeps its names to itself in a namespace of its own
import re
import sys
from pathlib import Path

# What opens the namespace that a file's tests are in.
OPENS = re.compile(r"^namespace (attune(?:::\w+)*) \{", re.MULTILINE)
# A file begins with comments and directives, which stay where they are.
HEAD = re.compile(r"(?:(?://|#)[^\n]*\n|\s*\n)*")


def as_namespace(file, name):
    text = file.read_text(encoding="utf-8")
    head = HEAD.match(text).end()
    body = f'#line {text[:head].count(chr(10)) + 1} "{file}"\n{text[head:]}'
    inside, opened = OPENS.subn(rf"namespace \1::{name} {{", body)
    return f'#line 1 "{file}"\n{text[:head]}' + (inside if opened else f"namespace {name} {{\n{body}}}\n")


out, *files = sys.argv[1:]
Path(out).write_text("".join(as_namespace(Path(file), f"file_{n}") for n, file in enumerate(files)), encoding="utf-8")
