// NVML's functions over cards that the environment describes, read at each query:
//   FAKENVML_CARDS=4             how many, each of 24 GiB; none: nvmlInit fails as without a driver
//   FAKENVML_HANG=1              nvmlInit does not return
//   FAKENVML_UUIDS=a,b,c,d       their UUIDs behind `GPU-`; otherwise fake-0, fake-1, ...
//   FAKENVML_MIB=1024            memory of each, instead
//   FAKENVML_USED=1=2048,3=512   MiB in use
//   FAKENVML_UNMEASURED=0=1      a card whose memory it does not measure
//   FAKENVML_RESERVED=0=400      MiB of those in use, by the driver
//   FAKENVML_GRAPHICS=0=300      MiB of a process that only draws, among those in use
//   FAKENVML_DRIVER=path         use on card 0, as the driver double in that file reports it
//   FAKENVML_BUSY=0=70           percent
//   FAKENVML_CELSIUS=0=45        temperature; without it the card reports none
//   FAKENVML_WATTS=0=120         drawn, of 300 W
//   FAKENVML_PIDS=0=123,0=456    a process with a context on a card, with 256 MiB
//   FAKENVML_OWN_PERCENT=50      this process has a context on card 0, with this part of the memory in use there
//   FAKENVML_MIG=2=2             a card in MIG mode with so many instances, of 4 GiB, with 1 GiB in use each
// PCI addresses fall with the index, so that NVML's order is not that of CUDA_DEVICE_ORDER=PCI_BUS_ID.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "nvml_types.hpp"

namespace {

using namespace gpumem::simcuda::nvml;  // NOLINT: the exported functions are global

constexpr unsigned long long mib = 1ULL << 20;
constexpr unsigned instance_base = 1000;  // handles of instances: 1000 + 10 * card + instance

std::string text_of(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}
unsigned cards() { return static_cast<unsigned>(std::strtoul(text_of("FAKENVML_CARDS").c_str(), nullptr, 10)); }

std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    out.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

/// The values for one card in `card=value,card=value`.
std::vector<unsigned long long> values_for(const char* name, unsigned card) {
  std::vector<unsigned long long> out;
  for (const std::string& part : parts_of(text_of(name))) {
    char* rest = nullptr;
    const unsigned long which = std::strtoul(part.c_str(), &rest, 10);
    if (which == card && *rest == '=') out.push_back(std::strtoull(rest + 1, nullptr, 10));
  }
  return out;
}
unsigned long long value_for(const char* name, unsigned card) {
  const auto all = values_for(name, card);
  return all.empty() ? 0 : all.front();
}

unsigned long long total_of_card() {
  const std::string named = text_of("FAKENVML_MIB");
  return (named.empty() ? 24576 : std::strtoull(named.c_str(), nullptr, 10)) * mib;
}
unsigned long long used_on(unsigned card) {
  const std::string driver = text_of("FAKENVML_DRIVER");
  if (card != 0 || driver.empty()) return value_for("FAKENVML_USED", card) * mib;
  using question = std::uint64_t();
  void* const library = dlopen(driver.c_str(), RTLD_NOW | RTLD_LOCAL);
  auto* const ask = reinterpret_cast<question*>(dlsym(library, "simcuda_used_bytes"));
  return ask != nullptr ? ask() : 0;
}

unsigned number(void* device) { return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(device)) - 1; }
void* handle(unsigned n) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(n) + 1); }

memory_t memory_of(unsigned n) {
  const bool instance = n >= instance_base;
  const unsigned long long total = instance ? 4096 * mib : total_of_card();
  const unsigned long long used = instance ? 1024 * mib : used_on(n);
  return {total, total - used, used};
}

std::string uuid_of(unsigned n) {
  if (n >= instance_base) return "MIG-fake-" + std::to_string(n - instance_base);
  const auto named = parts_of(text_of("FAKENVML_UUIDS"));
  return "GPU-" + (n < named.size() ? named[n] : "fake-" + std::to_string(n));
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  while (!text_of("FAKENVML_HANG").empty()) ::pause();
  return text_of("FAKENVML_CARDS").empty() ? driver_not_loaded : success;
}
const char* nvmlErrorString(int code) { return code == driver_not_loaded ? "Driver Not Loaded" : "Unknown Error"; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = cards(), success; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = handle(index);
  return index < cards() ? success : invalid_argument;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  for (unsigned i = 0; i < cards(); ++i) {
    if (uuid_of(i) == uuid) return *device = handle(i), success;
  }
  return not_found;
}
int nvmlDeviceGetName(void* device, char* out, unsigned bytes) {
  std::snprintf(out, bytes, "Fake %u", number(device));
  return success;
}
int nvmlDeviceGetUUID(void* device, char* out, unsigned bytes) {
  std::snprintf(out, bytes, "%s", uuid_of(number(device)).c_str());
  return success;
}
int nvmlDeviceGetMemoryInfo(void* device, memory_t* out) {
  if (value_for("FAKENVML_UNMEASURED", number(device)) != 0) return not_supported;
  *out = memory_of(number(device));
  return success;
}
int nvmlDeviceGetMemoryInfo_v2(void* device, memory_2_t* out) {
  if (value_for("FAKENVML_UNMEASURED", number(device)) != 0) return not_supported;
  const memory_t all = memory_of(number(device));
  const unsigned long long reserved = value_for("FAKENVML_RESERVED", number(device)) * mib;
  *out = {out->version, all.total, reserved, all.free, all.used - reserved};
  return success;
}
int nvmlDeviceGetUtilizationRates(void* device, utilization_t* out) {
  *out = {static_cast<unsigned>(value_for("FAKENVML_BUSY", number(device))), 0};
  return success;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, process_2_t* list) {
  std::vector<process_2_t> all;
  for (const unsigned long long pid : values_for("FAKENVML_PIDS", number(device))) {
    all.push_back({static_cast<unsigned>(pid), 256 * mib, 0, 0});
  }
  if (const std::string own = text_of("FAKENVML_OWN_PERCENT"); number(device) == 0 && !own.empty()) {
    const unsigned long long percent = std::strtoull(own.c_str(), nullptr, 10);
    all.push_back({static_cast<unsigned>(getpid()), used_on(0) * percent / 100, 0, 0});
  }
  const auto there = static_cast<unsigned>(all.size());
  if (*count < there) return *count = there, insufficient_size;
  std::ranges::copy(all, list);
  return *count = there, success;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void* device, unsigned* count, process_2_t* list) {
  const unsigned long long drawing = value_for("FAKENVML_GRAPHICS", number(device)) * mib;
  const unsigned there = drawing != 0 ? 1 : 0;
  if (*count < there) return *count = there, insufficient_size;
  if (there != 0) list[0] = {1, drawing, 0, 0};
  return *count = there, success;
}
int nvmlDeviceGetTemperature(void* device, unsigned /*sensor*/, unsigned* out) {
  const auto all = values_for("FAKENVML_CELSIUS", number(device));
  if (all.empty()) return not_found;
  return *out = static_cast<unsigned>(all.front()), success;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* out) {
  const auto all = values_for("FAKENVML_WATTS", number(device));
  if (all.empty()) return not_found;
  return *out = static_cast<unsigned>(all.front()) * 1000, success;
}
int nvmlDeviceGetEnforcedPowerLimit(void* /*device*/, unsigned* out) { return *out = 300'000, success; }
int nvmlDeviceGetPciInfo_v3(void* device, pci_t* out) {
  *out = {};
  std::snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", 0x80 - number(device));
  return success;
}
int nvmlDeviceGetNumGpuCores(void* /*device*/, unsigned* out) { return *out = 10000, success; }
int nvmlDeviceGetMaxClockInfo(void* device, unsigned /*clock*/, unsigned* mhz) {
  return *mhz = 2000 - number(device), success;  // card 0 is the fastest
}
int nvmlDeviceGetMigMode(void* device, unsigned* now, unsigned* later) {
  return *now = *later = value_for("FAKENVML_MIG", number(device)) != 0 ? 1U : 0U, success;
}
int nvmlDeviceGetMaxMigDeviceCount(void* /*device*/, unsigned* count) { return *count = 7, success; }
int nvmlDeviceGetMigDeviceHandleByIndex(void* device, unsigned index, void** out) {
  if (index >= value_for("FAKENVML_MIG", number(device))) return not_found;
  return *out = handle(instance_base + 10 * number(device) + index), success;
}

}  // extern "C"
