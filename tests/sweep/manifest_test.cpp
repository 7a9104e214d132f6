#include "manifest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "plan.hpp"
#include "test_files.hpp"

namespace gpumem::bench::sweep {
namespace {

std::string small_trace(const std::string& size) {
  return csv("1,00:00:00:000000,allocate,a0," + size + ",0\n1,00:00:00:000001,free,a0," + size + ",0\n");
}

class manifest_file : public testing::Test {
 protected:
  result<manifest> read(const std::string& text) { return read_manifest(folder_.write("m.json", text)); }
  void refuses(const std::string& text, const std::string& reason) {
    const auto got = read(text);
    ASSERT_FALSE(got) << text;
    EXPECT_EQ(got.code(), errc::bad_setting) << text;
    EXPECT_THAT(got.why().message(), testing::StartsWith(folder_.path("m.json"))) << text;
    EXPECT_THAT(got.why().message(), testing::HasSubstr(reason)) << text;
  }
  sweep_plan plan_of(const std::string& text, const std::string& version = "1") {
    auto what = read(text);
    EXPECT_TRUE(what) << what.why().message();
    auto sources = find_sources(*what, 1);
    return make_plan(*std::move(what), version, std::move(sources));
  }
  test_folder folder_;
};

TEST_F(manifest_file, says_what_is_wrong) {
  folder_.write("a.csv", small_trace("1000"));
  refuses("", "no JSON object");
  refuses("[]", "no JSON object");
  refuses(R"({"traces":["a.csv"],"policy":["growth"]})", "'policy' is no key of a manifest; expected one of traces");
  refuses(R"({})", "expected a list of files, folders or globs");
  refuses(R"({"traces":[]})", "expected a list of texts with at least one");
  refuses(R"({"traces":["b*.csv"]})", "'b*.csv' matches no file");
  refuses(R"({"traces":["a.csv"],"policies":["grwth"]})", "grwth");
  refuses(R"({"traces":["a.csv"],"policies":["growth","growth"]})", "named twice");
  refuses(R"({"traces":["a.csv"],"policies":["hard_cap"]})", "hard_cap");
  refuses(R"({"traces":["a.csv"],"policies":["growth,plan=x"]})", "plan= has no meaning in a sweep");
  refuses(R"({"traces":["a.csv"],"devices":["cuda:0"]})", "a sweep is simulated; expected sim or sim:BYTES");
  refuses(R"({"traces":["a.csv"],"devices":["sim:1B"]})", "sim:1B");
  refuses(R"({"traces":["a.csv"],"capacities":["much"]})", "much");
  refuses(R"({"traces":["a.csv"],"capacities":["10%live"]})", "expected a share of the trace's peak live");
  refuses(R"({"traces":["a.csv"],"capacities":["1GiB"],"mode":"fit"})", "mode fit varies the capacity");
  refuses(R"({"traces":["a.csv"],"mode":"best"})", "'best': expected compare or fit");
  refuses(R"({"traces":["a.csv"],"seeds":[-1]})", "-1 is no whole number");
  refuses(R"({"traces":["a.csv"],"seeds":[1,1]})", "named twice");
  refuses(R"({"traces":["a.csv"],"lag":"soon"})", "soon");
  refuses(R"({"traces":["a.csv"],"plan_steps":0})", "expected a whole number from 1");
  refuses(R"({"workloads":["knitting"]})", "knitting");
  refuses(R"({"workloads":["training,seed=4"]})", "expected no seed");
}

TEST_F(manifest_file, finds_traces_beside_it) {
  for (const char* name : {"b2.csv", "b1.csv", "c.csv"}) folder_.write(name, small_trace("1000"));
  const auto got = read(R"({"traces":["b*.csv","c.csv","b1.csv"],"policies":"growth"})");
  ASSERT_TRUE(got) << got.why().message();
  EXPECT_THAT(got->traces, testing::ElementsAre(folder_.path("b1.csv"), folder_.path("b2.csv"), folder_.path("c.csv")));
  EXPECT_THAT(got->devices, testing::ElementsAre("sim"));
  EXPECT_EQ(got->seeds, std::vector<std::uint64_t>{1});
}

TEST_F(manifest_file, has_every_policy_where_none_is_named) {
  folder_.write("a.csv", small_trace("1000"));
  const auto got = read(R"({"traces":["a.csv"]})");
  ASSERT_TRUE(got) << got.why().message();
  EXPECT_GE(got->policies.size(), 7U);
}

TEST_F(manifest_file, gives_every_unit_a_key_of_its_own) {
  folder_.write("a.csv", small_trace("1000"));
  folder_.write("b.csv", small_trace("2000"));
  const std::string text =
      R"({"traces":["*.csv"],"policies":["growth","caching"],"capacities":["1GiB","2GiB"],"seeds":[1,2],"devices":["sim:8GiB"])";
  const sweep_plan plan = plan_of(text + "}");
  std::set<std::string> keys;
  for (const unit& each : plan.units) keys.insert(hex(each.key));
  EXPECT_EQ(plan.units.size(), 16U);
  EXPECT_EQ(keys.size(), 16U);
  EXPECT_EQ(hex(plan_of(text + "}").units.front().key), hex(plan.units.front().key));
  EXPECT_FALSE(keys.contains(hex(plan_of(text + "}", "2").units.front().key)));
  EXPECT_FALSE(keys.contains(hex(plan_of(text + R"(,"lag":"2ms"})").units.front().key)));
  folder_.write("a.csv", small_trace("1001"));
  EXPECT_FALSE(keys.contains(hex(plan_of(text + "}").units.front().key)));
}

TEST_F(manifest_file, counts_a_trace_once_whatever_its_names) {
  folder_.write("a.csv", small_trace("1000"));
  folder_.write("b.csv", small_trace("1000"));
  const sweep_plan plan = plan_of(R"({"traces":["*.csv"],"policies":["growth"]})");
  ASSERT_EQ(plan.traces.size(), 1U);
  EXPECT_EQ(plan.traces.front().name, "a");
}

TEST_F(manifest_file, begins_with_what_takes_longest) {
  folder_.write("a.csv", small_trace("1000"));
  std::string rows;
  for (int i = 1; i <= 100; ++i) rows += "1,00:00:00:000000,allocate," + std::to_string(i) + "00,512,0\n";
  folder_.write("b.csv", csv(rows));
  const sweep_plan plan = plan_of(R"({"traces":["*.csv"],"policies":["growth","growth,tenants=2"],"seeds":[1]})");
  ASSERT_EQ(plan.order.size(), 4U);
  EXPECT_EQ(plan.order.front(), 3U);
  EXPECT_EQ(plan.order.back(), 0U);
}

TEST(capacity, is_a_share_of_what_is_live) {
  const capacity share{"110%live", 1.1};
  EXPECT_EQ(share.limit_for(1'000'000), "1100288");
  EXPECT_EQ((capacity{"4GiB", {}}.limit_for(1)), "4GiB");
}

}  // namespace
}  // namespace gpumem::bench::sweep
