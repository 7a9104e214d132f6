// NCCL communicators, the reductions that programs create, and the last error.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "nccl_card.hpp"
#include "nccl_operations.hpp"

namespace gpumem::simcuda {
namespace {

struct created_reductions {
  std::mutex mutex;
  std::map<int, double> factors;
  int next = first_created_reduction;
};
created_reductions& reductions() {
  static auto* const all = new created_reductions;  // never destroyed: programs call while they exit
  return *all;
}

struct error_text {
  std::mutex mutex;
  char text[512] = {};
  bool printed = false;
};
error_text& error_state() {
  static auto* const state = new error_text;
  return *state;
}

}  // namespace

reduction find_reduction(int id) {
  if (id >= 0 && id <= static_cast<int>(reduction::kind::average))
    return {.operation = static_cast<reduction::kind>(id)};
  const std::lock_guard lock{reductions().mutex};
  const auto found = reductions().factors.find(id);
  return {.factor = found == reductions().factors.end() ? 1 : found->second};
}

int lost_rank(const communicator& comm, const std::string& why) {
  card().note_lost_rank();
  return report_error(comm, nccl_remote_error, why);
}

int join_communicator(void** result, int ranks, int rank, const exchange_id& id, const char* name) {
  if (result == nullptr || ranks < 1 || rank < 0 || rank >= ranks) return nccl_invalid_argument;
  auto* const made = new communicator;
  made->ranks = ranks;
  made->rank = rank;
  made->device = card().current_device();
  made->alone = id.mark != exchange_mark || ranks == 1;
  int error = nccl_success;
  if (!made->buffers.take("SIMCUDA_NCCL_BYTES")) {
    error = report_error(*made, nccl_system_error, std::string{name} + ": the card has no memory for NCCL's buffers");
  } else if (!made->alone) {
    const std::string why = made->exchange.join(id, ranks, rank);
    if (!why.empty()) error = report_error(*made, nccl_remote_error, std::string{name} + ": " + why);
  }
  if (error != nccl_success) {
    delete made;
    return error;
  }
  *result = made;
  return nccl_success;
}

int make_communicator(void** result, int ranks, int rank, const exchange_id& id, const char* name) {
  const char* const is_one_rank = std::getenv("SIMCUDA_ONE_RANK");
  const bool alone = is_one_rank != nullptr && std::strcmp(is_one_rank, "1") == 0;
  if (const int e = join_communicator(result, ranks, rank, alone ? exchange_id{} : id, name); e != nccl_success)
    return e;
  auto* const made = static_cast<communicator*>(*result);
  card().note_rank(rank, ranks);
  if (made->alone) return nccl_success;
  begin_group();
  await_at_end(*made);
  return end_group();
}

int report_error(const communicator& comm, int code, const std::string& why) {
  error_text& state = error_state();
  const std::lock_guard lock{state.mutex};
  std::snprintf(state.text, sizeof state.text, "rank %d of %d: %s", comm.rank, comm.ranks, why.c_str());
  if (!std::exchange(state.printed, true)) std::fprintf(stderr, "simcuda: NCCL: %s\n", state.text);
  return code;
}

const char* last_error() { return error_state().text; }

int add_reduction(double factor) {
  created_reductions& all = reductions();
  const std::lock_guard lock{all.mutex};
  all.factors[all.next] = factor;
  return all.next++;
}

bool load_values(void* result, const void* address, std::size_t bytes) {
  return card().load_values(result, address, bytes);
}

}  // namespace gpumem::simcuda
