// runtime/engines/cuda/kernels/tuned.h — the fastest kernels on a machine: the results of attune tune, in one file
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/choose/call_choices.h"

namespace attune::runtime::cuda {

/// The calls that a result applies to.
struct TunedKey {
  std::string device;  ///< its name in the driver
  int arch = 90;
  DType dtype = DType::bf16;
  std::int64_t d = 128, dv = 128;
  codegen::CallKind kind{};
  bool exact = false;  ///< as in KernelSpec
  auto operator<=>(const TunedKey&) const = default;
};
/// device: its name in the driver.
TunedKey tuned_key(const std::string& device, const codegen::GpuParts& parts, const codegen::CallSpec& call);
struct Tuned {
  codegen::Variant variant;
  double tflops = 0, usual_tflops = 0;  ///< the kernel's own, and that of the kernel that is chosen without tuning
  std::string date;                     ///< YYYY-MM-DD
  std::string kernels;                  ///< the digest of the device files that were measured
};
struct TunedTable {
  std::map<TunedKey, Tuned> rows;
  std::string broken;              ///< the reason why the whole file is unusable, or empty
  std::vector<std::string> notes;  ///< rows that were skipped, and why
};

/// Never throws: the table contains the reason for each unusable part of the file.
TunedTable parse_tuned(std::string_view text);
std::string print_tuned(const TunedTable& table);

/// tuned.json in the cache folder; empty if there is no cache folder.
std::filesystem::path tuned_path();
/// An empty table if there is no such file.
TunedTable read_tuned(const std::filesystem::path& path);
/// Adds or replaces a row. Readers see the old file or the new one. Throws an Error if the file cannot be written.
void remember(const std::filesystem::path& path, const TunedKey& key, const Tuned& row);

/// The result in this process's file for such calls. `notes`: the parts of the file that are unusable.
struct Remembered {
  std::optional<codegen::Preference> preference;
  std::vector<std::string> notes;
};
Remembered remembered(const TunedTable& table, const TunedKey& key);
/// Uses the file as it was at the first call.
Remembered remembered(const TunedKey& key);

}  // namespace attune::runtime::cuda
