// A look as metrics: every figure of `top --json` is a sample, and no command line is.
#include "metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <fstream>
#include <iterator>

#include "metrics_text.hpp"
#include "prometheus_text.hpp"

namespace gpumem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using json = nlohmann::json;

std::string text_of(const json& shown) {
  const result<std::string> text = prometheus_text(shown);
  EXPECT_TRUE(text.ok());
  return text ? *text : "";
}

TEST(Metrics, HaveEveryFigureOfACard) {
  const metrics_text got = parse_metrics(text_of(full_look()));
  const std::map<std::string, std::string> card{{"hw_id", "GPU-a"}, {"hw_name", "GPU 0"}, {"hw_type", "gpu"}};
  EXPECT_EQ(got.value_of("hw_gpu_memory_limit_bytes", card), 24000);
  EXPECT_EQ(got.value_of("hw_gpu_memory_usage_bytes", card), 9000);
  EXPECT_EQ(got.value_of("gpumem_gpu_memory_free_bytes", card), 14500);
  EXPECT_DOUBLE_EQ(got.value_of("hw_gpu_utilization_ratio", card), 0.7);
  EXPECT_EQ(got.value_of("hw_temperature_celsius", card), 61);
  EXPECT_EQ(got.value_of("hw_power_watts", card), 250.5);
  EXPECT_EQ(got.value_of("gpumem_gpu_power_limit_watts", card), 300);
  EXPECT_EQ(got.value_of("gpumem_gpu_leases", card), 2);
  EXPECT_EQ(got.value_of("gpumem_gpu_processes", card), 1);
  EXPECT_EQ(got.value_of("gpumem_gpu_info", {{"hw_id", "GPU-a"}, {"hw_model", "H100"}, {"memory_source", "nvml"}}), 1);
  const std::map<std::string, std::string> instance{{"hw_id", "MIG-a"}, {"hw_parent", "GPU-a"}};
  EXPECT_EQ(got.value_of("hw_gpu_memory_limit_bytes", instance), 4000);
  EXPECT_EQ(got.value_of("hw_gpu_memory_usage_bytes", instance), 1000);
  EXPECT_EQ(got.value_of("gpumem_gpu_memory_free_bytes", instance), 2900);
}

TEST(Metrics, HaveEveryFigureOfProcessesAndPools) {
  const metrics_text got = parse_metrics(text_of(full_look()));
  std::map<std::string, std::string> process{
      {"process_pid", "7"}, {"process_owner", "ada"}, {"process_executable_name", "train"}, {"hw_id", "GPU-a"}};
  EXPECT_EQ(got.value_of("gpumem_process_memory_usage_bytes", process), 256);
  process.insert({{"hw_name", "GPU 0"}, {"pool", "3"}, {"pool_name", "eval"}, {"policy", "growth"}, {"group", "lab"}});
  EXPECT_EQ(got.value_of("gpumem_pool_limit_bytes", process), 20000);
  EXPECT_EQ(got.value_of("gpumem_pool_live_bytes", process), 5000);
  EXPECT_EQ(got.value_of("gpumem_pool_reserved_bytes", process), 8000);
  EXPECT_EQ(got.value_of("gpumem_pool_free_bytes", process), 3000);
  EXPECT_EQ(got.value_of("gpumem_pool_largest_free_bytes", process), 1500);
  EXPECT_EQ(got.value_of("gpumem_pool_external_fragmentation_ratio", process), 0.5);
  EXPECT_EQ(got.value_of("gpumem_pool_allocations_total", process), 12345);
  EXPECT_EQ(got.value_of("gpumem_pool_out_of_memory_total", process), 6);
  EXPECT_EQ(got.value_of("gpumem_process_up", {{"process_pid", "7"}, {"group", "lab"}}), 1);
  EXPECT_EQ(got.value_of("gpumem_up", {}), 1);
  EXPECT_EQ(got.value_of("gpumem_nvml_up", {}), 1);
  EXPECT_EQ(got.count("gpumem_build_info", {}), 1U);
}

TEST(Metrics, AreDescribedWithATypeAndCountersEndInTotal) {
  const metrics_text got = parse_metrics(text_of(full_look()));
  ASSERT_GE(got.samples.size(), 20U);
  for (const metric_sample& each : got.samples) {
    ASSERT_EQ(got.types.count(each.name), 1U) << each.name;
    EXPECT_EQ(got.types.at(each.name), each.name.ends_with("_total") ? "counter" : "gauge") << each.name;
    EXPECT_EQ(got.described.count(each.name), 1U) << each.name;
  }
}

TEST(Metrics, AreInTheDocumentByName) {
  std::ifstream file{"docs/operators.md"};
  const std::string document{std::istreambuf_iterator<char>{file}, {}};
  for (const metric_sample& each : parse_metrics(text_of(full_look())).samples) {
    EXPECT_THAT(document, HasSubstr("| `" + each.name + "` |"));
    for (const auto& [label, value] : each.labels) EXPECT_THAT(document, HasSubstr("`" + label)) << each.name;
  }
}

TEST(Metrics, HaveNoCommandLine) { EXPECT_THAT(text_of(full_look()), Not(HasSubstr("secret"))); }

TEST(Metrics, UnknownFiguresHaveNoSample) {
  json shown = full_look();
  for (auto& [name, figure] : shown["devices"][0].items()) {
    if (name != "leases" && figure.is_number() && name != "index") figure = nullptr;
  }
  shown["devices"][0]["processes"][0]["used_bytes"] = nullptr;
  shown["devices"][0]["instances"] = json::array();
  const metrics_text got = parse_metrics(text_of(shown));
  for (const char* name : {"hw_gpu_memory_limit_bytes", "hw_gpu_memory_usage_bytes", "gpumem_gpu_memory_free_bytes",
                           "hw_gpu_utilization_ratio", "hw_temperature_celsius", "hw_power_watts",
                           "gpumem_gpu_power_limit_watts", "gpumem_process_memory_usage_bytes"}) {
    EXPECT_EQ(got.count(name, {}), 0U) << name;
    EXPECT_EQ(got.types.count(name), 0U) << name << ": a family without samples is not described either";
  }
  EXPECT_EQ(got.value_of("gpumem_gpu_leases", {}), 2);
  EXPECT_EQ(got.value_of("gpumem_gpu_processes", {}), 1);
}

TEST(Metrics, WithoutNvmlThePoolsRemain) {
  json shown = full_look();
  shown["devices"] = json::array();
  shown["problem"] = "no NVML";
  const metrics_text got = parse_metrics(text_of(shown));
  EXPECT_EQ(got.value_of("gpumem_up", {}), 1);
  EXPECT_EQ(got.value_of("gpumem_nvml_up", {}), 0);
  EXPECT_EQ(got.value_of("gpumem_pool_live_bytes", {{"process_pid", "7"}, {"hw_id", "GPU-a"}}), 5000);
}

TEST(Metrics, AProcessWithoutAnAnswerIsDown) {
  json shown = full_look();
  shown["served"][0]["answered"] = false;
  shown["served"][0]["devices"] = json::array();
  const metrics_text got = parse_metrics(text_of(shown));
  EXPECT_EQ(got.value_of("gpumem_process_up", {{"process_pid", "7"}}), 0);
  EXPECT_EQ(got.count("gpumem_pool_live_bytes", {}), 0U);
}

// Prometheus refuses a whole scrape for one label that is not UTF-8, or for two samples with the same labels.
TEST(Metrics, NamesOfOthersCannotSpoilAScrape) {
  json shown = full_look();
  json& processes = shown["devices"][0]["processes"];
  processes[0]["command"] = "a\"b\\c\nd\xff{e=\"1\"} 5";
  processes.push_back(processes[0]);
  shown["served"].push_back(shown["served"][0]);
  shown["served"][0]["devices"][0]["name"] = std::string(5000, 'x');
  const std::string text = text_of(shown);
  for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
  const metrics_text got = parse_metrics(text);
  EXPECT_EQ(got.count("gpumem_process_memory_usage_bytes", {}), 1U);
  EXPECT_EQ(got.count("gpumem_process_up", {}), 1U);
  EXPECT_EQ(got.count("gpumem_pool_live_bytes", {}), 2U) << "of different names";
  for (const metric_sample& each : got.samples) {
    for (const auto& [label, value] : each.labels) EXPECT_LT(value.size(), 140U) << each.name << " " << label;
  }
}

TEST(Metrics, OfAFailedLookIsOneSample) {
  const metrics_text got = parse_metrics(prometheus::TextSerializer{}.Serialize(metrics_of_failed_look()));
  ASSERT_EQ(got.samples.size(), 1U);
  EXPECT_EQ(got.value_of("gpumem_up", {}), 0);
}

}  // namespace
}  // namespace gpumem::cli
