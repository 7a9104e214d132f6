#include "measure_loop.hpp"

#include <algorithm>
#include <ctime>
#include <exception>
#include <limits>

#include "assign_or_return.hpp"
#include "cuda_replay_device.hpp"
#include "replay_loop.hpp"

namespace gpumem::bench {
namespace {

constexpr std::size_t least_passes = 12;
constexpr std::size_t least_ops = 2'000'000;  ///< timed at least; short traces run more passes
constexpr int timed_pairs = 20'000;
constexpr int parts = 4;  ///< of the passes; the driver's calls are timed after each

double now_ns() {
  std::timespec time{};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

struct gpumem_calls {
  allocator& memory;
  void* allocate(std::size_t bytes, stream_ref stream) const {
    try {
      return memory.allocate(bytes, stream);
    } catch (const std::exception&) {
      return nullptr;
    }
  }
  void release(void* block, stream_ref /*own*/) const { memory.deallocate(block); }
};

struct baseline_calls {
  const gpumem_baseline_api& api;
  gpumem_baseline* baseline;
  void* allocate(std::size_t bytes, stream_ref stream) const {
    void* p = nullptr;
    return api.allocate(baseline, &p, bytes, stream.handle) == 0 ? p : nullptr;
  }
  void release(void* block, stream_ref own) const { api.release(baseline, block, own.handle); }
};

/// Stops at the first failed allocation and returns false.
template <typename calls>
bool pass(const calls& allocator_calls, const replay_loop& loop, std::vector<void*>& blocks,
          const std::vector<stream_ref>& streams) {
  for (const loop_op& op : loop.ops) {
    void*& p = blocks[op.slot];
    if (op.frees) {
      allocator_calls.release(p, streams[op.stream]);
      p = nullptr;
    } else {
      p = allocator_calls.allocate(op.bytes, streams[op.stream]);
      if (p == nullptr) [[unlikely]]
        return false;
    }
  }
  return true;
}

/// The time of the fastest pass. Calls `after_part` after each part of the passes.
template <typename calls, typename function>
std::optional<double> pass_ns(const calls& allocator_calls, const replay_loop& loop,
                              const std::vector<stream_ref>& streams, const function& after_part) {
  std::vector<void*> blocks(loop.slots);
  std::optional<double> best;
  bool enough = true;
  const std::size_t passes = std::max<std::size_t>(least_passes, least_ops / loop.ops.size());
  for (std::size_t k = 0; k <= passes && enough; ++k) {
    const double begin = now_ns();
    enough = pass(allocator_calls, loop, blocks, streams);
    const double ns = now_ns() - begin;
    for (const loop_op& op : loop.live_at_end) {
      if (void*& p = blocks[op.slot]; p != nullptr) allocator_calls.release(p, streams[op.stream]), p = nullptr;
    }
    if (k > 0) best = std::min(best.value_or(ns), ns);
    if ((k + 1) * parts / (passes + 1) != k * parts / (passes + 1)) after_part();
  }
  return enough ? best : std::nullopt;
}

template <typename ground>
std::vector<stream_ref> streams_of(const trace& source, ground& device) {
  std::vector<stream_ref> streams;
  for (const std::uint64_t recorded : source.streams)
    streams.push_back(recorded == 0 ? stream_ref{} : device.create_stream());
  return streams;
}

/// The time of the simulated driver's calls in one pair.
double runtime_ns_of_a_pair(const gpumem_baseline_api& api, gpumem_baseline* baseline, stream_ref stream) {
  const double begin = now_ns();
  for (int i = 0; i < timed_pairs; ++i) api.runtime_calls_of_a_pair(baseline, stream.handle);
  return (now_ns() - begin) / timed_pairs;
}

result<std::optional<double>> baseline_loop(const trace& recorded, const policy_row& row, const replay_setup& setup) {
  ASSIGN_OR_RETURN(
      auto replay_device,
      cuda_replay_device::open(
          {.bytes = setup.device.capacity_bytes, .referee = false, .plug_in = row.plug_in, .works = false}));
  const gpumem_baseline_api& api = replay_device->api();
  gpumem_baseline* const baseline = api.open(row.baseline.c_str(), replay_device->ordinal());
  if (baseline == nullptr) return status{errc::device_error, "baseline " + row.baseline + " cannot be opened"};
  const replay_loop loop = loop_of(recorded);
  const std::vector<stream_ref> streams = streams_of(recorded, *replay_device);
  std::optional<double> ns;
  if (api.runtime_calls_of_a_pair(baseline, streams.front().handle) == 0) {
    double calls_ns = std::numeric_limits<double>::max();
    ns = pass_ns(baseline_calls{api, baseline}, loop, streams,
                 [&] { calls_ns = std::min(calls_ns, runtime_ns_of_a_pair(api, baseline, streams.front())); });
    if (ns) ns = time_without_calls(*ns, static_cast<double>(loop.frees) * calls_ns);
  }
  api.close(baseline);
  if (ns) *ns /= static_cast<double>(loop.ops.size());
  return ns;
}

}  // namespace

std::optional<double> time_without_calls(double loop_ns, double calls_ns) {
  return loop_ns > calls_ns ? std::optional{loop_ns - calls_ns} : std::nullopt;
}

result<std::optional<double>> measure_loop(const trace& recorded, const policy_row& row, const replay_setup& setup) {
  if (!row.baseline.empty()) return baseline_loop(recorded, row, setup);
  sim_config device_config = setup.device;
  device_config.referee = false;
  ASSIGN_OR_RETURN(auto under_test, open_rig(device_config, row.config));
  const replay_loop loop = loop_of(recorded);
  auto ns = pass_ns(gpumem_calls{*under_test.memory}, loop, streams_of(recorded, *under_test.gpu), [] {});
  if (ns) *ns /= static_cast<double>(loop.ops.size());
  return ns;
}

}  // namespace gpumem::bench
