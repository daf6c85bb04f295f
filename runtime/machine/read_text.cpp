// runtime/machine/read_text.cpp — a file of text that the user names
#include "runtime/machine/read_text.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include <attune/error.h>

namespace attune::runtime {

std::string read_text(const std::filesystem::path& path, const std::string& fix) {
  const Place where{.name = path.string()};
  std::error_code failed;
  const auto status = std::filesystem::status(path, failed);
  if (status.type() == std::filesystem::file_type::not_found)
    throw Error("file-missing", "there is no such file", where, path.string() + " does not exist", fix);
  if (std::filesystem::is_directory(status))
    throw Error("file-kind", "this is not a regular file", where, path.string() + " is a folder", fix);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  if (file && file.peek() != std::ifstream::traits_type::eof()) out << file.rdbuf();
  if (!file.is_open() || file.bad())
    throw Error("file-unreadable", "the file cannot be read", where, failed ? failed.message() : std::strerror(errno),
                fix);
  return out.str();
}

}  // namespace attune::runtime
