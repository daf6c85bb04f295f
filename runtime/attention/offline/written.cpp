// runtime/attention/offline/written.cpp — turns expressions, captures and parameters as text into an Attention
#include "runtime/attention/offline/written.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <limits>

#include "ir/parse.h"

namespace attune::runtime {
namespace {

/// NAME=VALUE, and the option that it came from.
struct Assignment {
  std::string option, whole, name, value;

  Place place_of_value() const {
    return {.name = option, .line = 0, .text = whole, .begin = name.size() + 1, .end = whole.size()};
  }
};

Assignment split(const std::string& option, const std::string& whole) {
  const std::size_t equals = whole.find('=');
  if (equals == std::string::npos || equals == 0)
    throw Error("bad-assignment", fmt::format("{} is not followed by NAME=…", option),
                {.name = option, .line = 0, .text = whole}, "a name, a = and a value are expected",
                fmt::format("write {} NAME=…", option));
  return {option, whole, whole.substr(0, equals), whole.substr(equals + 1)};
}

/// Runs `add`; an Error without a place gets the option as its place.
template <class F>
void at(const Assignment& a, F add) {
  try {
    add();
  } catch (const Error& e) {
    if (!e.where.name.empty() || !e.where.text.empty()) throw;
    throw Error(e.code, e.problem, {.name = a.option, .line = 0, .text = a.whole, .begin = 0, .end = a.name.size()},
                e.why, e.fix);
  }
}

constexpr std::array element_types{DType::f32, DType::f16, DType::bf16, DType::f64, DType::e4m3,   DType::i64,
                                   DType::i32, DType::i16, DType::i8,   DType::u8,  DType::boolean};

std::optional<DType> dtype_named(std::string_view name) {
  const auto found = std::ranges::find(element_types, name, [](DType type) { return name_of(type); });
  if (found == element_types.end()) return std::nullopt;
  return *found;
}

/// Refuses a type and shape where a file is read, a type without a shape, and a type that does not exist: f33[16].
void refuse_as_file(const Assignment& a, Captures allowed) {
  const std::size_t open = a.value.find('[');
  std::error_code ignored;
  if (std::filesystem::exists(a.value, ignored)) return;
  if (dtype_named(a.value) && allowed == Captures::FilesOrTypes)
    throw Error("bad-declaration", fmt::format("capture `{}` has no shape", a.name), a.place_of_value(),
                fmt::format("{} is a type, and there is no such file", a.value),
                fmt::format("write {}={}[16, 256], or name a .npy file", a.name, a.value));
  if (open == 0 || open == std::string::npos || a.value.back() != ']') return;
  if (dtype_named(a.value.substr(0, open)))
    throw Error("no-data", fmt::format("capture `{}` has no data", a.name), a.place_of_value(),
                fmt::format("{} is its type and shape, and its elements are read", a.value),
                fmt::format("name a file: {} {}=FILE.npy", a.option, a.name));
  std::vector<std::string_view> names;
  for (const DType type : element_types) names.push_back(name_of(type));
  throw Error("bad-declaration", fmt::format("the type of capture `{}` is unknown", a.name), a.place_of_value(),
              fmt::format("elements are one of {}", fmt::join(names, ", ")),
              fmt::format("write {}=f32[16, 256], or name a .npy file", a.name));
}

/// f32[16, 256]: a capture without data, for verbs that only look at expressions.
std::optional<Owned> declared(const Assignment& a) {
  const std::size_t open = a.value.find('[');
  const auto type = dtype_named(std::string_view(a.value).substr(0, open));
  if (open == std::string::npos || !type) return std::nullopt;
  if (a.value.back() != ']')
    throw Error("bad-declaration", fmt::format("the shape of capture `{}` has no end", a.name), a.place_of_value(),
                "its bracket is never closed", fmt::format("write {}={}[16, 256]", a.name, name_of(*type)));
  std::vector<std::int64_t> shape;
  const char* at = a.value.data() + open + 1;
  const char* const end = a.value.data() + a.value.size() - 1;
  const auto skip = [&](char c) {
    while (at != end && (*at == ' ' || *at == c)) ++at;
  };
  for (skip(' '); at != end; skip(',')) {
    std::int64_t extent = 0;
    const auto [next, status] = std::from_chars(at, end, extent);
    if (status != std::errc{} || extent < 0)
      throw Error("bad-declaration", fmt::format("the shape of capture `{}` cannot be read", a.name),
                  a.place_of_value(), "extents are whole numbers of 0 or more",
                  fmt::format("write {}=f32[16, 256], or name a .npy file", a.name));
    shape.push_back(extent);
    at = next;
  }
  // Tensors are identified by their data pointers, so the tensor gets its own byte, which is never read.
  Owned out{std::make_shared<char>(), {}};
  try {
    out.tensor = Tensor(out.memory.get(), *type, shape);
  } catch (const Error& e) {
    throw Error(e.code, fmt::format("capture `{}`: {}", a.name, e.problem), a.place_of_value(), e.why, e.fix);
  }
  return out;
}

void add_param(Text& text, const Assignment& a) {
  int whole = 0;
  const char* const end = a.value.data() + a.value.size();
  const auto [stop, status] = std::from_chars(a.value.data(), end, whole);
  if (stop == end && status == std::errc{}) {
    text.param(a.name, whole);
    return;
  }
  const bool digits = !a.value.empty() && a.value.find_first_not_of("-0123456789") == std::string::npos;
  if (digits && status == std::errc::result_out_of_range)
    throw Error("bad-number", fmt::format("parameter `{}` does not fit an Int", a.name), a.place_of_value(),
                "an Int holds -2147483648 to 2147483647", fmt::format("write {}.0 for a Float", a.value));
  std::string_view digits_of = a.value;
  if (digits_of.ends_with('f') && digits_of.find_first_of("0123456789.") != std::string_view::npos)
    digits_of.remove_suffix(1);
  float real = 0;
  const auto [real_stop, real_status] = std::from_chars(digits_of.data(), digits_of.data() + digits_of.size(), real);
  if (real_status == std::errc::result_out_of_range && real_stop == digits_of.data() + digits_of.size())
    throw Error("bad-number", fmt::format("parameter `{}` does not fit a Float", a.name), a.place_of_value(),
                "a Float holds 0, and 1.2e-38 to 3.4e38 of either sign", "write a number that it holds");
  if (a.value.find_first_of("xX") != std::string::npos)
    throw Error("bad-number", fmt::format("parameter `{}` is not a decimal number", a.name), a.place_of_value(),
                "hexadecimal numbers are not read", "write it in decimal: 127 for 0x7f");
  if (real_status != std::errc{} || real_stop != digits_of.data() + digits_of.size())
    throw Error("bad-number", fmt::format("parameter `{}` is not a number", a.name), a.place_of_value(),
                "2 is an Int; 2.0 and 1e-3 are Floats", fmt::format("write {} {}=NUMBER", a.option, a.name));
  text.param(a.name, real);
}

/// Adds an expression without an option: its type tells what it is for.
void add_bare(const Text& text, const std::string& expression, Attention& attention) {
  if (expression.ends_with(".mod") && expression.find_first_of(" \t\n()+*<>=") == std::string::npos)
    throw Error("no-expression", fmt::format("`{}` is the name of a file", expression),
                {.name = "expression", .line = 0, .text = expression, .begin = 0, .end = expression.size()},
                "an expression is expected here", fmt::format("write --mod {}", expression));
  try {
    attention.score = text.score(expression, "expression");
  } catch (const Error&) {
    try {
      attention.mask = text.mask(expression, "expression");
      return;
    } catch (const Error&) {
      // The expression is neither. Errors describe it as a score.
    }
    throw;
  }
}

}  // namespace

Owned moved(const Owned& from, const Device& to) {
  if (to.kind == from.tensor.device.kind) return from;
  const auto shape = std::span(from.tensor.shape).first(static_cast<std::size_t>(from.tensor.rank));
  Owned out;
  out.memory = detail::allocate(to, from.tensor.dtype, shape);
  out.tensor = Tensor(out.memory.get(), from.tensor.dtype, shape, {}, to);
  copy(from.tensor, out.tensor);
  return out;
}

TextAttention build(const Written& options, Captures allowed, const MakeCapture& make, const Device& device) {
  TextAttention out;
  Text text;
  for (const std::string& whole : options.captures) {
    const Assignment a = split("--capture", whole);
    const auto only_declared = allowed == Captures::FilesOrTypes ? declared(a) : std::nullopt;
    if (!only_declared) refuse_as_file(a, allowed);
    Owned tensor = only_declared ? *only_declared : read_tensor(a.value, fmt::format("{} {}", a.option, a.whole));
    if (only_declared && make)
      tensor = make(a.name, tensor.tensor.dtype,
                    std::span(tensor.tensor.shape).first(static_cast<std::size_t>(tensor.tensor.rank)));
    else if (only_declared)
      out.without_data.push_back(a.name);
    if (tensor.memory && tensor.tensor.device != device) tensor = moved(tensor, device);
    at(a, [&] { text.capture(a.name, tensor.tensor); });
    out.captures.emplace(a.name, std::move(tensor));
  }
  for (const std::string& whole : options.params) {
    const Assignment a = split("--param", whole);
    at(a, [&] { add_param(text, a); });
  }
  for (const std::string& whole : options.lets) {
    const Assignment a = split("--let", whole);
    at(a, [&] { text.let(a.name, a.value); });
  }
  if (options.bare) {
    add_bare(text, *options.bare, out.attention);
    const bool is_mask = bool(out.attention.mask);
    if (is_mask ? options.mask : options.score)
      throw Error("expression-twice", fmt::format("there are two {}s", is_mask ? "mask" : "score"),
                  {.name = "expression", .line = 0, .text = *options.bare, .begin = 0, .end = options.bare->size()},
                  fmt::format("this one is the {0}, since it is {1} Bool, and --{0} or --mod gives one too",
                              is_mask ? "mask" : "score", is_mask ? "a" : "no"),
                  "leave one of them out, or join them");
  }
  if (options.score) out.attention.score = text.score(*options.score, "--score");
  if (options.mask) out.attention.mask = text.mask(*options.mask, "--mask");
  if (options.prob) out.attention.prob = text.prob(*options.prob, "--prob");
  if (options.sink) out.attention.sink = text.sink(*options.sink, "--sink");
  return out;
}

std::optional<std::string> near_word(std::string_view word, std::span<const std::string> words) {
  const auto letters = [](std::string_view of) {
    std::string out(of);
    std::erase_if(out, [](char c) { return '0' <= c && c <= '9'; });
    return out;
  };
  const auto near = ir::nearest(word, words);
  return near && letters(*near) == letters(word) ? std::nullopt : near;
}

void require_word(const std::string& option, const std::string& word, std::span<const std::string> words) {
  if (std::find(words.begin(), words.end(), word) != words.end()) return;
  std::string all;
  for (const std::string& w : words) all += (all.empty() ? "" : ", ") + w;
  const auto near = near_word(word, words);
  throw Error("bad-choice", fmt::format("{} does not know `{}`", option, word),
              {.name = option, .line = 0, .text = word, .begin = 0, .end = word.size()}, "it takes one of " + all,
              near ? fmt::format("did you mean {}?", *near) : "write one of these");
}

}  // namespace attune::runtime
