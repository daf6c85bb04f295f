// playground/fill.cpp — for each word, a function from an element's index to its value
#include "playground/fill.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <numbers>

#include "ir/parse.h"
#include "runtime/machine/tensor.h"
#include <attune/error.h>

namespace attune::playground {
namespace {

constexpr std::array<FillWord, 14> words{{
    {"normal", "standard normal numbers"},
    {"positive", "numbers between 0.5 and 1.5"},
    {"slopes", "ALiBi's slopes, 2^(-8 (i + 1) / n)"},
    {"documents", "ids of documents one after the other, `limit` of them (4), of unequal lengths"},
    {"lengths", "whole numbers from 1 to `limit` (the last extent)"},
    {"indices", "whole numbers from 0 to below `limit` (8)"},
    {"ramp", "0, limit, 2 limit and so on (1)"},
    {"coins", "true with the probability `limit` (0.5)"},
    {"buckets", "T5's bucket of each distance, `limit` of them (32), the middle element for distance 0"},
    {"morton", "the position along a Z-order curve of a square image, row by row"},
    {"column", "the column of a position in a square image, row by row"},
    {"enter", "when a walk through a random tree enters a node"},
    {"leave", "when that walk leaves it"},
    {"list", "the numbers given, again from the first where they are too few"},
}};

/// The times at which a walk through a random tree enters and leaves each node. A parent has a smaller number.
std::array<std::vector<std::int64_t>, 2> walk(std::int64_t n, Normal random) {
  const auto count = static_cast<std::size_t>(n);
  std::vector<std::vector<std::size_t>> children(count);
  for (std::size_t i = 1; i < count; ++i)
    children[static_cast<std::size_t>(random.unit() * static_cast<double>(i))].push_back(i);
  std::array<std::vector<std::int64_t>, 2> out{std::vector<std::int64_t>(count), std::vector<std::int64_t>(count)};
  std::int64_t time = 0;
  std::vector<std::pair<std::size_t, std::size_t>> open{{0, 0}};
  while (!open.empty()) {
    auto& [node, next] = open.back();
    if (next == 0) out[0][node] = time++;
    if (next < children[node].size()) {
      const std::size_t child = children[node][next++];
      open.emplace_back(child, 0);
    } else {
      out[1][node] = time++;
      open.pop_back();
    }
  }
  return out;
}

/// T5's bidirectional relative buckets: exact for short distances, logarithmic for longer ones.
double bucket(std::int64_t distance, double buckets) {
  const double half = std::floor(buckets / 2), exact = std::floor(half / 2);
  const double far = static_cast<double>(std::abs(distance));
  double at = far;
  if (far >= exact && exact > 0)
    at = std::min(half - 1, exact + std::floor(std::log(far / exact) / std::log(128 / exact) * (half - exact)));
  return at + (distance < 0 ? half : 0);
}

std::int64_t morton(std::int64_t x, std::int64_t y) {
  std::int64_t out = 0;
  for (int bit = 0; bit < 16; ++bit) out |= (x >> bit & 1) << (2 * bit) | (y >> bit & 1) << (2 * bit + 1);
  return out;
}

}  // namespace

std::span<const FillWord> fill_words() { return words; }

Fill fill_of(const std::string& text, const std::string& whole) {
  const auto number = [&](std::string_view part) {
    double value = 0;
    const auto [end, status] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (status != std::errc{} || end != part.data() + part.size() || std::fabs(value) > 1e9)
      throw Error("bad-fill", fmt::format("`{}` is not a number", part), {.name = "--fill " + whole},
                  "WORD:LIMIT:SEED or list:1 2x3 4 is expected", "write documents:6, normal:0:2 or list:1 0x5");
    return value;
  };
  Fill out;
  const std::size_t colon = text.find(':');
  out.how = text.substr(0, colon);
  if (colon == std::string::npos) return out;
  std::string_view rest = std::string_view(text).substr(colon + 1);
  if (out.how != "list") {
    const std::size_t second = rest.find(':');
    out.limit = number(rest.substr(0, second));
    if (second != std::string_view::npos)
      out.seed = static_cast<std::uint64_t>(std::fabs(number(rest.substr(second + 1))));
    return out;
  }
  while (!rest.empty()) {
    const std::string_view run = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), run.size() + 1));
    if (run.empty()) continue;
    const std::size_t times = run.find('x');
    const double count = times == std::string_view::npos ? 1 : number(run.substr(times + 1));
    out.numbers.insert(out.numbers.end(), static_cast<std::size_t>(std::clamp(count, 0.0, 1e6)),
                       number(run.substr(0, times)));
  }
  return out;
}

double Normal::unit() {
  // SplitMix64.
  std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-53;
}

double Normal::operator()() {
  const double radius = std::sqrt(-2 * std::log(1 - unit()));
  return radius * std::cos(2 * std::numbers::pi * unit());
}

std::string text_of(const Fill& fill) {
  if (fill.how != "list") {
    const std::string seed = fill.seed == 1 ? "" : fmt::format(":{}", fill.seed);
    return fill.how + (fill.limit == 0 && seed.empty() ? "" : fmt::format(":{}", fill.limit)) + seed;
  }
  std::string out;
  for (std::size_t i = 0, next = 0; i < fill.numbers.size(); i = next) {
    while (next < fill.numbers.size() && fill.numbers[next] == fill.numbers[i]) ++next;
    out += fmt::format("{}{}", out.empty() ? "" : " ", fill.numbers[i]);
    if (next - i > 1) out += fmt::format("x{}", next - i);
  }
  return "list:" + out;
}

runtime::Owned random_rows(std::int64_t rows, std::int64_t d, std::uint64_t seed, const runtime::Extent& e) {
  auto memory = std::make_shared<std::vector<float>>();
  Normal random(seed);
  for (std::int64_t i = 0; i < rows * d; ++i) memory->push_back(static_cast<float>(random()));
  const Tensor tensor(memory->data(), DType::f32, {e.batch, e.heads, rows, d}, {0, 0, d, 1});
  return {memory, tensor};
}

std::string_view usual_word(DType type) {
  const bool real = type == DType::f32 || type == DType::f16 || type == DType::bf16 || type == DType::f64;
  return type == DType::boolean ? "coins" : real ? "normal" : "indices";
}

void fill(const Tensor& tensor, const Fill& how, const std::string& name) {
  const std::string word = how.how.empty() ? std::string(usual_word(tensor.dtype)) : how.how;
  if (std::find_if(words.begin(), words.end(), [&](const FillWord& w) { return w.word == word; }) == words.end()) {
    std::vector<std::string> all;
    for (const FillWord& w : words) all.emplace_back(w.word);
    const auto near = ir::nearest(word, all);
    throw Error("bad-fill", fmt::format("nothing fills `{}` with `{}`", name, word),
                {.name = "--fill", .line = 0, .text = word, .begin = 0, .end = word.size()}, "there is no such word",
                near ? fmt::format("did you mean {}?", *near) : "write normal, slopes, documents, indices or coins");
  }
  const std::int64_t n = tensor.size(),
                     last = tensor.rank > 0 ? tensor.shape[static_cast<std::size_t>(tensor.rank - 1)] : 1;
  const auto or_else = [&](double usual) { return how.limit != 0 ? how.limit : usual; };
  const auto side = std::max<std::int64_t>(1, std::llround(std::sqrt(static_cast<double>(last))));
  Normal random(how.seed);
  std::vector<double> ends;
  if (word == "documents")
    for (double i = 1; i < or_else(4); ++i) ends.push_back(std::floor(random.unit() * static_cast<double>(last)));
  std::array<std::vector<std::int64_t>, 2> tree;
  if ((word == "enter" || word == "leave") && last > 0) tree = walk(last, random);
  const auto element = [&](std::int64_t i) -> double {
    const std::int64_t at = last > 0 ? i % last : 0;
    const auto position = static_cast<double>(at);
    if (word == "normal") return random();
    if (word == "positive") return 0.5 + random.unit();
    if (word == "slopes") return std::exp2(-8 * (position + 1) / static_cast<double>(last));
    if (word == "documents")
      return static_cast<double>(std::count_if(ends.begin(), ends.end(), [&](double e) { return e <= position; }));
    if (word == "lengths") return 1 + std::floor(random.unit() * or_else(static_cast<double>(last)));
    if (word == "indices") return std::floor(random.unit() * or_else(8));
    if (word == "ramp") return static_cast<double>(i) * or_else(1);
    if (word == "coins") return random.unit() < or_else(0.5) ? 1 : 0;
    if (word == "buckets") return bucket(last / 2 - at, or_else(32));
    if (word == "morton") return static_cast<double>(morton(at % side, at / side));
    if (word == "column") return static_cast<double>(at % side);
    if (word == "enter") return static_cast<double>(tree[0][static_cast<std::size_t>(at)]);
    if (word == "leave") return static_cast<double>(tree[1][static_cast<std::size_t>(at)]);
    return how.numbers.empty() ? 0 : how.numbers[static_cast<std::size_t>(i) % how.numbers.size()];
  };
  for (std::int64_t i = 0; i < n; ++i) runtime::store(tensor, i, element(i));
}

}  // namespace attune::playground
