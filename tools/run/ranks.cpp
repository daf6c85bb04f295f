// tools/run/ranks.cpp — attune ranks: plans a call over many ranks: who holds what, what travels, how long it takes
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstring>
#include <exception>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include <attune/attention.h>
#include <attune/error.h>

#include "compiler/lower.h"
#include "compiler/trace.h"
#include "ir/print.h"
#include "runtime/engines/picture/page.h"
#include "runtime/platform/memory.h"
#include "runtime/ranks/plan/local.h"
#include "runtime/ranks/plan/plan.h"
#include "runtime/ranks/ranks.h"
#include "tools/measure/bench.h"
#include "tools/options/text.h"
#include "tools/output/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

struct RanksOptions {
  TextOptions text;
  std::int64_t q_len = 131072, q_offset = 0, batch = 1, ranks = 4, per_node = 8, groups = 0, block = 384;
  std::optional<std::int64_t> kv_len, kv_heads;
  std::string heads = "64/8", d = "128", dtype = "bf16", links = "330,45", tflops = "660", assignment = "best",
              travel = "best";
  std::optional<std::string> starts, svg;
  std::optional<std::string> measure;  ///< by what bytes travel
  double seconds = 1;
  bool json = false, backward = false;
};

/// Makes the Sharding of one rank.
using ShardingOf = std::function<Sharding(const Transport& with)>;

using Clock = std::chrono::steady_clock;

/// The options that give a call of so many rows like this one.
CallOptions slice_of(const Forward& whole, std::int64_t q_rows, std::int64_t kv_rows) {
  const auto width = static_cast<std::size_t>(whole.q.rank) - 1;
  CallOptions out;
  out.dtype = name_of(whole.q.dtype);
  out.heads = whole.q.shape[1], out.kv_heads = whole.k.shape[1];
  out.seq = q_rows, out.kv_seq = kv_rows;
  out.d = whole.q.shape[width], out.dv = whole.v.shape[width];
  if (whole.q.rank == 3)
    out.lengths = {q_rows}, out.kv_lengths = {kv_rows};
  else
    out.batch = whole.q.shape[0];
  return out;
}

/// A call, or one rank's slice of it, with its tensors on a device.
class RankCall {
 public:
  RankCall(const Attention& attention, const Forward& whole, const Device& device, std::int64_t q_rows,
           std::int64_t kv_rows, bool backward)
      : attention_(attention), data_(device), tensors_(slice_of(whole, q_rows, kv_rows), data_) {
    for (const Tensor& t : compiler::trace(attention).slots.captures) {
      kept_.push_back(runtime::moved({nullptr, t}, device));
      captures_.push_back(kept_.back().tensor);
    }
    const auto as_whole = [&](auto call) {
      call.cu_seqlens_q = whole.cu_seqlens_q, call.cu_seqlens_kv = whole.cu_seqlens_kv;
      call.max_q_len = call.max_kv_len = 0;
      call.q_offset = whole.q_offset;
      call.captures = captures_;
      return call;
    };
    call_ = as_whole(tensors_.call());
    if (backward) {
      gradients_ = BackwardTensors(slice_of(whole, q_rows, kv_rows), data_);
      gradient_ = as_whole(gradients_.call(tensors_));
    } else {
      call_.lse = {};
    }
  }

  void run(const Sharding& sharding) const {
    attention_.run(call_, {.sharding = sharding});
    if (gradient_) attention_.backward(*gradient_, {.sharding = sharding});
  }
  void wait() const {
    const runtime::cuda::Current current(data_.device().index);
    runtime::cuda::Moment(nullptr).wait();
  }

 private:
  Attention attention_;
  Data data_;
  ForwardTensors tensors_;
  BackwardTensors gradients_;
  std::vector<Owned> kept_;
  std::vector<Tensor> captures_;
  Forward call_;
  std::optional<Backward> gradient_;
};

std::int64_t rows_of(std::span<const Sharding::Range> ranges) {
  std::int64_t rows = 0;
  for (const Sharding::Range& s : ranges) rows += s.end - s.begin;
  return rows;
}

constexpr int measured_rounds = 7;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The number of calls in a round.
int calls_of(double seconds_of_call, double seconds) {
  return static_cast<int>(std::clamp(seconds / measured_rounds / std::max(seconds_of_call, 1e-7), 1.0, 10000.0));
}

/// Measures the whole call on one GPU, in milliseconds.
Times measure_alone(const Attention& attention, const Forward& whole, const RanksOptions& options) {
  const std::size_t rows = whole.q.rank == 3 ? 0 : 2;
  const RankCall call(attention, whole, Device::cuda(), whole.q.shape[rows], whole.k.shape[rows], options.backward);
  const auto seconds_of = [&](int calls) {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) call.run({});
    call.wait();
    return since(start) / calls;
  };
  seconds_of(2);  // compiles
  const int calls = calls_of(seconds_of(2), options.seconds);
  std::vector<double> all;
  for (int i = 0; i < measured_rounds; ++i) all.push_back(seconds_of(calls) * 1e3);
  std::ranges::sort(all);
  return {std::move(all)};
}

/// Measures the call over ranks. Each rank is a thread with its own GPU; with fewer GPUs, ranks share them in turns.
Times measure_ranks(const Attention& attention, const Forward& whole, const ShardingOf& sharding_of,
                    const RanksOptions& options) {
  const bool by_nccl = *options.measure == "nccl";
  const int ranks = static_cast<int>(options.ranks);
  const int devices = runtime::cuda::device_count();
  if (devices == 0)
    throw Error("no-device", "there is no GPU to measure on", {}, runtime::cuda::find_driver().why,
                "leave --measure out: predictions need none");
  std::vector<Transport> transports;
  std::array<std::byte, 128> id{};
  if (by_nccl)
    id = nccl_id();
  else
    transports = threads(ranks);
  std::barrier meet(ranks);
  std::vector<double> all, slowest(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> failed(slowest.size());
  std::vector<std::thread> running;
  const auto rank = [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    const Device device = Device::cuda(r % devices);
    const Transport with = by_nccl ? nccl(id, r, ranks, device.index) : transports[i];
    const Sharding sharding = sharding_of(with);
    const RankCall call(attention, whole, device, rows_of(sharding.of(r)), rows_of(sharding.keys_of(r)),
                        options.backward);
    const auto seconds_of = [&](int calls) {
      meet.arrive_and_wait();
      const auto start = Clock::now();
      for (int n = 0; n < calls; ++n) call.run(sharding);
      call.wait();
      slowest[i] = since(start) / calls;
      meet.arrive_and_wait();
      return *std::ranges::max_element(slowest);
    };
    seconds_of(2);
    const int calls = calls_of(seconds_of(2), options.seconds);
    meet.arrive_and_wait();
    for (int n = 0; n < measured_rounds; ++n) {
      const double most = seconds_of(calls);
      meet.arrive_and_wait();
      if (r == 0) all.push_back(most * 1e3);
    }
  };
  for (int r = 0; r < ranks; ++r)
    running.emplace_back([&, r] {
      try {
        rank(r);
      } catch (...) {
        failed[static_cast<std::size_t>(r)] = std::current_exception();
        meet.arrive_and_drop();
      }
    });
  for (std::thread& t : running) t.join();
  for (const std::exception_ptr& one : failed)
    if (one) std::rethrow_exception(one);
  std::ranges::sort(all);
  return {std::move(all)};
}

using runtime::grouped, runtime::ranks::most_ranks;
using runtime::ranks::Predicted, runtime::ranks::Candidate, runtime::ranks::RankTimes;
using Json = nlohmann::ordered_json;

/// Up to this many ranks are listed one by one.
constexpr int most_listed = 16;

/// One number or two, such as 64/8 or 330,45.
std::array<double, 2> pair_of(const std::string& option, const std::string& text, char between) {
  const std::size_t cut = text.find(between);
  const double first = number(option, text.substr(0, cut));
  return {first, cut == std::string::npos ? first : number(option, text.substr(cut + 1))};
}

std::int64_t size(const std::string& option, double value, double least, double most) {
  if (value >= least && value <= most && value == static_cast<double>(static_cast<std::int64_t>(value)))
    return static_cast<std::int64_t>(value);
  throw Error("bad-size", fmt::format("{} cannot be {}", option, value), {.name = option},
              fmt::format("it is a whole number from {:.0f} to {:.0f}", least, most), "see attune ranks --help");
}

template <class Word>
Word word_of(const std::string& option, const std::string& text, std::initializer_list<Word> all) {
  std::vector<std::string> names;
  for (const Word one : all) names.emplace_back(runtime::ranks::name_of(one));
  require_word(option, text, names);
  return *(all.begin() + (std::ranges::find(names, text) - names.begin()));
}

class RanksVerb {
 public:
  explicit RanksVerb(const RanksOptions& o) : o_(o), text_(built(o.text, Captures::FilesOrTypes)) {
    mask_ = ir::print(compiler::lower(text_.attention).cover.mask, compiler::lower(text_.attention).mod.signature());
    refuse_no_data();
    Sharding::How how;
    how.assignment = word_of("--assignment", o.assignment,
                             {Sharding::Assignment::best, Sharding::Assignment::contiguous,
                              Sharding::Assignment::zigzag, Sharding::Assignment::greedy});
    how.travel = word_of("--travel", o.travel,
                         {Sharding::Travel::best, Sharding::Travel::gather, Sharding::Travel::ring,
                          Sharding::Travel::heads, Sharding::Travel::decode});
    how.groups = static_cast<int>(size("--groups", static_cast<double>(o.groups), 0, 1024));
    how.block = size("--block", static_cast<double>(o.block), 1, 1 << 20);
    how.per_node = static_cast<int>(size("--per-node", static_cast<double>(o.per_node), 1, most_ranks));
    const auto links = pair_of("--links", o.links, ',');
    how.own_gb_s = links[0];
    how.node_gb_s = links[1];
    how.tflops = number("--tflops", o.tflops);
    const int count = static_cast<int>(size("--ranks", static_cast<double>(o.ranks), 1, most_ranks));
    const Forward call = whole();
    const auto plan = [&](const Transport& with) { return Sharding(std::span(&text_.attention, 1), call, with, how); };
    if (o.measure) {
      require_word("--measure", *o.measure, std::array<std::string, 2>{"copies", "nccl"});
      alone_ = measure_alone(text_.attention, call, o);
      // Predictions are then for GPUs as fast as this one.
      if (!o.backward) {
        sharding_ = plan({.rank = 0, .count = 1});
        // Either products or memory bound a call. Both rates are scaled, so the rate that bounds it is scaled too.
        const double faster = layer().chosen().ideal / alone_->median();
        how.tflops *= faster;
        how.memory_gb_s *= faster;
      }
      measured_ = measure_ranks(text_.attention, call, plan, o);
    }
    sharding_ = plan({.rank = 0, .count = count});
  }

  void operator()() {
    if (o_.svg) write_files(std::array{FileBytes{*o_.svg, runtime::ranks::picture(ranks(), 0, mask_)}});
    if (o_.svg && is_stdout(*o_.svg)) return;
    if (o_.json)
      write_json(json(), 2);
    else
      write_out(page());
  }

 private:
  const detail::Ranks& ranks() const { return *sharding_.get(); }
  const runtime::ranks::Layer& layer() const { return ranks().layers.front(); }

  void refuse_no_data() const {
    const compiler::LoweredMod lowered = compiler::lower(text_.attention);
    for (const std::uint32_t slot : compiler::cover_of(lowered.cover).captures)
      for (const std::string& name : text_.without_data)
        if (lowered.slots.captures[slot].data == text_.captures.at(name).tensor.data)
          throw Error("no-data", "the mask cannot be evaluated", {.name = "--capture " + name},
                      fmt::format("the mask reads {}, declared without data", name),
                      fmt::format("give the file: --capture {}=FILE.npy", name));
  }

  Forward whole() {
    constexpr double most = 1 << 30;
    const auto heads = pair_of("--heads", o_.heads, '/'), widths = pair_of("--d", o_.d, '/');
    const std::int64_t q_heads = size("--heads", heads[0], 1, 4096),
                       kv_heads = o_.kv_heads ? size("--kv-heads", static_cast<double>(*o_.kv_heads), 1, 4096)
                                              : size("--heads", heads[1], 1, 4096),
                       d = size("--d", widths[0], 1, 4096), dv = size("--d", widths[1], 1, 4096),
                       batch = size("--batch", static_cast<double>(o_.batch), 1, 1 << 20);
    require_word("--dtype", o_.dtype, std::array<std::string, 3>{"bf16", "f16", "f32"});
    const DType type = call_type(o_.dtype);
    Forward call{.q_offset = static_cast<std::int32_t>(size("--q-offset", static_cast<double>(o_.q_offset), 0, most))};
    if (o_.starts) {
      starts_ = read_tensor(*o_.starts, "--starts " + *o_.starts);
      call.cu_seqlens_q = call.cu_seqlens_kv = starts_.tensor;
      const Tensor& t = starts_.tensor;
      if (t.rank != 1 || t.size() < 1 || (t.dtype != DType::i32 && t.dtype != DType::i64))
        throw Error("cu-seqlens", "--starts does not hold the starts of sequences", {.name = "--starts " + *o_.starts},
                    fmt::format("it is {}, and starts are i32 [B + 1]", t.describe()),
                    "write 0, and the running sums of the lengths");
      std::int64_t rows = 0;
      const auto* last = static_cast<const char*>(t.data) +
                         (t.size() - 1) * t.strides[0] * static_cast<std::int64_t>(size_of(t.dtype));
      if (t.dtype == DType::i64)
        std::memcpy(&rows, last, sizeof rows);
      else
        rows = *reinterpret_cast<const std::int32_t*>(last);
      rows = size("--starts", static_cast<double>(rows), 0, most);
      call.q = Tensor(nullptr, type, {rows, q_heads, d});
      call.k = Tensor(nullptr, type, {rows, kv_heads, d});
      call.v = Tensor(nullptr, type, {rows, kv_heads, dv});
      return call;
    }
    const std::int64_t q_len = size("--q-len", static_cast<double>(o_.q_len), 1, most),
                       kv_len = size("--kv-len", static_cast<double>(o_.kv_len.value_or(o_.q_offset + q_len)), 1, most);
    call.q = Tensor(nullptr, type, {batch, q_heads, q_len, d});
    call.k = Tensor(nullptr, type, {batch, kv_heads, kv_len, d});
    call.v = Tensor(nullptr, type, {batch, kv_heads, kv_len, dv});
    return call;
  }

  double load(int rank) const {
    double mine = 0, all = 0;
    for (std::size_t g = 0; g < ranks().owners().q.size(); ++g) {
      all += layer().work.pairs[g];
      if (ranks().owners().q[g] == rank) mine += layer().work.pairs[g];
    }
    return all > 0 ? mine * ranks().count() / all : 1;
  }

  static double end_of(const RankTimes& times) {
    double end = 0;
    for (const auto* bars : {&times.travels, &times.computes})
      if (!bars->empty()) end = std::max(end, bars->back().end);
    return end;
  }

  std::string page() const {
    std::string out = fmt::format("mask   {}\n\n", mask_) + sharding_.explain();
    const Predicted& chosen = layer().chosen();
    if (measured_)
      out += fmt::format("\nmeasured by {}{}   {} alone, {} over {} ranks: {:.1f}% of {} times one\n", *o_.measure,
                         o_.backward ? ", forward and backward" : "", runtime::ranks::milliseconds(alone_->median()),
                         runtime::ranks::milliseconds(measured_->median()), ranks().count(), 100 * of_ideal(),
                         ranks().count());
    if (ranks().count() > most_listed)
      return out + fmt::format("\n--json lists each of the {} ranks\n", ranks().count());
    out += "\nrank      queries         keys    load    received     computes        done\n";
    for (int r = 0; r < ranks().count(); ++r) {
      const RankTimes& times = chosen.ranks[static_cast<std::size_t>(r)];
      out += fmt::format("{:>4}{:>13}{:>13}{:>8.3f}{:>9.1f} MB{:>13}{:>12}\n", r, grouped(ranks().q_rows(r)),
                         grouped(ranks().kv_rows(r)), load(r), times.received() / 1e6,
                         runtime::ranks::milliseconds(times.compute), runtime::ranks::milliseconds(end_of(times)));
    }
    return out;
  }

  /// Measured speed as a fraction of the ideal: one GPU's speed times the number of ranks.
  double of_ideal() const { return alone_->median() / measured_->median() / ranks().count(); }

  static Json json_of(const Predicted& schedule) {
    Json out = {{"travel", runtime::ranks::name_of(schedule.travel)}, {"groups", schedule.groups}};
    if (!schedule.why_not.empty()) {
      out["why_not"] = schedule.why_not;
      return out;
    }
    double most = 0;
    for (const RankTimes& r : schedule.ranks) most = std::max(most, r.received());
    out["ms"] = schedule.ms;
    out["of_ideal"] = schedule.ms > 0 ? schedule.ideal / schedule.ms : 1;
    out["most_received"] = most;
    return out;
  }
  Json json_of(int rank) const {
    const RankTimes& times = layer().chosen().ranks[static_cast<std::size_t>(rank)];
    Json ranges = Json::array();
    for (const Sharding::Range& s : sharding_.of(rank)) ranges.push_back({s.begin, s.end});
    return {{"queries", ranks().q_rows(rank)},
            {"keys", ranks().kv_rows(rank)},
            {"ranges", ranges},
            {"load", load(rank)},
            {"received", sharding_.received(rank)},
            {"from_node", times.own},
            {"from_others", times.across},
            {"compute_ms", times.compute},
            {"done_ms", end_of(times)}};
  }
  Json json() const {
    Json all;
    const auto& p = ranks().problem;
    all["mask"] = mask_;
    all["call"] = {{"queries", ranks().q.rows},
                   {"keys", ranks().kv.rows},
                   {"sequences", p.q.packed() ? p.batch : 0},
                   {"batch", ranks().sizes.batch},
                   {"heads", {p.q_heads, p.kv_heads}},
                   {"d", {p.d, p.dv}},
                   {"dtype", o_.dtype}};
    all["machine"] = {{"ranks", ranks().count()},
                      {"per_node", ranks().how.per_node},
                      {"own_gb_s", ranks().how.own_gb_s},
                      {"node_gb_s", ranks().how.node_gb_s},
                      {"tflops", ranks().how.tflops},
                      {"memory_gb_s", ranks().how.memory_gb_s},
                      {"latency_us", ranks().how.latency_us}};
    all["block"] = ranks().how.block;
    all["assignments"] = Json::array();
    for (const Candidate& c : ranks().candidates)
      all["assignments"].push_back({{"assignment", runtime::ranks::name_of(c.assignment)},
                                    {"load", c.load},
                                    {"of_gather", c.gather},
                                    {"ms", c.ms}});
    all["schedules"] = Json::array();
    for (const Predicted& s : layer().schedules) all["schedules"].push_back(json_of(s));
    if (measured_)
      all["measured"] = {{"by", *o_.measure},
                         {"direction", o_.backward ? "step" : "forward"},
                         {"alone_ms", {{"median", alone_->median()}, {"best", alone_->best()}}},
                         {"ms", {{"median", measured_->median()}, {"best", measured_->best()}}},
                         {"of_ideal", of_ideal()}};
    all["ranks"] = Json::array();
    for (int r = 0; r < ranks().count(); ++r) all["ranks"].push_back(json_of(r));
    return all;
  }

  const RanksOptions& o_;
  TextAttention text_;
  Owned starts_;
  std::string mask_;
  Sharding sharding_;
  std::optional<Times> alone_, measured_;
};

}  // namespace

void add_ranks(CLI::App& app) {
  auto o = std::make_shared<RanksOptions>();
  CLI::App& verb = *app.add_subcommand("ranks",
                                       "one attention over several GPUs: sharding, traffic and predicted time");
  o->text.add_to(verb);
  const std::string call = "The call", machine = "The machine";
  verb.add_option("--q-len,--seq", o->q_len, "queries; 131072 if left out")->type_name("N")->group(call);
  verb.add_option("--kv-len,--kv-seq", o->kv_len, "keys; q_offset plus the number of queries if left out")
      ->type_name("N")
      ->group(call);
  verb.add_option("--q-offset", o->q_offset, "the position of the first query")->type_name("N")->group(call);
  verb.add_option("--starts", o->starts, "packed sequences: their starts and the end, i32 [B + 1]")
      ->type_name("FILE.npy")
      ->group(call);
  verb.add_option("--batch", o->batch, "batch entries")->type_name("N")->group(call);
  verb.add_option("--heads", o->heads, "heads of q and of keys; 64/8 if left out")->type_name("Q/KV")->group(call);
  verb.add_option("--kv-heads", o->kv_heads, "heads of keys, instead of /KV")->type_name("N")->group(call);
  verb.add_option("--d", o->d, "width of a head, and of values; 128 if left out")->type_name("D/DV")->group(call);
  verb.add_option("--dtype", o->dtype, "bf16 if left out")->type_name("bf16|f16|f32")->group(call);
  verb.add_option("--ranks", o->ranks, "GPUs; 4 if left out")->type_name("N")->group(machine);
  verb.add_option("--per-node", o->per_node, "GPUs of a host; 8 if left out")->type_name("N")->group(machine);
  verb.add_option("--links", o->links,
                  "GB/s into each GPU, from its host's GPUs and from other hosts; 330,45 if left out")
      ->type_name("A,B")
      ->group(machine);
  verb.add_option("--tflops", o->tflops, "of a GPU's attention kernels; 660 if left out")
      ->type_name("X")
      ->group(machine);
  verb.add_option("--assignment", o->assignment, "how positions are sharded; the fastest if left out")
      ->type_name("best|contiguous|zigzag|greedy");
  verb.add_option("--travel", o->travel, "what ranks exchange; the fastest if left out")
      ->type_name("best|gather|ring|heads|decode");
  verb.add_option("--groups", o->groups, "groups of key heads in which keys are sent; the fastest if left out")
      ->type_name("N");
  verb.add_option("--block", o->block, "positions that are sharded as a whole; 384 if left out")->type_name("N");
  CLI::Option* const measure = verb.add_option(
      "--measure", o->measure,
      "also run it on this machine's GPUs, one rank each, and on a single one; ranks exchange by copies or by NCCL");
  measure->type_name("copies|nccl");
  verb.add_flag("--backward", o->backward, "measure the forward followed by the backward")->needs(measure);
  verb.add_option("--seconds", o->seconds, "seconds to measure one GPU, and again all of them; 1 if left out")
      ->type_name("X")
      ->needs(measure);
  verb.add_option("--svg", o->svg, "write a picture to this file, - for stdout")->type_name("FILE");
  verb.add_flag("--json", o->json, "as JSON, with every rank");
  verb.footer(
      "Shards positions over ranks, derives from the mask which keys each rank needs, and predicts how long a forward "
      "takes with every schedule. `load` is the largest work of a rank over the mean; `moved` is how much of the "
      "others' keys a rank needs; `of ideal` compares with work spread evenly and nothing moved. Only --measure needs "
      "GPUs; it then predicts by the rate of one of them.\n"
      "Examples:\n"
      "  attune ranks 'kv <= q' --ranks 8\n"
      "  attune ranks 'kv <= q && q - kv < 1024' --q-len 1048576 --ranks 64 --links 330,45 --svg window.svg");
  verb.callback([o] { RanksVerb{*o}(); });
}

}  // namespace attune::tools
