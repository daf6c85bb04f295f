// tests/runtime/attention/offline/request.test.cpp — requests for kernels as JSON, words and commands; what a key
// depends on
#include "runtime/attention/offline/request.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

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
  const codegen::GpuParts parts = codegen::gpu_parts(lowered, !spec.negative);
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
  request.target.arch = 90;
  request.call = {.spec = {.dtype = DType::f16,
                           .out = DType::f32,
                           .d = 20,
                           .dv = 64,
                           .max = true,
                           .strides = {.tma = false, .load = 4, .store = 16},
                           .negative = true},
                  .length = codegen::Length::to_4k};
  std::string all = json_line(request) + "\n" + in_words(request) + "\n" + compile_command(request, "it's.attune") +
                    "\n";
  request = asked({});
  request.target.isa = codegen::Isa::avx512;
  request.pass = "backward";
  request.call.spec.dtype = DType::bf16;
  request.grads = "none";
  all += json_line(request) + "\n" + in_words(request) + "\n" + compile_command(request, "kernels.attune") + "\n";
  tests::golden("runtime/request", all);
}

namespace {

/// What a request says, by the names of its fields.
std::string said(const Request& request) {
  const std::string line = json_line(request), key = "\"shapes\":";
  const std::size_t at = line.find(key) + key.size();
  return line.substr(at, line.find('}', at) + 1 - at);
}

/// The request that these fields are read as; none where one is not valid.
std::optional<Request> read(const Request& of, const Fields& fields) {
  Request out{.target = of.target, .pass = of.pass};
  return read_shape(out, fields) ? std::nullopt : std::optional(out);
}

/// Reads back what a request says.
Request read_back(const Request& of) {
  Fields fields;
  const auto json = nlohmann::json::parse(said(of));
  for (const auto& [name, value] : json.items())
    fields[name] = value.is_string() ? value.get<std::string>() : value.dump();
  const auto out = read(of, fields);
  REQUIRE(out);
  return *out;
}

Request for_gpu(int arch, const codegen::CallSpec& call = {}) {
  Request out{.target = {.arch = arch}, .call = call};
  out.call.spec.arch = arch;
  return out;
}

codegen::KernelSpec spec_of(const Fields& fields, int arch = 90) {
  const auto out = read(for_gpu(arch), fields);
  REQUIRE(out);
  return out->call.spec;
}

}  // namespace

TEST_CASE("requests read back as they are said, and say no more than it takes", "[request]") {
  CHECK(said(for_gpu(90, {.length = codegen::Length::to_1k})) == R"({"dtype":"bf16","d":128,"length":"to_1k"})");
  for (const char* pass : {"forward", "backward"})
    for (const int arch : {86, 90})
      for (const DType type : {DType::f32, DType::f16, DType::bf16})
        for (const std::int64_t d : {1, 3, 20, 64, 100, 256})
          for (const int load : {0, 4, 8, 16})
            for (const bool flag : {false, true}) {
              Request request = for_gpu(arch, {.spec = {.dtype = type,
                                                        .out = DType::f32,
                                                        .d = d,
                                                        .dv = 257 - d,
                                                        .max = flag,
                                                        .packed = !flag,
                                                        .cache = {.per_entry = flag, .fp8 = flag},
                                                        .before = !flag,
                                                        .fixed_split = flag,
                                                        .strides = {.tma = flag,
                                                                    .load = load,
                                                                    .store = 4,
                                                                    .offsets64 = flag,
                                                                    .unaligned_captures = !flag,
                                                                    .unaligned_second = flag},
                                                        .negative = flag,
                                                        .exact = flag},
                                               .length = codegen::Length::to_4k});
              request.pass = pass;
              request.sizes = {.q_len = flag ? 2 : 40, .group = flag ? 8 : 3, .page_size = load == 8 ? 48 : 0};
              settle(request);
              const Request back = read_back(request);
              INFO(said(request));
              CHECK(back.call == request.call);
              CHECK(said(back) == said(request));
            }
  for (const ShapeRow& row : shape_rows()) {
    INFO(row.name);
    CHECK_FALSE(read(for_gpu(90), {{std::string(row.name), ""}}));
    if (row.name != "kernel" && row.name != "grads") CHECK_FALSE(read(for_gpu(90), {{std::string(row.name), "many"}}));
  }
  // Rows of e4m3 are half as long as those of q.
  CHECK(spec_of({{"d", "40"}, {"fp8_kv", "true"}}).strides.load == 8);
  CHECK(spec_of({{"d", "40"}}).strides.load == 16);
}

TEST_CASE("sizes are said where kernels depend on them", "[request]") {
  const auto of = [](const codegen::KernelSpec& spec, const codegen::Sizes& sizes, const char* pass = "forward") {
    Request request = for_gpu(spec.arch, {.spec = spec});
    request.pass = pass;
    request.sizes = sizes;
    settle(request);
    CHECK(read_back(request).call == request.call);
    const std::string all = said(request), before = "\"length\":\"longer\"";
    return all.substr(all.find(before) + before.size());
  };
  CHECK(of({}, {.q_len = 4096, .group = 8}) == "}");
  CHECK(of({}, {.q_len = 17}) == "}");
  CHECK(of({}, {.q_len = 1}) == R"(,"q_len":1})");
  CHECK(of({}, {.q_len = 1, .group = 8}) == R"(,"q_len":1,"group":8})");
  CHECK(of({}, {.q_len = 300, .group = 8, .page_size = 16}) == R"(,"page_size":16})");
  CHECK(of({}, {.q_len = 300, .group = 1, .page_size = 2}) == R"(,"q_len":300,"page_size":2})");
  CHECK(of({.dtype = DType::f32, .out = DType::f32, .exact = true}, {.q_len = 100}) == R"(,"q_len":100})");
  CHECK(of({}, {.group = 8}, "backward") == R"(,"group":8})");
  CHECK(of({.arch = 80}, {.group = 8}, "backward") == "}");
  const codegen::KernelSpec mla{.d = 576, .dv = 512, .cache = {.mla = true}};
  CHECK(of(mla, {.q_len = 1, .group = 128, .page_size = 64}) == R"(,"q_len":1,"group":128,"page_size":64,"mla":true})");
}

TEST_CASE("packed tensors that nothing is said of are contiguous, and take the same kernels as dense ones",
          "[request]") {
  for (const char* d : {"20", "64", "128"}) {
    INFO(d);
    CHECK(spec_of({{"d", d}, {"packed", "true"}}).strides.tma == spec_of({{"d", d}}).strides.tma);
  }
  const codegen::KernelSpec packed = spec_of({{"packed", "true"}});
  CHECK(codegen::choose(packed, {}).choices.front().plan.kernel->name == "forward_sm90");
  CHECK(said(for_gpu(90, {.spec = packed})).find("tma") == std::string::npos);
}

TEST_CASE("how exact a kernel is, is said where its type alone does not say it", "[request]") {
  const auto exact_in = [](DType type, bool exact) {
    const Request request = for_gpu(80, {.spec = {.dtype = type, .out = type, .exact = exact}});
    CHECK(read_back(request).call.spec.exact == exact);
    const std::string json = json_line(request), command = compile_command(request, "o");
    const auto at = json.find("\"exact\":");
    CHECK((at == std::string::npos) == (command.find("--exact") == std::string::npos));
    return at == std::string::npos ? "" : json.substr(at, json.find_first_of(",}", at) - at);
  };
  CHECK(exact_in(DType::f32, true) == "");
  CHECK(exact_in(DType::f32, false) == "\"exact\":false");
  CHECK(exact_in(DType::bf16, false) == "");
  CHECK(exact_in(DType::f16, true) == "\"exact\":true");
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
  request.target.arch = 80;
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
  others[7].strides.offsets64 = true;
  others[8].exact = true;
  others[9].strides.tma = false;
  others[10].sharing.heads = 2;
  for (const codegen::KernelSpec& other : others) CHECK(content(attention, other) != plain);
  // The compiler is not part of the content, but of the key on disk: results of another compiler are not used.
  CHECK(content(attention, usual) == plain);
  CHECK(plain.find("NVRTC") == std::string::npos);
  CHECK(plain.find(codegen::headers_digest()) != std::string::npos);
}

}  // namespace attune::runtime
