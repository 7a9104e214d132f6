// Planted faults, call counts, and determinism.
#include "gpumem/sim_device.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "page.hpp"

namespace gpumem {
namespace {

/// A device in a state in which one call of each kind can succeed.
struct ready_device {
  sim_device device;
  address segment = *device.alloc(page);
  address pinned = *device.alloc_host(page);
  address range = *device.reserve(page);
  address mapped_range = *device.reserve(2 * page);
  page_run mapped = *device.create(page);
  page_run unmapped = *device.create(page);
  fence done = *device.record({});

  ready_device() {
    EXPECT_TRUE(device.map(mapped_range, page, mapped));
    EXPECT_TRUE(device.set_access(mapped_range, page));
  }

  status call(device_call kind) {
    switch (kind) {
      case device_call::alloc:
        return device.alloc(page).why();
      case device_call::free:
        return device.free(segment);
      case device_call::alloc_host:
        return device.alloc_host(page).why();
      case device_call::free_host:
        return device.free_host(pinned);
      case device_call::reserve:
        return device.reserve(page).why();
      case device_call::release_range:
        return device.release_range(range, page);
      case device_call::create:
        return device.create(page).why();
      case device_call::destroy:
        return device.destroy(unmapped);
      case device_call::map:
        return device.map(mapped_range + page, page, mapped);
      case device_call::set_access:
        return device.set_access(mapped_range, page);
      case device_call::unmap:
        return device.unmap(mapped_range, page);
      case device_call::memory:
        return device.memory().why();
      case device_call::record:
        return device.record({}).why();
      case device_call::record_context:
        return device.record_context().why();
      case device_call::query:
        return device.query(done).why();
      case device_call::wait_host:
        return device.wait_host(done);
      case device_call::wait_stream:
        return device.wait_stream({}, done);
      case device_call::stream_id:
        return device.stream_id({}).why();
      case device_call::capture_id:
        return device.capture_id({}).why();
      case device_call::watch_graph:
        // It supports no graphs, which is the expected answer.
        if (status said = device.watch_graph({}, [] {}); said.code() != errc::unsupported) return said;
        return {};
      case device_call::synchronize:
        return device.synchronize();
      case device_call::count_:
        break;
    }
    return {errc::invalid_argument, "not a call"};
  }
};

class SimFaults : public ::testing::TestWithParam<std::size_t> {};

TEST_P(SimFaults, InjectedFailureIsCountedAndChangesNothing) {
  const auto kind = static_cast<device_call>(GetParam());
  ready_device ready;
  sim_device& device = ready.device;
  device.enqueue({}, 1'000'000'000);
  const std::uint64_t calls = device.calls()[GetParam()];
  const std::uint64_t now_ns = device.now_ns();
  const std::uint64_t used_bytes = device.used_bytes();
  const std::uint64_t mappings = device.live_mappings();

  device.fail_nth(kind, 1, errc::corrupt);
  const status failed = ready.call(kind);
  EXPECT_EQ(failed.code(), errc::corrupt);
  EXPECT_EQ(failed.message(), "injected: " + std::string{to_string(kind)} + " call fails (corrupt)");
  EXPECT_EQ(device.calls()[GetParam()], calls + 1);
  EXPECT_EQ(device.now_ns(), now_ns);
  EXPECT_EQ(device.used_bytes(), used_bytes);
  EXPECT_EQ(device.live_mappings(), mappings);

  const status repeated = ready.call(kind);
  EXPECT_TRUE(repeated.ok()) << repeated.message();  // once, and the state is unchanged
  EXPECT_EQ(device.calls()[GetParam()], calls + 2);
  EXPECT_GT(device.now_ns(), now_ns);
}

INSTANTIATE_TEST_SUITE_P(EveryCall, SimFaults, ::testing::Range(std::size_t{0}, device_call_kinds),
                         [](const auto& i) { return std::string{to_string(static_cast<device_call>(i.param))}; });

TEST(SimFaultOrder, SeveralArePendingAtOnce) {
  sim_device device;
  device.fail_nth(device_call::alloc, 2, errc::out_of_memory);
  device.fail_nth(device_call::alloc, 4);
  device.fail_nth(device_call::memory, 1, errc::unsupported);
  EXPECT_TRUE(device.alloc(page));
  EXPECT_EQ(device.memory().code(), errc::unsupported);
  EXPECT_EQ(device.alloc(page).code(), errc::out_of_memory);
  EXPECT_TRUE(device.alloc(page));
  EXPECT_EQ(device.alloc(page).code(), errc::device_error);
  EXPECT_TRUE(device.alloc(page));
  EXPECT_TRUE(device.memory());
}

TEST(SimFaultOrder, OfTwoForTheSameCallTheFirstWins) {
  sim_device device;
  device.fail_nth(device_call::alloc, 1, errc::out_of_memory);
  device.fail_nth(device_call::alloc, 1, errc::corrupt);
  EXPECT_EQ(device.alloc(page).code(), errc::out_of_memory);
  EXPECT_TRUE(device.alloc(page));
}

TEST(SimFaultOrder, CountsFromNowOn) {
  sim_device device;
  ASSERT_TRUE(device.alloc(page));
  device.fail_nth(device_call::alloc, 2);
  EXPECT_TRUE(device.alloc(page));
  EXPECT_FALSE(device.alloc(page));
}

TEST(SimFaultOrder, ZerothCallAndOkAreNoFaults) {
  sim_device device;
  device.fail_nth(device_call::alloc, 0);
  device.fail_nth(device_call::alloc, 1, errc::ok);
  EXPECT_TRUE(device.alloc(page));
}

TEST(SimCalls, AreCountedByKindWithAnyOutcome) {
  sim_device device;
  EXPECT_EQ(device.calls(), call_counts{});
  EXPECT_TRUE(device.alloc(page));
  EXPECT_FALSE(device.alloc(1));
  EXPECT_TRUE(device.synchronize());
  call_counts expected{};
  expected[static_cast<std::size_t>(device_call::alloc)] = 2;
  expected[static_cast<std::size_t>(device_call::synchronize)] = 1;
  EXPECT_EQ(device.calls(), expected);
}

/// A seeded sequence of calls, as text: every address, time and answer.
std::string seeded_life(unsigned seed) {
  sim_device device{{.capacity_bytes = 256 * page}};
  std::mt19937 random{seed};
  std::vector<address> segments;
  std::vector<stream_ref> streams{{}};
  std::string log;
  const auto note = [&log](std::uint64_t value) { log += std::to_string(value) + ' '; };
  for (int step = 0; step < 2'000; ++step) {
    const stream_ref s = streams[random() % streams.size()];
    switch (random() % 7) {
      case 0: {
        const result<address> at = device.alloc(page * (1 + random() % 8));
        note(at ? *at : 0);
        if (at) segments.push_back(*at);
        break;
      }
      case 1:
        if (segments.empty()) break;
        std::swap(segments[random() % segments.size()], segments.back());
        note(static_cast<std::uint64_t>(device.free(segments.back()).code()));
        segments.pop_back();
        break;
      case 2: {
        const fence f = *device.record(s);
        note(f.id);
        note(*device.query(f) ? 1 : 0);
        if (random() % 2 == 0) device.drop(f);
        break;
      }
      case 3:
        device.enqueue(s, random() % 1'000'000);
        break;
      case 4:
        if (streams.size() < 8) streams.push_back(device.create_stream());
        note(reinterpret_cast<std::uintptr_t>(streams.back().handle));
        break;
      case 5:
        if (segments.empty()) break;
        device.handed_out(segments[random() % segments.size()], 512 * (1 + random() % 64), s);
        break;
      default:
        if (segments.empty()) break;
        device.given_back(segments[random() % segments.size()]);
    }
    note(device.now_ns());
    note(device.hazard_count());
  }
  for (const hazard& h : device.hazards()) log += h.to_string() + '\n';
  return log;
}

TEST(SimDeterminism, TheSameCallsGiveTheSameAnswers) {
  const std::string first = seeded_life(1);
  EXPECT_EQ(first, seeded_life(1));
  EXPECT_NE(first, seeded_life(2));
  EXPECT_NE(first.find("early_reuse"), std::string::npos);  // hazards are compared, too
}

}  // namespace
}  // namespace gpumem
