/// The reader reads the recorder's files back; unwritable files are reported.
#include "trace_recorder.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "log.hpp"
#include "test_files.hpp"
#include "trace.hpp"

namespace gpumem {
namespace {

using bench::load_trace;
using bench::op_kind;
using bench::test_folder;

int one = 0;
int two = 0;

TEST(trace_recorder, writes_what_the_reader_reads) {
  const test_folder folder;
  for (const std::string name : {"t.csv", "t.csv.gz"}) {
    {
      auto recorder = trace_recorder::open(folder.path(name));
      ASSERT_TRUE(recorder.ok()) << recorder.why().message();
      (*recorder)->allocated(0x7f0000000200, 1000, {&two});
      (*recorder)->allocated(0x7f0000000800, 77, {});
      EXPECT_TRUE((*recorder)->flush().ok());
      const auto so_far = load_trace(folder.path(name));
      ASSERT_TRUE(so_far.ok()) << so_far.why().message();
      EXPECT_EQ(so_far->ops.size(), 2U) << "a flushed file is whole";
      (*recorder)->freed(0x7f0000000200, 1000, {&two});
      (*recorder)->allocated(0x7f0000000200, 5, {&one});
    }
    const auto t = load_trace(folder.path(name));
    ASSERT_TRUE(t.ok()) << t.why().message();
    ASSERT_EQ(t->ops.size(), 4U);
    EXPECT_EQ(t->streams, (std::vector<std::uint64_t>{1, 0, 2}));
    EXPECT_EQ(t->ops[0].bytes, 1000U);
    EXPECT_EQ(t->ops[2].kind, op_kind::free);
    EXPECT_EQ(t->ops[2].slot, t->ops[0].slot);
    EXPECT_EQ(t->peak_live_bytes, 1024U + 512U);
    EXPECT_EQ(bench::content_of(folder.path(name)).starts_with("Thread"), name == "t.csv") << "`.gz` compresses";
  }
}

TEST(trace_recorder, takes_rows_from_several_threads) {
  const test_folder folder;
  {
    auto recorder = trace_recorder::open(folder.path("t.csv"));
    ASSERT_TRUE(recorder.ok());
    std::vector<std::jthread> threads;
    for (std::uint64_t k = 1; k <= 4; ++k) {
      threads.emplace_back([&recorder, k] {
        for (std::uint64_t i = 0; i < 500; ++i) {
          (*recorder)->allocated(k << 32, i + 1, {});
          (*recorder)->freed(k << 32, i + 1, {});
        }
      });
    }
  }
  const auto t = load_trace(folder.path("t.csv"));
  ASSERT_TRUE(t.ok()) << t.why().message();
  EXPECT_EQ(t->ops.size(), 4000U);
}

TEST(trace_recorder, refuses_a_path_that_cannot_be_created) {
  const test_folder folder;
  const std::string path = folder.path("absent/t.csv");
  const auto recorder = trace_recorder::open(path);
  ASSERT_FALSE(recorder.ok());
  EXPECT_EQ(recorder.code(), errc::bad_setting);
  EXPECT_EQ(recorder.why().message(),
            "GPUMEM_TRACE=" + path + ": cannot be opened: No such file or directory; expected a file to write");
  EXPECT_EQ(trace_recorder::open(folder.path(".")).why().message(),
            "GPUMEM_TRACE=" + folder.path(".") + ": cannot be opened: Is a directory; expected a file to write");
}

TEST(trace_recorder, reports_a_full_disk_once_and_remembers_it) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "/dev/full is not here";
  std::vector<std::string> lines;
  const log_sink former = set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  {
    auto recorder = trace_recorder::open("/dev/full");
    ASSERT_TRUE(recorder.ok());
    for (std::uint64_t i = 1; i < 20'000; ++i) (*recorder)->allocated(i << 9, 512, {});
    const status first = (*recorder)->flush();
    EXPECT_EQ(first.message(),
              "GPUMEM_TRACE=/dev/full: cannot be written: No space left on device; recording has stopped");
    EXPECT_FALSE((*recorder)->flush().ok());
  }
  (void)set_log_sink(former);
  EXPECT_EQ(lines.size(), 1U);
}

}  // namespace
}  // namespace gpumem
