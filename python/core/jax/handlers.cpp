// python/core/jax/handlers.cpp — the handlers of XLA's custom calls: XLA's buffers become the tensors of an attune call
#include "python/core/library.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

#include "python/core/gil.h"
#include "python/core/jax/xla.h"
#include "python/core/named.h"

namespace attune::python {
namespace {

/// The meaning of one buffer: a tensor of the call, or the slot of a captured tensor or of its gradient.
using Role = std::variant<const attune_tensor * attune_call::*, std::size_t>;

/// A call site of a program: the attention, and the meaning of each of XLA's buffers.
struct Site {
  const Handle* handle = nullptr;
  attune_call call{};
  bool heads_inside = false;  // q, k, v, the output and their gradients are [B, S, H, D]
  std::vector<double> params;
  std::vector<Role> arguments, results;
};

constexpr NumberOf<attune_call> number_rows[] = {{"pass", &attune_call::pass},
                                                 {"q_offset", &attune_call::q_offset},
                                                 {"kv_offset", &attune_call::kv_offset},
                                                 {"max_q_len", &attune_call::max_q_len},
                                                 {"max_kv_len", &attune_call::max_kv_len},
                                                 {"fixed_split_size", &attune_call::fixed_split_size}};

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
  set_named(told[1], number_rows, made.call);
  made.heads_inside = nb::cast<bool>(told[2]);
  for (nb::handle number : told[3]) made.params.push_back(nb::cast<double>(number));
  made.arguments = roles(told[4]);
  made.results = roles(told[5]);
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

/// The text of a call, and its buffers.
struct Asked {
  std::string_view text;
  std::size_t arguments, results;

  explicit Asked(const xla::Frame& frame)
      : arguments(static_cast<std::size_t>(frame.arguments.count)),
        results(static_cast<std::size_t>(frame.results.count)) {
    const xla::Attributes& given = frame.attributes;
    if (given.count != 1 || given.types[0] != xla::bytes) throw std::runtime_error("attune: a call without its text");
    const auto& bytes = *static_cast<const xla::Bytes*>(given.values[0]);
    text = {bytes.begin, bytes.size};
  }

  /// Throws where a call has other buffers than its text tells of.
  void expect(bool same) const {
    if (!same) throw std::runtime_error("attune: a call with other buffers than its text tells of");
  }
};

xla::Error* failed(const xla::Frame& frame, const char* message) {
  xla::NewError error{sizeof error, nullptr, message, xla::invalid_argument};
  return frame.api->new_error(&error);
}

/// Null where attune refuses nothing.
xla::Error* failed(const xla::Frame& frame, attune_error* error) {
  if (!error) return nullptr;
  attune_said said{};
  said.size = sizeof said;
  attune_error_read(error, &said);
  xla::Error* out = failed(frame, said.message);
  attune_error_free(error);
  return out;
}

/// A tensor of rank 4 whose heads lie inside of its rows, [B, S, H, D], as [B, H, S, D].
struct Turned {
  std::int64_t shape[4], strides[4];

  explicit Turned(const std::int64_t* given)
      : shape{given[0], given[2], given[1], given[3]}, strides{given[1] * given[2] * given[3], given[3],
                                                               given[2] * given[3], 1} {}
};

bool has_heads(const attune_tensor* attune_call::*member) {
  for (const auto one : {&attune_call::q, &attune_call::k, &attune_call::v, &attune_call::o, &attune_call::grad_o,
                         &attune_call::dq, &attune_call::dk, &attune_call::dv})
    if (one == member) return true;
  return false;
}

/// Working memory of a call on a GPU. It is XLA's, whose allocator holds most of the GPU's memory and reuses in stream
/// order what is freed: so a call frees it as soon as its kernels are enqueued.
class Scratch : Pinned {
 public:
  explicit Scratch(const xla::Frame& frame) : frame_(frame) {}
  ~Scratch() {
    if (!data_) return;
    xla::Free given{sizeof given, nullptr, frame_.context, bytes_, data_};
    xla::DestroyError ignored{sizeof ignored, nullptr, frame_.api->free(&given)};
    if (ignored.error) frame_.api->destroy_error(&ignored);
  }

  /// Null where there is memory.
  xla::Error* take(std::size_t bytes, attune_with& with) {
    constexpr std::size_t promised = 16, wanted = 64;  // how XLA and attune align
    bytes_ = bytes + wanted - promised;
    xla::Allocate made{sizeof made, nullptr, frame_.context, bytes_, promised, nullptr};
    if (xla::Error* error = frame_.api->allocate(&made)) return error;
    data_ = made.data;
    std::size_t room = bytes_;
    with.workspace = made.data, with.workspace_bytes = bytes;
    std::align(wanted, bytes, with.workspace, room);
    return nullptr;
  }

 private:
  const xla::Frame& frame_;
  std::size_t bytes_ = 0;
  void* data_ = nullptr;
};

xla::Error* run(const xla::Frame& frame, attune_device device, attune_with* with) {
  const Asked asked(frame);
  const Site& site = site_of(asked.text);
  asked.expect(asked.arguments == site.arguments.size() && asked.results == site.results.size());

  std::vector<attune_tensor> tensors;
  std::vector<Turned> turned;
  tensors.reserve(asked.arguments + asked.results);
  if (site.heads_inside) turned.reserve(asked.arguments + asked.results);
  const std::size_t captures = site.handle->captures.size();
  std::vector<const attune_tensor*> captured(2 * captures);
  attune_call call = site.call;
  const auto bind = [&](const xla::Buffers& buffers, const std::vector<Role>& listed, std::size_t first) {
    for (std::size_t i = 0; i < listed.size(); ++i) {
      attune_tensor& made = tensors.emplace_back(tensor_of(*buffers.buffers[i], device));
      if (const auto* slot = std::get_if<std::size_t>(&listed[i])) {
        captured[first + *slot] = &made;
        continue;
      }
      const auto member = std::get<0>(listed[i]);
      if (site.heads_inside && made.ndim == 4 && has_heads(member)) {
        Turned& seen = turned.emplace_back(made.shape);
        made.shape = seen.shape, made.strides = seen.strides;
      }
      call.*member = &made;
    }
  };
  bind(frame.arguments, site.arguments, 0);
  bind(frame.results, site.results, captures);
  call.captures = captured.data(), call.n_captures = captures;
  if (call.pass == ATTUNE_BACKWARD) call.captured_grads = captured.data() + captures, call.n_captured_grads = captures;
  call.params = site.params.data(), call.n_params = site.params.size();
  Scratch scratch(frame);
  if (with) {
    std::size_t bytes = 0;
    if (attune_error* error = find_workspace(*site.handle->shared, call, *with, bytes)) return failed(frame, error);
    if (bytes > 0)
      if (xla::Error* error = scratch.take(bytes, *with)) return error;
  }
  return failed(frame, attune_run(site.handle->attention, &call, with));
}

/// The text is `k_scale v_scale`, then the names of the arguments. The results are k and v, in the same memory.
xla::Error* append_keys(const xla::Frame& frame, attune_device device, attune_with* with) {
  const Asked asked(frame);
  std::string_view rest = asked.text;
  const auto word = [&] {
    const std::string_view first = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), first.size() + 1));
    return first;
  };
  const auto number = [&] {
    double out = 0;
    const std::string_view given = word();
    std::from_chars(given.data(), given.data() + given.size(), out);
    return out;
  };
  attune_new_keys keys{};
  keys.size = sizeof keys;
  keys.k_scale = number(), keys.v_scale = number();
  std::vector<attune_tensor> tensors;
  tensors.reserve(asked.arguments);
  while (!rest.empty()) {
    asked.expect(tensors.size() < asked.arguments);
    const std::string_view name = word();
    for (const NewRow& row : rows_of_keys)
      if (name == row.name)
        keys.*row.member = &tensors.emplace_back(tensor_of(*frame.arguments.buffers[tensors.size()], device));
  }
  asked.expect(tensors.size() == asked.arguments && asked.results == 2 && keys.k && keys.v);
  // In a loop over slices of a cache, XLA on a GPU may give results another memory, in spite of the alias.
  const std::array made{tensor_of(*frame.results.buffers[0], device), tensor_of(*frame.results.buffers[1], device)};
  for (const auto& [given, own] : {std::pair{&keys.k, &made[0]}, {&keys.v, &made[1]}}) {
    if ((*given)->data != own->data)
      if (attune_error* error = attune_copy(*given, own, with ? with->stream : nullptr)) return failed(frame, error);
    *given = own;
  }
  return failed(frame, attune_append(&keys, with));
}

template <int device, auto function>
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
    if constexpr (device == ATTUNE_CPU) return function(*frame, {ATTUNE_CPU, 0}, nullptr);
    xla::GetStream stream{sizeof stream, nullptr, frame->context, nullptr};
    if (xla::Error* error = frame->api->get_stream(&stream)) return error;
    if (frame->api->size < sizeof(xla::Api)) return failed(*frame, "attune: JAX is too old to run attune on GPUs");
    xla::GetDevice where{sizeof where, nullptr, frame->context, 0};
    if (xla::Error* error = frame->api->get_device(&where)) return error;
    attune_with with{};
    with.size = sizeof with;
    with.stream = stream.stream;
    return function(*frame, {ATTUNE_CUDA, where.device}, &with);
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
    const auto both = [](auto* host, auto* device) {
      nb::dict out;
      out["cpu"] = capsule(host);
      out["CUDA"] = capsule(device);
      return out;
    };
    nb::dict out;
    out["attune"] = both(handler<ATTUNE_CPU, run>, handler<ATTUNE_CUDA, run>);
    out["attune_append"] = both(handler<ATTUNE_CPU, append_keys>, handler<ATTUNE_CUDA, append_keys>);
    return out;
  });
}

}  // namespace attune::python
