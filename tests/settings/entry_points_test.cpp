/// A limit never fails open: tests every bad limit, pool, group and device setting with every interface of gpumem, over
/// the double of the driver with one card of 1 GiB. No program ends with more than a context, and each is reported
/// once, with name and value.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "temporary_folder.hpp"

#ifndef GPUMEM_TEST_ADAPTERS_TAKER
#define GPUMEM_TEST_ADAPTERS_TAKER GPUMEM_TEST_TAKER
#endif

namespace gpumem {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t context = 32 * mib;  // a context on the card, needed to query its size
constexpr int refused = 2;

struct bad_setting {
  std::string variable;
  std::string value;
  std::string also{};              ///< other variables that the case sets
  bool known_to_the_card = false;  ///< valid except on this card: `gpumem run` does not detect it
};

std::vector<bad_setting> bad_settings() {
  std::vector<bad_setting> all;
  for (const char* value : {"", "0", "-1", "-4GiB", "0%", "130%", "100.1%", "nan", "inf", "4XB", "1GiB GiB", "1e9",
                            "0x10", "1.5", ".5G", "30%used", "30%free%", "99999999999999999999", "16EiB"}) {
    all.push_back({"GPUMEM_LIMIT", value});
  }
  all.push_back({.variable = "GPUMEM_LIMIT", .value = "2TiB", .known_to_the_card = true});
  all.push_back({.variable = "GPUMEM_LIMIT", .value = "4KiB", .known_to_the_card = true});
  all.push_back({"GPUMEM_LIMIT_0", "0"});
  all.push_back({"GPUMEM_LIMIT_0", "4XB", "GPUMEM_LIMIT=256MiB"});
  all.push_back({"GPUMEM_LIMIT_1", "x"});
  all.push_back({"GPUMEM_LIMIT_x", "256MiB"});
  all.push_back({"GPUMEM_LIMIT_SCOPE", "all", "GPUMEM_LIMIT=256MiB"});
  all.push_back({"GPUMEM_LIMIT_SCOPE_0", "pool", "GPUMEM_LIMIT=256MiB"});
  all.push_back({"GPUMEM_HEADROOM", "x", "GPUMEM_LIMIT=512MiB"});
  all.push_back({"GPUMEM_RESERVE", "lots", "GPUMEM_POLICY=grab_all"});
  all.push_back({"GPUMEM_RESERVE", "-1", "GPUMEM_POLICY=grab_all"});
  for (const char* value : {"", "256MiB,,256MiB", "256MiB,x", "a:b", "130%", "1:256MiB", "a:256MiB,a:256MiB"}) {
    all.push_back({"GPUMEM_POOLS", value});
  }
  all.push_back({.variable = "GPUMEM_POOLS", .value = "600MiB,600MiB", .known_to_the_card = true});
  for (const char* value : {"-1", "0,0", "auto:0", "0,", "GPU-", "x", "7"}) all.push_back({"GPUMEM_DEVICES", value});
  all.push_back({"GPUMEM_GROUP", "a/b", "GPUMEM_GROUP_LIMIT=256MiB"});
  all.push_back({"GPUMEM_GROUP", ".x", "GPUMEM_GROUP_LIMIT=256MiB"});
  all.push_back({"GPUMEM_GROUP_LIMIT", "256MiB"});
  all.push_back({"GPUMEM_GROUP_LIMIT", "30%free", "GPUMEM_GROUP=lab"});
  all.push_back({"GPUMEM_GROUP_LIMIT", "0", "GPUMEM_GROUP=lab"});
  for (const char* value : {" ", "1e99", "4GiBs", "18446744073709551616", "1_000MB", "%", "1,5GiB"}) {
    all.push_back({"GPUMEM_LIMIT", value});
  }
  // Misspelt names, and names that mean a limit.
  all.push_back({"GPUMEM_LIMTI", "256MiB"});
  all.push_back({"GPUMEM_LIMITS_0", "256MiB"});
  all.push_back({"GPUMEM_POOL", "256MiB,256MiB"});
  all.push_back({"GPUMEM_POLICY", "hard_cap"});
  all.push_back({"GPUMEM_POLICY", "multi_pool"});
  for (const char* value : {"expandable:limit=256MiB", "hard_cap:256MiB", "expandable:slack=130%", "no_such_policy"}) {
    all.push_back({.variable = "GPUMEM_POLICY", .value = value, .known_to_the_card = true});
  }
  all.push_back({.variable = "GPUMEM_POOLS", .value = "a:256MiB:no_such_policy", .known_to_the_card = true});
  all.push_back({"GPUMEM_DEVICES", "0,GPU-0000"});
  all.push_back({"GPUMEM_DEVICES", "auto:2"});
  return all;
}

struct outcome {
  int exit_status = -1;
  std::uint64_t took = 0;
  std::string out;
  std::string err;
};

std::string content_of(const std::string& file) {
  std::ifstream in{file, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

class EntryPoints : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] bool preloads() const { return std::string{GetParam()} == "preload"; }
  [[nodiscard]] bool runs() const { return std::string{GetParam()} == "run"; }
  [[nodiscard]] bool pinned() const { return std::string{GetParam()} == "pmr"; }
  [[nodiscard]] bool adapter() const {
    const std::string way = GetParam();
    return way == "cuda_mr" || way == "thrust" || way == "rmm" || pinned();
  }
  /// Settings about cards, not unreadable texts.
  static bool is_choice(const std::string& value) { return value == "7" || value == "0,GPU-0000" || value == "auto:2"; }
  /// Opened by the program itself, so that GPUMEM_DEVICES does not apply.
  [[nodiscard]] bool names_its_device() const { return std::string{GetParam()} == "linked_sim" || pinned(); }
  /// Runs the program with these variables and no other GPUMEM_*.
  outcome take(const std::string& variables) {
    std::string command = fmt::format(
        "env -i PATH=\"$PATH\" GPUMEM_SHARED_FOLDER='{0}' GPUMEM_NVML='" GPUMEM_TEST_NVML
        "' GPUMEM_CUDA_DRIVER='" GPUMEM_TEST_DRIVER
        "' SIMCUDA_BYTES=1GiB SIMCUDA_HOST_MEMORY=0 SIMCUDA_CONTEXT_BYTES=32MiB FAKENVML_CARDS=1 FAKENVML_MIB=1024 "
        "FAKENVML_UUIDS=00000000-0000-0000-0000-000000000000 " GPUMEM_TEST_SANITIZER " {1} ",
        folder_, variables);
    const std::string taker = fmt::format("'{}' ", adapter() ? GPUMEM_TEST_ADAPTERS_TAKER : GPUMEM_TEST_TAKER);
    if (preloads()) {
      command += "LD_PRELOAD='" GPUMEM_TEST_PRELOAD "' " + taker + "driver";
    } else if (runs()) {
      command += "'" GPUMEM_TEST_PROGRAM "' run -- " + taker + "driver";
    } else {
      command += taker + GetParam();
    }
    const int code = std::system(fmt::format("{} >'{}/out' 2>'{}/err' </dev/null", command, folder_, folder_).c_str());
    outcome got{WIFEXITED(code) ? WEXITSTATUS(code) : -1, 0, content_of(folder_ + "/out"),
                content_of(folder_ + "/err")};
    if (const std::size_t at = got.out.find("took "); at != std::string::npos) {
      got.took = std::strtoull(got.out.c_str() + at + 5, nullptr, 10);
    }
    return got;
  }
  temporary_folder temporary_;
  std::string folder_ = temporary_.path();
};

TEST_P(EntryPoints, ABadSettingGivesNothingAndIsToldOnce) {
  const std::vector<bad_setting> all = bad_settings();
  ASSERT_GE(all.size(), 45U);
  for (const bad_setting& each : all) {
    // The text must be valid all the same.
    if (names_its_device() && each.variable == "GPUMEM_DEVICES" && is_choice(each.value)) continue;
    SCOPED_TRACE(fmt::format("{}={} {}", each.variable, each.value, each.also));
    const outcome got = take(fmt::format("{} {}='{}'", each.also, each.variable, each.value));
    EXPECT_EQ(got.exit_status, refused) << got.out << got.err;
    EXPECT_LE(got.took, context) << got.err;
    if (runs() && !each.known_to_the_card) {
      EXPECT_EQ(got.out, "") << "the command does not begin";
    }
    const std::string named = fmt::format("{}={}", each.variable, each.value.substr(0, 6));
    std::istringstream lines{got.err};
    int told = 0;
    for (std::string line; std::getline(lines, line);) told += line.find(named) != std::string::npos ? 1 : 0;
    EXPECT_EQ(told, 1) << got.err;
    EXPECT_THAT(got.err, AnyOf(HasSubstr("expected "), HasSubstr("did you mean"), HasSubstr("needs "))) << got.err;
  }
}

// Cross-check of the table: with good settings the program takes what they allow, and without any the card.
TEST_P(EntryPoints, AGoodSettingGivesUpToItsLimit) {
  EXPECT_GE(take("").took, 900 * mib);
  for (const char* limit :
       {"GPUMEM_LIMIT=512MiB", "GPUMEM_LIMIT=50%", "GPUMEM_LIMIT=536.870912MB", "GPUMEM_LIMIT_0=0.5G",
        "GPUMEM_LIMIT=512MiB GPUMEM_LIMIT_SCOPE=process GPUMEM_HEADROOM=64MiB"}) {
    const outcome got = take(limit);
    EXPECT_EQ(got.exit_status, 0) << limit << got.err;
    EXPECT_GE(got.took, 192 * mib) << limit << got.err;
    EXPECT_LE(got.took, 512 * mib + (preloads() || runs() ? 0 : context)) << limit << got.err;
  }
}

TEST_P(EntryPoints, SettingsWithoutEffectAreLogged) {
  if (pinned()) GTEST_SKIP() << "the program reads the settings itself";
  const outcome one_card = take("GPUMEM_LIMIT_1=256MiB");
  EXPECT_EQ(one_card.exit_status, 0);
  EXPECT_THAT(one_card.err, HasSubstr("GPUMEM_LIMIT_1=256MiB has no effect: there is no such device; expected 0\n"));
  const outcome scope = take("GPUMEM_LIMIT_SCOPE=process GPUMEM_LIMIT=512MiB");
  if (preloads() || runs()) {
    EXPECT_THAT(scope.err, Not(HasSubstr("no effect")));
    EXPECT_THAT(take("GPUMEM_LIMIT_SCOPE=process").err, HasSubstr("has no effect: there is no GPUMEM_LIMIT"));
    const outcome pools = take("GPUMEM_POOLS=256MiB,256MiB");
    EXPECT_THAT(pools.err, HasSubstr("GPUMEM_POOLS: the limit is on gpumem's own segments (GPUMEM_LIMIT_SCOPE=pool)"));
    EXPECT_THAT(take("GPUMEM_POOLS=256MiB,256MiB GPUMEM_LIMIT_SCOPE=pool").err, Not(HasSubstr("own segments")));
  } else {
    EXPECT_THAT(scope.err, HasSubstr("GPUMEM_LIMIT_SCOPE=process has no effect in a program that links gpumem"));
    EXPECT_THAT(take("GPUMEM_RESERVE=1MiB").err,
                HasSubstr("GPUMEM_RESERVE=1MiB has no effect: expected GPUMEM_POLICY="));
  }
}

// The program allocates until it is refused: one line for the first refusal, not one for each.
TEST_P(EntryPoints, OutOfMemoryIsSeenWherePreloaded) {
  if (!preloads() && !runs()) GTEST_SKIP() << "a program that links gpumem is told by its own call";
  const std::string limited = "GPUMEM_LIMIT=512MiB GPUMEM_HEADROOM=64MiB";
  const outcome seen = take(limited);
  EXPECT_THAT(seen.err, HasSubstr("gpumem: out of memory"));
  EXPECT_THAT(seen.err, HasSubstr("; GPUMEM_LIMIT=512.00 MiB is on the whole process, of which "));
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = seen.err.find("gpumem: out of memory", at)) != std::string::npos; ++at) ++lines;
  EXPECT_LE(lines, 3U) << seen.err;
  EXPECT_EQ(seen.err.find("requests refused; the first: ") != std::string::npos, runs()) << seen.err;
  EXPECT_THAT(take(limited + " GPUMEM_OOM_LOG=0").err, Not(HasSubstr("gpumem: out of memory")));
  const std::string file = folder_ + "/oom";
  take(limited + " GPUMEM_OOM_LOG=0 GPUMEM_OOM_FILE='" + file + "'");
  const std::string told = content_of(file);
  EXPECT_EQ(told.size(), 512U) << "one line a process, of fixed length";
  EXPECT_THAT(told, HasSubstr(" settings_taker: out of memory"));
  EXPECT_GE(std::strtoul(told.c_str(), nullptr, 10), 4U) << told;
}

TEST(Careless, AValueThatIsNotThereEndsTheProgramWithTheReason) {
  const std::string file = ::testing::TempDir() + "gpumem-careless-" + std::to_string(::getpid());
  const int code =
      std::system(("GPUMEM_CUDA_DRIVER=/no/driver '" GPUMEM_TEST_TAKER "' careless 2>'" + file + "'; exit $?").c_str());
  EXPECT_EQ(WEXITSTATUS(code), 134) << "aborted, as the shell tells it";
  EXPECT_THAT(content_of(file), HasSubstr("gpumem: the value of a failed call was read: "));
  EXPECT_THAT(content_of(file), HasSubstr("/no/driver"));
  EXPECT_THAT(content_of(file), Not(HasSubstr("Segmentation")));
  std::filesystem::remove(file);
}

INSTANTIATE_TEST_SUITE_P(Every, EntryPoints,
                         ::testing::Values(GPUMEM_TEST_ADAPTERS "linked", "linked_sim", "c", "torch", "cupy", "preload",
                                           "run"),
                         [](const auto& one) { return std::string{one.param}; });

}  // namespace
}  // namespace gpumem
