# tests/tools/contract.py — the command line from outside: results, files, exit codes and messages
import json
import math
import os
import pathlib
import re
import shutil
import struct
import time
import unittest
import xml.etree.ElementTree
import zipfile

from calls import ENGINE, SANITIZED, Calls, read_npy, write_npy

# The folder of kernels that tests share: each is compiled once, whatever build's test needs it first.
KEPT = {"ATTUNE_CACHE": os.environ["ATTUNE_TEST_CACHE"], "ATTUNE_CACHE_SIZE": "4G"} \
    if os.environ.get("ATTUNE_TEST_CACHE") else {}


class Contract(Calls):
    turns = 4

    def run_attention(self, *arguments, target="oracle", **environment):
        return self.attune("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", self.out, "--target", target,
                           *arguments, **environment)

    def done(self, *arguments, **how):
        result = self.run_attention(*arguments, **how)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def result(self, name):
        return read_npy(self.out / f"{name}.npy")

    def refused(self, code, *arguments, fix=""):
        result = self.attune(*arguments) if arguments and arguments[0] in VERBS else self.run_attention(*arguments)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn(f"[{code}]", result.stderr)
        self.assertIn(fix, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertFalse(self.out.exists())
        return result.stderr

    def close(self, got, wanted, within=1e-5):
        self.assertEqual(len(got), len(wanted))
        for i, (a, b) in enumerate(zip(got, wanted)):
            self.assertTrue(a == b or abs(a - b) <= within * (1 + abs(b)), f"element {i}: {a} instead of {b}")

    # What run computes, compared with the formula written out here.
    def expected(self, q, k, v, hq, sq, skv, d, dv, score, keep):
        o, lse = [], []
        for h in range(hq):
            for i in range(sq):
                row = q[(h * sq + i) * d:(h * sq + i + 1) * d]
                terms = []
                for j in range(skv):
                    if keep(i, j):
                        s = sum(a * b for a, b in zip(row, k[j * d:(j + 1) * d])) / math.sqrt(d)
                        terms.append((j, math.exp(score(s, h, i, j))))
                total = sum(p for _, p in terms)
                lse.append(math.log(total))
                o += [sum(p * v[j * dv + n] for j, p in terms) / total for n in range(dv)]
        return o, lse

    def test_forward(self):
        q, k, v = self.qkv()
        write_npy(self.at / "slope.npy", [2], [0.5, -0.25])
        said = self.done("--score", "gain * s + slope[h] * distance", "--mask", "kv <= q + ahead",
                         "--let", "distance=f32(kv - q)", "--capture", "slope=slope.npy", "--param", "gain=2.0",
                         "--param", "ahead=1", "--max")
        o, lse = self.expected(q, k, v, 2, 3, 4, 2, 3, lambda s, h, i, j: 2 * s + (0.5, -0.25)[h] * (j - i),
                               lambda i, j: j <= i + 1)
        self.assertEqual(self.result("out")[0], (1, 2, 3, 3))
        self.assertEqual(self.result("lse")[0], (1, 2, 3))
        self.assertEqual(self.result("max")[0], (1, 2, 3))
        self.close(self.result("out")[1], o)
        self.close(self.result("lse")[1], lse)
        self.assertEqual(sorted(p.name for p in self.out.iterdir()), ["lse.npy", "max.npy", "out.npy"])
        self.assertIn("out.npy", said)

    def test_cache(self):
        # Two entries of 5 and 2 keys, in pages of 2 rows of a pool of 5; of the last page, one row is anybody's.
        q, k, v = self.qkv(b=2, hq=2, sq=1, skv=5)
        lengths, table = (5, 2), ((3, 0, 4), (2, -1, 2 ** 40))
        pool = {name: [math.nan] * (5 * 2 * width) for name, width in (("k", 2), ("v", 3))}
        for b in range(2):
            for i in range(lengths[b]):
                for name, rows, width in (("k", k, 2), ("v", v, 3)):
                    at = (table[b][i // 2] * 2 + i % 2) * width
                    pool[name][at:at + width] = rows[(b * 5 + i) * width:(b * 5 + i + 1) * width]
        write_npy(self.at / "kp.npy", [5, 1, 2, 2], pool["k"])
        write_npy(self.at / "vp.npy", [5, 1, 2, 3], pool["v"])
        write_npy(self.at / "pages.npy", [2, 3], table[0] + table[1], "i8")
        write_npy(self.at / "lengths.npy", [2], lengths, "i4")
        write_npy(self.at / "last.npy", [2], [4, 1], "i8")
        mod = ["--score", "s + f32(kv - q)", "--mask", "kv > q - 4"]
        wanted = {"out": [], "lse": []}
        for b, n in enumerate(lengths):
            o, lse = self.expected(q[b * 4:], k[b * 10:], v[b * 15:], 2, 1, n, 2, 3,
                                   lambda s, h, i, j: s + j - (n - 1), lambda i, j: j > n - 5)
            wanted["out"] += o
            wanted["lse"] += lse
        whole = ["--kv-len", "lengths.npy", "--q-offsets", "last.npy", *mod]
        paged = ["--k", "kp.npy", "--v", "vp.npy", "--page-table", "pages.npy", "--fixed-split-size", "128", *whole]
        targets = ["oracle", "cpu"] if ENGINE else ["oracle"]
        for target in targets:
            said = [self.attune("run", "--q", "q.npy", "--out", self.out, "--target", target, *how)
                    for how in (["--k", "k.npy", "--v", "v.npy", *whole], paged)]
            for result in said:
                self.assertEqual((result.returncode, result.stderr), (0, ""))
            for name in wanted:
                self.close(self.result(name)[1], wanted[name])

    def test_values_within_keys(self):
        # MLA: values are the first columns of the keys.
        _, k, _ = self.qkv(hq=1, skv=5)
        write_npy(self.at / "first.npy", [1, 1, 5, 1], k[::2])
        for target in ["oracle", "cpu"] if ENGINE else ["oracle"]:
            results = []
            for values in (["--v", "first.npy"], ["--v-columns", "1"]):
                said = self.attune("run", "--q", "q.npy", "--k", "k.npy", "--out", self.out, "--target", target, *values)
                self.assertEqual((said.returncode, said.stderr), (0, ""))
                results.append([self.result(name) for name in ("out", "lse")])
            self.assertEqual(*results)
        run = ["run", "--q", "q.npy", "--k", "k.npy", "--out", self.out, "--target", "oracle"]
        for code, values in (("v-columns", ["--v-columns", "3"]), ("v-columns", ["--v-columns", "-1"]),
                             ("v-columns", ["--v-columns", "0"]), ("bad-usage", ["--v", "v.npy", "--v-columns", "0"]),
                             ("bad-usage", []), ("bad-usage", ["--v", "v.npy", "--v-columns", "1"])):
            said = self.attune(*run, *values)
            self.assertEqual(said.returncode, 2)
            self.assertIn(f"[{code}]", said.stderr)

    def test_parts(self):
        # The keys in two calls, the second of which merges with the first.
        q, k, v = self.qkv(hq=1, skv=5)
        mod = ["--score", "s + f32(kv - q)", "--sink", "0.5"]
        self.done(*mod)
        wanted = {name: self.result(name)[1] for name in ("out", "lse")}
        for name, rows, width in (("k", k, 2), ("v", v, 3)):
            write_npy(self.at / f"{name}1.npy", [1, 1, 2, width], rows[:2 * width])
            write_npy(self.at / f"{name}2.npy", [1, 1, 3, width], rows[2 * width:])
        for target in ["oracle", "cpu"] if ENGINE else ["oracle"]:
            first = self.attune("run", "--q", "q.npy", "--k", "k1.npy", "--v", "v1.npy", "--out", self.out, "--target",
                                target, *mod)
            (self.out / "out.npy").rename(self.at / "o1.npy")
            (self.out / "lse.npy").rename(self.at / "lse1.npy")
            second = self.attune("run", "--q", "q.npy", "--k", "k2.npy", "--v", "v2.npy", "--out", self.out, "--target",
                                 target, "--kv-offset", "2", "--o-before", "o1.npy", "--lse-before", "lse1.npy", *mod)
            for result in (first, second):
                self.assertEqual((result.returncode, result.stderr), (0, ""))
            for name in wanted:
                self.close(self.result(name)[1], wanted[name])

    def test_sink_and_prob(self):
        q, k, v = self.qkv(hq=1)
        self.done("--sink", "1.0", "--prob", "2.0 * p")
        sharding, lse = self.expected(q, k, v, 1, 3, 4, 2, 3, lambda s, h, i, j: s, lambda i, j: True)
        with_sink = [math.log(math.exp(x) + math.e) for x in lse]
        self.close(self.result("lse")[1], with_sink)
        self.close(self.result("out")[1],
                   [2 * sharding[i * 3 + n] * math.exp(lse[i] - with_sink[i]) for i in range(3) for n in range(3)])

    def test_backward(self):
        self.qkv(b=2, hq=4, hkv=2)
        self.numbers("do", [2, 4, 3, 3])
        self.numbers("dl", [2, 4, 3])
        self.numbers("bias", [3, 4])
        self.done("--score", "s + bias[q, kv]", "--capture", "bias=bias.npy", "--grad-out", "do.npy", "--grad-lse",
                  "dl.npy", "--grad", "bias", "--deterministic")
        for name, shape in (("dq", (2, 4, 3, 2)), ("dk", (2, 2, 4, 2)), ("dv", (2, 2, 4, 3)), ("grad_bias", (3, 4))):
            self.assertEqual(self.result(name)[0], shape)
            self.assertGreater(max(map(abs, self.result(name)[1])), 1e-3)
        # dO alone adds nothing in total along a row of the softmax, so the bias's gradients sum to the gradient of lse.
        self.close([sum(self.result("grad_bias")[1])], [sum(read_npy(self.at / "dl.npy")[1])])

    def test_layout(self):
        self.qkv(b=2, hq=2, hkv=2)
        self.done()
        plain = self.result("out")[1]
        for name, (s, d) in (("q", (3, 2)), ("k", (4, 2)), ("v", (4, 3))):
            _, values = read_npy(self.at / f"{name}.npy")
            write_npy(self.at / f"{name}.npy", [2, s, 2, d],
                      [values[((b * 2 + h) * s + i) * d + n] for b in range(2) for i in range(s) for h in range(2)
                       for n in range(d)])
        self.done("--layout", "bshd")
        self.assertEqual(self.result("out")[0], (2, 3, 2, 3))
        self.assertEqual(self.result("lse")[0], (2, 2, 3))
        self.close(self.result("out")[1], [plain[((b * 2 + h) * 3 + i) * 3 + n] for b in range(2) for i in range(3)
                                           for h in range(2) for n in range(3)])

    def test_packed(self):
        self.numbers("q", [5, 2, 2]), self.numbers("k", [6, 1, 2]), self.numbers("v", [6, 1, 3])
        write_npy(self.at / "cq.npy", [3], [0, 2, 5], kind="i4")
        write_npy(self.at / "ck.npy", [3], [0, 4, 6], kind="i8")
        self.done("--cu-seqlens-q", "cq.npy", "--cu-seqlens-kv", "ck.npy", "--mask", "kv <= q")
        self.assertEqual(self.result("out")[0], (5, 2, 3))
        self.assertEqual(self.result("lse")[0], (2, 5))
        v = read_npy(self.at / "v.npy")[1]
        self.close(self.result("out")[1][2 * 2 * 3:2 * 2 * 3 + 3], v[4 * 3:4 * 3 + 3])  # a first row sees one key

    def test_dtypes(self):
        self.qkv(kind="f8")
        self.done()
        exact = self.result("out")[1]
        self.done("--dtype", "bf16")
        rough = self.result("out")[1]
        self.assertNotEqual(exact, rough)
        self.close(rough, exact, within=0.02)
        write_npy(self.at / "q.npy", [1, 2, 3, 2], list(range(12)), kind="i4")
        self.refused_keeping("tensor-types")
        self.done("--dtype", "f32")

    def refused_keeping(self, code):
        result = self.run_attention()
        self.assertEqual(result.returncode, 2)
        self.assertIn(f"[{code}]", result.stderr)

    def test_q_offset_and_scale(self):
        self.qkv(hq=1, sq=1)
        self.done("--mask", "kv <= q", "--q-offset", "0")
        self.close(self.result("out")[1], read_npy(self.at / "v.npy")[1][:3])
        self.done("--q-offset", "3", "--mask", "kv <= q", "--scale", "0")
        v = read_npy(self.at / "v.npy")[1]
        self.close(self.result("out")[1], [sum(v[n::3]) / 4 for n in range(3)])
        self.done("--scale", "-1.5")

    def test_fortran_order_and_boolean_captures(self):
        self.qkv(hq=1)
        write_npy(self.at / "keep.npy", [3, 4], [True] * 3 + [False] * 9, kind="b1", fortran=True)
        self.done("--mask", "keep[q, kv]", "--capture", "keep=keep.npy")
        v = read_npy(self.at / "v.npy")[1]
        self.close(self.result("out")[1], v[:3] * 3)  # column 0 alone, for every row

    def test_json_and_quiet(self):
        self.qkv()
        summary = json.loads(self.done("--json"))
        self.assertEqual(summary["engine"], "oracle")
        self.assertEqual([f["shape"] for f in summary["files"]], [[1, 2, 3, 3], [1, 2, 3]])
        self.assertEqual(self.done("--quiet"), "")

    def test_mistakes_of_a_run(self):
        self.qkv()
        write_npy(self.at / "slope.npy", [2], [1, 2])
        write_npy(self.at / "ids.npy", [2], [1, 2], kind="i4")
        write_npy(self.at / "nine.npy", [1], [9], kind="i4")
        slope = ["--capture", "slope=slope.npy"]
        self.refused("unknown-name", "--score", "s + slop[h]", *slope, fix="slope")
        self.refused("not-allowed-here", "--mask", "s > 0.0")
        self.refused("wrong-type", "--mask", "kv + q")
        self.refused("capture-range", "--score", "s + slope[kv + 2]", *slope)
        self.refused("bad-assignment", "--capture", "slope.npy")
        self.refused("file-missing", "--capture", "slope=missing.npy")
        self.refused("no-data", "--capture", "slope=f32[2]", fix="slope=FILE.npy")
        self.refused("reserved-name", "--capture", "q=slope.npy")
        self.refused("name-taken", *slope, "--param", "slope=1")
        self.refused("bad-name", "--param", "2x=1")
        self.refused("bad-number", "--param", "x=1.5.2")
        self.refused("bad-number", "--param", "x=3000000000", fix="3000000000.0")
        self.refused("bad-number", "--scale", "big")
        self.refused("bad-scale", "--scale", "nan")
        self.refused("bad-choice", "--dtype", "fp16", fix="f16")
        self.refused("bad-choice", "--layout", "bsdh")
        self.refused("q-offset", "--q-offset", "-1")
        self.refused("kv-offset", "--kv-offset", "-1")
        self.refused("kv-len", "--kv-len", "nine.npy")
        self.refused("q-offsets", "--q-offsets", "nine.npy", "--q-offset", "1")
        self.refused("page-table", "--page-table", "nine.npy")
        self.refused("fixed-split-size", "--fixed-split-size", "7")
        self.refused("before-half", "--o-before", "q.npy")
        self.refused("before-half", "--lse-before", "q.npy")
        self.refused("forward-only", "--fixed-split-size", "128", "--grad-out", "q.npy")
        self.refused("file-missing", "--kv-len", "missing.npy")
        self.refused("grad-without-out", "--grad", "slope", *slope)
        self.refused("grad-without-out", "--grad-lse", "slope.npy")
        self.refused("cu-seqlens-half", "--cu-seqlens-q", "ids.npy")
        self.refused("layout-packed", "--cu-seqlens-q", "ids.npy", "--layout", "bshd")
        self.refused("unknown-option", "--maks", "kv <= q", fix="--mask")
        self.refused("stray-argument", "kv <= q")
        self.numbers("do", [1, 2, 3, 3])
        self.refused("unknown-capture", *slope, "--grad-out", "do.npy", "--grad", "slop", fix="slope")
        self.refused("grad-not-captured", *slope, "--grad-out", "do.npy", "--grad", "slope")
        self.refused("grad-not-float", "--capture", "ids=ids.npy", "--score", "s + f32(ids[h])", "--grad-out",
                     "do.npy", "--grad", "ids")
        self.refused("tensor-shape", "--grad-out", "q.npy")
        self.numbers("k", [1, 1, 4, 5])
        self.refused("head-size")
        (self.at / "k.npy").write_bytes(b"hello")
        self.refused("npy-magic")
        self.out.parent.mkdir()
        self.out.write_text("in the way")
        self.assertIn("[out-not-folder]", self.run_attention().stderr)

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_targets(self):
        self.qkv(b=2, hq=4, hkv=2, sq=70, skv=150, d=20, dv=7)
        mods = ["--score", "5.0 * tanh(s / 5.0)", "--mask", "kv <= q + 80"]
        summary, results = {}, {}
        for target in ("oracle", "cpu", "auto"):
            summary[target] = json.loads(self.done(*mods, "--json", target=target))
            results[target] = [self.result(name)[1] for name in ("out", "lse")]
        self.assertEqual([summary[t]["engine"] for t in ("oracle", "cpu", "auto")], ["oracle", "cpu", "cpu"])
        self.assertEqual(results["cpu"], results["auto"])  # the same bits every time
        self.assertNotEqual(results["cpu"], results["oracle"])
        for got, wanted in zip(results["cpu"], results["oracle"]):
            self.close(got, wanted, within=2e-6)  # f32 against double precision

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_targets_of_a_backward(self):
        self.qkv(b=2, hq=4, hkv=2, sq=70, skv=90, d=20, dv=7)
        self.numbers("do", [2, 4, 70, 7]), self.numbers("bias", [4, 90])
        results = {}
        for target in ("oracle", "cpu", "auto"):
            self.done("--score", "s + bias[h, kv]", "--mask", "kv <= q + 20", "--capture", "bias=bias.npy", "--grad-out",
                      "do.npy", "--grad", "bias", target=target)
            results[target] = [self.result(name)[1] for name in ("dq", "dk", "dv", "grad_bias")]
        self.assertEqual(results["cpu"], results["auto"])
        for got, wanted in zip(results["cpu"], results["oracle"]):
            self.close(got, wanted, within=5e-6)

    def test_engines_that_are_not_there(self):
        self.qkv()
        for target in [] if ENGINE else ["cpu", "auto"]:
            result = self.run_attention(target=target)
            self.assertEqual(result.returncode, 2)
            self.assertIn("[no-engine]", result.stderr)
        self.assertFalse(self.out.exists())
        self.refused("bad-choice", "run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", self.out, "--target",
                     "gpu")

    def test_a_gpu_computes_or_is_not_there(self):
        self.qkv(b=2, hq=4, hkv=2, sq=70, skv=90, d=16, dv=8), self.numbers("bias", [4, 90])
        mods = ["--score", "s + bias[h, kv]", "--mask", "kv <= q + 20", "--capture", "bias=bias.npy", "--max"]
        said = self.run_attention(*mods, "--json", target="cuda")
        if said.returncode == 2:
            self.assertIn("[no-device]", said.stderr)
            self.assertFalse(self.out.exists())
        else:
            self.assertEqual((said.returncode, json.loads(said.stdout)["engine"]), (0, "cuda"))
            got = [self.result(name)[1] for name in ("out", "lse", "max")]
            self.done(*mods)
            for one, name in zip(got, ("out", "lse", "max")):
                self.close(one, self.result(name)[1], within=1e-4)
        self.numbers("do", [2, 4, 70, 8])
        gradients = ["--grad-out", "do.npy", "--grad", "bias"]
        result = self.run_attention(*mods, *gradients, target="cuda")
        if result.returncode == 2:
            self.assertIn("[no-device]", result.stderr)
            return
        self.assertEqual(result.returncode, 0, result.stderr)
        got = [self.result(name)[1] for name in ("dq", "dk", "dv", "grad_bias")]
        self.done(*mods, *gradients)
        for one, name in zip(got, ("dq", "dk", "dv", "grad_bias")):
            self.close(one, self.result(name)[1], within=1e-4)

    def test_bench_of_a_gpu(self):
        said = self.bench("--target", "cuda", "--row", "causal", "--dtype", "bf16", "--seq", "256", "--json")
        if said.returncode == 2:
            self.assertIn("[no-device]", said.stderr)
            return
        row = json.loads(said.stdout)
        self.assertEqual((said.returncode, row["row"], row["direction"]), (0, "causal", "forward"))
        seconds = row["seconds"]
        self.assertTrue(0 < seconds["best"] <= seconds["p10"] <= seconds["median"] <= seconds["p90"])
        self.assertIn("forward_sm", row["kernel"])
        for direction in "backward", "step":
            said = self.bench("--target", "cuda", "--row", "relative", "--dtype", "bf16", "--seq", "256", "--json",
                              f"--{direction}", "--grads")
            row = json.loads(said.stdout)
            self.assertEqual((said.returncode, row["direction"], row["grads"]), (0, direction, True))
            names = [one["kernel"].split("_")[0] for one in row["kernels"]]
            self.assertEqual(names, ["forward"] * (direction == "step") + ["queries", "keys"])

        said = self.bench("--target", "cuda", "--row", "window", "--dtype", "bf16", "--decode", "--kv-len", "random:2000",
                          "--batch", "3", "--heads", "8", "--kv-heads", "2", "--page-size", "16", "--json")
        row = json.loads(said.stdout)
        self.assertEqual((said.returncode, row["page_size"], len(row["kv_lengths"])), (0, 16, 3))
        self.assertIn("decode_sm", row["kernel"])
        self.close([row["gb_s"]["best"] * row["seconds"]["best"] * 1e9], [row["kv_bytes"]])

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_bench_of_a_decoder(self):
        sizes = ["--heads", "8", "--kv-heads", "2", "--d", "24", "--dv", "40", "--row", "window"]
        keys = {"100,2000,777": 100 + 1024 + 777, "1500": 1024}
        for given, read in keys.items():
            for pages in [], ["--page-size", "1"], ["--page-size", "64"]:
                said = self.bench("--decode", "--kv-len", given, *pages, *sizes, "--json")
                self.assertEqual((said.returncode, said.stderr), (0, ""))
                row = json.loads(said.stdout)
                self.assertEqual((row["seq"], row["batch"], row["decode"]), (1, given.count(",") + 1, True))
                self.assertEqual(row["kv_seq"], max(map(int, given.split(","))))
                self.assertEqual(row.get("page_size"), int(pages[1]) if pages else None)
                # 2 key heads, 4 bytes; 8 heads with two flop for each column of a kept pair.
                self.assertEqual(row["kv_bytes"], read * 2 * (24 + 40) * 4)
                self.close([row["gb_s"]["median"] * row["seconds"]["median"] * 1e9], [row["kv_bytes"]])
                self.close([row["gflops"]["best"] * row["seconds"]["best"] * 1e9], [read * 8 * 2 * (24 + 40)])
        # Four queries see 1024 keys each, and 1027 in all.
        row = json.loads(self.bench("--decode", "--seq", "4", "--kv-len", "1500", *sizes, "--json").stdout)
        self.assertEqual(row["kv_bytes"], 1027 * 2 * (24 + 40) * 4)
        rows = [json.loads(self.bench("--decode", "--batch", "5", "--kv-len", "random:99", *sizes, "--json").stdout)
                for _ in range(2)]
        self.assertEqual(rows[0]["kv_lengths"], rows[1]["kv_lengths"])
        self.assertTrue(len(set(rows[0]["kv_lengths"])) > 1 and 1 <= min(rows[0]["kv_lengths"]) <= rows[0]["kv_seq"] <= 99)
        said = self.bench("--decode", "--kv-len", "90", "--page-size", "16", *sizes)
        self.assertIn("S=1x90, pages of 16, D=24/40", said.stdout)
        self.assertTrue(said.stdout.splitlines()[1].endswith("GB/s"))
        for wrong in ["--page-size", "4"], ["--kv-len", "5,4"], ["--kv-len", "random:5"], ["--decode", "--step"], [
                "--decode", "--kv-len", "many"], ["--decode", "--kv-len", "5,,4"]:
            self.refused("bad-usage", "bench", *wrong)
        for wrong in ["--kv-len", "4,0"], ["--kv-len", "random:0"], ["--kv-len", "3", "--seq", "4"], ["--page-size", "0"]:
            self.refused("bad-size", "bench", "--decode", *wrong)
        self.assertIn("--kv-len cannot be 0", self.refused("bad-size", "bench", "--decode", "--kv-len", "0"))
        self.refused("bad-usage", "tune", "--row", "full", "--kv-len", "5,4", fix="--decode")

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_bench_of_a_step(self):
        flop = {}
        for direction in [], ["--backward"], ["--step"]:
            said = self.bench("--row", "alibi", "--seq", "128", "--d", "32", "--json", *direction,
                              *(["--grads"] if direction else []))
            self.assertEqual((said.returncode, said.stderr), (0, ""))
            row = json.loads(said.stdout)
            self.assertEqual(row["direction"], direction[0][2:] if direction else "forward")
            flop[row["direction"]] = row["gflops"]["best"] * row["seconds"]["best"]
        self.assertAlmostEqual(flop["backward"] / flop["forward"], 2.5)
        self.assertAlmostEqual(flop["step"] / flop["forward"], 3.5)
        self.refused("bad-usage", "bench", "--step", "--backward")
        self.refused("bad-usage", "bench", "--grads")

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_verify_of_a_backward(self):
        for row, name in [("alibi", "slope"), ("relative", "table"), ("window", None)][:1 if SANITIZED else 3]:
            said = self.attune("verify", "--row", row, "--backward", "--calls", "3", "--target", "cpu", "--json")
            self.assertEqual((said.returncode, said.stderr), (0, ""), said.stdout)
            for line in map(json.loads, said.stdout.splitlines()):
                self.assertTrue(line["good"] and {"o", "lse", "dq", "dk", "dv", *([name] if name else [])} <= set(line))

    def test_sources_of_a_backward(self):
        documents = ["--mask", "doc[q] == doc[kv]", "--capture", "doc=i32[8192]"]
        by_head = ["--score", "s + bias[h]", "--capture", "bias=f32[16]", *documents]
        by_key = ["--score", "s + bias[kv]", "--capture", "bias=f32[8192]", *documents]
        by_distance = ["--score", "s + bias[q - kv + 8192]", "--capture", "bias=f32[16384]", *documents]
        by_query = ["--prob", "p * bias[q]", "--capture", "bias=f32[8192]", *documents]
        hopper = ["rows", "backward_sm90", "end_queries_sm90", "repair_sm80"]
        for mods, grads, kernels, lists in (
                (by_head, [], hopper, ["table of visits"]),
                (by_head, ["--grads", "bias"], [*hopper, "sum_sinks", "store_sums"], ["table of visits"]),
                (by_key, ["--grads", "bias"], [*hopper, "store_sums"], ["table of visits"]),
                (by_distance, ["--grads", "bias"], [*hopper, "spread_diagonals", "store_sums"], ["table of visits"]),
                (by_query, ["--grads", "bias"], [*hopper, "sum_sinks", "sum_pairs_sm80", "store_sums"], ["table of visits"])):
            said = self.attune("cuda", *mods, "--backward", *grads, "--json")
            sources = json.loads(said.stdout)["sources"]
            self.assertEqual([source["kernel"] for source in sources], kernels)
            said = self.attune("cuda", *mods, "--backward", *grads, "--lists", "--json")
            self.assertEqual([source["of"] for source in json.loads(said.stdout)["sources"]], lists)
        self.assertIn("sums_of_", sources[1]["text"])
        text = self.attune("cuda", *by_head, "--backward").stdout
        self.assertEqual(re.findall(r"^// ---- (.*) ----$", text, re.M),
                         ["rows before", "backward", "dq after", "repair after"])
        self.refused("unknown-capture", "cuda", *by_head, "--backward", "--grads", "bas", fix="bias")

    def test_kernels_by_name(self):
        for verb in "bench", "verify":
            self.refused("bad-usage", verb, "--kernel", "forward_sm90")
            self.refused("bad-usage", verb, "--exact", "true")
        self.refused("bad-usage", "bench", "--paced")
        self.refused("bad-usage", "bench", "--cover", "once")
        self.refused("bad-usage", "bench", "--lengths", "10,20")
        self.refused("bad-size", "bench", "--target", "cuda", "--lengths", "10,0")
        self.refused("bad-choice", "bench", "--target", "cuda", "--cover", "twice")
        self.refused("bad-kernel", "cuda", "kv <= q", "--kernel", "forward_sm90:n=100")
        self.refused("bad-kernel", "cuda", "kv <= q", "--kernel", "forward_sm90:n")
        said = self.attune("cuda", "kv <= q", "--kernel", "forward_sm90:n=96,issue_order=2", "--json")
        (one,) = json.loads(said.stdout)["candidates"]
        self.assertTrue(one["variant"].startswith("forward_sm90:m=128,n=96,"), one)
        self.assertIn("issue_order=2", one["variant"])

    def test_kernels_as_exact_as_they_are_asked_to_be(self):
        self.refused("bad-usage", "--exact", "true")
        self.refused("bad-choice", "--exact", "yes")
        for arguments in ["cuda", "s"], ["explain", "s"], ["bench"], ["tune"], ["verify"]:
            self.refused("bad-choice", *arguments, "--exact", "yes")
        for dtype, usual in ("f32", "exact"), ("f16", "fast"), ("bf16", "fast"):
            for asked, space in ([], usual), (["--exact", "true"], "exact"), (["--exact", "false"], "fast"):
                source = self.attune("cuda", "kv <= q", "--dtype", dtype, *asked).stdout
                self.assertIn(f"namespace attune::{space} ", source)

        def explained(*asked):
            return self.attune("explain", "kv <= q", "--target", "cuda", "--arch", "90", "--dtype", "f32", "--d", "64",
                               "--seq", "512", "--json", *asked, **KEPT)

        if "[no-compiler]" in explained().stderr:
            return
        usual, exact, fast = (json.loads(explained(*asked).stdout)["cuda"]
                              for asked in ([], ["--exact", "true"], ["--exact", "false"]))
        self.assertEqual(usual, exact)
        self.assertEqual((usual.get("exact"), fast["exact"]), (None, False))
        self.assertLess(fast["bound"]["products_seconds"], usual["bound"]["products_seconds"])

    def test_kernels_explained(self):
        said = self.attune("explain", "kv <= q", "--target", "cuda", "--arch", "90", "--d", "64", "--json", **KEPT)
        if "[no-compiler]" in said.stderr:
            return
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        cuda = json.loads(said.stdout)["cuda"]
        self.assertEqual((cuda["cover"], cuda["mod"], cuda["arch"]), ("causal", "scaled", 90))
        verdicts = [c["verdict"] for c in cuda["candidates"]]
        self.assertEqual(verdicts.count("chosen"), 1)
        self.assertTrue(all((c["flaw"] != "") == (c["verdict"] == "skipped") or c["verdict"] != "skipped"
                            for c in cuda["candidates"]))
        self.assertGreater(cuda["candidates"][0]["registers"], 0)
        old = self.attune("explain", "kv <= q", "--target", "cuda", "--arch", "80", "--d", "64", **KEPT).stdout
        self.assertIn("note     not forward_sm90: it is for compute capability 9.0", old)

    def test_bounds_explained(self):
        def explained(*asked):
            said = self.attune("explain", "--target", "cuda", *asked, **KEPT)
            return "" if "[no-compiler]" in said.stderr else self.assertEqual(said.stderr, "") or said.stdout

        plain = explained("kv <= q", "--card", "H100", "--seq", "16384")
        if not plain:
            return
        self.assertIn("by the data sheet of H100", plain)
        self.assertRegex(plain, r"memory .* at 3.35 TB/s")
        self.assertRegex(plain, r"expected \d+ TFLOP/s   — H\d00: D=128, causal, S=16384, docs/results/gpu-forward")
        self.assertNotIn("random numbers", plain)
        # The kernels are the portable ones, and what they add up does not fit in memory.
        said = explained("--score", "s + bias[h, q, kv]", "--capture", "bias=bf16[16,4096,4096]", "--prob",
                         "random(7) < 0.9f ? p : 0.0f", "--seq", "4096", "--d", "32", "--backward", "--card", "A10")
        self.assertIn("104 bytes an element, 27.9 GB", said)
        self.assertIn("does not fit: A10 has 24 GB, and the call needs 29.0 GB", said)
        self.assertIn("1 random number a pair", said)
        self.assertRegex(said, r"bound .* — memory\n")
        self.assertIn("expected not measured: the mod is of several kinds of attune support", said)
        # dS is stored, and not summed exactly.
        stored = explained("--score", "s + bias[h, q, kv]", "--capture", "bias=bf16[16,512,512]", "--backward",
                           "--arch", "90", "--seq", "512", "--d", "64")
        self.assertIn("of each pair: the kernel stores dS", stored)
        self.assertIn("up to 2 bytes a pair, none if the gradient is dS itself, 8.4 MB", stored)
        self.assertNotIn("does not fit", stored)
        self.assertIn("expected not measured: docs/results has no backward bf16 D=64/64 dense", stored)
        self.refused("bad-choice", "explain", "kv <= q", "--target", "cuda", "--card", "H99", fix="H100")
        self.refused("bad-usage", "explain", "kv <= q", "--card", "H100", fix="--target cuda")
        self.refused("bad-usage", "explain", "kv <= q", "--target", "cuda", "--card", "H100", "--arch", "80")

    def test_sizes_that_no_call_can_have(self):
        calls = {"explain": ["kv <= q", "--target", "cpu"], "bench": ["--row", "causal"], "cuda": ["kv <= q"],
                 "report": ["kv <= q", "--target", "cpu"]}
        for verb, arguments in calls.items():
            for option in "--d", "--dv", "--seq", "--kv-seq":
                for size in 0, 2 ** 30 + 1, 2 ** 31, 2 ** 63 - 1:
                    said = self.refused("bad-size", verb, *arguments, option, size)
                    self.assertIn("it is a whole number from 1 to 1073741824", said)
        for verb in "explain", "bench":
            for sizes in (["--heads", 2 ** 31], ["--batch", 2 ** 31], ["--kv-heads", 2 ** 31]):
                self.refused("bad-size", verb, *calls[verb], *sizes)
            for sizes in (["--seq", 2 ** 30, "--batch", 8], ["--seq", 2 ** 30, "--heads", 4, "--batch", 4],
                          ["--seq", 1, "--d", 2 ** 30, "--batch", 2 ** 30]):
                self.assertIn("2^63", self.refused("bad-size", verb, *calls[verb], *sizes))
        # Rows are counted one by one, which took a minute.
        start = time.monotonic()
        for most in ["--seq", 2 ** 30, "--heads", 1], ["--seq", 2 ** 24, "--heads", 8, "--mask", "kv <= q + h"]:
            said = self.refused("bad-size", "explain", *(["kv <= q"] if "--mask" not in most else []), "--target",
                                "cpu", *most)
            self.assertIn("too many rows of pairs", said)
        self.assertLess(time.monotonic() - start, 20)

    def test_fixes_name_what_was_meant(self):
        self.refused("bad-usage", "explain", "kv <= q", "--target", "cuda", "--arch", "sm_90a", fix="--arch 90")
        self.refused("bad-usage", "explain", "kv <= q", "--arch", "90", fix="--target cuda")
        self.assertIn("-o,--svg needs a value", self.refused("bad-usage", "plot", "kv <= q", "-o"))
        self.refused("missing-arguments", "print", "causal", fix="causal()")
        self.refused("missing-arguments", "print", "alibi", fix="alibi(slope)")
        self.refused("bad-declaration", "print", "s", "--capture", "slope=f32[8", fix="slope=f32[16, 256]")
        self.refused("bad-declaration", "print", "s", "--capture", "slope=f33[8]", fix="slope=f32[16, 256]")
        self.refused("bad-declaration", "print", "s", "--capture", "slope=f16", fix="slope=f16[16, 256]")
        self.refused("bad-usage", "explain", "kv <= q", "--heads", "32/8", fix="--heads 32 --kv-heads 8")
        self.refused("bad-usage", "explain", "kv <= q", "--d", "192/128", fix="--d 192 --dv 128")
        self.refused("bad-usage", "plot", "kv <= q", "--heads", "32/8", fix="--heads 4096")
        self.refused("unknown-capture", "plot", "s + slope[h]", "--capture", "slope=f32[8]", "--fill", "slop=normal",
                     fix="captures are slope")
        twice = self.refused("bad-usage", "print", "--mask", "kv <= q", "--mask", "kv < q", fix="leave out the others")
        self.assertIn("--mask is given more than once", twice)

    def test_sizes_of_ranks_have_the_names_of_other_verbs(self):
        ranks = ["ranks", "kv <= q", "--ranks", "2", "--json"]
        short = self.attune(*ranks, "--seq", "4096", "--kv-seq", "4096", "--heads", "8", "--kv-heads", "2")
        full = self.attune(*ranks, "--q-len", "4096", "--kv-len", "4096", "--heads", "8/2")
        self.assertEqual((short.returncode, short.stderr, short.stdout), (0, "", full.stdout))

    def test_heads_that_share_no_keys(self):
        for verb in ["explain", "kv <= q"], ["explain", "kv <= q", "--target", "cuda"], ["bench"], ["tune"]:
            self.refused("head-groups", *verb, "--heads", "4", "--kv-heads", "3", fix="--kv-heads")

    def test_numbers_of_options(self):
        for wrong in (["cuda", "s", "--heads", 0], ["cuda", "s", "--heads", 2 ** 40], ["bench", "--graph", 0],
                      ["plot", "s", "--random", 0], ["plot", "s", "--random", 1025], ["verify", "--calls", 0],
                      ["bench", "--seconds", "inf"], ["bench", "--seconds", "nan"], ["tune", "--limit", "-1"],
                      ["cover", "kv <= q", "--limit", "-1"], ["cover", "kv <= q", "--limit", "nan"]):
            said = self.refused("bad-size", *wrong)
            self.assertIn(f"{wrong[-2]} cannot be {wrong[-1]} ", said)
            self.assertLess(max(map(len, said.splitlines())), 100)
        for verb in "cuda", "bench", "plot", "report":
            self.assertNotRegex(self.attune(verb, "--help").stdout, r"POSITIVE|INT in")
        for verb in "plot", "report":
            for scale in "nan", "inf", "1e39":
                self.refused("bad-scale", verb, "kv <= q", "--scale", scale)

    def test_pictures_of_too_many_tiles(self):
        start = time.monotonic()
        for verb in "plot", "report":
            self.assertIn("67 108 864", self.refused("bad-size", verb, "kv <= q", "--q-len", 2 ** 30))
        self.assertIn("4 294 967 296", self.refused("bad-size", "plot", "q * kv % 7 == 0", "--q-len", 2 ** 20))
        self.assertLess(time.monotonic() - start, 20)

    def test_tuning_needs_a_gpu(self):
        self.refused("bad-size", "tune", "--seconds", "0")
        self.refused("bad-choice", "tune", "--row", "slanted")
        self.refused("bad-choice", "tune", "--row", "causal", "--progress", "nope", fix="plain")

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_verify(self):
        said = self.attune("verify", "--score", "s + slope[h] * f32(kv - q)", "--capture", "slope=f32[6]", "--calls",
                           "3", "--json")
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        lines = [json.loads(line) for line in said.stdout.splitlines()]
        self.assertEqual([line["dtype"] for line in lines], ["bf16", "f16", "f32"])
        for line in lines:
            self.assertTrue(line["good"])
            self.assertTrue(0 <= line["o"]["error"] <= line["o"]["allowed"] < 0.1)
        self.refused("bad-size", "verify", "--calls", "0")

    def test_sources_of_cuda(self):
        said = self.attune("cuda", "--score", "s + slope[h] * f32(kv - q)", "--capture", "slope=f32[16]")
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        self.assertIn("struct User {", said.stdout)
        self.assertIn("forward_sm90", said.stdout)
        old = json.loads(self.attune("cuda", "kv <= q", "--arch", "80", "--dtype", "f32", "--d", "40", "--json").stdout)
        self.assertEqual((old["kernel"], old["candidates"][0]["kernel"]), ("forward_sm80", "forward_sm80"))
        self.assertIn("compute capability", old["story"])
        for width, load, store in (100, 8, 8), (98, 4, 4), (33, 0, 0):
            source = self.attune("cuda", "s", "--arch", "90", "--dtype", "f16", "--d", width).stdout
            self.assertIn("forward_sm80", source)
            self.assertIn(f"static constexpr int vector = {load};", source)
            self.assertIn(f"static constexpr int store = {store};", source)
        lists = self.attune("cuda", "doc[q] == doc[kv]", "--capture", "doc=i32[64]", "--lists")
        self.assertEqual(lists.returncode, 0)
        self.assertIn("cover", lists.stdout)
        self.refused("no-lists", "cuda", "kv <= q", "--lists")
        self.refused("bad-size", "cuda", "kv <= q", "--d", "0")
        self.refused("engine-width", "cuda", "kv <= q", "--d", "300")
        self.refused("engine-arch", "cuda", "kv <= q", "--arch", "75")
        for verb in (("cuda",), ("explain", "--target", "cuda")):
            self.refused("unknown-target", verb[0], "kv <= q", *verb[1:], "--arch", "95")
        self.refused("bad-choice", "cuda", "kv <= q", "--dtype", "f64")

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_the_engine_computes_in_f32(self):
        self.qkv(kind="f8")
        result = self.run_attention(target="cpu")
        self.assertEqual(result.returncode, 2)
        self.assertIn("[engine-type]", result.stderr)
        self.assertIn("--dtype f32", result.stderr)
        self.assertFalse(self.out.exists())
        self.done("--dtype", "f32", target="cpu")

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_the_environment(self):
        self.qkv()
        run = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", self.out]
        told = self.attune(*run, ATTUNE_CPU="avx1024")
        self.assertEqual(told.returncode, 2)
        self.assertIn("[option-value]", told.stderr)
        self.assertIn("ATTUNE_THREADS", self.attune(*run, ATTUNE_THREADS="0").stderr)
        self.assertFalse(self.out.exists())
        # Every instruction set either gives the same result or is not there on this machine.
        ran, wanted = [], None
        for isa in ("portable", "avx2", "avx512", "avx512bf16", "amx"):
            said = self.attune(*run, ATTUNE_CPU=isa, ATTUNE_THREADS="2")
            if said.returncode == 0:
                ran.append(isa)
                out = self.result("out")[1]
                self.close(out, wanted or out, within=2e-6)
                wanted = wanted or out
            else:
                self.assertEqual(said.returncode, 2)
                self.assertIn(f"ATTUNE_CPU asks for {isa}", said.stderr)
                self.assertIn(f"this machine supports at most {ran[-1]}", said.stderr)
        self.assertIn("portable", ran)

    def bench(self, *arguments):
        return self.attune("bench", "--seconds", "0.01", *arguments)

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_bench(self):
        sizes = ["--batch", "2", "--heads", "4", "--kv-heads", "2", "--seq", "130", "--kv-seq", "100", "--d", "24",
                 "--dv", "40"]
        said = self.bench("--row", "causal", "--row", "alibi", "--threads", "1", "2", "--json", *sizes)
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        rows = [json.loads(line) for line in said.stdout.splitlines()]
        self.assertEqual([(r["row"], r["threads"]) for r in rows],
                         [("causal", 1), ("causal", 2), ("alibi", 1), ("alibi", 2)])
        for r in rows:
            self.assertEqual([r[key] for key in ("direction", "dtype", "batch", "heads", "kv_heads", "seq", "kv_seq",
                                                 "d", "dv")], ["forward", "f32", 2, 4, 2, 130, 100, 24, 40])
            self.assertIn(r["isa"], ("portable", "avx2", "avx512", "avx512bf16", "amx"))
            self.assertGreaterEqual(r["runs"], 5)
            times = r["seconds"]
            self.assertLess(0, times["best"])
            self.assertTrue(times["best"] <= times["p10"] <= times["median"] <= times["p90"])
            # Row i keeps i + 1 keys of 100; two flop for each of the 24 + 40 columns.
            flop = 2 * 4 * sum(min(i + 1, 100) for i in range(130)) * 2 * (24 + 40)
            self.close([r["gflops"]["best"] * times["best"] * 1e9, r["gflops"]["median"] * times["median"] * 1e9],
                       [flop, flop])
            self.close([r["percent_of_peak"]["best"]],
                       [100 * r["gflops"]["best"] / (r["peak_gflops_one_thread"] * r["threads"])])
            self.assertGreater(r["first_call_seconds"], 0)
            self.assertEqual(sorted(r["stages"]), ["attend", "pack", "visits"])
            self.assertLessEqual(sum(r["stages"].values()), times["best"])

    @unittest.skipUnless(ENGINE, "built without the CPU engine")
    def test_bench_as_a_table(self):
        said = self.bench("--seq", "64", "--d", "16", "--dtype", "bf16")
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        self.assertEqual([line.split()[0] for line in said.stdout.splitlines()],
                         ["bf16", "row", "full", "causal", "alibi", "softcap", "document", "window", "prefix",
                          "relative"])
        said = self.bench("--seq", "64", "--d", "16", "--score", "s + bias[q, kv]", "--mask", "doc[q] == doc[kv]",
                          "--capture", "bias=f32[64,64]", "--capture", "doc=i32[64]")
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        self.assertEqual([line.split()[0] for line in said.stdout.splitlines()], ["f32", "row", "own"])

    def test_bench_beside_a_cache_of_e4m3(self):
        said = self.bench("--row", "causal", "--decode", "--seq", "4", "--kv-seq", "64", "--d", "16", "--cache-dtype", "e4m3", "--json")
        line = json.loads(said.stdout)
        self.assertEqual((line["dtype"], line["cache_dtype"]), ("f32", "e4m3"))
        self.refused("bad-choice", "bench", "--cache-dtype", "f16")
        for direction in "--backward", "--step":
            self.refused("bad-usage", "bench", "--cache-dtype", "e4m3", direction)

    def test_e4m3(self):
        self.refused("bad-usage", "bench", "--dtype", "e4m3", "--backward")
        self.refused("engine-type", "cuda", "kv <= q", "--arch", "80", "--dtype", "e4m3", fix="bf16")
        self.assertIn("forward_e4m3_sm90", self.attune("cuda", "kv <= q", "--arch", "90", "--dtype", "e4m3").stdout)
        self.qkv()
        self.done("--dtype", "e4m3")
        exact = self.result("out")[1]
        self.done("--dtype", "e4m3", target="cpu")
        self.close(self.result("out")[1], exact)
        self.done()
        self.assertNotEqual(self.result("out")[1], exact)
        line = json.loads(self.bench("--row", "causal", "--seq", "64", "--d", "16", "--dtype", "e4m3", "--json").stdout)
        self.assertEqual(line["dtype"], "e4m3")

    def test_mistakes_of_a_bench(self):
        self.refused("bad-choice", "bench", "--row", "causl", fix="causal")
        self.refused("bad-choice", "bench", "--target", "oracle")
        self.refused("bad-choice", "bench", "--dtype", "f64")
        for option in ("--batch", "--heads", "--kv-heads", "--seq", "--kv-seq", "--d", "--dv", "--threads",
                       "--seconds"):
            self.refused("bad-size", "bench", option, "0", fix=option)
            self.refused("bad-size", "bench", option, "-1")
            self.refused("bad-usage", "bench", option, "many")
        self.refused("head-groups", "bench", "--heads", "3", "--kv-heads", "2")
        self.refused("unknown-name", "bench", "--mask", "kv <= w")

    def test_plain_words(self):
        self.assertIn("write one of these", self.refused("bad-choice", "bench", "--row", "nope"))
        (self.at / "my.mod").write_text("mask kv <= q\n")
        self.refused("no-expression", "explain", "my.mod", fix="write --mod my.mod")
        self.refused("wrong-type", "print", "(q ^ kv) & 1 == 0", fix="write ((q ^ kv) & 1) == 0")
        sizes = [self.attune("cover", "kv <= q", *names, "--json", "--no-picture").stdout.split('"derive_us"')[0]
                 for names in (["--q-len", "64", "--kv-len", "32"], ["--seq", "64", "--kv-seq", "32"])]
        self.assertEqual(*sizes)
        for names in ["--q-len", "64", "--kv-len", "32"], ["--seq", "64", "--kv-seq", "32"]:
            said = self.attune("bench", "--row", "full", *names, "--target", "cpu", "--seconds", "0.01", "--json")
            if ENGINE:
                self.assertEqual((json.loads(said.stdout)["seq"], json.loads(said.stdout)["kv_seq"]), (64, 32))
        self.numbers("q", [2, 3, 4])
        self.numbers("k", [2, 3, 4])
        self.numbers("v", [2, 3, 4])
        self.assertNotIn("::", self.refused("tensor-rank"))

    def test_verbs(self):
        self.refused("unknown-verb", "rnu", fix="run")
        self.assertEqual(self.attune().returncode, 2)
        for verb in ("run", "print", "grad", "explain", "cover", "bench", "cuda"):
            said = self.attune(verb, "--help")
            self.assertEqual(said.returncode, 0)
            self.assertIn(f"attune {verb} ", said.stdout)
            self.assertIn("\nEXAMPLES\n", said.stdout)
        self.refused("bad-usage", "run", "--q", "q.npy")

    def test_help_of_a_verb(self):
        for verb in ("cover",), ("cache", "ls"), ():
            self.assertEqual(self.attune("help", *verb).stdout, self.attune(*verb, "--help").stdout)
        self.refused("unknown-verb", "help", "covr", fix="cover")

    def test_an_expression_may_stand_alone(self):
        of_a_mask = {"kv <= q": ["--mask", "kv <= q"], "s + 1.0f": ["--score", "s + 1.0f"]}
        for alone, option in of_a_mask.items():
            for verb in ["verify", "--calls", "1", "--seed", "3"], ["print"]:
                self.assertEqual(self.attune(verb[0], alone, *verb[1:]).stdout, self.attune(*verb, *option).stdout)
            said = self.attune("bench", alone, "--target", "cpu", "--seq", "64", "--d", "32", "--seconds", "0.01", "--json")
            self.assertEqual(json.loads(said.stdout.splitlines()[0])["row"], "own", said.stderr)
            self.assertEqual(self.attune("compile", alone, "--target", "avx2", "-o", "alone.attune").returncode, 0)
            self.assertEqual(self.attune("compile", *option, "--target", "avx2", "-o", "option.attune").returncode, 0)
            self.assertEqual((self.at / "alone.attune").read_bytes(), (self.at / "option.attune").read_bytes())
        self.refused("expression-twice", "print", "kv <= q", "--mask", "q <= kv")
        self.refused("expression-twice", "print", "s", "--score", "s + 1.0f")

    def test_a_mod_may_come_from_a_file(self):
        (self.at / "near.mod").write_text("param w=64\nlet far=q - kv\nmask kv <= q && far < w\n")
        written = ["--param", "w=64", "--let", "far=q - kv", "--mask", "kv <= q && far < w"]

        def tiles(*of):
            return json.loads(self.attune("cover", *of, "--q-len", "512", "--json").stdout)["tiles"]

        of_the_file, nearer = tiles("--mod", "near.mod"), tiles("--mod", "near.mod", "--param", "w=1")
        self.assertEqual(of_the_file, tiles(*written))
        self.assertEqual(nearer, tiles(*["w=1" if x == "w=64" else x for x in written]))
        self.assertNotEqual(nearer, of_the_file)
        said = self.attune("print", "s * 2.0f", "--mod", "near.mod", "--mask", "far < 3")
        self.assertEqual((said.returncode, said.stdout), (0, "score       s * 2.0f\nmask        q - kv < 3\n"))
        self.refused("expression-twice", "print", "kv <= q", "--mod", "near.mod")
        self.refused("file-missing", "print", "--mod", "far.mod")
        (self.at / "bad.mod").write_text("msk kv <= q\n")
        self.refused("bad-mod", "print", "--mod", "bad.mod", fix="mask")

    def test_what_is_hardly_meant(self):
        said = self.attune("print", "s + f32(1/2*kv) + f32(q/2) + 1.0f/2.0f + f32(0/2)")
        self.assertEqual(said.stderr, "attune: `1 / 2` is 0, since both are Ints; write 1.0 / 2.0 for Floats\n")
        said = self.attune("bench", "s * cap", "--param", "cap=2.0", "--param", "w=3", "--capture", "slope=f32[4]",
                           "--target", "cpu", "--seq", "32", "--seconds", "0.01", "--json")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual(said.stderr, "attune: no expression reads the parameter `w`\n"
                                      "attune: no expression reads the captured tensor `slope`\n")
        self.assertEqual(self.attune("explain", "s * cap", "--param", "cap=2.0").stderr, "")

    def test_print(self):
        said = self.attune("print", "kv <= q && q - kv < 1024")
        self.assertEqual((said.returncode, said.stdout), (0, "mask        kv <= q && q - kv < 1024\n"))
        said = json.loads(self.attune("print", "--score", "-s * 1.0", "--json").stdout)
        self.assertEqual(said["score"]["text"], "-s * 1.0f")
        self.assertEqual(said["score"]["simplified"], "-s")
        self.refused("no-expression", "print")
        self.refused("unknown-name", "print", "s + slope[h]")
        self.refused("bad-declaration", "print", "s", "--capture", "slope=f32[x]")

    def test_grad(self):
        said = self.attune("grad", "s * slope[h]", "--capture", "slope=f32[16]")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("d score / d s = slope[h]", said.stdout)
        self.assertIn("slope[h] += s", said.stdout)
        self.refused("no-derivative", "grad", "kv <= q")

    def test_explain(self):
        said = self.attune("explain", "--score", "s + slope[h] * f32(kv - q)", "--mask", "kv <= q", "--capture",
                           "slope=f32[16]")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("cancels along a row", said.stdout)
        said = json.loads(self.attune("explain", "30.0f * tanh(s / 30.0f)", "--json").stdout)
        self.assertTrue(said["bounded"])
        self.assertFalse(said["affine"])

    def cover(self, *arguments):
        said = self.attune("cover", *arguments, "--json")
        self.assertEqual(said.returncode, 0, said.stderr)
        return json.loads(said.stdout)

    def test_cover_counts(self):
        said = self.cover("kv <= q", "--q-len", "100", "--tile", "32x16")
        self.assertEqual(said["extent"], {"batch": 1, "heads": 1, "q_len": 100, "kv_len": 100, "q_offset": 0,
                                          "tile": [32, 16]})
        # Rows of tiles begin at queries 0, 32, 64 and 96. Each has 7 tiles of keys.
        self.assertEqual(said["tiles"], {"total": 28, "live": 2 + 4 + 6 + 7, "full": 0 + 2 + 4 + 6, "partial": 7,
                                         "empty": 9, "sparsity": 9 / 28})
        self.assertEqual(said["pairs"], {"total": 10000, "kept": 5050})
        self.assertEqual(said["along_kv"]["form"], "closed form")
        self.assertTrue(said["along_kv"]["closed"])
        self.assertEqual(said["along_kv"]["keeps"], [{"begin": "0", "end": "min(kv_len, q_end)", "exact": True}])
        self.assertEqual(said["along_q"]["stops"], [])
        self.assertEqual(said["lists"]["rows"], 4)
        for time in ("derive_us", "summarise_us", "list_us"):
            self.assertGreater(said[time], 0)
        turned = self.cover("kv <= q", "--q-len", "100", "--tile", "32x16", "--along", "q")
        self.assertEqual(turned["tiles"], said["tiles"])
        self.assertEqual(turned["lists"]["rows"], 7)
        later = self.cover("kv <= q", "--q-len", "1", "--q-offset", "99", "--tile", "16")
        self.assertEqual((later["extent"]["kv_len"], later["tiles"]["full"]), (100, 7))

    def test_cover_of_heads_and_data(self):
        write_npy(self.at / "w.npy", [2], [1, 100], kind="i4")
        said = self.cover("kv <= q && q - kv < w[h]", "--capture", "w=w.npy", "--q-len", "64", "--tile", "16",
                          "--batch", "3", "--heads", "2")
        self.assertEqual((said["by_batch"], said["by_head"]), (False, True))
        self.assertEqual(said["tiles"]["live"], 3 * (4 + 10))
        self.assertEqual(said["pairs"]["kept"], 3 * (64 + 64 * 65 // 2))
        write_npy(self.at / "doc.npy", [64], [i // 20 for i in range(64)], kind="i4")
        said = self.cover("doc[q] == doc[kv]", "--capture", "doc=doc.npy", "--q-len", "64", "--tile", "8")
        self.assertEqual(said["pairs"]["kept"], 3 * 400 + 16)
        self.assertIn("sorted of doc", said["data"])
        self.assertTrue(said["along_kv"]["form"].startswith("closed form if"))

    def test_cover_without_data(self):
        declared = ["doc[q] == doc[kv]", "--capture", "doc=i32[64]"]
        said = self.cover(*declared)
        self.assertIsNone(said["tiles"])
        self.assertIn("doc", said["no_tiles"])
        self.assertTrue(said["along_kv"]["keeps"])
        said = self.attune("cover", *declared)
        self.assertEqual(said.returncode, 0)
        self.assertIn("--capture doc=FILE.npy", said.stdout)
        self.refused("no-data", "cover", *declared, "--svg", "doc.svg", fix="doc=FILE.npy")
        self.assertFalse((self.at / "doc.svg").exists())
        # A capture that the mask does not read may be anything.
        self.assertIsNotNone(self.cover("kv <= q", "--capture", "doc=i32[64]")["tiles"])

    def test_cover_of_a_score(self):
        said = self.cover("where(kv <= q, s + slope[h], -inf)", "--capture", "slope=f32[4]", "--q-len", "64")
        self.assertEqual(said["mask"], "kv <= q")
        self.assertEqual(said["pairs"]["kept"], 64 * 65 // 2)  # slope may be unknown: it removes nothing
        self.assertEqual(self.cover("s + 1.0f", "--q-len", "64")["pairs"]["kept"], 64 * 64)

    def test_cover_says_what_stops_it(self):
        said = self.cover("(q + kv) % 3 == 0", "--q-len", "64", "--tile", "8")
        self.assertFalse(said["along_kv"]["closed"])
        self.assertEqual(said["along_kv"]["stops"][0]["at"], "(q + kv) % 3 == 0")
        self.assertEqual(said["pairs"]["kept"], sum((q + k) % 3 == 0 for q in range(64) for k in range(64)))

    def test_cover_draws(self):
        mask = "kv <= q && q - kv < 20 || kv < 2"
        said = self.attune("cover", mask, "--q-len", "64", "--tile", "8x16", "--svg", "m.svg", "--ascii")
        self.assertEqual(said.returncode, 0, said.stderr)
        rows = re.findall(r"^[.+#]+$", said.stdout, re.M)
        keep = lambda q, k: k <= q and q - k < 20 or k < 2
        tile = lambda r, c: [keep(q, k) for q in range(r * 8, r * 8 + 8) for k in range(c * 16, c * 16 + 16)]
        self.assertEqual(rows, ["".join("#" if all(t) else "+" if any(t) else "." for t in
                                        (tile(r, c) for c in range(4))) for r in range(8)])
        root = xml.etree.ElementTree.parse(self.at / "m.svg").getroot()
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        self.assertEqual(root.find("{http://www.w3.org/2000/svg}title").text, mask)
        self.assertIn("█ full", self.attune("cover", mask, "--q-len", "64", "--tile", "8x16").stdout)
        self.assertNotIn("█", self.attune("cover", mask, "--no-picture").stdout)
        # With many tiles, a cell shows several of them, and the file stays small.
        self.assertEqual(self.attune("cover", mask, "--q-len", "100000", "--svg", "l.svg").returncode, 0)
        xml.etree.ElementTree.parse(self.at / "l.svg")
        self.assertLess((self.at / "l.svg").stat().st_size, 200000)
        self.assertEqual(self.attune("cover", "(q * kv * 7 ^ q + kv) % 5 < 2", "--q-len", "512", "--tile", "8", "--svg",
                                     "n.svg").returncode, 0)
        self.assertLess((self.at / "n.svg").stat().st_size, 200000)

    def ranks(self, *arguments):
        said = self.attune("ranks", *arguments, "--json")
        self.assertEqual(said.returncode, 0, said.stderr)
        return json.loads(said.stdout)

    def test_ranks_assign_and_predict(self):
        said = self.ranks("kv <= q", "--q-len", "1000", "--block", "100", "--ranks", "2", "--assignment", "zigzag")
        self.assertEqual([r["ranges"] for r in said["ranks"]],
                         [[[0, 200], [700, 1000]], [[200, 700]]])
        self.assertEqual([d["assignment"] for d in said["assignments"]], ["zigzag"])
        # Rank 0 lacks keys 200 to 699, rank 1 those before 200, of 8 heads and 512 bytes.
        taken = self.ranks("kv <= q", "--q-len", "1000", "--block", "100", "--ranks", "2", "--assignment", "zigzag",
                           "--travel", "gather", "--groups", "1")
        self.assertEqual([r["received"] for r in taken["ranks"]], [500 * 8 * 512, 200 * 8 * 512])
        self.assertEqual((taken["schedules"][0]["travel"], taken["schedules"][0]["groups"]), ("gather", 1))
        twice = self.ranks("kv <= q", "--q-len", "1000", "--block", "100", "--ranks", "2", "--d", "128/64", "--dtype",
                           "f32", "--heads", "4/1", "--batch", "3", "--assignment", "zigzag", "--travel", "gather")
        self.assertEqual(twice["ranks"][1]["received"], 200 * 3 * (128 + 64) * 4)

    def test_ranks_of_packed_sequences_and_data(self):
        write_npy(self.at / "starts.npy", [4], [0, 300, 300, 512], kind="i4")
        said = self.ranks("kv <= q", "--starts", "starts.npy", "--block", "64", "--ranks", "2", "--assignment", "contiguous")
        self.assertEqual(said["call"]["sequences"], 3)
        self.assertEqual(sum(r["queries"] for r in said["ranks"]), 512)
        self.assertEqual(said["ranks"][1]["ranges"], [[256, 512]])
        write_npy(self.at / "doc.npy", [512], [i // 256 for i in range(512)], kind="i4")
        apart = self.ranks("doc[q] == doc[kv]", "--capture", "doc=doc.npy", "--q-len", "512", "--block", "64",
                           "--ranks", "2", "--travel", "gather")
        self.assertEqual([r["received"] for r in apart["ranks"]], [0, 0])

    def test_ranks_pages_and_pictures(self):
        said = self.attune("ranks", "kv <= q", "--ranks", "3", "--svg", "r.svg")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual(len(re.findall(r"^ +\d [ \d]+\.\d{3}", said.stdout, re.M)), 3)
        self.assertEqual(said.stdout.count("chosen"), 2)
        root = xml.etree.ElementTree.parse(self.at / "r.svg").getroot()
        self.assertEqual(root.find("{http://www.w3.org/2000/svg}title").text, "kv <= q")
        piped = self.attune("ranks", "kv <= q", "--svg", "-")
        self.assertTrue(piped.stdout.startswith("<svg"))
        self.assertIn("--json lists", self.attune("ranks", "kv <= q", "--ranks", "17").stdout)
        several = self.attune("ranks", "kv <= q", "--q-len", "1", "--q-offset", "65535", "--ranks", "2")
        self.assertIn("decode", several.stdout.split("schedules")[1].splitlines()[1])

    def test_ranks_say_why_a_faster_schedule_is_not_chosen(self):
        said = self.attune("ranks", "kv <= q", "--q-len", "2048", "--ranks", "2").stdout
        self.assertRegex(said, r"gather, 1 group .*chosen\n(.*\n)*  ring .*faster, but its bits are not one rank's\n")

    def test_mistakes_of_ranks(self):
        self.refused("bad-size", "ranks", "kv <= q", "--ranks", "0")
        self.refused("bad-size", "ranks", "kv <= q", "--heads", "1.5/1")
        self.refused("bad-number", "ranks", "kv <= q", "--links", "fast")
        self.refused("bad-choice", "ranks", "kv <= q", "--assignment", "fair")
        self.refused("bad-choice", "ranks", "kv <= q", "--travel", "plane")
        self.refused("bad-choice", "ranks", "kv <= q", "--dtype", "i32")
        self.refused("head-groups", "ranks", "kv <= q", "--heads", "64/7")
        self.refused("sharding-how", "ranks", "kv <= q", "--links", "0,45")
        self.refused("sharding-how", "ranks", "kv <= q", "--travel", "heads", "--ranks", "16")
        self.refused("no-data", "ranks", "doc[q] == doc[kv]", "--capture", "doc=i32[512]", fix="doc=FILE.npy")
        write_npy(self.at / "starts.npy", [2], [0.0, 4.0])
        self.refused("cu-seqlens", "ranks", "kv <= q", "--starts", "starts.npy")
        write_npy(self.at / "falls.npy", [3], [0, 5, 4], kind="i4")
        self.refused("cu-seqlens", "ranks", "kv <= q", "--starts", "falls.npy")

    # ATTUNE_APPROVE=1 writes the pages: review the diff.
    def test_cover_pages(self):
        write_npy(self.at / "w.npy", [2], [1, 100], kind="i4")
        write_npy(self.at / "doc.npy", [512], [i // 100 for i in range(512)], kind="i4")
        write_npy(self.at / "ids.npy", [512], [i * 7 % 5 for i in range(512)], kind="i4")
        doc, sizes = ["--capture", "doc=doc.npy"], ["--q-len", "512", "--tile", "32x32"]
        pages = {"causal": ["kv <= q"], "sinks": ["kv <= q && (q - kv < 100 || kv < 4)"],
                 "window_by_head": ["kv <= q && q - kv < w[h]", "--capture", "w=w.npy", "--heads", "2", "--h", "1"],
                 "parameter": ["kv <= q + off", "--param", "off=3"], "documents": ["doc[q] == doc[kv]", *doc],
                 "documents_causal_along_q": ["doc[q] == doc[kv] && kv <= q", *doc, "--along", "q"],
                 "unsorted": ["doc[q] == doc[kv]", "--capture", "doc=ids.npy"],
                 "without_data": ["doc[q] == doc[kv]", "--capture", "doc=i32[512]"],
                 "neighbourhood": ["abs(q % 16 - kv % 16) <= 3 && abs(q / 16 - kv / 16) <= 3", "--ascii"],
                 "floats": ["f32(kv) <= 0.5f * f32(q)", "--no-picture"],
                 "one_query": ["kv <= q", "--q-len", "1", "--q-offset", "511"]}
        for name, arguments in pages.items():
            said = self.attune("cover", *(sizes if name != "one_query" else ["--tile", "32x32"]), *arguments)
            self.assertEqual(said.returncode, 0, said.stderr)
            page = re.sub(r"[0-9.]+ µs", "… µs", said.stdout)
            golden = pathlib.Path(__file__).resolve().parents[1] / f"golden/cover/{name}.txt"
            if os.environ.get("ATTUNE_APPROVE") == "1" and not os.environ.get("CI"):
                golden.parent.mkdir(exist_ok=True)
                golden.write_text(page, encoding="utf-8")
            self.assertEqual(page, golden.read_text(encoding="utf-8"), name)

    LINE = re.compile(r"attune \d\d:\d\d:\d\d\.\d{6} \d+ (\w+) +([0-9a-f]{8}|-) +(\S.*)")

    # The lines of a log as (channel, what it says).
    def logged(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [self.LINE.fullmatch(line) for line in result.stderr.splitlines()]
        self.assertNotIn(None, lines, result.stderr)
        return [(line[1], line[3]) for line in lines]

    WATCHED = ["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "out", "--score", "s + slope[h]", "--mask",
               "kv <= q", "--capture", "slope=slope.npy"]

    def test_log(self):
        self.qkv()
        write_npy(self.at / "slope.npy", [2], [0.5, -0.25])
        run = lambda log, *more: self.attune(*self.WATCHED, *more, ATTUNE_LOG=log, ATTUNE_CACHE=str(self.at / "c"),
                                             ATTUNE_CACHE_SIZE="")
        oracle = self.logged(run("all", "--target", "oracle"))
        self.assertEqual([channel for channel, _ in oracle], ["passes", "launch"])
        self.assertIn("trace", oracle[0][1])
        self.assertIn("forward by oracle on oracle: f32 B=1 H=2/1 S=3x4 D=2/3", oracle[1][1])
        wrong = run("build,lauch", "--target", "oracle")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("it takes passes, choose, cache, build, launch or all", wrong.stderr)
        self.assertIn("write launch if you meant that", wrong.stderr)
        if not ENGINE:
            return
        cold, warm = self.logged(run("all")), self.logged(run("all"))
        self.assertEqual([channel for channel, _ in cold], ["passes", "build", "choose", "build", "launch"])
        self.assertEqual([channel for channel, _ in warm], ["passes", "cache", "choose", "cache", "launch"])
        self.assertIn("compiled in", cold[3][1])
        self.assertIn("found on disk in", warm[3][1])
        # The same kernel has the same key.
        self.assertEqual(cold[3][1].split("key ")[1], warm[3][1].split("key ")[1])
        self.assertEqual({channel for channel, _ in self.logged(run("launch"))}, {"launch"})
        for entry in (self.at / "c/entries").rglob("*"):
            if entry.is_file():
                entry.write_bytes(entry.read_bytes()[:-1])
        said = self.logged(run("cache,build"))
        self.assertEqual([channel for channel, _ in said], ["cache", "build", "cache", "build"])
        self.assertIn("is discarded", said[0][1])

    def test_dump(self):
        if not ENGINE:
            return
        self.qkv()
        write_npy(self.at / "slope.npy", [2], [0.5, -0.25])
        run = lambda dump, **more: self.attune(*self.WATCHED, ATTUNE_DUMP=dump, ATTUNE_CACHE=str(self.at / "c"), **more)
        # The dump is there whether the kernel is compiled or found, and is written once.
        for again in range(2):
            result = run("a folder")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            folders = sorted((self.at / "a folder").iterdir())
            self.assertEqual(len(folders), 2)
        forward = next(f for f in folders if "-forward-f32-" in f.name)
        self.assertEqual(sorted(f.name for f in forward.iterdir()),
                         ["00-attention.mod", "01-steps.txt", "02-lowered.txt", "03-cover.txt", "05-before.ll",
                          "06-after.ll", "07-kernel.o"])
        for file in forward.iterdir():
            self.assertGreater(file.stat().st_size, 0, file)
        self.assertIn("simplify", (forward / "01-steps.txt").read_text())
        self.assertIn("define", (forward / "06-after.ll").read_text())
        self.assertTrue((forward / "07-kernel.o").read_bytes().startswith(b"\x7fELF"))
        # The text in the file gives the attention that the folder is named after.
        arguments = []
        for line in (forward / "00-attention.mod").read_text().splitlines():
            what, rest = line.split(None, 1)
            if what == "capture":
                name, kind, _, rank = rest.split()
                arguments += ["--capture", f"{name}={kind}[{', '.join(['4'] * int(rank))}]"]
            else:
                arguments += [f"--{what}", rest]
        said = self.attune("explain", "--json", *arguments)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertTrue(forward.name.startswith(json.loads(said.stdout)["digest"][:16]), forward.name)
        # The trouble is reported, and the call succeeds.
        (self.at / "file").write_text("")
        said = self.logged(run("file", ATTUNE_LOG="launch"))
        self.assertEqual([channel for channel, _ in said], ["dump", "dump", "launch"])
        self.assertIn("a kernel is not dumped", said[0][1])

    # NVRTC needs no GPU.
    @unittest.skipIf(SANITIZED, "NVIDIA's compiler is not ours to sanitize; the preset dev asks it")
    def test_dump_of_a_gpu(self):
        explain = ["explain", "--score", "s + f32(kv - q)", "--target", "cuda", "--arch", "80", "--d", "64"]
        result = self.attune(*explain, ATTUNE_DUMP="dump", ATTUNE_LINEINFO="1", ATTUNE_LOG="build",
                             ATTUNE_CACHE=str(self.at / "c"))
        if "[no-compiler]" in result.stderr:
            return
        logged = self.logged(result)
        for _, said in logged:
            self.assertRegex(said,
                             r"forward_sm80:\S+ for sm_80 compiled in .*: \d+ bytes, \d+ registers, 0 bytes spilled")
        folders = list((self.at / "dump").iterdir())
        self.assertEqual(len(folders), len(logged))
        for folder in folders:
            self.assertEqual(sorted(f.name for f in folder.iterdir()),
                             ["00-attention.mod", "04-choice.txt", "05-source.cu", "06-kernel.ptx", "07-kernel.cubin",
                              "08-nvrtc.log"])
            self.assertIn("chosen  forward_sm80", (folder / "04-choice.txt").read_text())
            # Where expressions come from no file, the page's lines lead profilers to the page.
            page = folder / "05-source.cu"
            self.assertTrue(page.read_text().startswith(f'#line 2 "{page}"\n'), page.read_text()[:200])
            self.assertIn(str(page), (folder / "06-kernel.ptx").read_text())
            self.assertIn("--generate-line-info", (folder / "08-nvrtc.log").read_text())

    def test_verified(self):
        self.qkv()
        write_npy(self.at / "slope.npy", [2], [0.5, -0.25])
        for rows in ("1", "1000"):
            result = self.attune(*self.WATCHED, *([] if ENGINE else ["--target", "oracle"]), ATTUNE_VERIFY=rows)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
        for rows in ("-1", "all", "1000001"):
            result = self.attune(*self.WATCHED, "--target", "oracle", ATTUNE_VERIFY=rows)
            self.assertEqual(result.returncode, 2)
            self.assertIn("[option-value]", result.stderr)

    def test_archives(self):
        self.qkv()
        values = [0.5, -0.25]
        write_npy(self.at / "slope.npy", [2], values)
        wanted = ("--score", "alibi(slope) | softcap(20)", "--capture")
        self.done(*wanted, "slope=slope.npy")
        plain = self.result("out")
        entry = (self.at / "slope.npy").read_bytes()
        for name, method in (("two", zipfile.ZIP_STORED), ("packed", zipfile.ZIP_DEFLATED)):
            with zipfile.ZipFile(self.at / f"{name}.npz", "w", method) as archive:
                archive.writestr("slope.npy", entry)
                archive.writestr("other.npy", entry)
        head = json.dumps({"slope": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        safe = struct.pack("<Q", len(head)) + head + struct.pack("<2f", *values)
        (self.at / "one.safetensors").write_bytes(safe)
        for file in ("two.npz:slope", "one.safetensors", "one.safetensors:slope"):
            self.done(*wanted, f"slope={file}")
            self.assertEqual(self.result("out"), plain)
        shutil.rmtree(self.out)
        self.assertIn("it holds slope, other", self.refused("archive-name", *wanted, "slope=two.npz"))
        self.refused("archive-name", *wanted, "slope=two.npz:slop", fix="did you mean slope?")
        self.refused("npz-compressed", *wanted, "slope=packed.npz:slope")
        for cut in (0, 4, 20, len(head) + 8, len(safe) - 1):
            (self.at / "cut.safetensors").write_bytes(safe[:cut])
            self.refused("archive-damaged", *wanted, "slope=cut.safetensors")
        zipped = (self.at / "two.npz").read_bytes()
        for cut in (0, 21, len(zipped) // 2, len(zipped) - 23):
            (self.at / "cut.npz").write_bytes(zipped[:cut])
            self.refused("archive-damaged", *wanted, "slope=cut.npz:slope")

    def test_archives_with_a_changed_bit(self):
        self.qkv()
        values = [i / 64 for i in range(37)]
        write_npy(self.at / "slope.npy", [37], values)
        with zipfile.ZipFile(self.at / "good.npz", "w") as archive:
            archive.write(self.at / "slope.npy", "slope.npy")
        good = (self.at / "good.npz").read_bytes()
        begin = good.index(b"\x93NUMPY")
        size = (self.at / "slope.npy").stat().st_size
        # Of the magic, of the shape, and of the first and the last numbers.
        for at in begin, good.index(b"(37,") + 1, begin + size - 37 * 4 + 1, begin + size - 1:
            changed = bytearray(good)
            changed[at] ^= 1
            (self.at / "bad.npz").write_bytes(changed)
            said = self.refused("archive-damaged", "--score", "s + slope[h]", "--capture", "slope=bad.npz")
            self.assertRegex(said, "CRC-32 [0-9a-f]{8}, and its directory says [0-9a-f]{8}")
        self.done("--score", "s + slope[h]", "--capture", "slope=good.npz")

    def test_reads_out_of_range(self):
        self.qkv()
        write_npy(self.at / "slope.npy", [1], [0.5])
        message = self.refused("capture-range", "--score", "s + slope[h]", "--capture", "slope=slope.npy")
        self.assertIn("h runs over 0..1, and slope holds 1 value", message)
        self.assertIn("clamp(h, 0, 0)", message)
        self.done("--score", "s + slope[clamp(h, 0, 0)]", "--capture", "slope=slope.npy")
        # What depends on data, or on two coordinates, is told where it is asked for.
        bounded = ("--score", "s + slope[q * 0 + h]", "--capture", "slope=slope.npy")
        self.done(*bounded)
        told = self.run_attention(*bounded, ATTUNE_CHECK="range")
        self.assertEqual(told.returncode, 2)
        self.assertIn("[capture-outside]", told.stderr)
        self.assertIn("at b=0 h=1 q=0 kv=0, q * 0 + h is 1 in slope[q * 0 + h], and slope holds 1 value", told.stderr)
        self.assertEqual(self.run_attention("--mask", "kv <= q", ATTUNE_CHECK="range").returncode, 0)
        self.assertIn("[option-value]", self.run_attention(ATTUNE_CHECK="ranges").stderr)
        self.assertIn("or unset ATTUNE_CHECK for clamped reads", self.run_attention(ATTUNE_CHECK="foo").stderr)
        if ENGINE:
            said = self.attune("verify", *bounded, "--calls", "4", "--dtype", "f32")
            self.assertEqual((said.returncode, said.stderr), (0, ""))
            self.assertRegex(said.stdout, r"\d+ reads of captured tensors were out of range, and clamped, in \d calls; "
                                          "the first: at b=0 h=1 q=0 kv=0, ")
            # A tensor of the user's may be made for smaller calls than those that are usually drawn.
            small = self.attune("verify", "s + slope[h]", "--capture", "slope=slope.npy", "--calls", "2", "--dtype", "f32")
            self.assertEqual((small.returncode, small.stderr), (0, ""))
            self.assertIn("2 calls, 0 wrong", small.stdout)

    def test_a_cover_says_that_pairs_are_not_counted(self):
        by_pair = "q * kv % 7 == 0"
        for why, arguments in (("up to 512 x 512", [by_pair, "--q-len", "513"]),
                               ("if all batch entries and heads are equal",
                                [by_pair + " && h > 0", "--heads", "2", "--q-len", "64"]),
                               ("up to 2 097 152", ["kv <= q", "--q-len", "2097153"])):
            said = self.attune("cover", *arguments, "--no-picture").stdout
            self.assertRegex(said, rf"\n  pairs +unknown   .*{why}\n")
            self.assertIsNone(self.cover(*arguments)["pairs"]["kept"])

    def test_mistakes_of_a_cover(self):
        for tile in ("12y", "x", "0x16", "16x", "16x16x16", "-4", "99999999"):
            self.refused("bad-tile", "cover", "kv <= q", "--tile=" + tile)
        self.refused("bad-choice", "cover", "s + 1.0f", "--along", "x")
        self.refused("no-mask", "cover")
        self.refused("bad-size", "cover", "kv <= q", "--q-len", "0")
        self.refused("bad-size", "cover", "kv <= q", "--kv-len", "2000000000")
        self.refused("bad-size", "cover", "kv <= q", "--heads", "2", "--h", "2")
        self.refused("bad-choice", "cover", "kv <= q", "--along", "k")
        self.refused("bad-usage", "cover", "kv <= q", "--q-len", "many")
        write_npy(self.at / "doc.npy", [4], [0, 0, 1, 1], kind="i4")
        self.refused("capture-range", "cover", "doc[kv + 4] == 1", "--capture", "doc=doc.npy")


VERBS = (
    "run", "print", "grad", "explain", "cover", "plot", "ranks", "report", "bench", "cuda", "tune", "verify", "help",
    "rnu",
)

if __name__ == "__main__":
    unittest.main()
