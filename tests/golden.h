// tests/golden.h — compares a text with the committed one, or writes it under ATTUNE_APPROVE=1
#pragma once

#include <string_view>

namespace attune::tests {

/// Fails the running test, with a diff, unless `text` equals tests/golden/<name>.txt; `name` is "room/case".
void golden(std::string_view name, std::string_view text);

/// The same for a message that users see, in tests/errors/<code>.txt; `code` is the error's stable slug, or "slug.case"
/// if one error has several messages.
void golden_error(std::string_view code, std::string_view text);

}  // namespace attune::tests
