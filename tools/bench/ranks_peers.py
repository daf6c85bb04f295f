# tools/bench/ranks_peers.py — one sequence over a host's GPUs: attune's context parallelism, torch's, and one GPU
import argparse
import contextlib
import gc
import json
import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import peers
from ranks_cases import WINDOW, cases, line, table

LAST = 120  # seconds that the last case may take beyond the limit
CAP = 30.0
APART = {"bf16": 2e-2, "f32": 1e-4}  # norm of the difference from f32 by that of the result, of some rows
BALANCE = {"window": "ptrr", "documents": "ptrr", "packed": "ptrr"}  # torch's balancers; others: head and tail
LOCAL = ("torch leaves score mods with a rank's own positions: they are mapped back by hand here, as torch does for "
         "masks")


# ---- on each rank


class Rank:
    """This rank, and its exchanges with the others besides attention."""

    def __init__(self, rank, o, mesh, words):
        import torch

        self.torch, self.rank, self.o, self.mesh, self.words = torch, rank, o, mesh, words
        self.device = torch.device("cpu" if o.small else f"cuda:{rank}")
        self.dtype = torch.float32 if o.small else torch.bfloat16

    def all(self, thing):
        """The value of every rank."""
        found = [None] * self.o.ranks
        self.torch.distributed.all_gather_object(found, thing, group=self.words)
        return found

    def wait(self):
        if not self.o.small:
            self.torch.cuda.synchronize()

    def tried(self, body):
        """The results of body on every rank; if it fails on one rank, RuntimeError on all."""
        made = why = None
        try:
            made = body()
            self.wait()
        except Exception as error:  # whatever it is, the other rows are measured
            lines = str(error).strip().splitlines()
            why = f"{type(error).__name__}: {' '.join(lines[:3])[:300]}"
        failed = {rank: text for rank, text in enumerate(self.all(why)) if text}
        if failed:
            raise RuntimeError(next(iter(failed.values())) + (f" (rank {min(failed)})" if len(failed) < self.o.ranks
                                                              else ""))
        return made

    def seconds(self, call, runs):
        """Seconds of a call on this rank, by the device's clock if there is a device."""
        self.wait()
        self.all(None)
        if self.o.small:
            begun = time.perf_counter()
            for _ in range(runs):
                call()
            return (time.perf_counter() - begun) / runs
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(runs):
            call()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3 / runs


class Tensors:
    """A case's tensors of the whole sequence, alike on every rank, and its mods in positions of the whole."""

    def __init__(self, at, case):
        torch = at.torch
        self.case, self.at = case, at
        torch.manual_seed(7)
        randn = lambda heads: torch.randn(1, heads, case.seq, case.d, device=at.device).to(at.dtype)
        self.q, self.k, self.v = randn(case.heads), randn(case.kv_heads), randn(case.kv_heads)
        self.grad = randn(case.heads) if case.direction == "step" else None
        lengths = torch.tensor(case.lengths())
        self.starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(torch.int32)
        document = torch.repeat_interleave(torch.arange(len(lengths)), lengths).to(torch.int32).to(at.device)
        slope = torch.exp2(-8.0 * torch.arange(1, case.heads + 1, device=at.device) / case.heads)
        self.mask = {"window": lambda b, h, q, kv: (q >= kv) & (q - kv < WINDOW),
                     **dict.fromkeys(("documents", "packed"),
                                     lambda b, h, q, kv: (q >= kv) & (document[q] == document[kv])),
                     }.get(case.row, lambda b, h, q, kv: q >= kv)
        self.score = {"alibi": lambda s, b, h, q, kv: s + slope[h] * (kv - q),
                      "softcap": lambda s, b, h, q, kv: CAP * torch.tanh(s / CAP)}.get(case.row)

    def apart(self, out, positions):
        """The distance of some rows of an output from torch's f32 result, by norm. Row i is at positions[i]."""
        torch, case, worst = self.at.torch, self.case, 0.0
        for row in (0, len(positions) // 2 + 1, len(positions) - 1) if len(positions) > 2 else ():
            for head in (0, case.heads - 1):
                q, key_head = int(positions[row]), head // (case.heads // case.kv_heads)
                k, v = self.k[0, key_head].float(), self.v[0, key_head].float()
                kv = torch.arange(case.seq, device=k.device)
                at = [torch.tensor(n, device=k.device) for n in (0, head, q)]
                s = k @ self.q[0, head, q].float() / math.sqrt(case.d)
                s = self.score(s, *at, kv) if self.score else s
                wanted = s.masked_fill(~self.mask(*at, kv), -torch.inf).softmax(0) @ v
                worst = max(worst, ((out[0, head, row].float() - wanted).norm() / wanted.norm()).item())
        return worst


def call_of(case, tensors, grad, function):
    """The function of q, k and v, and with gradients where the case has them."""
    import torch

    if case.direction == "forward":
        def forward():
            with torch.no_grad():
                return function(*tensors)
        return forward
    leaves = [t.detach().requires_grad_() for t in tensors]
    return lambda: torch.autograd.grad(function(*leaves), leaves, grad)


class Ours:
    """attune: `ranks` is a call of all ranks, `one` one of this GPU alone."""

    def __init__(self, at, whole, exit_stack):
        from attune.torch import context_parallel, create_block_mask, flex_attention

        o, case = at.o, whole.case
        begun = time.monotonic()
        self.notes = {}
        if case.row == "packed":
            self.packed(at, whole, exit_stack)
        else:
            mask = create_block_mask(whole.mask, None, None, case.seq, case.seq)
            heads = (case.heads, case.kv_heads)
            attend = lambda q, k, v: flex_attention(q, k, v, whole.score, mask, enable_gqa=True)
            # Once made, it may be entered again and again.
            parallel = context_parallel(at.mesh, mask, heads=heads, assignment=o.assignment, travel=o.travel, seconds=o.patience)
            with parallel as ranks:
                mine = ranks.shard(whole.q, whole.k, whole.v)
                grad = None if whole.grad is None else ranks.shard(whole.grad)
            self.notes["taken"] = taken(ranks.explain())
            self.positions = ranks.positions()

            shared = call_of(case, mine, grad, attend)

            def call():
                with parallel:
                    return shared()
            self.ranks = call
            self.one = call_of(case, (whole.q, whole.k, whole.v), whole.grad, attend)
        self.notes["plan_seconds"] = round(time.monotonic() - begun, 3)

    def packed(self, at, whole, exit_stack):
        import attune
        from attune.torch import context_parallel

        torch, o = at.torch, at.o
        attention = attune.Attention(mask="kv <= q")
        flat = [t[0].transpose(0, 1).contiguous() for t in (whole.q, whole.k, whole.v)]
        # context_parallel makes a transport from torch's process group.
        ranks = context_parallel(at.mesh, seconds=o.patience)
        exit_stack.enter_context(ranks)
        transport = attune.Transport(at.rank, o.ranks)
        transport._core = ranks._group.transport(at.device.type)
        shapes = [torch.empty((), dtype=t.dtype).expand(t.shape) for t in flat]
        sharding = attune.Sharding(attention, *shapes, transport, assignment=o.assignment, travel=o.travel, cu_seqlens=whole.starts)
        rows = torch.cat([torch.arange(*range) for range in sharding.of()])
        mine = [t[rows.to(t.device)] for t in flat]
        self.notes["taken"] = taken(sharding.explain())
        self.positions, starts = rows, whole.starts
        seen = lambda out: out.transpose(0, 1)[None]
        self.ranks = lambda: seen(attention(*mine, cu_seqlens=starts, sharding=sharding))
        self.one = lambda: seen(attention(*flat, cu_seqlens=starts))


class Theirs:
    """torch: FlexAttention compiled, over ranks by _ContextParallel with one of its balancers."""

    def __init__(self, at, whole, exit_stack):
        import torch
        from torch.distributed.tensor.experimental import _attention as parallel
        from torch.distributed.tensor.parallel import parallelize_module
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        o, case = at.o, whole.case
        begun = time.monotonic()
        compiled = torch.compile(flex_attention, dynamic=False)
        listed = torch.compile(create_block_mask, dynamic=False)
        mask = listed(whole.mask, 1, 1, case.seq, case.seq, device=at.device.type)
        name = o.balance or BALANCE.get(case.row, "head-tail")
        balancer = {"head-tail": lambda: parallel._HeadTailLoadBalancer(case.seq, o.ranks, at.device.type),
                    "ptrr": lambda: parallel._PTRRLoadBalancer(mask, o.ranks), "none": lambda: None}[name]()
        order = torch.arange(case.seq, device=at.device) if balancer is None else balancer._generate_indices()[0].long()
        rows = case.seq // o.ranks
        given = [whole.q, whole.k, whole.v, *([] if whole.grad is None else [whole.grad])]
        *mine, own = parallel._context_parallel_shard(at.mesh, [*given, mask], [2] * len(given) + [2], balancer)
        grad = mine.pop() if whole.grad is not None else None
        score = whole.score
        self.notes = {"balancer": name}
        if score is not None:
            mapped, first = whole.score, at.rank * rows
            score = lambda s, b, h, q, kv: mapped(s, b, h, order[first + q], order[kv])
            self.notes["score_mod"] = LOCAL

        class Attend(torch.nn.Module):
            def forward(self, query, key, value, **more):
                return compiled(query, key, value, **more)

        module = parallelize_module(Attend(), at.mesh, parallel._ContextParallel(
            seq_dim=2, attention_type=parallel._ContextParallel.AttentionType.FLEX))
        self.positions = order[at.rank * rows:(at.rank + 1) * rows]
        self.ranks = call_of(case, mine, grad, lambda q, k, v: module(
            q, k, v, score_mod=score, block_mask=own, enable_gqa=True))
        self.one = call_of(case, (whole.q, whole.k, whole.v), whole.grad, lambda q, k, v: compiled(
            q, k, v, score_mod=whole.score, block_mask=mask, enable_gqa=True))
        self.notes["plan_seconds"] = round(time.monotonic() - begun, 3)


def taken(page):
    """The assignment and the schedule that a plan chose."""
    return [line.split("  ")[1].strip() for line in page.splitlines() if line.endswith("taken")]


def measure(at, case, say):
    """A row: both, over ranks and alone, in turn. Says what has come up, since a row takes a minute."""
    whole, prepared, failed = Tensors(at, case), {}, {}
    with contextlib.ExitStack() as exit_stack:
        calls = {}
        for name, kind in [("attune", Ours)] + ([("torch", Theirs)] if at.o.torch else []):
            try:
                one = prepared[name] = at.tried(partial(kind, at, whole, exit_stack))
            except RuntimeError as error:
                failed[name] = str(error)
                continue
            for way in ("ranks", "one"):
                try:
                    begun = time.monotonic()
                    out = at.tried(getattr(one, way))
                    one.notes[f"first_{way}_seconds"] = round(time.monotonic() - begun, 3)
                    say(f"  {case}: {name}, {way}: the first call took {time.monotonic() - begun:.1f} s")
                    if way == "ranks" and case.direction == "forward":
                        apart = max(at.all(whole.apart(out, one.positions)))
                        one.notes["per_entry"] = float(f"{apart:.2g}")
                        if not apart < APART["f32" if at.o.small else "bf16"]:
                            raise RuntimeError(f"its results are {apart:.2g} from those in f32")
                    del out
                    once = max(at.all(at.tried(partial(at.seconds, getattr(one, way), 1))))
                    calls[name, way] = getattr(one, way), max(1, math.ceil(at.o.seconds / once))
                except RuntimeError as error:
                    failed[f"{name}, {way}"] = str(error)
        found = {key: [] for key in calls}
        for _ in range(at.o.rounds):
            for key, (call, runs) in calls.items():
                if ", ".join(key) in failed:
                    continue
                try:
                    found[key].append(at.all(at.tried(partial(at.seconds, call, runs))))
                except RuntimeError as error:
                    failed[", ".join(key)] = str(error)
    row = {"title": str(case), "ranks": at.o.ranks, **asdict(case), "work": case.work(), "failed": failed}
    for name, one in prepared.items():
        row[name] = dict(one.notes)
        for way in ("ranks", "one"):
            times = found.get((name, way))
            if not times or f"{name}, {way}" in failed:
                continue
            # Over ranks the slowest counts; alone, cards differ a little, and their mean counts.
            each = [max(of) if way == "ranks" else statistics.mean(of) for of in times]
            row[name][way] = {"median": statistics.median(each), "best": min(each), "runs": calls[name, way][1],
                              "rounds": times}
        if "ranks" in row[name] and "one" in row[name]:
            row[name]["percent"] = 100 * row[name]["one"]["median"] / row[name]["ranks"]["median"] / at.o.ranks
    return row


def serve(rank, o, meet):
    """A rank's process."""
    import torch
    import torch.distributed as dist

    if o.small:
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(rank)
    dist.init_process_group("gloo" if o.small else "cpu:gloo,cuda:nccl", init_method=f"file://{meet}", rank=rank,
                            world_size=o.ranks)
    mesh = dist.device_mesh.init_device_mesh("cpu" if o.small else "cuda", (o.ranks,))
    at = Rank(rank, o, mesh, dist.new_group(backend="gloo"))
    rows, start = [], time.monotonic()

    def say(text):
        if rank == 0:
            peers.say(start, text)

    if rank == 0:
        import attune
        facts = {**peers.run_facts(attune.__version__), "torch": torch.__version__, "cuda": torch.version.cuda,
                 "machine": "no GPU" if o.small else f"{o.ranks} x {torch.cuda.get_device_name()}",
                 "nccl": "" if o.small else ".".join(map(str, torch.cuda.nccl.version()))}
        o.out.parent.mkdir(parents=True, exist_ok=True)
        o.out.write_text(json.dumps({"run": facts}) + "\n", encoding="utf-8")
    for case in cases(o):
        if any(at.all(time.monotonic() - start > o.limit)):
            say(f"{case}: left out, for the limit of {o.limit:g} s")
            continue
        try:
            rows.append(measure(at, case, say))
        except Exception as error:  # of this script or of the machine: the next row may be measured all the same
            why = f"{type(error).__name__}: {error}"[:300]
            rows.append({"title": str(case), "ranks": o.ranks, "failed": {"row": why}})
        torch._dynamo.reset()
        gc.collect()
        if not o.small:
            torch.cuda.empty_cache()
        if rank == 0:
            with o.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            say(line(rows[-1]))
            for name, why in rows[-1]["failed"].items():
                say(f"  {name} failed: {why}")
    if rank == 0:
        print("\n".join(table(rows)), flush=True)
    dist.barrier(group=at.words)
    dist.destroy_process_group()


def options():
    p = argparse.ArgumentParser(description="attune's context parallelism next to torch's on the GPUs of this host")
    p.add_argument("--out", type=Path, required=True, help="the file for lines of JSON: the run, then a row each")
    peers.with_rows(p, "causal:128k, alibi, 16/16, step")
    p.add_argument("--ranks", type=int, help="GPUs; all if left out")
    p.add_argument("--seconds", type=float, default=0.3, help="of a block, at least")
    p.add_argument("--rounds", type=int, default=3, help="blocks of each, in turn")
    p.add_argument("--limit", type=float, default=330, help="seconds after which no case is begun")
    p.add_argument("--patience", type=float, default=60, help="seconds that attune's ranks wait for each other")
    p.add_argument("--assignment", default="best", help="attune's: best, contiguous, zigzag or greedy")
    p.add_argument("--travel", default="best", help="attune's: best, gather, ring, heads or decode")
    p.add_argument("--balance", choices=["head-tail", "ptrr", "none"], help="torch's; by row if left out")
    p.add_argument("--skip-torch", dest="torch", action="store_false", help="attune alone")
    p.add_argument("--small", action="store_true", help="small sizes, on the host: tries this script, measures nothing")
    o = p.parse_args()
    return peers.check_rows(p, o, cases(o))


def main():
    o = options()
    # Multicast can take GPUs of a shared host out of service.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.multiprocessing as multiprocessing

    o.ranks = o.ranks or (2 if o.small else torch.cuda.device_count())
    if not o.small and torch.cuda.device_count() < o.ranks:
        sys.exit(f"ranks_peers.py: {o.ranks} ranks need as many GPUs, and there are {torch.cuda.device_count()}")
    with tempfile.TemporaryDirectory() as folder:
        ranks = multiprocessing.spawn(serve, (o, f"{folder}/meet"), nprocs=o.ranks, join=False)
        until = time.monotonic() + o.limit + LAST
        while not ranks.join(timeout=5):
            if time.monotonic() > until:
                for process in ranks.processes:
                    process.kill()
                sys.exit(f"ranks_peers.py: given up after {o.limit + LAST:g} s; {o.out} has the rows so far")
    lines = [json.loads(text) for text in o.out.read_text(encoding="utf-8").splitlines()]
    sys.exit(1 if any(row["failed"] for row in lines[1:]) or len(lines) - 1 < len(cases(o)) else 0)


if __name__ == "__main__":
    main()
