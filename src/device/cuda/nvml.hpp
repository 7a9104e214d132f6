// A table of NVML's functions, resolved at run time. Declares the few needed types as NVML documents them, because not
// every Toolkit has NVML's header.
//
// A table is immutable and never freed. NVML itself may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "gpumem/gpu_usage.hpp"

namespace gpumem {

struct nvml_memory_t {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct nvml_memory_v2_t {
  unsigned int version;  // the struct's size, and 2 in the highest byte
  unsigned long long total;
  unsigned long long reserved;  // by the driver; part of `used` in nvml_memory_t, not here
  unsigned long long free;
  unsigned long long used;
};
struct nvml_utilization_t {
  unsigned int gpu;
  unsigned int memory;
};
struct nvml_process_t {  // nvmlProcessInfo_v2_t
  unsigned int pid;
  unsigned long long used_gpu_memory;  // ULLONG_MAX: not available
  unsigned int gpu_instance_id;
  unsigned int compute_instance_id;
};
struct nvml_pci_t {  // nvmlPciInfo_v3
  char bus_id_legacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int device_id;
  unsigned int subsystem_id;
  char bus_id[32];
};
using nvml_device_t = struct nvml_device_handle*;

struct nvml_table {
  using code = int;  // nvmlReturn_t: 0 is success
  code (*init)() = nullptr;
  const char* (*error_string)(code) = nullptr;
  code (*device_count)(unsigned int*) = nullptr;
  code (*device_by_index)(unsigned int, nvml_device_t*) = nullptr;
  code (*device_by_uuid)(const char*, nvml_device_t*) = nullptr;
  code (*device_name)(nvml_device_t, char*, unsigned int) = nullptr;
  code (*device_uuid)(nvml_device_t, char*, unsigned int) = nullptr;
  code (*memory)(nvml_device_t, nvml_memory_t*) = nullptr;
  code (*utilization)(nvml_device_t, nvml_utilization_t*) = nullptr;
  code (*processes)(nvml_device_t, unsigned int*, nvml_process_t*) = nullptr;
  // The functions below may be null; their figures are then unknown.
  code (*memory_v2)(nvml_device_t, nvml_memory_v2_t*) = nullptr;
  code (*graphics_processes)(nvml_device_t, unsigned int*, nvml_process_t*) = nullptr;
  code (*pci_info)(nvml_device_t, nvml_pci_t*) = nullptr;
  code (*cores)(nvml_device_t, unsigned int*) = nullptr;
  code (*max_clock)(nvml_device_t, unsigned int clock, unsigned int*) = nullptr;
  code (*mig_mode)(nvml_device_t, unsigned int* current, unsigned int* pending) = nullptr;
  code (*temperature)(nvml_device_t, unsigned int sensor, unsigned int* celsius) = nullptr;
  code (*power)(nvml_device_t, unsigned int* milliwatts) = nullptr;
  code (*power_limit)(nvml_device_t, unsigned int* milliwatts) = nullptr;
  code (*instance_count)(nvml_device_t, unsigned int*) = nullptr;
  code (*instance_by_index)(nvml_device_t, unsigned int, nvml_device_t*) = nullptr;
};

/// Fills a table with `lookup`, which finds a function by its exported name or returns null. Initialises NVML.
result<const nvml_table*> resolve_nvml(const std::function<void*(const char* name)>& lookup);
/// The machine's NVML, loaded at the first call: libnvidia-ml.so.1, or the file that GPUMEM_NVML names. Later calls
/// return the same table or error.
result<const nvml_table*> load_nvml();

result<std::vector<gpu_usage>> gpu_usage_from(const nvml_table& nvml);
result<memory_info> nvml_memory_from(const nvml_table& nvml, const std::string& uuid);
/// The memory of the GPU with this UUID, from the machine's NVML.
result<memory_info> nvml_memory(const std::string& uuid);
/// The memory of this process on the GPU, from the machine's NVML. Empty if NVML cannot tell, as in a container with
/// its own PID namespace. Makes two NVML calls.
std::optional<std::uint64_t> nvml_own_bytes(const std::string& uuid);
/// The processes with a compute context on the GPU, from the machine's NVML; empty if NVML cannot tell.
std::vector<gpu_process> nvml_processes(const std::string& uuid);

}  // namespace gpumem
