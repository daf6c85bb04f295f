// tools/explain/support_rows.h — which kernel takes which call on which GPU, answered by the code that chooses kernels;
// and what was measured of each
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/facts/gpu_parts.h"

namespace attune::tools {

/// The axes on which calls differ.
enum class Axis : std::uint8_t { arch, call, dtype, width, layout, mod };
inline constexpr std::size_t axes = 6;
std::string_view name_of(Axis axis);
/// An axis's values, in the order of tables; widths are D or D/Dv.
std::span<const std::string_view> values_of(Axis axis);
/// The meaning of a value whose name does not explain it; else empty.
std::string_view meaning_of(Axis axis, std::size_t value);

/// The kind of a mod, and of the captured gradients that a backward computes (null: a forward), in words of Axis::mod;
/// none if it is of several kinds. A mask without data goes with every kind.
std::optional<std::string_view> kind_of_mod(const compiler::LoweredMod& lowered,
                                            const codegen::GradientParts* gradient);

/// The Error of a call that is refused.
struct Refusal {
  std::string code, problem, why, fix;
  bool operator==(const Refusal&) const = default;
};

struct SupportRow {
  std::array<std::size_t, axes> at{};  ///< the value of each axis
  std::vector<std::string> kernels;    ///< that walk pairs, in the order of their launches; none: refused
  std::vector<std::string> others;     ///< why others do not take it
  std::optional<Refusal> refused{};

  std::string_view value(Axis axis) const { return values_of(axis)[at[static_cast<std::size_t>(axis)]]; }
};

/// For each axis the requested values; none means all.
using Asked = std::array<std::vector<std::size_t>, axes>;
std::vector<SupportRow> support_rows(const Asked& asked);

/// Rows of one outcome: for each axis the values that it holds for.
struct SupportBox {
  std::array<unsigned, axes> values{};  ///< a bit for each
  std::size_t first = 0;                ///< one of its rows
};
/// Rows folded where neighbours agree: every row is in one box.
std::vector<SupportBox> folded(std::span<const SupportRow> rows);

/// A file of docs/results, embedded when attune was built.
struct ResultFile {
  std::string_view name, text;
};
std::span<const ResultFile> result_files();

/// A measurement of a kind of call.
struct Measured {
  std::string_view call, dtype, width, layout, mod;  ///< values of the axes
  std::string card, date, file, group, label, unit;
  double rate = 0;
  std::string_view what;   ///< which mod of its kind
  std::string compared;    ///< the row that it is compared with: the same call without the mod, or dense; or empty
  double of_compared = 0;  ///< its rate by the rate of that row

  bool is_of(const SupportRow& row) const;
};
/// Throws a Bug if a row that is expected is in no file.
std::vector<Measured> measured();

}  // namespace attune::tools
