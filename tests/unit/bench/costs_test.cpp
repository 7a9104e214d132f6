/// On the simulated device the measurement must return the device's own table, call by call.
#include "costs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bits.hpp"

namespace gpumem::bench {
namespace {

TEST(costs, of_the_simulated_device_are_its_table) {
  replay_setup setup;
  const auto figures = measure_costs_of(setup);
  ASSERT_TRUE(figures.ok()) << figures.why().message();
  // watch_graph is impossible outside a capture.
  EXPECT_EQ(figures->fitted.size(), device_call_kinds - 1);
  for (const fitted_cost& f : figures->fitted) {
    const call_cost expected = sim_default_costs()[static_cast<std::size_t>(f.call)];
    EXPECT_NEAR(f.fixed_ns, static_cast<double>(expected.fixed_ns), 1e-3) << to_string(f.call);
    EXPECT_NEAR(f.per_page_ns, static_cast<double>(expected.per_page_ns), 1e-6) << to_string(f.call);
  }
  const auto json = nlohmann::json::parse(costs_json(*figures, setup));
  EXPECT_EQ(json["simulated"], true);
  EXPECT_EQ(json["fitted"].size(), figures->fitted.size());
  EXPECT_THAT(costs_table(*figures, setup), testing::HasSubstr("Simulated, the virtual clock"));
}

TEST(costs, of_a_small_device_stay_within_it) {
  replay_setup setup;
  setup.device.capacity_bytes = 32 * mib;
  const auto figures = measure_costs_of(setup);
  ASSERT_TRUE(figures.ok()) << figures.why().message();
  for (const call_time& t : figures->times) EXPECT_LE(t.bytes, 8 * mib);
}

}  // namespace
}  // namespace gpumem::bench
