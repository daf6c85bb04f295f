// tools/explain/explain.h — the engine's part of attune explain, besides the compiler's results
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/measure/bench.h"
#include "tools/options/call_options.h"

namespace attune::tools {

struct ExplainOptions {
  TextOptions text;
  std::string target = "auto";
  DeviceCall call;
  std::string grads = "all";          ///< of a backward: as a shape has it
  std::optional<std::string> card{};  ///< whose data sheet bounds a call
  bool backward = false, measure = false, json = false;

  ExplainOptions() { call.heads = 16; }

  BenchOptions bench() const;  ///< the call to measure
};

/// The same facts in two forms.
struct Explained {
  std::string text;
  nlohmann::ordered_json json;
};
bool is_for_cpu(const ExplainOptions& options);
Explained explain_cpu(const compiler::Mod& mod, const ExplainOptions& options);
Explained explain_cuda(const compiler::LoweredMod& lowered, const ExplainOptions& options);

}  // namespace attune::tools
