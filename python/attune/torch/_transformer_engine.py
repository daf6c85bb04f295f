# python/attune/torch/_transformer_engine.py — DotProductAttention as TransformerEngine's, masks and biases too
from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from enum import Enum, EnumMeta
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from attune import _core
from attune._errors import said
from attune.torch._attend import Packed, attend, check_tensors, starts
from attune.torch._flex import as_autocast, is_any_autocast, written
from attune.torch._graph import Callback, Shape, check_backward, check_tensors_of, score_of
from attune.torch._mod import Spelled, _Scan, spell
from attune.torch._sdpa import dropping, spelled_sdpa
from attune.torch._value import TIGHT, refuse, scalar

MASKS = ("no_mask", "padding", "causal", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right",
         "arbitrary")
Window = tuple[int, int]


class Kept:
    """The pairs that a mask keeps. `band`: how many keys before and after the diagonal, or -1. `at_end`: the diagonal
    is aligned to the sequences' ends. The tensors are all that the call captures."""

    def __init__(self, band: Window, at_end: bool) -> None:
        self.band, self.at_end = band, at_end
        self.counts = False  # whether positions past the lengths are removed
        self.tensors: dict[str, Tensor] = {}

    def count(self, cu_q: Tensor, cu_kv: Tensor) -> None:
        """Lengths from starts without holes."""
        self.counts = True
        for name, cu in (("len_q", cu_q), ("len_kv", cu_kv)):
            self.tensors[name] = (cu[1:] - cu[:-1]).to(torch.int32)

    def distance(self, b: Any, q: Any, kv: Any) -> Any:
        """How far a key is before the diagonal."""
        if not self.at_end:
            return q - kv
        lengths: list[Any] = []
        for counted, whole in (("len_q", "q_len"), ("len_kv", "kv_len")):
            known = self.tensors.get(counted)
            lengths.append(scalar(q.trace, "i", (whole, TIGHT), natural=True) if known is None else known[b])
        return q + (lengths[1] - lengths[0]) - kv

    def mask(self) -> Callable[..., Any] | None:
        left, right = self.band
        tensors = self.tensors
        if left < 0 and right < 0 and not self.counts and not tensors.keys() & {"masked", "empty_q"}:
            return None

        def keeps(b: Any, h: Any, q: Any, kv: Any) -> Any:
            kept: Any = True
            if right >= 0:
                kept = (self.distance(b, q, kv) >= -right) & kept
            if left >= 0:
                kept = (self.distance(b, q, kv) <= left) & kept
            if self.counts:
                kept = (q < tensors["len_q"][b]) & (kv < tensors["len_kv"][b]) & kept
            if "empty_q" in tensors:
                kept = ~read_at(tensors["empty_q"], (b, h, 0, q)) & ~read_at(tensors["empty_kv"], (b, h, 0, kv)) & kept
            return ~read_at(tensors["masked"], (b, h, q, kv)) & kept if "masked" in tensors else kept

        return keeps


def read_at(tensor: Tensor, at: tuple[Any, ...]) -> Any:
    """Its element for a pair; it broadcasts."""
    return tensor[tuple([0 if n == 1 else i for n, i in zip(tensor.shape, at)])]


def one_of(name: str, given: Any, among: tuple[str, ...]) -> str:
    if given not in among:
        refuse("bad-argument", f"`{name}` cannot be {said(given)}", f"there are {', '.join(among)}",
               "pass one of these")
    return given


def mask_type(given: str) -> str:
    """Of several spellings one."""
    plain = given.replace(",", "_") if isinstance(given, str) else given
    return one_of("attn_mask_type", "padding_causal" if plain == "causal_padding" else plain, MASKS)


def window_of(mask: str, given: Any) -> Window:
    if given is None:
        return (-1, 0) if "causal" in mask else (-1, -1)
    if not isinstance(given, (tuple, list)) or len(given) != 2 or min(given) < -1:
        refuse("bad-argument", f"`window_size` cannot be {said(given)}",
               "it is how many keys before and after the diagonal are seen, or -1", "write (3, 0) for 3 before it")
    if "causal" in mask:
        return given[0], 0
    return (-1, -1) if tuple(given) == (-1, 0) else (given[0], given[1])  # as TransformerEngine, which warns


def fitting(name: str, given: Any, shape: Shape, dtype: torch.dtype | None) -> Tensor:
    """A tensor that broadcasts to the scores."""
    if not isinstance(given, Tensor):
        refuse("tensor-array", f"`{name}` is {said(given)}", "it is a tensor of four dimensions", "pass one")
    if given.dim() != 4 or any([n not in (1, most) for n, most in zip(given.shape, shape)]):
        refuse("tensor-shape", f"`{name}` is {list(given.shape)}", f"it must broadcast to {list(shape)}",
               "reshape it")
    if dtype is not None and given.dtype != dtype:
        refuse("mask-type", f"`{name}` holds {given.dtype}", "it is true where a pair is removed",
               "convert it with .bool()")
    return given


def slopes_of(heads: int, device: torch.device) -> Tensor:
    """ALiBi's: 2^(-8/n), 2^(-16/n), … for the largest power of two; those between them for the heads that are left."""
    n = 1 << (heads.bit_length() - 1)
    powers = [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]
    powers += [2.0 ** (-4.0 * (2 * i + 1) / n) for i in range(heads - n)]
    return torch.tensor(powers, dtype=torch.float32, device=device)


_FORMATS = ("sbhd", "bshd", "thd")
_BIASES = ("no_bias", "pre_scale_bias", "post_scale_bias", "alibi")
_SINKS = ("vanilla", "off-by-one", "learnable")


class DotProductAttention(nn.Module):
    """transformer_engine.pytorch.DotProductAttention, compiled by attune, on CPUs too.

    `score_mod(graph, score, tensors)` is written for cuDNN's graph. attune differentiates it; a `score_mod_bprop` is
    only compared with the derivative, once. docs/torch.md tells which arguments mean what.

    >>> import torch
    >>> from attune.torch import DotProductAttention
    >>> attention = DotProductAttention(num_attention_heads=4, kv_channels=16, qkv_format="bshd")
    >>> q = torch.randn(2, 10, 4, 16)
    >>> attention(q, q, q).shape
    torch.Size([2, 10, 64])
    """

    def __init__(self, num_attention_heads: int, kv_channels: int | tuple[int, int], num_gqa_groups: int | None = None,
                 attention_dropout: float = 0.0, qkv_format: str = "sbhd", attn_mask_type: str = "causal",
                 window_size: Window | None = None, bottom_right_diagonal: bool | None = None,
                 sequence_parallel: bool = False, tp_size: int = 1,
                 get_rng_state_tracker: Callable[[], Any] | None = None, tp_group: Any = None,
                 layer_number: int | None = None, attention_type: str = "self", cp_group: Any = None,
                 cp_global_ranks: Any = None, cp_stream: Any = None, cp_comm_type: str = "p2p",
                 softmax_scale: float | None = None, softmax_type: str = "vanilla",
                 return_max_logit: bool | None = False, name: str | None = None) -> None:
        super().__init__()
        if cp_group is not None:
            refuse("bad-argument", "DotProductAttention is given a cp_group", "attune shares a sequence in another way",
                   "leave it out, and call the model within attune.torch.context_parallel")
        self.tp_size = tp_size if tp_group is None else tp_group.size()
        self.num_gqa_groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        self.num_attention_heads = num_attention_heads
        if min(self.tp_size, self.num_gqa_groups, num_attention_heads) < 1 or (
                num_attention_heads % self.num_gqa_groups or self.num_gqa_groups % self.tp_size):
            refuse("head-groups",
                   f"{num_attention_heads} heads in {self.num_gqa_groups} groups, over {self.tp_size} ranks",
                   "each KV head serves the same number of query heads, and each rank has as many",
                   "make num_attention_heads a multiple of num_gqa_groups, and that of tp_size")
        self.kv_channels = (kv_channels, kv_channels) if isinstance(kv_channels, int) else tuple(kv_channels)
        self.softmax_scale = self.kv_channels[0] ** -0.5 if softmax_scale is None else softmax_scale
        self.qkv_format = one_of("qkv_format", qkv_format, _FORMATS)
        self.attn_mask_type, self.window_size = mask_type(attn_mask_type), window_size
        self.bottom_right_diagonal = bottom_right_diagonal
        self.attention_dropout, self.attention_type = attention_dropout, attention_type
        self.layer_number, self.name = 1 if layer_number is None else layer_number, name
        self.return_max_logit = bool(return_max_logit)
        self.softmax_type = one_of("softmax_type", softmax_type, _SINKS)
        self.softmax_offset = None
        if softmax_type == "learnable":
            self.softmax_offset = nn.Parameter(torch.zeros(num_attention_heads // self.tp_size))
        self._tracker = None if sequence_parallel else get_rng_state_tracker
        self._forget()

    def _forget(self) -> None:
        self._written: _Written | None = None
        self._compared: tuple[Any, ...] = ()  # the score_mod and the score_mod_bprop that agree
        self._near: dict[str, tuple[Tensor, int, Tensor]] = {}  # numbers of the host on the device of q
        self._own_slopes: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what is made again."""
        return {**self.__dict__, "_written": None, "_compared": (), "_near": {}, "_own_slopes": None}

    def forward(self, query_layer: Tensor | None = None, key_layer: Tensor | None = None,
                value_layer: Tensor | None = None, attention_mask: Any = None, qkv_format: str | None = None,
                cu_seqlens_q: Tensor | None = None, cu_seqlens_kv: Tensor | None = None,
                cu_seqlens_q_padded: Tensor | None = None, cu_seqlens_kv_padded: Tensor | None = None,
                max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None, attn_mask_type: str | None = None,
                window_size: Window | None = None, bottom_right_diagonal: bool | None = None,
                checkpoint_core_attention: bool = False, core_attention_bias_type: str = "no_bias",
                core_attention_bias: Tensor | None = None, alibi_slopes: Tensor | None = None,
                fast_zero_fill: bool = True, inference_params: Any = None, pad_between_seqs: bool | None = None,
                fp8_output: bool | None = False, bf16_backward: bool | None = False, num_splits: int | None = 1,
                score_mod: Callback | None = None, score_mod_bprop: Callback | None = None,
                score_mod_tensors: dict[str, Tensor] | None = None,
                score_mod_bprop_tensors: dict[str, Tensor] | None = None, qkv_layer: Tensor | None = None,
                kv_layer: Tensor | None = None, qkv_interleave_dim: int = -3) -> Any:
        """The attention: [s, b, h * d], [b, s, h * d] or [t, h * d], as `qkv_format` says."""
        if inference_params is not None:
            refuse("bad-argument", "DotProductAttention is given inference_params", "attune has another cache of keys",
                   "write attune.torch.append and paged_attention")
        if fp8_output:
            refuse("bad-argument", "DotProductAttention is asked for an output in FP8", "attune's is in the type of q",
                   "leave fp8_output out")
        q, k, v = _unpacked(query_layer, key_layer, value_layer, qkv_layer, kv_layer, qkv_interleave_dim)
        if is_any_autocast():
            q, k, v = as_autocast(q, k, v)
        form = self.qkv_format if qkv_format is None else one_of("qkv_format", qkv_format, _FORMATS)
        self._check_shapes(form, q, k, v)
        asked = self.attn_mask_type if attn_mask_type is None else mask_type(attn_mask_type)
        aligned = self.bottom_right_diagonal if bottom_right_diagonal is None else bottom_right_diagonal
        at_end = asked not in ("causal", "padding_causal") and (aligned is not False or asked.endswith("bottom_right"))
        band = window_of(asked, self.window_size if window_size is None else window_size)
        kept = Kept(band, at_end)
        packed = None
        if form == "thd":
            begin_q, begin_kv = _required("cu_seqlens_q", cu_seqlens_q), _required("cu_seqlens_kv", cu_seqlens_kv)
            padded = pad_between_seqs is not False
            room_q = begin_q if cu_seqlens_q_padded is None or not padded else cu_seqlens_q_padded
            room_kv = begin_kv if cu_seqlens_kv_padded is None or not padded else cu_seqlens_kv_padded
            if room_q is not begin_q or room_kv is not begin_kv:
                kept.count(begin_q, begin_kv)
            far = q.is_cuda
            packed = Packed(starts(room_q), starts(room_kv), (max_seqlen_q or len(q)) if far else 0,
                            (max_seqlen_kv or len(k)) if far else 0)
            shape = (room_q.shape[0] - 1, q.shape[1], -1, -1)
        else:
            order = (1, 2, 0, 3) if form == "sbhd" else (0, 2, 1, 3)
            q, k, v = (t.permute(order) for t in (q, k, v))
            shape = (*q.shape[:3], k.shape[2])
            if asked.startswith("padding"):
                self._pad(kept, attention_mask, cu_seqlens_q, cu_seqlens_kv, shape)
        if asked == "arbitrary":
            kept.tensors["masked"] = fitting("attention_mask", attention_mask, shape, torch.bool)
        tensors = kept.tensors
        score = self._biased(core_attention_bias_type, core_attention_bias, alibi_slopes, kept, shape, q)
        identity: Any = core_attention_bias_type
        if score_mod is not None:
            if core_attention_bias_type != "no_bias":
                refuse("bad-argument", f"DotProductAttention is given a score_mod and {core_attention_bias_type}",
                       "TransformerEngine takes one of them", "add the bias in the score_mod")
            score, identity = self._modified(score_mod, (score_mod_tensors, score_mod_bprop, score_mod_bprop_tensors),
                                             tensors, shape, q)
        elif any([given is not None for given in (score_mod_bprop, score_mod_tensors, score_mod_bprop_tensors)]):
            refuse("bad-argument", "tensors or a score_mod_bprop are given without a score_mod", "they belong to one",
                   "pass the score_mod")
        spelled = self._spelled((identity, asked, band, at_end, self.softmax_scale), score, score_mod, kept, q)
        spelled = self._with_sink_and_dropout(spelled, q)
        out, _, most = attend(spelled, q, k, v, float(self.softmax_scale), with_max=self.return_max_logit,
                              packed=packed)
        if form != "thd":
            out = out.permute((2, 0, 1, 3) if form == "sbhd" else (0, 2, 1, 3))
        out = out.flatten(-2)
        return (out, most.amax(1 if form == "thd" else (0, 2))) if most is not None else out

    # ---- what is checked

    def _check_shapes(self, form: str, q: Tensor, k: Tensor, v: Tensor) -> None:
        rank = 3 if form == "thd" else 4
        if not q.dim() == k.dim() == v.dim() == rank:
            refuse("tensor-rank", f"q, k and v have {q.dim()}, {k.dim()} and {v.dim()} dimensions",
                   f"qkv_format={form!r} has {rank}", "reshape them, or say which format they have")
        heads, groups = self.num_attention_heads // self.tp_size, self.num_gqa_groups // self.tp_size
        wide = self.kv_channels
        if (*q.shape[-2:], *k.shape[-2:], *v.shape[-2:]) != (heads, wide[0], groups, wide[0], groups, wide[1]):
            refuse("tensor-shape", f"q, k and v are {list(q.shape)}, {list(k.shape)} and {list(v.shape)}",
                   f"this layer has {heads} heads, {groups} of keys, {wide[0]} wide, and values {wide[1]} wide",
                   "pass the heads and widths that the layer was made for")

    def _pad(self, kept: Kept, mask: Any, cu_q: Tensor | None, cu_kv: Tensor | None, shape: Shape) -> None:
        """Padding: counts from the beginning of each entry, else a mask that is true where a position is none."""
        if cu_q is not None and cu_kv is not None:
            kept.count(cu_q, cu_kv)
            return
        if isinstance(mask, Tensor) and self.attention_type == "self":
            mask = (mask, mask)
        if not isinstance(mask, (tuple, list)) or len(mask) != 2:
            refuse("bad-argument", f"`attention_mask` is {said(mask)}",
                   "a padding mask needs one of queries and one of keys",
                   "pass both, [batch, 1, 1, length], or cu_seqlens_q and cu_seqlens_kv")
        for name, one, n in (("empty_q", mask[0], shape[2]), ("empty_kv", mask[1], shape[3])):
            kept.tensors[name] = fitting("attention_mask", one, (shape[0], 1, 1, n), torch.bool)
        if kept.at_end and kept.band != (-1, -1):
            kept.tensors["len_q"], kept.tensors["len_kv"] = (
                (~t).sum(-1).reshape(-1).expand(shape[0]).to(torch.int32) for t in mask)
            kept.counts = False

    def _biased(self, kind: str, bias: Tensor | None, slopes: Tensor | None, kept: Kept, shape: Shape,
                q: Tensor) -> Callable[..., Any] | None:
        one_of("core_attention_bias_type", kind, _BIASES)
        if (bias is not None) != kind.endswith("scale_bias") or (slopes is not None and kind != "alibi"):
            refuse("bad-argument", f"core_attention_bias_type is {kind!r}",
                   "core_attention_bias is for 'pre_scale_bias' and 'post_scale_bias', alibi_slopes for 'alibi'",
                   "name the type of what is given")
        if bias is not None:
            bias = kept.tensors["bias"] = fitting("core_attention_bias", bias, shape, None)
            factor = float(self.softmax_scale) if kind == "pre_scale_bias" else 1.0
            return lambda s, *at: s + (read_at(bias, at) if factor == 1.0 else read_at(bias, at) * factor)
        if kind == "alibi":
            given = kept.tensors["slopes"] = self._slopes(q) if slopes is None else slopes
            return lambda s, b, h, i, j: (
                s - (given[h] if given.dim() == 1 else given[b, h]) * abs(kept.distance(b, i, j)))
        return None

    def _slopes(self, q: Tensor) -> Tensor:
        """Made once for each device."""
        if self._own_slopes is None or self._own_slopes.device != q.device:
            self._own_slopes = slopes_of(self.num_attention_heads // self.tp_size, q.device)
        return self._own_slopes

    # ---- the score_mod

    def _modified(self, score_mod: Callback, more: tuple[Any, ...], tensors: dict[str, Tensor], shape: Shape,
                  q: Tensor) -> tuple[Callable[..., Any], Any]:
        """As a mod of attune.torch, and what its text depends on."""
        own, bprop, of_bprop = more
        own, of_bprop = dict(own or {}), dict(of_bprop or {})
        for word, one in (("score_mod", score_mod), ("score_mod_bprop", bprop)):
            if one is not None and not callable(one):
                refuse("wrong-arguments", f"the {word} is {said(one)}", "it is a function of cuDNN's graph",
                       f"write def {word}(graph, {'score' if one is score_mod else 'dP'}, tensors)")
        if of_bprop and bprop is None:
            refuse("bad-argument", "score_mod_bprop_tensors are given without a score_mod_bprop", "they belong to one",
                   "pass the score_mod_bprop, or leave them out")
        check_tensors_of("score_mod_tensors", own, shape)
        check_tensors_of("score_mod_bprop_tensors", of_bprop, shape)
        if bprop is not None and self._compared != (score_mod, bprop) and (
                torch.is_grad_enabled() and not is_compiling()):
            check_backward(score_mod, bprop, own, of_bprop, shape)
            self._compared = (score_mod, bprop)
        numbers: dict[str, float] = {}
        for name, tensor in own.items():
            # The compiler turns a constant of -inf into a mask, whose tiles it skips.
            if tensor.numel() == 1 and tensor.device.type == "cpu" and not is_compiling() and (
                    not tensor.requires_grad and tensor.item() == -math.inf):
                numbers[name] = -math.inf
            else:
                tensors[f"tensors.{name}"] = own[name] = self._on(q.device, name, tensor)
        made = score_of(score_mod, {**own, **numbers}, shape)
        owner = getattr(score_mod, "__self__", score_mod)
        key = getattr(owner, "score_mod_graph_cache_key", None)
        who: Any = score_mod if key is None else (type(owner), getattr(score_mod, "__func__", None),
                                                  key() if callable(key) else key)
        return made, (who, key is not None, tuple(own), tuple(numbers), shape)

    def _on(self, device: torch.device, name: str, tensor: Tensor) -> Tensor:
        """A number of the host on the device of q, copied again only if it has changed."""
        if tensor.device == device or tensor.numel() != 1 or is_compiling():
            return tensor
        known = self._near.get(name)
        if known is not None and known[0] is tensor and known[1] == tensor._version and known[2].device == device:
            return known[2]
        near = tensor.to(device)
        if not tensor.requires_grad:
            self._near[name] = (tensor, tensor._version, near)
        return near

    # ---- texts

    def _spelled(self, key: tuple[Any, ...], score: Callable[..., Any] | None, score_mod: Callback | None, kept: Kept,
                 q: Tensor) -> Spelled:
        """The mods as text; the last one if it still holds for the tensors of this call."""
        mask = kept.mask()
        if score is None and not kept.tensors and kept.band == (-1, -1):
            return spelled_sdpa(q, None, 0.0, is_causal=False)
        if score is None and not kept.tensors and kept.band == (-1, 0) and not kept.at_end:
            return spelled_sdpa(q, None, 0.0, is_causal=True)
        tensors = kept.tensors
        if is_compiling():
            return written(score, mask, q)
        first: dict[int, str] = {}  # a tensor with two names is one capture
        key = (*key, q.device, [(n, first.setdefault(id(t), n), t.shape, t.dtype) for n, t in tensors.items()])
        last = self._written
        if last is not None and last.key == key and (last.meaning is None or last.meaning.stays(score_mod, None)):
            captures = tuple([tensors[name] for name in last.read])
            if all([a is b for a, b in zip(captures, last.spelled.captures)]):
                return last.spelled
            of = last.spelled
            spelled = Spelled(of.texts, of.names, captures, of.ints, of.written, of.typed)
            self._written = last._replace(spelled=spelled)
            return spelled
        names = {id(t): name.rpartition(".")[2] for name, t in tensors.items()}
        names = {at: name if name.isidentifier() else "t" for at, name in names.items()}
        spelled, lasting = spell(score, mask, q.device, names)
        read = [next((n for n, t in tensors.items() if t is one), "") for one in spelled.captures]
        meaning = None
        if score_mod is not None and not key[0][1]:  # no key of its own says what it depends on
            scan = _CallbackScan()
            meaning = _core.Meaning((scan.refer(score_mod, "t"), scan.refer(None, "t")), scan.leaves)
            lasting = lasting and scan.cacheable
        self._written = _Written(key, meaning, spelled, read) if lasting and all(read) else None
        return spelled

    def _with_sink_and_dropout(self, spelled: Spelled, q: Tensor) -> Spelled:
        prob = sink = ""
        captures: dict[str, Tensor] = {}
        if self.training and self.attention_dropout != 0.0:
            with contextlib.nullcontext() if self._tracker is None else self._tracker().fork():
                prob, captures["seed"] = dropping(self.attention_dropout, q.device)
        if self.softmax_offset is not None:
            sink, captures["s_aux"] = "s_aux[h]", self.softmax_offset
        elif self.softmax_type == "off-by-one":
            sink = "0.0f"
        return spelled.joined(prob, sink, captures)


class _CallbackScan(_Scan):
    """The scan of a score_mod, which reads cuDNN's data types: they never change."""

    def refer(self, thing: object, name: str) -> object:
        if isinstance(thing, (Enum, EnumMeta)) or (isinstance(thing, ModuleType) and thing.__name__ == "cudnn"):
            return ("is", thing)
        return super().refer(thing, name)


class _Written(NamedTuple):
    """A text, and what it holds for: a key, and what the score_mod refers to."""

    key: tuple[Any, ...]
    meaning: _core.Meaning | None
    spelled: Spelled
    read: list[str]  # the tensors' names, in the order of the captures


def _required(name: str, given: Tensor | None) -> Tensor:
    if given is None:
        refuse("tensor-missing", f"{name} is missing", "qkv_format='thd' has sequences one after another",
               "pass where each begins, and the end: [0, 3, 10]")
    return given


def _unpacked(q: Tensor | None, k: Tensor | None, v: Tensor | None, qkv: Tensor | None, kv: Tensor | None,
              dim: int) -> tuple[Tensor, Tensor, Tensor]:
    if qkv is not None and q is k is v is kv is None:
        q, k, v = qkv.unbind(dim)
    elif kv is not None and q is not None and k is v is qkv is None:
        k, v = kv.unbind(dim)
    elif qkv is not None or kv is not None:
        refuse("bad-argument", "packed layers are given with others",
               "qkv_layer stands alone, kv_layer beside query_layer", "pass q, k and v once")
    check_tensors(q, k, v)
    return q, k, v  # type: ignore[return-value]
