# python/attune/torch/_lowering.py — attune under Inductor: what torch.compile makes of torch's own flex_attention
"""`attune.torch.activate(compile=True)`: Inductor lowers the two operators of a compiled flex_attention to attune's.

A mod comes as a graph of aten operators, and becomes text by the tables that eager mods use. A call that attune cannot
express goes to torch's own lowering.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from attune import _core
from attune._errors import Error
from attune.torch import _rows
from attune.torch._arithmetic import Spelling
from attune.torch._functions import TABLE, spelling_of, trace_of
from attune.torch._mod import Texts
from attune.torch._value import TIGHT, Symbolic, Trace, Value, as_kind, is_natural, refuse, scalar

_aten, _prims, _flex = torch.ops.aten, torch.ops.prims, torch.ops.higher_order
LN2 = math.log(2.0)
_EVERYTHING = 1 << 30  # the block size of a BlockMask that masks nothing
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
KEY = "attune.torch.activate"  # in the keys of Inductor's caches
NATURAL = "ATTUNE_NATURAL_LSE"  # among the kernel_options of calls whose lse is attune's: see _joint.py


class Foreign(Exception):
    """attune cannot express this; the message is for users."""


# ---- the graphs of mods, as text


def _indexed(trace: Trace, source: Any, at: Any) -> Value:
    return _rows.read(trace, source, tuple([slice(None) if one is None else one for one in at]))


def _number(trace: Trace, number: Any, **_: Any) -> Value:
    return trace.value(number)


def _full(trace: Trace, size: Any, number: Any, **_: Any) -> Value:
    value = trace.value(number)
    return Value(trace, value.kind, tuple(size), lambda _: value.at(()), is_natural(value)) if size else value


_OPERATORS: dict[Any, Spelling] = {
    _aten.index.Tensor: _indexed,
    _aten.select.int: _rows.select,
    _aten.sym_size.int: lambda trace, x, dim: x.shape[dim],
    _aten.scalar_tensor.default: _number,
    _aten.full.default: _full,
    _prims.convert_element_type.default: TABLE[Tensor.to],
    _aten._to_copy.default: TABLE[Tensor.to],
    _aten.alias.default: _number,
    _aten.lift_fresh_copy.default: _number,
}
_UNSAID = {"layout", "device", "pin_memory", "memory_format", "non_blocking", "copy"}  # arguments about memory


def _spelling_of(target: Any) -> Spelling:
    """What an operator of a graph means inside the kernel."""
    found = _OPERATORS.get(target) or spelling_of(target)
    if found is None and isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "prims"):
        name = target._schema.name.split("::")[1]
        functions = [getattr(space, name, None) for space in (torch, Tensor, torch.nn.functional, torch.special)]
        found = next((TABLE[f] for f in functions if f is not None and f in TABLE), None)
    if found is None:
        raise Foreign(f"a mod calls {target}")
    return found


class _Mods:
    """A score_mod and a mask_mod as text, and what stands for the captures."""

    def __init__(self, query: Any) -> None:
        self.device = query.get_device()
        self.trace = Trace(torch.device(self.device.type), {})
        self.trace.symbolic = False
        self.boxes: dict[str, Any] = {}  # captured tensors of Inductor, by name
        self.score = self.mask = ""
        self.has_lists = False  # a BlockMask's lists may be part of the mask

    @property
    def names(self) -> list[str]:
        """Of the captured tensors that the texts read."""
        return [name for name in self.boxes if f"{name}[" in self.score or f"{name}[" in self.mask]

    @property
    def captures(self) -> tuple[Any, ...]:
        return tuple([self.boxes[name] for name in self.names])

    def value(self, graph: Any, kind: str, buffers: Any) -> Value:
        own = [scalar(self.trace, "f", ("s", TIGHT))] if kind == "f" else []
        own += [scalar(self.trace, "i", (name, TIGHT), natural=True) for name in ("b", "h", "q", "kv")]
        result = self._run(graph.graph_module, iter([*own, *buffers]))
        return as_kind(self.trace.value(result), kind)

    def _run(self, module: Any, given: Iterator[Any]) -> Any:
        made: dict[Any, Any] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                made[node] = self._given(next(given))
            elif node.op == "get_attr":
                made[node] = self._constant(getattr(module, node.target))
            elif node.op == "call_function":
                made[node] = self._called(node, made)
            elif node.op == "output":
                out = torch.fx.map_arg(node.args[0], made.__getitem__)
                return out[0] if isinstance(out, (tuple, list)) else out
        raise Foreign("a mod's graph has no output")

    def _called(self, node: Any, made: dict[Any, Any]) -> Any:
        args = torch.fx.map_arg(node.args, made.__getitem__)
        kwargs = {name: given for name, given in torch.fx.map_arg(node.kwargs, made.__getitem__).items()
                  if given is not None and name not in _UNSAID}
        if any([isinstance(arg, Symbolic) for arg in args]) and trace_of(args) is None:
            return _symbol(node.target(*[arg.expression if isinstance(arg, Symbolic) else arg for arg in args]))
        return _spelling_of(node.target)(self.trace, *args, **kwargs)

    def _constant(self, held: Any) -> Value:
        """A tensor that a mod makes of one number. An index that is a number of Python becomes such a tensor."""
        if not isinstance(held, Tensor) or held.numel() != 1:
            raise Foreign("a mod has a constant tensor")
        with _disable_current_modes():  # those of a compiler do not show numbers
            return _full(self.trace, held.shape, held.item())

    def _given(self, thing: Any) -> Any:
        if isinstance(thing, (Value, float)):
            return thing
        return self._captured(thing) if hasattr(thing, "get_dtype") else _symbol(thing)

    def within(self, block_mask: Any, keys: Any, mask: Value) -> Value:
        """The mask within the blocks that a BlockMask lists: tables of blocks, which a kernel reads once a tile."""
        partial, full = block_mask[2:4], block_mask[4:6]
        if mask.at(())[0] == "true":
            return self._listed((*partial, *full), block_mask, keys)
        kept = TABLE[torch.logical_and](self.trace, self._listed((*partial, None, None), block_mask, keys), mask)
        if full[0] is None:
            return kept
        return TABLE[torch.logical_or](self.trace, self._listed((*full, None, None), block_mask, keys), kept)

    def _listed(self, lists: tuple[Any, ...], block_mask: Any, keys: Any) -> Value:
        """Whether the lists have a pair's block."""
        from torch.utils._sympy.functions import CeilDiv
        rows, columns = block_mask[-3:-1]
        table = self._captured(_operator("listed")(*lists, CeilDiv(keys, columns)))
        b, h, q, kv = [scalar(self.trace, "i", (name, TIGHT), natural=True) for name in ("b", "h", "q", "kv")]
        zero = self.trace.value(0)
        at = (zero if table.shape[0] == 1 else b, zero if table.shape[1] == 1 else h,
              self._divided(q, rows), self._divided(kv, columns))
        return _rows.read(self.trace, table, at)

    def _divided(self, position: Value, size: Any) -> Value:
        number = _symbol(size)
        by = self.trace.param(number) if isinstance(number, Symbolic) else number
        return TABLE[torch.floor_divide](self.trace, position, by)

    def _captured(self, box: Any) -> Value:
        if box.get_device() != self.device:
            raise Foreign(f"a mod captures a tensor on {box.get_device()}")
        dtype, shape = box.get_dtype(), tuple([_symbol(n) for n in box.get_size()])
        if dtype.is_complex or len(shape) > 4:
            raise Foreign(f"a mod captures {dtype} of {len(shape)} dimensions")
        name = next((name for name, known in self.boxes.items() if known is box), None)
        if name is None:
            name = f"t{len(self.boxes)}"
            self.boxes[name] = box
        kind = "f" if dtype.is_floating_point else "b" if dtype == torch.bool else "i"
        return Value(self.trace, kind, shape, lambda at: (f"{name}[{', '.join([p[0] for p in at])}]", TIGHT))


def _symbol(thing: Any) -> Any:
    """A number of Inductor's: an int, or an expression of sizes."""
    import sympy
    if isinstance(thing, int):
        return thing
    if not isinstance(thing, sympy.Expr):
        raise Foreign(f"a mod captures a {type(thing).__name__}")
    return int(thing) if thing.is_Integer else Symbolic.of(thing, natural=bool(thing.is_nonnegative))


class _Call(NamedTuple):
    """The arguments of attune's operators after q, k and v."""

    texts: Texts
    names: tuple[str, ...]
    captures: tuple[Any, ...]
    ints: list[Any]

    def arguments(self, scale: Any) -> list[Any]:
        return [None, None, list(self.captures), self.ints, *self.texts, " ".join(self.names), float(scale), 0, 0]


def mods_of(qkv: tuple[Any, ...], graph: Any, block_mask: Any, buffers: tuple[Any, ...], options: Any,
            reads_lists: bool = False) -> _Mods:
    """`buffers`: what the score_mod and the mask_mod capture. `reads_lists`: the mask includes the lists, if it is not
    known to say what they say."""
    types = {x.get_dtype() for x in qkv}
    if len(types) != 1 or not types <= set(_TYPES):
        raise Foreign(f"q, k and v of {', '.join(sorted(map(str, types)))}")
    if options.get("BACKEND", "AUTO") != "AUTO":
        raise Foreign("kernel_options name a BACKEND of torch")
    mods = _Mods(qkv[0])
    mask = mods.value(block_mask[-1], "b", buffers[1])
    mods.has_lists = block_mask[-2] != _EVERYTHING and NATURAL not in options  # _joint.py puts q in place of the lists
    if mods.has_lists and reads_lists:
        mask = mods.within(block_mask, qkv[1].get_size()[2], mask)
    mods.mask = mods.trace.whole(mask)
    mods.score = mods.trace.whole(mods.value(graph, "f", buffers[0]))
    return mods


def _call(qkv: tuple[Any, Any, Any], graph: Any, block_mask: Any, buffers: tuple[Any, Any], options: Any) -> _Call:
    mods = mods_of(qkv, graph, block_mask, buffers, options, reads_lists=True)
    ints = [n.expression if isinstance(n, Symbolic) else n for n in mods.trace.ints]
    texts = Texts("" if mods.score == "s" else mods.score, "" if mods.mask == "true" else mods.mask)
    return _Call(texts, tuple(mods.names), mods.captures, ints)


def wanted_of(captures: tuple[Any, ...], joint_graph: Any, buffers: Any) -> list[tuple[int | None, bool]]:
    """Where each captured tensor is among the buffers of the score_mod, and whether its gradient is wanted."""
    outputs = next(node for node in joint_graph.graph_module.graph.nodes if node.op == "output").args[0][_OWN:]
    at = [next((i for i, box in enumerate(buffers) if box is one), None) for one in captures]
    if any([one is not None and i not in at for i, one in enumerate(outputs[:len(buffers)])]):
        raise Foreign("a gradient of a tensor that the text does not read")
    return [(i, i is not None and outputs[i] is not None) for i in at]


# ---- the lowerings


def _scaled(x: Any, by: float) -> Any:
    from torch._inductor.lowering import lowerings
    return lowerings[_aten.mul.Tensor](x, by)


def _zeros(like: Any) -> Any:
    from torch._inductor.lowering import lowerings
    return lowerings[_aten.full.default](like.get_size(), 0.0, dtype=like.get_dtype(), device=like.get_device())


def _operator(name: str) -> Callable[..., Any]:
    from torch._inductor.lowering import fallback_handler
    return fallback_handler(getattr(torch.ops.attune, name).default, add_to_fallback_set=False)


def _forward(query: Any, key: Any, value: Any, subgraph: Any, block_mask: Any, scale: Any, kernel_options: Any,
             score_mod_other_buffers: Any, mask_mod_other_buffers: Any) -> Any:
    call = _call((query, key, value), subgraph, block_mask, (score_mod_other_buffers, mask_mod_other_buffers),
                 kernel_options)
    with_max = bool(kernel_options.get("OUTPUT_MAX", False))
    out, lse, most = _operator("forward_below")(query, key, value, *call.arguments(scale), with_max)
    if NATURAL not in kernel_options:
        lse = _scaled(lse, 1 / LN2)  # the operator's are logarithms of base 2
    return out, lse, _scaled(most, 1 / LN2) if with_max else lse


def _backward(query: Any, key: Any, value: Any, out: Any, logsumexp: Any, grad_out: Any, grad_logsumexp: Any,
              fw_graph: Any, joint_graph: Any, block_mask: Any, scale: Any, kernel_options: Any,
              score_mod_other_buffers: Any, mask_mod_other_buffers: Any) -> Any:
    call = _call((query, key, value), fw_graph, block_mask, (score_mod_other_buffers, mask_mod_other_buffers),
                 kernel_options)
    wanted = wanted_of(call.captures, joint_graph, score_mod_other_buffers)
    lse = logsumexp if NATURAL in kernel_options else _scaled(logsumexp, LN2)
    grad_lse = None if grad_logsumexp is None else _scaled(grad_logsumexp, 1 / LN2)
    made = _operator("backward")(grad_out, grad_lse, query, key, value, out, lse, *call.arguments(scale),
                                 [True, True, True, *[asked for _, asked in wanted]])
    grads: list[Any] = [None] * len(score_mod_other_buffers)
    for (i, asked), grad in zip(wanted, made[3:]):
        if asked:
            grads[i] = grad
    for i, box in enumerate(score_mod_other_buffers):
        if grads[i] is None and hasattr(box, "get_dtype") and box.get_dtype().is_floating_point:
            grads[i] = _zeros(box)  # some versions add it to another gradient of the same tensor
    return made[0], made[1], made[2], tuple(grads)


_OWN = 5  # outputs of a joint graph before those of captures: of the score, b, h, q and kv


# The operators, and where they have their BlockMask; two arguments after it come the options.
_OURS = (_flex.flex_attention, _forward, 4), (_flex.flex_attention_backward, _backward, 9)
_torchs: dict[Any, Any] = {}  # torch's own lowerings


def lower(warn: Callable[[str], None]) -> bool:
    """Replaces torch's lowerings by attune's; False if they are. `warn` gets the reason for which torch's takes a call."""
    import torch._inductor.config as config
    import torch._inductor.kernel.flex.flex_attention  # its own are registered first
    from torch._inductor.lowering import lowerings

    if _torchs:
        return False
    for op, ours, _ in _OURS:
        takes = [name for name in inspect.signature(type(op).__call__).parameters if name != "self"]
        if op not in lowerings or len(takes) != len(inspect.signature(ours).parameters):
            refuse("torch-version", f"this torch's {op} is not the one that attune knows",
                   "activate(compile=True) lowers it to attune's operators",
                   "call attune.torch.flex_attention, or take torch 2.15")
    for op, ours, mask in _OURS:
        _torchs[op] = lowerings[op]
        lowerings[op] = _or_torchs(ours, lowerings[op], mask, warn)
    config.unsafe_marked_cacheable_functions = {**config.unsafe_marked_cacheable_functions, KEY: str(_core.version())}
    return True


def _or_torchs(ours: Callable[..., Any], torchs: Callable[..., Any], mask: int,
               warn: Callable[[str], None]) -> Callable[..., Any]:
    def lowering(*args: Any, **kwargs: Any) -> Any:
        made, why_not = attempt(lambda: ours(*args, **kwargs))
        if not why_not:
            return made
        warn(why_not)
        _warn_from_caches(why_not)
        return _undone(torchs, mask, args) if NATURAL in args[mask + 2] else torchs(*args, **kwargs)

    return lowering


def _warn_from_caches(why_not: str) -> None:
    """Lets the code of the graph warn: Inductor keeps it for processes that lower nothing."""
    from torch._inductor.virtualized import V
    graph, make = V.graph, V.graph.init_wrapper_code

    def init(*args: Any, **kwargs: Any) -> None:
        make(*args, **kwargs)
        if not graph.cpp_wrapper and hasattr(graph.wrapper_code, "imports"):
            graph.wrapper_code.imports.writeline(
                f"import attune.torch._activate; attune.torch._activate._warn({why_not!r})")

    graph.init_wrapper_code = init


def _undone(torchs: Callable[..., Any], mask: int, args: tuple[Any, ...]) -> Any:
    """torch's lowering of a call that _joint.py has changed: one block instead of the lists, whose pairs the mask_mod
    decides, and logarithms of base 2."""
    from torch._inductor.lowering import lowerings
    given, block_mask, device = list(args), args[mask], args[0].get_device()
    count, at = (lowerings[_aten.full.default]([1] * rank, number, dtype=torch.int32, device=device)
                 for rank, number in ((3, 1), (4, 0)))
    lists = (count, at, None, None) * 2
    rest = (None,) * (len(block_mask) - 2 - len(lists) - 3)
    given[mask] = (*block_mask[:2], *lists, *rest, _EVERYTHING, _EVERYTHING, block_mask[-1])
    given[mask + 2] = {name: one for name, one in args[mask + 2].items() if name != NATURAL}
    if torchs is _torchs[_flex.flex_attention]:
        out, *rest = torchs(*given)  # on the CPU the output alone
        return (out, *[_scaled(lse, LN2) for lse in rest[:1]], *rest[1:])
    given[4] = _scaled(args[4], 1 / LN2)  # the lse
    return torchs(*given)


def attempt(make: Callable[[], Any]) -> tuple[Any, str]:
    """What `make` gives, or why attune cannot express it."""
    try:
        return make(), ""
    except Foreign as why:
        return None, str(why)
    except Error as error:
        return None, f"[{error.code}] {error.problem}"
    except Exception as error:  # torch compiles the program without attune
        said = str(error)
        if isinstance(error, TypeError) and said.startswith("attune: "):  # of refuse(), while Dynamo compiles
            return None, said.removeprefix("attune: ").partition(";")[0]
        return None, f"a bug in attune, {type(error).__name__}: {said.partition(chr(10))[0]}"


def unlower() -> bool:
    """Gives torch its lowerings back; False if it has them."""
    if not _torchs:
        return False
    import torch._inductor.config as config
    from torch._inductor.lowering import lowerings

    lowerings.update(_torchs)
    _torchs.clear()
    config.unsafe_marked_cacheable_functions = {
        name: key for name, key in config.unsafe_marked_cacheable_functions.items() if name != KEY}
    return True
