# python/attune/torch/_record.py — attune's kernels under torch's own autograd, which records a call without Python
"""Fills operators of aten that torch has for other devices' attentions: they have an autograd node in C++."""

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
# The same for GPUs alone: on the CPU nobody has it.
_OF_GPUS = "aten::_scaled_dot_product_efficient_attention"
_GPU_FORWARD = (f"{_OF_GPUS}({_GIVEN}, Tensor? attn_bias, bool compute_log_sumexp, {_TOLD.format('=0.', '=False')}, *, "
                "float? scale=None) -> (Tensor output, Tensor log_sumexp, Tensor philox_seed, Tensor philox_offset)")
_GPU_BACKWARD = (f"{_OF_GPUS}_backward(Tensor grad_out_, {_GIVEN}, Tensor attn_bias, Tensor out, Tensor logsumexp, "
                 "Tensor philox_seed, Tensor philox_offset, float dropout_p, bool[4] grad_input_mask, "
                 "bool is_causal=False, *, float? scale=None) -> (Tensor, Tensor, Tensor, Tensor)")


def recorder() -> type[_core.RecordedCall] | None:
    """Calls that torch's own autograd records; None where the operators are not as expected, or another library has
    filled them."""
    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if hooks is None or not _is_free(_NAME, (_FORWARD, _BACKWARD), ("CPU", "CUDA")):
        return None
    op, function = getattr(torch.ops.aten, _NAME.removeprefix("aten::")).default._op, None
    if _is_free(_OF_GPUS, (_GPU_FORWARD, _GPU_BACKWARD), ("CPU",)):
        function = getattr(torch._C._VariableFunctions, _OF_GPUS.removeprefix("aten::"), None)
    found = _core.record_torch(op, function, hooks, from_dlpack, _address_of)
    return _core.RecordedCall if found else None


def _is_free(name: str, schemas: tuple[str, str], keys: tuple[str, ...]) -> bool:
    """True if the operator and its backward are as expected, and nobody has filled them for these devices."""
    for one, schema in zip((name, f"{name}_backward"), schemas):
        packet = getattr(torch.ops.aten, one.removeprefix("aten::"), None)
        if packet is None or str(packet.default._schema) != schema:
            return False
    return not any([torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys])


def _address_of(name: str) -> int:
    """The address of a function of torch's stable C ABI, or 0."""
    for library in ("libtorch_cpu.so", "libtorch_cuda.so"):  # both are loaded already, the second if torch has it
        path = Path(torch.__file__).parent / "lib" / library
        function = getattr(ctypes.CDLL(str(path)), name, None) if path.exists() else None
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0
