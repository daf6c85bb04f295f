# python/attune/torch/_activate.py — torch's own attentions run attune's kernels: activate(), deactivate()
"""`attune.torch.activate()`, and models need no other change.

torch.nn.functional.scaled_dot_product_attention chooses one of several operators of aten. Here attune replaces their
kernels, for the CPU and for CUDA; autograd, autocast and torch.compile around them stay torch's.
"""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attune import _core
from attune._errors import Error
from attune.torch._attend import DENSE, Call, Packed, starts
from attune.torch._engine import USUAL, chosen
from attune.torch._flex import written
from attune.torch._lowering import lower, unlower
from attune.torch._mod import Spelled, Texts
from attune.torch._paged import over_pages
from attune.torch._sdpa import _CAUSAL, _PLAIN
from attune.torch._value import refuse
from attune.torch._varlen import _seen


class _Kernel(NamedTuple):
    """A kernel that replaces torch's."""

    key: str  # of the dispatcher
    arguments: str  # the names of the operator's arguments, as the function takes them
    function: Callable[..., Any]


_lock = threading.Lock()
_library: Any = None
_own: dict[str, Any] = {}  # torch's kernels, by operator
_warned: set[str] = set()


def activate(compile: bool = False) -> None:
    """From here on, torch's own scaled_dot_product_attention runs attune's kernels, and so does what calls it:
    torch.nn.MultiheadAttention, transformers with attn_implementation="sdpa". On GPUs also varlen_attn and jagged
    tensors. Calls that attune does not take go to torch's kernels, as before; a warning gives each reason once.
    With `compile`, a flex_attention that torch.compile compiles from here on runs attune's kernels too.
    Call it before threads start: torch replaces kernels without a lock.

    >>> import torch, attune.torch
    >>> q = torch.ones(1, 2, 8, 4)
    >>> attune.torch.activate()
    >>> print(attune.torch.explain(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)).split(",")[0])
    forward of 1 x 2 heads (2 of keys)
    >>> attune.torch.deactivate()
    """
    global _library
    with _lock:
        if _library is None:
            _library = _replaced()
        if compile:
            lower(_warn)


def _replaced() -> Any:
    """The libraries whose kernels replace torch's. Kernels in C++ lie above them and take calls of kinds that were seen
    before; all others reach attune's operators of the same names."""
    library, slow = torch.library.Library("aten", "IMPL"), torch.library.Library("attune", "FRAGMENT")
    for pair in _kernels():
        if all([_fits(name, kernel) for name, kernel in pair.items()]):
            for name, kernel in pair.items():
                _replace((library, slow), name, kernel)
    if not _own:
        refuse("torch-version", "this torch has none of the operators that attune knows",
               "activate() puts attune's kernels in their places",
               "call attune.torch's functions, or take torch 2.15")
    _core.activate_torch(list(_own), None)
    return library, slow


def deactivate() -> None:
    """Gives torch's attentions back their own kernels. Call it while no other thread calls them."""
    global _library
    with _lock:
        unlower()
        if _library is not None:
            _core.deactivate_torch()
            for library in _library:
                library._destroy()
        _library = None
        _own.clear()
        _warned.clear()


def _fits(name: str, kernel: _Kernel) -> bool:
    """True if torch has such an operator with a kernel, and it takes what attune's takes."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or not hasattr(torch.library, "get_kernel"):
        return False
    takes = [argument.name for argument in packet.default._schema.arguments]
    expected = [n for n in kernel.arguments.split() if n in takes or n not in _LATER]
    return takes == expected and torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", kernel.key)


_LATER = ("block_table", "num_splits")  # arguments that came after torch 2.10


def _replace(libraries: tuple[Any, Any], name: str, kernel: _Kernel) -> None:
    """Replaces torch's kernel by this one, and makes it an operator of attune's as well."""
    operator = getattr(torch.ops.aten, name).default
    _own[name] = torch.library.get_kernel(operator, kernel.key)
    # C++ calls the latter, and reads the lengths off q and k: torch 2.11 mixes up the types of unlike results.
    given, gives = str(operator._schema).removeprefix("aten::").split(" -> ")
    libraries[1].define(f"{given} -> {gives.replace('SymInt max_q, SymInt max_k, ', '')}")

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            made = kernel.function(*args, **kwargs)
        except Error as error:
            made = f"[{error.code}] {error.problem}"
        if type(made) is not str:
            return made
        _warn(made)
        return _own[name].call_boxed(keys, *args, **kwargs)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that an operator has another kernel already
        libraries[0].impl(name, run, kernel.key, with_keyset=True)
        libraries[1].impl(name, lambda *args, **kwargs: _tensors(run(*args, **kwargs)), kernel.key, with_keyset=True)


def _tensors(made: Any) -> Any:
    return tuple([t for t in made if type(t) is not int]) if type(made) is tuple else made


def _warn(why: str) -> None:
    if why not in _warned:
        _warned.add(why)
        warnings.warn(f"attune: torch's own attention runs: {why}", stacklevel=3)


# ---- what attune takes


def _why_not(q: Tensor, k: Tensor, v: Tensor, dropout: float, debug: bool = False) -> str:
    """Why a call is torch's own; both directions must agree, so only shapes and types count."""
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"tensors of {q.dtype}"
    if dropout:
        # A backward gets its forward's random state, but not which kernel drew from it: after a refusal, or a
        # deactivate() in between, torch's would draw other numbers.
        return "dropout, whose random numbers are torch's"
    if debug:
        return "a debug mask is asked for"
    if 0 in (q.numel(), k.numel(), v.numel()):
        return "a tensor is empty"
    return ""


def _spelled(bias: Tensor | None, causal: bool) -> Spelled:
    if bias is None:
        return _CAUSAL if causal else _PLAIN
    at = zip(bias.shape, ("b", "h", "q", "kv")[4 - bias.dim():])
    score = f"s + attn_mask[{', '.join(['0' if n == 1 else i for n, i in at])}]"
    return Spelled(Texts(score, "kv <= q" if causal else ""), ("attn_mask",), (bias,))


def _kept(spelled: Spelled, scale: float | None) -> Call:
    """The dense call of this text and scale, made once."""
    key = (scale, False, False, chosen())
    return spelled.calls.get(key) or spelled.calls.setdefault(
        key, Call(spelled, spelled.ints, scale, False, DENSE, False))


def _call(q: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> Call:
    call = _kept(_spelled(bias, causal), scale)
    if chosen() == USUAL:
        ones = 0 if bias is None else sum([(n == 1) << i for i, n in enumerate(bias.shape)])
        mask = (0, 0, False) if bias is None else (bias.dim(), ones, bias.dtype == torch.bool)
        _core.learn_torch(call.core, mask, causal, scale)
    return call


def _forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool,
             scale: float | None) -> tuple[Tensor, Tensor]:
    call = _call(q, bias, causal, scale)
    out, lse, _ = call.forward(q, k, v, call.spelled.captures, True)
    assert lse is not None
    return out, lse


def _backward(grad_out: Tensor, saved: tuple[Tensor, ...], bias: Tensor | None, causal: bool, scale: float | None,
              wanted: tuple[bool, ...] = (True, True, True)) -> tuple[Tensor | None, ...]:
    """`saved`: q, k, v, the output, the lse."""
    call = _call(saved[0], bias, causal, scale)
    captures = call.spelled.captures
    all_wanted = (*wanted[:3], *(len(wanted) > 3 and wanted[3],) * len(captures))
    return tuple(call.backward(grad_out, None, (*saved, *captures), all_wanted)[:len(wanted)])


def _as_torchs(lse: Tensor, bias: Tensor | None) -> Tensor:
    """The lse with 0 for rows without keys: the backwards of torch that take -inf to NaN may come next. Only a mask
    leaves such rows. Torch's flash attention on GPUs and cuDNN take -inf."""
    return lse if bias is None else lse.nan_to_num_(nan=math.nan, posinf=math.inf, neginf=0.0)


def _by_position(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """In the memory order [batch, positions, heads, width], as torch's graphs expect it of some operators: a copy only
    where q, k and v do not have it."""
    return tuple([None if t is None else t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors])


# ---- operators of the CPU


def _cpu(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
         attn_mask: Tensor | None = None, scale: float | None = None) -> Any:
    if why := _why_not(query, key, value, dropout_p):
        return why
    out, lse = _forward(query, key, value, attn_mask, is_causal, scale)
    return out, *_by_position(_as_torchs(lse, attn_mask))


def _cpu_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                  dropout_p: float, is_causal: bool, *, attn_mask: Tensor | None = None,
                  scale: float | None = None) -> Any:
    return _why_not(query, key, value, dropout_p) or _by_position(*_backward(
        grad_out, (query, key, value, out, logsumexp), attn_mask, is_causal, scale))


# ---- operators of GPUs


def _seeds(device: torch.device) -> tuple[Tensor, Tensor]:
    """Instead of the state of random numbers, which nobody reads without dropout."""
    return (torch.empty((2,), dtype=torch.uint64, device=device), torch.empty((), dtype=torch.uint64, device=device))


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
           return_debug_mask: bool = False, *, scale: float | None = None) -> Any:
    if why := _why_not(query, key, value, dropout_p, return_debug_mask):
        return why
    out, lse = _forward(query, key, value, None, is_causal, scale)
    return (out, lse, None, None, query.shape[2], key.shape[2], *_seeds(query.device), query.new_empty(0))


def _flash_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                    cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
                    philox_seed: Any, philox_offset: Any, *, scale: float | None = None) -> Any:
    return _why_not(query, key, value, dropout_p) or _backward(
        grad_out, (query, key, value, out, logsumexp), None, is_causal, scale)


# cuDNN's forward is faster with a materialised mask; its backward only where attune's reads such a mask pair by pair.
_WRITTEN = "a mask that is written out, under which cuDNN is faster"
_FEW = 64  # queries: attune's decode kernels take up to these
_MANY = 2048  # queries from which on attune's two directions together were measured, and are faster
_WIDEST = 128  # the widest heads for which attune's backward copies a mask


def _is_for_cudnn(bias: Tensor, q: Tensor, v: Tensor) -> bool:
    """Both directions must agree, so only what the mask is counts."""
    if q.shape[2] < _MANY:
        return True
    if bias.dim() < 2 or bias.shape[-1] == 1 or bias.shape[-2] == 1:
        return False
    unit = 16 // bias.element_size()
    copied = (bias.dtype == q.dtype != torch.float32
              and max(q.shape[-1], v.shape[-1]) <= _WIDEST and bias.stride(-1) == 1 and bias.shape[-1] % unit == 0
              and bias.data_ptr() % 16 == 0
              and all(n == 1 or step % unit == 0 for n, step in zip(bias.shape[:-1], bias.stride()[:-1])))
    return not copied


def _cudnn(query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
           dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
           scale: float | None = None) -> Any:
    if why := _why_not(query, key, value, dropout_p, return_debug_mask):
        return why
    if attn_bias is not None and (_is_for_cudnn(attn_bias, query, value) if compute_log_sumexp else
                                  query.shape[2] > _FEW):
        return _WRITTEN
    out, lse = _forward(query, key, value, attn_bias, is_causal, scale)
    seed = torch.empty((), dtype=torch.int64, device=query.device)
    return out, lse.unsqueeze(-1), None, None, query.shape[2], key.shape[2], seed, seed.clone(), query.new_empty(0)


def _cudnn_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                    philox_seed: Any, philox_offset: Any, attn_bias: Tensor | None, cum_seq_q: Any, cum_seq_k: Any,
                    max_q: int, max_k: int, dropout_p: float, is_causal: bool, *, scale: float | None = None) -> Any:
    if attn_bias is not None and _is_for_cudnn(attn_bias, query, value):
        return _WRITTEN
    return _why_not(query, key, value, dropout_p) or _backward(
        grad_out, (query, key, value, out, logsumexp.squeeze(-1)), attn_bias, is_causal, scale)


_ROWS = 32  # the efficient attention's lse has room for a multiple of them


def _efficient(query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
               dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None) -> Any:
    if why := _why_not(query, key, value, dropout_p):
        return why
    out, lse = _forward(query, key, value, attn_bias, is_causal, scale)
    seed = torch.empty((), dtype=torch.int64, device=query.device)
    if not compute_log_sumexp:
        lse = lse[..., :0]
    elif _as_torchs(lse, attn_bias).shape[-1] % _ROWS:
        lse = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % _ROWS), value=float("inf"))
    return *_by_position(out), lse, seed, seed.clone()


def _efficient_backward(grad_out_: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None,
                        out: Tensor, logsumexp: Tensor, philox_seed: Any, philox_offset: Any, dropout_p: float,
                        grad_input_mask: list[bool], is_causal: bool = False, *, scale: float | None = None) -> Any:
    if why := _why_not(query, key, value, dropout_p):
        return why
    lse = logsumexp[..., :query.shape[2]]
    made = _backward(grad_out_, (query, key, value, out, lse), attn_bias, is_causal, scale, tuple(grad_input_mask))
    return (*_by_position(*made[:3]), *made[3:], *(None,) * (4 - len(made)))


@functools.cache
def _windowed(left: int, right: int) -> Any:
    """The same function for the same window, so that what was traced before holds."""
    return _seen(None, (left, right), None)


def _window(causal: bool, left: int | None, right: int | None) -> tuple[int, int]:
    return -1 if left is None else int(left), 0 if causal else -1 if right is None else int(right)


def _of_sequences(q: Tensor, cum_q: Tensor | None, cum_k: Tensor | None, max_q: int, max_k: int, causal: bool,
                  scale: float | None, left: int | None, right: int | None, used: Tensor | None) -> Call:
    """The call of the operators that take [tokens, heads, width] or [batch, positions, heads, width]."""
    window = _window(causal, left, right)
    spelled = written(None, _windowed(*window) if used is None else _seen(None, window, used), q)
    if cum_q is None or cum_k is None:
        return _kept(spelled, scale)
    return Call(spelled, spelled.ints, scale, False, Packed(starts(cum_q), starts(cum_k), max_q, max_k), False)


def _laid(call: Call, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """With the heads where the core has them."""
    return [t.transpose(1, 2) if call.packed is DENSE else t for t in tensors]


def _flash_of_sequences(query: Tensor, key: Tensor, value: Tensor, cum_seq_q: Tensor | None, cum_seq_k: Tensor | None,
                        max_q: int, max_k: int, dropout_p: float, is_causal: bool, return_debug_mask: bool, *,
                        scale: float | None = None, window_size_left: int | None = None,
                        window_size_right: int | None = None, seqused_k: Tensor | None = None,
                        alibi_slopes: Tensor | None = None, block_table: Tensor | None = None,
                        num_splits: int | None = None) -> Any:
    if alibi_slopes is not None:
        return "alibi_slopes is given"
    if why := _why_not(query, key, value, dropout_p, return_debug_mask):
        return why
    if block_table is not None:
        if cum_seq_q is None:
            return "block_table is given without cum_seq_q"
        seen = _windowed(*_window(is_causal, window_size_left, window_size_right))
        out, lse = over_pages(written(None, seen, query), (query, key, value), (block_table, seqused_k),
                              Packed(starts(cum_seq_q), None, max_q, 0), scale, num_splits)
        return out, lse, *_seeds(query.device), query.new_empty(0)
    call = _of_sequences(query, cum_seq_q, cum_seq_k, max_q, max_k, is_causal, scale, window_size_left,
                         window_size_right, seqused_k)
    q, k, v = _laid(call, (query, key, value))
    out, lse, _ = call.forward(q, k, v, call.spelled.captures, True)
    return _laid(call, (out,))[0], lse, *_seeds(query.device), query.new_empty(0)


def _flash_of_sequences_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
                                 logsumexp: Tensor, cum_seq_q: Tensor | None, cum_seq_k: Tensor | None, max_q: int,
                                 max_k: int, dropout_p: float, is_causal: bool, rng_state: Any, unused: Any, *,
                                 scale: float | None = None, window_size_left: int | None = None,
                                 window_size_right: int | None = None) -> Any:
    if why := _why_not(query, key, value, dropout_p):
        return why
    call = _of_sequences(query, cum_seq_q, cum_seq_k, max_q, max_k, is_causal, scale, window_size_left,
                         window_size_right, None)
    captures = call.spelled.captures
    grad, q, k, v, o = _laid(call, (grad_out, query, key, value, out))
    made = call.backward(grad, None, (q, k, v, o, logsumexp, *captures), (True, True, True, *(False,) * len(captures)))
    return tuple(_laid(call, tuple([t for t in made[:3] if t is not None])))


def _kernels() -> list[dict[str, _Kernel]]:
    """By operator, each forward with its backward: both are replaced, or none."""
    given, causal = "query key value", "dropout_p is_causal"
    cums, seeds = "cum_seq_q cum_seq_k max_q max_k", "philox_seed philox_offset"
    saved = f"grad_out {given} out logsumexp"
    windows = "scale window_size_left window_size_right"
    sdpa = "_scaled_dot_product"
    return [
        {f"{sdpa}_flash_attention_for_cpu": _Kernel("CPU", f"{given} {causal} attn_mask scale", _cpu),
         f"{sdpa}_flash_attention_for_cpu_backward": _Kernel(
             "CPU", f"{saved} {causal} attn_mask scale", _cpu_backward)},
        {f"{sdpa}_flash_attention": _Kernel("CUDA", f"{given} {causal} return_debug_mask scale", _flash),
         f"{sdpa}_flash_attention_backward": _Kernel(
             "CUDA", f"{saved} {cums} {causal} {seeds} scale", _flash_backward)},
        {f"{sdpa}_cudnn_attention": _Kernel(
            "CUDA", f"{given} attn_bias compute_log_sumexp {causal} return_debug_mask scale", _cudnn),
         f"{sdpa}_cudnn_attention_backward": _Kernel(
             "CUDA", f"{saved} {seeds} attn_bias {cums} {causal} scale", _cudnn_backward)},
        {f"{sdpa}_efficient_attention": _Kernel(
            "CUDA", f"{given} attn_bias compute_log_sumexp {causal} scale", _efficient),
         f"{sdpa}_efficient_attention_backward": _Kernel(
             "CUDA", f"grad_out_ {given} attn_bias out logsumexp {seeds} dropout_p grad_input_mask is_causal scale",
             _efficient_backward)},
        {"_flash_attention_forward": _Kernel(
            "CUDA", f"{given} {cums} {causal} return_debug_mask {windows} seqused_k alibi_slopes {' '.join(_LATER)}",
            _flash_of_sequences),
         "_flash_attention_backward": _Kernel(
             "CUDA", f"{saved} {cums} {causal} rng_state unused {windows}", _flash_of_sequences_backward)},
    ]
