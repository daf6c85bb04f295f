# tests/python/in_torch/test_refusals.py — arguments that torch reads otherwise, or not at all: computed right, or refused
"""What attune.torch must not misread."""

import pytest
import torch
from attune.torch import create_block_mask, flex_attention, scaled_dot_product_attention, varlen_attention
from goldens import refused

# ---- jagged tensors that are not plain

def with_holes(offsets, lengths, width=16, heads=4):
    rows = torch.randn(offsets[-1], heads, width, requires_grad=True)
    made = torch.nested.nested_tensor_from_jagged(rows, torch.tensor(offsets), lengths=torch.tensor(lengths))
    return rows, made.transpose(1, 2)


@pytest.mark.parametrize("is_causal", [False, True])
def test_nested_tensors_with_holes(is_causal):
    offsets, lengths = [0, 6, 14, 20, 25], [4, 8, 3, 1]
    flat, given = zip(*[with_holes(offsets, lengths) for _ in range(3)])
    out = scaled_dot_product_attention(*given, is_causal=is_causal)
    grad = torch.randn(sum(lengths), 4, 16)
    out.transpose(1, 2).values().backward(grad)
    grads = [t.grad.clone() for t in flat]
    for t in flat:
        t.grad = None
    at, expected = 0, []
    for begin, length in zip(offsets, lengths):
        q, k, v = (t[begin:begin + length].transpose(0, 1)[None] for t in flat)
        one = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)[0].transpose(0, 1)
        one.backward(grad[at:at + length])
        expected.append(one)
        at += length
    torch.testing.assert_close(out.transpose(1, 2).values(), torch.cat(expected))
    for ours, t in zip(grads, flat):
        torch.testing.assert_close(ours, t.grad)


def test_keys_with_holes_have_other_values():
    """k has holes and v none, with the same lengths."""
    q = torch.nested.nested_tensor_from_jagged(torch.randn(9, 4, 16), torch.tensor([0, 4, 9])).transpose(1, 2)
    rows, k = with_holes([0, 6, 14], [4, 8])
    v = torch.nested.nested_tensor_from_jagged(torch.randn(12, 4, 16), torch.tensor([0, 4, 12])).transpose(1, 2)
    out = scaled_dot_product_attention(q, k, v).unbind()
    for one, a, b, c in zip(out, q.unbind(), (rows[:4], rows[6:14]), v.unbind()):
        torch.testing.assert_close(one, torch.nn.functional.scaled_dot_product_attention(a, b.transpose(0, 1), c))


def test_values_of_other_sequences_than_keys_are_refused():
    q, v = (torch.nested.nested_tensor_from_jagged(torch.randn(20, 4, 16), torch.tensor(starts)).transpose(1, 2)
            for starts in ([0, 6, 14, 20], [0, 5, 14, 20]))
    assert refused(scaled_dot_product_attention, q, q, v).code == "tensor-shape"


def test_nested_tensors_that_do_not_fit_are_refused():
    rows, dense = torch.randn(20, 4, 16), torch.randn(3, 4, 6, 16)
    nested = torch.nested.nested_tensor_from_jagged(rows, torch.tensor([0, 6, 14, 20]))
    starts = torch.tensor([0, 6, 14, 20], dtype=torch.int32)
    assert "transpose(1, 2)" in refused(scaled_dot_product_attention, nested, nested, nested).fix
    for given in ((dense, nested, nested), (nested, dense, dense)):
        given = [t.transpose(1, 2) if t.is_nested else t for t in given]
        assert refused(scaled_dot_product_attention, *given).code == "tensor-layout"
    assert refused(varlen_attention, nested, nested, nested, starts, starts).code == "tensor-layout"


# ---- arguments that are none

def test_a_scale_that_requires_a_gradient_is_refused():
    q, scale = torch.ones(1, 2, 8, 4), torch.nn.Parameter(torch.tensor(0.5))
    for call in (scaled_dot_product_attention, flex_attention):
        assert refused(call, q, q, q, scale=scale).code == "bad-argument"
        torch.testing.assert_close(call(q, q, q, scale=scale.detach()), call(q, q, q, scale=0.5))


@pytest.mark.parametrize("used", [[5, 2], [3, -1], [1, 2, 3], [1.0, 2.0], 3])
def test_counts_of_keys_that_are_none_are_refused(used):
    q, starts = torch.ones(10, 2, 16), torch.tensor([0, 3, 10], dtype=torch.int32)
    error = refused(varlen_attention, q, q, q, starts, starts, 7, 7, seqused_k=torch.tensor(used))
    assert error.code == "kv-len"


def test_arguments_of_other_types_are_refused():
    q, starts = torch.ones(10, 2, 16), torch.tensor([0, 3, 10], dtype=torch.int32)
    dense = torch.ones(1, 2, 8, 4)
    assert refused(scaled_dot_product_attention, dense, dense, dense, attn_mask=[[1]]).code == "tensor-array"
    assert refused(flex_attention, dense, dense, dense, return_aux=True).code == "bad-argument"
    for more in ({"window_size": 3}, {"is_causal": True}, {"return_aux": True}):
        assert refused(varlen_attention, q, q, q, starts, starts, 7, 7, **more).code == "bad-argument"
    assert refused(varlen_attention, q, q, q, [0, 3, 10], None).code == "cu-seqlens-type"

# ---- masks and mods

@pytest.mark.parametrize("mod", [lambda b, h, i, j: i - j, lambda b, h, i, j: 1.0 * i, lambda b, h, i, j: 1])
def test_a_mask_mod_gives_bools(mod):
    q = torch.ones(1, 2, 8, 4)
    error = refused(flex_attention, q, q, q, block_mask=create_block_mask(mod, None, None, 8, 8))
    assert error.code == "wrong-result" and error.fix == "compare something: x != 0"


def test_our_block_mask_has_no_lists():
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256)
    assert refused(mask.as_tuple).code == "block-mask"
    for index in (1, -2, (0, 0, 0, 0), slice(0, 2, 2), (0, [0]), "a", (0, 0, 2)):
        assert refused(lambda index=index: mask[index]).code == "bad-argument", index


def test_arrays_of_numpy_are_no_tensors():
    import numpy as np

    q, slope = torch.ones(1, 2, 8, 4), np.ones(2, np.float32)
    for mod in (lambda s, b, h, i, j: s + slope[h], lambda s, b, h, i, j: s + slope):
        assert "torch.as_tensor" in refused(flex_attention, q, q, q, mod).fix


def test_values_show_what_they_are(capsys):
    q, table = torch.ones(1, 2, 8, 4), torch.ones(2, 8)

    def mod(s, b, h, i, j):
        print(s, h, i >= j, table[h])
        return s

    flex_attention(q, q, q, mod)
    assert capsys.readouterr().out == "<Float s> <Int h> <Bool q >= kv> <Float of shape [8]>\n"


def test_functions_of_one_code_are_distinguished():
    def times(factor):
        return lambda s: s * factor

    q, two, three = torch.ones(1, 2, 8, 4), times(2.0), times(3.0)

    def mod(s, b, h, i, j, first=two, second=three):
        return first(s) + second(s) - third(s)

    for third in (two, three, two):  # a cell that mod reads
        expected = flex_attention(q, q, q, lambda s, b, h, i, j: s * (3.0 if third is two else 2.0), return_lse=True)[1]
        torch.testing.assert_close(flex_attention(q, q, q, mod, return_lse=True)[1], expected)
