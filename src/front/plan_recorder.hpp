/// The policy `planned:record`: what the program asks for, made into a plan when it ends.
///
/// Any thread; one mutex. 16 bytes are kept for each allocation and each free, for `most_ops` of them; then recording
/// ends, and the plan is of what came before.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocation_recorder.hpp"
#include "step.hpp"

namespace gpumem {

class plan_recorder final : public allocation_recorder {
 public:
  static constexpr std::size_t most_ops = std::size_t{1} << 26;  ///< 1 GiB of them
  /// How long the end of the program may wait for its plan.
  static constexpr std::chrono::milliseconds time_limit{10'000};

  /// The plan will be written to `path`, or to `default_path` where that is empty; `bad_setting` where it cannot be.
  static result<std::unique_ptr<allocation_recorder>> open(std::string path, std::size_t most = most_ops);
  static constexpr const char* default_path = "gpumem.plan";

  void allocated(address at, std::uint64_t requested_bytes, stream_ref s) noexcept override;
  void freed(address at, std::uint64_t requested_bytes, stream_ref s) noexcept override;
  status flush() override { return {}; }
  /// Makes the plan and writes it; once.
  status finish() override;

 private:
  plan_recorder(std::string path, std::size_t most) : path_{std::move(path)}, most_{most} {}
  bool room();
  [[nodiscard]] status write_plan_of(const std::vector<plan::recorded_op>& ops) const;

  const std::string path_;
  const std::size_t most_;
  std::mutex mutex_;
  std::vector<plan::recorded_op> ops_;
  std::unordered_map<address, std::uint32_t> blocks_;  ///< live ones, numbered
  std::unordered_map<void*, std::uint16_t> streams_;
  std::uint32_t next_block_ = 0;
  bool full_ = false;
  bool finished_ = false;
};

}  // namespace gpumem
