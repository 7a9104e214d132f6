/// Records the requests under `planned:record` and `planned:renew`, and makes a plan of them when the program ends.
///
/// Any thread; one mutex. Keeps 16 bytes per allocation and per free, up to a limit; then recording stops, and the plan
/// covers the requests so far.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocation_recorder.hpp"
#include "checked_mutex.hpp"
#include "step.hpp"

namespace gpumem {

class plan_recorder final : public allocation_recorder {
 public:
  /// When to write the plan. A run without allocations never writes one.
  enum class writes : std::uint8_t {
    always,          ///< `planned:record`
    where_departed,  ///< `planned:renew`: there was no plan, or the run departed from it and a new plan would differ
  };
  static constexpr std::size_t most_ops = std::size_t{1} << 26;              ///< for a run made for recording: 1 GiB
  static constexpr std::size_t most_ops_of_each_run = std::size_t{1} << 22;  ///< if every run is recorded: 64 MiB
  /// A run follows its plan closely if at most one request in this many departs from it.
  static constexpr std::uint64_t requests_a_departure = 100;
  /// The longest time that the end of the program may wait for the plan.
  static constexpr std::chrono::milliseconds time_limit{10'000};

  /// Records for a plan at `path`; `bad_setting` if it cannot be written.
  static result<std::unique_ptr<allocation_recorder>> open(std::string path, writes when, std::size_t most,
                                                           stream_reuse reuse = stream_reuse::poll);

  void allocated(address begin, std::uint64_t requested_bytes, stream_ref user_stream) noexcept override;
  void freed(address begin, std::uint64_t requested_bytes, stream_ref stream) noexcept override;
  status flush() override { return {}; }
  /// Makes and writes the plan, once.
  status finish(const std::function<statistics()>& at_end) override;

 private:
  plan_recorder(std::string path, writes when, std::size_t most, stream_reuse reuse)
      : path_{std::move(path)}, when_{when}, most_{most}, reuse_{reuse} {}
  [[nodiscard]] const char* policy_name() const noexcept;
  bool room() GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] bool stays(const statistics& at_end, const std::vector<plan::recorded_op>& ops) const;
  [[nodiscard]] status write_plan_of(const std::vector<plan::recorded_op>& ops) const;

  const std::string path_;
  const writes when_;
  const std::size_t most_;
  const stream_reuse reuse_;
  checked_mutex mutex_;
  std::vector<plan::recorded_op> ops_ GPUMEM_GUARDED_BY(mutex_);
  std::unordered_map<address, std::uint32_t> blocks_ GPUMEM_GUARDED_BY(mutex_);  ///< live blocks and their numbers
  std::unordered_map<void*, std::uint16_t> streams_ GPUMEM_GUARDED_BY(mutex_);
  std::uint32_t next_block_ GPUMEM_GUARDED_BY(mutex_) = 0;
  bool full_ GPUMEM_GUARDED_BY(mutex_) = false;
  bool finished_ GPUMEM_GUARDED_BY(mutex_) = false;
};

}  // namespace gpumem
