// python/core/call.h — a call by name: its tensors and options, and the functions of Python that it calls back
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "python/core/borrowed.h"
#include "python/core/handle.h"
#include "python/core/raised.h"
#include "python/core/sharding.h"

namespace attune::python {

/// What a call may use, and the functions of Python that it calls back. An exception in one of them, or a signal such
/// as Ctrl-C, stops the call and is raised when it has returned.
struct With {
  attune_with with{};
  nb::object progress{}, loop{};
  Transport* ranks = nullptr;
  Raised raised{};

  With() { with.size = sizeof with, with.user = this; }
  With(const With&) = delete;
  With& operator=(const With&) = delete;

  /// For `progress` of C, `told` being what the function is called with: not 0 to stop.
  template <class... Told>
  std::int32_t tell(Told... told) {
    return !raised.guard([&] {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (progress.is_valid() && !raised) progress(told...);
    }) || raised;
  }

  /// Raises what a callback raised, or what the library says.
  void finish(attune_error* error);
};

/// Lists of a cover, and the memory that they are in.
struct Cover {
  attune_cover* handle = nullptr;
  nb::object memory{};
  explicit Cover(attune_cover* given) : handle(given) {}
  Cover(const Cover&) = delete;
  Cover& operator=(const Cover&) = delete;
  ~Cover() { attune_cover_free(handle); }
};

/// A call's arguments as the C ABI takes them, borrowed while this lives.
class Call {
 public:
  attune_call call{};
  With with;

  /// `recording`: tensors may record gradients.
  Call(const Handle& handle, int pass, bool recording = false);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  /// Tensors, as messages call them, and options: a dict. None is what was not given.
  void take(nb::handle named);

  /// By slot: captured tensors, the gradients of them or None, and parameters.
  void bind(const nb::tuple& captured, nb::handle grads, const nb::tuple& numbers);

  /// Null where no option says anything.
  const attune_with* options() const { return has_with_ ? &with.with : nullptr; }

 private:
  friend struct Options;
  void take_workspace(nb::handle memory);
  void bind_slots(const nb::tuple& list, std::unique_ptr<Borrowed[]>& held, std::vector<const attune_tensor*>& at,
                  bool written);

  const Handle& handle_;
  const bool recording_;
  bool has_with_ = false, has_buffer_ = false;
  Borrowed fixed_[tensors], device_workspace_;
  std::unique_ptr<Borrowed[]> captured_, grads_;
  std::vector<const attune_tensor*> captured_at_, grads_at_;
  std::vector<double> params_;
  Py_buffer buffer_{};
};

}  // namespace attune::python
