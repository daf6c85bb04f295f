// runtime/engines/cpu/orc.cpp — makes object code callable: LLVM's ORC with the few symbols that kernels may link to
#include "runtime/engines/cpu/orc.h"

#include <cstring>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <system_error>
#include <utility>

#include <attune/error.h>

#include "codegen/llvm/compat.h"
#include "codegen/llvm/module.h"
#include "runtime/engines/cpu/enter_llvm.h"

namespace attune::runtime::cpu {
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
