/// A share of a sweep's units, for batch systems that start the same command many times.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::bench::sweep {

struct shard {
  unsigned index = 1;  ///< from 1 to `count`
  unsigned count = 1;
  /// Of files; empty where there is but one.
  [[nodiscard]] std::string label() const;
};

/// `3/8`.
result<shard> parse_shard(std::string_view text);

/// Of a Slurm array's task: SLURM_ARRAY_TASK_ID, _COUNT, _MIN and _STEP; `bad_setting` where they make no sense.
/// Nothing where there is no array.
result<std::optional<shard>> shard_of_array(const std::function<const char*(const char*)>& variable);

/// Every `count`-th of the plan's order: all shards get long and short units alike.
std::vector<std::uint32_t> units_of(const shard& which, const std::vector<std::uint32_t>& order);

}  // namespace gpumem::bench::sweep
