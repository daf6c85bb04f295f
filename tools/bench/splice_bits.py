# tools/bench/splice_bits.py — on a GPU: do spliced kernels and whole ones give the same bits, mod by mod?
import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SHAPE = {"slope": ((8,), np.float32), "t": ((8, 2048), np.float32), "doc": ((1024,), np.int32), "P": ((2,), np.int32),
         "kb": ((1024,), np.float32), "sl": ((8,), np.float32), "x": ((8,), np.float32)}
# Each with the captured tensors that it reads; those after a + get a gradient.
MODS = {
    "plain": ["s", "true", ""],
    "causal": ["s", "kv <= q", ""],
    "softcap": ["30.0f * tanh(s / 30.0f)", "kv <= q", ""],
    "softcap, exact": ["30.0f * tanh(s / 30.0f)", "kv <= q", ""],
    "softcap 50": ["50.0f * tanh(s / 50.0f)", "kv <= q", ""],
    "alibi": ["s + slope[h] * f32(kv - q)", "kv <= q", "slope"],
    "alibi, the slope first": ["slope[h] * f32(kv - q) + s", "true", "slope"],
    "table": ["s + t[h, q - kv + 1024]", "kv <= q", "t"],
    "table with its gradient": ["s + t[h, q - kv + 1024]", "kv <= q", "+t"],
    "buckets": ["s + t[h, clamp(q - kv, 0 - 128, 128) + 128]", "true", "+t"],
    "key bias": ["s + kb[kv]", "kv <= q", "kb"],
    "temperature": ["s * x[h] + 0.25f * f32(q) * s", "true", "x"],
    "documents": ["s", "doc[q] == doc[kv]", "doc"],
    "documents, causal": ["s", "doc[q] == doc[kv] && kv <= q", "doc"],
    "window": ["s", "kv <= q && q - kv < 200", ""],
    "prefix": ["s", "kv <= q || kv < P[b]", "P"],
    "sink": ["s", "kv <= q", "sl"],
    "dropout": ["s", "true", ""],
}
FURTHER = {"sink": ["--sink", "sl[h]"], "dropout": ["--prob", "random(7) < 0.8f ? p / 0.8f : 0.0f"],
           "softcap, exact": ["--exact", "true"]}


def tensors(folder, d, seed):
    make = np.random.default_rng(seed)
    def save(name, x):
        np.save(folder / f"{name}.npy", x)
    for name in ("q", "k", "v", "grad"):
        save(name, make.standard_normal((2, 8, 1024, d), dtype=np.float32))
    for name, (shape, dtype) in SHAPE.items():
        save(name, make.standard_normal(shape, dtype=np.float32) if dtype == np.float32
             else np.sort(make.integers(0, 8, shape)).astype(dtype))


def run(o, folder, name, d, way):
    score, mask, captures = MODS[name]
    out = folder / f"{way} {name} {d}"
    command = [o.attune, "run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--grad-out", "grad.npy", "--dtype", "bf16",
               "--target", o.target, "--deterministic", "--quiet", "--out", str(out), "--score", score, "--mask", mask,
               *FURTHER.get(name, [])]
    for capture in captures.split():
        word = capture.removeprefix("+")
        command += ["--capture", f"{word}={word}.npy", *(["--grad", word] if capture != word else [])]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True,
                         env={**os.environ, "ATTUNE_SPLICE": way, "ATTUNE_CACHE": str(folder / f"cache-{way}")})
    if ran.returncode:
        return ran.stderr.strip().splitlines()[:3]
    return {path.name: np.load(path) for path in sorted(out.glob("*.npy"))}


def random_mods(o):
    """Random mods by test_gpu, whole and then spliced: its table says how many results have the same bits."""
    with tempfile.TemporaryDirectory() as at:
        for way in ("off", "on"):
            files = {"ATTUNE_FUZZ_RECORD": f"{at}/off"} if way == "off" else {"ATTUNE_FUZZ_AGAINST": f"{at}/off"}
            ran = subprocess.run([o.gpu_test, "random mods of 16 bits on a device*"], capture_output=True, text=True,
                                 env={**os.environ, "ATTUNE_SPLICE": way, "ATTUNE_CACHE": f"{at}/cache-{way}",
                                      "ATTUNE_FUZZ": str(o.random), "ATTUNE_FUZZ_SECONDS": str(o.seconds), **files})
            print(f"ATTUNE_SPLICE={way}:\n{ran.stdout.strip()}", flush=True)
            if ran.returncode:
                return ran.returncode
    return 0


def main():
    p = argparse.ArgumentParser(description="Runs calls with spliced kernels and with whole ones, and compares the bits "
                                            "of every result.")
    p.add_argument("--attune", help="the command line, as built")
    p.add_argument("--target", default="cuda")
    p.add_argument("--d", type=int, nargs="+", default=[64, 128])
    p.add_argument("--mods", nargs="+", default=list(MODS))
    p.add_argument("--random", type=int, metavar="N", help="instead: N random mods, by --gpu-test")
    p.add_argument("--gpu-test", help="the program test_gpu")
    p.add_argument("--seconds", type=int, default=60, help="no random mod begins later, for either kind of kernels")
    o = p.parse_args()
    if o.random:
        return random_mods(o) if o.gpu_test else p.error("--gpu-test is missing")
    if not o.attune:
        p.error("--attune is missing")
    o.attune = str(Path(o.attune).resolve())
    different = 0
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        for d in o.d:
            tensors(folder, d, d)
            for name in o.mods:
                whole, spliced = (run(o, folder, name, d, way) for way in ("off", "on"))
                if isinstance(whole, list) or isinstance(spliced, list):
                    print(f"{name}, d={d}: failed:", whole if isinstance(whole, list) else spliced, flush=True)
                    different += 1
                    continue
                other = {file: f"{int((x.view(np.uint32) != spliced[file].view(np.uint32)).sum())} of {x.size} numbers, by "
                               f"at most {np.abs(x.astype(float) - spliced[file]).max():.2g}"
                         for file, x in whole.items() if x.tobytes() != spliced[file].tobytes()}
                different += bool(other)
                print(f"{name}, d={d}: {'other bits: ' + str(other) if other else 'the same bits'}", flush=True)
    print(f"{different} calls differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
