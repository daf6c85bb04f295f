// codegen/headers.h — the device files of codegen/cuda, embedded in the library
#pragma once

#include <span>
#include <string_view>

namespace attune::codegen {

struct Header {
  std::string_view name;  ///< as in an #include
  const char* text;
};

/// Every *.cuh of codegen/cuda.
std::span<const Header> headers();

/// Changes with every byte of the headers: part of the cache key of code compiled with them.
std::string_view headers_digest();

}  // namespace attune::codegen
