/// A share of a sweep's units, for batch systems that start one command many times.
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
  /// Part of file names; empty if there is one shard.
  [[nodiscard]] std::string label() const;
};

/// Parses `3/8`.
result<shard> parse_shard(std::string_view text);

/// The shard of a Slurm array task: SLURM_ARRAY_TASK_ID, _COUNT, _MIN and _STEP; `bad_setting` if they are
/// inconsistent. Empty if there is no array.
result<std::optional<shard>> shard_of_array(const std::function<const char*(const char*)>& variable);

/// Every `count`-th unit of the plan's order, so that each shard gets long and short units.
std::vector<std::uint32_t> units_of(const shard& share, const std::vector<std::uint32_t>& order);

}  // namespace gpumem::bench::sweep
