# python/attune/torch/_blocks.py — a BlockMask that is its mask_mod alone: its blocks, slices and picture
"""attune works out which tiles a mask leaves when a kernel runs; what is asked of a BlockMask is worked out then, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from attune._arguments import bad
from attune.torch._mod import spelled_of
from attune.torch._value import refuse

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
_DRAWN = " ░█"  # of blocks that keep no pair, some pairs and all pairs


class BlockMask:
    """A mask_mod and the lengths that it is for. attune solves the mask itself: there are no lists of blocks."""

    def __init__(self, mask_mod: MaskMod, shape: tuple[int, int, int, int], block_size: tuple[int, int],
                 device: Any = None) -> None:
        self.mask_mod, self.shape, self.BLOCK_SIZE = mask_mod, shape, block_size
        self.seq_lengths = shape[2:]  # how many queries and keys
        self._device = torch.device("cpu" if device is None else device)

    @staticmethod
    def from_kv_blocks(*args: Any, **kwargs: Any) -> Any:
        """torch's, with torch's arguments: a BlockMask of lists, which flex_attention takes as well."""
        from torch.nn.attention import flex_attention as torchs
        return torchs.BlockMask.from_kv_blocks(*args, **kwargs)

    def to(self, device: Any) -> BlockMask:
        """Itself: it has no tensors of its own. Those that mask_mod reads must be where q is."""
        return self

    def __getitem__(self, index: Any) -> BlockMask:
        """The mask of some batch entries, heads and blocks of queries, which count from 0 in it: `mask[:, 2]`,
        `mask[0, :, 3:5]`. It is a mask as any other, with these lengths."""
        given = index if isinstance(index, tuple) else (index,)
        if len(given) > 3 or not all([isinstance(i, int) or (isinstance(i, slice) and i.step in (None, 1)) for i in given]):
            raise bad("index", index, "up to three integers or slices without a step: batch entries, heads, query blocks",
                      "make a mask for these positions, with a mask_mod that adds the offset; that is free")
        batch, heads, q_len, kv_len = self.shape
        size = self.BLOCK_SIZE[0]
        counts = batch, heads, -(-q_len // size)
        ranges = [_range(i, n) for i, n in zip((*given, *(slice(None),) * (3 - len(given))), counts)]
        (b, b_end), (h, h_end), (first, last) = ranges
        rows = first * size, min(last * size, q_len)
        return BlockMask(_shifted(self.mask_mod, b, h, rows[0]), (b_end - b, h_end - h, rows[1] - rows[0], kv_len),
                         self.BLOCK_SIZE, self._device)

    def sparsity(self) -> float:
        """The share of blocks that keep no pair, in per cent."""
        kinds = self.kinds()
        return 100.0 * float((kinds == 0).sum()) / max(kinds.numel(), 1)

    def to_dense(self) -> Tensor:
        """1 for each block that keeps a pair: [batch, heads, blocks of queries, blocks of keys]. A block is 0 if the mask
        proves that it keeps none, as it does for masks that are made of comparisons of positions."""
        return (self.kinds() > 0).to(torch.int32)

    def to_string(self, grid_size: tuple[int, int] | int = (20, 20), limit: int = 4) -> str:
        """The blocks as a drawing, at most `grid_size` characters, of the first `limit` batch entries and heads: `█` keeps
        all pairs, `░` some, a space none."""
        most = (grid_size, grid_size) if isinstance(grid_size, int) else grid_size
        pages = []
        for (b, h), kinds in _each(self.kinds())[:limit]:
            lines = "\n".join(["".join([_DRAWN[kind] for kind in row]) for row in _coarse(kinds, most)])
            pages.append(f"({b}, {h})\n{lines}\n")
        return "\n".join(pages)

    def numel(self) -> int:
        """The number of pairs, kept or not."""
        batch, heads, q_len, kv_len = self.shape
        return batch * heads * q_len * kv_len

    def as_tuple(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: there are no lists."""
        refuse("block-mask", "a BlockMask is asked for its lists of blocks",
               "attune's has none: which tiles are left is worked out when the kernel runs",
               "see to_dense() and attune.torch.explain, or ask torch's own create_block_mask")

    def kinds(self) -> Tensor:
        """0, 1 or 2 for a block that keeps no pair, some or all."""
        spelled = spelled_of(None, self.mask_mod, self._device)
        captures = tuple([t.detach().cpu() for t in spelled.captures])
        batch, heads, q_len, kv_len = self.shape
        where = {"q_len": q_len, "kv_len": kv_len, "tile_q": self.BLOCK_SIZE[0], "tile_kv": self.BLOCK_SIZE[1]}
        blocks = [-(-n // size) for n, size in zip(self.seq_lengths, self.BLOCK_SIZE)]
        made = torch.zeros((batch, heads, *blocks), dtype=torch.uint8)
        if made.numel():
            core = spelled.handle(None, False)
            for (b, h), kinds in _each(made):
                tiles, _, _ = core.tiles({**where, "batch": b, "head": h}, captures, spelled.ints)
                kinds.copy_(torch.frombuffer(bytearray(tiles), dtype=torch.uint8).view(blocks))
        return made

    def __repr__(self) -> str:
        return f"attune.torch.BlockMask({getattr(self.mask_mod, '__name__', 'mask_mod')}, shape={self.shape})"


def _range(index: int | slice, count: int) -> tuple[int, int]:
    if isinstance(index, slice):
        first, last, _ = index.indices(count)
        return first, max(first, last)
    if not -count <= index < count:
        raise bad("index", index, f"from {-count} to {count - 1}", "count from 0")
    return index % count, index % count + 1


def _shifted(mask_mod: MaskMod, b0: int, h0: int, q0: int) -> MaskMod:
    if not (b0 or h0 or q0):
        return mask_mod

    def shifted(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return mask_mod(b + b0 if b0 else b, h + h0 if h0 else h, q_idx + q0 if q0 else q_idx, kv_idx)

    return shifted


def _each(kinds: Tensor) -> list[tuple[tuple[int, int], Tensor]]:
    return [((b, h), kinds[b, h]) for b in range(kinds.shape[0]) for h in range(kinds.shape[1])]


def _coarse(kinds: Tensor, most: tuple[int, int]) -> list[list[int]]:
    """At most so many rows and columns: blocks that are drawn as one are full or empty if all of them are."""
    rows, cols = (torch.arange(min(n, m)) * n // max(min(n, m), 1) for n, m in zip(kinds.shape, most))
    cells = [[kinds[r:r_end, c:c_end] for c, c_end in zip(cols.tolist(), (*cols[1:].tolist(), kinds.shape[1]))]
             for r, r_end in zip(rows.tolist(), (*rows[1:].tolist(), kinds.shape[0]))]
    return [[2 if bool((cell == 2).all()) else 1 if bool(cell.any()) else 0 for cell in row] for row in cells]
