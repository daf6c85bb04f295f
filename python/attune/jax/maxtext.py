# python/attune/jax/maxtext.py — attune inside MaxText: what its AttentionOp gives to flash attention runs attune
"""`attune.jax.maxtext.enable()`, and models of MaxText train and prefill with attune.

Calls of the kernels "flash", "cudnn_flash_te" and "cudnn_flash_jax" (`attention` in MaxText's configuration) become
attune's, and those of "autoselected" that are flash attention on a GPU. Decoding and other kernels stay MaxText's.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax.numpy as jnp
from maxtext.common.common_types import MODEL_MODE_AUTOREGRESSIVE, AttentionType
from maxtext.layers.attention_op import AttentionOp

from attune import _arguments
from attune.jax._attention import call
from attune.jax._call import Array
from attune.jax._dot import shaped, whole

_theirs = AttentionOp.apply_attention
_signature = inspect.signature(_theirs)
# What MaxText's masks of training and prefill do not depend on.
_NOT_READ = frozenset(["segment_positions", "lengths", "model_mode", "use_ragged_attention", "qk_product_einsum",
                       "wv_product_einsum"])


def enable() -> None:
    """Makes MaxText's AttentionOp call attune, in programs that JAX traces from now on."""
    AttentionOp.apply_attention = _apply_attention


def disable() -> None:
    """Gives AttentionOp its own method back."""
    AttentionOp.apply_attention = _theirs


@functools.wraps(_theirs)
def _apply_attention(self: Any, *given: Any, **named: Any) -> Any:
    arguments = _signature.bind(self, *given, **named).arguments
    if not _is_flash(self, arguments["query"].shape[-3], arguments["model_mode"]):
        return _theirs(self, *given, **named)
    del arguments["self"]
    return attention(self, **arguments), None, None  # normalised: there is no maximum and no sum


def _is_flash(op: Any, length: int, mode: str) -> bool:
    """True where MaxText itself would not take its dot_product, or what it has for TPUs."""
    platform = op.mesh.devices.flat[0].platform
    if mode == MODEL_MODE_AUTOREGRESSIVE or platform == "tpu":
        return False
    if op.attention_kernel == "autoselected":
        return platform == "gpu" and length >= 128
    return op.attention_kernel in ("flash", "cudnn_flash_te", "cudnn_flash_jax")


def attention(op: Any, query: Array, key: Array, value: Array, decoder_segment_ids: Array | None = None, *,
              previous_chunk: Any = None, bidirectional_mask: Array | None = None, sinks: Array | None = None,
              decoder_segment_ids_kv: Array | None = None, **other: Any) -> Array:
    """What `op.apply_attention_dot` computes in training and prefill, normalised: [batch, positions, heads, width].

    `op` is an AttentionOp: its attention type, window, chunk and soft cap count. A query without keys is 0, where
    dot_product averages all values.
    """
    config, kind = op.config, op.attention_type
    is_cut = op.mesh.shape.get(config.context_sharding, 1) > 1
    drops = op.dropout_rate if op.attention_kernel.startswith("cudnn") else 0.0  # MaxText's others never do
    refused = {"moba": config.moba, "context parallelism": is_cut, "dropout_rate": drops,
               **{n: x for n, x in other.items() if n not in _NOT_READ}}
    for name, x in refused.items():
        if x is not None and x is not False and not (isinstance(x, (int, float)) and x == 0):
            raise _arguments.bad(name, x, "not a part of what attune computes for MaxText",
                                 "leave it out, or set attention to 'dot_product' in MaxText's configuration")
    q, k, v = (x.dequant().astype(query.dtype) if hasattr(x, "dequant") else x for x in (query, key, value))
    (entries, rows, heads), keys = q.shape[:3], k.shape[1]
    first = 0 if previous_chunk is None else previous_chunk.shape[1]
    held: dict[str, Any] = {}
    kept = _seen(op, kind)
    if decoder_segment_ids is not None:
        apart = decoder_segment_ids_kv is not None
        held["q_segments"] = whole("decoder_segment_ids", decoder_segment_ids,
                                   (entries, first + rows if apart else keys))
        if apart:
            held["kv_segments"] = whole("decoder_segment_ids_kv", decoder_segment_ids_kv, (entries, keys))
        of_key = f"{'kv' if apart else 'q'}_segments[b, kv]"
        kept += [f"q_segments[b, q] == {of_key}", f"{of_key} >= 0"]
    mask = " && ".join(kept) or None
    if bidirectional_mask is not None and mask is not None:
        image = shaped("bidirectional_mask", jnp.asarray(bidirectional_mask, bool), (entries, keys),
                       "which keys are of images")
        starts = image & ~jnp.pad(image, ((0, 0), (1, 0)))[:, :-1]
        held["images"] = jnp.where(image, jnp.cumsum(starts, 1), 0).astype(jnp.int32)
        mask = f"{mask} || images[b, q] > 0 && images[b, q] == images[b, kv]"
    score, cap = None, op.attn_logits_soft_cap
    if cap:
        held["cap"] = _arguments.real("attn_logits_soft_cap", cap)
        score = "cap * tanh(s / cap)"
    if sinks is not None:
        held["sinks"] = shaped("sinks", jnp.asarray(sinks), (heads,), "a logit for each head of the query")
    parts = {"score": score, "mask": mask, "sink": None if sinks is None else "sinks[h]"}
    return call(parts, held, (q, k, v), {}, {"q_offset": first}, lets={}, scale=1.0, heads_inside=True)


def _seen(op: Any, kind: AttentionType) -> list[str]:
    """Which keys a query sees by their positions."""
    if kind == AttentionType.FULL:
        return []
    if kind == AttentionType.BLOCK_DIFFUSION:
        block = _arguments.whole("causal_block_size", op.causal_block_size, 1)
        return [f"kv / {block} <= q / {block}"]
    if kind == AttentionType.LOCAL_SLIDING:
        return ["kv <= q", f"q - kv < {_arguments.whole('sliding_window_size', op.sliding_window_size, 1)}"]
    if kind == AttentionType.CHUNK:
        chunk = _arguments.whole("chunk_attn_window_size", op.chunk_attn_window_size, 1)
        return ["kv <= q", f"kv / {chunk} == q / {chunk}"]
    if kind in (AttentionType.GLOBAL, AttentionType.MLA):
        return ["kv <= q"]
    raise _arguments.bad("attention_type", kind.value, "a type whose mask follows from positions and segments",
                         "set attention to 'dot_product' in MaxText's configuration")
