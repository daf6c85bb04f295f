// runtime/platform/emulated/files.cpp — device files as the host's compiler reads them, in a folder of this process
#include "runtime/platform/emulated/files.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <regex>

#include <elf.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/format.h>

#include "runtime/machine/mutex.h"
#include "runtime/platform/emulated/command.h"

namespace attune::runtime::emulated {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "attune-emulated-";

/// A folder's lock, which its process holds until it ends, however it ends.
class Lock {
 public:
  Lock(const fs::path& folder, int flags) : file_(open((folder / "lock").c_str(), flags | O_RDWR | O_CLOEXEC, 0600)) {
    held_ = file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) == 0;
  }
  ~Lock() {
    if (file_ >= 0) close(file_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  bool held() const { return held_; }

 private:
  int file_;
  bool held_ = false;
};

/// Removes the folders of processes that were killed.
void remove_abandoned(const fs::path& in) {
  std::error_code error;
  for (fs::directory_iterator one(in, error), end; !error && one != end; one.increment(error))
    if (one->path().filename().string().starts_with(prefix) && Lock(one->path(), 0).held()) {
      std::error_code ignored;
      fs::remove_all(one->path(), ignored);
    }
}

/// `Type name[n], other[m]` as references that are requested from the machine.
std::string asked_for(const std::string& indent, const std::string& type, const std::string& declarators,
                      std::string_view place) {
  static constinit Once<const std::regex> kept;
  const std::regex& one = kept.get([] { return std::regex(R"((\w+)((?:\[[^\]]*\])*)\s*(?:,\s*|$))"); });
  std::string out = indent;
  for (std::sregex_iterator i(declarators.begin(), declarators.end(), one), end; i != end; ++i)
    out += fmt::format("auto& {0} = attune::emulated::shared_variable<{1}{2}>(\"{3} {0}\"); ", i->str(1), type,
                       i->str(2), place);
  return out;
}

}  // namespace

struct Folder::Held : Lock {
  using Lock::Lock;
};

Folder::Folder() : process_(getpid()) {
  std::error_code error;
  const fs::path in = fs::temp_directory_path(error);
  if (error) refuse("TMPDIR names no folder", error.value());
  remove_abandoned(in);
  const std::string problem = fmt::format("no folder for emulated kernels can be made in {}", in.string());
  // Another process that just removes abandoned folders may take this one's lock first.
  while (!lock_ || !lock_->held() || !fs::exists(path_ / "lock")) {
    std::string name = (in / fmt::format("{}XXXXXX", prefix)).string();
    if (!mkdtemp(name.data())) refuse(problem, errno);
    path_ = name;
    lock_ = std::make_unique<Held>(path_, O_CREAT);
    if (lock_->held() || errno == EWOULDBLOCK) continue;
    const int why = errno;
    fs::remove_all(path_, error);
    refuse(problem, why);
  }
}
Folder::~Folder() {
  std::error_code error;
  if (process_ == getpid()) fs::remove_all(path_, error);
}

const fs::path& folder() {
  static constinit Once<std::unique_ptr<const Folder>> made;
  const auto make = [] {
    std::atexit([] { made.get().reset(); });
    return std::make_unique<const Folder>();
  };
  return made.get(make)->path();
}

std::string new_name(std::string_view of) {
  static std::atomic<unsigned> number{0};
  return fmt::format("{}{}-{}", of, getpid(), number++);
}

std::string without_shared(std::string_view name, std::string_view text) {
  static constinit Once<const std::array<std::regex, 2>> kept;
  const auto& [dynamic, variable] = kept.get([] {
    return std::array{std::regex(R"((\s*)extern __shared__ (?:__align__\(\d+\) )?unsigned char (\w+)\[\];)"),
                      std::regex(R"((\s*)__shared__ ([^\[,;]*) (\w+[^;]*);)")};
  });
  std::string out;
  std::size_t number = 1;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string line(text.substr(0, end));
    std::smatch found;
    if (line.find("__shared__") == std::string::npos)
      out += line;
    else if (std::regex_search(line, found, dynamic))
      out += fmt::format("{}unsigned char* const {} = attune_machine->dynamic_shared();", found.str(1), found.str(2));
    else if (std::regex_search(line, found, variable))
      out += asked_for(found.str(1), found.str(2), found.str(3), fmt::format("{}:{}", name, number));
    else
      out += line;
    out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
  }
  return out;
}

std::string name_in_tree(std::string_view name) {
  constexpr std::string_view twin = "codegen/cuda/emulated/ptx/", of = "codegen/cuda/ptx/";
  return name.starts_with(twin) ? fmt::format("{}{}", of, name.substr(twin.size())) : std::string(name);
}

void write_below(const fs::path& in, std::string_view name, std::string_view text) {
  const fs::path path = in / name;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (!error) {
    std::ofstream out(path, std::ios::binary);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    out.close();
    if (out) return;
    error.assign(errno, std::generic_category());
  }
  refuse(fmt::format("{} cannot be written", path.string()), error.value());
}

std::size_t size_of_elf(const void* header) {
  Elf64_Ehdr of;
  std::memcpy(&of, header, sizeof of);
  return of.e_shoff + std::size_t{of.e_shentsize} * of.e_shnum;
}

void write_device_files() {
  static constinit Once<bool> written;
  written.get([] {
    for (const codegen::Header& one : codegen::headers())
      if (!one.name.starts_with("codegen/cuda/ptx/"))
        write_below(folder(), one.name, without_shared(one.name, one.text));
    for (const codegen::Header& one : codegen::emulated_headers())
      write_below(folder(), name_in_tree(one.name), one.text);
    return true;
  });
}

}  // namespace attune::runtime::emulated
