/// Values of the command line: accepted forms, and refusals in one line.
#include "options.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "bits.hpp"

namespace gpumem::bench {
namespace {

result<options> parsed(std::vector<const char*> words) {
  words.insert(words.begin(), "gpumem_bench");
  options out;
  const auto text = parse_command_line(static_cast<int>(words.size()), words.data(), out);
  if (!text) return text.why();
  EXPECT_FALSE(text->has_value());
  return out;
}

TEST(options, default_to_compare_on_an_80_gib_device) {
  const auto with = parsed({});
  ASSERT_TRUE(with.ok()) << with.why().message();
  EXPECT_EQ(with->subcommand, command::compare);
  EXPECT_EQ(with->setup.device.capacity_bytes, 80 * gib);
  EXPECT_EQ(with->setup.lag_ns, 1'000'000U);
  EXPECT_EQ(with->setup.shared_use, 0.0);
  EXPECT_GE(with->jobs, 1U);
}

TEST(options, stand_before_and_behind_the_subcommand) {
  const auto with = parsed({"--trace",
                            "a",
                            "fit",
                            "--trace",
                            "b",
                            "--policy",
                            "growth",
                            "--policy",
                            "caching,limit=50%",
                            "--seed",
                            "18446744073709551615",
                            "-j",
                            "3",
                            "--quiet",
                            "--lag",
                            "250us",
                            "--shared-use",
                            "10%",
                            "--device",
                            "sim:141GiB"});
  ASSERT_TRUE(with.ok()) << with.why().message();
  EXPECT_EQ(with->subcommand, command::fit);
  EXPECT_EQ(with->traces, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(with->policies, (std::vector<std::string>{"growth", "caching,limit=50%"}));
  EXPECT_EQ(with->setup.seed, UINT64_MAX);
  EXPECT_EQ(with->jobs, 3U);
  EXPECT_TRUE(with->quiet);
  EXPECT_EQ(with->setup.lag_ns, 250'000U);
  EXPECT_DOUBLE_EQ(with->setup.shared_use, 0.1);
  EXPECT_EQ(with->setup.device.capacity_bytes, 141 * gib);
}

TEST(options, read_times) {
  EXPECT_EQ(*parse_lag("0"), 0U);
  EXPECT_EQ(*parse_lag("0ms"), 0U);
  EXPECT_EQ(*parse_lag("800ns"), 800U);
  EXPECT_EQ(*parse_lag("2.5ms"), 2'500'000U);
  EXPECT_EQ(*parse_lag("1000s"), 1'000'000'000'000U);
  for (const char* bad :
       {"", "1", "ms", "-1ms", "+1ms", "nan", "nanms", "infs", "1e3ms", "1001s", "1 ms", "1msx", "1h"}) {
    EXPECT_EQ(parse_lag(bad).why().message(),
              "--lag " + std::string{bad} + ": expected a time such as 1ms, 250us or 0, at most 1000s");
  }
}

TEST(options, read_shares) {
  EXPECT_EQ(*parse_share("0"), 0.0);
  EXPECT_EQ(*parse_share("100%"), 1.0);
  EXPECT_EQ(*parse_share("12.5"), 0.125);
  for (const char* bad : {"", "%", "-1%", "100.1%", "nan", "nan%", "inf", "1e1", "10%%", "ten"}) {
    EXPECT_EQ(parse_share(bad).code(), errc::bad_setting) << bad;
  }
}

TEST(options, read_devices) {
  replay_setup setup;
  ASSERT_TRUE(parse_device("sim:4GiB", setup).ok());
  EXPECT_EQ(setup.device.capacity_bytes, 4 * gib);
  ASSERT_TRUE(parse_device("sim:4194305", setup).ok());
  EXPECT_EQ(setup.device.capacity_bytes, 4 * mib) << "whole segments";
  EXPECT_FALSE(setup.cuda);
  for (const char* bad : {"", "sim:", "sim:0", "sim:-1", "sim:nan", "sim:4XB", "sim:1KiB", "sim:65TiB", "gpu", "simx",
                          "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda:99999999999"}) {
    EXPECT_EQ(parse_device(bad, setup).code(), errc::bad_setting) << bad;
  }
}

TEST(options, know_the_baselines) {
  EXPECT_TRUE(parsed({"--baseline", "cub", "--baseline", "cuda_malloc", "--baseline", "cuda_malloc_async"}).ok());
  for (const char* bad : {"", "CUB", "rmm_arena", "../torch", "cub,cuda_malloc"}) {
    EXPECT_EQ(parsed({"--baseline", bad}).code(), errc::bad_setting) << bad;
  }
  EXPECT_EQ(parsed({"fit", "--baseline", "cub"}).code(), errc::bad_setting);
  for (const char* peer : {"torch", "torch_expandable", "tensorflow", "rmm"}) {
    EXPECT_TRUE(parsed({"compare", "--baseline", peer}).ok()) << peer;
    EXPECT_TRUE(parsed({"fit", "--baseline", peer}).ok()) << peer;
    EXPECT_EQ(parsed({"latency", "--baseline", peer}).code(), errc::bad_setting) << peer;
  }
}

TEST(options, refuse_what_they_do_not_know) {
  EXPECT_EQ(parsed({"--nonsense"}).code(), errc::bad_setting);
  EXPECT_EQ(parsed({"compare", "fit"}).code(), errc::bad_setting);
  EXPECT_EQ(parsed({"--trace"}).code(), errc::bad_setting);
  EXPECT_EQ(parsed({"--seed", "-1"}).code(), errc::bad_setting);
  EXPECT_EQ(parsed({"--seed", "1.5"}).code(), errc::bad_setting);
  EXPECT_EQ(parsed({"-j", "0"}).code(), errc::bad_setting);
  EXPECT_EQ(parsed({"--json", "-", "--csv", "-"}).code(), errc::bad_setting);
}

}  // namespace
}  // namespace gpumem::bench
