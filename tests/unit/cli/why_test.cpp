// `gpumem why`: the cause of a refusal in a recording, who held what, and settings that serve the request.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "program.hpp"

namespace gpumem::cli {
namespace {

using ::testing::HasSubstr;
using json = nlohmann::json;

constexpr const char* header = "Thread,Time,Action,Pointer,Size,Stream\n";

class Why : public Program {
 protected:
  /// Rows of RMM's log with times and sizes in MiB.
  class rows {
   public:
    rows& add(const std::string& action, const std::string& pointer, std::uint64_t mib_count, int stream = 0) {
      text_ += fmt::format("1,00:00:00:{:06},{},{},{},{}\n", ++at_, action, pointer, mib_count << 20, stream);
      return *this;
    }
    [[nodiscard]] const std::string& text() const { return text_; }

   private:
    std::string text_ = header;
    int at_ = 0;
  };
  /// A large block goes, small ones that stay are cut from its segment, and it comes again (case of httomo#667).
  static rows cut_up() {
    rows out;
    out.add("allocate", "0x1", 600).add("free", "0x1", 600);
    for (int i = 2; i < 10; ++i) out.add("allocate", fmt::format("{:#x}", i), 20, i % 2);
    return out.add("allocate failure", "growth@1048576000", 600);
  }
  json explained(const std::string& file, int exit_status = 0) {
    const outcome got = run("why '" + path(file) + "' --json -");
    EXPECT_EQ(got.exit_status, exit_status) << got.err;
    return json::parse(got.out);
  }
};

TEST_F(Why, FindsFragmentationAndTheSettingThatServes) {
  write("cut.csv", cut_up().text());
  const json all = explained("cut.csv");
  EXPECT_EQ(all["cause"], "fragmentation") << all.dump(1);
  EXPECT_EQ(all["capacity_bytes"], 1048576000);
  EXPECT_EQ(all["request"]["bytes"], 600 << 20);
  EXPECT_EQ(all["request"]["policy"], "growth");
  EXPECT_EQ(all["at_refusal"]["live_bytes"], 160 << 20);
  EXPECT_EQ(all["at_refusal"]["blocks"], 8);
  EXPECT_EQ(all["at_refusal"]["by_size"][0]["size_bytes"], 20 << 20);
  EXPECT_EQ(all["at_refusal"]["by_stream"].size(), 2U);
  EXPECT_EQ(all["at_peak"]["live_bytes"], 600 << 20);
  ASSERT_FALSE(all["served_by"].empty());
  for (const json& each : all["served_by"]) {
    EXPECT_NE(each["policy"], "growth") << "it refused";
    EXPECT_THAT(each["set"].get<std::string>(), HasSubstr("GPUMEM_LIMIT=1000MiB"));
    EXPECT_LE(each["peak_reserved_bytes"], 1048576000);
  }
  const outcome text = run("why '" + path("cut.csv") + "'");
  EXPECT_THAT(text.out,
              HasSubstr("Cause: fragmentation: 160.00 MiB live and 600.00 MiB asked fit into 1000.00 MiB, but "
                        "not in one piece."));
  EXPECT_THAT(text.out, HasSubstr(all["served_by"][0]["set"].get<std::string>()));
  EXPECT_LE(std::count(text.out.begin(), text.out.end(), '\n'), 30) << "one screen\n" << text.out;
}

// Frees of cudaFree come with a stream of their own. In a replay the device lags behind them, so the small blocks lie
// elsewhere and the large one is served.
TEST_F(Why, FindsFragmentationAlsoWhereTheDeviceDidNotLagBehind) {
  rows recorded;
  recorded.add("allocate", "0x1", 400, 1).add("allocate", "0x2", 400, 1);
  recorded.add("free", "0x1", 400, 2).add("free", "0x2", 400, 2);
  for (int i = 3; i < 17; ++i) recorded.add("allocate", fmt::format("{:#x}", i), 30, 1);
  write("merge.csv", recorded.add("allocate failure", "growth@1520435200", 800, 1).text());
  const json all = explained("merge.csv");
  EXPECT_EQ(all["cause"], "fragmentation");
  ASSERT_FALSE(all["served_by"].empty());
  EXPECT_NE(all["served_by"][0]["policy"], "growth");
}

// Layers that are replaced by larger ones, beside small blocks that stay (case of vllm#49151).
TEST_F(Why, NamesNoSettingThatServesOnlyADeviceThatLagsBehind) {
  rows recorded;
  int next = 1;
  const auto take = [&](std::uint64_t mib_count) {
    recorded.add("allocate", fmt::format("{:#x}", next), mib_count, 1);
    return next++;
  };
  const auto give = [&](int block, std::uint64_t mib_count) {
    recorded.add("free", fmt::format("{:#x}", block), mib_count, 2);
  };
  std::vector<int> layers;
  for (int i = 0; i < 48; ++i) {
    give(take(190), 190);
    take(3);
    layers.push_back(take(187));
  }
  for (int i = 0; i < 13; ++i) {
    give(layers[static_cast<std::size_t>(i)], 187);
    take(197);
  }
  give(layers[13], 187);
  write("layers.csv", recorded.add("allocate failure", "growth@12413042688", 197, 1).text());
  const json all = explained("layers.csv");
  EXPECT_EQ(all["cause"], "fragmentation");
  ASSERT_FALSE(all["served_by"].empty());
  const auto without_lag = [&](const json& each) {
    const std::string policy = each["policy"];
    const outcome got = run("advise '" + path("layers.csv") + "' --json");
    const json rows_of = json::parse(got.out)["results"];
    const auto row =
        std::find_if(rows_of.begin(), rows_of.end(), [&](const json& one) { return one["policy"] == policy; });
    return row != rows_of.end() && !(*row)["oom_without_lag"].get<bool>();
  };
  for (const json& each : all["served_by"]) EXPECT_TRUE(without_lag(each)) << each.dump();
}

// After the refused request, each step makes a scratch block of 600 MiB again and keeps a block of 20 MiB. growth
// serves some of these steps if the segments of the first ones are left over.
TEST_F(Why, TriesSettingsOnTheStepsThatWouldHaveFollowed) {
  rows recorded;
  int next = 1;
  const auto take = [&](std::uint64_t mib_count) {
    recorded.add("allocate", fmt::format("{:#x}", next), mib_count);
    return next++;
  };
  const auto give = [&](int block, std::uint64_t mib_count) {
    recorded.add("free", fmt::format("{:#x}", block), mib_count);
  };
  for (int step = 0; step < 3; ++step) {
    give(take(600), 600);
    take(20);
  }
  write("steps.csv", recorded.add("allocate failure", "growth@943718400", 600).text());
  const json all = explained("steps.csv");
  ASSERT_FALSE(all["served_by"].empty());
  for (const json& each : all["served_by"]) {
    EXPECT_EQ(each["next_refusal_after_ops"], nullptr) << each.dump();
    // 60 MiB and the request leave 240 MiB; the steps go on until half of them are taken.
    EXPECT_GE(each["peak_reserved_bytes"], (60 + 600 + 6 * 20) << 20) << each.dump();
  }
}

// As a program of PyTorch, which frees its tensors after the refusal has ended it.
TEST_F(Why, AdvisesForTheStepsAlsoWhereFreesFollowTheRefusal) {
  rows recorded;
  int next = 1;
  const auto take = [&](std::uint64_t mib_count) {
    recorded.add("allocate", fmt::format("{:#x}", next), mib_count);
    return next++;
  };
  std::vector<int> kept;
  for (int step = 0; step < 3; ++step) {
    recorded.add("free", fmt::format("{:#x}", take(600)), 600);
    kept.push_back(take(20));
  }
  recorded.add("allocate failure", "growth@943718400", 600);
  for (const int block : kept) recorded.add("free", fmt::format("{:#x}", block), 20);
  write("unwound.csv", recorded.text());
  const json advised = json::parse(run("advise '" + path("unwound.csv") + "' --json").out);
  ASSERT_EQ(advised["results"][0]["fits"], true);
  for (const json& each : advised["results"]) {
    if (!each["fits"].get<bool>()) continue;
    EXPECT_GE(each["peak_reserved_bytes"], (60 + 600 + 6 * 20) << 20) << "the steps were replayed: " << each.dump();
  }
  const json steps = explained("unwound.csv");
  for (const json& each : steps["served_by"]) EXPECT_EQ(each["next_refusal_after_ops"], nullptr) << each.dump();
}

// Two of three blocks stay, as in a program that forgets to free.
TEST_F(Why, SaysThatAProgramGrowsForEverAndNamesNoSetting) {
  rows recorded;
  for (int i = 1; i <= 300; ++i) {
    const std::string block = fmt::format("{:#x}", i);
    const auto size = static_cast<std::uint64_t>(1 + i % 7);
    recorded.add("allocate", block, size);
    if (i % 3 == 0) recorded.add("free", block, size);
  }
  write("grown.csv", recorded.add("allocate failure", "growth@867172352", 20).text());
  const json all = explained("grown.csv", 3);
  EXPECT_EQ(all["grows_for_ever"], true);
  EXPECT_TRUE(all["served_by"].empty());
  const std::string sentence =
      "Live memory grew from the first operation to the last. If the program goes on like this";
  EXPECT_THAT(run("why '" + path("grown.csv") + "'").out, HasSubstr(sentence));
  const outcome advised = run("advise '" + path("grown.csv") + "'");
  EXPECT_EQ(advised.exit_status, 3);
  EXPECT_THAT(advised.out, HasSubstr(sentence));
  EXPECT_THAT(advised.out, ::testing::Not(HasSubstr("Set: ")));
}

TEST_F(Why, SaysHowMuchMoreIsNeededWhereNothingServes) {
  write("full.csv", rows{}.add("allocate", "0x1", 40).add("allocate failure", "growth@67108864", 30).text());
  const json all = explained("full.csv", 3);
  EXPECT_EQ(all["cause"], "full");
  ASSERT_FALSE(all["served_by"].empty());
  EXPECT_EQ(all["served_by"][0]["more_memory"], true);
  EXPECT_GE(all["served_by"][0]["peak_reserved_bytes"], 70 << 20);
  EXPECT_THAT(all["served_by"][0]["set"].get<std::string>(), HasSubstr(" GPUMEM_LIMIT="));
  EXPECT_THAT(run("why '" + path("full.csv") + "'").out,
              HasSubstr("Cause: full: 40.00 MiB live and 30.00 MiB asked are more than the 64.00 MiB"));
}

TEST_F(Why, TellsWorkThatMemoryWaitedFor) {
  write("wait.csv", rows{}
                        .add("allocate", "0x1", 40, 1)
                        .add("free", "0x1", 40, 1)
                        .add("allocate failure", "growth@67108864", 40, 2)
                        .text());
  EXPECT_EQ(explained("wait.csv")["cause"], "pending_work");
}

TEST_F(Why, TakesTheCapacityWhereTheRecordingHasNone) {
  write("rmm.csv", rows{}.add("allocate", "0x1", 40).add("allocate failure", "(nil)", 30).text());
  const json unknown = explained("rmm.csv");
  EXPECT_EQ(unknown["cause"], "unknown");
  EXPECT_EQ(unknown["capacity_bytes"], nullptr);
  const outcome full = run("why '" + path("rmm.csv") + "' --capacity 64MiB");
  EXPECT_EQ(full.exit_status, 3);
  EXPECT_THAT(full.out, HasSubstr("Cause: full:"));
}

TEST_F(Why, ShowsThePeakWhereNothingWasRefused) {
  write("good.csv", rows{}.add("allocate", "0x1", 40).add("free", "0x1", 40).text());
  const outcome got = run("why '" + path("good.csv") + "'");
  EXPECT_EQ(got.exit_status, 0);
  EXPECT_THAT(got.out, HasSubstr("No request was refused in this recording."));
  EXPECT_THAT(got.out, HasSubstr("At the peak, after 1 operations: 40.00 MiB live, blocks: 1"));
  EXPECT_EQ(explained("good.csv")["cause"], nullptr);
}

TEST_F(Why, PrefersTheRequestThatWasNotServedLater) {
  write("retry.csv", rows{}
                         .add("allocate", "0x1", 40)
                         .add("allocate failure", "growth@67108864", 30)
                         .add("allocate failure", "growth@67108864", 8)
                         .add("allocate", "0x2", 8)
                         .text());
  EXPECT_EQ(explained("retry.csv", 3)["request"]["bytes"], 30 << 20);
}

TEST_F(Why, ReadsTheRecordingOfALivingProcess) {
  const std::string file = path("living.csv");
  const int own = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(own, 0);
  const std::string text = cut_up().text();
  ASSERT_EQ(::write(own, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  const outcome got = run("why " + std::to_string(::getpid()));
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr(file));
  EXPECT_THAT(got.out, HasSubstr("Cause: fragmentation"));
  ::close(own);
  expect_refused("why " + std::to_string(::getpid()), 1,
                 "records nothing; start the program with GPUMEM_TRACE=run.csv");
}

TEST_F(Why, OfAnotherUsersProcessSaysWhoMayAsk) {
  const std::string pid = ::geteuid() == 0 ? std::to_string(::getpid()) : "1";
  expect_refused("why " + pid, 1, "process " + pid + ": belongs to another user; run this as that user",
                 as_another_user());
}

TEST_F(Why, ExplainsAFileThatIsNoRecording) {
  write("empty.csv", "");
  write("foreign.csv", "a,b\n1,2\n");
  write("program.csv", content_of(path("bin/gpumem")).substr(0, 5000));
  const std::string to_do = "; expected a recording, which GPUMEM_TRACE=run.csv writes";
  expect_refused("why '" + path("empty.csv") + "'", 1, "empty.csv:1: the file is empty" + to_do);
  expect_refused("why '" + path("foreign.csv") + "'", 1, "Stream'" + to_do);
  expect_refused("why '" + path("program.csv") + "'", 1, to_do);
  expect_refused("why '" + path("none.csv") + "'", 1, "none.csv: no such file" + to_do);
  expect_refused("why 4194305", 1, "process 4194305: does not exist; expected the PID of a program that runs");
  expect_refused("why", 2, "expected a recording");
  expect_refused("why x.csv --capacity 0", 2, "expected from 1 byte");
}

TEST_F(Why, ReadsARecordingWithoutItsEnd) {
  const std::string text = cut_up().text() + "1,00:00:00:000099,allo";
  write("killed.csv", text);
  const json all = json::parse(run("why '" + path("killed.csv") + "' --json -").out);
  EXPECT_EQ(all["cause"], "fragmentation");
  EXPECT_THAT(all["cut"].get<std::string>(), HasSubstr("lost"));
}

}  // namespace
}  // namespace gpumem::cli
