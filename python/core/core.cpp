// python/core/core.cpp — attune._core: the handles and functions of attune/c.h as a module of Python
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <list>
#include <utility>

#include "python/core/attention.h"
#include "python/core/call.h"
#include "python/core/expected.h"
#include "python/core/gil.h"
#include "python/core/library.h"
#include "python/core/sharding.h"
#include "python/core/torch/call.h"
#include "python/core/torch/operators.h"

namespace attune::python {
namespace {

/// For functions that call Python, or release the GIL.
using InCall = nb::call_guard<Entered>;

const Handle* handle_of(nb::handle object) {
  static const nb::handle type = nb::type<Attention>();
  return object.type().is(type) ? nb::inst_ptr<Attention>(object) : nullptr;
}

void add_ranks(nb::module_& m) {
  nb::class_<Transport>(m, "Transport")
      .def(nb::init<int, int, nb::object, nb::object, nb::object>(), nb::arg(), nb::arg(), nb::arg().none(),
           nb::arg().none(), nb::arg().none())
      .def_ro("rank", &Transport::rank)
      .def_ro("count", &Transport::count);
  m.def("nccl_id", &nccl_id);
  m.def("nccl", &nccl, nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::rv_policy::take_ownership, InCall());
  nb::class_<Sharding>(m, "Sharding")
      .def("of", &Sharding::of)
      .def("positions", &Sharding::positions)
      .def("received", &Sharding::received)
      .def("explain", &Sharding::explain);
  m.def("sharding", &sharding_of, nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg().none(),
        nb::rv_policy::take_ownership, InCall());
}

void add_attention(nb::module_& m) {
  nb::class_<Cover>(m, "Cover");
  nb::class_<Attention>(m, "Attention")
      .def(nb::init<const std::vector<Text>&, const std::vector<std::pair<nb::str, nb::str>>&,
                    const std::vector<std::tuple<nb::str, std::string, int>>&,
                    const std::vector<std::pair<nb::str, std::string>>&, std::optional<double>, int, int>(),
           nb::arg("parts"), nb::arg("lets"), nb::arg("captures"), nb::arg("params"), nb::arg("scale").none(),
           nb::arg("target"), nb::arg("exact"), InCall())
      .def("run", &Attention::run, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), InCall())
      .def("prepare", &Attention::prepare, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), InCall())
      .def("prepare_async", &Attention::prepare_async, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
           InCall())
      .def("least", &Attention::least, InCall())
      .def("cover", &Attention::cover, InCall())
      .def("explain", &Attention::explain)
      .def("describe", &Attention::describe)
      .def("tiles", &Attention::tiles, InCall())
      .def("draw", &Attention::draw, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(),
           InCall());
}

void add_torch(nb::module_& m) {
  nb::register_exception_translator([](const std::exception_ptr& given, void*) {
    try {
      std::rethrow_exception(given);
    } catch (const NoMemory& why) {  // torch says so itself
      const std::string device = why.on.device_type == ATTUNE_CUDA ? "cuda:" + std::to_string(why.on.device_id) : "cpu";
      try {
        nb::module_::import_("torch").attr("empty")(why.count, nb::arg("device") = device);
        PyErr_SetString(PyExc_RuntimeError, why.what());
      } catch (nb::python_error& error) {
        error.restore();
      }
    }
  });
  nb::class_<TorchCall>(m, "TorchCall")
      .def("__init__", [](TorchCall* self, nb::object of,
                          const nb::tuple& ints) { new (self) TorchCall(of, nb::cast<Attention&>(of), ints); })
      .def("attend", &TorchCall::attend, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg().none(), InCall())
      .def("gradients", &TorchCall::gradients, nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg().none(), InCall());
  m.def("find_torch", &find_torch);
  m.def("plain", &plain);
  m.def("split_size", &split_size);
  m.def("record_by", &record_by, nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
  m.def("place_operator", &place_operator, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
  m.def("deactivate_operators", &deactivate_operators);
  m.def("choose_engine", &choose_engine);
  m.def("take_dropout", &take_dropout);
  m.def("why_torch", &why_torch);
}

void add_library(nb::module_& m) {
  nb::class_<Memory>(m, "Memory")
      .def("__dlpack__", [](nb::object self, nb::kwargs) { return exported(std::move(self)); })
      .def("__dlpack_device__", [](const Memory& self) {
        return std::pair(static_cast<int>(self.tensor->device.device_type),
                         static_cast<int>(self.tensor->device.device_id));
      });
  m.def("empty", &empty, InCall());
  nb::class_<Watch>(m, "Watch").def(nb::init<nb::object, const std::string&>()).def("stop", &Watch::stop, InCall());
  m.def("operations", &operations);
  m.def("append", &append, InCall());
  m.def("machine", &machine, InCall());
  m.def("version", &attune_version);
  m.def(
      "wait", [] { released(attune_wait); }, InCall());
  m.def("option", &option, nb::arg(), nb::arg().none());
  m.def("emulated", [](const std::string& gpu) {
    std::int32_t target = 0;
    check(attune_emulated(gpu.c_str(), &target));
    return target;
  });
  m.def("load", [](const nb::bytes& bundle) { check(attune_load(bundle.c_str())); });
  m.def("load_bytes", &load_bytes);
  m.def("compile", &compile, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), InCall());
}

/// Gives a class of Python a property with a getter in C, which calls `get`: torch's Dynamo traces into properties of
/// Python, but guards on the value of these. `name` and `get` live as long as the process.
void add_getter(const nb::type_object& type, const std::string& name, const nb::callable& get) {
  static std::list<std::pair<std::string, PyGetSetDef>> added;
  auto& [kept, definition] = added.emplace_back(name, PyGetSetDef{});
  const getter call = [](PyObject* self, void* function) {
    return PyObject_CallOneArg(static_cast<PyObject*>(function), self);
  };
  definition = {kept.c_str(), call, nullptr, nullptr, get.inc_ref().ptr()};
  auto* of = reinterpret_cast<PyTypeObject*>(type.ptr());  // NOLINT(*-reinterpret-cast): as Python's headers have it
  nb::setattr(type, kept.c_str(), nb::steal(PyDescr_NewGetSet(of, &definition)));
}

}  // namespace
}  // namespace attune::python

NB_MODULE(_core, m) {
  namespace nb = nanobind;
  using namespace attune::python;
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(end_calls));
  Py_AtExit(end_compilers);
  // A forked child has none of the threads that were in calls; without this it would wait for them at exit.
  nb::module_::import_("os").attr("register_at_fork")(
      nb::arg("after_in_child") = nb::cpp_function([] { in_calls = 0; }));
  nb::set_leak_warnings(false);  // we do not control the order in which modules end
  add_attention(m);
  add_ranks(m);
  add_library(m);
  add_quick(m, handle_of);
  add_jax(m, handle_of);
  nb::class_<Meaning>(m, "Meaning")
      .def(nb::init<const nb::tuple&, const nb::list&>())
      .def("stays", &Meaning::stays, nb::arg("score").none(), nb::arg("mask").none());
  m.def("add_getter", &add_getter);
  add_torch(m);
}
