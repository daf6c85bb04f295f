# tests/examples/runtime.py — examples/runtime says its twin's tokens: each mod, bundles, an emulated GPU; bad files are refused
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "runtime"))
sys.dont_write_bytecode = True
try:
    import twin
except ModuleNotFoundError as missing:
    print(f"[skip] {sys.executable}: {missing}")
    raise SystemExit from None

parser = argparse.ArgumentParser()
parser.add_argument("decoder")
parser.add_argument("--attune", help="the command line, which makes a bundle")
parser.add_argument("--emulated", action="store_true", help="on an emulated GPU too")
args = parser.parse_args()

# Shorter than a page, as long as one, and longer than several.
PAGE, COUNT = 4, 12
PROMPTS = [[1, 2, 3], [5, 6, 7, 8], list(range(20, 41)), [127]]


def decoder(*words, env=None):
    done = subprocess.run([args.decoder, *map(str, words)], capture_output=True, text=True, env={**os.environ, **(env or {})})
    return done.returncode, done.stdout, done.stderr


def tokens(file, prompts, *words, env=None):
    asked = [word for prompt in prompts for word in ("--prompt", ",".join(map(str, prompt)))]
    code, out, err = decoder(file, *asked, "--tokens", COUNT, "--page", PAGE, "--json", *words, env=env)
    if code:
        raise SystemExit(f"{words}: exit {code}\n{err}")
    return json.loads(out)["tokens"]


def expect(what, got, wanted):
    if got != wanted:
        raise SystemExit(f"{what}: {got}\nwanted: {wanted}")


def refused(what, said, *words):
    code, out, err = decoder(*words)
    if code != 2 or out or any(word not in err for word in said):
        raise SystemExit(f"{what}: exit {code}, {err}\nwanted: {said}")


def rewritten(file, into, change):
    """The file again, with another header."""
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    change(header)
    text = json.dumps(header).encode()
    into.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])
    return into


with tempfile.TemporaryDirectory() as folder:
    folder = Path(folder)
    file = folder / "tiny.safetensors"
    twin.make(file, twin.SIZES)
    wanted = {}
    for mod in twin.MODS:
        told = [twin.decode(file, prompt, COUNT, mod) for prompt in PROMPTS]
        if min(closest for _, closest in told) < 1e-4:
            raise SystemExit(f"{mod}: the model has near ties, which rounding decides: choose another seed")
        wanted[mod] = [words for words, _ in told]
        expect(mod, tokens(file, PROMPTS, "--mod", mod, "--workers", 2), wanted[mod])
    if len({str(words) for words in wanted.values()}) != len(twin.MODS):
        raise SystemExit("two mods say the same: the model does not tell them apart")
    expect("one thread, one page", tokens(file, PROMPTS, "--workers", 1, "--page", 64), wanted["causal"])
    expect("pages of one", tokens(file, PROMPTS[:1], "--page", 1, "--runs", 2), wanted["causal"][:1])

    if args.attune:
        # What a run needed is recorded, compiled, and then all there is.
        record, bundle = folder / "calls.json", folder / "kernels.attune"
        tokens(file, PROMPTS, env={"ATTUNE_RECORD": str(record)})
        subprocess.run([args.attune, "compile", "--manifest", record, "-o", bundle], check=True, capture_output=True)
        alone = {"ATTUNE_JIT": "off", "ATTUNE_CACHE": "off", "ATTUNE_NVRTC": "/nonexistent"}
        expect("a bundle", tokens(file, PROMPTS, "--bundle", bundle, env=alone), wanted["causal"])
        expect("ATTUNE_BUNDLE", tokens(file, PROMPTS, env={**alone, "ATTUNE_BUNDLE": str(bundle)}), wanted["causal"])
        code, _, err = decoder(file, "--prompt", "1", "--mod", "alibi", "--bundle", bundle)
        code_alone, _, err = decoder(file, "--prompt", "1", "--mod", "alibi", "--bundle", bundle, env=alone)
        if code or code_alone != 1 or "kernel-missing" not in err:
            raise SystemExit(f"a kernel that the bundle lacks: exit {code}; {code_alone}, {err}")
    if args.emulated:
        gpu = ["--device", "cuda", "--default-stream"]
        code, _, err = decoder(file, "--prompt", "1", *gpu, env={"ATTUNE_EMULATED": "sm_90a"})
        if code and "no-compiler" in err:
            print("no NVRTC: nothing ran on an emulated GPU")
        else:
            expect("emulated", tokens(file, PROMPTS, *gpu, env={"ATTUNE_EMULATED": "sm_90a"}), wanted["causal"])

    data, bad = file.read_bytes(), folder / "bad.safetensors"
    size = struct.unpack("<Q", data[:8])[0]
    for kept, said in [(0, "ends before the length"), (5, "ends before the length"), (8, "is truncated"),
                       (8 + size // 2, "is truncated"), (8 + size, "is truncated"), (len(data) - 1, "is truncated")]:
        bad.write_bytes(data[:kept])
        refused(f"{kept} bytes", [said], bad, "--prompt", "1")
    bad.write_bytes(b"GGUF" + data)
    refused("another format", ["is no safetensors file"], bad, "--prompt", "1")
    bad.write_bytes(data[:8] + data[8:8 + size].replace(b'"shape": [', b'"shape": {', 1) + data[8 + size:])
    refused("a damaged header", ["is damaged", "lacks a ["], bad, "--prompt", "1")

    def without(name):
        return lambda header: header.pop(name)

    def metadata(**words):
        return lambda header: header["__metadata__"].update(words)

    up = "model.layers.1.mlp.up_proj.weight"
    for what, change, said in [
            ("a missing tensor", without(up), [f"lacks the tensor {up}"]),
            ("another shape", lambda h: h[up].update(shape=[64, 96]), [up, "[64, 96]", "[96, 64]"]),
            ("another type", lambda h: h[up].update(dtype="F64"), [up, "F64", "BF16"]),
            ("a place of another size", lambda h: h[up].update(shape=[96, 65]), ["is damaged", up]),
            ("a shape without end", lambda h: h[up].update(shape=[1 << 40, 1 << 40]), ["[1099511627776, 1099511627776]"]),
            ("another version", metadata(version="2"), ["is of version 2", "reads version 1"]),
            ("no model of ours", without("__metadata__"), ["is no model of this program"]),
            ("a number that is none", metadata(layers="two"), ["layers is `two`"]),
            ("a half of a layer", metadata(layers="0.5"), ["layers is `0.5`", "whole numbers above 0, to 16384"]),
            ("more than an int holds", metadata(head_dim="2000000000"), ["head_dim is `2000000000`"]),
            ("heads that do not share keys", metadata(kv_heads="3"), ["4 heads of 16 over 3 of keys"])]:
        refused(what, said, rewritten(file, bad, change), "--prompt", "1")
    refused("no file", ["cannot be opened"], folder / "none", "--prompt", "1")
    refused("an unknown mod", ["no mod rope", *twin.MODS], file, "--prompt", "1", "--mod", "rope")
    refused("an unknown device", ["cpu or cuda, and not tpu"], file, "--prompt", "1", "--device", "tpu")
    refused("an unknown token", ["128 tokens", "token 128"], file, "--prompt", "128")
    refused("an empty prompt", ["--prompt takes whole numbers"], file, "--prompt", "")
    refused("no prompt", ["a --prompt are needed"], file)
    refused("no value", ["--tokens lacks its value"], file, "--tokens")
    refused("an unknown option", ["no option --token"], file, "--token", "3")
    code, out, err = decoder("--help")
    if code or err or not out.startswith("usage: decoder MODEL"):
        raise SystemExit(f"--help: exit {code}\n{out}{err}")
print("ok")
