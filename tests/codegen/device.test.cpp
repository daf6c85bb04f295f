// tests/codegen/device.test.cpp — generated sources on a GPU, pair by pair, against eval; lists of tiles against every
// pair
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <numbers>
#include <set>

#include "codegen/choose/choose.h"
#include "codegen/cuda/contract/args.cuh"
#include "compiler/check.h"
#include "compiler/lower.h"
#include "ir/eval.h"
#include "ir/print.h"
#include "runtime/engines/call.h"
#include "runtime/engines/cuda/operands.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/machine/tensor.h"
#include "runtime/platform/memory.h"
#include "runtime/platform/nvidia/driver.h"
#include "runtime/platform/nvidia/nvrtc.h"
#include "tests/catch.h"
#include "tests/codegen/kernels/forward_plain.cuh"
#include "tests/codegen/kernels/forward_plain.h"
#include "tests/codegen/kernels/forward_reversed_sm90.h"
#include "tests/codegen/probe.h"
#include "tests/fuzz/random_expr.h"
#include "tests/numerics/masks.h"

namespace attune::tests {
namespace {

namespace cuda = runtime::cuda;
namespace cu = runtime::cuda::cu;

bool skipped() {
  if (cuda::device_count() > 0 && cuda::nvrtc()) return false;
  WARN("[skip] " << (cuda::nvrtc() ? cuda::find_driver().why : cuda::nvrtc().refusal));
  return true;
}

/// A copy of bytes on the device, and the way back.
class OnDevice {
 public:
  explicit OnDevice(std::size_t bytes) : bytes_(bytes), memory_(cuda::allocate(0, std::max<std::size_t>(bytes, 1))) {}
  OnDevice(const void* from, std::size_t bytes) : OnDevice(bytes) { move(const_cast<void*>(from), true); }
  void* data() const { return memory_.get(); }
  template <class T>
  std::vector<T> values() const {
    std::vector<T> all(bytes_ / sizeof(T));
    move(all.data(), false);
    return all;
  }

 private:
  void move(void* host, bool up) const {
    const std::int64_t n = static_cast<std::int64_t>(bytes_);
    const Tensor here(host, DType::u8, {n}), there(memory_.get(), DType::u8, {n}, {}, {Device::Kind::cuda, 0});
    if (bytes_ > 0) cuda::copy(up ? here : there, up ? there : here, bytes_, nullptr);
  }
  std::size_t bytes_;
  std::shared_ptr<void> memory_;
};

/// A Mod's captures on the device, and its User.
struct User {
  std::vector<OnDevice> memory;
  std::vector<std::byte> bytes;

  User(const compiler::Mod& mod, std::span<const Tensor> captures, std::span<const double> params, float scale) {
    std::vector<Tensor> there(captures.begin(), captures.end());
    for (Tensor& t : there) {
      memory.emplace_back(t.data, static_cast<std::size_t>(t.size()) * size_of(t.dtype));
      t.data = memory.back().data();
    }
    bytes = codegen::user_bytes(mod, there, params, scale, false);
  }
};

void launch(const codegen::Source& source, const codegen::Grid& grid, unsigned threads, void* args, User& user,
            int shared_bytes = 0) {
  const cuda::Binary binary = cuda::compile(source);
  const cuda::Driver& d = cuda::driver();
  cu::Library library = nullptr;
  d.cuLibraryLoadData(&library, binary.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  cu::Kernel kernel = nullptr;
  d.cuLibraryGetKernel(&kernel, library, binary.symbol.c_str());
  cu::Device device = 0;
  d.cuDeviceGet(&device, 0);
  d.cuKernelSetAttribute(cu::KernelAttribute::dynamic_shared, shared_bytes, kernel, device);
  const cu::LaunchConfig config{.grid = {grid[0], grid[1], grid[2]},
                                .block = {threads, 1, 1},
                                .shared_bytes = static_cast<unsigned>(shared_bytes),
                                .stream = nullptr};
  std::array<void*, 2> arguments{args, user.bytes.data()};
  d.cuLaunchKernelEx(&config, reinterpret_cast<cu::Function>(kernel), arguments.data(), nullptr);
  d.cuStreamSynchronize(nullptr);
  d.cuLibraryUnload(library);
}

/// A tensor of bf16 on the host, [batch, head, position, d].
struct Halves {
  std::vector<std::int64_t> shape;
  std::shared_ptr<void> memory;
  Tensor tensor;

  explicit Halves(std::vector<std::int64_t> extents)
      : shape(std::move(extents)), memory(detail::allocate({}, DType::bf16, shape)),
        tensor(memory.get(), DType::bf16, shape) {}
  void fill(ir::Random& random) const {
    for (std::int64_t i = 0; i < tensor.size(); ++i) runtime::store(tensor, i, random.between(-1, 1));
  }
  /// The same, positions from the last one to the first.
  Halves reversed() const {
    Halves out(shape);
    const std::int64_t length = shape[2], width = shape[3];
    for (std::int64_t i = 0; i < tensor.size(); ++i) {
      const std::int64_t row = i / width, other = row / length * length + length - 1 - row % length;
      runtime::store(out.tensor, i, runtime::load(tensor, other * width + i % width));
    }
    return out;
  }
  OnDevice sent() const { return {tensor.data, static_cast<std::size_t>(tensor.size()) * 2}; }
  Strided strided(const OnDevice& there) const {
    return {there.data(), shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3]};
  }
  TensorMap boxes(const OnDevice& there, int rows) const {
    return cuda::boxes_of(Tensor(there.data(), DType::bf16, shape, {}, {Device::Kind::cuda, 0}), rows);
  }
};

struct Sizes {
  int batch = corpus_batch, heads = corpus_heads, q_len = corpus_q, kv_len = corpus_kv, q_offset = 0;
  std::size_t rows() const { return static_cast<std::size_t>(batch * heads * q_len); }
  std::size_t pairs() const { return rows() * static_cast<std::size_t>(kv_len); }
};

/// The results of probe.cuh's kernel.
struct Probed {
  std::vector<float> s, p, pairs, rows;
};

Probed probe(const codegen::GpuParts& parts, User& user, const Sizes& z, bool exact, std::uint64_t seed) {
  Probed out;
  ir::Random random(seed);
  for (std::size_t i = 0; i < z.pairs(); ++i) {
    out.s.push_back(static_cast<float>(random.between(-3, 3)));
    out.p.push_back(static_cast<float>(random.unit()));
  }
  const OnDevice s(out.s.data(), out.s.size() * 4), p(out.p.data(), out.p.size() * 4);
  const OnDevice pairs(z.pairs() * 16), rows(z.rows() * 20);
  ForwardArgs args{};
  args.q.data = s.data();
  args.k.data = p.data();
  args.o.data = pairs.data();
  args.lse.data = static_cast<float*>(rows.data());
  args.batch = z.batch, args.q_heads = z.heads, args.q_len = z.q_len, args.kv_len = z.kv_len;
  args.q_offset = z.q_offset;
  launch(probe_source(parts, cuda::facts(0).arch(), exact),
         {1u + static_cast<unsigned>(z.kv_len) / 32u, static_cast<unsigned>(z.q_len),
          static_cast<unsigned>(z.batch * z.heads)},
         32, &args, user);
  out.pairs = pairs.values<float>();
  out.rows = rows.values<float>();
  return out;
}

bool near(double got, double wanted, double tolerance) {
  if (std::isnan(wanted)) return std::isnan(got);
  if (std::isinf(wanted)) return got == wanted;
  return std::fabs(got - wanted) <= tolerance * (4 + std::fabs(wanted));
}

/// A Mod as kernels take it, with its data.
struct Lowered {
  std::vector<std::shared_ptr<void>> memory;
  compiler::LoweredMod lowered;
  std::vector<double> params;

  explicit Lowered(const CorpusMod& mod) {
    const Made made = make(mod, 1);
    memory = made.memory;
    lowered = compiler::lower(made.attention);
    for (const auto& p : lowered.slots.params) params.push_back(p->value);
  }

  Lowered(compiler::Mod mod, const ir::RandomEnv& random) {
    compiler::Slots slots;
    for (std::size_t slot = 0; slot < random.tensors().size(); ++slot) {
      const auto& values = random.tensors()[slot];
      const std::vector<std::int64_t> shape(values.extents.begin(), values.extents.end());
      const DType dtype = mod.captures[slot].dtype;
      memory.push_back(detail::allocate({}, dtype, shape));
      const Tensor tensor(memory.back().get(), dtype, shape);
      for (std::size_t i = 0; i < values.values.size(); ++i)
        runtime::store(tensor, static_cast<std::int64_t>(i), values.values[i]);
      slots.captures.push_back(tensor);
    }
    params.assign(random.env().params.begin(), random.env().params.end());
    lowered = compiler::lower(compiler::BoundMod{std::move(mod), std::move(slots)});
  }
};

/// No operation in it rounds, so a kernel and eval agree to the bit.
bool exact(const ir::Expr& e) {
  for (const ir::Expr& n : ir::in_order(e)) {
    const bool arithmetic = n->op >= ir::Op::Add && n->op <= ir::Op::Div;
    if (n->op == ir::Op::Sum || (n->type == ir::Type::F32 && (arithmetic || ir::is_inexact(n->op)))) return false;
  }
  return true;
}

/// Compares every pair's exponent, mask and prob, and every row's sink and bands. `tolerance` is for a value of 1.
void check(const Lowered& lowered, const Sizes& z, bool exact, double tolerance) {
  const compiler::Mod& mod = lowered.lowered.mod;
  constexpr float scale = 0.7f;
  User user(mod, lowered.lowered.slots.captures, lowered.params, scale);
  const codegen::GpuParts parts = codegen::gpu_parts(lowered.lowered, true);
  const Probed probed = probe(parts, user, z, exact, 7);
  const ir::ReadCapture read = runtime::reader(lowered.lowered.slots.captures);
  const bool listed = parts.facts.listed;
  ir::Program program(std::vector<ir::Expr>{mod.score, mod.mask, mod.prob, mod.sink ? mod.sink : ir::real(0),
                                            lowered.lowered.cover.mask});
  ir::Program::Memory memory;
  ir::Env env;
  env.params = lowered.params, env.read = &read, env.q_len = z.q_len, env.kv_len = z.kv_len;
  std::size_t line = 0, pair = 0, wrong = 0;
  const auto tell = [&](const char* what, double got, double wanted) {
    if (++wrong > 3) return;
    UNSCOPED_INFO(what << " at b " << env.b << " h " << env.h << " q " << env.q << " kv " << env.kv << " s " << env.s
                       << " is " << got << " and not " << wanted);
  };
  for (env.b = 0; env.b < z.batch; ++env.b)
    for (env.h = 0; env.h < z.heads; ++env.h)
      for (int q = 0; q < z.q_len; ++q, ++line) {
        env.q = z.q_offset + q;
        const float* row = &probed.rows[5 * line];
        for (env.kv = 0; env.kv < z.kv_len; ++env.kv, ++pair) {
          const float* got = &probed.pairs[4 * pair];
          env.s = static_cast<double>(probed.s[pair] * scale);
          env.p = static_cast<double>(probed.p[pair]);
          program.run(env, memory, ir::Precision::f32);
          const auto wanted = [&](std::size_t i) { return program.result(i, memory); };
          const double score = static_cast<double>(got[0]) / std::numbers::log2e + static_cast<double>(got[1]);
          if (!near(score, wanted(0), tolerance)) tell("score", score, wanted(0));
          if (static_cast<double>(got[2]) != wanted(1)) tell("keep", static_cast<double>(got[2]), wanted(1));
          if (!near(static_cast<double>(got[3]), wanted(2), tolerance))
            tell("prob", static_cast<double>(got[3]), wanted(2));
          if (!near(static_cast<double>(row[0]), wanted(3), tolerance))
            tell("sink", static_cast<double>(row[0]), wanted(3));
          const auto kv = static_cast<float>(env.kv);
          if (listed) continue;
          if (wanted(4) != 0 && (kv < row[1] || kv >= row[2])) tell("a band", 0, 1);
          if (wanted(4) == 0 && kv >= row[1] && kv < row[2] && kv >= row[3] && kv < row[4]) tell("a full band", 1, 0);
        }
      }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("on a GPU every pair of every mod gets what eval says", "[gpu]") {
  if (skipped()) return;
  const cuda::Current context(0);
  for (const CorpusMod& mod : corpus()) {
    INFO(mod.name);
    const Lowered lowered(mod);
    check(lowered, {}, true, 1e-5);
    check(lowered, {}, false, 2e-3);
  }
  for (const MaskCase& mask : masks()) {
    INFO(mask.mod.name);
    check(Lowered(mask.mod), {.q_len = 60, .kv_len = 110, .q_offset = mask.mod.captures.empty() ? 13 : 0}, false, 1e-3);
  }
}

TEST_CASE("on a GPU random expressions that nothing rounds are what eval says", "[gpu]") {
  if (skipped()) return;
  const cuda::Current context(0);
  int checked = 0;
  for (std::uint64_t seed = 0; checked < 60; ++seed) {
    ir::Grammar grammar = ir::Grammar::ordinary();
    grammar.inputs &= ~(ir::bit(ir::Input::S) | ir::bit(ir::Input::P));
    grammar.denormals = false;
    grammar.custom = false;
    compiler::Mod mod;
    mod.mask = ir::random_expr(seed, ir::Type::Bool, grammar);
    grammar.hostile = false;
    mod.score = ir::op(ir::Op::Max, ir::input(ir::Input::S), ir::random_expr(seed, ir::Type::F32, grammar));
    mod.prob = ir::input(ir::Input::P);
    if (!exact(mod.mask) || !exact(mod.score) || mod.mask->size < 6) continue;
    constexpr std::array dtypes{DType::boolean, DType::i32, DType::f32};
    for (const auto& c : grammar.signature.captures)
      mod.captures.push_back({c.name, dtypes[static_cast<std::size_t>(c.type)], c.rank});
    mod.params = grammar.signature.params;
    INFO("seed " << seed << "\n" << mod.text());
    ++checked;
    check(Lowered(mod, ir::RandomEnv(seed, grammar)), {}, seed % 2 == 0, 1e-6);
  }
}

TEST_CASE("on a GPU lists and tables of tiles hold every pair that is kept, and full tiles no other", "[gpu]") {
  if (skipped()) return;
  const cuda::Current context(0);
  constexpr int q_len = 100, kv_len = 118, m = 16, n = 8;
  constexpr int q_tiles = (q_len + m - 1) / m, kv_tiles = (kv_len + n - 1) / n, stride = 2 + 2 * kv_tiles;
  int listed = 0, halves = 0;
  for (const MaskCase& mask : masks()) {
    INFO(mask.mod.name);
    const Lowered lowered(mask.mod);
    const compiler::Mod& mod = lowered.lowered.mod;
    if (!codegen::gpu_parts(lowered.lowered, true).facts.listed) continue;
    ++listed;
    const int batches = lowered.lowered.cover.by_batch ? corpus_batch : 1,
              heads = lowered.lowered.cover.by_head ? corpus_heads : 1;
    const OnDevice tiles(sizeof(int) * static_cast<std::size_t>(batches * heads * q_tiles * stride));
    CoverArgs args{};
    args.tile_stride = stride;
    args.q_len = q_len;
    args.kv_len = kv_len;
    args.into = static_cast<int*>(tiles.data());
    args.m = m;
    args.n = n;
    User user(mod, lowered.lowered.slots.captures, lowered.params, 1);
    launch(codegen::cover_source(lowered.lowered, false, cuda::facts(0).arch()),
           {q_tiles, static_cast<unsigned>(heads), static_cast<unsigned>(batches)}, cover_threads, &args, user);
    const std::vector<int> all = tiles.values<int>();
    const ir::ReadCapture read = runtime::reader(lowered.lowered.slots.captures);
    ir::Env env;
    env.params = lowered.params, env.read = &read, env.q_len = q_len, env.kv_len = kv_len;
    const ir::Program program(lowered.lowered.cover.mask);
    ir::Program::Memory memory;
    int wrong = 0;
    std::set<int> seen;  // halves of tiles of keys that a line's queries see
    const auto half = [&](int line, int tile, int nth) { return 2 * (line * kv_tiles + tile) + nth; };
    for (int line = 0; line < batches * heads * q_tiles; ++line) {
      const int* row = &all[static_cast<std::size_t>(line * stride)];
      std::vector<int> kind(kv_tiles, 0);
      for (int i = 0; i < row[0] + row[1]; ++i) {
        const bool first = i == 0 || i == row[0];
        if (!first && row[2 + i] >= row[1 + i]) ++wrong;
        kind.at(static_cast<std::size_t>(row[2 + i])) += i < row[0] ? 1 : 2;
      }
      env.b = line / q_tiles / heads, env.h = line / q_tiles % heads;
      const int begin = line % q_tiles * m;
      for (env.q = begin; env.q < std::min(begin + m, q_len); ++env.q)
        for (env.kv = 0; env.kv < kv_len; ++env.kv) {
          program.run(env, memory);
          const int is = kind[static_cast<std::size_t>(env.kv / n)];
          const bool keeps = program.result(0, memory) != 0;
          wrong += is > 2 || (keeps && is == 0) || (!keeps && is == 2);
          if (keeps) seen.insert(half(line, env.kv / n, env.kv % n / (n / 2)));
        }
    }
    CHECK(wrong == 0);

    const OnDevice table(sizeof(int) * static_cast<std::size_t>(batches * heads * q_tiles * kv_tiles));
    args.tiles = static_cast<int*>(table.data());
    args.tile_stride = q_tiles;
    launch(codegen::cover_source(lowered.lowered, false, cuda::facts(0).arch(), CoverForm::visits),
           {q_tiles, static_cast<unsigned>(heads), static_cast<unsigned>(batches)}, cover_threads, &args, user);
    const std::vector<int> visits = table.values<int>();
    int differ = 0;
    for (int line = 0; line < batches * heads * q_tiles; ++line) {
      const int* row = &all[static_cast<std::size_t>(line * stride)];
      const std::set<int> partial(row + 2, row + 2 + row[0]), full(row + 2 + row[0], row + 2 + row[0] + row[1]);
      int below = 0;
      for (int t = 0; t < kv_tiles; ++t) {
        const auto visit = static_cast<unsigned>(
            visits[static_cast<std::size_t>((line / q_tiles * kv_tiles + t) * q_tiles + line % q_tiles)]);
        const bool there = partial.contains(t) || full.contains(t);
        if (!there) {
          differ += visit != 0;
          continue;
        }
        const unsigned kept = visit & Visit::kept, above = static_cast<unsigned>(row[0] + row[1] - 1 - below);
        differ += visit - kept != (static_cast<unsigned>(below) << Visit::below_at | (above + 1) << Visit::above_at);
        differ += full.contains(t) != (kept == Visit::whole);
        differ += kept == Visit::first_half && seen.contains(half(line, t, 1));
        differ += kept == Visit::second_half && seen.contains(half(line, t, 0));
        halves += kept > Visit::whole;
        ++below;
      }
    }
    CHECK(differ == 0);
  }
  CHECK(listed > 10);
  CHECK(halves > 0);
}

TEST_CASE("on a GPU a kernel that tests add computes what the oracle does", "[gpu]") {
  if (skipped()) return;
  const cuda::Current context(0);
  constexpr int batch = 2, heads = corpus_heads, of_kv = 2, q_len = corpus_q, kv_len = corpus_kv, d = 24, dv = 40;
  constexpr std::array names{"plain", "causal", "alibi", "softcap", "documents", "dropout"};
  for (const CorpusMod& mod : corpus()) {
    if (std::ranges::find(names, mod.name) == names.end()) continue;
    const Lowered made(mod);
    const codegen::GpuParts parts = codegen::gpu_parts(made.lowered, true);
    const codegen::KernelSpec spec{
        .arch = cuda::facts(0).arch(), .dtype = DType::f32, .out = DType::f32, .d = d, .dv = dv, .exact = true};
    const codegen::KernelChoice choice =
        codegen::choose(spec, parts.facts, {}, nullptr, kernels_with_plain()).choices[0];
    INFO(mod.name);
    REQUIRE(choice.plan.kernel == &forward_plain());
    const Device host = Device::cpu();
    const auto q = host.array<float>({batch, heads, q_len, d}), k = host.array<float>({batch, of_kv, kv_len, d}),
               v = host.array<float>({batch, of_kv, kv_len, dv}), o = host.array<float>({batch, heads, q_len, dv});
    ir::Random random(11);
    const auto fill = [&](const Tensor& t) {
      for (std::int64_t i = 0; i < t.size(); ++i) runtime::store(t, i, random.between(-1, 1));
    };
    fill(q), fill(k), fill(v);
    const Forward call{.q = q, .k = k, .v = v, .o = o};
    const compiler::Problem problem = compiler::check(made.lowered, call, {});
    runtime::oracle_forward(runtime::call_of(made.lowered, call, problem));

    const auto sent = [](const Tensor& t) {
      return OnDevice(t.data, static_cast<std::size_t>(t.size()) * sizeof(float));
    };
    // A result that is not written stays NaN.
    const std::vector<float> unwritten(static_cast<std::size_t>(o.tensor().size()), std::nanf(""));
    const OnDevice there_q = sent(q), there_k = sent(k), there_v = sent(v),
                   there_o(unwritten.data(), unwritten.size() * sizeof(float));
    PlainArgs args{};
    const OnDevice tops(unwritten.data(), std::size_t{batch} * heads * q_len * sizeof(float));
    args.tops = static_cast<float*>(tops.data());
    const auto dense = [](const OnDevice& t, long long of_heads, long long length, long long width) {
      return Strided{t.data(), of_heads * length * width, length * width, width};
    };
    args.q = dense(there_q, heads, q_len, d), args.k = dense(there_k, of_kv, kv_len, d);
    args.v = dense(there_v, of_kv, kv_len, dv), args.o = dense(there_o, heads, q_len, dv);
    args.batch = batch, args.q_heads = heads, args.group = heads / of_kv;
    args.q_len = q_len, args.kv_len = kv_len, args.d = d, args.dv = dv;
    User user(made.lowered.mod, made.lowered.slots.captures, made.params, static_cast<float>(problem.scale));
    const codegen::Companion& before = *choice.plan.kernel->companions.front();
    launch(before.source_of(parts, choice.plan), before.grid({.problem = problem, .plan = choice.plan}),
           static_cast<unsigned>(before.threads), &args, user);
    launch(codegen::kernel_source(parts, choice.plan), {batch * heads * q_len, 1, 1},
           static_cast<unsigned>(choice.threads), &args, user);
    const std::vector<float> got = there_o.values<float>();
    int wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      wrong += !near(static_cast<double>(got[i]), static_cast<double>(o.data()[i]), 1e-4);
    CHECK(wrong == 0);
  }
}

TEST_CASE("on a GPU a key source that tests add gives what the oracle does with keys reversed", "[gpu]") {
  if (skipped() || cuda::facts(0).arch() != 90) return;
  const cuda::Current context(0);
  constexpr int batch = corpus_batch, heads = corpus_heads, of_kv = 2, q_len = 200, kv_len = 300, d = 128;
  // Mods that capture nothing along queries or keys.
  constexpr std::array names{"plain", "causal", "alibi", "softcap", "dropout"};
  for (const CorpusMod& mod : corpus()) {
    if (std::ranges::find(names, mod.name) == names.end()) continue;
    INFO(mod.name);
    const Lowered made(mod);
    const codegen::KernelSpec spec{.arch = 90, .d = d, .dv = d};
    const codegen::GpuParts parts = codegen::forward_parts(made.lowered, spec);
    const codegen::KernelChoice choice = reversed(codegen::choose(spec, parts.facts).choices[0]);
    const Halves q({batch, heads, q_len, d}), k({batch, of_kv, kv_len, d}), v({batch, of_kv, kv_len, d}),
        o({batch, heads, q_len, d});
    ir::Random random(12);
    for (const Halves* t : {&q, &k, &v}) t->fill(random);
    // Key 150 of the call: queries before it in the same tile are computed pair by pair.
    if (mod.name == std::string_view("causal")) runtime::store(v.tensor, (kv_len - 1 - 150) * d, std::nan(""));
    const Halves k_reversed = k.reversed(), v_reversed = v.reversed();
    const Forward call{.q = q.tensor, .k = k_reversed.tensor, .v = v_reversed.tensor, .o = o.tensor};
    const compiler::Problem problem = compiler::check(made.lowered, call, {});
    runtime::oracle_forward(runtime::call_of(made.lowered, call, problem));

    const OnDevice there_q = q.sent(), there_k = k.sent(), there_v = v.sent();
    // A result that is not written stays NaN.
    const Halves unwritten(o.shape);
    for (std::int64_t i = 0; i < o.tensor.size(); ++i) runtime::store(unwritten.tensor, i, std::nan(""));
    const OnDevice there_o = unwritten.sent();
    ForwardArgs args{};
    args.q_map = q.boxes(there_q, choice.boxes->q), args.o_map = o.boxes(there_o, choice.boxes->o);
    args.q = q.strided(there_q), args.k = k.strided(there_k), args.v = v.strided(there_v);
    args.o = o.strided(there_o);
    args.batch = batch, args.q_heads = heads, args.group = heads / of_kv, args.section = heads;
    args.q_len = q_len, args.kv_len = kv_len, args.d = d, args.dv = d;
    User user(made.lowered.mod, made.lowered.slots.captures, made.params, static_cast<float>(problem.scale));
    // A block for each tile, so that no block has to fetch a tile.
    const int tiles = batch * heads * ((q_len + choice.plan.tile.m - 1) / choice.plan.tile.m);
    launch(codegen::kernel_source(parts, choice.plan), {static_cast<unsigned>(tiles), 1, 1},
           static_cast<unsigned>(choice.threads), &args, user, choice.shared_bytes);
    std::vector<std::uint16_t> bits = there_o.values<std::uint16_t>();
    const Tensor got(bits.data(), DType::bf16, o.shape);
    int wrong = 0;
    for (std::int64_t i = 0; i < got.size(); ++i)
      wrong += !near(runtime::load(got, i), runtime::load(o.tensor, i), 4e-3);
    CHECK(wrong == 0);
  }
}

}  // namespace attune::tests
