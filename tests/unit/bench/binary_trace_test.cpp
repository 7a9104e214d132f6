/// Compact traces: a written trace is read back exactly, and a damaged one is refused.
#include "binary_trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <set>
#include <vector>

#include "generate.hpp"
#include "inputs.hpp"
#include "log.hpp"
#include "test_files.hpp"
#include "workload.hpp"

namespace gpumem::bench {
namespace {

void expect_same(const trace& a, const trace& b) {
  EXPECT_EQ(a.slots, b.slots);
  EXPECT_EQ(a.streams, b.streams);
  EXPECT_EQ(a.skipped_rows, b.skipped_rows);
  EXPECT_EQ(a.peak_live_bytes, b.peak_live_bytes);
  ASSERT_EQ(a.ops.size(), b.ops.size());
  for (std::size_t i = 0; i < a.ops.size(); ++i) {
    const trace_op& x = a.ops[i];
    const trace_op& y = b.ops[i];
    ASSERT_TRUE(x.time_ns == y.time_ns && x.bytes == y.bytes && x.slot == y.slot && x.stream == y.stream &&
                x.kind == y.kind)
        << "operation " << i;
  }
}

trace recorded(const char* name) {
  auto t = load_trace(bundled_traces_folder() + "/" + name + ".csv.gz");
  EXPECT_TRUE(t) << t.why().message();
  return *std::move(t);
}

TEST(binary_trace, keeps_every_operation_both_ways) {
  const test_folder folder;
  const trace original = recorded("serve");
  ASSERT_TRUE(write_trace(folder.path("t.gmtrace"), original));
  const auto compact = load_trace(folder.path("t.gmtrace"));
  ASSERT_TRUE(compact) << compact.why().message();
  EXPECT_EQ(compact->name, "t");
  expect_same(*compact, original);
  ASSERT_TRUE(write_trace(folder.path("back.csv.gz"), *compact));
  const auto back = load_trace(folder.path("back.csv.gz"));
  ASSERT_TRUE(back) << back.why().message();
  expect_same(*back, original);
}

TEST(binary_trace, keeps_streams_of_every_workload) {
  const test_folder folder;
  for (const char* text : {"pipeline,ops=2000,streams=7", "tenants,ops=2000", "robson,ops=1000"}) {
    const auto made = make_workload(text, 3);
    ASSERT_TRUE(made) << made.why().message();
    ASSERT_TRUE(write_trace(folder.path("t.gmtrace"), *made));
    const auto read = load_trace(folder.path("t.gmtrace"));
    ASSERT_TRUE(read) << read.why().message();
    expect_same(*read, *made);
  }
}

TEST(binary_trace, says_what_is_damaged) {
  const test_folder folder;
  const trace small = trace_of(
      "1,00:00:00:000000,allocate,a0,1000,0\n1,00:00:00:000007,allocate,b0,512,3\n1,00:00:00:000009,free,a0,1000,0\n");
  const std::string path = folder.path("t.gmtrace");
  ASSERT_TRUE(write_trace(path, small));
  const std::string good = content_of(path);
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    folder.write("t.gmtrace", bad);
    const auto read = load_trace(path);
    if (read.ok()) {  // a byte of zstd's frame that does not affect the content
      expect_same(*read, small);
    } else {
      EXPECT_EQ(read.code(), errc::corrupt) << at;
      EXPECT_THAT(read.why().message(), testing::StartsWith(path)) << at;
    }
  }
  for (std::size_t kept = 8; kept < good.size(); ++kept) {
    folder.write("t.gmtrace", good.substr(0, kept));
    EXPECT_EQ(load_trace(path).code(), errc::corrupt) << kept;
  }
  std::string later = good;
  later[7] = 4;
  folder.write("t.gmtrace", later);
  EXPECT_THAT(load_trace(path).why().message(), testing::HasSubstr("a .gmtrace of version 4, expected version 1 to 3"));
}

trace repeated_pair(std::uint64_t times, std::uint64_t step_ns, std::uint64_t bytes) {
  trace out;
  out.streams = {0};
  out.slots = 1;
  for (std::uint64_t i = 0; i < 2 * times; ++i) {
    trace_op op;
    op.time_ns = i * step_ns;
    op.bytes = bytes;
    op.kind = i % 2 == 0 ? op_kind::allocate : op_kind::free;
    out.ops.push_back(op);
  }
  out.peak_live_bytes = bytes;
  return out;
}

TEST(binary_trace, is_read_to_its_last_whole_section) {
  const test_folder folder;
  constexpr std::uint64_t section = std::uint64_t{1} << 20;
  constexpr std::uint64_t pairs = 1'200'000;  // operations: two sections and a part of a third
  trace whole = repeated_pair(pairs, 1000, 512);
  for (std::uint64_t i = 0; i < whole.ops.size(); ++i) {
    whole.ops[i].bytes = 1 + i / 2 * 7919 % 100'000;
    whole.ops[i].time_ns += i * i % 7;
  }
  whole.peak_live_bytes = 100'352;
  whole.refused = {{2 * pairs, whole.ops.back().time_ns, 4096, 0}};
  whole.refusing_policy = "growth";
  whole.refused_within_bytes = 8192;
  const std::string path = folder.path("t.gmtrace");
  ASSERT_TRUE(write_trace(path, whole));
  const auto all = load_trace(path);
  ASSERT_TRUE(all) << all.why().message();
  expect_same(*all, whole);
  EXPECT_EQ(all->refused.size(), 1U);
  EXPECT_EQ(all->cut, "");
  const std::string good = content_of(path);
  std::vector<std::string> lines;
  const log_sink former = set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  std::set<std::size_t> lengths;
  for (std::size_t kept = 64; kept < good.size(); kept += good.size() / 20) {
    folder.write("t.gmtrace", good.substr(0, kept));
    const auto read = load_trace(path);
    if (!read) {
      EXPECT_EQ(read.code(), errc::corrupt);
      EXPECT_THAT(read.why().message(), testing::HasSubstr("cut short: no "));
      continue;
    }
    lengths.insert(read->ops.size());
    ASSERT_FALSE(lines.empty());
    EXPECT_EQ(lines.back(), path + ": " + read->cut);
    EXPECT_THAT(read->cut,
                testing::HasSubstr("read to operation " + std::to_string(read->ops.size()) + " of 2400000; " +
                                   std::to_string(2 * pairs - read->ops.size()) + " are lost"));
    for (std::size_t i = 0; i < read->ops.size(); i += 997) ASSERT_EQ(read->ops[i].bytes, whole.ops[i].bytes);
  }
  (void)set_log_sink(former);
  EXPECT_GE(lengths.size(), 2U);
  for (const std::size_t each : lengths) EXPECT_TRUE(each % section == 0 || each == 2 * pairs) << each;
}

TEST(binary_trace, keeps_refused_requests_in_every_format) {
  const test_folder folder;
  trace t = trace_of(
      "1,00:00:00:000000,allocate failure,,77,3\n"
      "1,00:00:00:000001,allocate,a0,1000,0\n"
      "1,00:00:00:000009,allocate failure,expandable:slack=5%@8192,4096,3\n");
  for (const char* name : {"t.gmtrace", "t.csv", "t.csv.gz"}) {
    ASSERT_TRUE(write_trace(folder.path(name), t));
    const auto read = load_trace(folder.path(name));
    ASSERT_TRUE(read) << read.why().message();
    ASSERT_EQ(read->refused.size(), 2U) << name;
    EXPECT_EQ(read->refused[0].before_op, 0U);
    EXPECT_EQ(read->refused[0].bytes, 77U);
    EXPECT_EQ(read->refused[1].before_op, 1U);
    EXPECT_EQ(read->refused[1].time_ns, 9000U);
    EXPECT_EQ(read->refusing_policy, "expandable:slack=5%");
    EXPECT_EQ(read->refused_within_bytes, 8192U);
    EXPECT_EQ(read->streams, t.streams);
  }
}

/// A file of 64 bytes of header, whose sums are right, and a zstd frame of zeros.
std::string crafted(std::uint64_t ops, std::uint32_t slots, std::uint64_t allocations, std::uint64_t payload_bytes) {
  std::string head(64, '\0');
  const auto put = [&head](std::size_t at, auto value) { std::memcpy(head.data() + at, &value, sizeof value); };
  std::copy(binary_trace_magic.begin(), binary_trace_magic.end(), head.begin());
  head[binary_trace_magic.size()] = 1;  // version
  put(8, ops);
  put(16, slots);
  put(20, std::uint32_t{1});
  put(32, allocations);
  put(40, payload_bytes);
  put(56, XXH3_64bits(head.data(), 56));
  // A frame with its content's size in 8 bytes, and one last block of a repeated byte.
  std::string frame{"\x28\xb5\x2f\xfd\xe0", 5};
  frame.append(reinterpret_cast<const char*>(&payload_bytes), sizeof payload_bytes);
  return head + frame + std::string{"\x03\x00\x00\x00", 4};
}

TEST(binary_trace, refuses_a_header_that_promises_more_than_the_file_can_hold) {
  const test_folder folder;
  const auto refusal = [&](const std::string& bytes) {
    return load_trace(folder.write("t.gmtrace", bytes)).why().message();
  };
  constexpr std::uint64_t gib = std::uint64_t{1} << 30;
  EXPECT_THAT(refusal(crafted(1, 1, 1, 40 * gib)), testing::HasSubstr("impossible counts"));
  EXPECT_THAT(refusal(crafted(4 * gib, 1, 1, 40 * gib)), testing::HasSubstr("expands more than 100-fold"));
  constexpr std::uint64_t million = 1'000'000;
  EXPECT_THAT(refusal(crafted(60 * million, 60'000'000, 60 * million, 64 * million)),
              testing::HasSubstr("60000000 operations in 64000000 bytes need more memory than a reader takes"));
}

TEST(binary_trace, refuses_times_and_sizes_that_wrap) {
  const test_folder folder;
  const std::string path = folder.path("t.gmtrace");
  ASSERT_TRUE(write_trace(path, repeated_pair(2, std::uint64_t{1} << 62, 512)));
  EXPECT_THAT(load_trace(path).why().message(), testing::HasSubstr("the time of operation 2 is impossible"));
  trace large;
  large.streams = {0};
  large.slots = 300;
  for (std::uint32_t i = 0; i < large.slots; ++i) {
    trace_op op;
    op.bytes = std::uint64_t{1} << 48;
    op.slot = i;
    large.ops.push_back(op);
  }
  ASSERT_TRUE(write_trace(path, large));
  EXPECT_THAT(load_trace(path).why().message(), testing::HasSubstr("operation 257 is impossible")) << "2^56 bytes";
}

TEST(binary_trace, what_it_writes_it_reads_however_well_it_is_compressed) {
  const test_folder folder;
  const trace original = repeated_pair(20'000'000, 1000, 512);  // more than 64 MiB of columns that repeat
  ASSERT_TRUE(write_trace(folder.path("t.gmtrace"), original));
  const auto read = load_trace(folder.path("t.gmtrace"));
  ASSERT_TRUE(read) << read.why().message();
  EXPECT_EQ(read->ops.size(), original.ops.size());
}

TEST(binary_trace, is_refused_another_ending_or_a_full_disk) {
  const test_folder folder;
  const trace small = trace_of("1,00:00:00:000000,allocate,a0,1000,0\n");
  EXPECT_THAT(write_trace(folder.path("t.txt"), small).message(),
              testing::HasSubstr("ends in .gmtrace, .csv or .csv.gz"));
  ::rlimit whole{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &whole), 0);
  const ::rlimit none{0, whole.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const char* name : {"t.gmtrace", "t.csv", "t.csv.gz"}) {
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
    const status written = write_trace(folder.path(name), small);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &whole), 0);
    EXPECT_THAT(written.message(), testing::HasSubstr("cannot be written: File too large"));
    EXPECT_TRUE(std::filesystem::is_empty(folder.path("."))) << name;
  }
  static_cast<void>(std::signal(SIGXFSZ, handler));
}

/// CPU time of this thread, so that other programs do not affect it.
double processor_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

/// A loose lower bound for one run of one build; docs/traces.md has the measured figures.
TEST(binary_trace, is_far_smaller_and_read_far_faster_than_compressed_csv) {
  const test_folder folder;
  const std::string csv_path = bundled_traces_folder() + "/gpt2_varlen.csv.gz";
  ASSERT_TRUE(write_trace(folder.path("t.gmtrace"), recorded("gpt2_varlen")));
  EXPECT_GT(std::filesystem::file_size(csv_path), 5 * std::filesystem::file_size(folder.path("t.gmtrace")));
  const auto best_of = [](const std::string& path) {
    double best = 1e9;
    for (int k = 0; k < 3; ++k) {
      const double began = processor_seconds();
      EXPECT_TRUE(load_trace(path).ok());
      best = std::min(best, processor_seconds() - began);
    }
    return best;
  };
  EXPECT_GT(best_of(csv_path), 4 * best_of(folder.path("t.gmtrace")));
}

TEST(generate, depends_on_the_seed_and_the_number_alone) {
  const std::vector<trace> from{recorded("serve")};
  std::vector<std::string> names;
  for (std::uint64_t number = 1; number <= 40; ++number) {
    const trace once = generate_trace(7, number, 500, from);
    expect_same(once, generate_trace(7, number, 500, from));
    EXPECT_GT(once.ops.size(), 100U) << once.name;
    EXPECT_LE(once.peak_live_bytes, std::uint64_t{80} << 30) << once.name;
    names.push_back(once.name.substr(0, once.name.find('-')));
  }
  for (const char* kind : {"transformer", "moe", "conv", "recurrent", "recorded", "serving"}) {
    EXPECT_NE(std::count(names.begin(), names.end(), kind), 0) << kind;
  }
  EXPECT_NE(generate_trace(7, 1, 500, from).name + generate_trace(7, 2, 500, from).name,
            generate_trace(8, 1, 500, from).name + generate_trace(8, 2, 500, from).name);
}

TEST(generate, draws_every_pattern_and_repeats_it_from_its_seed) {
  std::set<std::string> seen;
  for (std::uint64_t number = 1; number <= 60; ++number) {
    const trace once = generate_pattern(7, number, 500);
    expect_same(once, generate_pattern(7, number, 500));
    EXPECT_GE(once.ops.size(), 500U) << once.name;
    EXPECT_LE(once.peak_live_bytes, std::uint64_t{64} << 30) << once.name;
    seen.insert(once.name.substr(0, once.name.find('-')));
  }
  EXPECT_EQ(seen,
            (std::set<std::string>{"adapters", "batching", "images", "largesmall", "replaced", "scratch", "twoone"}));
}

TEST(generate, draws_programs_whose_last_request_is_refused) {
  const trace once = generate_refused(7, 1, 2000);
  expect_same(once, generate_refused(7, 1, 2000));
  EXPECT_EQ(once.ops.size(), 2000U);
  EXPECT_EQ(once.streams.size(), 12U);
  EXPECT_EQ(once.slots, 800U);
  ASSERT_EQ(once.refused.size(), 1U);
  EXPECT_EQ(once.refused[0].before_op, once.ops.size());
  EXPECT_GE(once.refused_within_bytes, once.peak_live_bytes);
  EXPECT_EQ(once.refusing_policy, "growth");
}

TEST(generate, writes_traces_that_every_command_reads) {
  const test_folder folder;
  generate_options with;
  with.folder = folder.path("traces");
  with.count = 6;
  with.ops = 300;
  with.quiet = true;
  ASSERT_TRUE(generate(with));
  const auto all = traces_in(with.folder);
  ASSERT_TRUE(all) << all.why().message();
  EXPECT_EQ(all->size(), 6U);
  for (const std::string& each : *all) EXPECT_TRUE(load_trace(each).ok()) << each;
}

}  // namespace
}  // namespace gpumem::bench
