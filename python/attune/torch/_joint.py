# python/attune/torch/_joint.py — attune in Inductor's joint graphs: what its attentions do not need is not computed
"""A pass over the graph of a forward and its backward, before Inductor splits it in two.

Torch's operators take a BlockMask's lists of blocks and an lse of base 2. attune does not need lists that follow from the
mask_mod (_known.py), and its lse is a natural logarithm: without this pass, a compiled model would make lists that
nobody reads, and each layer would convert its lse there and back, two kernels that are launched for nothing. Captures of
a mask_mod that are constants of the graph are folded into it.
"""

from __future__ import annotations

import copy
import operator
import warnings
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from attune import _core
from attune.torch._known import is_for_all
from attune.torch._lowering import KEY, LN2, NATURAL, Foreign, attempt, mods_of, wanted_of

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


_aten, _flex = torch.ops.aten, torch.ops.higher_order
_SAME = (_aten.alias.default, _aten.detach.default)  # their results are the tensors they are given

# Where the operators have their arguments.
_OUT, _LSE = 3, 4
_LISTS = slice(2, -3)  # of a BlockMask: after its lengths, before its block sizes and the graph of its mask_mod
_KEYS = slice(2, 6)  # its lists of blocks of keys, which attune reads
_FOLLOWS = torch.ops.attune.follows.default


class _Places:
    def __init__(self, graphs: tuple[int, ...], mask: int) -> None:
        self.graphs, self.mask, self.options, self.buffers = graphs, mask, mask + 2, (mask + 3, mask + 4)


_FORWARD, _BACKWARD = _Places((3,), 4), _Places((7, 8), 9)


class _Traced:
    """A tensor of a graph, with the questions that a lowering asks of Inductor's."""

    def __init__(self, tensor: Tensor, node: Node) -> None:
        before: Any = node.args[0] if node.target is _FOLLOWS else node
        self.follows = before is not node and before.target is _FOLLOWS  # twice: see _known.py
        self.get_dtype, self.get_device = lambda: tensor.dtype, lambda: tensor.device
        self.get_size = lambda: [_number(n) for n in tensor.shape]


def _number(n: Any) -> Any:
    return n.node.expr if isinstance(n, torch.SymInt) else n


class _Arguments:
    """The arguments of one of torch's operators, as a lowering gets them."""

    def __init__(self, node: Node, places: _Places) -> None:
        self._known: dict[Node, Any] = {}
        self.qkv = tuple([self._of(x) for x in node.args[:3]])
        self.graphs = [self._of(node.args[i]) for i in places.graphs]
        mask: Any = node.args[places.mask]
        self.mask = tuple([self._of(one) for one in mask])
        self.options: Any = node.args[places.options]
        given: Any = [node.args[i] for i in places.buffers]
        self.buffers = tuple([[self._of(x) for x in buffers] for buffers in given])

    def _of(self, given: Any) -> Any:
        if not isinstance(given, Node):
            return given
        if given not in self._known:
            self._known[given] = self._made(given)
        return self._known[given]

    def _made(self, node: Node) -> Any:
        if node.op == "get_attr":
            held = getattr(node.graph.owning_module, str(node.target))
            if not isinstance(held, Tensor):
                return SimpleNamespace(graph_module=held)
        value = node.meta.get("val")
        return _Traced(value, node) if isinstance(value, Tensor) else _number(value)


def _expressible(forward: Node, backwards: list[Node]) -> bool:
    """Tries all that the lowerings will, which then must not leave one of the directions to torch's."""
    for node, places in ((forward, _FORWARD), *((one, _BACKWARD) for one in backwards)):
        given = _Arguments(node, places)
        mods = mods_of(given.qkv, given.graphs[0], given.mask, given.buffers, given.options)
        if mods.has_lists and not _follow(given, mods.mask):
            raise Foreign("the lists of a BlockMask are part of its mask")
        if node is not forward:
            wanted_of(mods.captures, given.graphs[1], given.buffers[0])
    return True


def _follow(given: _Arguments, mask: str) -> bool:
    """True if the lists of a BlockMask say only what its mask_mod says."""
    lists = given.mask[_KEYS]
    return all([one is None or one.follows for one in lists]) and is_for_all(
        mask, lists[1].get_size(), given.qkv[0].get_size())


def _results(forward: Node, at: int) -> list[Node]:
    """The nodes that are a result of an operator."""
    found = [n for n in forward.users if n.target is operator.getitem and n.args[1] == at]
    for node in found:
        found += [n for n in node.users if n.target in _SAME]
    return found


def _ease(graph: Graph, forward: Node) -> None:
    outs, lses = _results(forward, 0), _results(forward, 1)
    backwards = list(dict.fromkeys([n for out in outs for n in out.users
                                    if n.target is _flex.flex_attention_backward and n.args[_OUT] is out]))
    if any([one.args[_LSE] not in lses for one in backwards]):
        return
    if not attempt(lambda: _expressible(forward, backwards))[0]:
        return
    for node, places in ((forward, _FORWARD), *((one, _BACKWARD) for one in backwards)):
        mask: Any = list(node.args[places.mask])  # type: ignore[arg-type]
        # q stands for each list: the operator has it anyway.
        mask[_LISTS] = [node.args[0] if isinstance(one, Node) else one for one in mask[_LISTS]]
        options: Any = node.args[places.options]
        node.update_arg(places.mask, tuple(mask))
        node.update_arg(places.options, {**options, NATURAL: True})
        _, why_not = attempt(lambda node=node, places=places: fold(node, places.mask, places.buffers[1]))
        if why_not:
            warnings.warn(f"attune: a mask reads tensors that are constants: {why_not}", stacklevel=2)
    _convert_for_others(graph, [n for n in lses if n.target is operator.getitem], backwards)


def _convert_for_others(graph: Graph, lses: list[Node], backwards: list[Node]) -> None:
    """Backwards get the lse as the forward makes it, everyone else its logarithm of base 2."""
    for lse in lses:
        with graph.inserting_after(lse):
            scaled = graph.call_function(_aten.mul.Tensor, (lse, 1 / LN2))
        scaled.meta = {**lse.meta, "val": lse.meta["val"] * (1 / LN2)}
        lse.replace_all_uses_with(scaled, delete_user_cb=lambda user, scaled=scaled: user is not scaled)
        for one in backwards:
            one.update_arg(_LSE, lse)
        for node in [n for n in scaled.users if n.target in _SAME and not n.users]:
            graph.erase_node(node)
        if not scaled.users:
            graph.erase_node(scaled)


class _Pass(CustomGraphPass):
    """attune's pass, after those that were there before."""

    def __init__(self, key: str, others: tuple[Any, ...]) -> None:
        self.key, self.others = key, others

    def __call__(self, graph: Graph) -> None:
        for other in self.others:
            other(graph)
        for forward in graph.find_nodes(op="call_function", target=_flex.flex_attention):
            _ease(graph, forward)
        for node in graph.find_nodes(op="call_function", target=_FOLLOWS):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)

    def uuid(self) -> Any:
        keys = [one.uuid() if isinstance(one, CustomGraphPass) else None for one in self.others]
        return None if None in keys else (self.key, *keys)


_before: list[Any] = []  # the configuration that add() has found


def add() -> None:
    found: Any = config.joint_custom_pre_pass
    others = () if found is None else tuple(found) if isinstance(found, (list, tuple)) else (found,)
    _before.append(found)
    config.joint_custom_pre_pass = _Pass(f"{KEY} {_core.version()}", others)


def remove() -> None:
    found = _before.pop()
    if isinstance(config.joint_custom_pre_pass, _Pass):
        config.joint_custom_pre_pass = found
