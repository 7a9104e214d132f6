// `gpumem devices` over the double of NVML.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "program.hpp"

namespace gpumem::cli {
namespace {

using ::testing::HasSubstr;
using json = nlohmann::json;

class Devices : public Program {
 protected:
  std::string machine() {
    return four_cards + " FAKENVML_USED=1=2048 FAKENVML_BUSY=1=70 FAKENVML_PIDS=1=1,1=999999999 FAKENVML_MIG=3=2";
  }
};

TEST_F(Devices, ListsEveryCardAsATable) {
  const outcome got = run("devices", machine());
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_EQ(got.err, "");
  EXPECT_THAT(got.out, HasSubstr("Fake 0"));
  EXPECT_THAT(got.out, HasSubstr(uuid(1)));
  EXPECT_THAT(got.out, HasSubstr("24.00 GiB  2.00 GiB  22.00 GiB"));
  EXPECT_THAT(got.out, HasSubstr("70 %"));
  EXPECT_THAT(got.out, HasSubstr("MIG-fake-31"));
  EXPECT_THAT(got.out, HasSubstr("999999999"));
  EXPECT_THAT(got.out, HasSubstr("The driver holds no process to a limit: no MPS control daemon in /tmp/nvidia-mps."));
}

TEST_F(Devices, TheSameAsJson) {
  const outcome got = run("devices --json", machine());
  ASSERT_EQ(got.exit_status, 0) << got.err;
  const json all = json::parse(got.out);
  EXPECT_EQ(all["schema"], 1);
  ASSERT_EQ(all["devices"].size(), 4U);
  const json& second = all["devices"][1];
  EXPECT_EQ(second["uuid"], uuid(1));
  EXPECT_EQ(second["total_bytes"], std::uint64_t{24} << 30);
  EXPECT_EQ(second["used_bytes"], std::uint64_t{2} << 30);
  EXPECT_EQ(second["busy_percent"], 70);
  EXPECT_EQ(second["pci_bus_id"], "00000000:7F:00.0");
  ASSERT_EQ(second["processes"].size(), 2U);
  EXPECT_EQ(second["processes"][0]["pid"], 1);
  EXPECT_NE(second["processes"][0]["command"], "");
  EXPECT_EQ(second["processes"][1]["command"], "") << "there is no such process";
  EXPECT_EQ(second["leases"], 0);
  EXPECT_EQ(all["devices"][3]["mig"], true);
  EXPECT_EQ(all["devices"][3]["instances"][1]["uuid"], "MIG-fake-31");
}

TEST_F(Devices, ShowsLeases) {
  const outcome got = run("run --devices auto -- '" + path("bin/gpumem") + "' devices --json", four_cards);
  ASSERT_EQ(got.exit_status, 0) << got.err;
  const json all = json::parse(got.out);
  EXPECT_EQ(all["devices"][0]["leases"], 1);
  EXPECT_EQ(all["devices"][1]["leases"], 0);
}

TEST_F(Devices, SaysWhereTheDriverItselfCanLimit) {
  std::filesystem::create_directory(path("mps"));
  write("mps/control", "");
  const std::string environment = four_cards + " CUDA_MPS_PIPE_DIRECTORY='" + path("mps") + "'";
  EXPECT_THAT(run("devices", environment).out,
              HasSubstr("can hold a process to a limit: MPS answers in " + path("mps")));
  EXPECT_EQ(json::parse(run("devices --json", environment).out)["mps"]["driver_can_limit"], true);
}

TEST_F(Devices, WithoutNvmlItIsOneLine) {
  expect_refused("devices", 1, "no /no/nvml", "GPUMEM_NVML=/no/nvml");
  expect_refused("devices --json", 1, "no /no/nvml", "GPUMEM_NVML=/no/nvml");
  expect_refused("devices", 1, "Driver Not Loaded", "GPUMEM_NVML='" GPUMEM_TEST_NVML "'");
}

TEST_F(Devices, AMachineWithoutCardsHasNone) {
  const outcome got = run("devices", "GPUMEM_NVML='" GPUMEM_TEST_NVML "' FAKENVML_CARDS=0");
  EXPECT_EQ(got.exit_status, 0);
  EXPECT_THAT(got.out, HasSubstr("no GPU"));
}

}  // namespace
}  // namespace gpumem::cli
