#include "gpumem/settings.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <set>

#include "bits.hpp"

namespace gpumem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using problem_list = std::vector<std::string>;

/// Every option with one value that is not its default, and that value as `describe` shows it.
struct example {
  std::string_view option;
  std::string_view value;
  std::string_view shown;
};
constexpr example examples[] = {{"policy", "caching", "caching"},
                                {"limit", "4096MiB", "4GiB"},
                                {"limit_scope", "process", "process"},
                                {"headroom", "64M", "64MiB"},
                                {"reserve", "0.5G", "512MiB"},
                                {"pools", "a:1G+30%", "a:1GiB,30%"},
                                {"stream_ids", "notify", "notify"},
                                {"stream_reuse", "poll", "poll"},
                                {"free_wait", "250", "250"},
                                {"thread_cache", "0", "0"},
                                {"devices", " 2, GPU-8932f937", "2,GPU-8932f937"},
                                {"soft_placement", "1", "1"},
                                {"idle_bytes", "2GiB", "2GiB"},
                                {"group", "lab.a-1", "lab.a-1"},
                                {"group_limit", "4096M", "4GiB"},
                                {"job", "run-7-1a", "run-7-1a"},
                                {"job_limit", "4096M", "4GiB"},
                                {"shared_folder", "/tmp/meet", "/tmp/meet"},
                                {"publish", "off", "0"},
                                {"ipc", "1", "1"},
                                {"slack", "5%", "5%"},
                                {"backing", "mapped", "mapped"},
                                {"exchange_rate", " 12", "12"},
                                {"plan", "/tmp/step.plan", "/tmp/step.plan"},
                                {"policy_library", "/tmp/policies.so", "/tmp/policies.so"},
                                {"cuda_driver", "/opt/libcuda.so.1", "/opt/libcuda.so.1"},
                                {"nvml", "/opt/libnvidia-ml.so.1", "/opt/libnvidia-ml.so.1"},
                                {"torch", "1", "1"},
                                {"trace", "/tmp/t.csv.gz", "/tmp/t.csv.gz"},
                                {"stats", "exit", "exit"},
                                {"oom_log", "0", "0"},
                                {"oom_advice", "1", "1"},
                                {"oom_file", "/tmp/oom", "/tmp/oom"},
                                {"history", "100000", "100000"},
                                {"verbose", "1", "1"},
                                {"strict", "on", "1"}};

std::string line_of(const settings& s, std::string_view variable) {
  const std::string text = fmt::format("\n{}\n", s.describe());
  const std::size_t begin = text.find(fmt::format("\n{}=", variable));
  if (begin == std::string::npos) return "";
  return text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
}

problem_list problems_of(const environment& variables) {
  settings s;
  problem_list problems;
  EXPECT_TRUE(s.apply(variables, &problems).ok());
  return problems;
}

TEST(OptionTable, HasTheOptionsInOrder) {
  std::vector<std::string_view> variables;
  for (const option_row& row : option_table()) variables.push_back(row.variable);
  EXPECT_THAT(
      variables,
      ElementsAre("GPUMEM_POLICY", "GPUMEM_LIMIT", "GPUMEM_LIMIT_SCOPE", "GPUMEM_HEADROOM", "GPUMEM_RESERVE",
                  "GPUMEM_POOLS", "GPUMEM_STREAM_IDS", "GPUMEM_STREAM_REUSE", "GPUMEM_FREE_WAIT", "GPUMEM_THREAD_CACHE",
                  "GPUMEM_DEVICES", "GPUMEM_SOFT_PLACEMENT", "GPUMEM_IDLE_BYTES", "GPUMEM_GROUP", "GPUMEM_GROUP_LIMIT",
                  "GPUMEM_JOB", "GPUMEM_JOB_LIMIT", "GPUMEM_SHARED_FOLDER", "GPUMEM_PUBLISH", "GPUMEM_IPC",
                  "GPUMEM_SLACK", "GPUMEM_BACKING", "GPUMEM_EXCHANGE_RATE", "GPUMEM_PLAN", "GPUMEM_POLICY_LIBRARY",
                  "GPUMEM_CUDA_DRIVER", "GPUMEM_NVML", "GPUMEM_TORCH", "GPUMEM_TRACE", "GPUMEM_HISTORY", "GPUMEM_STATS",
                  "GPUMEM_OOM_LOG", "GPUMEM_OOM_FILE", "GPUMEM_OOM_ADVICE", "GPUMEM_VERBOSE", "GPUMEM_STRICT"));
}

TEST(Slack, IsAShareOrBytesAndMayBeNone) {
  settings s;
  for (const auto& [text, fraction, bytes] :
       {std::tuple{"5%", 0.05, 0U}, std::tuple{"64MiB", 0.0, 64U << 20}, std::tuple{"0", 0.0, 0U}}) {
    ASSERT_TRUE(s.set("slack", text).ok()) << text;
    EXPECT_TRUE(static_cast<bool>(s.slack)) << text;
    EXPECT_DOUBLE_EQ(s.slack.fraction, fraction);
    EXPECT_EQ(s.slack.bytes, bytes);
  }
  for (const char* text : {"80%free", "-1", "x", ""}) {
    EXPECT_EQ(s.set("slack", text).code(), errc::bad_setting) << text;
  }
}

TEST(Backing, IsPlainOrMapped) {
  settings s;
  EXPECT_EQ(s.set("backing", "paper").message(), "backing=paper: expected plain or mapped");
  EXPECT_TRUE(s.set("backing", " mapped ").ok());
  EXPECT_EQ(s.text("backing"), "mapped");
}

TEST(OptionTable, OptionIsTheVariableInSmallLetters) {
  for (const option_row& row : option_table()) {
    std::string variable = "GPUMEM_";
    for (const char c : row.option) variable += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    EXPECT_EQ(variable, row.variable);
  }
}

TEST(OptionTable, DefaultTextEqualsTheInitialSettings) {
  for (const option_row& row : option_table()) {
    EXPECT_EQ(line_of(settings{}, row.variable), fmt::format("{}={} (default)", row.variable, row.default_text));
  }
}

TEST(Settings, SetsEveryOptionFromText) {
  std::set<std::string_view> covered;
  for (const auto& [option, value, shown] : examples) {
    settings s;
    const status done = s.set(option, value);
    ASSERT_TRUE(done.ok()) << done.message();
    EXPECT_EQ(s.source(option), setting_source::code);
    EXPECT_THAT(s.describe(), HasSubstr(fmt::format("={} (code)", shown))) << option;
    covered.insert(option);
  }
  for (const option_row& row : option_table()) EXPECT_EQ(covered.count(row.option), 1U) << row.option;
}

TEST(Settings, TextReachesTheField) {
  settings s;
  for (const auto& [option, value, shown] : examples) ASSERT_TRUE(s.set(option, value).ok()) << option;
  EXPECT_EQ(s.policy, "caching");
  EXPECT_EQ(s.limit.bytes, 4 * gib);
  EXPECT_EQ(s.reserve_bytes, 512 * mib);
  ASSERT_EQ(s.pools.size(), 2U);
  EXPECT_EQ(s.pools[0].name, "a");
  EXPECT_EQ(s.stream_ids, stream_id_mode::notify);
  EXPECT_EQ(s.reuse, stream_reuse::poll);
  EXPECT_EQ(s.trace_path, "/tmp/t.csv.gz");
  EXPECT_EQ(s.stats_path, "exit");
  EXPECT_TRUE(s.verbose);
  EXPECT_TRUE(s.strict);
}

TEST(Settings, FlagsTakeSixWords) {
  for (const auto& [word, value] : {std::pair{"0", false},
                                    {"1", true},
                                    {"false", false},
                                    {"true", true},
                                    {"off", false},
                                    {"on", true},
                                    {"TRUE", true},
                                    {" 1 ", true}}) {
    settings s;
    s.verbose = !value;
    ASSERT_TRUE(s.set("verbose", word).ok()) << word;
    EXPECT_EQ(s.verbose, value) << word;
  }
}

TEST(Settings, RefusesBadTextAndKeepsTheFormerValue) {
  struct row {
    std::string_view option;
    std::string_view value;
    std::string_view message;
  };
  for (const auto& [option, value, message] : {
           row{"policy", " ", "policy= : expected a name"},
           row{"limit", "3XB",
               "limit=3XB: unknown unit XB; expected bytes (4GiB), a share of the device (30%) or of what is free "
               "(80%free)"},
           row{"reserve", "-1", "reserve=-1: negative; expected bytes such as 4GiB, 512M or 1000000"},
           row{"pools", "1G,",
               "pools=1G,: pool 1 of the list: empty; expected a list such as 2GiB,2GiB or "
               "train:8GiB,eval:30%:caching"},
           row{"stream_ids", "ask", "stream_ids=ask: expected query or notify"},
           row{"stream_reuse", "Device", "stream_reuse=Device: expected poll, device or host"},
           row{"verbose", "2", "verbose=2: expected 0 or 1"},
           row{"strict", "", "strict=: expected 0 or 1"},
       }) {
    settings s;
    for (const auto& [name, good, shown] : examples) ASSERT_TRUE(s.set(name, good).ok()) << name;
    const std::string before = s.describe();
    const status refused = s.set(option, value);
    EXPECT_EQ(refused.code(), errc::bad_setting) << option;
    EXPECT_EQ(refused.message(), message);
    EXPECT_EQ(s.describe(), before);
  }
}

TEST(Settings, RefusesAnOptionThatDoesNotExist) {
  settings s;
  for (const std::string_view option : {"limti", "LIMIT", "GPUMEM_LIMIT", "limit_1", ""}) {
    const status refused = s.set(option, "1G");
    EXPECT_EQ(refused.code(), errc::bad_setting) << option;
    EXPECT_THAT(refused.message(), HasSubstr(std::string{option} + "=1G: unknown option; expected one of policy, "));
    EXPECT_EQ(s.source(option), setting_source::default_value);
  }
}

TEST(Settings, EmptyPathSwitchesOff) {
  settings s;
  s.trace_path = "t.csv";
  ASSERT_TRUE(s.apply({{"GPUMEM_TRACE", ""}}).ok());
  EXPECT_EQ(s.trace_path, "");
  EXPECT_EQ(line_of(s, "GPUMEM_TRACE"), "GPUMEM_TRACE=off (environment, over code's t.csv)");
}

TEST(Settings, EnvironmentWinsOverCodeAndSaysSo) {
  settings s;
  s.limit = *parse_limit("2GiB");  // a field, without `set`
  ASSERT_TRUE(s.set("policy", "caching").ok());
  EXPECT_EQ(s.source("limit"), setting_source::code);
  ASSERT_TRUE(s.apply({{"GPUMEM_POLICY", "grab_all"}, {"GPUMEM_LIMIT", "30%"}, {"GPUMEM_STATS", "exit"}}).ok());
  EXPECT_EQ(s.policy, "grab_all");
  EXPECT_EQ(s.source("policy"), setting_source::environment);
  EXPECT_EQ(line_of(s, "GPUMEM_POLICY"), "GPUMEM_POLICY=grab_all (environment, over code's caching)");
  EXPECT_EQ(line_of(s, "GPUMEM_LIMIT"), "GPUMEM_LIMIT=30% (environment, over code's 2GiB)");
  EXPECT_EQ(line_of(s, "GPUMEM_STATS"), "GPUMEM_STATS=exit (environment)");
  EXPECT_EQ(line_of(s, "GPUMEM_POOLS"), "GPUMEM_POOLS=one pool (default)");
}

TEST(Settings, EnvironmentThatAgreesWithCodeOverrulesNothing) {
  settings s;
  ASSERT_TRUE(s.set("policy", "caching").ok());
  ASSERT_TRUE(s.apply({{"GPUMEM_POLICY", "caching"}}).ok());
  EXPECT_EQ(line_of(s, "GPUMEM_POLICY"), "GPUMEM_POLICY=caching (environment)");
}

TEST(Settings, CodeAfterTheEnvironmentIsTheLastWord) {
  settings s;
  ASSERT_TRUE(s.set("policy", "caching").ok());
  ASSERT_TRUE(s.apply({{"GPUMEM_POLICY", "grab_all"}}).ok());
  ASSERT_TRUE(s.set("policy", "growth").ok());
  EXPECT_EQ(line_of(s, "GPUMEM_POLICY"), "GPUMEM_POLICY=growth (code)");
}

TEST(Settings, BadVariablesBecomeProblemsAndKeepTheFormerValue) {
  settings s;
  ASSERT_TRUE(s.set("stats", "a.json").ok());
  problem_list problems;
  ASSERT_TRUE(s.apply({{"GPUMEM_THREAD_CACHE", "some"},
                       {"GPUMEM_VERBOSE", "yes"},
                       {"GPUMEM_POLICY", "no_such_policy"},  // known only to the policies' registry
                       {"PATH", "/bin"},
                       {"gpumem_limit", "x"}},
                      &problems)
                  .ok());
  EXPECT_THAT(problems,
              ElementsAre("GPUMEM_THREAD_CACHE=some: expected 0 or 1", "GPUMEM_VERBOSE=yes: expected 0 or 1"));
  EXPECT_TRUE(s.thread_cache);
  EXPECT_FALSE(s.verbose);
  EXPECT_EQ(s.policy, "no_such_policy");
}

// Independent of GPUMEM_STRICT: a program with a bad limit never gets all memory.
TEST(Settings, ABadLimitPoolGroupOrDeviceIsAnErrorAndNothingIsChanged) {
  for (const auto& [variable, value] : {std::pair{"GPUMEM_LIMIT", "4XB"},
                                        {"GPUMEM_LIMIT", ""},
                                        {"GPUMEM_LIMIT", "0"},
                                        {"GPUMEM_LIMIT", "-1"},
                                        {"GPUMEM_LIMIT", "130%"},
                                        {"GPUMEM_LIMIT_1", "0"},
                                        {"GPUMEM_LIMIT_x", "4GiB"},
                                        {"GPUMEM_LIMIT_01", "4GiB"},
                                        {"GPUMEM_LIMIT_SCOP", "process"},
                                        {"GPUMEM_LIMIT_SCOPE", "all"},
                                        {"GPUMEM_LIMIT_SCOPE_0", "process"},
                                        {"GPUMEM_HEADROOM", "-1"},
                                        {"GPUMEM_RESERVE", "lots"},
                                        {"GPUMEM_RESERVE_2", "30%"},
                                        {"GPUMEM_POOLS", "2GiB,,2GiB"},
                                        {"GPUMEM_POOLS_0", "a:a"},
                                        {"GPUMEM_DEVICES", "-1"},
                                        {"GPUMEM_EXCHANGE_RATE", "-1"},
                                        {"GPUMEM_EXCHANGE_RATE_1", "much"},
                                        {"GPUMEM_DEVICES_0", "1"},
                                        {"GPUMEM_GROUP", "a/b"},
                                        {"GPUMEM_GROUP_LIMIT", "30%free"},
                                        {"GPUMEM_GROUP_LIMIT_1", "much"},
                                        {"GPUMEM_JOB", "a/b"},
                                        {"GPUMEM_JOB_LIMIT", "0"},
                                        {"GPUMEM_JOB_LIMIT_1", "much"}}) {
    for (const char* strict : {"0", "1", "maybe"}) {
      settings s;
      problem_list problems;
      const status refused =
          s.apply({{"GPUMEM_POLICY", "caching"}, {variable, value}, {"GPUMEM_STRICT", strict}}, &problems);
      EXPECT_EQ(refused.code(), errc::bad_setting) << variable << "=" << value;
      EXPECT_THAT(refused.message(), testing::StartsWith(fmt::format("{}={}: ", variable, value)));
      EXPECT_THAT(refused.message(), testing::AnyOf(HasSubstr("expected "), HasSubstr("did you mean ")));
      EXPECT_THAT(problems, testing::Contains(refused.message()));
      EXPECT_EQ(s.describe(), settings{}.describe()) << variable << "=" << value;
    }
  }
}

TEST(Settings, NamesTheOverridesOfOtherDevices) {
  settings s;
  ASSERT_TRUE(s.apply({{"GPUMEM_LIMIT_0", "1GiB"}, {"GPUMEM_LIMIT_1", "2GiB"}, {"GPUMEM_POLICY_3", "caching"}}).ok());
  EXPECT_THAT(s.overrides_of_others({0}), ElementsAre("GPUMEM_LIMIT_1=2GiB", "GPUMEM_POLICY_3=caching"));
  EXPECT_THAT(s.overrides_of_others({0, 1, 3}), IsEmpty());
}

TEST(Settings, TheFolderOfRecordingsIsNoSetting) {
  EXPECT_THAT(problems_of({{"GPUMEM_TRACES", "/recordings"}}), IsEmpty());
}

TEST(Settings, UnknownVariableGetsTheClosestName) {
  // A misspelt name of a setting that limits memory is an error.
  EXPECT_EQ(settings{}.apply({{"GPUMEM_LIMTI", "4GiB"}}).message(),
            "GPUMEM_LIMTI=4GiB: unknown variable; did you mean GPUMEM_LIMIT?");
  EXPECT_EQ(settings{}.apply({{"GPUMEM_LIMTI_1", "4GiB"}}).message(),
            "GPUMEM_LIMTI_1=4GiB: unknown variable; did you mean GPUMEM_LIMIT_1?");
  EXPECT_THAT(problems_of({{"GPUMEM_STREAMIDS", "query"}}),
              ElementsAre("GPUMEM_STREAMIDS=query: unknown variable; did you mean GPUMEM_STREAM_IDS?"));
  EXPECT_EQ(settings{}.apply({{"GPUMEM_limit", "1G"}}).message(),
            "GPUMEM_limit=1G: unknown variable; did you mean GPUMEM_LIMIT?");
  std::string every_name;
  for (const option_row& row : option_table()) {
    every_name += (every_name.empty() ? "" : ", ") + std::string{row.variable.substr(7)};
  }
  EXPECT_THAT(problems_of({{"GPUMEM_COLOUR", "10%"}}),
              ElementsAre("GPUMEM_COLOUR=10%: unknown variable; expected GPUMEM_ and one of " + every_name));
}

TEST(Settings, OddNamesAreUnknownVariables) {
  for (const std::string name :
       {"GPUMEM_", "GPUMEM__", "GPUMEM_1", "GPUMEM__1", "GPUMEM_LIMIT_", "GPUMEM_LIMIT_-1", "GPUMEM_LIMIT_01",
        "GPUMEM_LIMIT_1_1", "GPUMEM_LIMIT_x", "GPUMEM_LIMIT_+1", "GPUMEM_LIMIT_99999999999999999999"}) {
    settings s;
    problem_list problems;
    const status applied = s.apply({{name, "1G"}}, &problems);
    EXPECT_THAT(problems, ElementsAre(HasSubstr(name + "=1G: unknown variable"))) << name;
    EXPECT_EQ(applied.ok(), !name.starts_with("GPUMEM_LIMIT_")) << name << ": it may have been meant for the limit";
  }
}

TEST(Settings, StrictRefusesTheFirstProblemInAnyOrder) {
  const std::pair<std::string, std::string> strict{"GPUMEM_STRICT", "1"};
  const std::pair<std::string, std::string> unknown{"GPUMEM_LIMTI", "4GiB"};
  const std::pair<std::string, std::string> bad{"GPUMEM_LIMIT", "0"};
  const std::pair<std::string, std::string> good{"GPUMEM_POLICY", "caching"};
  for (const environment& variables :
       {environment{strict, good, unknown, bad}, {good, unknown, bad, strict}, {unknown, strict, bad, good}}) {
    settings s;
    problem_list problems;
    const status refused = s.apply(variables, &problems);
    EXPECT_EQ(refused.code(), errc::bad_setting);
    EXPECT_EQ(refused.message(), "GPUMEM_LIMTI=4GiB: unknown variable; did you mean GPUMEM_LIMIT?");
    EXPECT_EQ(problems.size(), 2U);
    EXPECT_EQ(s.describe(), settings{}.describe()) << "strict mode changes nothing when it refuses";
  }
}

TEST(Settings, StrictAcceptsGoodValues) {
  settings s;
  ASSERT_TRUE(s.apply({{"GPUMEM_LIMIT", "1G"}, {"GPUMEM_STRICT", "1"}, {"HOME", "x"}}).ok());
  EXPECT_TRUE(s.strict);
  EXPECT_EQ(s.limit.bytes, gib);
}

TEST(Settings, StrictOfCodeHoldsUnlessTheEnvironmentLiftsIt) {
  settings s;
  s.strict = true;
  EXPECT_EQ(s.apply({{"GPUMEM_PUBLISH", "x"}}).code(), errc::bad_setting);
  EXPECT_EQ(s.apply({{"GPUMEM_PUBLISH", "x"}, {"GPUMEM_STRICT", "maybe"}}).code(), errc::bad_setting);
  EXPECT_TRUE(s.apply({{"GPUMEM_PUBLISH", "x"}, {"GPUMEM_STRICT", "0"}}).ok());
  EXPECT_FALSE(s.strict);
}

TEST(Settings, OneDeviceOverridesTheRest) {
  settings s;
  ASSERT_TRUE(s.set("limit", "1GiB").ok());
  problem_list problems;
  ASSERT_TRUE(s.apply({{"GPUMEM_LIMIT_1", "3GiB"},
                       {"GPUMEM_LIMIT", "2GiB"},
                       {"GPUMEM_POLICY_1", "caching"},
                       {"GPUMEM_STREAM_IDS_0", "notify"},
                       {"GPUMEM_POOLS_12", "1G,1G"}},
                      &problems)
                  .ok());
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(s.limit.bytes, 2 * gib);
  EXPECT_EQ(s.for_device(0).limit.bytes, 2 * gib);
  EXPECT_EQ(s.for_device(0).stream_ids, stream_id_mode::notify);
  EXPECT_EQ(s.for_device(1).limit.bytes, 3 * gib);
  EXPECT_EQ(s.for_device(1).policy, "caching");
  EXPECT_EQ(s.for_device(1).stream_ids, stream_id_mode::query);
  EXPECT_EQ(s.for_device(2).policy, "growth");
  EXPECT_EQ(s.for_device(12).pools.size(), 2U);
  EXPECT_THAT(s.describe(), HasSubstr("\nGPUMEM_LIMIT_1=3GiB (environment)\nGPUMEM_POLICY_1=caching (environment)\n"));
  EXPECT_EQ(line_of(s.for_device(1), "GPUMEM_LIMIT"), "GPUMEM_LIMIT=3GiB (environment, over code's 1GiB)");
  EXPECT_THAT(s.for_device(1).describe(), Not(HasSubstr("GPUMEM_LIMIT_1")));
}

TEST(Settings, AssignmentIsTheOptionAsItWasSet) {
  settings s;
  EXPECT_EQ(s.assignment("limit"), "GPUMEM_LIMIT=");
  EXPECT_EQ(s.assignment("limti"), "");
  ASSERT_TRUE(s.set("limit", " 0.5TiB").ok());
  EXPECT_EQ(s.assignment("limit"), "GPUMEM_LIMIT= 0.5TiB");
  ASSERT_TRUE(
      s.apply({{"GPUMEM_LIMIT", "1024MiB"}, {"GPUMEM_LIMIT_1", "2048MiB"}, {"GPUMEM_POOLS_2", "a:1024M"}}).ok());
  EXPECT_EQ(s.assignment("limit"), "GPUMEM_LIMIT=1024MiB");
  EXPECT_EQ(s.for_device(0).assignment("limit"), "GPUMEM_LIMIT=1024MiB");
  EXPECT_EQ(s.for_device(1).assignment("limit"), "GPUMEM_LIMIT_1=2048MiB");
  EXPECT_EQ(s.for_device(2).assignment("pools"), "GPUMEM_POOLS_2=a:1024M");
  s.limit.bytes = 3 * gib;
  EXPECT_EQ(s.assignment("limit"), "GPUMEM_LIMIT=3GiB") << "a field that code changed since";
  ASSERT_TRUE(s.set("trace", "a\nb").ok());
  EXPECT_EQ(s.assignment("trace"), "GPUMEM_TRACE=a\\x0ab") << "one line";
}

TEST(Settings, LaterEnvironmentReplacesAnOverride) {
  settings s;
  ASSERT_TRUE(s.apply({{"GPUMEM_LIMIT_1", "3GiB"}}).ok());
  ASSERT_TRUE(s.apply({{"GPUMEM_LIMIT_1", "4GiB"}}).ok());
  EXPECT_EQ(s.for_device(1).limit.bytes, 4 * gib);
  EXPECT_EQ(line_of(s, "GPUMEM_LIMIT_1"), "GPUMEM_LIMIT_1=4GiB (environment)");
}

TEST(Settings, BadOverrideIsAProblemOfItsOwnName) {
  settings s;
  problem_list problems;
  ASSERT_TRUE(s.apply({{"GPUMEM_THREAD_CACHE_1", "2"}}, &problems).ok());
  EXPECT_THAT(problems, ElementsAre("GPUMEM_THREAD_CACHE_1=2: expected 0 or 1"));
  EXPECT_TRUE(s.for_device(1).thread_cache);
}

TEST(Settings, ProcessOptionsCannotDifferBetweenDevices) {
  for (const std::string option : {"TRACE", "STATS", "VERBOSE", "STRICT"}) {
    const std::string variable = fmt::format("GPUMEM_{}", option);
    EXPECT_THAT(problems_of({{variable + "_0", "1"}}),
                ElementsAre(fmt::format("{0}_0=1: {0} cannot differ between devices; expected {0}", variable)))
        << option;
    EXPECT_FALSE(std::ranges::find(option_table(), variable, &option_row::variable)->per_device);
  }
}

TEST(Settings, DescribeKeepsOneLineAnOption) {
  settings s;
  s.trace_path = "a\nb";
  const std::string text = s.describe();
  EXPECT_EQ(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1, option_table().size());
  EXPECT_EQ(line_of(s, "GPUMEM_TRACE"), "GPUMEM_TRACE=a\\x0ab (code)");
}

TEST(Settings, ProcessEnvironmentHoldsOurVariablesOnly) {
  ASSERT_EQ(setenv("GPUMEM_LIMIT_7", "a=b", 1), 0);
  ASSERT_EQ(setenv("NOT_GPUMEM_LIMIT", "1", 1), 0);
  const environment variables = process_environment();
  ASSERT_EQ(unsetenv("GPUMEM_LIMIT_7"), 0);
  ASSERT_EQ(unsetenv("NOT_GPUMEM_LIMIT"), 0);
  EXPECT_THAT(variables, testing::Contains(std::pair<std::string, std::string>{"GPUMEM_LIMIT_7", "a=b"}));
  for (const auto& [name, value] : variables) EXPECT_EQ(name.rfind("GPUMEM_", 0), 0U) << name;
}

TEST(Settings, PoolsMayNamePoliciesWithParameters) {
  const auto pools = parse_pools("train:8GiB:towers:first=1,second=2+a:1GiB,eval:30%:expandable:slack=5%");
  ASSERT_TRUE(pools.ok()) << pools.why().message();
  ASSERT_EQ(pools->size(), 3U);
  EXPECT_EQ((*pools)[0].policy, "towers:first=1,second=2");
  EXPECT_EQ((*pools)[1].name, "a");
  EXPECT_EQ((*pools)[2].policy, "expandable:slack=5%");
  EXPECT_FALSE(parse_pools("2GiB,x=3").ok()) << "a parameter of no policy";
}

TEST(Settings, TheTextOfAnOptionIsReadBySet) {
  settings s;
  EXPECT_EQ(s.text("slack"), "");
  EXPECT_EQ(s.text("no_such_option"), "");
  for (const char* text : {"5%", "64MiB", "0", "0.3%"}) {
    ASSERT_TRUE(s.set("slack", text).ok());
    EXPECT_EQ(s.text("slack"), text);
  }
}

}  // namespace
}  // namespace gpumem
