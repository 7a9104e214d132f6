/// Allocators, threads and processes that end in any order.
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "cached.hpp"
#include "forwarding_device.hpp"

namespace gpumem::caches {
namespace {

class CachedLife : public cached_program {};

TEST_F(CachedLife, AThreadMayOutliveTheAllocator) {
  std::optional<parked_thread> other{std::in_place, [this] { fill_cache(); }};
  allocator_.reset();
  EXPECT_EQ(device_.used_bytes(), 0U) << "what the thread's cache held went with it";
  other.reset();
}

TEST_F(CachedLife, AnAllocatorMayOutliveItsThreads) {
  for (int round = 0; round < 50; ++round) {
    std::thread{[this] { fill_cache(); }}.join();
  }
  EXPECT_EQ(in_caches(), 0U);
  EXPECT_TRUE(allocator_->check(0).ok());
}

/// Runs a function in a thread-local destructor, after those of objects created later, such as the thread's caches.
struct at_thread_end {
  std::function<void()> does;
  at_thread_end() = default;
  at_thread_end(const at_thread_end&) = delete;
  at_thread_end& operator=(const at_thread_end&) = delete;
  ~at_thread_end() {
    if (does) does();
  }
};

TEST_F(CachedLife, AThreadsDestructorsMayStillAllocateAndFree) {
  bool ran = false;
  std::thread{[&] {
    thread_local at_thread_end last;
    void* const p = allocator_->allocate(4096);
    last.does = [this, p, &ran] {
      EXPECT_EQ(in_caches(), 0U) << "given back already";
      EXPECT_TRUE(allocator_->try_deallocate(p).ok());
      EXPECT_EQ(allocator_->try_deallocate(p).code(), errc::double_free);
      void* const q = allocator_->allocate(4096);
      EXPECT_TRUE(allocator_->try_deallocate(q).ok());
      EXPECT_EQ(in_caches(), 0U) << "nobody would give it back any more";
      ran = true;
    };
    fill_cache();
  }}.join();
  EXPECT_TRUE(ran);
  EXPECT_EQ(stats().live_blocks, 0U);
}

// A later allocator may have the address of a former one. It hands out none of the former's blocks.
TEST_F(CachedLife, ALaterAllocatorInheritsNothing) {
  std::barrier step{2};
  constexpr int rounds = 10;
  std::thread other{[&] {
    for (int round = 0; round < rounds; ++round) {
      step.arrive_and_wait();
      fill_cache();
      step.arrive_and_wait();
    }
  }};
  for (int round = 0; round < rounds; ++round) {
    open("grab_all");
    const std::uint64_t before = stats().allocations;  // those of `calm`
    step.arrive_and_wait();
    step.arrive_and_wait();
    fill_cache();
    EXPECT_EQ(stats().allocations, before + 144) << "served by this allocator, all of them";
    EXPECT_TRUE(allocator_->check(0).ok());
  }
  other.join();
}

TEST_F(CachedLife, SeveralAllocatorsInTurnKeepApart) {
  sim_device second{{.capacity_bytes = gib, .first_address = 0x3000'0000'0000}};
  device* const devices[] = {&second};
  auto opened = allocator::open(devices, {});
  ASSERT_TRUE(opened.ok());
  for (int round = 0; round < 100; ++round) {
    void* const p = allocator_->allocate(4096);
    void* const q = (*opened)->allocate(4096);
    ASSERT_TRUE((*opened)->describe(q).ok());
    ASSERT_TRUE(allocator_->describe(p).ok());
    EXPECT_EQ(allocator_->try_deallocate(q).code(), errc::unknown_pointer);
    EXPECT_EQ((*opened)->try_deallocate(p).code(), errc::unknown_pointer);
    ASSERT_TRUE(allocator_->try_deallocate(p).ok());
    ASSERT_TRUE((*opened)->try_deallocate(q).ok());
  }
  EXPECT_TRUE((*opened)->check(0).ok());
}

/// An allocator that a program implements behind gpumem's interface.
class foreign_allocator final : public allocator {
 public:
  status record_use(void*, stream_ref) override { return {}; }
  status stream_release(stream_ref) override { return {}; }
  status capture_begin(stream_ref) override { return {}; }
  result<graph_ref> capture_end(stream_ref) override { return graph_ref{}; }
  status graph_release(graph_ref) override { return {}; }
  result<trim_result> trim(int, std::uint64_t) override { return trim_result{}; }
  result<limit_result> set_limit(int, std::uint64_t) override { return limit_result{}; }
  void on_out_of_memory(oom_callback) override {}
  [[nodiscard]] const std::vector<logical_device>& devices() const noexcept override { return devices_; }
  [[nodiscard]] result<statistics> stats(int) const override { return statistics{}; }
  [[nodiscard]] result<block_info> describe(const void*) const override { return block_info{}; }
  [[nodiscard]] status check(int) const override { return {}; }
  status flush_trace() override { return {}; }
  int asked = 0;
  request last{};
  free_args last_freed{};
  status refuses{};

 private:
  result<void*> do_allocate(const request& r, oom_slot* refusal) override {
    ++asked;
    last = r;
    if (refuses) return static_cast<void*>(&asked);
    if (refusal != nullptr) {
      *refusal = std::make_unique<oom_report>();
      (*refusal)->requested_bytes = r.bytes;
    }
    return refuses;
  }
  status do_deallocate(void*, const free_args& stated) override {
    ++asked;
    last_freed = stated;
    return {};
  }
  std::vector<logical_device> devices_;
};

TEST_F(CachedLife, AnotherKindOfAllocatorIsNeverServedFromThem) {
  foreign_allocator other;
  const auto asks_it = [&other] {
    other.asked = 0;
    void* const p = other.allocate(4096);
    EXPECT_EQ(p, &other.asked);
    other.deallocate(p);
    EXPECT_EQ(other.asked, 2);
  };
  fill_cache();
  asks_it();
  settings traced;  // whose caches serve under the lock alone
  traced.trace_path = "/dev/null";
  open(traced);
  fill_cache();
  asks_it();
  give(take(4096));
  allocator_.reset();
  asks_it();
}

// Calls that return and calls that throw: both pass every argument on after a miss.
TEST_F(CachedLife, AnotherKindOfAllocatorIsToldAllThatIsAskedOfIt) {
  foreign_allocator other;
  int stream = 0;
  const request asked{.bytes = 4096, .stream = {&stream}, .device = 3, .alignment = 4096};
  const auto expect_all = [&] {
    EXPECT_EQ(other.last.bytes, asked.bytes);
    EXPECT_EQ(other.last.stream, asked.stream);
    EXPECT_EQ(other.last.device, asked.device);
    EXPECT_EQ(other.last.alignment, asked.alignment);
    other.last = {};
  };
  EXPECT_EQ(other.allocate(asked), &other.asked);
  expect_all();
  EXPECT_TRUE(other.try_allocate(asked).ok());
  expect_all();

  const free_args stated{.stream = asked.stream, .bytes = 4096, .device = 3};
  const auto expect_stated = [&](bool all) {
    EXPECT_EQ(other.last_freed.stream, all ? stated.stream : std::nullopt);
    EXPECT_EQ(other.last_freed.bytes, all ? stated.bytes : std::nullopt);
    EXPECT_EQ(other.last_freed.device, all ? stated.device : std::nullopt);
  };
  other.deallocate(&other, stated);
  expect_stated(true);
  other.deallocate(&other);
  expect_stated(false);
  EXPECT_TRUE(other.try_deallocate(&other, stated).ok());
  expect_stated(true);
  EXPECT_TRUE(other.try_deallocate(&other).ok());
  expect_stated(false);

  other.refuses = {errc::out_of_memory, "none left"};
  oom_report report;
  EXPECT_EQ(other.try_allocate(asked, &report).code(), errc::out_of_memory);
  expect_all();
  EXPECT_EQ(report.requested_bytes, asked.bytes);
  EXPECT_EQ(other.try_allocate(asked).code(), errc::out_of_memory) << "and no report is wanted";
  try {
    static_cast<void>(other.allocate(asked));
    FAIL();
  } catch (const out_of_memory& refused) {
    EXPECT_EQ(refused.report().requested_bytes, asked.bytes);
  }
  other.refuses = {errc::invalid_argument, "not like this"};
  EXPECT_THROW(static_cast<void>(other.allocate(asked)), bad_request);
}

// The child refuses requests, takes no inherited lock, and ends like any process.
TEST_F(CachedLife, AForkRefusesAndEndsCleanly) {
  allocator_.reset();
  forwarding_device hooked{device_};
  device* const devices[] = {&hooked};
  auto opened = pooled_allocator::open(devices, {});
  ASSERT_TRUE(opened.ok());
  allocator_ = *std::move(opened);
  calm(*allocator_);
  void* const live = take(4096);
  {
    const parked_thread other{[this] { fill_cache(); }};
    fill_cache();
    ASSERT_GT(in_caches(), 0U);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(20);
      hooked.fork();
      const bool refused = allocator_->try_allocate({.bytes = 4096}).code() == errc::device_error &&
                           allocator_->try_deallocate(live).code() == errc::device_error &&
                           allocator_->try_deallocate(live, {.bytes = 4096}).code() == errc::device_error;
      // LeakSanitizer would report memory held by threads that the child does not have.
      if (sanitized) ::_exit(refused ? 0 : 1);
      ::exit(refused ? 0 : 1);  // with this thread's destructors
    }
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    EXPECT_TRUE(WIFEXITED(state)) << "ended by signal " << WTERMSIG(state);
    EXPECT_EQ(WEXITSTATUS(state), 0);
  }
  give(live);
  fill_cache();
  EXPECT_TRUE(allocator_->check(0).ok()) << "the parent goes on";
  allocator_.reset();
}

}  // namespace
}  // namespace gpumem::caches
