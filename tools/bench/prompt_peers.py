# tools/bench/prompt_peers.py — compares attune's prompts and drafts over a paged cache with the same calls over dense
# keys and with FlashInfer's on this GPU, one after the other
import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass

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


def flashinfer_calls(case):
    """A call for each backend of FlashInfer; random pages in random order."""
    import flashinfer
    import torch

    def made(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    def counted(step):
        return torch.arange(case.batch + 1, device="cuda", dtype=torch.int32) * step

    each = case.keys // case.page
    cache, q = made(case.batch * each, 2, case.page, KV_HEADS, D), made(case.batch * case.queries, HEADS, D)
    pages = torch.randperm(case.batch * each, device="cuda").int()
    last = torch.full((case.batch,), case.page, device="cuda", dtype=torch.int32)
    for backend in ("fa3", "fa2"):
        room = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room, "NHD", backend=backend)
        wrapper.plan(counted(case.queries), counted(each), pages, last, HEADS, KV_HEADS, D, case.page, causal=True,
                     q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
        yield backend, lambda wrapper=wrapper: wrapper.run(q, cache)


def events_ms(call, seconds):
    """The median of single calls between events, after ten that do not count."""
    import torch
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
    p = argparse.ArgumentParser(description="Prompts, chunks and drafts over a paged cache: attune, attune over dense keys, and "
                                            "FlashInfer's prefill, if it is installed. One line of JSON for each row: "
                                            "milliseconds, the median of the rounds.")
    p.add_argument("--attune", default="attune", help="the command line")
    p.add_argument("--out", help="a file for the lines, too")
    p.add_argument("--seconds", type=float, default=0.04, help="of a block; 0.04 if left out: longer ones throttle the card")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--no-flashinfer", dest="flashinfer", action="store_false")
    o = p.parse_args()
    out = open(o.out, "a") if o.out else None
    for case in CASES:
        calls = {"attune": lambda case=case: attune_ms(o, case, case.page), "dense": lambda case=case: attune_ms(o, case, 0)}
        if o.flashinfer:
            try:
                for name, call in flashinfer_calls(case):
                    calls[name] = lambda call=call: events_ms(call, o.seconds)
            except ImportError as error:
                print(f"FlashInfer is left out: {error}", file=sys.stderr)
                o.flashinfer = False
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
