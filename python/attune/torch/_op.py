# python/attune/torch/_op.py — torch.ops.attune, for compile, export and functorch; kernels for torch's operators
"""The attention as operators of torch.

Mods are text, which is part of a graph; the tensors and integers that mods read are arguments.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from attune import _core
from attune._kept import Kept
from attune._text import DRAWS
from attune.torch._attend import Packed, computed, gradients, once, output, row_numbers
from attune.torch._mod import Spelled, Texts, seen_as

# Operators of aten with an autograd node in C++, under which torch's own autograd records a call without Python. Torch
# has them for other devices, the second one for GPUs.
_OVERRIDEABLE = "aten::_scaled_dot_product_fused_attention_overrideable"
_EFFICIENT = "aten::_scaled_dot_product_efficient_attention"


def _address_of(name: str) -> int:
    """The address of a function of torch's C ABI, or 0."""
    for library in ("libtorch_cpu.so", "libtorch_cuda.so"):  # both are loaded already, the second if torch has it
        path = Path(torch.__file__).parent / "lib" / library
        function = getattr(ctypes.CDLL(str(path)), name, None) if path.exists() else None
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def _shown(given: Any) -> Any:
    """A tensor whose memory can be read by DLPack: the one inside a tensor that a transform of torch.func has left
    behind, with its own sign, and without the record of its gradients."""
    return torch._C._functorch.unwrap_if_dead(given).detach().resolve_neg() if isinstance(given, Tensor) else given


def place(name: str, key: str, kind: str, make: Any = None) -> bool:
    """Puts attune's kernel into an operator for a key of the dispatcher, as of _core.place_operator; "" only asks
    whether the operator is as attune expects it."""
    space, _, of = name.partition("::")
    packet = getattr(getattr(torch.ops, space), of, None)
    if packet is None:
        return False
    schema = packet.default._schema
    return _core.place_operator(name, key, kind, [(one.name, _letter(str(one.type))) for one in schema.arguments],
                                "".join([_letter(str(one.type)) for one in schema.returns]), make)


def _letter(kind: str) -> str:
    known = {"Tensor": "t", "Optional[Tensor]": "o", "List[Tensor]": "T", "str": "x"}
    return known.get(kind) or ("s" if kind.startswith("Optional") else "l" if kind.startswith("List") else "n")


def _record(name: str, *keys: str) -> bool:
    """Fills an operator and its backward; False where it is not as expected, or another library has filled it."""
    if not all([place(one, "", "recorded") for one in (name, f"{name}_backward")]):
        return False
    if any([torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys]):
        return False
    return all([place(one, key, "recorded") for one in (name, f"{name}_backward") for key in keys])


def find_torch(address_of: Any = _address_of, shown: Any = _shown) -> bool:
    """Tells the core where torch is; False if this torch is too old."""
    return _core.find_torch({"tensor": Tensor, "parameter": torch.nn.Parameter, "threads": torch.get_num_threads,
                             "to_python": torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr, "shown": shown,
                             "address_of": address_of})


if not find_torch():
    raise ImportError("attune.torch needs a torch with the C ABI of torch 2.9")
_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
records = _hooks is not None and _record(_OVERRIDEABLE, "CPU", "CUDA")  # True if torch's own autograd records calls
_efficient = getattr(torch._C._VariableFunctions, _EFFICIENT.removeprefix("aten::"), None)
_quicker = _efficient if records and _efficient is not None and _record(_EFFICIENT, "CPU") else None


def record_by(quicker: Any = _quicker) -> None:
    """How calls are recorded. `quicker`: torch's function for the operator that the CPU has as well, or None."""
    _core.record_by(torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default._op, quicker, _hooks,
                    from_dlpack)


if records:
    record_by()


_MODS = ("Tensor? cu_q, Tensor? cu_kv, Tensor[] captures, SymInt[] ints, str score, str mask, str prob, str sink, "
         "str names, float? scale, SymInt max_q, SymInt max_kv")
_library = torch.library.Library("attune", "DEF")
for _kind in ("", "_below", "_slowly"):  # _below: below autograd, which takes 5 us even if it records nothing
    _library.define(f"forward{_kind}(Tensor q, Tensor k, Tensor v, {_MODS}, bool with_max) -> (Tensor, Tensor, "
                    "Tensor)", tags=(torch.Tag.pt2_compliant_tag,))
for _kind in ("", "_slowly"):
    _library.define(f"backward{_kind}(Tensor? grad_o, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, "
                    f"Tensor lse, {_MODS}, bool[] wanted) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
_library.define("once(Tensor[] grads, Tensor[] read) -> Tensor[]")
_library.impl("once", lambda grads, read: list(once(grads, read)), "CompositeImplicitAutograd")
_library.define("listed(Tensor num_blocks, Tensor indices, Tensor? full_num_blocks, Tensor? full_indices, "
                "SymInt blocks) -> Tensor")
_library.define("follows(Tensor list) -> Tensor")  # of a BlockMask, from its mask_mod: see _known.py
_library.impl("follows", Tensor.clone, "CompositeExplicitAutograd")

_spelled: Kept[object, Spelled] = Kept(512)
_KINDS = {"f": torch.float32, "i": torch.int32, "b": torch.bool}


def spelled_as(texts: tuple[str, ...], names: str, kinds: tuple[str, ...], ints: int) -> Spelled:
    """The mods of an operator's arguments, for so many integers. `kinds`: of each captured tensor, as in "f2"."""
    key = (texts, names, kinds, ints)
    found = _spelled.get(key)
    if found is None:
        stand_ins = tuple([torch.empty((0,) * int(kind[1]), dtype=_KINDS[kind[0]], device="cpu") for kind in kinds])
        found = _spelled.put(key, Spelled(Texts(*texts), tuple(names.split()), stand_ins, (0,) * ints))
    return found


def call_of(q: Tensor, captures: list[Tensor], ints: list[int], *mods: Any) -> tuple[Spelled, _core.TorchCall]:
    """The call of an operator's arguments. `mods`: the texts, the names and the scale."""
    *texts, names, scale = mods
    spelled = spelled_as(tuple(texts), names, tuple([f"{seen_as(t)}{t.dim()}" for t in captures]), len(ints))
    return spelled, _core.TorchCall(spelled.handle(scale, q.dtype is torch.float64), tuple(ints))


def _made(mods: str, ints: int, scale: float | None) -> _core.TorchCall | str:
    """The same for kernels in C++. `mods`: in lines the texts, the names, and the kinds, as in "f2i1"."""
    *lines, names, kinds = mods.split("\n")
    if len(lines) != 4:
        return "a text has several lines"
    pairs = tuple([kinds[i:i + 2] for i in range(0, len(kinds), 2)])
    return spelled_as(tuple(lines), names, pairs, ints).call(scale, False)


def _packed(cu_q: Tensor | None, cu_kv: Tensor | None, max_q: int, max_kv: int) -> dict[str, Any] | None:
    return None if cu_q is None else Packed(cu_q, cu_kv, max_q, max_kv)._asdict()


def _forward(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, cu_kv: Tensor | None, captures: list[Tensor],
             *more: Any) -> tuple[Tensor, Tensor, Tensor]:
    *mods, max_q, max_kv, with_max = more
    spelled, call = call_of(q, captures, *mods)
    out, lse, most = computed(spelled, call.attend, q, k, v, tuple(captures), True, with_max, False,
                              _packed(cu_q, cu_kv, max_q, max_kv))
    return out, lse, lse.new_empty(0) if most is None else most


def _backward(grad_o: Tensor | None, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
              lse: Tensor, cu_q: Tensor | None, cu_kv: Tensor | None, captures: list[Tensor],
              *more: Any) -> list[Tensor]:
    *mods, max_q, max_kv, wanted = more
    spelled, call = call_of(q, captures, *mods)
    grads = gradients(spelled, call, grad_o, grad_lse, (q, k, v, out, lse, *captures), tuple(wanted), 0,
                      _packed(cu_q, cu_kv, max_q, max_kv))
    return [q.new_empty(0) if g is None else g for g in grads]


def listed(num_blocks: Tensor, indices: Tensor, full_num_blocks: Tensor | None, full_indices: Tensor | None,
            blocks: int) -> Tensor:
    """Which of the blocks of keys a BlockMask lists: [batch, heads, blocks of queries, blocks of keys]."""
    out = indices.new_zeros((*indices.shape[:-1], blocks + 1), dtype=torch.bool)  # the last one: not in the list
    for count, at in ((num_blocks, indices), (full_num_blocks, full_indices)):
        if count is not None and at is not None:
            ahead = torch.arange(at.shape[-1], device=at.device) < count.unsqueeze(-1)
            out.scatter_(-1, torch.where(ahead, at, blocks).long(), True)
    return out[..., :blocks].contiguous()


_library.impl("listed", listed, "CPU")
_library.impl("listed", listed, "CUDA")


def implement(names: tuple[str, ...], slowly: str, function: Any) -> None:
    """Gives operators of attune's their kernels: those in C++ hand over to the operator `slowly` what they do not take."""
    for key in ("CPU", "CUDA"):
        in_cpp = all([place(f"attune::{name}", key, "compiled", _made) for name in names])
        for name in (slowly,) if in_cpp else names:
            _library.impl(name, function, key)


implement(("forward", "forward_below"), "forward_slowly", _forward)
implement(("backward",), "backward_slowly", _backward)
torch.library.register_fake("attune::follows", torch.empty_like, lib=_library)


@torch.library.register_fake("attune::listed", lib=_library)
def _listed_of_nothing(num_blocks: Tensor, indices: Tensor, full_num_blocks: Any, full_indices: Any,
                       blocks: int) -> Tensor:
    return indices.new_empty((*indices.shape[:-1], blocks), dtype=torch.bool)


@torch.library.register_fake("attune::forward", lib=_library)
@torch.library.register_fake("attune::forward_below", lib=_library)
def _forward_of_nothing(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, *mods: Any) -> Any:
    lse = row_numbers(q, cu_q is not None)
    return output(q, v), lse, torch.empty_like(lse) if mods[-1] else lse.new_empty(0)


@torch.library.register_fake("attune::backward", lib=_library)
def _backward_of_nothing(grad_o: Any, grad_lse: Any, q: Tensor, k: Tensor, v: Tensor, out: Any, lse: Any, cu_q: Any,
                         cu_kv: Any, captures: list[Tensor], *mods: Any) -> list[Tensor]:
    return [torch.empty_like(t) if wanted else q.new_empty(0) for t, wanted in zip((q, k, v, *captures), mods[-1])]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, cu_q, cu_kv, captures, *mods = inputs[:-1]
    ctx.save_for_backward(q, k, v, output[0], output[1], cu_q, cu_kv, *captures)
    ctx.mods = mods
    ctx.wanted = [t.requires_grad and t.is_floating_point() for t in (q, k, v, *captures)]
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None, _: Any) -> Any:
    q, k, v, out, lse, cu_q, cu_kv, *captures = ctx.saved_tensors
    # Gradients of the integers and of the rest: torch takes an empty list for a list of tensors.
    none: tuple[Any, ...] = (None if ctx.mods[0] else [], *(None,) * len(ctx.mods))
    if grad_o is None and grad_lse is None:
        return None, None, None, None, None, [None] * len(captures), *none
    grads = torch.ops.attune.backward(grad_o, grad_lse, q, k, v, out, lse, cu_q, cu_kv, captures, *ctx.mods, ctx.wanted)
    given: Any = [g if wanted else None for g, wanted in zip(grads, ctx.wanted)]
    if torch.is_grad_enabled():
        given = once(given, (grad_o, grad_lse, *ctx.saved_tensors))
    return *given[:3], None, None, list(given[3:]), *none


torch.library.register_autograd("attune::forward", _gradients, setup_context=_remember, lib=_library)


def _each_entry(op: Any, info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> list[Any]:
    """The operator on each entry of the dimension that vmap maps over."""
    def entry(arg: Any, dim: Any, i: int) -> Any:
        if isinstance(arg, (list, tuple)) and isinstance(dim, (list, tuple)):
            return [entry(a, d, i) for a, d in zip(arg, dim)]
        return arg.select(dim, i) if isinstance(arg, Tensor) and dim is not None else arg

    return [op(*[entry(a, d, i) for a, d in zip(args, in_dims)]) for i in range(info.batch_size)]


@functools.partial(torch.library.register_vmap, "attune::forward", lib=_library)
def _forward_mapped(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    """If only q, k and v differ, mapped entries become batch entries, unless a mod reads the batch index."""
    reads_batch = any(re.search(rf"\bb\b|{DRAWS}", text) for text in args[7:11])
    others = [d for dim in in_dims[3:] for d in (dim if isinstance(dim, (list, tuple)) else (dim,))]
    if args[0].dim() == 5 - (in_dims[0] is None) and not reads_batch and not any(
            d is not None for d in others):
        folded = [t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
                  for t, d in zip(args[:3], in_dims[:3])]
        batch = folded[0].shape[1]
        folded = [t.expand(-1, batch, -1, -1, -1) if t.shape[1] != batch else t for t in folded]
        made = torch.ops.attune.forward(*[t.flatten(0, 1) for t in folded], *args[3:])
        out, lse, most = (t.unflatten(0, (info.batch_size, batch)) if t.dim() > 1 else t for t in made)
        return (out, lse, most), (0, 0, 0 if most.dim() > 1 else None)
    made = _each_entry(torch.ops.attune.forward, info, in_dims, args)
    return tuple(torch.stack(list(parts)) for parts in zip(*made)), (0, 0, 0)


@functools.partial(torch.library.register_vmap, "attune::backward", lib=_library)
def _backward_mapped(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    made = _each_entry(torch.ops.attune.backward, info, in_dims, args)
    stacked = [torch.stack(list(parts)) for parts in zip(*made)]
    return stacked, [0] * len(stacked)
