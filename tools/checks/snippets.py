# tools/checks/snippets.py — code and tables in pages are those of tested files; --write copies them
import re
import sys
import textwrap

from tree import files, read
from verdict import ROOT, verdict

# <!-- snippet: examples/01_plain.cpp#region -->, then a fenced block. Two lines `// [region]`, in Python `# [region]`, enclose the region.
SNIPPET = re.compile(r"(<!-- snippet: (\S+?)#(\w+) -->\n+```\w*\n)(.*?)(^```$)", re.S | re.M)

# <!-- table: tests/golden/runtime/options.txt -->, the whole file, <!-- /table -->.
TABLE = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- /table -->)", re.S)


def region(root, path, name):
    if not (root / path).exists():
        return None
    parts = re.split(rf"^[ \t]*(?://|#) \[{name}\][ \t]*\n", read(root, path), flags=re.M)
    return textwrap.dedent(parts[1]).strip("\n") + "\n" if len(parts) == 3 else None


def pages(root):
    return [p for p in files(root) if p.suffix == ".md"]


def complaints(root):
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


if "--write" in sys.argv:
    for page in pages(ROOT):
        old = read(ROOT, page)
        new = SNIPPET.sub(lambda m: m[1] + (region(ROOT, m[2], m[3]) or m[4]) + m[5], old)
        new = TABLE.sub(lambda m: m[1] + read(ROOT, m[2]) + m[4], new)
        if new != old:
            (ROOT / page).write_text(new, encoding="utf-8")
else:
    code = {"examples/a.cpp": "int main() {\n  // [body]\n  f();\n  // [body]\n}\n"}
    code["python/a.py"] = "# [body]\nf()\n# [body]\n"
    mark = "<!-- snippet: examples/a.cpp#{} -->\n```cpp\n{}```\n"
    verdict(complaints, wrong={
        "README.md: shows another text than examples/a.cpp#body": {**code, "README.md": mark.format("body", "g();\n")},
        "README.md: examples/a.cpp has no region": {**code, "README.md": mark.format("other", "f();\n")},
        "README.md: a snippet mark is not": {**code, "README.md": "<!-- snippet: examples/a.cpp -->\n"},
        "README.md: shows another text than python/a.py#body": {
            **code, "README.md": mark.format("body", "g()\n").replace("examples/a.cpp", "python/a.py")},
        "README.md: shows another table than tests/a.txt": {
            "tests/a.txt": "| a |\n", "README.md": "<!-- table: tests/a.txt -->\n| b |\n<!-- /table -->\n"},
    }, right={**code, "tests/a.txt": "| a |\n", "README.md": mark.format("body", "f();\n") +
              "<!-- table: tests/a.txt -->\n| a |\n<!-- /table -->\n"})
