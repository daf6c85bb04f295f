// python/core/handle.h — an attention of attune/c.h, its declared captures and parameters, its calls' tensors
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <attune/c.h>

namespace attune::python {

namespace nb = nanobind;

/// A capture or a parameter, by slot.
struct Declared {
  std::string name;
  nb::object word;  ///< the name as an interned str: keywords of a call are compared by address
  char kind;
  int rank;
};

/// An attention of attune/c.h, for all that call it.
struct SharedAttention {
  explicit SharedAttention(attune_attention* of) : attention(of) {}
  SharedAttention(const SharedAttention&) = delete;
  SharedAttention& operator=(const SharedAttention&) = delete;
  ~SharedAttention() { attune_free(attention); }

  attune_attention* const attention;
  std::mutex mutex{};  ///< guards the rest
  /// The bytes of working memory that the last calls on a GPU took, by their tensors' shapes, strides and types.
  std::deque<std::pair<std::vector<std::int64_t>, std::size_t>> workspaces{};
};

struct Handle {
  attune_attention* attention = nullptr;  ///< the shared one
  std::shared_ptr<SharedAttention> shared{};
  std::vector<Declared> captures, params;
};

/// The tensors of a call, in the order of attune_call, under the names that messages use.
struct Row {
  const char* name;
  const attune_tensor* attune_call::*member;
  int written;  // bit 0: by a forward, bit 1: by a backward
};
constexpr int tensors = 18;
constexpr Row rows[tensors] = {{"q", &attune_call::q, 0},
                               {"k", &attune_call::k, 0},
                               {"v", &attune_call::v, 0},
                               {"out", &attune_call::o, 1},
                               {"lse", &attune_call::lse, 1},
                               {"max", &attune_call::max, 1},
                               {"cu_seqlens_q", &attune_call::cu_q, 0},
                               {"cu_seqlens_kv", &attune_call::cu_kv, 0},
                               {"grad_o", &attune_call::grad_o, 0},
                               {"grad_lse", &attune_call::grad_lse, 0},
                               {"dq", &attune_call::dq, 2},
                               {"dk", &attune_call::dk, 2},
                               {"dv", &attune_call::dv, 2},
                               {"kv_len", &attune_call::kv_len, 0},
                               {"q_offsets", &attune_call::q_offsets, 0},
                               {"page_table", &attune_call::page_table, 0},
                               {"o_before", &attune_call::o_before, 0},
                               {"lse_before", &attune_call::lse_before, 0}};

/// True for calls on the host with so many scores that they listen to Ctrl-C; others end before anyone can press it.
inline bool is_long(const attune_call& call) {
  constexpr double most_scores = 1 << 22;
  if (!call.q || !call.k || call.q->device.device_type != ATTUNE_CPU || call.k->ndim < 3) return false;
  double scores = static_cast<double>(call.k->shape[call.k->ndim == 3 ? 0 : 2]);  // packed: all keys
  for (int i = 0; i + 1 < call.q->ndim; ++i) scores *= static_cast<double>(call.q->shape[i]);
  return scores > most_scores;
}

/// The handle of a Python object; null for any other object.
using HandleOf = const Handle* (*)(nb::handle object);

/// The bytes of working memory of a call. Equal calls take equal memory: it is looked up once, and then `prepared`, if
/// given, is called.
attune_error* find_workspace(SharedAttention& of, const attune_call& call, const attune_with& with, std::size_t& bytes,
                             const std::function<void()>& prepared = {});

}  // namespace attune::python
