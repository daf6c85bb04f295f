# examples/runtime/twin.py — makes models for the decoder, and decodes as it does: with NumPy, and timed through torch
import argparse
import json
import struct
import sys
import time

import numpy as np

# A tiny model; `--set width=512` changes a number.
SIZES = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "width": 64, "hidden": 96, "vocabulary": 128,
         "window": 12, "softcap": 2.0, "rope_theta": 10000.0, "norm_epsilon": 1e-5}
MODS = ["causal", "window", "softcap", "alibi"]


def make(path, config, seed=0, version="1"):
    """Writes a random model: a safetensors file, its numbers in the metadata."""
    c, dice, tensors = config, np.random.default_rng(seed), {}

    def add(name, *shape, scale=1.0):
        # Wide enough for attention to matter: small weights would make all models alike.
        values = dice.normal(0, scale / np.sqrt(shape[-1]), shape) if len(shape) > 1 else dice.uniform(0.5, 1.5, shape)
        tensors[f"{name}.weight"] = values.astype("<f4")

    add("model.embed_tokens", c["vocabulary"], c["width"], scale=8.0)
    for layer in range(c["layers"]):
        of = f"model.layers.{layer}"
        add(f"{of}.input_layernorm", c["width"])
        add(f"{of}.self_attn.q_proj", c["heads"] * c["head_dim"], c["width"], scale=2.0)
        add(f"{of}.self_attn.k_proj", c["kv_heads"] * c["head_dim"], c["width"], scale=2.0)
        add(f"{of}.self_attn.v_proj", c["kv_heads"] * c["head_dim"], c["width"], scale=2.0)
        add(f"{of}.self_attn.o_proj", c["width"], c["heads"] * c["head_dim"], scale=2.0)
        add(f"{of}.post_attention_layernorm", c["width"])
        add(f"{of}.mlp.gate_proj", c["hidden"], c["width"])
        add(f"{of}.mlp.up_proj", c["hidden"], c["width"])
        add(f"{of}.mlp.down_proj", c["width"], c["hidden"])
    add("model.norm", c["width"])
    add("lm_head", c["vocabulary"], c["width"])

    words = {"format": "attune-runtime", "version": version, **{name: str(n) for name, n in c.items()}}
    header, at = {"__metadata__": words}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in tensors.values()))


def read(path):
    """(config, {name: array}) of a file that `make` wrote."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    words = header.pop("__metadata__")
    config = {name: type(SIZES[name])(words[name]) for name in SIZES}
    return config, {name: np.frombuffer(data, "<f4", offset=of["data_offsets"][0],
                                        count=int(np.prod(of["shape"]))).reshape(of["shape"])
                    for name, of in header.items()}


def decode(path, prompt, count, mod):
    """(tokens, by how much the closest of them won): everything is computed again for each token, with no cache."""
    c, w = read(path)
    heads, kv_heads, d = c["heads"], c["kv_heads"], c["head_dim"]
    w = {name: values.astype(np.float64) for name, values in w.items()}

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c["norm_epsilon"]) * w[name + ".weight"]

    def turned(x, angles):
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)

    def attention(q, k, v):
        n = q.shape[1]
        distance = np.arange(n)[:, None] - np.arange(n)[None]
        s = q @ k.transpose(0, 2, 1) / np.sqrt(d)
        if mod == "softcap":
            s = c["softcap"] * np.tanh(s / c["softcap"])
        if mod == "alibi":
            s = s - 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)[:, None, None] * distance
        keep = (distance >= 0) & (distance < c["window"]) if mod == "window" else distance >= 0
        p = np.exp(np.where(keep, s - s.max(-1, where=keep, initial=-np.inf, keepdims=True), -np.inf))
        return p / p.sum(-1, keepdims=True) @ v

    tokens, closest = list(prompt), np.inf
    for _ in range(count):
        x, n = w["model.embed_tokens.weight"][tokens], len(tokens)
        angles = np.arange(n)[:, None] * c["rope_theta"] ** (-np.arange(0, d, 2) / d)
        for layer in range(c["layers"]):
            of = f"model.layers.{layer}."
            y = norm(x, of + "input_layernorm")
            q, k, v = ((y @ w[f"{of}self_attn.{name}_proj.weight"].T).reshape(n, -1, d).transpose(1, 0, 2) for name in "qkv")
            k, v = (np.repeat(t, heads // kv_heads, 0) for t in (turned(k, angles), v))
            o = attention(turned(q, angles), k, v).transpose(1, 0, 2).reshape(n, -1)
            x = x + o @ w[of + "self_attn.o_proj.weight"].T
            y = norm(x, of + "post_attention_layernorm")
            gate, up = y @ w[of + "mlp.gate_proj.weight"].T, y @ w[of + "mlp.up_proj.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[of + "mlp.down_proj.weight"].T
        logits = norm(x[-1], "model.norm") @ w["lm_head.weight"].T
        second, first = np.sort(logits)[-2:]
        closest = min(closest, first - second)
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt):], float(closest)


def through_torch(path, prompt, count, mod, threads):
    """(tokens, seconds of the prompt, seconds of the other tokens): with a cache, as one writes it with torch."""
    import torch
    from torch.nn import functional as F
    torch.set_num_threads(threads)
    c, w = read(path)
    heads, kv_heads, d = c["heads"], c["kv_heads"], c["head_dim"]
    w = {name: torch.from_numpy(values.copy()) for name, values in w.items()}

    def joined(of, *names):
        return torch.cat([w[f"{of}{name}_proj.weight"] for name in names])

    layers = [{"norm1": w[f"{of}input_layernorm.weight"], "norm2": w[f"{of}post_attention_layernorm.weight"],
               "qkv": joined(of + "self_attn.", "q", "k", "v"), "o": joined(of + "self_attn.", "o"),
               "gate_up": joined(of + "mlp.", "gate", "up"), "down": joined(of + "mlp.", "down")}
              for of in (f"model.layers.{i}." for i in range(c["layers"]))]
    most = len(prompt) + count
    cache = [torch.empty(2, 1, kv_heads, most, d) for _ in layers]
    angles = torch.arange(most)[:, None] * c["rope_theta"] ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    cosines, sines = (torch.cat([t, t], -1).float() for t in (angles.cos(), angles.sin()))
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)

    def turned(x, at):
        a, b = x.chunk(2, -1)
        return x * cosines[at] + torch.cat([-b, a], -1) * sines[at]

    def attention(q, k, v, first):
        n, known = q.shape[2], k.shape[2]
        if mod == "causal" and (n == 1 or first == 0):
            return F.scaled_dot_product_attention(q, k, v, is_causal=n > 1, enable_gqa=True)
        distance = torch.arange(first, first + n)[:, None] - torch.arange(known)[None]
        keep = (distance >= 0) & (distance < c["window"]) if mod == "window" else distance >= 0
        if mod == "alibi":
            bias = (-slopes[:, None, None] * distance).masked_fill(~keep, -torch.inf)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None], enable_gqa=True)
        if mod != "softcap":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        s = c["softcap"] * torch.tanh(q @ k.transpose(-1, -2) / d**0.5 / c["softcap"])
        return s.masked_fill(~keep, -torch.inf).softmax(-1) @ v

    tokens, fed, times = list(prompt), 0, []
    with torch.inference_mode():
        for _ in range(count):
            start = time.perf_counter()
            n, at = len(tokens) - fed, slice(fed, len(tokens))
            x = w["model.embed_tokens.weight"][tokens[fed:]]
            for of, kept in zip(layers, cache):
                y = F.rms_norm(x, x.shape[-1:], of["norm1"], c["norm_epsilon"])
                qkv = F.linear(y, of["qkv"]).view(1, n, -1, d).transpose(1, 2)
                q, k, v = qkv.split([heads, kv_heads, kv_heads], 1)
                kept[0, :, :, at], kept[1, :, :, at] = turned(k, at), v
                o = attention(turned(q, at), kept[0, :, :, :at.stop], kept[1, :, :, :at.stop], fed)
                x = x + F.linear(o.transpose(1, 2).reshape(n, -1), of["o"])
                y = F.rms_norm(x, x.shape[-1:], of["norm2"], c["norm_epsilon"])
                gate, up = F.linear(y, of["gate_up"]).chunk(2, -1)
                x = x + F.linear(F.silu(gate) * up, of["down"])
            logits = F.linear(F.rms_norm(x[-1], x.shape[-1:], w["model.norm.weight"], c["norm_epsilon"]), w["lm_head.weight"])
            fed = len(tokens)
            tokens.append(int(logits.argmax()))
            times.append(time.perf_counter() - start)
    return tokens[len(prompt):], times[0], sum(times[1:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="make FILE: a random model. tokens FILE: decode with NumPy, or --torch")
    parser.add_argument("do", choices=["make", "tokens"])
    parser.add_argument("file")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=N", help="numbers of the model that is made")
    parser.add_argument("--prompt", default="1,2,3")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--mod", choices=MODS, default="causal")
    parser.add_argument("--torch", action="store_true", help="through torch, and timed")
    parser.add_argument("--workers", type=int, default=1, help="torch's threads")
    parser.add_argument("--runs", type=int, default=1, help="with --torch: time the last of so many")
    args = parser.parse_args()
    if args.do == "make":
        changed = dict(one.split("=", 1) for one in args.set)
        if unknown := changed.keys() - SIZES.keys():
            sys.exit(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(SIZES)}")
        make(args.file, {name: type(n)(changed.get(name, n)) for name, n in SIZES.items()})
        sys.exit()
    asked = [int(token) for token in args.prompt.split(",")]
    if not args.torch:
        print(",".join(map(str, decode(args.file, asked, args.tokens, args.mod)[0])))
        sys.exit()
    for _ in range(args.runs):
        got, before, after = through_torch(args.file, asked, args.tokens, args.mod, args.workers)
    print(json.dumps({"tokens": [got], "prompt_seconds": before, "decode_seconds": after,
                      "tokens_per_second": round((args.tokens - 1) / after, 1)}))
