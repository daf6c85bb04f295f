// codegen/source/source_text.h — the parts that all generated CUDA sources share: the user's arguments as members, and
// functions
#pragma once

#include <string>

#include "codegen/choose/plan.h"
#include "codegen/cuda/headers.h"
#include "compiler/mod.h"
#include "ir/print.h"

namespace attune::codegen {

/// A function longer than this many columns is written over several lines.
inline constexpr std::size_t source_width = 120;

/// The name in a source of an object that the user named: `slope` is `u_slope`. No keyword, macro or identifier of the
/// device files begins with `u_`, and generated sources add none, so users may choose any name; distinct names stay
/// distinct.
std::string source_name(std::string_view users);
/// A Mod's signature under the names that its source uses for captures and parameters.
ir::Signature source_signature(const compiler::Mod& mod);
/// The member of a source's struct that holds the scale of q . k.
inline constexpr const char* source_scale = "scale";

/// The line that includes the device file of this name, one of `own` or of the library's.
std::string source_include(std::string_view name, std::span<const Header> own = {});

/// `struct Tile`.
std::string source_tile(const KernelPlan& plan);

/// Score, mask, prob and sink as a comment, with the user's names.
std::string source_comment(const compiler::Mod& mod);
/// The members of the source's struct, one per line: captures ("  Capture<float, 1> u_slope;"), parameters, the scale.
/// offsets64: offsets need more than 32 bits. inside: the struct's template parameter `reads` says whether reads are
/// clamped.
std::string source_members(const compiler::Mod& mod, const ir::Signature& signature, bool offsets64,
                           bool inside = false);
/// The size of that struct, with `sums` pointers at its end, and, if dS is stored, what is computed from it: `of_ds`
/// tensors.
std::size_t source_bytes(const compiler::Mod& mod, bool offsets64, std::size_t sums = 0, std::size_t of_ds = 0);

/// The expression with each Custom replaced by its value; drops the derivative of each Custom.
ir::Expr value_of(const ir::Expr& e);

/// The inputs that the text of an expression names. Inputs that only its fields depend on do not count.
std::uint32_t source_uses(const ir::Expr& e);
/// A line such as "    const Int h = at.h;" for each input in `uses` that is a member of `Where at`, or derived from
/// it.
std::string source_locals(std::uint32_t uses, const ir::Signature& signature);

/// The head, then the traits that differ from their defaults in contract/args.cuh, broken into lines as clang-format
/// does.
std::string source_traits(const std::string& head, const std::vector<std::string>& list);

/// Whether a #line directive before each statement names its line in the user's source.
enum class Lines : std::uint8_t { no, yes };

/// "  __device__ <head> const { …return <e>; }", on one line if that fits.
std::string source_function(const std::string& head, const ir::Expr& e, const ir::Signature& signature,
                            const ir::FieldNames& fields = {}, Lines lines = Lines::no);
/// The source with #line directives that number its own lines as in `path`; the user's lines keep their numbers.
std::string with_own_lines(std::string_view source, std::string_view path);

/// An expression for a place that takes no statements: lets go into a lambda that is called immediately.
std::string source_value(const ir::Expr& e, const ir::Signature& signature, const ir::FieldNames& fields = {});

std::string_view device_type(ir::Type type);

/// Names for the fields of a level: the captured tensor's if the field is one of its elements, else head0, head1, ...
/// (row0, col0), as `explain` numbers them.
std::vector<std::string> field_names(std::string_view level, std::span<const ir::Expr> list,
                                     const ir::Signature& signature);
/// "  struct Row { ...; };": the fields, then the text `more`.
std::string fields_struct(std::string_view name, std::span<const ir::Expr> list, const std::vector<std::string>& names,
                          std::string_view more = {});
/// The function that fills and returns such a struct.
std::string fields_function(const std::string& head, std::span<const ir::Expr> list, const ir::Signature& signature,
                            const ir::FieldNames& fields, Lines lines = Lines::no);

/// Options for NVRTC: architecture, language, ptxas's report, and the exactness of arithmetic.
std::vector<std::string> source_options(int arch, bool exact);

}  // namespace attune::codegen
