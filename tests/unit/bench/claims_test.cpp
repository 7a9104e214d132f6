/// Derives every verdict of `gpumem_bench claims` a second time, from the raw figures in the JSON only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "claims_report.hpp"
#include "test_files.hpp"

namespace gpumem::bench {
namespace {

using json = nlohmann::json;

result<claims_report> run(std::vector<std::string> only, unsigned jobs = 2) {
  options with;
  with.subcommand = command::claims;
  with.only = std::move(only);
  with.jobs = jobs;
  with.quiet = true;
  return run_claims(with);
}

/// The number of rows that agree with the statement, and of all rows.
struct score {
  std::size_t agree = 0;
  std::size_t of = 0;
  void count(bool agrees) {
    ++of;
    agree += agrees ? 1U : 0U;
  }
  [[nodiscard]] std::string verdict() const { return agree == of ? "holds" : agree == 0 ? "does not hold" : "depends"; }
};

double number(const json& row, const char* key) { return row.at(key).get<double>(); }

score count_rows(const json& figures, const std::function<bool(const json&)>& agrees) {
  score out;
  for (const json& row : figures) out.count(agrees(row));
  return out;
}

score growth_score(const json& figures) {
  std::size_t grown = 0;
  bool shrank = false;
  double before = 0;
  for (const json& row : figures) {
    grown += number(row, "reserved_at_end_bytes") > before ? 1U : 0U;
    shrank |= number(row, "least_reserved_bytes") < before && number(row, "epoch") > 1;
    before = number(row, "reserved_at_end_bytes");
  }
  score out;
  out.count(number(figures[0], "first_bytes") < before / 10);
  out.count(grown * 2 >= figures.size());
  out.count(!shrank);
  return out;
}

score releasing_score(const json& figures) {
  std::map<std::string, std::map<std::string, double>> peaks;
  for (const json& row : figures) peaks[row["workload"]][row["way"]] = number(row, "peak_reserved_bytes");
  score out;
  for (const auto& [workload, by_way] : peaks) {
    out.count(by_way.at("growth:segments, trim every 1000 operations") >
              1.01 * by_way.at("growth:segments, never gives back"));
    out.count(by_way.at("caching, trim every 1000 operations") > 1.01 * by_way.at("caching"));
  }
  return out;
}

score towers_score(const json& figures) {
  score out;
  for (std::size_t i = 1; i < figures.size(); ++i) {
    const double ratio =
        number(figures[i], "most_live_on_one_bytes") / number(figures[i - 1], "most_live_on_one_bytes");
    out.count(ratio < 1 && ratio > 0.5);
  }
  return out;
}

score day_score(const json& figures) {
  score out;
  for (std::size_t i = 0; i + 1 < figures.size(); ++i) {
    out.count(number(figures.back(), "collisions") < number(figures[i], "collisions"));
  }
  return out;
}

score visible_score(const json& figures) {
  return count_rows(figures, [](const json& row) {
    std::size_t used = 0;
    for (const json& taken : row["taken_bytes"]) used += taken.get<double>() > 0 ? 1U : 0U;
    return used == row["visible_count"] && row["opened"] == (used > 0);
  });
}

score fraction_score(const json& figures) {
  score out;
  for (const json& row : figures) {
    const bool over = number(row, "process_bytes") > number(row, "limit_bytes");
    if (row["limit_scope"] == "pool") {
      out.count(over);
    } else {
      EXPECT_FALSE(over) << "a limit on the process that was exceeded: " << row.dump();
    }
  }
  return out;
}

const std::map<std::string, std::function<score(const json&)>>& scores() {
  const auto rows = [](std::function<bool(const json&)> agrees) {
    return [agrees = std::move(agrees)](const json& figures) { return count_rows(figures, agrees); };
  };
  static const std::map<std::string, std::function<score(const json&)>> all{
      {"grab-all-takes-every-device", rows([](const json& row) {
         return number(row, "taken_by_first_use_bytes") >= 0.9 * number(row, "free_bytes");
       })},
      {"second-program-fails",
       [](const json& figures) {
         score out;
         for (const json& row : figures) {
           const bool fails = number(row, "second_got_bytes") < number(row, "wanted_bytes");
           if (row["both"] == "grab_all") {
             out.count(fails && row["first_got_bytes"] == row["wanted_bytes"]);
           } else {
             EXPECT_FALSE(fails) << row.dump();
           }
         }
         return out;
       }},
      {"grab-all-fragments-less", rows([](const json& row) {
         if (row["grab_all_needs_bytes"].is_null()) return false;
         return row["growth_needs_bytes"].is_null() ||
                number(row, "grab_all_needs_bytes") < number(row, "growth_needs_bytes");
       })},
      {"growth-starts-small-and-never-shrinks", growth_score},
      {"releasing-fragments-worse", releasing_score},
      {"fraction-leaves-the-rest", rows([](const json& row) {
         const double both = number(row, "first_holds_bytes") + number(row, "second_holds_bytes");
         return number(row, "first_holds_bytes") <= number(row, "limit_bytes") &&
                both + 512 * 1024 * 1024 >= number(row, "free_at_start_bytes");
       })},
      {"one-nth-each", rows([](const json& row) { return row["got_all_they_asked"] == row["processes"]; })},
      {"fraction-is-exceeded", fraction_score},
      {"byte-limit-is-exact", rows([](const json& row) {
         return number(row, "most_taken_bytes") <= number(row, "limit_bytes") && number(row, "requests_refused") > 0 &&
                row["requests_refused"] == row["refused_for_limit_or_fragmentation"];
       })},
      {"one-card-as-two", rows([](const json& row) { return row["out_of_memory"] == false && row["hazards"] == 0; })},
      {"splitting-costs-memory", rows([](const json& row) {
         return number(row, "two_pools_reserved_bytes") > number(row, "one_pool_reserved_bytes");
       })},
      {"visible-devices", visible_score},
      {"towers-split-the-batch", towers_score},
      {"auto-avoids-collisions", day_score}};
  return all;
}

// All of them, once for two tests: the page's own test opens the report that stays in the build folder.
TEST(claims, verdicts_follow_from_the_figures) {
  std::string words = " claims --quiet --json -";
#ifdef GPUMEM_TEST_CLAIMS_PAGE
  words += " --html '" GPUMEM_TEST_CLAIMS_PAGE "'";
#endif
#ifdef GPUMEM_TEST_FEW_CLAIMS  // those that replay little: without optimization the others would take many minutes
  const std::vector<std::string> only{"grab-all-takes-every-device",
                                      "growth-starts-small-and-never-shrinks",
                                      "fraction-leaves-the-rest",
                                      "one-nth-each",
                                      "fraction-is-exceeded",
                                      "byte-limit-is-exact",
                                      "visible-devices",
                                      "towers-split-the-batch",
                                      "auto-avoids-collisions"};
#else
  const std::vector<std::string> only;
#endif
  for (const std::string& id : only) words += " --only " + id;
  const test_folder folder;
  const std::string command =
      "env -i PATH=\"$PATH\" '" GPUMEM_BENCH_PROGRAM "'" + words + " >'" + folder.path("all.json") + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const json all = json::parse(content_of(folder.path("all.json")));
  ASSERT_EQ(all["claims"].size(), only.empty() ? scores().size() : only.size());
  for (const json& claim : all["claims"]) {
    const std::string id = claim["id"];
    ASSERT_TRUE(scores().contains(id)) << id;
    EXPECT_EQ(claim["verdict"], scores().at(id)(claim["figures"]).verdict()) << id << claim["figures"].dump(1);
    for (const char* key : {"statement", "source", "experiment", "expected", "measured", "command"}) {
      EXPECT_FALSE(claim[key].get<std::string>().empty()) << id << ' ' << key;
    }
    EXPECT_THAT(claim["command"].get<std::string>(), testing::StartsWith("gpumem_bench claims --only " + id));
    EXPECT_EQ(claim["device"], "simulated") << id;
  }
}

// Claims without replays, which are fast enough to repeat here; experiments share no state, so any number may run at
// once.
TEST(claims, the_same_seed_gives_the_same_json) {
  const std::vector<std::string> quick{"one-nth-each", "auto-avoids-collisions", "byte-limit-is-exact",
                                       "growth-starts-small-and-never-shrinks"};
  const auto first = run(quick, 1);
  const auto again = run(quick, 4);
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(first->json, again->json);
  EXPECT_EQ(first->page_data, again->page_data);
}

#ifdef GPUMEM_TEST_DRIVER
/// Over the double of the driver. A process has one driver, so each case is its own process.
result<claims_report> run_on_card(const char* bytes, std::vector<std::string> only) {
  ::setenv("GPUMEM_CUDA_DRIVER", GPUMEM_TEST_DRIVER, 1);
  ::setenv("SIMCUDA_BYTES", bytes, 1);
  ::setenv("SIMCUDA_HOST_MEMORY", "0", 1);
  ::setenv("SIMCUDA_CONTEXT_BYTES", "500MiB", 1);
  options with;
  with.subcommand = command::claims;
  with.only = std::move(only);
  with.jobs = 2;
  with.quiet = true;
  if (status found = parse_device("cuda:0", with.setup); !found) return found;
  return run_claims(with);
}

TEST(claims, on_a_card_what_is_about_one_card_runs_there) {
  std::vector<std::string> there{"grab-all-takes-every-device", "growth-starts-small-and-never-shrinks",
                                 "fraction-leaves-the-rest",    "fraction-is-exceeded",
                                 "byte-limit-is-exact",         "one-card-as-two",
                                 "splitting-costs-memory"};
#ifndef __OPTIMIZE__  // the last one replays most
  there.pop_back();
#endif
  const std::vector<std::string> simulated{"one-nth-each", "visible-devices", "auto-avoids-collisions"};
  std::vector<std::string> both = there;
  both.insert(both.end(), simulated.begin(), simulated.end());
  const auto got = run_on_card("12GiB", both);
  ASSERT_TRUE(got.ok()) << got.why().message();
  const json all = json::parse(got->json);
  ASSERT_EQ(all["claims"].size(), both.size());
  EXPECT_EQ(all["simulated"], true) << "the double says what it is";
  for (const json& claim : all["claims"]) {
    const std::string id = claim["id"];
    const bool on_card = std::find(there.begin(), there.end(), id) != there.end();
    EXPECT_THAT(claim["device"].get<std::string>(), testing::StartsWith(on_card ? "cuda:0 (" : "simulated")) << id;
    EXPECT_EQ(claim["command"].get<std::string>().ends_with(" --device cuda:0"), on_card) << id;
    EXPECT_EQ(claim["verdict"], scores().at(id)(claim["figures"]).verdict()) << id << claim["figures"].dump(1);
  }
  const json& taken = all["claims"][0]["figures"];
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(number(taken[0], "total_bytes"), 12.0 * 1024 * 1024 * 1024);
  EXPECT_THAT(got->table, testing::HasSubstr(" [simulated]\n"));
}

TEST(claims, a_card_that_is_too_small_is_refused_at_once) {
  const auto got = run_on_card("4GiB", {"byte-limit-is-exact"});
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.code(), errc::bad_setting);
  EXPECT_THAT(got.why().message(), testing::HasSubstr("--device cuda:0: 3.51 GiB of 4.00 GiB are free"));
}
#endif

#ifdef GPUMEM_TEST_PROGRAM
options with_python(const std::string& python) {
  options with;
  with.subcommand = command::claims;
  with.only = {"one-nth-each"};
  with.frameworks = {"tensorflow"};
  with.python = python;
  with.quiet = true;
  return with;
}

/// Replaces TensorFlow: prints what framework_claims.py would print.
TEST(claims, a_framework_stands_beside_with_a_verdict_of_its_own) {
  const std::string python = testing::TempDir() + "claims_python_" + std::to_string(::getpid());
  std::ofstream{python} << R"(#!/bin/sh
test "$2 $5" = "tensorflow one-nth-each" || exit 3
echo '{"framework": "tensorflow", "version": "2.0", "claims": [{"id": "one-nth-each", "experiment": "Two.",
  "measured": "One of two.", "figures": [{"program": "by itself", "holds_bytes": [1048576, 0], "agrees": true},
  {"program": "by itself", "holds_bytes": [0, 0], "agrees": false},
  {"program": "gpumem run", "holds_bytes": [0, 0], "agrees": null}]}]}'
)";
  ::chmod(python.c_str(), 0700);
  const auto got = run_claims(with_python(python));
  std::remove(python.c_str());
  ASSERT_TRUE(got.ok()) << got.why().message();
  const json claim = json::parse(got->json)["claims"][0];
  const json& beside = claim["by_frameworks"][0];
  EXPECT_EQ(beside["framework"], "TensorFlow 2.0");
  EXPECT_EQ(beside["verdict"], "depends") << "one row agrees, one does not, and gpumem's does not count";
  EXPECT_EQ(beside["command"], "gpumem_bench claims --only one-nth-each --with tensorflow --python " + python);
  EXPECT_EQ(claim["verdict"], scores().at("one-nth-each")(claim["figures"]).verdict()) << "ours is ours";
  EXPECT_THAT(got->table, testing::HasSubstr("  by TensorFlow 2.0, simulated: depends\n    One of two.\n"));
  const json page = json::parse(got->page_data)["claims"][0]["by_frameworks"][0];
  EXPECT_EQ(page["table"]["rows"][0], json({"by itself", "1.00 MiB, 0 B", "yes"}));
  EXPECT_EQ(page["table"]["rows"][2][2], "-");
}

TEST(claims, a_framework_that_is_missing_is_told_with_what_installs_it) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3 here";
  if (std::system("python3 -c 'import tensorflow' 2>/dev/null") == 0) GTEST_SKIP() << "TensorFlow is here";
  const auto got = run_claims(with_python("python3"));
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(got.why().message(), testing::HasSubstr("has no module tensorflow; scripts/other_frameworks tensorflow"));
  const auto none = run_claims(with_python("/no/such/python"));
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.why().message(), testing::HasSubstr("--with tensorflow: "));
  EXPECT_THAT(none.why().message(), testing::HasSubstr("/no/such/python"));
}
#endif

TEST(claims, one_that_does_not_exist_is_refused) {
  const auto got = run({"nonsense"});
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.code(), errc::bad_setting);
  EXPECT_THAT(got.why().message(), testing::HasSubstr("--only nonsense: expected one of grab-all-takes-every-device"));
}

}  // namespace
}  // namespace gpumem::bench
