# tools/bench/train_gpt.py — trains a small GPT with dropout, sinks, packed documents and a learned bias, on attune and in
# eager torch, which drops the same pairs; draws their losses
"""
  train_gpt.py --impl attune|eager --device cpu|cuda [--dtype float32|bfloat16] [--steps 200] > one.json
  train_gpt.py --picture OUT.svg ONE.json...

Twelve layers of two heads of 64 learn the bytes of this project's pages. Models begin alike and see the same documents.
Attention is computed in --dtype, all else in f32. The seed of a layer's dropout is a function of the step and the layer,
and eager torch computes ir::kept in integers, so that the losses of all should stay together until rounding parts them.
"""
import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS, HEADS, WIDTH, LENGTH, BATCH, REACH, KEPT = 12, 2, 128, 512, 2, 63, 58982  # KEPT of 65536 pairs: dropout of 0.1
SCORE, MASK = "s + bias[h, min(q - kv, 63)]", "kv <= q && doc[b, q] == doc[b, kv]"
PROB, SINK = f"kept(seed[], {KEPT}) ? p / {KEPT / 65536}f : 0.0f", "sink[h]"


def kept(torch, seed, device):
    """ir::kept of all pairs: docs/expressions.md, Random numbers."""
    low = 0xFFFFFFFF
    at = lambda n, dim: torch.arange(n, device=device).view([-1 if i == dim else 1 for i in range(4)])
    blocks = at(LENGTH // 16, 3)
    zero = torch.zeros(BATCH, HEADS, LENGTH, LENGTH // 16, dtype=torch.int64, device=device)
    x, key = [zero + blocks, zero + at(LENGTH, 2), zero + at(HEADS, 1), zero + at(BATCH, 0)], [seed, 1]
    for _ in range(10):
        even, odd = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(odd >> 32 & low) ^ x[1] ^ key[0], odd & low, (even >> 32 & low) ^ x[3] ^ key[1], even & low]
        key = [key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low]
    rotated = lambda w, n: (w >> n | w << 32 - n) & low
    lanes = torch.arange(16, device=device)
    bits = lambda words: sum((w[..., None] >> lanes & 0x10001) << i for i, w in enumerate(words))
    byte = lambda w: (w | w >> 12) & 0xFF
    u = byte(bits(x)) << 8 | byte(bits([rotated(w, 5) ^ rotated(w, 11) for w in x]))
    return (u < KEPT).flatten(-2)


def train(chosen):
    import torch
    import torch.nn.functional as F
    from torch import nn

    device, dtype = torch.device(chosen.device), getattr(torch, chosen.dtype)
    far = (torch.arange(LENGTH, device=device)[:, None] - torch.arange(LENGTH, device=device)).clamp(0, REACH)

    def eager(q, k, v, bias, sink, doc, seed):
        pairs = (far.new_ones(LENGTH, LENGTH).tril() > 0) & (doc[:, None, :, None] == doc[:, None, None, :])
        s = (q @ k.mT).float() * q.shape[-1]**-0.5 + bias[:, far]
        s = s.masked_fill(~pairs, -torch.inf)
        p = torch.cat([s, sink[:, None, None].expand(*s.shape[:-1], 1)], -1).softmax(-1)[..., :-1]
        return torch.where(kept(torch, seed, device), p / (KEPT / 65536), 0.0).to(q.dtype) @ v

    def attune(q, k, v, bias, sink, doc, seed):
        from attune.torch._attend import attend
        from attune.torch._mod import Spelled, Texts
        captures = (bias, sink, doc, torch.tensor(seed, dtype=torch.int32, device=device))
        return attend(Spelled(Texts(SCORE, MASK, PROB, SINK), ("bias", "sink", "doc", "seed"), captures), q, k, v, None)[0]

    attention = {"eager": eager, "attune": attune}[chosen.impl]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.bias, self.sink = nn.Parameter(torch.zeros(HEADS, REACH + 1)), nn.Parameter(torch.zeros(HEADS))

        def forward(self, x, doc, seed):
            q, k, v = (t.to(dtype) for t in self.qkv(self.first(x)).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4))
            o = attention(q, k, v, self.bias, self.sink, doc, seed)
            x = x + self.out(o.float().transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
            return x + self.down(F.gelu(self.up(self.second(x))))

    torch.manual_seed(0)
    model = nn.ModuleDict({"bytes": nn.Embedding(256, WIDTH), "places": nn.Embedding(LENGTH, WIDTH), "last": nn.LayerNorm(WIDTH),
                           "blocks": nn.ModuleList(Block() for _ in range(LAYERS)), "head": nn.Linear(WIDTH, 256)}).to(device)
    text = torch.tensor(list(b"\n".join(p.read_bytes() for p in sorted((ROOT / "docs").glob("*.md")))))
    steps = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01)
    draws, losses, begin = torch.Generator().manual_seed(1), [], time.perf_counter()
    for step in range(chosen.steps):
        rows = [text[i:i + LENGTH + 1] for i in torch.randint(len(text) - LENGTH, (BATCH,), generator=draws).tolist()]
        given = torch.stack(rows).to(device)
        doc = (given[:, :-1] == ord("#")).cumsum(-1).int()  # a heading begins a document
        x = model["bytes"](given[:, :-1]) + model["places"].weight
        for layer, block in enumerate(model["blocks"]):
            x = block(x, doc, 1000 * step + layer)
        loss = F.cross_entropy(model["head"](model["last"](x)).flatten(0, 1), given[:, 1:].flatten())
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    name = f"{'attune' if chosen.impl == 'attune' else 'eager torch'}, {'GPU' if device.type == 'cuda' else 'CPU'}, {chosen.dtype}"
    print(json.dumps({"name": name, "losses": losses, "ms_per_step": 1e3 * (time.perf_counter() - begin) / chosen.steps}))


def picture(to, files):
    import peers_picture as drawing
    runs = [json.loads(Path(one).read_text()) for one in files]
    left, top, wide, high = 60, 60, 620, 300
    most = max(max(run["losses"]) for run in runs)
    x = lambda i, n: left + wide * i / (n - 1)
    y = lambda loss: top + high * (1 - loss / most)
    out = ""
    for loss in range(int(most) + 1):
        out += (f'<path d="M{left} {y(loss):.1f}H{left + wide}" stroke="#ddd"/>\n' +
                drawing.text_at(left - 8, y(loss) + 4, str(loss), ' text-anchor="end"') + "\n")
    for nth, (run, colour) in enumerate(zip(runs, drawing.COLOURS)):
        points = " ".join(f"{x(i, len(run['losses'])):.1f},{y(loss):.1f}" for i, loss in enumerate(run["losses"]))
        dashes = f' stroke-dasharray="{6 * nth} {4 * nth}"' if nth else ""
        out += f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{4 - nth if nth < 3 else 1}"{dashes}/>\n'
        label = f"{run['name']}: {run['losses'][-1]:.4f}"
        out += drawing.bar_at(left + 300, top + 20 + 20 * nth, 12, 12, colour) + drawing.text_at(left + 318, top + 30 + 20 * nth, label)
    title = "Loss of a GPT of 12 layers with dropout, sinks, documents and a learned bias, by step"
    Path(to).write_text(drawing.framed(title, 720, 400, out))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impl", choices=("attune", "eager"), default="attune")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--picture", nargs="+", metavar=("OUT.svg", "ONE.json"))
    given = parser.parse_args()
    picture(given.picture[0], given.picture[1:]) if given.picture else train(given)
    sys.exit(0)
