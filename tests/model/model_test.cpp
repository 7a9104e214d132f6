/// Every policy x limit x pools, and in each case every way to reuse memory across streams x both sources of stream
/// identities, without faults and with them; odd seeds with thread caches, even ones without. GPUMEM_MODEL_SEED (the
/// first seed), GPUMEM_MODEL_RUNS (how many) and GPUMEM_MODEL_OPS (operations a run) make it longer or repeat a
/// failure.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "environment_number.hpp"
#include "gpumem/policy.hpp"
#include "run.hpp"

namespace gpumem::model {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#elif defined(__has_feature)
constexpr bool sanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool sanitized = false;
#endif

std::vector<configuration> every_configuration() {
  std::vector<configuration> out;
  for (const policy_entry& entry : known_policies()) {
    for (const char* limit : {"", "100663807", "40%", "60%free"}) {
      for (const char* pools : {"", "a:40%,b:48MiB"}) {
        if (entry.needs.limit && *limit == '\0') continue;
        if (entry.needs.pools && *pools == '\0') continue;
        out.push_back({.policy = entry.name, .limit = limit, .pools = pools});
        if (entry.variants.empty()) continue;
        out.push_back({.policy = entry.name + ":" + entry.variants.front(), .limit = limit, .pools = pools});
      }
    }
  }
  return out;
}

std::string name_of(const ::testing::TestParamInfo<configuration>& info) {
  const configuration& c = info.param;
  std::string name = c.policy + "_limit_" + (c.limit.empty() ? "none" : c.limit);
  name += c.pools.empty() ? "_one_pool" : "_two_pools";
  for (const auto& [sign, word] : {std::pair{"%free", "percent_of_free"}, std::pair{"%", "percent"}}) {
    const std::size_t at = name.find(sign);
    if (at != std::string::npos) name.replace(at, std::string{sign}.size(), word);
  }
  std::replace_if(
      name.begin(), name.end(), [](unsigned char ch) { return std::isalnum(ch) == 0; }, '_');
  return name;
}

class Model : public ::testing::TestWithParam<configuration> {};

TEST_P(Model, AgreesWithTheNaiveHeap) {
  const std::uint64_t first_seed = environment_number("GPUMEM_MODEL_SEED", 1);
  const std::uint64_t runs = environment_number("GPUMEM_MODEL_RUNS", sanitized ? 2 : 8);
  const auto count = static_cast<unsigned>(environment_number("GPUMEM_MODEL_OPS", sanitized ? 100 : 400));
  configuration c = GetParam();
  for (const stream_reuse reuse : {stream_reuse::device, stream_reuse::poll, stream_reuse::host}) {
    for (const stream_id_mode ids : {stream_id_mode::query, stream_id_mode::notify}) {
      for (const bool with_faults : {false, true}) {
        c.reuse = reuse;
        c.stream_ids = ids;
        c.with_faults = with_faults;
        for (std::uint64_t seed = first_seed; seed < first_seed + runs; ++seed) {
          c.thread_cache = seed % 2 != 0;
          const auto story = run_and_shrink(c, seed, count);
          if (story) FAIL() << *story;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Model, ::testing::ValuesIn(every_configuration()), name_of);

}  // namespace
}  // namespace gpumem::model
