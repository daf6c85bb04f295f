// codegen/headers.h — the device files of codegen/cuda, as they are embedded in the library
#pragma once

#include <span>
#include <string_view>

namespace attune::codegen {

struct Header {
  std::string_view name;  ///< what an #include calls it
  const char* text;
};

/// Every *.cuh of codegen/cuda.
std::span<const Header> headers();

/// Changes with any byte of them: a part of the key of what was compiled with them.
std::string_view headers_digest();

}  // namespace attune::codegen
