// Plans and the problems of published benchmarks. The checksum at a plan's end is corrected, since no mutation would
// find it; an input without one gets one. An input that begins with 1 is the numbers of a plan, which is written with
// its fingerprint. A plan that is accepted is followed.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <string>

#include "fuzzed.hpp"
#include "plan_file.hpp"
#include "plan_matcher.hpp"
#include "problem_file.hpp"

using namespace gpumem;

namespace {

constexpr std::string_view checksum_word = "checksum ";

std::uint64_t checksum(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a, as in the plan's last line
  for (const char each : text) hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001b3U;
  return hash;
}

std::string with_checksum(std::string_view input) {
  std::string body{input.substr(0, input.rfind(checksum_word))};
  if (body.empty() || body.back() != '\n') body += '\n';
  return fmt::format("{}{}{:016x}\n", body, checksum_word, checksum(body));
}

/// A plan of the numbers in `input`: 32 bytes of totals, then 24 bytes for each allocation.
plan::step_plan plan_of(std::string_view input) {
  const auto next = [&input] {
    std::uint64_t value = 0;
    std::memcpy(&value, input.data(), sizeof value);
    input.remove_prefix(sizeof value);
    return value;
  };
  plan::step_plan made;
  made.height_bytes = next();
  made.peak_bytes = next();
  made.lower_bound_bytes = next();
  made.repeat_from = static_cast<std::uint32_t>(next());
  while (input.size() >= 3 * sizeof(std::uint64_t)) {
    plan::planned_allocation each;
    each.bytes = next() * plan::granule_bytes;
    each.offset = next() * plan::granule_bytes;
    each.stream = static_cast<std::uint16_t>(next());
    made.allocations.push_back(each);
  }
  return made;
}

void follow(plan::step_plan made) {
  const auto shared = std::make_shared<const plan::step_plan>(std::move(made));
  plan::plan_matcher follows{shared};
  std::uint32_t block = 0;
  for (const plan::planned_allocation& each : shared->allocations) {
    if (const auto place = follows.next(each.bytes, each.stream)) {
      fuzz::require(follows.offset(*place) <= shared->height_bytes, "an offset lies within the plan");
      follows.placed(*place, block++);
    }
    if (block == 1000) break;
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const std::string_view input = fuzz::text_of(data, bytes);
  static_cast<void>(plan::parse_problem(input));
  static_cast<void>(plan::parse_plan(input));
  const bool numbers = !input.empty() && input[0] == 1 && input.size() > 4 * sizeof(std::uint64_t);
  const std::string text = numbers ? plan::plan_text(plan_of(input.substr(1))) : with_checksum(input);
  result<plan::step_plan> read = plan::parse_plan(text);
  if (!read) {
    fuzz::require(!read.why().message().empty(), "a refusal has a reason");
    return 0;
  }
  fuzz::require(plan::parse_plan(plan::plan_text(*read)).ok(), "a plan that is written can be read");
  follow(*std::move(read));
  return 0;
}
