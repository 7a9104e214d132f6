/// Several processes with their own allocators in one group: the memory their devices really gave, counted
/// independently of the ledger, never exceeds the group's limit, even if one of them is killed half-way.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "bits.hpp"
#include "child_process.hpp"
#include "device_decorator.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "temporary_folder.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t group_limit = 4096 * mib;
constexpr std::uint64_t operations = 1'000'000;
constexpr unsigned threads_each = 8;

/// In memory shared by both processes. Segments are multiples of 2 MiB; each process has one half of the word `held`,
/// so that their sum is read atomically.
struct observed {
  std::atomic<std::uint64_t> held;
  std::atomic<std::uint64_t> done[2];
  std::atomic<std::uint64_t> served;
  std::atomic<std::uint64_t> refused;
  std::atomic<std::uint64_t> segments;
  std::atomic<std::uint64_t> exceeded;
  std::atomic<std::uint64_t> broken;
};
constexpr std::uint64_t in_half(unsigned process, std::uint64_t bytes) { return bytes / (2 * mib) << (32 * process); }
constexpr std::uint64_t sum_of(std::uint64_t held) { return ((held & UINT32_MAX) + (held >> 32)) * 2 * mib; }

/// A simulated card that counts its allocations in shared memory.
class watched_device final : public device_decorator {
 public:
  watched_device(observed& seen, unsigned process) : device_decorator{card_}, seen_{seen}, process_{process} {}

 private:
  // Counted after an allocation and before a free, so the sum can only be too small.
  result<address> do_alloc(std::uint64_t bytes) override {
    result<address> at = device_decorator::do_alloc(bytes);
    if (!at) return at;
    const std::uint64_t now = seen_.held.fetch_add(in_half(process_, bytes)) + in_half(process_, bytes);
    if (sum_of(now) > group_limit) ++seen_.exceeded;
    ++seen_.segments;
    const std::lock_guard lock{mutex_};
    segments_.emplace_back(*at, bytes);
    return at;
  }
  status do_free(address segment) override {
    {
      const std::lock_guard lock{mutex_};
      const auto it = std::find_if(segments_.begin(), segments_.end(),
                                   [segment](const auto& each) { return each.first == segment; });
      seen_.held -= in_half(process_, it->second);
      segments_.erase(it);
    }
    return device_decorator::do_free(segment);
  }

  observed& seen_;
  unsigned process_;
  sim_device card_;
  std::mutex mutex_;
  std::vector<std::pair<address, std::uint64_t>> segments_;
};

/// Allocates, frees and trims in eight threads; `caching` also returns segments under pressure.
int member(const std::string& folder, observed& seen, unsigned process, std::uint64_t count) {
  settings with;
  const bool set = with.set("policy", "caching").ok() && with.set("group", "lab").ok() &&
                   with.set("group_limit", "4GiB").ok() && with.set("shared_folder", folder).ok();
  watched_device card{seen, process};
  device* devices[]{&card};
  auto opened = allocator::open(devices, with);
  if (!set || !opened) return 1;
  allocator& memory = **opened;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < threads_each; ++t) {
    threads.emplace_back([&, t] {
      std::uint64_t random = 0x9E3779B97F4A7C15U * (t + threads_each * process + 1);
      std::vector<void*> mine;
      for (std::uint64_t i = 0; i < count / threads_each; ++i) {
        random = random * 6364136223846793005U + 1442695040888963407U;
        const std::uint64_t pick = random >> 33;
        if (pick % 64 == 0) {
          static_cast<void>(memory.trim(0, 256 * mib));
        } else if (mine.size() < 8 && pick % 2 == 0) {
          const auto got = memory.try_allocate({.bytes = pick % (96 * mib) + 1});
          ++(got ? seen.served : seen.refused);
          if (got) mine.push_back(*got);
          if (!got && got.code() != errc::out_of_memory) ++seen.broken;
        } else if (!mine.empty()) {
          memory.deallocate(mine.back());
          mine.pop_back();
        }
        seen.done[process].fetch_add(1, std::memory_order_relaxed);
      }
      for (void* block : mine) memory.deallocate(block);
    });
  }
  for (std::thread& each : threads) each.join();
  // Whether the threads met the limit depends on the machine's pace, so each member meets it here.
  std::vector<void*> all;
  for (;;) {
    const auto got = memory.try_allocate({.bytes = 256 * mib});
    if (!got) {
      ++seen.refused;
      if (got.code() != errc::out_of_memory) ++seen.broken;
      break;
    }
    all.push_back(*got);
  }
  for (void* block : all) memory.deallocate(block);
  return memory.check(0).ok() ? 0 : 1;
}

TEST(Group, TwoProcessesOfEightThreadsNeverExceedTheirLimitThoughOneIsKilled) {
  const temporary_folder temporary;
  const std::string& folder = temporary.path();
  void* const shared = ::mmap(nullptr, sizeof(observed), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  observed& seen = *new (shared) observed{};
  const pid_t first = in_child([&] { return member(folder, seen, 0, operations); });  // killed before it completes them
  const pid_t second = in_child([&] { return member(folder, seen, 1, operations / 2); });
  while (seen.done[0] < operations / 4) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  ::kill(first, SIGSTOP);  // while stopped, its memory is constant; after its death others could take it at once
  ::waitpid(first, nullptr, WUNTRACED);
  seen.held &= ~std::uint64_t{UINT32_MAX};
  ::kill(first, SIGKILL);
  ::waitpid(first, nullptr, 0);
  const pid_t third = in_child([&] { return member(folder, seen, 0, operations / 2 - seen.done[0]); });
  EXPECT_EQ(exit_status_of(second), 0);
  EXPECT_EQ(exit_status_of(third), 0);
  EXPECT_EQ(seen.exceeded, 0U);
  EXPECT_EQ(seen.broken, 0U);
  EXPECT_GE(seen.done[0] + seen.done[1], operations - 2 * threads_each);
  EXPECT_GT(seen.served, operations / 10);
  EXPECT_GE(seen.refused, 2U) << "both members that ended filled the rest of the limit";
  EXPECT_GT(seen.segments, 1000U) << "the ledger was hardly asked";
  EXPECT_EQ(exit_status_of(in_child([&] {
              settings with;
              for (const auto& [name, value] :
                   {std::pair{"group", "lab"}, {"group_limit", "4GiB"}, {"shared_folder", folder.c_str()}}) {
                if (!with.set(name, value)) return 1;
              }
              sim_device card;
              device* devices[]{&card};
              auto all = allocator::open(devices, with);
              return all.ok() && (*all)->try_allocate({.bytes = group_limit}).ok() ? 0 : 1;
            })),
            0)
      << "what the killed one held has returned";
  std::printf("served %lu, refused %lu, segments %lu\n", seen.served.load(), seen.refused.load(), seen.segments.load());
  ::munmap(shared, sizeof(observed));
}

}  // namespace
}  // namespace gpumem
