# python/attune/usual.py — python -m attune.usual FILE: the kernels that a wheel brings: first calls compile none
"""The usual mods, compiled for GPUs into a bundle. `./dev wheel` puts it into the wheel as usual.attune."""

from __future__ import annotations

import sys

import attune
from attune import mods


def usual() -> list[attune.Attention | dict[str, object]]:
    """No mod, causal, window, ALiBi, softcap and documents, alone and with the mask that they mostly come with."""
    width, cap = attune.Param(256, "width"), attune.Param(30.0, "cap")
    slope: dict[str, object] = {"captures": {"slope": "f32[1]"}}
    doc: dict[str, object] = {"captures": {"id": "i32[1]"}}
    return [
        attune.Attention(),
        attune.Attention(mask=mods.causal()),
        attune.Attention(mask=mods.sliding_window(width)),
        attune.Attention(mods.softcap(cap)),
        attune.Attention(mods.softcap(cap), mods.causal()),
        {"score": "s + slope[h] * f32(kv - q)", "mask": "kv <= q", **slope},
        {"mask": "id[q] == id[kv]", **doc},
        {"mask": "kv <= q && id[q] == id[kv]", **doc},
    ]


def main() -> int:
    """Compiles them; the exit status is 1 where there is no compiler for GPUs."""
    def told(done: float, row: str) -> None:
        print(f"\r{done:4.0%} {row:<60}", end="", file=sys.stderr, flush=True)

    try:
        report = attune.compile(usual(), sys.argv[1], targets=["sm_80", "sm_90a"],
                                passes=["forward", "backward"], dtype=["bf16", "f16"], d=[64, 128],
                                progress=told if sys.stderr.isatty() else None)
    except attune.Error as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{report['kernels']} kernels, {report['bundle']['bytes']} bytes, {report['seconds']:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
