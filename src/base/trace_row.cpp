#include "trace_row.hpp"

#include <algorithm>

namespace gpumem {

std::uint64_t reachable_bytes(const oom_report& report) noexcept {
  const statistics& pool = report.pool_statistics;
  const std::uint64_t limit = std::max(pool.limit_bytes, pool.reserved_bytes);
  return pool.reserved_bytes + std::min(limit - pool.reserved_bytes, report.device_free_bytes);
}

std::string refusing_pool(std::string_view policy, std::uint64_t within_bytes) {
  const bool is_field = policy.find_first_of(",\n") == std::string_view::npos;
  return is_field ? fmt::format("{}@{}", policy, within_bytes) : std::string{"(nil)"};
}

}  // namespace gpumem
