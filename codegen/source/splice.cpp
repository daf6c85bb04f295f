// codegen/source/splice.cpp — a mod's PTX put into a skeleton's, as text
#include "codegen/source/skeleton.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace attune::codegen {
namespace {

/// Thrown if the texts are not as NVRTC writes them.
struct Refused {
  std::string why;
};

std::string_view trimmed(std::string_view line) {
  const std::size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

/// Takes the next line off the text.
std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view out = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return out;
}

std::vector<std::string_view> list_of(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    out.push_back(trimmed(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::size_t number_of(std::string_view text) {
  std::size_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc{} || end != text.data() + text.size()) throw Refused{"a place has no number"};
  return out;
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A parameter of a kernel: its declaration, and the place of the declaration in the text.
struct StructParameter {
  std::string_view name, align, bytes;
  std::size_t begin, end;  ///< of ".align … []" in the text
};
/// The last parameter of the first kernel after `from`. Throws Refused if it is not a struct.
StructParameter last_parameter(std::string_view text, std::size_t from) {
  const std::size_t list = text.find('(', from), end = text.find(")\n", list);
  if (list == std::string_view::npos || end == std::string_view::npos) throw Refused{"a kernel has no parameters"};
  const std::size_t begin = text.rfind(".align ", end), type = text.find(" .b8 ", begin), open = text.find('[', type),
                    close = text.find(']', open);
  if (begin == std::string_view::npos || begin < list || close == std::string_view::npos || close > end)
    throw Refused{"the last parameter of a kernel is no struct"};
  return {text.substr(type + 5, open - type - 5), text.substr(begin + 7, type - begin - 7),
          text.substr(open + 1, close - open - 1), begin, close + 1};
}

/// A function of a mod: text between operands of its place.
struct FunctionBody {
  struct Piece {
    std::string text;     ///< before the operand
    std::size_t operand;  ///< of the place, results first
    std::string after;
  };
  std::vector<Piece> pieces;
  std::string end;
  std::size_t results = 0, arguments = 0;
  std::size_t branches = 0;
};

/// Reads the functions of a mod's PTX.
class ModFunctions {
 public:
  ModFunctions(std::string_view text, std::string_view parameter) : text_(text), parameter_(parameter) {
    for (const std::string_view other : {".func", "call", ".local", "%SP"})
      if (text.find(other) != std::string_view::npos) throw Refused{fmt::format("the mod's PTX has {}", other)};
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view line = trimmed(next_line(rest));
      if (line.starts_with(".global ") || line.starts_with(".const ") || line.starts_with(".visible ") ||
          line.starts_with(".extern ") || line.starts_with(".weak "))
        if (!line.starts_with(".visible .entry ")) beside_.insert(declared(line));
    }
    for (std::size_t at = 0; (at = text_.find(".entry ", at)) != std::string_view::npos; ++at) read(at);
  }

  const FunctionBody& body(std::string_view name) const {
    const auto found = bodies_.find(name);
    if (found == bodies_.end()) throw Refused{fmt::format("the mod has no {}()", name)};
    return found->second;
  }
  std::string_view align() const { return align_; }
  std::string_view bytes() const { return bytes_; }

 private:
  void read(std::size_t at) {
    std::string_view name = text_.substr(at + 7, text_.find('(', at) - at - 7);
    if (!name.starts_with(mod_prefix)) throw Refused{"the mod's PTX has another kernel"};
    const StructParameter parameter = last_parameter(text_, at);
    align_ = parameter.align;
    bytes_ = parameter.bytes;
    const std::size_t begin = text_.find("\n{\n", at), end = text_.find("\n}\n", begin);
    if (begin == std::string_view::npos || end == std::string_view::npos)
      throw Refused{"a function of the mod has no end"};
    own_ = parameter.name;
    names_.clear();
    bodies_.emplace(name.substr(mod_prefix.size()), body_of(text_.substr(begin + 3, end - begin - 3)));
  }

  FunctionBody body_of(std::string_view text) {
    FunctionBody out;
    std::string before;
    bool ended = false;
    for (std::string_view rest = text; !rest.empty();)
      if (const std::string_view line = trimmed(next_line(rest)); line.starts_with(place_out)) ++out.results;
    while (!text.empty()) {
      const std::string_view line = trimmed(next_line(text));
      if (line.empty() || line.starts_with("//")) continue;
      if (ended) throw Refused{"a function of the mod goes on after its end"};
      if (line.starts_with(".reg ")) names_.push_back(register_of(line));
      if (line == "ret;") {
        ended = true;
      } else if (line.starts_with(place_in)) {
        const auto operands = list_of(line.substr(place_in.size(), line.size() - place_in.size() - 1));
        if (operands.size() != 2 || number_of(operands[1]) != out.arguments)
          throw Refused{"arguments are out of order"};
        out.pieces.push_back(
            {before + fmt::format("mov.b32 {}, ", renamed(operands[0])), out.results + out.arguments++, ";\n"});
        before.clear();
      } else if (line.starts_with(place_out)) {
        const auto operands = list_of(line.substr(place_out.size(), line.size() - place_out.size() - 1));
        if (operands.size() != 2 || number_of(operands[0]) >= out.results) throw Refused{"a result has no place"};
        out.pieces.push_back(
            {before + "mov.b32 ", number_of(operands[0]), fmt::format(", {};\n", renamed(operands[1]))});
        before.clear();
      } else {
        out.branches += branches_of(line, text);
        before += renamed(line) + "\n";
      }
    }
    out.end = before;
    return out;
  }

  /// The cost of a line, in branches: 1 for "@%p1 bra $L__BB0_1;", with or without the predicate, if it jumps over more
  /// than two instructions. The assembler turns jumps over one or two into predicates, and knows whether a position's
  /// step is 0. A division of integers by a register, "rem.s32 %r1, %r2, %r3;", is some 20 instructions, parts of which
  /// the compiler shares among places.
  static std::size_t branches_of(std::string_view line, std::string_view rest) {
    constexpr std::size_t division = 4;
    if (line.starts_with("@")) line = trimmed(line.substr(std::min(line.find_first_of(" \t"), line.size())));
    line.remove_suffix(line.ends_with(";"));
    const std::string_view last = line.substr(line.find_last_of(" \t") + 1);
    for (const std::string_view name : {"div.s", "div.u", "rem.s", "rem.u"})
      if (line.starts_with(name)) return last.starts_with("%") ? division : 0;
    if (!line.starts_with("bra")) return 0;
    for (int instructions = 0; instructions <= 2 && !rest.empty();) {
      const std::string_view next = trimmed(next_line(rest));
      if (next.ends_with(":") && next.substr(0, next.size() - 1) == last) return 0;
      instructions += next.ends_with(";");
    }
    return 1;
  }

  /// "table" of ".global .align 4 .b8 table[16] = {…};"
  static std::string_view declared(std::string_view line) {
    line = trimmed(line.substr(0, line.find_first_of("[=;")));
    return line.substr(line.find_last_of(" \t") + 1);
  }

  /// "rd" of ".reg .b64 %rd<7>;"
  static std::string_view register_of(std::string_view line) {
    const std::size_t at = line.find('%'), end = line.find('<', at);
    if (at == std::string_view::npos || end == std::string_view::npos)
      throw Refused{"registers are declared in another way"};
    return line.substr(at + 1, end - at - 1);
  }

  /// The line with registers and the parameter under the names that they have in the skeleton.
  std::string renamed(std::string_view line) const {
    std::string out;
    out.reserve(line.size() + 16);
    for (std::size_t i = 0; i < line.size();) {
      if (line[i] == '%') {
        std::size_t end = i + 1;
        while (end < line.size() && is_letter(line[end])) ++end;
        const bool numbered = end < line.size() && (is_digit(line[end]) || line[end] == '<');
        const bool own = numbered && std::ranges::find(names_, line.substr(i + 1, end - i - 1)) != names_.end();
        out += own ? "%attune_" : "%";
        out += line.substr(i + 1, end - i - 1);
        i = end;
      } else if (is_letter(line[i])) {
        std::size_t end = i;
        while (end < line.size() && (is_letter(line[end]) || is_digit(line[end]))) ++end;
        const std::string_view word = line.substr(i, end - i);
        // The skeleton has no place for data that the functions of a mod refer to, such as a table.
        if (beside_.contains(word)) throw Refused{fmt::format("the mod reads {} of its PTX", word)};
        out += word == own_ ? parameter_ : word;
        i = end;
      } else {
        out += line[i++];
      }
    }
    return out;
  }

  std::string_view text_, parameter_, own_, align_, bytes_;
  std::vector<std::string_view> names_;
  std::set<std::string_view> beside_;
  std::map<std::string_view, FunctionBody, std::less<>> bodies_;
};

void put(std::string& into, const FunctionBody& body, const std::vector<std::string_view>& operands) {
  if (operands.size() != body.results + body.arguments) throw Refused{"a place has other operands than its function"};
  into += "{\n";
  for (const FunctionBody::Piece& piece : body.pieces) {
    into += piece.text;
    into += operands[piece.operand];
    into += piece.after;
  }
  into += body.end;
  into += "}";
}

/// ".version 9.0", the first line of PTX. Empty: there is none.
std::string_view version_of(std::string_view text) {
  text.remove_prefix(std::min(text.find(".version "), text.size()));
  return next_line(text);
}

/// Upper bound on the branches that are put in. The compiler turns many of them into selections and computes once what
/// places have in common; the assembler does neither across blocks. Random mods with 96 and 192 had up to 1.02 times
/// the instructions of the whole kernel, those with 384 and more up to 1.76; one with more than 64 divisions had 1.48.
constexpr std::size_t most_branches = 256;

std::string spliced(std::string_view skeleton, std::string_view mod) {
  if (const std::string_view theirs = version_of(skeleton), ours = version_of(mod); !mod.empty() && theirs != ours)
    throw Refused{fmt::format("the skeleton's PTX begins \"{}\", and the mod's \"{}\"", theirs, ours)};
  if (skeleton.find(".func") != std::string_view::npos) throw Refused{"the skeleton has functions besides its kernel"};
  const std::size_t kernel = skeleton.find(".entry ");
  if (kernel == std::string_view::npos || skeleton.find(".entry ", kernel + 1) != std::string_view::npos)
    throw Refused{"the skeleton is not one kernel"};
  const StructParameter user = last_parameter(skeleton, kernel);
  const ModFunctions functions(mod, user.name);
  std::size_t branches = 0;
  std::string out;
  out.reserve(2 * skeleton.size());
  out += skeleton.substr(0, user.begin);
  if (functions.bytes().empty()) throw Refused{"the mod has no functions"};
  out += fmt::format(".align {} .b8 {}[{}]", functions.align(), user.name, functions.bytes());
  for (std::size_t at = user.end;;) {
    const std::size_t place = skeleton.find(place_prefix, at);
    out += skeleton.substr(at, place - at);
    if (place == std::string_view::npos) return out;
    const std::size_t name = place + place_prefix.size(), space = skeleton.find_first_of(" \t", name),
                      end = skeleton.find_first_of(";\n", space);
    if (end == std::string_view::npos || skeleton[end] != ';') throw Refused{"a place has no end"};
    const FunctionBody& body = functions.body(skeleton.substr(name, space - name));
    if ((branches += body.branches) > most_branches) throw Refused{"the mod branches too often"};
    put(out, body, list_of(skeleton.substr(space, end - space)));
    at = end + 1;
  }
}

}  // namespace

SplicedPtx splice(std::string_view skeleton, std::string_view mod) {
  try {
    return {spliced(skeleton, mod)};
  } catch (const Refused& refused) {
    return {{}, refused.why};
  }
}

std::string around_ptx(std::string_view ptx) {
  constexpr std::string_view header = ".address_size 64\n";
  const std::size_t at = ptx.find(header);
  if (at == std::string_view::npos || ptx.find(")PTX\"") != std::string_view::npos) return {};
  return fmt::format("extern \"C\" __global__ void attune_before() {{\n  asm volatile(R\"PTX(ret;\n}}\n{}\n"
                     ".func attune_after() {{)PTX\");\n}}\n",
                     ptx.substr(at + header.size()));
}

}  // namespace attune::codegen
