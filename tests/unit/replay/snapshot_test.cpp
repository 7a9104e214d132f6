/// PyTorch's snapshots as traces: blocks live before come first, frees are at the program's requests, and a pickle that
/// would run code is refused.
#include "snapshot.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "log.hpp"
#include "pickle.hpp"
#include "pickle_writer.hpp"
#include "recordings.hpp"
#include "test_files.hpp"

namespace gpumem::bench {
namespace {

using namespace pickled;

TEST(snapshot, begins_with_what_was_live_before) {
  const auto t = trace_of_snapshot(small_snapshot(), -1);
  ASSERT_TRUE(t.ok()) << t.why().message();
  ASSERT_EQ(t->ops.size(), 4U);
  const auto expect = [&](std::size_t i, op_kind kind, std::uint64_t bytes, std::uint64_t time_ns) {
    EXPECT_EQ(t->ops[i].kind, kind) << i;
    EXPECT_EQ(t->ops[i].bytes, bytes) << i;
    EXPECT_EQ(t->ops[i].time_ns, time_ns) << i;
  };
  expect(0, op_kind::allocate, 500, 0);
  expect(1, op_kind::allocate, 1000, 0);
  expect(2, op_kind::free, 1000, 0);
  expect(3, op_kind::allocate, 2000, 10'000);
  EXPECT_EQ(t->ops[3].slot, t->ops[1].slot) << "its slot is used again";
  EXPECT_THAT(t->streams, testing::ElementsAre(0, 7));
  EXPECT_EQ(t->peak_live_bytes, 512U + 2048U);
  EXPECT_EQ(t->skipped_rows, 0U);
  ASSERT_EQ(t->refused.size(), 1U);
  EXPECT_LE(t->refused[0].before_op, t->ops.size());
}

TEST(snapshot, of_several_devices_takes_the_one_that_is_named) {
  const std::string two = snapshot({segment(1, {block(0x1000, 512, 512, "active_allocated")})},
                                   {list({event("alloc", 0x5000, 512, 1), event("free_requested", 0x5000, 512, 2)}),
                                    list({event("alloc", 0x1000, 512, 1)})});
  EXPECT_THAT(trace_of_snapshot(two, -1).why().message(), testing::HasSubstr("expected FILE:N"));
  ASSERT_TRUE(trace_of_snapshot(two, 1).ok());
  EXPECT_EQ(trace_of_snapshot(two, 1)->ops.size(), 1U);
  EXPECT_EQ(trace_of_snapshot(two, 0)->ops.size(), 2U);
  EXPECT_THAT(trace_of_snapshot(two, 2).why().message(), testing::HasSubstr("no device 2; the snapshot has 2"));
}

TEST(snapshot, is_loaded_by_name_plain_and_gzip) {
  const test_folder folder;
  for (const auto& [name, bytes] :
       {std::pair{"run.pickle", small_snapshot()}, std::pair{"run.pickle.gz", gzipped(small_snapshot())}}) {
    const auto t = load_trace(folder.write(name, bytes));
    ASSERT_TRUE(t.ok()) << t.why().message();
    EXPECT_EQ(t->name, "run");
    EXPECT_EQ(t->ops.size(), 4U);
  }
  EXPECT_EQ(load_trace(folder.path("run.pickle") + ":0")->ops.size(), 4U);
  EXPECT_THAT(load_trace(folder.path("run.pickle") + ":1").why().message(),
              testing::HasSubstr("run.pickle:1: no device 1"));
}

TEST(snapshot, is_read_to_its_last_whole_event) {
  const test_folder folder;
  std::vector<std::string> events;
  constexpr std::int64_t pairs = 50;
  events.push_back(event("free_requested", 0x100000, 512, 0));  // from before the recording
  for (std::int64_t i = 0; i < pairs; ++i) {
    events.push_back(event("alloc", 0x2000, 1024 + i, 2 * i));
    events.push_back(event("oom", 0, 1 << 20, 2 * i));
    events.push_back(event("free_requested", 0x2000, 1024 + i, 2 * i + 1));
  }
  const std::string whole = snapshot({segment(0, {block(0x1000, 512, 512, "active_allocated")})}, {list(events)});
  std::vector<std::string> lines;
  const log_sink former = set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  std::size_t most_ops = 0;
  std::size_t read_cuts = 0;
  for (std::size_t kept = 2; kept < whole.size(); kept += 7) {
    for (const auto& [name, bytes] :
         {std::pair{"t.pickle", whole.substr(0, kept)}, std::pair{"t.pickle.gz", gzipped(whole.substr(0, kept))}}) {
      const auto t = load_trace(folder.write(name, bytes));
      if (!t) continue;
      ++read_cuts;
      EXPECT_THAT(t->cut, testing::HasSubstr("cut short at byte " + std::to_string(kept)));
      EXPECT_EQ(lines.back(), t->path + ": " + t->cut);
      EXPECT_GE(t->ops.size(), most_ops) << "more of the file has no fewer events";
      most_ops = t->ops.size();
    }
  }
  (void)set_log_sink(former);
  EXPECT_GT(read_cuts, 200U);
  EXPECT_GE(most_ops, 2U * pairs + 2);
  EXPECT_THAT(trace_of_snapshot(std::string_view{whole}.substr(0, 60), -1).why().message(),
              testing::HasSubstr("cut short at byte 60: the file ends before its events"));
}

TEST(snapshot, says_what_is_missing) {
  EXPECT_THAT(trace_of_snapshot(file(list({})), -1).why().message(),
              testing::HasSubstr("not a memory snapshot of PyTorch"));
  EXPECT_THAT(trace_of_snapshot(snapshot({}, {}), -1).why().message(), testing::HasSubstr("_record_memory_history()"));
  EXPECT_THAT(trace_of_snapshot(snapshot({}, {list({event("alloc", 1, 512, 0)})}), -1).why().message(),
              testing::HasSubstr("ends nowhere"));
  EXPECT_THAT(trace_of_snapshot(snapshot({segment(0, {block(0x1000, 512, 512, "active_allocated")})},
                                         {list({event("free_requested", 0x1000, 512, 0)})}),
                                -1)
                  .why()
                  .message(),
              testing::HasSubstr("freed, and live afterwards"));
}

/// os.system("true") and similar calls, in each form that a pickle allows.
TEST(pickle, refuses_every_class_and_call) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {std::string{"cos\nsystem\n"} + "\x8c\x04true\x85R", "GLOBAL"},
      {text("os") + text("system") + "\x93", "STACK_GLOBAL"},
      {number(1) + ")R", "REDUCE"},
      {"(ios\nsystem\n", "INST"},
      {"(" + number(1) + "o", "OBJ"},
      {number(1) + ")\x81", "NEWOBJ"},
      {number(1) + "})\x92", "NEWOBJ_EX"},
      {number(1) + "}b", "BUILD"},
      {number(1) + "Q", "persistent id"},
      {"\x82\x01", "extension"},
      {"I1\n", "instruction 0x49"}};
  for (const auto& [bytes, named] : cases) {
    const auto got = pickle_data::read(file(bytes));
    ASSERT_FALSE(got.ok()) << named;
    EXPECT_EQ(got.code(), errc::corrupt);
    EXPECT_THAT(got.why().message(), testing::HasSubstr(named));
    EXPECT_THAT(got.why().message(), testing::HasSubstr("only numbers, texts, lists, tuples and dictionaries"));
  }
}

TEST(pickle, reads_numbers_of_every_width) {
  for (const auto& [bytes, value] : {std::pair<std::string, std::int64_t>{"K\xff", 255},
                                     {"M\x01\x02", 513},
                                     {"J\xff\xff\xff\xff", -1},
                                     {std::string{"\x8a\x00", 2}, 0},
                                     {"\x8a\x01\xff", -1},
                                     {"\x8a\x02\x00\x80", -32768},
                                     {number(std::int64_t{1} << 47), std::int64_t{1} << 47},
                                     {"\x88", 1}}) {
    std::string whole = bytes;
    if (value == -32768) whole = std::string{"\x8a\x02\x00\x80", 4};
    const auto got = pickle_data::read(file(whole));
    ASSERT_TRUE(got.ok()) << got.why().message();
    EXPECT_EQ(got->integer(got->root()), value);
  }
  EXPECT_THAT(pickle_data::read(file("\x8a\x09" + std::string(9, '\1'))).why().message(),
              testing::HasSubstr("more than 64 bits"));
}

TEST(pickle, shares_what_the_file_shares) {
  // A list that contains itself, as Python may write it.
  const auto got = pickle_data::read(file("]\x94h" + std::string(1, '\0') + "a"));
  ASSERT_TRUE(got.ok()) << got.why().message();
  ASSERT_EQ(got->items(got->root()).size(), 1U);
  EXPECT_EQ(got->items(got->root())[0], got->root());
}

TEST(pickle, takes_no_more_memory_than_its_file_merits) {
  constexpr std::size_t many = 40'000'000;
  for (const char code : {'N', ']'}) {  // each byte makes a value
    EXPECT_THAT(pickle_data::read(file(std::string(many, code))).why().message(),
                testing::HasSubstr("needs more memory than a reader takes"));
  }
  EXPECT_THAT(pickle_data::read(file("Nr" + little_endian(4'000'000'000, 4))).why().message(),
              testing::HasSubstr("value 4000000000 is remembered among fewer values"));
}

TEST(pickle, a_list_may_be_added_to_more_than_once) {
  const auto got =
      pickle_data::read(file("]\x94(K\x01K\x02"
                             "e(K\x03"
                             "eK\x04"
                             "a"));
  ASSERT_TRUE(got.ok()) << got.why().message();
  std::vector<std::int64_t> values;
  for (const auto each : got->items(got->root())) values.push_back(*got->integer(each));
  EXPECT_THAT(values, testing::ElementsAre(1, 2, 3, 4));
}

TEST(pickle, looks_through_no_dictionary_that_no_snapshot_has) {
  std::vector<std::pair<std::string_view, std::string>> many(pickle_data::most_keys + 1, {"x", number(1)});
  const std::string bytes = file(dictionary(many));  // which what is read refers to
  const auto got = pickle_data::read(bytes);
  ASSERT_TRUE(got.ok()) << got.why().message();
  EXPECT_FALSE(got->find(got->root(), "x"));
  many.pop_back();
  const std::string fewer_bytes = file(dictionary(many));
  const auto fewer = pickle_data::read(fewer_bytes);
  EXPECT_TRUE(fewer->find(fewer->root(), "x"));
}

TEST(snapshot, refuses_segments_that_share_their_blocks) {
  const std::string first = "}\x94(" + text("device") + number(0) + text("address") + number(4096) + text("stream") +
                            number(0) + text("blocks") + list({block(0x1000, 512, 0, "inactive")}) + "qdu";
  const std::string second = "}\x94(" + text("device") + number(0) + text("address") + number(4096) + text("stream") +
                             number(0) + text("blocks") + "hdu";
  // `qd` remembers as number 100, beyond those of MEMOIZE and below the place in the file; `hd` recalls it.
  const std::string all =
      snapshot({first, second}, {list({event("alloc", 0x1000, 512, 0), event("free_requested", 0x1000, 512, 1)})});
  EXPECT_THAT(trace_of_snapshot(all, -1).why().message(),
              testing::HasSubstr("two segments have the same list of blocks"));
}

TEST(snapshot, refuses_events_that_are_many_references_to_one) {
  const std::string one = event("alloc", 0x1000, 512, 0);
  std::string events = "]\x94(" + one + "qd";
  for (int i = 0; i < 3'000'000; ++i) events += "hd";
  EXPECT_THAT(trace_of_snapshot(snapshot({}, {events + "e"}), -1).why().message(),
              testing::HasSubstr("the events need more memory than a reader takes"));
}

TEST(snapshot, survives_numbers_at_the_end_of_their_range) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  EXPECT_THAT(
      trace_of_snapshot(snapshot({segment(0, {block(most - 1, 512, 0, "inactive")})},
                                 {list({event("alloc", 0x1000, 512, 0), event("free_requested", 0x1000, 512, 1)})}),
                        -1)
          .why()
          .message(),
      testing::HasSubstr("a block at 0x7ffffffffffffffe"));
  const auto t = trace_of_snapshot(
      snapshot({}, {list({event("alloc", 0x1000, 512, least), event("free_requested", 0x1000, 512, most)})}), -1);
  ASSERT_TRUE(t.ok()) << t.why().message();
  EXPECT_EQ(t->ops[0].time_ns, 0U);
  EXPECT_GT(t->ops[1].time_ns, 0U);
}

// The same recording, converted by the tool that made the shared CSV.
TEST(snapshot, of_a_real_run_is_the_trace_that_was_converted_from_it) {
  const auto recorded = recording("snapshots/large-tensors-b.pickle");
  const auto shared_csv = recording("gpu/large-tensors-b.csv.gz");
  if (!recorded || !shared_csv) GTEST_SKIP() << no_recording("snapshots/large-tensors-b.pickle");
  const auto snapshot = load_trace(*recorded);
  const auto converted = load_trace(*shared_csv);
  ASSERT_TRUE(converted.ok()) << converted.why().message();
  ASSERT_TRUE(snapshot.ok()) << snapshot.why().message();
  ASSERT_EQ(snapshot->ops.size(), converted->ops.size());
  EXPECT_EQ(snapshot->peak_live_bytes, converted->peak_live_bytes);
  for (std::size_t i = 0; i < snapshot->ops.size(); ++i) {
    EXPECT_EQ(snapshot->ops[i].kind, converted->ops[i].kind) << i;
    EXPECT_EQ(snapshot->ops[i].bytes, converted->ops[i].bytes) << i;
  }
}

TEST(snapshot_fuzz, any_bytes_are_a_sound_trace_or_one_line) {
  const std::string whole = small_snapshot();
  std::uint32_t state = 1;
  const auto below = [&state](std::size_t end) {
    state = state * 1664525U + 1013904223U;
    return (state >> 8) % static_cast<std::uint32_t>(end);
  };
  unsigned accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = whole;
    for (std::uint32_t edits = 1 + below(3); edits > 0 && bytes.size() > 4; --edits) {
      const std::size_t at = 2 + below(bytes.size() - 2);
      switch (below(4)) {
        case 0:
          bytes[at] = static_cast<char>(below(256));
          break;
        case 1:
          bytes.resize(at);
          break;
        case 2:
          bytes.erase(at, 1 + below(20));
          break;
        default:
          bytes.insert(at, bytes.substr(2 + below(bytes.size() - 2), 1 + below(60)));
          break;
      }
    }
    const auto t = trace_of_snapshot(bytes, -1);
    if (!t.ok()) {
      ASSERT_EQ(t.code(), errc::corrupt) << i;
      ASSERT_FALSE(t.why().message().empty()) << i;
      continue;
    }
    ++accepted;
    std::vector<std::uint64_t> live(t->slots);
    for (const trace_op& op : t->ops) {
      ASSERT_LT(op.slot, t->slots) << i;
      ASSERT_EQ(live[op.slot], op.kind == op_kind::free ? op.bytes : 0) << i;
      live[op.slot] = op.kind == op_kind::free ? 0 : op.bytes;
    }
  }
  EXPECT_GT(accepted, 100U);
}

}  // namespace
}  // namespace gpumem::bench
