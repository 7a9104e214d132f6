#include "nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "assign_or_return.hpp"
#include "checked_mutex.hpp"
#include "load_error.hpp"
#include "text.hpp"
#include "trusted_path.hpp"

namespace gpumem {
namespace {

constexpr const char* library_name = "libnvidia-ml.so.1";
constexpr int success = 0;
constexpr int not_supported = 3;
constexpr int insufficient_size = 7;
constexpr std::size_t text_bytes = 96;  // NVML's own limits for a name and a UUID
constexpr unsigned most_processes = 1U << 16;
constexpr unsigned sm_clock = 1;  // NVML_CLOCK_SM

status failed(const nvml_table& nvml, std::string_view call, int code, unsigned index) {
  const char* const text = nvml.error_string(code);
  return {errc::device_error, fmt::format("{} of GPU {} failed: {} (NVML error {}); nvidia-smi uses the same calls",
                                          call, index, text != nullptr ? text : "unknown", code)};
}

template <typename Pointer>
void find(const std::function<void*(const char*)>& lookup, Pointer& target, const char* name, std::string& missing) {
  void* const found = lookup(name);
  if (found == nullptr) missing += missing.empty() ? name : fmt::format(", {}", name);
  target = reinterpret_cast<Pointer>(found);
}

/// Appends the processes that `call` lists. Repeats the call with more space if the list did not fit.
int processes_of(decltype(nvml_table::processes) call, nvml_device_t device, std::vector<gpu_process>& processes) {
  std::vector<nvml_process_t> list(32);
  for (;;) {
    auto count = static_cast<unsigned>(list.size());
    const int code = call(device, &count, list.data());
    if (code == insufficient_size && list.size() < most_processes) {
      list.resize(2 * std::max<std::size_t>(list.size(), count));
      continue;
    }
    if (code != success) return code;
    list.resize(count);
    break;
  }
  for (const nvml_process_t& p : list) {
    gpu_process process{.pid = p.pid, .used_bytes = std::nullopt};
    if (p.used_gpu_memory != ~0ULL) process.used_bytes = p.used_gpu_memory;
    processes.push_back(process);
  }
  return success;
}

int read_memory(const nvml_table& nvml, nvml_device_t device, gpu_usage& card) {
  nvml_memory_t memory{};
  const int code = nvml.memory(device, &memory);
  if (code == not_supported || (code == success && memory.total == 0)) {
    card.measured_by = memory_source::unknown;
    return success;
  }
  if (code != success) return code;
  card.total_bytes = memory.total;
  card.used_bytes = memory.used;
  card.free_bytes = memory.free;
  nvml_memory_v2_t apart{};
  apart.version = static_cast<unsigned>(sizeof apart) | 2U << 24;
  if (nvml.memory_v2 != nullptr && nvml.memory_v2(device, &apart) == success) card.reserved_bytes = apart.reserved;
  return success;
}

/// Returns the memory of processes that draw and have no compute context.
std::uint64_t graphics_bytes_of(const nvml_table& nvml, nvml_device_t device, std::span<const gpu_process> compute) {
  std::vector<gpu_process> drawing;
  if (nvml.graphics_processes == nullptr || processes_of(nvml.graphics_processes, device, drawing) != success) return 0;
  std::uint64_t bytes = 0;
  for (const gpu_process& each : drawing) {
    const bool computes = std::ranges::find(compute, each.pid, &gpu_process::pid) != compute.end();
    if (!computes) bytes += each.used_bytes.value_or(0);
  }
  return bytes;
}

/// Reads optional figures, which not every card reports. Never fails.
void describe_card(const nvml_table& nvml, nvml_device_t device, gpu_usage& usage) {
  nvml_pci_t pci{};
  if (nvml.pci_info != nullptr && nvml.pci_info(device, &pci) == success) {
    pci.bus_id[sizeof pci.bus_id - 1] = '\0';
    usage.pci_bus_id = pci.bus_id;
  }
  unsigned cores = 0;
  unsigned mhz = 0;
  if (nvml.cores != nullptr && nvml.max_clock != nullptr && nvml.cores(device, &cores) == success &&
      nvml.max_clock(device, sm_clock, &mhz) == success) {
    usage.cores_mhz = std::uint64_t{cores} * mhz;
  }
  constexpr unsigned sensor_of_gpu = 0;
  unsigned celsius = 0;
  if (nvml.temperature != nullptr && nvml.temperature(device, sensor_of_gpu, &celsius) == success) {
    usage.temperature_c = celsius;
  }
  unsigned milliwatts = 0;
  if (nvml.power != nullptr && nvml.power(device, &milliwatts) == success) usage.power_mw = milliwatts;
  if (nvml.power_limit != nullptr && nvml.power_limit(device, &milliwatts) == success)
    usage.power_limit_mw = milliwatts;
  unsigned mode = 0;
  unsigned later = 0;
  if (nvml.mig_mode == nullptr || nvml.mig_mode(device, &mode, &later) != success || mode == 0) return;
  usage.mig = true;
  unsigned count = 0;
  if (nvml.instance_count == nullptr || nvml.instance_by_index == nullptr ||
      nvml.instance_count(device, &count) != success) {
    return;
  }
  for (unsigned i = 0; i < count; ++i) {  // `count` is the maximum; skips missing instances
    nvml_device_t instance = nullptr;
    std::array<char, text_bytes> text{};
    nvml_memory_t memory{};
    if (nvml.instance_by_index(device, i, &instance) != success ||
        nvml.device_uuid(instance, text.data(), text_bytes) != success) {
      continue;
    }
    gpu_instance entry{.uuid = text.data(), .total_bytes = 0, .used_bytes = 0, .free_bytes = 0};
    if (nvml.memory(instance, &memory) == success) {
      entry.total_bytes = memory.total;
      entry.used_bytes = memory.used;
      entry.free_bytes = memory.free;
    }
    usage.instances.push_back(std::move(entry));
  }
}

template <typename Pointer>
void find_optional(const std::function<void*(const char*)>& lookup, Pointer& target, const char* name) {
  target = reinterpret_cast<Pointer>(lookup(name));
}

}  // namespace

result<const nvml_table*> resolve_nvml(const std::function<void*(const char* name)>& lookup) {
  auto table = std::make_unique<nvml_table>();
  std::string missing;
  find(lookup, table->init, "nvmlInit_v2", missing);
  find(lookup, table->error_string, "nvmlErrorString", missing);
  find(lookup, table->device_count, "nvmlDeviceGetCount_v2", missing);
  find(lookup, table->device_by_index, "nvmlDeviceGetHandleByIndex_v2", missing);
  find(lookup, table->device_by_uuid, "nvmlDeviceGetHandleByUUID", missing);
  find(lookup, table->device_name, "nvmlDeviceGetName", missing);
  find(lookup, table->device_uuid, "nvmlDeviceGetUUID", missing);
  find(lookup, table->memory, "nvmlDeviceGetMemoryInfo", missing);
  find(lookup, table->utilization, "nvmlDeviceGetUtilizationRates", missing);
  find(lookup, table->processes, "nvmlDeviceGetComputeRunningProcesses_v3", missing);
  find_optional(lookup, table->memory_v2, "nvmlDeviceGetMemoryInfo_v2");
  find_optional(lookup, table->graphics_processes, "nvmlDeviceGetGraphicsRunningProcesses_v3");
  find_optional(lookup, table->pci_info, "nvmlDeviceGetPciInfo_v3");
  find_optional(lookup, table->cores, "nvmlDeviceGetNumGpuCores");
  find_optional(lookup, table->max_clock, "nvmlDeviceGetMaxClockInfo");
  find_optional(lookup, table->mig_mode, "nvmlDeviceGetMigMode");
  find_optional(lookup, table->temperature, "nvmlDeviceGetTemperature");
  find_optional(lookup, table->power, "nvmlDeviceGetPowerUsage");
  find_optional(lookup, table->power_limit, "nvmlDeviceGetEnforcedPowerLimit");
  find_optional(lookup, table->instance_count, "nvmlDeviceGetMaxMigDeviceCount");
  find_optional(lookup, table->instance_by_index, "nvmlDeviceGetMigDeviceHandleByIndex");
  if (!missing.empty()) {
    return status{errc::unsupported,
                  fmt::format("{} lacks {}; expected that of a driver of CUDA 12.0 or later", library_name, missing)};
  }
  if (const int code = table->init(); code != success) {
    const char* const text = table->error_string(code);
    return status{errc::device_error, fmt::format("nvmlInit_v2 failed: {} (NVML error {}); does nvidia-smi work?",
                                                  text != nullptr ? text : "unknown", code)};
  }
  static checked_mutex mutex;
  static auto* const all = new std::vector<std::unique_ptr<const nvml_table>>;  // for the whole process
  const mutex_lock lock{mutex};
  all->push_back(std::move(table));
  return static_cast<const nvml_table*>(all->back().get());
}

result<const nvml_table*> load_nvml() {
  static const result<const nvml_table*> loaded = []() -> result<const nvml_table*> {
    const std::string named = trusted_path("GPUMEM_NVML");
    const std::string path = named.empty() ? library_name : named;
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      if (!named.empty()) {
        return status{errc::unsupported, fmt::format("GPUMEM_NVML={}: no NVML: {}; expected the path of NVIDIA's {}",
                                                     printable(named), load_error(named), library_name)};
      }
      return status{errc::unsupported,
                    fmt::format("no {}: it comes with NVIDIA's driver, and without it nobody can tell what other "
                                "processes use",
                                path)};
    }
    return resolve_nvml([library](const char* name) { return dlsym(library, name); });
  }();
  return loaded;
}

result<std::vector<gpu_usage>> gpu_usage_from(const nvml_table& nvml) {
  unsigned count = 0;
  if (const int code = nvml.device_count(&count); code != success) {
    return failed(nvml, "nvmlDeviceGetCount_v2", code, 0);
  }
  std::vector<gpu_usage> all;
  for (unsigned i = 0; i < count; ++i) {
    nvml_device_t device = nullptr;
    if (const int code = nvml.device_by_index(i, &device); code != success) {
      return failed(nvml, "nvmlDeviceGetHandleByIndex_v2", code, i);
    }
    gpu_usage usage;
    usage.index = static_cast<int>(i);
    std::array<char, text_bytes> text{};
    if (const int code = nvml.device_name(device, text.data(), text_bytes); code != success) {
      return failed(nvml, "nvmlDeviceGetName", code, i);
    }
    usage.name = text.data();
    if (const int code = nvml.device_uuid(device, text.data(), text_bytes); code != success) {
      return failed(nvml, "nvmlDeviceGetUUID", code, i);
    }
    usage.uuid = text.data();
    if (const int code = read_memory(nvml, device, usage); code != success) {
      return failed(nvml, "nvmlDeviceGetMemoryInfo", code, i);
    }
    nvml_utilization_t busy{};
    if (nvml.utilization(device, &busy) == success)
      usage.busy_percent = busy.gpu;  // a card in MIG mode does not report it
    if (const int code = processes_of(nvml.processes, device, usage.processes);
        code != success && code != not_supported) {
      return failed(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", code, i);
    }
    usage.graphics_bytes = graphics_bytes_of(nvml, device, usage.processes);
    describe_card(nvml, device, usage);
    all.push_back(std::move(usage));
  }
  return all;
}

result<memory_info> nvml_memory_from(const nvml_table& nvml, const std::string& uuid) {
  nvml_device_t device = nullptr;
  nvml_memory_t memory{};
  if (nvml.device_by_uuid(uuid.c_str(), &device) != success || nvml.memory(device, &memory) != success ||
      memory.total == 0) {
    return status{errc::device_error, fmt::format("NVML does not measure GPU {}", uuid)};
  }
  return memory_info{.free_bytes = memory.free, .total_bytes = memory.total};
}

result<memory_info> nvml_memory(const std::string& uuid) {
  ASSIGN_OR_RETURN(const auto nvml, load_nvml());
  return nvml_memory_from(*nvml, uuid);
}

std::vector<gpu_process> nvml_processes(const std::string& uuid) {
  const result<const nvml_table*> nvml = load_nvml();
  nvml_device_t device = nullptr;
  std::vector<gpu_process> all;
  if (!nvml || (*nvml)->device_by_uuid(uuid.c_str(), &device) != success) return all;
  if (processes_of((*nvml)->processes, device, all) != success) all.clear();
  return all;
}

std::optional<std::uint64_t> nvml_own_bytes(const std::string& uuid) {
  const std::vector<gpu_process> all = nvml_processes(uuid);
  const auto own = std::ranges::find(all, static_cast<unsigned>(getpid()), &gpu_process::pid);
  return own != all.end() ? own->used_bytes : std::nullopt;
}

result<std::vector<gpu_usage>> gpu_usage_now() {
  ASSIGN_OR_RETURN(const auto nvml, load_nvml());
  return gpu_usage_from(*nvml);
}

}  // namespace gpumem
