# tests/python/in_torch/test_mistakes.py — every mistake in a mod or a call has its message, under the user's own line
"""Mistakes, each with a golden message in tests/python/errors."""

import math
import random
import sys

import attune
import numpy as np
import pytest
import torch
from attune.torch import (
    AuxRequest,
    create_block_mask,
    engine,
    explain,
    flex_attention,
    scaled_dot_product_attention,
    varlen_attention,
)
from attune.torch._functions import RANDOM
from goldens import golden
from torch.nn.attention import flex_attention as torchs

q = torch.ones(1, 2, 8, 4)
bias, table, doc = torch.ones(2), torch.ones(2, 8), torch.zeros(8, dtype=torch.int32)
learned = torch.ones(2, requires_grad=True)
twice = q.clone().requires_grad_()


def score(mod):
    return lambda: flex_attention(q, q, q, mod)


def mask(mod):
    return lambda: flex_attention(q, q, q, block_mask=create_block_mask(mod, None, None, 8, 8))


def loops(s, b, h, i, j):
    for _ in range(i):
        s = s + 1
    return s


def in_place(s, b, h, i, j):
    s.add_(1)
    return s


generator = np.random.default_rng(3)


def helper(s):
    return s + generator.normal()


def helped(s, b, h, i, j):
    return helper(s)


class Layer:
    def mod(self, s, b, h):
        return s


def nothing(s, b, h, i, j):
    s + 1


MISTAKES = {
    # ---- Python asks for a value
    "if": score(lambda s, b, h, i, j: s if i > j else 0.0),
    "and": mask(lambda b, h, i, j: i >= j and i - j < 4),
    "chain": mask(lambda b, h, i, j: 0 <= i - j < 4),
    "float": score(lambda s, b, h, i, j: math.exp(s)),
    "item": score(lambda s, b, h, i, j: s + h.item()),
    "range": score(loops),
    "list": score(lambda s, b, h, i, j: s + [1.0, 2.0][h]),
    # ---- what the language does not have
    "function": score(lambda s, b, h, i, j: torch.atan(s)),
    "method": score(lambda s, b, h, i, j: s.lgamma()),
    "in-place": score(in_place),
    "sort": score(lambda s, b, h, i, j: s + torch.sort(table[h]).values[0]),
    "max-dim": score(lambda s, b, h, i, j: s + table[h].max(0)[0]),
    "long-row": score(lambda s, b, h, i, j: s + torch.ones(2000)[None][h].sum()),
    "rand": score(lambda s, b, h, i, j: torch.where(torch.rand(()) < 0.3, -math.inf, s)),
    "dropout-of-score": score(lambda s, b, h, i, j: torch.nn.functional.dropout(s, 0.3)),
    "rand-like": score(lambda s, b, h, i, j: s + torch.rand_like(bias)[h]),
    "rand-in-place": score(lambda s, b, h, i, j: s + bias.clone().uniform_()[h]),
    "random-of-python": score(lambda s, b, h, i, j: s * random.random()),
    "random-of-numpy": mask(lambda b, h, i, j: i >= j + np.random.randint(3)),
    "random-generator": score(helped),
    "int8": mask(lambda b, h, i, j: i.to(torch.int8) >= j),
    "detach": score(lambda s, b, h, i, j: (s + learned[h]).detach()),
    # ---- reads and types
    "float-index": score(lambda s, b, h, i, j: s + bias[s]),
    "condition-index": score(lambda s, b, h, i, j: s + bias[i > j]),
    "too-many-indices": score(lambda s, b, h, i, j: s + bias[h, i]),
    "out-of-range": score(lambda s, b, h, i, j: s + table[h, 9]),
    "rows-apart": score(lambda s, b, h, i, j: s + table[h] + doc[:3]),
    "row-as-score": score(lambda s, b, h, i, j: s + table[h]),
    "bits-of-float": mask(lambda b, h, i, j: i / 2 & 1),
    "complex": score(lambda s, b, h, i, j: s + torch.ones(2, dtype=torch.complex64)[h]),
    "five-dimensions": score(lambda s, b, h, i, j: s + torch.ones(1, 1, 1, 1, 8)[b, b, b, b, j]),
    "text": score(lambda s, b, h, i, j: s + "1"),
    "gives-none": score(nothing),
    "mask-gives-none": mask(lambda b, h, i, j: None),
    "score-mod-of-text": score("s"),
    "mask-mod-of-number": mask(3),
    "too-few-arguments": score(lambda s, b, h: s),
    "too-many-arguments": mask(lambda b, h, i, j, k: i >= j),
    "method-with-too-few-arguments": score(Layer().mod),
    # ---- calls
    "no-query": lambda: flex_attention(None, q, q),
    "keys-in-a-list": lambda: flex_attention(q, [1.0], q),
    "values-of-numpy": lambda: flex_attention(q, q, q.numpy()),
    "no-value": lambda: scaled_dot_product_attention(q, q, None),
    "no-value-without-gradients": torch.no_grad()(lambda: flex_attention(q, q, None)),
    "no-packed-key": lambda: varlen_attention(q[0], None, q[0], doc, doc),
    "scale-of-text": lambda: flex_attention(q, q, q, scale="a"),
    "scale-of-many-digits": lambda: scaled_dot_product_attention(q, q, q, scale=10**400),
    "heads": lambda: flex_attention(q, q[:, :1], q[:, :1]),
    "heads-of-no-group": lambda: flex_attention(q, *[q[:, [0, 1, 1]]] * 2),
    "engine": lambda: engine("orcale"),
    "explain-without-keys": lambda: explain(q),
    "explain-of-number": lambda: explain(3),
    "matrices": score(lambda s, b, h, i, j: s + table[h] @ table[b, :4]),
    "wrong-lengths": lambda: flex_attention(q, q, q, block_mask=create_block_mask(lambda *_: True, None, None, 16, 8)),
    "sliced-mask": lambda: flex_attention(
        q, q, q, block_mask=torchs.create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 256, 256, device="cpu")[:, :, 0]),
    "no-mask": lambda: flex_attention(q, q, q, block_mask=torch.ones(8, 8)),
    "aux-twice": lambda: flex_attention(q, q, q, return_lse=True, return_aux=AuxRequest(lse=True)),
    "types": lambda: flex_attention(q, q.double(), q),
    "cache-of-e5m2": lambda: flex_attention(q, *[q.to(torch.float8_e5m2)] * 2),
    "cache-without-gradient": lambda: flex_attention(
        q.clone().requires_grad_(), *[q.to(torch.float8_e4m3fn)] * 2).sum().backward(),
    "forward-derivative": lambda: torch.func.jvp(lambda q: flex_attention(q, q, q), (q,), (q,)),
    "second-derivative": lambda: torch.autograd.grad(
        flex_attention(twice, q, q).sum(), twice, create_graph=True)[0].sum().backward(),
    "shapes": lambda: flex_attention(q, q[..., :2], q),
    "three-dimensions": lambda: flex_attention(q[0], q[0], q[0]),
    "sparse": lambda: flex_attention(q.to_sparse(), q, q),
    "mask-and-causal": lambda: scaled_dot_product_attention(q, q, q, torch.ones(8, 8), is_causal=True),
    "mask-shape": lambda: scaled_dot_product_attention(q, q, q, torch.ones(8, 4)),
    "mask-type": lambda: scaled_dot_product_attention(q, q, q, torch.ones(8, 8, dtype=torch.int32)),
    "dropout": lambda: scaled_dot_product_attention(q, q, q, dropout_p=1.5),
    "leading-dimensions": lambda: scaled_dot_product_attention(q.expand(3, 2, 8, 4), q.expand(2, 2, 8, 4), q),
    "no-heads": lambda: scaled_dot_product_attention(q, q[0, 0], q[0, 0], enable_gqa=True),
    "nested-flex": lambda: flex_attention(*[torch.nested.nested_tensor([q[0]], layout=torch.jagged)] * 3),
    "starts-of-floats": lambda: varlen_attention(q[0], q[0], q[0], table[0], table[0]),
    "paged": lambda: varlen_attention(q[0], q, q, doc, None, enable_gqa=True, block_table=doc),
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 keeps no columns")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told(name):
    with pytest.raises(attune.Error) as caught:
        MISTAKES[name]()
    golden(f"torch-{name}", str(caught.value))


def test_a_mistake_in_a_compiled_mod_is_told():
    torch._dynamo.reset()
    run = torch.compile(lambda q: flex_attention(q, q, q, lambda s, b, h, i, j: torch.atan(s)), fullgraph=True)
    with pytest.raises(Exception, match=r"`atan` is not known inside the kernel \[unknown-function\]"):
        run(q)


def test_every_random_function_of_torch_is_known():
    """Those whose operators torch marks so; functions of which random numbers are a part are not known at all."""
    composed = ["scaled_dot_product_attention", "lstm", "gru", "miopen_rnn", "rnn_tanh", "rnn_relu"]
    for space in (torch, torch.Tensor, torch.nn.functional, torch.special):
        for name in [name for name in dir(space) if not name.startswith("_") and name not in composed]:
            packet = getattr(torch.ops.aten, name, None)
            if callable(getattr(space, name)) and isinstance(packet, torch._ops.OpOverloadPacket) and any(
                    [torch.Tag.nondeterministic_seeded in getattr(packet, one).tags for one in packet.overloads()]):
                assert getattr(space, name) in RANDOM, name


def test_a_dropout_that_draws_nothing_is_allowed():
    drops = torch.nn.functional.dropout
    torch.testing.assert_close(
        flex_attention(q, q, q, lambda s, b, h, i, j: s + drops(bias, 0.5, False)[h] + drops(bias, training=False)[h]),
        flex_attention(q, q, q, lambda s, b, h, i, j: s + 2 * bias[h]))


def test_a_random_number_in_a_compiled_mod_is_told():
    torch._dynamo.reset()
    run = torch.compile(lambda q: flex_attention(q, q, q, lambda s, b, h, i, j: s + torch.rand(())), fullgraph=True)
    with pytest.raises(Exception, match=r"random numbers: torch's `rand` \[random-number\]"):
        run(q)
