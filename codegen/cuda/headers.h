// codegen/cuda/headers.h — the device files of codegen/cuda, embedded in the library
#pragma once

#include <span>
#include <string_view>

namespace attune::codegen {

struct Header {
  std::string_view name;  ///< as in an #include
  const char* text;
};

/// Every *.cuh of codegen/cuda, except those of its folder emulated.
std::span<const Header> headers();

/// A hash of the headers: part of the cache key of code compiled with them.
std::string_view headers_digest();

/// The files of codegen/cuda/emulated, which replace or extend these for emulated kernels.
std::span<const Header> emulated_headers();
std::string_view emulated_headers_digest();

}  // namespace attune::codegen
