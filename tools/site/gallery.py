# tools/site/gallery.py — the files of gallery/: a mod each, as text, C++, Python and torch, and how its picture looks
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def fill_of(text):
    """normal:LIMIT:SEED, or list:1 2x3 4, as playground/fill.h reads it."""
    how, _, rest = text.partition(":")
    if how == "list":
        runs = [run.partition("x") for run in rest.split()]
        return {"how": how, "list": [float(v) if "." in v else int(v) for v, _, n in runs for _ in range(int(n or 1))]}
    limit, _, seed = rest.partition(":")
    out = {"how": how}
    if limit:
        out["limit"] = float(limit)
    if seed:
        out["seed"] = int(seed)
    return out


def question_of(mod, look):
    """What the playground asks about it."""
    fills = dict(line[5:].split("=", 1) for line in look if line.startswith("fill "))
    out = {}
    for line in mod:
        word, _, rest = line.partition(" ")
        if word == "capture":
            name, _, kind = rest.partition("=")
            dtype, shape = re.fullmatch(r"(\w+)\[(.*)\]", kind).groups()
            one = {"name": name, "type": dtype, "shape": [int(n) for n in shape.split(",") if n.strip()]}
            if name in fills:
                one["fill"] = fill_of(fills[name])
            out.setdefault("captures", []).append(one)
        elif word in {"param", "let"}:
            out.setdefault(word + "s", []).append(rest)
        else:
            out[word] = rest
    for line in look:
        word, _, rest = line.partition(" ")
        if word == "tile":
            out["tile"] = [int(n) for n in rest.split("x")]
        elif word == "random":
            out["random"] = True
        elif word not in {"fill", "measured"}:
            out[word] = int(rest)
    return out


class Mod:
    def __init__(self, path, family):
        text = path.read_text(encoding="utf-8")
        self.name, self.family = path.stem, family
        self.title = re.search(r"^# (.*)$", text, re.M)[1]
        self.about = " ".join(re.search(r"^# .*\n\n((?:.+\n)+)", text, re.M)[1].split())
        blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S))
        self.mod, self.cpp, self.python = blocks["mod"], blocks["cpp"], blocks["python"]
        self.torch = blocks.get("torch")  # None: FlexAttention has no such mod
        self.look = blocks.get("look", "").splitlines()
        # The row of docs/benchmarks.md that measured it, if one did.
        self.measured = next((line[9:] for line in self.look if line.startswith("measured ")), None)
        self.question = question_of(self.mod.splitlines(), self.look)

    def arguments(self, fills=True):
        """Those of attune that say the mod, its data and its sizes."""
        lines = [f"--{word}={rest}" for word, _, rest in (line.partition(" ") for line in self.mod.splitlines())]
        if fills:
            lines += [f"--fill={line[5:]}" for line in self.look if line.startswith("fill ")]
        for name, usual in {"q_len": 256, "kv_len": 256, "batch": 1, "heads": 8, "b": 0, "h": 0}.items():
            lines.append(f"--{name.replace('_', '-')}={self.question.get(name, usual)}")
        lines.append("--tile=" + "x".join(map(str, self.question.get("tile", [16, 16]))))
        return lines + (["--random=64"] if fills and self.question.get("random") else [])


def mods(folder=ROOT / "gallery"):
    """In the order of gallery/README.md, which says the families."""
    out, family = [], ""
    for line in (folder / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            family = line[3:]
        elif found := re.match(r"- \[.*\]\((.*)\.md\)$", line):
            out.append(Mod(folder / f"{found[1]}.md", family))
    return out
