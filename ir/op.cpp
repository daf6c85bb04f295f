// ir/op.cpp — look-ups over the table of operations
#include "ir/op.h"

#include <algorithm>

namespace attune::ir {
namespace {

constexpr auto by_spelling = [] {
  std::array<Op, op_rows.size()> out{};
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<Op>(i);
  std::sort(out.begin(), out.end(), [](Op a, Op b) { return row(a).spelling < row(b).spelling; });
  return out;
}();

template <class Fits>
std::optional<Op> op_spelt(std::string_view spelling, const Fits& fits) {
  if (spelling.empty()) return std::nullopt;
  const auto less = [](Op op, std::string_view than) { return row(op).spelling < than; };
  const auto* at = std::lower_bound(by_spelling.begin(), by_spelling.end(), spelling, less);
  for (; at != by_spelling.end() && row(*at).spelling == spelling; ++at)
    if (fits(row(*at))) return *at;
  return std::nullopt;
}

}  // namespace

std::optional<Op> op_named(std::string_view name) {
  return op_spelt(name, [](const OpRow& one) { return one.bind == 0; });
}
std::optional<Op> op_signed(std::string_view sign, std::size_t arguments) {
  return op_spelt(sign,
                  [&](const OpRow& one) { return one.bind > 0 && static_cast<std::size_t>(one.args) == arguments; });
}

std::string_view name_of(Type type) {
  switch (type) {
    case Type::Bool: return "Bool";
    case Type::I32: return "Int";
    case Type::F32: return "Float";
  }
  return "?";
}

}  // namespace attune::ir
