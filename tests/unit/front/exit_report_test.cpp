#include "exit_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gpumem/sim_device.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;

TEST(exit_report, writes_one_summary_line_a_pool_or_json_to_a_path) {
  const logical_device d{
      .ordinal = 0, .physical_ordinal = 0, .name = "a \"pool\"", .policy = "growth", .limit_bytes = 8};
  statistics s;
  s.peak_live_bytes = 4096;
  s.allocations = 3;
  std::vector<std::string> lines;
  const log_sink before = set_log_sink([&lines](std::string_view line) { lines.emplace_back(line); });
  EXPECT_TRUE(write_statistics("exit", {&d, 1}, {&s, 1}).ok());
  set_log_sink(before);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], HasSubstr("3 allocations"));

  const std::filesystem::path file = std::filesystem::temp_directory_path() / "gpumem_exit_report_test.json";
  ASSERT_TRUE(write_statistics(file.string(), {&d, 1}, {&s, 1}).ok());
  const nlohmann::json json = nlohmann::json::parse(std::ifstream{file});
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["devices"][0]["name"], "a \"pool\"");
  EXPECT_EQ(json["devices"][0]["peak_live_bytes"], 4096);
  std::filesystem::remove(file);
}

TEST(exit_report, a_path_that_cannot_be_written_is_refused_when_the_allocator_opens) {
  sim_device d;
  device* const devices[] = {&d};
  settings s;
  s.stats_path = "/nowhere/at/all.json";
  const auto opened = allocator::open(devices, s);
  EXPECT_EQ(opened.code(), errc::bad_setting);
  EXPECT_THAT(opened.why().message(), HasSubstr("/nowhere/at/all.json"));
}

TEST(exit_report, an_allocator_that_is_still_there_at_exit_reports_without_a_driver_call) {
  // The child leaks its allocator; the test compares what it prints at exit.
  const auto child = [] {
    static auto* const d = new sim_device;
    device* const devices[] = {d};
    settings s;
    s.stats_path = "exit";
    static auto* const leaked = new std::unique_ptr<allocator>{*allocator::open(devices, s)};
    static_cast<void>((*leaked)->allocate(512));
    std::exit(7);
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(7), "pool 0 \\(growth\\): 1 allocations, 0 frees");
}

}  // namespace
}  // namespace gpumem
