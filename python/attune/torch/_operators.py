# python/attune/torch/_operators.py — what the core calls of torch, and its kernels for torch's operators
"""The core computes in kernels of operators, and calls torch over its C ABI: attune is built without torch."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from attune import _core

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
