/// GPUMEM_TRACE agrees with the statistics.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "setup.hpp"

namespace gpumem::conformance {
namespace {

struct row {
  std::string action;
  std::uint64_t pointer = 0;
  std::uint64_t bytes = 0;
  std::uint64_t stream = 0;
};

/// RMM's CSV: Thread,Time,Action,Pointer,Size,Stream.
std::vector<row> rows_of(const std::string& path) {
  std::ifstream file{path};
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "Thread,Time,Action,Pointer,Size,Stream");
  std::vector<row> rows;
  while (std::getline(file, line)) {
    std::istringstream cells{line};
    std::vector<std::string> c;
    for (std::string cell; std::getline(cells, cell, ',');) c.push_back(cell);
    EXPECT_EQ(c.size(), 6U) << line;
    if (c.size() != 6 || c[2] == "allocate failure") continue;  // which has no pointer
    rows.push_back({c[2], std::stoull(c[3], nullptr, 16), std::stoull(c[4]), std::stoull(c[5])});
  }
  return rows;
}

std::uint64_t whole(std::uint64_t bytes) { return (bytes + 511) / 512 * 512; }

class Trace : public program {
 protected:
  void SetUp() override {
    path_ = (std::filesystem::temp_directory_path() /
             ("gpumem_" + std::to_string(::getpid()) + "_" + name_of({GetParam(), 0}) + ".csv"))
                .string();
    device_ = GetParam().kind.make();
    settings s = GetParam().to_settings();
    s.trace_path = path_;
    open(s);
  }
  void TearDown() override {
    program::TearDown();
    std::filesystem::remove(path_);
  }
  std::string path_;
};

TEST_P(Trace, ReplaysToTheSamePeaks) {
  const stream_ref a = device_->create_stream();
  const stream_ref b = device_->create_stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 300; ++i) {
    const std::size_t bytes = 100 + static_cast<std::size_t>(i) * 7919 % 500'000;
    blocks.push_back(take(bytes, i % 3 == 0 ? b : a));
    if (i % 2 == 1) {
      give(blocks[blocks.size() / 2]);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(blocks.size() / 2));
    }
  }
  EXPECT_FALSE(allocator_->try_deallocate(&blocks).ok());
  EXPECT_EQ(try_take(2 * static_cast<std::size_t>(stats().limit_bytes)), nullptr);
  give_all(blocks);
  ASSERT_TRUE(allocator_->flush_trace().ok());
  const statistics s = stats();

  std::map<std::uint64_t, std::uint64_t> live;
  std::uint64_t live_bytes = 0;
  std::uint64_t peak = 0;
  std::uint64_t frees = 0;
  for (const row& r : rows_of(path_)) {
    if (r.action == "allocate") {
      EXPECT_TRUE(live.emplace(r.pointer, r.bytes).second) << "allocated twice";
      live_bytes += whole(r.bytes);
      peak = std::max(peak, live_bytes);
    } else {
      ASSERT_EQ(r.action, "free");
      const auto found = live.find(r.pointer);
      ASSERT_NE(found, live.end());
      EXPECT_EQ(found->second, r.bytes);
      live_bytes -= whole(r.bytes);
      live.erase(found);
      ++frees;
    }
  }
  EXPECT_TRUE(live.empty());
  EXPECT_EQ(peak, s.peak_live_bytes);
  EXPECT_EQ(frees, s.frees);

  // Repeating the calls in a new allocator reserves the same.
  const std::vector<row> rows = rows_of(path_);
  allocator_.reset();
  device_.reset();  // the next device needs the world for itself
  device_ = GetParam().kind.make();
  open(GetParam().to_settings());
  std::map<std::uint64_t, stream_ref> streams;
  std::map<std::uint64_t, void*> replayed;
  for (const row& r : rows) {
    if (streams.count(r.stream) == 0) streams[r.stream] = r.stream == 0 ? stream_ref{} : device_->create_stream();
    if (r.action == "allocate") {
      replayed[r.pointer] = take(r.bytes, streams[r.stream]);
    } else {
      give(replayed[r.pointer], {.bytes = r.bytes});
    }
  }
  EXPECT_EQ(stats().peak_live_bytes, s.peak_live_bytes);
  EXPECT_EQ(stats().peak_reserved_bytes, s.peak_reserved_bytes);
}

INSTANTIATE_TEST_SUITE_P(Every, Trace, ::testing::ValuesIn(every_stream_setup()), name_of);

}  // namespace
}  // namespace gpumem::conformance
