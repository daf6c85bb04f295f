# tests/python/in_torch/test_transformer_engine.py — DotProductAttention and mods of cuDNN's graph, against eager torch
"""TransformerEngine's attention on attune: formats, masks, biases, and score_mods as users write them for cuDNN."""

import copy
import enum
import math

import attune
import pytest
import torch
import torch.nn.functional as F
from attune.torch import DotProductAttention, explain
from attune.torch._graph import NAMES
from attune.torch._transformer_engine import slopes_of
from eager import close
from goldens import golden, refused


class data_type(enum.Enum):  # as cudnn.data_type, which needs no GPU but a wheel
    FLOAT, HALF, INT32, BOOLEAN, DOUBLE, NOT_SET = range(6)


# ---- mods as cuDNN's users write them


def causal(graph, score, tensors):
    row = graph.gen_index(input=score, axis=2)
    row.set_data_type(data_type.INT32)
    column = graph.gen_index(input=score, axis=3)
    column.set_data_type(data_type.INT32)
    keep = graph.cmp_ge(input=row, comparison=column, compute_data_type=data_type.BOOLEAN)
    keep.set_data_type(data_type.BOOLEAN)
    return graph.binary_select(input0=score, input1=tensors["below"], mask=keep)


class Softcap:
    """A mod that keeps a tensor of the graph for its bprop."""

    def forward(self, graph, score, tensors):
        self.before = graph.div(a=score, b=tensors["cap"], compute_data_type=data_type.FLOAT)
        self.before.set_data_type(data_type.FLOAT)
        return graph.mul(graph.tanh(input=self.before), tensors["cap"], name="capped")

    def backward(self, graph, grad, tensors):
        grad = graph.mul(a=grad, b=tensors["cap"])
        return graph.div(a=graph.tanh_backward(loss=grad, input=self.before), b=tensors["cap"])


def relative(graph, score, tensors):
    return graph.bias(input=score, bias=tensors["bias"])


def post_scale(graph, score, _):
    row, column = (graph.gen_index(score, axis).set_data_type(data_type.INT32) for axis in (2, 3))
    distance = graph.sub(row, column, compute_data_type=data_type.FLOAT).set_data_type(data_type.FLOAT)
    return graph.add(a=score, b=distance)


def same(_graph, grad, _tensors):
    return grad


def one(number):
    return torch.full((1, 1, 1, 1), number)


# ---- against eager torch


def by_torch(q, k, v, scale, score=None, mask=None):
    """[batch, heads, length, width] in f64, with whole scores."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = (t.double() for t in (q, k, v))
    s = q @ k.repeat_interleave(groups, 1).mT * scale
    s = s if score is None else score(s)
    s = s if mask is None else s.masked_fill(~mask, -math.inf)
    p = torch.softmax(s, -1).nan_to_num(0.0)
    return p @ v.repeat_interleave(groups, 1)


def turned(t, form):
    """To [batch, heads, length, width] and back."""
    return t.permute(1, 2, 0, 3) if form == "sbhd" else t.transpose(1, 2)


def layers(form, batch=2, q_len=13, kv_len=13, heads=4, groups=4, width=16, v_width=16):
    shapes = (q_len, heads, width), (kv_len, groups, width), (kv_len, groups, v_width)
    made = [torch.randn(batch, n, h, d) for n, h, d in shapes]
    return [(t.transpose(0, 1).contiguous() if form == "sbhd" else t).requires_grad_() for t in made]


def compare(attention, tensors, score=None, mask=None, scale=None, more=(), **call):
    form = call.get("qkv_format", attention.qkv_format)
    out = attention(*tensors, **call)
    q, k, v = (turned(t, form) for t in tensors)
    true = by_torch(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale, score, mask)
    true = (true.permute(2, 0, 1, 3) if form == "sbhd" else true.transpose(1, 2)).flatten(-2)
    close(out, true)
    grad = torch.randn_like(out)
    mine = torch.autograd.grad(out, (*tensors, *more), grad)
    for a, b in zip(mine, torch.autograd.grad(true, (*tensors, *more), grad.double())):
        close(a, b, 4e-5)


row, column = torch.arange(13)[:, None], torch.arange(13)


@pytest.mark.parametrize("form", ["sbhd", "bshd"])
@pytest.mark.parametrize("below", [-1e9, -math.inf])
def test_causal(form, below):
    attention = DotProductAttention(4, 16, qkv_format=form, attn_mask_type="no_mask")
    compare(attention, layers(form), mask=row >= column, score_mod=causal, score_mod_bprop=causal,
            score_mod_tensors={"below": one(below)}, score_mod_bprop_tensors={"below": one(0.0)})


@pytest.mark.parametrize("form", ["sbhd", "bshd"])
def test_softcap(form):
    attention, mod = DotProductAttention(4, 16, qkv_format=form, attn_mask_type="no_mask"), Softcap()
    for cap in (0.8, 2.0):
        tensors = {"cap": one(cap)}
        compare(attention, layers(form), score=lambda s: cap * torch.tanh(s / cap), score_mod=mod.forward,
                score_mod_bprop=mod.backward, score_mod_tensors=tensors, score_mod_bprop_tensors=tensors)


@pytest.mark.parametrize("shape", [(1, 4, 13, 13), (2, 4, 1, 13), (1, 1, 13, 13), (1, 1, 1, 13)], ids=str)
def test_a_bias_that_is_learnt(shape):
    attention = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask")
    bias = torch.randn(shape, requires_grad=True)
    compare(attention, layers("bshd"), score=lambda s: s + bias, more=(bias,), score_mod=relative, score_mod_bprop=same,
            score_mod_tensors={"bias": bias})


@pytest.mark.parametrize("shape", [(2, 1, 13, 1), (1, 4, 1, 1), (2, 1, 1, 1), (1, 1, 1, 1)], ids=str)
def test_a_factor_that_is_learnt(shape):
    attention = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask")
    factor = torch.randn(shape, requires_grad=True)
    compare(attention, layers("bshd"), score=lambda s: s * factor, more=(factor,), score_mod_tensors={"factor": factor},
            score_mod=lambda graph, score, tensors: graph.scale(input=score, scale=tensors["factor"]))


def test_a_bias_of_positions():
    attention = DotProductAttention(4, 16, attn_mask_type="no_mask")
    compare(attention, layers("sbhd"), score=lambda s: s + (row - column), score_mod=post_scale, score_mod_bprop=same)


def test_a_mod_with_a_mask_and_groups():
    attention = DotProductAttention(4, (16, 8), num_gqa_groups=2, qkv_format="bshd")
    compare(attention, layers("bshd", groups=2, v_width=8), score=lambda s: s + (row - column), mask=row >= column,
            score_mod=post_scale)


@pytest.mark.parametrize("lengths", [(1, 1), (0, 5), (5, 1), (1, 13)], ids=str)
def test_odd_lengths(lengths):
    q, k, v = layers("bshd", q_len=lengths[0], kv_len=lengths[1])
    attention = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask")
    compare(attention, (q, k, v), score=lambda s: s + (row - column)[:lengths[0], :lengths[1]], score_mod=post_scale,
            score_mod_bprop=same)


# ---- operations

OPERATIONS = {
    "abs": torch.abs, "add": torch.add, "add_square": lambda a, b: a + b * b, "bias": torch.add, "ceil": torch.ceil,
    "cmp_eq": lambda a, b: (a == b).double(), "cmp_neq": lambda a, b: (a != b).double(),
    "cmp_gt": lambda a, b: (a > b).double(), "cmp_ge": lambda a, b: (a >= b).double(),
    "cmp_lt": lambda a, b: (a < b).double(), "cmp_le": lambda a, b: (a <= b).double(), "cos": torch.cos,
    "div": torch.div, "elu": F.elu, "erf": torch.erf, "exp": torch.exp, "floor": torch.floor, "gelu": F.gelu,
    "gelu_approx_tanh": lambda a: F.gelu(a, approximate="tanh"), "identity": lambda a: a,
    "leaky_relu": lambda a: F.leaky_relu(a, 0.3), "log": torch.log, "max": torch.maximum,
    "min": torch.minimum, "mod": torch.fmod, "mul": torch.mul, "neg": torch.neg, "pow": torch.pow,
    "reciprocal": torch.reciprocal, "relu": F.relu, "rsqrt": torch.rsqrt, "scale": torch.mul, "sigmoid": torch.sigmoid,
    "sin": torch.sin, "softplus": F.softplus, "sqrt": torch.sqrt, "sub": torch.sub, "swish": F.silu, "tan": torch.tan,
    "tanh": torch.tanh,
    "logical_and": lambda a, b: torch.logical_and(a, b).double(),
    "logical_not": lambda a: torch.logical_not(a).double(),
    "logical_or": lambda a, b: torch.logical_or(a, b).double(),
}
BACKWARD = {name: OPERATIONS[name.removesuffix("_backward")] for name in NAMES if name.endswith("_backward")}
TESTED_ELSEWHERE = {"binary_select", "gen_index", "tensor_scalar"}


def test_every_operation_is_tested():
    assert {*OPERATIONS, *BACKWARD, *TESTED_ELSEWHERE} == set(NAMES)


def test_the_operations_are_cudnns():
    cudnn = pytest.importorskip("cudnn", reason="nvidia-cudnn-frontend is not installed")
    assert [name for name in NAMES if not hasattr(cudnn.pygraph, name)] == []


BINARY = ("add", "add_square", "bias", "div", "logical_and", "logical_or", "max", "min", "mod", "mul", "pow",
          "scale", "sub")
POSITIVE = ("log", "pow", "rsqrt", "sqrt", "reciprocal", "mod", "tan")


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation(name):
    """s + f(small positive or signed numbers made of s, t): values and gradients."""
    function = OPERATIONS[name]
    t = torch.rand(2, 4, 13, 13) + 0.5
    binary, positive = name.startswith("cmp_") or name in BINARY, name in POSITIVE

    def mod(graph, score, tensors):
        given = graph.sigmoid(score) if positive else score
        options = {"negative_slope": 0.3} if name == "leaky_relu" else {}
        made = getattr(graph, name)(*((given, tensors["t"]) if binary else (given,)), **options)
        return graph.add(score, made.set_data_type(data_type.FLOAT))

    def score(s):
        given = torch.sigmoid(s) if positive else s
        return s + (function(given, t.double()) if binary else function(given))

    attention = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask")
    compare(attention, layers("bshd"), score=score, score_mod=mod, score_mod_tensors={"t": t})


class Keeping:
    """An operation of the scores, and its bprop."""

    def __init__(self, name, options):
        self.name, self.options = name, options

    def forward(self, graph, score, tensors):
        self.score = score
        return getattr(graph, self.name)(input=score, **self.options)

    def backward(self, graph, grad, tensors):
        return getattr(graph, f"{self.name}_backward")(loss=grad, input=self.score, **self.options)


@pytest.mark.parametrize("name", BACKWARD)
def test_a_bprop_operation(name):
    """It is the derivative of its operation, in the check and in a kernel."""
    function, t = name.removesuffix("_backward"), torch.randn(2, 4, 13, 13)
    options = {"leaky_relu": {"negative_slope": 0.3}, "swish": {"swish_beta": 1.7},
               "relu": {"lower_clip": -0.5, "upper_clip": 1.5}}.get(function, {})
    attention, tensors = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask"), layers("bshd")
    both = Keeping(function, options)
    attention(*tensors, score_mod=both.forward, score_mod_bprop=both.backward)

    def mod(graph, score, given):
        return graph.add(score, getattr(graph, name)(given["one"], given["t"], **options))

    compare(attention, tensors, score=lambda s: s + derivative(function, t.double(), options), score_mod=mod,
            score_mod_tensors={"t": t, "one": one(1.0)})


def derivative(function, t, options):
    leaf = t.clone().requires_grad_()
    out = {"leaky_relu": lambda a: F.leaky_relu(a, 0.3), "swish": lambda a: a * torch.sigmoid(1.7 * a),
           "relu": lambda a: a.clamp(-0.5, 1.5)}.get(function, OPERATIONS[function])(leaf)
    return torch.autograd.grad(out.sum(), leaf)[0]


def test_a_scalar_and_an_index_of_a_batch_and_a_head():
    def mod(graph, score, tensors):
        entry, head = (graph.gen_index(score, axis) for axis in (0, 1))
        two = graph.tensor_scalar(2, data_type.INT32)
        alone = graph.gen_index(tensors["row"], 3)  # of a tensor with one key: 0
        return graph.add(graph.add(score, graph.mul(graph.add(entry, head), two)), alone)

    attention = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask")
    added = 2.0 * (torch.arange(2)[:, None, None, None] + torch.arange(4)[:, None, None])
    compare(attention, layers("bshd"), score=lambda s: s + added, score_mod=mod,
            score_mod_tensors={"row": torch.zeros(1, 1, 13, 1)})


def test_integers_as_conditions():
    """cuDNN's own test of documents: comparisons are numbers, and numbers conditions."""
    documents = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3], dtype=torch.int32) + 1

    def mod(graph, score, tensors):
        column = graph.gen_index(input=score, axis=3)
        ones = graph.cmp_le(input=column, comparison=column).set_data_type(data_type.INT32)
        rows = graph.scale(input=ones, scale=tensors["of_q"]).set_data_type(data_type.INT32)
        columns = graph.scale(input=ones, scale=tensors["of_kv"]).set_data_type(data_type.INT32)
        alike = graph.cmp_eq(input=rows, comparison=columns).set_data_type(data_type.INT32)
        return graph.binary_select(score, tensors["below"], alike)

    attention = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask")
    compare(attention, layers("bshd"), mask=documents[:, None] == documents, score_mod=mod,
            score_mod_tensors={"of_q": documents.reshape(1, 1, -1, 1), "of_kv": documents.reshape(1, 1, 1, -1),
                               "below": one(-math.inf)})


# ---- the layer's own arguments


def counted(q_lens, kv_lens):
    return [torch.tensor([0, *lens]).cumsum(0).to(torch.int32) for lens in (q_lens, kv_lens)]


def bands(mask, window, at_end, n, m):
    distance = torch.arange(n)[:, None] + (m - n if at_end else 0) - torch.arange(m)
    kept = torch.ones(n, m, dtype=torch.bool)
    left, right = window
    if "causal" in mask:
        right = 0
    if right >= 0:
        kept &= distance >= -right
    return kept & (distance <= left) if left >= 0 else kept


@pytest.mark.parametrize("form", ["sbhd", "bshd"])
@pytest.mark.parametrize("mask", ["no_mask", "causal", "causal_bottom_right"])
@pytest.mark.parametrize("window", [None, (3, 0), (3, 2)], ids=str)
def test_masks_and_windows(form, mask, window):
    tensors = layers(form, q_len=7)
    attention = DotProductAttention(4, 16, qkv_format=form, attn_mask_type=mask, window_size=window)
    compare(attention, tensors, mask=bands(mask, window or (-1, -1), mask != "causal", 7, 13))


@pytest.mark.parametrize("mask", ["padding", "padding,causal", "padding_causal_bottom_right"])
@pytest.mark.parametrize("by", ["counts", "masks"])
def test_padding(mask, by):
    q_lens, kv_lens = (7, 4), (13, 9)
    tensors = layers("bshd", q_len=7)
    empty = [torch.arange(n) >= torch.tensor(lens)[:, None] for n, lens in ((7, q_lens), (13, kv_lens))]
    kept = torch.stack([bands(mask, (-1, -1), mask.endswith("right"), n, m).new_zeros(7, 13) for n, m in
                        zip(q_lens, kv_lens)])
    for i, (n, m) in enumerate(zip(q_lens, kv_lens)):
        kept[i, :n, :m] = bands(mask, (-1, -1), mask.endswith("right"), n, m)
    cu_q, cu_kv = counted(q_lens, kv_lens)
    how = {"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv} if by == "counts" else {
        "attention_mask": tuple(t[:, None, None] for t in empty)}
    attention = DotProductAttention(4, 16, qkv_format="bshd", attention_type="cross")
    compare(attention, tensors, mask=kept[:, None], attn_mask_type=mask, **how)


@pytest.mark.parametrize("shape", [(1, 1, 13, 13), (2, 4, 13, 13), (2, 1, 1, 13)], ids=str)
def test_arbitrary_masks(shape):
    masked = torch.rand(shape) < 0.4
    compare(DotProductAttention(4, 16, qkv_format="bshd"), layers("bshd"), mask=~masked, attn_mask_type="arbitrary",
            attention_mask=masked)


@pytest.mark.parametrize("kind", ["pre_scale_bias", "post_scale_bias"])
def test_biases(kind):
    bias = torch.randn(1, 4, 13, 13, requires_grad=True)
    factor = 0.25 if kind == "pre_scale_bias" else 1.0
    attention = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask")
    compare(attention, layers("bshd"), score=lambda s: s + factor * bias, more=(bias,), core_attention_bias_type=kind,
            core_attention_bias=bias)


@pytest.mark.parametrize("heads", [4, 6])
@pytest.mark.parametrize("at_end", [False, True])
def test_alibi(heads, at_end):
    given = {4: None, 6: torch.rand(2, 6)}[heads]
    slopes = torch.tensor([0.25, 0.0625, 0.015625, 0.00390625])[None] if given is None else given
    distance = torch.arange(7)[:, None] + (6 if at_end else 0) - column
    attention = DotProductAttention(heads, 16, qkv_format="bshd", attn_mask_type="no_mask")
    compare(attention, layers("bshd", q_len=7, heads=heads, groups=heads), bottom_right_diagonal=at_end,
            score=lambda s: s - slopes[:, :, None, None] * distance.abs(), core_attention_bias_type="alibi",
            alibi_slopes=given)


def test_slopes_between_powers_of_two():
    wanted = [2.0 ** -2, 2.0 ** -4, 2.0 ** -6, 2.0 ** -8, 2.0 ** -1, 2.0 ** -3]
    assert slopes_of(6, torch.device("cpu")).tolist() == wanted


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("modified", [False, True])
def test_packed_sequences(padded, modified):
    lens, room = (5, 0, 1, 7), (6, 2, 1, 9)
    cu, = counted(lens, lens)[:1]
    starts = counted(room, room)[0] if padded else cu
    rows = int(starts[-1])
    q, k, v = (torch.randn(rows, h, 16, requires_grad=True) for h in (4, 2, 2))
    attention = DotProductAttention(4, 16, 2, qkv_format="thd", attn_mask_type="padding_causal")
    more = {"cu_seqlens_q_padded": starts, "cu_seqlens_kv_padded": starts} if padded else {}
    if modified:
        more |= {"score_mod": post_scale, "score_mod_bprop": same}
    out = attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=7, max_seqlen_kv=7, **more)
    assert out.shape == (rows, 64)
    true = torch.zeros(rows, 64, dtype=torch.float64)
    for at, n in zip(starts.tolist(), lens):
        part = [t[at:at + n].transpose(0, 1)[None] for t in (q, k, v)]
        distance = torch.arange(n)[:, None] - torch.arange(n)
        one = by_torch(*part, 0.25, (lambda s: s + distance) if modified else None, distance >= 0)
        true = true.index_put((torch.arange(at, at + n),), one[0].transpose(0, 1).flatten(-2))
    close(out, true)
    grad = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, (q, k, v), grad), torch.autograd.grad(true, (q, k, v), grad.double())):
        close(a, b, 4e-5)


@pytest.mark.parametrize("kind", ["off-by-one", "learnable"])
def test_sinks(kind):
    attention = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask", softmax_type=kind)
    assert list(attention.state_dict()) == (["softmax_offset"] if kind == "learnable" else [])
    offset = torch.zeros(4)
    if kind == "learnable":
        attention.softmax_offset.data.normal_()
        offset = attention.softmax_offset
    tensors = layers("bshd")
    q, k, v = (t.transpose(1, 2).double() for t in tensors)
    s = torch.cat([offset.double().reshape(1, 4, 1, 1).expand(2, 4, 13, 1), q @ k.mT / 4], -1)
    true = (torch.softmax(s, -1)[..., 1:] @ v).transpose(1, 2).flatten(-2)
    out = attention(*tensors)
    close(out, true)
    more = (offset,) if kind == "learnable" else ()
    mine = torch.autograd.grad(out.square().sum(), (*tensors, *more))
    for a, b in zip(mine, torch.autograd.grad(true.square().sum(), (*tensors, *more))):
        close(a, b, 4e-5)


@pytest.mark.parametrize("modified", [False, True])
def test_dropout_is_of_training_alone(modified):
    attention = DotProductAttention(4, 16, qkv_format="bshd", attention_dropout=0.5)
    tensors, more = layers("bshd"), {"score_mod": post_scale} if modified else {}
    torch.manual_seed(1)
    first, second = attention(*tensors, **more), attention(*tensors, **more)
    torch.manual_seed(1)
    assert torch.equal(first, attention(*tensors, **more)) and not torch.equal(first, second)
    attention.eval()
    assert torch.equal(attention(*tensors, **more), attention(*tensors, **more))


def test_the_largest_score_of_a_head():
    q, k, v = layers("bshd")
    attention = DotProductAttention(4, 16, qkv_format="bshd", return_max_logit=True)
    out, most = attention(q, k, v)
    s = (q.transpose(1, 2) @ k.transpose(1, 2).mT / 4).masked_fill(row < column, -math.inf)
    close(most, s.amax((0, 2, 3)))
    assert out.shape == (2, 13, 64)


@pytest.mark.parametrize("dim", [-3, -2])
def test_layers_in_one_tensor(dim):
    q, k, v = layers("bshd")
    attention = DotProductAttention(4, 16, qkv_format="bshd")
    wanted = attention(q, k, v)
    assert torch.equal(attention(qkv_layer=torch.stack((q, k, v), dim), qkv_interleave_dim=dim), wanted)
    assert torch.equal(attention(q, kv_layer=torch.stack((k, v), dim), qkv_interleave_dim=dim), wanted)


# ---- when a text holds


def test_a_mod_is_written_again_when_it_changes():
    attention = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask")
    tensors, runs = layers("bshd"), []
    for factor in (2.0, 3.0):
        def mod(graph, score, tensors, factor=factor):
            runs.append(factor)
            return graph.mul(score, graph.tensor_scalar(factor, data_type.FLOAT))
        compare(attention, tensors, score=lambda s: s * factor, score_mod=mod)
    assert set(runs) == {2.0, 3.0}


def test_tensors_are_arguments():
    attention = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask")
    tensors = layers("bshd")
    for _ in range(3):
        bias = torch.randn(1, 4, 13, 13)
        compare(attention, tensors, score=lambda s: s + bias, score_mod=relative, score_mod_tensors={"bias": bias})
    written = attention._written
    attention(*tensors, score_mod=relative, score_mod_tensors={"bias": bias})
    assert written is not None and attention._written is written
    bias[:] = 0.0  # in place
    compare(attention, tensors, score_mod=relative, score_mod_tensors={"bias": bias})


@pytest.mark.parametrize("keyed", [False, True])
def test_a_method_is_written_once_if_its_object_has_a_key(keyed):
    runs = []

    class Scaling:
        factor = 2.0

        def forward(self, graph, score, tensors):
            runs.append(self.factor)
            return graph.scale(score, graph.tensor_scalar(self.factor, data_type.FLOAT))

    if keyed:
        Scaling.score_mod_graph_cache_key = lambda self: {"factor": self.factor}
    attention, mod = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask"), Scaling()
    for factor in (2.0, 2.0, 3.0):
        mod.factor = factor
        compare(attention, layers("bshd"), score=lambda s: s * factor, score_mod=mod.forward)
    assert runs == ([2.0, 3.0] if keyed else [2.0, 2.0, 3.0])


def test_data_types_of_cudnn_stay():
    """A mod that names data types is written once, too."""
    attention, tensors = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask"), layers("bshd")
    attention(*tensors, score_mod=post_scale)
    written = attention._written
    attention(*tensors, score_mod=post_scale)
    assert written is not None and attention._written is written


def test_a_number_of_the_host_goes_to_a_device_once():
    attention, device = DotProductAttention(4, 16), torch.device("meta")
    cap, wide = one(0.8), torch.zeros(1, 4, 1, 1)
    near = attention._on(device, "cap", cap)
    assert near.device == device and attention._on(device, "cap", cap) is near
    cap.mul_(2.0)
    assert attention._on(device, "cap", cap) is not near
    assert attention._on(device, "wide", wide) is wide  # the call refuses it
    assert attention._on(torch.device("cpu"), "cap", cap) is cap


def test_two_names_of_one_tensor():
    def mod(graph, score, tensors):
        return graph.add(graph.mul(score, tensors["a"]), tensors["b"])

    attention = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask")
    t, tensors = torch.rand(1, 4, 13, 1) + 0.5, layers("bshd")
    compare(attention, tensors, score=lambda s: s * t + t, score_mod=mod, score_mod_tensors={"a": t, "b": t})
    u = torch.randn(1, 4, 1, 13)[..., :1].expand(1, 4, 13, 1)
    compare(attention, tensors, score=lambda s: s * t + u, score_mod=mod, score_mod_tensors={"a": t, "b": u})


def test_a_number_without_dimensions():
    attention, mod = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask"), Softcap()
    for cap in (torch.tensor(0.8), torch.tensor([0.8])):
        compare(attention, layers("bshd"), score=lambda s: 0.8 * torch.tanh(s / 0.8), score_mod=mod.forward,
                score_mod_tensors={"cap": cap})


def test_a_layer_is_copied():
    attention, tensors = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask"), layers("bshd")
    out = attention(*tensors, score_mod=post_scale, score_mod_bprop=same)
    assert torch.equal(copy.deepcopy(attention)(*tensors, score_mod=post_scale), out)


def test_minus_infinity_skips_tiles():
    attention = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask")
    page = explain(lambda: attention(*layers("bshd"), score_mod=causal, score_mod_tensors={"below": one(-math.inf)}))
    assert page.splitlines()[1] == "  score    where(kv <= q, s, -inf)"


def capped(graph, score, tensors):
    return graph.mul(graph.tanh(graph.div(score, tensors["cap"])), tensors["cap"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits(dtype):
    attention = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask")
    tensors = [t.detach().to(dtype).requires_grad_() for t in layers("bshd")]
    out = attention(*tensors, score_mod=capped, score_mod_tensors={"cap": one(0.8)})
    q, k, v = (t.transpose(1, 2) for t in tensors)
    true = by_torch(q, k, v, 0.25, lambda s: 0.8 * torch.tanh(s / 0.8)).transpose(1, 2).flatten(-2)
    assert out.dtype == dtype
    close(out, true, 1e-2)
    mine = torch.autograd.grad(out.float().square().sum(), tensors)
    for a, b in zip(mine, torch.autograd.grad(true.square().sum(), tensors)):
        close(a, b, 2e-2)


def test_the_layer_compiles():
    attention, tensors = DotProductAttention(4, 16, qkv_format="bshd"), layers("bshd")
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    cap = {"score_mod": capped, "score_mod_tensors": {"cap": one(0.8)}}
    for more in ({}, {"attn_mask_type": "causal_bottom_right"}, {"core_attention_bias_type": "alibi"}, cap):
        close(compiled(*tensors, **more), attention(*tensors, **more))


def test_a_bprop_is_checked_once():
    runs = []

    def bprop(graph, grad, tensors):
        runs.append(1)
        return grad

    attention, tensors = DotProductAttention(4, 16, qkv_format="bshd", attn_mask_type="no_mask"), layers("bshd")
    for _ in range(3):
        attention(*tensors, score_mod=post_scale, score_mod_bprop=bprop)
    with torch.no_grad():
        attention(*tensors, score_mod=post_scale, score_mod_bprop=lambda *_: 1 / 0)
    assert runs == [1]


def test_gradcheck_in_f64():
    attention, mod = DotProductAttention(2, 4, qkv_format="bshd", attn_mask_type="no_mask"), Softcap()
    tensors = [torch.randn(1, 3, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda *t: attention(
        *t, score_mod=mod.forward, score_mod_tensors={"cap": one(0.8).double()}), tensors)


# ---- mistakes


def reduces(graph, score, tensors):
    return graph.reduction(input=score, mode="ADD")


def doubles(graph, score, tensors):
    return graph.exp(score).set_data_type(data_type.DOUBLE)


def adds_a_number(graph, score, tensors):
    return graph.add(score, 1.0)


def returns_nothing(graph, score, tensors):
    graph.exp(score)


def misspells(graph, score, tensors):
    return graph.add(a=score, c=score)


def makes_a_tensor(graph, score, tensors):
    return graph.add(score, graph.tensor(dim=[1, 1, 1, 1], data_type=data_type.FLOAT))


def indexes_width(graph, score, tensors):
    return graph.add(score, graph.gen_index(score, 4))


def clips(graph, score, tensors):
    return graph.relu(score, negative_slope=0.1, lower_clip=1.0)


def doubled(graph, grad, tensors):
    return graph.add(grad, grad)


def called(**more):
    attention = DotProductAttention(2, 4, qkv_format="bshd", attn_mask_type="no_mask")
    return lambda: attention(*layers("bshd", q_len=8, kv_len=8, heads=2, groups=2, width=4, v_width=4), **more)


MISTAKES = {
    "te-reduction": called(score_mod=reduces), "te-double": called(score_mod=doubles),
    "te-number": called(score_mod=adds_a_number), "te-nothing": called(score_mod=returns_nothing),
    "te-misspelt": called(score_mod=misspells), "te-tensor": called(score_mod=makes_a_tensor),
    "te-axis": called(score_mod=indexes_width), "te-clip": called(score_mod=clips),
    "te-bprop": called(score_mod=post_scale, score_mod_bprop=doubled),
    "te-bprop-reduction": called(score_mod=post_scale, score_mod_bprop=reduces),
    "te-shape": called(score_mod=relative, score_mod_tensors={"bias": torch.zeros(1, 2, 8, 7)}),
    "te-rank": called(score_mod=relative, score_mod_tensors={"bias": torch.zeros(8, 8)}),
    "te-no-tensor": called(score_mod=relative, score_mod_tensors={"bias": 1.0}),
    "te-not-callable": called(score_mod=3), "te-bprop-alone": called(score_mod_bprop=same),
    "te-bprop-tensors": called(score_mod=post_scale, score_mod_bprop_tensors={"zero": one(0.0)}),
    "te-bias-twice": called(score_mod=post_scale, core_attention_bias_type="alibi"),
    "te-bias-untyped": called(core_attention_bias=torch.zeros(1, 2, 8, 8)),
    "te-bias-shape": called(core_attention_bias_type="post_scale_bias", core_attention_bias=torch.zeros(8, 8)),
    "te-mask-type": called(attn_mask_type="diagonal"), "te-format": called(qkv_format="bhsd"),
    "te-padding": called(attn_mask_type="padding"), "te-window": called(window_size=(3,)),
    "te-masked-floats": called(attn_mask_type="arbitrary", attention_mask=torch.zeros(1, 1, 8, 8)),
    "te-packed-without-starts": lambda: DotProductAttention(2, 4, qkv_format="thd")(*[torch.zeros(8, 2, 4)] * 3),
    "te-widths": lambda: DotProductAttention(2, 8, qkv_format="bshd")(*[torch.zeros(1, 8, 2, 4)] * 3),
    "te-dimensions": lambda: DotProductAttention(2, 4, qkv_format="bshd")(*[torch.zeros(8, 2, 4)] * 3),
    "te-groups": lambda: DotProductAttention(4, 16, 3), "te-cp": lambda: DotProductAttention(4, 16, cp_group=object()),
    "te-inference": called(inference_params=object()), "te-fp8": called(fp8_output=True),
    "te-two-layers": called(qkv_layer=torch.zeros(1, 8, 3, 2, 4)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake(name):
    error = refused(MISTAKES[name])
    assert isinstance(error, attune.Error) and error.file == __file__
    golden(name, str(error))
