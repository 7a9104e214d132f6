/// Peers: the row of a measured peer, and the error of one that is missing, of another version, or failing. The peers
/// here are the project's own CUB plug-in, and one that fails on demand; no other packages are needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "test_files.hpp"

namespace gpumem::bench {
namespace {

using json = nlohmann::json;
using testing::HasSubstr;

class peer : public testing::Test {
 protected:
  struct outcome {
    int exit_status;
    json rows;
    std::string err;
  };

  outcome run(const std::string& words) {
    const std::string out = folder_.path("out.json");
    const std::string command = "env -i PATH=\"$PATH\" '" GPUMEM_BENCH_PROGRAM "' " + words + " --peers '" +
                                folder_.path("") + "' --quiet --trace '" + trace() + "' --json '" + out + "' >'" +
                                folder_.path("table") + "' 2>'" + folder_.path("err") + "' </dev/null";
    const int code = std::system(command.c_str());
    const int exit_status = WIFEXITED(code) ? WEXITSTATUS(code) : -1;
    const json told = exit_status == 0 ? json::parse(content_of(out)) : json{{"results", json::array()}};
    return {exit_status, told["results"], content_of(folder_.path("err"))};
  }

  /// The peer's row after one of gpumem, which must be complete.
  std::string reason_of(const std::string& name, const std::string& words = "") {
    const outcome got = run("compare --policy growth --baseline " + name + " " + words);
    EXPECT_EQ(got.exit_status, 0) << got.err;
    if (got.rows.size() != 2) return "";
    EXPECT_EQ(got.rows[0]["failed"], nullptr);
    EXPECT_GT(got.rows[0]["loop_ns_per_op"], 0) << "of gpumem, from which nothing is subtracted";
    EXPECT_EQ(got.rows[1]["peak_reserved_bytes"], nullptr);
    EXPECT_THAT(content_of(folder_.path("table")), HasSubstr("failed: " + name));
    return got.rows[1]["failed"].is_string() ? got.rows[1]["failed"].get<std::string>() : "";
  }

  void install(const std::string& name, const std::string& library, const std::string& kind) {
    write(name, {{"library", library}, {"kind", kind}, {"version", name + " 1.0"}, {"installed", folder_.path("")}});
  }
  void write(const std::string& name, const json& what) { folder_.write(name + ".json", what.dump()); }

  /// Blocks of many sizes on two streams, some freed on the other one.
  std::string trace() {
    std::string rows;
    for (int i = 0; i < 300; ++i) {
      const auto line = [&](const char* what, int block, int stream) {
        rows += std::string{"1,00:00:00:000000,"} + what + "," + std::to_string(block + 1) + "00," +
                std::to_string((block % 7 + 1) * 300'000) + "," + std::to_string(stream) + "\n";
      };
      line("allocate", i, i % 2 * 5);
      if (i >= 20) line("free", i - 20, i % 3 == 0 ? 5 : (i - 20) % 2 * 5);
    }
    return folder_.write("t.csv", csv(rows));
  }

  test_folder folder_;
};

TEST_F(peer, counts_what_the_same_allocator_counts_in_this_process) {
  install("own_cub", GPUMEM_TEST_CUB, "cub");
  const outcome got = run("compare --policy growth --shared-use 30% --baseline own_cub --baseline cub");
  ASSERT_EQ(got.exit_status, 0) << got.err;
  ASSERT_EQ(got.rows.size(), 4U);
  const json& apart = got.rows[1];
  EXPECT_EQ(apart["version"], "own_cub 1.0");
  for (const char* key : {"failed", "ops", "peak_live_bytes", "peak_reserved_bytes", "utilization", "device_calls",
                          "modelled_device_ms", "hazards", "oom", "internal_fragmentation"}) {
    EXPECT_EQ(apart[key], got.rows[2][key]) << key;
  }
  for (const json& row : got.rows) EXPECT_GT(row["host_ns_per_op"], 0) << row;
  EXPECT_GT(got.rows[0]["loop_ns_per_op"], 0) << "of gpumem, from which nothing is subtracted";
  const json& loop_ns = apart["loop_ns_per_op"];
  EXPECT_TRUE(loop_ns.is_null() || loop_ns > 0) << apart;
  EXPECT_THAT(content_of(folder_.path("table")), HasSubstr("own_cub is the allocator of own_cub 1.0"));
}

TEST_F(peer, has_a_smallest_capacity) {
  install("exact", GPUMEM_TEST_CUB, "cuda_malloc");
  const outcome got = run("fit --policy growth --baseline exact --baseline torch");
  ASSERT_EQ(got.exit_status, 0) << got.err;
  ASSERT_EQ(got.rows.size(), 3U);
  // cudaMalloc keeps nothing, and capacities are counted in 512 bytes, as for policies.
  EXPECT_EQ(got.rows[1]["min_capacity_bytes"], got.rows[1]["peak_live_bytes"]);
  EXPECT_LT(got.rows[1]["first_failures"].back()["oom_at_op"], 300);
  EXPECT_THAT(got.rows[2]["failed"].get<std::string>(), HasSubstr("not installed"));
}

TEST_F(peer, on_one_stream_sees_no_other) {
  json told{{"library", GPUMEM_TEST_CUB}, {"kind", "cub"}, {"version", "1"}, {"installed", "/"}, {"one_stream", true}};
  write("one", told);
  told["one_stream"] = false;
  write("two", told);
  const outcome got = run("compare --policy growth --baseline one --baseline two");
  ASSERT_EQ(got.rows.size(), 3U) << got.err;
  EXPECT_EQ(got.rows[1]["hazards"], 0);
  EXPECT_LT(got.rows[1]["peak_reserved_bytes"], got.rows[2]["peak_reserved_bytes"]);
}

TEST_F(peer, that_is_missing_says_so) { EXPECT_THAT(reason_of("tensorflow"), HasSubstr("scripts/peers writes it")); }

TEST_F(peer, of_another_version_says_so) {
  write("torch", {{"library", GPUMEM_TEST_CUB},
                  {"kind", "torch"},
                  {"version", "PyTorch 2.15.0"},
                  {"installed", folder_.path("torch-2.15.0.dist-info")}});
  EXPECT_THAT(reason_of("torch"), testing::AllOf(HasSubstr("built against version PyTorch 2.15.0"),
                                                 HasSubstr("torch-2.15.0.dist-info no longer exists")));
}

TEST_F(peer, with_a_bad_file_says_so) {
  folder_.write("torch.json", "no JSON");
  EXPECT_THAT(reason_of("torch"), HasSubstr("torch.json is no JSON object"));
  write("torch", {{"kind", "torch"}});
  EXPECT_THAT(reason_of("torch"), HasSubstr("has no text 'library'"));
  install("torch", folder_.write("text.so", "no library"), "torch");
  EXPECT_THAT(reason_of("torch"), HasSubstr("text.so"));
}

TEST_F(peer, that_breaks_takes_nothing_with_it) {
  install("crash", GPUMEM_TEST_FAKE_PEER, "crash");
  EXPECT_THAT(reason_of("crash"), HasSubstr("a pass ended by signal 6"));
  install("refuse", GPUMEM_TEST_FAKE_PEER, "refuse");
  EXPECT_THAT(reason_of("refuse"), HasSubstr("allocate failed: as it was told to"));
  install("unknown", GPUMEM_TEST_FAKE_PEER, "unknown");
  EXPECT_THAT(reason_of("unknown"), HasSubstr("cannot be opened"));
}

TEST_F(peer, that_hangs_is_given_up) {
  install("hang", GPUMEM_TEST_FAKE_PEER, "hang");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(reason_of("hang", "--peer-limit 1"), HasSubstr("no answer within 1 s"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds{500}) << "the peer sleeps for 1,000 s";
}

TEST_F(peer, that_prints_is_not_taken_for_its_answer) {
  install("talk", GPUMEM_TEST_FAKE_PEER, "talk");
  const outcome got = run("compare --policy growth --baseline talk");
  ASSERT_EQ(got.rows.size(), 2U) << got.err;
  EXPECT_EQ(got.rows[1]["failed"], nullptr);
  EXPECT_EQ(got.rows[1]["oom"], true);
  EXPECT_EQ(got.rows[1]["oom_at_op"], 0);
}

TEST_F(peer, that_cannot_be_is_refused) {
  for (const auto& [words, reason] : std::initializer_list<std::pair<const char*, const char*>>{
           {"compare --baseline nothing", "--baseline nothing: expected cub, "},
           {"compare --baseline torch --peer-limit 0", "--peer-limit 0: expected whole seconds"},
           {"fit --baseline cub", "--baseline cub: expected a peer"}}) {
    const outcome got = run(words);
    EXPECT_EQ(got.exit_status, 2) << words;
    EXPECT_THAT(got.err, HasSubstr(reason));
  }
}

TEST_F(peer, package_without_headers_is_named_by_the_script) {
  std::filesystem::create_directories(folder_.path("site/torch-9.9.dist-info"));
  folder_.write("site/torch-9.9.dist-info/METADATA", "Name: torch\nVersion: 9.9\n");
  const std::string command = "scripts/peers --build '" GPUMEM_TEST_BUILD "' --output '" + folder_.path("") +
                              "' --site '" + folder_.path("site") + "' torch tensorflow >/dev/null 2>&1";
  const int code = std::system(command.c_str());
  EXPECT_EQ(WIFEXITED(code) ? WEXITSTATUS(code) : -1, 1);
  EXPECT_THAT(reason_of("torch_expandable"), HasSubstr("torch 9.9 comes without its headers"));
  EXPECT_THAT(reason_of("tensorflow"), HasSubstr("tensorflow is not installed in"));
}

}  // namespace
}  // namespace gpumem::bench
