# python/attune/torch/_folding.py — folds tensors that are constants of a graph into the mask_mod that captures them
"""An eager model checks whether its positions are the usual ones; if they are, its masks read no tensors. A traced
model cannot check: its masks compare tensors, as a mask of documents does, and a kernel lists their tiles in each call.
If the program passed no positions, they are an arange, and the numbers of packed sequences, computed from them, are all
0. Both are constants of the graph, so the mask can compute them, and is causal.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

_aten, _prims = torch.ops.aten, torch.ops.prims
_FIRST = {_aten.arange.default, _aten.arange.start, _aten.arange.start_step, _aten.full.default, _aten.ones.default,
          _aten.zeros.default, _prims.iota.default}
_MOST_NODES, _MOST_ELEMENTS = 32, 1 << 20
_OWN = 4  # arguments of a mask_mod before its captures: b, h, q and kv


class _Differs(Exception):
    """The tensor may differ in the next call, or would take long to compute here."""


class _Affine(NamedTuple):
    """An integer or bool tensor whose elements are `base` plus `steps` times the index."""

    base: int
    steps: tuple[int, ...]


def fold(node: Node, mask: int, buffers: int) -> None:
    """Folds constant captures of a flex_attention into its mask_mod. `mask`, `buffers`: the arguments that hold its
    BlockMask, whose last part is the graph of the mask_mod, and the captures."""
    captures: Any = node.args[buffers]
    known = {at: found for at, one in enumerate(captures) if (found := _affine_of(one)) is not None}
    if not known:
        return
    owner: Any = node.graph.owning_module
    parts: Any = node.args[mask]
    module = copy.deepcopy(getattr(owner, str(parts[-1].target)))
    given = module.graph.find_nodes(op="placeholder")
    query, key = [one.meta["val"] for one in node.args[:2]]  # type: ignore[union-attr]
    lengths = dict(zip(given, (*query.shape[:3], key.shape[2])))
    for at, found in known.items():
        _compute(module, given[_OWN + at], found, captures[at].meta["val"].shape, lengths)
    left = [one for at, one in enumerate(captures) if at not in known or given[_OWN + at].users]
    if len(left) == len(captures):
        return
    for at in known:
        if not given[_OWN + at].users:
            module.graph.erase_node(given[_OWN + at])
    module.recompile()
    name = f"{parts[-1].target}_folded"
    while hasattr(owner, name):
        name += "_"
    setattr(owner, name, module)
    with node.graph.inserting_before(node):
        mod = node.graph.get_attr(name)
    mod.meta = dict(parts[-1].meta)
    node.update_arg(mask, (*parts[:-1], mod))
    node.update_arg(buffers, tuple(left))


def _compute(module: GraphModule, tensor: Node, known: _Affine, shape: Any, lengths: dict[Node, Any]) -> None:
    """Replaces a mask_mod's reads of a tensor by expressions, except where an index may be outside of it."""
    for read in list(tensor.users):
        if read.target is not _aten.index.Tensor or read.args[0] is not tensor:
            continue
        index: Any = read.args[1]
        if len(index) != len(shape) or not all([isinstance(one, Node) for one in index]):
            continue
        index = [_itself(one) for one in index]
        if any([step and not _is_inside(one, extent, lengths) for one, extent, step in zip(index, shape, known.steps)]):
            continue
        with module.graph.inserting_before(read):
            made = _expression(module, read, known, index)
        read.replace_all_uses_with(made)
        module.graph.erase_node(read)


def _expression(module: GraphModule, read: Node, known: _Affine, index: list[Node]) -> Node:
    value: Tensor = read.meta["val"]

    def put(target: Any, args: tuple[Any, ...], **named: Any) -> Node:
        made = module.graph.call_function(target, args, named)
        made.meta = {"val": value}
        return made

    total: Any = None
    for one, step in zip(index, known.steps):
        if step:
            whole = put(_prims.convert_element_type.default, (one, value.dtype))
            term = whole if step == 1 else put(_aten.mul.Tensor, (whole, step))
            total = term if total is None else put(_aten.add.Tensor, (total, term))
    if total is None:
        number = bool(known.base) if value.dtype == torch.bool else known.base
        return put(_aten.full.default, ([], number), dtype=value.dtype, device=value.device)
    return put(_aten.add.Tensor, (total, known.base)) if known.base else total


def _itself(index: Node) -> Node:
    """Without the 0 that torch's mask functions add."""
    while index.target is _aten.add.Tensor and index.args[1] == 0 and isinstance(index.args[0], Node):
        index = index.args[0]
    return index


def _is_inside(index: Node, extent: int, lengths: dict[Node, Any]) -> bool:
    length = lengths.get(index)
    return isinstance(length, int) and length <= extent


def _affine_of(node: Any) -> _Affine | None:
    """The elements of a tensor, if the graph alone determines them and they are affine in the index."""
    if not isinstance(node, Node):
        return None
    with torch.no_grad(), _disable_current_modes():
        try:
            return _as_affine(_evaluated(node, {}))
        except _Differs:
            return None


def _as_affine(tensor: Tensor) -> _Affine | None:
    numbers, shape = tensor.long(), tuple(tensor.shape)
    base = int(numbers[(0,) * len(shape)])
    expected, steps = torch.full_like(numbers, base), []
    for d, extent in enumerate(shape):
        second = tuple([int(i == d) for i in range(len(shape))])
        steps.append(0 if extent == 1 else int(numbers[second]) - base)
        expected += steps[-1] * torch.arange(extent).view([-1 if i == d else 1 for i in range(len(shape))])
    is_small = max(abs(int(numbers.max())), abs(int(numbers.min()))) < 1 << 30
    if not is_small or not torch.equal(numbers, expected) or (tensor.dtype == torch.bool and any(steps)):
        return None
    return _Affine(base, tuple(steps))


def _evaluated(node: Node, known: dict[Node, Tensor]) -> Tensor:
    """The tensor, on the host."""
    if node in known:
        return known[node]
    target, value = node.target, node.meta.get("val")
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or len(known) == _MOST_NODES:
        raise _Differs
    if not isinstance(value, Tensor) or value.dtype.is_floating_point or value.dtype.is_complex:
        raise _Differs
    if not all([isinstance(n, int) for n in value.shape]) or not 0 < value.numel() <= _MOST_ELEMENTS:
        raise _Differs
    if not (node.all_input_nodes or target in _FIRST) or not _is_pure(target):
        raise _Differs

    def here(given: Any) -> Any:
        return torch.device("cpu") if isinstance(given, torch.device) else given

    def computed(given: Node) -> Tensor:
        return _evaluated(given, known)

    args, kwargs = torch.fx.node.map_aggregate((node.args, dict(node.kwargs)), here)  # type: ignore[misc]
    args, kwargs = torch.fx.map_arg((args, kwargs), computed)
    try:
        known[node] = target(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError) as why:  # perhaps the host does not have it
        raise _Differs from why
    return known[node]


def _is_pure(target: torch._ops.OpOverload) -> bool:
    """The same result for the same arguments, which stay as they are."""
    unsure = "empty" in target._schema.name or torch.Tag.nondeterministic_seeded in target.tags
    return target.namespace in ("aten", "prims") and not target._schema.is_mutable and not unsure
