// runtime/cuda/tuned.h — which kernels were fastest on a machine: what attune tune found, in one file
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/choose.h"

namespace attune::runtime::cuda {

/// The calls that a finding is for.
struct TunedKey {
  std::string device;  ///< as the driver calls it
  int arch = 90;
  DType dtype = DType::bf16;
  std::int64_t d = 128, dv = 128;
  codegen::ForwardKind kind{};
  bool exact = false;  ///< as ForwardSpec has it
  auto operator<=>(const TunedKey&) const = default;
};
struct Tuned {
  codegen::Variant variant;
  double tflops = 0, usual_tflops = 0;  ///< its own, and of what is chosen without it
  std::string date;                     ///< YYYY-MM-DD
  std::string kernels;                  ///< the digest of the device files that were measured
};
struct TunedTable {
  std::map<TunedKey, Tuned> rows;
  std::string broken;              ///< why nothing of the file can be used, or empty
  std::vector<std::string> notes;  ///< rows that were left out, and why
};

/// Never throws: what cannot be used is said in the table.
TunedTable parse_tuned(std::string_view text);
std::string print_tuned(const TunedTable& table);

/// tuned.json in the cache folder; empty where there is none.
std::filesystem::path tuned_path();
/// An empty table where there is no such file.
TunedTable read_tuned(const std::filesystem::path& path);
/// Adds a row to the file, or replaces it. Readers see the old file or the new one. An Error where that cannot be.
void remember(const std::filesystem::path& path, const TunedKey& key, const Tuned& row);

/// What the file of this process says of such calls; `note`: why it says nothing, where it could have.
struct Remembered {
  std::optional<codegen::Preference> preference;
  std::vector<std::string> notes;
};
Remembered remembered(const TunedTable& table, const TunedKey& key);
/// By the file as it was when it was first asked.
Remembered remembered(const TunedKey& key);

}  // namespace attune::runtime::cuda
