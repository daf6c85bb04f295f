// tools/run/run.cpp — attune run: attention over .npy files
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <attune/error.h>

#include "ir/parse.h"
#include "runtime/machine/tensor.h"
#include "tools/options/call_options.h"
#include "tools/output/output.h"
#include "tools/output/progress.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

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

namespace fs = std::filesystem;

/// An Error about an option's value.
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
    throw misused("--v", v.empty() ? "there are no values" : "--v-columns says that values are columns of the keys",
                  "pass one of --v FILE.npy and --v-columns N");
  if (exact.word && target != "cuda") throw needs_gpu("--exact");
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
  text.add_options_to(verb, Captures::Files);
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

std::span<const std::int64_t> shape_of(const Tensor& t) {
  return std::span(t.shape).first(static_cast<std::size_t>(t.rank));
}

/// The same numbers as another type, contiguous, rounded to nearest even.
Owned converted(const Owned& from, DType type) {
  const Owned out = made(type, shape_of(from.tensor));
  std::array<std::int64_t, Tensor::max_rank> at{}, extent{1, 1, 1, 1};
  std::copy_n(from.tensor.shape.begin(), from.tensor.rank, extent.begin());
  for (at[0] = 0; at[0] < extent[0]; ++at[0])
    for (at[1] = 0; at[1] < extent[1]; ++at[1])
      for (at[2] = 0; at[2] < extent[2]; ++at[2])
        for (at[3] = 0; at[3] < extent[3]; ++at[3])
          runtime::store(out.tensor, runtime::offset(out.tensor, at[0], at[1], at[2], at[3]),
                         runtime::load(from.tensor, runtime::offset(from.tensor, at[0], at[1], at[2], at[3])));
  return out;
}

bool is_float(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16 || type == DType::f64;
}

/// Reads q, k, v or a gradient; integers become f32.
Owned read_floats(const std::string& option, const std::string& path, std::optional<DType> as) {
  const std::string called = fmt::format("{} {}", option, path);
  Owned in = read_tensor(path, called);
  if (in.tensor.dtype == DType::boolean)
    throw refuse_option("file-type", "the file holds booleans", called, "numbers are expected here",
                        "save it as floats or integers");
  const DType type = as.value_or(is_float(in.tensor.dtype) ? in.tensor.dtype : DType::f32);
  return type == in.tensor.dtype ? in : converted(in, type);
}

/// Page numbers as i32. A number beyond i32 cannot be a page and becomes -1.
Owned read_page_table(const std::string& path) {
  const Owned in = read_tensor(path, "--page-table " + path);
  if (in.tensor.dtype != DType::i64) return in;
  const Owned out = made(DType::i32, shape_of(in.tensor));
  const auto* from = static_cast<const std::int64_t*>(in.tensor.data);
  for (std::int64_t i = 0; i < in.tensor.size(); ++i)
    static_cast<std::int32_t*>(out.tensor.data)[i] = std::in_range<std::int32_t>(from[i])
                                                         ? static_cast<std::int32_t>(from[i])
                                                         : -1;
  return out;
}

/// A summary of a result's numbers.
struct Seen {
  std::int64_t numbers = 0, nan = 0;
  std::int64_t empty_rows = 0;  ///< of lse: rows without a key, where it is -inf
  float least = std::numeric_limits<float>::infinity(), greatest = -least;  ///< of all others; meaningless without any

  bool has_range() const { return numbers > nan + empty_rows; }
  bool all_nan() const { return numbers > 0 && nan == numbers; }
};

/// Summarizes contiguous f32 on the host.
Seen seen_in(const Tensor& result, bool is_lse) {
  Seen out;
  for (const float x : std::span(static_cast<const float*>(result.data), static_cast<std::size_t>(result.size()))) {
    ++out.numbers;
    if (std::isnan(x)) {
      ++out.nan;
    } else if (is_lse && x == -std::numeric_limits<float>::infinity()) {
      ++out.empty_rows;
    } else {
      out.least = std::min(out.least, x);
      out.greatest = std::max(out.greatest, x);
    }
  }
  return out;
}

/// Text such as: least -1.52, greatest 2.1, 3 NaN, 2 empty rows. Starts with two blanks unless it is empty.
std::string in_words(const Seen& seen) {
  std::vector<std::string> all;
  if (seen.has_range()) all.push_back(fmt::format("least {:.3g}, greatest {:.3g}", seen.least, seen.greatest));
  if (seen.nan > 0) all.push_back(fmt::format("{} NaN", seen.nan));
  if (seen.empty_rows > 0)
    all.push_back(fmt::format("{} empty row{}", seen.empty_rows, seen.empty_rows == 1 ? "" : "s"));
  return all.empty() ? "" : fmt::format("  {}", fmt::join(all, ", "));
}

/// One run: reads, computes, writes.
class Run {
 public:
  explicit Run(const RunOptions& options)
      : o_(options), device_(options.target == "cuda" ? Device::cuda() : Device::cpu()) {}

  void operator()() {
    o_.check();
    o_.progress.style();  // refuses an unknown word before anything is read
    read();
    const auto start = std::chrono::steady_clock::now();
    forward();
    if (o_.grad_out) backward();
    fetch();
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    write();
    report();
  }

 private:
  struct Result {
    std::string file;
    Owned data;
  };

  void read() {
    std::optional<DType> as;
    if (o_.dtype) as = call_type(*o_.dtype);
    q_ = read_floats("--q", o_.q, as);
    k_ = read_floats("--k", o_.k, as);
    if (!o_.v.empty()) v_ = read_floats("--v", o_.v, as);
    if (o_.cu_seqlens_q) cu_q_ = read_tensor(*o_.cu_seqlens_q, "--cu-seqlens-q " + *o_.cu_seqlens_q);
    if (o_.cu_seqlens_kv) cu_kv_ = read_tensor(*o_.cu_seqlens_kv, "--cu-seqlens-kv " + *o_.cu_seqlens_kv);
    if (o_.kv_len) kv_len_ = read_tensor(*o_.kv_len, "--kv-len " + *o_.kv_len);
    if (o_.q_offsets) q_offsets_ = read_tensor(*o_.q_offsets, "--q-offsets " + *o_.q_offsets);
    if (o_.page_table) page_table_ = read_page_table(*o_.page_table);
    if (o_.o_before) o_before_ = read_floats("--o-before", *o_.o_before, std::nullopt);
    // GPU kernels take it in the type of q.
    if (o_.grad_out)
      grad_out_ = read_floats("--grad-out", *o_.grad_out,
                              o_.target == "cuda" ? std::optional(q_.tensor.dtype) : std::nullopt);
    // Rows are f32, so a 16-bit gradient is widened.
    const auto read_rows = [](const std::string& option, const std::string& path) {
      const Owned in = read_floats(option, path, std::nullopt);
      return size_of(in.tensor.dtype) < 4 ? converted(in, DType::f32) : in;
    };
    if (o_.grad_lse) grad_lse_ = read_rows("--grad-lse", *o_.grad_lse);
    if (o_.lse_before) lse_before_ = read_rows("--lse-before", *o_.lse_before);
    for (Owned* t :
         {&q_, &k_, &v_, &grad_out_, &grad_lse_, &kv_len_, &q_offsets_, &page_table_, &o_before_, &lse_before_})
      if (t->tensor.given()) *t = moved(*t, device_);
    if (o_.v_columns) take_values_from_keys();
    text_ = built(o_.text, Captures::Files, {}, device_);
    text_.attention.target = o_.target == "oracle" ? Target::oracle
                             : o_.target == "cpu"  ? Target::cpu
                             : o_.target == "cuda" ? Target::cuda
                                                   : Target::automatic;
    if (o_.target != "oracle" && q_.tensor.dtype == DType::f64)
      throw refuse_option("engine-type", "engines compute in f32", "--q " + o_.q, o_.q + " holds f64",
                          "write --dtype f32, or --target oracle: exact, in double precision, and slow");
    text_.attention.exact = o_.exact.asked();
    if (o_.scale) text_.attention.scale = number("--scale", *o_.scale);
    for (const auto& [option, value, of] :
         {std::tuple{"q-offset", o_.q_offset, "query"}, {"kv-offset", o_.kv_offset, "key"}})
      if (value < 0 || value > std::numeric_limits<std::int32_t>::max())
        throw refuse_option(option, fmt::format("--{} is {}", option, value), fmt::format("--{} {}", option, value),
                            "positions are 0 to 2147483647", fmt::format("pass the position of the first {}", of));
    for (const std::string& name : o_.grads) require_captured(name);
  }

  /// Makes the values a view of the keys, by which engines recognize MLA.
  void take_values_from_keys() {
    v_ = k_;
    if (k_.tensor.rank < 1) return;  // refused by name later
    std::int64_t& columns = v_.tensor.shape[static_cast<std::size_t>(k_.tensor.rank) - 1];
    if (*o_.v_columns < 1 || *o_.v_columns > columns)
      throw refuse_option("v-columns", "--v-columns is below 1 or above the columns of the keys",
                          fmt::format("--v-columns {}", *o_.v_columns), fmt::format("--k {} has {}", o_.k, columns),
                          "pass 1 to this number");
    columns = *o_.v_columns;
  }

  void require_captured(const std::string& name) const {
    if (text_.captures.contains(name)) return;
    std::vector<std::string> known;
    for (const auto& [capture, data] : text_.captures) known.push_back(capture);
    const auto near = ir::nearest(name, known);
    std::string why = known.empty() ? "no --capture is given" : fmt::format("captured: {}", fmt::join(known, ", ")),
                fix = near ? fmt::format("did you mean {}?", *near) : "name one that --capture gives";
    for (const std::string& param : o_.text.params)
      if (param.starts_with(name + "=")) {
        why = fmt::format("`{}` is a parameter, and only captured tensors have gradients", name);
        fix = fmt::format("pass it as a tensor of one value: --capture {0}={0}.npy, read as {0}[0]", name);
      }
    throw Error("unknown-capture", fmt::format("there is no capture `{}` to take the gradient of", name),
                {.name = "--grad", .line = 0, .text = name, .begin = 0, .end = name.size()}, why, fix);
  }

  bool is_bshd() const { return o_.layout == "bshd"; }
  /// A file's tensor as [B, H, S, D]. A tensor of another rank is refused later, by name.
  Tensor laid_out(const Tensor& t) const { return is_bshd() && t.rank == 4 ? t.permuted({0, 2, 1, 3}) : t; }

  Tensor result(const std::string& file, std::span<const std::int64_t> shape, DType type = DType::f32) {
    results_.push_back({file, made(type, shape, device_)});
    return results_.back().data.tensor;
  }

  /// The shape of the results. If the tensors do not fit together, the check reports that afterwards.
  std::vector<std::int64_t> shape_of_rows() const {
    const Tensor q = laid_out(q_.tensor);
    if (o_.cu_seqlens_q) return {q.shape[1], q.shape[0]};
    return {q.shape[0], q.shape[1], q.shape[2]};
  }

  void forward() {
    Forward call{.q = laid_out(q_.tensor), .k = laid_out(k_.tensor), .v = laid_out(v_.tensor)};
    call.cu_seqlens_q = cu_q_.tensor;
    call.cu_seqlens_kv = cu_kv_.tensor;
    call.kv_len = kv_len_.tensor;
    call.page_table = page_table_.tensor;
    call.q_offset = static_cast<std::int32_t>(o_.q_offset);
    call.q_offsets = q_offsets_.tensor;
    call.kv_offset = static_cast<std::int32_t>(o_.kv_offset);
    call.o_before = laid_out(o_before_.tensor);
    call.lse_before = lse_before_.tensor;
    call.fixed_split_size = o_.fixed_split_size;
    std::vector<std::int64_t> shape(shape_of(q_.tensor).begin(), shape_of(q_.tensor).end());
    if (!shape.empty() && v_.tensor.rank > 0) shape.back() = shape_of(v_.tensor).back();
    // The GPU kernels of e4m3 write 16 bits.
    const bool narrow = q_.tensor.dtype == DType::e4m3 && device_.kind == Device::Kind::cuda;
    call.o = laid_out(result("out.npy", shape, narrow ? DType::bf16 : DType::f32));
    call.lse = result("lse.npy", shape_of_rows());
    if (o_.max) call.max = result("max.npy", shape_of_rows());
    Progress progress(o_.progress.style(o_.quiet), "forward", 1);
    text_.attention.run(call, {.progress = [&](double done) { progress.at(done); }}, Line{});
  }

  void backward() {
    Backward call{.q = laid_out(q_.tensor), .k = laid_out(k_.tensor), .v = laid_out(v_.tensor)};
    call.grad_o = laid_out(grad_out_.tensor);
    call.grad_lse = grad_lse_.tensor;
    call.cu_seqlens_q = cu_q_.tensor;
    call.cu_seqlens_kv = cu_kv_.tensor;
    call.q_offset = static_cast<std::int32_t>(o_.q_offset);
    call.dq = laid_out(result("dq.npy", shape_of(q_.tensor)));
    call.dk = laid_out(result("dk.npy", shape_of(k_.tensor)));
    call.dv = laid_out(result("dv.npy", shape_of(v_.tensor)));
    for (const std::string& name : o_.grads) {
      const Tensor& of = text_.captures.at(name).tensor;
      call.captured.push_back({of, result("grad_" + name + ".npy", shape_of(of))});
    }
    Progress progress(o_.progress.style(o_.quiet), "backward", 1);
    text_.attention.backward(call, {.progress = [&](double done) { progress.at(done); }}, Line{});
  }

  /// Copies results to the host, as f32.
  void fetch() {
    for (Result& r : results_) {
      r.data = moved(r.data, Device::cpu());
      if (r.data.tensor.dtype != DType::f32) r.data = converted(r.data, DType::f32);
    }
  }

  void write() const {
    std::error_code failed;
    fs::create_directories(o_.out, failed);
    if (failed)
      throw refuse_option("out-not-folder", "the results have no folder to go to", "--out " + o_.out, failed.message(),
                          "name a folder that can be made");
    std::vector<FileBytes> files;
    for (const Result& r : results_) files.push_back({fs::path(o_.out) / r.file, npy_of(r.data.tensor)});
    write_files(files);
  }

  std::string path_of(const Result& r) const { return (fs::path(o_.out) / r.file).string(); }

  void report() const {
    if (o_.quiet) return;
    std::vector<Seen> seen;
    for (const Result& r : results_) {
      seen.push_back(seen_in(r.data.tensor, r.file == "lse.npy"));
      if (seen.back().all_nan()) fmt::print(stderr, "attune: every number in {} is NaN\n", path_of(r));
    }
    if (o_.json) {
      nlohmann::ordered_json summary{{"engine", o_.target == "auto" ? "cpu" : o_.target}, {"seconds", seconds_}};
      for (std::size_t i = 0; i < results_.size(); ++i) {
        const auto shape = shape_of(results_[i].data.tensor);
        nlohmann::ordered_json file{{"path", path_of(results_[i])}, {"shape", std::vector(shape.begin(), shape.end())}};
        if (seen[i].has_range()) file.update({{"least", seen[i].least}, {"greatest", seen[i].greatest}});
        file["nan"] = seen[i].nan;
        if (results_[i].file == "lse.npy") file["empty_rows"] = seen[i].empty_rows;
        summary["files"].push_back(std::move(file));
      }
      write_json(summary, 2);
      return;
    }
    for (std::size_t i = 0; i < results_.size(); ++i)
      print_out("{}  {}{}\n", path_of(results_[i]), results_[i].data.tensor.describe(), in_words(seen[i]));
  }

  const RunOptions& o_;
  Device device_;
  Owned q_, k_, v_, cu_q_, cu_kv_, grad_out_, grad_lse_, kv_len_, q_offsets_, page_table_, o_before_, lse_before_;
  TextAttention text_;
  std::vector<Result> results_;
  double seconds_ = 0;
};

}  // namespace

void add_run(CLI::App& app) {
  auto o = std::make_shared<RunOptions>();
  CLI::App& verb = *app.add_subcommand("run", "attention over .npy files");
  o->add_to(verb);
  verb.footer(
      "Computes softmax(score(scale * q . k)) v over the pairs that the mask keeps, and, given the output's gradient, "
      "the gradients of q, k, v and of captured tensors. Results are f32: out.npy, lse.npy, with --max max.npy, with "
      "--grad-out dq.npy, dk.npy, dv.npy and grad_NAME.npy. Writes all of them or none.\n"
      "Examples:\n"
      "  attune run --q q.npy --k k.npy --v v.npy --out results \\\n"
      "    --score 's + slope[h] * f32(kv - q)' --mask 'kv <= q' --capture slope=slope.npy");
  verb.callback([o] {
    take_target(o->target);
    Run{*o}();
  });
}

}  // namespace attune::tools
