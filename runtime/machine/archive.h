// runtime/machine/archive.h — one tensor of a file: .npy, or by its name of a .npz archive or a .safetensors file
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <attune/tensor.h>

namespace attune::runtime {

/// A tensor and its memory.
struct Owned {
  std::shared_ptr<void> memory;
  Tensor tensor;
};

/// Booleans, floats and integers of up to four dimensions, C or Fortran order, versions 1 to 3. Unsigned types wider
/// than 8 bits become the next wider signed type; u64 must fit into i64. `called`: the file's name in Errors, as in --q
/// q.npy. Never allocates more than the file's size allows.
Owned read_npy(const std::filesystem::path& path, const std::string& called);

/// A .npy file within another file, which is known to have these bytes.
struct FilePart {
  std::uint64_t begin = 0, bytes = 0;
};
Owned read_npy(const std::filesystem::path& path, const std::string& called, const FilePart& part);

/// A whole .npy file: f32, C order, elements converted from any floating tensor.
std::string npy_of(const Tensor& tensor);

/// The polynomial is 0x04C11DB7, with its bits reversed. `before` is the CRC of the preceding bytes, 0 if there are
/// none.
std::uint32_t crc32(std::string_view bytes, std::uint32_t before = 0);

/// FILE.npy, FILE.npz:NAME or FILE.safetensors:NAME; an archive of one tensor needs no name. Archives are parsed
/// without trust, and never allocate more than the file's size allows. `called`: the file's name in Errors, as in --q
/// q.npz:q.
Owned read_tensor(const std::string& path, const std::string& called);

}  // namespace attune::runtime
