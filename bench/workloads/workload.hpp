/// Workloads made from a seed, as traces: what no recording shows, or shows only in part.
///
/// A workload is spelled like a row: a name and options, `training,ops=200000,peak=4GiB`. The same text and seed give
/// the same operations on every machine. README.md of this folder says what each one is modelled on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/status.hpp"
#include "random_numbers.hpp"
#include "trace.hpp"

namespace gpumem::bench {

struct workload_shape {
  std::uint64_t ops = 100'000;         ///< about so many; a workload ends with a whole step
  std::uint64_t peak_bytes = 1 << 30;  ///< about what is live at the most
  std::uint64_t seed = 1;
  unsigned streams = 4;  ///< of those with several
  unsigned tenants = 3;
  std::string like;  ///< of `random`: the bundled trace whose sizes and lifetimes are fitted
};

struct workload_entry {
  std::string_view name;
  std::string_view what;
};
const std::vector<workload_entry>& known_workloads();

/// `seed` where the text names none. `bad_setting` names the text and what was expected.
result<trace> make_workload(std::string_view text, std::uint64_t seed);

/// Operations one after the other, 5 us apart, with slots handed out as a recording's are.
class trace_builder {
 public:
  explicit trace_builder(unsigned streams = 1);
  /// The block's slot.
  std::uint32_t allocate(std::uint64_t bytes, std::uint16_t stream = 0);
  void free(std::uint32_t slot) { free(slot, streams_[slot]); }
  void free(std::uint32_t slot, std::uint16_t on_stream);
  [[nodiscard]] std::uint64_t ops() const noexcept { return made_.ops.size(); }
  [[nodiscard]] std::uint64_t live_bytes() const noexcept { return live_bytes_; }
  [[nodiscard]] trace done(std::string name) &&;

 private:
  void add(op_kind kind, std::uint64_t bytes, std::uint32_t slot, std::uint16_t stream);
  trace made_;
  std::vector<std::uint64_t> sizes_;    ///< by slot; 0 while it is free
  std::vector<std::uint16_t> streams_;  ///< by slot
  std::vector<std::uint32_t> free_slots_;
  std::uint64_t live_bytes_ = 0;
};

// One function a workload; `name` is what the trace is called.
trace random_workload(const workload_shape& shape, const trace& like);
trace training_workload(const workload_shape& shape);
trace epochs_workload(const workload_shape& shape);
trace serving_workload(const workload_shape& shape);
trace robson_workload(const workload_shape& shape);
trace pipeline_workload(const workload_shape& shape);
trace tenants_workload(const workload_shape& shape);

}  // namespace gpumem::bench
