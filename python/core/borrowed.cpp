// python/core/borrowed.cpp — buffers, array interfaces and DLPack capsules read into the fields of a tensor
#include "python/core/borrowed.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>

namespace attune::python {

const Exchange* exchange_of(PyTypeObject* type) {
  struct Known {
    PyTypeObject* type = nullptr;  // a reference that is never released
    const Exchange* functions = nullptr;
  };
  thread_local std::array<Known, 4> known{};
  thread_local std::size_t oldest = 0;
  for (const Known& k : known)
    if (k.type == type) return k.functions;
  const Exchange* functions = nullptr;
  const auto object = nb::handle(reinterpret_cast<PyObject*>(type));
  if (nb::hasattr(object, "__dlpack_c_exchange_api__")) {
    const nb::object capsule = object.attr("__dlpack_c_exchange_api__");
    if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api"))
      functions = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    while (functions && functions->major > 1) functions = functions->previous;
    if (functions && !functions->tensor_from_object) functions = nullptr;
  }
  known[oldest] = {type, functions};
  oldest = (oldest + 1) % known.size();
  Py_INCREF(object.ptr());
  return functions;
}

nb::object capsule_of(Managed* managed) {
  return nb::steal(PyCapsule_New(managed, "dltensor", [](PyObject* capsule) {
    if (std::strcmp(PyCapsule_GetName(capsule), "dltensor") != 0) return;  // a consumer has taken it
    auto* unused = static_cast<Managed*>(PyCapsule_GetPointer(capsule, "dltensor"));
    unused->deleter(unused);
  }));
}

namespace {

std::string text_of(const nb::object& object) { return nb::cast<std::string>(nb::steal(PyObject_Str(object.ptr()))); }

std::string type_of(nb::handle object) { return text_of(object.type().attr("__name__")); }

std::string article(const std::string& word) { return (std::strchr("AEIOUaeiou", word[0]) ? "an " : "a ") + word; }

/// The pending exception as text; it is cleared.
std::string said(const nb::python_error& error) { return nb::cast<std::string>(nb::str(error.value())); }

[[noreturn]] void refuse_type(const char* name, const std::string& type) {
  refuse("tensor-type", std::string("`") + name + "` holds " + type,
         "attune reads f16, bf16, f32, f64, e4m3, i8 to i64, u8 and bool, in this machine's byte order",
         "convert it, e.g. with .astype('float32')");
}

[[noreturn]] void refuse_read_only(const char* name) {
  refuse("tensor-read-only", std::string("`") + name + "` cannot be written", "it is a read-only array",
         "pass an array of your own, or leave it out");
}

[[noreturn]] void refuse_unreadable(const char* name, const std::string& why, const char* fix) {
  refuse("tensor-unreadable", std::string("`") + name + "` cannot be read", why, fix);
}

/// A format of the buffer protocol: struct's letters, in the machine's byte order.
std::optional<attune_dtype> type_of_format(std::string_view format, std::size_t bytes) {
  if (!format.empty() && (format[0] == '@' || format[0] == '=' || format[0] == '<')) format.remove_prefix(1);
  if (format.size() != 1) return std::nullopt;
  const auto bits = static_cast<std::uint8_t>(8 * bytes);
  switch (format[0]) {
    case 'e':
    case 'f':
    case 'd': return attune_dtype{ATTUNE_FLOAT, bits, 1};
    case '?': return attune_dtype{ATTUNE_BOOL, 8, 1};
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q': return attune_dtype{ATTUNE_INT, bits, 1};
    case 'B': return attune_dtype{ATTUNE_UINT, bits, 1};
    default: return std::nullopt;
  }
}

/// Thrown for a malformed array interface.
struct Malformed {
  std::string why;
};

template <class T>
T part_of(const nb::dict& fields, const char* name, const char* wanted) {
  if (fields.contains(name)) {
    const nb::object found = fields[name];
    if (nb::isinstance<T>(found)) return nb::cast<T>(found);
  }
  throw Malformed{std::string("has no ") + wanted};
}

std::int64_t number_in(nb::handle list, std::size_t i, const char* of) {
  std::int64_t number = 0;
  if (!nb::try_cast(nb::cast<nb::tuple>(list)[i], number))
    throw Malformed{std::string("has ") + of + " that are no integers of 64 bits"};
  return number;
}

/// A typestr of the array interfaces: "<f4". bf16 and e4m3 have no typestr: their elements are untyped bytes, and the
/// dtype's name tells them apart (float8_e4m3fn for e4m3).
std::optional<attune_dtype> type_of_typestr(std::string_view typestr, nb::handle object) {
  if (typestr.size() < 3 || typestr[0] == '>') return std::nullopt;
  unsigned bytes = 0;
  const char* const end = typestr.data() + typestr.size();
  if (const auto [at, error] = std::from_chars(typestr.data() + 2, end, bytes); error != std::errc() || at != end)
    return std::nullopt;
  if (bytes < 1 || bytes > 16) return std::nullopt;
  const auto bits = static_cast<std::uint8_t>(8 * bytes);
  switch (typestr[1]) {
    case 'f':
      if (bits == 8) break;
      return attune_dtype{ATTUNE_FLOAT, bits, 1};
    case 'i': return attune_dtype{ATTUNE_INT, bits, 1};
    case 'b': return bits == 8 ? std::optional(attune_dtype{ATTUNE_BOOL, 8, 1}) : std::nullopt;
    case 'u':
      if (bits == 8) return attune_dtype{ATTUNE_UINT, bits, 1};
      return std::nullopt;
    case 'V': break;
    default: return std::nullopt;
  }
  if (!nb::hasattr(object, "dtype")) return std::nullopt;
  const std::string named = text_of(object.attr("dtype"));
  if (named == "bfloat16" && bits == 16) return attune_dtype{ATTUNE_BFLOAT, 16, 1};
  if (named == "float8_e4m3fn" && bits == 8) return attune_dtype{ATTUNE_E4M3, 8, 1};
  return std::nullopt;
}

/// The head of the managed tensor of DLPack's version 1.
struct ManagedVersioned {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  attune_tensor tensor;
};

/// Refuses a tensor of torch whose sign is not applied to its memory: DLPack cannot express the sign.
void refuse_sign(nb::handle object, const char* name) {
  if (!nb::hasattr(object, "is_neg") || !nb::cast<bool>(object.attr("is_neg")())) return;
  refuse_unreadable(name, "torch keeps its sign beside the memory, as it does for .imag of a conjugate",
                    "pass it with .resolve_neg()");
}

/// Refuses NumPy's masked arrays, whose mask is not part of their memory.
void refuse_masked(nb::handle object, const char* name) {
  static nb::handle plain;  // the last type that was looked at and is not a masked array
  const nb::handle type = object.type();
  if (type.is(plain)) return;
  if (!nb::hasattr(type, "mask") || !nb::hasattr(type, "filled")) {
    plain = nb::object(nb::borrow(type)).release();
    return;
  }
  refuse_unreadable(name, "it is a masked array: which of its elements count is beside the memory",
                    "pass it with .filled(0), and what is masked as a mask that captures an array of bools");
}

}  // namespace

void Borrowed::release() {
  if (viewed_) PyBuffer_Release(&view_);
  viewed_ = given_ = false;
  capsule_.reset();
  kept_.reset();
}

void Borrowed::set_rank(std::size_t rank, const char* name) {
  if (rank > most)
    refuse("tensor-rank", std::string("`") + name + "` has " + std::to_string(rank) + " dimensions",
           "a tensor has at most four", "reshape it");
  tensor_.ndim = static_cast<std::int32_t>(rank);
  tensor_.shape = shape_.data();
  tensor_.strides = strides_.data();
}

void Borrowed::set_byte_stride(int i, std::int64_t stride, const char* name) {
  const std::int64_t bytes = tensor_.dtype.bits / 8;
  if (stride % bytes != 0)
    refuse("bad-strides", std::string("`") + name + "` steps by " + std::to_string(stride) + " bytes",
           "its elements take " + std::to_string(bytes), "make it contiguous, e.g. with numpy.ascontiguousarray");
  strides_[static_cast<std::size_t>(i)] = stride / bytes;
}

bool Borrowed::by_buffer(nb::handle object, const char* name, bool written) {
  if (!PyObject_CheckBuffer(object.ptr())) return false;
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_STRIDES | PyBUF_FORMAT | (written ? PyBUF_WRITABLE : 0)) != 0) {
    const nb::python_error error;
    if (written && PyObject_GetBuffer(object.ptr(), &view_, PyBUF_STRIDES | PyBUF_FORMAT) == 0) {
      PyBuffer_Release(&view_);
      refuse_read_only(name);
    }
    PyErr_Clear();
    return false;  // a type that buffers do not have, such as bf16
  }
  viewed_ = true;
  refuse_masked(object, name);
  const auto type = type_of_format(view_.format ? view_.format : "B", static_cast<std::size_t>(view_.itemsize));
  if (!type) {
    if (std::string_view(view_.format).find('V') == std::string_view::npos &&
        std::string_view(view_.format).find('x') == std::string_view::npos)
      refuse_type(name, nb::hasattr(object, "dtype") ? text_of(object.attr("dtype"))
                                                     : std::string("elements of format ") + view_.format);
    release();
    return false;
  }
  tensor_.data = view_.buf;
  tensor_.device = {ATTUNE_CPU, 0};
  tensor_.dtype = *type;
  set_rank(static_cast<std::size_t>(view_.ndim), name);
  for (int i = 0; i < view_.ndim; ++i) {
    shape_[static_cast<std::size_t>(i)] = view_.shape[i];
    set_byte_stride(i, view_.strides[i], name);
  }
  return true;
}

void Borrowed::by_interface(nb::handle interface, const char* name, bool written, bool cuda, nb::handle object) {
  try {
    if (!nb::isinstance<nb::dict>(interface)) throw Malformed{"is no dict"};
    read_interface(nb::cast<nb::dict>(interface), name, written, object);
  } catch (const Malformed& wrong) {
    refuse_unreadable(name,
                      std::string("its ") + (cuda ? "__cuda_array_interface__ " : "__array_interface__ ") + wrong.why,
                      "pass an array of a library that writes it as NumPy's documentation says");
  }
  int device = 0;
  if (cuda && nb::hasattr(object, "device") && nb::hasattr(object.attr("device"), "id"))
    device = nb::cast<int>(object.attr("device").attr("id"));
  tensor_.device = {cuda ? ATTUNE_CUDA : ATTUNE_CPU, device};
  kept_ = nb::borrow(interface);
}

void Borrowed::read_interface(const nb::dict& fields, const char* name, bool written, nb::handle object) {
  const auto typestr = nb::cast<std::string>(part_of<nb::str>(fields, "typestr", "typestr that is a str"));
  const auto type = type_of_typestr(typestr, object);
  if (!type) refuse_type(name, nb::hasattr(object, "dtype") ? text_of(object.attr("dtype")) : typestr);
  tensor_.dtype = *type;
  const auto data = part_of<nb::tuple>(fields, "data", "data that are a tuple of an address and a bool");
  std::uintptr_t address = 0;
  if (data.size() != 2 || !nb::try_cast(data[0], address) || !PyBool_Check(nb::object(data[1]).ptr()))
    throw Malformed{"has no data that are a tuple of an address and a bool"};
  if (written && data[1].is(Py_True)) refuse_read_only(name);
  tensor_.data = reinterpret_cast<void*>(address);
  const auto shape = part_of<nb::tuple>(fields, "shape", "shape that is a tuple");
  set_rank(shape.size(), name);
  std::int64_t step = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    shape_[i] = number_in(shape, i, "extents");
    strides_[i] = step;
    step *= std::max<std::int64_t>(shape_[i], 1);
  }
  if (!fields.contains("strides") || fields["strides"].is_none()) return;
  const auto strides = part_of<nb::tuple>(fields, "strides", "strides that are a tuple");
  if (strides.size() != shape.size())
    throw Malformed{"has " + std::to_string(strides.size()) + " strides for " + std::to_string(shape.size()) +
                    " dimensions"};
  for (std::size_t i = 0; i < strides.size(); ++i)
    set_byte_stride(static_cast<int>(i), number_in(strides, i, "strides"), name);
}

/// False if the type has no exchange functions, if another stream than `stream` must be waited for, or if the tensor
/// must be refused: the capsule path handles all three.
bool Borrowed::by_exchange(nb::handle object, const char* name, void* stream) {
  const Exchange* functions = exchange_of(Py_TYPE(object.ptr()));
  if (!functions) return false;
  if (nb::cast<bool>(nb::getattr(object, "requires_grad", nb::bool_(false)))) return false;
  refuse_sign(object, name);
  if (functions->tensor_from_object(object.ptr(), &tensor_) != 0) {
    PyErr_Clear();  // the capsule path fails with the library's own message
    return false;
  }
  if (tensor_.device.device_type != ATTUNE_CPU) {
    void* current = nullptr;
    if (functions->current_stream(tensor_.device.device_type, tensor_.device.device_id, &current) != 0) {
      PyErr_Clear();
      return false;
    }
    if (current != stream) return false;
  }
  return true;
}

void Borrowed::by_dlpack(nb::handle object, const char* name, void* stream) {
  refuse_sign(object, name);
  try {
    const nb::object device = object.attr("__dlpack_device__")();
    const bool cuda = nb::cast<int>(device[0]) == ATTUNE_CUDA;
    // DLPack's number for the default stream is 1.
    capsule_ = cuda
                   ? object.attr("__dlpack__")(nb::arg("stream") = stream ? reinterpret_cast<std::intptr_t>(stream) : 1)
                   : object.attr("__dlpack__")();
  } catch (nb::python_error& error) {
    refuse_unreadable(
        name, "its " + type_of(object) + " says: " + said(error),
        "pass a dense array whose memory exists and may be shared: of torch .to_dense(), or .detach() if it "
        "requires gradients");
  } catch (const std::bad_cast&) {
    refuse_unreadable(name, "its __dlpack_device__ gives no pair of integers", "pass another array");
  }
  const attune_tensor* shown = nullptr;
  const char* const tag = PyCapsule_CheckExact(capsule_.ptr()) ? PyCapsule_GetName(capsule_.ptr()) : nullptr;
  if (tag && !std::strcmp(tag, "dltensor"))
    shown = &static_cast<Managed*>(PyCapsule_GetPointer(capsule_.ptr(), "dltensor"))->tensor;
  else if (tag && !std::strcmp(tag, "dltensor_versioned"))
    shown = &static_cast<ManagedVersioned*>(PyCapsule_GetPointer(capsule_.ptr(), "dltensor_versioned"))->tensor;
  if (!shown) refuse_unreadable(name, "its __dlpack__ gives no tensor of DLPack", "pass another array");
  tensor_ = *shown;
}

void Borrowed::take(nb::handle object, const char* name, bool written, void* stream) {
  release();
  if (!object.ptr() || object.is_none()) return;
  if (!by_buffer(object, name, written) && !by_exchange(object, name, stream)) {
    if (nb::hasattr(object, "__dlpack_device__") && !nb::hasattr(object, "__array_interface__"))
      by_dlpack(object, name, stream);
    else if (nb::hasattr(object, "__array_interface__"))
      by_interface(object.attr("__array_interface__"), name, written, false, object);
    else if (nb::hasattr(object, "__cuda_array_interface__"))
      by_interface(object.attr("__cuda_array_interface__"), name, written, true, object);
    else
      refuse("tensor-array", std::string("`") + name + "` is " + article(type_of(object)),
             "attune reads arrays that have __dlpack__, __array_interface__, __cuda_array_interface__ or a buffer",
             "pass an array, e.g. numpy.asarray(x)");
  }
  given_ = true;
}

}  // namespace attune::python
