// `gpumem devices` over the double of NVML.
#include <algorithm>
#include <cstdlib>
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
    return four_cards +
           " FAKENVML_USED=1=2048 FAKENVML_BUSY=1=70 FAKENVML_PIDS=1=1,1=999999999 FAKENVML_MIG=3=2 "
           "FAKENVML_CELSIUS=1=61 "
           "FAKENVML_WATTS=1=250";
  }
};

TEST_F(Devices, ListsEveryCardAsATable) {
  const outcome got = run("devices", machine());
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_EQ(got.err, "");
  EXPECT_THAT(got.out, HasSubstr("Fake 0"));
  EXPECT_THAT(got.out, HasSubstr(uuid(1)));
  EXPECT_THAT(got.out, HasSubstr("61 C  250/300 W  70 %  2.0/24.0 GiB"));
  EXPECT_THAT(got.out, HasSubstr("22.00 GiB")) << "free";
  EXPECT_THAT(got.out, HasSubstr("root")) << "whose process 1 is";
  for (std::size_t at = 0; at < got.out.size();) {
    const std::size_t end = got.out.find('\n', at);
    EXPECT_LE(end - at, 80U) << got.out.substr(at, end - at);
    at = end + 1;
    if (got.out.substr(at).starts_with("The driver")) break;
  }
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
  EXPECT_EQ(second["processes"][0]["user"], "root");
  EXPECT_EQ(second["temperature_c"], 61);
  EXPECT_EQ(second["power_mw"], 250'000);
  EXPECT_EQ(second["power_limit_mw"], 300'000);
  EXPECT_EQ(all["devices"][0]["temperature_c"], nullptr) << "a card that does not tell";
  EXPECT_EQ(all["problem"], "");
  EXPECT_EQ(second["leases"], 0);
  EXPECT_EQ(all["devices"][3]["mig"], true);
  EXPECT_EQ(all["devices"][3]["instances"][1]["uuid"], "MIG-fake-31");
}

#if defined(GPUMEM_TEST_DRIVER)
class UnmeasuredCard : public Devices {
 protected:
  /// A card of 16 GiB that NVML lists without its memory, over the double of the driver.
  std::string machine(const std::string& more = "") {
    return "GPUMEM_NVML='" GPUMEM_TEST_NVML "' GPUMEM_CUDA_DRIVER='" GPUMEM_TEST_DRIVER
           "' FAKENVML_CARDS=1 FAKENVML_UNMEASURED=0=1 FAKENVML_UUIDS=00000000-0000-0000-0000-000000000000 "
           "SIMCUDA_HOST_MEMORY=0 SIMCUDA_BYTES=16GiB SIMCUDA_CONTEXT_BYTES=512MiB " +
           more;
  }
  json card(const std::string& more = "") {
    const outcome got = run("devices --json", machine(more));
    EXPECT_EQ(got.exit_status, 0) << got.err;
    return json::parse(got.out)["devices"][0];
  }
};

TEST_F(UnmeasuredCard, IsMeasuredByAProbeOncePerTenSeconds) {
  const json first = card();
  EXPECT_EQ(first["memory_source"], "probe");
  EXPECT_EQ(first["total_bytes"], std::uint64_t{16} << 30);
  EXPECT_EQ(first["free_bytes"], (std::uint64_t{16} << 30) - (std::uint64_t{512} << 20));
  EXPECT_EQ(card("SIMCUDA_CONTEXT_BYTES=1GiB")["free_bytes"], first["free_bytes"]) << "no second context yet";
  EXPECT_THAT(run("devices", machine()).out, HasSubstr("GPU 0: not measured by NVML; free as a context found it"));
  EXPECT_THAT(run("top --once", machine()).out, HasSubstr("GPU 0: not measured by NVML"));
  EXPECT_EQ(run("run --devices auto -- sh -c 'echo $CUDA_VISIBLE_DEVICES'", machine()).out,
            "GPU-00000000-0000-0000-0000-000000000000\n");
  EXPECT_EQ(run("run --wait 0 -- true", machine()).exit_status, 0) << "the probe's own context is not another program";
  EXPECT_EQ(run("run --wait 0 --limit 15GiB -- true", machine()).exit_status, 0);
  EXPECT_EQ(run("run --wait 0 --limit 15.9GiB -- true", machine()).exit_status, 1);
}

TEST_F(UnmeasuredCard, WithoutRoomForAContextIsFull) {
  const json full = card("SIMCUDA_CONTEXT_BYTES=17GiB");
  EXPECT_EQ(full["memory_source"], "probe");
  EXPECT_EQ(full["free_bytes"], 0);
  EXPECT_EQ(run("run --wait 0 -- true", machine()).exit_status, 1);
}

TEST_F(UnmeasuredCard, InAnExclusiveModeGetsNoContext) {
  const json exclusive = card("SIMCUDA_COMPUTE_MODE=3");
  EXPECT_EQ(exclusive["memory_source"], "unknown");
  EXPECT_EQ(exclusive["free_bytes"], nullptr);
  EXPECT_EQ(exclusive["total_bytes"], std::uint64_t{16} << 30);
  const outcome told = run("devices", machine("SIMCUDA_COMPUTE_MODE=3"));
  EXPECT_THAT(told.out, HasSubstr("-/16.0 GiB"));
  EXPECT_THAT(told.out, HasSubstr("GPU 0: memory not known"));
  const outcome waits = run("run --wait 0 --limit 1GiB -- true", machine("SIMCUDA_COMPUTE_MODE=3"));
  EXPECT_EQ(waits.exit_status, 1);
  EXPECT_THAT(waits.err, HasSubstr("has an unknown amount free"));
}

TEST_F(UnmeasuredCard, OfAnIntegratedGpuIsTheHosts) {
  const json integrated = card("SIMCUDA_INTEGRATED=1 SIMCUDA_BYTES=1TiB SIMCUDA_FAIL=cuDevicePrimaryCtxRetain:1:2");
  EXPECT_EQ(integrated["memory_source"], "host") << "without a context, which would fail";
  EXPECT_EQ(integrated["total_bytes"], std::uint64_t{1} << 40);
  EXPECT_GT(integrated["free_bytes"], 0);
  EXPECT_LT(integrated["free_bytes"], std::uint64_t{1} << 40);
  EXPECT_EQ(card("SIMCUDA_INTEGRATED=1 SIMCUDA_BYTES=1MiB")["free_bytes"], 1 << 20) << "never more than its total";
  EXPECT_EQ(run("run --wait 0 --limit 1MiB -- true", machine("SIMCUDA_INTEGRATED=1")).exit_status, 0);
  EXPECT_EQ(run("run --wait 0 -- true", machine("SIMCUDA_INTEGRATED=1")).exit_status, 0) << "the host may use it";
}

TEST_F(UnmeasuredCard, IsListedWithoutADriver) {
  const json unknown = card("GPUMEM_CUDA_DRIVER=/no/driver");
  EXPECT_EQ(unknown["memory_source"], "unknown");
  EXPECT_EQ(unknown["total_bytes"], nullptr);
  EXPECT_EQ(run("run --devices auto -- true", machine("GPUMEM_CUDA_DRIVER=/no/driver")).exit_status, 0);
}
#endif

TEST_F(Devices, ShowsLeases) {
  const outcome got = run("run --devices auto -- '" + path("bin/gpumem") + "' devices --json", four_cards);
  ASSERT_EQ(got.exit_status, 0) << got.err;
  const json all = json::parse(got.out);
  EXPECT_EQ(all["devices"][0]["leases"], 1);
  EXPECT_EQ(all["devices"][1]["leases"], 0);
}

TEST_F(Devices, LeasesAreListedAndEndWithTheirHolder) {
  EXPECT_EQ(run("lease --end 1", four_cards).exit_status, 2) << "holds none";
  expect_refused("lease --end x", 2, "--end");
  write("holder",
        "\"$1\" run --devices auto -- sleep 60 &\n"
        "holder() { \"$1\" lease | grep \"^ *0 .* sleep$\"; }\n"
        "for try in $(seq 200); do holder \"$1\" >/dev/null && break; sleep 0.05; done\n"
        "\"$1\" lease --json >\"$2/json\"\n"
        "set -- \"$1\" \"$2\" $(holder \"$1\")\n"
        "echo \"gpu $3 place $5 room $6 user $8\"\n"
        "\"$1\" lease --end \"$7\"\n"
        "wait $!\n"
        "echo \"ended $?\"\n"
        "\"$1\" lease | grep -c \"^ *0 .* sleep$\"\n");
  const std::string command = "env -i PATH=\"$PATH\" GPUMEM_SHARED_FOLDER='" + path("shared") + "' " + four_cards +
                              " sh '" + path("holder") + "' '" + path("bin/gpumem") + "' '" + folder_ + "' >'" +
                              path("out") + "' 2>/dev/null";
  static_cast<void>(std::system(command.c_str()));
  const std::string told = content_of(path("out"));
  EXPECT_THAT(told, HasSubstr("gpu 0 place 0 room - user "));
  EXPECT_THAT(told, HasSubstr("(sleep) was asked to end; its lease on 0-"));
  EXPECT_THAT(told, HasSubstr("ended 143\n0\n")) << "by SIGTERM, and the lease is gone";
  const json all = json::parse(content_of(path("json")));
  EXPECT_EQ(all["schema"], 1);
  const auto mine = std::find_if(all["leases"].begin(), all["leases"].end(),
                                 [&](const json& each) { return each["uuid"] == uuid(0).substr(4); });
  ASSERT_NE(mine, all["leases"].end());
  EXPECT_EQ((*mine)["place"], 0);
  EXPECT_EQ((*mine)["holders"].size(), 2U) << "gpumem run and its command";
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
  expect_refused(
      "devices", 1,
      "GPUMEM_NVML=/no/nvml: no NVML: cannot open shared object file: No such file or directory; expected the "
      "path of NVIDIA's libnvidia-ml.so.1",
      "GPUMEM_NVML=/no/nvml");
  const outcome as_json = run("devices --json", "GPUMEM_NVML=/no/nvml");
  EXPECT_EQ(as_json.exit_status, 1);
  EXPECT_EQ(as_json.err, "") << "what asks for JSON reads it on stdout";
  EXPECT_THAT(json::parse(as_json.out)["problem"].get<std::string>(), HasSubstr("GPUMEM_NVML=/no/nvml: no NVML"));
  EXPECT_EQ(json::parse(as_json.out)["devices"].size(), 0U);
  expect_refused("devices", 1, "Driver Not Loaded", "GPUMEM_NVML='" GPUMEM_TEST_NVML "'");
}

TEST_F(Devices, AMachineWithoutCardsHasNone) {
  const outcome got = run("devices", "GPUMEM_NVML='" GPUMEM_TEST_NVML "' FAKENVML_CARDS=0");
  EXPECT_EQ(got.exit_status, 0);
  EXPECT_THAT(got.out, HasSubstr("no GPU"));
}

}  // namespace
}  // namespace gpumem::cli
