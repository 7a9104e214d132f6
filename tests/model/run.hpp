/// Runs a list of operations against an allocator over a simulated device, and checks it after each one.
///
/// The allocator is the one under test, or a wrapped one with a planted bug. The checks rely on the naive heap and on
/// the simulated device, never on the product's own arithmetic.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "operation.hpp"

namespace gpumem::model {

/// One way to set an allocator up.
struct configuration {
  std::string policy = "growth";
  std::string limit;  ///< as GPUMEM_LIMIT; empty: none
  std::string pools;  ///< as GPUMEM_POOLS; empty: one pool
  stream_reuse reuse = stream_reuse::device;
  stream_id_mode stream_ids = stream_id_mode::query;
  bool with_faults = false;
  bool thread_cache = true;

  [[nodiscard]] unsigned pool_count() const noexcept { return pools.empty() ? 1 : 2; }
  /// `growth, limit 40%, pools a:50%,b:100MiB, reuse poll, ids notify`.
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] result<settings> to_settings() const;
  friend std::ostream& operator<<(std::ostream& out, const configuration& c) { return out << c.to_string(); }
};

inline constexpr std::uint64_t capacity_bytes = std::uint64_t{256} << 20;

struct failure {
  unsigned operation = 0;  ///< its number; 0 for the end of the run
  std::string what;
};

using opener = std::function<result<std::unique_ptr<allocator>>(sim_device& on, const settings& with)>;
/// The allocator under test.
result<std::unique_ptr<allocator>> open_product(sim_device& on, const settings& with);

/// The first disagreement; empty if there is none.
std::optional<failure> run(const configuration& with, const std::vector<operation>& operations,
                           const opener& open = open_product);

/// Runs `count` random operations of `seed`. On failure returns a report: seed, configuration, the command that repeats
/// it, the failure, and the smallest failing list.
std::optional<std::string> run_and_shrink(const configuration& with, std::uint64_t seed, unsigned count,
                                          const opener& open = open_product);

}  // namespace gpumem::model
