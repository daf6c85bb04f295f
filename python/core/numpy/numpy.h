// python/core/numpy/numpy.h — NumPy arrays, read directly from their struct
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include <attune/c.h>

namespace attune::python {

namespace nb = nanobind;

/// A NumPy array as a tensor of up to four dimensions. The buffer protocol takes 0.25 µs an array, most of it to spell
/// the element type; NumpyTensor takes 0.02 µs. The array must outlive the NumpyTensor.
class NumpyTensor {
 public:
  /// False without an exception if the array must be read in another way: it is no numpy.ndarray, or its type, rank or
  /// strides will be refused with a message.
  bool read(nb::handle array);
  /// Makes a new array and stores it in `into`. The type is that of `like`; f32 if `like` is null.
  bool make(const std::int64_t* shape, int rank, const NumpyTensor* like, nb::object& into);

  const attune_tensor& tensor() const { return tensor_; }
  bool writeable() const { return writeable_; }
  bool contiguous() const { return contiguous_; }
  /// The elements' kind in expressions: f, i or b.
  char kind() const;

 private:
  // Not initialized before `read`: a call has a dozen of these, most of them unused.
  attune_tensor tensor_;
  std::int64_t shape_[4], strides_[4];
  bool writeable_, contiguous_;
  PyObject* dtype_;
};

}  // namespace attune::python
