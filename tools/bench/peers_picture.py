# tools/bench/peers_picture.py — the pictures of a page's tables of peers: bars, drawn from the results of the table above
import re
import sys
from dataclasses import replace
from html import escape
from pathlib import Path

import results

# A picture stands below the table whose results it shows, as ![WHAT: UNIT; WHERE](FILE.svg). It shows all of them, or
# one group of rows where WHAT names that group.
IMAGE = re.compile(r"^!\[([^\]:]+): ([^\];]+); ([^\]]+)\]\(([\w./-]+\.svg)\)$", re.M)

# The colours of tools/options/picture.cpp: dark, light, middle, which also differ in greyscale.
COLOURS = ["#2c5f8d", "#e79b4b", "#fbe9d2", "#9a9a9a", "#5f8a3c", "#c7d8e8", "#222222", "#b05a7a", "#d6c23e",
           "#3fa7a0"]

# The colours on a dark page, by those on a light page.
DARK = ('<style>@media(prefers-color-scheme:dark){svg,[fill="#222222"]{fill:#e8e8e8}[fill="#555"]{fill:#a9b0b8}'
        '[fill="#fff"]{fill:#14181d}[fill="#2c5f8d"]{fill:#6ea8dc}}</style>\n')

FONT, SMALL, LINE = 12, 10, 15  # pixels
BAR, GAP, BARS, LABELS, EDGE = 11, 9, 200, 200, 24  # LABELS: the widest that a label may be before it is wrapped


def width(text, size=FONT):
    """An upper bound on the width in pixels: DejaVu Sans is the widest of the fonts that may be used."""
    def of(c):
        if c in "iljtfrI.,:;'|!()[]/ -":
            return 0.46
        if c in "mwMWQ@%&":
            return 1.0
        return 0.66 if c.islower() or c.isdigit() else 0.86 if ord(c) < 0x250 else 1.1
    return size * sum(map(of, text))


def wrapped(text, most, size=FONT):
    """Lines of at most `most` pixels: broken between words, and within a word that is wider than a line."""
    lines = [""] if text else []
    for word in text.split():
        if lines[-1] and width(f"{lines[-1]} {word}", size) > most:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
        while width(lines[-1], size) > most:
            cut = max(n for n in range(1, len(lines[-1]) + 1) if n == 1 or width(lines[-1][:n], size) <= most)
            lines[-1:] = [lines[-1][:cut], lines[-1][cut:]]
    return lines


def text_at(x, y, text, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'


def bar_at(x, y, length, height, colour):
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{length:.1f}" height="{height}" fill="{colour}" stroke="#222" '
            'stroke-width="0.5"/>')


def framed(title, wide, high, body):
    """An SVG of these sizes, whose title stands at its top."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="{FONT}" fill="#222">\n'
            f'<title>{escape(title)}</title>\n{DARK}<rect width="100%" height="100%" fill="#fff"/>\n'
            f'{text_at(EDGE, 24, title, " font-size=" + chr(34) + "14" + chr(34))}\n{body}</svg>\n')


def panel(heading, rows, colours, x, y, labels, across):
    """The bars of one group, relative to its fastest (longer is faster); and the height of the result."""
    most = max(float(rate) for row in rows for rate in row.rates.values()) or 1.0  # a slow host's rates may print as 0.0
    out, below = "", y
    for line in wrapped(heading, across / 1.15):  # bold is wider
        out, below = out + text_at(x, below, line, ' font-weight="bold"') + "\n", below + LINE
    below -= 3
    for row in rows:
        lines = wrapped(row.label, LABELS)
        height = max(BAR * len(row.rates), LINE * len(lines) - 4)
        first = below + (height - LINE * (len(lines) - 1)) / 2 + 4
        for number, line in enumerate(lines):
            out += text_at(x + labels - 8, first + LINE * number, line, ' text-anchor="end"') + "\n"
        top = below + (height - BAR * len(row.rates)) / 2
        for name, rate in row.rates.items():
            length = BARS * float(rate) / most
            out += bar_at(x + labels, top, length, BAR, colours[name])
            out += text_at(x + labels + length + 4, top + BAR - 2, rate, f' font-size="{SMALL}" fill="#555"') + "\n"
            top += BAR
        below += height + GAP
    return out, below - y


def legend(names, colours, most):
    """The names in lines of at most `most` pixels, if a name fits; and the width and height of the result."""
    out, x, y, wide = "", EDGE, 54, 0
    for name in names:
        step = 42 + width(name)
        if x > EDGE and x + step > most:
            x, y = EDGE, y + 18
        out += bar_at(x, y, 12, 12, colours[name]) + text_at(x + 18, y + 10, name) + "\n"
        x, wide = x + step, max(wide, x + step)
    return out, wide, y + 38


def colours_of(rows):
    names = list(dict.fromkeys(name for row in rows for name in row.rates))
    if len(names) > len(COLOURS):
        raise ValueError(f"{len(names)} peers, and colours for {len(COLOURS)}")
    return dict(zip(names, COLOURS))


def picture(what, unit, where, rows, colours):
    """An SVG of all rows that have a rate. A group is a panel, and goes below the shorter one of two columns."""
    rows = [row for row in rows if row.rates]
    names = [name for name in colours if any(name in row.rates for row in rows)]
    groups = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    labels = max((width(line) for row in rows for line in wrapped(row.label, LABELS)), default=0) + 8
    numbers = max((width(rate, SMALL) for row in rows for rate in row.rates.values()), default=0) + 4
    across = labels + BARS + numbers + EDGE
    columns = min(2, len(groups))
    heads = [f"{what}: {unit}, longer is faster", where + ("; each panel by its own fastest" if columns > 1 else "")]
    wide = max(EDGE + columns * across, EDGE + width(heads[0], 14) + EDGE, EDGE + width(heads[1]) + EDGE)
    names_text, names_wide, top = legend(names, colours, wide)
    wide, ends, body = max(wide, names_wide), [top] * max(columns, 1), ""
    for group, its in groups.items():
        column = ends.index(min(ends))
        x, heading = EDGE + column * across, "" if group == what else group
        drawn, height = panel(heading, its, colours, x, ends[column], labels, across - EDGE)
        body, ends[column] = body + drawn, ends[column] + height + 20
    if not rows:
        body, ends = text_at(EDGE, top, "nothing was measured") + "\n", [top + 20]
    where_text = text_at(EDGE, 41, heads[1], ' fill="#555"')
    return framed(heads[0], f"{wide:.0f}", f"{max(ends) - 12:.0f}", f"{where_text}\n{names_text}{body}")


def rows_of(run, rows):
    """The rows of result files with their medians alone, as texts."""
    names = ["attune", *run["peers"]]
    return [replace(row, rates={name: results.text_of(row.rates[name]["median"]) for name in names
                                if row.rates.get(name, "failed") != "failed"}) for row in rows]


def pictures(text, read):
    """{file: SVG} of all pictures of a page of peers. `read`: what a file of results holds, by its path."""
    out = {}
    for image in IMAGE.finditer(text):
        what, unit, where, file = image.groups()
        above = [mark for mark in results.MARK.finditer(text) if mark.end() <= image.start()]
        if not above:
            raise ValueError(f"no table of results stands above {file}")
        rows = rows_of(*read(above[-1][2]))
        one = [row for row in rows if row.group == what]
        out[file] = picture(what, unit, where, one or rows, colours_of(rows))
    return out


def of_page(path):
    return pictures(path.read_text(encoding="utf-8"), lambda file: results.read(path.parent / file))


def draw(path):
    """Draws the page's pictures into the page's folder."""
    for file, svg in of_page(Path(path)).items():
        (Path(path).parent / file).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("peers_picture.py PAGE.md: writes the page's tables of peers, and draws their pictures")
    Path(sys.argv[1]).write_text(results.with_tables(sys.argv[1]), encoding="utf-8")
    draw(sys.argv[1])
