# tools/bench/first_call.py — the time to a mod's first results: compilation alone; on a GPU also next to FlexAttention
import argparse
import contextlib
import importlib.util
import json
import os
import resource
import site
import statistics
import subprocess
import sys
import tempfile

# By name: score, mask, captures, and the score of another mod of the tile.
MODS = {
    "causal": ("s", "kv <= q", [], "2.0f * s"),
    "softcap": ("30.0f * tanh(s / 30.0f)", "kv <= q", [], "20.0f * tanh(s / 20.0f)"),
    "alibi": ("s + slope[h] * f32(kv - q)", "kv <= q", ["slope=f32[16]"], "s + 2.0f * slope[h] * f32(kv - q)"),
    "documents": ("s", "doc[b, q] == doc[b, kv] && kv <= q", ["doc=i32[2, 2048]"], "2.0f * s"),
    "table": ("s + t[h, q - kv + 2048]", "kv <= q", ["t=f32[16, 4096]"], "s + 0.5f * t[h, q - kv + 2048]"),
}

STATES = ("empty cache", "cache on disk")
RUN = """
import json, site, sys, time
which, name, *folders = sys.argv[1:]
for folder in folders:
    site.addsitedir(folder)
import torch
torch.manual_seed(0)
make = lambda heads: torch.randn(2, heads, 2048, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
q, k, v = make(16), make(4), make(4)
slope = torch.rand(16, device="cuda")
doc = torch.arange(2048, device="cuda", dtype=torch.int32).div(256, rounding_mode="floor").expand(2, 2048).contiguous()
t = torch.randn(16, 4096, device="cuda")
scores = {"causal": None, "documents": None, "softcap": lambda s, b, h, i, j: 30 * torch.tanh(s / 30),
          "alibi": lambda s, b, h, i, j: s + slope[h] * (j - i), "table": lambda s, b, h, i, j: s + t[h, i - j + 2048]}
masks = {"documents": lambda b, h, i, j: (doc[b, i] == doc[b, j]) & (j <= i)}
mask = masks.get(name, lambda b, h, i, j: j <= i)
# torch's own imports for a first backward that is given a gradient.
torch.autograd.grad(q.sum(), q, torch.ones((), device="cuda", dtype=torch.bfloat16))
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.readline()
begun = time.perf_counter()
if which == "attune":
    from attune.torch import create_block_mask, flex_attention
    call = lambda **more: flex_attention(q, k, v, scores[name], blocks, enable_gqa=True)
else:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    compiled = torch.compile(flex_attention, dynamic=False)
    options = {"BACKEND": "FLASH"} if which == "flash" else None
    call = lambda: compiled(q, k, v, scores[name], blocks, enable_gqa=True, kernel_options=options)
blocks = create_block_mask(mask, 2 if name == "documents" else None, None, 2048, 2048, device="cuda")
imported = time.perf_counter()
out = call()
torch.cuda.synchronize()
forward = time.perf_counter()
torch.autograd.grad(out, (q, k, v), torch.randn_like(out))
torch.cuda.synchronize()
print(json.dumps({"import": imported - begun, "forward": forward - imported, "backward": time.perf_counter() - forward,
                  "both": time.perf_counter() - imported}))
"""


def core_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compiled(o, name, way, cache, score=None):
    """Seconds of a core for each pass of a mod, all of its kernels: other load on the machine does not count."""
    own, mask, captures, _ = MODS[name]
    out = {}
    for direction in ("forward", "backward"):
        command = [o.attune, "compile", "--score", score or own, "--mask", mask, "--pass", direction, "--target", "sm_90a",
                   "--d", str(o.d), "--length", "longer", "-j", "1", "--quiet", "-o", os.path.join(cache, "x.attune")]
        for capture in captures:
            command += ["--capture", capture]
        begun = core_seconds()
        ran = subprocess.run(command, capture_output=True, text=True,
                             env={**os.environ, "ATTUNE_CACHE": cache, "ATTUNE_SPLICE": way})
        if ran.returncode:
            sys.exit(ran.stderr)
        out[direction] = core_seconds() - begun
    return out


def compile_alone(o):
    print(f"seconds of a core to compile, median of {o.rounds}; bf16, D={o.d}, sm_90a, all kernels of the pass")
    print("| mod | pass | first mod of its tile: whole, spliced | a further mod: whole, spliced |\n|---|---|---|---|")
    for name in o.mods:
        rows = {}
        for _ in range(o.rounds):
            for way in ("off", "on"):
                with tempfile.TemporaryDirectory() as cache:
                    for nth, score in (("first", MODS[name][3]), ("further", MODS[name][0])):
                        for direction, seconds in compiled(o, name, way, cache, score).items():
                            rows.setdefault((direction, nth, way), []).append(seconds)
        for direction in ("forward", "backward"):
            cells = [", ".join(f"{statistics.median(rows[direction, nth, way]):.2f}" for way in ("off", "on"))
                     for nth in ("first", "further")]
            print(f"| {name} | {direction} | {cells[0]} | {cells[1]} |", flush=True)


def found(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


def contenders(o):
    """By name: what RUN calls it, and its environment."""
    own = {"ATTUNE_BUNDLE": o.bundle} if o.bundle else {}
    out = {"attune": ("attune", own), "attune, whole": ("attune", {**own, "ATTUNE_SPLICE": "off"}),
           "attune, spliced": ("attune", {**own, "ATTUNE_SPLICE": "on"})}
    if found("triton"):
        out["triton"] = ("triton", {})
    else:
        print("[skip] triton is not installed: FlexAttention is left out")
    missing = [one for one in ("triton", "flash_attn.cute", "cutlass") if not found(one)]
    if missing:
        print(f"[skip] FlexAttention with FLASH is left out: {', '.join(missing)} of flash-attn-4 not installed")
    else:
        out["flash"] = ("flash", {})
    usual = [name for name in out if name != "attune, spliced"]
    return {name: one for name, one in out.items() if name in (o.only or usual)}


class Fresh:
    """A process that has imported torch and waits for its turn."""

    def __init__(self, o, name, which, environment, folder):
        self.o, self.errors = o, tempfile.TemporaryFile("w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, which, name, *o.site], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.errors, text=True,
            env={**os.environ, "ATTUNE_CACHE": f"{folder}/attune", "TRITON_CACHE_DIR": f"{folder}/triton",
                 "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "CUDA_CACHE_PATH": f"{folder}/driver", **environment})

    def wait(self):
        return self.process.stdout.readline().strip() == "ready"

    def take_turn(self):
        """Seconds of its first calls, or the last line of its complaint."""
        try:
            said, _ = self.process.communicate("\n", timeout=self.o.patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return f"killed after {self.o.patience} s"
        if self.process.returncode == 0:
            return json.loads(said.splitlines()[-1])
        self.errors.seek(0)
        return (self.errors.read().strip().splitlines() or [f"exit status {self.process.returncode}"])[-1][:200]


def take_turns(o, name, who):
    """Everybody's first calls of a mod, one after the other: with an empty cache, and with what the first one left. The
    processes start together, so that a turn does not wait for torch."""
    with contextlib.ExitStack() as folders:
        at = {one: folders.enter_context(tempfile.TemporaryDirectory()) for one in who}
        waiting = {(one, state): Fresh(o, name, *who[one], at[one]) for state in STATES for one in who}
        for process in waiting.values():
            process.wait()
        for (one, state), process in waiting.items():
            seconds = process.take_turn()
            print(f"[{name}] {one}, {state}: {json.dumps(seconds)}", file=sys.stderr, flush=True)
            yield one, state, seconds


def first_calls(o):
    who = contenders(o)
    for _ in take_turns(o, "causal", who):  # reads everybody's files once, so that no measurement does
        pass
    print("seconds: forward, backward, both; with an empty cache, then with the cache on disk\n| mod | by | empty cache | "
          "cache on disk |\n|---|---|---|---|", flush=True)
    for name in o.mods:
        took = {one: {state: [] for state in STATES} for one in who}
        for _ in range(o.rounds):
            for one, state, seconds in take_turns(o, name, who):
                if isinstance(seconds, str):
                    print(f"[skip] {name}, {one}, {state}: {seconds}")
                else:
                    took[one][state].append(seconds)
        for one in who:
            median = {state: ", ".join(f"{statistics.median(x[part] for x in runs):.2f}"
                                       for part in ("forward", "backward", "both")) if runs else "-"
                      for state, runs in took[one].items()}
            print(f"| {name} | {one} | {median['empty cache']} | {median['cache on disk']} |", flush=True)


def main():
    p = argparse.ArgumentParser(description="How long a mod's first call takes. Without --gpu: the compilation alone, for "
                                            "sm_90a, by attune's command line.")
    p.add_argument("--attune", help="the command line, as built; needed without --gpu")
    p.add_argument("--gpu", action="store_true", help="first calls in torch on this GPU, in fresh processes in turn; needs "
                                                      "attune's Python package")
    p.add_argument("--bundle", help="with --gpu: a bundle, such as of skeletons, that attune loads")
    p.add_argument("--only", nargs="+", metavar="WHO", help="with --gpu: attune, 'attune, whole', 'attune, spliced' (not by "
                                                                    "default), triton, flash")
    p.add_argument("--site", action="append", default=[], metavar="FOLDER",
                   help="with --gpu: a folder of further packages, such as flash-attn-4's")
    p.add_argument("--mods", nargs="+", choices=list(MODS), default=list(MODS))
    p.add_argument("--d", type=int, default=128)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--patience", type=float, default=120, help="with --gpu: seconds after which a process is killed")
    o = p.parse_args()
    for folder in o.site:
        site.addsitedir(folder)
    if o.gpu:
        return first_calls(o)
    if not o.attune:
        p.error("--attune is missing")
    compile_alone(o)


if __name__ == "__main__":
    main()
