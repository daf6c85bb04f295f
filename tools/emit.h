// tools/emit.h — built kernels as plain files: pages, PTX, cubins, SASS, objects, LLVM's text, headers of C
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/builds.h"
#include "tools/npy.h"

namespace attune::tools {

/// cu, ptx, cubin, sass, o, ll and h.
std::span<const std::string> emit_kinds();
/// An Error if a kind needs a program that is not here.
void check_kinds(const std::vector<std::string>& kinds);
/// The files of these kinds, to be written into `folder`.
std::vector<FileBytes> files_of(const Builds& builds, const std::vector<std::string>& kinds,
                                const std::filesystem::path& folder);

}  // namespace attune::tools
