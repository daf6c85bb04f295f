// ir/named.cpp — the language's names: named mods as texts, a row for each form; advice on other languages' words, and
// on typos
#include "ir/named.h"

#include <algorithm>
#include <vector>

#include "ir/parse.h"
#include "ir/range.h"

namespace attune::ir {
namespace {

struct Advice {
  std::string_view word, text;
};

// Sorted, for the binary search below.
constexpr std::array advice{
    Advice{"False", "write false"},
    Advice{"INFINITY", "write inf"},
    Advice{"M_PI", "write 3.1415927f"},
    Advice{"NAN", "write nan"},
    Advice{"None", "every expression has a value: write 0, 0.0f or false"},
    Advice{"True", "write true"},
    Advice{"acos", "there is no inverse of cos; tabulate it and pass the table as a capture"},
    Advice{"and", "write && for `and`"},
    Advice{"asin", "there is no inverse of sin; tabulate it and pass the table as a capture"},
    Advice{"at", "write b, h, q and kv for at.batch, at.head, at.q and at.kv"},
    Advice{"atan", "there is no inverse of tan; tabulate it and pass the table as a capture"},
    Advice{"batch", "write b"},
    Advice{"bool", "write x != 0 for bool(x)"},
    Advice{"ceiling", "write ceil"},
    Advice{"cosh", "write (exp(x) + exp(-x)) / 2.0f"},
    Advice{"div", "write floordiv(a, b), or a / b, which truncates"},
    Advice{"double", "Floats are f32: write f32(x)"},
    Advice{"e", "write 2.7182817f, or exp(x) for a power of it"},
    Advice{"elif", "write c ? a : d ? b : e"},
    Advice{"else", "write c ? a : b"},
    Advice{"exp10", "write exp2(x * 3.321928f)"},
    Advice{"expm1", "write exp(x) - 1.0f"},
    Advice{"fabs", "write abs"},
    Advice{"float", "write f32(x)"},
    Advice{"float32", "write f32(x)"},
    Advice{"floor_divide", "write floordiv(a, b)"},
    Advice{"fmax", "write max"},
    Advice{"fmin", "write min"},
    Advice{"fmod", "write x - trunc(x / y) * y"},
    Advice{"for", "write sum(i, n, body); the count n is a literal"},
    Advice{"head", "write h"},
    Advice{"if", "write c ? a : b, or where(c, a, b)"},
    Advice{"in", "write a comparison for each case, joined by ||"},
    Advice{"infinity", "write inf"},
    Advice{"int", "write i32(x), which truncates"},
    Advice{"int32", "write i32(x), which truncates"},
    Advice{"is", "write =="},
    Advice{"k", "write kv for the key's position"},
    Advice{"key", "write kv"},
    Advice{"kv_idx", "write kv"},
    Advice{"lambda", "write the expression alone; its variables are s, b, h, q, kv, q_len and kv_len"},
    Advice{"len", "write q_len or kv_len"},
    Advice{"ln", "write log, which is the natural one"},
    Advice{"log10", "write log2(x) * 0.30103f"},
    Advice{"log1p", "write log(1.0f + x)"},
    Advice{"logical_and", "write a && b"},
    Advice{"logical_not", "write !a"},
    Advice{"logical_or", "write a || b"},
    Advice{"maximum", "write max"},
    Advice{"minimum", "write min"},
    Advice{"mod", "write floormod(a, b), or a % b, which has the sign of a"},
    Advice{"neg", "write -x"},
    Advice{"not", "write ! for `not`"},
    Advice{"null", "every expression has a value: write 0, 0.0f or false"},
    Advice{"or", "write || for `or`"},
    Advice{"pi", "write 3.1415927f"},
    Advice{"power", "write pow"},
    Advice{"q_idx", "write q"},
    Advice{"query", "write q"},
    Advice{"rand", "write random(seed), with a seed that is an Int"},
    Advice{"range", "write sum(i, n, body) to add up, or compare with both ends: 0 <= i && i < n"},
    Advice{"relu", "write max(x, 0.0f)"},
    Advice{"return", "write the expression alone"},
    Advice{"score", "write s"},
    Advice{"select", "write where(c, a, b)"},
    Advice{"sgn", "write where(x > 0.0f, 1.0f, where(x < 0.0f, -1.0f, 0.0f))"},
    Advice{"sign", "write where(x > 0.0f, 1.0f, where(x < 0.0f, -1.0f, 0.0f))"},
    Advice{"silu", "write x * sigmoid(x)"},
    Advice{"sinh", "write (exp(x) - exp(-x)) / 2.0f"},
    Advice{"softplus", "write log(1.0f + exp(x))"},
    Advice{"square", "write x * x"},
    Advice{"xor", "write ^ between Ints, != between Bools"},
};
static_assert(std::ranges::is_sorted(advice, {}, &Advice::word));

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Insertions, deletions, replacements and swaps of neighbours; upper and lower case are the same letter.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool equal = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (equal ? 0 : 1)});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]))
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

}  // namespace

std::string_view advice_on(std::string_view word) {
  const auto found = std::ranges::lower_bound(advice, word, {}, &Advice::word);
  return found != advice.end() && found->word == word ? found->text : std::string_view{};
}

bool is_reserved(std::string_view name) {
  constexpr std::array<std::string_view, 5> words{"let", "true", "false", "inf", "nan"};
  return std::ranges::find(words, name) != words.end() || std::ranges::find(input_names, name) != input_names.end() ||
         op_named(name).has_value();
}

bool is_name(std::string_view text) {
  return !text.empty() && is_letter(text[0]) &&
         std::ranges::all_of(text, [](char c) { return is_letter(c) || is_digit(c); });
}

std::optional<std::string> nearest(std::string_view name, std::span<const std::string> candidates) {
  constexpr std::size_t longest = 64;  // longer names are unlikely typos, and the work is quadratic
  if (name.size() > longest) return std::nullopt;
  const std::string* best = nullptr;
  std::size_t least = std::max<std::size_t>(1, name.size() / 3) + 1;
  for (const std::string& c : candidates) {
    if (c.size() > longest) continue;
    const std::size_t d = distance(name, c);
    // One edit turns any one-letter name into any other, so for such names one edit does not prove similarity. On a tie
    // prefer a candidate of the same length: a swapped or replaced letter is likelier than a missing one.
    const bool nearer = d < least || (best && d == least && c.size() == name.size() && best->size() != name.size());
    if (nearer && d < std::max(name.size(), c.size())) {
      best = &c;
      least = d;
    }
  }
  if (!best) return std::nullopt;
  return *best;
}

namespace {

constexpr NamedArgument number(std::string_view name) { return {name, Type::F32, -1}; }
constexpr NamedArgument share(std::string_view name) { return {name, Type::F32, -1, true}; }
constexpr NamedArgument whole(std::string_view name) { return {name, Type::I32, -1}; }
constexpr NamedArgument floats(std::string_view name, int rank) { return {name, Type::F32, rank}; }
constexpr NamedArgument ints(std::string_view name, int rank) { return {name, Type::I32, rank}; }
constexpr NamedArgument bools(std::string_view name, int rank) { return {name, Type::Bool, rank}; }

constexpr std::array rows{
    // Masks.
    NamedMod{"causal", {}, "kv <= q"},
    NamedMod{"causal", {whole("offset")}, "kv <= q + offset"},
    NamedMod{"window", {whole("width")}, "kv <= q && q - kv < width"},
    NamedMod{"sliding_window", {whole("width")}, "kv <= q && q - kv < width"},
    NamedMod{"two_sided_window", {whole("reach")}, "abs(q - kv) <= reach"},
    NamedMod{"dilated_window", {whole("reach"), whole("step")}, "abs(q - kv) <= reach && (q - kv) % step == 0"},
    NamedMod{"sink_window", {whole("width"), whole("sinks")}, "kv <= q && (q - kv < width || kv < sinks)"},
    NamedMod{"prefix", {ints("length", 1)}, "kv < length[b] || kv <= q"},
    NamedMod{"prefix", {whole("length")}, "kv < length || kv <= q"},
    NamedMod{"padding", {ints("length", 1)}, "kv < length[b]"},
    NamedMod{"document", {ints("id", 1)}, "id[q] == id[kv]"},
    NamedMod{"document", {ints("id", 2)}, "id[b, q] == id[b, kv]"},
    NamedMod{"chunked", {whole("length")}, "q / length == kv / length"},
    NamedMod{"block_causal", {whole("length")}, "kv / length <= q / length"},
    NamedMod{"global_tokens", {bools("is_global", 1)}, "is_global[q] || is_global[kv]"},
    NamedMod{"neighbourhood_2d",
             {whole("width"), whole("height"), whole("reach")},
             "abs(clamp(q % width, reach, width - 1 - reach) - kv % width) <= reach && "
             "abs(clamp(q / width, reach, height - 1 - reach) - kv / width) <= reach"},
    NamedMod{"tree",
             {bools("sees", 3)},
             "kv < kv_len - q_len || sees[b, max(q - (kv_len - q_len), 0), max(kv - (kv_len - q_len), 0)]"},
    NamedMod{"dense", {bools("keep", 2)}, "keep[q, kv]"},
    NamedMod{"dense", {bools("keep", 3)}, "keep[h, q, kv]"},
    NamedMod{"dense", {bools("keep", 4)}, "keep[b, h, q, kv]"},
    // Scores.
    NamedMod{"alibi", {floats("slope", 1)}, "s + slope[h] * f32(kv - q)"},
    NamedMod{"alibi", {number("heads")}, "s + exp2(-8.0f * f32(h + 1) / heads) * f32(kv - q)"},
    NamedMod{"softcap", {number("cap")}, "cap * tanh(s / cap)"},
    NamedMod{"relative_position", {}, "s + f32(q - kv)"},
    NamedMod{"relative_bias", {floats("table", 2), whole("reach")}, "s + table[h, q - kv + reach]"},
    NamedMod{"bucketed_bias",
             {floats("table", 2), ints("bucket", 1), whole("reach")},
             "s + table[h, bucket[clamp(q - kv + reach, 0, 2 * reach)]]"},
    NamedMod{"dense_bias", {floats("bias", 2)}, "s + bias[q, kv]"},
    NamedMod{"dense_bias", {floats("bias", 3)}, "s + bias[h, q, kv]"},
    NamedMod{"dense_bias", {floats("bias", 4)}, "s + bias[b, h, q, kv]"},
    NamedMod{"head_bias", {floats("bias", 1)}, "s + bias[h]"},
    NamedMod{"key_bias", {floats("bias", 1)}, "s + bias[kv]"},
    NamedMod{"dequantise", {floats("q_scale", 3), floats("kv_scale", 2)}, "s * q_scale[b, h, q] * kv_scale[b, kv]"},
    // After the softmax.
    NamedMod{"dropout",
             {share("keep"), whole("seed")},
             "let n = max(round(keep * 65536.0f), 1.0f); where(kept(seed, i32(n)), p / (n / 65536.0f), 0.0f)"},
    NamedMod{"head_gate", {floats("gate", 1)}, "p * gate[h]"},
    // Sinks.
    NamedMod{"learned_sink", {floats("logit", 1)}, "logit[h]"},
};

}  // namespace

std::size_t NamedMod::count() const {
  return static_cast<std::size_t>(std::ranges::count_if(takes, &NamedArgument::given));
}

std::string NamedMod::shown() const {
  std::string out(name);
  out += '(';
  for (std::size_t i = 0; i < count(); ++i) out.append(i ? ", " : "").append(takes[i].name);
  return out + ')';
}

bool is_no_share(const Expr& number) {
  const Interval of = range(number);
  return !of.numbers() || of.hi <= 0 || of.lo > 1;
}

std::span<const NamedMod> named_mods() { return rows; }

bool is_named_mod(std::string_view name) { return std::ranges::find(rows, name, &NamedMod::name) != rows.end(); }

}  // namespace attune::ir
