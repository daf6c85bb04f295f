# tools/bench/first_call_picture.py — the picture of where a first call's time goes, drawn from the table of its page
import re
import sys
from pathlib import Path

import peers_picture as drawing

PAGE = Path(__file__).resolve().parents[2] / "docs/first-call.md"
# The picture stands below its table: | way | kernel | begins | a phase | another phase |
IMAGE = re.compile(r"\n\n!\[([^\]]+)\]\(([\w./-]+\.svg)\)$", re.M)
LABELS, ACROSS, BAR, STEP, EDGE = 210, 420, 13, 21, 24  # pixels; ACROSS: the longest time


def table_above(page, image):
    """The names of the phases, and {way: [(kernel, begin, seconds by phase)]}."""
    lines = page[:image.start()].split("\n")
    first = len(lines)
    while lines[first - 1].startswith("|"):
        first -= 1
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[first:]]
    ways = {}
    for way, kernel, begin, *seconds in rows[2:]:
        ways.setdefault(way, []).append((kernel, float(begin), [float(s or 0) for s in seconds]))
    return rows[0][3:], ways


def picture(title, phases, ways):
    end_of = lambda row: row[1] + sum(row[2])
    scale = ACROSS / max(end_of(row) for rows in ways.values() for row in rows)
    out, y = "", 44
    x = EDGE
    for phase, colour in zip(phases, drawing.COLOURS):
        out += drawing.bar_at(x, y, 12, 12, colour) + drawing.text_at(x + 18, y + 10, phase) + "\n"
        x += 42 + drawing.width(phase)
    y += 42
    for way, rows in ways.items():
        total = max(map(end_of, rows))
        out += drawing.text_at(EDGE, y, f"{way}: {total:.2f} s", ' font-weight="bold"') + "\n"
        y += 10
        for kernel, begin, seconds in rows:
            out += drawing.text_at(EDGE + LABELS - 8, y + BAR - 2, kernel, ' text-anchor="end"') + "\n"
            at = EDGE + LABELS + scale * begin
            for one, colour in zip(seconds, drawing.COLOURS):
                if one:
                    out += drawing.bar_at(at, y, scale * one, BAR, colour) + "\n"
                at += scale * one
            out += drawing.text_at(at + 5, y + BAR - 2, f"{sum(seconds):.2f}",
                                   f' font-size="{drawing.SMALL}" fill="#555"') + "\n"
            y += STEP
        y += 22
    return drawing.framed(title, EDGE + LABELS + ACROSS + 50, y - 16, out)


def of_page(text):
    """{file: picture} of the pictures that stand below a table."""
    return {image[2]: picture(image[1], *table_above(text, image)) for image in IMAGE.finditer(text)}


def main():
    wrong = []
    for file, svg in of_page(PAGE.read_text(encoding="utf-8")).items():
        path = PAGE.parent / file
        if "--write" in sys.argv:
            path.write_text(svg, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != svg:
            wrong.append(f"{file} is not what the table above it says; run {Path(__file__).name} --write")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
