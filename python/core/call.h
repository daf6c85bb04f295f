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
struct With : Pinned {
  attune_with with{};
  nb::object progress{}, loop{};
  Transport* ranks = nullptr;
  Raised raised{};

  With() { with.size = sizeof with, with.user = this; }

  /// Lets Ctrl-C stop the call.
  void listen();

  /// C's `progress`: calls the Python function with `told`. A result other than 0 stops the call.
  template <class... Told>
  std::int32_t tell(Told... told) {
    return !raised.guard([&] {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (progress.is_valid() && !raised) called_back(progress, nb::make_tuple(told...));
    }) || raised;
  }

  /// Raises a callback's exception if there is one, else the library's error.
  void finish(attune_error* error);
};

/// Sets an option of a call, by the name of Python's argument. True if it is one of attune_with's; raises a KeyError if
/// there is none of this name.
bool set_option(attune_call& call, With& with, nb::handle name, nb::handle value);

/// A cover's lists and their memory.
struct Cover : Pinned {
  attune_cover* handle = nullptr;
  nb::object memory{};
  explicit Cover(attune_cover* given) : handle(given) {}
  ~Cover() { attune_cover_free(handle); }
};

/// A call's arguments as the C ABI takes them, borrowed while this lives.
class Call : Pinned {
 public:
  attune_call call{};
  With with;

  /// `named`: tensors, under the names that messages use, and options, in a dict where None counts as not given.
  /// Captured tensors, their gradients (or None) and parameters are each by slot.
  Call(const Handle& handle, int pass, nb::handle named, const nb::tuple& captured, nb::handle grads,
       const nb::tuple& numbers);
  ~Call();

  /// Null if no option is set.
  const attune_with* options();

 private:
  Call(const Handle& handle, int pass);
  void take(nb::handle named);
  void bind(const nb::tuple& captured, nb::handle grads, const nb::tuple& numbers);
  void take_workspace(nb::handle memory);
  void bind_slots(const nb::tuple& list, std::unique_ptr<Borrowed[]>& held, std::vector<const attune_tensor*>& at,
                  bool written);

  const Handle& handle_;
  bool has_with_ = false, has_buffer_ = false;
  Borrowed fixed_[tensors], device_workspace_;
  std::unique_ptr<Borrowed[]> captured_, grads_;
  std::vector<const attune_tensor*> captured_at_, grads_at_;
  std::vector<double> params_;
  Py_buffer buffer_{};
};

}  // namespace attune::python
