// The budget that a group's processes share on one device: a file in shared memory with one row of bytes per process.
//
// A member reserves in its own row before it asks the driver, with the whole file locked, so that check and reservation
// are atomic. The file stores no total; the sum of the rows is the total, so a member may be killed at any instruction.
// A row belongs to its owner while the kernel keeps the owner's lock on it. Rows of dead owners count as 0. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "checked_mutex.hpp"
#include "shared_folder.hpp"

namespace gpumem {

struct ledger_file;  // the layout, in group_ledger.cpp

/// The group's figures, for a pool's budget.
class shared_budget {
 public:
  virtual ~shared_budget() = default;
  [[nodiscard]] virtual bool reserve(std::uint64_t bytes) noexcept = 0;
  virtual void give_back(std::uint64_t bytes) noexcept = 0;
  [[nodiscard]] virtual std::uint64_t left() noexcept = 0;
};

class group_ledger final : public shared_budget {
 public:
  /// Joins group `name` on the device; the first member creates the ledger. Members must agree on the limit; a member
  /// without one uses the others'. A process has one membership per group and device, however often it joins.
  static result<std::shared_ptr<group_ledger>> join(const std::string& folder, const std::string& name,
                                                    const std::string& device_uuid,
                                                    std::optional<std::uint64_t> limit_bytes);
  /// `corrupt` if one of the group's ledgers, on any device, cannot be trusted. Does not join.
  static status inspect(const std::string& folder, const std::string& name);
  group_ledger(std::string name, std::string path, owned_fd file);
  ~group_ledger() override;
  group_ledger(const group_ledger&) = delete;
  group_ledger& operator=(const group_ledger&) = delete;

  [[nodiscard]] bool reserve(std::uint64_t bytes) noexcept override;
  void give_back(std::uint64_t bytes) noexcept override;
  /// The memory that the group may still take.
  [[nodiscard]] std::uint64_t left() noexcept override;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::uint64_t limit() const noexcept;
  /// The memory that all members hold.
  [[nodiscard]] std::uint64_t held() noexcept;

 private:
  status open_or_make(std::optional<std::uint64_t> limit_bytes);
  [[nodiscard]] bool here() const noexcept;
  [[nodiscard]] bool sound() noexcept GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] std::optional<std::uint64_t> sum(bool forget_dead) noexcept;

  std::string name_;
  std::string path_;
  owned_fd file_;
  ledger_file* map_ = nullptr;
  std::size_t row_;  ///< past the last row: none yet
  int process_;      ///< a forked child is not a member
  checked_mutex mutex_;
  bool said_ GPUMEM_GUARDED_BY(mutex_) = false;
};

}  // namespace gpumem
