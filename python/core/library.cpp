// python/core/library.cpp — functions of attune/c.h that take no attention, and memory exported by DLPack
#include "python/core/library.h"

#include <nanobind/stl/string.h>

#include <cstddef>
#include <utility>

#include "python/core/borrowed.h"
#include "python/core/call.h"

namespace attune::python {

Watch::Watch(nb::object function, const std::string& facts)
    : function_(std::make_unique<nb::object>(std::move(function))) {
  check(attune_watch_facts(
      facts.c_str(),
      [](void* user, const char* json) {
        const Acquired gil;  // Python objects outlive the guard
        Raised raised;
        raised.guard([&] {
          try {
            called_back(*static_cast<nb::object*>(user), nb::make_tuple(json));
          } catch (nb::python_error& error) {
            error.discard_as_unraisable("attune.watch");
          }
        });
      },
      function_.get(), &handle_));
}

void Watch::stop() {
  attune_watch* const on = std::exchange(handle_, nullptr);
  if (!on || !Py_IsInitialized()) return;  // a callback waits for the GIL forever once the interpreter is ending
  const Released waiting;                  // for a fact that is being reported
  attune_watch_off(on);
}

Watch::~Watch() {
  stop();
  if (!Py_IsInitialized()) static_cast<void>(function_.release());
}

nb::list operations() {
  nb::list rows;
  const auto add = [&](const char* spelling, int bind, int args, const char* takes, const char* gives) {
    if (*spelling) rows.append(nb::make_tuple(spelling, bind, args, takes, gives));
  };
#define ATTUNE_OP(name, spelling, bind, args, takes, gives) add(spelling, bind, args, #takes, #gives);
#include "ir/ops.def"
#undef ATTUNE_OP
  return rows;
}

void append(const nb::tuple& given, double k_scale, double v_scale, std::uintptr_t stream, std::int32_t workers) {
  attune_with with{};
  with.size = sizeof with;
  with.stream = reinterpret_cast<void*>(stream);
  with.workers = workers;
  attune_new_keys keys{};
  keys.size = sizeof keys;
  keys.k_scale = k_scale, keys.v_scale = v_scale;
  Borrowed borrowed[std::size(rows_of_keys)];
  for (std::size_t i = 0; i < std::size(rows_of_keys); ++i) {
    borrowed[i].take(given[i], rows_of_keys[i].name, rows_of_keys[i].written, with.stream);
    keys.*rows_of_keys[i].member = borrowed[i].tensor();
  }
  check(released([&] { return attune_append(&keys, &with); }));
}

std::string machine() {
  char* json = nullptr;
  check(released([&] { return attune_machine(&json); }));  // the driver may take a second to start
  return taken(json);
}

void option(const nb::str& name, nb::handle value) {
  const bool set = !value.is_none();
  const std::string text = set ? utf8(nb::cast<nb::str>(value)) : std::string();
  check(attune_option(utf8(name).c_str(), set ? text.c_str() : nullptr));
}

void load_bytes(nb::bytes bundle) {
  check(attune_load_bytes(bundle.data(), bundle.size()));
  bundle.release();  // the library reads them until the process ends
}

std::string compile(const std::string& manifest, const nb::bytes& bundle, int jobs, nb::object progress) {
  With with;
  if (!progress.is_none()) with.progress = std::move(progress);
  attune_job job{};
  job.size = sizeof job;
  job.jobs = jobs;
  job.manifest = manifest.c_str();
  job.bundle = bundle.c_str();
  job.progress = [](void* user, double done, const char* row) { return static_cast<With*>(user)->tell(done, row); };
  job.user = &with;
  char* report = nullptr;
  with.finish(released([&] { return attune_compile(&job, &report); }));
  return taken(report);
}

nb::object exported(nb::object self) {
  auto* managed = new Managed{*nb::cast<const Memory&>(self).tensor, nb::object(self).release().ptr(), nullptr};
  managed->deleter = [](Managed* done) {
    const Acquired gil;
    if (!gil) return;
    nb::steal(static_cast<PyObject*>(done->context)).reset();
    delete done;
  };
  return capsule_of(managed);
}

nb::object empty(nb::handle like, const std::vector<std::int64_t>& shape, bool f32) {
  Borrowed from;
  from.take(like, "q", false, nullptr);
  attune_tensor wanted = *from.tensor();
  std::vector<std::int64_t> extents = shape;
  wanted.ndim = static_cast<std::int32_t>(shape.size());
  wanted.shape = extents.data();
  wanted.strides = nullptr;
  if (f32) wanted.dtype = {ATTUNE_FLOAT, 32, 1};
  attune_tensor* made = nullptr;
  check(attune_alloc(&wanted, &made));
  return nb::cast(new Memory(made), nb::rv_policy::take_ownership);
}

}  // namespace attune::python
