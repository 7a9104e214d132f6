/// Who uses which GPU how much, as NVML tells it: every card of the machine and every process, without a context.
///
/// NVML (libnvidia-ml.so.1, part of the driver) is looked for at run time. It counts cards as the machine has them:
/// CUDA_VISIBLE_DEVICES means nothing to it, so cards are told apart by UUID. GPUMEM_NVML names another library. Any
/// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/export.h"
#include "gpumem/status.hpp"

namespace GPUMEM_API gpumem {

struct gpu_process {
  std::uint32_t pid = 0;
  std::optional<std::uint64_t> used_bytes;  ///< none where the driver does not tell (MIG, a container)
};

/// A part of a card in MIG mode, which a program sees as a GPU of its own.
struct gpu_instance {
  std::string uuid;  ///< `MIG-...`
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t free_bytes = 0;
};

struct gpu_usage {
  int index = 0;  ///< NVML's
  std::string name;
  std::string uuid;  ///< as `device_info::uuid`
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;  ///< by everybody, the driver's own reserve included
  std::uint64_t free_bytes = 0;
  std::optional<unsigned> busy_percent;  ///< of the last sample period, with a kernel running
  std::optional<unsigned> temperature_c;
  std::optional<std::uint64_t> power_mw;        ///< drawn now
  std::optional<std::uint64_t> power_limit_mw;  ///< enforced
  std::vector<gpu_process> processes;           ///< with a compute context
  std::string pci_bus_id;                       ///< `00000000:3B:00.0`; empty where NVML does not tell, as the next
  std::uint64_t cores_mhz = 0;                  ///< CUDA cores times their highest clock: how fast a card is, roughly
  bool mig = false;                             ///< in MIG mode: only its instances can be used
  std::vector<gpu_instance> instances;
};

/// Every GPU, in NVML's order. `unsupported` where there is no NVML, `device_error` where a call fails.
result<std::vector<gpu_usage>> gpu_usage_now();

}  // namespace gpumem
