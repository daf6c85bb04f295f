# tests/python/test_examples.py — every example of C++ again in Python: the same random numbers, the same line printed
"""Each function computes what examples/NAME.cpp computes and returns what it prints."""

import ctypes
import os
import subprocess
from pathlib import Path

import attune
import numpy as np
import pytest
from attune import mods
from conftest import ROOT, refused

libm = ctypes.CDLL("libm.so.6")
for function, count in ((libm.logf, 1), (libm.expf, 1), (libm.powf, 2)):
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float] * count
f4 = np.float32


class Dice:
    """std::mt19937, and libstdc++'s std::normal_distribution<float> on it."""

    def __init__(self, seed):
        self.bits = np.random.RandomState(seed)
        self.saved = None

    def unit(self):
        u = f4(f4(self.bits.randint(0, 2**32, dtype=np.uint32)) / f4(2**32))
        return u if u < 1 else np.nextafter(f4(1), f4(0))

    def normal(self):
        if self.saved is not None:
            out, self.saved = self.saved, None
            return out
        while True:
            x, y = f4(f4(2) * self.unit() - f4(1)), f4(f4(2) * self.unit() - f4(1))
            r2 = f4(x * x + y * y)
            if 0 < r2 <= 1:
                break
        factor = np.sqrt(f4(f4(-2) * f4(libm.logf(r2)) / r2))
        self.saved = f4(x * factor)
        return f4(y * factor)

    def fresh(self):
        """A number of a distribution made for it alone."""
        self.saved = None
        return self.normal()

    def array(self, *shape, draw=None):
        draw = draw or self.normal
        return np.array([draw() for _ in range(int(np.prod(shape)))], f4).reshape(shape)


def e01_plain():
    n, d = 24, 16
    dice = Dice(1)
    q, k, v = (dice.array(1, 1, n, d) for _ in range(3))
    o = attune.attention(q, k, v)
    a, b, c = (x[0, 0].astype(np.float64) for x in (q, k, v))
    p = np.exp(a @ b.T / np.sqrt(d))
    worst = np.abs(p @ c / p.sum(1, keepdims=True) - o[0, 0]).max()
    return f"{'ok' if worst < 1e-6 else 'wrong'}: within {worst:.1e} of the five lines"


def e02_causal():
    n, d, seen = 32, 8, 20
    dice = Dice(2)
    q, k, v = (dice.array(1, 2, n, d) for _ in range(3))
    attention = attune.Attention(mask=lambda at: at.kv <= at.q)
    before = attention(q, k, v)
    k[0, 0, seen:] = v[0, 0, seen:] = np.nan
    o = attention(q, k, v)
    same = np.array_equal(before[0, 0, :seen], o[0, 0, :seen])
    noticed = np.isnan(o[0, 0, seen:]).all()
    return f"{'ok' if same and noticed else 'wrong'}: {seen} of {n} queries see no NaN"


def e03_alibi():
    dice = Dice(3)
    q, k, v = (dice.array(2, h, 64, 16, draw=dice.fresh) for h in (4, 2, 2))
    slope = np.exp2(f4(-2) * np.arange(1, 5, dtype=f4))
    doc = np.arange(64, dtype=np.int32) // 24
    alibi = attune.Score(lambda s, at: s + slope[at.head] * (at.kv - at.q))
    causal = attune.Mask(lambda at: at.kv <= at.q)
    inside = attune.Mask(lambda at: doc[at.q] == doc[at.kv])
    attention = attune.Attention(alibi | mods.softcap(30), causal & inside)
    o, lse = attention(q, k, v, lse=True)
    right = all(np.array_equal(o[1, 3, i], v[1, 1, i]) for i in (0, 24, 48)) and (np.abs(lse) <= 30 + np.log(24)).all()
    return attention.explain() + ("\nok" if right else "\nwrong")


def e04_documents():
    tokens, heads, d = 60, 2, 8
    dice = Dice(4)
    q, k, v = (dice.array(tokens, heads, d) for _ in range(3))
    starts = np.array([0, 10, 37, tokens], np.int32)
    at = np.arange(tokens)
    doc = ((at >= 10).astype(np.int32) + (at >= 37)).astype(np.int32)
    each = attune.Attention(mods.softcap(5), mods.causal())
    packed = each(q, k, v, cu_seqlens=starts)
    whole = attune.Attention(mods.softcap(5), mods.causal() & mods.document(doc))
    dense = whole(*(x.transpose(1, 0, 2)[None] for x in (q, k, v)))[0].transpose(1, 0, 2)
    same = np.array_equal(packed, dense)
    return f"{'ok' if same else 'wrong'}: packed and masked results are {'the same bits' if same else 'different'}"


def e05_bias_gradient():
    n, d = 16, 8
    dice = Dice(5)
    q, k, v, grad_o = (dice.array(1, 2, n, d) for _ in range(4))
    table = np.zeros((2, 2 * n), f4)
    attention = attune.Attention(mods.relative_bias(table, n))
    gradient = attention.backward(q, k, v, grad_o, wrt=("table",)).captured["table"]

    def loss(entry, step):
        table.flat[entry] += f4(step)
        o = attention(q, k, v)
        table.flat[entry] -= f4(step)
        return np.add.accumulate(o.astype(np.float64).ravel() * grad_o.ravel())[-1]

    entry = n - 3
    predicted, seen = float(gradient.flat[entry]), (loss(entry, 0.0625) - loss(entry, -0.0625)) * 8
    right = abs(predicted) > 0.01 and abs(seen - predicted) < 2e-4
    return f"{'ok' if right else 'wrong'}: predicted {predicted:.6f}, seen {seen:.6f}"


def e06_text():
    dice = Dice(6)
    q, k, v = (dice.array(1, 4, 32, 8) for _ in range(3))
    slope = dice.array(4)
    written = attune.Attention("cap * tanh((s + slope[h] * distance) / cap)", "kv <= q && q - kv < 12", cap=30.0,
                               lets={"distance": "f32(kv - q)"}, slope=slope)
    built = attune.Attention(mods.alibi(slope) | mods.softcap(30), mods.sliding_window(12))
    refusal = refused(attune.Attention, mask="kv <= w").code == "unknown-name"
    return "ok" if refusal and np.array_equal(written(q, k, v), built(q, k, v)) else "wrong"


def e07_sinks_and_dropout():
    n = 64
    q, k, v = np.zeros((1, 2, n, 4), f4), np.zeros((1, 2, n, 4), f4), np.ones((1, 2, n, 1), f4)
    logit = np.array([f4(libm.logf(64)), -np.inf], f4)
    o = attune.attention(q, k, v, sink=lambda at: logit[at.head])
    shared = (np.abs(o[0, 0] - 0.5) < 1e-6).all() and (np.abs(o[0, 1] - 1) < 1e-6).all()
    seed = attune.Param(1)
    dropped = attune.Attention(prob=mods.dropout(0.75, seed))
    total = 0.0
    for seed.value in range(8):
        total += np.add.accumulate(dropped(q, k, v).astype(np.float64).ravel())[-1] / (8 * 2 * n)
    return f"{'ok' if shared and abs(total - 1) < 0.01 else 'wrong'}: dropout keeps {total:.4f} on average"


def e08_sum():
    n, d, more = 20, 6, 2
    dice = Dice(8)
    whole_q, whole_k, v = dice.array(1, 1, n, d + more), dice.array(1, 1, n, d + more), dice.array(1, 1, n, d)
    u, w = whole_q[0, 0, :, d:], whole_k[0, 0, :, d:]
    narrow = attune.Attention(lambda s, at: s + attune.sum(more, lambda i: u[at.q, i] * w[at.kv, i]), scale=1.0)
    o = narrow(whole_q[..., :d], whole_k[..., :d], v)
    expected = attune.attention(whole_q, whole_k, v, scale=1.0)
    return "ok" if (np.abs(o - expected) < 1e-6).all() else "wrong"


def e09_decode():
    heads, kv_heads, n, d = 8, 2, 200, 32
    dice = Dice(9)
    q, k, v = (dice.array(1, h, n, d, draw=dice.fresh) for h in (heads, kv_heads, kv_heads))
    o = np.zeros_like(q)
    attention = attune.Attention(mask=mods.sliding_window(64))

    def share(count, run):
        for i in range(count):
            run(i, i % 2)

    def parts(i):
        return q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]

    need = attention.prepare(*parts(n - 1), q_offset=n - 1, workers=2, parallel_for=share)["workspace"]
    memory = np.zeros(need + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :][:need]
    for i in range(n):
        attention(*parts(i), out=o[:, :, i : i + 1], q_offset=i, workers=2, parallel_for=share, workspace=memory)
    return "ok" if (np.abs(o - attention(q, k, v)) < 1e-5).all() else "wrong"


def e10_watch():
    q = np.zeros((1, 4, 32, 8), f4)
    facts = []
    attention = attune.Attention(mask=lambda at: at.kv <= at.q + 0 * at.head)
    with attune.watch(facts.append):
        attention(q, q, q)
    built = [f for f in facts if f["fact"] == "built" and f["mod"]]
    seconds = sum(f["seconds"] for f in facts if f["fact"] == "called")
    told = len(facts)
    attention(q, q, q)
    return "ok" if len(built) <= 1 and seconds > 0 and len(facts) == told else "wrong"


def e11_cover():
    bf16 = pytest.importorskip("ml_dtypes").bfloat16
    n, d = 300, 64
    rng = np.random.default_rng(11)
    doc = np.arange(n, dtype=np.int32) // 100
    attention = attune.Attention(mask=mods.causal() & mods.document(doc))
    same, cover = True, None
    for _ in range(4):
        q, k, v = (rng.standard_normal((1, h, n, d), f4).astype(bf16) for h in (8, 2, 2))
        cover = cover if cover is not None else attention.cover(q, k, v)
        same &= np.array_equal(attention(q, k, v, cover=cover).view(np.uint16), attention(q, k, v).view(np.uint16))
    return "ok" if same else "wrong"


def e12_packed():
    bf16 = pytest.importorskip("ml_dtypes").bfloat16
    heads, d, lengths = 4, 64, [70, 200, 1, 0, 129]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    rng = np.random.default_rng(12)
    q, k, v = (rng.standard_normal((starts[-1], heads, d), f4).astype(bf16) for _ in range(3))
    attention = attune.Attention(mods.softcap(30), mods.causal())
    packed = attention(q, k, v, cu_seqlens=starts, max_q_len=200, max_kv_len=200)
    right = True
    for a, b in zip(starts, starts[1:]):
        alone = attention(*(x[a:b].transpose(1, 0, 2)[None] for x in (q, k, v))).astype(f4)
        got = packed[a:b].transpose(1, 0, 2)[None].astype(f4)
        right &= bool((np.abs(got - alone) <= 0.02 + np.abs(alone) / 64).all())
    return "ok" if right else "wrong"


class Transformer:
    """The model of 13_training: sums in the same order, so that every bit is the same."""

    vocabulary, width, heads, hidden, layers, reach, lag = 16, 32, 2, 64, 2, 16, 4

    def __init__(self, target, tokens, starts):
        self.tokens, self.starts = tokens, np.array(starts, np.int32)
        shapes = [(self.vocabulary, self.width), (self.width, self.vocabulary)]
        shapes += [(32, 32)] * 4 + [(32, 64), (64, 32), (2, 32)] + [(32, 32)] * 4 + [(32, 64), (64, 32), (2, 32)]
        dice = Dice(13)
        self.weights = []
        for rows, columns in shapes:
            if rows == self.heads:
                self.weights.append(np.zeros((rows, columns), f4))
                continue
            deviation = f4(1) / np.sqrt(f4(rows))
            self.weights.append(dice.array(rows, columns, draw=lambda: dice.fresh() * deviation + f4(0)))
        self.mean, self.square = ([np.zeros_like(w) for w in self.weights] for _ in range(2))
        tables = self.weights[8], self.weights[15]
        self.attentions = [attune.Attention(mods.softcap(20) | mods.relative_bias(t, self.reach), mods.causal(),
                                            target=target) for t in tables]
        self.steps = 0

    @staticmethod
    def product(a, b):
        out = np.zeros((len(a), b.shape[1]), f4)
        for n in range(len(b)):
            out += a[:, n : n + 1] * b[n]
        return out

    @staticmethod
    def product_backward(a, b, grad, da, db):
        for j in range(b.shape[1]):
            da += grad[:, j : j + 1] * b[:, j]
        for i in range(len(a)):
            db += a[i][:, None] * grad[i]

    def norm(self, a):
        total = np.full(len(a), f4(1e-6))
        for j in range(a.shape[1]):
            total += a[:, j] * a[:, j] / f4(a.shape[1])
        return (f4(1) / np.sqrt(total))[:, None]

    def normed_backward(self, a, out, grad, da):
        along = np.zeros(len(a), f4)
        for j in range(a.shape[1]):
            along += out[:, j] * grad[:, j] / f4(a.shape[1])
        da += self.norm(a) * (grad - out * along[:, None])

    def gradients(self):
        embedding, output, *rest = self.weights
        grads = [np.zeros_like(w) for w in self.weights]
        n = len(self.tokens)
        x, passes = embedding[self.tokens], []
        for layer, attention in enumerate(self.attentions):
            wq, wk, wv, wo, up, down, _ = rest[7 * layer : 7 * layer + 7]
            begin, first = x, x * self.norm(x)
            q, k, v = (self.product(first, w).reshape(n, self.heads, -1) for w in (wq, wk, wv))
            o, lse = attention(q, k, v, lse=True, cu_seqlens=self.starts)
            x = x + self.product(o.reshape(n, -1), wo)
            middle, second = x, x * self.norm(x)
            raised = np.maximum(self.product(second, up), f4(0))
            x = x + self.product(raised, down)
            passes.append((begin, first, q, k, v, o, lse, middle, second, raised))
        last = x * self.norm(x)
        loss, flow = self.cross_entropy(self.product(last, output))
        dlast, dx = np.zeros_like(last), np.zeros_like(x)
        self.product_backward(last, output, flow, dlast, grads[1])
        self.normed_backward(x, last, dlast, dx)
        for layer in reversed(range(self.layers)):
            wq, wk, wv, wo, up, down, _ = rest[7 * layer : 7 * layer + 7]
            g = grads[2 + 7 * layer : 9 + 7 * layer]
            begin, first, q, k, v, o, lse, middle, second, raised = passes[layer]
            draised, dsecond, dfirst = np.zeros_like(raised), np.zeros_like(second), np.zeros_like(first)
            self.product_backward(raised, down, dx, draised, g[5])
            draised *= np.where(raised > 0, f4(1), f4(0))
            self.product_backward(second, up, draised, dsecond, g[4])
            dmiddle = dx.copy()
            self.normed_backward(middle, second, dsecond, dmiddle)
            do = np.zeros((n, self.width), f4)
            self.product_backward(o.reshape(n, -1), wo, dmiddle, do, g[3])
            back = self.attentions[layer].backward(q, k, v, do.reshape(o.shape), o=o, lse=lse, cu_seqlens=self.starts)
            g[6][...] = back.captured["table"]
            for of, w, dw in zip(back[:3], (wq, wk, wv), g):
                self.product_backward(first, w, of.reshape(n, -1), dfirst, dw)
            dx = dmiddle.copy()
            self.normed_backward(begin, first, dfirst, dx)
        for t, token in enumerate(self.tokens):
            grads[0][token] += dx[t]
        return loss, grads

    def cross_entropy(self, logits):
        loss, flow = 0.0, np.zeros_like(logits)
        count = len(self.tokens) - self.lag * (len(self.starts) - 1)
        for begin, end in zip(self.starts, self.starts[1:]):
            for t in range(begin + self.lag - 1, end - 1):
                following, top, total = self.tokens[t + 1], logits[t].max(), f4(0)
                powers = [f4(libm.expf(x - top)) for x in logits[t]]
                for p in powers:
                    total = f4(total + p)
                loss -= float(f4(f4(logits[t, following] - top) - f4(libm.logf(total)))) / count
                for j, p in enumerate(powers):
                    flow[t, j] = f4(f4(p / total) - f4(j == following)) / f4(count)
        return loss, flow

    def step(self):
        loss, grads = self.gradients()
        self.steps += 1
        means, squares = (f4(1) - f4(libm.powf(f4(x), f4(self.steps))) for x in (0.9, 0.99))
        for w, g, mean, square in zip(self.weights, grads, self.mean, self.square):
            mean += f4(0.1) * (g - mean)
            square += f4(0.01) * (g * g - square)
            w -= f4(0.005) * (mean / means) / (np.sqrt(square / squares) + f4(1e-6))
        return loss


def e13_training():
    dice, tokens, starts = np.random.RandomState(1), [], [0]
    for length in (23, 40, 9, 31):
        for t in range(length):
            tokens.append(int(dice.randint(0, 2**32, dtype=np.uint32)) % 16 if t < 4 else tokens[-4])
        starts.append(len(tokens))
    curves = []
    for name, target in (("oracle", "oracle"), ("CPU engine", "cpu")):
        model = Transformer(target, tokens, starts)
        curves.append((name, [model.step() for _ in range(3)]))
    lines = []
    for name, losses in curves:
        apart = max(abs(a - b) for a, b in zip(losses, curves[0][1]))
        lines.append(f"{name:<10}  loss {losses[0]:.4f} to {losses[-1]:.4f}, at most {apart:.1e} from the oracle's")
    return "\n".join([*lines, "ok" if apart < 0.01 else "wrong"])


ARGUMENTS = {"13_training": ["3"]}
EXAMPLES = {name[1:]: f for name, f in list(globals().items()) if name[0] == "e" and name[1:3].isdigit()}


def folder():
    """Where the build has the examples of C++: beside the package that is tested."""
    given = os.environ.get("ATTUNE_TEST_EXAMPLES")
    return Path(given) if given else Path(attune.__file__).parents[2] / "examples"


def test_every_example_is_here():
    assert set(EXAMPLES) == {p.stem for p in (ROOT / "examples").glob("[0-9]*.cpp")}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_prints_in_cpp(name):
    mine = EXAMPLES[name]()
    assert "ok" in mine and "wrong" not in mine
    program = folder() / name
    if not program.exists():
        pytest.skip(f"no {program}")
    command = [program, *ARGUMENTS.get(name, [])]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    # What C++ tells of GPUs is not told here.
    lines = [line for line in said.splitlines() if not line.startswith(("on the host: ", "not on GPU: ", "GPU "))]
    # The steps' times in a page of explain() differ from run to run.
    assert [x for x in mine.splitlines() if " µs" not in x] == [x for x in lines if " µs" not in x]
