# tests/tools/contract.py — the command line from outside: results, files, exit codes and messages
import ast
import json
import math
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

ATTUNE = os.path.abspath(sys.argv.pop(1))
CODES = {"f4": "f", "f8": "d", "f2": "e", "i4": "i", "i8": "q", "b1": "?", "u1": "B"}


def write_npy(path, shape, values, kind="f4", fortran=False):
    text = f"{{'descr': '{'|' if kind in ('b1', 'u1') else '<'}{kind}', 'fortran_order': {fortran}, " \
           f"'shape': ({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''}), }}"
    text += " " * (64 - (10 + len(text) + 1) % 64) + "\n"
    data = struct.pack(f"<{len(values)}{CODES[kind]}", *values)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data)


def read_npy(path):
    raw = path.read_bytes()
    assert raw[:8] == b"\x93NUMPY\x01\x00", path
    (length,) = struct.unpack("<H", raw[8:10])
    head = ast.literal_eval(raw[10:10 + length].decode().strip())
    assert head["descr"] == "<f4" and not head["fortran_order"], head
    data = raw[10 + length:]
    return head["shape"], list(struct.unpack(f"<{len(data) // 4}f", data))


class Contract(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = pathlib.Path(self.folder.name)
        self.out = self.at / "results" / "deep"
        self.random = random.Random(1)

    def numbers(self, name, shape, **how):
        values = [self.random.uniform(-1, 1) for _ in range(math.prod(shape))]
        write_npy(self.at / f"{name}.npy", shape, values, **how)
        return values

    def qkv(self, b=1, hq=2, hkv=1, sq=3, skv=4, d=2, dv=3, **how):
        return (self.numbers("q", [b, hq, sq, d], **how), self.numbers("k", [b, hkv, skv, d], **how),
                self.numbers("v", [b, hkv, skv, dv], **how))

    def attune(self, *arguments):
        return subprocess.run([ATTUNE, *map(str, arguments)], cwd=self.at, capture_output=True, text=True, timeout=60)

    def run_attention(self, *arguments, target="oracle"):
        return self.attune("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", self.out, "--target", target,
                           *arguments)

    def done(self, *arguments):
        result = self.run_attention(*arguments)
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

    # What run computes, against the formula written once more.
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

    def test_sink_and_prob(self):
        q, k, v = self.qkv(hq=1)
        self.done("--sink", "1.0", "--prob", "2.0 * p")
        shares, lse = self.expected(q, k, v, 1, 3, 4, 2, 3, lambda s, h, i, j: s, lambda i, j: True)
        with_sink = [math.log(math.exp(x) + math.e) for x in lse]
        self.close(self.result("lse")[1], with_sink)
        self.close(self.result("out")[1],
                   [2 * shares[i * 3 + n] * math.exp(lse[i] - with_sink[i]) for i in range(3) for n in range(3)])

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
        # dO alone moves nothing along a row of the softmax: the bias's gradient sums to that of lse.
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
        slope = ["--capture", "slope=slope.npy"]
        self.refused("unknown-name", "--score", "s + slop[h]", *slope, fix="slope")
        self.refused("not-allowed-here", "--mask", "s > 0.0")
        self.refused("wrong-type", "--mask", "kv + q")
        self.refused("capture-range", "--score", "s + slope[kv + 2]", *slope)
        self.refused("bad-assignment", "--capture", "slope.npy")
        self.refused("file-missing", "--capture", "slope=missing.npy")
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

    def test_engines_that_are_not_there(self):
        self.qkv()
        for target in ("auto", "cuda", "cpu"):
            result = self.run_attention(target=target)
            self.assertEqual(result.returncode, 2)
            self.assertIn("[no-engine]", result.stderr)
            self.assertIn("--target oracle", result.stderr)
        self.assertFalse(self.out.exists())

    def test_verbs(self):
        self.refused("unknown-verb", "rnu", fix="run")
        self.assertEqual(self.attune().returncode, 2)
        for verb in ("run", "print", "grad", "explain"):
            said = self.attune(verb, "--help")
            self.assertEqual(said.returncode, 0)
            self.assertIn(f"attune {verb} ", said.stdout)
            self.assertIn("Example:", said.stdout)
        self.refused("bad-usage", "run", "--q", "q.npy")

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


VERBS = ("run", "print", "grad", "explain", "rnu")

if __name__ == "__main__":
    unittest.main()
