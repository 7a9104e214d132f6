// Many threads on one simulated device: nothing is lost, and counts are exact.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "gpumem/sim_device.hpp"
#include "page.hpp"

namespace gpumem {
namespace {

constexpr int threads = 4;
constexpr int rounds = 300;

/// One thread's work: a segment, its stream, a mapping and a fence in each round.
void live_and_leave(sim_device& device, std::atomic<int>& failures) {
  const auto expect = [&failures](bool ok) { failures += ok ? 0 : 1; };
  const stream_ref s = device.create_stream();
  const address range = *device.reserve(page);
  for (int i = 0; i < rounds; ++i) {
    const result<address> at = device.alloc(page);
    expect(at.ok());
    device.handed_out(*at, 4096, s);
    device.enqueue_use(s, 1'000, *at, 4096);
    const result<fence> f = device.record(s);
    expect(f.ok() && device.wait_host(*f).ok() && *device.query(*f));
    device.drop(*f);
    device.given_back(*at);
    const result<page_run> run = device.create(page);
    expect(run && device.map(range, page, *run).ok() && device.set_access(range, page).ok());
    expect(device.unmap(range, page).ok() && device.destroy(*run).ok());
    expect(device.free(*at).ok());
    expect(device.memory().ok() && device.now_ns() > 0);
  }
  expect(device.release_range(range, page).ok());
  expect(device.destroy_stream(s).ok());
}

TEST(SimThreads, EveryCallMayComeFromAnyThread) {
  sim_device device;
  std::atomic<int> failures{0};
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) workers.emplace_back([&] { live_and_leave(device, failures); });
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(device.used_bytes(), 0U);
  EXPECT_EQ(device.live_mappings(), 0U);
  EXPECT_EQ(device.hazard_count(), 0U);
  EXPECT_LE(device.peak_used_bytes(), 2 * page * threads);
  const call_counts calls = device.calls();
  EXPECT_EQ(calls[static_cast<std::size_t>(device_call::alloc)], std::uint64_t{threads} * rounds);
  EXPECT_EQ(calls[static_cast<std::size_t>(device_call::free)], std::uint64_t{threads} * rounds);
}

TEST(SimThreads, CapacityHoldsUnderContention) {
  sim_device device{{.capacity_bytes = 8 * page}};
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&device] {
      std::vector<address> held;
      for (int round = 0; round < rounds; ++round) {
        if (const result<address> at = device.alloc(page)) held.push_back(*at);
        if (held.size() > 3) {
          EXPECT_TRUE(device.free(held.back()));
          held.pop_back();
        }
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_LE(device.peak_used_bytes(), 8 * page);
  EXPECT_GT(device.used_bytes(), 0U);
}

}  // namespace
}  // namespace gpumem
