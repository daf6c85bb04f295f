# tools/bench/torch_serving.py — one serving case as attune, torch and FlashInfer compute it, captured as CUDA graphs
import contextlib
import gc
import time

import attune
import torch
import torch._dynamo
import torch_peers
from serving_peers import WINDOW, lengths
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}
APART = {"f32": 1e-5, "bf16": 2e-2}  # norm of the difference from f32 by that of the result, of the first entry
ROUND = 20  # calls of a graph
FLASHINFER_PAGE = 16  # where attune's call is dense
# Mods as attune's text; `functions` has the same ones as functions, for FlexAttention and the check.
TEXTS = {"alibi": {"score": "s + slope[h] * f32(kv - q)"}, "softcap": {"score": "30.0f * tanh(s / 30.0f)"},
         "table": {"score": "s + table[q - kv]"}, "window": {"mask": f"q - kv < {WINDOW}"},
         "tree": {"mask": "kv < kv_len - q_len || tree[b, q, clamp(kv - (kv_len - q_len), 0, q_len - 1)]"}}


def facts(small):
    out = {"machine": "no GPU" if small else torch.cuda.get_device_name(), **torch_peers.versions()}
    with contextlib.suppress(ImportError):
        import flashinfer
        out["flashinfer"] = flashinfer.__version__
    return out


class Prepared:
    """One case, ready to call: `calls` by name, errors in `failed`, what attune refuses in `refused`, and facts about
    each in `notes`."""

    def __init__(self, case, names, o):
        self.case, self.device = case, "cpu" if o.small else "cuda"
        self.calls, self.failed, self.refused, self.notes, self.graphs = {}, {}, {}, {}, {}
        self.renewed = []  # called with each turn's lengths
        torch._dynamo.reset()
        gc.collect()  # the tensors of the case before, which refer to each other
        torch.cuda.empty_cache()
        torch.manual_seed(7)
        self.make_tensors()
        if case.kind == "lengths":
            self.set_lengths(lengths(case, 0))
        with torch.no_grad():
            wanted = self.reference()
            for name in names:
                self.add(name, wanted)

    # ---- tensors

    def randn(self, *shape):
        return torch.randn(shape, dtype=DTYPES[self.case.dtype], device=self.device)

    def make_tensors(self):
        c = self.case
        self.q = self.randn(c.batch, c.heads, c.seq, c.d)
        self.kv_len = self.table = None
        self.prefix = [self.randn(1, c.kv_heads, c.keys, c.d) for _ in "kv"] if c.own else None
        if c.page:
            # Rows of one page lie together, then its heads; attune takes a permuted view of the pool.
            count = c.keys // c.page
            self.pools = [self.randn(c.batch * count, c.page, c.kv_heads, c.d) for _ in "kv"]
            self.table = torch.randperm(c.batch * count, device=self.device).int().view(c.batch, count)
            self.kv = [pool.permute(0, 2, 1, 3) for pool in self.pools]
        else:
            self.kv = [self.randn(c.batch, c.kv_heads, c.own or c.keys, c.d) for _ in "kv"]
        if c.cache != c.dtype:
            self.kv = [x.to(DTYPES[c.cache]) for x in self.kv]
        if c.kind == "mla":  # values are the first columns of the keys
            self.pools[1] = self.pools[0][..., :c.dv()]
            self.kv[1] = self.kv[0][..., :c.dv()]
        self.slope = torch.exp2(-8.0 * torch.arange(1, c.heads + 1, device=self.device) / c.heads)
        self.bias = torch.randn(c.keys, device=self.device)
        # Drafts: each query sees itself and a random path of earlier ones.
        self.tree = torch.rand(c.batch, c.seq, c.seq, device=self.device).lt(0.3).tril_()
        self.tree |= torch.eye(c.seq, dtype=torch.bool, device=self.device)

    def set_lengths(self, found):
        found = torch.tensor(found, dtype=torch.int32, device=self.device)
        if self.kv_len is None:
            self.kv_len = found
        self.kv_len.copy_(found)

    def renew(self, turn):
        if self.case.kind != "lengths":
            return
        self.set_lengths(lengths(self.case, turn))
        for tell in self.renewed:
            tell()

    # ---- what is computed

    def functions(self):
        """score_mod and mask_mod, None where the case has none. Queries are the last positions."""
        slope, bias, tree, keys, seq = self.slope, self.bias, self.tree, self.case.keys, self.case.seq
        at = keys - seq  # the first query's position
        scores = {"alibi": lambda s, b, h, q, kv: s + slope[h] * (kv - q - at),
                  "softcap": lambda s, b, h, q, kv: 30.0 * torch.tanh(s / 30.0),
                  "table": lambda s, b, h, q, kv: s + bias[q + at - kv]}
        masks = {"window": lambda b, h, q, kv: q + at - kv < WINDOW,
                 "tree": lambda b, h, q, kv: (kv < at) | tree[b, q, torch.clamp(kv - at, 0, seq - 1)]}
        return scores.get(self.case.row), masks.get(self.case.row)

    def first_entry(self):
        """Keys and values of the first entry, [Hkv, n, D]."""
        if self.table is None:
            kv = [x[0] for x in self.kv]
            return [torch.cat(both, 1) for both in zip([x[0] for x in self.prefix], kv)] if self.prefix else kv
        length = self.case.keys if self.kv_len is None else int(self.kv_len[0])
        return [pool[self.table[0].long()].flatten(0, 1)[:length].transpose(0, 1) for pool in self.pools]

    def reference(self):
        """The first entry's result, in f32."""
        c = self.case
        k, v = (x.float().repeat_interleave(c.heads // c.kv_heads, 0) for x in self.first_entry())
        score, mask = self.functions()
        h, q, kv = (torch.arange(n, device=self.device) for n in (c.heads, c.seq, k.shape[1]))
        at = (torch.zeros_like(h[:1]), h[:, None, None], q[:, None], kv)
        s = torch.einsum("hqd,hkd->hqk", self.q[0].float(), k) / c.d**0.5
        s = score(s, *at) if score else s
        s = s.masked_fill(~mask(*at), -torch.inf) if mask else s
        return torch.einsum("hqk,hkd->hqd", s.softmax(-1), v)

    def add(self, name, wanted):
        """The first call compiles, and is compared."""
        try:
            call = getattr(self, name)()
            begun = time.perf_counter()
            with self.by(name):
                apart = ((call()[0].float() - wanted).norm() / wanted.norm()).item()
            self.notes[name] = {"first_call_seconds": time.perf_counter() - begun, "per_entry": apart}
            if not apart <= APART[self.case.dtype]:
                raise ValueError(f"differs from f32 by {apart:.3g}")
            self.calls[name] = call
        except attune.Error as error:
            self.refused[name] = f"{error.code}: {error.problem}"
        except Exception as error:  # any compiler's error: the row reports it, and the others are measured
            self.failed[name] = f"{type(error).__name__}: {error}"[:400]

    def by(self, name):
        """The context that calls run in."""
        cudnn = name == "cudnn" and self.device == "cuda"
        return sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if cudnn else contextlib.nullcontext()

    # ---- attune

    def stream(self):
        return torch.cuda.current_stream().cuda_stream if self.device == "cuda" else 0

    def bound(self, attention, q, k, v, out, **more):
        """A call of attune on torch's current stream that allocates nothing."""
        sums = more.pop("lse", None)
        size = attention.prepare(q, k, v, lse=sums is not None, **more)["workspace"]
        room = torch.empty(max(size, 1), dtype=torch.uint8, device=self.device)
        return lambda: attention(q, k, v, out=out, lse=False if sums is None else sums, workspace=room,
                                 stream=self.stream(), **more)

    def attune(self):
        c = self.case
        out = self.q.new_empty(c.batch, c.heads, c.seq, c.dv())
        if c.own:
            return self.attune_in_two(out)
        arrays = {"alibi": {"slope": self.slope}, "table": {"table": self.bias}, "tree": {"tree": self.tree}}
        attention = attune.Attention(**TEXTS.get(c.row, {}), **arrays.get(c.row, {}))
        more = {name: x for name, x in (("kv_len", self.kv_len), ("page_table", self.table)) if x is not None}
        if c.row in TEXTS and c.row != "tree":
            more["q_offset"] = c.keys - c.seq
        if c.row == "tree":
            more["cover"] = attention.cover(self.q, *self.kv, stream=self.stream())
        call = self.bound(attention, self.q, *self.kv, out, **more)
        return lambda: (call(), out)[1]

    def attune_in_two(self, out):
        """Over the shared prefix, and over each entry's own keys, which merges."""
        c, attention = self.case, attune.Attention()
        lse = torch.empty(c.batch, c.heads, 1, device=self.device)
        as_queries = lambda x: x.view(-1, c.together, c.heads, x.shape[-1]).transpose(1, 2)
        sums = lse.view(-1, c.together, c.heads).transpose(1, 2)
        first = self.bound(attention, as_queries(self.q), *self.prefix, as_queries(out), lse=sums)
        second = self.bound(attention, self.q, *self.kv, out, lse=lse, o_before=out, lse_before=lse)
        return lambda: (first(), second(), out)[2]

    # ---- peers

    def grouped(self):
        return {"enable_gqa": self.case.heads != self.case.kv_heads}

    def cudnn(self):
        kv = self.kv
        if self.prefix:  # it shares nothing
            kv = [torch.cat([x.expand(self.case.batch, -1, -1, -1), own], 2) for x, own in zip(self.prefix, kv)]
        return lambda: scaled_dot_product_attention(self.q, *kv, **self.grouped())

    def flex(self):
        score, mask = self.functions()
        c = self.case
        begun = time.perf_counter()
        blocks = mask and create_block_mask(mask, c.batch if c.row == "tree" else None, None, c.seq, c.keys,
                                            device=self.device)
        self.notes["flex"] = {"block_mask_seconds": time.perf_counter() - begun}
        # fullgraph: an error is better than measuring uncompiled attention unnoticed.
        compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        return lambda: compiled(self.q, *self.kv, score_mod=score, block_mask=blocks, **self.grouped())

    def flashinfer(self):
        import flashinfer

        c = self.case
        page = c.page or FLASHINFER_PAGE
        room = torch.zeros(256 << 20, dtype=torch.uint8, device=self.device)
        ints = lambda values: torch.as_tensor(values, dtype=torch.int32, device=self.device)
        types = {"q_data_type": self.q.dtype, "kv_data_type": self.kv[0].dtype}
        q = self.q.transpose(1, 2).reshape(-1, c.heads, c.d)
        shaped = lambda out: out.view(c.batch, c.seq, c.heads, c.d).transpose(1, 2)
        pools, table = (self.pools, self.table) if c.page else self.in_pages(page)
        starts = torch.arange(c.batch + 1)
        if c.kind == "mla":
            wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(room)
            wrapper.plan(ints(starts * c.seq), ints(starts * (c.keys // page)), table.flatten(),
                         ints([c.keys] * c.batch), c.heads, c.dv(), c.d - c.dv(), page, False, c.d**-0.5, q.dtype,
                         pools[0].dtype)
            # FlashInfer's cache has two tensors.
            parts = [x.contiguous() for x in (q[..., :c.dv()], q[..., c.dv():], pools[0][:, :, 0, :c.dv()],
                                              pools[0][:, :, 0, c.dv():])]
            return lambda: wrapper.run(*parts).view(c.batch, c.seq, c.heads, c.dv()).transpose(1, 2)
        if c.own:
            shared, own = c.keys // page, c.own // page
            wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, room, "NHD")
            wrapper.plan([ints([0, c.batch]), ints(starts)], [ints([0, shared]), ints(starts * own)],
                         [table[:shared], table[shared:]], [ints([page]), ints([page] * c.batch)], c.heads, c.kv_heads,
                         c.d, page, **types)
            return lambda: shaped(wrapper.run(q, tuple(pools)))
        if c.seq > 1:
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room, "NHD")
            wrapper.plan(ints(starts * c.seq), ints(starts * (c.keys // page)), table.flatten(),
                         ints([page] * c.batch), c.heads, c.kv_heads, c.d, page, causal=False, **types)
            return lambda: shaped(wrapper.run(q, tuple(pools)))
        buffers = {}
        if c.kind == "lengths":
            buffers = {"use_cuda_graph": True, "paged_kv_indptr_buffer": ints([0] * (c.batch + 1)),
                       "paged_kv_indices_buffer": torch.empty_like(table.flatten()),
                       "paged_kv_last_page_len_buffer": ints([0] * c.batch)}
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(room, "NHD", use_tensor_cores=True, **buffers)
        mods = {"alibi": {"pos_encoding_mode": "ALIBI"}, "softcap": {"logits_soft_cap": 30.0},
                "window": {"window_left": WINDOW - 1}}.get(c.row, {})
        if c.row == "table":
            raise ValueError("it reads no table")

        def plan():
            found = torch.full((c.batch,), c.keys) if self.kv_len is None else self.kv_len.cpu()
            counts = (found + page - 1) // page
            starts = torch.cat([torch.zeros(1, dtype=counts.dtype), counts.cumsum(0)]).int()
            used = torch.cat([table[b, :n] for b, n in enumerate(counts.tolist())])
            wrapper.plan(starts.to(self.device), used, ints(found - (counts - 1) * page), c.heads, c.kv_heads, c.d,
                         page, **mods, **types)

        plan()
        self.renewed.append(plan)
        return lambda: shaped(wrapper.run(q, tuple(pools)))

    def in_pages(self, page):
        """Dense keys and values as pages in random order: pools and the table of them; a shared prefix has the first
        pages of the table."""
        def cut(x):
            b, h, n, d = x.shape
            return x.view(b, h, n // page, page, d).permute(0, 2, 3, 1, 4).reshape(-1, page, h, d)

        pools = []
        for nth, own in enumerate(self.kv):
            rows = torch.cat([cut(self.prefix[nth]), cut(own)]) if self.prefix else cut(own)
            order = torch.randperm(rows.shape[0], generator=torch.Generator().manual_seed(3)).to(self.device)
            pools.append(torch.empty_like(rows))
            pools[-1].view(torch.uint8)[order] = rows.view(torch.uint8)  # torch cannot index rows of e4m3
        table = order.int()
        return pools, table if self.prefix else table.view(self.case.batch, -1)

    # ---- time

    def block(self, name, seconds):
        """Seconds of a call: the mean of each replay's, and the first replay is not counted. On the host: of each
        call."""
        call, times, total = self.calls[name], [], 0.0
        with torch.no_grad(), self.by(name):
            if self.device == "cpu":
                while total < seconds or not times:
                    begun = time.perf_counter()
                    call()
                    times.append(time.perf_counter() - begun)
                    total += times[-1]
                return times
            if name not in self.graphs:
                self.graphs[name] = self.captured(call)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.graphs[name].replay()
            while total < seconds or len(times) < 3:
                begin.record()
                self.graphs[name].replay()
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end) / 1e3 / ROUND)
                total += times[-1] * ROUND
        return times

    def captured(self, call):
        torch.cuda.synchronize()
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):  # what is lazy is made on this stream
            for _ in range(3):
                call()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(ROUND):
                call()
        return graph
