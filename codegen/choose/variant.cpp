// codegen/choose/variant.cpp — a kernel and how its tile is cut, as text
#include "codegen/choose/variant.h"

#include <algorithm>
#include <charconv>

#include <attune/error.h>
#include <fmt/format.h>

namespace attune::codegen {

std::optional<int> Variant::of(std::string_view member) const {
  for (const auto& [name, value] : members)
    if (name == member) return value;
  return std::nullopt;
}

void Variant::set(std::string_view member, int value) {
  for (auto& [name, now] : members)
    if (name == member) {
      now = value;
      return;
    }
  members.emplace_back(member, value);
}

std::string Variant::text() const {
  std::string out = kernel;
  for (std::size_t i = 0; i < members.size(); ++i)
    out += fmt::format("{}{}={}", i ? "," : ":", members[i].first, members[i].second);
  return out;
}

Variant variant(std::string_view text) {
  const auto refuse = [&](std::string why) {
    return Error("bad-kernel", "this names no kernel", {.name = std::string(text)}, std::move(why),
                 "write a kernel, and what of its tile is to be other than usual: NAME:n=96,stages=2");
  };
  const std::size_t colon = std::min(text.find(':'), text.size());
  Variant out{std::string(text.substr(0, colon)), {}};
  if (out.kernel.empty()) throw refuse("no kernel stands before the colon");
  for (std::size_t begin = colon + 1; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view one = text.substr(begin, end - begin);
    const std::size_t equals = one.find('=');
    if (equals == 0 || equals == std::string_view::npos) throw refuse(fmt::format("`{}` is no NAME=NUMBER", one));
    int value = 0;
    const char* last = one.data() + one.size();
    const auto [stop, error] = std::from_chars(one.data() + equals + 1, last, value);
    if (error != std::errc{} || stop != last) throw refuse(fmt::format("`{}` is no NAME=NUMBER", one));
    out.set(one.substr(0, equals), value);
    begin = end + 1;
  }
  return out;
}

}  // namespace attune::codegen
