# tools/checks/errors.py — every code of an Error has a heading in docs/errors.md, and the other way round
import re

from tree import files, read
from verdict import verdict

PAGE = "docs/errors.md"
# Functions that make an Error: the code is their first argument, or the second, after the text it points into.
THROWN = re.compile(r'\b(?:Error|fail|refuse|refuse_option|name_error|Code)[({]\s*(?:\*?text_?,\s*)?"([a-z0-9-]+)"')
# The same in Python, where the place comes first.
RAISED = re.compile(r'\b(?:Error\.at\([^"]*?,\s*|Error\(\s*|refuse\(\s*)"([a-z0-9-]+)"')
SOURCES = {"include", "ir", "compiler", "codegen", "runtime", "playground", "c", "tools", "python"}


def complaints(root):
    thrown = {}
    for path in files(root):
        if path.parts[0] in SOURCES and path.suffix in {".h", ".cpp", ".py"}:
            for code in (RAISED if path.suffix == ".py" else THROWN).findall(read(root, path)):
                thrown.setdefault(code, path)
    told = re.findall(r"^### (\S+)$", read(root, PAGE), re.M) if (root / PAGE).exists() else []
    out = [f"{PAGE}: has no heading `### {code}`, which {path} throws" for code, path in thrown.items()
           if code not in told]
    out += [f"{PAGE}: nothing throws `{code}`" for code in told if code not in thrown]
    return out + [f"{PAGE}: tells of `{code}` twice" for code in sorted({c for c in told if told.count(c) > 1})]


throws = {"ir/lex.cpp": 'refuse(*text_,\n       "bad-number", "");\n'}
verdict(complaints, wrong={
    "docs/errors.md: has no heading `### bad-number`": throws,
    "docs/errors.md: has no heading `### bad-loop`": {"python/a.py": 'raise Error.at(here(),\n  "bad-loop", "")\n'},
    "docs/errors.md: nothing throws `bad-sum`": {**throws, PAGE: "### bad-number\n\n### bad-sum\n"},
    "docs/errors.md: tells of `bad-number` twice": {**throws, PAGE: "### bad-number\n\n### bad-number\n"},
}, right={**throws, PAGE: "# Errors\n\n### bad-number\n", "runtime/a.cpp": 'throw Error("bad-number", "");\n'})
