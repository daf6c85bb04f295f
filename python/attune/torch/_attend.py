# python/attune/torch/_attend.py — one attention on tensors of torch: run, recorded for gradients, or as an operator
"""Calls of the core with torch's tensors. Eager ones go straight there; all others through torch.ops.attune."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import Parameter

from attune import _core
from attune._errors import Error
from attune._kept import Kept
from attune.torch._mod import Spelled

_FORWARD, _BACKWARD = 0, 1
_SMALL = 1 << 12  # elements of q: a call of fewer is done on one thread
_SLOW = 1 << 22  # scores: a call of fewer is done before a hand reaches Ctrl-C
_shows_memory = hasattr(Tensor, "__dlpack_c_exchange_api__")  # also of tensors that record gradients: torch 2.10


class Packed(NamedTuple):
    """Where packed sequences start, and the longest."""

    q: Tensor | None = None
    kv: Tensor | None = None
    max_q: int = 0
    max_kv: int = 0


DENSE = Packed()


class Call(NamedTuple):
    """What an attention is besides q, k, v and the captured tensors."""

    spelled: Spelled
    ints: tuple[int, ...]
    scale: float | None
    packed: Packed
    with_max: bool

    def forward(self, q: Tensor, k: Tensor, v: Tensor, captures: tuple[Tensor, ...],
                with_lse: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The output, the logarithm of the sum, and the largest score."""
        out = output(q, v.shape[-1])
        lse = row_numbers(q, self.packed) if with_lse else None
        most = row_numbers(q, self.packed) if self.with_max else None
        self._run(_FORWARD, (q, k, v, out, lse, most, self.packed.q, self.packed.kv), captures, None)
        return out, lse, most

    def backward(self, grad_o: Tensor | None, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
                 lse: Tensor, captures: tuple[Tensor, ...], wanted: list[bool]) -> list[Tensor | None]:
        """The gradients of q, k, v and the captured tensors, of those that are wanted."""
        grads = [torch.empty_like(t) if w else None for t, w in zip((q, k, v, *captures), wanted)]
        grad_o = torch.zeros_like(out) if grad_o is None else grad_o.resolve_neg()
        if grad_lse is not None and grad_lse.dtype != lse.dtype:
            grad_lse = grad_lse.to(lse.dtype)
        self._run(_BACKWARD, (q, k, v, out, lse, None, self.packed.q, self.packed.kv, grad_o, grad_lse, *grads[:3]),
                  captures, tuple(grads[3:]))
        return grads

    def _run(self, direction: int, tensors: tuple[Any, ...], captures: tuple[Tensor, ...],
             grads: tuple[Any, ...] | None) -> None:
        q = tensors[0]
        handle = self.spelled.handle(self.scale, q.dtype is torch.float64)
        if not _shows_memory:
            tensors, captures = _detached(tensors), _detached(captures)
        try:
            options = None
            if q.is_cuda or q.numel() > _SMALL:
                options = self._options(handle, direction, tensors, captures, grads)
            handle.run(direction, tensors, captures, grads, self.ints, options)
        except Error as error:
            raise self.spelled.placed(error) from None

    def _options(self, handle: _core.Attention, direction: int, tensors: tuple[Any, ...], captures: tuple[Tensor, ...],
                 grads: tuple[Any, ...] | None) -> tuple[Any, ...]:
        """What the core is told of this machine: torch's threads, or torch's stream and memory."""
        q, k = tensors[:2]
        longest = self.packed.max_q, self.packed.max_kv
        if not q.is_cuda:
            slow = q.numel() // q.shape[-1] * k.shape[-2] > _SLOW
            return 0, *longest, torch.get_num_threads(), 0, None, None, None, None, slow
        stream = torch.cuda.current_stream(q.device).cuda_stream
        workspace = self._workspace(handle, direction, tensors, captures, grads, stream)
        return 0, *longest, 0, stream, workspace, None, None, None, False

    def _workspace(self, handle: _core.Attention, direction: int, tensors: tuple[Any, ...],
                   captures: tuple[Tensor, ...], grads: tuple[Any, ...] | None, stream: int) -> Tensor | None:
        """Working memory from torch's allocator, so that a graph that is captured owns it."""
        q = tensors[0]
        key = (handle, direction, self.packed.max_q, self.packed.max_kv, q.device,
               tuple([None if t is None else (t.shape, t.stride(), t.dtype) for t in (*tensors, *captures)]))
        size = _workspaces.get(key)
        if size is None:
            options = (0, self.packed.max_q, self.packed.max_kv, 0, stream, None, None, None, None, False)
            size = _workspaces.put(key, handle.prepare(direction, tensors, captures, grads, self.ints, options)[0])
        return torch.empty(size, dtype=torch.uint8, device=q.device) if size else None


_workspaces: Kept[object, int] = Kept(1024)


def _detached(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([t.detach() if isinstance(t, Tensor) else t for t in tensors])


def output(q: Tensor, width: int) -> Tensor:
    """A tensor for the output: its dimensions lie in the order of those of q, the last one fastest."""
    if q.is_contiguous():
        return torch.empty_like(q) if width == q.shape[-1] else q.new_empty((*q.shape[:-1], width))
    shape, strides = (*q.shape[:-1], width), q.stride()
    order = sorted(range(q.dim() - 1), key=lambda d: -strides[d])
    return torch.empty_permuted(shape, (*order, q.dim() - 1), dtype=q.dtype, device=q.device)


def row_numbers(q: Tensor, packed: Packed) -> Tensor:
    """A tensor for a number for each row."""
    shape = q.shape[:-1] if packed.q is None else (q.shape[1], q.shape[0])
    return q.new_empty(shape, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


class _Recorded(torch.autograd.Function):
    """A call whose gradients are wanted."""

    @staticmethod
    def forward(ctx: Any, call: Call, with_lse: bool, q: Tensor, k: Tensor, v: Tensor, *captures: Tensor) -> Any:
        out, lse, most = call.forward(q, k, v, captures, True)
        ctx.call, ctx.with_lse = call, with_lse
        ctx.save_for_backward(q, k, v, out, lse, *captures)
        ctx.set_materialize_grads(False)
        if not with_lse and most is None:
            return out
        if most is not None:
            ctx.mark_non_differentiable(most)
        return out, lse, most

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None = None, _: None = None) -> Any:
        q, k, v, out, lse, *captures = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[2:])
        if grad_o is None and grad_lse is None:
            return (None,) * (2 + len(wanted))
        return None, None, *ctx.call.backward(grad_o, grad_lse, q, k, v, out, lse, tuple(captures), wanted)


class _Transformed(torch.autograd.Function):
    """The same for the transforms of torch.func, which want the operators inside of it."""

    generate_vmap_rule = True

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
        return None, None, None, *[g if w else None for g, w in zip(grads, wanted)]


def attend(spelled: Spelled, q: Tensor, k: Tensor, v: Tensor, scale: float | None, *, with_lse: bool = False,
           with_max: bool = False, packed: Packed = DENSE) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The attention: the output, and the logarithm of the sum and the largest score where they are asked for."""
    if torch.compiler.is_compiling() or not _is_plain(q, k, v):
        mods = (spelled.ints, *spelled.texts, " ".join(spelled.names), scale, packed.max_q, packed.max_kv, with_max)
        if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
            out, lse, most = _Transformed.apply(mods, packed.q, packed.kv, q, k, v, *spelled.captures)
        else:
            out, lse, most = torch.ops.attune.forward(q, k, v, packed.q, packed.kv, spelled.captures, *mods)
        return out, (lse if with_lse else None), (most if with_max else None)
    call, captures = Call(spelled, spelled.ints, scale, packed, with_max), spelled.captures
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or
                                    (captures and any([t.requires_grad for t in captures]))):
        made = _Recorded.apply(call, with_lse, q, k, v, *captures)
        if not isinstance(made, tuple):
            return made, None, None
        return made[0], made[1] if with_lse else None, made[2]
    return call.forward(q, k, v, captures, with_lse)


def _is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Are they memory as it is, seen by nobody else: no subclass, no sign that torch keeps beside the memory (imag of a
    conjugate), no transform of torch.func, no mode that traces?"""
    return ((type(q) is Tensor or type(q) is Parameter) and not (q.is_neg() or k.is_neg() or v.is_neg())
            and not torch._C._len_torch_dispatch_stack() and not torch._C._are_functorch_transforms_active())
