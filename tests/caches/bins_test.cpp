/// The bin of a block, and blocks that fit no bin.
#include "cached.hpp"
#include "stream_cache.hpp"

namespace gpumem::caches {
namespace {

class CachedBins : public cached_program {
 protected:
  /// Sizes above 64 KiB that share the same first bin.
  static std::vector<std::size_t> sizes_of_one_bin(std::size_t sizes) {
    std::vector<std::size_t> found{1000 * 512};
    const std::uint32_t bin = bin_index::index_of(found.front() / 512);
    for (std::size_t bytes = found.front() + 512; found.size() < sizes; bytes += 512) {
      if (bin_index::index_of(bytes / 512) == bin) found.push_back(bytes);
    }
    return found;
  }
};

TEST_F(CachedBins, ManySizesThatShareABinAreServedAllTheSame) {
  const std::vector<std::size_t> sizes = sizes_of_one_bin(5);
  std::vector<void*> blocks;
  for (int turn = 0; turn < 100; ++turn) {
    const std::size_t bytes = sizes[static_cast<std::size_t>(turn * turn) % sizes.size()];
    blocks.push_back(take(bytes - static_cast<std::size_t>(turn)));
    if (turn % 3 != 0) continue;
    give(blocks.front());
    blocks.erase(blocks.begin());
  }
  EXPECT_TRUE(allocator_->check(0).ok()) << allocator_->check(0).message();
  for (void* const p : blocks) give(p);
  EXPECT_EQ(stats().live_bytes, 0U);
  EXPECT_EQ(stats().requested_bytes, 0U);
}

TEST_F(CachedBins, ManyStreamsAtOnceAreServed) {
  std::vector<stream_ref> streams(2100);
  std::vector<void*> blocks;
  for (stream_ref& s : streams) {
    s = device_.create_stream();
    blocks.push_back(take(4000, s));
  }
  EXPECT_EQ(stats().live_blocks, streams.size());
  EXPECT_EQ(stats().requested_bytes, streams.size() * 4000);
  for (std::size_t k = 0; k < streams.size(); ++k) {
    const free_args wrong{.bytes = 4001};
    EXPECT_EQ(allocator_->try_deallocate(blocks[k], wrong).code(), errc::wrong_size);
    give(blocks[k], {.stream = streams[k], .bytes = 4000});
    EXPECT_EQ(allocator_->try_deallocate(blocks[k]).code(), errc::double_free);
    give(take(512, streams[k]));
  }
  EXPECT_EQ(stats().live_blocks, 0U);
}

TEST(CachedBinsOfTheLargest, ABlockOfTerabytesIsServed) {
  sim_device large{{.capacity_bytes = 8 * tib}};
  device* const devices[] = {&large};
  const auto opened = allocator::open(devices, settings{});
  ASSERT_TRUE(opened.ok()) << opened.why().message();
  allocator& of = **opened;
  constexpr std::size_t bytes = 3 * tib - 100;
  for (int turn = 0; turn < 3; ++turn) {
    void* const p = of.allocate(bytes);
    EXPECT_EQ(of.stats(0)->requested_bytes, bytes);
    EXPECT_EQ(of.describe(p)->requested_bytes, bytes);
    const status wrong = of.try_deallocate(p, {.bytes = bytes - (std::size_t{1} << 41)});
    EXPECT_EQ(wrong.code(), errc::wrong_size) << "whose low bits are the same";
    EXPECT_NE(wrong.message().find(std::to_string(bytes)), std::string::npos) << wrong.message();
    EXPECT_TRUE(of.try_deallocate(p, {.bytes = bytes}).ok());
    EXPECT_EQ(of.try_deallocate(p).code(), errc::double_free);
    EXPECT_EQ(of.stats(0)->requested_bytes, 0U);
    EXPECT_TRUE(of.check(0).ok()) << of.check(0).message();
  }
}

}  // namespace
}  // namespace gpumem::caches
