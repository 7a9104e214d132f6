/// A user's policy that throws: the request is refused with a status that names the policy and its function, and
/// nothing else is affected.
#include "gpumem/policy.hpp"

#include <gmock/gmock.h>

#include <stdexcept>
#include <string>

#include "canned_program.hpp"

namespace gpumem::throwing {
namespace {

using ::testing::HasSubstr;

/// The function that throws, and how often. One policy at a time.
struct breaking {
  std::string function;
  bool always = false;
  bool no_exception = false;  ///< throws a number
  unsigned thrown = 0;
};
breaking now;

void may_throw(const char* function) {
  if (now.function != function || (!now.always && now.thrown != 0)) return;
  ++now.thrown;
  if (now.no_exception) throw 7;
  throw std::runtime_error{"division\nby zero"};
}

/// Takes segments of 4 MiB in two classes, or maps pages.
class throwing_policy final : public policy {
 public:
  explicit throwing_policy(bool paged) : paged_{paged} {}
  segment_request first(const pool_view&) override {
    may_throw("first");
    return paged_ ? segment_request{} : segment_request{.bytes = 4 * mib, .least_bytes = 4 * mib};
  }
  segment_request grow(const pool_view&, std::uint64_t need) override {
    may_throw("grow");
    return {.bytes = std::max(need, 256 * mib), .least_bytes = need};
  }
  void grew(const pool_view&, std::uint64_t) override { may_throw("grew"); }
  std::uint64_t smaller(std::uint64_t refused, std::uint64_t least) override {
    may_throw("smaller");
    return refused > least ? least : 0;
  }
  [[nodiscard]] page_rules pages(const pool_view& view) const override {
    may_throw("pages");
    return {.range_bytes = paged_ ? view.total_bytes : 0};
  }
  [[nodiscard]] page_request page_in(const pool_view&, std::uint64_t, std::uint64_t missing) const override {
    may_throw("page_in");
    return {.make_bytes = missing, .run_bytes = 2 * mib};
  }
  [[nodiscard]] unsigned segment_class(std::uint64_t bytes) const override {
    may_throw("segment_class");
    return bytes < mib ? 0 : 1;
  }
  [[nodiscard]] unsigned segment_classes() const override {
    may_throw("segment_classes");
    return paged_ ? 1 : 2;
  }
  [[nodiscard]] bool gives_back(give_back, const pool_view&) const override {
    may_throw("gives_back");
    return true;
  }

 private:
  bool paged_;
};

class ThrowingPolicy : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    static_cast<void>(register_policy("throws", "for tests",
                                      [](const policy_setup&) { return std::make_unique<throwing_policy>(false); }));
    static_cast<void>(register_policy("throws_paged", "for tests",
                                      [](const policy_setup&) { return std::make_unique<throwing_policy>(true); }));
  }
  void SetUp() override {
    former_ = set_log_sink([this](std::string_view line) { said_ += std::string{line} + "\n"; });
  }
  void TearDown() override {
    now = {};
    static_cast<void>(set_log_sink(former_));
  }
  [[nodiscard]] static bool asked_at_start() { return GetParam() == "pages" || GetParam() == "segment_classes"; }
  [[nodiscard]] static std::string policy_name() { return GetParam() == "page_in" ? "throws_paged" : "throws"; }
  static settings with() {
    settings s;
    EXPECT_TRUE(s.set("policy", policy_name()).ok());
    return s;
  }
  static sim_config card() {
    sim_config c;
    c.capacity_bytes = 64 * mib;
    c.foreign_bytes = 8 * mib;  // makes the device refuse what the limit allows
    return c;
  }
  static void expect_named(const status& failed) {
    EXPECT_EQ(failed.code(), errc::policy_failed) << failed.message();
    EXPECT_THAT(failed.message(), HasSubstr("policy " + policy_name() + ": " + GetParam() + " threw"));
  }
  /// Makes requests that call every function of the policy; returns the result of the one that met the failure.
  struct outcome {
    status failed;
    unsigned refused = 0;
  };
  outcome ask_everything(allocator& a) {
    outcome out;
    const auto take = [&](std::size_t bytes) {
      const result<void*> got = a.try_allocate({.bytes = bytes});
      EXPECT_TRUE(a.check(0).ok()) << a.check(0).message();
      if (!got && got.code() != errc::out_of_memory) {
        out.failed = got.why();
        ++out.refused;
      }
      return got.ok() ? *got : nullptr;
    };
    for (const std::size_t bytes : {64 * kib, 3 * mib, 40 * mib, 4 * kib, 63 * mib}) {
      void* const p = take(bytes);
      EXPECT_TRUE(a.try_deallocate(p).ok());
    }
    return out;
  }
  log_sink former_;
  std::string said_;
};

TEST_P(ThrowingPolicy, OnceRefusesOneRequestAndTheNextOneIsServed) {
  const time_limit limit{60};
  now = {.function = GetParam()};
  canned_program program{with(), card()};
  device* const devices[] = {&program.edge()};
  auto opened = allocator::open(devices, with());
  if (asked_at_start()) {
    expect_named(opened.why());
    opened = allocator::open(devices, with());
  }
  ASSERT_TRUE(opened) << opened.why().message();
  const outcome met = ask_everything(**opened);
  EXPECT_EQ(now.thrown, 1U);
  if (!asked_at_start()) {
    EXPECT_EQ(met.refused, 1U);
    expect_named(met.failed);
  }
  const outcome again = ask_everything(**opened);
  EXPECT_EQ(again.refused, 0U) << again.failed.message();
  EXPECT_EQ((*opened)->stats(0)->live_bytes, 0U);
}

TEST_P(ThrowingPolicy, AlwaysRefusesRequestsThatNeedItAndNeverHangs) {
  const time_limit limit{60};
  canned_program program{with(), card()};
  device* const devices[] = {&program.edge()};
  for (const bool no_exception : {false, true}) {
    now = {.function = GetParam(), .always = true, .no_exception = no_exception};
    auto opened = allocator::open(devices, with());
    if (asked_at_start()) {
      expect_named(opened.why());
      continue;
    }
    ASSERT_TRUE(opened) << opened.why().message();
    const outcome met = ask_everything(**opened);
    EXPECT_GE(met.refused, 1U);
    expect_named(met.failed);
    now = {};
    EXPECT_EQ(ask_everything(**opened).refused, 0U) << "once it answers again";
    EXPECT_EQ((*opened)->stats(0)->live_bytes, 0U);
  }
}

class TrimmedPolicy : public ThrowingPolicy {};

TEST_P(TrimmedPolicy, IsNamedByATrimThatMeetsIt) {
  canned_program program{with(), card()};
  ASSERT_TRUE(program.open());
  now = {.function = GetParam()};
  const result<trim_result> refused = program.memory().trim(0);
  EXPECT_EQ(refused.code(), errc::policy_failed);
  EXPECT_THAT(refused.why().message(), HasSubstr("policy throws: gives_back threw: division\\x0aby zero"));
}

INSTANTIATE_TEST_SUITE_P(GivesBack, TrimmedPolicy, ::testing::Values("gives_back"));
INSTANTIATE_TEST_SUITE_P(Each, ThrowingPolicy,
                         ::testing::Values("first", "grow", "grew", "smaller", "pages", "page_in", "segment_class",
                                           "segment_classes", "gives_back"),
                         [](const auto& instance) { return instance.param; });

/// An answer beyond the heap's range of indexes.
class out_of_range final : public policy {
 public:
  segment_request grow(const pool_view&, std::uint64_t need) override { return {.bytes = need, .least_bytes = need}; }
  [[nodiscard]] unsigned segment_class(std::uint64_t) const override { return 2; }
  [[nodiscard]] unsigned segment_classes() const override { return 2; }
};

TEST(AnsweringPolicy, IsRefusedWhereItsClassDoesNotExist) {
  static_cast<void>(register_policy("out_of_range", "for tests",
                                    [](const policy_setup&) { return std::make_unique<out_of_range>(); }));
  settings s;
  ASSERT_TRUE(s.set("policy", "out_of_range").ok());
  canned_program program{s};
  ASSERT_TRUE(program.open());
  const result<void*> refused = program.memory().try_allocate({.bytes = 4096});
  EXPECT_EQ(refused.code(), errc::policy_failed);
  EXPECT_THAT(refused.why().message(),
              HasSubstr("policy out_of_range: segment_class answered 2 for 4096 bytes; expected less than 2"));
}

}  // namespace
}  // namespace gpumem::throwing
