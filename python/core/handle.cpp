// python/core/handle.cpp — how much working memory a call on a GPU takes
#include "python/core/handle.h"

namespace attune::python {
namespace {

/// What a tensor adds to the key of a call's workspace: kernels are chosen by shapes, strides, types and alignment.
void add(std::vector<std::int64_t>& key, const attune_tensor* of) {
  constexpr std::uintptr_t widest_access = 16;
  if (!of) return key.push_back(-1);
  const auto address = reinterpret_cast<std::uintptr_t>(of->data) + of->byte_offset;
  key.push_back(of->ndim | of->dtype.code << 8 | of->dtype.bits << 16 |
                static_cast<std::int64_t>(address % widest_access) << 32);
  key.insert(key.end(), of->shape, of->shape + of->ndim);
  if (of->strides) key.insert(key.end(), of->strides, of->strides + of->ndim);
}

/// Equal calls take equal working memory.
std::vector<std::int64_t> key_of(const attune_call& call) {
  std::vector<std::int64_t> key{call.pass,      call.q->device.device_id, call.q_offset,        call.kv_offset,
                                call.max_q_len, call.max_kv_len,          call.fixed_split_size};
  key.reserve(128);
  for (const Row& row : rows) add(key, call.*row.member);
  for (std::size_t i = 0; i < call.n_captures; ++i) add(key, call.captures[i]);
  for (std::size_t i = 0; i < call.n_captured_grads; ++i) add(key, call.captured_grads[i]);
  return key;
}

}  // namespace

attune_error* find_workspace(SharedAttention& of, const attune_call& call, const attune_with& with, std::size_t& bytes,
                             const std::function<void()>& prepared) {
  constexpr std::size_t most = 64;
  std::vector<std::int64_t> key = key_of(call);
  {
    const std::lock_guard lock(of.mutex);
    for (const auto& [known, found] : of.workspaces)
      if (known == key) return bytes = found, nullptr;
  }
  if (attune_error* const error = attune_prepare(of.attention, &call, &with, &bytes, nullptr)) return error;
  if (prepared) prepared();
  const std::lock_guard lock(of.mutex);
  if (of.workspaces.size() == most) of.workspaces.pop_front();
  of.workspaces.emplace_back(std::move(key), bytes);
  return nullptr;
}

}  // namespace attune::python
