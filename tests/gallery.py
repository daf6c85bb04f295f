# tests/gallery.py — gallery.py INTO: the C++ of every mod of gallery/ as functions, for gallery.test.cpp
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools" / "site"))
from gallery import mods  # noqa: E402

TYPES = {"f32": "float", "i32": "std::int32_t", "bool": "bool"}


def function(mod):
    """An Attention made by the mod's own C++, and its text beside it."""
    lines = []
    for capture in mod.question.get("captures", []):
        shape = ", ".join(map(str, capture["shape"]))
        lines.append(f'  const auto {capture["name"]} = Device::cpu().array<{TYPES[capture["type"]]}>({{{shape}}}, '
                     f'"{capture["name"]}");')
    for param in mod.question.get("params", []):
        name, _, value = param.partition("=")
        real = "." in value
        lines.append(f'  const Param<{"float" if real else "int"}> {name}("{name}", {value}{"f" * real});')
    lines += ["  " + line for line in mod.cpp.rstrip().splitlines()]
    parts = [p for p in ("score", "mask", "prob", "sink") if p in mod.question]
    members = ", ".join(f".{p} = {p}" for p in parts)
    name = mod.name.replace("-", "_")
    text = json.dumps(mod.mod)
    return (f"Attention mod_{name}() {{\n" + "\n".join(lines) + f"\n  return {{{members}}};\n}}\n",
            f'    {{"{mod.name}", {text}, mod_{name}()}},')


def main(into):
    functions, rows = zip(*map(function, mods()))
    into.write_text("// The mods of gallery/; tests/gallery.py writes this file.\n#include \"tests/gallery.h\"\n\n#include "
                    "<limits>\n\nusing namespace attune;\n\nnamespace {\n\n" + "\n".join(functions)
                    + "\n}  // namespace\n\nstd::vector<tests::GalleryMod> tests::gallery() {\n  return {\n"
                    + "\n".join(rows) + "\n  };\n}\n", encoding="utf-8")


main(Path(sys.argv[1]))
