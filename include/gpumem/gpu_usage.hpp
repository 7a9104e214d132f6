/// The memory use of every card and process of the machine, from NVML, without a context.
///
/// The library loads NVML (libnvidia-ml.so.1, part of the driver) at run time; GPUMEM_NVML names another file. NVML
/// ignores CUDA_VISIBLE_DEVICES, so match cards by UUID. Any thread.
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
  std::optional<std::uint64_t> used_bytes;  ///< none if the driver does not report it (MIG, a container)
};

/// A MIG instance: a part of a card that a program sees as a separate GPU.
struct gpu_instance {
  std::string uuid;  ///< `MIG-...`
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t free_bytes = 0;
};

/// Where the figures of a card's memory come from.
enum class memory_source : std::uint8_t {
  nvml,
  host,     ///< an integrated GPU; free memory is the available memory of the host
  probe,    ///< a process that made a context, at most 10 s ago
  unknown,  ///< NVML does not measure it; the figures are 0
};

struct gpu_usage {
  int index = 0;  ///< NVML's
  std::string name;
  std::string uuid;  ///< as `device_info::uuid`
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;  ///< by all processes and the driver itself
  std::uint64_t free_bytes = 0;
  std::optional<unsigned> busy_percent;  ///< share of the last sample period with a kernel running
  std::optional<unsigned> temperature_c;
  std::optional<std::uint64_t> power_mw;        ///< drawn now
  std::optional<std::uint64_t> power_limit_mw;  ///< enforced
  std::vector<gpu_process> processes;           ///< with a compute context
  std::string pci_bus_id;                       ///< `00000000:3B:00.0`; empty if NVML does not report it
  std::uint64_t cores_mhz = 0;  ///< CUDA cores times their highest clock, a rough measure of speed; 0 if unknown
  bool mig = false;             ///< in MIG mode; programs can use only its instances
  std::vector<gpu_instance> instances;
  memory_source measured_by = memory_source::nvml;
  std::uint64_t reserved_bytes = 0;  ///< of `used_bytes`, by the driver itself; 0 if NVML does not report it
  std::uint64_t graphics_bytes = 0;  ///< of `used_bytes`, by processes that only draw
};

/// Lists every GPU, in NVML's order. A card whose memory NVML does not measure (GB10) is listed as `unknown`.
/// `unsupported` without NVML, `device_error` if a call fails.
result<std::vector<gpu_usage>> gpu_usage_now();

}  // namespace gpumem
