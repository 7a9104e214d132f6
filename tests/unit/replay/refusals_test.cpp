/// On a device that has room, no policy refuses a request, whatever the program did before.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "row_figures.hpp"
#include "trace.hpp"

namespace gpumem::bench {
namespace {

constexpr std::uint64_t most_live_bytes = gib;

/// A program of 300 requests on one or two streams. Some blocks stay until everything goes, the others until one of
/// the next requests. Few sizes come again and again, and the device is often idle, so segments go back and others take
/// their place.
trace random_program(unsigned seed) {
  std::mt19937 random{seed};
  const auto below = [&random](std::uint64_t end) { return random() % end; };
  const std::uint64_t largest = mib << (4 + below(2));
  const auto size = [&] { return 512 * (1 + below((below(4) == 0 ? largest : 4 * mib) / 512)); };
  std::vector<std::uint64_t> sizes(5 + below(40));
  for (std::uint64_t& each : sizes) each = size();
  const std::uint64_t one_stays_of = 1 + below(8);
  trace t;
  t.name = "random-" + std::to_string(seed);
  t.streams.resize(1 + below(2));
  for (std::uint32_t s = 0; s < t.streams.size(); ++s) t.streams[s] = s;
  std::vector<trace_op> stay;
  std::vector<trace_op> go;
  std::uint64_t live_bytes = 0;
  std::uint64_t now_ns = 0;
  const auto free_one = [&](std::vector<trace_op>& from) {
    std::swap(from[below(from.size())], from.back());
    trace_op op = from.back();
    from.pop_back();
    live_bytes -= op.bytes;
    op.kind = op_kind::free;
    op.time_ns = now_ns += 10'000;
    t.ops.push_back(op);
  };
  for (; t.slots < 300; ++t.slots) {
    const std::uint64_t bytes = below(8) == 0 ? size() : sizes[below(sizes.size())];
    while (!go.empty() && (below(2) == 0 || live_bytes + bytes > most_live_bytes)) free_one(go);
    while (!stay.empty() && live_bytes + bytes > most_live_bytes) free_one(stay);
    if (below(50) == 0) {
      while (!stay.empty()) free_one(stay);
    }
    if (below(2) == 0) now_ns += 100'000'000;
    t.ops.push_back({.time_ns = now_ns += 10'000,
                     .bytes = bytes,
                     .slot = t.slots,
                     .stream = static_cast<std::uint16_t>(below(t.streams.size())),
                     .kind = op_kind::allocate});
    live_bytes += bytes;
    (below(one_stays_of) == 0 ? stay : go).push_back(t.ops.back());
  }
  return t;
}

class Refusals : public testing::TestWithParam<std::string> {};

TEST_P(Refusals, NoneOnADeviceThatHasRoom) {
  for (unsigned seed = 0; seed < 1500; ++seed) {
    const auto figures = figures_of(random_program(seed), GetParam());
    EXPECT_FALSE(figures.outcome.oom) << "seed " << seed << ", request " << figures.outcome.ops;
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Refusals,
                         testing::Values("growth", "growth,stream_reuse=device", "growth,stream_reuse=host",
                                         "growth,thread_cache=0", "growth:segments", "growth:backing=mapped", "caching",
                                         "expandable"));

}  // namespace
}  // namespace gpumem::bench
