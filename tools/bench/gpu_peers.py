# tools/bench/gpu_peers.py — compares attune's CUDA engine with torch's attention on this GPU: blocks of both in turn
import json
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass

import own_mods
import peers
from peers_page import Look

TOKENS, WIDTH = 16384, 2048  # per dense row: batch times seq, heads times d
DENSE = {128: (512, 1024, 2048, 4096, 8192, 16384), 64: (4096, 8192, 16384), 256: (4096, 16384)}
MODS = ["causal", "alibi", "softcap", "relative", "window", "prefix", "document"]
LISTED = ["prefix", "document"]  # attune lists tiles on the device for these, and FlexAttention has a block mask
PACKED = 4 * (2048,) + (1792, 1536, 1280, 1024, 1024, 768, 512, 256)  # lengths of sequences, TOKENS in all
# Rows that measure gradients, or a training step: the forward, then the gradients.
BACKWARD = {128: (1024, 2048, 4096, 16384), 64: (16384,), 256: (16384,)}
STEP = (4096, 8192, 16384)
SHORT = ((77, 256), (200, 64), (512, 32), (1000, 16))  # positions and batch entries of short sequences, 16 heads
TRAINED = ["alibi", "softcap", "relative", "window", "prefix", "document"]
VARLEN = (2048, 1792, 1536, 1280, 1024, 768, 512, 256)  # lengths of packed sequences, at 16 heads
PRODUCTS = {"forward": 2, "backward": 5, "step": 7}  # of a pair
# Heads, key heads, queries, batch entries, and keys of an entry.
DECODE = ((32, 8, 1, 1, 131072), (32, 8, 1, 16, 8192), (32, 8, 1, 64, 4096), (32, 8, 1, 64, 8192), (32, 8, 1, 8, 512),
          (64, 8, 1, 64, 8192), (64, 8, 8, 64, 8192))
PEERS = {"dense": ["cudnn", "flash", "fa4"], "short": ["cudnn", "flash", "fa4"],
         "mods": ["flex", "flex_flash", "fa4", "cudnn_flex"], "portable": ["flash"],
         "packed": ["varlen", "fa4"], "decode": ["cudnn", "flash", "flex"],
         "grouped": ["cudnn", "flash", "flex", "flex_flash", "fa4", "cudnn_flex"],
         "own": ["cudnn", "flash", "efficient", "flex", "flex_flash", "cueq"],
         "e4m3": []}  # torch's attentions take no 8 bits
KERNELS = {"portable": "forward_sm80"}
PATIENCE = 120  # seconds for a block; then attune's process is killed


def group(case):
    way = {"forward": "", "backward": "backward, ", "step": "forward and backward, "}[case["direction"]]
    if case["kind"] in ("mods", "grouped"):
        return f"{way}mods, D={case['d']}, S={case['seq']}, B={case['batch']}"
    if case["kind"] == "own":
        sizes = "packed" if case["lengths"] else f"S={case['seq']}, B={case['batch']}"
        return f"{way}own mods, D={case['d']}, {sizes}"
    if case["kind"] == "packed":
        return f"{way}packed, D={case['d']}"
    if case["kind"] == "decode":
        return f"decode, D={case['d']}, {case['kv_seq']} keys, B={case['batch']}"
    kind = {"portable": "portable kernel, ", "short": "short, ", "e4m3": "q, k and v of e4m3, "}.get(case["kind"], "")
    return f"{way}{kind}D={case['d']}, {case['row']}"


def label(case):
    if case["kind"] == "own":
        return ": ".join(text for text in (case["row"], str(own_mods.MODS[case["row"]])) if text)
    if case["kind"] == "packed":
        return f"{case['row']}, starts on the {case['starts']}"
    if case["kind"] == "decode":
        return f"{case['heads']} heads of {case['kv_heads']}, S={case['seq']}"
    if case["kind"] == "grouped":
        return f"{case['row']}, {case['heads']} heads of {case['kv_heads']}"
    if case["kind"] != "mods":
        return f"S={case['seq']}"
    if case["grads"]:
        return f"{case['row']}, its table's gradient too"
    return f"{case['row']}, each call" if case["cover"] == "each" and case["direction"] == "forward" else case["row"]


def of_run(run, cases):
    out = [run["machine"], run["attune"]]
    if "torch" in run:
        out.append(f"torch {run['torch']}, CUDA {run['cuda']}, cuDNN {run['cudnn']}")
    if "fa4" in run:
        out.append(f"FlashAttention-4 {run['fa4']}")
    if "cudnn_flex" in run:
        out.append(f"cudnn.flex_attention (nvidia-cudnn-frontend) {run['cudnn_flex']}")
    if "cueq" in run:
        out.append(f"cuEquivariance {run['cueq']}")
    return out


def notes(data):
    return ("bf16 but for the rows of e4m3, random normal data; rows of S: 16384 tokens, H x D = 2048. TFLOP/s of the pairs that the mask\n"
            "keeps, 4 D each forward and 10 D backward: the median of the blocks' medians, and the best call in brackets. A ratio is\n"
            "attune's median rate by the other's. Blocks of each in turn, as the card's clock moves, in an order that changes\n"
            "from turn to turn: each side follows each other one about equally often, because a kernel that draws much power\n"
            "leaves a lower clock to the next.\n"
            "Both sides are timed by events of the device around each of 20 calls that follow one another on one stream; the\n"
            "first 20 are not counted, and no cache is emptied in between. attune writes lse too. FlexAttention's block mask\n"
            "is made before, and its time left out; so are attune's lists of tiles (prefix, document), but in the rows\n"
            "`each call`: there every call of attune's lists its tiles, and that is part of its time. Packed: 12\n"
            "sequences, 256 to 2048 long, 16384 tokens; with their starts on the host attune puts their tiles in order there at\n"
            "each call; varlen_attn has them on the device in both rows.\n"
            "Backward: the gradients of q, k and v from one of o, given what the forward gave; forward and backward: both,\n"
            "one after the other. attune's bits are the same each time; those of the others need not be, but for FlashAttention-4's rows\n"
            "`deterministic`. FlexAttention is measured with both its kernels: Triton's, and FLASH by FlashAttention-4.\n"
            "cudnn.flex_attention has the rows whose masks are intervals of keys; its mask plan is made before, and that time left out.\n"
            "Decode: without a mask; a TFLOP/s is then 1 / (S x heads of a key head) TB/s of keys and values.\n"
            "Own mods: causal unless they say otherwise; backward with the gradients of captured tensors, all random normal.\n"
            "A factor of probabilities multiplies torch's v, a sink follows FlexAttention's lse, both compiled with it; a dense\n"
            "bias is SDPA's mask, made before; SDPA's dropout_p is 0.1. cuEquivariance gets such a bias as it is, and the\n"
            "mask as booleans made before. Of calls that take over 0.02 s torch's rounds have fewer.")


LOOK = Look(name="gpu_peers", heading="attune next to torch on a GPU",
            peers={"cudnn": "SDPA, cuDNN", "flash": "SDPA, flash", "efficient": "SDPA, efficient", "flex": "FlexAttention",
                   "flex_flash": "FlexAttention, FLASH", "varlen": "varlen_attn", "fa4": "FlashAttention-4",
                   "fa4_ordered": "FlashAttention-4, deterministic", "cudnn_flex": "cudnn.flex_attention",
                   "cueq": "cuEquivariance"},
            unit="TFLOP/s", scale=1e3, group=group, label=label, of_run=of_run, notes=notes,
            words=lambda case: {case["row"], case["kind"], case["cover"], case["direction"], f"d{case['d']}",
                                f"s{case['seq']}"},
            words_help="a row, dense, short, mods, packed, portable, decode, grouped, own or e4m3, once or each, forward, "
                       "backward or step, d64, s8192; as dense:causal:d128:cudnn=1.0")


@dataclass(frozen=True)
class Case:
    kind: str
    row: str
    dtype: str
    d: int
    heads: int
    seq: int
    batch: int
    cover: str = "once"  # `once`: tiles are listed before; `each`: by each call
    lengths: tuple = ()  # of packed sequences
    kv_heads: int = 0  # 0: as many as heads
    kv_seq: int = 0  # 0: as long as seq
    starts: str = "host"  # where the starts of packed sequences are
    direction: str = "forward"  # or backward, or step: both
    grads: bool = False  # those of captured tensors too

    def __str__(self):
        return LOOK.title(vars(self))

    @property
    def mod(self):
        return own_mods.MODS[self.row] if self.kind == "own" else None

    def work(self):
        lengths = self.lengths or self.batch * (self.seq,)
        square = not self.kv_seq or self.kv_seq == self.seq
        pairs = 0 if square else self.batch * self.seq * self.kv_seq
        pairs = pairs or sum(self.mod.pairs(seq) if self.mod else peers.live_pairs(self.row, seq) for seq in lengths)
        return self.heads * pairs * self.d * 2 * PRODUCTS[self.direction]


def dense(kind, row, d, seq, direction="forward"):
    return Case(kind, row, "bf16", d, WIDTH // d, seq, TOKENS // seq, direction=direction)


def all_cases():
    for d, lengths in DENSE.items():
        for row in ("causal", "full"):
            yield from (dense("dense", row, d, seq) for seq in lengths)
    for row in MODS:
        yield from (Case("mods", row, "bf16", 128, 16, 8192, 2, cover)
                    for cover in (["once", "each"] if row in LISTED else ["once"]))
    yield from (Case("packed", row, "bf16", d, WIDTH // d, max(PACKED), len(PACKED), lengths=PACKED, starts=starts)
                for d in (128, 64) for row in ("causal", "full") for starts in ("host", "device"))
    yield from (dense("portable", "causal", 128, seq) for seq in (4096, 16384))
    yield from (Case("e4m3", row, "e4m3", d, WIDTH // d, seq, TOKENS // seq)
                for d in (128, 64) for row in ("causal", "full") for seq in (4096, 16384))
    yield from (Case("decode", "full", "bf16", 128, heads, seq, batch, kv_heads=kv_heads, kv_seq=keys)
                for heads, kv_heads, seq, batch, keys in DECODE)
    for row in ("causal", "full"):
        yield from (dense("dense", row, d, seq, "backward") for d, lengths in BACKWARD.items() for seq in lengths)
        yield from (dense("dense", row, 128, seq, "step") for seq in STEP)
    yield from (Case("short", row, "bf16", d, 16, seq, batch, direction=direction)
                for direction in ("forward", "backward") for d in (64, 128) for row in ("full", "causal")
                for seq, batch in SHORT)
    for row in TRAINED:
        yield from (Case("mods", row, "bf16", 128, 16, 8192, 2, "each", direction="backward", grads=grads)
                    for grads in ((False, True) if row == "relative" else (False,)))
    yield Case("grouped", "causal", "bf16", 128, 16, 8192, 2, "each", kv_heads=4, kv_seq=8192, direction="backward")
    yield from (Case("packed", row, "bf16", 64, 16, max(VARLEN), len(VARLEN), lengths=VARLEN, direction="backward")
                for row in ("causal", "full"))
    packed = ("bias", ["backward"], {"seq": max(PACKED), "batch": len(PACKED), "lengths": PACKED})
    for row, directions, sizes in [*own_mods.ROWS, packed]:
        of = {"d": 128, "heads": 16, "seq": 8192, "batch": 2, **sizes}
        learned = bool(own_mods.MODS[row].learned)
        yield from (Case("own", row, "bf16", **of, direction=direction, grads=learned and direction == "backward")
                    for direction in directions)


def cases(o):
    return peers.chosen(o, all_cases(), lambda case: LOOK.words(asdict(case)))


def by_fa4(case):
    """Whether FlashAttention-4's own interface has the row; FlexAttention's FLASH has more."""
    return case.row in ("causal", "full", "softcap", "window") or (
        case.row in ("alibi", "relative") and case.direction == "forward")


def by_cudnn_flex(case):
    """Whether cudnn.flex_attention has the row: a mask that is a few intervals of keys for each query, and no score mod."""
    return case.row in ("causal", "window", "prefix", "document")


def peers_of(case, o):
    """The peers of a case. FlashAttention-4's gradients have two columns: in any order, and in a fixed one, as attune's."""
    if case.mod:  # packed sequences and wide heads are attune alone; FLASH gives no gradients of what a score reads
        known = () if case.lengths or case.d > 128 else case.mod.peers
        return [peer for peer in PEERS["own"] if peer in known and (o.flex or not peer.startswith("flex"))
                and not (peer == "flex_flash" and case.grads and case.mod.score != "s")]
    out = [peer for peer in PEERS[case.kind]
           if (o.flex or not peer.startswith("flex")) and (peer != "fa4" or by_fa4(case))
           and (peer != "cudnn_flex" or by_cudnn_flex(case))]
    return out + ["fa4_ordered"] if "fa4" in out and case.direction != "forward" else out


class Attune:
    """attune bench as one process that measures a block for each line it is sent: it compiles once, and starts
    while torch prepares."""

    def __init__(self, o, case, attune):
        command = [attune, *peers.bench_command(o, case)[1:], "--target", "cuda", "--batch", str(case.batch), "--paced"]
        command += ["--cover", case.cover] if case.direction != "backward" else []
        if case.lengths:
            command += ["--lengths", ",".join(map(str, case.lengths)), "--starts", case.starts]
        command += ["--kv-heads", str(case.kv_heads), "--kv-seq", str(case.kv_seq)] if case.kv_seq else []
        kernel = o.kernel or KERNELS.get(case.kind)
        command += ["--kernel", kernel] if kernel else []
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True)
        self.lines = []

    def block(self):
        impatient = threading.Timer(PATIENCE, self.process.kill)
        impatient.start()
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            said = self.process.stdout.readline()
        except BrokenPipeError:
            said = ""
        finally:
            impatient.cancel()
        if not said:
            status = self.process.wait()
            self.errors.seek(0)
            raise RuntimeError(self.errors.read().strip()[:400] or f"exit status {status}")
        self.lines.append(json.loads(said))
        return {**self.lines[-1]["seconds"], "runs": self.lines[-1]["runs"]}

    def close(self):
        try:
            self.process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        self.errors.close()


def measure(o, case, prepare):
    ours = Attune(o, case, o.attune)
    before = Attune(o, case, o.before) if o.before else None
    try:
        blocks = {"attune": ours.block, **({"before": before.block} if before else {})}
        result = peers.in_turn_with(prepare(case), o, case, blocks)
    finally:
        ours.close()
        if before:
            before.close()
    if "attune" in result["measured"]:
        kept = ("kernel", "registers", "spilled", "shared_bytes", "notes", "kernels", "first_call_seconds")
        result["measured"]["attune"].update({name: ours.lines[0][name] for name in kept if name in ours.lines[0]})
        peers.check_flop(ours.lines[0], case, result["failed"])
    return result


def options():
    p = peers.options(LOOK, "attune's CUDA engine next to torch's attention, in turn on the same card")
    peers.with_rows(p, "mods, or dense:causal:d128, or portable")
    p.add_argument("--seconds", type=float, default=0.1, help="of a block, at least; 0.1 if left out")
    p.add_argument("--kernel", help="attune's, in all rows; as attune bench takes it")
    p.add_argument("--before", metavar="ATTUNE", help="another build of attune, measured in the same turns")
    p.add_argument("--no-torch", dest="torch", action="store_false", help="attune alone")
    o = peers.parsed(p)
    return o if o.earlier else peers.check_rows(p, o, cases(o))


def main():
    o = options()
    if o.earlier:
        return peers.finish(o, LOOK, peers.joined(Case, o.earlier))
    if o.before:
        LOOK.peers["before"] = "attune before"
    run_of = {**peers.run_facts(peers.program(o)), "machine": "a GPU"}
    prepare = lambda case: None
    if o.torch:
        import torch_gpu  # takes seconds; --from and --no-torch do not need it
        run_of.update(torch_gpu.facts())
        prepare = lambda case: torch_gpu.Prepared(case, peers_of(case, o)) if PEERS[case.kind] else None
    print(f"{', '.join(of_run(run_of, []))}; {len(cases(o))} cases", file=sys.stderr)
    peers.finish(o, LOOK, peers.run(o, LOOK, cases(o), run_of, lambda case: measure(o, case, prepare)))


if __name__ == "__main__":
    main()
