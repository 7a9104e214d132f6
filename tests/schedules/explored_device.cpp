#include "explored_device.hpp"

#include <algorithm>
#include <utility>

#include "throwing/host_memory.hpp"

namespace gpumem::schedules {
namespace {

constexpr std::uint64_t longest_pause_ns = 1'000'000;

sim_config without_costs(sim_config card) {
  card.costs = {};
  return card;
}

}  // namespace

explored_device::explored_device(sim_config card, bool reports_captures)
    : card_{without_costs(std::move(card))}, info_{card_.info()} {
  info_.reports_captures = reports_captures;
}

template <typename Call>
auto explored_device::make(const Call& call) -> decltype(call()) {
  const host_memory::unwatched uncounted;
  scheduler* const schedule = scheduler::current();
  ++calls_under_way_;
  if (schedule != nullptr) schedule->point();
  excuse_earlier_operation();
  auto outcome = scheduler::atomically(call);
  --calls_under_way_;
  if (schedule != nullptr) schedule->point();
  return outcome;
}

// The simulated device's own wait would move its clock past other threads.
template <typename Call>
auto explored_device::make_when_idle(const Call& call) -> decltype(call()) {
  const host_memory::unwatched uncounted;
  scheduler* const schedule = scheduler::current();
  if (schedule == nullptr) return call();
  schedule->point();
  excuse_earlier_operation();
  const std::uint64_t begin = schedule->now();
  while (!captures_strictly() && latest_work_ns_ > schedule->now()) {
    wait_until(latest_work_ns_);
    excuse_earlier_operation();
  }
  unlimited_ns_[schedule->thread() % unlimited_ns_.size()] += schedule->now() - begin;
  auto outcome = scheduler::atomically(call);
  schedule->point();
  return outcome;
}

void explored_device::wait_until(std::uint64_t ns) {
  scheduler* const schedule = scheduler::current();
  if (schedule == nullptr || ns <= schedule->now()) return;
  const std::uint64_t begin = schedule->now();
  ++waits_under_way_;
  schedule->sleep_until(ns);
  --waits_under_way_;
  waited_ns_[schedule->thread() % waited_ns_.size()] += schedule->now() - begin;
}

// --- the program's part ----------------------------------------------------------------------------------------

void explored_device::enqueue(stream_ref stream, std::uint64_t lag_ns, address begin, std::uint64_t bytes) {
  const std::uint64_t time_ns = card_.now_ns();
  std::uint64_t& tail = tails_ns_[stream.handle];
  tail = std::max(tail, time_ns + lag_ns);
  latest_work_ns_ = std::max(latest_work_ns_, tail);
  if (bytes == 0) return card_.enqueue(stream, lag_ns);
  card_.enqueue_use(stream, lag_ns, begin, bytes);
}

std::uint64_t explored_device::all_done_ns() const noexcept { return latest_work_ns_; }

void explored_device::drain_queue(stream_ref stream) {
  full_until_.erase(stream.handle);
  if (scheduler* const schedule = scheduler::from_thread()) schedule->wake(&full_until_);
}

status explored_device::begin_capture(stream_ref stream) {
  status begun = card_.begin_capture(stream);
  if (begun) captures_[stream.handle] = {++latest_capture_, true, true};
  return begun;
}

void explored_device::begin_strictly(stream_ref stream) {
  const auto found = captures_.find(stream.handle);
  if (found == captures_.end() || found->second.is_strict || calls_under_way_ + waits_under_way_ != 0) return;
  found->second.is_strict = card_.begin_capture(stream).ok();
  found->second.strict_since = ++latest_begin_;
}

void explored_device::begin_operation() {
  const scheduler* const schedule = scheduler::from_thread();
  operation_begin_[schedule->thread() % operation_begin_.size()] = ++latest_begin_;
}

void explored_device::excuse_earlier_operation() {
  const scheduler* const schedule = scheduler::current();
  if (schedule == nullptr) return;
  const std::uint64_t begin = operation_begin_[schedule->thread() % operation_begin_.size()];
  for (auto& each : captures_) {
    capture_state& capture = each.second;
    if (!capture.is_strict || capture.is_told || capture.strict_since < begin) continue;
    capture.is_strict = false;
    scheduler::atomically([&] { static_cast<void>(card_.end_capture({each.first})); });
  }
}

bool explored_device::captures_strictly() const noexcept {
  return std::ranges::any_of(captures_, [](const auto& each) { return each.second.is_strict; });
}

bool explored_device::captures_as_told() const noexcept {
  return std::ranges::any_of(captures_, [](const auto& each) { return each.second.is_told; });
}

status explored_device::end_capture(stream_ref stream) {
  // The captured work runs once, now.
  latest_work_ns_ = std::max(latest_work_ns_, tails_ns_[stream.handle]);
  const bool is_strict = captures_[stream.handle].is_strict;
  captures_.erase(stream.handle);
  return is_strict ? card_.end_capture(stream) : status{};
}

void explored_device::destroy_graph(std::uint64_t capture) {
  const auto [first, last] = watched_graphs_.equal_range(capture);
  for (auto each = first; each != last; ++each) each->second();
  watched_graphs_.erase(first, last);
}

std::uint64_t explored_device::capture_of(stream_ref stream) const noexcept {
  const auto found = captures_.find(stream.handle);
  return found == captures_.end() ? 0 : found->second.id;
}

stream_ref explored_device::create_stream() {
  const stream_ref made = card_.create_stream();
  streams_.insert(made.handle);
  return made;
}

status explored_device::destroy_stream(stream_ref stream) {
  streams_.erase(stream.handle);
  full_until_.erase(stream.handle);
  tails_ns_.erase(stream.handle);
  return card_.destroy_stream(stream);
}

void explored_device::fail_nth(device_call call, std::uint64_t count, errc code) { card_.fail_nth(call, count, code); }

// --- memory ----------------------------------------------------------------------------------------------------

result<address> explored_device::do_alloc(std::uint64_t bytes) {
  return make([&] {
    if (witness_ != nullptr) witness_->asks_segment(*this, bytes);
    result<address> begin = card_.alloc(bytes);
    if (begin && witness_ != nullptr) witness_->took_segment(*this, *begin, bytes);
    return begin;
  });
}

status explored_device::do_free(address segment) {
  return make_when_idle([&] {
    status done = card_.free(segment);
    if (done && witness_ != nullptr) witness_->returned_segments(*this, segment, 1);
    return done;
  });
}

result<address> explored_device::do_alloc_host(std::uint64_t bytes) {
  return make([&] { return card_.alloc_host(bytes); });
}
status explored_device::do_free_host(address segment) {
  return make([&] { return card_.free_host(segment); });
}
result<address> explored_device::do_reserve(std::uint64_t bytes) {
  return make([&] { return card_.reserve(bytes); });
}
status explored_device::do_release_range(address range, std::uint64_t bytes) {
  return make([&] { return card_.release_range(range, bytes); });
}
result<page_run> explored_device::do_create(std::uint64_t bytes) {
  return make([&] { return card_.create(bytes); });
}
status explored_device::do_destroy(page_run pages) {
  return make([&] { return card_.destroy(pages); });
}
status explored_device::do_map(address begin, std::uint64_t bytes, page_run pages) {
  return make([&] {
    status mapped = card_.map(begin, bytes, pages);
    if (mapped && witness_ != nullptr) witness_->took_segment(*this, begin, bytes);
    return mapped;
  });
}
status explored_device::do_set_access(address begin, std::uint64_t bytes) {
  return make([&] { return card_.set_access(begin, bytes); });
}
status explored_device::do_unmap(address begin, std::uint64_t bytes) {
  return make([&] {
    status unmapped = card_.unmap(begin, bytes);
    if (unmapped && witness_ != nullptr) witness_->returned_segments(*this, begin, bytes);
    return unmapped;
  });
}
result<memory_info> explored_device::do_memory() {
  return make([&] { return card_.memory(); });
}

// --- fences and streams ----------------------------------------------------------------------------------------

void explored_device::wait_for_queue(stream_ref stream) {
  scheduler* const schedule = scheduler::current();
  if (schedule == nullptr) return;
  schedule->point();
  const std::uint64_t begin = schedule->now();
  for (;;) {
    const auto full = full_until_.find(stream.handle);
    if (full == full_until_.end() || full->second <= schedule->now()) break;
    static_cast<void>(schedule->wait("full queue", &full_until_, full->second));
  }
  waited_ns_[schedule->thread() % waited_ns_.size()] += schedule->now() - begin;
  unlimited_ns_[schedule->thread() % unlimited_ns_.size()] += schedule->now() - begin;
}

result<fence> explored_device::do_record(stream_ref stream) {
  wait_for_queue(stream);
  return make([&] { return card_.record(stream); });
}

result<fence> explored_device::do_record_context() {
  return make([&] { return card_.record_context(); });
}

result<bool> explored_device::do_query(fence awaited) {
  return make([&] { return card_.query(awaited); });
}

// While a stream captures, the call fails at once. One that began before the capture only ends.
status explored_device::do_wait_host(fence awaited) {
  scheduler* const schedule = scheduler::current();
  if (schedule != nullptr) schedule->point();
  const result<std::uint64_t> done = scheduler::atomically([&] { return card_.done_ns(awaited); });
  if (schedule == nullptr || !done || captures_strictly()) {
    return make([&] { return card_.wait_host(awaited); });
  }
  wait_until(*done);
  return make([&]() -> status { return card_.query(awaited).why(); });
}

// Queries the fences at intervals, like the CUDA device, and after each step of another thread.
result<bool> explored_device::do_wait_any(std::span<const fence> fences, std::uint64_t most_ns,
                                          const std::function<bool()>& stop) {
  scheduler* const schedule = scheduler::current();
  if (schedule == nullptr) return card_.wait_any(fences, most_ns, stop);
  schedule->point();
  // The driver allows a thread in relaxed mode to query fences of streams that do not capture. An allocator that was
  // told of the capture must not even do that.
  if (captures_as_told()) {
    return make([&] { return card_.wait_any(fences, 0, stop); });
  }
  const std::uint64_t begin = schedule->now();
  const std::uint64_t end = most_ns < no_deadline - begin ? begin + most_ns : no_deadline;
  result<bool> outcome = false;
  ++waits_under_way_;
  for (;;) {
    std::uint64_t next = no_deadline;
    outcome = scheduler::atomically([&]() -> result<bool> {
      const host_memory::unwatched uncounted;
      for (const fence each : fences) {
        const result<bool> done = card_.query(each);
        if (!done || *done) return done;
        next = std::min(next, *card_.done_ns(each));
      }
      return false;
    });
    if (!outcome || *outcome || schedule->now() >= end || stop()) break;
    static_cast<void>(schedule->wait("fences", &tails_ns_, std::min({next, end, schedule->now() + longest_pause_ns})));
  }
  --waits_under_way_;
  waited_ns_[schedule->thread() % waited_ns_.size()] += schedule->now() - begin;
  return outcome;
}

void explored_device::look_again() {
  if (scheduler* const schedule = scheduler::from_thread()) schedule->wake(&tails_ns_);
}

std::uint64_t explored_device::do_clock_ns() const noexcept {
  return scheduler::atomically([&] { return card_.clock_ns(); });
}

status explored_device::do_wait_stream(stream_ref waiter, fence awaited) {
  wait_for_queue(waiter);
  return make([&] {
    const result<std::uint64_t> done = card_.done_ns(awaited);
    status ordered = card_.wait_stream(waiter, awaited);
    if (ordered && done) {
      std::uint64_t& tail = tails_ns_[waiter.handle];
      tail = std::max(tail, *done);
    }
    return ordered;
  });
}

void explored_device::do_drop(fence awaited) noexcept {
  const host_memory::unwatched uncounted;
  scheduler::atomically([&] { card_.drop(awaited); });
}

result<std::uint64_t> explored_device::do_stream_id(stream_ref stream) {
  return make([&]() -> result<std::uint64_t> {
    for (explored_device* const each : peers_) {
      if (!each->streams_.contains(stream.handle)) continue;
      const result<std::uint64_t> id = each->card_.stream_id(stream);
      if (id) return *id | static_cast<std::uint64_t>(each->info_.ordinal) << 32;
    }
    return card_.stream_id(stream);
  });
}

result<std::uint64_t> explored_device::do_capture_id(stream_ref stream) {
  return make([&]() -> result<std::uint64_t> { return capture_of(stream); });
}

status explored_device::do_watch_graph(stream_ref capturing, std::function<void()> destroyed) {
  return make([&]() -> status {
    const std::uint64_t capture = capture_of(capturing);
    if (capture == 0 || !info_.reports_captures) return {errc::unsupported, "the stream captures nothing"};
    watched_graphs_.emplace(capture, std::move(destroyed));
    return {};
  });
}

status explored_device::do_synchronize() {
  return make_when_idle([&] { return card_.synchronize(); });
}

}  // namespace gpumem::schedules
