/// The trace reader on damaged traces: for any bytes, it returns a valid trace or one line that names the file.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../unit/replay/test_files.hpp"
#include "log.hpp"

namespace gpumem::bench {
namespace {

class random_source {
 public:
  explicit random_source(std::uint32_t seed) : state_{seed * 2654435761U + 1} {}
  std::uint32_t below(std::size_t end) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return state_ % static_cast<std::uint32_t>(end);
  }

 private:
  std::uint32_t state_;
};

/// A file in memory, so that 20,000 cases take little time.
class memory_file {
 public:
  memory_file() : descriptor_{::memfd_create("trace", MFD_CLOEXEC)} {}
  ~memory_file() { ::close(descriptor_); }
  memory_file(const memory_file&) = delete;
  memory_file& operator=(const memory_file&) = delete;

  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }
  void write(const std::string& bytes) const {
    ASSERT_EQ(::ftruncate(descriptor_, 0), 0);
    ASSERT_EQ(::pwrite(descriptor_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }

 private:
  int descriptor_;
};

std::string valid_trace(random_source& random) {
  std::string rows;
  std::vector<std::string> live;
  for (std::uint32_t i = 0, count = 1 + random.below(12); i < count; ++i) {
    if (!live.empty() && random.below(3) == 0) {
      rows += "1,00:00:00:000009,free," + live.back() + "\n";
      live.pop_back();
    } else {
      live.push_back("0x" + std::to_string(1000 + i) + "," + std::to_string(1 + random.below(1 << 30)) + "," +
                     std::to_string(random.below(3)));
      rows += "1,00:00:00:000008,allocate," + live.back() + (random.below(8) == 0 ? "\r\n" : "\n");
    }
  }
  return csv(rows);
}

void damage(std::string& bytes, random_source& random) {
  static const std::vector<std::string> words = {",",
                                                 "\n",
                                                 "\r",
                                                 "-",
                                                 "0x",
                                                 "(nil)",
                                                 "free",
                                                 "allocate",
                                                 "allocate failure",
                                                 "growth@1",
                                                 "18446744073709551615",
                                                 "9223372036854775808",
                                                 std::string(1, '\0'),
                                                 "\xff",
                                                 ":",
                                                 "nan"};
  for (std::uint32_t edits = random.below(4); edits > 0 && !bytes.empty(); --edits) {
    const std::size_t at = random.below(bytes.size());
    switch (random.below(5)) {
      case 0:
        bytes[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.erase(at, 1 + random.below(20));
        break;
      case 3:
        bytes.insert(at, words[random.below(words.size())]);
        break;
      default:
        bytes.insert(at, bytes.substr(random.below(bytes.size()), 1 + random.below(60)));
        break;
    }
  }
}

/// Checks every invariant of trace.hpp.
void expect_sound(const trace& t, std::uint32_t seed) {
  std::vector<std::uint64_t> live(t.slots);
  std::uint64_t time_ns = 0;
  ASSERT_FALSE(t.ops.empty()) << seed;
  for (const trace_op& op : t.ops) {
    ASSERT_LT(op.slot, t.slots) << seed;
    ASSERT_LT(op.stream, t.streams.size()) << seed;
    ASSERT_GE(op.time_ns, time_ns) << seed;
    ASSERT_GT(op.bytes, 0U) << seed;
    ASSERT_EQ(live[op.slot], op.kind == op_kind::free ? op.bytes : 0) << seed;
    live[op.slot] = op.kind == op_kind::free ? 0 : op.bytes;
    time_ns = op.time_ns;
  }
  for (const refused_request& each : t.refused) {
    ASSERT_LE(each.before_op, t.ops.size()) << seed;
    ASSERT_LT(each.stream, t.streams.size()) << seed;
  }
}

TEST(trace_fuzz, any_bytes_are_a_sound_trace_or_one_line) {
  const memory_file file;
  const std::string path = file.path();
  const log_sink former = set_log_sink([](std::string_view) {});  // of traces that are cut
  unsigned accepted = 0;
  unsigned refused = 0;
  for (std::uint32_t seed = 1; seed <= 20'000; ++seed) {
    random_source random{seed};
    std::string bytes = valid_trace(random);
    const std::uint32_t form = random.below(3);  // damaged text, damaged text in gzip, damaged gzip
    if (form < 2) damage(bytes, random);
    if (form > 0) bytes = gzipped(bytes);
    if (form == 2) damage(bytes, random);
    file.write(bytes);
    const auto t = load_trace(path);
    if (t.ok()) {
      ++accepted;
      expect_sound(*t, seed);
    } else {
      ++refused;
      ASSERT_TRUE(t.why().message().starts_with(path + ":")) << seed << ": " << t.why().message();
      for (const char c : t.why().message()) ASSERT_TRUE(c >= 0x20 && c < 0x7f) << seed;
    }
    if (testing::Test::HasFatalFailure()) return;
  }
  (void)set_log_sink(former);
  EXPECT_GT(accepted, 2000U) << "mostly what is not refused is what was not damaged";
  EXPECT_GT(refused, 2000U);
}

}  // namespace
}  // namespace gpumem::bench
