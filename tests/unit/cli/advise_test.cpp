// `gpumem advise`: which candidates fit, in which order, and the variables to set.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "program.hpp"

namespace gpumem::cli {
namespace {

using ::testing::HasSubstr;
using json = nlohmann::json;

class Advise : public Program {
 protected:
  json advice(const std::string& arguments) {
    const outcome got = run("advise " + arguments + " --json");
    EXPECT_EQ(got.exit_status, 0) << got.err;
    EXPECT_EQ(got.err, "");
    return json::parse(got.out);
  }
  /// 100 MiB live, then holes of 20 MiB between and after the remaining blocks, then a request of 30 MiB.
  std::string holes() {
    std::string rows = "Thread,Time,Action,Pointer,Size,Stream\n";
    int at = 0;
    const auto row = [&](const char* action, const char* pointer, int mib_count) {
      rows += "1,00:00:00:" + std::to_string(100000 + at++) + "," + action + "," + pointer + "," +
              std::to_string(mib_count * 1048576) + ",0\n";
    };
    row("allocate", "0x1", 40);
    row("allocate", "0x2", 20);
    row("allocate", "0x3", 20);
    row("allocate", "0x4", 20);
    row("free", "0x2", 20);
    row("free", "0x4", 20);
    row("allocate", "0x5", 30);
    write("holes.csv", rows);
    return "'" + path("holes.csv") + "'";
  }
};

TEST_F(Advise, RanksSettingsThatFitFirst) {
  const json all = advice("bench/traces/serve.csv.gz --capacity 114MiB");
  EXPECT_EQ(all["schema"], 1);
  EXPECT_EQ(all["simulated"], true);
  EXPECT_EQ(all["capacity_bytes"], 114 << 20);
  EXPECT_EQ(all["proof"], nullptr);
  const json& rows = all["results"];
  ASSERT_GE(rows.size(), 10U);
  EXPECT_EQ(rows.front()["fits"], true);
  bool fits = true;
  double cost = 0;
  int rank = 0;
  std::vector<std::string> names;
  for (const json& row : rows) {
    EXPECT_EQ(row["rank"], ++rank);
    EXPECT_TRUE(fits || !row["fits"].get<bool>()) << row["policy"];
    fits = row["fits"];
    EXPECT_EQ(row["oom"].get<bool>() || row["within_margin"].get<bool>(), !fits);
    EXPECT_LE(row["peak_reserved_bytes"], 114 << 20) << row["policy"];
    if (fits) {
      EXPECT_GE(row["modelled_device_ms"], cost) << row["policy"] << ": of those that fit, the cheaper comes first";
      cost = row["modelled_device_ms"];
      EXPECT_GE(row["peak_reserved_bytes"], all["peak_live_bytes"]);
    }
    EXPECT_THAT(row["set"].get<std::string>(), HasSubstr("GPUMEM_LIMIT=114MiB"));
    names.push_back(row["policy"]);
  }
  for (const char* expected : {"growth", "caching", "grab_all", "hard_cap", "expandable", "expandable:slack=1%",
                               "planned", "multi_pool,pools=100%", "growth,thread_cache=0"}) {
    EXPECT_THAT(names, ::testing::Contains(expected));
  }
}

/// After a recording that ran out of memory, the policy that refused is not advised within the same memory.
TEST_F(Advise, TakesRefusedRequestsIntoAccount) {
  const std::string rows =
      "Thread,Time,Action,Pointer,Size,Stream\n"
      "1,00:00:00:000001,allocate,0x1,41943040,0\n"
      "1,00:00:00:000002,allocate failure,growth@209715200,31457280,0\n";
  write("refused.csv", rows);
  const std::string file = "'" + path("refused.csv") + "'";
  const auto fits = [](const json& all, const std::string& policy) {
    for (const json& row : all["results"]) {
      if (row["policy"] == policy) return row["fits"].get<bool>();
    }
    ADD_FAILURE() << policy;
    return false;
  };
  const json all = advice(file);
  EXPECT_EQ(all["capacity_bytes"], 209715200) << "what the recording had";
  EXPECT_EQ(all["capacity_by"], "recording");
  EXPECT_EQ(all["refused"], 1);
  EXPECT_EQ(all["peak_live_bytes"], 41943040 + 31457280);
  EXPECT_FALSE(fits(all, "growth"));
  EXPECT_TRUE(fits(all, "caching"));
  EXPECT_THAT(all["results"][0]["set"].get<std::string>(), HasSubstr("GPUMEM_LIMIT_SCOPE=pool"));
  EXPECT_TRUE(fits(advice(file + " --capacity 300MiB"), "growth"));
  const json small = json::parse(run("advise " + file + " --capacity 60MiB --json").out);
  EXPECT_FALSE(fits(small, "caching")) << "the refused request does not fit";
  EXPECT_THAT(run("advise " + file).out, HasSubstr("ran out of memory in the recording"));

  write("refused.csv", rows + "1,00:00:00:000003,allocate,0x2,31457280,0\n");
  EXPECT_TRUE(fits(advice(file), "growth")) << "a retry was served";
}

/// A policy whose default depends on measured times needs different memory in each run: no verdict within this margin.
TEST_F(Advise, LeavesAMarginWhereRunsVary) {
  const auto row_of = [](const json& all, const std::string& policy) {
    for (const json& row : all["results"]) {
      if (row["policy"] == policy) return row;
    }
    return json{};
  };
  const json close = advice(holes() + " --capacity 102MiB");
  EXPECT_EQ(row_of(close, "expandable")["fits"], false);
  EXPECT_EQ(row_of(close, "expandable")["oom"], false);
  EXPECT_EQ(row_of(close, "expandable")["within_margin"], true);
  EXPECT_EQ(row_of(close, "expandable:slack=1%")["fits"], true) << "exact with a named slack";
  EXPECT_THAT(run("advise " + holes() + " --capacity 102MiB").out, HasSubstr("too close: runs differ by up to 3 %"));
  EXPECT_EQ(row_of(advice(holes() + " --capacity 110MiB"), "expandable")["fits"], true);
}

TEST_F(Advise, ReportsPoliciesThatFindNoHoleLargeEnough) {
  const json all = advice(holes() + " --capacity 106MiB");
  std::map<std::string, bool> fits;
  for (const json& row : all["results"]) fits[row["policy"]] = row["fits"];
  EXPECT_TRUE(fits.at("planned"));
  EXPECT_TRUE(fits.at("expandable"));
  EXPECT_TRUE(fits.at("growth")) << "each block has a segment of its own, which goes back";
  EXPECT_FALSE(fits.at("grab_all"));
}

TEST_F(Advise, ProvesThatNothingCanFit) {
  const outcome got = run("advise " + holes() + " --capacity 90MiB");
  EXPECT_EQ(got.exit_status, 3);
  EXPECT_THAT(got.out, HasSubstr("Nothing fits. No allocator can: after operation 4 104857600 bytes are live"));
}

TEST_F(Advise, WritesLimitsAsPeopleDo) {
  for (const auto& [capacity, limit] : {std::pair{"32.2GiB", "32.2GiB"},
                                        {"34574486732", "32.2GiB"},
                                        {"35GB", "32.5GiB"},
                                        {"4096MiB", "4GiB"},
                                        {"150000000", "143MiB"}}) {
    const json all = advice(holes() + " --capacity " + capacity);
    EXPECT_THAT(all["results"][0]["set"].get<std::string>(), HasSubstr(std::string{"GPUMEM_LIMIT="} + limit))
        << capacity;
  }
}

TEST_F(Advise, RowsWithTheSameFiguresAreOneLine) {
  const json all = advice(holes() + " --capacity 300MiB");
  std::size_t lines = 0;
  std::set<std::tuple<bool, double, double>> different;
  for (const json& row : all["results"]) {
    if (row["same_as"].is_null()) ++lines;
    different.emplace(row["own_plan"].get<bool>(), row["peak_reserved_bytes"].get<double>(),
                      row["modelled_device_ms"].get<double>());
  }
  EXPECT_LT(lines, all["results"].size()) << "growth and hard_cap are the same here";
  EXPECT_GE(lines, different.size());
  const outcome got = run("advise " + holes() + " --capacity 300MiB");
  const std::string table = got.out.substr(got.out.find("policy"), got.out.find("\n\nSet:") - got.out.find("policy"));
  EXPECT_EQ(static_cast<std::size_t>(std::count(table.begin(), table.end(), '\n')), lines) << got.out;
}

TEST_F(Advise, GivesTheVariablesToSet) {
  const outcome got = run("advise " + holes());
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("\nSet: GPUMEM_POLICY=planned GPUMEM_PLAN=holes.plan\n"));
  EXPECT_THAT(got.out, HasSubstr("\nWithout a plan: GPUMEM_POLICY=expandable:slack=1%"));
  EXPECT_THAT(got.out, HasSubstr("gpumem plan " + path("holes.csv") + " -o holes.plan"));
}

TEST_F(Advise, RefusesBadWordsInOneLine) {
  expect_refused("advise", 2, "no TRACE");
  expect_refused("advise x.csv --capacity much", 2, "--capacity=much");
  expect_refused("advise x.csv --capacity 0", 2, "expected from 1 byte to 32TiB");
  expect_refused("advise '" + path("none.csv") + "'", 1, "none.csv");
  expect_refused("advise a.csv b.csv", 2, "b.csv");
}

}  // namespace
}  // namespace gpumem::cli
