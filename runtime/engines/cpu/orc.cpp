// runtime/engines/cpu/orc.cpp — LLVM in this process: calls into it that survive a lack of memory, and object code made
// callable by ORC
#include "runtime/engines/cpu/orc.h"

#include <array>
#include <atomic>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <attune/error.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Support/ErrorHandling.h>

#include "codegen/llvm/compat.h"
#include "codegen/llvm/module.h"
#include "runtime/machine/limits.h"
#include "runtime/machine/mutex.h"
#include "runtime/machine/threads.h"

namespace attune::runtime::cpu {
namespace {

// Address space. A causal mask takes 3 MiB to compile and 1 MiB to link, a score of thirty nested sin(tanh()) with its
// backward takes 37 MiB to compile (LLVM 19, x86-64).
constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t room_to_compile = 32 * MiB, room_to_link = 4 * MiB;

std::size_t room_for(LlvmWork kind) {
  return kind == LlvmWork::compile ? room_to_compile : kind == LlvmWork::link ? room_to_link : 0;
}

[[noreturn]] void throw_no_memory(const std::string& problem, const std::string& why) {
  throw Error("no-memory", problem, {}, why,
              "let the process have more memory (ulimit -v), or load kernels that attune compile built");
}

/// The state with which a thread leaves LLVM by longjmp.
struct LlvmVisit {
  std::jmp_buf back;
  bool is_memory = true;
  std::array<char, 256> reason{};
};
thread_local LlvmVisit* visit = nullptr;

/// The state of the whole process.
struct Door {
  Mutex mutex;  ///< guards all below but the atomics
  Condition left;
  bool has_handlers = false;
  std::atomic<int> inside{0};
  std::atomic<bool> is_closed{false};
  std::atomic<std::new_handler> users_handler{nullptr};
};

Door& door() {
  static constinit Once<Door> only;
  return only.get();
}

[[noreturn]] void leave() {
  if (door().inside > 1) {
    std::fputs("attune: memory ran out inside LLVM while other threads were inside it too [no-memory]\n", stderr);
    std::_Exit(2);
  }
  std::longjmp(visit->back, 1);
}

/// std::new_handler: operator new has found no memory.
void new_failed() {
  const std::new_handler users = door().users_handler;
  if (!visit) {
    if (!users) throw std::bad_alloc();
    return users();
  }
  // The user's handler may free some memory. Its exceptions must not propagate.
  if (users) try {
      return users();
    } catch (...) {
    }
  leave();
}

/// Called when malloc has failed inside LLVM.
void malloc_failed(void*, const char* reason, bool) {
  if (visit) leave();
  std::fprintf(stderr, "LLVM ERROR: out of memory: %s\n", reason);
  std::abort();
}

/// Called at LLVM's fatal errors. Outside enter_llvm it returns, and LLVM prints the reason and ends the process.
void gave_up(void*, const char* reason, bool) {
  if (!visit) return;
  visit->is_memory = std::string_view(reason).starts_with("Unable to allocate");
  std::strncpy(visit->reason.data(), reason, visit->reason.size() - 1);
  leave();
}

/// Counts this thread among the threads inside LLVM, once there is memory for it.
class Inside {
 public:
  Inside(LlvmWork kind, LlvmVisit& mine) {
    Door& d = door();
    std::unique_lock lock(d.mutex);
    const auto may_enter = [&] {
      return d.is_closed || can_map(room_for(kind) * static_cast<std::size_t>(d.inside + 1));
    };
    while (!may_enter()) {
      if (d.inside == 0)
        throw_no_memory("there is no memory to compile a kernel with",
                        "LLVM may need " + std::to_string(room_for(kind) / MiB) +
                            " MiB of address space, and the process cannot get that much");
      d.left.wait(lock);
    }
    if (d.is_closed)
      throw_no_memory("nothing more can be compiled in this process",
                      "memory ran out inside LLVM earlier, which does not recover from that");
    if (!d.has_handlers) {
      llvm::install_bad_alloc_error_handler(malloc_failed);
      llvm::install_fatal_error_handler(gave_up);
      d.has_handlers = true;
    }
    const std::new_handler before = std::set_new_handler(new_failed);
    if (before != new_failed) d.users_handler = before;
    ++d.inside;
    visit = &mine;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() {
    visit = nullptr;
    Door& d = door();
    const std::lock_guard lock(d.mutex);
    if (--d.inside == 0 && std::get_new_handler() == new_failed) std::set_new_handler(d.users_handler);
    d.left.notify_all();
  }
};

/// Has no object to destroy, since longjmp returns here.
bool is_done(LlvmVisit& mine, const std::function<void()>& work) {
  if (setjmp(mine.back) != 0) return false;
  work();
  return true;
}

void enter(LlvmWork kind, const std::function<void()>& work) {
  LlvmVisit mine;
  {
    const NoFork whole;  // LLVM has locks and static locals
    const Inside inside(kind, mine);
    if (is_done(mine, work)) return;
    door().is_closed = true;
  }
  if (!mine.is_memory) throw Bug(std::string("LLVM gave up: ") + mine.reason.data());
  throw_no_memory("memory ran out while a kernel was compiled",
                  "LLVM needed more than the " + std::to_string(room_for(kind) / MiB) +
                      " MiB that the process had left; nothing more can be compiled in it");
}

}  // namespace

void enter_llvm(LlvmWork kind, const std::function<void()>& work) {
  if (visit) return work();
  on_deep_stack([&] { enter(kind, work); });
}

namespace {

/// Collects LLVM's error messages.
struct Trouble {
  std::string text;
  bool is_memory = false;

  void add(llvm::Error error) {
    llvm::handleAllErrors(std::move(error), [this](const llvm::ErrorInfoBase& one) {
      if (one.convertToErrorCode() == std::errc::not_enough_memory) is_memory = true;
      text += (text.empty() ? "" : "; ") + one.message();
    });
  }
  [[noreturn]] void refuse() const {
    if (is_memory)
      throw Error("no-memory", "there is no memory to load a kernel into", {}, text,
                  "let the process have more memory (ulimit -v)");
    throw Bug("the CPU's kernel loader failed: " + text);
  }
};

void take(llvm::Error error) {
  if (!error) return;
  Trouble trouble;
  trouble.add(std::move(error));
  trouble.refuse();
}
template <class T>
T take(llvm::Expected<T> got) {
  if (!got) take(got.takeError());
  return std::move(*got);
}

}  // namespace

struct Loaded::Jit {
  Trouble trouble;  ///< what the session reported; by default it goes to stderr
  std::unique_ptr<llvm::orc::LLJIT> jit;

  explicit Jit(const std::string& object);
};

Loaded::Jit::Jit(const std::string& object) {
  codegen::initialise_llvm();
  llvm::orc::LLJITBuilder builder;
  codegen::compat::keep_process_out(builder);
  builder.setPlatformSetUp(llvm::orc::setUpInactivePlatform);
  jit = take(builder.create());
  jit->getExecutionSession().setErrorReporter([this](llvm::Error error) { trouble.add(std::move(error)); });
  // LLVM turns loops into these. Kernels can link to nothing else of the process.
  llvm::orc::SymbolMap symbols;
  const auto add = [&](const char* name, auto* function) {
    symbols[jit->mangleAndIntern(name)] = codegen::compat::symbol(function);
  };
  add("memset", &std::memset);
  add("memcpy", &std::memcpy);
  add("memmove", &std::memmove);
  take(jit->getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols))));
  take(jit->addObjectFile(llvm::MemoryBuffer::getMemBufferCopy(llvm::StringRef(object.data(), object.size()))));
}

// Memory of LLVM's session for one object, with its pages of code and constants: measured with 1000 masks (LLVM 19,
// x86-64).
constexpr std::size_t session_bytes = 64 << 10;

Loaded::Loaded(const std::string& object) : bytes_(object.size() + session_bytes) {
  enter_llvm(LlvmWork::link, [&] { jit_ = std::make_unique<Jit>(object); });
}

Loaded::~Loaded() {
  if (!jit_) return;
  // Memory that LLVM cannot free stays until the process ends.
  try {
    enter_llvm(LlvmWork::unlink, [this] { jit_.reset(); });
  } catch (...) {
    static_cast<void>(jit_.release());
  }
}
Loaded::Loaded(Loaded&&) noexcept = default;

void* Loaded::address(const char* symbol) const {
  void* out = nullptr;
  enter_llvm(LlvmWork::link, [&] {
    auto found = jit_->jit->lookup(symbol);
    if (found) {
      out = found->toPtr<void*>();
      return;
    }
    llvm::consumeError(found.takeError());
    if (!jit_->trouble.text.empty()) jit_->trouble.refuse();
  });
  return out;
}

}  // namespace attune::runtime::cpu
