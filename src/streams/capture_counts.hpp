// The captures under way on the device, by their effect on fences, and the permits for events on the whole context.
//
// The pool's lock guards everything.
#pragma once

#include <array>
#include <cstddef>

#include "capture_effect.hpp"

namespace gpumem {

class capture_counts {
 public:
  void begin(capture_effect effect) noexcept { ++under_way_[static_cast<std::size_t>(effect)]; }
  void end(capture_effect effect) noexcept { --under_way_[static_cast<std::size_t>(effect)]; }
  /// The number of captures under way on the device. During a capture no event is recorded on its context and nothing
  /// is given back.
  [[nodiscard]] unsigned local() const noexcept {
    return count(capture_effect::announced) + count(capture_effect::noticed);
  }
  /// True while an announced capture is under way: no fence is queried or waited for.
  [[nodiscard]] bool pause_fences() const noexcept { return count(capture_effect::announced) != 0; }
  /// True while a capture is under way on another device, whose contexts then get no event.
  [[nodiscard]] bool any_foreign() const noexcept { return count(capture_effect::foreign) != 0; }
  /// The number of `context_events` objects of the thread that holds the pool's lock.
  [[nodiscard]] unsigned& context_event_permits() noexcept { return permits_; }
  [[nodiscard]] bool permit_context_events() const noexcept { return permits_ != 0; }

 private:
  [[nodiscard]] unsigned count(capture_effect effect) const noexcept {
    return under_way_[static_cast<std::size_t>(effect)];
  }

  std::array<unsigned, 3> under_way_{};
  unsigned permits_ = 0;
};

/// While it lives, its thread may record events on the whole context even if an unnoticed capture may be under way.
class context_events {
 public:
  explicit context_events(capture_counts& captures) noexcept : permits_{captures.context_event_permits()} {
    ++permits_;
  }
  ~context_events() { --permits_; }
  context_events& operator=(context_events&&) = delete;

 private:
  unsigned& permits_;
};

}  // namespace gpumem
