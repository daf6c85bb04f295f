// tests/codegen/choose.test.cpp — the candidate kernels of a call; the host and the kernels agree on their memory
#include "codegen/choose/choose.h"

#include <algorithm>
#include <attune/attune.h>
#include <fmt/format.h>
#include <numeric>

#include "codegen/source/source.h"
#include "compiler/lower.h"
#include "runtime/platform/nvidia/nvrtc.h"
#include "tests/catch.h"
#include "tests/nvrtc.h"

namespace attune::codegen {
namespace {

std::vector<std::string> chosen(const KernelSpec& spec, const Traits& facts = {}) {
  std::vector<std::string> out;
  for (const KernelChoice& c : choose(spec, facts).choices)
    out.push_back(fmt::format("{} {} x {}", c.plan.kernel->name, c.plan.tile.m, c.plan.tile.n));
  return out;
}

constexpr Sharing one_query{.rows = QueryRows::decode};

/// A member that only the source's Tile has; 0 if there is none.
int said(const KernelPlan& plan, std::string_view name) {
  const auto found = std::ranges::find(plan.tile.own, name, [](const auto& one) { return one.first; });
  return found == plan.tile.own.end() ? 0 : found->second;
}

std::string story_of(const KernelChoices& all) { return all.story.empty() ? "" : all.story.front(); }

/// The tile that a backward takes first, for a scaled score.
Variant backward_tile(const KernelSpec& spec, CoverKind cover, Length length) {
  const CallKind kind{cover, ModKind::scaled, length};
  return choose(backward_spec(spec), {.scaled = true}, kind, nullptr, kernels(Way::backward))
      .choices.at(0)
      .plan.variant;
}

}  // namespace

TEST_CASE("every width has kernels, and the portable one is the last", "[choose]") {
  for (int d = 1; d <= 256; ++d)
    for (const DType type : {DType::bf16, DType::f16, DType::f32})
      for (const int arch : {80, 86, 90, 100, 120}) {
        const KernelChoices all = choose({.arch = arch, .dtype = type, .out = type, .d = d, .dv = 257 - d}, {});
        REQUIRE(all.choices.back().plan.kernel->takes_any);
        for (const KernelChoice& c : all.choices) {
          CHECK(c.plan.tile.d >= d);
          CHECK(c.plan.tile.dv >= 257 - d);
          CHECK(c.shared_bytes <= (c.plan.kernel->takes_any ? 99 : 227) * 1024);
          CHECK(c.threads % 32 == 0);
        }
        CHECK((all.choices.front().plan.kernel->name == "forward_sm90") == all.story.empty());
      }
}

TEST_CASE("what a kernel cannot take leaves it out, and is said", "[choose]") {
  CHECK(chosen({}).front() == "forward_sm90 128 x 128");
  CHECK(choose({}, {}).story.empty());
  const auto story = [](const KernelSpec& spec, const Traits& facts = {}) { return story_of(choose(spec, facts)); };
  CHECK(story({.arch = 80}).find("compute capability 9.0") != std::string::npos);
  CHECK(story({.dtype = DType::f32, .out = DType::f32, .sharing = {.rows = QueryRows::few}}).find("so few queries") !=
        std::string::npos);
  CHECK(story({.out = DType::f32}).find("writes o as bf16, not as f32") != std::string::npos);
  CHECK(story({.packed = true}).empty());
  CHECK(story({.strides = {.tma = false}}).find("multiples of 16 bytes") != std::string::npos);
  CHECK(story({}, {.has_prob = true, .degree = 0}).empty());
}

TEST_CASE("kernels are as exact as is asked for, and else as their type makes them", "[choose]") {
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    CHECK(is_exact({}, type) == (type == DType::f32));
    for (const bool asked : {false, true}) {
      CHECK(is_exact(asked, type) == asked);
      for (const KernelChoice& c : choose({.dtype = type, .out = type, .exact = asked}, {}).choices) {
        CHECK(c.plan.spec.exact == asked);
        if (c.plan.kernel->name == "forward_sm80") CHECK(said(c.plan, "exact") == asked);
      }
    }
  }
}

TEST_CASE("every kind of call has rows at every width", "[choose]") {
  for (const auto& [d, dv] : {std::pair{64, 64}, {128, 128}, {192, 128}, {192, 192}, {256, 256}})
    for (int cover = 0; cover < 5; ++cover)
      for (int mod = 0; mod < 4; ++mod)
        for (const Length length : all_lengths) {
          const CallKind kind{static_cast<CoverKind>(cover), static_cast<ModKind>(mod), length};
          CHECK(choose({.d = d, .dv = dv}, {}, kind).choices.front().plan.kernel->name == "forward_sm90");
        }
}

TEST_CASE("short sequences take smaller tiles where these are faster", "[choose]") {
  using enum Length;
  const auto tiles = [](int d, CoverKind cover) {
    std::string out;
    for (const Length length : all_lengths) {
      const KernelPlan plan = choose({.d = d, .dv = d}, {.skips = cover != CoverKind::full},
                                     {.cover = cover, .length = length})
                                  .choices[0]
                                  .plan;
      out += fmt::format(" {}x{}{}", plan.tile.m, plan.tile.n, said(plan, "items") ? "+" : "");
    }
    return out;
  };
  CHECK(tiles(64, CoverKind::full) == " 128x80+ 128x128 128x112 192x128+ 192x128 192x128");
  CHECK(tiles(64, CoverKind::causal) == " 128x80+ 64x64+ 64x64+ 64x64+ 192x96 192x128");
  CHECK(tiles(64, CoverKind::listed) == " 128x128 128x128 128x128 128x128 128x128 128x128");
  CHECK(tiles(128, CoverKind::full) == " 128x80 128x128 128x128 128x128 128x128 128x128");
  CHECK(tiles(128, CoverKind::causal) == " 128x80 128x128 128x128 128x128 128x128 128x128");
}

TEST_CASE("masks of whole blocks of keys take tiles that blocks fill", "[choose]") {
  const auto tiles = [](std::int64_t d, std::int64_t dv) {
    std::string out;
    for (const int block : {0, 32, 64, 128}) {
      const Tile tile = choose({.d = d, .dv = dv}, {.keep_block = block, .skips = true, .listed = true},
                               {.cover = CoverKind::listed})
                            .choices[0]
                            .plan.tile;
      out += fmt::format(" {}x{}", tile.m, tile.n);
    }
    return out;
  };
  CHECK(tiles(64, 64) == " 128x128 128x128 64x64 128x128");
  CHECK(tiles(128, 128) == " 128x128 128x128 64x64 128x128");
  CHECK(tiles(192, 128) == " 128x112 128x112 128x128 128x128");
  CHECK(tiles(256, 256) == " 128x80 128x80 128x64 128x64");
  // A call that names the other tile gets the rest of it, not that of the first one.
  const Preference other{variant("forward_sm90:m=128,n=128"), true, ""};
  const Variant named = variant_of(
      choose({}, {.keep_block = 64, .listed = true}, {.cover = CoverKind::listed}, &other).choices[0].plan);
  CHECK(named.of("q_stages") == 2);
  CHECK(named.of("issue_order") == 1);
}

TEST_CASE("under a causal mask one or two tiles of queries a head need no counter", "[choose]") {
  const auto counted = [](int d) {
    std::string out;
    for (const Length length : all_lengths)
      out += choose({.d = d, .dv = d}, {.skips = true}, {.cover = CoverKind::causal, .length = length})
                     .choices[0]
                     .counts_tiles
                 ? '1'
                 : '0';
    return out;
  };
  CHECK(counted(64) == "011111");  // of 64 queries, from 81 positions on
  CHECK(counted(128) == "000111");
  CHECK(counted(256) == "000111");
}

TEST_CASE("a class of lengths says how many keys there may be", "[choose]") {
  using enum Length;
  CHECK(length_of(4096, 80) == to_80);
  CHECK(length_of(1, 81) == to_128);
  CHECK(length_of(77, 224) == to_224);
  CHECK(length_of(225, 225) == to_1k);
  CHECK(length_of(77, 4096) == to_1k);
  CHECK(length_of(77, 0) == to_1k);
  CHECK(length_of(1025, 8192) == to_4k);
}

TEST_CASE("blocks of one warpgroup share an SM if its registers and memory allow", "[choose]") {
  const auto blocks = [](int d, std::string_view text) {
    const Preference preference{variant(text), true, ""};
    const KernelChoice one = choose({.d = d, .dv = d}, {}, {}, &preference).choices[0];
    CHECK(one.shared_bytes <= most_shared_of(one.blocks_of_sm, 90));
    return one.blocks_of_sm;
  };
  CHECK(blocks(64, "forward_sm90:m=64,n=64,stages=2,issue_order=0") == 3);
  CHECK(blocks(64, "forward_sm90:m=64,n=96,stages=2,issue_order=0") == 2);
  CHECK(blocks(64, "forward_sm90:m=64,n=64,stages=4,issue_order=0") == 2);
  CHECK(blocks(128, "forward_sm90:m=64,n=64,issue_order=0,q_stages=1") == 2);
  CHECK(blocks(128, "forward_sm90") == 1);
  const Preference large{variant("forward_sm90:m=64,n=128,issue_order=0"), true, ""};
  CHECK_THROWS_AS(choose({}, {}, {}, &large), Error);
}

TEST_CASE("what spills is followed by another tile, not by another order of issue", "[choose]") {
  for (const int d : {64, 128})
    for (const auto cover : {CoverKind::full, CoverKind::causal, CoverKind::listed})
      for (const auto mod : {ModKind::scaled, ModKind::affine, ModKind::heavy}) {
        const auto all = choose({.d = d, .dv = d}, {}, {.cover = cover, .mod = mod}).choices;
        for (std::size_t i = 0; i < all.size(); ++i)
          for (std::size_t j = 0; j < i; ++j) {
            Variant here = variant_of(all[i].plan);
            const Variant before = variant_of(all[j].plan);
            if (before.of("issue_order")) here.set("issue_order", *before.of("issue_order"));
            CHECK(here != before);
          }
      }
}

TEST_CASE("heads share tiles where there are few queries, and nothing that lanes share varies with them", "[choose]") {
  struct Row {
    std::int64_t q_len, group;
    int heads;
  };
  for (const auto& [q_len, group, heads] : {Row{1, 1, 1},
                                            {1, 2, 2},
                                            {64, 2, 2},
                                            {65, 2, 1},
                                            {7, 3, 4},
                                            {1, 4, 4},
                                            {1, 5, 8},
                                            {1, 8, 8},
                                            {64, 9, 8},
                                            {1, 9, 16},
                                            {1, 128, 16},
                                            {2, 128, 8},
                                            {4096, 8, 1}})
    CHECK(heads_to_share(q_len, group) == heads);

  const auto slope = Device::cpu().array<float>({32}, "slope"), table = Device::cpu().array<float>({32, 300}, "table");
  const auto doc = Device::cpu().array<int>({300}, "doc");
  const auto shared = [](const Attention& attention, int arch) {
    const compiler::LoweredMod lowered = compiler::lower(attention);
    const GpuParts parts = gpu_parts(lowered, true);
    const KernelChoices all = choose({.arch = arch, .sharing = {.heads = 8}}, parts.facts);
    const int heads = all.choices.front().plan.tile.heads;
    for (const KernelChoice& c : all.choices) {
      CHECK(c.plan.tile.heads == heads);
      CHECK(c.plan.tile.queries() == c.plan.tile.m / heads);
      const std::string source = kernel_source(parts, c.plan).text;
      CHECK(source.find(fmt::format("heads = {};", heads)) != std::string::npos);
    }
    return heads == 8;
  };
  for (const int arch : {80, 90}) {
    CHECK(shared({}, arch));
    CHECK(shared({.mask = mods::causal()}, arch));
    CHECK(shared({.score = [=](Float s, At at) { return s + slope[at.head] * f32(at.kv - at.q); }}, arch));
    CHECK(shared({.score = [=](Float s, At at) { return s + table(at.head, abs(at.q - at.kv)); }}, arch));
    CHECK(shared({.mask = [=](At at) { return doc[at.q] == doc[at.kv]; }}, arch));
    CHECK_FALSE(shared({.mask = [](At at) { return at.kv <= at.q + at.head; }}, arch));
    CHECK_FALSE(shared({.score = [](Float s, At at) { return where(at.kv <= at.head, s, -1.0f / 0.0f); }}, arch));
    CHECK_FALSE(shared({.score = [=](Float s, At at) { return s + table(at.head, at.kv); }}, arch));
  }
}

TEST_CASE("few queries have a kernel whose blocks share their keys, on every card", "[choose]") {
  for (const auto& [q_len, group, few] : {std::tuple{1, 1, true},
                                          {16, 1, true},
                                          {17, 1, false},
                                          {8, 2, true},
                                          {9, 2, false},
                                          {4, 3, true},
                                          {2, 5, true},
                                          {1, 128, true},
                                          {3, 8, false},
                                          {0, 8, true}})
    CHECK(is_decode(q_len, group) == few);
  for (int d = 1; d <= 256; ++d)
    for (const int arch : {80, 86, 90, 100, 120}) {
      const KernelSpec spec{.arch = arch, .d = d, .dv = 257 - d, .sharing = one_query};
      const KernelChoices all = choose(spec, {});
      const KernelChoice& first = all.choices.front();
      CHECK(first.plan.kernel->name == "decode_sm80");
      CHECK(first.shared_bytes <= most_shared(arch));
      KernelSpec sixteen = spec;
      sixteen.sharing.heads = 16;
      for (const KernelChoice& c : choose(sixteen, {.shares_tiles = true}).choices)
        CHECK(c.plan.tile.heads == (c.plan.kernel == first.plan.kernel ? 16 : 8));
      const Preference same{variant_of(first.plan), true, ""};
      CHECK(choose(spec, {}, {}, &same).refused.empty());
    }
  // With per-entry settings or a fixed split size no other kernel follows, even if it spills less.
  CHECK(choose({.sharing = one_query}, {}).choices.size() > 1);
  for (const KernelSpec& spec : {KernelSpec{.cache = {.per_entry = true}, .sharing = one_query},
                                 KernelSpec{.fixed_split = true, .sharing = one_query}})
    for (const KernelChoice& c : choose(spec, {}).choices) CHECK(c.plan.kernel->name == "decode_sm80");
  // Steps of 32 keys at the usual width, where the ring has room for them; then of 16, for mods that would spill.
  const auto steps = [](const KernelSpec& spec) {
    std::vector<int> out;
    for (const KernelChoice& c : choose(spec, {}).choices)
      if (c.plan.kernel->name == "decode_sm80") out.push_back(c.plan.tile.n);
    return out;
  };
  CHECK(steps({.sharing = one_query}) == std::vector{32, 16});
  CHECK(steps({.fixed_split = true, .sharing = one_query}) == std::vector{16});
  CHECK(steps({.before = true, .sharing = one_query}) == std::vector{16});
  CHECK(steps({.arch = 86, .sharing = one_query}) == std::vector{16});
  CHECK(steps({.d = 64, .dv = 64, .sharing = one_query}) == std::vector{32});
  CHECK(choose({.fixed_split = true}, {}).choices.back().plan.kernel->takes_any);
  // With many queries, the kernels of other calls handle per-entry settings.
  for (const int arch : {80, 90, 120})
    for (const int page_rows : {0, 1, 4, 8, 64}) {
      const bool paged = page_rows > 0;
      const KernelChoices all = choose(
          {.arch = arch, .cache = {.per_entry = true, .page_rows = arch == 90 || !paged ? page_rows : 64}}, {});
      CHECK(all.choices.front().plan.kernel->name == (arch == 90 ? "forward_sm90" : "forward_sm80"));
      for (const KernelChoice& c : all.choices) {
        const bool hopper = c.plan.kernel->name == "forward_sm90", gathered = hopper && paged && page_rows < 8;
        CHECK(said(c.plan, "per_entry") == 1);
        CHECK(said(c.plan, "paged") == int{paged && !gathered});
        CHECK(c.plan.tile.gathered == gathered);
        if (!hopper) continue;
        const int box = said(c.plan, "box");
        CHECK(box == (paged && !gathered ? std::gcd(page_rows, c.plan.tile.n) : c.plan.tile.n));
        CHECK(c.boxes->k == box);
      }
    }
  const auto why = [](KernelSpec spec, const Traits& facts = {}) {
    spec.sharing = one_query;
    const KernelChoices all = choose(spec, facts);
    CHECK(all.choices.front().plan.kernel->name != "decode_sm80");
    return story_of(all);
  };
  CHECK(why({.dtype = DType::f32, .out = DType::f32}).find("q, k and v hold f32") != std::string::npos);
  CHECK(why({.strides = {.load = 8}}).find("loads 16 bytes") != std::string::npos);
  CHECK(why({}, {.has_prob = true, .degree = 0}).find("it needs each row's sum first") != std::string::npos);
  CHECK(choose({.sharing = one_query}, {.has_prob = true, .degree = 2}).choices.front().plan.kernel->name ==
        "decode_sm80");
  const Preference only{variant("decode_sm80"), true, ""};
  CHECK_THROWS_AS(choose({}, {}, {}, &only), Error);
  // For calls that the kernel is not made for, it gives no reason.
  CHECK(choose({}, {}).story.empty());
}

TEST_CASE("keys of e4m3 are read by the decode kernel, and by no other", "[choose]") {
  for (int d = 16; d <= 256; d += 16)
    for (const int arch : {80, 86, 90, 120}) {
      const KernelSpec spec{.arch = arch, .d = d, .dv = 272 - d, .cache = {.fp8 = true}, .sharing = one_query};
      const KernelChoices all = choose(spec, {});
      REQUIRE(all.choices.size() == 1);
      const KernelPlan& plan = all.choices[0].plan;
      CHECK(plan.kernel->name == "decode_sm80");
      CHECK(said(plan, "fp8_kv") == 1);
      CHECK(plan.tile.d == (d + 31) / 32 * 32);
      CHECK(plan.tile.dv == (spec.dv + 31) / 32 * 32);
      CHECK(all.choices[0].shared_bytes <= most_shared(arch));
      CHECK(all.story.back() == "not forward_sm80: it reads k and v in the type of q");
    }
  const auto refusal = [](const KernelSpec& spec, const Traits& facts = {}) -> std::string {
    try {
      choose(spec, facts);
    } catch (const Error& e) {
      return e.code + ": " + e.why;
    }
    return "nothing";
  };
  CHECK(refusal({.cache = {.fp8 = true}}) ==
        "engine-type: decode_sm80: it is for at most 16 rows (queries times the heads that share keys); "
        "forward_e4m3_sm90: its products are of e4m3, and q holds bf16; forward_sm90: it reads k and v in the type of "
        "q; forward_f32_sm90: its products are of f32, and q, k and v hold bf16; forward_sm80: it reads k and v in the "
        "type of q");
  CHECK(refusal({.arch = 80, .cache = {.fp8 = true}, .sharing = one_query, .strides = {.load = 8}})
            .find("engine-type: decode_sm80: it loads") == 0);
  CHECK(refusal({.cache = {.fp8 = true}, .sharing = one_query}, {.has_prob = true, .degree = 0}).find("engine-type") ==
        0);
  CHECK(refusal({.dtype = DType::f32, .out = DType::f32, .cache = {.fp8 = true}, .sharing = one_query})
            .find("engine-type") == 0);
}

TEST_CASE("queries, keys and values of e4m3 are for one kernel, which others' calls do not see", "[choose]") {
  for (int d = 16; d <= 128; d += 16) {
    const KernelSpec spec{.dtype = DType::e4m3, .out = d % 32 ? DType::f16 : DType::bf16, .d = d, .dv = 144 - d};
    const KernelChoices all = choose(spec, {});
    REQUIRE_FALSE(all.choices.empty());
    for (const KernelChoice& c : all.choices) {
      CHECK(c.plan.kernel->name == "forward_e4m3_sm90");
      CHECK(c.plan.tile.d == (d + 31) / 32 * 32);
      CHECK(c.plan.tile.n % 32 == 0);
      CHECK(c.shared_bytes <= most_shared(90));
    }
  }
  // Values wider than 128 are transposed before, and multiplied in parts.
  for (int dv = 144; dv <= 256; dv += 16)
    for (const KernelChoice& c :
         choose({.dtype = DType::e4m3, .out = DType::bf16, .d = 400 - dv, .dv = dv}, {}).choices) {
      CHECK(c.plan.kernel->name == "forward_e4m3_sm90");
      CHECK((c.plan.tile.transposed && c.plan.tile.n <= 128));
      CHECK(c.plan.tile.dv % c.plan.variant.of("columns").value() == 0);
      CHECK(c.shared_bytes <= most_shared(90));
    }
  CHECK(story_of(choose({}, {})).find("e4m3") == std::string::npos);
  const auto refusal = [](const KernelSpec& spec, const Traits& facts = {}) -> std::string {
    try {
      choose(spec, facts);
    } catch (const Error& e) {
      CHECK(e.code == "engine-type");
      return e.why;
    }
    return "nothing";
  };
  const KernelSpec usual{.dtype = DType::e4m3};
  CHECK(refusal(usual) == "nothing");
  KernelSpec other = usual;
  other.arch = 80;
  CHECK(refusal(other).find("forward_e4m3_sm90: it is for compute capability 9.0") != std::string::npos);
  other = usual, other.d = 272;
  CHECK_THROWS_AS(choose(other, {}), Error);
  other = usual, other.out = DType::f32;
  CHECK(refusal(other).find("it writes o as bf16 or f16, not as f32") != std::string::npos);
  other = usual, other.strides.tma = false;
  CHECK(refusal(other).find("forward_e4m3_sm90: TMA") != std::string::npos);
  CHECK(refusal(usual, {.has_prob = true, .degree = 0}).find("not a multiple of p") != std::string::npos);
  // Decode too: its kernel reads q as 16 bits.
  other = usual, other.sharing = one_query;
  CHECK(choose(other, {}).choices.front().plan.kernel->name == "forward_e4m3_sm90");
}

TEST_CASE("the backward of f32 is for two kernels of its own on Hopper, which leave the rest to the portable ones",
          "[choose]") {
  const KernelSpec usual{.dtype = DType::f32, .out = DType::f32, .exact = true};
  for (const Way way : {Way::queries, Way::keys}) {
    const std::string name = way == Way::queries ? "queries_f32_sm90" : "keys_f32_sm90";
    for (const bool exact : {false, true})
      for (int d = 4; d <= 128; d += 4) {
        KernelSpec spec = usual;
        spec.exact = exact, spec.d = d, spec.dv = 132 - d;
        const KernelChoices all = choose(spec, {}, {}, nullptr, kernels(way));
        const KernelChoice& first = all.choices.front();
        CHECK(first.plan.kernel->name == name);
        CHECK(first.plan.tile.parts == (exact ? 2 : 1));
        for (const KernelChoice& c : all.choices) CHECK(c.shared_bytes <= most_shared(90));
      }
    const auto why = [&](const auto& change, const Traits& facts = {}) {
      KernelSpec spec = usual;
      change(spec);
      const KernelChoices all = choose(spec, facts, {}, nullptr, kernels(way));
      CHECK(all.choices.front().plan.kernel->takes_any);
      const std::string told = fmt::format("{}", fmt::join(all.story, "; ")), from = "not " + name + ": ";
      return told.find(from) == std::string::npos ? "" : told.substr(told.find(from) + from.size());
    };
    const auto same = [](KernelSpec&) {};
    CHECK(why([](KernelSpec& s) { s.arch = 80; }).find("it is for compute capability 9.0") == 0);
    CHECK(why([](KernelSpec& s) { s.d = 132; }).find("it supports heads up to 128 wide; D is 132") == 0);
    CHECK(why([](KernelSpec& s) { s.strides.tma = false; }).find("TMA") == 0);
    CHECK(why([](KernelSpec& s) { s.packed = true; }).find("sequences are packed") == 0);
    CHECK(why(same, {.has_prob = true}).find("there is a prob mod") == 0);
    CHECK(why(same, {.listed = true}).find("the mask needs tile lists") == 0);
    CHECK(why(same, {.has_terms = true}).find("the call asks for gradients of captured tensors") == 0);
    for (const std::string& line : choose({}, {}, {}, nullptr, kernels(way)).story)
      CHECK(line.find("f32_sm90") == std::string::npos);
  }
}

TEST_CASE("f32 is for a kernel of its own on Hopper, which leaves what it does not take to the portable one",
          "[choose]") {
  const KernelSpec usual{.dtype = DType::f32, .out = DType::f32, .exact = true};
  for (const bool exact : {false, true})
    for (int d = 4; d <= 128; d += 4) {
      KernelSpec spec = usual;
      spec.exact = exact, spec.d = d, spec.dv = 132 - d;
      std::size_t count = 0;
      for (const KernelChoice& c : choose(spec, {}).choices) {
        if (c.plan.kernel->takes_any) continue;
        ++count;
        CHECK(c.plan.kernel->name == "forward_f32_sm90");
        CHECK(c.plan.tile.parts == (exact ? 2 : 1));
        CHECK(c.plan.tile.n * c.plan.tile.d <= 256 * 32);
        CHECK(c.plan.tile.n * c.plan.tile.dv <= 256 * 32);
        CHECK(c.shared_bytes <= most_shared(90));
      }
      CHECK(count == 2);
    }
  const auto why = [&](const KernelSpec& spec, const Traits& facts = {}) {
    const KernelChoices all = choose(spec, facts);
    CHECK((all.choices.front().plan.kernel->takes_any) == (story_of(all).find("not forward_f32") != std::string::npos));
    return story_of(all);
  };
  KernelSpec other = usual;
  other.arch = 80;
  CHECK(why(other).find("not forward_f32_sm90: it is for compute capability 9.0") != std::string::npos);
  other = usual, other.d = 132;
  CHECK(why(other).find("it supports heads up to 128 wide; D is 132 and Dv is 128") != std::string::npos);
  other = usual, other.out = DType::bf16;
  CHECK(why(other).find("it writes o as f32, not as bf16") != std::string::npos);
  other = usual, other.strides.tma = false;
  CHECK(why(other).find("not forward_f32_sm90: TMA") != std::string::npos);
  other = usual, other.cache = {.per_entry = true, .page_rows = 1};
  CHECK(why(other) == "");
  other = usual, other.sharing.rows = QueryRows::few;
  CHECK(why(other).find("splitting keys and values for so few queries would take longer") != std::string::npos);
  CHECK(why(usual, {.has_prob = true, .degree = 0}).find("it needs each row's sum first") != std::string::npos);
  CHECK(why(usual, {.has_prob = true, .degree = 2}) == "");
  CHECK(story_of(choose({}, {})).find("f32") == std::string::npos);
  const KernelSpec f32{.dtype = DType::f32}, small{.cache = {.page_rows = 4}}, large{.cache = {.page_rows = 8}};
  CHECK(are_few(f32, 255));
  CHECK_FALSE(are_few(f32, 256));
  CHECK(are_few(small, 1023));
  CHECK_FALSE(are_few(small, 1024));
  CHECK_FALSE(are_few(large, 17));
}

TEST_CASE("a call's sizes say where its keys are and how its queries share them", "[choose]") {
  const auto settled = [](KernelSpec spec, const Sizes& sizes) {
    settle(spec, sizes);
    return spec;
  };
  // Nothing that no kernel asks: such calls have one kernel.
  for (const int arch : {80, 90})
    for (const Sizes& sizes : {Sizes{.q_len = 4096}, Sizes{.q_len = 65, .group = 8}, Sizes{.q_len = 17}})
      CHECK(settled({.arch = arch}, sizes) == KernelSpec{.arch = arch});
  CHECK(settled({}, {.q_len = 1, .group = 8}).sharing == Sharing{.rows = QueryRows::decode, .heads = 8});
  CHECK(settled({}, {.q_len = 4, .group = 8}).sharing == Sharing{.heads = 8});
  const KernelSpec f32{.dtype = DType::f32, .out = DType::f32};
  CHECK(settled(f32, {.q_len = 31, .group = 8}).sharing == Sharing{.rows = QueryRows::few, .heads = 8});
  CHECK(settled(f32, {.q_len = 100, .group = 8}).sharing == Sharing{});
  CHECK(settled(f32, {.q_len = 2, .group = 1}).sharing.decode());
  // One or two queries of many heads: Hopper splits f32 keys from 256 rows on. It copies keys out of small pages, too,
  // which takes more rows to pay.
  const KernelSpec many_heads = settled(f32, {.q_len = 1, .group = 256});
  CHECK(many_heads.sharing == Sharing{.heads = 16});
  CHECK(choose(many_heads, {}).choices.front().plan.kernel->name == "forward_f32_sm90");
  CHECK(settled(f32, {.q_len = 2, .group = 128}).sharing == Sharing{.heads = 8});
  const KernelSpec of_pages = settled(f32, {.q_len = 1, .group = 512, .page_size = 2});
  CHECK(of_pages.sharing.rows == QueryRows::many);
  CHECK(of_pages.cache == KvCache{.per_entry = true, .page_rows = 2});
  for (const Sizes& sizes : {Sizes{.q_len = 1, .group = 255}, Sizes{.q_len = 2, .group = 127},
                             Sizes{.q_len = 1, .group = 511, .page_size = 2}}) {
    const KernelSpec too_few = settled(f32, sizes);
    CHECK(too_few.sharing.decode());
    CHECK(too_few.cache.page_rows == (sizes.page_size > 0 ? 64 : 0));
    CHECK(choose(too_few, {}).choices.front().plan.kernel->name == "forward_sm80");
  }
  KernelSpec without_tma = f32;
  without_tma.strides.tma = false;
  const KernelSpec portable{.arch = 80, .dtype = DType::f32, .out = DType::f32};
  for (const KernelSpec& spec : {without_tma, portable, KernelSpec{}})
    CHECK(settled(spec, {.q_len = 1, .group = 4096, .page_size = 2}).sharing.decode());
  // Pages: of 48 rows, boxes of 16, where boxes are loaded.
  const auto page_rows = [&](const KernelSpec& spec, const Sizes& sizes) {
    const KernelSpec out = settled(spec, sizes);
    CHECK(out.cache.per_entry);
    return out.cache.page_rows;
  };
  CHECK(page_rows({}, {.page_size = 48}) == 16);
  CHECK(page_rows({.arch = 80}, {.page_size = 48}) == 64);
  CHECK(page_rows({.strides = {.tma = false}}, {.page_size = 48}) == 64);
  CHECK(page_rows({}, {.q_len = 1, .page_size = 1}) == 64);
  CHECK(page_rows({.cache = {.mla = true}}, {.q_len = 1, .page_size = 8}) == 8);
  CHECK(settled({}, {.q_len = 127, .group = 1, .page_size = 2}).sharing.rows == QueryRows::few);
  CHECK(settled({}, {.q_len = 512, .group = 1, .page_size = 2}).sharing.rows == QueryRows::many);
  CHECK(settled({}, {.q_len = 127, .group = 1, .page_size = 8}).sharing.rows == QueryRows::many);
  const KernelSpec mla{.d = mla_d, .dv = mla_dv, .cache = {.mla = true}};
  CHECK(settled(mla, {.q_len = 1, .group = 128}).sharing == Sharing{.heads = 64, .row_blocks = 2});
  CHECK(settled(mla, {.q_len = 2, .group = 128}).sharing == Sharing{.heads = 64, .row_blocks = 4});
  CHECK(settled(mla, {.q_len = 2, .group = 128}).cache == KvCache{.per_entry = true, .mla = true});
}

TEST_CASE("few tiles of queries have as many parts of their keys as fill the blocks", "[choose]") {
  // 132 blocks; in tiles of 128 keys.
  CHECK(parts_of_keys(8, 132, 256) == 16);   // one entry of 32768 keys, 8 key heads
  CHECK(parts_of_keys(64, 132, 256) == 2);   // 8 entries
  CHECK(parts_of_keys(1, 132, 256) == 32);   // no more
  CHECK(parts_of_keys(128, 132, 256) == 1);  // they fill the blocks
  CHECK(parts_of_keys(264, 132, 4096) == 1);
  CHECK(parts_of_keys(100, 132, 256) == 5);  // 500 parts in four rounds
  CHECK(parts_of_keys(1, 132, 31) == 3);     // of 8 tiles each, and more
  CHECK(parts_of_keys(1, 132, 15) == 1);
  CHECK(parts_of_keys(64, 132, 16) == 1);  // one kernel more takes as long as what it saves
  CHECK(parts_of_keys(1, 132, 0) == 1);
  for (const int tiles : {1, 3, 17, 66, 67, 131, 132, 133, 500})
    for (const int steps : {0, 1, 16, 40, 1000, 1 << 20}) {
      const int parts = parts_of_keys(tiles, 132, steps);
      CHECK((parts >= 1 && parts <= most_key_parts));
      CHECK((parts == 1 || steps / parts >= 8));
    }
  const KernelSpec usual{.cache = {.per_entry = true}};
  CHECK(may_split_keys(usual));
  for (const auto& [what, change] : std::initializer_list<std::pair<const char*, void (*)(KernelSpec&)>>{
           {"no Hopper", [](KernelSpec& s) { s.arch = 80; }},
           {"f32", [](KernelSpec& s) { s.dtype = DType::f32; }},
           {"dense", [](KernelSpec& s) { s.cache.per_entry = false; }},
           {"decode", [](KernelSpec& s) { s.sharing = one_query; }},
           {"MLA", [](KernelSpec& s) { s.cache.mla = true; }},
           {"FP8 cache", [](KernelSpec& s) { s.cache.fp8 = true; }},
           {"no TMA", [](KernelSpec& s) { s.strides.tma = false; }},
           {"fixed splits", [](KernelSpec& s) { s.fixed_split = true; }}}) {
    INFO(what);
    KernelSpec other = usual;
    change(other);
    CHECK_FALSE(may_split_keys(other));
  }
  for (const bool few : {false, true})
    for (const KernelChoice& c :
         choose({.d = 64, .dv = 64, .cache = {.per_entry = true}, .sharing = {.few_tiles = few}}, {}).choices) {
      const bool hopper = c.plan.kernel->name == "forward_sm90";
      CHECK(c.plan.tile.in_parts == (hopper && few));
      CHECK(said(c.plan, "in_parts") == int{hopper && few});
      if (hopper && few) CHECK(c.plan.tile.m <= few_rows);
    }
  // A prob mod that is not a multiple of p has no parts that can be added up.
  const KernelChoices other = choose({.cache = {.per_entry = true}, .sharing = {.few_tiles = true}},
                                     {.has_prob = true, .degree = 0});
  CHECK(other.choices.front().plan.kernel->name == "forward_sm90");
  for (const KernelChoice& c : other.choices) CHECK_FALSE(c.plan.tile.in_parts);
}

TEST_CASE("values of e4m3 are transposed before where many tiles of queries read them all", "[choose]") {
  const auto transposed = [](CoverKind cover, Length length, bool packed = false) {
    const KernelSpec spec{.dtype = DType::e4m3, .packed = packed};
    return choose(spec, {}, {.cover = cover, .length = length}).choices.front().plan.tile.transposed;
  };
  CHECK(transposed(CoverKind::full, Length::longer));
  CHECK(transposed(CoverKind::full, Length::longer, true));
  CHECK_FALSE(transposed(CoverKind::full, Length::to_4k));
  CHECK_FALSE(transposed(CoverKind::causal, Length::longer));
  // A tile that is asked for by name may have it or not.
  for (const bool packed : {false, true})
    for (const int value : {0, 1})
      for (const int n : {32, 96, 128}) {
        const KernelSpec spec{.dtype = DType::e4m3, .d = 64, .dv = 80, .packed = packed};
        const Preference preference{variant(fmt::format("forward_e4m3_sm90:n={},transposed={}", n, value)), true, ""};
        const KernelPlan plan = choose(spec, {}, {}, &preference).choices.front().plan;
        CHECK(plan.tile.transposed == (value == 1));
        const std::string source = transpose_source(plan).text;
        CHECK(source.find(fmt::format("n = {}, dv = 96", n)) != std::string::npos);
        CHECK(source.find(packed ? "Layout::packed" : "Layout::dense") != std::string::npos);
      }
}

TEST_CASE("a mask says for how many keys it is the same", "[choose]") {
  Array<int> doc = Device::cpu().array<int>({300}, "doc"), map = Device::cpu().array<int>({8, 8}, "map");
  const auto block = [](const std::function<Bool(At)>& mask) {
    const compiler::LoweredMod lowered = compiler::lower({.mask = mask});
    return gpu_parts(lowered, true).facts.keep_block;
  };
  CHECK(block([=](At at) { return map(at.q / 64, at.kv / 64) != 0; }) == 64);
  CHECK(block([=](At at) { return at.kv <= at.q && map(at.q, at.kv / 64) != 0; }) == 64);
  CHECK(block([=](At at) { return map(at.q / 64, (at.kv >> 7) % 5) > at.head; }) == 128);
  CHECK(block([=](At at) { return map(0, at.kv / 512) != map(1, at.kv / 96); }) == 32);
  CHECK(block([=](At at) { return map(at.q / 8, at.kv / 8) != 0; }) == 0);
  CHECK(block([=](At at) { return map(at.q / 64, at.kv / 64) != 0 && at.kv % 3 != 1; }) == 0);
  CHECK(block([=](At at) { return map(at.q / 64, (at.kv + 1) / 64) != 0; }) == 0);
  CHECK(block([=](At at) { return doc[at.q] == doc[at.kv]; }) == 0);
  CHECK(block([=](At at) { return map(at.q / 64, at.kv / 64) != 0 && random(3) < 0.5f; }) == 0);
  CHECK(block(mods::causal()) == 0);
}

TEST_CASE("calls are of the kind that their expressions make them", "[choose]") {
  Array<int> doc = Device::cpu().array<int>({300}, "doc");
  Array<float> table = Device::cpu().array<float>({300}, "table"), slope = Device::cpu().array<float>({4}, "slope");
  const auto kind = [](const Attention& attention) {
    const compiler::LoweredMod lowered = compiler::lower(attention);
    return call_kind(gpu_parts(lowered, true), Length::longer);
  };
  CHECK(kind({}) == CallKind{CoverKind::full, ModKind::scaled, Length::longer});
  CHECK(kind({.mask = mods::causal()}).cover == CoverKind::causal);
  CHECK(kind({.mask = [](At at) { return at.kv <= at.q || at.kv < 1024; }}).cover == CoverKind::listed);
  CHECK(kind({.mask = [](At at) { return at.kv <= at.q && at.q - at.kv < 64; }}).cover == CoverKind::window);
  CHECK(kind({.mask = [=](At at) { return doc[at.q] == doc[at.kv]; }}).cover == CoverKind::listed);
  CHECK(kind({.mask = [](At) { return random(3) < 0.5f; }}).cover == CoverKind::pairs);
  CHECK(kind({.score = [=](Float s, At at) { return s + slope[at.head] * f32(at.kv - at.q); }}).mod == ModKind::affine);
  CHECK(kind({.score = mods::softcap(20)}).mod == ModKind::heavy);
  CHECK(kind({.score = [=](Float s, At at) { return s + table[abs(at.q - at.kv)]; }}).mod == ModKind::reads);
  CHECK(kind({.prob = [](Float p, At) { return p * random(3); }}).mod == ModKind::heavy);
}

TEST_CASE("Hopper's backward of wide heads leaves what it cannot take to the portable kernels, and says why",
          "[choose]") {
  for (const Way way : {Way::queries, Way::keys}) {
    const auto why = [&](const KernelSpec& spec, const Traits& facts = {}) {
      const KernelChoices all = choose(spec, facts, {}, nullptr, kernels(way));
      CHECK((all.choices.front().plan.kernel->takes_any) == !all.story.empty());
      return all.story.empty() ? "" : all.story.front();
    };
    for (const auto& [d, dv] : {std::pair{256, 256}, {192, 128}, {144, 200}, {136, 136}, {136, 72}})
      CHECK(why({.d = d, .dv = dv}) == "");
    CHECK(why({.d = 72, .dv = 256}) == (way == Way::keys ? "not keys_sm90: keys are not wider than 128" : ""));
    CHECK(why({.dtype = DType::f16, .d = 256, .dv = 256}) == "");
    const KernelSpec wide{.d = 256, .dv = 256};
    const auto with = [&](const auto& change) {
      KernelSpec spec = wide;
      change(spec);
      return why(spec);
    };
    CHECK(why({.d = 128, .dv = 128}).find("wider than 128") != std::string::npos);
    CHECK(why({.d = way == Way::keys ? 256 : 64, .dv = way == Way::keys ? 64 : 256}).find("not wider than 64") !=
          std::string::npos);
    CHECK(with([](KernelSpec& s) { s.arch = 80; }).find("compute capability") != std::string::npos);
    CHECK(with([](KernelSpec& s) { s.dtype = DType::f32; }).find("bf16 or f16") != std::string::npos);
    CHECK(with([](KernelSpec& s) { s.packed = true; }).find("packed") != std::string::npos);
    CHECK(with([](KernelSpec& s) { s.strides.tma = false; }).find("TMA") != std::string::npos);
    CHECK(why(wide, {.has_prob = true}) == "");
    CHECK(why(wide, {.has_prob = true, .degree = 0}).find("not a multiple of p") != std::string::npos);
    CHECK(why(wide, {.listed = true}).find("lists") != std::string::npos);
    CHECK(why(wide, {.has_terms = true}).find("captured") != std::string::npos);
  }
}

TEST_CASE("Hopper's whole backward gives gradients of captured tensors, however they are summed", "[choose]") {
  const auto ways = [](const Traits& facts, const KernelSpec& spec = {}) {
    return ways_of_backward(spec, facts).size();
  };
  CHECK(ways({}) == 1);
  CHECK(ways({.has_terms = true}) == 1);
  CHECK(ways({.has_terms = true}, {.d = 192, .dv = 128}) == 2);
  CHECK(ways({.has_terms = true, .sums_diagonals = true}) == 1);
  CHECK(ways({.has_terms = true, .sums_diagonals = true}, {.packed = true}) == 1);
  CHECK(ways({.has_terms = true, .sums_diagonals = true}, {.d = 192, .dv = 128}) == 2);
  CHECK(ways({.has_prob = true, .has_terms = true, .sums_diagonals = true}) == 1);
  CHECK(ways({.has_prob = true, .has_terms = true, .sums_items = true, .stores_ds = true}) == 1);
  CHECK(ways({.has_terms = true, .sums_items = true, .sums_diagonals = true}) == 1);
  CHECK(ways({.listed = true, .has_terms = true, .sums_items = true, .sums_diagonals = true}) == 1);
  CHECK(ways({.listed = true, .has_terms = true}) == 1);
  CHECK(ways({.has_prob = true, .degree = 0}) == 1);
  CHECK(ways({.has_prob = true, .degree = 0, .delta_of_o = false}) == 1);
  CHECK(ways({.has_prob = true, .degree = 0, .listed = true, .delta_of_o = false}) == 1);
}

namespace {

/// The orders of products that Hopper's whole backward tries.
std::vector<int> orders(std::int64_t d, const Traits& facts) {
  std::vector<int> out;
  for (const Variant& one : kernels(Way::backward)[0]->tiles(backward_spec({.d = d, .dv = d}), facts, {}))
    out.push_back(one.of("order").value());
  return out;
}

}  // namespace

TEST_CASE("a backward that sums by head or by key has the order of products that leaves it registers", "[choose]") {
  CHECK(orders(128, {.scaled = true, .has_terms = true, .sums_items = true}) == std::vector{3, 2, 1, 0});
  CHECK(orders(64, {.scaled = true, .has_terms = true, .sums_items = true}) == std::vector{1, 0});
  for (const std::int64_t d : {64, 128})
    CHECK(orders(d, {.scaled = true, .has_terms = true, .sums_items = true, .items_ask_s = true}) == std::vector{0});
}

TEST_CASE("a prob mod whose derivative reads p has the order of products that has P, if scores have a slope",
          "[choose]") {
  Traits square{.scaled = true, .has_prob = true, .degree = 2};
  CHECK(orders(128, square) == orders(128, {.scaled = true}));
  square.has_slope = true;
  CHECK(orders(128, square) == std::vector{0});
  CHECK(orders(128, {.scaled = true, .has_prob = true, .has_slope = true}) == orders(128, {.scaled = true}));
}

TEST_CASE("Hopper's whole backward gives the gradient of a dense bias, which it may copy", "[choose]") {
  const auto ways = [](const Traits& facts, const KernelSpec& spec = {}) {
    return ways_of_backward(spec, facts).size();
  };
  Traits facts{.has_terms = true, .stores_ds = true};
  CHECK(ways(facts) == 1);
  CHECK(ways(facts, {.d = 192, .dv = 128}) == 2);
  const KernelDescriptor* const whole = kernels(Way::backward)[0];
  CHECK(whole->why_not({.packed = true}, facts).empty());
  const auto copies = [&] { return whole->tiles({}, facts, {}).front().of("copies").value_or(0); };
  CHECK(copies() == 0);
  for (const int reads : {1, 2}) {
    facts.copied_reads = reads;
    CHECK(copies() == reads);
  }
}

TEST_CASE("what is preferred comes first, and the rest as without it", "[choose]") {
  const std::vector<std::string> usual = chosen({});
  const Preference preference{variant("forward_sm90:n=176,q_stages=1,own_o=0,issue_order=2,dynamic=1"), false, ""};
  const KernelChoices all = choose({}, {}, {}, &preference);
  CHECK(all.refused.empty());
  REQUIRE(all.choices.size() == usual.size() + 1);
  CHECK(variant_of(all.choices[0].plan).text() == "forward_sm90:m=128,n=176,stages=2,q_stages=1,own_o=0,issue_order=2,"
                                                  "dynamic=1,small_tanh=0,copies=0,distances=0,column_words=0,items=1,"
                                                  "drawn=0");
  CHECK(all.choices[0].shared_bytes <= 227 * 1024);
  for (std::size_t i = 0; i < usual.size(); ++i)
    CHECK(fmt::format("{} {} x {}", all.choices[i + 1].plan.kernel->name, all.choices[i + 1].plan.tile.m,
                      all.choices[i + 1].plan.tile.n) == usual[i]);
}

TEST_CASE("what is preferred and cannot be is left out, and is said", "[choose]") {
  const auto refused = [](std::string_view text, const KernelSpec& spec = {}, const Traits& facts = {}) {
    const Preference preference{variant(text), false, ""};
    const KernelChoices all = choose(spec, facts, {}, &preference);
    CHECK(all.choices.size() == choose(spec, facts).choices.size());
    const Preference only{variant(text), true, ""};
    CHECK_THROWS_AS(choose(spec, facts, {}, &only), Error);
    return all.refused;
  };
  CHECK(refused("forward_sm91")
            .find("the kernels are mla_sm90 and decode_sm80 and forward_e4m3_sm90 and forward_sm90 and") !=
        std::string::npos);
  CHECK(refused("forward_sm90:warps=4").find("has no `warps`") != std::string::npos);
  CHECK(refused("forward_sm90:n=100").find("multiple of 16") != std::string::npos);
  CHECK(refused("forward_sm90:m=64").find("issue_order must be 0") != std::string::npos);
  CHECK(refused("forward_sm90:n=256").find("its registers hold") != std::string::npos);
  CHECK(refused("forward_sm90:n=176").find("shared memory") != std::string::npos);
  CHECK(refused("forward_sm90:own_o=0").find("own_o must be 1") != std::string::npos);
  CHECK(refused("forward_sm90:n=48,own_o=2").find("no room in the memory of values") != std::string::npos);
  CHECK(refused("forward_sm90:m=192,n=64,own_o=2,stages=2", {.d = 64, .dv = 64}).find("no room") != std::string::npos);
  CHECK(refused("forward_sm90:m=128,own_o=2,items=2", {.d = 64, .dv = 64}).find("items must be 1") !=
        std::string::npos);
  for (const char* member : {"copies", "distances", "column_words"})
    CHECK(refused(fmt::format("forward_sm90:q_stages=1,own_o=0,{}=1", member), {.sharing = {.heads = 4}},
                  {.shares_tiles = true})
              .find("heads share a tile") != std::string::npos);
  const Traits dropout{.has_prob = true, .drops = true};
  CHECK(refused("forward_sm90:q_stages=1,drawn=1").find("the prob mod is no dropout") != std::string::npos);
  CHECK(refused("forward_sm90:m=64,n=64,issue_order=0,drawn=1", {}, dropout).find("m must be 128") !=
        std::string::npos);
  CHECK(refused("forward_sm90:n=64,q_stages=1,own_o=2,drawn=1", {.d = 256, .dv = 256}, dropout)
            .find("more than 192 columns") != std::string::npos);
  CHECK(refused("forward_sm90:q_stages=1,drawn=1", {.sharing = {.heads = 4}}, {.drops = true, .shares_tiles = true})
            .find("heads share no tile") != std::string::npos);
  CHECK(refused("forward_sm90:m=2147483647").find("from 64 to 192") != std::string::npos);
  CHECK(refused("forward_sm90", {.arch = 80}).find("compute capability") != std::string::npos);
  CHECK(refused("forward_sm80:warps=3").find("16 or 32 times the warps") != std::string::npos);
  CHECK(refused("forward_sm80:stages=3,n=128", {.arch = 86}).find("shared memory") != std::string::npos);
}

TEST_CASE("usual members that save time give way to those that are named", "[choose]") {
  const auto named = [](std::string_view text, const KernelSpec& spec, const Traits& facts, const CallKind& kind) {
    const Preference only{variant("backward_sm90:" + std::string(text)), true, ""};
    return choose(spec, facts, kind, &only, kernels(Way::backward)).choices.at(0).plan.variant;
  };
  const KernelSpec spec = backward_spec({});
  const Traits scaled{.scaled = true};
  const CallKind one_k{CoverKind::causal, ModKind::scaled, Length::to_1k},
      short_{CoverKind::causal, ModKind::scaled, Length::to_128};
  const auto of = [](const Variant& variant, std::string_view member) { return variant.of(member).value(); };
  const Variant usual = named("order=3", spec, scaled, one_k), of_80 = named("m=80", spec, scaled, one_k);
  CHECK(of(usual, "completes") == 1);
  CHECK(of(of_80, "m") == 80);
  CHECK(of(of_80, "completes") == 0);
  CHECK(of(of_80, "path") == 1);
  CHECK(of(of_80, "order") == 3);
  CHECK(of(of_80, "ordered") == 1);
  CHECK(of(named("ordered=0", spec, scaled, one_k), "completes") == 0);
  CHECK(of(named("order=3", spec, scaled, short_), "alone") == 1);
  CHECK(of(named("completes=1", spec, scaled, short_), "alone") == 0);
  // Two at once: a copied bias leaves no room for two tiles of dq.
  const Traits biased{.scaled = true, .copied_reads = 1};
  CHECK(of(named("order=3", spec, biased, one_k), "copies") == 1);
  CHECK(of(named("completes=1", spec, biased, one_k), "copies") == 0);
  // What was named contradicts itself.
  CHECK_THROWS_AS(named("m=80,completes=1", spec, scaled, one_k), Error);
  CHECK_THROWS_AS(named("ordered=0,completes=1", spec, scaled, one_k), Error);
  // More keys than one tile has.
  CHECK(of(named("alone=1", spec, scaled, short_), "alone") == 1);
  CHECK_THROWS_AS(named("alone=1", spec, scaled, one_k), Error);
}

TEST_CASE("a backward's tiles have 80 queries where items have many steps", "[choose]") {
  const auto queries = [](std::int64_t d, CoverKind cover, Length length, bool packed = false) {
    return backward_tile({.d = d, .dv = d, .packed = packed}, cover, length).of("m");
  };
  CHECK(queries(128, CoverKind::full, Length::to_4k) == 80);
  CHECK(queries(128, CoverKind::full, Length::to_1k) == 64);
  CHECK(queries(128, CoverKind::causal, Length::longer) == 80);
  CHECK(queries(128, CoverKind::causal, Length::to_4k) == 64);
  CHECK(queries(96, CoverKind::causal, Length::to_4k) == 80);
  CHECK(queries(128, CoverKind::window, Length::longer) == 64);
  CHECK(queries(128, CoverKind::causal, Length::longer, true) == 64);
}

TEST_CASE("a backward completes dq itself where items have few steps", "[choose]") {
  const auto completes = [](std::int64_t d, CoverKind cover, Length length, bool shared_keys = false) {
    return backward_tile({.d = d, .dv = d, .sharing = {.shared_keys = shared_keys}}, cover, length).of("completes");
  };
  for (const bool shared : {false, true}) {
    CHECK(completes(64, CoverKind::causal, Length::to_1k, shared) == 1);
    CHECK(completes(64, CoverKind::full, Length::to_1k, shared) == !shared);
    CHECK(completes(64, CoverKind::causal, Length::to_4k, shared) == !shared);
    CHECK(completes(64, CoverKind::causal, Length::longer, shared) == 0);
    CHECK(completes(128, CoverKind::window, Length::longer, shared) == 1);
    CHECK(completes(128, CoverKind::causal, Length::to_4k, shared) == 0);
  }
}

TEST_CASE("an item's path through its heads' queries follows from the mask", "[choose]") {
  const auto path = [](KernelSpec spec, CoverKind cover, const Traits& facts = {.scaled = true}) {
    const KernelChoices all = choose(backward_spec(spec), facts, {cover, ModKind::scaled, Length::longer}, nullptr,
                                     kernels(Way::backward));
    for (const KernelChoice& one : all.choices)
      if (one.plan.kernel->name == std::string_view("backward_sm90")) return one.plan.variant.of("path").value();
    return -1;
  };
  const KernelSpec narrow{.d = 64, .dv = 64}, packed{.d = 64, .dv = 64, .packed = true}, wide{.packed = true};
  CHECK(path({}, CoverKind::causal) == 1);
  CHECK(path(narrow, CoverKind::causal) == 1);
  CHECK(path(packed, CoverKind::causal) == 2);
  CHECK(path(wide, CoverKind::causal) == 0);
  for (const CoverKind cover : {CoverKind::full, CoverKind::window, CoverKind::listed, CoverKind::pairs})
    CHECK(path(narrow, cover) == 0);
  CHECK(path({}, CoverKind::causal, {.scaled = true, .has_terms = true, .sums_diagonals = true}) == 0);
  CHECK(path({}, CoverKind::causal, {.scaled = true, .has_terms = true, .stores_ds = true}) == 1);
}

TEST_CASE("tiles that a mod cannot have are refused before they are compiled", "[choose]") {
  const auto why = [](std::string_view text, const Traits& facts, KernelSpec spec = backward_spec({})) -> std::string {
    const Preference only{variant("backward_sm90:" + std::string(text)), true, ""};
    try {
      choose(spec, facts, {}, &only, kernels(Way::backward));
    } catch (const Error& e) {
      return e.why;
    }
    return "";
  };
  const Traits terms{.scaled = true, .has_terms = true, .sums_diagonals = true};
  for (const char* text : {"completes=1", "path=1", "copies=1", "m=80", "diagonals=0"})
    CHECK(why(text, terms).find("sums a captured tensor's gradient") != std::string::npos);
  CHECK(why("order=3", terms) == "");
  const Traits stores{.scaled = true, .has_terms = true, .stores_ds = true};
  for (const char* text : {"completes=1", "m=80"})
    CHECK(why(text, stores).find("sums a captured tensor's gradient") != std::string::npos);
  CHECK(why("path=1", stores) == "");
  const Traits of_s{.scaled = true, .has_terms = true, .sums_items = true, .items_ask_s = true};
  CHECK(why("order=3", of_s).find("order must be 0") != std::string::npos);
  CHECK(why("order=0", of_s) == "");
  CHECK(why("copies=1", {}).find("no captured tensor is read") != std::string::npos);
  CHECK(why("copies=2", {.copied_reads = 1}).find("0 or 1") != std::string::npos);
  CHECK(why("copies=1", {.copied_reads = 1, .copies_f32 = true}).find("0 or 2") != std::string::npos);
  CHECK(why("copies=2", {.copied_reads = 1, .copies_f32 = true}) == "");
  CHECK(why("copies=2", {.copied_reads = 2}) == "");
  CHECK(why("diagonals=1", {}).find("diagonals must be 0") != std::string::npos);
}

TEST_CASE("only what is asked for", "[choose]") {
  const Preference only{variant("forward_sm80"), true, ""};
  const KernelChoices all = choose({}, {}, {}, &only);
  REQUIRE(all.choices.size() == 1);
  CHECK(all.choices[0].plan.kernel->name == "forward_sm80");
}

TEST_CASE("what a search looks at is legal, new and whole", "[choose]") {
  for (const KernelSpec& spec :
       {KernelSpec{}, KernelSpec{.d = 64, .dv = 64}, KernelSpec{.d = 256, .dv = 256}, KernelSpec{.d = 192, .dv = 128},
        KernelSpec{.arch = 80}, KernelSpec{.arch = 120}, KernelSpec{.dtype = DType::f32, .out = DType::f32}}) {
    const Variant from = variant_of(choose(spec, {}).choices[0].plan);
    std::vector<Variant> all = other_tiles(spec, {}, from);
    for (const Variant& v : other_ways(spec, {}, from)) all.push_back(v);
    CHECK(all.size() >= 3);
    for (const Variant& v : all) {
      INFO(v.text());
      CHECK(v != from);
      CHECK(variant(v.text()) == v);
      const Preference only{v, true, ""};
      CHECK(variant_of(choose(spec, {}, {}, &only).choices[0].plan) == v);
    }
    std::ranges::sort(all);
    CHECK(std::ranges::adjacent_find(all) == all.end());
  }
}

TEST_CASE("a kernel as text", "[choose]") {
  CHECK(variant("forward_sm80") == Variant{"forward_sm80", {}});
  CHECK(variant("a:m=1,n=-2") == Variant{"a", {{"m", 1}, {"n", -2}}});
  CHECK(variant("a:m=1,m=2").text() == "a:m=2");
  for (const char* wrong :
       {"", ":", ":m=1", "a:", "a:m", "a:m=", "a:=1", "a:m=1,", "a:m=1x", "a:m=99999999999", "a:m= 1"}) {
    INFO(wrong);
    CHECK_THROWS_AS(variant(wrong), Error);
  }
}

TEST_CASE("what no kernel takes is refused", "[choose]") {
  const auto refusal = [](const KernelSpec& spec) -> std::string {
    try {
      choose(spec, {});
    } catch (const Error& e) {
      return e.code;
    }
    return "nothing";
  };
  CHECK(refusal({.arch = 75}) == "engine-arch");
  CHECK(refusal({.dtype = DType::f64}) == "engine-type");
  CHECK(refusal({.d = 257}) == "engine-width");
  CHECK(refusal({.dv = 300}) == "engine-width");
  CHECK(refusal({.d = 576, .dv = 512}) == "engine-width");
}

TEST_CASE("MLA has a kernel of its own", "[choose]") {
  CHECK(is_mla(576, 512, true));
  CHECK(!is_mla(576, 512, false));
  CHECK(!is_mla(128, 64, true));
  const KernelSpec usual{
      .d = mla_d, .dv = mla_dv, .cache = {.per_entry = true, .mla = true}, .sharing = {.heads = 64, .row_blocks = 2}};
  const auto cluster = [](const KernelSpec& spec, const Traits& facts) {
    const KernelChoices all = choose(spec, facts);
    REQUIRE(all.choices.size() == 1);
    CHECK(all.choices[0].plan.kernel->name == "mla_sm90");
    CHECK(all.choices[0].shared_bytes <= 227 * 1024);
    return all.choices[0].plan.tile.cluster;
  };
  const Traits shares{.shares_tiles = true};
  CHECK(cluster(usual, shares) == 2);
  CHECK(cluster(usual, {}) == 1);
  KernelSpec fours = usual;
  fours.sharing.row_blocks = 4;
  CHECK(cluster(fours, shares) == 4);
  CHECK(cluster(fours, {}) == 1);
  const auto refused = [&](auto change, std::string_view why, Traits facts = {.shares_tiles = true}) {
    KernelSpec spec = usual;
    change(spec);
    try {
      choose(spec, facts);
      FAIL_CHECK("nothing was refused: " << why);
    } catch (const Error& e) {
      CHECK(e.code == "engine-call");
      INFO(e.why);
      CHECK(e.why.find(why) != std::string::npos);
    }
  };
  refused([](KernelSpec& s) { s.arch = 80; }, "compute capability 9.0");
  refused([](KernelSpec& s) { s.d = 320; }, "576");
  refused([](KernelSpec& s) { s.dtype = s.out = DType::f32; }, "q, k and v hold f32");
  refused([](KernelSpec& s) { s.cache.fp8 = true; }, "the type of q");
  refused([](KernelSpec& s) { s.strides.tma = false; }, "multiples of 16");
  refused([](KernelSpec& s) { s.cache.page_rows = 4; }, "a multiple of 8 rows");
  refused([](KernelSpec& s) { s.fixed_split = true; }, "fixed split");
  refused([](KernelSpec&) {}, "not a multiple of p", {.has_prob = true, .degree = 0});
  for (const auto& [group, heads] : {std::pair{1, 1}, {3, 4}, {16, 16}, {40, 64}, {64, 64}, {128, 64}})
    CHECK(mla_heads_to_share(group) == heads);
  for (const auto& [rows, blocks] : {std::pair{1, 1},
                                     {64, 1},
                                     {65, 2},
                                     {128, 2},
                                     {129, 4},
                                     {256, 4},
                                     {257, 2},
                                     {384, 2},
                                     {385, 4},
                                     {1025, 2},
                                     {1500, 4}}) {
    CHECK(row_blocks(rows, false) == blocks);
    CHECK(row_blocks(rows, true) == std::min(blocks, 2));
  }
}

namespace {

/// Also tiles of Hopper's forward that hold parts of scores.
std::vector<KernelChoice> with_held(std::vector<KernelChoice> choices) {
  for (std::size_t i = 0, count = choices.size(); i < count; ++i) {
    const KernelPlan plan = choices[i].plan;
    if (plan.kernel->name != "forward_sm90") continue;
    for (const char* member : {"copies", "distances", "column_words", "drawn"}) {
      Variant variant = plan.variant;
      variant.set(member, 1);
      choices.push_back(plan.kernel->choice(plan.spec, variant));
    }
  }
  return choices;
}

}  // namespace

TEST_CASE("the host counts shared memory and columns as kernels do", "[choose]") {
  if (tests::skips_compiling()) return;
  const compiler::LoweredMod lowered = compiler::lower(Attention{});
  const GpuParts parts = gpu_parts(lowered, true);
  for (const KernelSpec& spec :
       {KernelSpec{.d = 24, .dv = 40}, KernelSpec{.out = DType::f32, .d = 16, .dv = 16}, KernelSpec{.d = 64, .dv = 160},
        KernelSpec{.d = 40, .dv = 256},
        KernelSpec{.d = 72, .dv = 128, .sharing = {.rows = QueryRows::decode, .heads = 4}},
        KernelSpec{.arch = 86, .out = DType::f32, .d = 256, .dv = 40, .sharing = one_query},
        KernelSpec{.before = true, .fixed_split = true, .sharing = {.rows = QueryRows::decode, .heads = 2}},
        KernelSpec{.d = 48, .dv = 80, .cache = {.fp8 = true}, .sharing = one_query},
        KernelSpec{.dtype = DType::e4m3, .d = 128, .dv = 128}, KernelSpec{.dtype = DType::e4m3, .d = 40, .dv = 80},
        KernelSpec{.dtype = DType::e4m3, .d = 256, .dv = 256},
        KernelSpec{.arch = 86, .d = 256, .dv = 64, .cache = {.fp8 = true}, .before = true, .sharing = one_query},
        KernelSpec{.d = 576, .dv = 512, .cache = {.per_entry = true, .mla = true}, .sharing = {.heads = 16}}})
    for (const KernelChoice& c : with_held(choose(spec, parts.facts).choices)) {
      Source source = kernel_source(parts, c.plan);
      const bool copied = c.plan.kernel->name == "forward_sm90" || c.plan.kernel->name == "forward_e4m3_sm90";
      const std::string shared = copied                                 ? "Shared90"
                                 : c.plan.kernel->name == "decode_sm80" ? "SharedDecode"
                                 : c.plan.kernel->name == "mla_sm90"    ? "SharedMla"
                                                                        : "Shared80";
      const int aligned = copied || shared == "SharedMla" ? 1024 : 0;
      // Without the kernel itself, which takes a second or two to compile.
      source.text.resize(source.text.rfind("template __global__"));
      source.symbol = "nothing";
      source.text += "__global__ void nothing() {}\n";
      source.text += fmt::format("static_assert(attune::{}<attune::fast::Tile>::at.bytes + {} == {});\n", shared,
                                 aligned, c.shared_bytes);
      INFO(c.plan.kernel->name);
      CHECK_NOTHROW(runtime::cuda::compile(source));
    }
}

TEST_CASE("the host counts the shared memory of the wide backward as its kernels do", "[choose]") {
  if (tests::skips_compiling()) return;
  const compiler::LoweredMod lowered = compiler::lower(Attention{});
  const Wanted none;
  for (const Way way : {Way::queries, Way::keys})
    for (const KernelSpec& spec : {KernelSpec{.d = 256, .dv = 256}, KernelSpec{.d = 136, .dv = 72}}) {
      const GpuParts parts = gpu_parts(lowered, true, &none, way == Way::keys);
      const KernelChoice c = choose(spec, parts.facts, {}, nullptr, kernels(way)).choices.front();
      Source source = kernel_source(parts, c.plan);
      source.text.resize(source.text.rfind("template __global__"));
      source.symbol = "nothing";
      source.text += "__global__ void nothing() {}\n";
      source.text += fmt::format("static_assert(attune::{}<attune::fast::Tile>::at.bytes == {});\n",
                                 way == Way::keys ? "SharedKeys90" : "SharedQueries90", c.shared_bytes);
      INFO(c.plan.kernel->name);
      CHECK_NOTHROW(runtime::cuda::compile(source));
    }
}

}  // namespace attune::codegen
