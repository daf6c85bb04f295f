// c/error.cpp — the errors that C functions return: Error, Bug, out of memory; and checks of structs that callers fill
#include "c/error.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include <attune/error.h>
#include <fmt/format.h>

struct attune_error {
  bool bug = false;
  std::string code, problem, why, fix, message;
  attune::Place where{};
};

namespace attune::c {
namespace {

attune_error of(const Error& e) { return {false, e.code, e.problem, e.why, e.fix, e.what(), e.where}; }

attune_error no_memory() {
  return of(Error("no-memory", "memory ran out", {}, "an allocation failed within a call of attune",
                  "let the process have more memory (ulimit -v)"));
}

/// Returned when there is no memory to make another error. Made when the library is loaded, and never freed.
attune_error& last_resort() {
  static attune_error& only = *new attune_error(no_memory());
  return only;
}
[[maybe_unused]] const attune_error& made_at_load = last_resort();

attune_error* bug(const std::string& message) { return new attune_error{true, "bug", "", "", "", message, {}}; }

attune_error* current_error() {
  try {
    throw;
  } catch (const Error& e) {
    return new attune_error(of(e));
  } catch (const Bug& e) {
    return bug(e.what());
  } catch (const std::bad_alloc&) {
    return &last_resort();
  } catch (const std::exception& e) {
    return bug(Bug(e.what()).what());
  } catch (...) {
    return bug(Bug("an exception of unknown type reached the C functions").what());
  }
}

}  // namespace

attune_error* caught() noexcept {
  try {
    return current_error();
  } catch (...) {
    return &last_resort();
  }
}

void require(const void* pointer, const char* function, const char* name) {
  if (pointer) return;
  throw Error("null-pointer", fmt::format("{}: `{}` is NULL", function, name), {}, "it has to point to something",
              "pass a pointer; if an earlier call should have returned it, check that call's error");
}

void check_size(const void* from, std::uint32_t size, std::size_t first, std::size_t ours, const char* name) {
  const auto refuse = [&](const std::string& why, const std::string& fix) {
    return Error("struct-size", fmt::format("`{}` has a size of {} bytes", name, size), {}, why, fix);
  };
  constexpr std::uint32_t most = 4096;  // a `size` that was never set is hardly ever smaller
  if (size < first || size > most)
    throw refuse(fmt::format("this version of attune knows {} bytes of it, and its first version had {}", ours, first),
                 fmt::format("set {}.size to the sizeof of its type", name));
  if (size <= ours) return;
  const auto* bytes = static_cast<const unsigned char*>(from);
  if (std::any_of(bytes + ours, bytes + size, [](unsigned char byte) { return byte != 0; }))
    throw refuse(fmt::format("members beyond the {} bytes that this version of attune knows are set", ours),
                 "load the attune library that the program was built with, or a later one");
}

char* copied(const std::string& text) {
  auto* out = static_cast<char*>(std::malloc(text.size() + 1));
  if (!out) throw std::bad_alloc();
  std::memcpy(out, text.c_str(), text.size() + 1);
  return out;
}

}  // namespace attune::c

void attune_error_read(const attune_error* error, attune_said* said) {
  if (!error || !said) return;
  attune_said out{};
  out.size = said->size;
  out.bug = error->bug;
  out.line = error->where.line;
  out.code = error->code.c_str();
  out.problem = error->problem.c_str();
  out.name = error->where.name.c_str();
  out.text = error->where.text.c_str();
  out.why = error->why.c_str();
  out.fix = error->fix.c_str();
  out.message = error->message.c_str();
  out.begin = error->where.begin;
  out.end = error->where.end;
  std::memcpy(said, &out, std::min<std::size_t>(out.size, sizeof out));
}

void attune_error_free(attune_error* error) {
  if (error != &attune::c::last_resort()) delete error;
}

void attune_string_free(char* text) { std::free(text); }
