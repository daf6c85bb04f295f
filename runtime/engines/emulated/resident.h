// runtime/engines/emulated/resident.h — a resident compiler: one clang process compiles many pages
#pragma once

#include <string>

namespace attune::runtime::emulated {

/// The object file of a page, by a process that has compiled pages before. `command` compiles: clang++ with its options
/// but for input and output. `name`: the page's in messages. Empty if there is no such process or it fails: the page is
/// then to be compiled by a process of its own, which also says what is wrong.
std::string object_by_resident(const std::string& command, const std::string& name, const std::string& page);

}  // namespace attune::runtime::emulated
