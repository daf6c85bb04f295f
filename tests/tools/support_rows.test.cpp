// tests/tools/support_rows.test.cpp — the table of support: every row in one box, as a call chooses, with measurements
#include "tools/explain/support_rows.h"

#include <set>

#include "codegen/choose/kernels.h"
#include "tests/catch.h"

using namespace attune;
using namespace attune::tools;

namespace {

bool is_in(const SupportBox& box, const SupportRow& row) {
  for (std::size_t axis = 0; axis < axes; ++axis)
    if (!(box.values[axis] >> row.at[axis] & 1)) return false;
  return true;
}

/// Of forwards on Hopper.
const std::vector<SupportRow>& hopper() {
  static const std::vector<SupportRow> rows = support_rows({{{3}, {}, {}, {}, {}, {}}});
  return rows;
}

}  // namespace

TEST_CASE("each row of support is in one box, whose rows have one outcome", "[support_rows]") {
  const std::vector<SupportBox> boxes = folded(hopper());
  CHECK(boxes.size() < 40);
  for (const SupportRow& row : hopper()) {
    std::size_t found = 0;
    for (const SupportBox& box : boxes) {
      if (!is_in(box, row)) continue;
      ++found;
      const SupportRow& first = hopper()[box.first];
      if (first.kernels != row.kernels || first.refused.has_value() != row.refused.has_value()) FAIL("another outcome");
      if (row.refused && first.refused->problem != row.refused->problem) FAIL("another Error");
    }
    if (found != 1) FAIL("a row is in " << found << " boxes");
  }
}

TEST_CASE("each kernel takes some row of support, and each row has kernels or an Error", "[support_rows]") {
  std::set<std::string> taken;
  for (const SupportRow& row : hopper()) {
    taken.insert(row.kernels.begin(), row.kernels.end());
    if (row.kernels.empty() != row.refused.has_value()) FAIL("neither kernels nor an Error, or both");
  }
  using codegen::Way;
  for (const Way way : {Way::forward, Way::backward, Way::queries, Way::keys})
    for (const codegen::KernelDescriptor* kernel : codegen::kernels(way))
      CHECK(taken.contains(std::string(kernel->name)));
}

TEST_CASE("measurements are those of rows that have a kernel", "[support_rows]") {
  const std::vector<Measured> all = measured();
  CHECK(all.size() > 30);
  for (const Measured& one : all) {
    std::size_t rows = 0;
    for (const SupportRow& row : hopper())
      if (one.is_of(row)) {
        ++rows;
        CHECK(!row.kernels.empty());
      }
    if (rows != 1) FAIL(one.group << ": " << one.label << " is of " << rows << " rows");
    CHECK(one.rate > 0);
    CHECK((one.compared.empty() || (one.of_compared > 0.2 && one.of_compared < 1.3)));
  }
}
