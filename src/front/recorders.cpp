#include "allocation_recorder.hpp"
#include "logical_devices.hpp"
#include "plan_recorder.hpp"
#include "trace_recorder.hpp"

namespace gpumem {

result<recorder_list> open_recorders(const settings& options, const policy_entry& serves, int logical) {
  recorder_list all;
  if (!options.trace_path.empty() && options.history_events == 0) {  // otherwise history_file owns the path
    auto opened = trace_recorder::open(path_of_pool(options.trace_path, logical));
    if (!opened) return opened.why();
    all.push_back(*std::move(opened));
  }
  if (serves.needs.plan.records && trusts_default_plan(options)) {
    using writes = plan_recorder::writes;
    const std::string path = plan_of_pool(options, logical);
    auto opened =
        serves.needs.plan.follows
            ? plan_recorder::open(path, writes::where_departed, plan_recorder::most_ops_of_each_run, options.reuse)
            : plan_recorder::open(path, writes::always, plan_recorder::most_ops, options.reuse);
    if (!opened) return opened.why();
    all.push_back(*std::move(opened));
  }
  return all;
}

}  // namespace gpumem
