// The latest events of an arena's slow path, for out-of-memory reports and `gpumem dump`: memory taken, given back or
// refused, waits of the host, changes of the limit.
//
// Always kept. Guarded by the arena's lock, which the slow path holds anyway, so a hit costs nothing. Takes its host
// memory when it is made, and none later.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gpumem {

enum class slow_event : std::uint8_t {
  segment_taken,
  segment_returned,
  pages_taken,
  pages_moved,  ///< from idle addresses to others
  pages_returned,
  refused_by_limit,   ///< the policy's wish for memory
  refused_by_device,  ///< the same
  host_waited,        ///< for work on the device
  thread_waited,      ///< for another thread's call of the driver
  callbacks_asked,    ///< those for out of memory
  request_refused,    ///< the program's
  limit_set,
};
std::string_view to_string(slow_event kind) noexcept;

/// The unit of `flight_event::amount`.
[[nodiscard]] constexpr bool is_wait(slow_event kind) noexcept {
  return kind == slow_event::host_waited || kind == slow_event::thread_waited;
}

struct flight_event {
  std::uint64_t time_ns = 0;         ///< of the steady clock
  std::uint64_t amount = 0;          ///< bytes, or nanoseconds of a wait
  std::uint64_t reserved_bytes = 0;  ///< of the pool, after the event
  slow_event kind = slow_event::segment_taken;
};

class flight_record {
 public:
  static constexpr std::size_t capacity = 1000;

  void note(slow_event kind, std::uint64_t amount, std::uint64_t reserved_bytes) noexcept;
  /// The latest `most` events, the oldest first.
  [[nodiscard]] std::vector<flight_event> latest(std::size_t most = capacity) const;
  /// Of all events since the arena exists.
  [[nodiscard]] std::uint64_t noted() const noexcept { return noted_; }

 private:
  std::unique_ptr<std::array<flight_event, capacity>> events_ = std::make_unique<std::array<flight_event, capacity>>();
  std::uint64_t noted_ = 0;
};

/// Nanoseconds of the clock of `flight_event::time_ns`.
[[nodiscard]] std::uint64_t flight_time_ns() noexcept;

/// `-1.250000 s segment_taken 2097152 reserved 4194304`: the time relative to `now_ns`, waits in ns.
[[nodiscard]] std::string to_string(const flight_event& event, std::uint64_t now_ns);

}  // namespace gpumem
