// tests/fuzz/cover.fuzz.cpp — covers of random and of likely masks are never wrong, by brute force over small sizes
#include "compiler/cover.h"

#include <functional>
#include <memory>
#include <sstream>

#include "compiler/lower.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "runtime/engines/call.h"
#include "runtime/engines/cover/tiles.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/machine/tensor.h"
#include "tests/catch.h"
#include "tests/fuzz/random_expr.h"

namespace attune {
namespace {

using ir::Expr, ir::Random;
using runtime::Extent, runtime::Keep, runtime::Run;

/// The captures and parameters every mask may use.
const ir::Signature& names() {
  using ir::Type;
  static const ir::Signature signature{{{"doc", Type::I32, 1},
                                        {"ids", Type::I32, 1},
                                        {"len", Type::I32, 1},
                                        {"rows", Type::I32, 2},
                                        {"keep", Type::Bool, 2},
                                        {"deep", Type::Bool, 3},
                                        {"slope", Type::F32, 1}},
                                       {{"cap", Type::F32}, {"W", Type::I32}, {"off", Type::I32}}};
  return signature;
}

/// Masks such as users write: comparisons of linear forms and of data, combined.
class Likely {
 public:
  explicit Likely(Random& random) : random_(random) {}

  std::string mask(int depth) {
    const std::uint32_t kind = random_.below(depth > 0 ? 13 : 7);
    if (kind < 4) return value(2) + pick({" <= ", " < ", " > ", " >= ", " == ", " != "}) + value(2);
    if (kind == 4)
      return pick({"doc[q] == doc[kv]", "ids[q] == ids[kv]", "doc[q] != doc[kv]", "doc[kv] <= doc[q]",
                   "rows[b, q] == rows[b, kv]", "ids[kv] <= ids[q]", "doc[q + 1] == doc[kv]",
                   "rows[h, kv] != rows[h, q]"});
    if (kind == 5)
      return pick({"keep[q / 4, kv / 4]", "keep[q, kv]", "deep[h, q / 8, kv / 8]", "keep[b, kv]",
                   "f32(kv) * cap <= f32(q)", "true", "slope[q] < slope[kv]", "random(3) < 0.5f", "keep[h, 0]",
                   "kv <= q", "q - kv < 8", "kv < len[b]", "q < len[h]"});
    if (kind == 6)  // in f64 and in f32, not alike
      return "f32(" + value(1) + pick({") * 0.1f", ") / 3.0f * 3.0f", ") * 0.1f * 10.0f", ") * slope[h] * cap"}) +
             pick({" > ", " == ", " <= "}) + pick({"f32(", "0.1f * f32(", "0.7f * f32("}) + value(1) + ")";
    if (kind == 7) return "!(" + mask(depth - 1) + ")";
    if (kind == 8) return "(" + mask(depth - 1) + " ? " + mask(depth - 1) + " : " + mask(depth - 1) + ")";
    if (kind == 9) return "((" + mask(depth - 1) + ") == (" + mask(depth - 1) + "))";
    return "((" + mask(depth - 1) + ")" + pick({" && ", " && ", " || "}) + "(" + mask(depth - 1) + "))";
  }

 private:
  std::string pick(std::initializer_list<const char*> from) {
    return from.begin()[random_.below(static_cast<std::uint32_t>(from.size()))];
  }
  std::string number() {
    if (random_.chance(0.06))
      return pick({"2147483647", "-2147483648", "1073741824", "1073741823", "-1073741824", "536870912", "-536870913",
                   "2147483600", "1000000000"});
    return std::to_string(static_cast<int>(random_.below(44)) - 8);
  }
  std::string divisor() { return pick({"2", "3", "4", "5", "8", "16", "1", "7", "W", "-3", "0", "1073741823"}); }
  std::string value(int depth) {
    const std::uint32_t kind = random_.below(depth > 0 ? 22 : 9);
    if (kind < 3) return "q";
    if (kind < 6) return "kv";
    if (kind == 6) return "(" + number() + ")";
    if (kind == 7) return pick({"W", "off", "len[b]", "len[h]", "q_len", "kv_len", "h", "b"});
    if (kind == 8) return "(q - kv)";
    const std::string x = value(depth - 1);
    if (kind < 11) return "(" + x + pick({" + ", " - "}) + value(depth - 1) + ")";
    if (kind == 11) return "(" + x + pick({" * 2", " * 3", " * -1", " * 100000000", " * W"}) + ")";
    if (kind < 14) return "(" + x + " / " + divisor() + ")";
    if (kind == 14) return "(" + x + " % " + divisor() + ")";
    if (kind == 15) return pick({"floordiv(", "floormod("}) + x + ", " + divisor() + ")";
    if (kind == 16) return "abs(" + x + ")";
    if (kind == 17) return pick({"min(", "max("}) + x + ", " + value(depth - 1) + ")";
    if (kind == 18) return "clamp(" + x + ", " + number() + ", " + value(depth - 1) + ")";
    if (kind == 19) return "(" + x + pick({" >> 2", " & 7", " ^ 5", " | 3", " << 2", " >> -1", " & 2147483647"}) + ")";
    if (kind == 20) return "(" + mask(0) + " ? " + x + " : " + value(depth - 1) + ")";
    return pick({"doc[", "ids[", "-doc[", "len["}) + x + "]";
  }

  Random& random_;
};

/// Data for the names, and a cover from the data.
class Case {
 public:
  explicit Case(std::uint64_t seed) : random_(seed ^ 0xc0fe), seed_(seed) {
    extent_.batch = 1 + static_cast<int>(random_.below(2));
    extent_.heads = 1 + static_cast<int>(random_.below(2));
    const std::uint32_t longest = random_.chance(0.3) ? 40 : 16;
    extent_.q_len = 1 + static_cast<int>(random_.below(longest));
    extent_.kv_len = 1 + static_cast<int>(random_.below(longest));
    extent_.tile_q = 1 + static_cast<int>(random_.below(16));
    extent_.tile_kv = 1 + static_cast<int>(random_.below(16));
    const std::uint32_t where = random_.below(8);
    if (where == 0) extent_.q_offset = (1 << 30) - extent_.q_len - static_cast<int>(random_.below(50));
    if (where == 1) extent_.q_offset = static_cast<int>(random_.below(40));
    if (where == 2) extent_.q_offset = static_cast<int>(random_.below(1 << 30)) - extent_.q_len + 1;
    extent_.q_offset = std::max(extent_.q_offset, 0);
    data();
    if (seed % 3 == 0) {
      ir::Grammar g;
      g.signature = names();
      for (const ir::Input i :
           {ir::Input::B, ir::Input::H, ir::Input::Q, ir::Input::KV, ir::Input::QLen, ir::Input::KVLen})
        g.inputs |= ir::bit(i);
      g.custom = false;
      g.hostile = seed % 2 != 0;
      g.max_nodes = 24;
      mask_ = ir::random_expr(seed, ir::Type::Bool, g);
    } else {
      const std::string text = Likely(random_).mask(static_cast<int>(random_.below(4)));
      mask_ = ir::parse(text, {.name = "mask", .expected = {}, .signature = &names(), .lets = {}});
    }
    lowered_.mod.score = ir::input(ir::Input::S);
    lowered_.mod.mask = compiler::simplify(mask_, compiler::coordinate_bounds());
    lowered_.cover = compiler::cover(lowered_.mod.mask, names());
  }

  /// What is wrong with it, if anything.
  std::string run() {
    runtime::Tiles tiles(lowered_);
    brute();
    for (const bool along_q : {false, true}) check_lists(tiles.lists(extent_, along_q));
    if (const auto said = tiles.live(extent_)) {
      std::int64_t live = 0;
      for (const char k : kept_) live += k;
      if (*said != live) tell() << "live() says " << *said << ", but " << live << " are kept\n";
    }
    check_expressions();
    if (wrong_.str().empty()) return {};
    std::ostringstream told;
    told << "seed " << seed_ << ": " << ir::print(mask_, names()) << "\n"
         << extent_.batch << " x " << extent_.heads << " x " << extent_.q_len << " x " << extent_.kv_len << " from "
         << extent_.q_offset << ", tiles " << extent_.tile_q << " x " << extent_.tile_kv << ", W " << params_[1]
         << ", off " << params_[2] << "\n"
         << wrong_.str().substr(0, 600);
    return told.str();
  }

  bool constant() const { return ir::is_literal(lowered_.mod.mask); }
  int open() const { return loose_; }

 private:
  void capture(DType dtype, std::initializer_list<std::int64_t> shape, const std::function<double(std::int64_t)>& at) {
    auto memory = detail::allocate({}, dtype, std::span(shape.begin(), shape.size()));
    const Tensor tensor(memory.get(), dtype, shape);
    for (std::int64_t i = 0; i < tensor.size(); ++i) runtime::store(tensor, i, at(i));
    memory_.push_back(std::move(memory));
    lowered_.slots.captures.push_back(tensor);
  }

  void data() {
    const auto length = [&] { return 1 + static_cast<std::int64_t>(random_.below(45)); };
    const bool hostile = random_.chance(0.3);
    double id = random_.chance(0.2) ? -0x1p31 : 0;
    capture(DType::i32, {length()}, [&](std::int64_t) { return id += random_.chance(0.2) ? 1 : 0; });
    const auto any = [&](std::int64_t) {
      return hostile ? ir::random_value(random_, ir::Type::I32, true) : static_cast<double>(random_.below(4));
    };
    capture(DType::i32, {length()}, any);
    capture(DType::i32, {2}, [&](std::int64_t) {
      return hostile ? ir::random_value(random_, ir::Type::I32, true) : static_cast<double>(random_.below(40));
    });
    const std::int64_t columns = length();
    const bool sorted = random_.chance(0.5);
    capture(DType::i32, {2, columns}, [&](std::int64_t i) {
      return sorted ? static_cast<double>(i % columns / 5) : static_cast<double>(random_.below(3));
    });
    const double share = random_.pick(std::span<const double>(std::array{0.5, 0.05, 0.95}));
    const auto coin = [&](std::int64_t) { return random_.chance(share) ? 1.0 : 0.0; };
    capture(DType::boolean, {length(), length()}, coin);
    capture(DType::boolean, {2, 1 + static_cast<std::int64_t>(random_.below(5)), 3}, coin);
    capture(DType::f32, {length()}, [&](std::int64_t) { return ir::random_value(random_, ir::Type::F32, true); });
    params_ = {ir::random_value(random_, ir::Type::F32, true), static_cast<double>(random_.below(12)),
               ir::random_value(random_, ir::Type::I32, true)};
    if (hostile) params_[1] = ir::random_value(random_, ir::Type::I32, true);
    lowered_.mod.params = names().params;
    for (std::size_t i = 0; i < params_.size(); ++i)
      lowered_.slots.params.push_back(
          std::make_shared<detail::ParamCell>(detail::ParamCell{names().params[i].name, i == 0, params_[i]}));
  }

  ir::Env env(const ir::ReadCapture& read) const {
    ir::Env e;
    e.q_len = extent_.q_len;
    e.kv_len = extent_.kv_len;
    e.params = params_;
    e.read = &read;
    return e;
  }

  /// In f32, as kernels evaluate a mask.
  void brute() {
    const ir::ReadCapture read = runtime::reader(lowered_.slots.captures);
    const ir::Program program(mask_);
    ir::Program::Memory memory;
    ir::Env at = env(read);
    for (at.b = 0; at.b < extent_.batch; ++at.b)
      for (at.h = 0; at.h < extent_.heads; ++at.h)
        for (at.q = extent_.q_offset; at.q < extent_.q_offset + extent_.q_len; ++at.q)
          for (at.kv = 0; at.kv < extent_.kv_len; ++at.kv) {
            program.run(at, memory, ir::Precision::f32);
            kept_.push_back(program.result(0, memory) != 0);
          }
  }

  /// q counted from the offset.
  bool kept(int b, int h, int q, int kv) const {
    return kept_[static_cast<std::size_t>(((b * extent_.heads + h) * extent_.q_len + q) * extent_.kv_len + kv)];
  }
  Keep is(int b, int h, int q0, int q1, int kv0, int kv1) const {
    bool keeps = false, drops = false;
    for (int q = q0; q < q1; ++q)
      for (int kv = kv0; kv < kv1; ++kv) (kept(b, h, q, kv) ? keeps : drops) = true;
    return keeps && drops ? Keep::Some : keeps ? Keep::All : Keep::None;
  }

  std::ostringstream& tell() { return wrong_; }

  void check_lists(const runtime::TileLists& lists) {
    const Extent& e = extent_;
    const int rows = lists.along_q ? e.kv_tiles() : e.q_tiles(), columns = lists.along_q ? e.q_tiles() : e.kv_tiles();
    std::int64_t some = 0, all = 0;
    for (int b = 0; b < e.batch; ++b)
      for (int h = 0; h < e.heads; ++h)
        for (int row = 0; row < rows; ++row) {
          const std::int64_t list =
              ((lists.by_batch ? b : 0) * (lists.by_head ? e.heads : 1) + (lists.by_head ? h : 0)) * rows + row;
          std::vector<Keep> said(static_cast<std::size_t>(columns), Keep::None);
          int reached = 0;
          for (std::int64_t i = lists.offsets[static_cast<std::size_t>(list)];
               i < lists.offsets[static_cast<std::size_t>(list + 1)]; ++i) {
            const Run& r = lists.runs[static_cast<std::size_t>(i)];
            if (r.begin < reached || r.begin >= r.end || r.end > columns) tell() << "runs out of order\n";
            reached = r.end;
            for (int t = r.begin; t < std::min(r.end, columns); ++t) said[static_cast<std::size_t>(t)] = r.keep;
            (r.keep == Keep::Some ? some : all) += r.end - r.begin;
          }
          for (int t = 0; t < columns; ++t) {
            const int tq = lists.along_q ? t : row, tk = lists.along_q ? row : t;
            const Keep truth = is(b, h, tq * e.tile_q, std::min(e.q_len, (tq + 1) * e.tile_q), tk * e.tile_kv,
                                  std::min(e.kv_len, (tk + 1) * e.tile_kv));
            const Keep word = said[static_cast<std::size_t>(t)];
            if (word == truth) continue;
            loose_ += word == Keep::Some;
            const compiler::Bands& bands = lists.along_q ? lowered_.cover.along_q : lowered_.cover.along_kv;
            if (word != Keep::Some || bands.exact())
              tell() << "along " << (lists.along_q ? "q" : "kv") << ", tile " << tq << ", " << tk << " is "
                     << static_cast<int>(truth) << ", said to be " << static_cast<int>(word) << "\n";
          }
        }
    if (some != lists.some || all != lists.all) tell() << "tiles are counted wrongly\n";
  }

  void check_expressions() {
    const runtime::Summaries summaries(lowered_.slots.captures, lowered_.cover.summaries);
    const ir::Program verdict(std::array{lowered_.cover.may_keep, lowered_.cover.may_drop});
    std::vector<Expr> roots[2];
    for (int along_q = 0; along_q < 2; ++along_q) {
      const compiler::Bands& bands = along_q ? lowered_.cover.along_q : lowered_.cover.along_kv;
      for (const auto* list : {&bands.kept, &bands.gone})
        for (const compiler::Band& b : *list) roots[along_q].insert(roots[along_q].end(), {b.begin, b.end});
      roots[along_q].push_back(ir::integer(0));
    }
    const ir::Program along_kv(roots[0]), along_q(roots[1]);
    ir::Program::Memory memory;
    ir::Env at = env(summaries.read());
    const Extent& e = extent_;
    for (int b = 0; b < e.batch; ++b)
      for (int h = 0; h < e.heads; ++h)
        for (int i = 0; i < 4; ++i) {
          at.b = b;
          at.h = h;
          const auto some = [&](int length) {
            const int from = static_cast<int>(random_.below(static_cast<std::uint32_t>(length)));
            return std::pair{from,
                             from + 1 + static_cast<int>(random_.below(static_cast<std::uint32_t>(length - from)))};
          };
          const auto [q0, q1] = some(e.q_len);
          const auto [kv0, kv1] = some(e.kv_len);
          place(at, q0, q1, kv0, kv1);
          verdict.run(at, memory, ir::Precision::f32);
          const Keep truth = is(b, h, q0, q1, kv0, kv1);
          if ((verdict.result(0, memory) == 0 && truth != Keep::None) ||
              (verdict.result(1, memory) == 0 && truth != Keep::All))
            tell() << "q " << q0 << " .. " << q1 << ", kv " << kv0 << " .. " << kv1 << " is " << static_cast<int>(truth)
                   << ", may keep " << verdict.result(0, memory) << ", may drop " << verdict.result(1, memory) << "\n";
          place(at, q0, q1, 0, e.kv_len);
          along_kv.run(at, memory, ir::Precision::f32);
          check_bands(lowered_.cover.along_kv, along_kv, memory, b, h, q0, q1, false);
          place(at, 0, e.q_len, kv0, kv1);
          along_q.run(at, memory, ir::Precision::f32);
          check_bands(lowered_.cover.along_q, along_q, memory, b, h, kv0, kv1, true);
        }
  }

  void place(ir::Env& at, int q0, int q1, int kv0, int kv1) const {
    at.q_begin = extent_.q_offset + q0;
    at.q_end = extent_.q_offset + q1;
    at.kv_begin = kv0;
    at.kv_end = kv1;
  }

  /// For the tile [from, to) of one axis and each position of the other: whether a pair exists and lies within a band.
  void check_bands(const compiler::Bands& bands, const ir::Program& program, const ir::Program::Memory& memory, int b,
                   int h, int from, int to, bool along_q) {
    const int length = along_q ? extent_.q_len : extent_.kv_len, origin = along_q ? extent_.q_offset : 0;
    std::size_t root = 0;
    for (const bool keep : {true, false}) {
      const auto& list = keep ? bands.kept : bands.gone;
      std::vector<char> inside(static_cast<std::size_t>(length), 0), pairs(static_cast<std::size_t>(length), 0);
      for (int i = 0; i < length; ++i)
        for (int t = from; t < to; ++t)
          pairs[static_cast<std::size_t>(i)] |= (along_q ? kept(b, h, i, t) : kept(b, h, t, i)) == keep;
      for (const compiler::Band& band : list) {
        const double begin = program.result(root++, memory) - origin, end = program.result(root++, memory) - origin;
        for (int i = 0; i < length; ++i) {
          if (i < begin || i >= end) continue;
          inside[static_cast<std::size_t>(i)] = 1;
          if (band.exact && !pairs[static_cast<std::size_t>(i)])
            tell() << (along_q ? "q " : "kv ") << i << (keep ? " has no kept" : " has no dropped") << " pair with tile "
                   << from << " .. " << to << " but lies in the exact band " << begin << " .. " << end << "\n";
        }
      }
      for (int i = 0; i < length; ++i)
        if (pairs[static_cast<std::size_t>(i)] && !inside[static_cast<std::size_t>(i)])
          tell() << (along_q ? "q " : "kv ") << i << (keep ? " has a kept" : " has a dropped") << " pair with tile "
                 << from << " .. " << to << " outside of every band\n";
    }
  }

  Random random_;
  std::uint64_t seed_;
  Extent extent_;
  std::vector<std::shared_ptr<void>> memory_;
  std::vector<double> params_;
  Expr mask_;
  compiler::LoweredMod lowered_;
  std::vector<char> kept_;
  int loose_ = 0;
  std::ostringstream wrong_;
};

}  // namespace

TEST_CASE("the cover of a random mask is never wrong, and its exact bands hold pairs everywhere", "[fuzz][cover]") {
  // Brute force over every pair takes longer than other properties do.
  const std::uint64_t count = std::min<std::uint64_t>(ir::fuzz_count(), 1'000 + ir::fuzz_count() / 9);
  std::uint64_t constant = 0, failed = 0;
  for (const std::uint64_t seed : tests::seeds_in_turn(count)) {
    Case one(seed);
    const std::string wrong = one.run();
    if (!wrong.empty()) FAIL_CHECK(wrong);
    if (!wrong.empty() && ++failed == 5) break;
    constant += one.constant();
  }
  CHECK(constant < count / 2);  // constant masks test nothing
}

}  // namespace attune
