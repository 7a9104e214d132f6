// The latest slow-path events of an arena, for out-of-memory reports and `gpumem dump`: memory taken, given back or
// refused, host waits, changes of the limit.
//
// Always on. The arena's lock guards it, and the slow path holds that lock anyway, so a hit costs nothing. Takes all of
// its host memory at construction.
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
  refused_by_limit,   ///< memory that the policy asked for
  refused_by_device,  ///< the same
  host_waited,        ///< for work on the device
  thread_waited,      ///< for another thread's call of the driver
  callbacks_asked,    ///< the out-of-memory callbacks
  request_refused,    ///< a request of the program
  limit_set,
};
std::string_view to_string(slow_event kind) noexcept;

/// True if `flight_event::amount` is in nanoseconds, false if in bytes.
[[nodiscard]] constexpr bool is_wait(slow_event kind) noexcept {
  return kind == slow_event::host_waited || kind == slow_event::thread_waited;
}

struct flight_event {
  std::uint64_t time_ns = 0;         ///< steady clock
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
  /// The number of events since the arena was created.
  [[nodiscard]] std::uint64_t noted() const noexcept { return noted_; }

 private:
  std::unique_ptr<std::array<flight_event, capacity>> events_ = std::make_unique<std::array<flight_event, capacity>>();
  std::uint64_t noted_ = 0;
};

/// The current time on the clock of `flight_event::time_ns`.
[[nodiscard]] std::uint64_t flight_time_ns() noexcept;

/// `-1.250000 s segment_taken 2097152 reserved 4194304`: the time relative to `now_ns`, waits in ns.
[[nodiscard]] std::string to_string(const flight_event& event, std::uint64_t now_ns);

}  // namespace gpumem
