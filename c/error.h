// c/error.h — what the C functions return: an Error, a Bug, or that memory ran out; and structs that callers fill
#pragma once

#include <attune/c.h>

#include <cstddef>
#include <cstring>
#include <string>

namespace attune::c {

/// The exception that is being handled, as an error that the caller owns.
attune_error* caught() noexcept;

/// Runs the body of a C function: exceptions end here.
template <class F>
attune_error* guarded(const F& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return caught();
  }
}

/// Refuses a null pointer: "attune_run: `call` is NULL".
void require(const void* pointer, const char* function, const char* name);

/// Refuses a struct whose size is none that a version of it has had.
void check_size(std::uint32_t size, std::size_t ours, const void* beyond, const char* name);

/// A struct that the caller filled, with the members that this version knows; those that the caller's lacks are 0.
template <class Struct>
Struct given(const Struct* from, const char* function, const char* name) {
  require(from, function, name);
  std::uint32_t size = 0;
  std::memcpy(&size, from, sizeof size);
  check_size(size, sizeof(Struct), reinterpret_cast<const char*>(from) + sizeof(Struct), name);
  Struct out{};
  std::memcpy(&out, from, sizeof out);
  out.size = sizeof out;
  return out;
}

/// A copy that attune_string_free frees.
char* copied(const std::string& text);

}  // namespace attune::c
