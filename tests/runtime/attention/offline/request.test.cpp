// tests/runtime/attention/offline/request.test.cpp — requests for kernels as JSON, words and commands; what a key
// depends on
#include "runtime/attention/offline/request.h"

#include <algorithm>
#include <utility>

#include <attune/attune.h>

#include "codegen/cuda/headers.h"
#include "compiler/cover.h"
#include "compiler/lower.h"
#include "runtime/engines/cuda/kernels/consider.h"
#include "tests/catch.h"
#include "tests/golden.h"

namespace attune::runtime {
namespace {

struct Asking {
  std::array<float, 64> memory{};
  Tensor tensor(std::initializer_list<std::int64_t> shape, DType type = DType::f32) {
    return Tensor(memory.data(), type, shape);
  }
};

Request asked(const Attention& attention) {
  const compiler::BoundMod lowered = compiler::trace(attention);
  return request_of(lowered.mod, compiler::args(lowered));
}

/// What NVRTC would get for a call.
std::string content(const Attention& attention, codegen::KernelSpec spec = {}) {
  const compiler::LoweredMod lowered = compiler::lower(attention);
  const codegen::GpuParts parts = codegen::gpu_parts(lowered, spec.scale_positive);
  const auto kind = codegen::call_kind(parts, codegen::Length::longer);
  const codegen::KernelChoices all = codegen::choose(spec, parts.facts, kind);
  return cuda::asked(codegen::kernel_source(parts, all.choices[0].plan)).content;
}

}  // namespace

TEST_CASE("a call is a line of JSON, words and a command", "[request]") {
  Asking a;
  const Capture<float> slope(a.tensor({16}), "slope"), also(a.tensor({4, 4}), "slope");
  const Capture<int> nameless(a.tensor({8}, DType::i32));
  const Param<float> cap("cap", 30.0f);
  const Param<int> ahead("ahead", 2);
  const Attention attention{
      .score = [=](Float s, At at) { return cap * tanh((s + slope[at.head] * also(at.q, at.kv)) / cap); },
      .mask = [=](At at) { return at.kv <= at.q + ahead && nameless[at.q] == nameless[at.kv]; },
      .sink = [=](SinkAt at) { return f32(at.head) / 2; }};
  Request request = asked(attention);
  request.target = "sm_90a";
  request.shape = shape_of({.dtype = DType::f16,
                            .out = DType::f32,
                            .d = 20,
                            .dv = 64,
                            .max = true,
                            .tma = false,
                            .load = 4,
                            .store = 16,
                            .scale_positive = false},
                           codegen::Length::to_4k);
  std::string all = json_line(request) + "\n" + in_words(request) + "\n" + compile_command(request, "it's.attune") +
                    "\n";
  request = asked({});
  request.target = "avx512";
  request.pass = "backward";
  request.shape.dtype = DType::bf16;
  request.shape.grads = "none";
  all += json_line(request) + "\n" + in_words(request) + "\n" + compile_command(request, "kernels.attune") + "\n";
  tests::golden("runtime/request", all);
}

TEST_CASE("shapes read back as they are said, and say no more than it takes", "[request]") {
  const codegen::KernelSpec usual{};
  std::string said;
  for (const ShapeRow& row : shape_rows()) said += row.text(shape_of(usual, codegen::Length::to_1k)) + ";";
  CHECK(said == "bf16;;128;;to_1k;;;;;;;;;;;;;;;;;;;;;;;;;;");
  for (const DType type : {DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t d : {1, 3, 20, 64, 100, 256})
      for (const int load : {0, 4, 8, 16})
        for (const bool flag : {false, true}) {
          const codegen::KernelSpec spec{.arch = 86,
                                         .dtype = type,
                                         .out = DType::f32,
                                         .d = d,
                                         .dv = 257 - d,
                                         .max = flag,
                                         .packed = !flag,
                                         .fp8_kv = flag,
                                         .row_blocks = flag ? 4 : 2,
                                         .heads = flag ? 1 : 4,
                                         .few_tiles = flag,
                                         .decode = flag,
                                         .tma = flag,
                                         .load = load,
                                         .store = 4,
                                         .scale_positive = !flag,
                                         .exact = flag,
                                         .offsets64 = flag,
                                         .unaligned_captures = !flag,
                                         .shared_keys = flag};
          const Shape shape = shape_of(spec, codegen::Length::to_4k);
          Shape read;
          for (const ShapeRow& row : shape_rows())
            if (const std::string text = row.text(shape); !text.empty()) CHECK(row.set(read, text));
          CHECK(read == shape);
          CHECK(spec_of(read, 86) == spec);
        }
  for (const ShapeRow& row : shape_rows()) {
    Shape shape;
    INFO(row.name);
    CHECK_FALSE(row.set(shape, ""));
    if (row.json != ShapeRow::JsonForm::text) CHECK_FALSE(row.set(shape, "many"));
  }
  const ShapeRow& blocks = *std::ranges::find(shape_rows(), "row_blocks", &ShapeRow::name);
  for (const auto& [text, good] :
       {std::pair{"0", false}, {"1", true}, {"2", true}, {"3", false}, {"4", true}, {"5", false}}) {
    Shape shape;
    CHECK(blocks.set(shape, text) == good);
  }
  // Rows of e4m3 are half as long as those of q.
  CHECK(spec_of({.d = 40, .decode = true, .fp8_kv = true}, 90).load == 8);
  CHECK(spec_of({.d = 40, .decode = true}, 90).load == 16);
}

TEST_CASE("packed tensors that nothing is said of are contiguous, and take the same kernels as dense ones",
          "[request]") {
  for (const std::int64_t d : {20, 64, 128}) {
    INFO(d);
    CHECK(spec_of({.d = d, .packed = true}, 90).tma == spec_of({.d = d}, 90).tma);
  }
  const codegen::KernelChoices packed = codegen::choose(spec_of({.packed = true}, 90), {});
  CHECK(packed.choices.front().plan.kernel->name == "forward_sm90");
  CHECK(shape_of(spec_of({.packed = true}, 90), codegen::Length::longer).tma == std::nullopt);
}

TEST_CASE("how exact a kernel is, is said where its type alone does not say it", "[request]") {
  const auto said = [](DType type, bool exact) {
    Request request = asked({});
    request.target = "sm_80";
    request.shape = shape_of({.arch = 80, .dtype = type, .out = type, .exact = exact}, codegen::Length::longer);
    CHECK(spec_of(request.shape, 80).exact == exact);
    const std::string json = json_line(request), command = compile_command(request, "o");
    const auto at = json.find("\"exact\":");
    CHECK((at == std::string::npos) == (command.find("--exact") == std::string::npos));
    return at == std::string::npos ? "" : json.substr(at, json.find_first_of(",}", at) - at);
  };
  CHECK(said(DType::f32, true) == "");
  CHECK(said(DType::f32, false) == "\"exact\":false");
  CHECK(said(DType::bf16, false) == "");
  CHECK(said(DType::f16, true) == "\"exact\":true");
}

TEST_CASE("targets are what kernels are compiled for", "[request]") {
  for (const char* name : {"sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100", "sm_103", "sm_110", "sm_120",
                           "sm_121", "portable", "avx2", "avx512", "avx512bf16", "amx"}) {
    const auto target = target_named(name);
    REQUIRE(target);
    CHECK(name_of(*target) == name);
  }
  for (const char* name :
       {"", "sm_", "sm_75", "sm_90", "sm_80a", "sm_90b", "sm_95", "sm_999", "sm90a", "AVX2", "gpu", "sm_99999999999"}) {
    INFO(name);
    CHECK_FALSE(target_named(name));
  }
}

TEST_CASE("what is not there is named with the command that makes it", "[request]") {
  Asking a;
  const Capture<float> slope(a.tensor({16}), "slope");
  const Attention attention{.score = [=](Float s, At at) { return s + slope[at.head] * f32(at.kv - at.q); },
                            .mask = [](At at) { return at.kv <= at.q; }};
  Request request = asked(attention);
  request.target = "sm_80";
  request.shape = shape_of({.arch = 80}, codegen::Length::longer);
  struct Described final : Purpose {
    const Request& request;
    explicit Described(const Request& of) : request(of) {}
    Text describe() const override { return text_of(request); }
  };
  try {
    const Described purpose(request);
    refuse_to_compile(&purpose);
  } catch (const Error& e) {
    tests::golden_error("kernel-missing", e.what());
  }
}

TEST_CASE("keys change with what is compiled, and with nothing else", "[request]") {
  Asking a, b;
  const auto alibi = [](const Tensor& slope, const std::string& name) {
    const Capture<float> captured(slope, name);
    return Attention{.score = [=](Float s, At at) { return s + captured[at.head] * f32(at.kv - at.q); },
                     .mask = [](At at) { return at.kv <= at.q; }};
  };
  const auto scaled = [](float value, float by = 1) {
    const Param<float> cap("cap", value);
    return Attention{.score = [=](Float s, At) { return by * cap * tanh(s / cap); }};
  };
  const std::string plain = content(alibi(a.tensor({16}), "slope"));
  // Not on data, addresses, lengths, strides, or values of parameters.
  CHECK(content(alibi(b.tensor({16}), "slope")) == plain);
  CHECK(content(alibi(a.tensor({4}), "slope")) == plain);
  CHECK(content(alibi(Tensor(a.memory.data(), DType::f32, {16}, {4}), "slope")) == plain);
  CHECK(content(scaled(30)) == content(scaled(50)));
  // But on expressions, types, widths, outputs and the GPU.
  CHECK(content(scaled(30, 2)) != content(scaled(30)));
  CHECK(content(alibi(a.tensor({16}, DType::bf16), "slope")) != plain);
  const Attention attention = alibi(a.tensor({16}), "slope");
  const codegen::KernelSpec usual{};
  std::vector<codegen::KernelSpec> others(11, usual);
  others[0].dtype = others[0].out = DType::f16;
  others[1].d = others[1].dv = 64;
  others[2].arch = 80;
  others[3].arch = 100;
  others[4].max = true;
  others[5].packed = true;
  others[6].out = DType::f32;
  others[7].offsets64 = true;
  others[8].exact = true;
  others[9].tma = false;
  others[10].heads = 2;
  for (const codegen::KernelSpec& other : others) CHECK(content(attention, other) != plain);
  // The compiler is not part of the content, but of the key on disk: results of another compiler are not used.
  CHECK(content(attention, usual) == plain);
  CHECK(plain.find("NVRTC") == std::string::npos);
  CHECK(plain.find(codegen::headers_digest()) != std::string::npos);
}

}  // namespace attune::runtime
