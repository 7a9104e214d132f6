// PyTorch's memory history, its trackers, and annotations.
//
// The lock is recursive, because trackers run under it and may call the allocator. Callers hold no lock of the
// allocator.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "segments.hpp"

namespace native = c10::cuda::CUDACachingAllocator;
namespace caching = c10::CachingDeviceAllocator;
using caching::RecordContext;
using caching::TraceEntry;

inline thread_local std::vector<std::string> compile_contexts;
inline thread_local std::string user_metadata;

class history {
  using guard = std::lock_guard<std::recursive_mutex>;

 public:
  struct event {
    TraceEntry::Action action;
    c10::DeviceIndex device;
    std::size_t address = 0;
    std::size_t bytes = 0;
    void* stream = nullptr;
    pool_id pool = no_pool;
    context_ptr context{};
    const std::string* metadata = nullptr;  // null: use the text of `setUserMetadata`
    const char* tag = "";
  };

  void open(std::size_t devices) {
    const guard lock{mutex_};
    traces_.resize(devices);
  }
  /// True while history is recorded or a tracker is attached.
  [[nodiscard]] bool is_watched() const noexcept { return watched_; }
  [[nodiscard]] bool is_recording() const noexcept { return recording_; }
  [[nodiscard]] bool keeps(RecordContext level) const noexcept { return when_ >= level; }
  [[nodiscard]] context_ptr context_for(RecordContext level) const {
    if (!recording_ || when_ < level) return nullptr;
    return recorder_.load()();
  }

  void configure(bool enabled, native::CreateContextFn recorder, std::size_t max_entries, RecordContext when,
                 bool clear, const std::vector<std::string>& skipped_actions) {
    TORCH_CHECK(when == RecordContext::NEVER || recorder, "gpumem: no function that records contexts is given");
    const guard lock{mutex_};
    std::set<TraceEntry::Action> skipped;
    for (const std::string& each : skipped_actions) skipped.insert(caching::parseTraceEntryAction(each));
    skipped_ = std::move(skipped);
    recording_ = enabled;
    recorder_ = recorder;
    when_ = enabled ? when : RecordContext::NEVER;
    max_entries_ = std::max<std::size_t>(1, max_entries);
    if (!enabled || clear) {
      for (std::deque<TraceEntry>& each : traces_) each.clear();
      annotations_.clear();
    }
    watched_ = recording_ || !trackers_.empty();
  }
  void attach(caching::AllocatorTraceTracker tracker) {
    const guard lock{mutex_};
    trackers_.push_back(std::move(tracker));
    watched_ = true;
  }
  void annotate(const std::vector<std::pair<std::string, std::string>>& values) {
    const guard lock{mutex_};
    if (!recording_) return;
    caching::AnnotationEntry entry{c10::cuda::current_device(), c10::getApproximateTime()};
    for (const auto& [name, value] : values) entry.recordUserMetadata(name, value);
    annotations_.push_back(std::move(entry));
    if (annotations_.size() > max_entries_) annotations_.pop_front();
  }

  void record(event told) {
    if (!watched_) return;
    TraceEntry entry{told.action,
                     told.device,
                     told.address,
                     told.bytes,
                     told.stream,
                     told.pool,
                     c10::getApproximateTime(),
                     std::move(told.context),
                     compile_contexts.empty() ? "N/A" : compile_contexts.back(),
                     told.metadata != nullptr ? *told.metadata : user_metadata};
    set_tag(entry, told.tag);
    const guard lock{mutex_};
    for (const auto& each : trackers_) each(entry);
    if (!recording_ || skipped_.contains(told.action)) return;
    std::deque<TraceEntry>& trace = traces_[static_cast<std::size_t>(told.device)];
    trace.push_back(std::move(entry));
    if (trace.size() > max_entries_) trace.pop_front();
  }

  [[nodiscard]] std::vector<TraceEntry> trace_of(c10::DeviceIndex device) const {
    const guard lock{mutex_};
    const std::deque<TraceEntry>& trace = traces_[static_cast<std::size_t>(device)];
    return {trace.begin(), trace.end()};
  }
  [[nodiscard]] std::vector<caching::AnnotationEntry> annotations() const {
    const guard lock{mutex_};
    return {annotations_.begin(), annotations_.end()};
  }

 private:
  template <typename Entry>
  static void set_tag(Entry& entry, const char* tag) {
    if constexpr (requires { entry.internal_metadata_; }) entry.internal_metadata_ = tag;
  }

  mutable std::recursive_mutex mutex_;
  std::atomic<bool> recording_{false};
  std::atomic<bool> watched_{false};
  std::atomic<native::CreateContextFn> recorder_{nullptr};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  std::size_t max_entries_ = 1;
  std::set<TraceEntry::Action> skipped_;
  std::vector<std::deque<TraceEntry>> traces_;  // by device
  std::deque<caching::AnnotationEntry> annotations_;
  std::vector<caching::AllocatorTraceTracker> trackers_;
};
