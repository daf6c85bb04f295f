// python/core/call.cpp — the table of a call's options, and how C calls back
#include "python/core/call.h"

#include <cstddef>
#include <iterator>

#include "python/core/named.h"
#include "python/core/tasks.h"

namespace attune::python {

/// A call's options besides tensors. The names are those of Python's arguments.
struct Options {
  struct Row {
    const char* name;
    bool of_with;
    void (*set)(Call& call, nb::handle value);
  };
  static std::int32_t progressed(void* user, double done) { return static_cast<With*>(user)->tell(done); }

  static void looped(void* user, std::int64_t count, attune_task task, void* run) {
    auto& self = *static_cast<With*>(user);
    run_tasks(self.loop, count, std::make_shared<Tasks>(task, run), self.raised);
  }

  static constexpr Row rows[] = {
      {"q_offset", false, [](Call& c, nb::handle v) { c.call.q_offset = nb::cast<std::int32_t>(v); }},
      {"kv_offset", false, [](Call& c, nb::handle v) { c.call.kv_offset = nb::cast<std::int32_t>(v); }},
      {"max_q_len", false, [](Call& c, nb::handle v) { c.call.max_q_len = nb::cast<std::int64_t>(v); }},
      {"max_kv_len", false, [](Call& c, nb::handle v) { c.call.max_kv_len = nb::cast<std::int64_t>(v); }},
      {"fixed_split_size", false, [](Call& c, nb::handle v) { c.call.fixed_split_size = nb::cast<std::int64_t>(v); }},
      {"sum_captured", false, [](Call& c, nb::handle v) { c.call.own_captured_grads = !nb::cast<bool>(v); }},
      {"workers", true, [](Call& c, nb::handle v) { c.with.with.workers = nb::cast<std::int32_t>(v); }},
      {"stream", true,
       [](Call& c, nb::handle v) { c.with.with.stream = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(v)); }},
      {"cover", true, [](Call& c, nb::handle v) { c.with.with.cover = nb::cast<const Cover&>(v).handle; }},
      {"progress", true,
       [](Call& c, nb::handle v) { c.with.progress = nb::borrow(v), c.with.with.progress = progressed; }},
      {"signals", true,  // checks for Ctrl-C during the call
       [](Call& c, nb::handle v) {
         if (nb::cast<bool>(v)) c.with.with.progress = progressed;
       }},
      {"parallel_for", true,
       [](Call& c, nb::handle v) { c.with.loop = nb::borrow(v), c.with.with.parallel_for = looped; }},
      {"sharding", true, [](Call& c, nb::handle v) {
         const auto& sharding = nb::cast<const Sharding&>(v);
         c.with.with.sharding = sharding.handle;
         c.with.ranks = &sharding.ranks();
       }}};
};

namespace {

constexpr std::size_t count_of_options = std::size(Options::rows);

nb::handle workspace_word() {
  static PyObject* const word = PyUnicode_InternFromString("workspace");
  return word;
}

}  // namespace

void With::finish(attune_error* error) {
  raised.raise(error);
  if (ranks) ranks->raised.raise(error);
  check(error);
}

Call::Call(const Handle& handle, int pass, bool recording) : handle_(handle), recording_(recording) {
  call.size = sizeof call;
  call.pass = pass;
}

Call::~Call() {
  if (has_buffer_) PyBuffer_Release(&buffer_);
}

void Call::take(nb::handle named) {
  static const Names<count_of_options> option_names(Options::rows);
  static const Names<tensors> tensor_names(rows);
  nb::handle memory;
  // Tensors come after options: those of a device are read on the stream.
  std::size_t found[tensors], count = 0;
  nb::handle given[tensors];
  each_named(named, [&](nb::handle name, nb::handle value) {
    if (const std::size_t tensor = tensor_names.find(name); tensor < tensors) {
      if (count == tensors) refuse_name(name);
      given[count] = value, found[count++] = tensor;
    } else if (const std::size_t option = option_names.find(name); option < count_of_options) {
      has_with_ |= Options::rows[option].of_with;
      Options::rows[option].set(*this, value);
    } else if (PyUnicode_Compare(name.ptr(), workspace_word().ptr()) == 0) {
      memory = value;
    } else {
      refuse_name(name);
    }
  });
  if (memory.is_valid()) take_workspace(memory);
  for (std::size_t i = 0; i < count; ++i) {
    const Row& row = rows[found[i]];
    Borrowed& tensor = fixed_[found[i]];
    tensor.take(given[i], row.name, row.written & (1 << call.pass), with.with.stream, recording_);
    call.*row.member = tensor.tensor();
  }
}

void Call::take_workspace(nb::handle memory) {
  has_with_ = true;
  if (PyObject_CheckBuffer(memory.ptr())) {
    if (PyObject_GetBuffer(memory.ptr(), &buffer_, PyBUF_WRITABLE) != 0) {
      PyErr_Clear();
      refuse("tensor-read-only", "`workspace` cannot be written", "it is read-only, or its elements do not touch",
             "pass a contiguous array of your own");
    }
    has_buffer_ = true;
    with.with.workspace = buffer_.buf;
    with.with.workspace_bytes = static_cast<std::size_t>(buffer_.len);
    return;
  }
  device_workspace_.take(memory, "workspace", true, with.with.stream);
  const attune_tensor& t = *device_workspace_.tensor();
  std::size_t bytes = t.dtype.bits / 8;
  for (int i = 0; i < t.ndim; ++i) bytes *= static_cast<std::size_t>(t.shape[i]);
  with.with.workspace = static_cast<char*>(t.data) + t.byte_offset;
  with.with.workspace_bytes = bytes;
}

void Call::bind_slots(const nb::tuple& list, std::unique_ptr<Borrowed[]>& held, std::vector<const attune_tensor*>& at,
                      bool written) {
  if (!list.size()) return;
  held = std::make_unique<Borrowed[]>(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    held[i].take(list[i], handle_.captures[i].name.c_str(), written, with.with.stream, recording_);
    at.push_back(held[i].tensor());
  }
}

void Call::bind(const nb::tuple& captured, nb::handle grads, const nb::tuple& numbers) {
  bind_slots(captured, captured_, captured_at_, false);
  call.captures = captured_at_.data(), call.n_captures = captured_at_.size();
  if (!grads.is_none()) {
    bind_slots(nb::cast<nb::tuple>(grads), grads_, grads_at_, true);
    call.captured_grads = grads_at_.data(), call.n_captured_grads = grads_at_.size();
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) params_.push_back(nb::cast<double>(numbers[i]));
  call.params = params_.data(), call.n_params = params_.size();
}

}  // namespace attune::python
