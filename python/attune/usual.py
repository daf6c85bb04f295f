# python/attune/usual.py — python -m attune.usual [FILE]: kernels compiled once, so that common calls compile nothing
"""The usual mods and calls, compiled for GPUs into a bundle. `./dev wheel` puts it into the wheel as usual.attune.
Without FILE, for this machine's GPUs, to where a wheel has it: `./dev python` does so, and whoever installed from
sources can."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

import attune
from attune import _core, mods

NOT_HERE = 77  # no compiler for GPUs, or no GPU
PLACE = os.path.join(os.path.dirname(__file__), "usual.attune")


def manifests() -> list[dict[str, Any]]:
    """Training, dense and packed; serving: decode and prefill of packed queries over a paged KV cache."""
    width, cap = attune.Param(256, "width"), attune.Param(30.0, "cap")
    plain, causal, window, capped, capped_causal = (a.describe()["mod"] for a in (
        attune.Attention(), attune.Attention(mask=mods.causal()), attune.Attention(mask=mods.sliding_window(width)),
        attune.Attention(mods.softcap(cap)), attune.Attention(mods.softcap(cap), mods.causal())))
    alibi = {"score": "s + slope[h] * f32(kv - q)", "mask": "kv <= q", "captures": {"slope": "f32[1]"}}
    documents = {"mask": "id[q] == id[kv]", "captures": {"id": "i32[1]"}}
    causal_documents = {**documents, "mask": "kv <= q && id[q] == id[kv]"}
    # f16 only for the most common calls: a kernel takes 20 to 50 kB of the wheel and two seconds to compile.
    # Sequences of at most 224 positions have kernels of their own, which the first call compiles.
    lengths = {"d": [64, 128], "length": ["to_1k", "to_4k", "longer"]}
    bf16, f16 = {"dtype": "bf16", **lengths}, {"dtype": "f16", **lengths}
    paged = {**bf16, "page_size": 16}
    training, serving = ["forward", "backward"], ["forward"]
    return [{"mods": of, "shapes": shapes, "passes": passes, "targets": ["sm_80", "sm_90a"]} for of, shapes, passes in [
        ([plain, causal, window, capped, capped_causal, alibi, documents, causal_documents], bf16, training),
        ([plain, causal, window, causal_documents], f16, training),
        ([plain, causal], {**bf16, "packed": True}, training),
        ([plain, causal], {**paged, "q_len": 1, "group": [1, 4, 8]}, serving),
        # Pages of fewer than 8 rows are copied first, so the kernels for pages of 1 row serve them all.
        ([causal], {**paged, "packed": True, "page_size": [1, 16, 64]}, serving)]] + [
            # Drafts: heads share tiles of few queries.
            {"mods": [causal], "shapes": {**paged, "d": 128, "packed": True, "q_len": 8, "group": [4, 8]},
             "passes": serving, "targets": ["sm_90a"]},
            # Backwards of few steps complete dq themselves, and heads that share keys have more of them.
            {"mods": [plain, causal], "shapes": {**bf16, "length": ["to_1k", "to_4k"], "group": 4},
             "passes": ["backward"], "targets": ["sm_90a"]},
            {"mods": usual_forms(), "shapes": {**bf16, "skeleton": True, "grads": "none"}, "passes": training,
             "targets": ["sm_90a"]},
            # Tiles of queries whose heads share keys have skeletons of their own.
            {"mods": [form for form in usual_forms() if form.get("mask", "").startswith("kv <= q")],
             "shapes": {**bf16, "skeleton": True, "grads": "none", "q_len": 64, "group": [4, 8]}, "passes": serving,
             "targets": ["sm_90a"]}]


def usual_forms() -> list[dict[str, Any]]:
    """A mod for each skeleton: one of Hopper's serves all mods of the same form. Some 25 kB each."""
    window = {"mask": "kv <= q && q - kv < width", "params": {"width": 256}}
    fixed = {"mask": "kv <= q && q - kv < 256"}  # a width that is a number leaves nothing to ask of each pair
    causal_documents = {"mask": "kv <= q && id[q] == id[kv]", "captures": {"id": "i32[1]"}}
    def score(text: str, **captures: str) -> dict[str, Any]:
        return {"score": text, "captures": captures}
    capped = {"score": "cap * tanh(s / cap)", "params": {"cap": 30.0}}
    bounded = score("30.0f * tanh(s / 30.0f)")  # a cap that is a number bounds the score
    slope = score("s + slope[h] * f32(kv - q)", slope="f32[1]")
    table = score("s + t[h, q - kv + 8192]", t="f32[1, 1]")
    pairs = score("s + t[h, q, kv]", t="f32[1, 1, 1]")
    gated = score("s * sigmoid(s)")
    causal = {"mask": "kv <= q"}
    return [{}, causal, window, fixed, causal_documents, capped, {**capped, **causal}, {**capped, **fixed},
            {**capped, **window, "params": {"cap": 30.0, "width": 256}}, bounded, {**bounded, **causal},
            {**bounded, **fixed}, slope, {**slope, **causal}, {**slope, **window}, {**slope, **fixed}, table,
            {**table, **causal}, pairs, {**pairs, **causal}, gated, {**gated, **causal}]


def for_targets(targets: Iterable[str]) -> list[dict[str, Any]]:
    """The manifests for these targets alone. What is compiled for sm_80, all of them get."""
    kept = [(row, [t for t in targets if t in row["targets"] or "sm_80" in row["targets"]]) for row in manifests()]
    return [{**row, "targets": here} for row, here in kept if here]


class Shown:
    """The share done: on a terminal one line that is written again, elsewhere a line for each tenth."""

    def __init__(self) -> None:
        self._again = sys.stderr.isatty()
        self._tenths = 0

    def __call__(self, done: float, row: str) -> None:
        if self._again:
            print(f"\r{done:4.0%} {row:<60}", end="\n" if done == 1 else "", file=sys.stderr, flush=True)
        elif int(10 * done) > self._tenths:
            self._tenths = int(10 * done)
            print(f"{done:4.0%} {row}", file=sys.stderr, flush=True)


def main() -> int:
    """Compiles them; the exit status is NOT_HERE where there is no compiler for GPUs, or no GPU to compile for."""
    if len(sys.argv) > 1:
        place, rows = sys.argv[1], manifests()
    else:
        cuda = attune.machine()["cuda"]
        place, rows = PLACE, for_targets({device["target"] for device in cuda["devices"]})
        if not rows:
            print(f"no GPU here: {cuda['why']}", file=sys.stderr)
            return NOT_HERE
    try:
        report = json.loads(_core.compile(json.dumps(rows), os.fsencode(place), 0, Shown()))
    except attune.Error as error:
        print(error, file=sys.stderr)
        return NOT_HERE if error.code == "no-compiler" else 1
    print(f"{report['kernels']} kernels, {report['bundle']['bytes']} bytes, {report['seconds']:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
