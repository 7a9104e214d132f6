// NVML's answers through a table of fake functions: no driver needed.
#include "nvml.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

namespace gpumem {
namespace {

using ::testing::HasSubstr;

/// The answers of the fake NVML below; one test at a time.
struct machine {
  unsigned cards = 2;
  int init = 0;
  int memory = 0;
  int utilization = 0;
  unsigned processes = 1;
  unsigned instances = 0;  ///< of card 1, in places 0, 2, 4, ...; none: not in MIG mode
  std::string missing;
};
machine& world() {
  static machine only;
  return only;
}

nvml_device_t card(unsigned i) { return reinterpret_cast<nvml_device_t>(static_cast<std::uintptr_t>(i) + 1); }
unsigned index_of(nvml_device_t d) { return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(d)) - 1; }
std::string uuid_of(unsigned i) { return "GPU-" + std::to_string(i); }

int fake_init() { return world().init; }
const char* fake_error_string(int code) { return code == 9 ? "Driver Not Loaded" : "Unknown Error"; }
int fake_count(unsigned* n) { return *n = world().cards, 0; }
int fake_by_index(unsigned i, nvml_device_t* d) { return *d = card(i), i < world().cards ? 0 : 2; }
int fake_by_uuid(const char* uuid, nvml_device_t* d) {
  for (unsigned i = 0; i < world().cards; ++i) {
    if (uuid_of(i) == uuid) return *d = card(i), 0;
  }
  return 6;
}
int fake_name(nvml_device_t d, char* out, unsigned bytes) {
  std::snprintf(out, bytes, "Card %u", index_of(d));
  return 0;
}
int fake_uuid(nvml_device_t d, char* out, unsigned bytes) {
  if (index_of(d) >= 100) return std::snprintf(out, bytes, "MIG-%u", index_of(d)), 0;
  std::snprintf(out, bytes, "%s", uuid_of(index_of(d)).c_str());
  return 0;
}
int fake_memory(nvml_device_t d, nvml_memory_t* m) {
  *m = {.total = 100, .free = 40 + index_of(d), .used = 60 - index_of(d)};
  return world().memory;
}
int fake_utilization(nvml_device_t d, nvml_utilization_t* u) {
  *u = {.gpu = 70 + index_of(d), .memory = 5};
  return world().utilization;
}
int fake_processes(nvml_device_t /*d*/, unsigned* count, nvml_process_t* list) {
  const unsigned there = world().processes;
  if (*count < there) return *count = there, 7;
  for (unsigned i = 0; i < there; ++i) list[i] = {1000 + i, i == 1 ? ~0ULL : i + 10, 0, 0};
  return *count = there, 0;
}

int fake_pci(nvml_device_t d, nvml_pci_t* p) {
  *p = {};
  std::snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", 0x40 - index_of(d));
  return 0;
}
int fake_cores(nvml_device_t /*d*/, unsigned* n) { return *n = 1000, 0; }
int fake_clock(nvml_device_t d, unsigned /*clock*/, unsigned* mhz) { return *mhz = 10 + index_of(d), 0; }
int fake_mig_mode(nvml_device_t d, unsigned* now, unsigned* later) {
  *now = *later = index_of(d) == 1 && world().instances != 0 ? 1 : 0;
  return 0;
}
int fake_instance_count(nvml_device_t /*d*/, unsigned* n) { return *n = 7, 0; }
int fake_instance(nvml_device_t /*d*/, unsigned i, nvml_device_t* d) {
  if (i % 2 != 0 || i / 2 >= world().instances) return 6;
  return *d = card(100 + i), 0;
}

void* fake_lookup(const char* name) {
  static const std::map<std::string, void*> functions{
      {"nvmlInit_v2", reinterpret_cast<void*>(&fake_init)},
      {"nvmlErrorString", reinterpret_cast<void*>(&fake_error_string)},
      {"nvmlDeviceGetCount_v2", reinterpret_cast<void*>(&fake_count)},
      {"nvmlDeviceGetHandleByIndex_v2", reinterpret_cast<void*>(&fake_by_index)},
      {"nvmlDeviceGetHandleByUUID", reinterpret_cast<void*>(&fake_by_uuid)},
      {"nvmlDeviceGetName", reinterpret_cast<void*>(&fake_name)},
      {"nvmlDeviceGetUUID", reinterpret_cast<void*>(&fake_uuid)},
      {"nvmlDeviceGetMemoryInfo", reinterpret_cast<void*>(&fake_memory)},
      {"nvmlDeviceGetUtilizationRates", reinterpret_cast<void*>(&fake_utilization)},
      {"nvmlDeviceGetComputeRunningProcesses_v3", reinterpret_cast<void*>(&fake_processes)},
      {"nvmlDeviceGetPciInfo_v3", reinterpret_cast<void*>(&fake_pci)},
      {"nvmlDeviceGetNumGpuCores", reinterpret_cast<void*>(&fake_cores)},
      {"nvmlDeviceGetMaxClockInfo", reinterpret_cast<void*>(&fake_clock)},
      {"nvmlDeviceGetMigMode", reinterpret_cast<void*>(&fake_mig_mode)},
      {"nvmlDeviceGetMaxMigDeviceCount", reinterpret_cast<void*>(&fake_instance_count)},
      {"nvmlDeviceGetMigDeviceHandleByIndex", reinterpret_cast<void*>(&fake_instance)}};
  const auto found = functions.find(name);
  return found == functions.end() || world().missing == name ? nullptr : found->second;
}

class Nvml : public ::testing::Test {
 protected:
  void SetUp() override { world() = {}; }
  static const nvml_table& table() {
    const result<const nvml_table*> made = resolve_nvml(fake_lookup);
    EXPECT_TRUE(made.ok()) << made.why().message();
    return **made;
  }
};

TEST_F(Nvml, ToldOfEveryCardAndProcess) {
  world().processes = 2;
  const auto all = gpu_usage_from(table());
  ASSERT_TRUE(all.ok()) << all.why().message();
  ASSERT_EQ(all->size(), 2U);
  const gpu_usage& second = (*all)[1];
  EXPECT_EQ(second.index, 1);
  EXPECT_EQ(second.name, "Card 1");
  EXPECT_EQ(second.uuid, "GPU-1");
  EXPECT_EQ(second.total_bytes, 100U);
  EXPECT_EQ(second.used_bytes, 59U);
  EXPECT_EQ(second.free_bytes, 41U);
  EXPECT_EQ(second.busy_percent, 71U);
  ASSERT_EQ(second.processes.size(), 2U);
  EXPECT_EQ(second.processes[0].pid, 1000U);
  EXPECT_EQ(second.processes[0].used_bytes, 10U);
  EXPECT_FALSE(second.processes[1].used_bytes) << "NVML says that it does not know";
}

TEST_F(Nvml, TellsWhereACardIsAndHowFast) {
  const auto all = gpu_usage_from(table());
  ASSERT_TRUE(all.ok());
  EXPECT_EQ((*all)[0].pci_bus_id, "00000000:40:00.0");
  EXPECT_EQ((*all)[1].cores_mhz, 11'000U);
  EXPECT_FALSE((*all)[1].mig);
}

TEST_F(Nvml, TellsOfMigInstances) {
  world().instances = 2;
  const auto all = gpu_usage_from(table());
  ASSERT_TRUE(all.ok());
  EXPECT_FALSE((*all)[0].mig);
  EXPECT_TRUE((*all)[1].mig);
  ASSERT_EQ((*all)[1].instances.size(), 2U);
  EXPECT_EQ((*all)[1].instances[1].uuid, "MIG-102");
  EXPECT_EQ((*all)[1].instances[1].total_bytes, 100U);
}

TEST_F(Nvml, OptionalFunctionsMayBeMissing) {
  world().instances = 2;
  world().missing = "nvmlDeviceGetMigMode";
  const auto all = gpu_usage_from(table());
  ASSERT_TRUE(all.ok());
  EXPECT_FALSE((*all)[1].mig);
  EXPECT_EQ((*all)[1].pci_bus_id, "00000000:3F:00.0");
}

TEST_F(Nvml, ALongListOfProcessesIsAskedForAgain) {
  world().processes = 1000;
  const auto all = gpu_usage_from(table());
  ASSERT_TRUE(all.ok()) << all.why().message();
  EXPECT_EQ((*all)[0].processes.size(), 1000U);
}

TEST_F(Nvml, FindsMemoryByUuid) {
  const auto memory = nvml_memory_from(table(), "GPU-1");
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->free_bytes, 41U);
  EXPECT_THAT(nvml_memory_from(table(), "GPU-9").why().message(), HasSubstr("GPU-9"));
}

TEST_F(Nvml, ACardThatDoesNotTellItsUtilisationIsListedAllTheSame) {
  world().utilization = 3;
  const auto all = gpu_usage_from(table());
  ASSERT_TRUE(all.ok());
  EXPECT_FALSE((*all)[0].busy_percent);
}

TEST_F(Nvml, ErrorsNameTheCallAndTheCard) {
  world().memory = 999;
  const auto all = gpu_usage_from(table());
  EXPECT_EQ(all.code(), errc::device_error);
  EXPECT_THAT(all.why().message(), HasSubstr("nvmlDeviceGetMemoryInfo of GPU 0 failed"));
}

TEST_F(Nvml, WithoutADriverInitSaysSo) {
  world().init = 9;
  const auto made = resolve_nvml(fake_lookup);
  EXPECT_EQ(made.code(), errc::device_error);
  EXPECT_THAT(made.why().message(), HasSubstr("Driver Not Loaded"));
}

TEST_F(Nvml, AFunctionThatIsMissingIsNamed) {
  world().missing = "nvmlDeviceGetComputeRunningProcesses_v3";
  const auto made = resolve_nvml(fake_lookup);
  EXPECT_EQ(made.code(), errc::unsupported);
  EXPECT_THAT(made.why().message(), HasSubstr("nvmlDeviceGetComputeRunningProcesses_v3"));
}

}  // namespace
}  // namespace gpumem
