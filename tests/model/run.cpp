#include "run.hpp"

#include <fmt/format.h>

#include <array>
#include <span>

#include "expect.hpp"
#include "log.hpp"
#include "shrink.hpp"
#include "world.hpp"

namespace gpumem::model {
namespace {

constexpr std::array reuse_words{"device", "poll", "host"};
constexpr std::array id_words{"query", "notify"};

/// Drops the log: out-of-memory reports are expected by the thousand.
class silence {
 public:
  silence() : former_{set_log_sink([](std::string_view) {})} {}
  ~silence() { set_log_sink(std::move(former_)); }
  silence(const silence&) = delete;
  silence& operator=(const silence&) = delete;

 private:
  log_sink former_;
};

}  // namespace

std::string configuration::to_string() const {
  return fmt::format("{}, limit {}, {}, reuse {}, ids {}{}{}", policy, limit.empty() ? "none" : limit,
                     pools.empty() ? "one pool" : "pools " + pools, reuse_words.at(static_cast<std::size_t>(reuse)),
                     id_words.at(static_cast<std::size_t>(stream_ids)), with_faults ? ", faults" : "",
                     thread_cache ? "" : ", no thread caches");
}

result<settings> configuration::to_settings() const {
  settings out;
  out.reserve_bytes = std::uint64_t{8} << 20;
  out.reuse = reuse;
  out.stream_ids = stream_ids;
  out.thread_cache = thread_cache;
  if (status s = out.set("policy", policy); !s) return s;
  if (!limit.empty()) {
    if (status s = out.set("limit", limit); !s) return s;
  }
  if (!pools.empty()) {
    if (status s = out.set("pools", pools); !s) return s;
  }
  return out;
}

result<std::unique_ptr<allocator>> open_product(sim_device& on, const settings& with) {
  const std::array<device*, 1> devices{&on};
  return allocator::open(devices, with);
}

std::optional<failure> run(const configuration& with, const std::vector<operation>& operations, const opener& open) {
  const silence quiet;
  unsigned at = 0;
  try {
    world w{with, open};
    w.check();
    for (const operation& op : operations) {
      at = op.number;
      w.perform(op);
      w.check();
    }
    at = 0;
    w.finish();
  } catch (const disagreement& d) {
    return failure{at, d.what};
  }
  return std::nullopt;
}

std::optional<std::string> run_and_shrink(const configuration& with, std::uint64_t seed, unsigned count,
                                          const opener& open) {
  const std::vector<operation> all = random_operations(
      seed, count, {.pools = with.pool_count(), .capacity_bytes = capacity_bytes, .with_faults = with.with_faults});
  const std::optional<failure> first = run(with, all, open);
  if (!first) return std::nullopt;

  const std::vector<operation> fewest =
      shrink(all, [&](const std::vector<operation>& some) { return run(with, some, open).has_value(); });
  const std::optional<failure> last = run(with, fewest, open);
  std::string story = fmt::format(
      "{}\n  again: GPUMEM_MODEL_SEED={} GPUMEM_MODEL_OPS={} GPUMEM_MODEL_RUNS=1\n  operation #{} of {}: {}\n"
      "{} operations are enough, with operation #{}: {}\n",
      with.to_string(), seed, count, first->operation, count, first->what, fewest.size(), last->operation, last->what);
  for (const operation& op : fewest) story += "  " + op.to_string() + '\n';
  return story;
}

}  // namespace gpumem::model
