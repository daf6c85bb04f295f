// tests/codegen/kernels/forward_plain.cpp — the shortest forward's descriptor: its calls, its tile
#include "tests/codegen/kernels/forward_plain.h"

#include <fmt/format.h>

#include "tests/codegen/device_file.h"
#include "tests/codegen/kernels/forward_plain.cuh"

namespace attune::tests {
namespace {

using namespace codegen;

struct Tile {
  int threads = 64;  ///< each computes some columns of the result
};
constexpr std::array members{
    TileMember<Tile>{{.name = "threads", .least = 32, .most = 128, .step = 32}, &Tile::threads}};
constexpr auto erased_members = members_of(members);
constexpr Search searches[] = {{.member = "threads", .least = 32, .most = 128}};
constexpr std::string_view name = "forward_plain";

std::string why_not(const KernelSpec& spec, const Traits& facts) {
  if (spec.dtype != DType::f32 || spec.out != DType::f32)
    return fmt::format("it takes f32, and q holds {}", name_of(spec.dtype));
  if (spec.packed || spec.max || facts.has_sink) return "it takes neither packed sequences, maxima nor sinks";
  if (spec.cache.per_entry || spec.before || spec.fixed_split) return "it takes plain calls alone";
  return {};
}

std::int64_t rows(const LaunchCall& call) { return call.problem.batch * call.problem.q_heads * call.problem.q.length; }

// ---- the struct of its own, and what fills the memory that it points to

constexpr OwnArgs own{
    .name = "PlainArgs",
    .bytes = sizeof(PlainArgs),
    .workspace = [](const LaunchCall& call) { return rows(call) * std::int64_t{sizeof(float)}; },
    .fill = [](void* args, const LaunchCall&,
               std::byte* workspace) { static_cast<PlainArgs*>(args)->tops = reinterpret_cast<float*>(workspace); },
};

const Companion tops{
    .role = "tops of rows",
    .name = "plain_tops",
    .source = [](const GpuParts& parts,
                 const KernelPlan& plan) { return source_beside(parts, plan, "plain_tops", std::string(name)); },
    .grid =
        [](const LaunchCall& call) {
          return Grid{static_cast<unsigned>(rows(call)), 1, 1};
        },
    .threads = 32,
};
constexpr const Companion* companions[] = {&tops};

std::vector<Variant> tiles(const KernelSpec&, const Traits&, const CallKind&) {
  return {variant_of(name, Tile{}, members)};
}

std::string why_illegal(const KernelSpec&, const Variant&) { return {}; }

KernelChoice choice(const KernelSpec& spec, const Variant& variant) {
  const Tile tile = tile_of(variant, members);
  KernelPlan plan = plan_of(forward_plain(), spec, variant, 1, 1);
  plan.tile.heads = 1;
  plan.tile.own = {{"threads", tile.threads}};
  return {.plan = std::move(plan), .threads = tile.threads, .shared_bytes = 0};
}

}  // namespace

const KernelDescriptor& forward_plain() {
  static const std::string text = device_file("kernels/forward_plain.cuh");
  static const Header file{"codegen/cuda/forward_plain/forward_plain.cuh", text.c_str()};
  static const KernelDescriptor out{
      .name = name,
      .way = Way::forward,
      .members = erased_members,
      .searches = searches,
      .companions = companions,
      .own = &own,
      .headers = {&file, 1},
      .why_not = why_not,
      .tiles = tiles,
      .why_illegal = why_illegal,
      .choice = choice,
  };
  return out;
}

Kernels kernels_with_plain() {
  static const std::vector<const KernelDescriptor*> all = [] {
    std::vector<const KernelDescriptor*> out{&forward_plain()};
    out.insert(out.end(), kernels().begin(), kernels().end());
    return out;
  }();
  return all;
}

}  // namespace attune::tests
