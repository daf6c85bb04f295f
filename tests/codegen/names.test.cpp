// tests/codegen/names.test.cpp — a user's names never collide with those of a source, of the device files or of CUDA
#include <fmt/format.h>
#include <set>

#include <attune/text.h>

#include "codegen/choose/kernel.h"
#include "codegen/cuda/headers.h"
#include "codegen/facts/gpu_parts.h"
#include "codegen/source/source_text.h"
#include "compiler/lower.h"
#include "ir/named.h"
#include "ir/parse.h"
#include "tests/catch.h"
#include "tests/codegen/words.h"
#include "tests/nvrtc.h"

namespace attune::tests {
namespace {

/// Every word of a text that could be a name, in comments too.
std::set<std::string> identifiers(std::string_view text) {
  std::set<std::string> out;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && (ir::is_letter(text[end]) || ir::is_digit(text[end]))) ++end;
    if (end > i && ir::is_letter(text[i])) out.emplace(text.substr(i, end - i));
    i = end + 1;
  }
  return out;
}

std::set<std::string> device_identifiers() {
  std::set<std::string> out;
  for (const codegen::Header& header : codegen::headers()) out.merge(identifiers(header.text));
  return out;
}

/// Every name worth trying that the language does not reserve.
std::vector<std::string> names() {
  std::set<std::string> all = device_identifiers();
  for (const std::string_view words : {cpp_words, c_words, cuda_words, source_words, nvrtc_macros})
    all.merge(identifiers(words));
  std::erase_if(all, [](const std::string& name) { return ir::is_reserved(name); });
  return {all.begin(), all.end()};
}

std::string joined(std::span<const std::string> names, std::string_view form, std::string_view by) {
  std::string out;
  for (const std::string& name : names)
    out += (out.empty() ? "" : std::string(by)) + fmt::format(fmt::runtime(form), name);
  return out;
}

/// A Mod with a name for each capture, parameter and let. Captures become fields of heads; those in the mask become
/// fields of rows and columns, and summaries in the source of the cover.
compiler::LoweredMod named(std::span<const std::string> captures, std::size_t in_mask,
                           std::span<const std::string> ints, std::span<const std::string> floats,
                           std::span<const std::string> lets) {
  const auto data = Device::cpu().array<int>({64});
  Text text;
  for (const std::string& name : captures) text.capture(name, data);
  for (const std::string& name : ints) text.param(name, 3);
  for (const std::string& name : floats) text.param(name, 3.0f);
  for (std::size_t i = 0; i < lets.size(); ++i) text.let(lets[i], i ? lets[i - 1] + " * 3 ^ q" : "kv + q");
  const std::string score = fmt::format("s + f32({}) + f32({}) * ({}) + f32({})", joined(captures, "{0}[h]", " ^ "),
                                        joined(ints, "{}", " ^ "), joined(floats, "{}", " + "), lets.back());
  return compiler::lower(Attention{.score = text.score(score),
                                   .mask = text.mask(joined(captures.first(in_mask), "{0}[q] == {0}[kv]", " && "))});
}

void compiles(const codegen::Source& source) {
  INFO(source.text);
  CHECK(!runtime::cuda::compile(source).cubin.empty());
}

}  // namespace

TEST_CASE("no identifier of the device files begins as the names in sources that come from the user's", "[cuda]") {
  for (const std::string& name : device_identifiers()) {
    INFO(name);
    CHECK_FALSE(name.starts_with(codegen::source_name("")));
    CHECK(name.find("_of_" + codegen::source_name("")) == std::string::npos);
  }
}

TEST_CASE("a user's names never meet the source's", "[cuda]") {
  if (skips_compiling()) return;
  const std::vector<std::string> all = names();
  CHECK(all.size() > 1000);
  // Each name is used once in each of the four ways: sources take neighbouring quarters of a window that wraps around.
  constexpr std::size_t each = 200;
  std::vector<std::string> round = all;
  round.insert(round.end(), all.begin(), all.begin() + 4 * each);
  // NVRTC checks all functions of a source's struct, called or not. A kernel that calls none compiles much faster.
  std::string includes;
  for (const codegen::Header& header : codegen::headers()) includes += fmt::format("#include \"{}\"\n", header.name);
  const std::string text =
      "#pragma once\n" + includes +
      "namespace attune {\ntemplate <class Tile, Mod User>\n"
      "__global__ void empty(const __grid_constant__ ForwardArgs, const __grid_constant__ User) {}\n}\n";
  const codegen::Header file{"codegen/cuda/empty/empty.cuh", text.c_str()};
  const codegen::KernelDescriptor empty{.name = "empty", .headers = std::span(&file, 1)};
  for (std::size_t at = 0; at < all.size(); at += each) {
    if (!in_turn(at / each / 2, 6)) continue;  // neighbours, which have both architectures
    const auto part = [&](std::size_t i) { return std::span(round).subspan(at + i * each, each); };
    const auto made = [&](std::size_t in_mask) { return named(part(0), in_mask, part(1), part(2), part(3)); };
    // With a summary of each capture, ptxas would take half a minute.
    const compiler::LoweredMod lowered = made(each), covered = made(2);
    const codegen::GpuParts parts = codegen::gpu_parts(lowered, true);
    CHECK(codegen::gpu_parts(covered, true).facts.listed);
    const int arch = at / each % 2 ? 80 : 90;  // the same text for both: a name meets each of them in two of its ways
    compiles(codegen::kernel_source(parts, {.kernel = &empty, .spec = {.arch = arch}}));
    codegen::Source cover = codegen::cover_source(covered, false, arch);
    cover.text.insert(0, includes);
    compiles(cover);
  }
}

}  // namespace attune::tests
