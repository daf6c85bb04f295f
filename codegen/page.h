// codegen/page.h — what every generated page of CUDA has: the user's arguments as members, and functions of expressions
#pragma once

#include <string>

#include "compiler/mod.h"
#include "ir/print.h"

namespace attune::codegen {

/// Columns that a function of one line may take.
inline constexpr std::size_t page_width = 120;

/// The arguments of a Mod under names that C++ and the device files leave free.
struct PageNames {
  ir::Signature signature;
  std::string scale;
};
PageNames page_names(const compiler::Mod& mod);

/// score, mask, prob and sink as a comment.
std::string page_comment(const compiler::Mod& mod);
/// "  Capture<float, 1> slope;", one a line: captures, parameters, scale. wide: offsets need more than 32 bits; inside:
/// reads may go unclamped, as a template parameter `reads` says.
std::string page_members(const compiler::Mod& mod, const PageNames& names, bool wide, bool inside = false);
std::size_t page_bytes(const compiler::Mod& mod, bool wide);

/// Customs without the derivatives that they carry.
ir::Expr value_of(const ir::Expr& e);

/// Which inputs stand in the text of an expression: its fields' own are not among them.
std::uint32_t page_uses(const ir::Expr& e);
/// "    const Int h = at.h;" for whatever the expressions use of what `Where at` holds.
std::string page_locals(std::uint32_t uses);

/// Whether statements are preceded by the lines of the user's source that they were written in.
enum class Lines : std::uint8_t { no, yes };

/// "  __device__ <head> const { …return <e>; }", in one line where that fits.
std::string page_function(const std::string& head, const ir::Expr& e, const ir::Signature& signature,
                          const ir::FieldNames& fields = {}, Lines lines = Lines::no);
/// A page whose lines are called by their own numbers in `path`, but for those that are the user's.
std::string with_own_lines(std::string_view page, std::string_view path);

/// An expression where no statement can stand.
std::string page_value(const ir::Expr& e, const ir::Signature& signature, const ir::FieldNames& fields = {});

std::string_view device_type(ir::Type type);

/// A field that is an element of a captured tensor is called like it, others a, b, c ….
std::vector<std::string> field_names(std::span<const ir::Expr> list, const ir::Signature& signature);
/// "  struct Row { …; };", with `more` members.
std::string fields_struct(std::string_view name, std::span<const ir::Expr> list, const std::vector<std::string>& names,
                          std::string_view more = {});
/// The function that fills it.
std::string fields_function(const std::string& head, std::span<const ir::Expr> list, const ir::Signature& signature,
                            const ir::FieldNames& fields, Lines lines = Lines::no);

/// sm_90a and so on, the language, what ptxas tells.
std::vector<std::string> page_options(int arch, bool exact);

}  // namespace attune::codegen
