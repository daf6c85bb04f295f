# tools/bench/own_mods.py — mods that attune bench takes as text, for gpu_peers.py: texts, tensors, peers and sizes
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import peers

FLEX = ("flex", "flex_flash")


@dataclass(frozen=True)
class Mod:
    """Texts for attune bench, of which torch_own.py makes torch's functions. {S} is the number of positions, {H} of
    heads, {B} of batch entries, {both} of distances; {end} is the last position."""

    score: str = "s"
    mask: str = "kv <= q"
    prob: str = "p"
    sink: str = ""
    tensors: dict = field(default_factory=dict)  # types and shapes
    peers: tuple = FLEX
    dropped: float = 0.0  # SDPA's dropout_p
    bias: str = ""  # the tensor that is SDPA's attn_mask
    pairs: Callable = lambda n: peers.live_pairs("causal", n)  # that the mask keeps of n positions

    def of(self, case):
        """The texts of a case, by the names of attune bench's options, and its tensors."""
        sizes = {"S": case.seq, "H": case.heads, "B": case.batch, "end": case.seq - 1, "both": 2 * case.seq - 1}
        of = lambda texts: {name: text.format(**sizes) for name, text in texts.items()}
        return of({name: getattr(self, name) for name in ("score", "mask", "prob", "sink")}), of(self.tensors)

    @property
    def learned(self):
        """The tensors that have gradients: masks have none, nor have Ints."""
        texts = " ".join((self.score, self.prob, self.sink))
        return [name for name, text in self.tensors.items()
                if not text.startswith("i32") and re.search(rf"\b{name}\[", texts)]

    def options(self, case):
        texts, tensors = self.of(case)
        return [word for name, text in texts.items() if text for word in (f"--{name}", text)] + [
            word for name, text in tensors.items() for word in ("--capture", f"{name}={text}")]

    def __str__(self):
        said = [self.score, self.prob, self.mask, self.sink and f"sink {self.sink}"]
        return ", ".join(text for text in said if text not in ("s", "p", "kv <= q", "")).format(S="S", end="S - 1")


TABLE, DENSE = "f32[{both}]", "bf16[{H},{S},{S}]"
MODS = {
    "plain": Mod(peers=("cudnn", "flash", *FLEX)),
    "dropout": Mod(prob="dropout(0.9, 7)", dropped=0.1, peers=("cudnn", "flash")),
    "squared": Mod(prob="p * p", peers=()),
    "threshold": Mod(prob="where(p > 0.001, p, 0.0)", peers=()),
    # A factor of a head or key is one of the values.
    "head-gain": Mod(prob="p * g[h]", tensors={"g": "f32[{H}]"}, peers=("cudnn", "flash", *FLEX)),
    "key-gate": Mod(prob="p * sigmoid(w[kv])", tensors={"w": "f32[{S}]"}, peers=("cudnn", "flash", *FLEX)),
    "by-query": Mod("s + u[h, q]", tensors={"u": "f32[{H},{S}]"}),
    "by-key": Mod("s + u[h, kv]", tensors={"u": "f32[{H},{S}]"}),
    "by-key-bf16": Mod("s + u[h, kv]", tensors={"u": "bf16[{H},{S}]"}),
    "by-key-alone": Mod("s + u[kv]", tensors={"u": "f32[{S}]"}),
    "bias": Mod("s + d[h, q, kv]", tensors={"d": DENSE}, bias="d", peers=("cudnn", "efficient", *FLEX)),
    "bias-entries": Mod("s + d[b, h, q, kv]", tensors={"d": "bf16[{B},{H},{S},{S}]"}, bias="d",
                        peers=("cudnn", "efficient", *FLEX)),
    "biases-softcap": Mod("30 * tanh((s + a[h, q, kv] + c[b, q, kv]) / 30)",
                          tensors={"a": DENSE, "c": "bf16[{B},{S},{S}]"}),
    "bias-table": Mod("s + d[h, q, kv] + t[q - kv + {end}]", tensors={"d": DENSE, "t": TABLE}),
    "table": Mod("s + t[q - kv + {end}]", tensors={"t": TABLE}),
    "table-softcap": Mod("30 * tanh((s + t[q - kv + {end}]) / 30)", tensors={"t": TABLE}),
    "t5": Mod("s + t[h, bucket[clamp(q - kv + 128, 0, 256)]]", tensors={"t": "f32[{H},32]", "bucket": "i32[257]"}),
    "alibi-learned": Mod("s + slope[h] * f32(kv - q)", tensors={"slope": "f32[{H}]"}),
    "sink": Mod(sink="c[h]", tensors={"c": "f32[{H}]"}),
    "sink-table": Mod("s + t[q - kv + {end}]", sink="c[h]", tensors={"t": TABLE, "c": "f32[{H}]"}),
    "gpt-oss": Mod(mask="(kv <= q) && (q - kv < 128)", sink="c[h]", tensors={"c": "f32[{H}]"},
                   pairs=lambda n: peers.live_pairs("window", n, 128)),
    # Random numbers drop half of the keys, and so no tile: all pairs count.
    "triangle": Mod("s + z[b / {S}, h, q, kv]", "keep[b, kv] > 0", bias="z", pairs=lambda n: n * n,
                    tensors={"z": "bf16[1,{H},{S},{S}]", "keep": "f32[{B},{S}]"},
                    peers=("cudnn", "efficient", *FLEX, "cueq")),
}

BOTH = ("forward", "backward")
# Rows, with the directions and sizes of those that have others than the backward of 2 x 16 x 8192 x 128.
ROWS = [*((row, BOTH if row in ("plain", "dropout", "squared", "bias") else BOTH[1:], {}) for row in MODS
          if row not in ("bias-entries", "biases-softcap", "bias-table", "gpt-oss", "triangle")),
        ("bias-entries", BOTH[1:], {"seq": 2048, "heads": 32}), ("biases-softcap", BOTH, {"seq": 4096}),
        ("bias-table", BOTH[1:], {"seq": 4096}),
        ("gpt-oss", BOTH, {"batch": 1, "heads": 64, "kv_heads": 8, "kv_seq": 8192, "d": 64}),
        *(("triangle", BOTH, {"batch": n, "heads": 4, "seq": n, "d": 32}) for n in (256, 512)),
        *((row, BOTH[1:], {"heads": 8, "d": 256}) for row in ("plain", "dropout"))]
