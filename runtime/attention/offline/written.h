// runtime/attention/offline/written.h — an attention as text in commands and manifests: expressions, NAME=VALUE of
// captures and parameters
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <attune/attune.h>

#include "runtime/machine/archive.h"

namespace attune::runtime {

/// The forms in which a captured tensor may be given.
enum class Captures { Files, FilesOrTypes };

struct Written {
  std::optional<std::string> score{}, mask{}, prob{}, sink{};
  std::optional<std::string> bare{};  ///< an expression without an option, if a verb takes one
  std::vector<std::string> lets{}, captures{}, params{};

  bool operator==(const Written&) const = default;
  /// True if there is an expression.
  bool given() const { return bare || score || mask || prob || sink; }
};

/// The expressions, by the words that options, files and manifests have for them.
struct WrittenPart {
  const char* word;
  std::optional<std::string> Written::*member;
};
inline constexpr std::array<WrittenPart, 4> written_parts{
    {{"score", &Written::score}, {"mask", &Written::mask}, {"prob", &Written::prob}, {"sink", &Written::sink}}};

/// An Attention made from text, with the memory of its captures.
struct TextAttention {
  Attention attention;
  std::map<std::string, Owned, std::less<>> captures;
  std::vector<std::string> without_data;  ///< captures given as a type and a shape
};

/// Makes data for a capture that is given as a type and a shape.
using MakeCapture = std::function<Owned(const std::string& name, DType type, std::span<const std::int64_t> shape)>;

/// A bare expression is a mask if it is a Bool, else a score. Without `make`, captures given as a type and a shape have
/// no data. `device`: the device that captures with data are copied to.
TextAttention build(const Written& written, Captures allowed, const MakeCapture& make = {},
                    const Device& device = Device::cpu());

/// The same tensor on `to`: a copy, except on the host.
Owned moved(const Owned& from, const Device& to);

/// The word that was probably meant. Never one that differs in digits alone: sm_70 is no typo of sm_80.
std::optional<std::string> near_word(std::string_view word, std::span<const std::string> words);
/// Refuses a word that the option does not take.
void require_word(const std::string& option, const std::string& word, std::span<const std::string> words);

}  // namespace attune::runtime
