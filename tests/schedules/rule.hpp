/// The rules that every schedule must keep.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpumem::schedules {

enum class rule : std::uint8_t {
  ends,          ///< no thread waits for ever
  hazards,       ///< the referee of the simulated device sees no early reuse
  refusals,      ///< a request is refused only if the memory is in use, or unavailable by a rule
  growth,        ///< no segment is taken while an idle one serves the request
  deadline,      ///< a request waits no longer than GPUMEM_FREE_WAIT
  no_wait,       ///< other calls wait for no call of another thread
  captures,      ///< no capture is invalidated
  answers,       ///< no call fails without a reason, and `check` finds nothing
  conservation,  ///< when everything is free and done, all memory goes back
  peak,          ///< peak_live_bytes is at most the largest number of bytes that were live at once
  count_
};
std::string_view to_string(rule name) noexcept;

struct violation {
  rule broken = rule::ends;
  std::string message;
};

/// SCHEDULE_IGNORES lists rules to ignore, such as that of a known fault.
bool ignores(rule name) noexcept;

}  // namespace gpumem::schedules
