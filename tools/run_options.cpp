// tools/run_options.cpp — the options of attune run, and which of them go together
#include "tools/run_options.h"

#include <CLI/CLI.hpp>
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <utility>

namespace attune::tools {

namespace fs = std::filesystem;

Error refuse_option(std::string code, std::string problem, std::string option, std::string why, std::string fix) {
  return Error(std::move(code), std::move(problem), {.name = std::move(option)}, std::move(why), std::move(fix));
}

void RunOptions::check() const {
  // Verbs have replaced the last two: see tools/target.h.
  require_word("--target", target,
               std::array<std::string, 6>{"auto", "cuda", "cpu", "oracle", "emulated:sm_80", "emulated:sm_90a"});
  if (!layout.empty()) require_word("--layout", layout, std::array<std::string, 2>{"bhsd", "bshd"});
  if (dtype) call_type(*dtype);
  exact.check();
  if (v.empty() != v_columns.has_value())
    throw refuse_option("bad-usage", "the command line cannot be read", "--v",
                        v.empty() ? "there are no values" : "--v-columns says that values are columns of the keys",
                        "pass one of --v FILE.npy and --v-columns N");
  if (exact.word && target != "cuda")
    throw refuse_option("bad-usage", "the command line cannot be read", "--exact", "it is for kernels of a GPU",
                        "add --target cuda, or leave it out");
  if (packed() && !layout.empty())
    throw refuse_option("layout-packed", "--layout is given for packed input", "--layout " + layout,
                        "packed input is [T, H, D] and has no other layout", "leave --layout out");
  if (!grad_out && grad_lse)
    throw refuse_option("grad-without-out", "--grad-lse is given without --grad-out", "--grad-lse " + *grad_lse,
                        "the backward starts from the gradient of the output",
                        "pass --grad-out too: zeros, if only lse has a gradient");
  if (!grad_out && !grads.empty())
    throw refuse_option("grad-without-out", "--grad is given without --grad-out", "--grad " + grads[0],
                        "the backward starts from the gradient of the output", "pass --grad-out FILE.npy");
  const std::array<std::pair<std::string_view, bool>, 7> forward_only{{{"--kv-len", kv_len.has_value()},
                                                                       {"--q-offsets", q_offsets.has_value()},
                                                                       {"--page-table", page_table.has_value()},
                                                                       {"--o-before", o_before.has_value()},
                                                                       {"--lse-before", lse_before.has_value()},
                                                                       {"--kv-offset", kv_offset != 0},
                                                                       {"--fixed-split-size", fixed_split_size != 0}}};
  for (const auto& [option, given] : forward_only)
    if (given && grad_out)
      throw refuse_option("forward-only", fmt::format("{} is given with --grad-out", option), std::string(option),
                          "it is for the forward alone", "leave it out, or compute the forward alone");
  std::error_code ignored;
  if (fs::exists(out, ignored) && !fs::is_directory(out, ignored))
    throw refuse_option("out-not-folder", "the results have no folder to go to", "--out " + out,
                        out + " exists and is not a folder", "name a folder; it is made if it is not there");
}

void RunOptions::add_to(CLI::App& verb) {
  verb.add_option("--q", q, "queries: [B, Hq, Sq, D], packed [T, Hq, D]")->type_name("FILE.npy")->required();
  verb.add_option("--k", k, "keys: [B or 1, Hkv, Skv, D], packed [T, Hkv, D], paged [pages, Hkv, page_size, D]")
      ->type_name("FILE.npy")
      ->required();
  verb.add_option("--v", v, "values, as the keys")->type_name("FILE.npy");
  verb.add_option("--v-columns", v_columns, "instead of --v: values are the first N columns of the keys")
      ->type_name("N");
  verb.add_option("--out", out, "the folder for the results")->type_name("DIR")->required();
  text.add_to(verb, Captures::Files);
  verb.add_option("--scale", scale, "of q . k; 1 / sqrt(D) if left out")->type_name("X");
  verb.add_option("--dtype", dtype, "convert q, k and v first")->type_name("f32|f16|bf16|e4m3");
  verb.add_option("--layout", layout, "of q, k, v, the output and their gradients; bhsd if left out")
      ->type_name("bhsd|bshd");
  verb.add_option("--cu-seqlens-q", cu_seqlens_q, "packed: where the sequences of q start, and the end")
      ->type_name("FILE.npy");
  verb.add_option("--cu-seqlens-kv", cu_seqlens_kv, "packed: the same of k and v")->type_name("FILE.npy");
  verb.add_option("--q-offset", q_offset, "the position of the first query")->type_name("N");
  verb.add_option("--q-offsets", q_offsets, "the position of the first query of each entry, instead of --q-offset")
      ->type_name("FILE.npy");
  verb.add_option("--kv-offset", kv_offset, "the position of the first key")->type_name("N");
  verb.add_option("--kv-len", kv_len, "the number of keys of each entry, at most the capacity of k and v")
      ->type_name("FILE.npy");
  verb.add_option("--page-table", page_table, "the pages of each entry's keys, [B, n]: k and v are pools of pages")
      ->type_name("FILE.npy");
  verb.add_option("--o-before", o_before, "the output over other keys, to merge in")->type_name("FILE.npy");
  verb.add_option("--lse-before", lse_before, "its lse")->type_name("FILE.npy");
  verb.add_option("--fixed-split-size", fixed_split_size,
                  "not 0: an entry's bits do not depend on others; a multiple of 128")
      ->type_name("N");
  verb.add_option("--grad-out", grad_out, "the output's gradient: also computes dq, dk and dv")->type_name("FILE.npy");
  verb.add_option("--grad-lse", grad_lse, "the gradient of lse")->type_name("FILE.npy");
  verb.add_option("--grad", grads, "a capture whose gradient to compute")->type_name("NAME")->allow_extra_args(false);
  verb.add_flag("--deterministic", deterministic,
                "the same bits every time, as the CPU engine and the oracle always do");
  verb.add_option("--target", target, "the engine")->type_name("auto|cuda|cpu|oracle|emulated:ARCH");
  exact.add_to(verb);
  verb.add_flag("--max", max, "also write the largest score of each row");
  verb.add_flag("--json", json, "print what was written as JSON");
  progress.add_to(verb);
  verb.add_flag("--quiet", quiet, "print nothing");
}

}  // namespace attune::tools
