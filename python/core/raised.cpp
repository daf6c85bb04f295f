// python/core/raised.cpp — turns errors of the C ABI into Python exceptions
#include "python/core/raised.h"

#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>

namespace attune::python {
namespace {

[[noreturn]] void raise_it(const nb::object& exception) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

nb::object errors(const char* function) { return nb::module_::import_("attune._errors").attr(function); }

}  // namespace

void check(attune_error* error) {
  if (!error) return;
  const std::unique_ptr<attune_error, decltype(&attune_error_free)> owned(error, attune_error_free);
  attune_said said{};
  said.size = sizeof said;
  attune_error_read(error, &said);
  const auto text = [](const char* bytes) {
    return nb::steal(PyUnicode_DecodeUTF8(bytes, static_cast<Py_ssize_t>(std::strlen(bytes)), "replace"));
  };
  nb::dict texts;
  texts["code"] = text(said.code), texts["problem"] = text(said.problem), texts["name"] = text(said.name);
  texts["text"] = text(said.text), texts["why"] = text(said.why), texts["fix"] = text(said.fix);
  texts["message"] = text(said.message);
  raise_it(errors("raised")(said.bug != 0, said.line, said.begin, said.end, texts));
}

void refuse(const char* code, const std::string& problem, const std::string& why, const std::string& fix) {
  raise_it(errors("Error")(code, problem, why, fix));
}

std::string utf8(const nb::str& text) {
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes && std::strlen(bytes) == static_cast<std::size_t>(size)) return bytes;
  PyErr_Clear();
  raise_it(errors("bad_character")(text));
}

std::string taken(char* text) {
  const std::unique_ptr<char, decltype(&attune_string_free)> owned(text, attune_string_free);
  return text;
}

void Raised::raise(attune_error* instead_of) {
  if (!exception_) return;
  attune_error_free(instead_of);
  const nb::object raised = nb::steal(exception_);
  exception_ = nullptr;
  raise_it(raised);
}

}  // namespace attune::python
