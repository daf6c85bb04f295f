# python/attune/torch/_attend.py — one attention on tensors of torch: run, recorded for gradients, or as an operator
"""Calls of the core with torch's tensors. Eager calls go directly to the core, all others through torch.ops.attune."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from attune import _core
from attune._arguments import real
from attune._errors import Error
from attune._kept import Kept
from attune._words import said
from attune.torch._engine import chosen
from attune.torch._mod import Spelled
from attune.torch._value import refuse

_FORWARD, _BACKWARD = 0, 1
_OF_CACHE = ("kv_len", "page_table", "q_offsets", "o_before", "lse_before")
_SMALL = 1 << 12  # elements of q: attune itself says how many threads a call with fewer gets
_SLOW = 1 << 22  # scores: a call with fewer ends before anyone can press Ctrl-C
_shows_memory = hasattr(Tensor, "__dlpack_c_exchange_api__")  # torch 2.10: also for tensors that record gradients


class Packed(NamedTuple):
    """The starts of packed sequences, and the longest length."""

    q: Tensor | None = None
    kv: Tensor | None = None
    max_q: int = 0
    max_kv: int = 0


DENSE = Packed()


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


class Call:
    """An attention without its tensors: everything besides q, k, v and the captured tensors."""

    __slots__ = ("core", "ints", "packed", "recorded", "spelled", "with_max")

    def __init__(self, spelled: Spelled, ints: tuple[int, ...], scale: float | None, oracle: bool, packed: Packed,
                 with_max: bool) -> None:
        self.spelled, self.ints, self.packed, self.with_max = spelled, ints, packed, with_max
        self.core = spelled.handle(scale, oracle)
        self.recorded: Any = None  # what records it, once it has been recorded; False if that is Python

    def forward(self, q: Tensor, k: Tensor, v: Tensor, captures: tuple[Tensor, ...],
                with_lse: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The output, the logarithm of the sum, and the largest score."""
        made = self.quickly(q, k, v, captures, with_lse, False)
        return made if type(made) is tuple else self.forward_slowly(q, k, v, captures, with_lse)

    def by_torch(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        """The output, recorded by torch's own autograd, which keeps no captured tensors; a str, if that cannot be."""
        if self.recorded is None:
            usual = recorder is not None and self.packed is DENSE and not self.with_max and not self.spelled.captures
            self.recorded = recorder(self.core, self.ints) if usual else False  # type: ignore[misc]
        return self.recorded.attend(q, k, v) if self.recorded else "shape"

    def quickly(self, q: Tensor, k: Tensor, v: Tensor, captures: tuple[Tensor, ...], with_lse: bool,
                recorded: bool) -> Any:
        """The same without any Python; a str, if that is not possible. `recorded`: the gradients will be wanted."""
        if self.packed is not DENSE:
            return "shape" if _core.plain(q, k, v, *captures) else "special"
        return self.core.attend(q, k, v, captures, self.ints, with_lse, self.with_max, recorded)

    def forward_slowly(self, q: Tensor, k: Tensor, v: Tensor, captures: tuple[Tensor, ...], with_lse: bool,
                       wanted: Sequence[bool] = ()) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The same results for packed sequences, long calls on the host, mistakes, and whatever else is rare. `wanted`:
        the gradients that will be wanted, of q, k, v and the captured tensors."""
        if _is_far(q):
            made = self._here().forward_slowly(*_on("cpu", (q, k, v)), _on("cpu", captures), with_lse)
            return _on(q.device, made)
        out = output(q, v)
        lse = row_numbers(q, self.packed) if with_lse else None
        most = row_numbers(q, self.packed) if self.with_max else None
        self._run(_FORWARD, {"q": q, "k": k, "v": v, "out": out, "lse": lse, "max": most}, captures, None, wanted)
        return out, lse, most

    def over_cache(self, q: Tensor, k: Tensor, v: Tensor, cache: tuple[Tensor | None, ...],
                   captures: tuple[Tensor, ...], fixed_split_size: int) -> tuple[Tensor, Tensor]:
        """The output and the logarithm of the sum. `cache`: kv_len, page_table, q_offsets, o_before, lse_before."""
        if self.packed is DENSE and not fixed_split_size and not _is_far(q):
            made = self.core.attend_cache(q, k, v, cache, captures, self.ints)
            if type(made) is tuple:
                return made[0], made[1]
        if _is_far(q):
            given = [_on("cpu", some) for some in ((q, k, v), cache, captures)]
            out, lse = self._here().over_cache(*given[0], *given[1:], fixed_split_size)
            return _on(q.device, (out, lse))  # type: ignore[return-value]
        out, lse = output(q, v), row_numbers(q, self.packed)
        call = {"q": q, "k": k, "v": v, "out": out, "lse": lse, **dict(zip(_OF_CACHE, cache))}
        if fixed_split_size:
            call["fixed_split_size"] = fixed_split_size
        self._run(_FORWARD, call, captures, None)
        return out, lse

    def backward(self, grad_o: Tensor | None, grad_lse: Tensor | None, saved: Sequence[Tensor],
                 wanted: Sequence[bool]) -> list[Tensor | None]:
        """The gradients of q, k, v and the captured tensors, those that are wanted. `saved`: q, k, v, the output, the
        logarithm of the sum, and the captured tensors."""
        q, k, v, out, lse, *captures = saved
        if _is_far(q):
            given = _on("cpu", (grad_o, grad_lse))
            return list(_on(q.device, self._here().backward(*given, _on("cpu", saved), wanted)))
        grads = [torch.empty_like(t) if w else None for t, w in zip((q, k, v, *captures), wanted)]
        grad_o = torch.zeros_like(out) if grad_o is None else grad_o.resolve_neg()
        if grad_lse is not None:
            grad_lse = grad_lse.to(lse.dtype).resolve_neg()
        self._run(_BACKWARD, {"q": q, "k": k, "v": v, "out": out, "lse": lse, "grad_o": grad_o, "grad_lse": grad_lse,
                              "dq": grads[0], "dk": grads[1], "dv": grads[2]}, tuple(captures), tuple(grads[3:]))
        return grads

    def _here(self) -> Call:
        """The same call on the host."""
        call = copy(self)
        if self.packed is not DENSE:
            call.packed = Packed(*_on("cpu", self.packed[:2]), *self.packed[2:])
        return call

    def _run(self, direction: int, call: dict[str, Any], captures: tuple[Tensor, ...],
             grads: tuple[Any, ...] | None, wanted: Sequence[bool] = ()) -> None:
        q = call["q"]
        if not _shows_memory:
            call, captures = {n: _detached(t) for n, t in call.items()}, tuple([_detached(t) for t in captures])
        try:
            if q.is_cuda or q.numel() > _SMALL or self.packed is not DENSE:
                call.update(self._resources(direction, call, captures, grads, wanted))
            self.core.run(direction, call, captures, grads, self.ints)
        except Error as error:
            left = {name: _left(t) for name, t in call.items()}
            if error.code == "tensor-unreadable" and any([left[name] is not t for name, t in call.items()]):
                return self._run(direction, left, tuple([_left(t) for t in captures]), grads, wanted)
            raise self.spelled.placed(error) from None

    def _resources(self, direction: int, call: dict[str, Any], captures: tuple[Tensor, ...],
                   grads: tuple[Any, ...] | None, wanted: Sequence[bool]) -> dict[str, Any]:
        """The core's options besides tensors: torch's threads, or torch's stream and memory."""
        q, k = call["q"], call["k"]
        out: dict[str, Any] = {}
        if self.packed is not DENSE:
            out = {"cu_seqlens_q": self.packed.q, "cu_seqlens_kv": self.packed.kv, "max_q_len": self.packed.max_q,
                   "max_kv_len": self.packed.max_kv}
        if not q.is_cuda:
            if q.numel() > _SMALL:
                out["workers"] = torch.get_num_threads()
            out["signals"] = q.numel() // max(q.shape[-1], 1) * k.shape[-2] > _SLOW
            return out
        out["stream"] = torch.cuda.current_stream(q.device).cuda_stream
        out["workspace"] = self._workspace(direction, {**call, **out}, captures, grads, wanted)
        return out

    def _workspace(self, direction: int, call: dict[str, Any], captures: tuple[Tensor, ...],
                   grads: tuple[Any, ...] | None, wanted: Sequence[bool]) -> Tensor | None:
        """A workspace from torch's allocator, so that a captured CUDA graph owns it."""
        q = call["q"]
        given = (*call.values(), *captures)
        key = (self.core, direction, self.packed.max_q, self.packed.max_kv, q.device, call.get("fixed_split_size"),
               tuple([(t.shape, t.stride(), t.dtype) if isinstance(t, Tensor) else None for t in given]))
        size = _workspaces.get(key)
        if size is None:
            size = _workspaces.put(key, self.core.prepare(direction, call, captures, grads, self.ints)[0])
            if wanted:
                self._start_backward(call, captures, wanted)
        return torch.empty(size, dtype=torch.uint8, device=q.device) if size else None

    def _start_backward(self, call: dict[str, Any], captures: tuple[Tensor, ...], wanted: Sequence[bool]) -> None:
        """Starts to compile the backward of a forward. Gradients are assumed to lie in memory as their tensors do; they
        are freed at once, as nothing writes them."""
        grads = [torch.empty_like(t) if w else None for t, w in zip((call["q"], call["k"], call["v"], *captures), wanted)]
        of_backward = {**call, "max": None, "grad_o": call["out"], "dq": grads[0], "dk": grads[1], "dv": grads[2]}
        self.core.prepare_async(_BACKWARD, of_backward, captures, tuple(grads[3:]), self.ints)


_workspaces: Kept[object, int] = Kept(1024)


def _is_far(q: Tensor) -> bool:
    """f64 on a GPU is for gradcheck: only the oracle computes it, and the oracle reads only host memory."""
    return q.dtype is torch.float64 and q.is_cuda


def _on(device: Any, tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
    return tuple([None if t is None else t.to(device) for t in tensors])


def _left(given: Any) -> Any:
    """The tensor inside one that a transform of torch.func has left behind, whose memory torch 2.11 does not show."""
    return torch._C._functorch.unwrap_if_dead(given) if isinstance(given, Tensor) else given


def _detached(given: Any) -> Any:
    return given.detach() if isinstance(given, Tensor) else given


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


def row_numbers(q: Tensor, packed: Packed) -> Tensor:
    """A tensor with one number a row."""
    shape = q.shape[:-1] if packed.q is None else (q.shape[1], q.shape[0])
    return q.new_empty(shape, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


def _rows_like(q: Tensor) -> Tensor:
    """For torch.empty_like: the shape of one number a row, in no more memory than one of them takes."""
    dtype, shape = torch.float64 if q.dtype is _f64 else torch.float32, q.shape[:-1]
    return torch.empty((1,) * len(shape) if all(shape) else shape, dtype=dtype, device=q.device).expand(shape)


def _bytes_like(count: int, q: Tensor) -> Tensor:
    return torch.empty((), dtype=torch.uint8, device=q.device).expand(count)


_f64, _is_grad_enabled = torch.float64, torch.is_grad_enabled
_core.find_torch(output, _rows_like, _bytes_like)


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
    """A call whose gradients are wanted."""

    @staticmethod
    def forward(ctx: Any, call: Call, made: Any, with_lse: bool, q: Tensor, k: Tensor, v: Tensor,
                *captures: Tensor) -> Any:
        out, lse, most = made or call.forward_slowly(q, k, v, captures, True, ctx.needs_input_grad[_OTHERS:])
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
        call, saved, wanted = ctx.call, ctx.saved_tensors, ctx.needs_input_grad
        if grad_o is None and grad_lse is None:
            return (None,) * len(wanted)
        if grad_o is not None and call.packed is DENSE:
            made = call.core.gradients(grad_o, grad_lse, saved, call.ints, wanted, _OTHERS)
            if type(made) is tuple:
                return made
        return *(None,) * _OTHERS, *call.backward(grad_o, grad_lse, saved, wanted[_OTHERS:])


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
# Makes calls that torch's own autograd records, or None: see _record.py.
recorder: type[_core.RecordedCall] | None = None


def attend(spelled: Spelled, q: Tensor, k: Tensor, v: Tensor, scale: float | None, *, with_lse: bool = False,
           with_max: bool = False, packed: Packed = DENSE) -> tuple[Tensor, Tensor | None, Tensor | None]:
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
        recorded = _is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or
                                           bool(captures) and any([t.requires_grad for t in captures]))
    except AttributeError:
        check_tensors(q, k, v)
        raise
    key = (scale, q.dtype is _f64, with_max, chosen())
    call = spelled.calls.get(key) if packed is DENSE else None
    if call is None:
        call = Call(spelled, spelled.ints, scale, q.dtype is _f64, packed, with_max)
        if packed is DENSE:
            spelled.calls[key] = call
    if recorded and not with_lse and call.recorded is not False and forward_ad._current_level < 0:
        made = call.by_torch(q, k, v)
        if type(made) is not str:
            return made, None, None
    made = call.quickly(q, k, v, captures, with_lse or recorded, recorded)
    if type(made) is not tuple:
        if made == "special":
            return _operator(spelled, q, k, v, scale, with_lse, with_max, packed)
        if not recorded:
            return call.forward_slowly(q, k, v, captures, with_lse)
        made = None
    elif not recorded:
        return made
    return recorded_of(call, made, q, k, v, captures, with_lse)


def recorded_of(call: Call, made: Any, q: Tensor, k: Tensor, v: Tensor, captures: tuple[Tensor, ...],
                with_lse: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The results, `made` if they exist, with gradients."""
    results = _record(call, made, with_lse, q, k, v, *captures)
    if type(results) is not tuple:
        return results, None, None
    return results[0], results[1] if with_lse else None, results[2]


def is_eager(*tensors: Tensor) -> bool:
    """True if nothing but the results is wanted: no graph, mode, transform or gradient."""
    if is_compiling() or _len_torch_dispatch_stack() or _are_functorch_transforms_active():
        return False
    return not (_is_grad_enabled() and any([t.requires_grad for t in tensors])) and _core.plain(*tensors)


# Looking them up in each call would take as long as calling them.
_len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack
_are_functorch_transforms_active = torch._C._are_functorch_transforms_active


def _operator(spelled: Spelled, q: Tensor, k: Tensor, v: Tensor, scale: float | None, with_lse: bool, with_max: bool,
              packed: Packed) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The call as torch's operator, which subclasses, modes, transforms and graphs know."""
    check_tensors(q, k, v)
    if q.is_nested or k.is_nested or v.is_nested:
        names = ", ".join([name for name, t in (("q", q), ("k", k), ("v", v)) if t.is_nested])
        refuse("tensor-layout", f"{names} {'is' if len(names) == 1 else 'are'} nested, where dense tensors are expected",
               "scaled_dot_product_attention takes q, k and v that are all jagged; other functions take dense ones",
               "pass all three nested to it, or x.values() and x.offsets() to varlen_attention")
    mods = (spelled.ints, *spelled.texts, " ".join(spelled.names), scale, packed.max_q, packed.max_kv, with_max)
    if not is_compiling() and torch._C._are_functorch_transforms_active():
        out, lse, most = _Transformed.apply(mods, packed.q, packed.kv, q, k, v, *spelled.captures)
    else:
        out, lse, most = torch.ops.attune.forward(q, k, v, packed.q, packed.kv, spelled.captures, *mods)
    return out, (lse if with_lse else None), (most if with_max else None)
