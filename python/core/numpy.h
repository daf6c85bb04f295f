// python/core/numpy.h — arrays of NumPy, read where they lie
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include <attune/c.h>

namespace attune::python {

namespace nb = nanobind;

/// An array of NumPy as a tensor of up to four dimensions. The buffer protocol takes 0.25 µs an array, most of it to
/// spell the type of its elements; this takes 0.02 µs. The array must live as long as this.
class NumpyTensor {
 public:
  /// False, and no exception, where it must be read in another way: it is no numpy.ndarray, or of a type, a rank or
  /// strides that messages tell of.
  bool read(nb::handle array);
  /// A new array, which is kept in `into`. `like`: whose type it has; null: f32.
  bool make(const std::int64_t* shape, int rank, const NumpyTensor* like, nb::object& into);

  const attune_tensor& tensor() const { return tensor_; }
  bool writeable() const { return writeable_; }
  bool contiguous() const { return contiguous_; }
  /// How expressions see its elements: f, i or b.
  char kind() const;

 private:
  // Set by `read`: a call has a dozen of these, most of them unused.
  attune_tensor tensor_;
  std::int64_t shape_[4], strides_[4];
  bool writeable_, contiguous_;
  PyObject* dtype_;
};

}  // namespace attune::python
