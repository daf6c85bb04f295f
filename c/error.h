// c/error.h — the errors that C functions return: Error, Bug, out of memory; and checks of structs that callers fill
#pragma once

#include <attune/c.h>

#include <algorithm>
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

/// The size of each caller-filled struct in its first version: programs built with that version continue to work.
constexpr std::size_t first_size(const attune_what*) { return offsetof(attune_what, n_lets) + sizeof(size_t); }
constexpr std::size_t first_size(const attune_call*) { return offsetof(attune_call, n_params) + sizeof(size_t); }
constexpr std::size_t first_size(const attune_new_keys*) { return offsetof(attune_new_keys, v_scale) + sizeof(double); }
constexpr std::size_t first_size(const attune_with*) { return offsetof(attune_with, user) + sizeof(void*); }
constexpr std::size_t first_size(const attune_picture*) { return offsetof(attune_picture, n_params) + sizeof(size_t); }
constexpr std::size_t first_size(const attune_drawing*) { return offsetof(attune_drawing, k) + sizeof(void*); }
constexpr std::size_t first_size(const attune_transport*) { return offsetof(attune_transport, stop) + sizeof(void*); }
constexpr std::size_t first_size(const attune_how*) { return offsetof(attune_how, latency_us) + sizeof(double); }
constexpr std::size_t first_size(const attune_nccl*) { return offsetof(attune_nccl, seconds) + sizeof(double); }
constexpr std::size_t first_size(const attune_job*) { return offsetof(attune_job, user) + sizeof(void*); }

/// Refuses a size that no version of the struct has had, and members set that this version does not know. `from`: the
/// struct.
void check_size(const void* from, std::uint32_t size, std::size_t first, std::size_t ours, const char* name);

/// A struct that the caller filled. Members that the caller's version lacks are 0.
template <class Struct>
Struct given(const Struct* from, const char* function, const char* name) {
  require(from, function, name);
  std::uint32_t size = 0;
  std::memcpy(&size, from, sizeof size);
  check_size(from, size, first_size(from), sizeof(Struct), name);
  Struct out{};
  std::memcpy(static_cast<void*>(&out), from, std::min<std::size_t>(size, sizeof out));
  return out;
}

/// A copy that attune_string_free frees.
char* copied(const std::string& text);

}  // namespace attune::c
