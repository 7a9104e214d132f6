/// The README's table of results agrees with the bench: every utilization and count of calls of growth and caching, and
/// fit for the smallest trace (the other four take too long for a test).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "test_files.hpp"

namespace gpumem::bench {
namespace {

using json = nlohmann::json;

json results_of(const test_folder& folder, const std::string& arguments) {
  const std::string file = folder.path("figures.json");
  const std::string command =
      fmt::format("env -i '{}' {} --quiet --json '{}' >/dev/null </dev/null", GPUMEM_BENCH_PROGRAM, arguments, file);
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return json::parse(content_of(file))["results"];
}

/// `growth` and `caching` by trace, as in the README's row.
std::map<std::string, std::map<std::string, std::string>> cells_of(const json& results) {
  std::map<std::string, std::map<std::string, std::string>> out;
  for (const json& r : results) {
    const std::string path = r["trace"];
    const std::string name = path.substr(path.find_last_of('/') + 1);
    int calls = 0;
    for (const char* kind : {"alloc", "free", "map", "unmap", "synchronize"})
      calls += r["device_calls"][kind].get<int>();
    out[name.substr(0, name.find('.'))][r["policy"]] =
        fmt::format("{:.3f} ({})", r["utilization"].get<double>(), calls);
  }
  return out;
}

TEST(readme_figures, are_what_compare_prints) {
  const test_folder folder;
  const std::string readme = content_of("bench/README.md");
  const auto cells = cells_of(results_of(folder, "compare --policy growth --policy caching"));
  EXPECT_EQ(cells.size(), 5U);
  for (const auto& [trace, of] : cells) {
    const std::size_t row = readme.find(fmt::format("\n| {} | ", trace));
    ASSERT_NE(row, std::string::npos) << trace;
    EXPECT_THAT(readme.substr(row, readme.find('\n', row + 1) - row),
                testing::HasSubstr(fmt::format("| {} | {} |", of.at("growth"), of.at("caching"))));
  }
}

#ifdef GPUMEM_TEST_DRIVER
// The smallest trace; the others are rows of the same command.
TEST(readme_figures, of_the_baselines_are_what_compare_prints) {
  const test_folder folder;
  const json results = results_of(folder,
                                  "compare --policy growth --baseline cub --baseline cuda_malloc --baseline "
                                  "cuda_malloc_async --trace bench/traces/serve.csv.gz");
  std::string row = "\n| serve |";
  for (const json& r : results) {
    row += fmt::format(" {:.3f} ({:.0f}) |", r["utilization"].get<double>(), r["modelled_device_ms"].get<double>());
  }
  EXPECT_THAT(content_of("bench/README.md"), testing::HasSubstr(row + "\n"));
}
#endif

TEST(readme_figures, are_what_fit_prints) {
  const test_folder folder;
  const json results = results_of(folder, "fit --policy grab_all --trace bench/traces/serve.csv.gz");
  const std::string readme = content_of("bench/README.md");
  const std::size_t row = readme.find("\n| serve | ");
  ASSERT_NE(row, std::string::npos);
  EXPECT_THAT(readme.substr(row, readme.find('\n', row + 1) - row),
              testing::EndsWith(fmt::format("| {:.3f} (1) |", results[0]["utilization"].get<double>())));
}

}  // namespace
}  // namespace gpumem::bench
