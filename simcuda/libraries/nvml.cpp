// NVML for the simulated cards: SIMCUDA_DEVICES of them, with the simulated driver's names, memory and bus numbers.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cards.hpp"
#include "nvml_types.hpp"
#include "shared_cards.hpp"
#include "units.hpp"

namespace {

using gpumem::simcuda::shared_cards;
using namespace gpumem::simcuda::nvml;  // NOLINT: the exported functions are global

const gpumem::simcuda::card_profile& profile() {
  const char* const text = std::getenv("SIMCUDA_CARD");
  const auto* const found = text != nullptr ? gpumem::simcuda::find_card(text) : nullptr;
  return found != nullptr ? *found : gpumem::simcuda::default_card();
}
/// Reads SIMCUDA_BYTES as the driver does, because the program may not have called the driver yet.
std::uint64_t card_bytes() {
  const char* const text = std::getenv("SIMCUDA_BYTES");
  if (text == nullptr) return profile().bytes();
  const auto bytes = gpumem::parse_bytes(text, "SIMCUDA_BYTES");
  return bytes ? *bytes : profile().bytes();
}
unsigned cards() {
  const char* const text = std::getenv("SIMCUDA_DEVICES");
  return text == nullptr ? 1U : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}
/// A device handle is the card's number plus one, as a pointer.
unsigned number_of(const void* device) { return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(device)) - 1; }
bool is_card(const void* device) { return device != nullptr && number_of(device) < cards(); }
int card_into(void** device, unsigned number) {
  if (device == nullptr || number >= cards()) return invalid_argument;
  *device = reinterpret_cast<void*>(static_cast<std::uintptr_t>(number) + 1);
  return success;
}
int text_into(char* buffer, unsigned bytes, const std::string& text) {
  if (buffer == nullptr || bytes <= text.size()) return insufficient_size;
  std::memcpy(buffer, text.c_str(), text.size() + 1);
  return success;
}
std::string uuid_of(unsigned number) {
  char text[64];
  std::snprintf(text, sizeof text, "GPU-00000000-0000-0000-0000-0000000000%02x", number & 0xffU);
  return text;
}
bool watch_shared(shared_cards& all) {
  const char* const name = std::getenv("SIMCUDA_SHARED");
  return name != nullptr && all.watch(name);
}
/// Returns the memory of a card, used by all processes that share it, or else by this process.
memory_t memory_of(unsigned number) {
  memory_t memory{card_bytes(), card_bytes(), 0};
  if (shared_cards all; watch_shared(all)) {
    for (const auto& [pid, bytes] : all.holders(static_cast<int>(number))) memory.used += bytes;
    memory.total = all.card_bytes();
    memory.used = std::min<unsigned long long>(memory.used, memory.total);
    memory.free = memory.total - memory.used;
    return memory;
  }
  if (void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); driver != nullptr) {
    using function = int(int, std::uint64_t*, std::uint64_t*);
    if (const auto get = reinterpret_cast<function*>(::dlsym(driver, "simcuda_card_memory")); get != nullptr) {
      std::uint64_t total = 0;
      std::uint64_t used = 0;
      if (get(static_cast<int>(number), &total, &used) == 0) memory = {total, total - used, used};
    }
    ::dlclose(driver);
  }
  return memory;
}
/// Writes the processes that share the card; none if it is not shared.
template <class entry>
int processes_into(void* device, unsigned* count, entry* infos) {
  if (!is_card(device) || count == nullptr) return invalid_argument;
  std::vector<std::pair<int, std::uint64_t>> found;
  if (shared_cards all; watch_shared(all)) found = all.holders(static_cast<int>(number_of(device)));
  const unsigned room = *count;
  *count = static_cast<unsigned>(found.size());
  if (room < found.size()) return insufficient_size;
  for (unsigned i = 0; i < found.size(); ++i) {
    infos[i] = {};
    infos[i].pid = static_cast<unsigned>(found[i].first);
    infos[i].used = found[i].second;
  }
  return success;
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return success; }
int nvmlInit() { return success; }
int nvmlInitWithFlags(unsigned) { return success; }
int nvmlShutdown() { return success; }
const char* nvmlErrorString(int code) {
  return code == success         ? "Success"
         : code == not_supported ? "Not Supported"
         : code == not_found     ? "Not Found"
                                 : "Invalid Argument";
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  const char* const text = std::getenv("SIMCUDA_DRIVER_VERSION");
  *version = text != nullptr ? std::atoi(text) : 13000;
  return success;
}
int nvmlSystemGetCudaDriverVersion(int* version) { return nvmlSystemGetCudaDriverVersion_v2(version); }
int nvmlSystemGetDriverVersion(char* text, unsigned bytes) { return text_into(text, bytes, "580.0.simulated"); }
int nvmlSystemGetNVMLVersion(char* text, unsigned bytes) { return text_into(text, bytes, "13.580.0"); }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = cards();
  return success;
}
int nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { return card_into(device, index); }
int nvmlDeviceGetHandleByIndex(unsigned index, void** device) { return card_into(device, index); }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  for (unsigned i = 0; i < cards(); ++i) {
    if (uuid_of(i) == uuid) return card_into(device, i);
  }
  return not_found;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* text, void** device) {
  unsigned domain = 0;
  unsigned bus = 0;
  if (text == nullptr || std::sscanf(text, "%x:%x:", &domain, &bus) != 2 || bus == 0) return invalid_argument;
  return bus <= cards() ? card_into(device, bus - 1) : not_found;
}
int nvmlDeviceGetHandleByPciBusId(const char* text, void** device) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

int nvmlDeviceGetIndex(void* device, unsigned* index) {
  if (!is_card(device)) return invalid_argument;
  *index = number_of(device);
  return success;
}
int nvmlDeviceGetMinorNumber(void* device, unsigned* number) { return nvmlDeviceGetIndex(device, number); }
int nvmlDeviceGetName(void* device, char* text, unsigned bytes) {
  return is_card(device) ? text_into(text, bytes, std::string{profile().name}) : invalid_argument;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned bytes) {
  return is_card(device) ? text_into(text, bytes, uuid_of(number_of(device))) : invalid_argument;
}
int nvmlDeviceGetPciInfo_v3(void* device, pci_t* info) {
  if (!is_card(device)) return invalid_argument;
  *info = {};
  info->bus = number_of(device) + 1;
  std::snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus & 0xffU);
  std::snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", info->bus & 0xffU);
  return success;
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  if (!is_card(device)) return invalid_argument;
  *major = profile().compute_major;
  *minor = profile().compute_minor;
  return success;
}
int nvmlDeviceGetMemoryInfo(void* device, memory_t* info) {
  if (!is_card(device)) return invalid_argument;
  *info = memory_of(number_of(device));
  return success;
}
int nvmlDeviceGetMemoryInfo_v2(void* device, memory_2_t* info) {
  if (!is_card(device)) return invalid_argument;
  const memory_t m = memory_of(number_of(device));
  *info = {info->version, m.total, 0, m.free, m.used};
  return success;
}
int nvmlDeviceGetUtilizationRates(void* device, utilization_t* rates) {
  if (!is_card(device)) return invalid_argument;
  *rates = {0, 0};
  return success;
}
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, process_t* infos) {
  return processes_into(device, count, infos);
}
int nvmlDeviceGetComputeRunningProcesses_v2(void* device, unsigned* count, process_2_t* infos) {
  return processes_into(device, count, infos);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, process_2_t* infos) {
  return processes_into(device, count, infos);
}
int nvmlDeviceGetMigMode(void*, unsigned*, unsigned*) { return not_supported; }
int nvmlDeviceGetP2PStatus(void*, void*, int, int* status) {
  *status = 0;
  return success;
}
// The cards have no links.
int nvmlDeviceGetNvLinkState(void*, unsigned, unsigned*) { return not_supported; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return not_supported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, pci_t*) { return not_supported; }
int nvmlDeviceGetNvLinkCapability(void*, unsigned, int, unsigned*) { return not_supported; }
int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return not_supported; }
int nvmlDeviceGetGpuFabricInfo(void*, void*) { return not_supported; }

}  // extern "C"
