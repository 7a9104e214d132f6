// The budget that a group's processes share on one device: a file in shared memory with one row of bytes per process.
//
// A member locks the whole file and reserves bytes in its own row before it calls the driver, so check and reservation
// are atomic. The sum of the rows is the total; the file stores no other total, so a member may be killed at any
// instruction. A row belongs to its owner while the owner's lock on it exists. Rows of dead owners count as 0. Any
// thread.
//
// The processes of one `gpumem run --limit` are a job, with its own kind of ledger: a job also enters memory that was
// taken before it could be reserved (contexts, modules), even beyond the limit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checked_mutex.hpp"
#include "shared_folder.hpp"

namespace gpumem {

struct ledger_file;  // the layout, in group_ledger.cpp

enum class ledger_kind : std::uint8_t { group, job };

class group_ledger {
 public:
  /// Joins group `name` on the device; the first member creates the ledger. Members must agree on the limit; a member
  /// without a limit uses the group's. A process has one membership per group and device, however often it joins.
  /// The first member of a job sets the limit; later members' `limit_bytes` are ignored.
  static result<std::shared_ptr<group_ledger>> join(const std::string& folder, const std::string& name,
                                                    const std::string& device_uuid,
                                                    std::optional<std::uint64_t> limit_bytes,
                                                    ledger_kind kind = ledger_kind::group);
  /// Removes the ledgers of jobs without a member.
  static void remove_ended_jobs(const std::string& folder);
  /// `corrupt` if one of the group's ledgers, on any device, cannot be trusted. Does not join.
  static status inspect(const std::string& folder, const std::string& name);
  group_ledger(std::string name, std::string path, owned_fd file, ledger_kind kind);
  ~group_ledger();
  group_ledger& operator=(group_ledger&&) = delete;

  [[nodiscard]] bool reserve(std::uint64_t bytes) noexcept;
  void give_back(std::uint64_t bytes) noexcept;
  /// The memory that the group may still take.
  [[nodiscard]] std::uint64_t left() noexcept;
  /// Whether memory that can only be measured counts, as in a job. If so, call `enter` for new measured memory and
  /// `leave` when it is freed; otherwise both do nothing.
  [[nodiscard]] bool counts_measured() const noexcept { return kind_ == ledger_kind::job; }
  void enter(std::uint64_t bytes) noexcept;
  void leave(std::uint64_t bytes) noexcept;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::uint64_t limit() const noexcept { return limit_; }
  /// The memory that all members hold.
  [[nodiscard]] std::uint64_t held() noexcept;
  /// The memory that the other members hold.
  [[nodiscard]] std::uint64_t held_by_others() noexcept;
  /// The measured memory that a job's members entered, and their number.
  struct measured_memory {
    std::uint64_t bytes = 0;
    unsigned members = 0;
  };
  [[nodiscard]] measured_memory measured() noexcept;

  struct member {
    std::uint64_t pid;
    std::uint64_t bytes;
  };
  /// The members that hold memory, this process included.
  [[nodiscard]] std::vector<member> members();

 private:
  status open_or_make(std::optional<std::uint64_t> limit_bytes);
  /// Locks a free row for this process.
  status take_row() GPUMEM_REQUIRES(mutex_);
  /// Whether the file has been unlinked, as an ended job's ledger is.
  [[nodiscard]] bool removed() const noexcept;
  [[nodiscard]] bool here() const noexcept;
  /// Reads the file; false if it is not whole. Requires the file's lock, as do the next four.
  bool read_whole(ledger_file* content = nullptr) const noexcept;
  bool write_at(const void* data, std::size_t bytes, std::size_t offset) const noexcept;
  bool write_own_row() const noexcept GPUMEM_REQUIRES(mutex_);
  /// Returns the sum of the live members' rows. Empty if a group's sum exceeds its limit; a job's may exceed it.
  [[nodiscard]] std::optional<std::uint64_t> sum(const ledger_file& all) const noexcept GPUMEM_REQUIRES(mutex_);
  /// Reads the file and returns the same. Empty, and logged once, if the file is damaged.
  [[nodiscard]] std::optional<std::uint64_t> sound_sum() noexcept GPUMEM_REQUIRES(mutex_);

  std::string name_;
  std::string path_;
  owned_fd file_;
  ledger_kind kind_;
  std::uint64_t limit_ = 0;  ///< written before the ledger is shared
  std::size_t row_;          ///< `most_members` if this process has no row yet
  int process_;              ///< a forked child is not a member
  checked_mutex mutex_;
  std::uint64_t held_bytes_ GPUMEM_GUARDED_BY(mutex_) = 0;      ///< by this process
  std::uint64_t measured_bytes_ GPUMEM_GUARDED_BY(mutex_) = 0;  ///< the part that was entered as measured
  bool row_outdated_ GPUMEM_GUARDED_BY(mutex_) = false;         ///< the file's row differs from `held_bytes_`
  bool said_ GPUMEM_GUARDED_BY(mutex_) = false;
};

}  // namespace gpumem
