# tools/checks/pages.py — pages say what the sources say: links, snippets, operations, codes of Errors; --write copies code
# and tables into them
import re
import sys
import textwrap

from tree import ROOT, files, read, verdict

OPS = "ir/ops.def"


def pages(root):
    return [p for p in files(root) if p.suffix == ".md"]


def marked(mark):
    """What stands between two lines <!-- mark --> and <!-- /mark -->: the lines are groups 1 and 3."""
    return re.compile(rf"(<!-- {mark} -->\n)(.*?)(<!-- /{mark} -->)", re.S)


def page(root, name):
    return read(root, name) if (root / name).exists() else ""


# ---- errors: every code of an Error has a heading in docs/errors.md, and the other way round

ERRORS = "docs/errors.md"
# Functions that make an Error: the code is their first argument, or the second, after the text it points into.
THROWN = re.compile(r'\b(?:Error|fail|refuse|refuse_option|name_error|Code)[({]\s*(?:\*?text_?,\s*)?"([a-z0-9-]+)"')
# The same in Python, where the place comes first.
RAISED = re.compile(r'\b(?:Error\.at\([^"]*?,\s*|Error\(\s*|refuse\(\s*)"([a-z0-9-]+)"')
SOURCES = {"include", "ir", "compiler", "codegen", "runtime", "playground", "c", "tools", "python"}


def errors(root):
    thrown = {}
    for path in files(root):
        if path.parts[0] in SOURCES and path.suffix in {".h", ".cpp", ".py"}:
            for code in (RAISED if path.suffix == ".py" else THROWN).findall(read(root, path)):
                thrown.setdefault(code, path)
    told = re.findall(r"^### (\S+)$", page(root, ERRORS), re.M)
    out = [f"{ERRORS}: has no heading `### {code}`, which {path} throws" for code, path in thrown.items()
           if code not in told]
    out += [f"{ERRORS}: nothing throws `{code}`" for code in told if code not in thrown]
    return out + [f"{ERRORS}: tells of `{code}` twice" for code in sorted({c for c in told if told.count(c) > 1})]


# ---- links: each relative link in a page leads to an existing file, and heading if it names one

def headings(text):
    titles = re.findall(r"^#+ +(.*?) *$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(root):
    out = []
    for page in pages(root):
        prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", read(root, page), flags=re.S | re.M)
        for link in re.findall(r"\]\(([^)\s]+)\)", prose):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (root / page).parent / path if path else root / page
            if not target.exists():
                out.append(f"{page}: links to {link}, and there is no such file")
            elif anchor and target.suffix == ".md" and anchor not in headings(target.read_text(encoding="utf-8")):
                out.append(f"{page}: links to {link}, and there is no such heading")
    return out


# ---- operation: the last operation of ir/ops.def is in each file that docs/adding-an-op.md names

ADDING = "docs/adding-an-op.md"


def operation(root):
    found = marked("places").search(page(root, ADDING))
    if not found:
        return [f"{ADDING}: has no lines <!-- places --> and <!-- /places -->"]
    places = [path for line in found[2].splitlines() for path in re.findall(r"`([\w/]+\.\w+)`", line.split("|")[1])]
    name, spelling = re.findall(r'^ATTUNE_OP\((\w+),\s*"(.*?)"', read(root, OPS), re.M)[-1]
    # CUDA's function of f32 ends in f.
    word = re.compile(rf"\b({name}|{spelling}f?)\b" if spelling.isalnum() else rf"\b{name}\b|{re.escape(spelling)}")
    out = [f"{ADDING}: names {path}, which does not exist" for path in places if not (root / path).exists()]
    out += [f"{path}: lacks {name}, the last operation of {OPS}; see {ADDING}" for path in places
            if (root / path).exists() and not word.search(read(root, path))]
    return out if places else [f"{ADDING}: names no file between its marks"]


# ---- optable: docs/expressions.md shows the operations as ir/ops.def declares them

EXPRESSIONS, OPTABLE = "docs/expressions.md", marked("optable")
ROW = re.compile(r'^ATTUNE_OP\((\w+),\s*"(.*?)",\s*(\d+),\s*(\d+),\s*(\w+),\s*(\w+)\)\s*//(.*)$', re.M)
TYPES = {"I32": "Int", "F32": "Float", "Num": "Int or Float", "Any": "any type"}


def written(spelling, bind, args):
    if spelling == "sum":
        return "sum(i, n, body)"
    names = ["c", "a", "b"] if spelling == "where" else ["a", "b", "c"]
    if bind == 0:
        return f"{spelling}({', '.join(names[:args])})"
    return f"{spelling}a" if args == 1 else f"a {spelling} b"


def table(text):
    out = "| written | takes | gives | |\n|---|---|---|---|\n"
    for _, spelling, bind, args, takes, gives, note in ROW.findall(text):
        if spelling:
            form = written(spelling, int(bind), int(args)).replace("|", "\\|")
            note = re.sub(r"^bits: [^;]*;", "", note.strip())  # users do not see a node's bits
            gives = "the same" if gives == "Arg" else TYPES.get(gives, gives)
            out += f"| `{form}` | {TYPES.get(takes, takes)} | {gives} | {note.strip()} |\n"
    return out


def optable(root):
    found = OPTABLE.search(page(root, EXPRESSIONS))
    if not found:
        return [f"{EXPRESSIONS}: has no lines <!-- optable --> and <!-- /optable -->"]
    if "ATTUNE_OP(" in ROW.sub("", read(root, OPS)):
        return [f"{OPS}: has a row that tools/checks/pages.py cannot read"]
    return [] if found[2] == table(read(root, OPS)) else [
        f"{EXPRESSIONS}: shows other operations than {OPS}; run ./dev map"]


# ---- snippets: code and tables in pages are those of tested files

# <!-- snippet: examples/01_plain.cpp#region -->, then a fenced block. Two lines `// [region]`, in Python `# [region]`, enclose the region.
SNIPPET = re.compile(r"(<!-- snippet: (\S+?)#(\w+) -->\n+```\w*\n)(.*?)(^```$)", re.S | re.M)

# <!-- table: tests/golden/runtime/options.txt -->, the whole file, <!-- /table -->.
TABLE = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- /table -->)", re.S)


def region(root, path, name):
    if not (root / path).exists():
        return None
    parts = re.split(rf"^[ \t]*(?://|#) \[{name}\][ \t]*\n", read(root, path), flags=re.M)
    return textwrap.dedent(parts[1]).strip("\n") + "\n" if len(parts) == 3 else None


def snippets(root):
    out = []
    for page in pages(root):
        text = read(root, page)
        found = SNIPPET.findall(text)
        if len(found) != text.count("<!-- snippet:"):
            out.append(f"{page}: a snippet mark is not `<!-- snippet: file#region -->` followed by a fenced block")
        for _, path, name, shown, _ in found:
            code = region(root, path, name)
            if code is None:
                out.append(f"{page}: {path} has no region between two lines `// [{name}]`")
            elif code != shown:
                out.append(f"{page}: shows another text than {path}#{name}; run ./dev map")
        for _, path, shown, _ in TABLE.findall(text):
            if not (root / path).exists() or read(root, path) != shown:
                out.append(f"{page}: shows another table than {path}; run ./dev map")
    return out


def write():
    for page in pages(ROOT):
        old = read(ROOT, page)
        new = SNIPPET.sub(lambda m: m[1] + (region(ROOT, m[2], m[3]) or m[4]) + m[5], old)
        new = TABLE.sub(lambda m: m[1] + read(ROOT, m[2]) + m[4], new)
        if page.as_posix() == EXPRESSIONS:
            new = OPTABLE.sub(lambda m: m[1] + table(read(ROOT, OPS)) + m[3], new)
        if new != old:
            (ROOT / page).write_text(new, encoding="utf-8")
    sys.exit()


if "--write" in sys.argv:
    write()

throws = {"ir/lex.cpp": 'refuse(*text_,\n       "bad-number", "");\n'}
verdict(errors, wrong={
    "docs/errors.md: has no heading `### bad-number`": throws,
    "docs/errors.md: has no heading `### bad-loop`": {"python/a.py": 'raise Error.at(here(),\n  "bad-loop", "")\n'},
    "docs/errors.md: nothing throws `bad-sum`": {**throws, ERRORS: "### bad-number\n\n### bad-sum\n"},
    "docs/errors.md: tells of `bad-number` twice": {**throws, ERRORS: "### bad-number\n\n### bad-number\n"},
}, right={**throws, ERRORS: "# Errors\n\n### bad-number\n", "runtime/a.cpp": 'throw Error("bad-number", "");\n'})

verdict(links, wrong={
    "README.md: links to docs/start.md, and there is no such file": {"README.md": "[start](docs/start.md)"},
    "README.md: links to #there, and there is no such heading": {"README.md": "# Here\n[there](#there)"},
}, right={"README.md": "# It's here\n[a](docs/a.md#one-two) [b](https://example.org) [c](#its-here) `[i](j)`",
          "docs/a.md": "# One two\n[up](../README.md)"})

row = 'ATTUNE_OP(Erf,      "erf",      0,   1,   Float, F32)  // within [-1, 1]\n'
named = ("<!-- places -->\n| file | what |\n|---|---|\n| `ir/ops.def`, `ir/eval.cpp` | its meaning, as `a.cpp` |\n"
         "<!-- /places -->\n")
verdict(operation, wrong={
    "docs/adding-an-op.md: has no lines": {OPS: row, ADDING: "`ir/eval.cpp`\n", "ir/eval.cpp": "Op::Erf"},
    "docs/adding-an-op.md: names no file": {OPS: row, ADDING: "<!-- places -->\n<!-- /places -->\n"},
    "docs/adding-an-op.md: names ir/eval.cpp, which": {OPS: row, ADDING: named},
    "ir/eval.cpp: lacks Erf": {OPS: row, ADDING: named, "ir/eval.cpp": "Op::Tanh, perfect\n"},
}, right={OPS: row, ADDING: named, "ir/eval.cpp": "return erff(x);\n"})

row = 'ATTUNE_OP(Or,       "||",       2,   2,   Bool,  Bool) // both sides evaluate\n'
right = "| written | takes | gives | |\n|---|---|---|---|\n| `a \\|\\| b` | Bool | Bool | both sides evaluate |\n"
shown = f"<!-- optable -->\n{right}<!-- /optable -->\n"
verdict(optable, wrong={
    "docs/expressions.md: has no lines": {OPS: row, EXPRESSIONS: right},
    "docs/expressions.md: shows other": {OPS: row.replace("Or", "And").replace("||", "&&"), EXPRESSIONS: shown},
    "ir/ops.def: has a row": {OPS: row + "ATTUNE_OP(And)\n", EXPRESSIONS: shown},
}, right={OPS: row, EXPRESSIONS: shown})

code = {"examples/a.cpp": "int main() {\n  // [body]\n  f();\n  // [body]\n}\n", "python/a.py": "# [body]\nf()\n# [body]\n"}
mark = "<!-- snippet: examples/a.cpp#{} -->\n```cpp\n{}```\n"
verdict(snippets, wrong={
    "README.md: shows another text than examples/a.cpp#body": {**code, "README.md": mark.format("body", "g();\n")},
    "README.md: examples/a.cpp has no region": {**code, "README.md": mark.format("other", "f();\n")},
    "README.md: a snippet mark is not": {**code, "README.md": "<!-- snippet: examples/a.cpp -->\n"},
    "README.md: shows another text than python/a.py#body": {
        **code, "README.md": mark.format("body", "g()\n").replace("examples/a.cpp", "python/a.py")},
    "README.md: shows another table than tests/a.txt": {
        "tests/a.txt": "| a |\n", "README.md": "<!-- table: tests/a.txt -->\n| b |\n<!-- /table -->\n"},
}, right={**code, "tests/a.txt": "| a |\n", "README.md": mark.format("body", "f();\n") +
          "<!-- table: tests/a.txt -->\n| a |\n<!-- /table -->\n"})
