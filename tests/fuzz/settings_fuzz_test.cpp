/// Random and mutated texts through every parser of settings: nothing crashes, accepted values are in range, and their
/// texts parse to the same value. Seeded, so that a failure repeats.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "gpumem/settings.hpp"
#include "units.hpp"

namespace gpumem {
namespace {

constexpr int cases = 100'000;

/// Texts that the parsers nearly accept, and some far from it.
class text_source {
 public:
  explicit text_source(std::uint32_t seed) : random_{seed} {}

  std::string next() {
    std::string text;
    if (below(8) == 0) {
      for (std::size_t n = below(40); n > 0; --n) text += byte();
      return text;
    }
    for (std::size_t n = 1 + below(3); n > 0; --n) text += pick(seeds);
    for (std::size_t n = below(4); n > 0; --n) mutate(text);
    return text;
  }

  std::string name() {
    std::string text{"GPUMEM_"};
    text += pick(names);
    if (below(4) == 0) text.append("_").append(std::to_string(below(20)));
    if (below(3) == 0) mutate(text);
    return text;
  }

  std::size_t below(std::size_t n) { return std::uniform_int_distribution<std::size_t>{0, n - 1}(random_); }

 private:
  static constexpr std::array<std::string_view, 32> seeds{"4GiB",
                                                          "1.5GiB",
                                                          "30%",
                                                          "80%free",
                                                          "train:8GiB",
                                                          "eval:30%:caching",
                                                          ",",
                                                          "+",
                                                          "0",
                                                          "nan",
                                                          "-1",
                                                          "inf",
                                                          "512",
                                                          "K",
                                                          "TiB",
                                                          ".",
                                                          "%",
                                                          "free",
                                                          ":",
                                                          "a:1",
                                                          "1e2%",
                                                          "0.1",
                                                          "query",
                                                          "device",
                                                          "18446744073709551615",
                                                          "18446744073709551616",
                                                          "16777216T",
                                                          "1",
                                                          " ",
                                                          "99.999999%",
                                                          "exit",
                                                          "growth"};
  static constexpr std::array<std::string_view, 13> names{"POLICY", "LIMIT",   "RESERVE", "POOLS", "STREAM_IDS",
                                                          "TRACE",  "VERBOSE", "STRICT",  "STATS", "STREAM_REUSE",
                                                          "SLACK",  "",        "_"};

  template <std::size_t N>
  std::string_view pick(const std::array<std::string_view, N>& from) {
    return from.at(below(N));
  }
  char byte() { return static_cast<char>(below(256)); }

  void mutate(std::string& text) {
    const std::size_t at = below(text.size() + 1);
    switch (below(4)) {
      case 0:
        text.insert(at, 1, byte());
        break;
      case 1:
        text.insert(at, 1, "0123456789.%:,+-KMGTi "[below(22)]);
        break;
      case 2:
        text.erase(at, 1 + below(3));
        break;
      default:
        if (at < text.size()) text[at] = byte();
    }
  }

  std::mt19937 random_;
};

void expect_one_line(const status& refused) {
  ASSERT_EQ(refused.code(), errc::bad_setting);
  ASSERT_LT(refused.message().size(), 1000U);
  for (const char c : refused.message()) ASSERT_TRUE(c >= 0x20 && c < 0x7f) << refused.message();
}

void expect_in_range(const byte_limit& limit) {
  if (limit.unit == byte_limit::kind::bytes) {
    ASSERT_GT(limit.bytes, 0U);
  } else {
    ASSERT_NE(limit.unit, byte_limit::kind::none);
    ASSERT_GT(limit.fraction, 0);
    ASSERT_LE(limit.fraction, 1);
    ASSERT_LE(limit.resolve(1000, 1000), 1000U);
  }
  const result<byte_limit> again = parse_limit(limit.to_string());
  ASSERT_TRUE(again.ok()) << again.why().message();
  ASSERT_EQ(*again, limit) << limit.to_string();
}

TEST(SettingsFuzz, Bytes) {
  text_source texts{1};
  int accepted = 0;
  for (int i = 0; i < cases; ++i) {
    const std::string text = texts.next();
    SCOPED_TRACE(text);
    const result<std::uint64_t> bytes = parse_bytes(text);
    if (!bytes) {
      ASSERT_NO_FATAL_FAILURE(expect_one_line(bytes.why()));
      continue;
    }
    ++accepted;
    const result<std::uint64_t> again = parse_bytes(exact_bytes(*bytes));
    ASSERT_TRUE(again.ok()) << again.why().message();
    ASSERT_EQ(*again, *bytes);
    ASSERT_FALSE(format_bytes(*bytes).empty());
  }
  EXPECT_GT(accepted, cases / 100) << "the texts are too far from what is accepted to try anything";
}

TEST(SettingsFuzz, Limits) {
  text_source texts{2};
  int accepted = 0;
  for (int i = 0; i < cases; ++i) {
    const std::string text = texts.next();
    SCOPED_TRACE(text);
    const result<byte_limit> limit = parse_limit(text);
    if (!limit) {
      ASSERT_NO_FATAL_FAILURE(expect_one_line(limit.why()));
      continue;
    }
    ++accepted;
    ASSERT_NO_FATAL_FAILURE(expect_in_range(*limit));
  }
  EXPECT_GT(accepted, cases / 100) << "the texts are too far from what is accepted to try anything";
}

TEST(SettingsFuzz, Pools) {
  text_source texts{3};
  int accepted = 0;
  for (int i = 0; i < cases; ++i) {
    std::string text = texts.next();
    for (std::size_t n = texts.below(3); n > 0; --n) text.append(",").append(texts.next());
    SCOPED_TRACE(text);
    const result<std::vector<pool_spec>> pools = parse_pools(text);
    if (!pools) {
      ASSERT_NO_FATAL_FAILURE(expect_one_line(pools.why()));
      continue;
    }
    ++accepted;
    ASSERT_FALSE(pools->empty());
    ASSERT_LE(pools->size(), 64U);
    for (const pool_spec& pool : *pools) ASSERT_NO_FATAL_FAILURE(expect_in_range(pool.limit));
    const result<std::vector<pool_spec>> again = parse_pools(pools_text(*pools));
    ASSERT_TRUE(again.ok()) << again.why().message();
    ASSERT_EQ(*again, *pools) << pools_text(*pools);
  }
  EXPECT_GT(accepted, cases / 100) << "the texts are too far from what is accepted to try anything";
}

TEST(SettingsFuzz, Environments) {
  text_source texts{4};
  int quiet = 0;
  int refused = 0;
  for (int i = 0; i < cases / 5; ++i) {
    environment variables;
    for (std::size_t n = texts.below(5); n > 0; --n) variables.emplace_back(texts.name(), texts.next());
    std::vector<std::string> problems;
    settings s;
    s.strict = texts.below(2) == 0;
    const std::string before = s.describe();
    const status applied = s.apply(variables, &problems);
    ASSERT_LE(problems.size(), variables.size());
    for (const std::string& problem : problems) {
      ASSERT_NO_FATAL_FAILURE(expect_one_line(status{errc::bad_setting, problem}));
    }
    if (applied.ok()) {
      quiet += problems.empty() ? 1 : 0;
    } else {
      ++refused;
      ASSERT_FALSE(problems.empty());
      ASSERT_NE(std::find(problems.begin(), problems.end(), applied.message()), problems.end());
      ASSERT_EQ(s.describe(), before);
    }
    for (const int ordinal : {0, 1}) {
      const settings device = s.for_device(ordinal);
      if (device.limit) {
        ASSERT_NO_FATAL_FAILURE(expect_in_range(device.limit));
      }
      ASSERT_FALSE(device.policy.empty());
    }
  }
  EXPECT_GT(quiet, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace gpumem
