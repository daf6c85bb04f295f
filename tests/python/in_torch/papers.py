# tests/python/in_torch/papers.py — more mods for flex_attention: masks and biases of papers, corners of torch's tests
"""As in mods.py: what attention-gym and torch's tests compute, told again in other words."""

import functools
import math

import torch
import torch.nn.functional as F
from mods import MASKS, SCORES, B, H, S, mask, score
from torch.nn.attention.flex_attention import and_masks, or_masks

__all__ = ["MASKS", "SCORES"]
HIDDEN = float("-inf")


def future(b, h, i, j): return i < j


def causal(b, h, i, j): return i >= j


# ---- scores of positions alone


@score
def upper_triangle(t): return lambda s, b, h, i, j: torch.where(i <= j, s, HIDDEN)


@score
def relative_and_causal(t): return lambda s, b, h, i, j: torch.where(future(b, h, i, j), HIDDEN, s + (i - j))


@score
def trigonometric_nested(t): return lambda s, b, h, i, j: torch.sin(torch.cos(s)) + torch.tan(b)


@score
def trigonometric_branches(t):
    def mod(s, b, h, i, j):
        two = torch.cos(s), torch.sin(s)
        return two[0] * two[1] + torch.tan(b)
    return mod


@score
def odd_keys_hidden(t): return lambda s, b, h, i, j: torch.where(j % 2 == 0, s, HIDDEN)


@score
def divided_by_a_position(t): return lambda s, b, h, i, j: s - i // (j + 1)


@score
def silu_alone(t): return lambda s, b, h, i, j: F.silu(s)


@score
def number_of_the_batch(t): return lambda s, b, h, i, j: s + B


@score
def plus_near_minus_far(t):
    def mod(s, b, h, i, j):
        distance = i - j
        return torch.where(distance <= 3, s - 1.0, s + distance)
    return mod


@score
def crossing_bands(t):
    def mod(s, b, h, i, j):
        rows, columns = (i // 5 - j // 5).abs(), (i % 5 - j % 5).abs()
        return torch.where((rows <= 1) | (columns <= 1), s, HIDDEN)
    return mod


@score
def one_after_the_other(t):
    second = odd_keys_hidden(t)
    return lambda s, b, h, i, j: second(torch.where(causal(b, h, i, j), s, HIDDEN), b, h, i, j)


@score
def relu_in_place_of_exp(t): return lambda s, b, h, i, j: torch.log(F.relu(s) + 1.0)


@score
def gelu_in_place_of_exp(t): return lambda s, b, h, i, j: torch.log(F.gelu(s) + 1.0)


class Hide(torch.autograd.Function):
    """Minus infinity where a condition holds."""

    generate_vmap_rule = True

    @staticmethod
    def forward(s, hidden):
        return s.masked_fill(hidden, HIDDEN)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, grad):
        (hidden,) = ctx.saved_tensors
        return grad.masked_fill(hidden, 0.0), None


@score
def function_of_ones_own(t): return lambda s, b, h, i, j: Hide.apply(s, i < j)


# ---- scores with captures


@score
def scaled_by_head(t):
    factor = t.floats(H)
    return lambda s, b, h, i, j: s * factor[h]


@score
def bias_of_batch_and_query(t):
    bias = t.floats(B, S)
    return lambda s, b, h, i, j: s + bias[b][i]


@score
def bias_read_in_steps(t):
    bias = t.floats(2, B, H, S)
    return lambda s, b, h, i, j: s + bias[0][b, h][i]


@score
def bias_chosen_by_a_tensor(t):
    bias, which = t.floats(B, H, 3, S), torch.tensor(1)
    return lambda s, b, h, i, j: s + bias[b][h][which, i]


@score
def bias_of_every_dimension(t):
    keys, queries, batches, heads = t.floats(S), t.floats(S), t.floats(B), t.floats(H)

    def mod(s, b, h, i, j):
        for bias, at in ((keys, j), (queries, i), (batches, b), (heads, h)):
            s = s + bias[at]
        return s
    return mod


@score
def bias_of_batches(t):
    bias = t.floats(B, S, S)
    return lambda s, b, h, i, j: s + bias[b, i, j]


@score
def same_sequence_by_score(t):
    sequence = t.ints(3, S)
    return lambda s, b, h, i, j: torch.where(sequence[i] == sequence[j], s, HIDDEN)


@score
def a_video_and_then_text(t):
    frames = t.ints(S, B)

    def mod(s, b, h, i, j):
        both = (i <= frames[b]) & (j <= frames[b])
        return torch.where(both | (i >= j), s, HIDDEN)
    return mod


@score
def a_whole_number_captured(t):
    one = torch.tensor(3, dtype=torch.int32)
    return lambda s, b, h, i, j: s + one


@score
def summed_row_of_the_batch(t):
    weights = t.floats(B, 7)
    return lambda s, b, h, i, j: s + weights[b].sum(dim=-1)


@score
def bias_with_a_broken_head(t):
    bias = t.floats(B, 1, S, S)

    def mod(s, b, h, i, j):
        first = h.new_zeros(h.shape)
        return s + bias[b, first, i, j]
    return mod


@score
def bias_of_the_sum(t):
    bias = t.floats(2 * S)
    return lambda s, b, h, i, j: s + bias[i + j]


@score
def bias_transposed(t):
    bias = t.floats(S, S)
    return lambda s, b, h, i, j: s + bias[j, i]


@score
def bias_of_heads_transposed(t):
    bias = t.floats(H, S, S)
    return lambda s, b, h, i, j: s + bias[h, j, i]


@score
def places_in_a_plane(t):
    place, reach = t.floats(S, 2), t.floats(H)

    def mod(s, b, h, i, j):
        apart = ((place[i] - place[j]).pow(2).sum(-1) + 0.01).sqrt()
        return torch.exp(-apart / (reach[h].abs() + 1.0)) * s
    return mod


@score
def bias_of_the_distance(t):
    bias = t.floats(S)
    return lambda s, b, h, i, j: s + bias[torch.abs(i - j)]


@score
def bias_of_a_window(t):
    bias, reach = t.floats(9), 4
    return lambda s, b, h, i, j: s + bias[torch.clamp(i - j + reach, 0, 2 * reach)]


@score
def bias_through_a_table(t):
    bias, table = t.floats(S), t.ints(S, S)
    return lambda s, b, h, i, j: s + bias[table[i]]


@score
def two_biases(t):
    ours, theirs = t.floats(S), t.floats(S)
    return lambda s, b, h, i, j: s + ours[i] * 0.5 + theirs[j]


@score
def gated_by_head(t):
    gate = t.floats(H)
    return lambda s, b, h, i, j: s * torch.sigmoid(gate[h].to(torch.float32))


@score
def shorter_sequences(t):
    length, bias = t.ints(S, B), t.floats(S)
    return lambda s, b, h, i, j: torch.where(i <= length[b], s + bias[j], s * 0.5)


@score
def positions_within_sequences(t):
    sequence, starts = torch.arange(S) // 7, torch.tensor([0, 7, 14])

    def mod(s, b, h, i, j):
        own = i - starts[sequence[i]], j - starts[sequence[j]]
        return s + (own[0] - own[1]) * 0.1
    return mod


@score
def rows_of_an_image(t):
    bias, width = t.floats(B, H, S, 4), 5
    return lambda s, b, h, i, j: s + bias[b, h, i, j // width]


@score
def graph_distances(t):
    table, steps = t.floats(H, 5), t.ints(5, B, S, S)
    return lambda s, b, h, i, j: s + table[h, steps[b, i, j]]


@score
def graph_edges(t):
    table, kinds, count = t.floats(H, 3, 4), t.ints(4, B, S, S, 3), t.ints(4, B, S, S)
    each, of_each = [table[:, n] for n in range(3)], [kinds[..., n] for n in range(3)]

    def mod(s, b, h, i, j):
        length = count[b, i, j]
        total = sum(torch.where(length > n, one[h, kind[b, i, j]], 0.0)
                    for n, (one, kind) in enumerate(zip(each, of_each)))
        return s + total / torch.clamp(length, min=1)
    return mod


@score
def mla_positions(t):
    queries, keys = t.floats(B, H, S, 6), t.floats(B, 1, S, 6)
    return lambda s, b, h, i, j: s + 0.5 * torch.dot(queries[b, h, i], keys[b, h // H, j])


@score
def sandwich(t):
    waves = 1.0 / 10000 ** (torch.arange(8) / 8)
    table = torch.cos((torch.arange(2 * S - 1) - (S - 1)).abs()[:, None] * waves).sum(-1)
    share = H / (8.0 * torch.arange(1, H + 1))
    return lambda s, b, h, i, j: s + table[i - j + (S - 1)] * share[h]


# ---- masks


@mask
def backwards(t): return lambda b, h, i, j: i <= j


@mask
def strictly_later(t): return future


@mask
def far_and_causal(t): return lambda b, h, i, j: causal(b, h, i, j) & (i - j > 6)


@mask
def a_gap(t): return lambda b, h, i, j: (j < 5) | (j >= 12)


@mask
def first_queries(t): return lambda b, h, i, j: i < 11


@mask
def window_from_above(t): return lambda b, h, i, j: (i >= j) & (i <= j + 5)


@mask
def every_other_batch(t): return lambda b, h, i, j: causal(b, h, i, j) & (b % 2 == 0)


@mask
def later_queries(t):
    offset = t.ints(4, B)
    return lambda b, h, i, j: i + offset[b] * 3 >= j


@mask
def a_far_offset(t): return lambda b, h, i, j: i + 1000 >= j


@mask
def offset_by_default(t):
    def seen(b, h, i, j, ours=4, theirs=1):
        return i + ours >= j + theirs
    return seen


@mask
def same_sequence_and_causal(t):
    sequence = t.ints(3, S)
    return and_masks(causal, lambda b, h, i, j: sequence[i] == sequence[j])


@mask
def clamped_documents(t):
    document = t.ints(3, 12)
    last = document.shape[0] - 1
    return lambda b, h, i, j: document[i.clamp(0, last)] == document[j.clamp(0, last)]


@mask
def queries_left_out(t):
    out = t.bools(B, S)
    return lambda b, h, i, j: ~out[b, i]


@mask
def first_row_hidden(t): return lambda b, h, i, j: torch.where((i == 0) & (j >= 4), False, True)


@mask
def condition_with_a_broken_head(t):
    keep = t.bools(B, 1, S, S)
    return lambda b, h, i, j: keep[b, h.new_zeros(h.shape), i, j]


@mask
def groups_of_tokens(t):
    inner = window_from_above(t)
    return lambda b, h, i, j: (i // 6 == j // 6) & inner(b, h, i % 6, j % 6)


@mask
def block_diffusion(t):
    half, size = 10, 3

    def seen(b, h, i, j):
        noised = i < half, j < half
        block = i % half // size, j % half // size
        within = (block[0] == block[1]) & (noised[0] == noised[1])
        clean = ~noised[1] & torch.where(noised[0], block[0] > block[1], block[0] >= block[1])
        return within | clean
    return seen


DOCUMENTS = torch.tensor([0, 4, 5, 11, S])


def document_of():
    return torch.repeat_interleave(torch.arange(4), DOCUMENTS.diff())


@mask
def documents_with_own_positions(t):
    document, inner = document_of(), window_from_above(t)

    def seen(b, h, i, j):
        own = [at - DOCUMENTS[document[at]] for at in (i, j)]
        return (document[i] == document[j]) & inner(b, h, *own)
    return seen


@mask
def documents_as_intervals(t):
    document = document_of()
    return lambda b, h, i, j: (j >= DOCUMENTS[document[i]]) & causal(b, h, i, j)


@mask
def shared_prefixes(t):
    document, prefix = document_of(), torch.tensor([0, 0, 2, 2])

    def seen(b, h, i, j):
        mine = document[i]
        theirs = prefix[mine]
        lent = (mine != theirs) & (j >= DOCUMENTS[theirs]) & (j < DOCUMENTS[theirs + 1])
        return ((j >= DOCUMENTS[mine]) & causal(b, h, i, j)) | lent
    return seen


@mask
def images_in_text(t):
    image, texts = torch.arange(S) // 7, torch.tensor([[0, 6], [4, 15], [15, S]])

    def seen(b, h, i, j):
        interval = texts[image[j]]
        return (i >= interval[0]) & (i < interval[1])
    return seen


@mask
def longformer(t):
    everywhere = t.bools(S)
    near = lambda b, h, i, j: (i - j).abs() <= 2
    return or_masks(near, lambda b, h, i, j: everywhere[i] | everywhere[j])


@mask
def prefix_of_language_model(t): return or_masks(lambda b, h, i, j: j < 6, causal)


@mask
def tree_of_drafts(t):
    prefix, nodes = 7, 12
    parents = [0, 0, 0, 1, 1, 2, 3, 3, 5, 6, 7, 8]
    above = torch.eye(nodes, dtype=torch.bool)
    for node in range(1, nodes):
        above[node] |= above[parents[node]]

    def seen(b, h, i, j):
        node = (j - prefix).clamp(min=0, max=nodes - 1)
        return (j < prefix) | ((j >= prefix) & (j < prefix + nodes) & above[i.clamp(max=nodes - 1), node])
    return seen


@mask
def blocks_of_drafts(t):
    prefix, size = 7, 4

    def seen(b, h, i, j):
        of_query, of_key = (i // size, i % size), ((j - prefix) // size, (j - prefix) % size)
        own = (j >= prefix) & (of_query[0] == of_key[0]) & (of_key[1] <= of_query[1])
        return (j < prefix) | own
    return seen


def neighbourhood(place, width, height, reach):
    """Seen is what lies within reach of a place, which stays that far from the canvas's edges."""
    def seen(b, h, i, j):
        (x, y), (u, v) = place(i), place(j)
        x, y = x.clamp(reach, width - 1 - reach), y.clamp(reach, height - 1 - reach)
        return ((x - u).abs() <= reach) & ((y - v).abs() <= reach)
    return seen


@mask
def neighbourhood_in_rows(t): return neighbourhood(lambda at: (at % 5, at // 5), 5, 4, 1)


@mask
def neighbourhood_in_tiles(t):
    def place(at):
        tile, within = at // 4, at % 4
        return tile % 3 * 2 + within % 2, tile // 3 * 2 + within // 2
    return neighbourhood(place, 6, 4, 1)


@mask
def neighbourhood_on_a_curve(t):
    def every_second_bit(code):
        code = code & 0x55555555
        for shift, kept in ((1, 0x33333333), (2, 0x0F0F0F0F), (4, 0x00FF00FF), (8, 0x0000FFFF)):
            code = (code | (code >> shift)) & kept
        return code
    return neighbourhood(lambda at: (every_second_bit(at), every_second_bit(at >> 1)), 8, 4, 1)


def tiles_near(counts, reaches, tile):
    """Seen are tiles of a canvas within reach of the query's, along every axis, and text after the canvas."""
    canvas = tile * math.prod(counts)

    def place(at):
        number, out = at // tile, []
        for count in reversed(counts):
            out.append(number % count)
            number = number // count
        return out[::-1]

    def seen(b, h, i, j):
        near = (i < canvas) & (j < canvas)
        for ours, theirs, count, (left, right) in zip(place(i), place(j), counts, reaches):
            middle = ours.clamp(left, count - 1 - right)
            near = near & (theirs >= middle - left) & (theirs <= middle + right)
        return near | ((i < canvas) & (j >= canvas)) | (i >= canvas)
    return seen


@mask
def tiles_of_an_image(t): return tiles_near((2, 4), ((0, 0), (1, 1)), 2)


@mask
def tiles_of_a_video(t): return tiles_near((2, 2, 2), ((1, 0), (0, 0), (0, 0)), 2)


@mask
def frames_in_space(t):
    prompt, frame, width = 3, 4, 2
    near = math.floor(width * frame / 3) * 3
    return lambda b, h, i, j: (j < prompt + frame) | (i < prompt) | (torch.abs(i - j) < near)


@mask
def frames_in_time(t):
    prompt, frame = 3, 4

    def seen(b, h, i, j):
        place = (i - prompt) % frame, (j - prompt) % frame
        return (j < prompt) | (i < prompt) | (torch.abs(place[0] - place[1]) < 2)
    return seen


@mask
def chosen_tiles(t):
    chosen = t.ints(5, B, H, 5, 2)
    filled = torch.tensor([4, 4, 2, 4, 3])

    def seen(b, h, i, j):
        tile = j // 4
        return (chosen[:, :, :, 0][b, h, i // 4] == tile) | ((chosen[..., 1][b, h, i // 4] == tile)
                                                             & (j % 4 < filled[tile]))
    return seen


@mask
def map_of_tiles(t):
    kept, filled = t.bools(B, H, 5, 5), torch.tensor([4, 4, 2, 4, 3])
    return lambda b, h, i, j: kept[b, h, i // 4, j // 4] & (j % 4 < filled[j // 4])


@mask
def partly_filled_tiles(t):
    filled = torch.tensor([4, 1, 2, 4, 3])
    return lambda b, h, i, j: j % 4 < filled[j // 4]


@mask
def partial_of_a_mask(t): return functools.partial(lambda reach, b, h, i, j: (i - j).abs() <= reach, 4)
