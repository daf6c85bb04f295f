# python/attune/torch/_activate.py — torch's own attentions run attune's kernels: activate(), deactivate()
"""`attune.torch.activate()`, and models need no other change.

torch.nn.functional.scaled_dot_product_attention chooses one of several operators of aten. Here attune replaces their
kernels, for the CPU and for CUDA; autograd, autocast and torch.compile around them stay torch's.
"""

from __future__ import annotations

import struct
import threading
import warnings
from typing import Any

import torch

from attune import _core
from attune._errors import Error
from attune.torch._lowering import lower, unlower
from attune.torch._mod import spell
from attune.torch._op import place
from attune.torch._sdpa import dropped, spelled_sdpa
from attune.torch._value import refuse
from attune.torch._varlen import _seen

_lock = threading.Lock()
_library: Any = None
_own: dict[str, Any] = {}  # torch's kernels, by operator
_warned: set[str] = set()


def activate(compile: bool = False, dropout: bool = False) -> None:
    """From here on, torch's own scaled_dot_product_attention runs attune's kernels, and so does what calls it:
    torch.nn.MultiheadAttention, transformers with attn_implementation="sdpa". On GPUs also varlen_attn and jagged
    tensors. Calls that attune does not take go to torch's kernels, as before; a warning gives each reason once.
    With `compile`, a flex_attention that torch.compile compiles from here on runs attune's kernels too.
    With `dropout`, attune's kernels on GPUs also compute calls with a `dropout_p`: seeds are from torch's generator, but
    the pairs that a seed drops are not those of torch's kernels.
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
        if dropout:
            _core.take_dropout(True)
        if compile and lower(_warn):
            from attune.torch import _joint, _lists
            _joint.add()
            _lists.add()


def _replaced() -> Any:
    """Puts attune's kernels in the places of torch's, each forward with its backward, or neither. They hand over what
    they do not take to the operators of this library."""
    fitting = [one for one in _OPERATORS if _fits(one[0], one[2]) and _fits(one[1], one[2])]
    if not fitting:
        refuse("torch-version", "this torch has none of the operators that attune knows",
               "activate() puts attune's kernels in their places",
               "call attune.torch's functions, or take torch 2.15")
    library = torch.library.Library("attune", "FRAGMENT")
    for *pair, key in fitting:
        for name in pair:
            _hand_over(library, name, key)
            place(f"aten::{name}", key, "activated", _made)
    return library


def deactivate() -> None:
    """Gives torch's attentions back their own kernels. Call it while no other thread calls them."""
    global _library
    with _lock:
        if unlower():
            from attune.torch import _joint, _lists
            _joint.remove()
            _lists.remove()
        if _library is not None:
            _core.deactivate_operators()
            _core.take_dropout(False)
            _library._destroy()
        _library = None
        _own.clear()
        _warned.clear()


def _fits(name: str, key: str) -> bool:
    """True if torch has such an operator with a kernel, and attune's can replace that."""
    return (hasattr(torch.library, "get_kernel") and place(f"aten::{name}", "", "activated")
            and torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key))


def _hand_over(library: Any, name: str, key: str) -> None:
    """Makes the operator of attune's to which the kernel in C++ hands over what is torch's own."""
    operator = getattr(torch.ops.aten, name).default
    _own[name] = torch.library.get_kernel(operator, key)
    # No max_q, max_k: torch 2.11 mixes up types if results differ in type. C++ reads both lengths off q and k.
    given, gives = str(operator._schema).removeprefix("aten::").split(" -> ")
    library.define(f"{given} -> {gives.replace('SymInt max_q, SymInt max_k, ', '')}")

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        _warn(_core.why_torch().replace("{dtype}", str(args[0].dtype)))
        made = _own[name].call_boxed(keys, *args, **kwargs)
        return tuple([t for t in made if type(t) is not int]) if type(made) is tuple else made

    library.impl(name, run, key, with_keyset=True)


def _warn(why: str) -> None:
    if why not in _warned:
        _warned.add(why)
        warnings.warn(f"attune: torch's own attention runs: {why}", stacklevel=3)


def _made(flags: list[int], scale: float | None) -> _core.TorchCall | str:
    """The attention of an operator's call, or why attune has none. `flags`: three that calls of graphs have as well; how
    many dimensions the mask has; as bits, which of them have one element; whether it is of bools; is_causal; the window
    of operators for sequences, whether it is one of those, and whether each sequence says how many keys are in use; the
    bits of dropout_p."""
    _, _, _, rank, ones, keeps, causal, left, right, is_windowed, is_used, share = flags
    stand_in = torch.empty([1 if ones >> i & 1 else 0 for i in range(rank)], device="cpu",
                           dtype=torch.bool if keeps else torch.float32)
    used = torch.empty(0, dtype=torch.int32, device="cpu") if is_used else None
    try:
        if is_windowed:
            spelled = spell(None, _seen(None, (left, right), used), torch.device("cpu"), {})[0]
        else:
            spelled = spelled_sdpa(stand_in, stand_in if rank else None, 0.0, bool(causal))
        if share:
            prob = dropped(struct.unpack("d", struct.pack("q", share))[0])
            spelled = spelled.joined(prob, "", {"seed": torch.empty((), dtype=torch.int32, device="cpu")})
        return spelled.call(scale, False)
    except Error as error:
        return f"[{error.code}] {error.problem}"


# A forward, its backward, and the key of the kernels that attune's replace.
_OPERATORS = (
    *[(f"_scaled_dot_product_{name}", f"_scaled_dot_product_{name}_backward", "CPU" if "cpu" in name else "CUDA")
      for name in ("flash_attention_for_cpu", "flash_attention", "cudnn_attention", "efficient_attention")],
    ("_flash_attention_forward", "_flash_attention_backward", "CUDA"))
