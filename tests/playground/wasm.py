# tests/playground/wasm.py — wasm.py PROGRAMS ENGINE: random mods, the gallery and mistakes get the same answers in
# WebAssembly as natively
import base64
import gzip
import json
import math
import shutil
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "site"))
import core  # noqa: E402
from gallery import mods  # noqa: E402
from mistakes import MISTAKES  # noqa: E402

MOST_COMPRESSED = 2_500_000
RANDOM = 500


def numbers(text):
    return [x for x, in struct.iter_unpack("<f", base64.b64decode(text))]


def near(a, b):
    """exp, log and the like may round the last bit of a double otherwise."""
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 1e-5 * max(abs(a), abs(b))


def difference(here, there):
    """None, or what differs between two answers."""
    for member in {*here, *there} - {"maps"}:
        if here.get(member) != there.get(member):
            return f"{member}: {str(here.get(member))[:300]} here, {str(there.get(member))[:300]} in WebAssembly"
    for name in ("score", "prob", "grad"):
        if "maps" in here and not all(map(near, *(numbers(a["maps"][name]) for a in (here, there)))):
            return f"the map of {name}"
    return None


def main(programs, engine):
    if why := core.lacking(engine):
        print(f"[skip] {why}")
        return
    if not shutil.which("node"):
        print("[skip] there is no node to run WebAssembly")
        return
    size = len(gzip.compress(engine.read_bytes()))
    assert size < MOST_COMPRESSED, f"{engine} takes {size} bytes compressed, and may take {MOST_COMPRESSED}"
    made = subprocess.run([programs / "random_questions", str(RANDOM)], capture_output=True, text=True, check=True)
    questions = made.stdout.splitlines()
    for mod in mods():
        question = {**mod.question, "heads": 8, "cells": 64, "cuda": {}}
        questions.append(json.dumps(question | ({"qk": {"d": 32}} if question.pop("random", 0) else {})))
    questions += [json.dumps(m) for m in MISTAKES]
    text = "\n".join(questions) + "\n"
    answers = [subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.splitlines()
               for command in ([programs / "answer_lines"],
                               ["node", str(ROOT / "tests" / "playground" / "lines.js"), str(engine)])]
    assert len(answers[0]) == len(answers[1]) == len(questions), list(map(len, answers))
    refused = 0
    for question, here, there in zip(questions, *(map(json.loads, a) for a in answers)):
        refused += "error" in here
        assert not (wrong := difference(here, there)), f"{wrong}\n{question[:2000]}"
        assert here.get("error", {}).get("code") != "bug", here
    print(f"{len(questions)} questions, {refused} of them refused, have the same answers; {size} bytes compressed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
