// codegen/headers.h — the device files of codegen/cuda, embedded in the library
#pragma once

#include <span>
#include <string_view>

namespace attune::codegen {

struct Header {
  std::string_view name;  ///< as in an #include
  const char* text;
};

/// Every *.cuh of codegen/cuda, but for those of its folder emulated.
std::span<const Header> headers();

/// Changes with every byte of the headers: part of the cache key of code compiled with them.
std::string_view headers_digest();

/// The files that stand in their place, or beside them, where kernels are emulated: those of codegen/cuda/emulated.
std::span<const Header> emulated_headers();
std::string_view emulated_headers_digest();

}  // namespace attune::codegen
