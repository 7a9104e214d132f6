/// NCCL's operations between ranks: small messages move bytes, large ones only take time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "card_memory.hpp"
#include "nccl_values.hpp"
#include "rank_exchange.hpp"

namespace gpumem::simcuda {

// Values of ncclResult_t.
inline constexpr int nccl_success = 0;
inline constexpr int nccl_system_error = 2;
inline constexpr int nccl_invalid_argument = 4;
inline constexpr int nccl_invalid_usage = 5;
inline constexpr int nccl_remote_error = 6;

struct communicator {
  int ranks = 1;
  int rank = 0;
  int device = 0;
  /// The other ranks are not processes: each is assumed to send the same data as this one.
  bool alone = false;
  std::atomic<int> error = nccl_success;
  card_memory buffers;
  rank_exchange exchange;
};

enum class nccl_operation : std::uint32_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  reduce,
  all_to_all,
  gather,
  scatter,
  send,
  receive,
  split
};

/// A call of the program.
struct nccl_call {
  nccl_operation operation{};
  const char* name = "";
  communicator* comm = nullptr;
  const void* source = nullptr;
  void* target = nullptr;
  std::size_t count = 0;  ///< values for each rank
  int type = 0;
  int reduction_id = 0;
  int root = 0;  ///< for send and receive, the other rank
  void* stream = nullptr;
  // Of split:
  int color = 0;
  int key = 0;
  void** made = nullptr;
};

void begin_group();
int end_group();
/// Performs the call, or keeps it until the thread's group ends.
int submit(const nccl_call& call);

/// Makes the end of the thread's group, or of its call, wait for the communicator's ranks.
void await_at_end(communicator& made);

/// Creates a communicator on the current device, joins the other ranks and waits for them; within a group, at its end.
int make_communicator(void** result, int ranks, int rank, const exchange_id& id, const char* name);
/// As `make_communicator`, without waiting.
int join_communicator(void** result, int ranks, int rank, const exchange_id& id, const char* name);

/// Keeps the text for ncclGetLastError and prints the first one of the process. Returns `code`.
int report_error(const communicator& comm, int code, const std::string& why);
const char* last_error();
/// Reports that an operation waited for a rank that will send nothing more.
int lost_rank(const communicator& comm, const std::string& why);

inline constexpr int first_created_reduction = 5;
reduction find_reduction(int id);

/// Stores a reduction that the program created, and returns its id.
int add_reduction(double factor);

/// Copies values of a card to the host without counting as a read by the program. Returns whether they are true.
bool load_values(void* result, const void* address, std::size_t bytes);

}  // namespace gpumem::simcuda
