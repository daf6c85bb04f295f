// tools/ranks_measured.cpp — measures a call over ranks on this machine's GPUs, and on one GPU
#include "tools/ranks_measured.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include <attune/error.h>
#include <fmt/format.h>

#include "compiler/trace.h"
#include "runtime/engines/cuda/streams.h"
#include "tools/bench.h"

namespace attune::tools {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::int64_t> shape_of(const Tensor& t, std::size_t dimension, std::int64_t rows) {
  std::vector<std::int64_t> out(t.shape.begin(), t.shape.begin() + t.rank);
  out[dimension] = rows;
  return out;
}

/// A call, or one rank's slice of it, with its tensors on a device.
class OnDevice {
 public:
  OnDevice(const Attention& attention, const Forward& whole, const Device& device, std::int64_t q_rows,
           std::int64_t kv_rows, bool backward)
      : attention_(attention), data_(device), device_(device) {
    const bool packed = whole.q.rank == 3;
    const std::size_t rows = packed ? 0 : 2;
    const auto q_shape = shape_of(whole.q, rows, q_rows), k_shape = shape_of(whole.k, rows, kv_rows),
               v_shape = shape_of(whole.v, rows, kv_rows);
    auto o_shape = q_shape;
    o_shape.back() = v_shape.back();
    const std::vector<std::int64_t> lse_shape = packed ? std::vector{q_shape[1], q_rows}
                                                       : std::vector{q_shape[0], q_shape[1], q_rows};
    const DType type = whole.q.dtype;
    const auto normal = [&](const std::vector<std::int64_t>& shape) { return take(data_.normal(type, shape)); };
    const auto zeros = [&](DType of, const std::vector<std::int64_t>& shape) { return take(data_.zeros(of, shape)); };
    call_ = whole;
    call_.q = normal(q_shape);
    call_.k = normal(k_shape);
    call_.v = normal(v_shape);
    call_.o = zeros(type, o_shape);
    if (backward) {
      call_.lse = zeros(DType::f32, lse_shape);
      gradient_ = {.q = call_.q,
                   .k = call_.k,
                   .v = call_.v,
                   .grad_o = normal(o_shape),
                   .o = call_.o,
                   .lse = call_.lse,
                   .dq = zeros(type, q_shape),
                   .dk = zeros(type, k_shape),
                   .dv = zeros(type, v_shape),
                   .cu_seqlens_q = whole.cu_seqlens_q,
                   .cu_seqlens_kv = whole.cu_seqlens_kv,
                   .q_offset = whole.q_offset};
    }
    for (const Tensor& t : compiler::trace(attention).slots.captures) {
      Owned there = data_.zeros(t.dtype, std::vector(t.shape.begin(), t.shape.begin() + t.rank));
      copy(t, there.tensor);
      captures_.push_back(take(std::move(there)));
    }
    call_.captures = captures_;
    if (gradient_) gradient_->captures = captures_;
  }

  void run(const Sharding& sharding) const {
    attention_.run(call_, {.sharding = sharding});
    if (gradient_) attention_.backward(*gradient_, {.sharding = sharding});
  }
  void wait() const {
    const runtime::cuda::Current current(device_.index);
    runtime::cuda::Moment(nullptr).wait();
  }

 private:
  Tensor take(Owned owned) {
    kept_.push_back(std::move(owned));
    return kept_.back().tensor;
  }

  Attention attention_;
  Data data_;
  Device device_;
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

MeasuredTimes summary(std::vector<double> all) {
  std::ranges::sort(all);
  return {.median = all[all.size() / 2], .best = all.front()};
}
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The number of calls in a round.
int calls_of(double seconds_of_call, double seconds) {
  return static_cast<int>(std::clamp(seconds / measured_rounds / std::max(seconds_of_call, 1e-7), 1.0, 10000.0));
}

}  // namespace

MeasuredTimes measure_alone(const Attention& attention, const Forward& whole, const MeasuredOptions& options) {
  const std::size_t rows = whole.q.rank == 3 ? 0 : 2;
  const OnDevice call(attention, whole, Device::cuda(), whole.q.shape[rows], whole.k.shape[rows], options.backward);
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
  return summary(std::move(all));
}

MeasuredTimes measure_ranks(const Attention& attention, const Forward& whole, const ShardingOf& sharding_of,
                            const MeasuredOptions& options) {
  const int devices = runtime::cuda::device_count();
  if (devices == 0)
    throw Error("no-device", "there is no GPU to measure on", {}, runtime::cuda::find_driver().why,
                "leave --measure out: predictions need none");
  std::vector<Transport> transports;
  std::array<std::byte, 128> id{};
  if (options.by_nccl)
    id = nccl_id();
  else
    transports = threads(options.ranks);
  std::barrier meet(options.ranks);
  std::vector<double> all, slowest(static_cast<std::size_t>(options.ranks));
  std::vector<std::exception_ptr> failed(slowest.size());
  std::vector<std::thread> running;
  const auto rank = [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    const Device device = Device::cuda(r % devices);
    const Transport with = options.by_nccl ? nccl(id, r, options.ranks, device.index) : transports[i];
    const Sharding sharding = sharding_of(with);
    const OnDevice call(attention, whole, device, rows_of(sharding.of(r)), rows_of(sharding.keys_of(r)),
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
  for (int r = 0; r < options.ranks; ++r)
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
  return summary(std::move(all));
}

}  // namespace attune::tools
