// GPUMEM_HISTORY: what dumps contain, and when a request that runs out of memory writes one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "history_dump.hpp"
#include "pooled_allocator.hpp"
#include "trace_row.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct row {
  std::string thread;
  std::string action;
  std::string pointer;
  std::uint64_t bytes = 0;
  std::string stream;
};

std::vector<row> rows_of(const std::string& text) {
  std::istringstream in{text};
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line + "\n", trace_header);
  std::vector<row> out;
  while (std::getline(in, line)) {
    std::istringstream fields{line};
    row r;
    std::string time;
    std::string bytes;
    std::getline(fields, r.thread, ',');
    std::getline(fields, time, ',');
    std::getline(fields, r.action, ',');
    std::getline(fields, r.pointer, ',');
    std::getline(fields, bytes, ',');
    std::getline(fields, r.stream, ',');
    r.bytes = std::stoull(bytes);
    out.push_back(std::move(r));
  }
  return out;
}

struct replayed {
  std::map<std::string, std::uint64_t> live;
  std::uint64_t peak_bytes = 0;  // rounded up to 512
  std::size_t events = 0;        // without the blocks from before
};

/// Fails where a block is allocated twice, freed without having been live, or freed with another size.
replayed replay(const std::vector<row>& rows) {
  replayed out;
  std::uint64_t live_bytes = 0;
  for (const row& r : rows) {
    if (r.thread != "0") ++out.events;
    if (r.action == "allocate") {
      EXPECT_TRUE(out.live.emplace(r.pointer, r.bytes).second) << r.pointer << " is live already";
      live_bytes += round_up(r.bytes, 512);
      out.peak_bytes = std::max(out.peak_bytes, live_bytes);
    } else if (r.action == "free") {
      const auto found = out.live.find(r.pointer);
      if (found == out.live.end()) {
        ADD_FAILURE() << r.pointer << " is freed and was not live";
        continue;
      }
      EXPECT_EQ(found->second, r.bytes);
      live_bytes -= round_up(found->second, 512);
      out.live.erase(found);
    }
  }
  return out;
}

struct history : ::testing::Test {
  void SetUp() override {
    std::string name = ::testing::TempDir() + "gpumem-history-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
    ASSERT_TRUE(with.set("limit", "1GiB").ok());
  }
  void TearDown() override {
    memory.reset();
    std::filesystem::remove_all(folder);
  }
  void open(const std::string& events) {
    ASSERT_TRUE(with.set("history", events).ok());
    device* const devices[] = {&card};
    auto opened = pooled_allocator::open(devices, with);
    ASSERT_TRUE(opened.ok()) << opened.why().message();
    memory = *std::move(opened);
  }
  result<std::string> dump(std::string_view what = "trace") {
    const owned_fd file{::memfd_create("dump", MFD_CLOEXEC)};
    pooled_allocator* const all[] = {memory.get()};
    if (status done = write_dump(all, what, file.get()); !done) return done;
    std::string text(static_cast<std::size_t>(::lseek(file.get(), 0, SEEK_END)), '\0');
    EXPECT_EQ(::pread(file.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }
  [[nodiscard]] std::string file_text(const std::string& name) const {
    std::ifstream in{folder + "/" + name, std::ios::binary};
    return {std::istreambuf_iterator<char>{in}, {}};
  }

  sim_device card{sim_config{}};
  settings with;
  std::unique_ptr<pooled_allocator> memory;
  std::string folder;
};

TEST_F(history, has_what_caches_served) {
  constexpr std::uint64_t pairs = 5'000;
  std::array<std::uint64_t, 2> locks{};
  for (const char* events : {"0", "1000000"}) {
    open(events);
    for (std::uint64_t i = 0; i < pairs; ++i) memory->deallocate(memory->allocate(1000));
    locks.at(*events != '0') = memory->stats(0)->locks;
  }
  EXPECT_LT(locks[0], pairs / 4) << "most are hits";
  EXPECT_GE(locks[1], locks[0]);
  EXPECT_LE(locks[1] - locks[0], 2 * pairs / history_chunk::capacity + 1) << "one for each full chunk";
  const std::vector<row> rows = rows_of(*dump());
  EXPECT_EQ(rows.size(), 2 * pairs);
  EXPECT_TRUE(replay(rows).live.empty());
  EXPECT_TRUE(memory->check(0).ok());
}

TEST_F(history, hits_of_stated_frees_and_created_streams) {
  open("100000");
  const stream_ref other = card.create_stream();
  for (const stream_ref s : {stream_ref{}, other}) {
    for (int i = 0; i < 2000; ++i) {
      void* const p = memory->allocate(3000, s);
      free_args stated;
      if (i % 2 != 0) stated.bytes = 3000;
      if (i % 3 != 0) stated.stream = s;
      ASSERT_TRUE(memory->try_deallocate(p, stated).ok());
    }
  }
  const std::vector<row> rows = rows_of(*dump());
  EXPECT_EQ(rows.size(), 8000U);
  EXPECT_TRUE(replay(rows).live.empty());
  EXPECT_EQ(rows.front().stream, "0");
  EXPECT_EQ(rows.back().stream, "1");
}

TEST_F(history, replays_to_the_peak_that_was) {
  open("100000");
  std::minstd_rand random{1};
  std::vector<void*> live;
  for (int i = 0; i < 20'000; ++i) {
    if (live.size() < 200 && random() % 2 == 0) {
      live.push_back(memory->allocate(1 + random() % 100'000));
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      memory->deallocate(live.back());
      live.pop_back();
    }
  }
  const replayed got = replay(rows_of(*dump()));
  EXPECT_EQ(got.peak_bytes, memory->stats(0)->peak_live_bytes);
  EXPECT_EQ(got.live.size(), live.size());
  for (void* p : live) memory->deallocate(p);
}

TEST_F(history, begins_with_the_blocks_that_were_live) {
  open("600");
  void* const early = memory->allocate(5000);
  void* const freed_within = memory->allocate(6000);
  for (int i = 0; i < 5000; ++i) memory->deallocate(memory->allocate(1000));
  memory->deallocate(freed_within);
  const std::vector<row> rows = rows_of(*dump());
  const replayed got = replay(rows);
  EXPECT_EQ(got.events, 600U);
  ASSERT_EQ(got.live.size(), 1U);
  EXPECT_EQ(got.live.begin()->second, 5000U);
  EXPECT_EQ(rows[0].thread + rows[1].thread, "00");
  memory->deallocate(early);
}

TEST_F(history, of_threads_that_hand_blocks_over_is_in_order) {
  open("3000");
  std::mutex mutex;
  std::vector<void*> handed;
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random{t + 1};
      for (int i = 0; i < 6000; ++i) {
        void* p = memory->allocate(512 * (1 + random() % 8));
        const std::lock_guard lock{mutex};
        handed.push_back(p);
        std::swap(handed[random() % handed.size()], handed.back());
        if (handed.size() > 50 || random() % 2 == 0) {
          memory->deallocate(handed.back());
          handed.pop_back();
        }
      }
    });
  }
  std::thread looks{[&] {
    while (!over) EXPECT_LE(replay(rows_of(*dump())).events, 3000U);
  }};
  for (std::thread& each : threads) each.join();
  over = true;
  looks.join();
  const replayed got = replay(rows_of(*dump()));
  EXPECT_EQ(got.events, 3000U);
  EXPECT_EQ(got.live.size(), handed.size());
  for (void* p : handed) memory->deallocate(p);
  EXPECT_TRUE(memory->check(0).ok());
}

TEST_F(history, without_thread_caches_comes_by_the_lock) {
  ASSERT_TRUE(with.set("thread_cache", "0").ok());
  open("100");
  for (int i = 0; i < 200; ++i) memory->deallocate(memory->allocate(1000));
  EXPECT_EQ(replay(rows_of(*dump())).events, 100U);
}

TEST_F(history, out_of_memory_writes_it_to_the_trace_file) {
  const std::string file = folder + "/run.csv";
  ASSERT_TRUE(with.set("trace", file).ok());
  open("1000");
  EXPECT_EQ(file_text("run.csv"), trace_header) << "a recording, without rows so far";
  void* const held = memory->allocate(600 * mib);
  testing::internal::CaptureStderr();
  EXPECT_EQ(memory->try_allocate({.bytes = 600 * mib}).code(), errc::out_of_memory);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("to do: gpumem why " + file));
  std::vector<row> rows = rows_of(file_text("run.csv"));
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].action, "allocate");
  EXPECT_EQ(rows[1].action, "allocate failure");
  EXPECT_EQ(rows[1].bytes, 600 * mib);
  EXPECT_EQ(rows[1].pointer, "growth@1073741824");
  memory->deallocate(held);
  EXPECT_EQ(memory->try_allocate({.bytes = 2 * gib}).code(), errc::out_of_memory);
  rows = rows_of(file_text("run.csv"));
  ASSERT_EQ(rows.size(), 4U) << "a later refusal, with what came since";
  EXPECT_EQ(rows[3].bytes, 2 * gib);
}

// Readers refuse larger sizes, and with them the whole file.
TEST_F(history, a_refused_request_beyond_any_device_is_recorded_with_the_largest_size_of_traces) {
  for (const char* events : {"0", "1000"}) {
    memory.reset();
    ASSERT_TRUE(with.set("trace", folder + "/run.csv").ok());
    open(events);
    EXPECT_EQ(memory->try_allocate({.bytes = std::size_t{1} << 60}).code(), errc::out_of_memory);
    EXPECT_EQ(rows_of(file_text("run.csv")).back().bytes, std::uint64_t{1} << 48) << events;
  }
}

TEST_F(history, is_written_again_only_where_a_tenth_of_it_is_new) {
  ASSERT_TRUE(with.set("trace", folder + "/run.csv").ok());
  open("1000");
  for (int i = 0; i < 1000; ++i) memory->deallocate(memory->allocate(1000));
  testing::internal::CaptureStderr();
  EXPECT_FALSE(memory->try_allocate({.bytes = 2 * gib}).ok());
  const std::string first = file_text("run.csv");
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(memory->try_allocate({.bytes = 2 * gib}).ok());
  EXPECT_EQ(file_text("run.csv"), first);
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(memory->try_allocate({.bytes = 2 * gib}).ok());
  EXPECT_NE(file_text("run.csv"), first);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("to do: gpumem why"), said.rfind("to do: gpumem why")) << "once";
  EXPECT_TRUE(memory->flush_trace().ok()) << "writes the latest events";
  EXPECT_EQ(replay(rows_of(file_text("run.csv"))).events, 1000U);
}

// The parent writes the file, and a child has a copy of the pool that differs from then on.
TEST_F(history, a_forked_child_leaves_its_parents_file_alone) {
  for (const char* events : {"0", "1000"}) {  // 0: each row is written at once
    for (const char* name : {"run.csv", "run.csv.gz"}) {
      memory.reset();
      ASSERT_TRUE(with.set("trace", folder + "/" + events + name).ok());
      open(events);
      void* const held = memory->allocate(1000);
      ASSERT_TRUE(memory->flush_trace().ok());
      const std::string before = file_text(std::string{events} + name);
      const pid_t child = ::fork();
      if (child == 0) {
        memory->deallocate(held);
        for (int i = 0; i < 100; ++i) memory->deallocate(memory->allocate(3000));
        static_cast<void>(memory->try_allocate({.bytes = 2 * gib}));
        const status flushed = memory->flush_trace();
        memory.reset();  // as at the child's end
        ::_exit(flushed.code() == errc::unsupported ? 0 : 1);
      }
      int ended = -1;
      ASSERT_EQ(::waitpid(child, &ended, 0), child);
      EXPECT_EQ(ended, 0) << "flush_trace names the parent";
      EXPECT_EQ(file_text(std::string{events} + name), before) << events << name;
      memory->deallocate(held);
      EXPECT_TRUE(memory->flush_trace().ok()) << "the parent still writes";
      EXPECT_NE(file_text(std::string{events} + name), before) << events << name;
    }
  }
}

TEST_F(history, a_file_that_cannot_be_written_is_refused_at_once) {
  ASSERT_TRUE(with.set("trace", folder + "/none/run.csv").ok() && with.set("history", "1000").ok());
  device* const devices[] = {&card};
  const auto opened = pooled_allocator::open(devices, with);
  EXPECT_EQ(opened.code(), errc::bad_setting);
  EXPECT_THAT(opened.why().message(), StartsWith("GPUMEM_TRACE=" + folder + "/none/run.csv: cannot be opened: "));
}

TEST_F(history, dumps_say_what_is_wrong) {
  open("0");
  memory->deallocate(memory->allocate(1000));
  EXPECT_EQ(dump().why().message(), "keeps no history; start it with GPUMEM_HISTORY=100000, or take --format events");
  EXPECT_EQ(dump("pictures").why().message(), "dump pictures: expected trace or events");
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  pooled_allocator* const all[] = {memory.get()};
  EXPECT_EQ(write_dump(all, "events", pipe[1]).message(), "the file of the dump is no regular file");
  EXPECT_EQ(write_dump(all, "events", -1).message(), "the file of the dump is no regular file");
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_F(history, events_of_the_slow_path_are_always_kept) {
  open("0");
  memory->deallocate(memory->allocate(1000));
  ASSERT_TRUE(memory->set_limit(0, 512 * mib).ok());
  const result<std::string> text = dump("events");
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, StartsWith("pool 0 (growth): 2 events\n-"));
  EXPECT_THAT(*text, HasSubstr(" s segment_taken "));
  EXPECT_THAT(*text, HasSubstr(" s limit_set 536870912 reserved "));
}

}  // namespace
}  // namespace gpumem
