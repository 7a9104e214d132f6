/// JSON keys as programs rely on them, CSV of the same figures, and the table's lines.
#include "report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "test_files.hpp"

namespace gpumem::bench {
namespace {

using json = nlohmann::json;

std::vector<std::string> keys(const json& object) {
  std::vector<std::string> out;
  for (const auto& [name, value] : object.items()) out.push_back(name);
  return out;
}

class report : public testing::Test {
 protected:
  report() {
    recorded_ = trace_of("1,00:00:00:000000,allocate,0xa0,1024,0\n1,00:00:00:000000,free,0xa0,1024,0\n");
    recorded_.name = "small";
    row_.text = "growth,limit=4GiB";
    stopped_row_.text = "growth";
    compare_result good{.recorded = &recorded_, .row = &row_, .figures = {}, .fit = {}, .over_time = {}};
    good.figures.outcome = {.ops = 2, .elapsed_ns = 0, .peak_live_bytes = 1024, .at_peak = {0.25, 0.5, 4096}};
    good.figures.peak_reserved_bytes = 4096;
    good.figures.hazards = 3;
    good.figures.in_device_calls_ns = 1'500'000;
    good.figures.second_half = half_figures{.memory_calls = 2, .in_device_calls_ns = 250'000};
    good.figures.calls.emplace();
    good.figures.calls->at(static_cast<std::size_t>(device_call::alloc)) = 7;
    good.figures.calls->at(static_cast<std::size_t>(device_call::synchronize)) = 1;
    good.figures.host_ns_per_op = 100.0;
    good.fit = fit_figures{.peak_live_bytes = 1024, .min_capacity_bytes = 2048, .failures = {}};
    compare_result stopped{.recorded = &recorded_, .row = &stopped_row_, .figures = {}, .fit = {}, .over_time = {}};
    stopped.figures.calls.emplace();
    stopped.figures.hazards = 0;
    stopped.figures.in_device_calls_ns = 0;
    stopped.figures.outcome.ops = 1;
    stopped.figures.outcome.oom = true;
    stopped.figures.outcome.cause = oom_cause::fragmentation;
    stopped.figures.host_ns_per_op = 200.0;
    compared_ = {good, stopped};
    fitted_ = {{.recorded = &recorded_, .row = &row_, .figures = {1024, 2048, {{50, 512, 1}, {120, 1228, {}}}}},
               {.recorded = &recorded_, .row = &stopped_row_, .figures = {1024, {}, {}}}};
  }

  trace recorded_;
  policy_row row_;
  policy_row stopped_row_;
  std::vector<compare_result> compared_;
  std::vector<fit_result> fitted_;
  replay_setup setup_;
};

TEST_F(report, compare_json_has_the_agreed_keys) {
  const json all = json::parse(compare_json(compared_, setup_));
  EXPECT_EQ(all["schema"], 1);
  EXPECT_EQ(all["device"]["simulated"], true);
  EXPECT_EQ(all["device"]["total_bytes"], 80ULL << 30);
  const json& row = all["results"][0];
  EXPECT_THAT(keys(row), testing::IsSupersetOf({"trace",
                                                "policy",
                                                "ops",
                                                "peak_live_bytes",
                                                "peak_reserved_bytes",
                                                "utilization",
                                                "device_calls",
                                                "mapped_pages",
                                                "remapped_pages",
                                                "internal_fragmentation",
                                                "external_fragmentation",
                                                "largest_free_bytes",
                                                "hazards",
                                                "host_ns_per_op",
                                                "modelled_device_ms",
                                                "oom",
                                                "oom_at_op",
                                                "oom_cause",
                                                "simulated",
                                                "fit_utilization"}));
  EXPECT_THAT(keys(row["device_calls"]), testing::IsSupersetOf({"alloc", "free", "map", "unmap", "synchronize"}));
  EXPECT_EQ(row["trace"], "small");
  EXPECT_EQ(row["policy"], "growth,limit=4GiB");
  EXPECT_EQ(row["ops"], 2);
  EXPECT_EQ(row["utilization"], 0.25);
  EXPECT_EQ(row["device_calls"]["alloc"], 7);
  EXPECT_EQ(row["device_calls"]["synchronize"], 1);
  EXPECT_EQ(row["external_fragmentation"], 0.25);
  EXPECT_EQ(row["internal_fragmentation"], 0.5);
  EXPECT_EQ(row["largest_free_bytes"], 4096);
  EXPECT_EQ(row["hazards"], 3);
  EXPECT_EQ(row["modelled_device_ms"], 1.5);
  EXPECT_EQ(row["waste_bytes"], 3072);
  EXPECT_EQ(row["second_half"]["device_calls"], 2);
  EXPECT_EQ(row["second_half"]["modelled_device_ms"], 0.25);
  EXPECT_EQ(row["host_ns_per_op"], 100.0);
  EXPECT_EQ(row["fit_utilization"], 0.5);
  EXPECT_EQ(row["oom"], false);
  EXPECT_TRUE(row["oom_at_op"].is_null());
  EXPECT_TRUE(row["oom_cause"].is_null());
  const json& stopped = all["results"][1];
  EXPECT_EQ(stopped["oom"], true);
  EXPECT_TRUE(stopped["second_half"]["device_calls"].is_null());
  EXPECT_EQ(stopped["oom_at_op"], 1);
  EXPECT_EQ(stopped["oom_cause"], "fragmentation");
  EXPECT_TRUE(stopped["fit_utilization"].is_null());
}

TEST_F(report, pages_are_not_invented_where_they_are_not_counted) {
  compared_[0].figures.pages = page_figures{.mapped = 3, .remapped = 2};
  EXPECT_EQ(json::parse(compare_json(compared_, setup_))["results"][0]["mapped_pages"], 3);
  EXPECT_EQ(json::parse(compare_json(compared_, setup_))["results"][0]["remapped_pages"], 2);
  compared_[0].figures.pages.reset();
  EXPECT_TRUE(json::parse(compare_json(compared_, setup_))["results"][0]["mapped_pages"].is_null());
}

TEST_F(report, what_nobody_can_know_on_a_gpu_is_null) {
  setup_.cuda.emplace();
  setup_.device.name = "some GPU";
  row_.baseline = "cub";
  compared_[0].figures.calls.reset();
  compared_[0].figures.hazards.reset();
  compared_[0].figures.in_device_calls_ns.reset();
  const json all = json::parse(compare_json(compared_, setup_));
  EXPECT_EQ(all["simulated"], false);
  EXPECT_EQ(all["device"]["kind"], "cuda");
  const json& row = all["results"][0];
  for (const char* key : {"hazards", "modelled_device_ms", "external_fragmentation", "largest_free_bytes"}) {
    EXPECT_TRUE(row[key].is_null()) << key;
  }
  EXPECT_TRUE(row["device_calls"]["alloc"].is_null());
  EXPECT_TRUE(row["device_calls"]["record"].is_null());
  EXPECT_EQ(row["simulated"], false);
  const std::string table = compare_table(compared_, setup_);
  EXPECT_THAT(table, testing::HasSubstr("Measured on some GPU"));
  EXPECT_THAT(table, testing::HasSubstr("cub is cub::CachingDeviceAllocator"));
}

TEST_F(report, fit_json_has_the_agreed_keys) {
  const json all = json::parse(fit_json(fitted_, setup_));
  EXPECT_THAT(keys(all["results"][0]),
              testing::IsSupersetOf({"trace", "policy", "peak_live_bytes", "min_capacity_bytes", "utilization"}));
  EXPECT_EQ(all["results"][0]["min_capacity_bytes"], 2048);
  EXPECT_EQ(all["results"][0]["utilization"], 0.5);
  EXPECT_TRUE(all["results"][1]["min_capacity_bytes"].is_null());
  EXPECT_TRUE(all["results"][1]["utilization"].is_null());
  const json& failures = all["results"][0]["first_failures"];
  ASSERT_EQ(failures.size(), 2U);
  EXPECT_EQ(failures[0]["percent_of_peak"], 50);
  EXPECT_EQ(failures[0]["capacity_bytes"], 512);
  EXPECT_EQ(failures[0]["oom_at_op"], 1);
  EXPECT_TRUE(failures[1]["oom_at_op"].is_null());
}

TEST_F(report, csv_is_the_json_flattened) {
  recorded_.name = "a \"b\"";
  EXPECT_EQ(fit_csv(fitted_),
            "trace,policy,simulated,tenants,own_plan,peak_live_bytes,min_capacity_bytes,utilization,version,failed\n"
            "\"a \"\"b\"\"\",\"growth,limit=4GiB\",true,1,false,1024,2048,0.5,,\n"
            "\"a \"\"b\"\"\",growth,true,1,false,1024,,,,\n");
  EXPECT_THAT(compare_csv(compared_, setup_), testing::HasSubstr("device_calls_alloc,device_calls_free,"));
}

TEST_F(report, names_that_are_no_utf8_do_not_break_json) {
  recorded_.name = "\xff";
  EXPECT_TRUE(json::accept(compare_json(compared_, setup_)));
}

TEST_F(report, table_groups_by_trace_and_says_what_is_simulated) {
  const std::string table = compare_table(compared_, setup_);
  EXPECT_THAT(table, testing::StartsWith("small: 2 operations, 1.00 KiB live at the peak\n"));
  EXPECT_THAT(table, testing::HasSubstr("fragmentation at 1\n"));
  EXPECT_THAT(table, testing::HasSubstr("Simulated, on a device of 80.00 GiB"));
  EXPECT_THAT(table,
              testing::HasSubstr("growth replays at 5.0 million operations a second (slowest trace small: 5.0)"));
  EXPECT_THAT(fit_table(fitted_, setup_), testing::HasSubstr("do not fit even 1.5 times the peak"));
  fitted_.pop_back();
  EXPECT_THAT(fit_table(fitted_, setup_), testing::Not(testing::HasSubstr("1.5 times")));
}

}  // namespace
}  // namespace gpumem::bench
