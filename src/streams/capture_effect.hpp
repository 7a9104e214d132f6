#pragma once

#include <cstdint>

namespace gpumem {

/// The calls that a pool must not make while a capture is under way.
enum class capture_effect : std::uint8_t {
  announced,  ///< reported before it begins: no event on the context; no fence is queried or waited for
  noticed,    ///< gpumem may see its end late: no event on the context; other streams' fences go on
  foreign,    ///< on another device: no event on that device's contexts
};

}  // namespace gpumem
