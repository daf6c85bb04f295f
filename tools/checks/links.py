# tools/checks/links.py — each relative link in a page leads to an existing file, and heading if it names one
import re

from tree import files, read
from verdict import verdict


def headings(text):
    titles = re.findall(r"^#+ +(.*?) *$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def complaints(root):
    out = []
    for page in files(root):
        if page.suffix != ".md":
            continue
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


verdict(complaints, wrong={
    "README.md: links to docs/start.md, and there is no such file": {"README.md": "[start](docs/start.md)"},
    "README.md: links to #there, and there is no such heading": {"README.md": "# Here\n[there](#there)"},
}, right={"README.md": "# It's here\n[a](docs/a.md#one-two) [b](https://example.org) [c](#its-here) `[i](j)`",
          "docs/a.md": "# One two\n[up](../README.md)"})
