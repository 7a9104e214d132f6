/// The reader reads the recorder's files back; unwritable files are reported.
#include "trace_recorder.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <vector>

#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
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

/// Counters of a child process in memory shared with its parent.
class shared_count {
 public:
  shared_count()
      : count_{static_cast<std::atomic<std::uint64_t>*>(
            ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))} {}
  ~shared_count() { ::munmap(static_cast<void*>(count_), 4096); }
  shared_count(const shared_count&) = delete;
  shared_count& operator=(const shared_count&) = delete;
  std::atomic<std::uint64_t>& operator*() const { return *count_; }

 private:
  std::atomic<std::uint64_t>* count_;
};

/// Records up to `most` rows in a child and counts those that are recorded; the child then ends by `end`. Each child
/// takes a path of its own: another process of this job would write beside the first one's file.
pid_t record_in_a_child(const std::string& path, std::uint64_t most, const shared_count& recorded, void (*end)()) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  auto recorder = trace_recorder::open(path);
  for (std::uint64_t i = 1; recorder.ok() && i <= most; ++i) {
    (*recorder)->allocated(i << 9, 512, {});
    *recorded = i;
  }
  end();
  ::_exit(9);
}

TEST(trace_recorder, keeps_the_rows_of_a_program_that_ends_without_a_word) {
  const log_sink former = set_log_sink([](std::string_view) {});
  constexpr std::uint64_t rows = 5000;  // several members
  for (void (*const end)() : {+[] { std::abort(); }, +[] { ::_exit(0); }, +[] { (void)::raise(SIGKILL); }}) {
    for (const std::string name : {"t.csv", "t.csv.gz"}) {
      const test_folder folder;
      const shared_count recorded;
      const pid_t child = record_in_a_child(folder.path(name), rows, recorded, end);
      ASSERT_EQ(::waitpid(child, nullptr, 0), child);
      ASSERT_EQ(*recorded, rows);
      const auto t = load_trace(folder.path(name));
      ASSERT_TRUE(t.ok()) << t.why().message();
      EXPECT_EQ(t->ops.size(), rows) << name;
      EXPECT_EQ(t->cut.empty(), name == "t.csv") << "the last member is open: " << t->cut;
    }
  }
  (void)set_log_sink(former);
}

TEST(trace_recorder, keeps_the_rows_of_a_program_that_is_killed_at_any_moment) {
  const log_sink former = set_log_sink([](std::string_view) {});
  for (int k = 0; k < 30; ++k) {
    const test_folder folder;
    const std::string path = folder.path(k % 2 == 0 ? "t.csv.gz" : "t.csv");
    const shared_count recorded;
    const pid_t child = record_in_a_child(path, std::uint64_t{1} << 40, recorded, [] {});
    while (*recorded < static_cast<std::uint64_t>(1150 + 10 * k)) ::usleep(100);  // near the end of the first member
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const auto t = load_trace(path);
    ASSERT_TRUE(t.ok()) << t.why().message();
    EXPECT_GE(t->ops.size(), *recorded) << path;
    EXPECT_LE(t->ops.size(), *recorded + 1) << path;
  }
  (void)set_log_sink(former);
}

TEST(trace_recorder, ends_with_a_whole_row_where_no_more_fits) {
  const test_folder folder;
  std::vector<std::string> lines;
  const log_sink former = set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  ::rlimit whole{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &whole), 0);
  for (const std::string name : {"t.csv", "t.csv.gz"}) {  // SIGXFSZ would end this program
    lines.clear();
    {
      auto recorder = trace_recorder::open(folder.path(name));
      ASSERT_TRUE(recorder.ok());
      const ::rlimit small{100'001, whole.rlim_max};
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
      for (std::uint64_t i = 1; i < 20'000; ++i) (*recorder)->allocated(i << 9, 512, {});
      EXPECT_FALSE((*recorder)->flush().ok());
    }
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &whole), 0);
    ASSERT_EQ(lines.size(), 1U) << name;
    EXPECT_EQ(lines.front(),
              "GPUMEM_TRACE=" + folder.path(name) + ": cannot be written: File too large; recording has stopped");
    const auto t = load_trace(folder.path(name));
    ASSERT_TRUE(t.ok()) << t.why().message();
    EXPECT_GT(t->ops.size(), 600U) << name;
    EXPECT_EQ(t->cut, "") << name;
  }
  (void)set_log_sink(former);
}

TEST(trace_recorder, records_what_was_refused) {
  const test_folder folder;
  sim_device card{{.capacity_bytes = std::uint64_t{64} << 20}};
  device* const devices[] = {&card};
  settings with;
  with.policy = "caching";
  with.trace_path = folder.path("t.csv");
  {
    const auto memory = allocator::open(devices, with);
    ASSERT_TRUE(memory.ok()) << memory.why().message();
    void* const block = (*memory)->allocate(std::size_t{40} << 20);
    EXPECT_FALSE((*memory)->try_allocate({.bytes = std::size_t{30} << 20}).ok());
    (*memory)->deallocate(block);
  }
  const auto t = load_trace(folder.path("t.csv"));
  ASSERT_TRUE(t.ok()) << t.why().message();
  ASSERT_EQ(t->refused.size(), 1U);
  EXPECT_EQ(t->refused[0].bytes, std::uint64_t{30} << 20);
  EXPECT_EQ(t->refused[0].before_op, 1U);
  EXPECT_EQ(t->refusing_policy, "caching");
  EXPECT_EQ(t->refused_within_bytes, std::uint64_t{64} << 20);
}

// A size computed from a negative number, say: the readers take no size that no device has, and with it no recording.
TEST(trace_recorder, a_refused_request_beyond_any_device_leaves_a_recording_that_is_read) {
  const test_folder folder;
  sim_device card{{.capacity_bytes = std::uint64_t{64} << 20}};
  device* const devices[] = {&card};
  settings with;
  with.trace_path = folder.path("t.csv");
  {
    const auto memory = allocator::open(devices, with);
    ASSERT_TRUE(memory.ok()) << memory.why().message();
    EXPECT_EQ((*memory)->try_allocate({.bytes = std::size_t{1} << 60}).code(), errc::out_of_memory);
    (*memory)->deallocate((*memory)->allocate(1000));
  }
  const auto t = load_trace(folder.path("t.csv"));
  ASSERT_TRUE(t.ok()) << t.why().message();
  EXPECT_EQ(t->ops.size(), 2U);
  ASSERT_EQ(t->refused.size(), 1U);
  EXPECT_EQ(t->refused[0].bytes, std::uint64_t{1} << 48);
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
