// NCCL's functions. Ranks that are processes of this machine exchange the bytes of small messages
// (nccl_operations.hpp). If no process made the communicator's id, or under SIMCUDA_ONE_RANK=1, one process simulates
// any rank of a larger job of equal ranks: every other rank is assumed to send the same data, and reductions do not
// add.
//
// Written without NCCL's header, which the Toolkit does not include.
#include <cstring>
#include <vector>

#include "called.hpp"
#include "nccl_card.hpp"
#include "nccl_operations.hpp"

using namespace gpumem::simcuda;  // NOLINT: NCCL's functions are global

namespace {

struct unique_id {
  char internal[128];
};
static_assert(sizeof(exchange_id) <= sizeof(unique_id));

exchange_id exchange_of(const unique_id& id) {
  exchange_id made;
  std::memcpy(&made, id.internal, sizeof made);
  return made;
}

communicator* communicator_of(void* handle) { return static_cast<communicator*>(handle); }

nccl_call call_of(nccl_operation operation, const char* name, const void* source, void* target, std::size_t count,
                  int type, void* comm, void* stream) {
  nccl_call call;
  call.operation = operation;
  call.name = name;
  call.comm = communicator_of(comm);
  call.source = source;
  call.target = target;
  call.count = count;
  call.type = type;
  call.stream = stream;
  return call;
}

int submit_rooted(nccl_call call, int root) {
  call.root = root;
  return submit(call);
}

int submit_reduction(nccl_call call, int reduction_id, int root = 0) {
  if (reduction_id < 0) return nccl_invalid_argument;
  call.reduction_id = reduction_id;
  call.root = root;
  return submit(call);
}

int split(void* parent, int color, int key, void** made) {
  if (parent == nullptr || made == nullptr) return nccl_invalid_argument;
  nccl_call call;
  call.operation = nccl_operation::split;
  call.name = "ncclCommSplit";
  call.comm = communicator_of(parent);
  call.color = color;
  call.key = key;
  call.made = made;
  return submit(call);
}

int read(void* comm, int communicator::*member, int* value) {
  if (comm == nullptr || value == nullptr) return nccl_invalid_argument;
  *value = communicator_of(comm)->*member;
  return nccl_success;
}

}  // namespace

extern "C" {

// --- operations -----------------------------------------------------------------------------------------------------

int ncclAllReduce(const void* source, void* target, std::size_t count, int type, int reduction_id, void* comm,
                  void* stream) {
  return submit_reduction(
      call_of(nccl_operation::all_reduce, "ncclAllReduce", source, target, count, type, comm, stream), reduction_id);
}
int ncclReduce(const void* source, void* target, std::size_t count, int type, int reduction_id, int root, void* comm,
               void* stream) {
  return submit_reduction(call_of(nccl_operation::reduce, "ncclReduce", source, target, count, type, comm, stream),
                          reduction_id, root);
}
int ncclReduceScatter(const void* source, void* target, std::size_t count, int type, int reduction_id, void* comm,
                      void* stream) {
  return submit_reduction(
      call_of(nccl_operation::reduce_scatter, "ncclReduceScatter", source, target, count, type, comm, stream),
      reduction_id);
}
int ncclAllGather(const void* source, void* target, std::size_t count, int type, void* comm, void* stream) {
  return submit(call_of(nccl_operation::all_gather, "ncclAllGather", source, target, count, type, comm, stream));
}
int ncclBroadcast(const void* source, void* target, std::size_t count, int type, int root, void* comm, void* stream) {
  return submit_rooted(call_of(nccl_operation::broadcast, "ncclBroadcast", source, target, count, type, comm, stream),
                       root);
}
int ncclBcast(void* values, std::size_t count, int type, int root, void* comm, void* stream) {
  return ncclBroadcast(values, values, count, type, root, comm, stream);
}
int ncclAlltoAll(const void* source, void* target, std::size_t count, int type, void* comm, void* stream) {
  return submit(call_of(nccl_operation::all_to_all, "ncclAlltoAll", source, target, count, type, comm, stream));
}
int ncclGather(const void* source, void* target, std::size_t count, int type, int root, void* comm, void* stream) {
  return submit_rooted(call_of(nccl_operation::gather, "ncclGather", source, target, count, type, comm, stream), root);
}
int ncclScatter(const void* source, void* target, std::size_t count, int type, int root, void* comm, void* stream) {
  return submit_rooted(call_of(nccl_operation::scatter, "ncclScatter", source, target, count, type, comm, stream),
                       root);
}
int ncclSend(const void* source, std::size_t count, int type, int peer, void* comm, void* stream) {
  return submit_rooted(call_of(nccl_operation::send, "ncclSend", source, nullptr, count, type, comm, stream), peer);
}
int ncclRecv(void* target, std::size_t count, int type, int peer, void* comm, void* stream) {
  return submit_rooted(call_of(nccl_operation::receive, "ncclRecv", nullptr, target, count, type, comm, stream), peer);
}
int ncclGroupStart() {
  begin_group();
  return nccl_success;
}
int ncclGroupEnd() { return end_group(); }

// --- communicators --------------------------------------------------------------------------------------------------

int ncclGetUniqueId(unique_id* id) {
  if (id == nullptr) return nccl_invalid_argument;
  *id = {};
  exchange_id made;
  if (const std::string why = rank_exchange::make(made); !why.empty()) {
    return report_error({}, nccl_system_error, "ncclGetUniqueId: " + why);
  }
  std::memcpy(id->internal, &made, sizeof made);
  return nccl_success;
}
int ncclCommInitRank(void** made, int ranks, unique_id id, int rank) {
  return make_communicator(made, ranks, rank, exchange_of(id), "ncclCommInitRank");
}
int ncclCommInitRankConfig(void** made, int ranks, unique_id id, int rank, void*) {
  return make_communicator(made, ranks, rank, exchange_of(id), "ncclCommInitRankConfig");
}
/// All ranks pass the same ids; the file of the first id is enough.
int ncclCommInitRankScalable(void** made, int ranks, int rank, int count, unique_id* ids, void*) {
  if (ids == nullptr || count < 1) return nccl_invalid_argument;
  return make_communicator(made, ranks, rank, exchange_of(ids[0]), "ncclCommInitRankScalable");
}
int ncclCommInitAll(void** made, int devices, const int* ordinals) {
  if (made == nullptr || devices < 1) return nccl_invalid_argument;
  exchange_id id;
  if (const std::string why = rank_exchange::make(id); !why.empty()) {
    return report_error({}, nccl_system_error, "ncclCommInitAll: " + why);
  }
  const int before = nccl_card::current_device();
  int error = nccl_success;
  for (int rank = 0; rank < devices && error == nccl_success; ++rank) {
    const int ordinal = ordinals != nullptr ? ordinals[rank] : rank;
    if (ordinal != before || rank != 0) {
      if (!nccl_card::set_device(ordinal)) error = nccl_invalid_argument;
    }
    if (error == nccl_success) error = join_communicator(made + rank, devices, rank, id, "ncclCommInitAll");
  }
  static_cast<void>(nccl_card::set_device(before));
  rank_exchange::drop(id);
  return error;
}
int ncclCommSplit(void* parent, int color, int key, void** made, void*) { return split(parent, color, key, made); }
int ncclCommShrink(void*, const int*, int, void**, void*, int) {
  return simcuda_refused("ncclCommShrink", nccl_invalid_usage);
}
int ncclCommGrow(void*, int, const void*, int, void**, void*) {
  return simcuda_refused("ncclCommGrow", nccl_invalid_usage);
}
int ncclCommFinalize(void*) { return nccl_success; }
int ncclCommDestroy(void* ended) {
  delete communicator_of(ended);
  return nccl_success;
}
/// Another thread may wait in a call of this communicator. That call ends with an error and still needs the
/// communicator, so this does not free it.
int ncclCommAbort(void* ended) {
  if (ended == nullptr) return nccl_success;
  communicator_of(ended)->buffers.give_back();
  communicator_of(ended)->exchange.leave();
  return nccl_success;
}
int ncclCommGetAsyncError(void* comm, int* error) {
  if (error == nullptr) return nccl_invalid_argument;
  *error = comm == nullptr ? nccl_success : communicator_of(comm)->error.load();
  return nccl_success;
}
int ncclCommCount(void* comm, int* count) { return read(comm, &communicator::ranks, count); }
int ncclCommUserRank(void* comm, int* rank) { return read(comm, &communicator::rank, rank); }
int ncclCommCuDevice(void* comm, int* device) { return read(comm, &communicator::device, device); }
int ncclCommRegister(void*, void* address, std::size_t, void** handle) {
  *handle = address;
  return nccl_success;
}
int ncclCommDeregister(void*, void*) { return nccl_success; }

// --- the rest -------------------------------------------------------------------------------------------------------

int ncclGetVersion(int* version) {
  if (version == nullptr) return nccl_invalid_argument;
  *version = 22809;
  return nccl_success;
}
const char* ncclGetErrorString(int result) {
  switch (result) {
    case nccl_success:
      return "no error";
    case nccl_system_error:
      return "unhandled system error";
    case nccl_invalid_argument:
      return "invalid argument";
    case nccl_invalid_usage:
      return "invalid usage, or not supported by the simulated card";
    case nccl_remote_error:
      return "a remote process has ended";
    default:
      return "not supported by the simulated card";
  }
}
const char* ncclGetLastError(void*) { return last_error(); }

/// `residence`: the factor is on the card (0) or on the host (1).
int ncclRedOpCreatePreMulSum(int* made, void* factor, int type, int residence, void*) {
  if (made == nullptr || factor == nullptr || value_bytes(type) == 0) return nccl_invalid_argument;
  std::vector<std::byte> value(value_bytes(type));
  if (residence == 0) {
    static_cast<void>(load_values(value.data(), factor, value.size()));
  } else {
    std::memcpy(value.data(), factor, value.size());
  }
  *made = add_reduction(number_at(value.data(), type));
  return nccl_success;
}
int ncclRedOpDestroy(int, void*) { return nccl_success; }

int ncclMemAlloc(void** address, std::size_t bytes) {
  const auto take = nccl_card::in_runtime<int(void**, std::size_t)>("cudaMalloc");
  return take != nullptr && take(address, bytes) == 0 ? nccl_success : nccl_system_error;
}
int ncclMemFree(void* address) {
  const auto give = nccl_card::in_runtime<int(void*)>("cudaFree");
  return give != nullptr && give(address) == 0 ? nccl_success : nccl_system_error;
}

}  // extern "C"
