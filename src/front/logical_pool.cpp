#include "logical_pool.hpp"

#include <fmt/format.h>

#include "assign_or_return.hpp"
#include "call_prices.hpp"
#include "log.hpp"
#include "logical_devices.hpp"
#include "plan_recorder.hpp"
#include "trace_recorder.hpp"

namespace gpumem {
namespace {

/// Creates a pool's recorders: of its trace (GPUMEM_TRACE), and of its plan if its policy records one. Each has its own
/// file, numbered by `logical`. `bad_setting` if a file cannot be written.
result<recorder_list> open_recorders(const settings& options, const policy_entry& serves, int logical) {
  recorder_list all;
  if (!options.trace_path.empty() && options.history_events == 0) {  // otherwise history_file owns the path
    ASSIGN_OR_RETURN(auto opened, trace_recorder::open(path_of_pool(options.trace_path, logical)));
    all.push_back(std::move(opened));
  }
  if (serves.needs.plan.records && trusts_default_plan(options)) {
    using writes = plan_recorder::writes;
    const std::string path = plan_of_pool(options, logical);
    ASSIGN_OR_RETURN(
        auto opened,
        serves.needs.plan.follows
            ? plan_recorder::open(path, writes::where_departed, plan_recorder::most_ops_of_each_run, options.reuse)
            : plan_recorder::open(path, writes::always, plan_recorder::most_ops, options.reuse));
    all.push_back(std::move(opened));
  }
  return all;
}

}  // namespace

result<logical_pool> open_logical_pool(device& gpu, pool_config config, const settings& own) {
  config.verbose = own.verbose;
  config.history_events = own.history_events;
  ASSIGN_OR_RETURN(auto history, history_file::open(own, config.ordinal));
  ASSIGN_OR_RETURN(const auto entry, find_policy(config.policy_name));
  ASSIGN_OR_RETURN(auto recorders, open_recorders(own, entry, config.ordinal));
  if (!recorders.empty()) {
    config.before_free = [first = recorders.data(), count = recorders.size()](address begin, std::uint64_t bytes,
                                                                              stream_ref stream) {
      for (std::size_t i = 0; i < count; ++i) first[i]->freed(begin, bytes, stream);
    };
  }
  policy_parameters parameters = parameters_from_settings(entry, own, config.policy_name);
  if (const std::string& instead = entry.needs.without_pages; !instead.empty() && gpu.info().page_bytes == 0) {
    log_line(fmt::format("pool {}: device {} ({}) cannot map pages, which policy {} needs; {} serves instead",
                         config.name, gpu.info().ordinal, gpu.info().name, config.policy_name, instead));
    config.policy_name = instead;
    parameters.clear();
  }
  if (entry.needs.plan.follows) {
    if (status ok = read_plan_of(config, own, entry); !ok) return ok;
  }
  if (own.verbose && prices_by_name(gpu.info().name) == nullptr) {
    log_line(fmt::format("pool {}: the prices of driver calls on {} are unknown; those of {} serve", config.name,
                         gpu.info().name, prices_of(gpu.info().name, gpu.info().compute_major).card));
  }
  ASSIGN_OR_RETURN(auto policy, make_policy(config.policy_name, {.total_bytes = config.total_bytes,
                                                                 .free_at_start_bytes = config.free_at_start_bytes,
                                                                 .card = gpu.info().name,
                                                                 .compute_major = gpu.info().compute_major,
                                                                 .granularity_bytes = gpu.info().granularity_bytes,
                                                                 .page_bytes = gpu.info().page_bytes,
                                                                 .parameters = std::move(parameters)}));
  if (config.plan != nullptr) policy->follow_plan(config.plan->height_bytes);
  return logical_pool{.recorders = std::move(recorders),  // the move keeps the addresses that `before_free` uses
                      .history = std::move(history),
                      .pool = std::make_unique<pool>(gpu, std::move(config), std::move(policy)),
                      .device = &gpu,
                      .takes_everything = entry.needs.everything};
}

status usable(const device& gpu) {
  switch (gpu.condition()) {
    case device_condition::usable:
      break;
    case device_condition::forked:
      return {errc::device_error,
              fmt::format("device {} cannot be used in a process that was forked after it was: use it in the parent, "
                          "or start the child with exec or spawn",
                          gpu.info().ordinal)};
    case device_condition::reset:
      return {errc::device_error, fmt::format("device {} was reset, and all memory on it is gone: open a new allocator",
                                              gpu.info().ordinal)};
  }
  return {};
}

status at_each_that_knows(const std::vector<logical_pool>& pools, stream_ref stream, const device* only,
                          const std::function<status(pool&, std::uint64_t key)>& call) {
  status unknown;
  bool known = false;
  for (const logical_pool& p : pools) {
    if (only != nullptr && p.device != only) continue;
    const status ok = usable(*p.device);
    const result<std::uint64_t> key = ok ? p.pool->streams().key_of(stream) : ok;
    if (!key) {
      unknown = key.why();
      continue;
    }
    known = true;
    if (status answer = call(*p.pool, *key); !answer) return answer;
  }
  return known ? status{} : unknown;
}

status exists(const std::vector<logical_pool>& pools, int device) {
  if (device >= 0 && static_cast<std::size_t>(device) < pools.size()) return {};
  return {errc::wrong_device,
          fmt::format("device {} does not exist; expected 0 to {}", device, static_cast<int>(pools.size()) - 1)};
}

}  // namespace gpumem
