/// Messages between the ranks of a NCCL communicator, which are processes, or communicators of one process.
///
/// The ranks share an unnamed file, so that a killed process leaves nothing behind. It begins with a mapped table of
/// ranks and counters, and has one log for each pair of ranks and one from each rank to all. A log grows without limit,
/// so that sending never waits; bytes that all its readers have read are freed. Receiving waits while the sender lives.
/// Thread-safe, but each log has one sending and one receiving thread at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpumem::simcuda {

/// The content of a ncclUniqueId: the process that holds the file, and its descriptor there.
struct exchange_id {
  std::uint64_t mark = 0;  ///< other values: no process made this id
  std::uint64_t pid = 0;
  std::uint64_t began = 0;
  std::int64_t file = -1;
  std::uint64_t nonce = 0;
};
inline constexpr std::uint64_t exchange_mark = 0x6e63636c'72616e6b;  // "ncclrank"

/// The first bytes of each message, which must match between receiver and sender.
struct message_head {
  std::uint32_t operation = 0;
  std::uint32_t type = 0;
  std::uint32_t reduction = 0;
  std::uint32_t root = 0;
  std::uint64_t is_true = 0;  ///< a card would have sent the same values
  std::uint64_t bytes = 0;    ///< of the message in the program
  std::uint64_t kept = 0;     ///< message bytes that follow: all, or 0 if the values are not kept
};

struct message {
  message_head head;
  std::vector<std::byte> values;
};

class rank_exchange {
 public:
  enum class lane : std::uint8_t { collective, point_to_point };

  /// Creates the file. Returns an error's text, or an empty one.
  static std::string make(exchange_id& id);
  /// Closes this process's file of an unused id. Otherwise the file stays open here until every rank has joined.
  static void drop(const exchange_id& id);

  rank_exchange() = default;
  ~rank_exchange();
  rank_exchange& operator=(rank_exchange&&) = delete;

  // Each function returns an error's text, or an empty one.
  std::string join(const exchange_id& id, int ranks, int rank);
  /// Waits until all ranks have joined.
  std::string await_all();
  std::string send(int target, lane kind, message_head head, const void* values);
  /// Sends to every rank; each receives with `receive_from_all`.
  std::string send_to_all(message_head head, const void* values);
  /// Waits for the next message. `operation` names the program's call in errors.
  std::string receive(int source, lane kind, const char* operation, message& result);
  std::string receive_from_all(int source, const char* operation, message& result);

  /// Leaves the exchange: ranks that wait for this one get an error, and so does a thread of this process that waits.
  void leave();
  /// Returns `rank 1 (process 12)`.
  [[nodiscard]] std::string name_of(int rank) const;

 private:
  struct table;
  struct seat;
  struct log_place;

  [[nodiscard]] seat& seat_of(int rank) const;
  [[nodiscard]] log_place log_of(int source, int target, lane kind) const;
  std::string append(const log_place& log, const message_head& head, const void* values) const;
  std::string take(int source, const log_place& log, const char* operation, message& result);
  /// Returns why the rank will send nothing more; empty if it may send.
  [[nodiscard]] std::string ended(int rank) const;
  void signal(int rank) const;
  /// Waits for a signal after `seen`, at most for 100 ms.
  void await_signal(std::uint32_t seen) const;

  int file_ = -1;
  table* table_ = nullptr;
  std::size_t table_bytes_ = 0;
  int ranks_ = 0;
  int rank_ = 0;
  exchange_id id_;
  std::atomic<bool> left_ = true;  ///< also true before joining
};

}  // namespace gpumem::simcuda
