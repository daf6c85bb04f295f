# tools/site/markdown.py — converts the Markdown of this repository's pages to HTML; only the features that they use
import html
import re


def slug(title):
    """A heading's anchor, as GitHub has it and tools/checks/pages.py checks it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


class Page:
    """`link` turns a link's target into that of the site; an image's likewise, by `image`."""

    def __init__(self, text, link, image):
        self.link, self.image = link, image
        self.sections = []  # (heading, anchor, plain text), the first before any heading
        self.title = ""
        self.parts = []  # (title, anchor) of its headings of the second level
        self._section = ["", "", []]
        self.html = "\n".join(self._blocks(re.sub(r"^<!-- .*? -->\n", "", text, flags=re.M).splitlines()))
        self._end_section()

    def inline(self, text):
        """Code, links, images, emphasis; `text` is as written."""
        kept = []

        def keep(html_text):
            kept.append(html_text)
            return f"\0{len(kept) - 1}\0"

        text = re.sub(r"(`+)(.+?)\1", lambda m: keep(f"<code>{html.escape(m[2].strip() or m[2], False)}</code>"), text)
        text = html.escape(text, False)
        text = re.sub(r"!\[([^\]]*)\]\(([^)\s]+)\)",
                      lambda m: keep(f'<img alt="{m[1]}" src="{self.image(m[2])}" loading="lazy">'), text)
        text = re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)",
                      lambda m: keep(f'<a href="{html.escape(self.link(m[2]))}">') + m[1] + keep("</a>"), text)
        text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
        text = re.sub(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])", r"<em>\1</em>", text)
        text = re.sub(r"\\([|*_`\[\]])", r"\1", text)
        while "\0" in text:
            text = re.sub("\0(\\d+)\0", lambda m: kept[int(m[1])], text)
        return text

    def _end_section(self):
        heading, anchor, words = self._section
        if heading or words:
            self.sections.append((heading, anchor, " ".join(words)))

    def _say(self, text):
        """Adds to the text that is searched."""
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
        self._section[2].append(" ".join(re.sub(r"[`*|]", " ", text).split()))

    def _blocks(self, lines):
        out, at = [], 0
        while at < len(lines):
            line = lines[at]
            if not line.strip():
                at += 1
            elif fence := re.match(r" *(```+)(\w*)", line):
                end = next((i for i in range(at + 1, len(lines)) if lines[i].strip() == fence[1]), len(lines))
                indent = len(line) - len(line.lstrip())
                code = "\n".join(one[indent:] for one in lines[at + 1:end])
                self._say(code)
                out.append(f'<pre class="{fence[2] or "text"}"><code>{html.escape(code, False)}</code></pre>')
                at = end + 1
            elif heading := re.match(r"(#+) +(.*?) *$", line):
                level, title = len(heading[1]), heading[2]
                plain = re.sub(r"[`*]", "", title)
                if level == 1 and not self.title:
                    self.title = plain
                if level == 2:
                    self.parts.append((re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title), slug(title)))
                self._end_section()
                self._section = [plain, slug(title), []]
                out.append(f'<h{level} id="{slug(title)}">{self.inline(title)}</h{level}>')
                at += 1
            elif line.lstrip().startswith("|") and at + 1 < len(lines) and re.match(r"^ *\|[\s:|-]+\|? *$", lines[at + 1]):
                at = self._table(lines, at, out)
            elif re.match(r" *([-*]|\d+\.) ", line):
                at = self._list(lines, at, out)
            else:
                end = at
                while end < len(lines) and lines[end].strip() and not re.match(r"```|#+ |\||([-*]|\d+\.) ", lines[end]):
                    end += 1
                end = max(end, at + 1)
                text = " ".join(one.strip() for one in lines[at:end])
                self._say(text)
                out.append(f"<p>{self.inline(text)}</p>")
                at = end
        return out

    def _table(self, lines, at, out):
        def row(line, kind):
            self._say(line)
            found = re.split(r"(?<!\\)\|", re.sub(r"^\||(?<!\\)\|$", "", line.strip()))
            return "<tr>" + "".join(f"<{kind}>{self.inline(c.strip())}</{kind}>" for c in found) + "</tr>"

        head, at, rows = row(lines[at], "th"), at + 2, []
        while at < len(lines) and lines[at].lstrip().startswith("|"):
            rows.append(row(lines[at], "td"))
            at += 1
        out.append(f'<div class="wide"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>')
        return at

    def _list(self, lines, at, out):
        indent = len(lines[at]) - len(lines[at].lstrip())
        kind = "ul" if lines[at].lstrip()[0] in "-*" else "ol"
        items = []
        while at < len(lines):
            found = re.match(r"( *)([-*]|\d+\.) +", lines[at])
            if not found or len(found[1]) != indent:
                break
            inner, width = [lines[at][found.end():]], found.end()
            at += 1
            while at < len(lines) and (lines[at].startswith(" " * (indent + 2)) or not lines[at].strip()):
                if not lines[at].strip() and not (at + 1 < len(lines) and lines[at + 1].startswith(" " * (indent + 2))):
                    break
                inner.append(lines[at][min(width, len(lines[at]) - len(lines[at].lstrip())):])
                at += 1
            items.append(inner)
            while at < len(lines) and not lines[at].strip() and at + 1 < len(lines) and re.match(
                    rf" {{{indent}}}([-*]|\d+\.) ", lines[at + 1]):
                at += 1
        html_items = []
        for inner in items:
            blocks = self._blocks(inner)
            if blocks and blocks[0].startswith("<p>"):
                blocks[0] = blocks[0][3:-4]
            html_items.append("<li>" + "\n".join(blocks) + "</li>")
        out.append(f"<{kind}>" + "\n".join(html_items) + f"</{kind}>")
        return at
