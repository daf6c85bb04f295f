# tests/python/in_torch/test_flex.py — flex_attention as programs call it: shapes, layouts, types, masks, what is kept
"""attune.torch.flex_attention beyond the mods themselves."""

import gc
import weakref

import attune
import pytest
import torch
from attune.torch import AuxRequest, create_block_mask, explain, flex_attention
from eager import close, doubled, eager, qkv
from torch.nn.attention import flex_attention as torchs


def causal(b, h, i, j):
    return i >= j


def distance(s, b, h, i, j):
    return s - (i - j) * 0.1


def block_mask(mod, q, k):
    return create_block_mask(mod, None, None, q.shape[-2], k.shape[-2])


def check(inputs, score=None, mask=None, tolerance=2e-5, **options):
    """Values and gradients as in eager torch in f64."""
    doubles = doubled(*inputs)
    given = None if mask is None else block_mask(mask, *inputs[:2])
    out, lse = flex_attention(*inputs, score, given, return_lse=True, **options)
    wanted, wanted_lse = eager(*doubles, score, mask, options.get("scale"))
    close(out, wanted, tolerance)
    close(lse, wanted_lse, tolerance)
    grad = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, inputs, grad), torch.autograd.grad(wanted, doubles, grad.double())):
        assert a.dtype == inputs[0].dtype
        close(a, b, 2 * tolerance)
    return out


@pytest.mark.parametrize("shape", [
    {}, {"q_len": 1, "kv_len": 1}, {"q_len": 1, "kv_len": 33}, {"q_len": 64, "kv_len": 7}, {"batch": 1, "heads": 1},
    {"width": 1}, {"width": 17}, {"width": 121}, {"width": 8, "v_width": 24}, {"width": 24, "v_width": 5},
    {"q_len": 130, "kv_len": 257, "width": 64}], ids=str)
def test_any_shape(shape):
    check(qkv(**shape), distance, causal)


@pytest.mark.parametrize("empty", [{"q_len": 0}, {"kv_len": 0}, {"batch": 0}, {"v_width": 1}], ids=str)
def test_nothing_to_attend_to_gives_zeros(empty):
    inputs = qkv(**empty)
    out, lse = flex_attention(*inputs, distance, return_lse=True)
    if empty == {"kv_len": 0}:
        assert not out.any() and (lse == -torch.inf).all()
    out.sum().backward()
    assert all(t.grad.shape == t.shape and t.grad.isfinite().all() for t in inputs)


def test_heads_are_shared_where_that_is_meant():
    check(qkv(heads=6, kv_heads=2), distance, causal, enable_gqa=True)


def test_a_scale_takes_the_place_of_the_usual_one():
    check(qkv(), None, causal, scale=0.7)


def test_keys_of_one_batch_entry_serve_all():
    q, k, v = qkv(batch=3)
    k, v = (t.detach()[:1].requires_grad_() for t in (k, v))
    check((q, k, v), distance)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_every_type(dtype, tolerance):
    assert check(qkv(dtype=dtype), None, causal, tolerance).dtype == dtype


def test_the_output_lies_in_memory_as_q_does():
    q, k, v = (t.transpose(1, 2) for t in qkv(heads=19, q_len=4, kv_len=4))
    out = flex_attention(q, k, v)
    assert out.stride() == q.stride()
    wide = flex_attention(q, k, v[..., :8])
    assert wide.shape[-1] == 8 and wide.transpose(1, 2).is_contiguous()


def test_any_strides():
    q, k, v = qkv(width=32, grad=False)
    inputs = (q[..., ::2].requires_grad_(), k.expand(2, 4, 19, 32)[..., 16:].requires_grad_(),
              v[:, :1, :, :16].expand(2, 4, 19, 16).requires_grad_())
    check(inputs, distance, causal)


def test_rows_that_keep_nothing_are_zero():
    inputs = qkv()
    out, aux = flex_attention(*inputs, block_mask=block_mask(lambda b, h, i, j: i > j + 3, *inputs[:2]),
                              return_aux=AuxRequest(lse=True, max_scores=True))
    assert not out[:, :, :4].any() and (aux.lse[:, :, :4] == -torch.inf).all()
    assert (aux.max_scores[:, :, :4] == -torch.inf).all()
    out.sum().backward()
    assert not inputs[0].grad[:, :, :4].any()


def test_the_largest_scores_are_given_and_have_no_gradient():
    q, k, v = qkv()
    _, aux = flex_attention(q, k, v, distance, return_aux=torchs.AuxRequest(max_scores=True))
    close(aux.max_scores, (q @ k.transpose(-1, -2) / 4 - (torch.arange(19)[:, None] - torch.arange(19)) * 0.1).amax(-1))
    assert aux.lse is None and not aux.max_scores.requires_grad


def test_lse_alone_has_gradients():
    q, k, v = qkv()
    doubles = doubled(q, k, v)
    mine = torch.autograd.grad(flex_attention(q, k, v, distance, return_lse=True)[1].sum(), (q, k))
    for a, b in zip(mine, torch.autograd.grad(eager(*doubles, distance)[1].sum(), doubles[:2])):
        close(a, b)


def test_gradients_go_where_they_are_asked_for():
    q, k, v = qkv(grad=False)
    bias, ids = torch.randn(4, requires_grad=True), torch.zeros(19, dtype=torch.int64)
    out = flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[h] * i * ids[j])
    out.sum().backward()
    assert bias.grad is not None and q.grad is None
    with torch.no_grad():
        assert not flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[h]).requires_grad


def test_what_is_read_and_then_dropped_has_no_gradient():
    q, k, v = qkv(grad=False)
    bias, other = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)

    def mod(s, b, h, i, j):
        dropped = torch.tanh(other[h] * other[h] + torch.sigmoid(other[h]) * torch.exp(other[h])) + 1.0
        return (s + bias[h] * 0.0, dropped)[0]
    flex_attention(q, k, v, mod).sum().backward()
    assert bias.grad is not None and not bias.grad.any() and other.grad is None


def test_a_sign_that_torch_keeps_beside_the_memory_counts():
    q, k, v, bias = (torch.randn(s, dtype=torch.cfloat).conj().imag for s in (*[(2, 4, 19, 16)] * 3, (19,)))
    assert q.is_neg()
    plain = bias.resolve_neg().double()
    close(flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[j]),
          eager(*(t.resolve_neg().double() for t in (q, k, v)), lambda s, b, h, i, j: s + plain[j])[0])
    leaf = torch.randn(2, 4, 19, 16, requires_grad=True)
    (grad,) = torch.autograd.grad(flex_attention(leaf, k, v), leaf, q)
    close(grad, torch.autograd.grad(eager(leaf, k.resolve_neg(), v.resolve_neg())[0], leaf, q.resolve_neg())[0])


def test_a_mask_that_keeps_nothing():
    q, k, v = qkv(grad=False)
    assert not flex_attention(q, k, v, block_mask=block_mask(lambda b, h, i, j: False, q, k)).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gate_of_16_bits_has_the_gradient_of_its_formula(dtype):
    """Eager torch sums it in 16 bits, even for q, k and v of f64: 30 % off in bf16."""
    q, k, v, grad = torch.randn(4, 2, 4, 64, 16).to(dtype)
    gate = torch.randn(4).to(dtype).requires_grad_()
    out = flex_attention(q, k, v, lambda s, b, h, i, j: s * torch.sigmoid(gate[h].to(torch.float32)))
    (mine,) = torch.autograd.grad(out, gate, grad)
    exact = gate.detach().double().requires_grad_()
    p = (q.double() @ k.double().transpose(-1, -2) / 4 * torch.sigmoid(exact)[:, None, None]).softmax(-1)
    (want,) = torch.autograd.grad(p @ v.double(), exact, grad.double())
    assert (mine.double() - want).norm() < 0.01 * want.norm()


def test_a_captured_tensor_of_half_precision_gets_its_own_type_of_gradient():
    q, k, v = qkv()
    bias = torch.randn(4, 19, dtype=torch.bfloat16, requires_grad=True)
    flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[h, j]).square().sum().backward()
    assert bias.grad.dtype == torch.bfloat16 and bias.grad.any()


def test_torchs_own_block_mask_is_its_mask_mod():
    q, k, v = qkv(q_len=200, kv_len=200)
    doc = torch.randint(0, 3, (2, 200))
    mod = lambda b, h, i, j: (doc[b, i] == doc[b, j]) & (i >= j)
    theirs = torchs.create_block_mask(mod, 2, None, 200, 200, device="cpu")
    for given in (theirs, create_block_mask(mod, 2, None, 200, 200)):
        close(flex_attention(q, k, v, block_mask=given), eager(*doubled(q, k, v), None, mod)[0])


def test_as_torchs_flex_attention_itself():
    q, k, v = qkv(q_len=128, kv_len=128, width=32, grad=False)
    bias = torch.randn(4)
    mod = lambda s, b, h, i, j: torch.tanh(s / 8) * 8 + bias[h] * (i - j) / 64
    mask = torchs.create_block_mask(causal, None, None, 128, 128, device="cpu")
    theirs = torchs.flex_attention(q, k, v, mod, mask, return_aux=torchs.AuxRequest(lse=True))
    ours = flex_attention(q, k, v, mod, mask, return_aux=AuxRequest(lse=True))
    close(ours[0], theirs[0])
    close(ours[1].lse, theirs[1].lse)


def test_options_of_triton_are_ignored_with_one_warning():
    from attune.torch import _flex

    _flex._warned = False
    q, k, v = qkv()
    with pytest.warns(UserWarning, match="Triton"):
        flex_attention(q, k, v, kernel_options={"BLOCK_M": 64})
    flex_attention(q, k, v, kernel_options={"BLOCK_M": 64})


# ---- what is kept between calls


def kernels_of(call):
    """How many kernels a call makes or reads."""
    facts = []
    with attune.watch(facts.append):
        call()
    return sum(f["fact"] == "built" for f in facts)


def test_contents_of_captures_are_read_in_each_call():
    q, k, v = qkv(grad=False)
    bias, keep = torch.zeros(19), torch.ones(19, dtype=torch.bool)
    mod, mask = (lambda s, b, h, i, j: s + bias[j]), block_mask(lambda b, h, i, j: keep[j], q, k)
    before = flex_attention(q, k, v, mod, mask)
    bias.copy_(torch.randn(19))
    keep[3:9] = False
    after = flex_attention(q, k, v, mod, mask)
    close(before, eager(q.double(), k.double(), v.double())[0])
    close(after, eager(*doubled(q, k, v), lambda s, b, h, i, j: s + bias.double()[j], lambda b, h, i, j: keep[j])[0])


def test_variables_that_change_are_seen():
    q, k, v = qkv(grad=False)
    width, factor, bias = 3, 0.5, torch.randn(19)
    mod, mask = (lambda s, b, h, i, j: s * factor + bias[j]), lambda b, h, i, j: abs(i - j) < width
    for _ in range(2):
        close(flex_attention(q, k, v, mod, block_mask(mask, q, k)), eager(*doubled(q, k, v), mod, mask)[0])
        width, factor, bias = 7, 2.5, torch.randn(19)
    assert width == 7
    close(flex_attention(q, k, v, mod, block_mask(mask, q, k)), eager(*doubled(q, k, v), mod, mask)[0])


bias_of_module = torch.zeros(19)


def test_globals_that_change_are_seen():
    global bias_of_module
    q, k, v = qkv(grad=False)
    mod = lambda s, b, h, i, j: s + bias_of_module[j]
    flex_attention(q, k, v, mod)
    bias_of_module = torch.randn(19)
    close(flex_attention(q, k, v, mod), eager(*doubled(q, k, v), mod)[0])


def test_a_variable_that_held_the_other_mod_is_watched():
    q, k, v = qkv(grad=False)

    def mod(s, b, h, i, j):
        return torch.where(keep(b, h, i, j), s, s * 3)

    mask = block_mask(causal, q, k)
    for keep in (causal, lambda b, h, i, j: i < j):
        close(flex_attention(q, k, v, mod, mask), eager(*doubled(q, k, v), mod, causal)[0])


def test_a_tensor_that_gets_other_extents_is_seen():
    q, k, v = qkv(grad=False)
    bias, rows = torch.nn.Parameter(torch.randn(30)), torch.randn(19, 5)

    def mod(s, b, h, i, j, late=torch.nn.Parameter(torch.randn(25))):
        return s + bias[i - j] + late[i - j] + (rows[i] * rows[j]).sum(-1)

    def swap():
        bias.data = torch.randn(24)
        rows.resize_(19, 3).normal_()

    def swap_the_default():
        mod.__defaults__[0].data = torch.randn(40)

    for change in (lambda: None, swap, swap_the_default):
        change()
        close(flex_attention(q, k, v, mod), eager(*doubled(q, k, v), mod)[0], 1e-4)


def test_numbers_computed_while_tracing_are_computed_again():
    q, k, v = qkv(grad=False)
    table = torch.ones(4)
    mod = lambda s, b, h, i, j: s * table.sum().item() + table.mean()
    flex_attention(q, k, v, mod)
    table.mul_(3)
    close(flex_attention(q, k, v, mod), eager(*doubled(q, k, v), mod)[0])


def test_another_integer_makes_no_kernel():
    q, k, v = qkv(grad=False)

    def run(offset):
        mask = block_mask(lambda b, h, i, j: (i + offset >= j) & (i - j <= offset * 3), q, k)
        return flex_attention(q, k, v, None, mask)

    run(3)
    assert kernels_of(lambda: [run(n) for n in range(2, 12)]) == 0


def test_a_mod_that_stays_is_traced_once():
    q, k, v = qkv(grad=False)
    ran = []
    bias = torch.randn(4)

    def mod(s, b, h, i, j):
        ran.append(h)
        return s + bias[h]
    ran_before = len(ran)
    for _ in range(3):
        flex_attention(q, k, v, mod)
    assert len(ran) - ran_before == 3  # it reads a list, which may change
    pure = lambda s, b, h, i, j: s + bias[h]
    from attune.torch import _mod

    before = len(_mod._entries)
    for _ in range(3):
        flex_attention(q, k, v, pure)
    assert len(_mod._entries) == before + 1


def test_a_mod_and_its_tensors_go_when_their_owner_lets_go():
    q, k, v = qkv(grad=False)
    bias = torch.randn(4)
    mod = lambda s, b, h, i, j: s + bias[h]
    flex_attention(q, k, v, mod)
    gone = weakref.ref(bias)
    del mod, bias
    gc.collect()
    assert gone() is None
    keep = lambda b, h, i, j: i >= j
    mod = lambda s, b, h, i, j: torch.where(keep(b, h, i, j), s, s * 3)
    flex_attention(q, k, v, mod, block_mask(keep, q, k))
    gone = weakref.ref(keep), weakref.ref(mod)
    del keep, mod
    gc.collect()
    assert gone[0]() is None and gone[1]() is None


def test_an_object_with_attributes_is_asked_each_time():
    class Layer:
        factor = 1.0

        def mod(self, s, b, h, i, j):
            return s * self.factor
    q, k, v = qkv(grad=False)
    layer = Layer()
    flex_attention(q, k, v, layer.mod)
    layer.factor = 2.0
    close(flex_attention(q, k, v, layer.mod), eager(*doubled(q, k, v), lambda s, *_: s * 2)[0])


def test_attributes_of_functions_and_bound_methods_are_asked_each_time():
    q, k, v = qkv(grad=False)
    widths = {"own": 3}
    get = widths.get

    def near(b, h, i, j):
        return abs(i - j) < near.width

    def by_method(b, h, i, j):
        return abs(i - j) < get("own")

    for width in (3, 6):
        near.width = widths["own"] = width
        for mask in (near, by_method):
            close(flex_attention(q, k, v, None, block_mask(mask, q, k)), eager(*doubled(q, k, v), None, mask)[0])


def test_lists_of_many_sizes_cost_text_that_grows_slowly():
    from attune.torch._mod import spelled_of

    def mod(s, b, h, i, j):
        for _ in range(200):
            s = torch.tanh(s * s) + s
        return s
    assert len(spelled_of(mod, None, torch.device("cpu")).texts.score) < 40_000


# ---- around it


def test_autocast_lowers_the_type():
    inputs = qkv()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = flex_attention(*inputs, distance)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert all(t.grad.dtype == torch.float32 for t in inputs)
    close(out, eager(*doubled(*inputs), distance)[0], 2e-2)


def test_checkpointing_computes_the_same():
    inputs = qkv()
    bias = torch.randn(4, requires_grad=True)

    def run(q, k, v):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[h] * i)

    def gradients(out):
        return torch.autograd.grad(out.square().sum(), (*inputs, bias))

    plain = gradients(run(*inputs))
    for a, b in zip(gradients(torch.utils.checkpoint.checkpoint(run, *inputs, use_reentrant=False)), plain):
        assert torch.equal(a, b)


def test_threads_may_call_at_once():
    from concurrent.futures import ThreadPoolExecutor

    inputs = [qkv(grad=False) for _ in range(8)]
    slopes = [torch.randn(4) for _ in inputs]

    def run(at):
        slope = slopes[at]
        return flex_attention(*inputs[at], lambda s, b, h, i, j: s + slope[h] * i)

    with ThreadPoolExecutor(4) as pool:
        for at, out in enumerate(pool.map(run, range(8))):
            assert torch.equal(out, run(at))


def test_a_function_of_another_library_can_be_told():
    from attune.torch import _functions, register

    def doubled_up(x):
        return torch.overrides.handle_torch_function(doubled_up, (x,), x) if torch.overrides.has_torch_function(
            (x,)) else x * 2
    q, k, v = qkv(grad=False)
    with pytest.raises(attune.Error, match="doubled_up"):
        flex_attention(q, k, v, lambda s, b, h, i, j: doubled_up(s))
    register(doubled_up, lambda x: x * 2)
    out = flex_attention(q, k, v, lambda s, b, h, i, j: doubled_up(s))
    close(out, eager(*doubled(q, k, v), lambda s, *_: s * 2)[0])
    del _functions.TABLE[doubled_up]


def test_explain_tells_what_the_mods_became_and_what_ran():
    q, k, v = qkv(grad=False)
    slope = torch.randn(4)
    page = explain(q, k, v, lambda s, b, h, i, j: s + slope[h] * (i - j), block_mask(causal, q, k))
    assert "slope[h]" in page and "kv <= q" in page and "ran" in page


def test_blocks_of_our_mask_are_those_of_torchs():
    doc = torch.arange(300) // 90
    masks = {"causal": causal, "window": lambda b, h, i, j: (i >= j) & (i - j < 100), "all": lambda b, h, i, j: i >= 0,
             "documents": lambda b, h, i, j: (doc[i] == doc[j]) & (i >= j), "heads": lambda b, h, i, j: i * h >= j * b}
    for name, mod in masks.items():
        mine = create_block_mask(mod, 2, 3, 300, 300, BLOCK_SIZE=(64, 32))
        theirs = torchs.create_block_mask(mod, 2, 3, 300, 300, device="cpu", BLOCK_SIZE=(64, 32))
        assert torch.equal(mine.to_dense(), theirs.to_dense()), name
        assert mine.sparsity() == pytest.approx(100.0 * (1 - theirs.to_dense().float().mean().item()))
        assert mine.numel() == 2 * 3 * 300 * 300
    drawn = create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=16).to_string()
    assert drawn == "(0, 0)\n░   \n█░  \n██░ \n███░\n"
    assert create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=16).to_string(2) == "(0, 0)\n░ \n█░\n"
    assert create_block_mask(causal, 3, 2, 64, 64).to_string(limit=3).count("(") == 3
    assert create_block_mask(causal, None, None, 0, 64).to_dense().shape == (1, 1, 0, 1)


def test_slices_of_our_mask_are_masks():
    q, k, v = qkv(2, 4, 100, 100, grad=False)
    mod = lambda b, h, i, j: (i >= j) & (i - j < 20 * (h + 1) + 7 * b)
    mask = create_block_mask(mod, 2, 4, 100, 100, BLOCK_SIZE=32)
    whole = flex_attention(q, k, v, block_mask=mask)
    for index, rows in ((1, (slice(1, 2), slice(None), slice(None))), ((slice(None), -1), (slice(None), slice(3, 4), slice(None))),
                        ((0, slice(1, 3), 2), (slice(0, 1), slice(1, 3), slice(64, 96))),
                        ((slice(None), slice(None), slice(1, None)), (slice(None), slice(None), slice(32, 100)))):
        part = mask[index]
        assert torch.equal(part.to_dense(), mask.to_dense()[tuple(
            slice(n % s, n % s + 1) if isinstance(n, int) else n for n, s in zip(
                (*(index if isinstance(index, tuple) else (index,)), slice(None), slice(None))[:3], (2, 4, 4)))])
        keys = rows[0], rows[1], slice(None)
        assert part.shape[2] == q[rows].shape[2]
        close(flex_attention(q[rows], k[keys], v[keys], block_mask=part), whole[rows])
