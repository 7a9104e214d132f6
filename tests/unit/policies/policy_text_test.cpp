/// Policies with parameters as users write them, and the tables that the registry gives.
#include "policy_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "views.hpp"

namespace gpumem::test {
namespace {

using ::testing::HasSubstr;

TEST(PolicyText, SplitsParametersAtCommaAndPlus) {
  EXPECT_TRUE(parameters_in("growth")->empty());
  EXPECT_EQ(*parameters_in("planned:renew"), (policy_parameters{{"renew", ""}}));
  for (const char* text : {"any:a=1,b=x:y,c", "any:a=1+b=x:y+c", "any: a=1 , b=x:y ,c "}) {
    EXPECT_EQ(*parameters_in(text), (policy_parameters{{"a", "1"}, {"b", "x:y"}, {"c", ""}})) << text;
  }
}

TEST(PolicyText, RefusesUnknownParameters) {
  for (const char* text : {"any:", "any:a=", "any:=1", "any:a=1,", "any:a b", "any:a=1,a=2", "any:a/b=1"}) {
    EXPECT_EQ(parameters_in(text).code(), errc::bad_setting) << text;
  }
  EXPECT_EQ(parameters_in("any:a=1,a=2").why().message(), "policy any:a=1,a=2: a is named twice");
}

TEST(PolicyText, ChecksParametersAgainstThoseThatAreDeclared) {
  const auto message = [](const char* text) { return find_policy(text).why().message(); };
  EXPECT_EQ(message("caching:slack=5%"), "policy caching:slack=5%: unknown parameter; expected none");
  EXPECT_EQ(message("expandable:limti=4GiB"),
            "policy expandable:limti=4GiB: unknown parameter; expected slack=VALUE, exchange_rate=VALUE");
  EXPECT_EQ(message("planned:renwe"),
            "policy planned:renwe: unknown parameter; expected record, renew, exchange_rate=VALUE");
  EXPECT_EQ(message("planned:renew=1"), "policy planned:renew=1: expected the word alone");
  EXPECT_THAT(message("expandable:slack"), HasSubstr("expected slack=share of what is held"));
  EXPECT_TRUE(find_policy("expandable:slack=5%").ok());
}

TEST(PolicyText, ASettingsValueWinsOverTheText) {
  const auto made = make_policy("expandable:slack=50%", {.total_bytes = 80 * gib,
                                                         .free_at_start_bytes = 80 * gib,
                                                         .compute_major = 9,
                                                         .granularity_bytes = 2 * mib,
                                                         .page_bytes = 2 * mib,
                                                         .parameters = {{"slack", "0"}}});
  ASSERT_TRUE(made.ok()) << made.why().message();
  pool_view v = view_of(80 * gib, 100 * mib);
  v.live_bytes = 90 * mib;
  v.peak_live_bytes = 100 * mib;
  EXPECT_EQ((*made)->page_in(v, 10 * mib, 10 * mib).make_bytes, 0U);
}

TEST(PolicyText, AUsersPolicyMayDeclareParameters) {
  policy_parameters seen;
  ASSERT_TRUE(register_policy({.name = "declared",
                               .summary = "",
                               .parameters = {{.name = "share", .values = "a number"}, {.name = "fast"}}},
                              [&seen](const policy_setup& setup) {
                                seen = setup.parameters;
                                return std::move(*make_policy("growth", {}));
                              })
                  .ok());
  EXPECT_TRUE(make_policy("declared:share=3,fast", {}).ok());
  EXPECT_EQ(seen, (policy_parameters{{"share", "3"}, {"fast", ""}}));
  EXPECT_EQ(make_policy("declared:slow", {}).code(), errc::bad_setting);
}

}  // namespace
}  // namespace gpumem::test
