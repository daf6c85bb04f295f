# tools/bench/serving_peers.py — attune's serving calls next to torch's and FlashInfer's on this GPU: GB/s of a cache
import importlib.util
import random
import sys
from dataclasses import asdict, dataclass, replace

import peers
from peers import short
from peers_page import Look

WINDOW = 1024  # keys that row `window` keeps
ELEMENT = {"bf16": 2, "f16": 2, "f32": 4, "e4m3": 1}  # bytes
PEERS = {"plain": ["cudnn", "flex", "flashinfer"], "mods": ["flex", "flashinfer"], "pages": ["flashinfer"],
         "lengths": ["flashinfer"], "tree": ["flex"], "prefix": ["flashinfer", "cudnn"], "e4m3": ["flashinfer"],
         "mla": ["flashinfer"]}


@dataclass(frozen=True)
class Case:
    kind: str
    row: str
    batch: int
    keys: int  # of each entry; `lengths`: at most; `prefix`: shared by all entries
    heads: int = 32
    kv_heads: int = 8
    seq: int = 1
    d: int = 128
    page: int = 0  # keys of a page; 0: k and v are dense
    own: int = 0  # `prefix`: keys of each entry's own
    together: int = 1  # `prefix`: queries that attune's call over the prefix has as those of one entry
    dtype: str = "bf16"  # of q and the output
    cache: str = "bf16"  # of keys and values

    def __str__(self):
        return LOOK.title(vars(self))

    def tokens(self):
        """Keys that have to be read once, of all entries."""
        if self.kind == "lengths":
            return sum(lengths(self, 0))
        return self.batch * (min(self.keys, WINDOW) if self.row == "window" else self.own or self.keys) + (
            self.keys if self.own else 0)

    def dv(self):
        """Columns of values: of MLA, the first ones of the keys."""
        return self.d // 9 * 8 if self.kind == "mla" else self.d

    def work(self):
        columns = self.d if self.kind == "mla" else 2 * self.d
        return self.tokens() * self.kv_heads * columns * ELEMENT[self.cache]


def lengths(case, turn):
    """The entries' lengths, other ones each turn, and always as many keys in all."""
    draw = random.Random(7)
    first = [draw.randint(1, case.keys) for _ in range(case.batch)]
    draw.seed(turn)
    draw.shuffle(first)
    for i in range(0, case.batch - 1, 2):
        both = first[i] + first[i + 1]
        first[i] = draw.randint(max(1, both - case.keys), min(case.keys, both - 1))
        first[i + 1] = both - first[i]
    return first


def group(case):
    if case["kind"] == "plain":
        return "one query" if case["seq"] == 1 else f"{case['seq']} queries"
    return {"mods": "mods, 16x8k", "pages": "pages, 16x8k", "lengths": "a graph", "tree": "a tree",
            "prefix": "shared prefix", "e4m3": "cache of e4m3", "mla": "MLA"}[case["kind"]]


def label(case):
    size = f"{case['batch']}x{short(case['keys'])}"
    heads = "" if (case["heads"], case["kv_heads"]) == (32, 8) else f", {case['heads']} heads of {case['kv_heads']}"
    return {"mods": case["row"], "pages": f"pages of {case['page']}",
            "lengths": f"{case['batch']} lengths to {short(case['keys'])}, pages of {case['page']}",
            "tree": f"{case['seq']} queries, {size}", "mla": f"{size}, pages of {case['page']}",
            "prefix": f"{short(case['keys'])} and {case['batch']}x{case['own']}, {case['together']} queries together",
            }.get(case["kind"], size) + heads


def of_run(run, cases):
    out = [run["machine"], f"attune {run['attune']}"]
    if "torch" in run:
        out.append(f"torch {run['torch']}, CUDA {run['cuda']}, cuDNN {run['cudnn']}")
    return out + ([f"FlashInfer {run['flashinfer']}"] if run.get("flashinfer") else [])


def notes(data):
    return ("bf16, random normal data, D=128, 32 heads of 8 unless a row says otherwise. GB/s of keys and values, each counted\n"
            "once: the median of the blocks' medians, and the best in brackets. A ratio is attune's median rate by the\n"
            "other's. Blocks of each in turn, as the card's clock moves. Each side's 20 calls in a row are one CUDA\n"
            "graph; events time its replays, so the host costs nothing. No cache is emptied in between. Before that,\n"
            "the first entry of each result is compared with attention that torch computes in f32. FlashInfer plans\n"
            "outside of the graph, and reads pages of 16 where attune's call is dense. FlexAttention's block mask and\n"
            "attune's lists of tiles (tree) are made before. A graph: lengths change between blocks, and their sum\n"
            "stays. Shared prefix: attune makes two calls, and the second merges the result of the first; SDPA reads a\n"
            "copy of the prefix for each entry. Latent heads: keys of 576 columns, the first 512 of which are values; 128\n"
            "heads of 1 at 1000 GB/s are 242 TFLOP/s.")


LOOK = Look(name="serving_peers", heading="attune's serving calls next to torch and FlashInfer on a GPU",
            peers={"cudnn": "SDPA, cuDNN", "flex": "FlexAttention", "flashinfer": "FlashInfer"},
            unit="GB/s", scale=1, group=group, label=label, of_run=of_run, notes=notes,
            words=lambda case: {case["kind"], case["row"], f"{case['batch']}x{short(case['keys'])}",
                                f"page{case['page']}", f"q{case['seq']}", f"h{case['heads']}"},
            words_help="plain, mods, pages, lengths, tree, prefix, e4m3 or mla, a row, 16x8k, page16, q1, h32; as "
                       "plain:16x8k:cudnn=1.0")


def all_cases():
    middle = Case("plain", "full", 16, 8192)
    sizes = ((1, 131072), (16, 8192), (64, 4096), (64, 8192), (8, 512))
    yield from (replace(middle, batch=batch, keys=keys) for batch, keys in sizes)
    yield replace(middle, batch=64, heads=64, seq=8)
    yield from (replace(middle, kind="pages", page=page) for page in (128, 64, 16, 1))
    yield from (replace(middle, kind="mods", row=row) for row in ("alibi", "softcap", "table", "window"))
    yield Case("lengths", "full", 64, 32768, page=16)
    yield from (Case("prefix", "full", 64, 32768, own=512, together=n) for n in (64, 4))
    yield replace(middle, kind="e4m3", cache="e4m3")
    yield Case("tree", "tree", 16, 8192 + 64, seq=64)
    yield from (Case("mla", "full", 128, 8192, heads=n, kv_heads=1, d=576, page=64) for n in (128, 16))
    yield replace(middle, heads=128)  # 16 heads share keys, as in MLA


def small(case):
    """The case as a test on a host has it: the same code, other sizes."""
    keys = {"mods": 2 * WINDOW, "tree": 160}.get(case.kind, max(case.keys // 64, 128))
    return replace(case, batch=min(case.batch, 4), keys=keys, d=72 if case.kind == "mla" else 64, own=case.own // 16, dtype="f32",
                   cache="e4m3" if case.cache == "e4m3" else "f32", together={1: 1, 4: 2}.get(case.together, 4))


def cases(o):
    found = peers.chosen(o, all_cases(), lambda case: LOOK.words(asdict(case)))
    return [small(case) for case in found] if o.small else found


def measure(o, case, torch_serving, wanted):
    prepared = torch_serving.Prepared(case, ["attune", *(p for p in PEERS[case.kind] if p in wanted)], o)
    if "attune" in prepared.refused:
        raise peers.Skipped(f"attune refuses: {prepared.refused['attune']}")
    return peers.in_turn_with(prepared, o, case, {}, renew=prepared.renew)


def options():
    p = peers.options(LOOK, "attune's serving calls next to torch's attention and FlashInfer, in turn on the same card")
    peers.with_rows(p, "plain, or mods:alibi, or pages:page16")
    p.add_argument("--seconds", type=float, default=0.1, help="of a block, at least; 0.1 if left out")
    p.add_argument("--flashinfer", choices=["off", "decode", "all"], default="decode",
                   help="in which rows, if it is installed: decode leaves out those that need other kernels of it, each "
                        "compiled for some 30 s: mods, e4m3, prefix, mla and several queries")
    p.set_defaults(limit=200)
    p.add_argument("--no-cudnn", dest="cudnn", action="store_false")
    p.add_argument("--small", action="store_true", help="small sizes, on the host: tries this script, measures nothing")
    o = p.parse_args()
    return o if o.earlier else peers.check_rows(p, o, cases(o))


def main():
    o = options()
    if o.earlier:
        return peers.finish(o, LOOK, peers.joined(Case, o.earlier))
    import attune  # with torch it takes seconds; --from does not need them
    import torch_serving
    run_of = {**peers.run_facts(attune.__version__), **torch_serving.facts(o.small)}
    if o.flashinfer != "off" and not importlib.util.find_spec("flashinfer"):
        print("FlashInfer is not installed: its columns stay empty", file=sys.stderr)
        o.flashinfer = "off"
    wanted = {name for name, on in (("cudnn", o.cudnn), ("flex", o.flex), ("flashinfer", o.flashinfer != "off")) if on}

    def peers_of(case):
        builds = case.kind in ("mods", "e4m3", "prefix", "mla") or case.seq > 1
        return wanted - ({"flashinfer"} if builds and o.flashinfer == "decode" else set())

    print(f"{', '.join(of_run(run_of, []))}; {len(cases(o))} cases", file=sys.stderr)
    peers.finish(o, LOOK, peers.run(o, LOOK, cases(o), run_of,
                                    lambda case: measure(o, case, torch_serving, peers_of(case))))


if __name__ == "__main__":
    main()
