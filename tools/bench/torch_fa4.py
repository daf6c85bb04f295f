# tools/bench/torch_fa4.py — FlashAttention-4 (flash_attn.cute) on the rows that it computes, for torch_gpu.py
import cutlass
import cutlass.cute as cute
import flash_attn.cute.interface as fa4
import torch
import torch_peers


@cute.jit
def read(tensor, index):
    at, value = cute.make_rmem_tensor(1, cutlass.Int32), cute.make_rmem_tensor(1, tensor.element_type)
    at.store(index)
    value[0] = tensor[at[0]]
    return value.load().to(cutlass.Float32)


# FlashAttention-4 passes these by name.
@cute.jit
def alibi(s, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
    return s + read(aux_tensors[0], h_idx) * (kv_idx - q_idx).to(cutlass.Float32)


@cute.jit
def relative(s, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
    return s + read(aux_tensors[0], q_idx - kv_idx + aux_tensors[0].shape[0] // 2)


def options(case):
    """A row's arguments besides q, k and v."""
    if case.row == "window":
        return {"window_size_left": 1023, "window_size_right": 0}
    out = {"causal": case.row != "full"}
    if case.row == "softcap":
        out["softcap"] = 30.0
    if case.row == "alibi":
        out |= {"score_mod": alibi, "aux_tensors": [torch_peers.slopes(case.heads, "cuda")]}
    if case.row == "relative":
        out |= {"score_mod": relative, "aux_tensors": [torch_peers.table_of(case, "cuda")]}
    return out


def prepare(case, qkv, ordered):
    """The call of a case, and how its results become torch's layout. `ordered`: dq is summed in a fixed order."""
    with torch.no_grad():  # its own layout: batch, sequence, heads, width
        q, k, v = (x.detach() if case.lengths else x.detach().transpose(1, 2).contiguous() for x in qkv)
    said = options(case)
    if case.lengths:
        starts = torch.tensor([0, *case.lengths], device="cuda").cumsum(0).int()
        said |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": case.seq, "max_seqlen_k": case.seq}
    usual = (lambda x: x) if case.lengths else (lambda x: x.transpose(1, 2))
    forward = lambda: fa4._flash_attn_fwd(q, k, v, return_lse=True, **said)[:2]
    if case.direction == "forward":
        return lambda: forward()[0], usual
    out, lse = forward()
    grad = torch.randn(usual(out).shape, generator=torch.Generator("cuda").manual_seed(8), device="cuda", dtype=q.dtype)
    grad = usual(grad).contiguous()
    backward = lambda out, lse: fa4._flash_attn_bwd(q, k, v, out, grad, lse, deterministic=ordered, **said)[:3]
    if case.direction == "backward":
        return lambda: backward(out, lse), usual
    return lambda: backward(*forward()), usual
