// runtime/machine/replace.cpp — files written in one step: a reader sees all of a file, or nothing
#include "runtime/machine/replace.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "runtime/machine/files.h"

namespace attune::runtime {
namespace {

bool write_all(int file, std::string_view text) {
  const FileSizeLimit limit;
  while (!text.empty()) {
    const ssize_t wrote = write(file, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return true;
}

}  // namespace

std::string replace_file(const std::filesystem::path& path, std::string_view text, std::string temporary,
                         Durable durable) {
  const int file = mkostemp(temporary.data(), O_CLOEXEC);
  if (file < 0) return std::strerror(errno);
  bool good = write_all(file, text) && (durable == Durable::no || fsync(file) == 0);
  good = close(file) == 0 && good;
  good = good && std::rename(temporary.c_str(), path.c_str()) == 0;
  if (good) return {};
  std::string why = std::strerror(errno);
  unlink(temporary.c_str());
  return why;
}

std::string append_file(const std::filesystem::path& path, std::string_view text) {
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return std::strerror(errno);
  const FileSizeLimit limit;
  const ssize_t wrote = write(file, text.data(), text.size());
  std::string why = wrote < 0 ? std::strerror(errno) : "the disk is full";
  const bool good = std::cmp_equal(wrote, text.size());
  close(file);
  return good ? std::string() : why;
}

}  // namespace attune::runtime
