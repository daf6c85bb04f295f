# tests/python/in_torch/mods.py — mods as people write them for flex_attention, with torch's functions
"""Each maker takes random tensors from `t` and gives (score_mod, mask_mod); None is none.

They are those of torch's tests and of attention-gym, told again: what differs is how a value is made, not its numbers.
"""

import functools
import math

import torch
import torch.nn.functional as F

B, H, S, D = 2, 4, 19, 16  # of the calls that they are for


class Tensors:
    """Random captures; `made` lists the floating ones, which all get gradients."""

    def __init__(self, dtype):
        self.dtype, self.made = dtype, []

    def floats(self, *shape):
        made = torch.randn(shape, dtype=torch.float32).to(self.dtype).requires_grad_()
        self.made.append(made)
        return made

    @staticmethod
    def ints(high, *shape):
        return torch.randint(0, high, shape)

    @staticmethod
    def bools(*shape):
        return torch.randint(0, 3, shape) > 0


SCORES, MASKS = {}, {}


def score(make):
    SCORES[make.__name__] = make
    return make


def mask(make):
    MASKS[make.__name__] = make
    return make


# ---- scores of positions alone


@score
def identity(t): return lambda s, b, h, i, j: s


@score
def times_two(t): return lambda s, b, h, i, j: s * 2


@score
def squared(t): return lambda s, b, h, i, j: s * s


@score
def cubed(t): return lambda s, b, h, i, j: s**3


@score
def relative(t): return lambda s, b, h, i, j: s + (i - j)


@score
def relative_over_length(t): return lambda s, b, h, i, j: s + (j - i) / S


@score
def checkerboard(t): return lambda s, b, h, i, j: torch.where(torch.abs(j - i) % 2 == 1, s * 0.5, s) * (b + 1)


@score
def causal_by_score(t): return lambda s, b, h, i, j: torch.where(i >= j, s, float("-inf"))


@score
def causal_tensor_constant(t): return lambda s, b, h, i, j: torch.where(i >= j, s, torch.tensor(-math.inf))


@score
def causal_new_full(t): return lambda s, b, h, i, j: torch.where(i >= j, s, s.new_full((), float("-inf")))


@score
def causal_masked_fill(t): return lambda s, b, h, i, j: s.masked_fill(i < j, -1e30)


@score
def causal_like(t): return lambda s, b, h, i, j: torch.where(i >= j, s, torch.full_like(s, -1e4))


@score
def alibi_formula(t):
    def alibi(s, b, h, i, j):
        return s + (j - i) * torch.exp2(-((h + 1) * 8.0 / H))
    return alibi


@score
def head_scaled(t): return lambda s, b, h, i, j: s * h.to(torch.float32)


@score
def softcap(t): return lambda s, b, h, i, j: 20.0 * torch.tanh(s / 20.0)


@score
def softcap_method(t): return lambda s, b, h, i, j: (s / 5).tanh() * 5


@score
def trigonometric(t): return lambda s, b, h, i, j: torch.sin(s) + torch.cos(s * 0.5)


@score
def exponential(t): return lambda s, b, h, i, j: torch.exp(-torch.abs(s)) + torch.log(torch.square(s) + 1)


@score
def roots(t): return lambda s, b, h, i, j: torch.sqrt(s * s + 1.0) + torch.rsqrt(s * s + 2.0)


@score
def bounded(t): return lambda s, b, h, i, j: torch.clamp(s, min=-1.0, max=1.5)


@score
def bounded_one_side(t): return lambda s, b, h, i, j: torch.clamp(s, max=0.5) + s.clamp_min(-0.25)


@score
def minimum_maximum(t): return lambda s, b, h, i, j: torch.minimum(s, torch.maximum(s * 2, s - 1))


@score
def activations(t): return lambda s, b, h, i, j: F.relu(s) + F.silu(s) + torch.sigmoid(s)


@score
def gelus(t): return lambda s, b, h, i, j: F.gelu(s) + F.gelu(s, approximate="tanh")


@score
def elus(t): return lambda s, b, h, i, j: F.elu(s, 0.5) + F.elu(-s) + torch.erfc(s * 0.5)


@score
def interpolated(t):
    u = t.floats(S)
    return lambda s, b, h, i, j: torch.lerp(s, u[i], 0.25) + s.lerp(-s, u[j]) + torch.lerp(u[i], s, 0.1)


@score
def added_products(t):
    u, w = t.floats(S), t.floats(S)
    return lambda s, b, h, i, j: torch.addcmul(s, u[i], w[j], value=0.5) + torch.addcdiv(s, u[i], w[j].square() + 1)


@score
def log_added(t):
    u = t.floats(S)
    return lambda s, b, h, i, j: torch.logaddexp(s, u[j]) + torch.logaddexp(s * 0 - torch.inf, s)


@score
def made_finite(t):
    return lambda s, b, h, i, j: torch.nan_to_num(torch.where(i > j, s, torch.nan), 0.5) + torch.nan_to_num(
        torch.where(i == j, torch.inf, s), posinf=2.0)


@score
def soft(t): return lambda s, b, h, i, j: F.softplus(s) + F.logsigmoid(s) + F.leaky_relu(s, 0.2)


@score
def erf_and_expm1(t): return lambda s, b, h, i, j: torch.erf(s) + torch.expm1(s) + torch.log1p(s * s)


@score
def powers(t): return lambda s, b, h, i, j: torch.pow(abs(s) + 1, 1.5) + 1 / (2 + s * s) + (s * s + 1).reciprocal()


@score
def hyperbolic(t): return lambda s, b, h, i, j: torch.sinh(s * 0.1) + torch.cosh(s * 0.1)


@score
def parity_of_positions(t): return lambda s, b, h, i, j: torch.where((i % 2 == 0) & (j % 3 != 0), s, s - 1)


@score
def integer_division(t): return lambda s, b, h, i, j: s + (i // 4) - torch.div(j, 5, rounding_mode="floor")


@score
def integer_powers(t): return lambda s, b, h, i, j: s + ((i - j) ** 2) * 0.01


@score
def conditions_as_numbers(t): return lambda s, b, h, i, j: s + (i > j) - (j > i) * 2


@score
def conditions_converted(t): return lambda s, b, h, i, j: s * (i >= j).float() + (i == j).to(s.dtype)


@score
def bits(t): return lambda s, b, h, i, j: s + ((i ^ j) & 3) + ((i | j) >> 1) - (j << 1)


@score
def logical_functions(t):
    def mod(s, b, h, i, j):
        near = torch.logical_and(i - j < 4, torch.logical_not(i < j))
        return torch.where(torch.logical_or(near, j == 0), s, -0.5 * s)
    return mod


@score
def rounding(t): return lambda s, b, h, i, j: s + torch.floor(s).detach() * 0.1 + torch.trunc(i / 3) - torch.ceil(j / 2)


@score
def round_half_even(t): return lambda s, b, h, i, j: s + torch.round(i / 2) - torch.round((j - 3) / 2)


@score
def remainders(t): return lambda s, b, h, i, j: s + torch.remainder(i - j, 5) + torch.fmod(i - j, 5) + (i - j) % -3


@score
def float_remainders(t):
    return lambda s, b, h, i, j: s + torch.remainder(i * 0.5 - j, 1.5) + torch.fmod(i * 0.5 - j, 1.5)


@score
def signs(t): return lambda s, b, h, i, j: s + torch.sign(i - j) + torch.sign(s.detach())


@score
def not_a_number(t): return lambda s, b, h, i, j: torch.where(torch.isnan(s) | torch.isinf(s), 0.0, s)


@score
def zeros_and_ones(t): return lambda s, b, h, i, j: s + torch.ones_like(s) * 2 + torch.zeros_like(i) + s.new_ones(())


@score
def whole_numbers(t): return lambda s, b, h, i, j: s + (s * 4).detach().int() * 0.1 + (s > 0).long()


@score
def distance_decay(t): return lambda s, b, h, i, j: s - torch.log(torch.abs(i - j).float() + 1) * 0.5


@score
def reversed_operands(t): return lambda s, b, h, i, j: 2 - s + 1.5 * (3 - i) / (2 + j)


@score
def chained_wheres(t):
    def mod(s, b, h, i, j):
        d = i - j
        return torch.where(d < 0, -1e9, torch.where(d < 4, s, torch.where(d % 2 == 0, s * 0.5, s - 1.0)))
    return mod


@score
def shared_subexpressions(t):
    def mod(s, b, h, i, j):
        for _ in range(24):  # 2^24 terms, if each use were written out
            s = s * 0.5 + torch.tanh(s) * 0.5
        return s
    return mod


# ---- scores with captures


@score
def alibi(t):
    slope = t.floats(H)
    return lambda s, b, h, i, j: s + slope[h] * (i - j)


@score
def bias_dense(t):
    bias = t.floats(S, S)
    return lambda s, b, h, i, j: s + bias[i, j]


@score
def bias_heads(t):
    bias = t.floats(H, S, S)
    return lambda s, b, h, i, j: s + bias[h, i, j]


@score
def bias_everything(t):
    bias = t.floats(B, H, S, S)
    return lambda s, b, h, i, j: s + bias[b, h, i, j]


@score
def bias_keys(t):
    bias = t.floats(S)
    return lambda s, b, h, i, j: s + bias[j]


@score
def bias_queries(t):
    bias = t.floats(S)
    return lambda s, b, h, i, j: s * bias[i]


@score
def bias_one_number(t):
    one = t.floats()
    return lambda s, b, h, i, j: s + one * (i - j)


@score
def bias_chained_reads(t):
    bias = t.floats(B, H, S)
    return lambda s, b, h, i, j: s + bias[b][h][j]


@score
def bias_twice(t):
    bias = t.floats(S)
    return lambda s, b, h, i, j: s + bias[i] * bias[j]


@score
def bias_of_distance(t):
    bias = t.floats(2 * S - 1)
    return lambda s, b, h, i, j: s + bias[i - j + S - 1]


@score
def bias_negative_index(t):
    bias = t.floats(H, S)
    return lambda s, b, h, i, j: s + bias[h, i - j]


@score
def bias_constant_indices(t):
    bias = t.floats(3, H, S)
    return lambda s, b, h, i, j: s + bias[1, h, j] + bias[-1][h, -1]


@score
def bias_bucketed(t):
    table, bucket = t.floats(H, 6), t.ints(6, 2 * S)
    return lambda s, b, h, i, j: s + table[h, bucket[i - j + S]]


@score
def bias_computed(t):
    bias = t.floats(H, S)
    return lambda s, b, h, i, j: s + torch.tanh(bias)[h, j] + bias.sum(-1)[h] * 0.1


@score
def bias_view(t):
    bias = t.floats(S, H)
    return lambda s, b, h, i, j: s + bias.t()[h, i]


@score
def bias_condition(t):
    bias, keep = t.floats(S), t.bools(S)
    return lambda s, b, h, i, j: torch.where(keep[j], s + bias[j], s)


@score
def bias_type_as(t):
    bias = t.floats(H)
    return lambda s, b, h, i, j: s + bias[h].type_as(s).float()


@score
def bias_index_select(t):
    bias = t.floats(H, S)
    return lambda s, b, h, i, j: s + bias.select(0, 2)[j] + torch.index_select(bias, 0, h.reshape(1)).squeeze(0)[i]


@score
def t5_buckets(t):
    table = t.floats(8, H)

    def bucket(distance):
        n = torch.maximum(-distance, torch.zeros_like(distance))
        far = 4 + (torch.log(n.float().clamp(min=1.0) / 4) / math.log(8) * 4).to(torch.int32)
        return torch.where(n < 4, n, torch.minimum(far, torch.full_like(far, 7)))

    return lambda s, b, h, i, j: s + table[bucket(j - i), h]


@score
def gated(t):
    gate, offset = t.floats(H), t.floats(S)
    return lambda s, b, h, i, j: s * torch.sigmoid(gate[h]) + torch.where(i == j, offset[i], 0.0)


@score
def rows_dotted(t):
    u, w = t.floats(S, 5), t.floats(S, 5)
    return lambda s, b, h, i, j: s + torch.dot(u[i], w[j])


@score
def rows_multiplied(t):
    u, w, m = t.floats(S, 5), t.floats(S, 3), t.floats(H, 5, 3)
    return lambda s, b, h, i, j: s + u[i] @ m[h] @ w[j] * 0.3 + (w[i] @ m[0].T)[2]


@score
def rows_summed(t):
    u, w = t.floats(H, S, 3), t.floats(S, 3)
    return lambda s, b, h, i, j: s - ((u[h, i] - w[j]) ** 2).sum(-1) * 0.1


@score
def rows_of_means(t):
    means = t.floats(S, 3)
    return lambda s, b, h, i, j: s - torch.norm(means[i] - means[j] + 0.1) + (means[i] * 2).mean()


@score
def rows_extreme(t):
    u = t.floats(S, 4)
    return lambda s, b, h, i, j: s + u[i].amax() - torch.amin(u[j], -1)


@score
def rows_sliced(t):
    u = t.floats(S, 6)
    return lambda s, b, h, i, j: s + (u[i, 1:4] * u[j, ..., 3:]).sum() + u[i, :][2]


@score
def rows_and_numbers(t):
    u, weight = t.floats(S, 3), t.floats(3)
    return lambda s, b, h, i, j: s + torch.sum(torch.tanh(u[j]) * weight)


@score
def rows_nested(t):
    u = t.floats(S, 2, 3)
    return lambda s, b, h, i, j: s + (u[i] * u[j]).sum(-1).abs().sum()


@score
def partial_arguments(t):
    bias = t.floats(H)
    return functools.partial(lambda w, factor, s, b, h, i, j: s + w[h] * factor, bias, 0.5)


@score
def default_arguments(t):
    bias = t.floats(H)

    def mod(s, b, h, i, j, bias=bias, factor=2):
        return s + bias[h] * factor
    return mod


@score
def composed(t):
    first, second = alibi(t), softcap(t)
    return lambda s, b, h, i, j: second(first(s, b, h, i, j), b, h, i, j)


@score
def list_of_tensors(t):
    both = [t.floats(H), t.floats(S)]
    return lambda s, b, h, i, j: s + both[0][h] + both[1][j]


@score
def object_with_tensors(t):
    class Holder:
        def __init__(self):
            self.bias = t.floats(H, S)

        def __call__(self, s, b, h, i, j):
            return s + self.bias[h, i]
    return Holder()


@score
def module_with_parameter(t):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = torch.nn.Parameter(torch.randn(H).to(t.dtype))
            t.made.append(self.slope)

        def mod(self, s, b, h, i, j):
            return s - self.slope[h].abs() * torch.abs(i - j)
    return Layer().mod


# ---- masks


@mask
def causal(t): return lambda b, h, i, j: i >= j


@mask
def nothing_hidden(t): return lambda b, h, i, j: True


@mask
def always_by_tensor(t): return lambda b, h, i, j: j.new_ones((), dtype=torch.bool)


@mask
def window(t): return lambda b, h, i, j: (i >= j) & (i - j < 5)


@mask
def window_functions(t): return lambda b, h, i, j: torch.logical_and(torch.ge(i, j), torch.lt(torch.sub(i, j), 5))


@mask
def two_sided(t): return lambda b, h, i, j: torch.abs(i - j) <= 3


@mask
def dilated(t): return lambda b, h, i, j: (abs(i - j) <= 6) & ((i - j) % 2 == 0)


@mask
def with_sinks(t): return lambda b, h, i, j: (i >= j) & ((i - j < 4) | (j < 2))


@mask
def prefix(t): return lambda b, h, i, j: (j < 7) | (i >= j)


@mask
def prefix_lengths(t):
    length = t.ints(S, B)
    return lambda b, h, i, j: (j < length[b]) | (i >= j)


@mask
def padding(t):
    length = t.ints(S, B)
    return lambda b, h, i, j: j < length[b]


@mask
def documents(t):
    doc = torch.sort(t.ints(4, S)).values
    return lambda b, h, i, j: (doc[i] == doc[j]) & (i >= j)


@mask
def documents_of_batch(t):
    doc = t.ints(3, B, S)
    return lambda b, h, i, j: doc[b, i] == doc[b, j]


@mask
def dense_condition(t):
    keep = t.bools(S, S)
    return lambda b, h, i, j: keep[i, j]


@mask
def dense_condition_of_heads(t):
    keep = t.bools(H, S, S)
    return lambda b, h, i, j: keep[h][i][j] & (i >= j)


@mask
def blocks(t): return lambda b, h, i, j: (i // 4) == (j // 4)


@mask
def block_causal(t): return lambda b, h, i, j: torch.div(i, 4, rounding_mode="floor") >= j // 4


@mask
def global_positions(t):
    chosen = t.bools(S)
    return lambda b, h, i, j: chosen[i] | chosen[j]


@mask
def image_neighbourhood(t):
    def near(b, h, i, j):
        x, y, u, w = i % 5, i // 5, j % 5, j // 5
        middle = x.clamp(1, 3), y.clamp(min=1, max=2)
        return ((middle[0] - u).abs() <= 1) & ((middle[1] - w).abs() <= 1)
    return near


@mask
def by_head(t): return lambda b, h, i, j: torch.where(h % 2 == 0, i >= j, i - j < 3)


@mask
def among(t):
    chosen = torch.tensor([1, 4, 7])
    return lambda b, h, i, j: torch.isin(j, chosen) | torch.isin(i, 2) | torch.isin(i - j, chosen, invert=True)


@mask
def negated(t): return lambda b, h, i, j: ~((i > j) & ~(i == j + 1))


@mask
def exclusive(t): return lambda b, h, i, j: (i >= j) ^ (j % 3 == 0)


@mask
def strided(t): return lambda b, h, i, j: (i >= j) & ((i - j < 3) | ((i - j) % 4 == 0))


@mask
def chosen_keys(t):
    chosen = t.ints(S, S, 4)
    return lambda b, h, i, j: (chosen[i] == j).any(-1)


@mask
def all_of_a_row(t):
    row = t.ints(2, S, 3)
    return lambda b, h, i, j: torch.all(row[j] == 1, -1) | (i >= j)


@mask
def number_as_condition(t):
    flags = t.ints(2, S)
    return lambda b, h, i, j: flags[j].bool() | (i == j)


@mask
def joined_masks(t):
    from torch.nn.attention.flex_attention import and_masks, or_masks

    return and_masks(or_masks(window(t), prefix(t)), documents_of_batch(t))


@mask
def loop_over_list(t):
    ends = [4, 9, 15]

    def seen(b, h, i, j):
        keep = i >= j
        for end in ends:
            keep = keep & ~((i >= end) & (j < end - 3))
        return keep
    return seen
