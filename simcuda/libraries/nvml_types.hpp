// NVML's structures and error numbers, as its documentation has them, for libraries that take its place. The Toolkit
// has no NVML header.
#pragma once

namespace gpumem::simcuda::nvml {

inline constexpr int success = 0;
inline constexpr int invalid_argument = 2;
inline constexpr int not_supported = 3;
inline constexpr int not_found = 6;
inline constexpr int insufficient_size = 7;
inline constexpr int driver_not_loaded = 9;

struct memory_t {
  unsigned long long total, free, used;
};
struct memory_2_t {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct utilization_t {
  unsigned gpu, memory;
};
struct process_t {
  unsigned pid;
  unsigned long long used;
};
struct process_2_t {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
struct pci_t {
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

}  // namespace gpumem::simcuda::nvml
