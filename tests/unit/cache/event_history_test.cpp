// The events that a history keeps, from several writers, and the blocks that were live before them.
#include "event_history.hpp"

#include <gtest/gtest.h>

#include <map>
#include <thread>

namespace gpumem {
namespace {

constexpr std::uint64_t chunk = history_chunk::capacity;

/// Threads' chunks, renewed as a pool renews them.
struct writers {
  event_history kept;
  std::map<int, history_chunk*> chunks;
  explicit writers(std::uint64_t events) : kept{events} {}

  void write(int writer, std::uint64_t times = 1) {
    history_chunk*& into = chunks[writer];
    for (std::uint64_t i = 0; i < times; ++i) {
      if (into == nullptr || into->is_full()) into = kept.renew(into);
      ASSERT_NE(into, nullptr);
      kept.add(*into, event_kind::allocated, 0x1000 + kept.noted(), 512, {});
    }
  }
};

/// The kept events are the last ones, each once and in order.
void expect_last(const event_history& kept, std::uint64_t events) {
  const std::vector<history_event> all = kept.latest();
  ASSERT_EQ(all.size(), events);
  std::uint64_t time_ns = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i].number, kept.noted() - events + i);
    ASSERT_EQ(all[i].pointer, 0x1000 + all[i].number);
    ASSERT_GE(all[i].time_ns, time_ns) << "times never decrease";
    time_ns = all[i].time_ns;
  }
}

TEST(EventHistory, KeepsEveryEventUntilThereAreMoreThanItKeeps) {
  writers x{1000};
  x.write(0, 1000);
  expect_last(x.kept, 1000);
  x.write(0);
  expect_last(x.kept, 1000);
}

TEST(EventHistory, KeepsTheLastEventsOfOneWriter) {
  writers x{1000};
  x.write(0, 100 * chunk + 7);
  expect_last(x.kept, 1000);
}

TEST(EventHistory, KeepsTheLastEventsOfWritersOfDifferentPace) {
  for (const std::uint64_t pace : {1U, 3U, 50U, 5000U}) {
    writers x{2000};
    for (std::uint64_t i = 0; i < 60'000; ++i) {
      x.write(0);
      if (i % pace == 0) x.write(1);
      if (i % 7 == 0) x.write(2);
    }
    expect_last(x.kept, 2000);
  }
}

TEST(EventHistory, KeepsTheEventsOfAThreadThatEnded) {
  writers x{2000};
  x.write(0, 100);
  x.write(1, 100);
  x.kept.end_thread(x.chunks[0]);
  x.chunks.erase(0);
  x.write(1, 100);
  expect_last(x.kept, 300);
  x.kept.end_thread(nullptr);
}

TEST(EventHistory, TakesBoundedMemoryForManyShortThreads) {
  writers x{10'000};
  x.write(0);
  for (int i = 1; i <= 20'000; ++i) {
    x.write(i);
    x.kept.end_thread(x.chunks[i]);
    x.chunks.erase(i);
  }
  expect_last(x.kept, 10'000);
  EXPECT_LE(x.kept.chunk_count(), 10'000 / 64 + 20U) << "64 threads share a chunk";
}

TEST(EventHistory, KeepsTheThreadOfEachEventInASharedChunk) {
  writers x{1000};
  x.write(0, 3);
  x.kept.end_thread(x.chunks[0]);
  x.chunks.erase(0);
  std::thread{[&x] { x.write(1, 2); }}.join();
  EXPECT_EQ(x.kept.chunk_count(), 1U);
  const std::vector<history_event> all = x.kept.latest();
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[2].thread, all[0].thread);
  EXPECT_NE(all[3].thread, all[0].thread);
  EXPECT_EQ(all[4].thread, all[3].thread);
}

TEST(EventHistory, BeginsAfterAnEventThatWasLost) {
  writers x{2000};
  x.write(0, 100);
  x.kept.lose();
  EXPECT_TRUE(x.kept.latest().empty());
  x.write(0, 30);
  expect_last(x.kept, 30);
}

TEST(EventHistory, KeepsSizesAndKinds) {
  event_history kept{10};
  history_chunk* const into = kept.renew(nullptr);
  kept.add(*into, event_kind::refused, 7, std::uint64_t{1} << 48, {});
  int stream = 0;
  kept.add(*into, event_kind::freed, 0x2000, 1, {&stream});
  const std::vector<history_event> all = kept.latest();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].kind, event_kind::refused);
  EXPECT_EQ(all[0].requested_bytes, std::uint64_t{1} << 48);
  EXPECT_EQ(all[1].kind, event_kind::freed);
  EXPECT_EQ(all[1].requested_bytes, 1U);
  EXPECT_EQ(all[1].stream.handle, &stream);
}

TEST(LiveBefore, UndoesTheEvents) {
  const auto event = [](event_kind kind, address at, std::uint64_t bytes) {
    return history_event{.pointer = at, .requested_bytes = bytes, .kind = kind};
  };
  // 1 lives throughout, 2 ends, 3 begins, 4 is used twice, 5 is free before and after.
  const std::vector<history_event> events{
      event(event_kind::freed, 2, 20),   event(event_kind::freed, 4, 40),     event(event_kind::allocated, 4, 41),
      event(event_kind::refused, 1, 99), event(event_kind::allocated, 3, 30), event(event_kind::allocated, 5, 50),
      event(event_kind::freed, 5, 50),
  };
  const std::vector<history_block> before = live_before(events, {{1, 10, {}}, {3, 30, {}}, {4, 41, {}}});
  ASSERT_EQ(before.size(), 3U);
  EXPECT_EQ(before[0].pointer, 1U);
  EXPECT_EQ(before[1].pointer, 2U);
  EXPECT_EQ(before[1].requested_bytes, 20U);
  EXPECT_EQ(before[2].pointer, 4U);
  EXPECT_EQ(before[2].requested_bytes, 40U);
}

}  // namespace
}  // namespace gpumem
