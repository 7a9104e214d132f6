// NCCL as one rank sees it: communicators of any number of ranks are made without asking the others, and each of the
// others is taken to send what this one sends. So one process stands for any rank of a larger job of equal ranks, and
// what they agree on before they train (numbers of parameters, their shapes) is right. Reductions do not add.
//
// Written without NCCL's header, which the Toolkit does not bring.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "card_memory.hpp"

namespace {

constexpr int success = 0;
constexpr int system_error = 2;
constexpr int invalid_argument = 4;

struct unique_id {
  char internal[128];
};

struct communicator {
  int ranks = 1;
  int rank = 0;
  gpumem::simcuda::card_memory buffers;
};

int make(void** into, int ranks, int rank) {
  if (into == nullptr || ranks < 1 || rank < 0 || rank >= ranks) return invalid_argument;
  auto* const made = new communicator{};
  made->ranks = ranks;
  made->rank = rank;
  if (!made->buffers.take("SIMCUDA_NCCL_BYTES")) {
    delete made;
    return system_error;
  }
  *into = made;
  return success;
}

/// Of a ncclDataType_t; 0: none is known.
std::size_t size_of(int type) {
  constexpr std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && static_cast<std::size_t>(type) < std::size(sizes) ? sizes[type] : 0;
}

template <typename Function>
Function* of_runtime(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

int copy(void* to, const void* from, std::size_t bytes, void* stream) {
  constexpr int device_to_device = 3;
  if (to == from || bytes == 0) return success;
  const auto move = of_runtime<int(void*, const void*, std::size_t, int, void*)>("cudaMemcpyAsync");
  return move != nullptr && move(to, from, bytes, device_to_device, stream) == 0 ? success : system_error;
}

}  // namespace

extern "C" {

int ncclAllGather(const void* from, void* to, std::size_t count, int type, void* of, void* stream) {
  if (of == nullptr || size_of(type) == 0) return invalid_argument;
  const std::size_t bytes = count * size_of(type);
  for (int rank = 0; rank < static_cast<communicator*>(of)->ranks; ++rank) {
    void* const place = static_cast<char*>(to) + static_cast<std::size_t>(rank) * bytes;
    if (const int e = copy(place, from, bytes, stream); e != success) return e;
  }
  return success;
}
int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int /*operation*/, void* of, void* stream) {
  if (of == nullptr || size_of(type) == 0) return invalid_argument;
  return copy(to, from, count * size_of(type), stream);
}
int ncclReduceScatter(const void* from, void* to, std::size_t count, int type, int /*operation*/, void* of,
                      void* stream) {
  if (of == nullptr || size_of(type) == 0) return invalid_argument;
  const std::size_t bytes = count * size_of(type);
  const auto rank = static_cast<std::size_t>(static_cast<communicator*>(of)->rank);
  return copy(to, static_cast<const char*>(from) + rank * bytes, bytes, stream);
}
int ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root, void* of, void* stream) {
  if (of == nullptr || size_of(type) == 0) return invalid_argument;
  const bool sends = static_cast<communicator*>(of)->rank == root;
  return sends ? copy(to, from, count * size_of(type), stream) : success;
}

int ncclGetVersion(int* version) {
  if (version == nullptr) return invalid_argument;
  *version = 22809;
  return success;
}
int ncclGetUniqueId(unique_id* id) {
  static std::atomic<int> next = 1;
  std::memset(id, 0, sizeof *id);
  const int number = next++;
  std::memcpy(id->internal, &number, sizeof number);
  return success;
}
const char* ncclGetErrorString(int result) {
  return result == success ? "no error" : "not supported by the simulated card";
}
const char* ncclGetLastError(void*) { return ""; }

int ncclCommInitRank(void** made, int ranks, unique_id, int rank) { return make(made, ranks, rank); }
int ncclCommInitRankConfig(void** made, int ranks, unique_id, int rank, void*) { return make(made, ranks, rank); }
int ncclCommInitRankScalable(void** made, int ranks, int rank, int, unique_id*, void*) {
  return make(made, ranks, rank);
}
int ncclCommInitAll(void** made, int devices, const int*) {
  for (int i = 0; i < devices; ++i) {
    if (const int e = make(made + i, devices, i); e != success) return e;
  }
  return success;
}
/// The ranks of one colour are not known here: the group is taken for as large as its parent.
int ncclCommSplit(void* parent, int color, int, void** made, void*) {
  if (parent == nullptr) return invalid_argument;
  if (color < 0) return *made = nullptr, success;
  const auto* const of = static_cast<const communicator*>(parent);
  return make(made, of->ranks, of->rank);
}
int ncclCommFinalize(void*) { return success; }
int ncclCommDestroy(void* gone) {
  delete static_cast<communicator*>(gone);
  return success;
}
int ncclCommAbort(void* gone) { return ncclCommDestroy(gone); }
int ncclCommGetAsyncError(void*, int* error) {
  *error = success;
  return success;
}
int ncclCommCount(void* of, int* count) {
  if (of == nullptr) return invalid_argument;
  *count = static_cast<communicator*>(of)->ranks;
  return success;
}
int ncclCommUserRank(void* of, int* rank) {
  if (of == nullptr) return invalid_argument;
  *rank = static_cast<communicator*>(of)->rank;
  return success;
}
int ncclCommCuDevice(void*, int* device) {
  const auto get = of_runtime<int(int*)>("cudaGetDevice");
  *device = 0;
  return get == nullptr || get(device) == 0 ? success : system_error;
}
int ncclCommRegister(void*, void* at, std::size_t, void** handle) {
  *handle = at;
  return success;
}
int ncclCommDeregister(void*, void*) { return success; }
int ncclRedOpCreatePreMulSum(int* op, void*, int, int, void*) {
  *op = 16;
  return success;
}
int ncclRedOpDestroy(int, void*) { return success; }

int ncclMemAlloc(void** at, std::size_t bytes) {
  const auto take = of_runtime<int(void**, std::size_t)>("cudaMalloc");
  return take != nullptr && take(at, bytes) == 0 ? success : system_error;
}
int ncclMemFree(void* at) {
  const auto give = of_runtime<int(void*)>("cudaFree");
  return give != nullptr && give(at) == 0 ? success : system_error;
}

}  // extern "C"
