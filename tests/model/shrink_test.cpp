/// Tests the model test itself: it finds planted bugs, and shrinks failing lists.
#include "shrink.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "run.hpp"

namespace gpumem::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int> numbers(int count) {
  std::vector<int> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

bool contains(const std::vector<int>& items, int item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

TEST(Shrink, KeepsOnlyTheOperationsOfTheFailure) {
  const auto fails = [](const std::vector<int>& items) {
    return contains(items, 3) && contains(items, 47) && contains(items, 98);
  };
  EXPECT_THAT(shrink(numbers(100), fails), ElementsAre(3, 47, 98));
}

TEST(Shrink, EndsWithNothingWhereEverythingFails) {
  EXPECT_TRUE(shrink(numbers(10), [](const std::vector<int>&) { return true; }).empty());
}

TEST(Shrink, KeepsEverythingThatIsNeeded) {
  EXPECT_EQ(shrink(numbers(17), [](const std::vector<int>& items) { return items.size() == 17; }).size(), 17U);
}

TEST(Shrink, ReachesAPairThatGoesOnlyOneByOne) {
  // Fails while at least two of the first ten are present: removing halves does not help, removing single ones does.
  const auto fails = [](const std::vector<int>& items) {
    return std::count_if(items.begin(), items.end(), [](int i) { return i < 10; }) >= 2;
  };
  EXPECT_EQ(shrink(numbers(50), fails).size(), 2U);
}

TEST(Operations, AreTheSameForTheSameSeed) {
  const generator_config with{.pools = 2, .capacity_bytes = capacity_bytes, .with_faults = true};
  const auto text = [&](std::uint64_t seed) {
    std::string all;
    for (const operation& op : random_operations(seed, 300, with)) all += op.to_string() + '\n';
    return all;
  };
  EXPECT_EQ(text(7), text(7));
  EXPECT_NE(text(7), text(8));
}

TEST(Operations, HoldEveryKindAndFaultsOnlyWhereAsked) {
  std::set<op_kind> kinds;
  for (const operation& op : random_operations(1, 5000, {.capacity_bytes = capacity_bytes})) kinds.insert(op.kind);
  EXPECT_EQ(kinds.count(op_kind::fault), 0U);
  EXPECT_EQ(kinds.size(), 16U);
}

/// Passes everything on to the product; a planted bug overrides one function.
class wrapper : public allocator {
 public:
  explicit wrapper(std::unique_ptr<allocator> inner) : inner_{std::move(inner)} {}
  result<void*> do_allocate(const request& r, oom_slot* refusal) override { return pass_on(r, refusal); }
  status do_deallocate(void* p, const free_args& stated) override { return inner_->try_deallocate(p, stated); }
  status record_use(void* p, stream_ref s) override { return inner_->record_use(p, s); }
  status stream_release(stream_ref s) override { return inner_->stream_release(s); }
  status capture_begin(stream_ref s) override { return inner_->capture_begin(s); }
  result<graph_ref> capture_end(stream_ref s) override { return inner_->capture_end(s); }
  status graph_release(graph_ref g) override { return inner_->graph_release(g); }
  result<trim_result> trim(int device, std::uint64_t bytes) override { return inner_->trim(device, bytes); }
  result<limit_result> set_limit(int device, std::uint64_t bytes) override { return inner_->set_limit(device, bytes); }
  void on_out_of_memory(oom_callback callback) override { inner_->on_out_of_memory(std::move(callback)); }
  [[nodiscard]] const std::vector<logical_device>& devices() const noexcept override { return inner_->devices(); }
  [[nodiscard]] result<statistics> stats(int device) const override { return inner_->stats(device); }
  [[nodiscard]] result<block_info> describe(const void* p) const override { return inner_->describe(p); }
  [[nodiscard]] status check(int device) const override { return inner_->check(device); }
  status flush_trace() override { return inner_->flush_trace(); }

 protected:
  allocator& inner() noexcept { return *inner_; }
  result<void*> pass_on(const request& r, oom_slot* refusal) {
    oom_report report;
    result<void*> got = inner_->try_allocate(r, &report);
    if (refusal != nullptr && got.code() == errc::out_of_memory)
      *refusal = std::make_unique<oom_report>(std::move(report));
    return got;
  }

 private:
  std::unique_ptr<allocator> inner_;
};

/// Forgets that another stream uses a block.
class forgets_uses final : public wrapper {
 public:
  using wrapper::wrapper;
  status record_use(void* p, stream_ref) override { return inner().describe(p).why(); }
};

/// Hands out the block before the last one again.
class hands_out_twice final : public wrapper {
 public:
  using wrapper::wrapper;
  result<void*> do_allocate(const request& r, oom_slot* refusal) override {
    result<void*> got = pass_on(r, refusal);
    if (!got) return got;
    void* const before = std::exchange(last_, *got);
    return before != nullptr && r.bytes > (std::size_t{1} << 20) ? before : *got;
  }

 private:
  void* last_ = nullptr;
};

/// Ignores the alignment of requests.
class ignores_alignment final : public wrapper {
 public:
  using wrapper::wrapper;
  result<void*> do_allocate(const request& r, oom_slot* refusal) override {
    request plain = r;
    plain.alignment = block_granularity;
    return pass_on(plain, refusal);
  }
};

/// Reports a free that it did not make.
class keeps_blocks final : public wrapper {
 public:
  using wrapper::wrapper;
  status do_deallocate(void* p, const free_args& stated) override {
    if (stated.bytes.has_value()) return {};
    return inner().try_deallocate(p, stated);
  }
};

template <typename Bug>
result<std::unique_ptr<allocator>> open_with(sim_device& on, const settings& with) {
  auto opened = open_product(on, with);
  if (!opened) return opened;
  return std::unique_ptr<allocator>{std::make_unique<Bug>(std::move(*opened))};
}

/// The report of the first of 20 seeds that finds the bug.
template <typename Bug>
std::string story_of() {
  configuration capped;
  capped.limit = "60%";
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto story = run_and_shrink(capped, seed, 300, open_with<Bug>);
    if (story) return *story;
  }
  return "not found";
}

std::size_t operations_in(const std::string& story) {
  std::size_t count = 0;
  for (std::size_t at = story.find("\n  #"); at != std::string::npos; at = story.find("\n  #", at + 1)) ++count;
  return count;
}

TEST(PlantedBug, AForgottenUseIsAnEarlyReuse) {
  const std::string story = story_of<forgets_uses>();
  EXPECT_THAT(story, HasSubstr("early_reuse"));
  EXPECT_THAT(story, HasSubstr("record a use of block"));
  EXPECT_THAT(story, HasSubstr("again: GPUMEM_MODEL_SEED="));
  EXPECT_THAT(story, HasSubstr("growth, limit 60%, one pool, reuse device, ids query"));
  EXPECT_LE(operations_in(story), 12U) << story;
  EXPECT_GE(operations_in(story), 4U) << "allocate, use, free, allocate\n" << story;
}

TEST(PlantedBug, ABlockHandedOutTwiceIsAnOverlap) {
  const std::string story = story_of<hands_out_twice>();
  EXPECT_THAT(story, HasSubstr("overlap block"));
  EXPECT_EQ(operations_in(story), 2U) << story;
}

TEST(PlantedBug, AnIgnoredAlignmentIsSeen) {
  const std::string story = story_of<ignores_alignment>();
  EXPECT_THAT(story, HasSubstr("is not aligned to"));
  EXPECT_LE(operations_in(story), 3U) << story;
}

TEST(PlantedBug, ABlockThatIsNotFreedIsMissedAtOnce) {
  const std::string story = story_of<keeps_blocks>();
  EXPECT_THAT(story, HasSubstr("as live; the model 0, 0 and 0"));
  EXPECT_EQ(operations_in(story), 2U) << story;
}

}  // namespace
}  // namespace gpumem::model
