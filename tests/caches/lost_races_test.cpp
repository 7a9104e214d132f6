/// A request that waits for memory releases the lock, and other threads may take the memory first.
#include <climits>

#include "cached.hpp"
#include "forwarding_device.hpp"

namespace gpumem::caches {
namespace {

class LostRaces : public cached_program, public ::testing::WithParamInterface<stream_reuse> {
 protected:
  void SetUp() override {
    cached_program::SetUp();
    allocator_.reset();
    settings s;
    ASSERT_TRUE(s.set("policy", "caching").ok());
    ASSERT_TRUE(s.set("limit", "64MiB").ok());
    s.reuse = GetParam();
    s.free_wait_ms = 100;
    device* const devices[] = {&hooked_};
    auto opened = pooled_allocator::open(devices, s);
    ASSERT_TRUE(opened.ok()) << opened.why().message();
    allocator_ = *std::move(opened);
  }
  /// Takes all memory on one stream, and frees it while another stream uses it.
  void use_all() {
    void* const all = take(64 * mib, owner_);
    EXPECT_TRUE(allocator_->record_use(all, user_).ok());
    device_.enqueue_use(user_, 1'000'000, reinterpret_cast<std::uintptr_t>(all), 64 * mib);
    give(all);
  }
  /// Makes the first `times` waits fail: others take the memory as soon as a wait ends, use it and free it.
  void let_others_win(unsigned times) {
    hooked_.after_wait = [this, times] {
      if (theirs_ || won_ == times) return;
      theirs_ = true;
      ++won_;
      use_all();
      theirs_ = false;
    };
  }

  forwarding_device hooked_{device_};
  stream_ref owner_ = device_.create_stream();
  stream_ref user_ = device_.create_stream();
  unsigned won_ = 0;
  bool theirs_ = false;
};

TEST_P(LostRaces, AreNoReasonToRefuseMemoryThatOthersHaveFreed) {
  const unsigned wins = GetParam() == stream_reuse::device ? 40 : 12;  // there each try makes more waits
  use_all();
  let_others_win(wins);
  void* const all = take(64 * mib, device_.create_stream());
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(won_, wins);
  give(all);
}

TEST_P(LostRaces, HoldARequestNoLongerThanItMayWait) {
  use_all();
  let_others_win(UINT_MAX);
  const stream_ref last = device_.create_stream();
  EXPECT_EQ(allocator_->try_allocate({.bytes = 64 * mib, .stream = last}).code(), errc::out_of_memory);
  hooked_.after_wait = nullptr;
  give(take(64 * mib, last));
}

std::string name_of(const ::testing::TestParamInfo<stream_reuse>& info) {
  return info.param == stream_reuse::device ? "device" : info.param == stream_reuse::poll ? "poll" : "host";
}
INSTANTIATE_TEST_SUITE_P(Reuse, LostRaces,
                         ::testing::Values(stream_reuse::device, stream_reuse::poll, stream_reuse::host), name_of);

}  // namespace
}  // namespace gpumem::caches
