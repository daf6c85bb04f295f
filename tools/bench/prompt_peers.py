# tools/bench/prompt_peers.py — prompts and drafts over a paged cache: attune, over dense keys too, and peers, on a GPU
import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass

with contextlib.suppress(ImportError):  # peers alone need it
    import torch

HEADS, KV_HEADS, D = 32, 8, 128


@dataclass(frozen=True)
class Case:
    """Causal queries, the last of `keys` positions, of `batch` entries."""
    name: str
    batch: int
    queries: int
    keys: int
    page: int

    def work(self):
        pairs = self.batch * (self.queries * (self.keys - self.queries) + self.queries * (self.queries + 1) / 2)
        return 4 * HEADS * D * pairs


CASES = [Case(name, batch, queries, keys, page)
         for name, batch, queries, keys, pages in (("prompt", 1, 8192, 8192, (16, 64, 1)), ("prompts", 4, 4096, 4096, (16,)),
                                                   ("chunk", 1, 2048, 16384, (16, 64, 1)), ("chunks", 4, 512, 32768, (16,)),
                                                   ("8 drafts", 64, 8, 8192, (16,)), ("32 drafts", 16, 32, 8192, (16,)))
         for page in pages]


def attune_ms(o, case, page):
    where = ["--decode", "--page-size", str(page)] if page else ["--q-offset", str(case.keys - case.queries)]
    command = [o.attune, "bench", "--target", "cuda", "--json", "--seconds", str(o.seconds), "--row", "causal", "--dtype",
               "bf16", "--heads", str(HEADS), "--kv-heads", str(KV_HEADS), "--d", str(D), "--batch", str(case.batch),
               "--seq", str(case.queries), "--kv-len", str(case.keys), *where]
    line = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    return json.loads(line)["seconds"]["median"] * 1e3


class Data:
    """A case's tensors: packed queries, and keys and values in pages that lie in random order."""

    def __init__(self, case):
        self.each = case.keys // case.page
        self.pages = torch.randperm(case.batch * self.each, device="cuda").int()
        self.table = self.pages.view(case.batch, self.each)
        self.q = self.made(case.batch * case.queries, HEADS, D)
        self.cache = self.made(case.batch * self.each, 2, case.page, KV_HEADS, D)
        self.k, self.v = self.cache[:, 0], self.cache[:, 1]

    def made(self, *shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def each_is(self, case, length):
        return torch.full((case.batch,), length, device="cuda", dtype=torch.int32)

    def counted(self, case, step):
        return torch.arange(case.batch + 1, device="cuda", dtype=torch.int32) * step


def flashinfer_calls(case, data):
    """A call for each backend of FlashInfer."""
    import flashinfer
    for backend in ("fa3", "fa2"):
        room = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room, "NHD", backend=backend)
        wrapper.plan(data.counted(case, case.queries), data.counted(case, data.each), data.pages, data.each_is(case, case.page),
                     HEADS, KV_HEADS, D, case.page, causal=True, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
        yield backend, lambda wrapper=wrapper: wrapper.run(data.q, data.cache)


def fa4_calls(case, data):
    """FlashAttention-4, which has no split over keys on Hopper."""
    from flash_attn.cute.interface import _flash_attn_fwd
    q = data.q.view(case.batch, case.queries, HEADS, D)
    lengths = data.each_is(case, case.keys)
    yield "fa4", lambda: _flash_attn_fwd(q, data.k, data.v, page_table=data.table, seqused_k=lengths, causal=True)


def cudnn_calls(case, data):
    """A graph of cuDNN's frontend."""
    import cudnn
    q = data.q.view(case.batch, case.queries, HEADS, D).transpose(1, 2)
    k, v = data.k.transpose(1, 2), data.v.transpose(1, 2)  # pages, heads, rows, width
    o = torch.empty(case.batch, case.queries, HEADS, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    lengths = [data.each_is(case, n).view(-1, 1, 1, 1) for n in (case.queries, case.keys)]
    table = data.table.view(case.batch, 1, data.each, 1)
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.BFLOAT16, intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT)
    names = [graph.tensor_like(x) for x in (q, k, v, *lengths, table, table)]
    result, _ = graph.sdpa(q=names[0], k=names[1], v=names[2], seq_len_q=names[3], seq_len_kv=names[4],
                           use_padding_mask=True, use_causal_mask_bottom_right=True, attn_scale=D**-0.5,
                           generate_stats=False, paged_attention_k_table=names[5], paged_attention_v_table=names[6],
                           paged_attention_max_seq_len_kv=case.keys)
    result.set_output(True).set_dim(list(o.shape)).set_stride(list(o.stride()))
    graph.build([cudnn.heur_mode.A])
    room = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")
    given = dict(zip(names, (q, k, v, *lengths, table, table))) | {result: o}
    yield "cudnn", lambda: graph.execute(given, room)


PEERS = {"flashinfer": flashinfer_calls, "fa4": fa4_calls, "cudnn": cudnn_calls}


def events_ms(call, seconds):
    """The median of single calls between events, after ten that do not count."""
    times = []
    for block in range(1000):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        marks[-1].synchronize()
        if block:
            times += [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
        if sum(times) > 1e3 * seconds:
            break
    return statistics.median(times)


def main():
    p = argparse.ArgumentParser(description="Prompts, chunks and drafts over a paged cache: attune, attune over dense keys, "
                                            "FlashInfer, FlashAttention-4 and cuDNN's frontend, where they are installed. "
                                            "One line of JSON for each row: milliseconds, the median of the rounds.")
    p.add_argument("--attune", default="attune", help="the command line")
    p.add_argument("--out", help="a file for the lines, too")
    p.add_argument("--seconds", type=float, default=0.04, help="of a block; 0.04 if left out: longer ones throttle the card")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS), help="which to run; all if left out")
    o = p.parse_args()
    out = open(o.out, "a") if o.out else None
    for case in CASES:
        calls = {"attune": lambda case=case: attune_ms(o, case, case.page), "dense": lambda case=case: attune_ms(o, case, 0)}
        data = Data(case) if o.peers else None
        for peer in o.peers:
            try:
                for name, call in PEERS[peer](case, data):
                    call()
                    calls[name] = lambda call=call: events_ms(call, o.seconds)
            except Exception as error:  # a peer refuses in its own words, of any type
                print(f"{peer} is left out of {case.name}, pages of {case.page}: {error}", file=sys.stderr)
        times = {name: [] for name in calls}
        for nth in range(o.rounds):
            for name in list(calls)[::-1] if nth % 2 else calls:
                times[name].append(calls[name]())
        row = {**asdict(case), "ms": {name: statistics.median(of) for name, of in times.items()}}
        row["tflops"] = {name: case.work() / ms / 1e9 for name, ms in row["ms"].items()}
        line = json.dumps(row)
        print(line, flush=True)
        if out:
            print(line, file=out, flush=True)


if __name__ == "__main__":
    main()
