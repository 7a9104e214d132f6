/// Every host allocation failure becomes a status: nothing is lost, nothing waits for ever, the next request works.
#include <unistd.h>

#include <filesystem>
#include <ostream>
#include <string>

#include "canned_program.hpp"

namespace gpumem::throwing {
namespace {

struct canned_run {
  std::string name;
  std::string policy;
  std::string slack{};
  bool trace = false;
  bool plan = false;

  friend std::ostream& operator<<(std::ostream& out, const canned_run& r) { return out << r.name; }
};

class HostMemory : public ::testing::TestWithParam<canned_run> {
 protected:
  void SetUp() override {
    former_ = set_log_sink([](std::string_view) {});
  }
  void TearDown() override {
    static_cast<void>(set_log_sink(former_));
    std::filesystem::remove(path(".csv"));
    std::filesystem::remove(path(".plan"));
  }
  [[nodiscard]] static std::string path(const std::string& end) {
    // Each test has its own, since ctest runs several at once.
    return ::testing::TempDir() + "gpumem_throwing_" + std::to_string(::getpid()) + GetParam().name + end;
  }
  [[nodiscard]] static sim_config card() {
    sim_config c;
    c.capacity_bytes = 512 * mib;
    return c;
  }
  [[nodiscard]] settings with() const {
    settings s;
    EXPECT_TRUE(s.set("policy", GetParam().policy).ok());
    if (!GetParam().slack.empty()) {
      EXPECT_TRUE(s.set("slack", GetParam().slack).ok());
    }
    if (GetParam().trace) s.trace_path = path(".csv");
    if (GetParam().plan) s.plan_path = path(".plan");
    return s;
  }
  void make_plan() const {
    settings s = with();
    s.policy = "planned:record";
    canned_program recorded{s, card()};
    recorded.run();
  }
  log_sink former_;
};

// Until a run meets no failure.
TEST_P(HostMemory, FailsAtEachOfItsRequestsAndNothingIsLost) {
  const time_limit limit{100};
  if (GetParam().plan) make_plan();
  std::uint64_t n = 1;
  for (;; ++n) {
    SCOPED_TRACE("the request for host memory that fails: " + std::to_string(n));
    canned_program program{with(), card()};
    host_memory::fail_nth(n);
    program.run();
    if (!host_memory::failed() || HasFailure()) break;
  }
  host_memory::fail_nth(0);
  RecordProperty("requests_for_host_memory", std::to_string(n - 1));
  EXPECT_GT(n, 30U) << "the program asks for more than that";
}

TEST_P(HostMemory, ADeviceThatThrowsAtEachOfItsCallsIsADeviceThatFails) {
  const time_limit limit{100};
  if (GetParam().plan) make_plan();
  std::uint64_t n = 1;
  for (;; ++n) {
    SCOPED_TRACE("the device call that throws: " + std::to_string(n));
    canned_program program{with(), card()};
    program.edge().throw_at(n);
    program.run();
    if (!program.edge().thrown() || HasFailure()) break;
  }
  EXPECT_GT(n, 30U) << "the program makes more calls than that";
}

#ifdef __SANITIZE_ADDRESS__
constexpr std::uint64_t stride = 4;  // a round takes a second there
#else
constexpr std::uint64_t stride = 1;
#endif

TEST_P(HostMemory, FailsWhileTheTablesOfManyBlocksGrow) {
  const time_limit limit{100};
  if (GetParam().plan) make_plan();
  std::uint64_t n = 1;
  for (;; n += stride) {
    SCOPED_TRACE("the request for host memory that fails: " + std::to_string(n));
    canned_program program{with(), card()};
    host_memory::fail_nth(n);
    program.run_with_many_blocks(6000);
    if (!host_memory::failed() || HasFailure()) break;
  }
  host_memory::fail_nth(0);
  EXPECT_GT(n, 10U);
}

INSTANTIATE_TEST_SUITE_P(Each, HostMemory,
                         ::testing::Values(canned_run{"growth", "growth"}, canned_run{"caching", "caching"},
                                           canned_run{"expandable", "expandable"},
                                           canned_run{"slack", "expandable", "5%"},
                                           canned_run{"planned", "planned", {}, false, true},
                                           canned_run{"recorded", "growth", {}, true}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace gpumem::throwing
