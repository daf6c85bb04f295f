// runtime/platform/emulated/files.h — device files as the host's compiler reads them, in a folder of this process
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "codegen/cuda/headers.h"

namespace attune::runtime::emulated {

/// A new folder for temporary files, removed with this object. Folders that killed processes left are removed first.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Held;
  const pid_t process_;
  std::filesystem::path path_;
  std::unique_ptr<Held> lock_;
};
/// The folder of this process, removed at its end. Processes that are forked from it share it.
const std::filesystem::path& folder();
/// A name in folder() that begins with `of` and that none of these processes has given before.
std::string new_name(std::string_view of);

/// A device file in which variables in shared memory are requested from the machine.
std::string without_shared(std::string_view name, std::string_view text);

/// The path of a device file in the source tree: headers of emulated/ptx replace the headers of ptx.
std::string name_in_tree(std::string_view name);

/// Writes the device files below folder(), once.
void write_device_files();

/// Writes a file, with its folders.
void write_below(const std::filesystem::path& folder, std::string_view name, std::string_view text);

/// The length of an ELF file, by its header: the end of its section table, with which linkers and clang end it.
std::size_t size_of_elf(const void* header);

}  // namespace attune::runtime::emulated
