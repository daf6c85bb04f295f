// runtime/platform/nvidia/nvrtc.cpp — NVIDIA's run-time compiler, opened by name at first use: from CUDA source to a
// cubin, and which program goes through its front end next
#include "runtime/platform/nvidia/nvrtc.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include <dlfcn.h>
#include <unistd.h>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/cuda/headers.h"
#include "runtime/machine/background.h"
#include "runtime/machine/mutex.h"
#include "runtime/machine/options.h"
#include "runtime/machine/threads.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime::cuda {
namespace {

constexpr int ranks = 5;

thread_local constinit Piece piece_of_thread = Piece::companion;

/// The lowest goes first.
int rank_of_thread() {
  const bool kernel = piece_of_thread == Piece::kernel;
  switch (works_for()) {
    case WorksFor::call: return kernel ? 0 : 2;
    case WorksFor::early: return kernel ? 1 : 3;
    case WorksFor::later: break;
  }
  return 4;
}

class Line {
 public:
  void ahead(int rank) {
    const std::lock_guard lock(mutex_);
    begin_in_child();
    ++ahead_[static_cast<std::size_t>(rank)];
  }
  void not_ahead(int rank) {
    const std::lock_guard lock(mutex_);
    --ahead_[static_cast<std::size_t>(rank)];
    changed_.notify_all();
  }

  void enter(int rank) {
    using namespace std::chrono_literals;
    std::unique_lock lock(mutex_);
    begin_in_child();
    const auto before = std::span(ahead_).first(static_cast<std::size_t>(rank));
    const auto is_next = [&] { return inside_ == 0 && std::ranges::all_of(before, [](int n) { return n == 0; }); };
    const auto until = std::chrono::steady_clock::now() + limit_;
    ++waiting_;
    while (!is_next() && !stopping_background()) {
      if (std::chrono::steady_clock::now() >= until) {
        ++gave_up_;
        break;
      }
      changed_.wait_for(lock, 20ms);  // in steps, since whoever stops the background does not know of this line
    }
    --waiting_;
    ++inside_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --inside_;
    changed_.notify_all();
  }
  Turns turns() {
    const std::lock_guard lock(mutex_);
    return {waiting_, gave_up_};
  }
  std::chrono::milliseconds wait_at_most(std::chrono::milliseconds limit) {
    const std::lock_guard lock(mutex_);
    return std::exchange(limit_, limit);
  }

 private:
  /// No thread of the parent continues in a forked child.
  void begin_in_child() {
    if (std::exchange(process_, getpid()) == getpid()) return;
    ahead_ = {};
    inside_ = waiting_ = 0;
  }

  Mutex mutex_;
  Condition changed_;
  pid_t process_ = getpid();
  std::array<int, ranks> ahead_{};  ///< by rank: those that wait, and those that hold others back
  int inside_ = 0, waiting_ = 0;
  std::size_t gave_up_ = 0;
  std::chrono::milliseconds limit_{1000};
};

Line& line() {
  static constinit Once<Line> only;
  return only.get();
}

}  // namespace

Compiling::Compiling(Piece piece) : before_(std::exchange(piece_of_thread, piece)) {}
Compiling::~Compiling() { piece_of_thread = before_; }

Ahead::Ahead() : rank_(rank_of_thread()) { line().ahead(rank_); }
void Ahead::over() {
  if (std::exchange(holds_, false)) line().not_ahead(rank_);
}

Turn::Turn() {
  const Ahead waiting;
  line().enter(rank_of_thread());
}
void Turn::over() {
  if (std::exchange(holds_, false)) line().leave();
}

Turns turns() { return line().turns(); }
std::chrono::milliseconds turns_wait_at_most(std::chrono::milliseconds limit) { return line().wait_at_most(limit); }

namespace {

// NVRTC's own declarations, which make up its ABI: there is no header to build against.
using Program = void*;
using Result = int;
struct Api {
  Result (*nvrtcVersion)(int* major, int* minor) = nullptr;
  Result (*nvrtcCreateProgram)(Program*, const char* text, const char* name, int headers, const char* const* texts,
                               const char* const* names) = nullptr;
  Result (*nvrtcDestroyProgram)(Program*) = nullptr;
  Result (*nvrtcCompileProgram)(Program, int options, const char* const* values) = nullptr;
  Result (*nvrtcAddNameExpression)(Program, const char* name) = nullptr;
  Result (*nvrtcGetLoweredName)(Program, const char* name, const char** lowered) = nullptr;
  Result (*nvrtcGetProgramLogSize)(Program, std::size_t*) = nullptr;
  Result (*nvrtcGetProgramLog)(Program, char*) = nullptr;
  Result (*nvrtcGetCUBINSize)(Program, std::size_t*) = nullptr;
  Result (*nvrtcGetCUBIN)(Program, char*) = nullptr;
  Result (*nvrtcGetPTXSize)(Program, std::size_t*) = nullptr;
  Result (*nvrtcGetPTX)(Program, char*) = nullptr;
  const char* (*nvrtcGetErrorString)(Result) = nullptr;
  /// The compiler asks the callback every few milliseconds, but not within the assembler, whether to stop. Null before
  /// NVRTC 12.9.
  Result (*nvrtcSetFlowCallback)(Program, int (*stops)(void*, void*), void*) = nullptr;
};

struct Library {
  Api api;
  Nvrtc about;
};

std::vector<std::string> candidates() {
  if (!options().nvrtc.empty()) return {options().nvrtc};
  std::vector<std::string> names;
  for (const char* folder : {"", "/usr/local/cuda/lib64/"})
    for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"})
      names.push_back(std::string(folder) + name);
  return names;
}

/// The first function that is missing, else an empty text.
std::string find_all(void* handle, Api& api) {
  std::string missing;
  const auto find = [&]<class F>(F*& into, const char* name) {
    into = reinterpret_cast<F*>(dlsym(handle, name));
    if (!into && missing.empty()) missing = name;
  };
#define ATTUNE_FIND(name) find(api.name, #name)
  ATTUNE_FIND(nvrtcVersion);
  ATTUNE_FIND(nvrtcCreateProgram);
  ATTUNE_FIND(nvrtcDestroyProgram);
  ATTUNE_FIND(nvrtcCompileProgram);
  ATTUNE_FIND(nvrtcAddNameExpression);
  ATTUNE_FIND(nvrtcGetLoweredName);
  ATTUNE_FIND(nvrtcGetProgramLogSize);
  ATTUNE_FIND(nvrtcGetProgramLog);
  ATTUNE_FIND(nvrtcGetCUBINSize);
  ATTUNE_FIND(nvrtcGetCUBIN);
  ATTUNE_FIND(nvrtcGetPTXSize);
  ATTUNE_FIND(nvrtcGetPTX);
  ATTUNE_FIND(nvrtcGetErrorString);
#undef ATTUNE_FIND
  api.nvrtcSetFlowCallback = reinterpret_cast<decltype(api.nvrtcSetFlowCallback)>(
      dlsym(handle, "nvrtcSetFlowCallback"));
  return missing;
}

Library opened() {
  Library library;
  const std::vector<std::string> names = candidates();
  for (const std::string& name : names) {
    // Never closed: kernels may be compiled until the process ends.
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) continue;
    stop_background_at_exit();
    library.about.path = name;
    if (const std::string missing = find_all(handle, library.api); !missing.empty()) {
      library.about.refusal = fmt::format("{} has no {}: attune needs NVRTC 12 or newer", name, missing);
      return library;
    }
    library.api.nvrtcVersion(&library.about.major, &library.about.minor);
    Dl_info of{};
    std::error_code error;
    if (dladdr(reinterpret_cast<const void*>(library.api.nvrtcVersion), &of) != 0 && of.dli_fname)
      library.about.build = std::filesystem::canonical(of.dli_fname, error).filename().string();
    if (library.about.major < 12)
      library.about.refusal = fmt::format("{} is NVRTC {}.{}; attune needs 12 or newer", name, library.about.major,
                                          library.about.minor);
    return library;
  }
  library.about.refusal = fmt::format("NVRTC, the compiler of the CUDA toolkit, was not found as {}: install "
                                      "the toolkit, or set ATTUNE_NVRTC to the path of libnvrtc.so",
                                      fmt::join(names, ", "));
  return library;
}

const Library& library() {
  static constinit Once<const Library> made;
  return made.get(&opened);
}

/// The bytes of registers that a function spills, by the log; none if the log does not say. ptxas reports all functions
/// of a source, including functions that few calls reach.
std::optional<int> spilled_by(std::string_view log, std::string_view symbol) {
  const std::string begins = fmt::format("Function properties for {}\n", symbol);
  constexpr std::string_view before = " bytes stack frame, ", after = " bytes spill stores";
  const std::size_t at = log.find(begins);
  if (at == std::string_view::npos) return {};
  log.remove_prefix(at + begins.size());
  log = log.substr(0, log.find('\n'));
  log.remove_prefix(std::min(log.find(before), log.size()));
  log.remove_prefix(std::min(before.size(), log.size()));
  int out = 0;
  const auto [end, error] = std::from_chars(log.data(), log.data() + log.size(), out);
  const std::string_view rest(end, static_cast<std::size_t>(log.data() + log.size() - end));
  return error == std::errc{} && rest.starts_with(after) ? std::optional(out) : std::nullopt;
}

std::vector<std::string> warnings_in(const std::string& log) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin < log.size();) {
    const std::size_t end = std::min(log.find('\n', begin), log.size());
    const std::string line = log.substr(begin, end - begin);
    if (line.find("(C7") != std::string::npos) out.push_back(line);
    begin = end + 1;
  }
  return out;
}

struct Destroy {
  void operator()(Program program) const { library().api.nvrtcDestroyProgram(&program); }
};

/// What a compilation in progress is asked by NVRTC, the first time when its front end is done.
struct Flow {
  Ahead* until = nullptr;
  bool stops = false;  ///< when a process ends, which does not wait for what no call waits for
  std::optional<Turn> turn{};

  void front_end_over() {
    if (turn) turn->over();
    if (until) until->over();
  }
  static int asked(void* given, void*) {
    Flow& flow = *static_cast<Flow*>(given);
    flow.front_end_over();
    return flow.stops && stopping_background() ? 1 : 0;
  }
};

/// A program of NVRTC, compiled.
class Compiled {
 public:
  /// `until`: over once NVRTC's front end is done with this program; may be null.
  explicit Compiled(const codegen::Source& source, Ahead* until = nullptr) : source_(source) {
    if (!nvrtc()) throw Bug("a kernel was to be compiled without NVRTC: " + nvrtc().refusal);
    std::vector<const char*> texts, names, values;
    std::vector<std::string> held;
    for (const auto& headers : {codegen::headers(), source.headers})
      for (const codegen::Header& h : headers) {
        held.emplace_back(h.name);
        texts.push_back(h.text);
      }
    for (const std::string& name : held) names.push_back(name.c_str());
    for (const std::string& option : source.options) values.push_back(option.c_str());
    // NVRTC 12.9 and later keep machine code in the driver's cache. For what it finds there, the log has no properties
    // and no warnings; attune has a cache of its own.
    if (nvrtc().major > 12 || nvrtc().minor >= 9) values.push_back("--no-cache");
    Program made = nullptr;
    must(api_.nvrtcCreateProgram(&made, source.text.c_str(), (source.name + ".cu").c_str(),
                                 static_cast<int>(names.size()), texts.data(), names.data()),
         "nvrtcCreateProgram");
    program_.reset(made);
    if (!source.symbol.empty())
      must(api_.nvrtcAddNameExpression(program_.get(), source.symbol.c_str()), "nvrtcAddNameExpression");
    Flow flow{.until = until, .stops = works_for() != WorksFor::call};
    if (api_.nvrtcSetFlowCallback) {
      must(api_.nvrtcSetFlowCallback(program_.get(), &Flow::asked, &flow), "nvrtcSetFlowCallback");
      // Without the callback, nobody knows when the front end is done.
      flow.turn.emplace();
    }
    Result result{};
    const Clock clock;
    on_deep_stack(
        [&] { result = api_.nvrtcCompileProgram(program_.get(), static_cast<int>(values.size()), values.data()); });
    seconds = clock.seconds();
    log = text(api_.nvrtcGetProgramLogSize, api_.nvrtcGetProgramLog, "nvrtcGetProgramLog");
    while (log.ends_with('\0')) log.pop_back();
    if (result != 0)
      throw Bug(fmt::format("NVRTC {}.{} rejects a source ({}):\n{}\n{}\n{}\n", nvrtc().major, nvrtc().minor,
                            api_.nvrtcGetErrorString(result), log, fmt::join(source.options, " "), source.text));
  }
  std::string symbol() const {
    const char* symbol = nullptr;
    must(api_.nvrtcGetLoweredName(program_.get(), source_.symbol.c_str(), &symbol), "nvrtcGetLoweredName");
    return symbol;
  }
  std::string cubin() const { return text(api_.nvrtcGetCUBINSize, api_.nvrtcGetCUBIN, "nvrtcGetCUBIN"); }
  std::string ptx() const {
    std::string out = text(api_.nvrtcGetPTXSize, api_.nvrtcGetPTX, "nvrtcGetPTX");
    while (out.ends_with('\0')) out.pop_back();
    return out;
  }

  std::string log;
  double seconds = 0;  ///< that NVRTC took

 private:
  void must(Result result, const char* what) const {
    if (result != 0) throw Bug(fmt::format("NVRTC: {} gave {}", what, api_.nvrtcGetErrorString(result)));
  }
  std::string text(Result (*size_of)(Program, std::size_t*), Result (*read)(Program, char*), const char* what) const {
    std::size_t size = 0;
    must(size_of(program_.get(), &size), what);
    std::string out(size, '\0');
    must(read(program_.get(), out.data()), what);
    return out;
  }

  const Api& api_ = library().api;
  const codegen::Source& source_;
  std::unique_ptr<void, Destroy> program_;
};

/// The seconds that the assembler says it took for the functions of a source.
double seconds_of_assembler(const std::string& log) {
  constexpr std::string_view begins = "Compile time = ";
  double milliseconds = 0;
  for (std::size_t at = log.find(begins); at != std::string::npos; at = log.find(begins, at + 1))
    milliseconds += std::strtod(log.c_str() + at + begins.size(), nullptr);
  return milliseconds / 1e3;
}

/// Reads what the kernel needs, and what the assembler says of it. False if the machine code does not have the kernel.
bool read_properties(Binary& binary) {
  const std::optional<KernelNeeds> needs = Cubin(binary.cubin).needs(binary.symbol);
  binary.warnings = warnings_in(binary.log);
  if (!needs) return false;
  binary.registers = needs->registers;
  // Only the log tells spilled registers from arrays.
  if (needs->frame > 0) binary.spilled = spilled_by(binary.log, binary.symbol).value_or(needs->frame);
  return true;
}

}  // namespace

const Nvrtc& nvrtc() { return library().about; }

Binary compile(const codegen::Source& source, Ptx ptx) {
  const Compiled made(source);
  Binary binary{.cubin = made.cubin(), .symbol = made.symbol(), .log = made.log};
  if (ptx == Ptx::yes) binary.ptx = made.ptx();
  read_properties(binary);
  const double assembler = std::min(made.seconds, seconds_of_assembler(made.log));
  binary.phases = {{"C++ to PTX", made.seconds - assembler}, {"assembler", assembler}};
  return binary;
}

Binary compile_to_ptx(codegen::Source source) {
  // For a virtual architecture, the assembler does not run.
  for (std::string& option : source.options)
    if (const std::size_t at = option.find("=sm_"); at != std::string::npos) option.replace(at, 4, "=compute_");
  std::erase_if(source.options, [](const std::string& option) { return option.starts_with("--ptxas-options"); });
  const Compiled made(source);
  return {.symbol = source.symbol.empty() ? "" : made.symbol(),
          .log = made.log,
          .ptx = made.ptx(),
          .phases = {{"C++ to PTX", made.seconds}}};
}

Binary assemble(const codegen::Source& around, const std::string& symbol, Ahead& ahead) {
  const Compiled made(around, &ahead);
  Binary binary{.cubin = made.cubin(), .symbol = symbol, .log = made.log};
  if (!read_properties(binary)) throw Bug("NVRTC did not assemble " + symbol);
  binary.phases = {{"assembler", made.seconds}};
  return binary;
}

}  // namespace attune::runtime::cuda
