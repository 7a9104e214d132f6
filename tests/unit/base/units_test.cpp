#include "units.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "bits.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t most = UINT64_MAX;

byte_limit of_bytes(std::uint64_t bytes) { return {.unit = byte_limit::kind::bytes, .bytes = bytes}; }
byte_limit of_total(double fraction) { return {.unit = byte_limit::kind::of_total, .fraction = fraction}; }
byte_limit of_free(double fraction) { return {.unit = byte_limit::kind::of_free, .fraction = fraction}; }

TEST(ParseBytes, Accepts) {
  struct row {
    std::string_view text;
    std::uint64_t bytes;
  };
  for (const auto& [text, bytes] : {row{"0", 0},
                                    {"1", 1},
                                    {"1000000", 1'000'000},
                                    {"007", 7},
                                    {"512B", 512},
                                    {"512b", 512},
                                    {"1K", kib},
                                    {"1k", kib},
                                    {"1KiB", kib},
                                    {"1kib", kib},
                                    {"1KIB", kib},
                                    {"3M", 3 * mib},
                                    {"3MiB", 3 * mib},
                                    {"4G", 4 * gib},
                                    {"4GiB", 4 * gib},
                                    {"4gib", 4 * gib},
                                    {"2T", 2 * tib},
                                    {"2TiB", 2 * tib},
                                    {"1kB", 1'000},
                                    {"1KB", 1'000},
                                    {"4GB", 4'000'000'000},
                                    {"4gb", 4'000'000'000},
                                    {"250 MB", 250'000'000},
                                    {"2TB", 2'000'000'000'000},
                                    {"1.5GB", 1'500'000'000},
                                    {"0.0015kB", 1},
                                    {"18446744.073709551615TB", most},
                                    {"1.5GiB", 3 * gib / 2},
                                    {"0.5K", 512},
                                    {"0.1KiB", 102},
                                    {"0.0K", 0},
                                    {"1.00000000000000000000000000000000000001K", kib},
                                    {"0.999999999999999999999999K", 1023},
                                    {"0.333333333333333333T", 366503875925},
                                    {"  4GiB\t", 4 * gib},
                                    {"4.00 GiB", 4 * gib},
                                    {"18446744073709551615", most},
                                    {"18446744073709551615B", most},
                                    {"16777215T", 16777215 * tib},
                                    {"16777215.999999999999T", most - 1}}) {
    const result<std::uint64_t> parsed = parse_bytes(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.why().message();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ParseBytes, RefusesAndSaysWhy) {
  struct row {
    std::string_view text;
    std::string_view why;
  };
  for (const auto& [text, why] : {row{"", "empty"},
                                  {"   ", "empty"},
                                  {"-1", "negative"},
                                  {"-1GiB", "negative"},
                                  {"+1", "not a number"},
                                  {"nan", "not a number"},
                                  {"NaN", "not a number"},
                                  {"inf", "not a number"},
                                  {"GiB", "not a number"},
                                  {".5G", "not a number"},
                                  {"1.G", "no digit after the point"},
                                  {"1.", "no digit after the point"},
                                  {"1.5", "a fraction of a byte"},
                                  {"0.8", "a fraction of a byte"},
                                  {"1.5B", "a fraction of a byte"},
                                  {"3XB", "unknown unit XB"},
                                  {"1KBB", "unknown unit KBB"},
                                  {"1PB", "unknown unit PB"},
                                  {"1e9", "unknown unit e9"},
                                  {"0x10", "unknown unit x10"},
                                  {"1,000", "unknown unit ,000"},
                                  {"1_000", "unknown unit _000"},
                                  {"1 2", "unknown unit 2"},
                                  {"1.5.5G", "unknown unit .5G"},
                                  {"4GiB4GiB", "unknown unit GiB4GiB"},
                                  {"30%", "unknown unit %"},
                                  {"18446744073709551616", "more than 2^64-1"},
                                  {"99999999999999999999999", "more than 2^64-1"},
                                  {"16777216T", "more than 2^64-1 bytes"},
                                  {"18446744073709551615K", "more than 2^64-1 bytes"}}) {
    const result<std::uint64_t> parsed = parse_bytes(text, "SIZE");
    ASSERT_FALSE(parsed.ok()) << text << " was read as " << *parsed;
    EXPECT_EQ(parsed.code(), errc::bad_setting);
    EXPECT_EQ(parsed.why().message(),
              "SIZE=" + std::string{text} + ": " + std::string{why} + "; expected bytes such as 4GiB, 512M or 1000000");
  }
}

TEST(ParseBytes, RefusesTextWithNulAndNewlineOnOneLine) {
  for (const std::string& text : {std::string{"4\0G", 3}, std::string{"4G\nx"}, std::string{"\xff\xfe"}}) {
    const result<std::uint64_t> parsed = parse_bytes(text);
    ASSERT_FALSE(parsed.ok());
    for (const char c : parsed.why().message()) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << static_cast<int>(c);
  }
}

TEST(ParseBytes, ShortensLongTextInTheMessage) {
  const result<std::uint64_t> parsed = parse_bytes(std::string(1'000'000, 'x'));
  ASSERT_FALSE(parsed.ok());
  EXPECT_LT(parsed.why().message().size(), 400U);
}

TEST(ParseLimit, Accepts) {
  struct row {
    std::string_view text;
    byte_limit limit;
  };
  for (const auto& [text, limit] : {row{"1", of_bytes(1)},
                                    {"4GiB", of_bytes(4 * gib)},
                                    {" 1.5 GiB ", of_bytes(3 * gib / 2)},
                                    {"18446744073709551615", of_bytes(most)},
                                    {"30%", of_total(0.3)},
                                    {"100%", of_total(1)},
                                    {"100.000%", of_total(1)},
                                    {"0.000001%", of_total(1e-8)},
                                    {"12.5%", of_total(0.125)},
                                    {" 30 % ", of_total(0.3)},
                                    {"80%free", of_free(0.8)},
                                    {"80%FREE", of_free(0.8)},
                                    {"80% free", of_free(0.8)}}) {
    const result<byte_limit> parsed = parse_limit(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.why().message();
    EXPECT_EQ(*parsed, limit) << text << " was read as " << parsed->to_string();
  }
}

TEST(ParseLimit, RefusesAndSaysWhy) {
  struct row {
    std::string_view text;
    std::string_view why;
  };
  for (const auto& [text, why] : {row{"", "empty"},
                                  {"0", "zero"},
                                  {"0GiB", "zero"},
                                  {"0.0001K", "zero"},
                                  {"0%", "zero"},
                                  {"0.0%free", "zero"},
                                  {"0.0000001%", "less than a millionth of a percent"},
                                  {"%", "empty"},
                                  {"%free", "empty"},
                                  {"101%", "more than 100 %"},
                                  {"100.0000000000000000000000001%", "more than 100 %"},
                                  {"18446744073709551615%", "more than 100 %"},
                                  {"18446744073709551616%", "more than 2^64-1"},
                                  {"-5%", "negative"},
                                  {"+5%", "not a number"},
                                  {"nan%", "not a number"},
                                  {"inf%", "not a number"},
                                  {"1e2%", "not a number before the %"},
                                  {"4GiB%", "not a number before the %"},
                                  {"30%%", "only `free` may follow the %"},
                                  {"30%total", "only `free` may follow the %"},
                                  {"30%free%", "only `free` may follow the %"},
                                  {"free", "not a number"},
                                  {"0.5", "a fraction of a byte"},
                                  {"3XB", "unknown unit XB"},
                                  {"-1", "negative"}}) {
    const result<byte_limit> parsed = parse_limit(text, "GPUMEM_LIMIT");
    ASSERT_FALSE(parsed.ok()) << text << " was read as " << parsed->to_string();
    EXPECT_EQ(parsed.code(), errc::bad_setting);
    EXPECT_EQ(parsed.why().message(),
              "GPUMEM_LIMIT=" + std::string{text} + ": " + std::string{why} +
                  "; expected bytes (4GiB), a share of the device (30%) or of what is free (80%free)");
  }
}

TEST(ByteLimit, ResolvesRoundedDown) {
  EXPECT_EQ(byte_limit{}.resolve(80 * gib, gib), 80 * gib);
  EXPECT_EQ(of_bytes(3).resolve(80 * gib, gib), 3U);
  EXPECT_EQ(of_bytes(100 * gib).resolve(80 * gib, gib), 100 * gib);
  EXPECT_EQ(of_total(0.29).resolve(100, 7), 29U);
  EXPECT_EQ(of_total(0.3).resolve(9, 0), 2U);
  EXPECT_EQ(of_free(0.8).resolve(1000, 10), 8U);
  EXPECT_EQ(of_free(0.5).resolve(1000, 0), 0U);
  EXPECT_EQ(of_total(1).resolve(most, 0), most);
  EXPECT_EQ(of_total(0.5).resolve(most, 0), most / 2);
}

TEST(ByteLimit, ResolvesEveryFraction) {
  EXPECT_EQ(of_total(2).resolve(100, 100), 100U);
  EXPECT_EQ(of_total(-1).resolve(100, 100), 0U);
  EXPECT_EQ(of_total(std::numeric_limits<double>::quiet_NaN()).resolve(100, 100), 0U);
  EXPECT_EQ(of_total(std::numeric_limits<double>::infinity()).resolve(100, 100), 100U);
  EXPECT_EQ(of_total(1.0 / 3).to_string(), "33.333333%");
}

TEST(ByteLimit, TextReadsBackAsTheSame) {
  for (const std::string_view text :
       {"1", "4GiB", "4097KiB", "1025", "18446744073709551615", "1TiB", "1%", "30%", "29%", "0.000001%", "99.999999%",
        "33.3%", "100%", "80%free", "12.5%free", "57.123456%free"}) {
    const result<byte_limit> limit = parse_limit(text);
    ASSERT_TRUE(limit.ok()) << limit.why().message();
    EXPECT_EQ(limit->to_string(), text);
  }
  EXPECT_EQ(byte_limit{}.to_string(), "none");
}

TEST(ByteLimit, EveryThousandthOfAPercentReadsBack) {
  for (std::uint64_t thousandths = 1; thousandths <= 100'000; ++thousandths) {
    const byte_limit limit = of_total(static_cast<double>(thousandths) / 100'000);
    const result<byte_limit> again = parse_limit(limit.to_string());
    ASSERT_TRUE(again.ok()) << again.why().message();
    ASSERT_EQ(*again, limit) << limit.to_string();
    ASSERT_EQ(limit.resolve(100'000, 0), thousandths);
  }
}

TEST(ParsePools, Accepts) {
  struct row {
    std::string_view text;
    std::vector<pool_spec> pools;
  };
  for (const auto& [text, pools] : {
           row{"2GiB", {{"", of_bytes(2 * gib), ""}}},
           row{"2GiB,2GiB", {{"", of_bytes(2 * gib), ""}, {"", of_bytes(2 * gib), ""}}},
           row{"2GiB+30%", {{"", of_bytes(2 * gib), ""}, {"", of_total(0.3), ""}}},
           row{"train:8GiB,eval:30%", {{"train", of_bytes(8 * gib), ""}, {"eval", of_total(0.3), ""}}},
           row{"train:8GiB:caching+50%free", {{"train", of_bytes(8 * gib), "caching"}, {"", of_free(0.5), ""}}},
           row{"a:1G:planned:renew", {{"a", of_bytes(1 * gib), "planned:renew"}}},
           row{" a : 1 GiB : growth , _b-2:1K ", {{"a", of_bytes(gib), "growth"}, {"_b-2", of_bytes(kib), ""}}},
           row{"a:1K,A:1K", {{"a", of_bytes(kib), ""}, {"A", of_bytes(kib), ""}}},
       }) {
    const result<std::vector<pool_spec>> parsed = parse_pools(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.why().message();
    EXPECT_EQ(*parsed, pools) << text << " was read as " << pools_text(*parsed);
    EXPECT_EQ(*parse_pools(pools_text(*parsed)), pools) << pools_text(*parsed);
  }
}

TEST(ParsePools, RefusesAndSaysWhy) {
  struct row {
    std::string_view text;
    std::string_view why;
  };
  for (const auto& [text, why] : {
           row{"", "empty"},
           row{"  ", "empty"},
           row{",", "pool 0 of the list: empty"},
           row{"1G,", "pool 1 of the list: empty"},
           row{"1G, ,1G", "pool 1 of the list: empty"},
           row{"1G,+1G", "pool 1 of the list: empty"},
           row{"0", "pool 0 of the list: its limit: zero"},
           row{"1G,-1G", "pool 1 of the list: its limit: negative"},
           row{"a:", "pool 0 of the list: its limit: empty"},
           row{"a::growth", "pool 0 of the list: its limit: empty"},
           row{"a:101%", "pool 0 of the list: its limit: more than 100 %"},
           row{"a:1G:", "pool 0 of the list: no policy after the second `:`"},
           row{":1G", "pool 0 of the list: `` is not a name (a letter or _, then letters, digits, _ and -)"},
           row{"1a:1G", "pool 0 of the list: `1a` is not a name (a letter or _, then letters, digits, _ and -)"},
           row{"a b:1G", "pool 0 of the list: `a b` is not a name (a letter or _, then letters, digits, _ and -)"},
           row{"a:1G,b:1G,a:2G", "two pools named a"},
       }) {
    const result<std::vector<pool_spec>> parsed = parse_pools(text, "GPUMEM_POOLS");
    ASSERT_FALSE(parsed.ok()) << text << " was read as " << pools_text(*parsed);
    EXPECT_EQ(parsed.code(), errc::bad_setting);
    EXPECT_EQ(parsed.why().message(), "GPUMEM_POOLS=" + std::string{text} + ": " + std::string{why} +
                                          "; expected a list such as 2GiB,2GiB or train:8GiB,eval:30%:caching");
  }
}

TEST(ParsePools, TakesSixtyFourAndNoMore) {
  std::string text = "1M";
  for (int i = 1; i < 64; ++i) text += ",1M";
  const result<std::vector<pool_spec>> parsed = parse_pools(text);
  ASSERT_TRUE(parsed.ok()) << parsed.why().message();
  EXPECT_EQ(parsed->size(), 64U);
  const result<std::vector<pool_spec>> refused = parse_pools(text + ",1M");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.why().message().find("more than 64 pools"), std::string::npos) << refused.why().message();
}

TEST(PoolsText, NamesAnUnnamedPoolThatHasAPolicy) {
  EXPECT_EQ(pools_text({{"", of_bytes(kib), ""}, {"", of_bytes(kib), "growth"}}), "1KiB,pool1:1KiB:growth");
  EXPECT_EQ(pools_text({}), "");
}

TEST(FormatBytes, PicksTheUnitAndRoundsToTwoDecimals) {
  struct row {
    std::uint64_t bytes;
    std::string_view text;
  };
  for (const auto& [bytes, text] : {row{0, "0 B"},
                                    {1, "1 B"},
                                    {1023, "1023 B"},
                                    {kib, "1.00 KiB"},
                                    {kib + 1, "1.00 KiB"},
                                    {1536, "1.50 KiB"},
                                    {mib - 1, "1.00 MiB"},
                                    {mib, "1.00 MiB"},
                                    {1023 * mib, "1023.00 MiB"},
                                    {gib - 1, "1.00 GiB"},
                                    {4 * gib, "4.00 GiB"},
                                    {80 * gib, "80.00 GiB"},
                                    {1288490188, "1.20 GiB"},
                                    {tib, "1.00 TiB"},
                                    {4096 * tib, "4096.00 TiB"},
                                    {most, "16777216.00 TiB"}}) {
    EXPECT_EQ(format_bytes(bytes), text) << bytes;
  }
}

TEST(ExactBytes, ReadsBackAsTheSame) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1023}, kib, kib + 1, 3 * mib,
                                    gib + kib, 4 * gib, tib, most - 1, most}) {
    const result<std::uint64_t> again = parse_bytes(exact_bytes(bytes));
    ASSERT_TRUE(again.ok()) << again.why().message();
    EXPECT_EQ(*again, bytes) << exact_bytes(bytes);
  }
  EXPECT_EQ(exact_bytes(4 * gib), "4GiB");
  EXPECT_EQ(exact_bytes(1000), "1000");
}

}  // namespace
}  // namespace gpumem
