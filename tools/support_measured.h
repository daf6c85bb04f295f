// tools/support_measured.h — measurements of kinds of calls, from the results of this source tree
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/support_rows.h"

namespace attune::tools {

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
