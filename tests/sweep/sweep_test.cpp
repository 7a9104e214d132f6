/// A sweep on one machine: the same bytes for any number of processes and after any kill; bad input is refused or
/// recorded.
#include <signal.h>

#include <nlohmann/json.hpp>

#include "processes.hpp"

namespace gpumem::bench::sweep {
namespace {

using json = nlohmann::json;

TEST_F(Sweep, gives_the_same_bytes_alone_and_in_shards) {
  const std::string manifest = small_manifest();
  const outcome alone = bench("sweep '" + manifest + "' -o '" + path("alone") + "'");
  EXPECT_EQ(alone.exit_status, 0) << alone.err;
  EXPECT_THAT(alone.out, testing::HasSubstr("42 units, 0 of them had results, 0 failed"));
  const std::string expected = merged(path("alone"));
  const json all = json::parse(expected);
  EXPECT_EQ(all["results"].size(), 42U);
  EXPECT_EQ(all["simulated"], true);
  for (const json& row : all["results"]) {
    EXPECT_EQ(row["simulated"], true);
    EXPECT_GT(row["ops"], 0) << row;
    EXPECT_FALSE(row.contains("host_ns_per_op"));
  }
  for (int k = 1; k <= 8; ++k) {
    const std::string words = "sweep '" + manifest + "' -o '" + path("shards") + "' -j 1";
    const outcome got =
        k % 2 == 0 ? bench(words + " --shard " + std::to_string(k) + "/8")
                   : bench(words, "SLURM_ARRAY_TASK_ID=" + std::to_string(k - 1) + " SLURM_ARRAY_TASK_COUNT=8");
    EXPECT_EQ(got.exit_status, 0) << got.err;
  }
  EXPECT_TRUE(std::filesystem::exists(path("shards/results-shard7of8.jsonl")));
  EXPECT_EQ(merged(path("shards")), expected);
}

TEST_F(Sweep, goes_on_after_kill_minus_nine) {
  const std::string manifest = small_manifest();
  ASSERT_EQ(bench("sweep '" + manifest + "' -o '" + path("whole") + "'").exit_status, 0);
  const std::string words = "sweep '" + manifest + "' -o '" + path("killed") + "' -j 2";
  const std::string results = path("killed/results-alone.jsonl");
  for (const std::uint64_t lines : {4U, 15U, 30U}) {
    background run{command(words), folder_};
    EXPECT_TRUE(eventually([&] { return lines_in(results) >= lines || !run.running(); }));
    EXPECT_TRUE(run.running()) << "it ended before it could be killed";
    ::kill(run.pid(), SIGKILL);
    EXPECT_EQ(run.wait().exit_status, 128 + SIGKILL);
  }
  // A kill during a write leaves a partial line.
  const std::string so_far = content_of(results);
  folder_.write("killed/results-alone.jsonl", so_far.substr(0, so_far.size() - 40));
  const outcome last = bench(words);
  EXPECT_EQ(last.exit_status, 0) << last.err;
  EXPECT_THAT(last.err, testing::HasSubstr("its last line is torn and was cut off"));
  EXPECT_THAT(last.out, testing::Not(testing::HasSubstr("42 units, 0 of them had results")));
  EXPECT_EQ(merged(path("killed")), merged(path("whole")));
  const outcome again = bench(words);
  EXPECT_THAT(again.out, testing::HasSubstr("42 units, 42 of them had results"));
}

TEST_F(Sweep, merges_only_what_is_complete) {
  const std::string manifest = small_manifest();
  EXPECT_EQ(bench("sweep '" + manifest + "' -o '" + path("out") + "' --shard 1/2").exit_status, 0);
  expect_refused("merge '" + path("out") + "' -o '" + path("r.json") + "'", "21 of 42 units have no result yet");
  EXPECT_FALSE(std::filesystem::exists(path("r.json")));
  EXPECT_EQ(json::parse(merged(path("out"), "--partial"))["missing"], 21);
  expect_refused("merge '" + path("out") + "' -o '" + path("r.txt") + "'", "expected a name that ends in .json");
  expect_refused("merge '" + path("nowhere") + "' -o '" + path("r.json") + "'", "no sweep's folder");
}

TEST_F(Sweep, refuses_a_folder_of_another_manifest_or_version) {
  ASSERT_EQ(bench("sweep '" + small_manifest() + "' -o '" + path("out") + "'").exit_status, 0);
  const std::string words = "sweep '" + path("manifest.json") + "' -o '" + path("out") + "'";
  small_manifest(R"(,"lag":"2ms")");
  expect_refused(words, R"(another manifest, which differs in "lag_ns")");
  small_manifest();
  json head = json::parse(content_of(path("out/sweep.json")));
  head["version"] = "0.0.1-0123456789abcdef";
  folder_.write("out/sweep.json", head.dump());
  expect_refused(words, R"(holds results of version "0.0.1-0123456789abcdef", this is )");
  folder_.write("out/sweep.json", "{");
  expect_refused(words, "sweep.json: damaged");
  folder_.write("letters.txt", "mine");
  expect_refused("sweep '" + path("manifest.json") + "' -o '" + folder_.path() + "'", "holds other files");
}

TEST_F(Sweep, refuses_bad_words) {
  const std::string manifest = "'" + small_manifest() + "'";
  expect_refused("sweep", "manifest");
  expect_refused("sweep " + manifest, "--output");
  expect_refused("sweep " + manifest + " -o x --shard 9/8", "--shard 9/8: expected i/n");
  expect_refused("sweep " + manifest + " -o x --jobs 0", "--jobs 0");
  expect_refused("sweep " + manifest + " -o x --unit-time-limit never", "--unit-time-limit never");
  expect_refused("sweep '" + path("nothing.json") + "' -o x", "no such manifest");
  expect_refused("sweep " + manifest + " -o /proc/x", "/proc/x: cannot be made");
  folder_.write("unknown.json", R"({"workloads":["training,ops=1"],"policies":["grwth"]})");
  expect_refused("sweep '" + path("unknown.json") + "' -o '" + path("never") + "'", "grwth");
  EXPECT_FALSE(std::filesystem::exists(path("never")));
}

TEST_F(Sweep, records_a_damaged_trace_as_its_unit_s_error) {
  folder_.write("good.csv", csv("1,00:00:00:000000,allocate,a0,1000,0\n"));
  folder_.write("bad.csv", csv("1,00:00:00:000000,free,a0,1000,0\n"));
  folder_.write("cut.csv.gz", gzipped(csv("1,00:00:00:000000,allocate,a0,1000,0\n")).substr(0, 40));
  const std::string manifest = folder_.write("m.json", R"({"traces":["*.csv","*.csv.gz"],"policies":["growth"]})");
  const outcome got = bench("sweep '" + manifest + "' -o '" + path("out") + "'");
  EXPECT_EQ(got.exit_status, 1);
  EXPECT_THAT(got.err, testing::ContainsRegex("unit [0-9a-f]+ \\(bad under growth.*free of 0xa0, which is not live"));
  const json all = json::parse(merged(path("out")));
  EXPECT_EQ(all["failed"], 2);
  EXPECT_EQ(all["results"][0]["error"]["kind"], "trace");
  EXPECT_EQ(all["results"][0]["error"]["text"], "bad:2: free of 0xa0, which is not live");
  EXPECT_FALSE(all["results"][1].contains("error"));
  EXPECT_EQ(all["results"][2]["error"]["kind"], "trace");
  // Failed units are repeated only on request.
  EXPECT_THAT(bench("sweep '" + manifest + "' -o '" + path("out") + "'").out,
              testing::HasSubstr("3 of them had results"));
  EXPECT_THAT(bench("sweep '" + manifest + "' -o '" + path("out") + "' --retry-failed").out,
              testing::HasSubstr("3 units, 1 of them had results, 2 failed"));
}

TEST_F(Sweep, survives_units_that_crash_and_that_take_too_long) {
  const std::string manifest = folder_.write(
      "m.json",
      R"({"workloads":["training,ops=4000000","training,ops=1000,peak=64MiB"],"policies":["growth","caching"]})");
  background run{command("sweep '" + manifest + "' -o '" + path("out") + "' -j 1 --unit-time-limit 3"), folder_};
  const pid_t unit = stop_a_unit_of(run.pid());
  ASSERT_NE(unit, 0);
  ::kill(unit, SIGSEGV);
  ::kill(unit, SIGCONT);
  pid_t slow = 0;  // stays stopped
  EXPECT_TRUE(eventually([&] {
    slow = stop_a_unit_of(run.pid());
    return slow != unit;
  }));
  const outcome got = run.wait();
  EXPECT_EQ(got.exit_status, 1);
  EXPECT_THAT(got.err, testing::ContainsRegex("unit [0-9a-f]+ \\(training,ops=4000000 under .*: ended by signal 11"));
  EXPECT_THAT(got.err, testing::ContainsRegex("unit [0-9a-f]+ \\(.*: took longer than 3 s"));
  EXPECT_THAT(got.out, testing::HasSubstr("4 units, 0 of them had results, 2 failed"));
  const json all = json::parse(merged(path("out")));
  std::vector<std::string> kinds;
  for (const json& row : all["results"]) kinds.push_back(row.contains("error") ? row["error"]["kind"] : "none");
  EXPECT_THAT(kinds, testing::UnorderedElementsAre("crash", "timeout", "none", "none"));
}

TEST_F(Sweep, leaves_nobody_at_work_when_it_is_killed) {
  const std::string manifest =
      folder_.write("m.json", R"({"workloads":["training,ops=4000000"],"policies":["growth"]})");
  background run{command("sweep '" + manifest + "' -o '" + path("out") + "'"), folder_};
  std::vector<pid_t> units;
  EXPECT_TRUE(eventually([&] {
    units = children_of(run.pid());
    return !units.empty() && command_line_of(units.front()).find(" unit") != std::string::npos;
  }));
  std::this_thread::sleep_for(std::chrono::milliseconds{50});
  ::kill(run.pid(), SIGKILL);
  (void)run.wait();
  for (const pid_t each : units) {
    EXPECT_TRUE(eventually([&] { return state_of(each) == ' ' || state_of(each) == 'Z'; }));
  }
}

TEST_F(Sweep, stops_where_the_disk_is_full) {
  const std::string manifest = small_manifest();
  ASSERT_EQ(bench("sweep '" + manifest + "' -o '" + path("out") + "' --shard 1/2").exit_status, 0);
  std::filesystem::create_symlink("/dev/full", path("out/results-shard2of2.jsonl"));
  expect_refused("sweep '" + manifest + "' -o '" + path("out") + "' --shard 2/2", "No space left on device");
  std::filesystem::remove(path("out/results-shard2of2.jsonl"));
  ASSERT_EQ(bench("sweep '" + manifest + "' -o '" + path("out") + "' --shard 2/2").exit_status, 0);
  EXPECT_EQ(json::parse(merged(path("out")))["failed"], 0);
}

TEST_F(Sweep, finds_capacities) {
  const std::string manifest = folder_.write(
      "m.json",
      R"({"workloads":["training,ops=500,peak=64MiB"],"policies":["growth","grab_all","planned"],"mode":"fit"})");
  ASSERT_EQ(bench("sweep '" + manifest + "' -o '" + path("out") + "'").exit_status, 0);
  const json all = json::parse(merged(path("out")));
  for (const json& row : all["results"]) {
    EXPECT_GE(row["min_capacity_bytes"], row["peak_live_bytes"]);
    EXPECT_TRUE(row["utilization"].is_number());
  }
  EXPECT_EQ(all["summary"]["cases"], 1);
}

TEST_F(Sweep, makes_a_page_and_names_what_parquet_needs) {
  ASSERT_EQ(bench("sweep '" + small_manifest() + "' -o '" + path("out") + "'").exit_status, 0);
  const outcome page = bench("merge '" + path("out") + "' -o '" + path("r.html") + "'");
  if (page.exit_status == 0) {
    EXPECT_THAT(content_of(path("r.html")), testing::HasSubstr("\"policies\":[{\"policy\":\"growth\""));
  } else {
    EXPECT_THAT(page.err, testing::HasSubstr("libjs-dygraphs"));
  }
  const outcome parquet = bench("merge '" + path("out") + "' -o '" + path("r.parquet") + "'");
  if (parquet.exit_status == 0) {
    EXPECT_THAT(content_of(path("r.parquet")), testing::StartsWith("PAR1"));
  } else {
    EXPECT_THAT(parquet.err, testing::HasSubstr("sweep_to_parquet.py"));
    EXPECT_THAT(parquet.err, testing::HasSubstr("pyarrow"));
  }
}

}  // namespace
}  // namespace gpumem::bench::sweep
