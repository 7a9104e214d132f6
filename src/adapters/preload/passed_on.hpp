// What is the driver's to do: called there, and once more when it runs out of memory while gpumem has some idle.
//
// Under GPUMEM_LIMIT_SCOPE=process the bytes are entered in the ledger first (ledger.hpp).
#pragma once

#include "entry_points.hpp"
#include "serving.hpp"

namespace gpumem::preload {

enum class accounting : std::uint8_t { counted, measured };

template <entry E, null_stream N, accounting How, typename Pointer = typename signature<E>::type>
struct passed_on;
template <entry E, null_stream N, accounting How, typename... Arguments>
struct passed_on<E, N, How, CUresult(CUDAAPI*)(Arguments...)> {
  static CUresult CUDAAPI call(Arguments... arguments) {
    CUresult e = driver_call<E, N>(arguments...);
    if (e == CUDA_ERROR_OUT_OF_MEMORY && give_back_idle()) e = driver_call<E, N>(arguments...);
    return e;
  }
};

}  // namespace gpumem::preload
