#include "oom_diagnosis.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "nvml.hpp"
#include "process_files.hpp"

namespace gpumem {
namespace {

/// Neighbouring blocks that become one free block once all work on them is done.
struct pending_run {
  std::uint64_t bytes = 0;
  std::uint64_t pending_bytes = 0;
  owner_id waits_for = idle_owner;  ///< the owner that the run's largest waiting block waits for
  std::uint64_t largest = 0;
};

/// Whether the request must wait for the owner's work, or for the end of the owner's graph, before it may use the
/// owner's free memory.
bool waits(const pending_request& request, owner_id owner) { return owner != idle_owner && owner != request.owner; }

/// Whether a block can be part of a run for the request.
bool joins(const pending_request& request, const block& member) {
  return request.may_be_in(member.segment_class) &&
         (member.state == block_state::free || member.state == block_state::fenced);
}

/// Whether the block is for this request only after work on it ends.
bool is_pending(const pending_request& request, const block& member) {
  return member.state == block_state::fenced || waits(request, member.owner);
}

/// Returns the run of joinable blocks around the pending block `index`, cut after `need` bytes. Returns an empty run if
/// it is shorter than `need`, or if a lower block of it is pending too: the call for that lower block returns the same
/// run.
pending_run run_around(const arena_state& state, const pending_request& request, block_index index,
                       std::uint64_t need) GPUMEM_UNDER_LOCK {
  block_index first = index;
  for (block_index k = state.blocks.at(index).prev; k != no_block && joins(request, state.blocks.at(k));
       k = state.blocks.at(k).prev) {
    if (is_pending(request, state.blocks.at(k))) return {};
    first = k;
  }
  pending_run run;
  for (block_index k = first; k != no_block; k = state.blocks.at(k).next) {
    const block& b = state.blocks.at(k);
    if (!joins(request, b)) return {};
    run.bytes += b.bytes;
    if (is_pending(request, b)) {
      run.pending_bytes += b.bytes;
      if (b.bytes > run.largest) {
        run.largest = b.bytes;
        run.waits_for = b.state == block_state::fenced ? state.uses.waits_for(k) : b.owner;
      }
    }
    if (run.bytes >= need && run.pending_bytes != 0) return run;
  }
  return {};
}

/// Returns a run that holds the request once its pending blocks are done; no bytes if there is none. Reads only pending
/// blocks and their free neighbours, because it runs under the lock, and programs that probe for the largest possible
/// allocation are refused many times.
pending_run find_pending_run(const arena_state& state, const pending_request& request) GPUMEM_UNDER_LOCK {
  const std::uint64_t need = request.bytes + (request.alignment - block_granularity);
  const heap_totals& all = state.blocks.totals();
  const std::uint64_t free_bytes =
      request.any_range ? all.cached_bytes + all.idle_bytes : state.blocks.totals(request.segment_class).free_bytes;
  if (free_bytes + all.fenced_bytes < need) return {};
  const auto found = [&](block_index index) GPUMEM_UNDER_LOCK {
    return joins(request, state.blocks.at(index)) ? run_around(state, request, index, need) : pending_run{};
  };
  for (const block_index i : state.uses.waiting()) {
    if (const pending_run run = found(i); run.bytes != 0) return run;
  }
  for (const owner_id owner : state.blocks.free_blocks().owners()) {
    if (!waits(request, owner)) continue;
    for (block_index i = state.blocks.free_blocks().oldest(owner); i != no_block;
         i = state.blocks.at(i).in_index.newer) {
      if (const pending_run run = found(i); run.bytes != 0) return run;
    }
  }
  return {};
}

std::string name_of(const arena_state& state, owner_id owner) GPUMEM_UNDER_LOCK {
  const stream_slot& slot = state.streams[owner];
  std::string name = slot.is_graph()                 ? fmt::format("CUDA graph {}", slot.key)
                     : slot.stream.handle == nullptr ? std::string{"the default stream"}
                                                     : fmt::format("stream {}", fmt::ptr(slot.stream.handle));
  if (state.streams.captures().pause_fences()) name += ", and a capture is under way";
  return name;
}

void name_and_sort(std::vector<memory_holder>& holders) {
  for (memory_holder& each : holders) each.name = command_of(each.pid);
  std::ranges::stable_sort(holders, std::greater{}, &memory_holder::bytes);
}

struct diagnosis {
  oom_cause cause = oom_cause::none;
  std::string pending_on{};         ///< for `pending_work`: the stream, graph or driver call that the memory waits for
  std::uint64_t pending_bytes = 0;  ///< bytes that wait for it
};

diagnosis diagnose(const arena_state& state, const pending_request& request) GPUMEM_UNDER_LOCK {
  if (!request.driver_error.ok()) return {.cause = oom_cause::driver_error};
  if (const pending_run run = find_pending_run(state, request); run.bytes != 0) {
    return {oom_cause::pending_work, name_of(state, run.waits_for), run.pending_bytes};
  }
  const heap_totals& totals = state.blocks.totals();
  if (totals.cached_bytes + totals.idle_bytes + totals.fenced_bytes >= request.bytes) {
    return {.cause = oom_cause::fragmentation};
  }
  const std::uint64_t most = std::max(state.pool_budget.limit(), state.pool_budget.reserved());
  const bool may_fit = request.bytes <= most && state.caches.live_bytes() <= most - request.bytes;
  if (may_fit && (state.gate.taken() || state.calls.give_backs.any())) {
    return {oom_cause::pending_work, "another thread's call of the driver", state.in_transit_bytes};
  }
  if (request.limit_refused && !request.device_refused && state.pool_budget.in_group())
    return {.cause = oom_cause::limit};
  const bool unlimited = state.pool_budget.limit() >= state.config.total_bytes;
  return {.cause = request.device_refused || unlimited ? oom_cause::device_full : oom_cause::limit};
}

/// Whether pool and device together had enough memory for the report's request, though neither had it alone.
bool is_fragmented(const oom_report& report) noexcept {
  if (report.cause != oom_cause::limit && report.cause != oom_cause::device_full) return false;
  const statistics& pool = report.pool_statistics;
  const auto left = [](std::uint64_t most, std::uint64_t held) { return most > held ? most - held : 0; };
  std::uint64_t outside = std::min(left(pool.limit_bytes, pool.reserved_bytes), report.device_free_bytes);
  if (!report.group.empty()) outside = std::min(outside, left(report.group_limit_bytes, report.group_held_bytes));
  const std::uint64_t inside = pool.cached_bytes + pool.fenced_bytes + pool.idle_bytes;
  return outside < report.rounded_bytes && inside + outside >= report.rounded_bytes;
}

/// The group's members, largest first.
std::vector<memory_holder> members_of(group_ledger& group) {
  std::vector<memory_holder> holders;
  for (const group_ledger::member& each : group.members()) {
    holders.push_back({static_cast<std::uint32_t>(each.pid), each.bytes, {}});
  }
  name_and_sort(holders);
  return holders;
}

}  // namespace

std::vector<memory_holder> other_holders(const device_info& card) {
  std::vector<memory_holder> holders;
  if (card.simulated) return holders;
  for (const gpu_process& each : nvml_processes(card.uuid)) {
    if (each.pid != static_cast<std::uint32_t>(::getpid()))
      holders.push_back({each.pid, each.used_bytes.value_or(0), {}});
  }
  name_and_sort(holders);
  return holders;
}

void explain(const arena_state& state, const pending_request& request, oom_report* report) {
  diagnosis found = diagnose(state, request);
  report->cause = found.cause;
  report->pending_on = std::move(found.pending_on);
  report->pending_bytes = found.pending_bytes;
  report->rounded_bytes = request.bytes;
  report->driver_message = request.driver_error.message();
}

void ask_device(const arena_state& state, arena_lock& lock, oom_report* report) {
  const unlocked_section driver_calls{lock};
  const std::shared_ptr<group_ledger>& group = state.config.group;
  // A job with no other process adds nothing: this process's own limit says the same.
  if (group && (!group->counts_measured() || group->held_by_others() != 0)) {
    report->group_is_job = group->counts_measured();
    report->group = group->name();
    report->group_limit_bytes = group->limit();
    report->group_held_bytes = group->held();
  }
  const result<memory_info> m = state.own_device.memory();
  report->device_total_bytes = m.ok() ? m->total_bytes : state.config.total_bytes;
  if (m.ok()) report->device_free_bytes = m->free_bytes;
  if (is_fragmented(*report)) report->cause = oom_cause::fragmentation;
  if (report->cause == oom_cause::device_full) report->holders = other_holders(state.own_device.info());
  if (report->cause == oom_cause::limit && group) report->holders = members_of(*group);
}

}  // namespace gpumem
