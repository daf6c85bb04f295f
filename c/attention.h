// c/attention.h — the definition of attune_attention, an Attention and the declared names of its slots; DLPack's
// tensors as attune's
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <attune/attention.h>
#include <attune/c.h>
#include <attune/tensor.h>

#include "compiler/lower.h"
#include "runtime/machine/mutex.h"

namespace attune::c {

/// A tensor's name in an Error: "q", "capture `slope`". The text is only built for an Error, since a call takes a
/// microsecond.
struct Called {
  const char* before = "";
  std::string_view name;
  const char* after = "";

  std::string text() const;
};

/// Returns an empty Tensor for NULL.
Tensor tensor_of(const attune_tensor* from, const Called& called);
inline Tensor tensor_of(const attune_tensor* from, const char* name) { return tensor_of(from, Called{.name = name}); }

/// A capture or parameter as it was declared.
struct Name {
  std::string name;
  char kind;
  int rank;
  std::optional<std::uint32_t> slot{};  ///< of the Mod; none: no expression reads it
};

/// The index of each slot's declared name, by slot of the Mod.
using Order = std::vector<std::uint32_t>;

}  // namespace attune::c

struct attune_attention {
  attune::Attention attention;
  std::vector<attune::c::Name> captures, params;
  attune::c::Order capture_of, param_of;  ///< by slot of the Mod
  std::vector<std::pair<std::string, std::string>> written, lets;

  /// The attention lowered with a log, for attune_explain and attune_describe; made on first use.
  struct Story {
    attune::compiler::Steps steps;
    attune::compiler::LoweredMod lowered;
  };
  const Story& story() const;

  /// The caller's reference, and one for each call that runs.
  mutable std::atomic<int> references{1};

 private:
  mutable attune::runtime::Mutex mutex_;
  mutable std::optional<Story> story_;
};

namespace attune::c {

/// Keeps an attention while a call uses it, even if its owner frees it meanwhile.
class Held {
 public:
  Held(const attune_attention* attention, const char* function);
  ~Held();
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  const attune_attention* operator->() const { return attention_; }

 private:
  const attune_attention* attention_;
};

/// Tensors by slot of the Mod, from tensors by slot of the declaration.
std::vector<Tensor> captures_of(const attune_attention& attention, const attune_tensor* const* captures,
                                std::size_t count);
std::vector<double> params_of(const attune_attention& attention, const double* params, std::size_t count);

}  // namespace attune::c
