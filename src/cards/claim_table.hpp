// Leases on cards, claims of their memory, and places in the queue for memory: rows in files of a shared folder.
//
// Each user has a file with one row per program and card. A row is valid while its owner's lock on it exists. The lock
// works across PID namespaces, and the kernel releases it with the last process that has the descriptor. One program at
// a time reads and writes rows, under a lock on the folder. The folder is GPUMEM_SHARED_FOLDER, for this user only, or
// by default /dev/shm/gpumem-claims, where every user reads the other users' files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/status.hpp"
#include "owned_fd.hpp"

namespace gpumem {

/// A UUID without `GPU-` or `MIG-`, because CUDA's `GPU-x` may be NVML's `MIG-x`.
[[nodiscard]] inline std::string_view bare_uuid(std::string_view uuid) {
  return uuid.starts_with("GPU-") || uuid.starts_with("MIG-") ? uuid.substr(4) : uuid;
}

struct card_claim {
  std::string uuid;                              ///< without prefix
  std::uint64_t bytes = 0;                       ///< claimed memory of the card; 0: not known
  std::optional<unsigned> place = std::nullopt;  ///< of a lease: 0 means that no other lease holder uses the card
  bool waiting = false;                          ///< the program still waits for the memory
  std::uint64_t since_ns = 0;   ///< boot time when the claim was given, or when the program began to wait
  std::uint64_t seen_ns = 0;    ///< when a waiting program last looked
  int pid = 0;                  ///< in the PID namespace `pid_space`
  int keeper = 0;               ///< the process of `gpumem run` that keeps the row; 0: none
  std::uint64_t pid_space = 0;  ///< 0: not known
};

/// The rows of one program. They expire with the last process that has the descriptor.
class held_claims {
 public:
  [[nodiscard]] bool empty() const noexcept { return rows_.empty(); }
  [[nodiscard]] int descriptor() const noexcept { return file_.get(); }
  /// Keeps the rows across `exec` and for child processes.
  status keep_across_exec();
  /// Keeps the rows until the process ends.
  void keep_until_exit() noexcept { static_cast<void>(file_.release()); }
  /// Stores in the rows the process that keeps them, and their program `pid`. Makes only system calls.
  void set_keeper(int keeper, int pid) noexcept;

 private:
  friend class claim_table;
  owned_fd file_;
  std::vector<std::size_t> rows_;
};

/// All valid rows. Keeps the folder locked until destruction.
class claim_table {
 public:
  /// `named` is GPUMEM_SHARED_FOLDER. `bad_setting` if the folder or a file in it cannot be trusted, `unsupported` if
  /// the folder cannot be created, `out_of_memory` if another program keeps it locked.
  static result<claim_table> open(const std::string& named);
  /// Returns the rows that are valid now, without the lock, for display.
  static result<std::vector<card_claim>> look(const std::string& named);

  claim_table() noexcept = default;  ///< empty and not locked
  claim_table(claim_table&& source) noexcept = default;
  claim_table& operator=(claim_table&& source) noexcept = default;
  ~claim_table();

  /// The rows of other programs.
  [[nodiscard]] std::vector<card_claim> others(const held_claims& own) const;
  /// Replaces the program's rows.
  status replace(held_claims& own, std::span<const card_claim> rows) const;

 private:
  struct found_row {
    card_claim claim;
    bool in_own_file = false;
    std::size_t index = 0;
  };
  explicit claim_table(const std::string& named) : named_{named} {}
  status open_folder();
  status lock_folder();
  status read_all();
  status read_file(const std::string& name);
  [[nodiscard]] result<owned_fd> open_own_file() const;
  [[nodiscard]] std::string own_name() const;
  [[nodiscard]] bool is_common() const noexcept { return named_.empty(); }

  std::string named_;
  std::string folder_;
  owned_fd folder_fd_;
  bool is_locked_ = false;
  std::vector<found_row> rows_;
};

/// Nanoseconds since the machine started.
[[nodiscard]] std::uint64_t boot_time_ns() noexcept;
/// The PID namespace of this process; 0 if it is not known.
[[nodiscard]] std::uint64_t own_pid_space() noexcept;
/// Returns a warning if this program runs in a container that shares neither a folder nor the host's IPC namespace.
/// Empty otherwise, and if `claims` has a program of another container.
[[nodiscard]] std::string isolation_warning(const std::string& named, std::span<const card_claim> claims);

}  // namespace gpumem
