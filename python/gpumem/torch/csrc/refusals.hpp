// Out of memory: PyTorch's message and gpumem's report, and the observers.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "figures.hpp"
#include "gpumem/refusal.hpp"
#include "state.hpp"

class refusals {
  using guard = adapter_state::guard;

 public:
  explicit refusals(adapter_state& state) : state_{state} {}

  void attach(native::OutOfMemoryObserver observer) {
    const guard lock{state_.mutex};
    observers_.push_back(std::move(observer));
  }
  // Throws PyTorch's own message, which programs look for, followed by gpumem's report.
  [[noreturn]] void refuse(device_state& state, const held_block& held, const refusal& why) {
    const std::string asked = "CUDA out of memory. Tried to allocate " + format_size(held.requested);
    std::vector<native::OutOfMemoryObserver> observers;
    {
      const guard lock{state_.mutex};
      ++state.stats.num_ooms;
      observers = observers_;
    }
    TORCH_CHECK_WITH(OutOfMemoryError, !why.allocator_refused, asked,
                     ". The custom allocator backing this MemPool returned nullptr. ",
                     "Check preceding allocator warnings or logs.");
    const bool has_report = why.report && why.report->cause != gpumem::oom_cause::none;
    const gpumem::oom_report report = has_report ? *why.report : limit_report(state, held.device, held.requested);
    state_.events.record(
        {TraceEntry::OOM, held.device, report.device_free_bytes, held.requested, held.stream, held.pool, held.context});
    const words said = words_of(state, report);
    if (c10::memoryProfilingEnabled()) {
      c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(held.requested), said.allocated, said.reserved,
                                       c10::Device(c10::DeviceType::CUDA, held.device));
    }
    for (const auto& each : observers) {
      each(held.device, held.requested, report.device_total_bytes, report.device_free_bytes);
    }
    gpumem::report_refusal(report, held.device, "a tensor");
    TORCH_CHECK_WITH(OutOfMemoryError, false, asked, ". GPU ", static_cast<int>(held.device),
                     " has a total capacity of ", format_size(report.device_total_bytes), " of which ",
                     format_size(report.device_free_bytes), " is free. ", said.text, "\ngpumem: ", report.to_string());
    std::abort();
  }

 private:
  struct words {
    std::uint64_t allocated = 0;
    std::uint64_t reserved = 0;
    std::string text;
  };
  // Idle memory of a pool serves only that pool, so it counts as allocated, as in native.
  words words_of(const device_state& state, const gpumem::oom_report& report) const {
    const memory_totals counted = device_figures{state_}.totals(state, report.pool_statistics);
    words said{.allocated = counted.pool_bytes - counted.pool_live_bytes,
               .reserved = report.pool_statistics.reserved_bytes + state.own_bytes()};
    {
      const guard lock{state_.mutex};
      said.allocated += static_cast<std::uint64_t>(state.stats.allocated_bytes[every_pool].current);
    }
    const std::uint64_t limit = state.limit.bytes();
    if (limit < report.device_total_bytes) said.text = format_size(limit) + " allowed; ";
    said.text += "Of the allocated memory " + format_size(said.allocated) + " is allocated by PyTorch, ";
    if (counted.pool_bytes != 0) {
      said.text += "with " + format_size(counted.pool_bytes) + " allocated in private pools (e.g., CUDA Graphs), ";
    }
    said.text += "and " + format_size(said.reserved - std::min(said.reserved, said.allocated)) +
                 " is reserved by PyTorch but unallocated.";
    return said;
  }
  /// Reports that the limit has no room beside gpumem's memory.
  static gpumem::oom_report limit_report(const device_state& state, DeviceIndex device, std::size_t bytes) {
    gpumem::oom_report report{.cause = gpumem::oom_cause::limit,
                              .pool = std::to_string(state.logical),
                              .policy = memory().devices()[static_cast<std::size_t>(state.logical)].policy,
                              .requested_bytes = bytes,
                              .rounded_bytes = own_blocks::rounded(bytes),
                              .pool_statistics = device_figures::of(state)};
    std::tie(report.device_free_bytes, report.device_total_bytes) = device_figures::driver_memory(device);
    return report;
  }

  adapter_state& state_;
  std::vector<native::OutOfMemoryObserver> observers_;
};
