// python/core/library.h — the library as a whole: operations, this machine, bundles, caches, watching, own memory
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <attune/c.h>

#include "python/core/handle.h"
#include "python/core/raised.h"

namespace attune::python {

/// Calls a Python function with each fact, as JSON, until the watch is stopped or destroyed.
class Watch : Pinned {
 public:
  Watch(nb::object function, const std::string& facts);
  ~Watch();
  void stop();

 private:
  attune_watch* handle_ = nullptr;
  /// Not destroyed when the interpreter ends: threads that outlive it may still call it.
  std::unique_ptr<nb::object> function_;
};

/// The rows of ir/ops.def that have a spelling: (spelling, precedence, arguments, takes, gives).
nb::list operations();

/// The tensors of new keys and values, under the names that messages use.
struct NewRow {
  const char* name;
  const attune_tensor* attune_new_keys::*member;
  bool written;
};
constexpr NewRow rows_of_keys[] = {{"k_new", &attune_new_keys::k_new, false},
                                   {"v_new", &attune_new_keys::v_new, false},
                                   {"k", &attune_new_keys::k, true},
                                   {"v", &attune_new_keys::v, true},
                                   {"page_table", &attune_new_keys::page_table, false},
                                   {"kv_len", &attune_new_keys::kv_len, false},
                                   {"cu_seqlens", &attune_new_keys::cu_new, false},
                                   {"slots", &attune_new_keys::slots, false}};

/// Writes new keys and values into a cache. `given`: what rows_of_keys names, each possibly None.
void append(const nb::tuple& given, double k_scale, double v_scale, std::uintptr_t stream, std::int32_t workers);

std::string machine();
void option(const nb::str& name, nb::handle value);
void load_bytes(nb::bytes bundle);
std::string compile(const std::string& manifest, const nb::bytes& bundle, int jobs, nb::object progress);

namespace nb = nanobind;

/// Memory of results for array libraries whose own arrays are immutable.
struct Memory : Pinned {
  attune_tensor* tensor = nullptr;
  explicit Memory(attune_tensor* given) : tensor(given) {}
  ~Memory() { attune_dealloc(tensor); }
};

/// The memory as a DLPack capsule.
nb::object exported(nb::object self);

/// New memory of the type and device of `like`.
nb::object empty(nb::handle like, const std::vector<std::int64_t>& shape, bool f32);

/// Adds `jax_handlers`, which returns the custom-call handlers as capsules, by XLA's platform name.
void add_jax(nb::module_& m, HandleOf handle_of);

/// Adds `quick` and `quick_line` to the module: decorators of Attention.__call__ and of attention(). They make common
/// calls themselves and pass all others, including mistakes, to the decorated function. Both paths give the same bits.
/// attention() reports each attention that it makes to `remember`.
void add_quick(nb::module_& m, HandleOf handle_of);

}  // namespace attune::python
