// codegen/kernels/refusals.h — why kernels do not take a call, in the words that several of them share; empty: they do
#pragma once

#include <fmt/format.h>

#include "codegen/choose/kernel.h"

namespace attune::codegen {

inline std::string why_not_hopper(const KernelSpec& spec) {
  if (spec.arch == 90) return {};
  return fmt::format("it is for compute capability 9.0, and the device has {}.{}", spec.arch / 10, spec.arch % 10);
}
inline std::string why_not_16_bits(const KernelSpec& spec) {
  if (spec.dtype == DType::bf16 || spec.dtype == DType::f16) return {};
  return fmt::format("its products are of bf16 or f16, and q, k and v hold {}", name_of(spec.dtype));
}
inline std::string why_not_fp8_kv(const KernelSpec& spec) {
  return spec.cache.fp8 ? "it reads k and v in the type of q" : "";
}
inline std::string why_not_other_out(const KernelSpec& spec) {
  if (spec.out == spec.dtype) return {};
  return fmt::format("it writes o as {}, not as {}", name_of(spec.dtype), name_of(spec.out));
}
/// TMA cannot take the call's tensors.
inline std::string why_no_tma(const KernelSpec& spec) {
  if (spec.strides.tma) return {};
  return "TMA needs tensors that are not empty, with contiguous rows and other strides that are positive "
         "multiples of 16 bytes";
}
inline std::string why_not_per_entry(const KernelSpec& spec) {
  return spec.cache.per_entry ? "entries have their own lengths, positions or pages" : "";
}
inline std::string why_not_prob(const Traits& facts) {
  if (!facts.has_prob || facts.degree == 1) return {};
  return "the prob mod is not a multiple of p";
}
/// For kernels that walk over a row's keys once.
inline std::string why_needs_sum(const Traits& facts) {
  if (!facts.has_prob || facts.degree > 0) return {};
  return "the prob mod is neither a multiple of p nor one of a power of p, so it needs each row's sum first";
}

// ---- backward ----

inline std::string why_not_backward90(const KernelSpec& spec) {
  if (std::string why = why_not_hopper(spec); !why.empty()) return why;
  if (std::string why = why_not_16_bits(spec); !why.empty()) return why;
  return why_no_tma(spec);
}
/// For wide heads, one kernel computes dq and another dk and dv.
inline std::string why_not_wide_backward90(const KernelSpec& spec, const Traits& facts) {
  if (std::string why = why_not_backward90(spec); !why.empty()) return why;
  if (std::string why = why_not_prob(facts); !why.empty()) return why;
  if (spec.d <= 128 && spec.dv <= 128) return "it is for heads wider than 128";
  if (spec.packed) return "sequences are packed";
  if (facts.has_terms) return "the call asks for gradients of captured tensors";
  return facts.listed ? "the mask needs tile lists" : "";
}

/// For a tile of such a kernel, whose operands are packed in `parts` parts.
inline std::string why_illegal_parts90(int parts) { return parts == 3 ? "parts is 1, 2 or 4" : ""; }

/// For f32, one kernel computes dq and another dk and dv, with products of f16.
inline std::string why_not_f32_backward90(const KernelSpec& spec, const Traits& facts) {
  if (std::string why = why_not_hopper(spec); !why.empty()) return why;
  if (std::string why = why_no_tma(spec); !why.empty()) return why;
  if (spec.d > 128 || spec.dv > 128)
    return fmt::format("it supports heads up to 128 wide; D is {} and Dv is {}", spec.d, spec.dv);
  if (spec.packed) return "sequences are packed";
  if (facts.has_prob) return "there is a prob mod";
  if (facts.has_terms) return "the call asks for gradients of captured tensors";
  return facts.listed ? "the mask needs tile lists" : "";
}

}  // namespace attune::codegen
