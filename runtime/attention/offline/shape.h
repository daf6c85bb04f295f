// runtime/attention/offline/shape.h — requests for kernels: calls as commands, manifests and records write them, field
// by field
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "codegen/choose/call_choices.h"
#include "codegen/isa.h"
#include "runtime/attention/offline/written.h"

namespace attune::runtime {

/// The target of a kernel: sm_90a, avx512.
struct TargetName {
  std::optional<int> arch{};  ///< of a GPU, as in codegen
  std::optional<codegen::Isa> isa{};
  bool operator==(const TargetName&) const = default;
};
/// True if arch / 10 is the compute capability of a GPU that kernels are generated for by name.
bool is_known_arch(int arch);
std::optional<TargetName> target_named(std::string_view name);
std::string name_of(const TargetName& target);
/// Some GPU targets and all CPU targets, for help and advice.
std::span<const std::string_view> known_targets();

/// A Mod as it is written, and a kind of calls to compile it for.
struct Request {
  Written mod{};
  TargetName target{};
  std::string pass = "forward";
  codegen::CallSpec call{};            ///< on CPUs only its dtype matters; `backward` is what `grads` says
  codegen::Sizes sizes{};              ///< from which settle() fills in the call
  bool each_length = false;            ///< kernels for each length, instead of those for the call's
  std::optional<std::string> grads{};  ///< of captures: all, none, or names joined by +. Left out: both all and none
  bool skeleton = false;               ///< instead of kernels, what mods are spliced into
};

/// A field of a request. Options, keys, texts of Errors and the docs are generated from these rows. Fields that are
/// left out are as in contiguous tensors, with a positive scale.
struct ShapeRow {
  std::string_view name;                                  ///< name in JSON; the option has - instead of _
  std::string_view takes;                                 ///< the accepted values, in words
  std::string_view meaning;                               ///< includes the default
  bool (*set)(Request& request, std::string_view value);  ///< false: not a valid value
  std::string (*text)(const Request& request);            ///< empty: the field is left out
  /// Sets the value that is meant if it is left out, from the fields before it. Null: that of a Request{}.
  void (*usual)(Request& request) = nullptr;
  bool always = false;  ///< written even if it could be left out
  bool of_cpu = false;  ///< true if the field matters to CPU kernels too
};
std::span<const ShapeRow> shape_rows();
std::string option_of(const ShapeRow& row);

/// Values of fields, by the rows' names.
using Fields = std::map<std::string, std::string, std::less<>>;
/// Fills in a request whose target and pass are known. Returns the row whose value is not valid; null if all are.
const ShapeRow* read_shape(Request& request, const Fields& fields);
/// Fills in what follows from the sizes.
void settle(Request& request);

/// The default type of o. There is no o of e4m3.
DType usual_out(DType of);

}  // namespace attune::runtime
