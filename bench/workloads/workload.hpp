/// Workloads generated from a seed, as traces: cases that recordings do not show, or show only in part.
///
/// A workload is spelled like a row: a name and options, `training,ops=200000,peak=4GiB`. The same text and seed give
/// the same operations on every machine. README.md of this folder describes the origin of each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/status.hpp"
#include "random_numbers.hpp"
#include "trace.hpp"

namespace gpumem::bench {

struct workload_shape {
  std::uint64_t ops = 100'000;         ///< approximate; a workload ends with a whole step
  std::uint64_t peak_bytes = 1 << 30;  ///< approximate peak of live
  std::uint64_t seed = 1;
  unsigned streams = 4;  ///< for workloads with several
  unsigned tenants = 3;
  std::string like;  ///< `random`: the bundled trace whose sizes and lifetimes are fitted
};

struct workload_entry {
  std::string_view name;
  std::string_view description;
};
const std::vector<workload_entry>& known_workloads();

/// `seed` applies if the text names none. `bad_setting` names the text and the expected form.
result<trace> make_workload(std::string_view text, std::uint64_t seed);

/// Appends operations 5 us apart, or later after a pause, and assigns slots as for a recording.
class trace_builder {
 public:
  explicit trace_builder(unsigned streams = 1);
  /// Returns the block's slot.
  std::uint32_t allocate(std::uint64_t bytes, std::uint16_t stream = 0);
  void free(std::uint32_t slot) { free(slot, streams_[slot]); }
  void free(std::uint32_t slot, std::uint16_t on_stream);
  /// The program reads a result from the device, or a file, so all work is done before its next operation: 100 ms
  /// pass, more than a replay's `--lag` and the time of its driver calls.
  void wait_for_device() noexcept { waited_ns_ += 100'000'000; }
  /// The next operation comes at this time, or 5 us after the last one if that is later.
  void not_before(std::uint64_t time_ns) noexcept { waited_ns_ += time_ns - std::min(time_ns, next_ns()); }
  [[nodiscard]] std::uint64_t next_ns() const noexcept { return made_.ops.size() * op_ns + waited_ns_; }
  [[nodiscard]] std::uint64_t ops() const noexcept { return made_.ops.size(); }
  [[nodiscard]] std::uint64_t live_bytes() const noexcept { return live_bytes_; }
  [[nodiscard]] trace done(std::string name) &&;

 private:
  void add(op_kind kind, std::uint64_t bytes, std::uint32_t slot, std::uint16_t stream);

  static constexpr std::uint64_t op_ns = 5'000;

  trace made_;
  std::vector<std::uint64_t> sizes_;    ///< by slot; 0 if free
  std::vector<std::uint16_t> streams_;  ///< by slot
  std::vector<std::uint32_t> free_slots_;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t waited_ns_ = 0;
};

// One function a workload; `name` becomes the trace's name.
trace random_workload(const workload_shape& shape, const trace& like);
trace training_workload(const workload_shape& shape);
trace epochs_workload(const workload_shape& shape);
trace serving_workload(const workload_shape& shape);
trace robson_workload(const workload_shape& shape);
trace pipeline_workload(const workload_shape& shape);
trace tenants_workload(const workload_shape& shape);

}  // namespace gpumem::bench
