// runtime/machine/archive.h — one tensor of a file: .npy, or by its name of a .npz archive or a .safetensors file
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/machine/npy.h"

namespace attune::runtime {

/// The polynomial is 0x04C11DB7, with its bits reversed. `before` is the CRC of the preceding bytes, 0 if there are
/// none.
std::uint32_t crc32(std::string_view bytes, std::uint32_t before = 0);

/// FILE.npy, FILE.npz:NAME or FILE.safetensors:NAME; an archive of one tensor needs no name. Archives are parsed
/// without trust, and never allocate more than the file's size allows. `called`: the file's name in Errors, as in --q
/// q.npz:q.
Owned read_tensor(const std::string& path, const std::string& called);

}  // namespace attune::runtime
