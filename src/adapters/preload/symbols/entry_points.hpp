// The driver functions that the shim replaces, and the driver's own behind them.
//
// entry_points.def has one row for each. The driver's function is looked up by the first call that needs it and kept;
// the table itself is constant. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "driver_file.hpp"

namespace gpumem::preload {

// Former signatures that cudaTypedefs.h does not declare for every caller.
using PFN_cuStreamDestroy_v2000 = PFN_cuStreamDestroy_v4000;
using PFN_cuCtxDestroy_v2000 = PFN_cuCtxDestroy_v4000;
using PFN_cuStreamBeginCapture_v10000 = CUresult(CUDAAPI*)(CUstream);
using PFN_cuDevicePrimaryCtxReset_v7000 = PFN_cuDevicePrimaryCtxReset_v11000;

using PFN_cuCtxCreate_v3020 = CUresult(CUDAAPI*)(CUcontext*, unsigned int, CUdevice);
using PFN_cuCtxCreate_v11040 = CUresult(CUDAAPI*)(CUcontext*, CUexecAffinityParam*, int, unsigned int, CUdevice);
using PFN_cuGraphAddNode_v12020 = CUresult(CUDAAPI*)(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t,
                                                     CUgraphNodeParams*);
using PFN_cuMemSetMemPool_v13000 = CUresult(CUDAAPI*)(CUmemLocation*, CUmemAllocationType, CUmemoryPool);
using PFN_cuGraphInstantiate_v12000 = PFN_cuGraphInstantiateWithFlags_v11040;

enum class entry : std::size_t {
#define SERVED(function, name, version, symbol, streams, why) function,
#include "entry_points.def"
  count_
};

template <entry E>
struct signature;
#define SERVED(function, name, version, symbol, streams, why) \
  template <>                                                 \
  struct signature<entry::function> {                         \
    using type = PFN_##name##_v##version;                     \
  };
#include "entry_points.def"

/// The default stream that a null stream means in the variant of a function that the program calls.
enum class null_stream : std::uint8_t { legacy, per_thread };

/// Returns the driver's function behind an entry; null if it has none.
void* driver_function(entry function, null_stream streams) noexcept;

/// Calls the driver's own function.
template <entry E, null_stream N = null_stream::legacy, typename... Arguments>
CUresult driver_call(Arguments... arguments) noexcept {
  const auto function = reinterpret_cast<typename signature<E>::type>(driver_function(E, N));
  return function != nullptr ? function(arguments...) : driver_missing();
}

/// Returns the function for an exported symbol: the shim's or the driver's; never null.
void* bound_to(const char* symbol) noexcept;

/// Returns the shim's function for one that the driver's cuGetProcAddress found under `name`, or `found` itself.
void* substitute(const char* name, void* found) noexcept;

/// The shim's functions, defined in served_*.cpp.
#define DECLARE_plain(function, type) std::remove_pointer_t<type> function;
#define DECLARE_per_thread(function, type) std::remove_pointer_t<type> function, function##_ptsz;
#define SERVED(function, name, version, symbol, streams, why) DECLARE_##streams(function, PFN_##name##_v##version)
#define COUNTED(function, name, version, symbol, streams, why)
#include "entry_points.def"
#undef DECLARE_plain
#undef DECLARE_per_thread

}  // namespace gpumem::preload
