# tests/python/in_torch/test_port.py — programs that change one import: all names of torch, and attention-gym's soft cap
"""`from attune.torch import ...` instead of torch.nn.attention.flex_attention."""

import attune.torch
import pytest
import torch
from attune.torch import (
    BlockMask,
    activate,
    and_masks,
    create_block_mask,
    create_mask,
    deactivate,
    flex_attention,
    noop_mask,
    or_masks,
    register,
)
from eager import close
from torch._inductor.utils import fresh_inductor_cache
from torch.nn.attention import flex_attention as torchs

q = torch.randn(1, 2, 40, 16)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx).abs() < 5


def test_every_name_of_torch_is_there():
    missing = [name for name in torchs.__all__ if not hasattr(attune.torch, name)]
    assert not missing and set(torchs.__all__) <= set(attune.torch.__all__)
    with pytest.raises(ImportError):
        from attune.torch import nothing  # noqa: F401


@pytest.mark.parametrize("mask", [and_masks(causal, window), or_masks(causal, window), noop_mask, and_masks()])
def test_masks_are_joined(mask):
    keeps = create_mask(mask, 1, 1, 40, 40, device="cpu")
    made = flex_attention(q, q, q, block_mask=create_block_mask(mask, None, None, 40, 40))
    close(made, torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=keeps))


def test_a_block_mask_of_lists_is_torchs():
    one = torch.ones(1, 1, 1, dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(one, 0 * one[..., None], BLOCK_SIZE=64, mask_mod=causal, seq_lengths=(40, 40))
    assert type(mask) is torchs.BlockMask
    close(flex_attention(q, q, q, block_mask=mask), torch.nn.functional.scaled_dot_product_attention(
        q, q, q, is_causal=True))


@torch.library.custom_op("approx::tanh", mutates_args=())
def approximate(inp: torch.Tensor) -> torch.Tensor:
    """attention-gym's, which has a lowering of its own for GPUs."""
    return torch.tanh(inp)


approximate.register_fake(torch.tanh)


class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.ops.approx.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * (1 - result * result)

    @staticmethod
    def vmap(info, in_dims, x):
        return torch.tanh(x), 0


@torch.library.custom_op("mine::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


halved.register_fake(torch.empty_like)
halved.register_vmap(lambda info, dims, x: (x * 0.5, dims[0]))
CALLS = {"operator": lambda x: torch.ops.approx.tanh(x), "overload": lambda x: torch.ops.approx.tanh.default(x),
         "function": Tanh.apply, "custom_op": approximate}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("run", [flex_attention, torch.compile(flex_attention, backend="eager")],
                         ids=["eager", "compiled"])
def test_attention_gyms_soft_cap(name, run):
    leaves = [q.clone().requires_grad_() for _ in range(2)]
    made = run(leaves[0], q, q, lambda s, b, h, i, j: 2 * CALLS[name](s / 2))
    want = flex_attention(leaves[1], q, q, lambda s, b, h, i, j: 2 * torch.tanh(s / 2))
    assert torch.equal(made, want)
    assert torch.equal(*(torch.autograd.grad(out.sum(), x)[0] for out, x in ((made, leaves[0]), (want, leaves[1]))))


@pytest.mark.parametrize("registered", [torch.ops.mine.halved, torch.ops.mine.halved.default, halved],
                         ids=["operator", "overload", "custom_op"])
def test_registering_any_form_of_an_operator_helps(registered):
    mod = lambda s, b, h, i, j: torch.ops.mine.halved(s) - torch.ops.mine.halved.default(s * 2)
    from attune.torch import _functions
    with pytest.raises(attune.Error, match="unknown-function"):
        flex_attention(q, q, q, mod)
    register(registered, lambda x: x * 0.5)
    try:
        close(flex_attention(q, q, q, mod), flex_attention(q, q, q, lambda s, b, h, i, j: s * -0.5))
    finally:
        del _functions.TABLE["mine::halved"]


@fresh_inductor_cache()
def test_a_registered_operator_in_a_graph_of_inductor():
    from attune.torch import _functions
    torch.compiler.reset()
    calls = []
    register(torch.ops.mine.halved, lambda x: x * 0.5)
    activate(compile=True)
    try:
        with attune.watch(lambda fact: calls.append(fact["fact"]) if fact["fact"] == "called" else None):
            made = torch.compile(torchs.flex_attention)(q, q, q, lambda s, b, h, i, j: torch.ops.mine.halved(s))
        assert calls == ["called"]
    finally:
        deactivate()
        del _functions.TABLE["mine::halved"]
    close(made, flex_attention(q, q, q, lambda s, b, h, i, j: s * 0.5))
