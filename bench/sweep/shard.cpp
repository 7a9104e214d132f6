#include "shard.hpp"

#include <fmt/format.h>

#include "text.hpp"

namespace gpumem::bench::sweep {

std::string shard::label() const { return count == 1 ? "alone" : fmt::format("shard{}of{}", index, count); }

result<shard> parse_shard(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash != std::string_view::npos) {
    const auto index = whole_number<unsigned>(text.substr(0, slash));
    const auto count = whole_number<unsigned>(text.substr(slash + 1));
    if (index && count && *index >= 1 && *index <= *count) return shard{*index, *count};
  }
  return status{errc::bad_setting,
                fmt::format("--shard {}: expected i/n with i from 1 to n, such as 3/8", printable(text))};
}

result<std::optional<shard>> shard_of_array(const std::function<const char*(const char*)>& variable) {
  const char* const id_text = variable("SLURM_ARRAY_TASK_ID");
  if (id_text == nullptr) return std::optional<shard>{};
  const auto read = [&](const char* name, unsigned otherwise) -> std::optional<unsigned> {
    const char* const text = variable(name);
    return text == nullptr ? otherwise : whole_number<unsigned>(text);
  };
  const auto id = whole_number<unsigned>(id_text);
  const auto count = read("SLURM_ARRAY_TASK_COUNT", 0);
  const auto first = read("SLURM_ARRAY_TASK_MIN", 0);
  const auto step = read("SLURM_ARRAY_TASK_STEP", 1);
  if (id && count && first && step && *step != 0 && *id >= *first && (*id - *first) % *step == 0 &&
      (*id - *first) / *step < *count) {
    return std::optional{shard{(*id - *first) / *step + 1, *count}};
  }
  return status{
      errc::bad_setting,
      fmt::format("SLURM_ARRAY_TASK_ID={} with SLURM_ARRAY_TASK_COUNT={}: expected tasks in equal steps, such "
                  "as --array=0-7; or name the share with --shard i/n",
                  printable(id_text), count ? fmt::format("{}", *count) : "?")};
}

std::vector<std::uint32_t> units_of(const shard& share, const std::vector<std::uint32_t>& order) {
  std::vector<std::uint32_t> units;
  for (std::size_t i = share.index - 1; i < order.size(); i += share.count) units.push_back(order[i]);
  return units;
}

}  // namespace gpumem::bench::sweep
