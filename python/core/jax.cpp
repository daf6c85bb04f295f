// python/core/jax.cpp — the handler of XLA's custom call: XLA's buffers become the tensors of an attune call
#include "python/core/jax.h"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "python/core/gil.h"
#include "python/core/xla.h"

namespace attune::python {
namespace {

/// The meaning of one buffer: a tensor of the call, or the slot of a captured tensor or of its gradient.
using Role = std::variant<const attune_tensor * attune_call::*, std::size_t>;

/// A call site of a program: the attention, and the meaning of each of XLA's buffers.
struct Site {
  const Handle* handle = nullptr;
  attune_call call{};
  std::vector<double> params;
  std::vector<Role> arguments, results;
};

HandleOf handle_of_object = nullptr;

struct Hash : std::hash<std::string_view> {
  using is_transparent = void;
};

/// Call sites by the text of the call's attribute. Never freed, because XLA's programs may live as long as the process.
struct Sites {
  std::shared_mutex mutex;
  std::unordered_map<std::string, Site, Hash, std::equal_to<>> by_text;
};
Sites& sites() {
  static Sites& all = *new Sites;  // never freed: Python ends first
  return all;
}

std::vector<Role> roles(nb::handle list) {
  std::vector<Role> out;
  for (nb::handle item : list) {
    if (nb::isinstance<nb::int_>(item)) {
      out.emplace_back(nb::cast<std::size_t>(item));
      continue;
    }
    const auto name = nb::cast<std::string>(item);
    for (const Row& row : rows)
      if (name == row.name) out.emplace_back(row.member);
  }
  return out;
}

/// Asks Python once for each text, because a program may have been traced in another process.
const Site& site_of(std::string_view text) {
  Sites& all = sites();
  {
    const std::shared_lock lock(all.mutex);
    if (const auto found = all.by_text.find(text); found != all.by_text.end()) return found->second;
  }
  const Acquired gil;
  if (!gil) throw std::runtime_error("attune: a call while Python is ending");
  const auto told = nb::cast<nb::tuple>(
      nb::module_::import_("attune.jax._call").attr("site")(nb::str(text.data(), text.size())));
  Site made;
  nb::object attention = told[0];
  made.handle = handle_of_object(attention);
  made.call.size = sizeof made.call;
  made.call.pass = nb::cast<std::int32_t>(told[1]);
  made.call.q_offset = nb::cast<std::int32_t>(told[2]);
  made.call.max_q_len = nb::cast<std::int64_t>(told[3]);
  made.call.max_kv_len = nb::cast<std::int64_t>(told[4]);
  for (nb::handle number : told[5]) made.params.push_back(nb::cast<double>(number));
  made.arguments = roles(told[6]);
  made.results = roles(told[7]);
  attention.release();  // lives as long as the site
  const std::unique_lock lock(all.mutex);
  return all.by_text.try_emplace(std::string(text), std::move(made)).first->second;
}

attune_dtype dtype_of(std::int32_t type) {
  switch (type) {
    case 1: return {ATTUNE_BOOL, 8, 1};
    case 2: return {ATTUNE_INT, 8, 1};
    case 3: return {ATTUNE_INT, 16, 1};
    case 4: return {ATTUNE_INT, 32, 1};
    case 5: return {ATTUNE_INT, 64, 1};
    case 6: return {ATTUNE_UINT, 8, 1};
    case 10: return {ATTUNE_FLOAT, 16, 1};
    case 11: return {ATTUNE_FLOAT, 32, 1};
    case 12: return {ATTUNE_FLOAT, 64, 1};
    case 16: return {ATTUNE_BFLOAT, 16, 1};
    default: return {ATTUNE_UINT, 64, 1};  // attune does not support this type and refuses it
  }
}

attune_tensor tensor_of(const xla::Buffer& buffer, attune_device device) {
  attune_tensor out{};
  out.data = buffer.data;
  out.device = device;
  out.ndim = static_cast<std::int32_t>(buffer.rank);
  out.dtype = dtype_of(buffer.dtype);
  out.shape = buffer.dims;
  return out;
}

xla::Error* failed(const xla::Frame& frame, const char* message) {
  xla::NewError error{sizeof error, nullptr, message, xla::invalid_argument};
  return frame.api->new_error(&error);
}

xla::Error* run(const xla::Frame& frame, attune_device device, const attune_with* with) {
  const xla::Attributes& given = frame.attributes;
  if (given.count != 1 || given.types[0] != xla::bytes) return failed(frame, "attune: a call without its text");
  const auto& text = *static_cast<const xla::Bytes*>(given.values[0]);
  const Site& site = site_of({text.begin, text.size});
  const auto arguments = static_cast<std::size_t>(frame.arguments.count),
             results = static_cast<std::size_t>(frame.results.count);
  if (arguments != site.arguments.size() || results != site.results.size())
    return failed(frame, "attune: a call with other buffers than its text tells of");

  std::vector<attune_tensor> tensors;
  tensors.reserve(arguments + results);
  const std::size_t captures = site.handle->captures.size();
  std::vector<const attune_tensor*> captured(2 * captures);
  attune_call call = site.call;
  const auto bind = [&](const xla::Buffers& buffers, const std::vector<Role>& listed, std::size_t first) {
    for (std::size_t i = 0; i < listed.size(); ++i) {
      tensors.push_back(tensor_of(*buffers.buffers[i], device));
      if (const auto* slot = std::get_if<std::size_t>(&listed[i]))
        captured[first + *slot] = &tensors.back();
      else
        call.*std::get<0>(listed[i]) = &tensors.back();
    }
  };
  bind(frame.arguments, site.arguments, 0);
  bind(frame.results, site.results, captures);
  call.captures = captured.data(), call.n_captures = captures;
  if (call.pass == ATTUNE_BACKWARD) call.captured_grads = captured.data() + captures, call.n_captured_grads = captures;
  call.params = site.params.data(), call.n_params = site.params.size();
  attune_error* error = attune_run(site.handle->attention, &call, with);
  if (!error) return nullptr;
  attune_said said{};
  said.size = sizeof said;
  attune_error_read(error, &said);
  xla::Error* out = failed(frame, said.message);
  attune_error_free(error);
  return out;
}

template <int device>
xla::Error* handler(xla::Frame* frame) noexcept {
  for (const xla::Extension* one = frame->extensions; one; one = one->next) {
    if (one->type != xla::metadata) continue;
    // XLA asks which version of its structs this handler reads: any with major number 0.
    xla::Metadata& asked = *reinterpret_cast<const xla::MetadataExtension*>(one)->metadata;
    asked.version.major = 0;
    asked.version.minor = frame->api ? frame->api->version.minor : 1;
    asked.traits = 0;
    return nullptr;
  }
  try {
    if constexpr (device == ATTUNE_CPU) return run(*frame, {ATTUNE_CPU, 0}, nullptr);
    xla::GetStream stream{sizeof stream, nullptr, frame->context, nullptr};
    if (xla::Error* error = frame->api->get_stream(&stream)) return error;
    if (frame->api->size < sizeof(xla::Api)) return failed(*frame, "attune: JAX is too old to run attune on GPUs");
    xla::GetDevice where{sizeof where, nullptr, frame->context, 0};
    if (xla::Error* error = frame->api->get_device(&where)) return error;
    attune_with with{};
    with.size = sizeof with;
    with.stream = stream.stream;
    return run(*frame, {ATTUNE_CUDA, where.device}, &with);
  } catch (const nb::python_error& error) {
    const Acquired gil;
    return failed(*frame, error.what());
  } catch (const std::exception& error) {
    return failed(*frame, error.what());
  }
}

template <class Function>
nb::object capsule(Function* function) {
  return nb::steal(PyCapsule_New(reinterpret_cast<void*>(function), nullptr, nullptr));
}

}  // namespace

void add_jax(nb::module_& m, HandleOf handle_of) {
  handle_of_object = handle_of;
  m.def("jax_handlers", [] {
    nb::dict out;
    out["cpu"] = capsule(handler<ATTUNE_CPU>);
    out["CUDA"] = capsule(handler<ATTUNE_CUDA>);
    return out;
  });
}

}  // namespace attune::python
