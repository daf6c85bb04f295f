// codegen/choose/kernels.cpp — the list of GPU kernels: a row each
#include "codegen/choose/kernels.h"

#include <atomic>
#include <vector>

namespace attune::codegen {

// Each row declares and lists a kernel, which is in a file of this name in codegen/kernels.
#define ATTUNE_FORWARD_KERNELS(ROW) \
  ROW(mla_sm90)                     \
  ROW(decode_sm80)                  \
  ROW(forward_e4m3_sm90)            \
  ROW(forward_sm90)                 \
  ROW(forward_f32_sm90)             \
  ROW(forward_sm80)
#define ATTUNE_BACKWARD_KERNELS(ROW) ROW(backward_sm90)
#define ATTUNE_QUERIES_KERNELS(ROW) \
  ROW(queries_sm90)                 \
  ROW(queries_f32_sm90)             \
  ROW(queries_sm80)
#define ATTUNE_KEYS_KERNELS(ROW) \
  ROW(keys_sm90)                 \
  ROW(keys_f32_sm90)             \
  ROW(keys_sm80)

#define ATTUNE_DECLARE(name) extern const KernelDescriptor name;
ATTUNE_FORWARD_KERNELS(ATTUNE_DECLARE)
ATTUNE_BACKWARD_KERNELS(ATTUNE_DECLARE)
ATTUNE_QUERIES_KERNELS(ATTUNE_DECLARE)
ATTUNE_KEYS_KERNELS(ATTUNE_DECLARE)
#undef ATTUNE_DECLARE

namespace {

// Never destroyed: lists are read until the process ends.
struct Added {
  std::atomic<bool> there = false;
  Way way = Way::forward;
  std::vector<const KernelDescriptor*> all;
};
Added& added() {
  static Added& one = *new Added;
  return one;
}
// So that no process is forked while another thread makes it.
[[maybe_unused]] const Added& made_at_load = added();

}  // namespace

KernelBefore::KernelBefore(const KernelDescriptor& kernel) {
  Added& one = added();
  one.way = kernel.way;
  one.all = {&kernel};
  for (const KernelDescriptor* other : kernels(kernel.way)) one.all.push_back(other);
  one.there = true;
}

KernelBefore::~KernelBefore() { added().there = false; }

Kernels kernels(Way way) {
  if (added().there && added().way == way) return added().all;
#define ATTUNE_LIST(name) &name,
  static constexpr const KernelDescriptor* forward[] = {ATTUNE_FORWARD_KERNELS(ATTUNE_LIST)};
  static constexpr const KernelDescriptor* backward[] = {ATTUNE_BACKWARD_KERNELS(ATTUNE_LIST)};
  static constexpr const KernelDescriptor* queries[] = {ATTUNE_QUERIES_KERNELS(ATTUNE_LIST)};
  static constexpr const KernelDescriptor* keys[] = {ATTUNE_KEYS_KERNELS(ATTUNE_LIST)};
#undef ATTUNE_LIST
  switch (way) {
    case Way::forward: return forward;
    case Way::backward: return backward;
    case Way::queries: return queries;
    case Way::keys: return keys;
  }
  return {};
}

#undef ATTUNE_FORWARD_KERNELS
#undef ATTUNE_BACKWARD_KERNELS
#undef ATTUNE_QUERIES_KERNELS
#undef ATTUNE_KEYS_KERNELS

}  // namespace attune::codegen
