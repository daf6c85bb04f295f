# python/attune/torch/_padding.py — the masks and biases of TransformerEngine: padding, windows, diagonals, slopes
"""Which pairs an attn_mask_type, a window and lengths keep, and what broadcasts to the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attune._words import said
from attune.torch._graph import Shape
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
        """As a mask_mod."""
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
