// tools/emit.h — built kernels as plain files: sources, PTX, cubins, SASS, objects, LLVM IR, C headers
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/attention/offline/builds.h"
#include "tools/write_files.h"

namespace attune::tools {

/// Kinds of files: cu, ptx, cubin, sass, o, ll and h. Throws an Error if one is none of them, or needs a program that
/// is not installed.
void check_kinds(const std::vector<std::string>& kinds);
/// Throws an Error if no target of the manifest has files of a kind.
void check_targets(const std::vector<std::string>& kinds, const runtime::Manifest& manifest);
/// The files of these kinds, to write into `folder`.
std::vector<FileBytes> files_of(const runtime::Builds& builds, const std::vector<std::string>& kinds,
                                const std::filesystem::path& folder);

}  // namespace attune::tools
