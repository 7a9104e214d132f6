/// The built program: bad input gives one line on stderr, nothing on stdout and exit status 2; good input gives the
/// same output every time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "plan_file.hpp"
#include "test_files.hpp"

namespace gpumem::bench {
namespace {

using json = nlohmann::json;

struct outcome {
  int exit_status;
  std::string out;
  std::string err;
};

class cli : public testing::Test {
 protected:
  /// `arguments` are for the shell; `environment` is put in front. GPUMEM_* of this process are removed.
  outcome run(const std::string& arguments, const std::string& environment = "") {
    const std::string command = "env -i PATH=\"$PATH\" " + environment + " '" GPUMEM_BENCH_PROGRAM "' " + arguments +
                                " >'" + folder_.path("out") + "' 2>'" + folder_.path("err") + "' </dev/null";
    const int code = std::system(command.c_str());
    return {WIFEXITED(code) ? WEXITSTATUS(code) : -1, content_of(folder_.path("out")), content_of(folder_.path("err"))};
  }

  void expect_refused(const std::string& arguments, const std::string& reason, const std::string& environment = "") {
    const outcome got = run(arguments, environment);
    EXPECT_EQ(got.exit_status, 2) << arguments;
    EXPECT_EQ(got.out, "") << arguments;
    EXPECT_THAT(got.err, testing::StartsWith("gpumem_bench: ")) << arguments;
    EXPECT_THAT(got.err, testing::HasSubstr(reason)) << arguments;
    EXPECT_EQ(std::count(got.err.begin(), got.err.end(), '\n'), 1) << got.err;
  }

  std::string good_trace() {
    std::string rows;
    for (int i = 1; i <= 200; ++i) {
      const std::string tail = std::to_string(i % 50) + "f0," + std::to_string(i * 1000) + ",0\n";
      if (i > 50)
        rows += "1,00:00:00:000000,free," + std::to_string(i % 50) + "f0," + std::to_string((i - 50) * 1000) + ",0\n";
      rows += "1,00:00:00:000000,allocate," + tail;
    }
    return folder_.write("good.csv", csv(rows));
  }

  test_folder folder_;
};

TEST_F(cli, refuses_bad_words) {
  expect_refused("--nonsense", "--nonsense");
  expect_refused("--device cuda:1000", "--device cuda:1000: ");
  expect_refused("--device sim:0", "expected sim, sim:BYTES");
  expect_refused("--lag soon", "--lag soon: expected a time");
  expect_refused("--shared-use 101%", "expected a share from 0% to 100%");
  expect_refused("--shared-use nan", "expected a share from 0% to 100%");
  expect_refused("--seed -1", "--seed -1: expected a whole number");
  expect_refused("--jobs 0", "--jobs 0: expected a whole number");
  expect_refused("--json - --csv -", "standard output");
  expect_refused("--html --quiet", "--html --quiet: expected a file");
  expect_refused("$'--no\\nway'", "--no");
}

TEST_F(cli, refuses_bad_rows) {
  const std::string on = "--trace " + good_trace() + " --policy ";
  expect_refused(on + "nonsense", "policy 'nonsense' is unknown");
  expect_refused(on + "growth,limit=0", "limit=0");
  expect_refused(on + "growth,limit=-1GiB", "limit=-1GiB");
  expect_refused(on + "growth,limit=nan", "limit=nan");
  expect_refused(on + "growth,limit=101%", "limit=101%");
  expect_refused(on + "growth,limit=3parsecs", "limit=3parsecs");
  expect_refused(on + "growth,limit=81GiB", "policy 'growth,limit=81GiB': ");
  expect_refused(on + "growth --limit 81GiB", "policy 'growth': ");
  expect_refused(on + "growth --limit 0%", "0%");
  expect_refused(on + "hard_cap", "policy 'hard_cap': ");
  expect_refused(on + "multi_pool", "policy 'multi_pool': ");
  expect_refused(on + "multi_pool,pools=60GiB+60GiB", "policy 'multi_pool,pools=60GiB+60GiB': ");
  expect_refused(on + "growth --policy $'two\\nlines'", "two");
}

TEST_F(cli, refuses_bad_variables) {
  const std::string on = "--trace " + good_trace();
  expect_refused(on, "GPUMEM_LIMIT", "GPUMEM_LIMIT=-4GiB");
  expect_refused(on, "GPUMEM_POLICY", "GPUMEM_POLICY=");
  expect_refused(on, "nonsense", "GPUMEM_POLICY=nonsense");
  expect_refused(on, "GPUMEM_LIMTI", "GPUMEM_LIMTI=4GiB");
}

TEST_F(cli, refuses_bad_traces_before_anything_is_printed) {
  const std::string with_good = "--trace " + good_trace() + " --trace ";
  expect_refused(with_good + folder_.path("absent"), "absent: no such file");
  expect_refused(with_good + folder_.write("empty.csv", ""), "empty.csv:1: the file is empty");
  expect_refused(with_good + folder_.write("header.csv", csv("")), "header.csv:2: no operations after the header");
  expect_refused(with_good + folder_.write("wrong.csv", "x\n"), "wrong.csv:1: wrong header 'x'");
  const std::string row = "1,00:00:00:000000,allocate,0xa0,1,0\n";
  expect_refused(with_good + folder_.write("size.csv", csv("1,00:00:00:000000,allocate,0xa0,9223372036854775808,0\n")),
                 "size.csv:2: size '9223372036854775808' is 2^63 bytes or more");
  expect_refused(with_good + folder_.write("free.csv", csv("1,00:00:00:000000,free,0xa0,1,0\n")),
                 "free.csv:2: free of 0xa0, which is not live");
  const std::string whole = gzipped(csv(row));
  std::string damaged = whole;
  damaged[damaged.size() - 5] ^= 1;
  expect_refused(with_good + folder_.write("crc.csv.gz", damaged), "damaged gzip");
  std::filesystem::create_directory(folder_.path("none"));
  expect_refused("--trace " + folder_.path("none"), "no file in it ends in .csv, .csv.gz or .gmtrace");
}

TEST_F(cli, refuses_outputs_that_cannot_be_written) {
  const std::string on = "--trace " + good_trace() + " --policy growth ";
  expect_refused(on + "--json " + folder_.path("absent/x.json"), "No such file or directory");
  expect_refused(on + "--csv " + folder_.path(), "cannot be written");
  if (std::filesystem::exists("/dev/full")) expect_refused(on + "--json /dev/full", "No space left on device");
}

TEST_F(cli, refuses_fit_rows_in_bytes) {
  expect_refused("fit --policy growth,limit=4GiB --trace " + good_trace(), "fit varies the capacity");
}

TEST_F(cli, refuses_what_means_nothing_to_claims_and_pages_of_what_has_none) {
  expect_refused("claims --trace " + good_trace(), "claims has its own traces");
  expect_refused("claims --workload training", "claims has its own traces");
  for (const char* words :
       {"--csv x.csv", "--limit 1GiB", "--shared-use 10%", "--device sim:24GiB", "--baseline cub"}) {
    expect_refused(std::string{"claims "} + words, "claims has its own traces, policies and simulated devices");
  }
  expect_refused("claims --only nonsense", "--only nonsense: expected one of grab-all-takes-every-device");
  expect_refused("fit --html " + folder_.path("x.html") + " --trace " + good_trace(),
                 "--html is supported by compare and claims only");
  expect_refused("fit --over-time --trace " + good_trace(), "--over-time is supported by compare only");
  expect_refused("--workload nonsense", "workload 'nonsense': expected one of random");
  expect_refused("--html - --json - --trace " + good_trace(), "standard output");
  EXPECT_FALSE(std::filesystem::exists(folder_.path("x.html")));
}

TEST_F(cli, writes_memory_over_time_where_it_is_asked_for) {
  const std::string on = "--policy growth --workload serving,ops=2000 --json - --quiet";
  EXPECT_FALSE(json::parse(run(on).out)["results"][0].contains("over_time"));
  const json row = json::parse(run(on + " --over-time").out)["results"][0];
  const json& times = row["over_time"];
  EXPECT_GE(times["op"].size(), 160U);
  for (const char* key : {"live_bytes", "reserved_bytes", "internal_fragmentation", "external_fragmentation",
                          "largest_hole_bytes", "holes"}) {
    EXPECT_EQ(times[key].size(), times["op"].size()) << key;
  }
  std::uint64_t peak = 0;
  for (const json& each : times["live_bytes"]) peak = std::max(peak, each.get<std::uint64_t>());
  EXPECT_EQ(row["peak_live_bytes"], peak) << "the peak is among them";
}

TEST_F(cli, leaves_no_file_behind_a_refusal) {
  expect_refused(
      "--json " + folder_.path("a.json") + " --csv " + folder_.path("absent/b.csv") + " --trace " + good_trace(),
      "absent/b.csv");
  EXPECT_FALSE(std::filesystem::exists(folder_.path("a.json")));
}

#ifdef GPUMEM_TEST_DRIVER
const std::string with_driver = "GPUMEM_CUDA_DRIVER='" GPUMEM_TEST_DRIVER "'";

std::vector<std::string> policies_of(const json& all) {
  std::vector<std::string> out;
  for (const json& row : all["results"]) out.push_back(row["policy"]);
  return out;
}

TEST_F(cli, compares_with_every_baseline_over_the_double) {
  const outcome got =
      run("--policy growth --baseline cub --baseline cuda_malloc --baseline cuda_malloc_async --json - --trace " +
          good_trace());
  ASSERT_EQ(got.exit_status, 0) << got.err;
  const json all = json::parse(got.out);
  EXPECT_THAT(policies_of(all),
              testing::ElementsAre("growth", "cub", "cub_default", "cuda_malloc", "cuda_malloc_async"));
  for (const json& row : all["results"]) {
    EXPECT_EQ(row["simulated"], true) << row;
    EXPECT_EQ(row["hazards"], 0) << row;
    EXPECT_EQ(row["oom"], false) << row;
    EXPECT_EQ(row["peak_live_bytes"], all["results"][0]["peak_live_bytes"]) << row;
    EXPECT_GE(row["peak_reserved_bytes"], row["peak_live_bytes"]) << row;
    EXPECT_GT(row["host_ns_per_op"], 0) << row;
  }
  EXPECT_EQ(all["results"][4]["model"], true);
  EXPECT_GT(all["results"][3]["modelled_device_ms"], all["results"][1]["modelled_device_ms"])
      << "CUB caches, cudaMalloc does not";
}

// The same traces through cuda_device give the same calls, memory and virtual time as the simulated device.
TEST_F(cli, replays_through_the_driver_as_through_the_simulated_device) {
  const std::string words =
      "--policy growth,stream_reuse=device --policy caching,stream_reuse=device --policy grab_all,stream_reuse=device "
      "--shared-use 20% --json - --trace " +
      good_trace();
  const outcome plain = run(words);
  const outcome driven = run("--device cuda:0 " + words, with_driver);
  ASSERT_EQ(plain.exit_status, 0) << plain.err;
  ASSERT_EQ(driven.exit_status, 0) << driven.err;
  const json expected = json::parse(plain.out);
  const json all = json::parse(driven.out);
  EXPECT_EQ(all["device"]["kind"], "cuda");
  EXPECT_EQ(all["device"]["simulated"], true) << "the double says what it is";
  ASSERT_EQ(all["results"].size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    for (const char* key : {"policy", "ops", "peak_live_bytes", "peak_reserved_bytes", "hazards", "oom"}) {
      EXPECT_EQ(all["results"][i][key], expected["results"][i][key]) << i << ' ' << key;
    }
    EXPECT_EQ(all["results"][i]["device_calls"]["alloc"], expected["results"][i]["device_calls"]["alloc"]);
  }
}

TEST_F(cli, refuses_gpus_that_are_not_there) {
  expect_refused("--device cuda:1", "CUDA device 1 does not exist: expected 0 to 0", with_driver);
  expect_refused("--device cuda:0", "CUDA_ERROR_NO_DEVICE", with_driver + " SIMCUDA_DEVICES=0");
  expect_refused("--device cuda:0", "11.4", with_driver + " SIMCUDA_DRIVER_VERSION=11040");
  expect_refused("--device cuda:0", "GPUMEM_CUDA_DRIVER=/nowhere/libcuda.so.1: no CUDA driver: ",
                 "GPUMEM_CUDA_DRIVER=/nowhere/libcuda.so.1");
  expect_refused("fit --device cuda:0", "expected --device sim", with_driver);
  expect_refused("claims --device cuda:1", "CUDA device 1 does not exist: expected 0 to 0", with_driver);
  expect_refused("claims --device cuda:0", "GPUMEM_CUDA_DRIVER=/nowhere/libcuda.so.1: no CUDA driver: ",
                 "GPUMEM_CUDA_DRIVER=/nowhere/libcuda.so.1");
}

TEST_F(cli, refuses_what_means_nothing_to_latency) {
  expect_refused("latency --threads 0", "--threads 0: expected a whole number from 1 to 64");
  expect_refused("latency --threads 65", "--threads 65");
  expect_refused("latency --threads x", "--threads x");
  expect_refused("latency --trace x.csv", "x.csv");
  expect_refused("latency --csv x.csv", "latency does not support --workload and --csv; expected --json");
  expect_refused("latency --baseline rmm", "--baseline rmm: expected cub");
}

#ifdef GPUMEM_TEST_LATENCY
TEST_F(cli, latency_measures_the_cases_that_are_asked_for) {
  const outcome got =
      run("latency --policy growth --baseline cub --threads 2 --case pair_4KiB --case handoff --case "
          "live_1e2 --case spin --case replay --json - --trace " +
          good_trace());
  ASSERT_EQ(got.exit_status, 0) << got.err;
  const json all = json::parse(got.out);
  std::vector<std::string> cases;
  for (const json& row : all["results"]) {
    cases.push_back(row["allocator"].get<std::string>() + " " + row["case"].get<std::string>() + " " +
                    std::to_string(row["threads"].get<int>()));
    const bool replay = row["case"].get<std::string>().starts_with("replay_");
    EXPECT_EQ(row["ns_per_pair"].is_null(), replay) << row;
    EXPECT_GT(row[replay ? "ns_per_op" : "ns_per_pair"], 0) << row;
    EXPECT_EQ(row["oom"], false) << row;
  }
  EXPECT_THAT(cases, testing::ElementsAre(
                         "floor spin 2", "floor handoff_ring 1", "floor replay_loop_good 1",
                         "gpumem/growth pair_4KiB 1", "gpumem/growth pair_4KiB 2", "gpumem/growth handoff 1",
                         "gpumem/growth driver_part 1", "gpumem/growth live_1e2 1", "gpumem/growth replay_good 1",
                         "cub pair_4KiB 1", "cub pair_4KiB 2", "cub handoff 1", "cub driver_part 1", "cub live_1e2 1",
                         "cub replay_good 1", "cub_default pair_4KiB 1", "cub_default pair_4KiB 2",
                         "cub_default handoff 1", "cub_default driver_part 1", "cub_default live_1e2 1"));
  std::vector<std::string> ratios;
  for (const json& ratio : all["ratios"]) ratios.push_back(ratio["name"]);
  EXPECT_THAT(ratios, testing::ElementsAre("pair_4KiB cub/gpumem", "handoff / pair_4KiB", "replay_good cub/gpumem"));
  expect_refused("latency --case nonsense", "--case nonsense: expected the beginning of a case's name");
}

TEST_F(cli, latency_compares_with_cub_where_nothing_is_asked_for) {
  const auto rows_of = [this](const std::string& words, const std::string& environment = "") {
    const outcome got =
        run("latency --case pair_4KiB --threads 1 --json - --trace " + good_trace() + " " + words, environment);
    EXPECT_EQ(got.exit_status, 0) << got.err;
    std::vector<std::string> out;
    const json all = json::parse(got.out);
    for (const json& row : all["results"]) {
      if (row["case"] == "pair_4KiB") out.push_back(row["allocator"]);
    }
    return std::pair{out, got.err};
  };
  const std::vector<std::string> own{"gpumem/growth,stream_ids=notify", "gpumem/growth"};
  std::vector<std::string> with_cub = own;
  with_cub.insert(with_cub.end(), {"cub", "cub_default"});
  EXPECT_EQ(rows_of("").first, with_cub);
  EXPECT_EQ(rows_of("--policy growth").first, std::vector<std::string>{"gpumem/growth"});
  EXPECT_EQ(rows_of("--device cuda:0", with_driver).first, own) << "where its walks would take minutes";
  const auto [rows, said] = rows_of("", "GPUMEM_CUDA_DRIVER=/nonexistent");
  EXPECT_EQ(rows, own);
  EXPECT_THAT(said, testing::HasSubstr("cub is left out: "));
}

TEST_F(cli, latency_times_the_worst_of_millions_of_operations) {
  const outcome got = run("latency --policy growth,stream_ids=notify --case worst --json - --trace " + good_trace());
  ASSERT_EQ(got.exit_status, 0) << got.err;
  const json all = json::parse(got.out);
  ASSERT_EQ(all["results"].size(), 2U) << "and the floor";
  for (const json& row : all["results"]) {
    const json& tail = row["tail"];
    const bool floor = row["allocator"] == "floor";
    EXPECT_EQ(tail["device_ops"].is_null(), floor) << row;
    EXPECT_EQ(tail["ops"].get<int>() + (floor ? 0 : tail["device_ops"].get<int>()), 4'400'000) << row;
    EXPECT_GT(tail["p50_us"], 0) << row;
    EXPECT_LE(tail["p50_us"], tail["p99_us"]) << row;
    EXPECT_LE(tail["p99_us"], tail["p99_9_us"]) << row;
    EXPECT_LE(tail["p99_9_us"], tail["p99_999_us"]) << row;
    EXPECT_LE(tail["p99_999_us"], tail["max_us"]) << row;
    EXPECT_GT(tail["p99_999_of_medians_us"], 0) << row;
    EXPECT_LE(tail["p99_999_of_medians_us"], tail["max_of_medians_us"]) << row;
    EXPECT_LE(tail["max_of_medians_us"], tail["max_us"]) << row;
  }
  EXPECT_TRUE(all["ratios"].empty()) << "there is no other allocator to be compared with";
}
#endif

TEST_F(cli, measures_what_device_calls_cost) {
  const outcome got = run("costs --device cuda --json -", with_driver);
  ASSERT_EQ(got.exit_status, 0) << got.err;
  const json all = json::parse(got.out);
  EXPECT_EQ(all["simulated"], true);
  EXPECT_EQ(all["fitted"].size(), 20U);
  expect_refused("costs --trace x.csv", "costs does not support --trace");
}
#endif

TEST_F(cli, every_help_has_the_options_and_an_example) {
  for (const std::string command : {"compare", "fit", "costs", "latency", "claims"}) {
    const outcome got = run(command + " --help");
    EXPECT_EQ(got.exit_status, 0) << command;
    EXPECT_THAT(got.out, testing::HasSubstr("Example: gpumem_bench " + command)) << command;
    EXPECT_THAT(got.out, testing::HasSubstr("--policy")) << command;
    EXPECT_THAT(got.out, testing::HasSubstr("--html")) << command;
    EXPECT_THAT(got.out, testing::HasSubstr("1ms")) << "the default of --lag";
    EXPECT_THAT(got.out, testing::Not(testing::HasSubstr("--pages"))) << "that is for the build";
  }
  for (const std::string command : {"sweep", "merge", "generate"}) {
    EXPECT_THAT(run(command + " --help").out, testing::HasSubstr("Example: gpumem_bench " + command));
  }
}

TEST_F(cli, prints_help_and_version) {
  EXPECT_EQ(run("--help").exit_status, 0);
  EXPECT_THAT(run("--help").out, testing::AllOf(testing::HasSubstr("compare"), testing::HasSubstr("--shared-use")));
  EXPECT_EQ(run("--version").exit_status, 0);
}

TEST_F(cli, gives_the_same_json_for_the_same_seed) {
  const std::string on = "--trace " + good_trace() + " --shared-use 30% --json ";
  const outcome first = run(on + "- --seed 5");
  ASSERT_EQ(first.exit_status, 0) << first.err;
  EXPECT_EQ(first.err, "");
  json one = json::parse(first.out);
  ASSERT_EQ(run(on + folder_.path("two.json") + " --seed 5 -j 1").exit_status, 0);
  json two = json::parse(content_of(folder_.path("two.json")));
  for (json* each : {&one, &two}) {
    for (json& row : (*each)["results"]) row.erase("host_ns_per_op");
  }
  EXPECT_EQ(one, two);
  EXPECT_GE(one["results"].size(), 5U);
  for (const json& row : one["results"]) {
    EXPECT_EQ(row["hazards"], 0);
    EXPECT_EQ(row["ops"].get<int>(), 350 * row["tenants"].get<int>());
    EXPECT_EQ(row["fit_utilization"].is_null(), row["policy"] != "grab_all");
  }
}

TEST_F(cli, plans_for_rows_of_planned_that_name_no_plan) {
  const outcome got = run("--trace bench/traces/lstm.csv.gz --policy planned --policy growth --json -");
  ASSERT_EQ(got.exit_status, 0) << got.err;
  EXPECT_EQ(got.err, "");
  const json rows = json::parse(got.out)["results"];
  EXPECT_EQ(rows[0]["own_plan"], true);
  EXPECT_EQ(rows[0]["device_calls"]["alloc"], 1);
  EXPECT_GT(rows[0]["utilization"], 0.99);
  EXPECT_EQ(rows[1]["own_plan"], false);
  const outcome fit = run("fit --trace " + good_trace() + " --policy planned");
  EXPECT_EQ(fit.err, "");
  EXPECT_THAT(fit.out, testing::HasSubstr("made from the same trace"));
}

TEST_F(cli, says_that_a_plan_is_of_another_trace) {
  const auto other = plan::make_plan({{.bytes = 512, .block = 0}, {.block = 0, .free = true}}, {});
  ASSERT_TRUE(other && plan::write_plan(folder_.path("other.plan"), *other));
  const std::string named = "--policy planned,plan=" + folder_.path("other.plan") + " --trace ";
  const outcome got = run(named + good_trace());
  EXPECT_EQ(got.exit_status, 0);
  EXPECT_THAT(got.err, testing::HasSubstr("a plan of another trace: its fingerprint is "));
  std::ofstream{folder_.path("other.plan")} << "no plan\n";
  expect_refused(named + good_trace(), "other.plan");
}

TEST_F(cli, reads_a_folder_and_the_variables) {
  const std::string trace = good_trace();
  std::filesystem::create_directory(folder_.path("many"));
  std::filesystem::copy_file(trace, folder_.path("many/a.csv"));
  std::filesystem::copy_file(trace, folder_.path("many/b.csv"));
  const outcome got = run("--json - --trace " + folder_.path("many") + " --trace " + folder_.path("many/a.csv"),
                          "GPUMEM_POLICY=caching GPUMEM_LIMIT=4GiB");
  ASSERT_EQ(got.exit_status, 0) << got.err;
  const json rows = json::parse(got.out)["results"];
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0]["policy"], "caching");
  EXPECT_EQ(rows[0]["trace"], folder_.path("many/a.csv")) << "two traces of one name are told apart by their paths";
  EXPECT_EQ(rows[1]["trace"], "b");
}

TEST_F(cli, stops_a_row_that_runs_out_and_goes_on_with_the_next) {
  const outcome got = run("--json - --policy growth,limit=2MiB --policy growth --trace " + good_trace());
  ASSERT_EQ(got.exit_status, 0) << got.err;
  const json rows = json::parse(got.out)["results"];
  EXPECT_EQ(rows[0]["oom"], true);
  EXPECT_TRUE(rows[0]["oom_cause"] == "limit" || rows[0]["oom_cause"] == "fragmentation") << rows[0]["oom_cause"];
  EXPECT_GT(rows[0]["oom_at_op"].get<int>(), 0);
  EXPECT_EQ(rows[1]["oom"], false);
}

TEST_F(cli, fits) {
  const outcome got = run("fit --json - --policy grab_all --policy growth --trace " + good_trace());
  ASSERT_EQ(got.exit_status, 0) << got.err;
  const json rows = json::parse(got.out)["results"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_GE(rows[0]["min_capacity_bytes"].get<std::uint64_t>(), rows[0]["peak_live_bytes"].get<std::uint64_t>());
  EXPECT_GT(rows[0]["utilization"].get<double>(), 0.66);
}

TEST_F(cli, prints_a_table_that_says_what_is_simulated) {
  const outcome got = run("--policy growth --csv " + folder_.path("t.csv") + " --trace " + good_trace());
  ASSERT_EQ(got.exit_status, 0) << got.err;
  EXPECT_EQ(got.err, "") << "no progress bar in a pipe";
  EXPECT_THAT(got.out, testing::StartsWith("good: 350 operations"));
  EXPECT_THAT(got.out, testing::HasSubstr("Simulated, on a device of 80.00 GiB"));
  EXPECT_THAT(got.out, testing::HasSubstr("growth replays at "));
  EXPECT_THAT(content_of(folder_.path("t.csv")), testing::StartsWith("trace,policy,"));
}

}  // namespace
}  // namespace gpumem::bench
