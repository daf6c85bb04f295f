// python/core/handle.h — an attention of attune/c.h, how its captures and parameters were declared, and the tensors of
// its calls
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
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

/// The working memory of a call on a GPU, by the tensors' shapes, strides and types.
struct Workspace {
  std::vector<std::int64_t> key{};
  std::size_t bytes = 0;
  nb::object model{};  ///< for torch.empty_like
};

/// Those of the last calls.
struct Workspaces {
  static constexpr std::size_t most = 64;
  std::vector<Workspace> all{};
  std::size_t oldest = 0;
};

struct Handle {
  attune_attention* attention = nullptr;
  std::vector<Declared> captures, params;
  mutable Workspaces workspaces{};  ///< guarded by the GIL

  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (!shared_) attune_free(attention);
  }

  /// The attention, for those that outlive this object.
  std::shared_ptr<attune_attention> shared() {
    if (!shared_) shared_.reset(attention, attune_free);
    return shared_;
  }

 private:
  std::shared_ptr<attune_attention> shared_;
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

/// The handle of a Python object; null for any other object.
using HandleOf = const Handle* (*)(nb::handle object);

}  // namespace attune::python
