// tools/run_options.h — the options of attune run, and which of them go together
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <attune/error.h>

#include "tools/progress.h"
#include "tools/text.h"

namespace attune::tools {

struct RunOptions {
  std::string q, k, v, out;
  std::optional<std::int64_t> v_columns;  ///< values are this many columns of the keys, instead of v
  TextOptions text;
  ExactOption exact;
  std::optional<std::string> scale, dtype, grad_out, grad_lse, cu_seqlens_q, cu_seqlens_kv;
  std::optional<std::string> kv_len, q_offsets, page_table, o_before, lse_before;
  std::string layout, target = "auto";
  std::vector<std::string> grads;
  std::int64_t q_offset = 0, kv_offset = 0, fixed_split_size = 0;
  ProgressOption progress;
  bool max = false, deterministic = false, json = false, quiet = false;

  void add_to(CLI::App& verb);
  void check() const;
  bool packed() const { return cu_seqlens_q || cu_seqlens_kv; }
};

/// An Error about an option's value.
Error refuse_option(std::string code, std::string problem, std::string option, std::string why, std::string fix);

}  // namespace attune::tools
