// python/core/library.h — the library as a whole: its operations, this machine, bundles, caches, watching, memory of
// its own
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
class Watch {
 public:
  Watch(nb::object function, const std::string& facts);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch();
  void stop();

 private:
  attune_watch* handle_ = nullptr;
  /// Not destroyed when the interpreter ends: threads that outlive it may still call it.
  std::unique_ptr<nb::object> function_;
};

/// The rows of ir/ops.def that have a spelling: (spelling, precedence, arguments, takes, gives).
nb::list operations();

/// Writes new keys and values into a cache. `given`: k_new, v_new, k, v, page_table, kv_len and cu_seqlens, each
/// possibly None.
void append(const nb::tuple& given, double k_scale, double v_scale, std::uintptr_t stream, std::int32_t workers);

std::string machine();
void option(const nb::str& name, nb::handle value);
void load_bytes(nb::bytes bundle);
std::string compile(const std::string& manifest, const nb::bytes& bundle, int jobs, nb::object progress);

namespace nb = nanobind;

/// Memory of results for array libraries whose own arrays are immutable.
struct Memory {
  attune_tensor* tensor = nullptr;
  explicit Memory(attune_tensor* given) : tensor(given) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
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
