// The budget that a group's processes share on one device: who holds how many bytes, in one file in shared memory.
//
// A member reserves before it asks the driver, in its own row and with the whole file locked, so that there is no
// moment between the check and the act. The file has no total: what is held is the sum of the rows, so that a member
// may be killed at any instruction. A row is its owner's as long as the kernel keeps the owner's lock on it; the row of
// a dead owner counts as nothing. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "checked_mutex.hpp"
#include "shared_folder.hpp"

namespace gpumem {

struct ledger_file;  // its layout, in group_ledger.cpp

/// As the budget of a pool sees it.
class shared_budget {
 public:
  virtual ~shared_budget() = default;
  [[nodiscard]] virtual bool reserve(std::uint64_t bytes) noexcept = 0;
  virtual void give_back(std::uint64_t bytes) noexcept = 0;
  [[nodiscard]] virtual std::uint64_t left() noexcept = 0;
};

class group_ledger final : public shared_budget {
 public:
  /// Joins group `name` on the device; the first member makes the ledger. Members must agree on the limit; one that
  /// names none takes the others'. A process has one membership a group and device, however often it asks.
  static result<std::shared_ptr<group_ledger>> join(const std::string& folder, const std::string& name,
                                                    const std::string& device_uuid,
                                                    std::optional<std::uint64_t> limit_bytes);
  /// `corrupt` where one of the group's ledgers, on whichever device, cannot be trusted. Joins nothing.
  static status inspect(const std::string& folder, const std::string& name);
  group_ledger(std::string name, std::string path, owned_fd file);
  ~group_ledger() override;
  group_ledger(const group_ledger&) = delete;
  group_ledger& operator=(const group_ledger&) = delete;

  [[nodiscard]] bool reserve(std::uint64_t bytes) noexcept override;
  void give_back(std::uint64_t bytes) noexcept override;
  /// What the group may still take, now.
  [[nodiscard]] std::uint64_t left() noexcept override;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::uint64_t limit() const noexcept;
  /// What all members hold.
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
  std::size_t row_;  ///< past the last: none yet
  int process_;      ///< a fork is no member
  checked_mutex mutex_;
  bool said_ GPUMEM_GUARDED_BY(mutex_) = false;
};

}  // namespace gpumem
