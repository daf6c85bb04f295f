// codegen/source/user_source.h — struct User of a kernel's source in parts: what is the same for other mods, and what
// is not
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/source/source.h"
#include "codegen/source/source_text.h"

namespace attune::codegen {

/// A member function of a source's struct User.
struct UserFunction {
  enum class Form : std::uint8_t {
    same,    ///< for all mods with these facts and fields
    unused,  ///< kernels do not call it, because of these facts
    open,    ///< depends on the mod
  };
  std::string head;  ///< "float sink(Head head, Where at)"
  std::string text;  ///< the definition
  Form form = Form::same;
};

struct UserSource {
  std::string fields;   ///< struct Head, Row and Col
  std::string members;  ///< captures, parameters, the scale, and where sums of gradients are
  std::string traits;
  std::vector<UserFunction> functions;
  std::string terms;  ///< the functions that add up gradients of captured tensors
  /// A forward's scores read captured tensors pair by pair, without clamping where this function is true. None: they do
  /// not, or the source is a backward's.
  std::optional<UserFunction> is_inside;

  std::string text() const;
};
/// The parts of an exponent that a plan's kernel has for each pair already, as members of its argument `held`: see
/// mod.cuh.
struct Held {
  int copied;  ///< of copied_reads()
  bool distant, tanh;
  explicit operator bool() const { return copied || distant || tanh; }
};
Held held_by(const GpuParts& parts, const KernelPlan& plan);
UserSource user_source(const GpuParts& parts, const KernelPlan& plan, Lines lines);

/// A struct User as text, and its size.
struct UserText {
  std::string comment, text;
  std::size_t bytes = 0;
};
/// The source of a kernel of a device file around it.
Source source_around(const UserText& user, const GpuParts& parts, const KernelPlan& plan, const std::string& kernel,
                     const std::string& file);
/// "exact" or "fast": the namespace of its functions.
std::string source_space(const GpuParts& parts, const KernelPlan& plan);

}  // namespace attune::codegen
