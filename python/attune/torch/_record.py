# python/attune/torch/_record.py — attune's kernels under torch's own autograd, which records a call without Python
"""Fills two operators of aten that torch has for other devices' attentions: they have an autograd node in C++."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch.utils.dlpack import from_dlpack

from attune import _core

_NAME = "aten::_scaled_dot_product_fused_attention_overrideable"
_GIVEN = "Tensor query, Tensor key, Tensor value"
_TOLD = "float dropout_p{}, bool is_causal{}"
_SAVED = "Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k"
# What attune's kernels take and give: torch promises its C ABI, and not the operators.
_FORWARD = (f"{_NAME}({_GIVEN}, Tensor? attn_bias=None, {_TOLD.format('=0.', '=False')}, "
            "bool return_debug_mask=False, *, "
            f"float? scale=None) -> (Tensor output, Tensor logsumexp, {_SAVED}, Tensor philox_seed, "
            "Tensor philox_offset, Tensor debug_attn_mask)")
_BACKWARD = (f"{_NAME}_backward(Tensor grad_out, {_GIVEN}, Tensor attn_bias, bool[4] grad_input_mask, Tensor out, "
             f"Tensor logsumexp, {_SAVED}, {_TOLD.format('', '')}, Tensor philox_seed, Tensor philox_offset, *, "
             "float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_attn_bias)")


def recorder() -> type[_core.RecordedCall] | None:
    """Calls that torch's own autograd records; None where the operators are not as expected, or another library has
    filled them."""
    name = _NAME.removeprefix("aten::")
    packet, backward = (getattr(torch.ops.aten, n, None) for n in (name, f"{name}_backward"))
    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if packet is None or backward is None or hooks is None:
        return None
    if (str(packet.default._schema), str(backward.default._schema)) != (_FORWARD, _BACKWARD):
        return None
    if any([torch._C._dispatch_has_kernel_for_dispatch_key(_NAME, key) for key in ("CPU", "CUDA")]):
        return None
    found = _core.record_torch(packet.default._op, hooks, from_dlpack, _address_of)
    return _core.RecordedCall if found else None


def _address_of(name: str) -> int:
    """The address of a function of torch's stable C ABI, or 0."""
    for library in ("libtorch_cpu.so", "libtorch_cuda.so"):  # both are loaded already, the second if torch has it
        path = Path(torch.__file__).parent / "lib" / library
        function = getattr(ctypes.CDLL(str(path)), name, None) if path.exists() else None
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0
