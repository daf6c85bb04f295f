# tests/python/in_torch/eager.py — random tensors, and attention as eager torch computes it
"""What the tests of attune.torch compare with, and torch's operators of GPUs with tensors of the host."""

from contextlib import contextmanager

import pytest
import torch
from attune import _core
from attune.torch import _activate, _op, activate, deactivate
from attune.torch._op import place
from torch.overrides import TorchFunctionMode


def qkv(batch=2, heads=4, q_len=19, kv_len=19, width=16, kv_heads=None, v_width=None, dtype=torch.float32, grad=True):
    """Random q, k, v."""
    kv_heads = kv_heads or heads
    rows = ((heads, q_len, width), (kv_heads, kv_len, width), (kv_heads, kv_len, v_width or width))
    return tuple(torch.randn((batch, *r), dtype=dtype, requires_grad=grad) for r in rows)


class Reads(TorchFunctionMode):
    """t[i] for an i that vmap maps over, and with gradients: torch's own way of it cannot differentiate rows."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not torch.Tensor.__getitem__:
            return func(*args, **(kwargs or {}))
        tensor, index = args
        items = index if isinstance(index, tuple) else (index,)
        if not any(isinstance(i, torch.Tensor) for i in items):
            return func(tensor, index)
        if Ellipsis in [i for i in items if not isinstance(i, torch.Tensor)]:
            at = next(n for n, i in enumerate(items) if i is Ellipsis)
            items = (*items[:at], *[slice(None)] * (tensor.dim() - len(items) + 1), *items[at + 1:])
        dim = 0
        for item in items:
            if isinstance(item, torch.Tensor):
                item = torch.where(item < 0, item + tensor.shape[dim], item)
                tensor = torch.index_select(tensor, dim, item.reshape(1)).squeeze(dim)
            elif isinstance(item, int):
                tensor = tensor.select(dim, item)
            else:
                tensor = func(tensor, (*[slice(None)] * dim, item))
                dim += 1
        return tensor


def mapped(mod, first):
    """The mod over all of (b, h, q, kv), and over the scores if they are its first argument."""
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        mod = torch.vmap(mod, in_dims=(*first, *dims))
    return mod


def scores_of(q, k, score=None, mask=None, scale=None):
    """Every score as eager flex_attention computes it, in the type of q: the mods under four vmaps."""
    k = k.expand(q.shape[0], *k.shape[1:]).repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    at = [torch.arange(n) for n in s.shape]
    with Reads():
        if score is not None:
            s = mapped(score, (0,))(s, *at)
        if mask is not None:
            s = torch.where(mapped(mask, ())(*at), s, -torch.inf)
    return s


def eager(q, k, v, score=None, mask=None, scale=None):
    """The output and lse of eager torch."""
    s = scores_of(q, k, score, mask, scale)
    v = v.expand(q.shape[0], *v.shape[1:]).repeat_interleave(q.shape[1] // v.shape[1], 1)
    empty = (s == -torch.inf).all(-1, keepdim=True)
    p = torch.softmax(torch.where(empty, 0.0, s), -1) * ~empty
    return p @ v, torch.where(empty[..., 0], -torch.inf, torch.logsumexp(torch.where(empty, 0.0, s), -1))


def close(ours, theirs, tolerance=2e-5):
    """Equal within a share of the whole, in the Frobenius norm, which counts as 0.1 where it is less."""
    assert (ours is None) == (theirs is None)
    if ours is None:
        return
    assert ours.shape == theirs.shape
    ours, theirs = ours.detach().double(), theirs.detach().double()
    finite = torch.isfinite(theirs)
    assert torch.equal(ours[~finite], theirs[~finite])
    difference = (ours - theirs)[finite].norm()
    assert difference <= tolerance * max(0.1, theirs[finite].norm().item()), f"off by {difference}"


def doubled(*tensors):
    """f64 leaves with the same values."""
    return tuple(t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in tensors)


def takes_pages():
    """True if torch's attention to sequences does, which torch 2.11's does not."""
    return any(one.name == "block_table" for one in torch.ops.aten._flash_attention_forward.default._schema.arguments)


@contextmanager
def kernels_of_gpus(own=None):
    """Torch's operators with attune's kernels for GPUs, which here get tensors of the host, and a function that gives the
    reason for which a call would be torch's own. `own`: what torch's own kernels compute instead."""
    told = []

    def refuse(*_, **__):
        told.append(_core.why_torch())
        raise RuntimeError

    def why(call):
        told.clear()
        with pytest.raises(RuntimeError):
            call()
        return told[0]

    activate()
    instead = None
    names = [name for *pair, key in _activate._OPERATORS if key == "CUDA" for name in pair]
    try:
        if not set(names) <= set(_activate._own):
            pytest.skip("this torch has no operators of GPUs")
        instead = torch.library.Library("attune", "IMPL")
        for name in names:
            instead.impl(name, own or refuse, "CPU")
            assert place(f"aten::{name}", "CPU", "activated", _activate._made)
        with torch._C._AutoDispatchBelowAutograd():
            yield torch.ops.aten, why
    finally:
        if instead is not None:
            instead._destroy()
        deactivate()


@pytest.fixture(params=["Efficient", "Overrideable"])
def recorder(request):
    """A part of the name of torch's node that records calls: the first is for the host alone, GPUs have the second."""
    if not _op.records:
        pytest.skip("this torch has no stable ABI")
    if request.param == "Overrideable":
        _op.record_by(None)
    yield request.param
    _op.record_by()
