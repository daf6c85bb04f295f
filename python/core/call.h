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

  /// Lets Ctrl-C stop the call.
  void listen();

  /// C's `progress`: calls the Python function with `told`. Not 0: stop.
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

  Call(const Handle& handle, int pass);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  /// Tensors, under the names that messages use, and options: a dict. None counts as not given.
  void take(nb::handle named);

  /// Captured tensors, their gradients (or None) and parameters, each by slot.
  void bind(const nb::tuple& captured, nb::handle grads, const nb::tuple& numbers);

  /// Once all is taken. Null if no option is set.
  const attune_with* options();

 private:
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
