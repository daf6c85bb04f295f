# tests/playground/browser.py — browser.py SITE ATTUNE PICTURES: headless Chromium uses the playground and the site, and
# what it sees is compared with the command line
import base64
import json
import os
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "site"))
import browser  # noqa: E402
import core  # noqa: E402
from gallery import mods  # noqa: E402
from mistakes import MISTAKES  # noqa: E402

TWENTY = ["causal", "alibi", "softcap", "t5", "window", "sink-window", "prefix", "documents", "jagged", "natten",
          "natten-morton", "block-diffusion", "tree", "block-map", "graph", "rope-wave", "dropout", "learned-sink", "swin",
          "everything"]
# A keystroke to all views, in ms, where nothing else runs; tests share a machine.
MOST_KEYSTROKE, SHARED = 100, 4
FIRST_PAINT = 1000
# What has a time limit keeps it in one of this many times: a page that is slow is so each time, a busy machine is not.
TIMES = 5


def settled(page):
    page.until("document.body.dataset.done", 90)


def type_into(page, field, text):
    """As a person does: the field is focused, what is in it selected, and the text typed."""
    page.value(f"document.getElementById('{field}').focus(); document.getElementById('{field}').select()")
    page.type(text) if text else page.key("Delete")


def facts(attune, mod):
    """What the command line says: the digest, the page of explain, and the tiles as plot counts them."""
    explained = json.loads(subprocess.run([attune, "explain", "--json", *(a for a in mod.arguments(fills=False) if re.match(
        "--(capture|param|let|score|mask|prob|sink)=", a))], capture_output=True, text=True, check=True).stdout)
    svg = subprocess.run([attune, "plot", "--panels=tiles", *mod.arguments()], capture_output=True, text=True,
                         check=True).stdout
    tiles = re.search(r">([\d ]+) full, ([\d ]+) partial, ([\d ]+) empty tiles(?:; ([\d ]+) of)?", svg)
    counts = [int(n.replace(" ", "")) if n else None for n in tiles.groups()]
    return explained, counts


def twenty_mods(page, attune, pictures):
    by_name = {m.name: m for m in mods()}
    # What the command line says is found out meanwhile.
    said = ThreadPoolExecutor(os.cpu_count())
    promised = {name: said.submit(facts, attune, by_name[name]) for name in TWENTY}
    for name in TWENTY:
        mod = by_name[name]
        # The data and sizes come with the choice; the expressions are typed again.
        page.value(f"document.getElementById('example').value = '{name}'; document.getElementById('example').onchange()")
        for part in ("score", "mask", "prob", "sink"):
            type_into(page, part, mod.question.get(part, ""))
        settled(page)
        seen = page.value("({ digest: answer.digest, tiles: answer.tiles, error: document.querySelector('.error:not([hidden])')"
                          "?.textContent || null, sections: answer.sections, panel: document.getElementById('panel').innerText,"
                          "facts: document.getElementById('facts').innerText })")
        explained, (full, partial, empty, kept) = promised[name].result()
        assert not seen["error"], (name, seen["error"])
        assert seen["digest"] == explained["digest"], name
        sections = [s for s in explained["sections"] if s["title"] not in {"time", "compile time"}]
        for section in seen["sections"]:
            assert section in sections, (name, section, sections)
            assert section["title"] in seen["panel"], (name, section["title"])
        tiles = seen["tiles"]
        assert [tiles["full"], tiles["partial"], tiles["empty"]] == [full, partial, empty], (name, tiles, full, partial)
        assert kept is None or tiles["kept"] == kept, (name, tiles["kept"], kept)
        assert abs(float(seen["facts"].split()[0]) - 100 * empty / (full + partial + empty)) < 0.06, (name, seen["facts"])
        blank = page.value("[...document.querySelectorAll('canvas')].filter(c => !new Uint32Array(c.getContext('2d')"
                           ".getImageData(0, 0, c.width, c.height).data.buffer).some((x, _, all) => x !== all[0]))"
                           ".map(c => c.dataset.map)")
        assert len(blank) <= 2 and "tiles" not in blank[:-1], (name, blank)
        page.picture(pictures / f"playground-{name}.png")
    print(f"{len(TWENTY)} mods typed: digests, explained pages, tiles and pairs are the command line's")


def mistakes(page):
    page.open(page.address)
    settled(page)
    for question in MISTAKES:
        # The way a link brings it: captures and sizes too.
        text = base64.urlsafe_b64encode(json.dumps(question).encode()).decode().rstrip("=")
        page.value(f"location.hash = '#{text}'; fromLink()")
        settled(page)
        message = page.value("document.querySelector('.error:not([hidden])')?.textContent || "
                             "document.getElementById('state').textContent")
        assert "attune: " in message and "bug" not in message, (question, message)
    for link in ("#", "#%%%", "#bm9uZQ", "#" + "A" * 5000, "#bnVsbA"):
        page.value(f"location.hash = '{link}'; fromLink()")
        settled(page)
    print(f"{len(MISTAKES)} mistakes have their messages")


def answers_meanwhile(page):
    """Whether the page answers while it works on an expression of 100 000 nodes."""
    page.open(page.address)
    settled(page)
    terms = " + ".join(f"f32(kv * {i})" for i in range(33000))
    page.value(f"document.getElementById('score').value = 's + {terms}'; document.getElementById('score').oninput()")
    time.sleep(1)
    start = time.monotonic()
    page.value("1 + 1")
    return time.monotonic() - start < 0.5


def large(page):
    assert any(answers_meanwhile(page) for _ in range(TIMES)), "the page hangs while a large expression is worked on"
    if not page.value("document.body.dataset.done"):
        page.key("Escape")
        assert page.value("document.getElementById('state').textContent") == "Stopped."
    type_into(page, "score", "s")
    settled(page)
    assert page.value("answer.expressions[0].text") == "s"
    print("an expression of 100 000 nodes: the page answers meanwhile, and stops it")


def is_fast(page):
    page.open(page.address)
    settled(page)
    painted = page.value("Math.max(...performance.getEntriesByType('paint').map(e => e.startTime))")
    took = [page.value(f"""new Promise(done => {{
        const area = document.getElementById('mask'), from = performance.now();
        area.value = 'kv <= q && q - kv < {100 + i}', area.oninput();
        const look = () => document.body.dataset.done ? requestAnimationFrame(() => setTimeout(() => done(performance.now() - from)))
                                                      : setTimeout(look, 1);
        look();
    }})""") for i in range(25)][5:]
    middle = statistics.median(took)
    print(f"first paint after {painted:.0f} ms; a keystroke to all views of 256 x 256 pairs {middle:.0f} ms, "
          f"{min(took):.0f} to {max(took):.0f}")
    return painted < FIRST_PAINT and middle < SHARED * MOST_KEYSTROKE


def speed(page):
    assert any(is_fast(page) for _ in range(TIMES)), "the page is slow"


def keyboard(page):
    page.value("document.querySelector('canvas').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.key(key)
    assert page.value("document.getElementById('pair').textContent").startswith("q = 2, kv = 1: ")
    page.value("document.querySelector('[role=tab][aria-selected=true]').focus()")
    page.key("ArrowRight")
    assert page.value("document.querySelector('[role=tab][aria-selected=true]').textContent") == "C++"
    assert "const Mask mask" in page.value("document.getElementById('panel').innerText")
    for _ in range(3):
        page.key("ArrowRight")
    settled(page)
    page.until("document.getElementById('panel').innerText.includes('__device__')")
    # A link holds the whole state.
    link, digest = page.value("location.href"), page.value("answer.digest")
    page.open("about:blank")
    page.open(link)
    settled(page)
    assert page.value("answer.digest") == digest
    print("keys, tabs and links do what they say")


def looks(page, pictures):
    for name in ("playground", "gallery", "index"):
        page.open(f"{page.site}/{name}.html")
        if name == "playground":
            page.value("choose(gallery.find(m => m.name === 'everything'))")
            settled(page)
        for width, height in ((1280, 900), (768, 1024), (390, 844)):
            for dark in (False, True):
                page.size(width, height)
                page.dark(dark)
                page.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
                page.until("[...document.images].filter(i => i.getBoundingClientRect().top < innerHeight).every(i => i.complete)")
                wide = page.value("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{name} is {wide} pixels too wide for {width}"
                page.picture(pictures / f"{name}-{width}{'-dark' if dark else ''}.png")
    page.size(1280, 900)
    page.dark(False)


def site(page):
    page.open(f"{page.site}/gallery.html")
    page.value("document.querySelectorAll('img').forEach(i => i.loading = 'eager')")
    page.until("[...document.images].every(i => i.complete)")
    assert page.value("[...document.images].every(i => i.naturalWidth > 0)")
    assert page.value("document.querySelectorAll('.card').length") == len(mods())
    page.open(f"{page.site}/docs/expressions.html")
    page.value("document.getElementById('search').focus()")
    page.type("straight-through")
    page.until("document.querySelectorAll('#found a').length > 0")
    page.key("ArrowDown")
    page.value("document.activeElement.click()")
    page.until("document.readyState == 'complete' && !!document.querySelector('h1')")
    print(f"the gallery has {len(mods())} cards with pictures; search finds and leads on")


def main(folder, attune, pictures):
    if not browser.found():
        print("[skip] there is no Chromium: apt-get install chromium")
        return
    if not (folder / "playground.html").exists():
        print("[skip] there is no playground in the site, since there is no emscripten")
        return
    if why := core.lacking(core.ROOT / "build/wasm/attune.js"):
        print(f"[skip] {why}")
        return
    pictures.mkdir(parents=True, exist_ok=True)
    with browser.Browser() as page:
        page.site = folder.resolve().as_uri()
        page.address = f"{page.site}/playground.html"
        page.open(page.address)
        settled(page)
        speed(page)
        keyboard(page)
        twenty_mods(page, attune, pictures)
        mistakes(page)
        large(page)
        site(page)
        looks(page, pictures)
        assert not page.complaints, page.complaints
    print(f"no error in the console; pictures in {pictures}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
