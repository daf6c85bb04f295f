// codegen/cover_page.cpp — a Mod's cover as the page of the kernel that writes lists of tiles
#include <algorithm>
#include <fmt/format.h>

#include "codegen/cuda.h"
#include "codegen/page.h"

namespace attune::codegen {
namespace {

using compiler::Cover, compiler::Mod, compiler::Summary;
using ir::Expr, ir::Op;

/// Runs and random numbers are for others: a verdict that asks for them is not known.
Expr verdict(const Expr& e, const Mod& mod, const Cover& cover) {
  const auto beyond = [&](const Expr& n) {
    if (n->op == Op::Random) return true;
    if (n->op != Op::Read || n->bits < mod.captures.size()) return false;
    const Summary::Of of = cover.summaries[n->bits - mod.captures.size()].of;
    return of != Summary::Of::Least && of != Summary::Of::Greatest;
  };
  const std::vector<Expr> nodes = ir::in_order(e);
  return std::any_of(nodes.begin(), nodes.end(), beyond) ? ir::boolean(true) : e;
}

}  // namespace

Source cover_source(const Mod& mod, const Cover& cover, bool wide, int arch) {
  const PageNames names = page_names(mod);
  ir::Signature signature = cover.signature(names.signature);
  for (auto c = signature.captures.begin() + static_cast<std::ptrdiff_t>(mod.captures.size());
       c != signature.captures.end(); ++c)
    while (std::any_of(signature.captures.begin(), c, [&](const auto& other) { return other.name == c->name; }))
      c->name += '_';
  std::string summaries;
  for (std::size_t i = 0; i < cover.summaries.size(); ++i) {
    const Summary& s = cover.summaries[i];
    if (s.of != Summary::Of::Least && s.of != Summary::Of::Greatest) continue;
    summaries += fmt::format(
        "  template <class... Index>\n  __device__ auto {}(Index... index) const {{ return {}({}, index...); }}\n",
        signature.captures[mod.captures.size() + i].name, s.of == Summary::Of::Least ? "least" : "greatest",
        names.signature.captures[s.capture].name);
  }
  Source out{
      .name = "cover", .text = {}, .options = page_options(arch, true), .symbol = "attune::cover<attune::exact::User>"};
  out.text = page_comment(mod) + "#include \"cover.cuh\"\n\nnamespace attune::exact {\n\nstruct User {\n";
  out.text += page_members(mod, names, wide) + "\n" + summaries;
  const auto function = [&](std::string_view name, const Expr& e) {
    const std::string head = fmt::format("bool {}(Where at, Int q_begin, Int q_end, Int kv_begin, Int kv_end)", name);
    return page_function(head, verdict(e, mod, cover), signature);
  };
  out.text += function("may_keep", cover.may_keep) + function("may_drop", cover.may_drop);
  out.text += fmt::format("}};\nstatic_assert(Covers<User> && sizeof(User) == {});\n\n", page_bytes(mod, wide));
  out.text += "}  // namespace attune::exact\n\n";
  out.text += fmt::format("template __global__ void {}(\n    const __grid_constant__ attune::CoverArgs, "
                          "const __grid_constant__ attune::exact::User);\n",
                          out.symbol);
  return out;
}

}  // namespace attune::codegen
