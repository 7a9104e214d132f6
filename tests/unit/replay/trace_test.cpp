/// The reader: accepted forms, and every error with file, line and reason.
#include "trace.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "log.hpp"
#include "recordings.hpp"
#include "test_files.hpp"

namespace gpumem::bench {
namespace {

TEST(trace, resolves_pointers_to_slots_that_are_used_again) {
  const trace t = trace_of(
      "1,00:00:00:000010,allocate,0xa0,100,0\n"
      "1,00:00:00:000020,allocate,0xb0,513,0\n"
      "1,00:00:00:000030,free,0xa0,100,0\n"
      "2,00:00:01:000030,allocate,0xa0,7,0\n");
  ASSERT_EQ(t.ops.size(), 4U);
  EXPECT_EQ(t.name, "t");
  EXPECT_EQ(t.slots, 2U);
  EXPECT_EQ(t.ops[0].slot, t.ops[2].slot);
  EXPECT_EQ(t.ops[0].slot, t.ops[3].slot);
  EXPECT_NE(t.ops[0].slot, t.ops[1].slot);
  EXPECT_EQ(t.ops[2].kind, op_kind::free);
  EXPECT_EQ(t.ops[1].bytes, 513U);
  EXPECT_EQ(t.ops[0].time_ns, 0U) << "time starts at the first operation";
  EXPECT_EQ(t.ops[3].time_ns, 1'000'020'000U);
  EXPECT_EQ(t.peak_live_bytes, 512U + 1024U);
  EXPECT_EQ(t.streams, std::vector<std::uint64_t>{0});
}

TEST(trace, numbers_streams_by_appearance_in_decimal_and_hexadecimal) {
  const trace t = trace_of(
      "1,00:00:00:000000,allocate,a0,1,0\n"
      "1,00:00:00:000000,allocate,b0,1,12\n"
      "1,00:00:00:000000,allocate,c0,1,0xff\n"
      "1,00:00:00:000000,allocate,d0,1,7fab\n"
      "1,00:00:00:000000,free,0xb0,1,(nil)\n");
  EXPECT_EQ(t.streams, (std::vector<std::uint64_t>{0, 12, 255, 0x7fab}));
  EXPECT_EQ(t.ops[3].stream, 3U);
  EXPECT_EQ(t.ops[4].stream, 0U);
}

TEST(trace, accepts_other_line_ends_and_a_missing_last_one) {
  const test_folder folder;
  const std::string rows = "1,00:00:00:000000,allocate,0xa0,1,0\r\n1,00:00:00.000005,free,0xa0,1,0";
  const auto t = load_trace(folder.write("t", "Thread,Time,Action,Pointer,Size,Stream\r\n" + rows));
  ASSERT_TRUE(t.ok()) << t.why().message();
  EXPECT_EQ(t->ops.size(), 2U);
  EXPECT_EQ(t->ops[1].time_ns, 5000U);
  EXPECT_TRUE(load_trace(folder.write("t", csv("1,00:00:00:000000,allocate,0xa0,1,0\n\n\n"))).ok());
}

TEST(trace, skips_and_counts_rows_that_took_nothing) {
  const trace t = trace_of(
      "1,00:00:00:000000,allocate,(nil),0,0\n"
      "1,00:00:00:000000,allocate,0xa0,1,0\n"
      "1,00:00:00:000000,allocate failure,(nil),100,0\n"
      "1,00:00:00:000000,free,0x0,0,0\n");
  EXPECT_EQ(t.ops.size(), 1U);
  EXPECT_EQ(t.skipped_rows, 2U);
}

/// RMM's rows of 2022 and 2026, and gpumem's.
TEST(trace, keeps_requests_that_were_refused) {
  const trace t = trace_of(
      "1,00:00:00:000000,allocate,0xa0,1,0\n"
      "1,00:00:00:000002,allocate failure,,100,0\n"
      "1,00:00:00:000003,allocate failure,(nil),0,0\n"
      "1,00:00:00:000004,allocate failure,growth@4096,200,7\n"
      "1,00:00:00:000005,allocate failure,growth@1024,300,7\n"
      "1,00:00:00:000006,free,0xa0,1,0\n");
  ASSERT_EQ(t.refused.size(), 3U);
  EXPECT_EQ(t.refused[0].before_op, 1U);
  EXPECT_EQ(t.refused[0].bytes, 100U);
  EXPECT_EQ(t.refused[1].time_ns, 4000U);
  EXPECT_EQ(t.streams[t.refused[1].stream], 7U);
  EXPECT_EQ(t.skipped_rows, 1U);
  EXPECT_EQ(t.refusing_policy, "growth");
  EXPECT_EQ(t.refused_within_bytes, 4096U);
}

TEST(trace, asks_again_for_what_was_refused_and_never_served) {
  const trace t =
      with_refused(trace_of("1,00:00:00:000000,allocate,0xa0,1024,0\n"
                            "1,00:00:00:000001,allocate failure,(nil),4096,0\n"
                            "1,00:00:00:000002,free,0xa0,1024,0\n"
                            "1,00:00:00:000003,allocate,0xb0,4096,0\n"
                            "1,00:00:00:000004,allocate failure,(nil),8192,0\n"));
  ASSERT_EQ(t.ops.size(), 5U) << "the first was served once memory was given back";
  EXPECT_EQ(t.ops[3].bytes, 8192U);
  EXPECT_EQ(t.ops[3].kind, op_kind::allocate);
  EXPECT_EQ(t.ops[4].kind, op_kind::free);
  EXPECT_EQ(t.ops[4].slot, t.ops[3].slot);
  EXPECT_LT(t.ops[3].slot, t.slots);
  EXPECT_EQ(t.peak_live_bytes, 4096U + 8192U);
}

TEST(trace, keeps_time_from_going_back_and_passes_midnight) {
  const trace t = trace_of(
      "1,23:59:59:000000,allocate,0xa0,1,0\n"
      "1,23:59:58:500000,allocate,0xb0,1,0\n"
      "1,00:00:01:000000,allocate,0xc0,1,0\n"
      "1,00:00:02:000000,allocate,0xd0,1,0\n");
  EXPECT_EQ(t.ops[1].time_ns, 0U);
  EXPECT_EQ(t.ops[2].time_ns, 2'000'000'000U);
  EXPECT_EQ(t.ops[3].time_ns, 3'000'000'000U);
  EXPECT_EQ(trace_of("1,00:00:00:000000,allocate,0xa0,1,0\n1,30:00:00:000000,free,0xa0,1,0\n").ops[1].time_ns,
            108'000'000'000'000U)
      << "hours may be more than a day";
}

struct bad_trace {
  const char* name;
  std::string content;
  const char* message;  ///< after `<path>:`
};

class bad_traces : public testing::TestWithParam<bad_trace> {};

TEST_P(bad_traces, are_refused_with_file_line_and_reason) {
  const test_folder folder;
  for (const bool compressed : {false, true}) {
    const std::string path = folder.write("bad", compressed ? gzipped(GetParam().content) : GetParam().content);
    const auto t = load_trace(path);
    ASSERT_FALSE(t.ok());
    EXPECT_EQ(t.code(), errc::corrupt);
    EXPECT_EQ(t.why().message(), path + ":" + GetParam().message);
    EXPECT_EQ(t.why().message().find('\n'), std::string::npos);
  }
}

std::string with_good_row(std::string_view row) {
  return csv("1,00:00:00:000000,allocate,0xa0,100,0\n" + std::string{row} + "\n");
}

INSTANTIATE_TEST_SUITE_P(
    trace, bad_traces,
    testing::Values(
        bad_trace{"empty", "", "1: the file is empty"},
        bad_trace{"wrong_header", "a,b\n1,2\n",
                  "1: wrong header 'a,b', expected 'Thread,Time,Action,Pointer,Size,Stream'"},
        bad_trace{"header_alone", std::string{csv_header}, "2: no operations after the header"},
        bad_trace{"only_skipped", csv("1,00:00:00:000000,allocate,0x1,0,0\n"), "3: no operations after the header"},
        bad_trace{"cut_short", with_good_row("1,00:00:00:000000,fr"), "3: cut short: 3 of 6 fields"},
        bad_trace{"stray", with_good_row("1,00:00:00:000000,free,0xa0,100,0,9"),
                  "3: stray fields: 7 of them, expected 6"},
        bad_trace{"blank_between", with_good_row("\n1,00:00:00:000000,free,0xa0,100,0"),
                  "4: a row after an empty line"},
        bad_trace{"unknown_free", with_good_row("1,00:00:00:000000,free,0xb0,100,0"),
                  "3: free of 0xb0, which is not live"},
        bad_trace{"freed_twice", with_good_row("1,00:00:00:000000,free,0xa0,100,0\n1,00:00:00:000000,free,0xa0,100,0"),
                  "4: free of 0xa0, which is not live"},
        bad_trace{"live_again", with_good_row("1,00:00:00:000000,allocate,0xa0,1,0"),
                  "3: allocate of 0xa0, which is live"},
        bad_trace{"null_block", with_good_row("1,00:00:00:000000,allocate,0x0,1,0"),
                  "3: allocate of 1 bytes at a null pointer"},
        bad_trace{"other_size", with_good_row("1,00:00:00:000000,free,0xa0,99,0"),
                  "3: free of 0xa0 with size 99, allocated with 100"},
        bad_trace{"size_2_63", with_good_row("1,00:00:00:000000,allocate,0xb0,9223372036854775808,0"),
                  "3: size '9223372036854775808' is 2^63 bytes or more"},
        bad_trace{"size_2_80", with_good_row("1,00:00:00:000000,allocate,0xb0,1208925819614629174706176,0"),
                  "3: size '1208925819614629174706176' is 2^63 bytes or more"},
        bad_trace{"size_2_50", with_good_row("1,00:00:00:000000,allocate,0xb0,1125899906842624,0"),
                  "3: size '1125899906842624' is larger than any device (2^48 bytes)"},
        bad_trace{"negative", with_good_row("1,00:00:00:000000,allocate,0xb0,-5,0"),
                  "3: size '-5' is negative, expected bytes"},
        bad_trace{"size_text", with_good_row("1,00:00:00:000000,allocate,0xb0,12x,0"),
                  "3: size '12x' is not a number, expected bytes"},
        bad_trace{"no_size", with_good_row("1,00:00:00:000000,allocate,0xb0,,0"),
                  "3: size '' is not a number, expected bytes"},
        bad_trace{"thread", with_good_row("x,00:00:00:000000,allocate,0xb0,1,0"), "3: thread 'x' is not a number"},
        bad_trace{"time_text", with_good_row("1,noon,allocate,0xb0,1,0"),
                  "3: time 'noon', expected HH:MM:SS:microseconds"},
        bad_trace{"time_minutes", with_good_row("1,00:60:00:000000,allocate,0xb0,1,0"),
                  "3: time '00:60:00:000000', expected HH:MM:SS:microseconds"},
        bad_trace{"time_hours", with_good_row("1,10000:00:00:000000,allocate,0xb0,1,0"),
                  "3: time '10000:00:00:000000', expected HH:MM:SS:microseconds"},
        bad_trace{"time_parts", with_good_row("1,00:00:00,allocate,0xb0,1,0"),
                  "3: time '00:00:00', expected HH:MM:SS:microseconds"},
        bad_trace{"action", with_good_row("1,00:00:00:000000,realloc,0xb0,1,0"),
                  "3: action 'realloc', expected allocate or free"},
        bad_trace{"pointer", with_good_row("1,00:00:00:000000,allocate,0xzz,1,0"),
                  "3: pointer '0xzz' is not a hexadecimal number"},
        bad_trace{"no_pointer", with_good_row("1,00:00:00:000000,allocate,,1,0"),
                  "3: pointer '' is not a hexadecimal number"},
        bad_trace{"stream", with_good_row("1,00:00:00:000000,allocate,0xb0,1,s"), "3: stream 's' is not a number"},
        bad_trace{"binary", with_good_row("1,\x01\x02\n"), "3: cut short: 2 of 6 fields"},
        bad_trace{"long_line", std::string(300'000, 'x'), "1: a line of more than 1024 characters"}),
    [](const auto& each) { return each.param.name; });

TEST(trace, refuses_more_live_bytes_than_can_be_counted) {
  std::string rows;
  for (int i = 1; i <= 257; ++i) {
    rows += "1,00:00:00:000000,allocate," + std::to_string(i) + ",281474976710656,0\n";
  }
  const test_folder folder;
  const auto t = load_trace(folder.write("t", csv(rows)));
  EXPECT_NE(t.why().message().find(":258: more than 2^56 bytes are live"), std::string::npos) << t.why().message();
}

/// A log of many rows, for one that is cut.
std::string long_log() {
  std::string rows;
  for (int i = 1; i < 100'000; ++i) rows += "1,00:00:00:000000,allocate," + std::to_string(i * 7919) + ",1,0\n";
  return csv(rows);
}

/// Wherever a plain log is cut behind its first row, it is read to the last whole row, and a line says so.
TEST(trace, is_read_to_its_last_whole_row) {
  const test_folder folder;
  std::vector<std::string> lines;
  const log_sink former = set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  const std::string first = csv("1,00:00:00:000000,allocate,0xa0,100,0\n");
  const std::string second = "1,00:00:00:000001,free,0xa0,100,7\n";
  for (std::size_t kept = 0; kept <= second.size(); ++kept) {
    lines.clear();
    const auto t = load_trace(folder.write("t", first + second.substr(0, kept)));
    ASSERT_TRUE(t.ok()) << kept << ": " << t.why().message();
    const bool whole = kept + 1 >= second.size();
    EXPECT_EQ(t->ops.size(), whole ? 2U : 1U) << kept;
    EXPECT_EQ(t->cut, kept == 0 || whole
                          ? ""
                          : "cut short: the last line does not end; read to row 1, the last whole one; 1 "
                            "row behind it is cut and lost")
        << kept;
    ASSERT_EQ(lines.size(), t->cut.empty() ? 0U : 1U) << kept;
    if (!lines.empty()) {
      EXPECT_EQ(lines.front(), folder.path("t") + ": " + t->cut);
    }
  }
  (void)set_log_sink(former);
}

TEST(trace, is_read_to_where_gzip_ends) {
  const test_folder folder;
  const log_sink former = set_log_sink([](std::string_view) {});
  const std::string whole = gzipped(long_log());
  const auto all = load_trace(folder.write("t", whole.substr(0, whole.size() - 4)));
  ASSERT_TRUE(all.ok()) << all.why().message();
  EXPECT_EQ(all->ops.size(), 99'999U);
  EXPECT_EQ(all->cut, "cut short: the gzip data ends early; read to row 99999, the last whole one");
  const auto half = load_trace(folder.write("t", whole.substr(0, whole.size() / 2)));
  ASSERT_TRUE(half.ok()) << half.why().message();
  EXPECT_GT(half->ops.size(), 10'000U);
  EXPECT_LT(half->ops.size(), 90'000U);
  (void)set_log_sink(former);
}

TEST(trace, names_what_cannot_be_read) {
  const test_folder folder;
  EXPECT_EQ(load_trace(folder.path("absent")).why().message(), folder.path("absent") + ": no such file");
  EXPECT_EQ(load_trace(folder.path()).why().message(), folder.path() + ": a directory, not a file");
  EXPECT_EQ(load_trace(folder.path("absent")).code(), errc::invalid_argument);
}

TEST(trace, finds_the_traces_of_a_folder) {
  const test_folder folder;
  EXPECT_FALSE(traces_in(folder.path()).ok());
  folder.write("b.csv.gz", "");
  folder.write("a.csv", "");
  folder.write("README.md", "");
  EXPECT_EQ(*traces_in(folder.path()), (std::vector{folder.path("a.csv"), folder.path("b.csv.gz")}));
}

/// Figures from bench/traces/README.md.
TEST(trace, reads_the_bundled_traces) {
  const auto moe = load_trace("bench/traces/moe.csv.gz");
  ASSERT_TRUE(moe.ok()) << moe.why().message();
  EXPECT_EQ(moe->name, "moe");
  EXPECT_EQ(moe->ops.size(), 137'496U);
  EXPECT_EQ(moe->peak_live_bytes * 10 / (1 << 20), 3220U);
}

TEST(trace, reads_the_traces_of_gpu_training) {
  const auto t = load_trace("bench/traces/gpu/language_model.csv.gz");
  ASSERT_TRUE(t.ok()) << t.why().message();
  EXPECT_EQ(t->ops.size(), 19'988U);
  EXPECT_EQ(t->peak_live_bytes * 10 / (1 << 20), 86'533U);
}

TEST(trace, reads_a_recording_of_ten_streams) {
  const auto recorded = recording("gpu/ten-streams.csv.gz");
  if (!recorded) GTEST_SKIP() << no_recording("gpu/ten-streams.csv.gz");
  const auto t = load_trace(*recorded);
  ASSERT_TRUE(t.ok()) << t.why().message();
  EXPECT_EQ(t->ops.size(), 6306U);
  EXPECT_EQ(t->streams.size(), 10U);
}

}  // namespace
}  // namespace gpumem::bench
