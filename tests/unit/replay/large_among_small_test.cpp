/// Large tensors that come again and again among small ones that stay: `growth` keeps the segments of the large ones
/// whole (src/heap/whole_segments.hpp). The patterns are those of pytorch#35901 and httomo#667.
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "row_figures.hpp"
#include "trace.hpp"

namespace gpumem::bench {
namespace {

/// A program on one stream that waits for the device after each step.
class program {
 public:
  std::uint32_t allocate(std::uint64_t bytes) {
    sizes_.push_back(bytes);
    add(op_kind::allocate, static_cast<std::uint32_t>(sizes_.size() - 1));
    return static_cast<std::uint32_t>(sizes_.size() - 1);
  }
  void free(std::uint32_t slot) { add(op_kind::free, slot); }
  void wait_for_device() { now_ns_ += 100'000'000; }
  [[nodiscard]] trace done() && {
    t_.name = "large-among-small";
    t_.streams = {0};
    t_.slots = static_cast<std::uint32_t>(sizes_.size());
    return std::move(t_);
  }

 private:
  void add(op_kind kind, std::uint32_t slot) {
    now_ns_ += 10'000;
    t_.ops.push_back({.time_ns = now_ns_, .bytes = sizes_[slot], .slot = slot, .stream = 0, .kind = kind});
  }
  trace t_;
  std::vector<std::uint64_t> sizes_;
  std::uint64_t now_ns_ = 0;
};

/// Each step has one large tensor of another size, and four small ones that stay for a hundred steps.
trace large_among_small(unsigned seed) {
  std::mt19937 random{seed};
  program made;
  std::deque<std::uint32_t> small;
  for (int step = 0; step < 400; ++step) {
    made.free(made.allocate(mib * (600 + random() % 400)));
    for (int k = 0; k < 4; ++k) small.push_back(made.allocate(512 * (1 + random() % 20'000)));
    for (; small.size() > 400; small.pop_front()) made.free(small.front());
    made.wait_for_device();
  }
  return std::move(made).done();
}

/// A scratch block comes and goes; outputs are made while it is free, and go together.
trace scratch_and_outputs(unsigned seed) {
  std::mt19937 random{seed};
  program made;
  std::vector<std::uint32_t> outputs;
  for (int step = 0; step < 400; ++step) {
    made.free(made.allocate(gib));
    outputs.push_back(made.allocate(mib * (10 + random() % 50)));
    made.wait_for_device();
    if (outputs.size() < 40) continue;
    for (const std::uint32_t each : outputs) made.free(each);
    outputs.clear();
  }
  return std::move(made).done();
}

/// Weights stay, and activations of about their size are free again before the next scratch block comes.
trace weights_and_activations(unsigned seed) {
  std::mt19937 random{seed};
  program made;
  for (int k = 0; k < 400; ++k) made.allocate(512 * (4'000 + random() % 3'000));
  for (int step = 0; step < 60; ++step) {
    made.free(made.allocate(mib * (1800 + random() % 200)));
    std::vector<std::uint32_t> activations;
    for (std::uint64_t k = 300 + random() % 300; k != 0; --k) {
      activations.push_back(made.allocate(512 * (4'000 + random() % 3'000)));
    }
    for (const std::uint32_t each : activations) made.free(each);
    made.wait_for_device();
  }
  return std::move(made).done();
}

TEST(LargeAmongSmall, GrowthDividesSegmentsForBlocksThatAreFreeInTime) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    EXPECT_GT(figures_of(weights_and_activations(seed), "growth").utilization(), .92) << "seed " << seed;
  }
}

TEST(LargeAmongSmall, GrowthKeepsTheSegmentsOfLargeTensorsWhole) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    EXPECT_GT(figures_of(large_among_small(seed), "growth").utilization(), .9) << "seed " << seed;
    EXPECT_GT(figures_of(scratch_and_outputs(seed), "growth").utilization(), .92) << "seed " << seed;
  }
}

}  // namespace
}  // namespace gpumem::bench
