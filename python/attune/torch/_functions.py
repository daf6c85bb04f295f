# python/attune/torch/_functions.py — torch's functions on values of the kernel: a table by function object
"""What each function and method of torch means inside the kernel.

The table's keys are the functions themselves: a foreign operation named `tanh` is not torch's. `register` adds foreign
operations; an operator's key is its whole name, `approx::tanh`, which its overload and its packet share.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode

from attune.torch._arithmetic import SPELLINGS, Spelling
from attune.torch._value import Trace, Value, refuse, refuse_random

TABLE: dict[Any, Spelling] = {}


def trace_of(things: Any) -> Trace | None:
    """The trace of the first value among arguments, or in a tuple or list of them."""
    for thing in things:
        if isinstance(thing, Value):
            return thing.trace
        if isinstance(thing, (tuple, list)):
            found = trace_of(thing)
            if found is not None:
                return found
    return None


def spelling_of(function: Any) -> Spelling | None:
    """What a function means inside the kernel, if it is known."""
    found = TABLE.get(function)
    return TABLE.get(_name_of(function)) if found is None else found


def _name_of(function: Any) -> str:
    """The name of an operator, else ""."""
    if isinstance(function, OpOverloadPacket):
        return function._qualified_op_name
    return function._name if isinstance(function, OpOverload) else ""


def call(trace: Trace, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of torch on values."""
    if function in RANDOM:
        refuse_random(f"torch's `{getattr(function, '__name__', function)}`")
    spelling = spelling_of(function)
    if spelling is None:
        name = getattr(function, "__name__", str(function))
        refuse("unknown-function", f"torch's `{name}` is not known inside the kernel",
               "attune compiles the functions that docs/torch.md lists",
               "write it with those, or attune.torch.register(function, spelling)")
    if "out" in kwargs or "dtype" in kwargs:  # torch passes some of them even if the user did not
        kwargs = {name: given for name, given in kwargs.items() if given is not None}
    return spelling(trace, *args, **kwargs)


def register(function: Any, spelling: Callable[..., Any]) -> None:
    """Tells what a function that torch does not have means in a score_mod: `spelling`, in functions of torch.

    `function` is an operator, torch.ops.mine.op or its overload torch.ops.mine.op.default, what torch.library.custom_op
    gives, or a function that takes part in __torch_function__.
    """
    function = getattr(function, "_opoverload", function)  # of a custom_op
    TABLE[_name_of(function) or function] = lambda _, *args, **kwargs: spelling(*args, **kwargs)


class Listening(TorchFunctionMode):
    """While active, torch's functions on values write text; functions on tensors alone run and are recorded."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if trace_of(args) is not None or (kwargs and trace_of(kwargs.values()) is not None):
            return call(self.trace, func, args, kwargs)
        if func in RANDOM and not (func in _DROPOUTS and _is_evaluation(args, kwargs)):
            refuse_random(f"torch's `{getattr(func, '__name__', func)}`")
        out = func(*args, **kwargs)
        if func not in _ABOUT:
            self.trace.lasting = False
            number = _constant(func, args)
            if number is not None and isinstance(out, Tensor) and out.dim() == 0:
                self.trace.constants.append((out, number))
                self.trace.typed = True
        return out


def _called(names: str) -> frozenset[Any]:
    return frozenset([getattr(space, name) for name in names.split() for space in (torch, Tensor, F)
                      if hasattr(space, name)])


# Functions of random numbers.
_DROPOUTS = _called("""dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout alpha_dropout_ feature_dropout
feature_dropout_ feature_alpha_dropout feature_alpha_dropout_ native_dropout""")
RANDOM = _DROPOUTS | _called("""rand randn randint randperm rand_like randn_like randint_like bernoulli binomial
multinomial normal poisson rrelu rrelu_ gumbel_softmax bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_
random_ uniform_""")


def _is_evaluation(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for a dropout that drops nothing, because it is not called for training."""
    return args[2:3] == (False,) or kwargs.get("training", kwargs.get("train")) is False


# The results of these on a tensor never change while it is the same tensor.
_ABOUT = frozenset([Tensor.dim, Tensor.size, Tensor.numel, Tensor.stride, Tensor.__len__, Tensor.is_floating_point,
                    Tensor.is_complex, torch.is_floating_point, torch.is_tensor, torch.numel,
                    *(getattr(Tensor, n).__get__ for n in ("shape", "dtype", "device", "ndim", "requires_grad"))])


def _constant(function: Any, args: tuple[Any, ...]) -> float | None:
    """The number that a tensor was made from, if it is nothing else: torch.tensor(-math.inf), for example."""
    at = _MADE_OF.get(function)
    if at is None or len(args) <= at or not isinstance(args[at], (bool, int, float)):
        return None
    return args[at]


_MADE_OF = {torch.tensor: 0, torch.scalar_tensor: 0, torch.full: 1, Tensor.new_tensor: 1, Tensor.new_full: 2}


def _method(spelling: Spelling) -> Callable[..., Any]:
    def method(self: Value, *args: Any, **kwargs: Any) -> Any:
        return spelling(self.trace, self, *args, **kwargs)
    return method


def _torch_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    kwargs = kwargs or {}
    trace = trace_of(args) or trace_of(kwargs.values())
    assert trace is not None
    return call(trace, func, args, kwargs)


def _install() -> None:
    for names, spelling in SPELLINGS.items():
        for name in names.split():
            for space in (torch, Tensor, F, torch.special, torch.linalg):
                if hasattr(space, name):
                    TABLE[getattr(space, name)] = spelling
            if name.startswith("__") and hasattr(operator, name):  # Dynamo passes these on
                TABLE[getattr(operator, name)] = spelling
            if hasattr(Tensor, name):
                setattr(Value, name, _method(spelling))
    TABLE["approx::tanh"] = TABLE[torch.tanh]  # of attention-gym's soft cap
    Value.__torch_function__ = classmethod(_torch_function)  # type: ignore[attr-defined]
    Value.__hash__ = object.__hash__  # type: ignore[method-assign]


_install()
