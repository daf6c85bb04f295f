# tools/bench/same_kernels.py — do two attune command lines make the same machine code, mod by mod and tile by tile?
import argparse
import json
import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The mods of tests/golden/codegen, and some whose sources differ in kind.
SLOPE, DOC = ["--capture", "slope=f32[16]"], ["--capture", "doc=i32[8192]"]
MODS = {
    "plain": ["--score", "s"],
    "causal": ["--mask", "kv <= q"],
    "alibi": ["--score", "s + slope[h] * f32(kv - q)", "--mask", "kv <= q", *SLOPE],
    "softcap": ["--score", "30.0f * tanh(s / 30.0f)"],
    "softcap_causal": ["--score", "30.0f * tanh(s / 30.0f)", "--mask", "kv <= q"],
    "documents": ["--mask", "doc[q] == doc[kv]", *DOC],
    "documents_causal": ["--mask", "doc[q] == doc[kv] && kv <= q", *DOC],
    "window": ["--mask", "kv <= q && q - kv < 1024"],
    "relative_table": ["--score", "s + t[h, q - kv + 8192]", "--capture", "t=f32[16, 16384]"],
    "dropout": ["--prob", "dropout(0.8, 7)"],  # decisions are drawn 32 pairs at once
    "random": ["--prob", "random(7) < 0.8f ? p / 0.8f : 0.0f"],  # and here pair by pair
    "threshold": ["--prob", "p > 1e-3f ? p : 0.0f"],
    "sink": ["--mask", "kv <= q", "--sink", "sl[h]", "--capture", "sl=f32[16]"],
    "everything": ["--score", "c * tanh((s + slope[h] * f32(kv - q) + kb[kv]) / c)",
                   "--mask", "(kv <= q || kv < P[b]) && doc[q] == doc[kv]",
                   "--prob", "random(3) < 0.9f ? p * g[h] / 0.9f : 0.0f", "--sink", "sl[h]", *SLOPE, *DOC,
                   "--capture", "kb=f32[8192]", "--capture", "P=i32[2]", "--capture", "g=f32[16]",
                   "--capture", "sl=f32[16]", "--param", "c=3.0"],
    "small_network": ["--score", "s + sum(i, 4, w2[i] * tanh(sum(j, 3, w1[i, j] * x[kv, j]) + 0.1f * s))",
                      "--capture", "w2=f32[4]", "--capture", "w1=f32[4, 3]", "--capture", "x=f32[8192, 3]"],
}
WIDTHS = {"bf16": [(64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)], "f16": [(64, 64), (128, 128)],
          "f32": [(64, 64), (128, 128), (256, 256)]}
TARGETS = {80: "sm_80", 90: "sm_90a"}
# Calls that differ in more than width: compiled at one width, with every mod.
OTHERS = [["--max", "true"], ["--packed", "true"], ["--packed", "true", "--tma", "true"],
          ["--q-len", "64", "--group", "4"], ["--packed", "true", "--q-len", "64", "--group", "8", "--tma", "true"],
          ["--load", "0", "--store", "0", "--tma", "false"], ["--exact", "true"], ["--negative", "true"],
          ["--out-dtype", "f32"]]


def sections(cubin):
    """The names of an ELF file's sections, with their bytes."""
    assert cubin[:5] == b"\x7fELF\x02", "not a 64-bit ELF file"
    start, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3a)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]

    def name(header):
        at = headers[names][4] + header[0]
        return cubin[at:cubin.index(b"\0", at)].decode()

    return [(name(h), cubin[h[4]:h[4] + h[5]]) for h in headers]


def code(cubin):
    """Its machine code."""
    return sorted(data for name, data in sections(cubin) if name.startswith(".text."))


def registers(cubin):
    """Of its kernel, and the bytes of the stacks of all of its functions, where spilled registers go."""
    most = stack = at = 0
    info = dict(sections(cubin))[".nv.info"]
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != 4:  # else `size` is the value
            continue
        if attribute == 0x2f:
            most = max(most, struct.unpack_from("<II", info, at)[1])
        if attribute == 0x11:
            stack += struct.unpack_from("<II", info, at)[1]
        at += size
    return most, stack


def compiled(command, cache, arguments):
    """The kernels of a command line: for each its file name without the digest, its machine code, its registers."""
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run([*command, "compile", *arguments, "--emit", "cubin", "--emit-dir", folder, "-o",
                              f"{folder}/x.attune", "-j", "1", "--quiet"], capture_output=True, text=True,
                             env={**os.environ, "ATTUNE_CACHE": cache})
        if out.returncode != 0:
            return [("failed", [" ".join(out.stderr.split())[:300].encode()], None)]
        cubins = [(re.sub(r"-[0-9a-f]+$", "", path.stem), path.read_bytes()) for path in Path(folder).glob("*.cubin")]
    return sorted((name, code(cubin), registers(cubin)) for name, cubin in cubins)


def variants(command, mod, arch, dtype, d, dv):
    """Every tile that this attune would try for such calls, of any length."""
    found = {}
    for length in (512, 2048, 16384):
        out = subprocess.run([*command, "cuda", *mod, "--arch", str(arch), "--dtype", dtype, "--d", str(d), "--dv",
                              str(dv), "--seq", str(length), "--json"], capture_output=True, text=True)
        if out.returncode != 0:
            sys.exit(out.stderr)
        found.update(dict.fromkeys(c["variant"] for c in json.loads(out.stdout)["candidates"]))
    return list(found)


def calls(o):
    for name in o.mods:
        for arch in o.archs:
            for dtype, widths in WIDTHS.items():
                for d, dv in widths:
                    shape = ["--target", TARGETS[arch], "--dtype", dtype, "--d", str(d), "--dv", str(dv), "--length",
                             "longer"]
                    for variant in variants(o.before, MODS[name], arch, dtype, d, dv):
                        yield [name, *shape, "--kernel", variant]
            for other in OTHERS:
                for dtype in ("f16", "bf16"):
                    yield [name, "--target", TARGETS[arch], "--dtype", dtype, "--d", "128", "--length", "longer", *other]


def main():
    p = argparse.ArgumentParser(description="Compiles every mod with every tile for sm_80 and sm_90a, by two attunes, "
                                            "and compares machine code byte by byte; of what differs it prints "
                                            "registers and bytes of stack.")
    p.add_argument("--before", required=True, type=shlex.split, help="a command line, such as 'old/attune'")
    p.add_argument("--after", required=True, type=shlex.split)
    p.add_argument("--mods", type=lambda x: x.split(","), default=list(MODS), help=", ".join(MODS))
    p.add_argument("--archs", type=lambda x: [int(i) for i in x.split(",")], default=list(TARGETS))
    p.add_argument("--only", type=re.compile, default=re.compile(""), help="a regular expression on calls")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--cache", default="off", help="a folder for compiled kernels; off if left out")
    o = p.parse_args()

    def compare(call):
        arguments = [*MODS[call[0]], *call[1:]]
        caches = ["off"] * 2 if o.cache == "off" else [f"{o.cache}/before", f"{o.cache}/after"]
        return call, *(compiled(c, cache, arguments) for c, cache in zip((o.before, o.after), caches))

    kernels = differences = others = 0
    with ThreadPoolExecutor(o.jobs) as pool:
        for call, before, after in pool.map(compare, [c for c in calls(o) if o.only.search(" ".join(c))]):
            kernels += len(before)
            failed = [code[0].decode() for name, code, _ in before + after if name == "failed"]
            # The later one may make more kernels: tiles that spill, in addition to the chosen one.
            if any(kernel not in after for kernel in before):
                differences += 1
                moved = [[kernel for kernel in side if kernel not in other]
                         for side, other in ((before, after), (after, before))]
                used = [[(name, *numbers) for name, _, numbers in side] for side in moved if not failed]
                others += bool(used and used[0] != used[1])
                print("differs:", *call, *failed, *(f"{word} {side}" for word, side in zip(("before", "after"), used)),
                      flush=True)
            elif failed:
                print("neither compiles:", *call, failed[0], flush=True)
    print(f"{kernels} kernels, {differences} calls that differ, {others} of them in registers or stacks")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
