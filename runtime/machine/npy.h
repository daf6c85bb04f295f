// runtime/machine/npy.h — .npy files, as NumPy writes them: reads what attune can represent, refuses the rest, writes
// f32
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

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

}  // namespace attune::runtime
