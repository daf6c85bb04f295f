# tools/site/playground.py — playground.py ENGINE OUT: the playground's page as one file that needs no other
import json
import sys
from pathlib import Path

from gallery import ROOT, mods

PAGE = ROOT / "playground" / "page"


def inside_script(text):
    """Text within <script>: what would end it is written otherwise, alike in JavaScript and JSON."""
    return text.replace("</", "<\\/").replace("<!--", "<\\!--")


def page(engine):
    out = (PAGE / "index.html").read_text(encoding="utf-8")
    cards = [{"name": m.name, "title": m.title, "family": m.family, "about": m.about, "question": m.question}
             for m in mods()]
    parts = {"/*[style.css]*/": (PAGE / "style.css").read_text(encoding="utf-8"),
             "[]/*[gallery]*/": inside_script(json.dumps(cards)),
             "/*[engine]*/": inside_script(engine.read_text(encoding="utf-8")
                                           + (PAGE / "worker.js").read_text(encoding="utf-8"))}
    for name in ("draw.js", "question.js", "page.js"):
        parts[f"/*[{name}]*/"] = inside_script((PAGE / name).read_text(encoding="utf-8"))
    for mark, text in parts.items():
        assert out.count(mark) == 1, mark
        out = out.replace(mark, text)
    return out


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(page(Path(sys.argv[1])), encoding="utf-8")
