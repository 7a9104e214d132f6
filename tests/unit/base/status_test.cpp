#include "gpumem/status.hpp"

#include <gtest/gtest.h>

#include <new>
#include <utility>

#include "without_exceptions.hpp"

namespace gpumem {
namespace {

TEST(Status, EveryCodeIsNamedAsItsEnumerator) {
#define EXPECT_NAMED(code) EXPECT_EQ(to_string(errc::code), #code)
  EXPECT_NAMED(ok);
  EXPECT_NAMED(invalid_argument);
  EXPECT_NAMED(bad_setting);
  EXPECT_NAMED(out_of_memory);
  EXPECT_NAMED(unknown_pointer);
  EXPECT_NAMED(double_free);
  EXPECT_NAMED(wrong_size);
  EXPECT_NAMED(wrong_device);
  EXPECT_NAMED(unsupported);
  EXPECT_NAMED(device_error);
  EXPECT_NAMED(corrupt);
  EXPECT_NAMED(policy_failed);
  EXPECT_NAMED(host_failure);
#undef EXPECT_NAMED
  EXPECT_EQ(to_string(static_cast<errc>(static_cast<int>(errc::policy_failed) + 1)), "unknown_code");
  EXPECT_EQ(to_string(static_cast<errc>(200)), "unknown_code");
}

TEST(Status, OkHasNoMessage) {
  const status fine;
  EXPECT_TRUE(fine.ok());
  EXPECT_EQ(fine.message(), "");
}

TEST(Status, CopiesShareTheMessageAndOutliveEachOther) {
  status kept;
  {
    const status first{errc::wrong_size, "4 bytes: expected 8"};
    const status second = first;
    kept = second;
    EXPECT_EQ(&first.message(), &second.message());
  }
  EXPECT_EQ(kept.code(), errc::wrong_size);
  EXPECT_EQ(kept.message(), "4 bytes: expected 8");
  status moved = std::move(kept);
  const status& itself = moved;
  moved = itself;
  EXPECT_EQ(moved.message(), "4 bytes: expected 8");
  moved = {};
  EXPECT_TRUE(moved.ok());
  EXPECT_TRUE(status(errc::ok, "").ok());
}

TEST(Status, AnExceptionBecomesTheStatusThatItCarriesOrAHostFailure) {
  const auto caught = [](const auto& thrown) { return without_exceptions([&]() -> status { throw thrown; }); };
  EXPECT_EQ(caught(std::bad_alloc{}).code(), errc::host_failure);
  EXPECT_NE(caught(std::bad_alloc{}).message(), "");
  EXPECT_EQ(caught(7).code(), errc::host_failure);
  const status carried = caught(thrown_status{{errc::policy_failed, "policy p: grow threw"}});
  EXPECT_EQ(carried.code(), errc::policy_failed);
  EXPECT_EQ(carried.message(), "policy p: grow threw");
  EXPECT_TRUE(without_exceptions([] { return status{}; }).ok());
}

TEST(Status, ResultIsAValueOrTheReason) {
  const result<int> value = 7;
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(*value, 7);
  const result<int> none = status{errc::corrupt, "line 3 is cut short"};
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(none.code(), errc::corrupt);
  EXPECT_EQ(none.why().message(), "line 3 is cut short");
}

TEST(StatusDeathTest, TheValueOfAFailureAbortsWithItsMessage) {
  result<std::string> none = status{errc::wrong_device, "device 7 does not exist"};
  const char* const told = "gpumem: the value of a failed call was read: wrong_device: device 7 does not exist";
  EXPECT_DEATH(static_cast<void>(*none), told);
  EXPECT_DEATH(static_cast<void>(none->size()), told);
  EXPECT_DEATH(static_cast<void>(*std::move(none)), told);
  EXPECT_DEATH(static_cast<void>(*std::as_const(none)), told);
}

TEST(StatusDeathTest, AResultOfAnOkStatusAborts) {
  EXPECT_DEATH(static_cast<void>(result<int>{status{}}), "gpumem: a result was made of a status that is ok");
}

}  // namespace
}  // namespace gpumem
