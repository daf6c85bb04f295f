# tests/python/in_torch/test_diffusers.py — attune as an attention backend of diffusers, compared with torch's
"""Small random models by the backends' names, mods through attention_kwargs, and context parallelism on two ranks."""

import os

import pytest
import torch
from torch.testing import assert_close

os.environ.setdefault("HF_HUB_OFFLINE", "1")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")

import attune  # noqa: E402
import attune.diffusers  # noqa: E402
from attune.torch import create_block_mask  # noqa: E402
from diffusers.models import attention_dispatch as dispatch  # noqa: E402


@pytest.fixture(autouse=True)
def back():
    before, _ = dispatch._AttentionBackendRegistry.get_active_backend()
    yield
    attune.diffusers.disable()
    dispatch._AttentionBackendRegistry.set_active_backend(before)  # models set it for all


def tensors(heads=2, kv_heads=2, queries=37, keys=37, width=16):
    torch.manual_seed(1)
    return [torch.randn(2, n, h, width, requires_grad=True) for n, h in ((queries, heads), (keys, kv_heads), (keys, kv_heads))]


def both(call, *qkv):
    """Output and gradients by torch's attention and by attune's."""
    results = []
    for enable in (False, True):
        if enable:
            attune.diffusers.enable("native")
        leaves = [t.detach().clone().requires_grad_() for t in qkv]
        out = call(*leaves)
        out.square().sum().backward()
        results.append([out.detach(), *[t.grad for t in leaves]])
    return results


MASKS = {
    "none": lambda q, k: {},
    "causal": lambda q, k: {"is_causal": True},
    "scale": lambda q, k: {"scale": 0.3},
    "keys": lambda q, k: {"attn_mask": torch.arange(k) < torch.tensor([[k], [5]])},
    "pairs": lambda q, k: {"attn_mask": (torch.rand(2, 1, q, k) < 0.7) | (torch.arange(k) == 0)},
    "bias": lambda q, k: {"attn_mask": torch.randn(2, 2, q, k)},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("queries, keys", [(37, 37), (1, 19), (33, 1)])
def test_what_native_takes(mask, queries, keys):
    torch.manual_seed(2)
    given = MASKS[mask](queries, keys)
    theirs, ours = both(lambda *qkv: dispatch.dispatch_attention_fn(*qkv, **given), *tensors(queries=queries, keys=keys))
    for a, b in zip(theirs, ours):
        assert_close(b, a, atol=2e-4, rtol=2e-4)


def test_heads_share_keys():
    theirs, ours = both(lambda *qkv: dispatch.dispatch_attention_fn(*qkv, enable_gqa=True), *tensors(heads=4))
    for a, b in zip(theirs, ours):
        assert_close(b, a, atol=2e-4, rtol=2e-4)


def test_mods_go_through_attention_kwargs():
    attune.diffusers.enable("flex")
    q, k, v = tensors()

    def cap(score, b, h, i, j):
        return 3 * torch.tanh(score / 3) + h

    def near(b, h, i, j):
        return (i - j).abs() < 7

    def call(**more):
        with dispatch.attention_backend("flex"):
            return dispatch.dispatch_attention_fn(q, k, v, attention_kwargs=more)

    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1]**-0.5
    scores = 3 * torch.tanh(scores / 3) + torch.arange(2)[:, None, None]
    kept = (torch.arange(37)[:, None] - torch.arange(37)).abs() < 7
    scores = scores.masked_fill(~kept, -torch.inf)
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    assert_close(call(score_mod=cap, mask_mod=near), expected, atol=2e-5, rtol=2e-5)
    mask = create_block_mask(near, None, None, 37, 37)
    assert_close(call(score_mod=cap, block_mask=mask), expected, atol=2e-5, rtol=2e-5)
    out, lse = call(score_mod=cap, mask_mod=near, return_lse=True)
    assert_close(out, expected, atol=2e-5, rtol=2e-5)
    assert_close(lse, scores.logsumexp(-1).transpose(1, 2), atol=2e-5, rtol=2e-5)


def test_the_lse_of_a_plain_call():
    attune.diffusers.enable("native")
    q, k, v = tensors()
    out, lse = dispatch.dispatch_attention_fn(q, k, v, attention_kwargs={"return_lse": True})
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1]**-0.5
    assert out.shape == q.shape
    assert_close(lse, scores.logsumexp(-1).transpose(1, 2), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_a_call_over_ranks(parts):
    """As diffusers' ring calls them: results of parts of the keys are merged, then each part gets what all gave."""
    q, k, v = [t.detach() for t in tensors(keys=36)]
    grad = torch.randn_like(q)

    class Context:
        def save_for_backward(self, *kept):
            self.saved_tensors = kept

    ctx, out, lse = Context(), None, None
    chunks = list(zip(k.chunk(parts, 1), v.chunk(parts, 1)))
    for nth, (key, value) in enumerate(chunks):
        o, rows = attune.diffusers._forward(ctx, q, key, value, return_lse=True, _save_ctx=nth == 0)
        rows = rows.unsqueeze(-1)
        if out is None:
            out, lse = o, rows
        else:
            out, lse = out - torch.sigmoid(rows - lse) * (out - o), torch.logaddexp(lse, rows)
    made = [attune.diffusers._backward(ctx, grad, query=q, key=key, value=value, out=out, lse=lse.squeeze(-1))
            for key, value in chunks]
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in leaves)).transpose(1, 2)
    expected.backward(grad)
    assert_close(out, expected, atol=2e-5, rtol=2e-5)
    ours = sum(one[0] for one in made), torch.cat([one[1] for one in made], 1), torch.cat([one[2] for one in made], 1)
    for mine, leaf in zip(ours, leaves):
        assert_close(mine, leaf.grad, atol=2e-5, rtol=2e-5)


def test_a_transformer_of_diffusers():
    torch.manual_seed(3)
    model = diffusers.FluxTransformer2DModel(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1,
                                             attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32,
                                             pooled_projection_dim=32, axes_dims_rope=(4, 4, 8)).eval()
    given = {"hidden_states": torch.randn(1, 16, 4), "encoder_hidden_states": torch.randn(1, 5, 32),
             "pooled_projections": torch.randn(1, 32), "timestep": torch.tensor([0.5]), "img_ids": torch.zeros(16, 3),
             "txt_ids": torch.zeros(5, 3)}
    called = []
    with torch.no_grad(), attune.watch(called.append, "called"):
        theirs = model(**given).sample
        assert not called
        attune.diffusers.enable("flex")
        model.set_attention_backend("flex")
        ours = model(**given).sample
    assert len(called) == 2  # one of each kind of layer
    assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


def test_names():
    before = dict(dispatch._AttentionBackendRegistry._backends)
    assert attune.diffusers.enable("native") == attune.diffusers.enable("native") == "native"
    attune.diffusers.disable()
    assert dispatch._AttentionBackendRegistry._backends == before
    for over in (None, "fastest"):
        with pytest.raises(attune.Error, match="backend-name") as caught:
            attune.diffusers.enable(over)
        assert "native" in str(caught.value)


@pytest.mark.parametrize("more", [{"is_causal": True}, {"dropout_p": 0.1}, {"attn_mask": torch.ones(2, 37, dtype=torch.bool)}])
def test_mods_stand_alone(more):
    attune.diffusers.enable("native")
    with pytest.raises(attune.Error, match="mask-twice"):
        dispatch.dispatch_attention_fn(*tensors(), **more, attention_kwargs={"mask_mod": lambda b, h, i, j: i >= j})


@pytest.mark.parametrize("more", [{"mask_mod": lambda b, h, i, j: i >= j}, {"dropout_p": 0.1}])
def test_parts_over_ranks_take_no_mods_and_no_dropout(more):
    class Parallel:
        class context_parallel_config:  # noqa: N801, as diffusers names it
            ring_degree, ulysses_degree, ring_anything = 1, 1, False

    with pytest.raises(attune.Error, match="parallel-parts"):
        if "dropout_p" in more:
            attune.diffusers._forward(None, *tensors(), **more)
        else:
            attune.diffusers.attention(*tensors(), **more, _parallel_config=Parallel())
