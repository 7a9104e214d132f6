#include "flight_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace gpumem {

std::string_view to_string(slow_event kind) noexcept {
  constexpr std::array<std::string_view, 12> names{"segment_taken",     "segment_returned", "pages_taken",
                                                   "pages_moved",       "pages_returned",   "refused_by_limit",
                                                   "refused_by_device", "host_waited",      "thread_waited",
                                                   "callbacks_asked",   "request_refused",  "limit_set"};
  const auto index = static_cast<std::size_t>(kind);
  return index < names.size() ? names.at(index) : "unknown_event";
}

void flight_record::note(slow_event kind, std::uint64_t amount, std::uint64_t reserved_bytes) noexcept {
  (*events_)[noted_ % capacity] = {flight_time_ns(), amount, reserved_bytes, kind};
  ++noted_;
}

std::vector<flight_event> flight_record::latest(std::size_t most) const {
  const std::uint64_t count = std::min({noted_, std::uint64_t{capacity}, std::uint64_t{most}});
  std::vector<flight_event> events;
  events.reserve(count);
  for (std::uint64_t i = noted_ - count; i != noted_; ++i) events.push_back((*events_)[i % capacity]);
  return events;
}

std::uint64_t flight_time_ns() noexcept {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

std::string to_string(const flight_event& event, std::uint64_t now_ns) {
  const std::uint64_t age_ns = now_ns > event.time_ns ? now_ns - event.time_ns : 0;
  return fmt::format("-{}.{:06} s {} {}{} reserved {}", age_ns / 1'000'000'000, age_ns % 1'000'000'000 / 1000,
                     to_string(event.kind), event.amount, is_wait(event.kind) ? " ns" : "", event.reserved_bytes);
}

}  // namespace gpumem
