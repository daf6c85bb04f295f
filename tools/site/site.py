# tools/site/site.py — the pages of docs/ and gallery/ as a site of plain files, with search and the playground
import argparse
import base64
import html
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import playground
from gallery import ROOT, mods
from markdown import Page

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools" / "bench"))
import results  # noqa: E402

# The pages by the headings of the site's contents; every other page is reached by links.
CONTENTS = {
    "Begin": ["README.md", "docs/start.md", "docs/expressions.md", "docs/masks-and-tiles.md", "docs/playground.md",
              "docs/semantics.md", "docs/glossary.md"],
    "Use it from": ["docs/python.md", "docs/python-api.md", "docs/torch.md", "docs/jax.md", "docs/cpp.md", "docs/c.md",
                    "docs/cli.md"],
    "Run it": ["docs/cpu.md", "docs/gpu.md", "docs/serving.md", "docs/ranks.md", "docs/support.md", "docs/offline.md", "docs/cache.md", "docs/first-call.md",
               "docs/debugging.md", "docs/errors.md", "docs/benchmarks.md"],
    "Work on it": ["CONTRIBUTING.md", "docs/map.md", "docs/adding-an-op.md", "docs/adding-a-kernel.md", "CHANGELOG.md"]}


def url_of(path):
    """Where a file of the repository lies on the site."""
    if path == "README.md":
        return "index.html"
    if path.endswith(".md"):
        return path[:-3] + ".html"
    if path.startswith("docs/pictures/"):
        return path
    return f"source/{path}/index.html" if (ROOT / path).is_dir() else f"source/{path}.html"


class Site:
    def __init__(self, out):
        self.out, self.sections, self.titles, self.wanted = out, [], {}, set()

    def write(self, url, title, body, wide=False):
        root = "../" * url.count("/")
        contents = "".join(
            f"<b>{group}</b>" + "".join(
                f'<a href="{root}{url_of(p)}"{" aria-current=page" if url_of(p) == url else ""}>{self.titles[p]}</a>'
                for p in pages if p in self.titles) for group, pages in CONTENTS.items())
        nav = f'<nav aria-label="Contents">{contents}</nav>'
        (self.out / url).parent.mkdir(parents=True, exist_ok=True)
        (self.out / url).write_text(f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}{"" if title == "attune" else " · attune"}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{root}style.css">
<body>
<a class="skip" href="#main">to the text</a>
<header><a href="{root}index.html">attune</a> <a href="{root}gallery.html">gallery</a>
<a href="{root}playground.html">playground</a>
<form role="search"><input id="search" type="search" data-root="{root}" placeholder="search  /" aria-label="search" autocomplete="off"><ul id="found" hidden></ul></form></header>
<div class="page"{' style="grid-template-columns: minmax(0, 1fr)"' if wide else ""}>{"" if wide else nav}<main id="main">
{body}
</main></div>
<script src="{root}search.js"></script>
</body>
</html>
""", encoding="utf-8")

    def relative(self, of, target):
        """A link of the page `of` (a path in the repository) as a link between files of the site."""
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return target
        path, _, anchor = target.partition("#")
        there = os.path.normpath(str(PurePosixPath(of).parent / path))
        if (ROOT / there).is_dir():
            there = f"{there}/README.md" if (ROOT / there / "README.md").exists() else there
        if (ROOT / there).exists():
            self.wanted.add(there)
        to = os.path.relpath(url_of(there), PurePosixPath(url_of(of)).parent)
        return to + (f"#{anchor}" if anchor else "")

    def page(self, path):
        link = lambda target: self.relative(path, target)  # noqa: E731
        page = Page((ROOT / path).read_text(encoding="utf-8"), link, link)
        self.titles[path] = page.title
        for heading, anchor, text in page.sections:
            self.sections.append({"url": url_of(path) + (f"#{anchor}" if anchor else ""), "page": page.title,
                                  "heading": heading, "text": text})
        return page


def pictures(attune, out, all_mods):
    """A picture of each mod, drawn by the command line."""
    (out / "gallery").mkdir(parents=True, exist_ok=True)

    def draw(mod):
        panels = ["--panels", "tiles,prob" if "mask" in mod.question else "score,prob"]
        subprocess.run([attune, "plot", *mod.arguments(), *panels, "--plain", "-o", out / "gallery" / f"{mod.name}.svg"], check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(draw, all_mods))


def told(attune, mod):
    """What the compiler says of a mod's mask, and how much of the work is skipped."""
    if "mask" not in mod.question:
        return ""
    done = subprocess.run([attune, "cover", "--json", "--no-picture", *mod.arguments(fills=False)], capture_output=True,
                          text=True, check=True)
    return json.loads(done.stdout)["along_kv"]["form"]


MEASURED_AT = "the-cuda-engine"  # the heading of these figures


def measured(mod):
    """TFLOP/s of attune and FlexAttention, from docs/results."""
    if not mod.measured:
        return ""
    run, rows = results.read(ROOT / "docs" / "results" / "gpu-forward.jsonl")
    rates = next(row.rates for row in rows if row.title == mod.measured)
    own, flex = (results.text_of(rates[name]["median"]) for name in ("attune", "FlexAttention"))
    return (f'<p><a href="docs/benchmarks.html#{MEASURED_AT}">{own} TFLOP/s</a>, and FlexAttention {flex}, on one '
            f'{html.escape(run["runs"][0]["facts"][0].split(",")[0])}.</p>')


def state_link(mod):
    text = json.dumps(mod.question, separators=(",", ":")).encode()
    return "#" + base64.urlsafe_b64encode(text).decode().rstrip("=")


def card(mod, form):
    code = "".join(f"<details><summary>{name}</summary><pre><code>{html.escape(text, False)}</code></pre></details>"
                   for name, text in [("text", mod.mod), ("C++", mod.cpp), ("Python", mod.python), ("torch", mod.torch)] if text)
    known = f"<p>The compiler has the mask as: {html.escape(form)}.</p>" if form else ""
    return (f'<article class="card" id="{mod.name}"><h3>{mod.title}</h3><img alt="picture of {mod.title}" loading="lazy" '
            f'src="gallery/{mod.name}.svg"><p>{html.escape(mod.about)}</p>{known}{measured(mod)}{code}<div class="links">'
            f'<a href="playground.html{state_link(mod)}">open in the playground</a></div></article>')


def gallery_page(site, attune):
    all_mods = mods()
    pictures(attune, site.out, all_mods)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        forms = list(pool.map(lambda m: told(attune, m), all_mods))
    body = ("<h1>The gallery</h1><p>Mods that people use. Each is a file of gallery/ that tests run: text, C++ and "
            "Python give the same expression, torch code the same results, and the pictures are drawn by <code>attune plot</code>: keys go to the "
            "right, queries down. On the left the tiles of a mask (blue: full; orange: the pairs of partial ones that "
            "stay), or without a mask the score where q · k is 0 (orange above 0, blue below, and the page's own colour "
            "at 0); on the right the probabilities, each row by its largest.</p>")
    for family in dict.fromkeys(m.family for m in all_mods):
        body += f'<h2>{family}</h2><div class="cards">' + "".join(
            card(m, f) for m, f in zip(all_mods, forms) if m.family == family) + "</div>"
    site.write("gallery.html", "The gallery", body, wide=True)
    for m in all_mods:
        site.sections.append({"url": f"gallery.html#{m.name}", "page": "The gallery", "heading": m.title,
                              "text": f"{m.about} {m.mod}"})


def with_contents(page):
    """A page with links to its sections below its title, if it has several."""
    if len(page.parts) < 3:
        return page.html
    links = "".join(f'<li><a href="#{anchor}">{page.inline(title)}</a></li>' for title, anchor in page.parts)
    first = page.html.index("</h1>") + len("</h1>")
    return f'{page.html[:first]}<nav class="parts" aria-label="On this page"><ul>{links}</ul></nav>\n{page.html[first:]}'


def source_page(site, path):
    if (ROOT / path).is_dir():
        text = "\n".join(sorted(p.name for p in (ROOT / path).iterdir()))
    else:
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
    site.write(url_of(path), path, f"<h1>{html.escape(path)}</h1><pre><code>{html.escape(text, False)}</code></pre>")


def build(out, attune, engine):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    site = Site(out)
    pages, seen = {}, set()
    todo = [p for group in CONTENTS.values() for p in group]
    todo += sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))
    while todo:
        path = todo.pop(0)
        if path in seen:
            continue
        seen.add(path)
        if path.endswith(".md"):
            pages[path] = site.page(path)
        todo += sorted(site.wanted - seen)
    for path, page in pages.items():
        site.write(url_of(path), page.title, with_contents(page))
    for path in sorted(seen - set(pages)):
        if path.startswith("docs/pictures/"):
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, out / path)
        else:
            source_page(site, path)
    if attune:
        gallery_page(site, attune)
    if engine:
        (out / "playground.html").write_text(playground.page(engine), encoding="utf-8")
    for name in ("style.css", "search.js"):
        shutil.copy(HERE / name, out / name)
    (out / "search-index.js").write_text("window.attuneSections = " + json.dumps(site.sections) + ";\n", encoding="utf-8")
    return site


def broken(out):
    """Links that lead nowhere: (page, link)."""
    ids = {p.relative_to(out).as_posix(): set(re.findall(r'\bid="([^"]*)"', p.read_text(encoding="utf-8")))
           for p in out.rglob("*.html")}
    bad = []
    for page in ids:
        text = re.sub(r"<script.*?</script>|<code>.*?</code>", "", (out / page).read_text(encoding="utf-8"), flags=re.S)
        for link in re.findall(r'(?:href|src)="([^"]*)"', text):
            if not link or re.match(r"[a-z]+:", link) or page == "playground.html":
                continue
            path, _, anchor = html.unescape(link).partition("#")
            there = os.path.normpath(str(PurePosixPath(page).parent / path)) if path else page
            if not (out / there).is_file():
                bad.append((page, link))
            elif anchor and there in ids and anchor not in ids[there] and there != "playground.html":
                bad.append((page, link))
    return bad


def main():
    options = argparse.ArgumentParser(description="builds the site")
    options.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    options.add_argument("--attune", type=Path, help="the command line, for the gallery's pictures")
    options.add_argument("--engine", type=Path,
                         help="the playground's core in JavaScript; where it is not there, the site has no playground")
    given = options.parse_args()
    if given.engine and not given.engine.exists():
        given.engine = None
    build(given.out, given.attune, given.engine)
    without = {name for name, made in [("gallery.html", given.attune), ("playground.html", given.engine)] if not made}
    bad = [(page, link) for page, link in broken(given.out) if link.split("#")[0].lstrip("./") not in without]
    for page, link in bad:
        print(f"{page}: links to {link}, and there is no such page or heading", file=sys.stderr)
    listed = {path for group in CONTENTS.values() for path in group}
    unlisted = [path for path in (f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md"))) if path not in listed]
    for path in unlisted:
        print(f"{path}: is not in the contents of the site", file=sys.stderr)
    print(f"{given.out}: {len(list(given.out.rglob('*.html')))} pages")
    sys.exit(bool(bad or unlisted))


if __name__ == "__main__":
    main()
