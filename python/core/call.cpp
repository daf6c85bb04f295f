// python/core/call.cpp — the table of a call's options, and how C calls back
#include "python/core/call.h"

#include <atomic>
#include <cstddef>
#include <iterator>

#include "python/core/named.h"

namespace attune::python {

/// C's task behind `run` of a parallel_for, valid during its call. Python function objects share it.
class Tasks {
 public:
  Tasks(attune_task task, void* run) : task_(task), run_(run) {}

  /// Needs the GIL. Throws an Error after the call has ended. The library refuses numbers of no remaining task.
  void one(std::int64_t i, std::int32_t worker) {
    if (!begin())
      refuse("executor-tasks", "`run` is called after its call", "its tasks went with the call",
             "return from parallel_for when all tasks are done");
    const Released running;
    task_(run_, i, worker);
    --begun_;
    begun_.notify_all();
  }

  /// Call it without the GIL. Waits for tasks that have begun and lets no other begin.
  void end() {
    begun_ |= over;
    for (std::uint32_t now = begun_; now != over; now = begun_) begun_.wait(now);
  }

 private:
  bool begin() {
    for (std::uint32_t now = begun_; !(now & over);)
      if (begun_.compare_exchange_weak(now, now + 1)) return true;
    return false;
  }

  const attune_task task_;
  void* const run_;
  static constexpr std::uint32_t over = std::uint32_t{1} << 31;
  std::atomic<std::uint32_t> begun_{0};  ///< the tasks that run, and `over` at the end
};

/// Runs a call's tasks by loop(count, run).
inline void run_tasks(const nb::object& loop, std::int64_t count, const std::shared_ptr<Tasks>& tasks, Raised& raised) {
  raised.guard([&] {
    called_back(loop, nb::make_tuple(count, nb::cpp_function([tasks](std::int64_t i, std::int32_t worker) {
                                       tasks->one(i, worker);
                                     })));
  });
  tasks->end();
}

namespace {

std::int32_t progressed(void* user, double done) { return static_cast<With*>(user)->tell(done); }

void looped(void* user, std::int64_t count, attune_task task, void* run) {
  auto& self = *static_cast<With*>(user);
  run_tasks(self.loop, count, std::make_shared<Tasks>(task, run), self.raised);
}

/// A call's options besides tensors. The names are those of Python's arguments.
constexpr struct {
  const char* name;
  bool of_with;
  void (*set)(attune_call& call, With& with, nb::handle value);
} options_of_calls[] = {
    {"q_offset", false, [](attune_call& c, With&, nb::handle v) { c.q_offset = nb::cast<std::int32_t>(v); }},
    {"kv_offset", false, [](attune_call& c, With&, nb::handle v) { c.kv_offset = nb::cast<std::int32_t>(v); }},
    {"max_q_len", false, [](attune_call& c, With&, nb::handle v) { c.max_q_len = nb::cast<std::int64_t>(v); }},
    {"max_kv_len", false, [](attune_call& c, With&, nb::handle v) { c.max_kv_len = nb::cast<std::int64_t>(v); }},
    {"fixed_split_size", false,
     [](attune_call& c, With&, nb::handle v) { c.fixed_split_size = nb::cast<std::int64_t>(v); }},
    {"sum_captured", false, [](attune_call& c, With&, nb::handle v) { c.own_captured_grads = !nb::cast<bool>(v); }},
    {"workers", true, [](attune_call&, With& w, nb::handle v) { w.with.workers = nb::cast<std::int32_t>(v); }},
    {"stream", true,
     [](attune_call&, With& w, nb::handle v) { w.with.stream = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(v)); }},
    {"cover", true, [](attune_call&, With& w, nb::handle v) { w.with.cover = nb::cast<const Cover&>(v).handle; }},
    {"progress", true,
     [](attune_call&, With& w, nb::handle v) { w.progress = nb::borrow(v), w.with.progress = progressed; }},
    {"parallel_for", true,
     [](attune_call&, With& w, nb::handle v) { w.loop = nb::borrow(v), w.with.parallel_for = looped; }},
    {"sharding", true, [](attune_call&, With& w, nb::handle v) {
       const auto& sharding = nb::cast<const Sharding&>(v);
       w.with.sharding = sharding.handle;
       w.ranks = &sharding.ranks();
     }}};

}  // namespace

bool set_option(attune_call& call, With& with, nb::handle name, nb::handle value) {
  static const Names<std::size(options_of_calls)> names(options_of_calls);
  const std::size_t option = names.find(name);
  if (option == std::size(options_of_calls)) refuse_name(name);
  options_of_calls[option].set(call, with, value);
  return options_of_calls[option].of_with;
}

void With::listen() { with.progress = progressed; }

void With::finish(attune_error* error) {
  raised.raise(error);
  if (ranks) ranks->raised.raise(error);
  check(error);
}

Call::Call(const Handle& handle, int pass) : handle_(handle) {
  call.size = sizeof call;
  call.pass = pass;
}

Call::Call(const Handle& handle, int pass, nb::handle named, const nb::tuple& captured, nb::handle grads,
           const nb::tuple& numbers)
    : Call(handle, pass) {
  take(named);
  bind(captured, grads, numbers);
}

Call::~Call() {
  if (has_buffer_) PyBuffer_Release(&buffer_);
}

void Call::take(nb::handle named) {
  static const Names<tensors> tensor_names(rows);
  static PyObject* const workspace = PyUnicode_InternFromString("workspace");
  nb::handle memory;
  // Tensors come after options: those of a device are read on the stream.
  std::size_t found[tensors], count = 0;
  nb::handle given[tensors];
  each_named(named, [&](nb::handle name, nb::handle value) {
    if (const std::size_t tensor = tensor_names.find(name); tensor < tensors) {
      if (count == tensors) refuse_name(name);
      given[count] = value, found[count++] = tensor;
    } else if (PyUnicode_Compare(name.ptr(), workspace) == 0) {
      memory = value;
    } else {
      has_with_ |= set_option(call, with, name, value);
    }
  });
  if (memory.is_valid()) take_workspace(memory);
  for (std::size_t i = 0; i < count; ++i) {
    const Row& row = rows[found[i]];
    Borrowed& tensor = fixed_[found[i]];
    tensor.take(given[i], row.name, row.written & (1 << call.pass), with.with.stream);
    call.*row.member = tensor.tensor();
  }
}

const attune_with* Call::options() {
  if (is_long(call)) has_with_ = true, with.listen();
  return has_with_ ? &with.with : nullptr;
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
    held[i].take(list[i], handle_.captures[i].name.c_str(), written, with.with.stream);
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
