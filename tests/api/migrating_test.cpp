/// docs/migrating.md, row by row: the column "the same" holds on the simulated device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>

#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "tree.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t gib = std::uint64_t{1} << 30;

/// The rows' first cells, with their backquotes, and second cells.
std::vector<std::pair<std::string, std::string>> rows() {
  std::vector<std::pair<std::string, std::string>> out;
  std::istringstream lines{tree::text("docs/migrating.md")};
  std::string system;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## ")) system = line.substr(3) + ": ";
    if (!line.starts_with("| ") || line.starts_with("| setting")) continue;
    const std::size_t second = line.find(" | ", 2);
    const std::size_t third = line.find(" | ", second + 3);
    out.emplace_back(system + line.substr(2, second - 2), line.substr(second + 3, third - second - 3));
  }
  return out;
}

/// An allocator over a simulated card with the variables in the second cell of a row.
class migrated {
 public:
  explicit migrated(const std::string& cell, std::size_t cards = 1) {
    std::istringstream words{cell.substr(1, cell.size() - 2)};
    environment variables{{"GPUMEM_STRICT", "1"}};
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      variables.emplace_back(word.substr(0, equals), word.substr(equals + 1));
    }
    settings with;
    EXPECT_TRUE(with.apply(variables).ok()) << cell;
    with.trace_path.clear();
    for (std::size_t i = 0; i < cards; ++i) {
      sim_config config;
      config.ordinal = static_cast<int>(i);
      config.first_address += i << 44;
      cards_.push_back(std::make_unique<sim_device>(config));
    }
    std::vector<device*> devices;
    for (const auto& each : cards_) devices.push_back(each.get());
    auto opened = allocator::open(devices, with);
    EXPECT_TRUE(opened.ok()) << cell << ": " << opened.why().message();
    if (opened) memory_ = *std::move(opened);
  }
  allocator& memory() { return *memory_; }
  sim_device& card(std::size_t i = 0) { return *cards_[i]; }
  [[nodiscard]] statistics stats(int of = 0) const { return *memory_->stats(of); }
  bool allocate(std::uint64_t bytes, int of = 0) {
    return memory_->try_allocate({.bytes = static_cast<std::size_t>(bytes), .device = of}, &report).ok();
  }
  oom_report report;

 private:
  std::vector<std::unique_ptr<sim_device>> cards_;
  std::unique_ptr<allocator> memory_;
};

void grows_and_never_shrinks(const std::string& cell) {
  migrated m{cell};
  ASSERT_TRUE(m.allocate(mib));
  EXPECT_EQ(m.card().used_bytes(), 16 * mib);
  void* large = *m.memory().try_allocate({.bytes = gib});
  const std::uint64_t grown = m.card().used_bytes();
  EXPECT_GE(grown, gib);
  m.memory().deallocate(large);
  EXPECT_EQ(m.card().used_bytes(), grown);
  EXPECT_GE(m.memory().trim(0)->returned_bytes, gib) << "but trim gives back";
}

/// Allocates until out of memory; returns the number of bytes.
std::uint64_t filled(migrated& m, int of = 0) {
  while (m.allocate(64 * mib, of)) {
  }
  EXPECT_THAT(m.report.cause, testing::AnyOf(oom_cause::limit, oom_cause::fragmentation));
  return m.stats(of).reserved_bytes;
}

using row_test = std::function<void(const std::string& cell)>;

const std::map<std::string, row_test>& tests() {
  static const std::map<std::string, row_test> all{
      {"TensorFlow: (default)",
       [](const std::string& cell) {
         migrated m{cell, 2};
         ASSERT_TRUE(m.allocate(mib, 1));
         for (const std::size_t i : {0U, 1U}) {
           EXPECT_GT(m.card(i).used_bytes(), 77 * gib) << i;
           EXPECT_LT(m.card(i).used_bytes(), 80 * gib) << "less the reserve";
         }
       }},
      {"TensorFlow: `allow_growth=True`", grows_and_never_shrinks},
      {"TensorFlow: `set_memory_growth(gpu, True)`", grows_and_never_shrinks},
      {"TensorFlow: `TF_FORCE_GPU_ALLOW_GROWTH=true`",
       [](const std::string& cell) {
         grows_and_never_shrinks(cell);
         settings with;
         ASSERT_TRUE(with.set("policy", "grab_all").ok());
         ASSERT_TRUE(with.apply({{"GPUMEM_POLICY", "growth"}}).ok());
         EXPECT_EQ(with.policy, "growth") << "the environment wins over code";
       }},
      {"TensorFlow: `per_process_gpu_memory_fraction=0.3`",
       [](const std::string& cell) {
         migrated m{cell};
         ASSERT_TRUE(m.allocate(mib));
         EXPECT_EQ(m.card().used_bytes(), 24 * gib) << "taken at once";
         EXPECT_EQ(filled(m), 24 * gib);
       }},
      {"TensorFlow: `LogicalDeviceConfiguration(memory_limit=4096)`",
       [](const std::string& cell) {
         migrated m{cell};
         ASSERT_TRUE(m.allocate(mib));
         EXPECT_LT(m.card().used_bytes(), gib) << "growth and a limit combine";
         EXPECT_GT(filled(m), 4 * gib - 64 * mib) << "what is left is less than a request of 64 MiB";
       }},
      {"TensorFlow: `set_logical_device_configuration`",
       [](const std::string& cell) {
         migrated m{cell};
         ASSERT_EQ(m.memory().devices().size(), 2U);
         for (const int i : {0, 1}) {
           EXPECT_EQ(m.memory().devices()[static_cast<std::size_t>(i)].physical_ordinal, 0);
           EXPECT_EQ(filled(m, i), 2 * gib);
         }
       }},
      {"TensorFlow: `gpu_system_memory_size_in_mb=500`",
       [](const std::string& cell) {
         migrated m{"`GPUMEM_POLICY=grab_all " + cell.substr(1)};
         ASSERT_TRUE(m.allocate(mib));
         EXPECT_EQ(80 * gib - m.card().used_bytes(), 500 * mib);
       }},
      {"TensorFlow: `TF_ENABLE_GPU_GARBAGE_COLLECTION=true`",
       [](const std::string& cell) {
         migrated m{cell};
         void* const idle = *m.memory().try_allocate({.bytes = static_cast<std::size_t>(50 * gib)});
         m.memory().deallocate(idle);
         EXPECT_TRUE(m.allocate(60 * gib)) << "the idle segment went back";
       }},
      {"TensorFlow: `visible_device_list=\"1\"`",
       [](const std::string& cell) {
         EXPECT_EQ(cell, "`CUDA_VISIBLE_DEVICES=1`") << "CUDA's own, before gpumem is asked";
       }},
      {"PyTorch: (default)",
       [](const std::string& cell) {
         migrated m{cell};
         for (const auto& [bytes, segment] :
              {std::pair{64 * mib / 1024, 2 * mib}, {5 * mib, 20 * mib}, {33 * mib, 34 * mib}}) {
           const std::uint64_t before = m.card().used_bytes();
           ASSERT_TRUE(m.allocate(bytes));
           EXPECT_EQ(m.card().used_bytes() - before, segment) << bytes;
         }
       }},
      {"PyTorch: `set_per_process_memory_fraction(0.5)`",
       [](const std::string& cell) {
         migrated m{cell};
         EXPECT_EQ(filled(m), 40 * gib);
       }},
      {"PyTorch: `expandable_segments:True`",
       [](const std::string& cell) {
         migrated m{cell};
         void* const first = *m.memory().try_allocate({.bytes = gib});
         ASSERT_TRUE(m.allocate(gib));
         m.memory().deallocate(first);
         ASSERT_TRUE(m.allocate(gib + 512 * mib)) << "does not fit into the hole, whose pages serve all the same";
         EXPECT_LE(m.card().peak_used_bytes(), 2 * gib + 512 * mib + gib / 32);
       }},
      {"PyTorch: `torch.cuda.empty_cache()`",
       [](const std::string&) {
         migrated m{"`GPUMEM_POLICY=caching`"};
         m.memory().deallocate(*m.memory().try_allocate({.bytes = gib}));
         const trim_result got = *m.memory().trim(0);
         EXPECT_EQ(got.returned_bytes, gib);
         EXPECT_EQ(m.card().used_bytes(), 0U);
       }},
      {"PyTorch: `torch.cuda.memory_reserved()`",
       [](const std::string&) {
         migrated m{"`GPUMEM_POLICY=caching`"};
         ASSERT_TRUE(m.allocate(gib));
         EXPECT_EQ(m.stats().reserved_bytes, m.card().used_bytes());
       }},
      {"PyTorch: `torch.cuda.max_memory_allocated()`",
       [](const std::string&) {
         migrated m{"`GPUMEM_POLICY=caching`"};
         m.memory().deallocate(*m.memory().try_allocate({.bytes = 1000}));
         EXPECT_EQ(m.stats().peak_live_bytes, 1024U) << "in blocks of 512";
         ASSERT_TRUE(m.allocate(10));
         EXPECT_EQ(m.stats().requested_bytes, 10U);
       }},
      {"PyTorch: `torch.cuda.memory._record_memory_history()`",
       [](const std::string& cell) {
         settings with;
         ASSERT_TRUE(
             with.apply({{"GPUMEM_TRACE", cell.substr(cell.find('=') + 1, cell.size() - cell.find('=') - 2)}}).ok());
         EXPECT_EQ(with.trace_path, "run.csv.gz");
       }},
      {"PyTorch: `tensor.record_stream(s)`",
       [](const std::string&) {
         migrated m{"`GPUMEM_POLICY=caching`"};
         const stream_ref other = m.card().create_stream();
         void* const block = *m.memory().try_allocate({.bytes = mib});
         m.card().enqueue(other, 1'000'000);
         ASSERT_TRUE(m.memory().record_use(block, other).ok());
         m.memory().deallocate(block);
         EXPECT_EQ(m.stats().fenced_bytes, mib) << "free only when that stream is done";
       }},
      {"PyTorch: `torch.cuda.OutOfMemoryError`", [](const std::string&) {
         migrated m{"`GPUMEM_POLICY=caching GPUMEM_LIMIT=1GiB`"};
         try {
           (void)m.memory().allocate(static_cast<std::size_t>(2 * gib));
           FAIL() << "2 GiB within 1 GiB";
         } catch (const out_of_memory& why) {
           EXPECT_EQ(why.report().cause, oom_cause::limit);
           EXPECT_THAT(why.what(), testing::HasSubstr("2.00 GiB"));
         }
       }}};
  return all;
}

TEST(migrating, every_row_is_as_the_document_says) {
  const auto found = rows();
  EXPECT_EQ(found.size(), tests().size());
  for (const auto& [setting, cell] : found) {
    const auto test = tests().find(setting);
    ASSERT_NE(test, tests().end()) << "no case for the row " << setting;
    const testing::ScopedTrace where{__FILE__, __LINE__, setting};
    test->second(cell);
  }
}

}  // namespace
}  // namespace gpumem
