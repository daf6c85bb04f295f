# python/attune/torch/_attend.py — one attention on tensors of torch: run, recorded for gradients, or as an operator
"""Calls of the core with torch's tensors. Eager calls go directly to the core, all others through torch.ops.attune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from attune._arguments import real
from attune._errors import Error, said
from attune.torch import _engine
from attune.torch._mod import Spelled
from attune.torch._value import refuse


class Packed(NamedTuple):
    """The starts of packed sequences, and the longest length."""

    cu_seqlens_q: Tensor
    cu_seqlens_kv: Tensor | None
    max_q_len: int
    max_kv_len: int


def starts(given: Tensor) -> Tensor:
    """Starts of packed sequences as the core reads them. On the host it also reads and checks 64-bit starts."""
    if not isinstance(given, Tensor):
        refuse("cu-seqlens-type", f"starts of sequences are {said(given)}", "they are a tensor of whole numbers",
               "write torch.tensor(starts, dtype=torch.int32)")
    if given.dtype == torch.int64 and not given.is_cuda:
        return given
    if given.dtype not in (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8):
        refuse("cu-seqlens-type", f"starts of sequences hold {given.dtype}", "they are whole numbers of rows",
               "convert them with .to(torch.int32)")
    return given.to(torch.int32)


def computed(spelled: Spelled, method: Callable[..., Any], q: Tensor, *given: Any) -> Any:
    """What a method of a TorchCall gives; its Error is at the user's line. f64 on a GPU is for gradcheck: only the
    oracle computes it, and the oracle reads only host memory."""
    try:
        made = method(q, *given)
        is_far = type(made) is str and made == "far"
        return _moved(q.device, method(*_moved("cpu", (q, *given)))) if is_far else made
    except Error as error:
        raise spelled.placed(error) from None


def _moved(device: Any, things: Any) -> Any:
    if isinstance(things, Tensor):
        return things.to(device)
    if isinstance(things, dict):
        return {name: _moved(device, thing) for name, thing in things.items()}
    return tuple([_moved(device, thing) for thing in things]) if isinstance(things, tuple) else things


def output(q: Tensor, v: Tensor) -> Tensor:
    """A tensor for the output: its dimensions have the memory order of q's, with the last one contiguous."""
    width, dtype = v.shape[-1], torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    strides = q.stride()
    if width == q.shape[-1]:
        made = torch.empty_like(q, dtype=dtype)
        if made.stride() == strides and strides[-1] == 1:
            return made
    elif q.is_contiguous():
        return q.new_empty((*q.shape[:-1], width), dtype=dtype)
    shape = (*q.shape[:-1], width)
    order = sorted(range(q.dim() - 1), key=lambda d: -strides[d])
    return torch.empty_permuted(shape, (*order, q.dim() - 1), dtype=dtype, device=q.device)


def row_numbers(q: Tensor, packed: bool) -> Tensor:
    shape = (q.shape[1], q.shape[0]) if packed else q.shape[:-1]
    return q.new_empty(shape, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


def asks_lse(return_aux: Any) -> bool:
    """True if an AuxRequest asks for the lse."""
    if return_aux is not None and not hasattr(return_aux, "lse"):
        refuse("bad-argument", f"`return_aux` cannot be {said(return_aux)}", "it is an AuxRequest, or None",
               "write return_aux=AuxRequest(lse=True)")
    return return_aux is not None and bool(return_aux.lse)


def check_tensors(q: object, k: object, v: object) -> None:
    """Refuses what is not a torch tensor. Called only after an attribute is missing, so that usual calls do not pay."""
    for name, given in (("q", q), ("k", k), ("v", v)):
        if not isinstance(given, Tensor):
            refuse("tensor-array", f"`{name}` is {said(given)}", "attune.torch takes torch's tensors",
                   "pass a tensor: torch.as_tensor makes one of an array or a list")


def _number(name: str, given: Any) -> Any:
    """A number that is an argument of the call and therefore has no gradient."""
    if isinstance(given, Tensor) and given.requires_grad:
        refuse("bad-argument", f"`{name}` requires a gradient", "it is a number, and numbers have no gradients",
               f"multiply q by it, or the score in a score_mod; pass {name}.item() for the number alone")
    return given if is_compiling() else real(name, given)


def _refuse_tangents(*tensors: Tensor | None) -> None:
    """Refuses forward-mode tangents, which the outputs would silently lose."""
    if any([t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors]):
        _no_tangents()


def _no_tangents(*_: Any) -> NoReturn:
    refuse("forward-derivative", "a tensor of an attention has a tangent",
           "attune has reverse-mode derivatives only",
           "write .backward(), torch.func.grad or jacrev, or give forward_ad.unpack_dual(t).primal")


_OTHERS = 3  # arguments of _Recorded before q


class _Recorded(torch.autograd.Function):
    """A call whose gradients are wanted, and whose results exist. `call`: its Spelled, its TorchCall, and its other
    tensors and options."""

    @staticmethod
    def forward(ctx: Any, call: tuple[Spelled, Any, Any], made: tuple[Tensor, Tensor, Tensor | None], with_lse: bool,
                q: Tensor, k: Tensor, v: Tensor, *captures: Tensor) -> Any:
        out, lse, most = made
        ctx.call = call
        ctx.save_for_backward(q, k, v, out, lse, *captures)
        if not with_lse and most is None:
            return out
        ctx.set_materialize_grads(False)
        if most is not None:
            ctx.mark_non_differentiable(most)
        return out, lse, most

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None = None, _: None = None) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents(grad_o, grad_lse)
        if _is_grad_enabled():
            return _twice(ctx, grad_o, grad_lse)
        (spelled, call, more), saved, wanted = ctx.call, ctx.saved_tensors, ctx.needs_input_grad
        if grad_o is None and grad_lse is None:
            return (None,) * len(wanted)
        return gradients(spelled, call, grad_o, grad_lse, saved, wanted, _OTHERS, more)


def gradients(spelled: Spelled, call: Any, grad_o: Tensor | None, grad_lse: Tensor | None, saved: tuple[Tensor, ...],
              wanted: tuple[bool, ...], first: int, more: Any) -> tuple[Tensor | None, ...]:
    """As of TorchCall, also without a gradient of the output."""
    grad_o = torch.zeros_like(saved[3]) if grad_o is None else grad_o
    return computed(spelled, call.gradients, grad_o, grad_lse, saved, wanted, first, more)


def _twice(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None) -> Any:
    """The gradients in a graph of their own."""
    with torch.no_grad():
        grads = _Recorded.backward(ctx, grad_o, grad_lse)
    return once(grads, (grad_o, grad_lse, *ctx.saved_tensors))


def once(grads: Sequence[Tensor | None], read: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Gradients whose own gradients are refused; without the refusal they would silently be 0."""
    made = [g for g in grads if g is not None]
    marked = iter(_Once.apply(len(made), *made, *[t for t in read if t is not None]) if made else ())
    return tuple([None if g is None else next(marked) for g in grads])


class _Once(torch.autograd.Function):
    """Returns the first of its tensors unchanged."""

    generate_vmap_rule = True

    @staticmethod
    def forward(count: int, *tensors: Tensor) -> Any:
        return tuple([t.view_as(t) for t in tensors[:count]])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keeps nothing."""

    @staticmethod
    def backward(ctx: Any, *_: Any) -> NoReturn:
        refuse("second-derivative", "the gradients of an attention are differentiated again",
               "attune has first derivatives only",
               "write this attention with torch.softmax, or exclude it from create_graph=True")


# torch.autograd.Function.apply without its work for the transforms of torch.func.
_record = super(torch.autograd.Function, _Recorded).apply


class _Transformed(torch.autograd.Function):
    """The same for the transforms of torch.func, which need the operators inside."""

    generate_vmap_rule = True
    jvp = staticmethod(_no_tangents)

    @staticmethod
    def forward(mods: tuple[Any, ...], cu_q: Tensor | None, cu_kv: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
                *captures: Tensor) -> Any:
        return torch.ops.attune.forward(q, k, v, cu_q, cu_kv, captures, *mods)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mods = inputs[0]
        ctx.save_for_backward(*inputs[3:6], *output[:2], *inputs[1:3], *inputs[6:])
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None, _: Any) -> Any:
        wanted = list(ctx.needs_input_grad[3:])
        if grad_o is None and grad_lse is None:
            return (None,) * (3 + len(wanted))
        *given, cu_q, cu_kv = ctx.saved_tensors[:7]
        grads = torch.ops.attune.backward(grad_o, grad_lse, *given, cu_q, cu_kv, ctx.saved_tensors[7:],
                                          *ctx.mods[:-1], wanted)
        given = [g if w else None for g, w in zip(grads, wanted)]
        return None, None, None, *once(given, (grad_o, grad_lse, *ctx.saved_tensors))


# The context_parallel around calls.
sharing: Any = None


def attend(spelled: Spelled, q: Tensor, k: Tensor, v: Tensor, scale: float | None, *, with_lse: bool = False,
           with_max: bool = False, packed: Packed | None = None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The attention: the output, and the logarithm of the sum and the largest score where they are asked for."""
    captures = spelled.captures
    if scale is not None and type(scale) is not float:
        scale = _number("scale", scale)
    if forward_ad._current_level >= 0 and not is_compiling():
        _refuse_tangents(q, k, v, *captures)
    if sharing is not None:
        return sharing.attend(spelled, q, k, v, scale, with_lse, with_max, packed)
    if is_compiling() or _len_torch_dispatch_stack() or _are_functorch_transforms_active():
        return _operator(spelled, q, k, v, scale, with_lse, with_max, packed)
    try:
        recorded = is_recorded(q, k, v, captures)
    except AttributeError:
        check_tensors(q, k, v)
        raise
    call = spelled.calls.get((scale, q.dtype is _f64, _engine.way)) or spelled.call(scale, q.dtype is _f64)
    more = packed and packed._asdict()
    by_python = with_lse or (recorded and forward_ad._current_level >= 0)
    try:  # not by computed(), which takes as long as a tenth of a small call
        made = call.attend(q, k, v, captures, by_python, with_max, recorded, more)
    except Error as error:
        raise spelled.placed(error) from None
    if type(made) is str:
        if made == "special":
            return _operator(spelled, q, k, v, scale, with_lse, with_max, packed)
        made = computed(spelled, call.attend, q, k, v, captures, by_python, with_max, recorded, more)
    if type(made) is not tuple:
        return made, None, None
    return recorded_of((spelled, call, more), made, q, k, v, captures, with_lse) if recorded else made


def is_recorded(q: Tensor, k: Tensor, v: Tensor, captures: tuple[Tensor, ...]) -> bool:
    return _is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or
                                   (bool(captures) and any([t.requires_grad for t in captures])))


def recorded_of(call: tuple[Spelled, Any, Any], made: Any, q: Tensor, k: Tensor, v: Tensor,
                captures: tuple[Tensor, ...], with_lse: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
    results = _record(call, made, with_lse, q, k, v, *captures)
    if type(results) is not tuple:
        return results, None, None
    return results[0], results[1] if with_lse else None, results[2]


def is_eager() -> bool:
    """True without a graph, a mode and a transform."""
    return not (is_compiling() or _len_torch_dispatch_stack() or _are_functorch_transforms_active())


# Looking them up in each call would take as long as calling them.
_f64, _is_grad_enabled = torch.float64, torch.is_grad_enabled
_len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack
_are_functorch_transforms_active = torch._C._are_functorch_transforms_active


def _operator(spelled: Spelled, q: Tensor, k: Tensor, v: Tensor, scale: float | None, with_lse: bool, with_max: bool,
              packed: Packed | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The call as torch's operator, which subclasses, modes, transforms and graphs know."""
    check_tensors(q, k, v)
    if q.is_nested or k.is_nested or v.is_nested:
        names = ", ".join([name for name, t in (("q", q), ("k", k), ("v", v)) if t.is_nested])
        refuse("tensor-layout", f"{names} {'is' if len(names) == 1 else 'are'} nested, where dense tensors are expected",
               "scaled_dot_product_attention takes q, k and v that are all jagged; other functions take dense ones",
               "pass all three nested to it, or x.values() and x.offsets() to varlen_attention")
    cu_q, cu_kv, *longest = packed or (None, None, 0, 0)
    mods = (spelled.ints, *spelled.texts, " ".join(spelled.names), scale, *longest, with_max)
    if not is_compiling() and torch._C._are_functorch_transforms_active():
        out, lse, most = _Transformed.apply(mods, cu_q, cu_kv, q, k, v, *spelled.captures)
    else:
        out, lse, most = torch.ops.attune.forward(q, k, v, cu_q, cu_kv, spelled.captures, *mods)
    return out, (lse if with_lse else None), (most if with_max else None)
