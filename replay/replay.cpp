/// One loop for both kinds of replay; the checks are compiled out of the timed one.
#include "replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <type_traits>

#include "assign_or_return.hpp"
#include "bits.hpp"
#include "cuda_replay_device.hpp"

namespace gpumem::bench {
namespace {

constexpr std::uint64_t host_ns_per_op = 5000;

struct live_block {
  void* begin = nullptr;
  std::uint16_t stream = 0;
};

struct tenant {
  std::size_t first_step = 0;
  std::uint64_t start_ns = 0;
  int device = 0;
  std::vector<stream_ref> streams;
  std::vector<live_block> blocks;  ///< by slot
  std::size_t next_use = 0;        ///< index into `replay_plan::second_uses`
};

/// Reads a clock. Replays without real waits use this thread's CPU time, which load on the machine does not affect.
std::uint64_t time_ns(clockid_t clock) {
  std::timespec time{};
  (void)clock_gettime(clock, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

address at(const void* pointer) { return reinterpret_cast<address>(pointer); }

template <bool checked, typename device_type>
class replay_run {
 public:
  replay_run(const replay_plan& plan, allocator& memory, device_type& device)
      : plan_{plan}, memory_{memory}, device_{device} {
    const trace& t = *plan.recorded;
    for (unsigned k = 0; k < plan.tenants; ++k) {
      tenant& each = tenants_.emplace_back();
      each.first_step = tenant_offset(t.ops.size(), k);
      each.start_ns = k / 2 * t.ops.back().time_ns + k % 2 * t.ops[t.ops.size() / 2].time_ns;
      each.device = memory.devices().size() > 1 ? static_cast<int>(k) : 0;
      each.blocks.resize(t.slots);
      for (const std::uint64_t recorded : t.streams) {
        each.streams.push_back(recorded == 0 && k == 0 ? stream_ref{} : device.create_stream());
      }
      if (!plan.second_uses.empty()) each.streams.push_back(device.create_stream());
    }
  }

  result<replay_outcome> run() {
    clockid_t clock = CLOCK_THREAD_CPUTIME_ID;
    if constexpr (std::is_same_v<device_type, cuda_replay_device>) {
      if (!device_.simulated()) clock = CLOCK_MONOTONIC;
    }
    const std::size_t ops = std::min(plan_.recorded->ops.size(), plan_.most_ops);
    const std::size_t steps = ops + tenants_.back().first_step;
    const std::uint64_t begin_ns = time_ns(clock);
    status went;
    for (std::size_t step = 0; step < steps && !outcome_.oom && went.ok(); ++step) {
      if (step == steps / 2 && plan_.at_half) plan_.at_half();
      for (tenant& each : tenants_) {
        const std::size_t index = step - each.first_step;  // wraps before the tenant starts
        if (index >= ops) continue;
        went = do_op(each, index);
        if (outcome_.oom || !went.ok()) break;
        ++outcome_.ops;
        if (plan_.trim_every != 0 && outcome_.ops % plan_.trim_every == 0) trim();
      }
    }
    outcome_.elapsed_ns = time_ns(clock) - begin_ns;
    if constexpr (checked) {
      if (went.ok()) went = finish();
    }
    if (!went.ok()) return went;
    return outcome_;
  }

 private:
  status do_op(tenant& owner, std::size_t index) {
    const trace_op& op = plan_.recorded->ops[index];
    pass_time(owner.start_ns + op.time_ns);
    if constexpr (checked) {
      if (plan_.log != nullptr) plan_.log->op = outcome_.ops;
    }
    status went = op.kind == op_kind::allocate ? allocate(owner, op) : release_block(owner, op);
    while (went.ok() && !outcome_.oom && owner.next_use < plan_.second_uses.size() &&
           plan_.second_uses[owner.next_use].after_op == index) {
      const second_use& use = plan_.second_uses[owner.next_use++];
      went = use_on(owner, owner.blocks[use.slot].begin, use.bytes, use.stream);
    }
    return went;
  }

  /// Invariant: `host_ns_` does not exceed the device's clock, which device calls advance as well.
  void pass_time(std::uint64_t trace_ns) {
    device_.advance_by(host_ns_per_op);
    host_ns_ += host_ns_per_op;
    if (trace_ns > host_ns_) {
      device_.advance_to(trace_ns);
      host_ns_ = trace_ns;
    }
  }

  status allocate(tenant& owner, const trace_op& op) {
    const stream_ref stream = owner.streams[op.stream];
    const auto got = memory_.try_allocate({.bytes = op.bytes, .stream = stream, .device = owner.device}, &report_);
    if (!got) {
      if (got.code() != errc::out_of_memory) return got.why();
      outcome_.oom = true;
      outcome_.cause = report_.cause;
      return {};
    }
    owner.blocks[op.slot] = {*got, op.stream};
    if constexpr (checked) {
      device_.handed_out(at(*got), op.bytes, stream);
      log(memory_change::allocated, *got, op.bytes);
    }
    device_.enqueue_use(stream, plan_.lag_ns, at(*got), op.bytes);
    if constexpr (checked) return count_live(round_up(op.bytes, block_granularity));
    return {};
  }

  status release_block(tenant& owner, const trace_op& op) {
    const live_block block = owner.blocks[op.slot];
    if (status used = use_before_free(owner, op, block); !used) return used;
    if constexpr (checked) {
      device_.given_back(at(block.begin));
      log(memory_change::freed, block.begin, op.bytes);
      live_bytes_ -= round_up(op.bytes, block_granularity);
    }
    return memory_.try_deallocate(block.begin);
  }

  void log(memory_change change, const void* block, std::uint64_t bytes) {
    if (plan_.log != nullptr) plan_.log->add(change, at(block), round_up(bytes, block_granularity), bytes);
  }

  status use_before_free(tenant& owner, const trace_op& op, const live_block& block) {
    if (block.stream != op.stream) return use_on(owner, block.begin, op.bytes, op.stream);
    device_.enqueue_use(owner.streams[op.stream], plan_.lag_ns, at(block.begin), op.bytes);
    return {};
  }

  /// Enqueues work on another stream and records that use with the allocator.
  status use_on(tenant& owner, void* block, std::uint64_t bytes, std::uint16_t stream) {
    device_.enqueue_use(owner.streams[stream], plan_.lag_ns, at(block), bytes);
    return memory_.record_use(block, owner.streams[stream]);
  }

  status count_live(std::uint64_t bytes) {
    live_bytes_ += bytes;
    outcome_.peak_live_bytes = std::max(outcome_.peak_live_bytes, live_bytes_);
    if (!plan_.sample_peak) return {};
    const std::uint64_t reserved = device_.used_bytes();
    if (reserved < peak_reserved_ || (reserved == peak_reserved_ && live_bytes_ <= live_at_peak_)) return {};
    peak_reserved_ = reserved;
    live_at_peak_ = live_bytes_;
    return sample();
  }

  void trim() {
    for (const logical_device& each : memory_.devices()) (void)memory_.trim(each.ordinal);
  }

  status sample() {
    std::uint64_t free = 0;
    std::uint64_t largest = 0;
    std::uint64_t requested = 0;
    std::uint64_t live = 0;
    fragmentation current;
    for (const logical_device& each : memory_.devices()) {
      ASSIGN_OR_RETURN(const auto stats, memory_.stats(each.ordinal));
      free += stats.thread_cached_bytes + stats.cached_bytes + stats.fenced_bytes + stats.idle_bytes;
      largest += stats.largest_free_bytes;
      requested += stats.requested_bytes;
      live += stats.live_bytes;
      current.largest_free_bytes = std::max(current.largest_free_bytes, stats.largest_free_bytes);
    }
    if (free != 0) current.external = 1 - static_cast<double>(largest) / static_cast<double>(free);
    if (live != 0) current.internal = 1 - static_cast<double>(requested) / static_cast<double>(live);
    outcome_.at_peak = current;
    return {};
  }

  status finish() {
    for (const logical_device& each : memory_.devices()) {
      if (status sound = memory_.check(each.ordinal); !sound) return sound;
      ASSIGN_OR_RETURN(const auto stats, memory_.stats(each.ordinal));
      if (stats.misuses != 0) {
        return {errc::corrupt, fmt::format("pool {}: {} frees were refused", each.ordinal, stats.misuses)};
      }
    }
    return {};
  }

  const replay_plan& plan_;
  allocator& memory_;
  device_type& device_;
  std::vector<tenant> tenants_;
  std::uint64_t host_ns_ = 0;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t peak_reserved_ = 0;
  std::uint64_t live_at_peak_ = 0;
  oom_report report_;
  replay_outcome outcome_;
};

}  // namespace

result<replay_outcome> replay_checked(const replay_plan& plan, allocator& memory, sim_device& device) {
  return replay_run<true, sim_device>{plan, memory, device}.run();
}

result<replay_outcome> replay_timed(const replay_plan& plan, allocator& memory, sim_device& device) {
  return replay_run<false, sim_device>{plan, memory, device}.run();
}

result<replay_outcome> replay_checked(const replay_plan& plan, allocator& memory, cuda_replay_device& device) {
  return replay_run<true, cuda_replay_device>{plan, memory, device}.run();
}

result<replay_outcome> replay_timed(const replay_plan& plan, allocator& memory, cuda_replay_device& device) {
  return replay_run<false, cuda_replay_device>{plan, memory, device}.run();
}

}  // namespace gpumem::bench
